package simulated_test

import (
	"bytes"
	"compress/gzip"
	"reflect"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

const (
	openb  = "sn,cpu_milli,memory_mib,gpu,model\nnode-0,32000,262144,0,\nnode-1,96000,786432,2,G2\n"
	google = "machine_id,platform,cpus,memory\n5,A,0.5,0.2493\n6,B,1,1\n"
)

func pack(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReadInventory(t *testing.T) {
	for _, text := range []string{openb, pack(t, openb)} {
		hosts, err := simulated.ReadInventory(strings.NewReader(text), simulated.Scale{})
		if err != nil || len(hosts) != 2 {
			t.Fatalf("%d hosts, %v", len(hosts), err)
		}
		want := driver.Host{
			Name: "node-1", Attributes: map[string]string{"gpu_model": "G2"}, Ready: true, Ports: simulated.DefaultPorts,
			Capacity: map[string]int64{"cpu_milli": 96_000, "memory_mib": 786_432, "gpu_milli": 2000},
			Devices:  []driver.Device{{Model: "G2", Milli: 1000}, {Model: "G2", Milli: 1000}},
		}
		if !reflect.DeepEqual(hosts[1], want) {
			t.Errorf("host 1 is\n%+v, want\n%+v", hosts[1], want)
		}
	}
	hosts, err := simulated.ReadInventory(strings.NewReader(google), simulated.DefaultScale)
	if err != nil || len(hosts) != 2 {
		t.Fatalf("%d hosts, %v", len(hosts), err)
	}
	if h := hosts[0]; h.Name != "machine-5" || h.Capacity["cpu_milli"] != 32_000 || h.Capacity["memory_mib"] != 65_352 || h.Attributes["platform"] != "A" {
		t.Errorf("host 0 is %+v", h)
	}
}

func TestABadInventoryIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "header",
		"a,b\n":              "must be",
		openb + "x,1,1":      "wrong number of fields",
		openb + "x,-1,1,0,":  "line 4: cpu_milli",
		openb + "x,1,1,17,":  "line 4: gpu is 17",
		openb + ",1,1,1,":    "line 4: a host's name",
		google + "7,A,1.5,1": "line 4",
		google + "7,A,NaN,1": "line 4",
		"\x1f\x8bnonsense":   "unpack",
	} {
		if _, err := simulated.ReadInventory(strings.NewReader(text), simulated.DefaultScale); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want something with %q", text, err, want)
		}
	}
}

func TestGenerate(t *testing.T) {
	fleet := simulated.Fleet{
		Hosts: 4000, HostsPerRack: 40, RacksPerZone: 10, Seed: 3,
		Shapes: []simulated.Shape{
			{Weight: 3, Capacity: map[string]int64{"cpu_milli": 1000}},
			{Weight: 1, Capacity: map[string]int64{"cpu_milli": 2000}, Devices: []driver.Device{{Model: "x", Milli: 1000}}},
		},
	}
	hosts, err := simulated.Generate(fleet)
	if err != nil {
		t.Fatal(err)
	}
	again, err := simulated.Generate(fleet)
	if err != nil || !reflect.DeepEqual(hosts, again) {
		t.Errorf("the same fleet is of other hosts (%v)", err)
	}
	withDevice := 0
	for _, h := range hosts {
		if len(h.Devices) > 0 {
			withDevice++
			if h.Capacity["gpu_milli"] != 1000 || h.Capacity["cpu_milli"] != 2000 {
				t.Fatalf("a host with a device has %v", h.Capacity)
			}
		}
	}
	if withDevice < 800 || withDevice > 1200 {
		t.Errorf("%d of 4000 hosts are of the shape with a quarter of the weight", withDevice)
	}
	if a := hosts[3999].Attributes; a["rack"] != "rack-99" || a["zone"] != "zone-9" {
		t.Errorf("the last host has %v", a)
	}
	if _, err := simulated.Generate(simulated.Fleet{}); err == nil {
		t.Error("a fleet of nothing")
	}
}

func FuzzReadInventory(f *testing.F) {
	for _, seed := range []string{openb, google, pack(f, openb), openb + "x,9999999999999999999,1,1,", google + "7,A,1e-400,+Inf"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		hosts, err := simulated.ReadInventory(bytes.NewReader(raw), simulated.DefaultScale)
		if err != nil {
			return
		}
		for _, h := range hosts {
			if h.Name == "" || h.Capacity["cpu_milli"] < 0 || h.Capacity["memory_mib"] < 0 || int64(len(h.Devices))*1000 != h.Capacity["gpu_milli"] {
				t.Errorf("read a host %+v", h)
			}
		}
	})
}
