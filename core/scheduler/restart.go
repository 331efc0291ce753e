package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/disruption"
	"github.com/paceline-sched/paceline/core/lifecycle"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxRestartRanges bounds the ranges of instances that a restart is of, as a job's record holds them.
const maxRestartRanges = 1000

func (s *State) restartJob(caller Caller, cmd RestartJob) (Answer, *Error) {
	j, err := s.findJob(cmd.Job, cmd.ExpectedVersion)
	if err != nil {
		return Answer{}, err
	}
	only, err := j.restartOnly(&cmd)
	switch {
	case err != nil:
		return Answer{}, err
	case j.Goal != GoalRun || j.State.Terminal():
		return Answer{}, refuse(FailedPrecondition, "job", "submit it again instead", "job %s is %s", j.spec.Name, j.State)
	case only != nil && j.Restart.Batch > 0:
		return Answer{}, refuse(FailedPrecondition, "instances", "wait until it is done, or restart the whole job, which takes its place",
			"job %s is being restarted already, and this would take the place of that", j.spec.Name)
	}
	if err := j.mayGoDown(only); err != nil {
		return Answer{}, err
	}
	j.Version++
	j.Restart = Restart{Number: j.Restart.Number + 1, Batch: min(max(cmd.Batch, 1), MaxRestartBatch), Grace: cmd.Grace, Only: only}
	j.renewNext = 0
	j.renewing = slices.DeleteFunc(j.renewing, func(i uint32) bool { // what an earlier restart brought up is looked at again
		if g := j.gangOf(i); g != nil {
			return !g.ending
		}
		run := j.tasks[i].runState
		return run.Live() && run != workload.RunKilling
	})
	s.dirtyJob(j).principal = caller.Principal
	s.touch(j)
	return Answer{Job: s.jobView(j)}, nil
}

// restartOnly is the instances that a restart is asked for; nil: all. Of a gang it is all or none.
func (j *job) restartOnly(cmd *RestartJob) ([]workload.InstanceRange, *Error) {
	if len(cmd.Only)+len(cmd.Gangs) == 0 {
		return nil, nil
	}
	all := slices.Clone(cmd.Only)
	for _, name := range cmd.Gangs {
		at := slices.IndexFunc(j.gangs, func(g *gang) bool { return g.Name == name })
		if at < 0 {
			return nil, refuse(NotFound, "gangs", j.nameGangs(), "job %s has no gang %q", j.spec.Name, name)
		}
		all = append(all, j.gangs[at].Members...)
	}
	only := joinRanges(all)
	if last := only[len(only)-1].Last; int64(last) >= int64(len(j.tasks)) {
		return nil, refuse(InvalidArgument, "instances", "name instances that it has",
			"instance %d does not exist: job %s has %d", last, j.spec.Name, len(j.tasks))
	}
	if len(only) > maxRestartRanges {
		return nil, refuse(InvalidArgument, "instances", "name fewer at a time, or restart the whole job",
			"%d ranges of instances are more than %d", len(only), maxRestartRanges)
	}
	r := Restart{Only: only}
	for _, g := range j.gangs {
		in, out := uint32(0), uint32(0)
		for _, i := range g.All() {
			if r.covers(i) {
				in = i
			} else {
				out++
			}
		}
		if out > 0 && out < g.Size {
			return nil, refuse(FailedPrecondition, "instances", fmt.Sprintf("name all of its members (%s), or the gang", spellRanges(g.Members)),
				"instance %d is a member of gang %s, which is restarted as a whole", in, g.Name)
		}
	}
	return only, nil
}

// nameGangs lists the first gangs of a job, as a hint.
func (j *job) nameGangs() string {
	const most = 5
	if len(j.gangs) == 0 {
		return "it has none: name instances instead"
	}
	names := make([]string, 0, most)
	for _, g := range j.gangs[:min(len(j.gangs), most)] {
		names = append(names, g.Name)
	}
	if len(j.gangs) > most {
		names = append(names, "...")
	}
	return "it has " + strings.Join(names, ", ")
}

// mayGoDown refuses what the job's budget can never allow.
func (j *job) mayGoDown(only []workload.InstanceRange) *Error {
	r, budget := Restart{Only: only}, j.budget()
	if budget.Limit == 0 {
		return refuse(FailedPrecondition, "job", "submit it with a max_unavailable of at least 1, or stop it and submit it again",
			"job %s allows none of its instances to be taken down: its max_unavailable is 0", j.spec.Name)
	}
	for _, g := range j.gangs {
		if r.covers(g.first()) && budget.MayAll(g.Size) == disruption.Never {
			return refuse(FailedPrecondition, "job", fmt.Sprintf("submit it with a max_unavailable of at least %d, or stop it and submit it again", g.Size),
				"gang %s of job %s is restarted as a whole, and max_unavailable allows %d of its %d members to be down", g.Name, j.spec.Name, budget.Limit, g.Size)
		}
	}
	return nil
}

// joinRanges sorts ranges and joins those that touch or overlap.
func joinRanges(list []workload.InstanceRange) []workload.InstanceRange {
	slices.SortFunc(list, func(a, b workload.InstanceRange) int { return cmp.Compare(a.First, b.First) })
	out := list[:1]
	for _, r := range list[1:] {
		if last := &out[len(out)-1]; int64(r.First) <= int64(last.Last)+1 {
			last.Last = max(last.Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return slices.Clip(out)
}

func spellRanges(list []workload.InstanceRange) string {
	parts := make([]string, len(list))
	for n, r := range list {
		if parts[n] = fmt.Sprintf("%d-%d", r.First, r.Last); r.First == r.Last {
			parts[n] = fmt.Sprint(r.First)
		}
	}
	return strings.Join(parts, ",")
}

// covers reports whether an instance is one of those that are restarted.
func (r *Restart) covers(i uint32) bool {
	if r.Only == nil {
		return true
	}
	_, found := slices.BinarySearchFunc(r.Only, i, func(o workload.InstanceRange, i uint32) int {
		switch {
		case o.Last < i:
			return -1
		case o.First > i:
			return 1
		}
		return 0
	})
	return found
}

// first is the member of the lowest number, by which a restart knows the gang.
func (g *gang) first() uint32 { return g.Members[0].First }

// units is how many of what the present restart is of begin before an instance: gangs, and instances in none.
func (j *job) units(before uint32) uint32 {
	n := before
	if j.Restart.Only != nil {
		n = below(j.Restart.Only, before)
	}
	for _, g := range j.gangs {
		if !j.Restart.covers(g.first()) {
			continue
		}
		if n -= below(g.Members, before); g.first() < before {
			n++
		}
	}
	return n
}

// below counts the instances of ranges that come before one.
func below(list []workload.InstanceRange, before uint32) (n uint32) {
	for _, r := range list {
		if r.First < before {
			n += min(r.Last+1, before) - r.First
		}
	}
	return n
}

// renew keeps a rolling restart going: at most Batch units are down for it at once, fewer when the job's budget is used up. An instance is up
// again when its new run is RUNNING and healthy, a gang when as many members are as start together. A long stretch of instances that need
// nothing is left to the next Step.
func (s *State) renew(j *job) {
	if j.Restart.Batch == 0 || j.Goal != GoalRun {
		return
	}
	j.renewing = slices.DeleteFunc(j.renewing, j.renewed)
	budget := sweepBudget
	for ; len(j.renewing) < int(j.Restart.Batch) && int(j.renewNext) < len(j.tasks); j.renewNext++ {
		if budget--; budget < 0 {
			s.setTimer(timer{at: s.now, kind: timerRenew, job: j})
			return
		}
		i := j.renewNext
		if g := j.gangOf(i); g != nil {
			if i == g.first() && !s.renewGang(g) {
				return
			}
			continue
		}
		t := &j.tasks[i]
		if lifecycle.Next(j.goal(i), t.state, t.runState == workload.RunKilling) != lifecycle.Kill {
			continue
		}
		if j.budget().May(t.runState, t.healthy) != disruption.Allowed {
			return // an instance that comes up moves the job, and the restart goes on
		}
		s.kill(j, i, workload.ReasonRestartRequested)
		j.renewing = append(j.renewing, i)
	}
	if len(j.renewing) == 0 && int(j.renewNext) >= len(j.tasks) {
		j.Restart.Batch, j.Restart.Only = 0, nil
		s.dirtyJob(j)
	}
}

// renewed reports whether a unit of the restart needs to be waited for no more: it is up again, or was given up.
func (j *job) renewed(i uint32) bool {
	if g := j.gangOf(i); g != nil {
		up, _ := g.renewals()
		return !g.ending && up >= g.Min
	}
	t := &j.tasks[i]
	return t.state.Terminal() || (t.restart >= j.Restart.Number && t.healthy)
}

// renewals counts the members that are up under the present restart or done, and those that still run as before it.
func (g *gang) renewals() (up, stale uint32) {
	for _, i := range g.All() { // at most MaxGang
		t := &g.job.tasks[i]
		switch current := t.restart >= g.job.Restart.Number; {
		case t.state.Terminal() || current && t.healthy:
			up++
		case !current && t.runState.Live() && t.runState != workload.RunKilling:
			stale++
		}
	}
	return up, stale
}

// renewGang ends a gang's generation for the restart, if it has members that run as before it: the next one starts when nobody of this one
// lives. One that is ending for another reason is waited for: its next life will do. It reports false when the job's budget does not allow it
// yet.
func (s *State) renewGang(g *gang) bool {
	j := g.job
	_, stale := g.renewals()
	switch {
	case !j.Restart.covers(g.first()) || stale == 0 && !g.ending:
		return true
	case !g.ending && j.budget().MayAll(g.healthy()) != disruption.Allowed:
		return false
	}
	if !slices.Contains(j.renewing, g.first()) {
		j.renewing = append(j.renewing, g.first())
	}
	s.endGang(g, workload.ReasonRestartRequested, workload.ReasonRestartRequested)
	return true
}

// healthy counts the members that are RUNNING and healthy.
func (g *gang) healthy() (n uint32) {
	for _, i := range g.All() {
		if g.job.tasks[i].healthy {
			n++
		}
	}
	return n
}

// recoverRestart waits again for a gang that was down for a restart when the core stopped.
func (s *State) recoverRestart(g *gang) {
	j := g.job
	if j.Restart.Batch == 0 || !j.Restart.covers(g.first()) || j.renewed(g.first()) {
		return
	}
	begun := g.ending
	for _, i := range g.All() {
		t := &j.tasks[i]
		begun = begun || t.reason == workload.ReasonRestartRequested || (t.run > 0 && t.restart >= j.Restart.Number)
	}
	if begun {
		j.renewing = append(j.renewing, g.first())
	}
}
