package wasm_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	sdk "github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// listener is a policy that keeps what it is told, and places as choose says.
type listener struct {
	heard  *[]heard
	choose func(c *sdk.Call)
}

// heard is one request as a policy is told of it.
type heard struct {
	priority  int
	pool      uint32
	gang      bool
	revocable bool
	dry       bool
}

func (p *listener) Place(c *sdk.Call) error {
	for i := range c.Requests() {
		r := &c.Requests()[i]
		*p.heard = append(*p.heard, heard{r.Priority(), r.Pool(), r.Gang(), r.Revocable(), r.Flags()&policyabi.RequestDryRun != 0})
	}
	p.choose(c)
	return nil
}

// listen loads a policy that places with choose.
func listen(t *testing.T, choose func(*sdk.Call), columns ...string) (*wasm.Version, *[]heard) {
	t.Helper()
	l := &listener{heard: &[]heard{}, choose: choose}
	program, err := sdk.New(sdk.Info{Name: "listener", Columns: columns}, l)
	if err != nil {
		t.Fatal(err)
	}
	v, err := wasm.LoadNative(program, wasm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Release)
	*l.heard = nil
	return v, l.heard
}

// firstFit places each task on the first host that fits.
func firstFit(c *sdk.Call) {
	for i := range c.Requests() {
		r := &c.Requests()[i]
		for n, row := 0, 0; n < r.Count() && row < c.Table().Rows(); {
			if c.Take(r, row) {
				n++
			} else {
				row++
			}
		}
	}
}

// TestWhatRequestsSay tells a policy whose tasks these are and what they may do, of a batch and of a plan.
func TestWhatRequestsSay(t *testing.T) {
	v, said := listen(t, firstFit)
	p, faults := placer(t, v, wasm.PlacerConfig{})
	class := newClass(resource.Vector{resource.CPU: 1000}, workload.Placement{})
	requests := []placement.Request{
		{Class: class, Count: 1, Pool: "/ads/prod", Priority: -7},
		{Class: class, Count: 2, Pool: "/ads", Priority: 100, Revocable: true, Gang: true},
		{Class: class, Count: 1},
	}
	ads, prod := sdk.PoolNumber("/ads"), sdk.PoolNumber("/ads/prod")
	if ads == 0 || prod == 0 || ads == prod {
		t.Fatalf("pools are %d and %d", ads, prod)
	}
	want := []heard{{priority: -7, pool: prod}, {priority: 100, pool: ads, gang: true, revocable: true}, {}}
	p.Place(smallTable(t), requests)
	if !slices.Equal(*said, want) || len(*faults) > 0 {
		t.Fatalf("it was told %+v, not %+v; %v", *said, want, *faults)
	}
	*said = nil
	p.Plan(smallTable(t), requests[:1])
	if want := []heard{{priority: -7, pool: prod, dry: true}}; !slices.Equal(*said, want) {
		t.Fatalf("of a plan it was told %+v, not %+v", *said, want)
	}
}

// TestDeviceModels shows a policy the models of GPUs by number: equal ones by the same, none where there is no device, and what tasks ask for by the same numbers.
func TestDeviceModels(t *testing.T) {
	table := host.New(newNames(t), 3)
	for i, models := range [][]string{{"a", "b", "a"}, {}, {"c", "b"}} {
		h := host.Host{ID: hostID(i), Name: "h", Ready: true, Capacity: resource.Vector{resource.CPU: 4000}}
		for _, m := range models {
			h.Devices = append(h.Devices, host.Device{Model: m, Milli: 1000})
		}
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	var seen [][]int16
	var wanted []uint16
	v, _ := listen(t, func(c *sdk.Call) {
		if seen = nil; c.Table().Rows() != 3 { // the trial's
			return
		}
		for row := range 3 {
			seen = append(seen, slices.Clone(c.Table().Host(row).DeviceModels()[:4]))
		}
		wanted = slices.Clone(c.Requests()[0].Models())
	})
	p, faults := placer(t, v, wasm.PlacerConfig{})
	spec := &workload.JobSpec{Kind: workload.Batch}
	spec.Template.Needs[resource.GPU], spec.Template.GPUModels = 1000, []string{"c", "never"}
	p.Place(table, []placement.Request{{Class: placement.NewClass(workload.JobID{1}, spec, nil), Count: 1}})
	if len(*faults) > 0 || len(seen) != 3 {
		t.Fatal(seen, *faults)
	}
	a, b, c := seen[0][0], seen[0][1], seen[2][0]
	if want := [][]int16{{a, b, a, 0}, {0, 0, 0, 0}, {c, b, 0, 0}}; !slices.EqualFunc(seen, want, slices.Equal[[]int16]) || a == b || b == c || a == c || a*b*c == 0 {
		t.Fatalf("the models are %v", seen)
	}
	if !slices.Equal(wanted, []uint16{uint16(c)}) {
		t.Fatalf("a task that wants %v is told as %v; c is %d", spec.Template.GPUModels, wanted, c)
	}
}

// TestOneEach: that no two tasks share a host is not in columns. A policy of the SDK is told; one that names a host twice nevertheless gets the first task there, and is asked again
// for the others with that host closed.
func TestOneEach(t *testing.T) {
	spec := func(change func(*workload.JobSpec)) *placement.Class {
		s := &workload.JobSpec{Kind: workload.Batch, Labels: map[string]string{"app": "x"}, Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 1000}}}
		change(s)
		return placement.NewClass(workload.JobID{1}, s, nil)
	}
	apart := spec(func(s *workload.JobSpec) {
		s.Placement.Affinities = []workload.Affinity{{Selector: map[string]string{"app": "x"}, Topology: workload.TopologyHost, Anti: true}}
	})
	port := spec(func(s *workload.JobSpec) { s.Template.Ports = []workload.Port{{Number: 8080}} })
	told, _ := listen(t, firstFit)
	deaf := load(t, guest(t, "bestfit"), wasm.Config{})
	for _, x := range []struct {
		class *placement.Class
		gang  bool
		by    *wasm.Version
		calls int
	}{{apart, false, told, 1}, {apart, true, told, 1}, {port, false, told, 1}, {apart, false, deaf, 5}, {apart, true, deaf, 5}} {
		calls := 0
		p, faults := placer(t, x.by, wasm.PlacerConfig{OnCall: func(wasm.Call) { calls++ }})
		got := p.Place(portTable(t, 20), []placement.Request{{Class: x.class, Count: 5, Gang: x.gang}})[0]
		rows := map[host.Row]bool{}
		for _, a := range got.Assignments {
			rows[a.Row] = true
		}
		if len(rows) != 5 || got.Refused != 0 || len(*faults) > 0 || calls != x.calls {
			t.Fatalf("gang %v: 5 tasks are on %d hosts, %d refused, after %d calls; %v", x.gang, len(rows), got.Refused, calls, *faults)
		}
	}
}

// portTable is n empty hosts with some ports.
func portTable(t *testing.T, n int) *host.Table {
	t.Helper()
	table := host.New(newNames(t), n)
	for i := range n {
		h := host.Host{ID: hostID(i), Name: fmt.Sprint("h", i), Ready: true, Capacity: resource.Vector{resource.CPU: 16000}, Ports: []host.PortRange{{First: 8000, Last: 8100}}}
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	return table
}
