package scheduler

import (
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// cycle brings waiting work to the shards. Its cost follows what changed: jobs that moved, pools that were stirred, work that was admitted;
// only the entitlement looks at every pool.
func (s *State) cycle() {
	s.enroll()
	s.checkQuota()
	s.entitle()
	s.askQuota()
	for len(s.stirred) > 0 && s.outboxed < outboxBound {
		s.admit()
		s.enroll()
	}
	s.dispatch()
	s.sendPleas()
	if len(s.census.uncounted) > maxUncounted {
		s.countWaiting()
	}
}

// stir marks a pool whose head may have become admissible.
func (s *State) stir(q *poolQueue) {
	if !q.stirred {
		q.stirred = true
		s.stirred = append(s.stirred, q)
	}
}

// enroll offers what the moved jobs have waiting to their queues, and tells the pools what they demand.
func (s *State) enroll() {
	for len(s.moved) > 0 {
		moved := s.moved
		s.moved = nil
		for _, j := range moved {
			j.isMoved = false
			s.miscounted(j)
			if s.jobs[j.ID] != j {
				s.pending -= j.counted
				j.counted = 0
				continue
			}
			s.reviewPledges(j)
			s.renew(j)
			s.updateDemand(j)
			s.updateEntries(j)
		}
	}
}

func (j *job) runnable() bool { return j.Goal == GoalRun && !j.State.Terminal() }

// window is how many more instances max_running lets live.
func (j *job) window() (free int64, bounded bool) {
	if j.spec.MaxRunning == 0 {
		return 0, false
	}
	return int64(j.spec.MaxRunning) - int64(j.live) - int64(j.byState[workload.InstanceAdmitted]), true
}

// wanted is how many instances of the class may be admitted now, as far as the job itself is concerned.
func (c *jobClass) wanted() int64 {
	n := int64(c.waiting)
	if free, bounded := c.job.window(); bounded {
		n = min(n, max(free, 0))
	}
	return n
}

// mostDemand bounds what one job adds to the demand of its pool, far above what a cell has, so that the sum over MaxJobs stays inside
// int64: a sum that was cut could not be undone when a job ends.
var mostDemand = func() (v resource.Vector) {
	for k := range v {
		v[k] = math.MaxInt64 / MaxJobs
	}
	return v
}()

// updateDemand is usage and what waits, bounded by max_running. What fits no host and what backs off is left out.
func (s *State) updateDemand(j *job) {
	pending := 0
	if !j.State.Terminal() {
		pending = int(j.byState[workload.InstancePending] + j.byState[workload.InstanceAdmitted])
	}
	s.pending += pending - j.counted
	j.counted = pending
	demand := j.usage
	if j.runnable() {
		free, bounded := j.window()
		for _, c := range j.classes {
			if g := c.gang; g != nil && (g.ending || g.finishing()) {
				continue
			}
			n := int64(c.waiting)
			if bounded {
				n = min(n, max(free, 0))
				free -= n
			}
			if n > 0 && !c.neverFits {
				demand = demand.Add(c.class.Needs.Scale(n))
			}
		}
	}
	if demand = demand.Min(mostDemand); demand == j.demand {
		return
	}
	s.demands(j, demand)
}

// updateEntries offers one thing at a time, since the queue holds one entry a job: the start of the first gang that is ready, then the loners,
// one class after the other, then members that join gangs.
func (s *State) updateEntries(j *job) {
	q := s.queueOf(j.spec)
	if !j.runnable() {
		s.leaveQueue(j)
		return
	}
	for _, g := range j.gangs {
		if g.ready() {
			s.offer(q, g.classes[0], &g.starts, 1)
			j.starting = g
			return
		}
	}
	if s.offerFrom(q, j.loners) {
		return
	}
	for _, g := range j.gangs {
		if g.growing() && s.offerFrom(q, g.classes) {
			return
		}
	}
	s.leaveQueue(j)
}

func (s *State) offerFrom(q *poolQueue, classes []*jobClass) bool {
	for _, c := range classes {
		n := c.wanted()
		if c.blocked { // but for what room is made for
			n = min(n, int64(c.promised))
		}
		if c.held {
			n = 0
		}
		if n > 0 {
			s.offer(q, c, &c.class.Needs, n)
			return true
		}
	}
	return false
}

// offer puts what a job may start now into its pool's queue.
func (s *State) offer(q *poolQueue, c *jobClass, needs *resource.Vector, n int64) {
	c.job.offered, c.job.starting = c, nil
	if err := s.line(q, c, needs, n); err != nil { // MaxJobs is below the bound of a queue, and needs were checked when the job was accepted
		panic("scheduler: a queue refused a job that the cell accepted: " + err.Error())
	}
	s.stir(q)
}

// line puts an entry into a queue.
func (s *State) line(q *poolQueue, c *jobClass, needs *resource.Vector, n int64) error {
	j := c.job
	return q.queue.Set(admission.Entry{
		Job: j.ID, Priority: j.spec.Priority, Sequence: j.Order, Needs: *needs, Count: int(n), NonPreemptible: !j.spec.Preemptible,
		Owner: j.spec.Owner, Controller: j.spec.Controller, RunTime: j.spec.RunTime, Since: s.waitsSince(j), Kept: c.keeps(),
	})
}

// keeps reports whether others are making room for what the class stands in the queue for.
func (c *jobClass) keeps() bool {
	if c.gang == nil {
		return c.promised > 0
	}
	return slices.ContainsFunc(c.gang.classes, func(o *jobClass) bool { return o.promised > 0 })
}

func (s *State) leaveQueue(j *job) {
	if j.offered != nil {
		j.offered, j.starting, j.shortAt = nil, nil, 0
		s.queueOf(j.spec).queue.Remove(j.ID)
	}
	if !j.runnable() || j.byState[workload.InstancePending]+j.byState[workload.InstanceAdmitted] == 0 {
		j.waiting = 0
	}
}

// entitle recomputes entitlements when the tree or the capacity changed or a policy answered, and at the end of a period when the demand did.
func (s *State) entitle() {
	due := s.demandOff && s.now-s.entitledAt >= int64(s.cfg.EntitlementPeriod)
	if !s.poolsDirty && !due && !s.quota.arrived {
		return
	}
	s.quota.changed = s.quota.changed || s.poolsDirty || due
	s.quota.arrived = false
	s.accounts.moved = true
	s.tellDemands()
	s.pools.Entitle(s.capacity)
	s.poolsDirty, s.demandOff, s.entitledAt = false, false, s.now
	for id := range s.pools.IDs() {
		for _, q := range s.queuesOf(id) {
			if q.shares != nil {
				q.shares.SetCapacity(s.now, s.capacity)
			}
			if q.queue.Len() > 0 {
				s.stir(q)
			}
		}
	}
}

// admit lets each stirred pool's queue have what its entitlement leaves, and turns what was granted into work for the shards. When
// those are behind, the pools stay stirred.
func (s *State) admit() {
	stirred := s.stirred
	s.stirred = nil
	for n, q := range stirred {
		if s.outboxed >= outboxBound {
			s.stirred = append(stirred[n:], s.stirred...)
			return
		}
		q.stirred = false
		s.admitPool(q)
	}
}

func (s *State) admitPool(q *poolQueue) {
	room, ok := s.room(q)
	if !ok {
		return
	}
	var out admission.Outcome
	s.grants, out = q.queue.Admit(s.grants[:0], &room, shard.MaxBatch)
	for _, g := range s.grants {
		s.grant(s.jobs[g.Job], g.Tasks)
	}
	s.watch(q, earlier(out.Again, s.pressHeads(q)))
	if out.Stop != admission.StopDone && out.Tasks > 0 {
		s.stir(q)
	}
}

// grant marks instances ADMITTED and sends them off to find hosts.
func (s *State) grant(j *job, n int) {
	j.shortAt = 0
	switch {
	case j.starting != nil:
		s.sendOff(s.starters(j.starting))
	case j.offered.gang != nil:
		s.sendOff(s.joiners(j.offered, n))
	case j.daemonHome != nil:
		for _, i := range s.take(j.offered, n, nil) {
			s.sendOff(&placeWork{job: j, host: j.tasks[i].host, parts: []placePart{{class: j.offered, instances: []uint32{i}}}})
		}
	default:
		if instances := s.take(j.offered, n, nil); len(instances) > 0 {
			s.sendOff(&placeWork{job: j, parts: []placePart{{class: j.offered, instances: instances}}})
		}
	}
}

// sendOff has admitted work find hosts, but for what others have made room for already.
func (s *State) sendOff(w *placeWork) {
	if s.redeem(w); w.tasks() > 0 {
		s.enqueue(w)
	}
}
