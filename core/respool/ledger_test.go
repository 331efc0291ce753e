package respool_test

import (
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

func mustPanic(t *testing.T, want string, act func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if got, _ := recover().(string); !strings.Contains(got, want) {
			t.Errorf("panicked with %q, want %q", got, want)
		}
	}()
	act()
}

func ledgerTree(t *testing.T) *respool.Tree {
	return mustTree(t, elastic(1, 50), with(elastic(2, 20), below(1), named("web")), with(elastic(3, 0), below(1), rest, named("db")), elastic(4, 0))
}

func TestChargesReachAncestors(t *testing.T) {
	tree := ledgerTree(t)
	tree.Charge(poolID(2), resource.Vector{cpu: 7, gpu: 1}, respool.Work{})
	tree.Charge(poolID(3), resource.Vector{cpu: 5}, respool.Work{NonPreemptible: true})
	tree.Charge(poolID(4), resource.Vector{cpu: 2}, respool.Work{})
	tree.Refund(poolID(2), resource.Vector{cpu: 3, gpu: 1}, respool.Work{})
	check := func(id workload.PoolID, usage, pinned int64) {
		t.Helper()
		a := account(t, tree, id)
		if a.Usage != (resource.Vector{cpu: usage}) || a.NonPreemptibleUsage != (resource.Vector{cpu: pinned}) {
			t.Errorf("%s uses %v, of it non-preemptible %v; want %d and %d", tree.Path(id), a.Usage, a.NonPreemptibleUsage, usage, pinned)
		}
	}
	check(poolID(2), 4, 0)
	check(poolID(3), 5, 5)
	check(poolID(1), 9, 5)
	check(respool.RootID, 11, 5)

	moved, _ := tree.Pool(poolID(1))
	moved.Parent = poolID(4)
	if err := tree.Update(moved); err == nil {
		t.Error("moved below a pool in use")
	}
	web, _ := tree.Pool(poolID(2))
	web.Parent = respool.RootID
	if err := tree.Update(web); err != nil {
		t.Fatal(err)
	}
	check(poolID(1), 5, 5)
	check(poolID(2), 4, 0)
	check(respool.RootID, 11, 5)
}

func TestBrokenBalancesPanic(t *testing.T) {
	tests := []struct {
		name, want string
		act        func(*respool.Tree)
	}{
		{"refund without charge", "cpu_milli=-1", func(tree *respool.Tree) { tree.Refund(poolID(2), resource.Vector{cpu: 1}, respool.Work{}) }},
		{"refunded as the other kind", "balance broke", func(tree *respool.Tree) {
			tree.Charge(poolID(2), resource.Vector{cpu: 1}, respool.Work{})
			tree.Refund(poolID(2), resource.Vector{cpu: 1}, respool.Work{NonPreemptible: true})
		}},
		{"non-preemptible over all", "balance broke", func(tree *respool.Tree) {
			tree.Charge(poolID(2), resource.Vector{cpu: 1}, respool.Work{NonPreemptible: true})
			tree.Refund(poolID(2), resource.Vector{cpu: 1}, respool.Work{})
		}},
		{"overflow", "balance broke", func(tree *respool.Tree) {
			tree.Charge(poolID(2), resource.Vector{cpu: respool.Unlimited}, respool.Work{})
			tree.Charge(poolID(2), resource.Vector{cpu: 1}, respool.Work{})
		}},
		{"negative charge", "negative quantity", func(tree *respool.Tree) { tree.Charge(poolID(2), resource.Vector{cpu: -1}, respool.Work{}) }},
		{"negative demand", "negative demand", func(tree *respool.Tree) { tree.SetDemand(poolID(2), wants(-1)) }},
		{"charge of an inner pool", "/p001", func(tree *respool.Tree) { tree.Charge(poolID(1), resource.Vector{cpu: 1}, respool.Work{}) }},
		{"charge of nothing", "no leaf", func(tree *respool.Tree) { tree.Charge(poolID(9), resource.Vector{cpu: 1}, respool.Work{}) }},
		{"a job that never came", "never came", func(tree *respool.Tree) { tree.DetachJob(poolID(2)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := ledgerTree(t)
			mustPanic(t, tt.want, func() { tt.act(tree) })
		})
	}
}

func TestOnlyLeavesHoldJobs(t *testing.T) {
	tree := ledgerTree(t)
	for id, want := range map[workload.PoolID]string{
		poolID(1): "/p001/db", respool.RootID: "/default", poolID(9): "does not exist",
	} {
		if err := tree.AttachJob(id); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a job in %s: error %v, want one that says %q", tree.Path(id), err, want)
		}
		if err := tree.CheckGuarantee(id, resource.Vector{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a guarantee in %s: error %v, want one that says %q", tree.Path(id), err, want)
		}
	}
	if err := tree.AttachJob(poolID(2)); err != nil {
		t.Fatal(err)
	}
	if jobs := account(t, tree, poolID(2)).Jobs; jobs != 1 {
		t.Errorf("%d jobs, want 1", jobs)
	}
	tree.DetachJob(poolID(2))
	if err := tree.Delete(poolID(2)); err != nil {
		t.Errorf("an idle pool stays: %v", err)
	}
	if _, ok := tree.Account(poolID(2)); ok {
		t.Error("a deleted pool has an account")
	}
}

func TestCheckGuarantee(t *testing.T) {
	tree := ledgerTree(t)
	if err := tree.CheckGuarantee(poolID(2), resource.Vector{cpu: 20}); err != nil {
		t.Errorf("need within the reservation: %v", err)
	}
	if err := tree.CheckGuarantee(poolID(3), resource.Vector{cpu: 1 << 30}); err != nil {
		t.Errorf("a reservation that follows the capacity refused: %v", err)
	}
	err := tree.CheckGuarantee(poolID(2), resource.Vector{cpu: 21})
	for _, part := range []string{"/p001/web", "cpu_milli=20", "21", "raise the reservation"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
}

// TestDemandEndsWithTheLeaf: what a leaf wanted is forgotten once it has children, however they come and go.
func TestDemandEndsWithTheLeaf(t *testing.T) {
	child := with(elastic(9, 0), below(4))
	arrivals := map[string]func(*respool.Tree) error{
		"added": func(tree *respool.Tree) error { return tree.Add(child) },
		"moved": func(tree *respool.Tree) error {
			if err := tree.Add(with(child, below(1))); err != nil {
				return err
			}
			return tree.Update(child)
		},
	}
	for name, arrive := range arrivals {
		tree := ledgerTree(t)
		tree.SetDemand(poolID(4), wants(5))
		if err := arrive(tree); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := tree.Delete(child.ID); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		tree.Entitle(resource.Vector{cpu: 100})
		if d := account(t, tree, poolID(4)).Demand[cpu]; d != 0 {
			t.Errorf("%s: demand %d is left of the time before", name, d)
		}
	}
}
