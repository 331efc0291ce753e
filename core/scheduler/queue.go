package scheduler

import (
	"math"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// followPolicy has a queue wait as its pool says. What an order or back-fill needs to know of the past and of what runs is gathered from the
// instances of the pool, once; a new queue has none.
func (s *State) followPolicy(q *poolQueue, isNew bool) {
	p, ok := s.pools.Pool(q.pool)
	if !ok {
		return // deleted; its last jobs are on their way out
	}
	policy := p.Queue.WithDefaults()
	if policy.Order == respool.OrderExpress && q.revocable {
		policy.Order = respool.OrderSmallestFirst // slack is no more than what is demanded of it: there is nothing to keep free
	}
	fair := policy.Order == respool.OrderFairUser || (policy.Candidates == respool.OrderFairUser && policy.Backfill != respool.BackfillNone)
	remembers := fair && (q.shares == nil || q.halfLife != policy.UsageHalfLife)
	q.queue.SetPolicy(policy)
	switch {
	case !fair:
		q.shares = nil
	case remembers:
		q.halfLife = policy.UsageHalfLife
		q.shares = admission.NewUsage(policy.UsageHalfLife, s.now)
		q.shares.SetCapacity(s.now, s.capacity)
	}
	if remembers && !isNew {
		s.gather(q)
	}
	if q.queue.Len() > 0 {
		s.stir(q)
	}
}

// withExpressRoom adds to the demand of a queue in express order what its long work must leave free, or entitlement that is no more than the
// demand would keep the last of it waiting for ever.
func (q *poolQueue) withExpressRoom(t *respool.Tree, d *respool.Demand) {
	if p, _ := t.Pool(q.pool); q.revocable || p.Queue.Order != respool.OrderExpress {
		return
	}
	room := d.Preemptible.Add(d.NonPreemptible)
	for k, demand := range room {
		room[k] = (min(demand, math.MaxInt64/2) + admission.ExpressParts - 2) / (admission.ExpressParts - 1)
	}
	d.Preemptible = d.Preemptible.Add(room)
}

// gather goes through the instances of a queue's jobs.
func (s *State) gather(q *poolQueue) {
	for _, j := range s.order {
		if j == nil || j.spec.Pool != q.pool || j.spec.Revocable != q.revocable {
			continue
		}
		for i := range j.tasks {
			t := &j.tasks[i]
			needs := j.needs(uint32(i))
			if t.charges() {
				q.shares.Charge(s.now, j.spec.Owner, *needs)
			}
			q.recall(s, j, t, needs)
		}
	}
}

// recall counts what an instance used of its pool before now, as far as its own record tells: its present run, or its last if it is not
// tried again. A restart forgets earlier runs of an instance and jobs that were erased: what is older than the cell's JobRetention, and
// what was tried several times.
func (q *poolQueue) recall(s *State, j *job, t *task, needs *resource.Vector) {
	if q.shares == nil || t.run == 0 {
		return
	}
	switch {
	case t.runState.Live():
		q.shares.Past(j.spec.Owner, *needs, t.placed, s.now)
	case t.state.Terminal():
		q.shares.Past(j.spec.Owner, *needs, t.placed, t.since)
	}
}

// foresee keeps the expected end of a charged instance, for back-fill and for estimates of starts.
func (s *State) foresee(j *job, t *task, needs *resource.Vector) {
	if j.spec.RunTime == 0 {
		return
	}
	q := s.queueOfJob(j)
	due := int64(0)
	switch {
	case !t.charges():
	case t.state != workload.InstanceAdmitted:
		due = max(t.started, t.placed) + int64(j.spec.RunTime)
	case t.due != 0:
		due = t.due
	default:
		due = s.now + int64(j.spec.RunTime)
	}
	if due == t.due {
		return
	}
	if t.due != 0 {
		q.ends.Remove(t.due, needs, !j.spec.Preemptible)
	}
	if due != 0 {
		q.ends.Add(due, needs, !j.spec.Preemptible)
	}
	t.due = due
}

// waitsSince is since when the job waits without getting a host for anything.
func (s *State) waitsSince(j *job) int64 {
	if j.waiting == 0 {
		if j.waiting = s.now; j.State == workload.JobPending {
			j.waiting = j.Created // nothing of it ever had a host: a restart of the core changes nothing
		}
	}
	return j.waiting
}

// watch remembers when a queue's outcome changes by itself.
func (s *State) watch(q *poolQueue, again int64) {
	if again == 0 || (q.wakes != 0 && q.wakes <= again) {
		return
	}
	q.wakes = again
	s.setTimer(timer{at: again, kind: timerQueue, queue: q})
}

// patienceEnds looks at the queue again. An earlier timer may have replaced the one that fires; then there is nothing to forget.
func (s *State) patienceEnds(q *poolQueue) {
	if q.wakes <= s.now {
		q.wakes = 0
	}
	if q.queue.Len() > 0 {
		s.stir(q)
	}
}
