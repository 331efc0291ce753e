package scheduler

import (
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/disruption"
	"github.com/paceline-sched/paceline/core/lifecycle"
	"github.com/paceline-sched/paceline/core/workload"
)

// startSweep walks the job's instances from the first on, a bounded number in each Step, and applies the goal table to each.
func (s *State) startSweep(j *job) {
	if j.sweep < 0 {
		s.sweeping = append(s.sweeping, j)
	}
	j.sweep = 0
}

// sweepJobs spends the budget of this Step on the sweeps in turn.
func (s *State) sweepJobs() {
	budget := sweepBudget
	for budget > 0 && len(s.sweeping) > 0 {
		j := s.sweeping[0]
		budget -= s.sweepSlice(j, budget)
		if int(j.sweep) < len(j.tasks) {
			return // out of budget: go on here in the next Step
		}
		s.sweeping = s.sweeping[1:]
		j.sweep = -1
		s.swept(j)
	}
	if len(s.sweeping) == 0 {
		s.sweeping = nil
	}
}

// swept does what had to wait for the end of a sweep; it may begin another one.
func (s *State) swept(j *job) {
	if j.expiring {
		s.eraseJob(j)
		return
	}
	s.jobMayEnd(j)
}

// sweepSlice looks at up to budget instances of the job and returns how many it looked at, at least one.
func (s *State) sweepSlice(j *job, budget int) int {
	looked := 0
	for ; looked < budget && int(j.sweep) < len(j.tasks); looked++ {
		i := uint32(j.sweep)
		j.sweep++
		switch {
		case j.expiring:
			s.eraseTask(j, i)
		default:
			s.pursue(j, i)
		}
	}
	return max(looked, 1)
}

// pursue takes the one step that brings an instance closer to its goal. Renewals have a budget of their own, see renew.
func (s *State) pursue(j *job, i uint32) {
	t := &j.tasks[i]
	goal := j.goal(i)
	if goal == lifecycle.Renew {
		return
	}
	switch lifecycle.Next(goal, t.state, t.runState == workload.RunKilling) {
	case lifecycle.Kill:
		s.kill(j, i, j.stopReason())
	case lifecycle.Halt:
		s.halt(j, i)
	case lifecycle.None, lifecycle.Enqueue: // what is PENDING is offered to its queue by the cycle
	}
}

func (j *job) stopReason() workload.Reason {
	if j.Goal == GoalRun {
		return workload.ReasonHostNoMatch // only a daemon's instance is stopped while its job runs
	}
	return j.GoalReason
}

// halt stops an instance without a live run. One that never ran has no record and gets none: its state follows from the job's.
func (s *State) halt(j *job, i uint32) {
	t := &j.tasks[i]
	if t.state == workload.InstanceAdmitted {
		s.set(j, i, workload.InstancePending, t.runState, t.reason)
	}
	if t.touched {
		s.set(j, i, workload.InstanceStopped, t.runState, j.stopReason())
		return
	}
	j.classOf(i).moved(t.state, workload.InstanceStopped)
	t.state, t.reason = workload.InstanceStopped, j.stopReason()
	s.touch(j)
}

// budget is how many instances of the job may be down by choice.
func (j *job) budget() disruption.Budget {
	return disruption.BudgetOf(disruption.Job{Kind: j.spec.Kind, MaxUnavailable: j.spec.MaxUnavailable, ByRun: &j.byRun, Healthy: j.healthy})
}

// budgetLeft is budget().Left().
func (j *job) budgetLeft() uint32 {
	if !disruption.Limits(j.spec.Kind) {
		return math.MaxUint32
	}
	return j.budget().Left()
}

func (s *State) deadlinePassed(j *job) {
	if j.Goal == GoalRun && !j.State.Terminal() {
		s.stop(j, GoalStop, workload.ReasonDeadline)
	}
}

// stop turns the job's goal and starts the sweep that pursues it.
func (s *State) stop(j *job, goal Goal, reason workload.Reason) {
	j.Goal, j.GoalReason = goal, reason
	j.State = workload.JobStopping
	s.dirtyJob(j)
	s.touch(j)
	s.startSweep(j)
}

// expire erases an ended job: its instances in slices first, the job itself last, so that a crash in between leaves a job whose erasure
// starts anew.
func (s *State) expire(j *job) {
	if s.jobs[j.ID] != j || !j.State.Terminal() || j.expiring {
		return // erased meanwhile, or about to be
	}
	j.expiring = true
	s.setTimer(timer{at: s.now, kind: timerErase, job: j}) // after this Step, in which it may have changed: no key twice in a group
}

func (s *State) eraseTask(j *job, i uint32) {
	t := &j.tasks[i]
	if !t.touched {
		return
	}
	id := j.runID(i)
	writes := make([]Write, 0, MaxRunsKept+1)
	for n := 0; n < MaxRunsKept && id.Run > 0; n++ {
		writes = append(writes, Write{Record: RunRecord{ID: id}, Delete: true})
		id.Run--
	}
	writes = append(writes, Write{Record: TaskRecord{Job: j.ID, Instance: i}, Delete: true})
	t.touched = false
	s.setHome(t, nil)
	s.writeAlone(writes...)
}

func (s *State) eraseJob(j *job) {
	s.dirtyJobLast(j)
	s.dirtyJob(j).gone = true
	delete(s.jobs, j.ID)
	s.instances -= len(j.tasks)
	s.dropName(j)
	s.dropFromOrder(j)
	s.leaveQueue(j)
	s.miscounted(j)
	s.daemons = slices.DeleteFunc(s.daemons, func(d *job) bool { return d == j })
	j.tasks, j.classes, j.daemonHome = nil, nil, nil // its deadline may be months away and still holds the job
}

// dropName gives a name back to the job that had it before, if that is still there.
func (s *State) dropName(j *job) {
	if j.newer != nil {
		j.newer.older = j.older
	}
	if j.older != nil {
		j.older.newer = j.newer
	}
	if name := (jobName{j.spec.Pool, j.spec.Name}); s.byName[name] == j {
		delete(s.byName, name)
		if j.older != nil {
			s.byName[name] = j.older
		}
	}
	j.newer, j.older = nil, nil
}

// dropFromOrder leaves a hole and closes the holes once they are half of the list.
func (s *State) dropFromOrder(j *job) {
	s.order[s.orderIndex(j.Order)] = nil
	s.removed++
	if s.removed*2 < len(s.order) {
		return
	}
	kept := s.order[:0]
	for _, other := range s.order {
		if other != nil {
			kept = append(kept, other)
		}
	}
	clear(s.order[len(kept):])
	s.order, s.removed = kept, 0
}

// orderIndex finds the first job submitted at or after the given order. Holes are skipped by looking right.
func (s *State) orderIndex(order uint64) int {
	lo, hi := 0, len(s.order)
	for lo < hi {
		mid := (lo + hi) / 2
		at := mid
		for at < hi && s.order[at] == nil {
			at++
		}
		if at == hi || s.order[at].Order >= order {
			hi = mid
		} else {
			lo = at + 1
		}
	}
	for lo < len(s.order) && s.order[lo] == nil {
		lo++
	}
	return lo
}
