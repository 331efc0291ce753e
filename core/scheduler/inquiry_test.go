package scheduler_test

import (
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// Hosts are asked on behalf of a few explanations at once. The others say that they were not.
func TestInquiriesSayWhenHostsWereNotAsked(t *testing.T) {
	c := newSlowDisk(t, 1)
	id := workload.JobID{1}
	c.step(scheduler.Call{Token: 1, Command: scheduler.SubmitJob{ID: id, SpecBytes: 200, Spec: &workload.JobSpec{
		Name: "no-such-host-pool", Pool: respool.DefaultID, Kind: workload.Batch, Instances: 1, Preemptible: true, Placement: workload.Placement{HostPool: "none"},
		Template: workload.TaskTemplate{Command: []string{"true"}, Needs: resource.Vector{resource.CPU: 1000}},
	}}})
	const calls = scheduler.MaxPlans
	var events []scheduler.Event
	for n := range calls {
		events = append(events, scheduler.Call{Token: uint64(n + 2), Command: scheduler.ExplainJob{Job: id}})
	}
	c.waiting = nil
	c.step(events...)
	told, busy := 0, 0
	for _, e := range c.waiting {
		r, ok := e.(scheduler.Reply)
		if !ok || r.Answer.Why == nil {
			continue
		}
		switch why := r.Answer.Why; {
		case len(why.Notes) == 0 && len(why.Remedies) == 1 && why.Remedies[0].Kind == scheduler.RemedyRestriction:
			told++
		case len(why.Notes) == 1 && strings.Contains(why.Notes[0], "ask again") && len(why.Remedies) == 0:
			busy++
		default:
			t.Errorf("%+v, notes %q", why.Remedies, why.Notes)
		}
	}
	if told == 0 || busy == 0 || told+busy != calls {
		t.Errorf("of %d explanations %d tell a remedy and %d that the hosts were not asked", calls, told, busy)
	}
}
