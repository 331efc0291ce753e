package disruption_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/disruption"
	"github.com/paceline-sched/paceline/core/workload"
)

func TestBudget(t *testing.T) {
	counts := func(running, starting, lost uint32) *[workload.NumRunStates]uint32 {
		return &[workload.NumRunStates]uint32{workload.RunRunning: running, workload.RunStarting: starting, workload.RunLost: lost}
	}
	for _, c := range []struct {
		name   string
		job    disruption.Job
		left   uint32
		answer disruption.Refusal // for a running instance
	}{
		{"all up", disruption.Job{Kind: workload.Service, MaxUnavailable: 2, ByRun: counts(5, 0, 0), Healthy: 5}, 2, disruption.Allowed},
		{"one starting", disruption.Job{Kind: workload.Service, MaxUnavailable: 2, ByRun: counts(4, 1, 0), Healthy: 4}, 1, disruption.Allowed},
		{"two down", disruption.Job{Kind: workload.Service, MaxUnavailable: 2, ByRun: counts(3, 1, 1), Healthy: 3}, 0, disruption.UsedUp},
		{"one sick", disruption.Job{Kind: workload.Service, MaxUnavailable: 1, ByRun: counts(5, 0, 0), Healthy: 4}, 0, disruption.UsedUp},
		{"more down than allowed", disruption.Job{Kind: workload.Service, MaxUnavailable: 2, ByRun: counts(0, 1, 4), Healthy: 0}, 0, disruption.UsedUp},
		{"none may go", disruption.Job{Kind: workload.Service, ByRun: counts(5, 0, 0), Healthy: 5}, 0, disruption.Never},
		{"batch has no limit", disruption.Job{Kind: workload.Batch, ByRun: counts(5, 3, 2), Healthy: 5}, math.MaxUint32, disruption.Allowed},
		{"nor has a daemon", disruption.Job{Kind: workload.Daemon, ByRun: counts(5, 3, 2), Healthy: 5}, math.MaxUint32, disruption.Allowed},
	} {
		b := disruption.BudgetOf(c.job)
		if b.Left() != c.left || b.May(workload.RunRunning, true) != c.answer {
			t.Errorf("%s: left %d, %v; want %d, %v", c.name, b.Left(), b.May(workload.RunRunning, true), c.left, c.answer)
		}
		if starting, sick := b.May(workload.RunStarting, false), b.May(workload.RunRunning, false); starting != disruption.Allowed || sick != disruption.Allowed {
			t.Errorf("%s: an instance that is down already may not be ended: %v, %v", c.name, starting, sick)
		}
		if c.answer != disruption.Allowed && b.Explain(c.answer) == "" {
			t.Errorf("%s: refused without a word", c.name)
		}
	}
}

// TestBudgetHolds takes down whatever is allowed: a service never has more instances down than it allows, unless it had before.
func TestBudgetHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var by [workload.NumRunStates]uint32
		job := disruption.Job{Kind: workload.Service, MaxUnavailable: rapid.Uint32Range(0, 6).Draw(rt, "limit"), ByRun: &by}
		for s := range by {
			by[s] = rapid.Uint32Range(0, 3).Draw(rt, "instances")
		}
		job.Healthy = by[workload.RunRunning]
		before := disruption.BudgetOf(job).Unavailable
		for range 50 {
			state := workload.RunState(rapid.IntRange(0, workload.NumRunStates-1).Draw(rt, "state"))
			if by[state] == 0 || !state.Live() || disruption.BudgetOf(job).May(state, true) != disruption.Allowed {
				continue
			}
			by[state]--
			job.Healthy = by[workload.RunRunning]
			by[workload.RunKilling]++
			if now := disruption.BudgetOf(job).Unavailable; now > max(job.MaxUnavailable, before) {
				rt.Fatalf("%d are down of %d allowed; %d were before", now, job.MaxUnavailable, before)
			}
		}
	})
}

// TestMayAll: a gang goes down as a whole or not at all; what is down already costs nothing.
func TestMayAll(t *testing.T) {
	for _, c := range []struct {
		b    disruption.Budget
		up   uint32
		want disruption.Refusal
	}{
		{disruption.Budget{Limit: 4}, 4, disruption.Allowed},
		{disruption.Budget{Limit: 4}, 5, disruption.Never},
		{disruption.Budget{Limit: 4, Unavailable: 1}, 4, disruption.UsedUp},
		{disruption.Budget{Limit: 4, Unavailable: 1}, 3, disruption.Allowed},
		{disruption.Budget{Limit: 4, Unavailable: 9}, 1, disruption.UsedUp},
		{disruption.Budget{Limit: 0, Unavailable: 2}, 0, disruption.Allowed},
		{disruption.Budget{Limit: 0}, 1, disruption.Never},
		{disruption.Budget{Limit: math.MaxUint32, Unavailable: 7}, 4096, disruption.Allowed},
	} {
		if got := c.b.MayAll(c.up); got != c.want {
			t.Errorf("%+v, %d go down: %s, want %s", c.b, c.up, got, c.want)
		}
	}
}
