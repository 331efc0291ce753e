package respool_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// drawQuota is a policy that knows the rules and is otherwise of no sense: each pool gets its guarantee and some of what is left.
func drawQuota(t *rapid.T, s *respool.Snapshot) []resource.Vector {
	given := make([]resource.Vector, len(s.Rows))
	for k := range s.Kinds {
		left := make([]int64, len(s.Rows))
		left[0] = s.Rows[0].Reservation[k]
		given[0][k] = left[0]
		for i := 1; i < len(s.Rows); i++ { // the guarantees of all come first
			given[i][k] = s.Rows[i].Guarantee(resource.Kind(k))
			left[s.Rows[i].Parent] -= given[i][k]
		}
		for i := 1; i < len(s.Rows); i++ {
			r := &s.Rows[i]
			most := min(r.Ceiling[k]-given[i][k], left[r.Parent])
			more := rapid.Int64Range(0, max(most, 0)).Draw(t, "more")
			given[i][k] += more
			left[r.Parent], left[i] = left[r.Parent]-more, left[i]+given[i][k]
		}
	}
	return given
}

// lawful is Propose the slow way.
func lawful(s *respool.Snapshot, given []resource.Vector) bool {
	for k := range s.Kinds {
		for i := range s.Rows {
			amount := given[i][k]
			if i == 0 {
				amount = s.Rows[0].Reservation[k]
			} else if amount < min(s.Rows[i].Reservation[k], s.Rows[i].Demand[k]) || amount > s.Rows[i].Ceiling[k] {
				return false
			}
			for j := range s.Rows {
				if int(s.Rows[j].Parent) != i {
					continue
				}
				if amount -= given[j][k]; amount < 0 || given[j][k] < 0 {
					return false
				}
			}
		}
	}
	return true
}

// TestProposalIsFollowed: what is within the rules is taken, and pools are then entitled to just that; what is not is refused.
func TestProposalIsFollowed(t *testing.T) {
	taken, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 10)
		tree := f.entitled(t)
		s := tree.Snapshot()
		given := drawQuota(t, s)
		if rapid.Bool().Draw(t, "wrong") {
			i, k := rapid.IntRange(0, len(given)-1).Draw(t, "row"), rapid.SampledFrom([]resource.Kind{cpu, gpu}).Draw(t, "kind")
			given[i][k] = rapid.SampledFrom([]int64{-1, 0, given[i][k] + 1, 2*given[i][k] + 1, respool.Unlimited, -respool.Unlimited}).Draw(t, "value")
		}
		p, err := s.Propose(given)
		if (err == nil) != lawful(s, given) {
			t.Fatalf("refused with %v, and by the definition it is %v that it is lawful", err, lawful(s, given))
		}
		if err != nil {
			refused++
			return
		}
		taken++
		tree.Follow(p)
		tree.Entitle(f.capacity)
		for i := range s.Rows[1:] {
			r := &s.Rows[i+1]
			if r.Path != tree.Path(r.ID) {
				t.Fatalf("row %d is at %s, not %s", i+1, r.Path, tree.Path(r.ID))
			}
			if got := account(t, tree, r.ID).Entitlement; got != given[i+1] || !tree.Follows(r.ID) {
				t.Fatalf("%s is entitled to %v, the policy said %v", r.Path, got, given[i+1])
			}
		}
		tree.Follow(nil)
		tree.Entitle(f.capacity)
		compareWithOracle(t, &f, tree)
	})
	if taken == 0 || refused == 0 {
		t.Errorf("%d proposals were taken, %d refused: the test shows little", taken, refused)
	}
}

// TestMaxMinIsLawful: the built-in policy passes the checks, and following it changes nothing.
func TestMaxMinIsLawful(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 14)
		tree := f.entitled(t)
		s := tree.Snapshot()
		given := make([]resource.Vector, len(s.Rows))
		for i := range s.Rows {
			given[i] = account(t, tree, s.Rows[i].ID).Entitlement
		}
		p, err := s.Propose(given)
		if err != nil {
			t.Fatal(err)
		}
		tree.Follow(p)
		tree.Entitle(f.capacity)
		for k := range resource.Kind(2) {
			for id, want := range entitlements(&f, []resource.Kind{cpu, gpu}[k], false) {
				if got := account(t, tree, id).Entitlement[[]resource.Kind{cpu, gpu}[k]]; got != want.entitlement {
					t.Fatalf("%s got %d, max-min says %d", tree.Path(id), got, want.entitlement)
				}
			}
		}
	})
}

// TestRulesHoldWhateverIsProposed has a tree follow proposals that nobody checked, about a tree that has changed since: every guarantee, ceiling and
// sum holds all the same.
func TestRulesHoldWhateverIsProposed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 12)
		tree := f.entitled(t)
		p := respool.Proposal{}
		some := append([]respool.Pool{{ID: poolID(9999)}}, f.pools...)
		for _, pool := range some {
			if rapid.IntRange(0, 3).Draw(t, "unknown") == 0 {
				continue
			}
			var v resource.Vector
			for _, k := range []resource.Kind{cpu, gpu} {
				v[k] = rapid.SampledFrom([]int64{
					rapid.Int64Range(-5, 60).Draw(t, "small"), rapid.Int64().Draw(t, "any"), respool.Unlimited, -respool.Unlimited - 1, 0,
				}).Draw(t, "value")
			}
			p[pool.ID] = v
		}
		tree.Follow(p)
		for id := range f.asked {
			if rapid.Bool().Draw(t, "other demand") {
				tree.SetDemand(id, respool.Demand{Preemptible: resource.Vector{cpu: rapid.Int64Range(0, 90).Draw(t, "demand")}})
			}
		}
		tree.Entitle(resource.Vector{cpu: rapid.Int64Range(0, 200).Draw(t, "capacity"), gpu: f.capacity[gpu]})
		checkRules(t, tree, f.pools)
	})
}

// checkRules checks what holds under every policy.
func checkRules(t *rapid.T, tree *respool.Tree, pools []respool.Pool) {
	sums := map[workload.PoolID]resource.Vector{}
	for _, pool := range pools {
		a := account(t, tree, pool.ID)
		sums[pool.Parent] = sums[pool.Parent].Add(a.Entitlement)
		for _, k := range []resource.Kind{cpu, gpu} {
			e, most := a.Entitlement[k], pool.Limit.Of(k)
			if pool.Kind == respool.Static || pool.Share == 0 {
				most = a.Reservation[k]
			}
			if e < 0 || e > most || e < min(a.Demand[k], a.Reservation[k]) {
				t.Fatalf("%s: entitlement %d, reservation %d, demand %d, at most %d", tree.Path(pool.ID), e, a.Reservation[k], a.Demand[k], most)
			}
		}
	}
	for id, sum := range sums {
		if a := account(t, tree, id); !sum.FitsIn(&a.Entitlement) {
			t.Fatalf("children of %s are entitled to %v, it to %v", tree.Path(id), sum, a.Entitlement)
		}
	}
}

// TestMerge follows a proposal into a tree that is not what it was about.
func TestMerge(t *testing.T) {
	start := []respool.Pool{elastic(1, 20), elastic(2, 0), elastic(3, 0)}
	tests := []struct {
		name     string
		capacity int64
		demand   [4]int64 // of pools 1 to 4
		edit     func(t *testing.T, tree *respool.Tree)
		want     [4]int64
	}{
		{"as it was", 100, [4]int64{20, 90, 90}, nil, [4]int64{30, 50, 20}},
		{"less capacity: beyond guarantees all shrink alike", 60, [4]int64{20, 90, 90}, nil, [4]int64{25, 25, 10}},
		{"more capacity is handed to nobody", 500, [4]int64{20, 90, 90}, nil, [4]int64{30, 50, 20}},
		{"a guarantee comes first", 100, [4]int64{20, 90, 90}, func(t *testing.T, tree *respool.Tree) {
			update(t, tree, with(elastic(3, 60), share(1)))
		}, [4]int64{23, 17, 60}},
		{"a lower limit", 100, [4]int64{20, 90, 90}, func(t *testing.T, tree *respool.Tree) {
			update(t, tree, with(elastic(2, 0), limit(5)))
		}, [4]int64{30, 5, 20}},
		{"a new pool has its part by max-min", 100, [4]int64{20, 90, 90, 40}, func(t *testing.T, tree *respool.Tree) {
			if err := tree.Add(elastic(4, 0)); err != nil {
				t.Fatal(err)
			}
		}, [4]int64{27, 38, 15, 20}},
		{"a pool that is gone leaves nothing to others", 100, [4]int64{20, 90}, func(t *testing.T, tree *respool.Tree) {
			if err := tree.Delete(poolID(3)); err != nil {
				t.Fatal(err)
			}
		}, [4]int64{30, 50}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tree := mustTree(t, start...)
			tree.Entitle(resource.Vector{cpu: 100})
			p, err := tree.Snapshot().Propose([]resource.Vector{{}, {cpu: 30}, {cpu: 50}, {cpu: 20}})
			if err != nil {
				t.Fatal(err)
			}
			tree.Follow(p)
			if test.edit != nil {
				test.edit(t, tree)
			}
			for i, demand := range test.demand {
				if tree.IsLeaf(poolID(i + 1)) {
					tree.SetDemand(poolID(i+1), wants(demand))
				}
			}
			tree.Entitle(resource.Vector{cpu: test.capacity})
			for i, want := range test.want {
				a, _ := tree.Account(poolID(i + 1))
				if a.Entitlement[cpu] != want {
					t.Errorf("pool %d is entitled to %d, want %d", i+1, a.Entitlement[cpu], want)
				}
			}
		})
	}
}

func update(t *testing.T, tree *respool.Tree, p respool.Pool) {
	t.Helper()
	if err := tree.Update(p); err != nil {
		t.Fatal(err)
	}
}

func TestProposeSaysWhatIsWrong(t *testing.T) {
	tree := mustTree(t, elastic(1, 20), with(elastic(2, 0), limit(30)))
	tree.SetDemand(poolID(1), wants(50))
	tree.Entitle(resource.Vector{cpu: 100})
	s := tree.Snapshot()
	for want, given := range map[string][]resource.Vector{
		"3 pools":                  {{}},
		"reservation is 20":        {{}, {cpu: 19}, {}},
		"at most 30":               {{}, {cpu: 20}, {cpu: 31}},
		"parent's, /, 10 are left": {{}, {cpu: 90}, {cpu: 11}},
	} {
		if _, err := s.Propose(given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want something about %q", err, want)
		}
	}
}

// BenchmarkQuota is what a policy costs the loop beside BenchmarkEntitle, at 1,110 pools: a snapshot, the checks of an answer, and a recomputation by it,
// in which the tree has to shrink all that was proposed, beside one by max-min.
func BenchmarkQuota(b *testing.B) {
	tree, capacity := plainTree(b, 10, 3)
	tree.Entitle(capacity)
	s := tree.Snapshot()
	given := make([]resource.Vector, len(s.Rows))
	for i := range s.Rows {
		a, _ := tree.Account(s.Rows[i].ID)
		given[i] = a.Entitlement
	}
	p, err := s.Propose(given)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			tree.Snapshot()
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Propose(given); err != nil {
				b.Fatal(err)
			}
		}
	})
	for k := range capacity {
		capacity[k] -= capacity[k] / 8
	}
	for name, p := range map[string]respool.Proposal{"max-min": nil, "follow": p} {
		b.Run(name, func(b *testing.B) {
			tree.Follow(p)
			for b.Loop() {
				tree.Entitle(capacity)
			}
		})
	}
}
