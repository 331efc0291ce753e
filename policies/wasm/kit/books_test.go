package kit

import (
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
)

func TestBooksSeeWhatCannotBe(t *testing.T) {
	on := func(rows ...host.Row) placement.Result {
		var r placement.Result
		for _, row := range rows {
			r.Assignments = append(r.Assignments, placement.Assignment{Row: row})
		}
		return r
	}
	devices := func(set host.DeviceSet) placement.Result {
		return placement.Result{Assignments: []placement.Assignment{{Row: 2, Devices: set}}}
	}
	cpu := resource.Vector{resource.CPU: 1000}
	gpu := resource.Vector{resource.GPU: 2000}
	for name, c := range map[string]struct {
		spec    workload.JobSpec
		needs   resource.Vector
		request placement.Request
		result  placement.Result
		want    string // "": all is well
	}{
		"fits":              {needs: cpu, request: placement.Request{Count: 2}, result: on(0, 0)},
		"one too many":      {needs: cpu, request: placement.Request{Count: 3}, result: on(0, 0, 0), want: "1000 of resource 0 is missing"},
		"lost a task":       {needs: cpu, request: placement.Request{Count: 3}, result: on(0), want: "1 tasks placed and 0 refused of 3"},
		"half a gang":       {needs: cpu, request: placement.Request{Count: 2, Gang: true}, result: placement.Result{Assignments: on(0).Assignments, Refused: 1}, want: "1 of a gang of 2"},
		"no host":           {needs: cpu, request: placement.Request{Count: 1}, result: on(9), want: "no host"},
		"not ready":         {needs: cpu, request: placement.Request{Count: 1}, result: on(1), want: "takes none"},
		"another host":      {needs: cpu, request: placement.Request{Count: 1, Host: hostID(2)}, result: on(0), want: "not the one host"},
		"constraint":        {spec: workload.JobSpec{Placement: workload.Placement{Constraints: []workload.Constraint{{Key: rackKey, Op: workload.OpIn, Values: []string{"7"}}}}}, needs: cpu, request: placement.Request{Count: 1}, result: on(0), want: "constraint on rack"},
		"two devices":       {needs: gpu, request: placement.Request{Count: 1}, result: devices(0b11)},
		"one device of two": {needs: gpu, request: placement.Request{Count: 1}, result: devices(0b10), want: "1 devices too few"},
		"no such device":    {needs: gpu, request: placement.Request{Count: 1}, result: devices(0b1001), want: "device 3"},
		"another model": {
			spec: workload.JobSpec{Template: workload.TaskTemplate{GPUModels: []string{"b"}}}, needs: gpu, request: placement.Request{Count: 1}, result: devices(0b11), want: "of a model",
		},
	} {
		t.Run(name, func(t *testing.T) {
			table, b := newTable(), newBooks()
			for i := range 3 {
				h := host.Host{ID: hostID(i), Name: "h", Ready: i != 1, Attributes: map[string]string{rackKey: "1"}, Capacity: resource.Vector{resource.CPU: 2000}}
				if i == 2 {
					h.Devices = []host.Device{{Model: "a", Milli: 1000}, {Model: "a", Milli: 1000}, {Model: "a", Milli: 1000}}
				}
				if _, err := table.Upsert(h); err != nil {
					t.Fatal(err)
				}
				b.put(h)
			}
			if why := b.compare(table); why != "" {
				t.Fatal(why)
			}
			c.spec.Template.Needs = c.needs
			got := b.take(table, &asked{spec: &c.spec, request: c.request}, &c.result)
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Fatalf("want %q, got %q", c.want, got)
			}
			if got == "" && b.compare(table) == "" {
				t.Error("a table on which nothing was taken should differ from the books now")
			}
		})
	}
}

func TestTrailsTellInstancesApart(t *testing.T) {
	j := judge{}
	s := scene{name: "here"}
	var one, other player
	record(&one, &wasm.Call{Used: 7, Results: []byte{1}})
	record(&other, &wasm.Call{Used: 7, Results: []byte{1}})
	if j.same(&s, &one, &other); j.different != "" {
		t.Error("equal trails are told apart")
	}
	record(&one, &wasm.Call{Used: 8})
	record(&other, &wasm.Call{Used: 9})
	if j.same(&s, &one, &other); j.different != "here" {
		t.Error("other fuel went unnoticed")
	}
}
