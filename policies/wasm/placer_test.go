package wasm_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"pgregory.net/rapid"
)

// drawTable draws two equal tables.
func drawTables(t *rapid.T, names *resource.Names) (a, b *host.Table) {
	a, b = host.New(names, 300), host.New(names, 300)
	n := rapid.IntRange(0, 90).Draw(t, "hosts")
	for i := range n {
		h := host.Host{
			ID: hostID(i), Name: fmt.Sprintf("h%d", i), Ready: rapid.IntRange(0, 9).Draw(t, "ready") > 0,
			Attributes: map[string]string{"rack": fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "rack"))},
			Capacity: resource.Vector{
				resource.CPU: int64(rapid.IntRange(0, 8).Draw(t, "cpu")) * 1000, resource.Memory: int64(rapid.IntRange(0, 8).Draw(t, "memory")) * 512,
				resource.FirstNamed: int64(rapid.IntRange(0, 3).Draw(t, "licences")),
			},
			Ports: []host.PortRange{{First: 1000, Last: 1003}},
		}
		for range rapid.IntRange(0, 3).Draw(t, "devices") {
			h.Devices = append(h.Devices, host.Device{Model: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model"), Milli: 1000})
		}
		for _, table := range []*host.Table{a, b} {
			row, err := table.Upsert(h)
			if err != nil {
				t.Fatal(err)
			}
			table.SetDraining(row, i%13 == 5)
		}
	}
	return a, b
}

func drawClass(t *rapid.T) *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Batch, Labels: map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}}
	needs := &spec.Template.Needs
	needs[resource.CPU] = int64(rapid.IntRange(0, 4).Draw(t, "cpu")) * 500
	needs[resource.Memory] = int64(rapid.IntRange(0, 4).Draw(t, "memory")) * 256
	needs[resource.GPU] = rapid.SampledFrom([]int64{0, 0, 0, 300, 500, 1000, 2000, 1500}).Draw(t, "gpu")
	needs[resource.FirstNamed] = rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "licences")
	if rapid.IntRange(0, 3).Draw(t, "models") == 0 {
		spec.Template.GPUModels = []string{"a"}
	}
	if rapid.IntRange(0, 5).Draw(t, "ports") == 0 {
		spec.Template.Ports = []workload.Port{{Name: "p", Number: uint16(rapid.SampledFrom([]int{0, 1001}).Draw(t, "port"))}}
	}
	p := &spec.Placement
	switch rapid.IntRange(0, 9).Draw(t, "wish") {
	case 0:
		p.Constraints = []workload.Constraint{{Key: "rack", Op: workload.OpIn, Values: []string{"1", "2"}}}
	case 1:
		p.Preferences = []workload.Preference{{Constraint: workload.Constraint{Key: "rack", Op: workload.OpIn, Values: []string{"3"}}, Weight: 30}}
	case 2:
		p.Affinities = []workload.Affinity{{Selector: map[string]string{"app": "x"}, Topology: "rack", Anti: rapid.Bool().Draw(t, "anti"), Weight: int32(rapid.IntRange(0, 1).Draw(t, "weight") * 20)}}
	case 3:
		p.Affinities = []workload.Affinity{{Selector: map[string]string{"app": "x"}, Topology: workload.TopologyHost, Anti: true}}
	case 4:
		p.Exclusive = true
	}
	return placement.NewClass(workload.JobID{byte(rapid.IntRange(1, 2).Draw(t, "job"))}, spec, nil)
}

// TestPlacesAsNative holds a guest of best fit against the native placer, batch after batch, on equal tables: same hosts, same devices, same ports, same refusals.
func TestPlacesAsNative(t *testing.T) {
	v := load(t, guest(t, "bestfit"), wasm.Config{})
	names := newNames(t, "licences")
	rapid.Check(t, func(rt *rapid.T) {
		ours, theirs := drawTables(rt, names)
		exact := rapid.Bool().Draw(rt, "one request a call") // or scores are those from before the first of them
		config := wasm.PlacerConfig{Names: names, CallWork: 1}
		if !exact {
			config.CallWork = rapid.SampledFrom([]int64{2000, 1 << 30}).Draw(rt, "work")
		}
		p, faults := placer(t, v, config)
		defer p.Close()
		native := placement.NewNative()
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			var requests []placement.Request
			for range rapid.IntRange(1, 6).Draw(rt, "requests") {
				r := placement.Request{Class: drawClass(rt), Count: rapid.IntRange(1, 120).Draw(rt, "count")}
				switch rapid.IntRange(0, 7).Draw(rt, "how") {
				case 0:
					r.Gang = true
				case 1:
					r.Host = hostID(rapid.IntRange(0, 20).Draw(rt, "host"))
				case 2:
					r.Gang, r.Within = true, placement.Within{Key: "rack", Required: true}
				}
				requests = append(requests, r)
			}
			plan := p.Plan(ours, requests)
			got := p.Place(ours, requests)
			if len(*faults) > 0 {
				rt.Fatal((*faults)[0])
			}
			if !exact {
				replay(rt, theirs, requests, got)
			}
			var want []placement.Result
			if exact {
				want = native.Place(theirs, requests)
			}
			for i := range want {
				if !reflect.DeepEqual(got[i].Assignments, want[i].Assignments) || got[i].Refused != want[i].Refused {
					rt.Fatalf("request %d of %d: %+v\n%+v\ngot  %+v\nwant %+v", i, len(requests), requests[i], requests[i].Class, got[i], want[i])
				}
				if !reflect.DeepEqual(plan[i].Assignments, got[i].Assignments) {
					rt.Fatalf("request %d was planned as %+v and placed as %+v", i, plan[i], got[i])
				}
				// A native placer that is asked a second time, as ours is after the plan, may name another domain for a gang.
				if requests[i].Within.Key == "" && !reflect.DeepEqual(got[i].Reasons, want[i].Reasons) {
					rt.Fatalf("request %d: %+v\nreasons %+v\nwant    %+v", i, requests[i], got[i].Reasons, want[i].Reasons)
				}
			}
			if books(ours) != books(theirs) {
				rt.Fatal("the tables differ")
			}
			drawChange(rt, ours, theirs)
		}
	})
}

// replay takes on a table what a placer took on an equal one, task by task, and asks of every task that its host has room.
func replay(t *rapid.T, table *host.Table, requests []placement.Request, results []placement.Result) {
	native := placement.NewNative()
	for i := range requests {
		if n := len(results[i].Assignments); n+results[i].Refused != requests[i].Count || requests[i].Gang && n > 0 && n < requests[i].Count {
			t.Fatalf("request %d: %+v of %d", i, results[i], requests[i].Count)
		}
		rows := native.Rows(table, requests[i].Class)
		for _, a := range results[i].Assignments {
			if !table.Has(a.Row) || !requests[i].Class.Matches(table, a.Row) || !table.Usable().Has(a.Row) || !rows.Fits(a.Row) {
				t.Fatalf("request %d: row %d cannot take a task", i, a.Row)
			}
			if _, ok := rows.TakeOn(a.Row, a.Devices); !ok {
				t.Fatalf("request %d: row %d cannot give devices %b", i, a.Row, a.Devices)
			}
		}
	}
}

// drawChange lets something else happen to both tables.
func drawChange(t *rapid.T, tables ...*host.Table) {
	row := host.Row(rapid.IntRange(0, 90).Draw(t, "row"))
	what := rapid.IntRange(0, 3).Draw(t, "change")
	for _, table := range tables {
		if !table.Has(row) {
			continue
		}
		switch what {
		case 0:
			table.Remove(row)
		case 1:
			h := *table.Host(row)
			h.Capacity[resource.CPU] += 64000
			if _, err := table.Upsert(h); err != nil {
				t.Fatal(err)
			}
		case 2:
			table.SetDraining(row, !table.Draining(row))
		}
	}
}
