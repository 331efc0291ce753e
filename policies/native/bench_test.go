package native_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policy"
)

// plainTable has n hosts of a few sizes, some with GPUs, some in use.
func plainTable(t testing.TB, n int) *host.Table {
	t.Helper()
	table := host.New(newNames(t), n)
	for i := range n {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprintf("h%d", i), Ready: true,
			Capacity: resource.Vector{resource.CPU: int64(16000 + i*7919%5*16000), resource.Memory: int64(65536 + i*104729%3*65536), resource.Disk: 1 << 20},
			Foreign:  resource.Vector{resource.CPU: int64(i * 31 % 17 * 1000), resource.Memory: int64(1024 * (i % 61))},
		}
		if i%4 == 0 {
			for range 8 {
				h.Devices = append(h.Devices, host.Device{Model: "a", Milli: 1000})
			}
		}
		if _, err := table.Upsert(h); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

// smallClass is a class that a good part of the hosts has room for.
func smallClass(strategy workload.Strategy) *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Batch, Placement: workload.Placement{Strategy: strategy}}
	spec.Template.Needs = resource.Vector{resource.CPU: 4000, resource.Memory: 8192}
	return placement.NewClass(workload.JobID{1}, spec, nil)
}

// natural is the scan as one would write it: host after host, need after need.
func natural(t *host.Table, c *placement.Class) (host.Row, int64) {
	type need struct {
		free   []int64
		amount int64
	}
	var needs []need
	for k, amount := range c.Needs {
		if amount > 0 {
			needs = append(needs, need{t.FreeOf(resource.Kind(k)), amount})
		}
	}
	best, least := host.NoRow, int64(math.MaxInt64)
	usable, cost := t.Usable(), t.Leftover()
	for row := range host.Row(t.Rows()) {
		fits := usable.Has(row)
		for i := range needs {
			if needs[i].free[row] < needs[i].amount {
				fits = false
				break
			}
		}
		if fits && cost[row] < least {
			best, least = row, cost[row]
		}
	}
	return best, least
}

// versions are the ways in which best-fit is run.
func versions(b *testing.B) []struct {
	name string
	load func() *wasm.Version
} {
	return []struct {
		name string
		load func() *wasm.Version
	}{
		{"native", func() *wasm.Version { return trusted(b, builtin.BestFit(), wasm.Config{}) }},
		{"guest", func() *wasm.Version { return guest(b, "best-fit") }},
		{"guest-topk", func() *wasm.Version { return guest(b, "best-fit-topk") }},
	}
}

const benchRows = 16384

// median of some durations, in nanoseconds for each of n.
func median(took []time.Duration, n int) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / float64(n)
}

// BenchmarkPolicyScan finds the best of 16,384 hosts for one task: by the loop that one would write, and by best-fit of the SDK inside calls. Figures are medians, which say something on a
// busy machine too; ratios of one run say more than figures.
func BenchmarkPolicyScan(b *testing.B) {
	class := smallClass("")
	b.Run("natural", func(b *testing.B) {
		table := plainTable(b, benchRows)
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			if row, _ := natural(table, class); row == host.NoRow {
				b.Fatal("nothing fits")
			}
			took = append(took, time.Since(began))
		}
		b.ReportMetric(median(took, benchRows), "ns/row")
	})
	for _, v := range versions(b) {
		b.Run(v.name, func(b *testing.B) {
			benchScan(b, v.load(), []placement.Request{{Class: class, Count: 1}})
		})
	}
}

// BenchmarkPolicyKinds is BenchmarkPolicyScan for policies that price each host that fits, natively and as modules.
func BenchmarkPolicyKinds(b *testing.B) {
	for _, name := range []string{"spread", "load-aware", "fgd"} {
		var program *policy.Program
		for _, p := range builtin.All() {
			if p.Capability().Name == name {
				program = p
			}
		}
		requests := []placement.Request{{Class: smallClass(""), Count: 1}}
		b.Run(name+"/native", func(b *testing.B) { benchScan(b, trusted(b, program, wasm.Config{}), requests) })
		b.Run(name+"/guest", func(b *testing.B) { benchScan(b, guest(b, name), requests) })
	}
}

func benchScan(b *testing.B, v *wasm.Version, requests []placement.Request) {
	b.Helper()
	table := plainTable(b, benchRows)
	var inside []time.Duration
	p := calling(b, v, func(c wasm.Call) { inside = append(inside, c.Took) })
	p.Plan(table, requests)
	for inside = inside[:0]; b.Loop(); {
		p.Plan(table, requests)
	}
	b.ReportMetric(median(inside, benchRows), "ns/row")
}

// calling is a placer that tells of its calls.
func calling(b *testing.B, v *wasm.Version, onCall func(wasm.Call)) *wasm.Placer {
	p := placer(b, v, wasm.PlacerConfig{OnCall: onCall})
	b.Cleanup(p.Close)
	return p
}

// BenchmarkPolicyGrouped places 64 tasks of a class on 50,000 hosts in four tables, 16 on each, so that every host is looked at once for 64 tasks: placements/s is what the whole takes,
// from the request to the room taken in the host tables, and inside/s what calls alone would allow.
func BenchmarkPolicyGrouped(b *testing.B) {
	const tables, rows, each = 4, 12500, 16
	class := smallClass("")
	for _, v := range versions(b) {
		b.Run(v.name, func(b *testing.B) {
			version := v.load()
			var inside time.Duration
			var all [tables]*host.Table
			var placers [tables]*wasm.Placer
			requests := []placement.Request{{Class: class, Count: each}}
			for i := range all {
				all[i] = plainTable(b, rows)
				placers[i] = calling(b, version, func(c wasm.Call) { inside += c.Took })
				placers[i].Plan(all[i], requests)
			}
			var took, within []time.Duration
			for b.Loop() {
				inside = 0
				var spent time.Duration
				for i, p := range placers {
					began := time.Now()
					got := p.Place(all[i], requests)
					spent += time.Since(began)
					if got[0].Refused > 0 {
						b.Fatal("refused")
					}
					for _, a := range got[0].Assignments { // the tables stay as full as they were
						if err := all[i].Release(a.Row, class.Occupant(a.Devices, a.Ports)); err != nil {
							b.Fatal(err)
						}
					}
				}
				took, within = append(took, spent), append(within, inside)
			}
			b.ReportMetric(1e9/median(took, tables*each), "placements/s")
			b.ReportMetric(1e9/median(within, tables*each), "inside/s")
		})
	}
}
