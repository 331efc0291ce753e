package framework_test

import (
	"maps"
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

// TestAttributes writes attributes of every type as text, with the fault domain and what hosts can do, and takes a host's pool and the model of its GPUs
// from them.
func TestAttributes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster.Config{}, framework.Config{PoolAttribute: "pool"})
	text := func(name, value string) mesos.Attribute {
		return mesos.Attribute{Name: name, Type: mesos.TEXT, Text: &mesos.Value_Text{Value: value}}
	}
	attributes := []mesos.Attribute{
		text("rack", "r1"), text("pool", "batch"), text("gpu_model", "a100"), text("tag", "x"), text("tag", "y"),
		{Name: "cores", Type: mesos.SCALAR, Scalar: &mesos.Value_Scalar{Value: 8.5}},
		{Name: "slots", Type: mesos.RANGES, Ranges: &mesos.Value_Ranges{Range: []mesos.Value_Range{{Begin: 1, End: 3}, {Begin: 7, End: 7}}}},
		{Name: "disks", Type: mesos.SET, Set: &mesos.Value_Set{Item: []string{"ssd", "hdd"}}},
	}
	domain := &mesos.DomainInfo{FaultDomain: &mesos.DomainInfo_FaultDomain{
		Region: mesos.DomainInfo_FaultDomain_RegionInfo{Name: "north"}, Zone: mesos.DomainInfo_FaultDomain_ZoneInfo{Name: "n1"},
	}}
	w.master(func(c *cluster.Cluster) {
		for range 2 { // two agents of one machine
			c.AddAgent(cluster.Agent{
				Hostname: "h", Port: 5051 + len(c.Agents()), Resources: append(cluster.Plain(8, 1024, 0, 0, 0), scalar("gpus", 1)), Attributes: attributes, Domain: domain,
			})
		}
	})
	w.subscribe()
	w.settle()
	h := w.hosts["h"]
	want := map[string]string{
		"rack": "r1", "pool": "batch", "gpu_model": "a100", "tag": "x,y", "cores": "8.5", "slots": "1-3,7-7", "disks": "hdd,ssd",
		"region": "north", "zone": "n1", "can/command": "yes", "can/image": "yes", "can/containers": "yes", "can/artifact": "yes", "can/volume": "yes",
		"can/user": "yes", "can/mesos": "yes",
	}
	if !maps.Equal(h.Attributes, want) {
		t.Errorf("its attributes are %v, want %v", h.Attributes, want)
	}
	if h.Pool != "batch" || len(h.Devices) != 1 || h.Devices[0].Model != "a100" || h.Details["domain"] != "north/n1" {
		t.Errorf("the host is %+v", h)
	}
	if other := w.hosts["h:5052"]; other.ID == h.ID || other.ID == "" {
		t.Errorf("the other agent of the machine is %+v; hosts are %v", other, w.hosts)
	}
}
