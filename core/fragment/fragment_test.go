package fragment_test

import (
	"testing"

	"github.com/paceline-sched/paceline/core/fragment"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

func class(cpu, gpu int64, models ...string) *placement.Class {
	return placement.NewClass(workload.JobID{}, &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{
		Needs: resource.Vector{resource.CPU: cpu, resource.GPU: gpu}, GPUModels: models,
	}}, nil)
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	table := host.New(&resource.Names{}, 2)
	for i, model := range []string{"a", "b"} {
		if _, err := table.Upsert(host.Host{
			ID: workload.HostID{byte(i + 1)}, Name: model, Ready: true, Capacity: resource.Vector{resource.CPU: 4000},
			Devices: []host.Device{{Model: model, Milli: 1000}, {Model: model, Milli: 1000}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	half := class(1000, 500)
	if err := table.Take(0, half.Occupant(1, nil)); err != nil {
		t.Fatal(err)
	}
	// Free are 500 and 1000 on host a, twice 1000 on host b.
	for _, c := range []struct {
		name string
		mix  map[*placement.Class]int64
		want float64
	}{
		{"nobody", nil, 0},
		{"without GPU", map[*placement.Class]int64{class(1000, 0): 3}, 3500},
		{"half a device", map[*placement.Class]int64{half: 1}, 0},
		{"a whole device", map[*placement.Class]int64{class(1000, 1000): 1}, 500},
		{"two devices", map[*placement.Class]int64{class(1000, 2000): 1}, 1500},
		{"a model", map[*placement.Class]int64{class(1000, 1000, "b"): 1}, 1500},
		{"no such model", map[*placement.Class]int64{class(1000, 1000, "c"): 1}, 3500},
		{"too much else", map[*placement.Class]int64{class(5000, 1000): 1}, 3500},
		{"a mix", map[*placement.Class]int64{class(1000, 1000): 1, class(1000, 2000): 3}, 1250},
	} {
		var m fragment.Measure
		for class, n := range c.mix {
			m.Add(class, n)
		}
		for range 2 { // the second time from memory
			if got := m.Of(table); got != c.want {
				t.Errorf("%s: %v thousandths, want %v", c.name, got, c.want)
			}
		}
	}
}
