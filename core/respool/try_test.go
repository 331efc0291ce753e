package respool_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestTryAgreesWithClone compares what is found along one path with a copy on which the edit was made and everything worked out anew, and the
// tree afterwards with the tree before.
func TestTryAgreesWithClone(t *testing.T) {
	tried, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := drawForest(t, 12)
		tree := f.entitled(t)
		if rapid.Bool().Draw(t, "policy") {
			snapshot := tree.Snapshot()
			p, err := snapshot.Propose(drawQuota(t, snapshot))
			if err != nil {
				t.Fatal(err)
			}
			tree.Follow(p)
			tree.Entitle(f.capacity)
		}
		var leaves, all []workload.PoolID
		for p := range tree.All() {
			if all = append(all, p.ID); tree.IsLeaf(p.ID) {
				leaves = append(leaves, p.ID)
			}
		}
		leaf := rapid.SampledFrom(leaves).Draw(t, "leaf")
		above := []respool.Pool{}
		for p, ok := tree.Pool(leaf); ok; p, ok = tree.Pool(p.Parent) {
			above = append(above, p)
		}
		edited := rapid.SampledFrom(above).Draw(t, "edited")
		k := resource.Kind(rapid.IntRange(0, 3).Draw(t, "kind"))
		switch rapid.IntRange(0, 3).Draw(t, "edit") {
		case 0:
			edited.Share = rapid.Int64Range(0, 9).Draw(t, "share")
		case 1:
			edited.Limit = edited.Limit.With(k, rapid.Int64Range(0, 2000).Draw(t, "limit"))
		case 2:
			edited.Reservation[k] += rapid.Int64Range(-50, 50).Draw(t, "reservation")
		default:
			edited.UserLimit = edited.UserLimit.With(k, rapid.Int64Range(0, 100).Draw(t, "user limit"))
		}
		before := map[workload.PoolID]respool.Account{}
		for _, id := range all {
			before[id] = account(t, tree, id)
		}
		var got respool.Account
		var bound respool.Bound
		done, err := tree.Try(edited, leaf, f.capacity, func() {
			got = account(t, tree, leaf)
			bound, _ = tree.OwnerBound(leaf, "ann")
		})
		for _, id := range all {
			if account(t, tree, id) != before[id] {
				t.Fatalf("%s is not as it was", tree.Path(id))
			}
		}
		twin := tree.Clone()
		if refusal := twin.Update(edited); (refusal == nil) != (err == nil) {
			t.Fatalf("refused with %v on one path, and with %v on a copy", err, refusal)
		}
		if !done {
			refused++
			return
		}
		tried++
		twin.Entitle(f.capacity)
		want := account(t, twin, leaf)
		got.RevocableEntitlement, got.RevocableDemand = want.RevocableEntitlement, want.RevocableDemand
		if got != want {
			t.Fatalf("%s by one path %+v, by a copy %+v", tree.Path(leaf), got, want)
		}
		if other, _ := twin.OwnerBound(leaf, "ann"); other != bound {
			t.Fatalf("an owner's bound by one path %+v, by a copy %+v", bound, other)
		}
	})
	if tried < refused/4 {
		t.Errorf("%d edits were tried and %d were not: the test shows little", tried, refused)
	}
}

// BenchmarkTry is what one question costs beside BenchmarkWhatIf: 1,110 pools, ten to a parent.
func BenchmarkTry(b *testing.B) {
	tree, capacity := plainTree(b, 10, 3)
	tree.Entitle(capacity)
	var leaf respool.Pool
	for p := range tree.All() {
		if tree.IsLeaf(p.ID) {
			leaf = p
		}
	}
	leaf.Share *= 2
	for b.Loop() {
		if called, err := tree.Try(leaf, leaf.ID, capacity, func() {}); !called {
			b.Fatal("it was not tried", err)
		}
	}
	b.ReportMetric(float64(tree.Len()), "pools")
}
