package native_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// gpuTable has n hosts of eight GPUs. No two have the same free, and devices are in use by shares as tasks leave them: what a policy that looks ahead can remember of one host says little of another.
func gpuTable(t testing.TB, n int) *host.Table {
	t.Helper()
	table := host.New(newNames(t), n)
	for i := range n {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprintf("h%d", i), Ready: true,
			Capacity: resource.Vector{resource.CPU: int64(64000 + i*7919%64000), resource.Memory: int64(262144 + i*104729%262144), resource.Disk: 1 << 20},
		}
		for l := range 8 {
			h.Devices = append(h.Devices, host.Device{Model: []string{"a", "b"}[i%2], Milli: int64(1000 - (i*31+l*(i%97))%19*50)})
		}
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

// gpuMix is 64 classes of expected work, as a busy fleet has them.
func gpuMix() []placement.Share {
	var mix []placement.Share
	for i := range int64(64) {
		spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{
			Needs: resource.Vector{resource.CPU: 500 * (1 + i%16), resource.Memory: 1024 * (1 + i%7), resource.GPU: 50 * i % 1050},
		}}
		if i%21 == 20 {
			spec.Template.Needs[resource.GPU] = 1000 * (1 + i/21*3)
		}
		mix = append(mix, placement.Share{Class: placement.NewClass(workload.JobID{}, spec, nil), Weight: float64(65 - i)})
	}
	return mix
}

// BenchmarkLookaheadCold prices every host of a fleet for a task of half a GPU with nothing remembered.
func BenchmarkLookaheadCold(b *testing.B) {
	spec := &workload.JobSpec{Kind: workload.Batch}
	spec.Template.Needs = resource.Vector{resource.CPU: 4000, resource.Memory: 8192, resource.GPU: 500}
	requests := []placement.Request{{Class: placement.NewClass(workload.JobID{1}, spec, nil), Count: 1}}
	for _, name := range []string{"fgd", "least-residue"} {
		for _, kind := range []string{"native", "guest"} {
			for _, rows := range []int{4096, 16384} {
				b.Run(fmt.Sprintf("%s/%s/%d", name, kind, rows), func(b *testing.B) {
					var v *wasm.Version
					if kind == "guest" {
						v = guest(b, name)
					} else {
						for _, p := range builtin.All() {
							if p.Capability().Name == name {
								v = trusted(b, p, wasm.Config{})
							}
						}
					}
					table, faults := gpuTable(b, rows), 0
					var took []time.Duration
					fuel := v.Counters().Fuel.Load()
					for b.Loop() {
						p := wasm.NewPlacer(wasm.PlacerConfig{
							Slot: slotOf(v), Expected: gpuMix(), OnFault: func(*wasm.Fault) { faults++ }, OnCall: func(c wasm.Call) { took = append(took, c.Took) },
						})
						p.Plan(table, requests)
						p.Close()
					}
					if len(took) > 0 {
						b.ReportMetric(median(took, rows), "ns/row")
					}
					b.ReportMetric(float64(v.Counters().Fuel.Load()-fuel)/float64(max(len(took), 1)*rows), "fuel/row")
					b.ReportMetric(float64(faults)/float64(len(took)+faults), "faults/call")
				})
			}
		}
	}
}
