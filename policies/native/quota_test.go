package native_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/policies/native"
	"github.com/paceline-sched/paceline/policies/wasm"
	"pgregory.net/rapid"
)

// drawTree draws a tree of pools with their demand. Siblings stand in the order of their ids, by which the core breaks ties, and of their names, in which policies see them.
func drawTree(t *rapid.T) *respool.Tree {
	tree, err := respool.NewTree(&resource.Names{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	number := func(most int) int64 { return int64(rapid.IntRange(0, most).Draw(t, "number")) }
	parents := []workload.PoolID{respool.RootID}
	pools := rapid.IntRange(0, 12).Draw(t, "pools")
	for i := range pools {
		p := respool.Pool{ID: workload.PoolID{0: 7, 1: byte(i)}, Parent: parents[number(len(parents)-1)], Name: fmt.Sprintf("p%03d", i), Kind: respool.Elastic, Share: number(4)}
		if p.Parent == respool.RootID {
			p.Reservation = resource.Vector{resource.CPU: number(60), resource.Memory: number(60), resource.GPU: number(3) * 1000}
		}
		switch number(6) {
		case 0:
			p.Kind = respool.Static
		case 1:
			p.Limit = p.Limit.With(resource.CPU, p.Reservation[resource.CPU]+number(50))
		}
		if tree.Add(p) == nil { // or its parent is limited: another tree will do
			parents = append(parents, p.ID)
		}
	}
	for id := range tree.IDs() {
		if tree.IsLeaf(id) && id != respool.RootID {
			tree.SetDemand(id, respool.Demand{Preemptible: resource.Vector{resource.CPU: number(200), resource.Memory: number(90), resource.GPU: number(9) * 500}})
		}
	}
	tree.Entitle(resource.Vector{resource.CPU: number(100 * (pools + 1)), resource.Memory: number(40 * (pools + 1)), resource.GPU: number(8) * 1000})
	return tree
}

func ask(t interface{ Fatal(...any) }, v *wasm.Version) wasm.AskConfig {
	return wasm.AskConfig{Slot: slotOf(v), OnFault: func(f *wasm.Fault) { t.Fatal(f) }}
}

// TestMaxMin holds max-min as a policy against the core's own.
func TestMaxMin(t *testing.T) {
	v := trusted(t, builtin.MaxMin(), wasm.Config{})
	rapid.Check(t, func(rt *rapid.T) {
		tree := drawTree(rt)
		q := wasm.NewQuota(ask(rt, v))
		defer q.Close()
		s := tree.Snapshot()
		got, err := q.Entitle(s)
		if err != nil {
			rt.Fatal(err)
		}
		for i := range s.Rows {
			if want, _ := tree.Standing(s.Rows[i].ID); got[i] != want {
				rt.Fatalf("pool %s gets %v, of the core %v\n%+v", s.Rows[i].Path, got[i], want, s.Rows)
			}
		}
	})
}

// TestQuotas: whatever the tree, no built-in policy of quota says what the core refuses, and modules say the same.
func TestQuotas(t *testing.T) {
	module := guest(t, "drf")
	for _, name := range []string{"drf", "bands", "static", "max-min"} {
		v, err := native.Load(name, wasm.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Release)
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				q := wasm.NewQuota(ask(rt, v))
				defer q.Close()
				s := drawTree(rt).Snapshot()
				got, err := q.Entitle(s)
				if err != nil {
					rt.Fatal(err)
				}
				if name != "drf" {
					return
				}
				g := wasm.NewQuota(ask(rt, module))
				defer g.Close()
				if inside, err := g.Entitle(s); err != nil || !reflect.DeepEqual(inside, got) {
					rt.Fatalf("%v\nguest  %v\nnative %v\nof %+v", err, inside, got, s.Rows)
				}
			})
		})
	}
}

// TestRankers holds a ranker against its module.
func TestRankers(t *testing.T) {
	v, module := trusted(t, builtin.GangCost(), wasm.Config{}), guest(t, "gang-cost")
	rapid.Check(t, func(rt *rapid.T) {
		list := make([]preemption.Contender, rapid.IntRange(0, 40).Draw(rt, "contenders"))
		for i := range list {
			c := &list[i]
			c.Job, c.Runs, c.Work = workload.JobID{0: byte(i), 15: 1}, rapid.Int32Range(1, 9).Draw(rt, "runs"), rapid.Int64Range(0, 1<<50).Draw(rt, "work")
			c.Use = resource.Vector{resource.CPU: rapid.Int64Range(0, 9000).Draw(rt, "cpu"), resource.GPU: 500 * rapid.Int64Range(0, 9).Draw(rt, "gpu")}
			if rapid.Bool().Draw(rt, "gang") {
				c.Gang = c.Runs
			}
		}
		a, b := wasm.NewRanker(ask(rt, v)), wasm.NewRanker(ask(rt, module))
		defer a.Close()
		defer b.Close()
		want, err1 := a.Rank(list)
		got, err2 := b.Rank(list)
		if err1 != nil || err2 != nil || !reflect.DeepEqual(got, want) {
			rt.Fatalf("%v %v\ngot  %v\nwant %v\n%+v", err1, err2, got, want, list)
		}
	})
}
