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
			versions := []*wasm.Version{trusted(t, c.program, wasm.Config{})}
			if c.name == "best-fit" { // modules of the others are that with another column
				versions = append(versions, guest(t, c.name))
			}
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
				kinds := []string{"native", "guest"}[:len(versions)]
				for range rapid.IntRange(1, 4).Draw(rt, "batches") {
					var requests []placement.Request
					for range rapid.IntRange(1, 6).Draw(rt, "requests") {
						requests = append(requests, drawRequest(rt, workload.Strategy(c.name)))
					}
					want := placers[2].Place(tables[2], requests)
					for i, kind := range kinds {
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

// TestGuests holds policies that the core does not have against their modules, and against copies that remember nothing from batch to batch.
func TestGuests(t *testing.T) {
	for _, c := range []struct {
		name    string
		program *policy.Program
	}{{"fgd", builtin.FGD()}, {"least-residue", builtin.LeastResidue()}, {"load-aware", builtin.LoadAware()}} {
		t.Run(c.name, func(t *testing.T) {
			old, module := trusted(t, c.program, wasm.Config{}), guest(t, c.name)
			names := newNames(t, "licences")
			rapid.Check(t, func(rt *rapid.T) {
				var tables [3]*host.Table
				drawTables(rt, names, &tables[0], &tables[1], &tables[2])
				config := wasm.PlacerConfig{Names: names, CallWork: rapid.SampledFrom([]int64{1, 1000, 1 << 30}).Draw(rt, "work")}
				slot := &wasm.Slot{}
				placers := [3]*wasm.Placer{placer(rt, old, config), placer(rt, module, config)}
				config.Slot = slot
				config.OnFault = func(f *wasm.Fault) { rt.Fatal(f) }
				placers[2] = wasm.NewPlacer(config)
				for _, p := range placers {
					defer p.Close()
				}
				for range rapid.IntRange(1, 5).Draw(rt, "batches") {
					var requests []placement.Request
					for range rapid.IntRange(1, 6).Draw(rt, "requests") {
						requests = append(requests, drawRequest(rt, ""))
					}
					fresh, err := wasm.LoadNative(c.program, wasm.Config{})
					if err != nil {
						rt.Fatal(err)
					}
					slot.Swap(fresh)
					want := placers[2].Place(tables[2], requests)
					fresh.Release()
					for i, kind := range []string{"native", "guest"} {
						if got := placers[i].Place(tables[i], requests); !reflect.DeepEqual(got, want) {
							rt.Fatalf("%s: %+v\ngot  %+v\nwant %+v", kind, requests, got, want)
						}
					}
				}
			})
		})
	}
}

// recorder is a policy that takes the first hosts that fit and tells what the columns say after that.
type recorder struct{ saw *[][2]int32 }

func (p *recorder) Place(c *policy.Call) error {
	t := c.Table()
	for i := range c.Requests() {
		r := &c.Requests()[i]
		for row, n := 0, 0; row < t.Rows() && n < r.Count(); row++ {
			for n < r.Count() && c.Take(r, row) {
				n++
			}
		}
	}
	*p.saw = (*p.saw)[:0]
	for row := range t.Rows() {
		*p.saw = append(*p.saw, [2]int32{t.Leftover()[row], t.FreeShare()[row]})
	}
	return nil
}

// TestScores holds the score columns that the SDK computes of what a call took against those of the host table after it.
func TestScores(t *testing.T) {
	var saw [][2]int32
	program, err := policy.New(policy.Info{Name: "recorder", Columns: []string{"leftover", "free_share"}}, &recorder{&saw})
	if err != nil {
		t.Fatal(err)
	}
	v := trusted(t, program, wasm.Config{})
	names := newNames(t, "licences")
	rapid.Check(t, func(rt *rapid.T) {
		var table *host.Table
		drawTables(rt, names, &table)
		p := placer(rt, v, wasm.PlacerConfig{Names: names, CallWork: 1 << 30})
		defer p.Close()
		for range 3 {
			r := drawRequest(rt, "")
			r.Gang = false
			p.Place(table, []placement.Request{r})
			for row, scores := range saw {
				if int64(scores[0]) != table.Leftover()[row] || int64(scores[1]) != table.FreeShare()[row] {
					rt.Fatalf("row %d: the policy saw %v, the table has %d and %d", row, scores, table.Leftover()[row], table.FreeShare()[row])
				}
			}
		}
	})
}

// TestMemoryFlat makes some thousand calls of a module of the SDK: its memory is what it was after the first ones.
func TestMemoryFlat(t *testing.T) {
	table, last := plainTable(t, 64), 0
	p := wasm.NewPlacer(wasm.PlacerConfig{
		Slot: slotOf(guest(t, "best-fit")), OnFault: func(f *wasm.Fault) { t.Fatal(f) }, OnCall: func(c wasm.Call) { last = c.Memory },
	})
	defer p.Close()
	requests := []placement.Request{{Class: smallClass(""), Count: 3}}
	call := func(n int) int {
		for range n {
			p.Plan(table, requests)
		}
		return last
	}
	if before, after := call(500), call(9500); after != before {
		t.Errorf("%d bytes after 500 calls, %d after 10,000", before, after)
	}
}

func slotOf(v *wasm.Version) *wasm.Slot {
	s := &wasm.Slot{}
	s.Swap(v)
	return s
}

// TestDescribed: a module says of itself in the sandbox what its program says outside.
func TestDescribed(t *testing.T) {
	got, err := wasm.Describe(t.Context(), build(t, "best-fit"), wasm.Limits{})
	if want := builtin.BestFit().Section(); err != nil || string(got) != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// TestTopK holds best-fit that lets the scheduler scan against best-fit that scans.
func TestTopK(t *testing.T) {
	own, outside := guest(t, "best-fit"), guest(t, "best-fit-topk")
	if f := outside.Module().Capability.Features; len(f) != 1 || f[0] != "scan_topk" {
		t.Fatal(f)
	}
	names := newNames(t, "licences")
	rapid.Check(t, func(rt *rapid.T) {
		var tables [2]*host.Table
		drawTables(rt, names, &tables[0], &tables[1])
		config := wasm.PlacerConfig{Names: names, CallWork: rapid.SampledFrom([]int64{1, 1 << 30}).Draw(rt, "work")}
		a, b := placer(rt, own, config), placer(rt, outside, config)
		defer a.Close()
		defer b.Close()
		for range 2 {
			requests := []placement.Request{drawRequest(rt, ""), drawRequest(rt, ""), drawRequest(rt, "")}
			got, want := b.Place(tables[1], requests), a.Place(tables[0], requests)
			if !reflect.DeepEqual(got, want) {
				rt.Fatalf("%+v\ngot  %+v\nwant %+v", requests, got, want)
			}
		}
	})
}
