package native_test

import (
	"reflect"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policy"
	"pgregory.net/rapid"
)

// TestStrategies holds the policies that the core has as strategies of its own against those, batch after batch on equal tables, natively and as modules: the same hosts in the same
// order, the same devices, the same refusals for the same reasons.
func TestStrategies(t *testing.T) {
	for _, c := range []struct {
		name    string
		program *policy.Program
	}{{"best-fit", builtin.BestFit()}, {"pack", builtin.Pack()}, {"spread", builtin.Spread()}} {
		t.Run(c.name, func(t *testing.T) {
			versions := []*wasm.Version{native(t, c.program, wasm.Config{}), guest(t, c.name, wasm.Config{})}
			names := newNames(t, "licences")
			rapid.Check(t, func(rt *rapid.T) {
				var tables [3]*host.Table
				drawTables(rt, names, &tables[0], &tables[1], &tables[2])
				config := wasm.PlacerConfig{Names: names, CallWork: rapid.SampledFrom([]int64{1, 1000, 1 << 30}).Draw(rt, "work")}
				var placers [3]placement.Placer
				for i, v := range versions {
					p := placer(rt, v, config)
					defer p.Close()
					placers[i] = p
				}
				placers[2] = placement.NewNative()
				for range rapid.IntRange(1, 4).Draw(rt, "batches") {
					var requests []placement.Request
					for range rapid.IntRange(1, 6).Draw(rt, "requests") {
						requests = append(requests, drawRequest(rt, workload.Strategy(c.name)))
					}
					want := placers[2].Place(tables[2], requests)
					for i, kind := range []string{"native", "guest"} {
						got := placers[i].Place(tables[i], requests)
						for n := range want {
							if !reflect.DeepEqual(got[n].Assignments, want[n].Assignments) || !reflect.DeepEqual(got[n].Reasons, want[n].Reasons) {
								rt.Fatalf("%s: request %d of %d: %+v of\n%+v\ngot  %+v\nwant %+v", kind, n, len(requests), requests[n], *requests[n].Class, got[n], want[n])
							}
						}
						if books(tables[i]) != books(tables[2]) {
							rt.Fatalf("%s: the tables differ", kind)
						}
					}
				}
			})
		})
	}
}
