package registry_test

import (
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/workload"
)

// A policy of which nothing is active yet is tried on the work that chooses no policy, and on no work that chooses another.
func TestNewcomers(t *testing.T) {
	c := newCell(t)
	r := open(t, quick(c))
	const first, best = host.Row(0), host.Row(2) // as in TestRollOut
	s := source(t, r, "c/0")
	where := func(policy, pool string, want host.Row) {
		t.Helper()
		if rows := place(t, s, newTable(t, 6), class(workload.Batch, policy, 100), 1, pool); rows[0] != want {
			t.Fatalf("a task of policy %q in pool %q is on row %d, not %d: %s", policy, pool, rows[0], want, stages(r, "ff"))
		}
	}
	digest := push(t, r, "ff", "firstfit")
	other := push(t, r, "gg", "firstfit")
	compared := func(name string, want int64) {
		t.Helper()
		report := r.Report()
		if fare := report.Fare(name, digest); fare == nil || fare.Tally.Compared != want || fare.Tally.Elsewhere != want {
			t.Fatalf("%s should have been compared with %d tasks: %+v", name, want, fare)
		}
	}
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Shadow})
	where("", "/a", best)
	compared("ff", 1)
	where("best-fit", "/a", best)
	compared("ff", 1)

	// Those in shadow share the work in turn.
	change(t, r, rollout.Move{Policy: "gg", Digest: other, To: rollout.Shadow})
	for range 4 {
		where("", "/a", best)
	}
	compared("ff", 3)
	compared("gg", 2)

	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Canary, Scope: rollout.Scope{Pool: "/a"}})
	where("", "/a/b", first)
	where("", "/b", best)
	where("best-fit", "/a/b", best)
	for _, scope := range []rollout.Scope{{Pool: "/a/b"}, {Pool: "/"}, {Pool: "/a"}, {Percent: 1}} {
		_, err := r.Change(t.Context(), "alice", rollout.Move{Policy: "gg", Digest: other, To: rollout.Canary, Scope: scope})
		if err == nil || !strings.Contains(err.Error(), "policy ff has a part already") {
			t.Errorf("a second canary for %v: %v", scope, err)
		}
	}
	change(t, r, rollout.Move{Policy: "gg", Digest: other, To: rollout.Canary, Scope: rollout.Scope{Pool: "/ab"}})
	where("", "/ab", first)
	where("", "/b", best)

	// One that is active has the work of its name alone, and so has its next version in shadow.
	change(t, r, rollout.Move{Policy: "ff", Digest: digest, To: rollout.Active})
	where("", "/a/b", best)
	where("ff", "/a/b", first)
	change(t, r, rollout.Rollback{Policy: "gg", Why: "by hand"})
	where("", "/ab", best)
}
