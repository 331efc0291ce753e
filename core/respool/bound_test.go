package respool_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

func perOwner(q int64) func(*respool.Pool) {
	return func(p *respool.Pool) { p.UserLimit = p.UserLimit.With(cpu, q) }
}

func controllers(percent uint8) func(*respool.Pool) {
	return func(p *respool.Pool) { p.ControllerPercent = percent }
}

func TestOwnerBounds(t *testing.T) {
	tree := mustTree(t, with(elastic(1, 0), perOwner(10)), with(elastic(2, 0), below(1), perOwner(6)), with(elastic(3, 0), below(1)), elastic(4, 0))
	check := func(pool int, owner string, limit, left int64) {
		t.Helper()
		b, bounded := tree.OwnerBound(poolID(pool), owner)
		if !bounded || b.Limit[cpu] != limit || b.Left[cpu] != left || b.Left[gpu] != respool.Unlimited {
			t.Errorf("%s leaves %s %d of %d (GPUs %d), want %d of %d", tree.Path(poolID(pool)), owner, b.Left[cpu], b.Limit[cpu], b.Left[gpu], left, limit)
		}
	}
	tree.Charge(poolID(2), resource.Vector{cpu: 4, gpu: 2}, respool.Work{Owner: "ann"})
	tree.Charge(poolID(3), resource.Vector{cpu: 5}, respool.Work{Owner: "ann", NonPreemptible: true})
	tree.Charge(poolID(3), resource.Vector{cpu: 9}, respool.Work{Owner: "bob", Controller: true})
	tree.Charge(poolID(2), resource.Vector{cpu: 6}, respool.Work{Owner: "bob", Revocable: true})
	check(2, "ann", 6, 1) // 10 - 9 of both pools, not 6 - 4 of her own
	check(3, "ann", 10, 1)
	check(2, "bob", 6, 1)
	check(2, "cec", 6, 6)
	if _, bounded := tree.OwnerBound(poolID(4), "ann"); bounded || tree.LimitsOwners(poolID(4)) || !tree.LimitsOwners(poolID(3)) {
		t.Error("bounds are not where the limits are")
	}
	lower, _ := tree.Pool(poolID(1))
	perOwner(3)(&lower)
	if err := tree.Update(lower); err != nil {
		t.Fatal(err)
	}
	check(3, "ann", 3, -6)
	if err := tree.CheckOwnerLimit(poolID(3), resource.Vector{cpu: 4}); err == nil || !strings.Contains(err.Error(), "raise the pool's user_limit") {
		t.Errorf("a task over the limit of an owner got %v", err)
	}
	if err := tree.CheckOwnerLimit(poolID(3), resource.Vector{cpu: 3, gpu: 99}); err != nil {
		t.Error(err)
	}
	moved, _ := tree.Pool(poolID(3))
	moved.Parent = respool.RootID
	if err := tree.Update(moved); err != nil {
		t.Fatal(err)
	}
	check(2, "ann", 3, -1)
	if got := fmt.Sprint(tree.Owners(poolID(1))); !strings.HasPrefix(got, "[{ann [4 ") || len(tree.Owners(poolID(1))) != 1 {
		t.Errorf("after the move the old parent has %s", got)
	}
	mustPanic(t, "owner \"ann\"", func() { tree.Refund(poolID(3), resource.Vector{cpu: 6}, respool.Work{Owner: "ann"}) })
}

func TestControllerBounds(t *testing.T) {
	tree := mustTree(t, with(elastic(1, 0), controllers(50)), with(elastic(2, 0), below(1), controllers(20)), with(elastic(3, 0), below(1)), elastic(4, 0))
	// On a busy cell a pool is entitled to what it demands. One controller of 3 stands for the 15 of which 3 are 20 %, and is bounded by
	// that; the pool is entitled to no more than the 3.
	tree.SetDemand(poolID(2), respool.Demand{Preemptible: resource.Vector{cpu: 3}, Controllers: resource.Vector{cpu: 3}})
	tree.SetDemand(poolID(3), respool.Demand{Preemptible: resource.Vector{cpu: 4}, Controllers: resource.Vector{cpu: 4}})
	tree.SetDemand(poolID(4), wants(1000))
	tree.Entitle(resource.Vector{cpu: 100})
	for id, want := range map[int][3]int64{2: {3, 3, 3}, 3: {4, 11, 11}} { // of the 15 and 8 below pool 1 there are 11, and pool 2 has 3 of its own
		tree.Charge(poolID(4), resource.Vector{cpu: 1}, respool.Work{Controller: true}) // elsewhere
		b, bounded := tree.ControllerBound(poolID(id))
		if got := [3]int64{account(t, tree, poolID(id)).Entitlement[cpu], b.Limit[cpu], b.Left[cpu]}; !bounded || got != want {
			t.Errorf("pool %d is entitled, limited and left %v, want %v", id, got, want)
		}
	}
	tree.Charge(poolID(3), resource.Vector{cpu: 10}, respool.Work{Controller: true})
	if b, _ := tree.ControllerBound(poolID(2)); b.Left[cpu] != 1 {
		t.Errorf("%d are left below a pool whose controllers use 10 of 11, want 1", b.Left[cpu])
	}
	if _, bounded := tree.ControllerBound(poolID(4)); bounded {
		t.Error("a pool without a percentage is bounded")
	}
}

// TestControllersAlwaysStart: on the busiest cell, a controller whose whole fits its pool's fair part is let in.
func TestControllersAlwaysStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := uint8(rapid.IntRange(1, 100).Draw(t, "percent"))
		need := rapid.Int64Range(1, 50).Draw(t, "need")
		capacity := 2 * (need*100 + 99) // half of it is the pool's
		tree, err := respool.NewTree(&resource.Names{}, []respool.Pool{with(elastic(1, 0), controllers(percent)), elastic(2, 0)})
		if err != nil {
			t.Fatal(err)
		}
		tree.SetDemand(poolID(1), respool.Demand{Preemptible: resource.Vector{cpu: need}, Controllers: resource.Vector{cpu: need}})
		tree.SetDemand(poolID(2), wants(capacity))
		tree.Entitle(resource.Vector{cpu: capacity})
		if b, _ := tree.ControllerBound(poolID(1)); b.Left[cpu] < need {
			t.Fatalf("%d %% of %d leave %d to a controller of %d", percent, account(t, tree, poolID(1)).Entitlement[cpu], b.Left[cpu], need)
		}
	})
}

func revocable(q int64) respool.Demand { return respool.Demand{Revocable: resource.Vector{cpu: q}} }

func TestRevocableVectors(t *testing.T) {
	atMost := func(percent uint8) func(*respool.Pool) {
		return func(p *respool.Pool) { p.RevocablePercent = percent }
	}
	both := func(ordinary, slack int64) respool.Demand {
		return respool.Demand{Preemptible: resource.Vector{cpu: ordinary}, Revocable: resource.Vector{cpu: slack}}
	}
	tests := []struct {
		name   string
		pools  []respool.Pool
		demand []respool.Demand
		used   []int64
		want   []int64 // revocable entitlements, of a capacity of 100
	}{
		{"an idle cell is all slack", []respool.Pool{elastic(1, 50), elastic(2, 0)}, []respool.Demand{revocable(70), revocable(70)}, nil, []int64{50, 50}},
		{"by share", []respool.Pool{with(elastic(1, 0), share(3)), elastic(2, 0)}, []respool.Demand{revocable(100), revocable(100)}, nil, []int64{75, 25}},
		{
			"what waits and is entitled is no slack",
			[]respool.Pool{elastic(1, 0), elastic(2, 0)},
			[]respool.Demand{wants(60), revocable(100)},
			[]int64{10, 0},
			[]int64{0, 40},
		},
		{
			"what waits beyond its entitlement does not count twice",
			[]respool.Pool{with(elastic(1, 0), limit(30)), elastic(2, 0)},
			[]respool.Demand{wants(90), both(20, 90)},
			nil,
			[]int64{0, 50},
		},
		{
			"what a static pool keeps and does not use is slack",
			[]respool.Pool{with(elastic(1, 80), static), elastic(2, 0)},
			[]respool.Demand{wants(10), both(20, 90)},
			nil,
			[]int64{0, 70},
		},
		{
			"a pool over its entitlement leaves no slack behind",
			[]respool.Pool{with(elastic(1, 0), limit(30)), elastic(2, 0)},
			[]respool.Demand{wants(30), revocable(90)},
			[]int64{60, 0},
			[]int64{0, 40},
		},
		{"limits do not matter", []respool.Pool{with(elastic(1, 0), limit(5))}, []respool.Demand{revocable(90)}, nil, []int64{90}},
		{"a percentage does", []respool.Pool{with(elastic(1, 0), atMost(30)), elastic(2, 0)}, []respool.Demand{revocable(90), revocable(90)}, nil, []int64{30, 70}},
		{
			"also on all below together",
			[]respool.Pool{with(elastic(1, 0), atMost(30)), with(elastic(2, 0), below(1)), with(elastic(3, 0), below(1), share(2)), elastic(4, 0)},
			[]respool.Demand{{}, revocable(90), revocable(90), revocable(40)},
			nil,
			[]int64{30, 10, 20, 40},
		},
		{"no share, no slack", []respool.Pool{with(elastic(1, 50), share(0)), elastic(2, 0)}, []respool.Demand{revocable(90), revocable(20)}, nil, []int64{0, 20}},
		{"nothing is left", []respool.Pool{elastic(1, 0), elastic(2, 0)}, []respool.Demand{wants(100), revocable(20)}, nil, []int64{0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := mustTree(t, tt.pools...)
			for i, p := range tt.pools {
				if tree.IsLeaf(p.ID) {
					tree.SetDemand(p.ID, tt.demand[i])
				}
				if tt.used != nil {
					tree.Charge(p.ID, resource.Vector{cpu: tt.used[i]}, respool.Work{})
				}
			}
			tree.Entitle(resource.Vector{cpu: 100})
			var got []int64
			for _, p := range tt.pools {
				got = append(got, account(t, tree, p.ID).RevocableEntitlement[cpu])
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestRevocableCountsNowhere: with and without revocable work, everything else is the same.
func TestRevocableCountsNowhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 10)
		tree := f.entitled(t)
		plain := map[workload.PoolID]respool.Demand{}
		for id, d := range f.asked {
			d.Revocable = resource.Vector{}
			plain[id] = d
			tree.Charge(id, resource.Vector{cpu: rapid.Int64Range(0, 50).Draw(t, "revocable usage")}, respool.Work{Owner: "ann", Revocable: true})
		}
		tree.Entitle(f.capacity)
		f.asked = plain
		other := f.entitled(t)
		for _, p := range f.pools {
			a, b := account(t, tree, p.ID), account(t, other, p.ID)
			a.RevocableDemand, a.RevocableEntitlement, a.RevocableUsage = b.RevocableDemand, b.RevocableEntitlement, b.RevocableUsage
			if a != b {
				t.Fatalf("%s: %+v with revocable work, %+v without", tree.Path(p.ID), a, b)
			}
		}
		for id, d := range plain { // and when it is gone, so is its entitlement
			tree.SetDemand(id, d)
		}
		tree.Entitle(f.capacity)
		for _, p := range f.pools {
			if a := account(t, tree, p.ID); !a.RevocableEntitlement.IsZero() || !a.RevocableDemand.IsZero() {
				t.Fatalf("%s keeps a revocable entitlement of %v", tree.Path(p.ID), a.RevocableEntitlement)
			}
		}
	})
}

func TestApportion(t *testing.T) {
	for _, tt := range []struct {
		amount  int64
		weights []int64
		want    []int64
	}{
		{10, []int64{1, 1, 1}, []int64{4, 3, 3}},
		{10, []int64{0, 5, -1}, []int64{0, 10, 0}},
		{7, []int64{0, 0}, []int64{0, 0}},
		{0, []int64{3}, []int64{0}},
		{respool.Unlimited - 1, []int64{1 << 60, 1 << 60}, []int64{respool.Unlimited / 2, respool.Unlimited / 2}},
	} {
		if got := respool.Apportion(tt.amount, tt.weights); !slices.Equal(got, tt.want) {
			t.Errorf("%d by %v is %v, want %v", tt.amount, tt.weights, got, tt.want)
		}
	}
}

// BenchmarkWhatIf is a copy, an edit and a recomputation: what a plan costs.
func BenchmarkWhatIf(b *testing.B) {
	tree, capacity := plainTree(b, 10, 3)
	for p := range tree.All() {
		if tree.IsLeaf(p.ID) {
			for i := range 5 {
				tree.Charge(p.ID, resource.Vector{cpu: 1}, respool.Work{Owner: fmt.Sprint(i)})
			}
		}
	}
	tree.Entitle(capacity)
	for b.Loop() {
		twin := tree.Clone()
		if err := twin.Add(respool.Pool{ID: workload.PoolID{9}, Parent: respool.RootID, Name: "new", Kind: respool.Elastic, Share: 1}); err != nil {
			b.Fatal(err)
		}
		twin.Entitle(capacity)
	}
	b.ReportMetric(float64(tree.Len()), "pools")
}
