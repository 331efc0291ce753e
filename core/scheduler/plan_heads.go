package scheduler

import (
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxPlanRounds bounds how often a plan asks for those whom its pool would not admit, each time for those who got nothing before.
const maxPlanRounds = 8

// planHead is what of a planned job stands in its pool's queue at one time: the start of a gang, or tasks of one class.
type planHead struct {
	gang     *gang
	together bool // a start
	parts    []placePart
}

// inLine lists what the units of a planned job stand in line for, in the order in which a job offers it.
func inLine(units []*placeWork) (list []planHead) {
	for _, u := range units {
		if u.gang != nil {
			list = append(list, planHead{u.gang, true, slices.Clone(u.parts)})
		}
	}
	for _, u := range units {
		if u.gang == nil {
			list = append(list, planHead{nil, false, slices.Clone(u.parts)})
		}
	}
	for _, u := range units {
		for _, part := range u.parts {
			if n := part.want - len(part.instances); u.gang != nil && n > 0 {
				list = append(list, planHead{u.gang, false, []placePart{{class: part.class, instances: make([]uint32, n)}}})
			}
		}
	}
	return list
}

// each is what starts at once.
func (h *planHead) each() resource.Vector {
	if h.together {
		return h.gang.starts
	}
	return h.parts[0].class.class.Needs
}

// times is how often.
func (h *planHead) times() int64 {
	if h.together {
		return 1
	}
	return int64(len(h.parts[0].instances))
}

// work is n times of it, as it would be asked for.
func (h *planHead) work(j *job, n int64) *placeWork {
	w := &placeWork{job: j, gang: h.gang, together: h.together, ahead: true, parts: slices.Clone(h.parts)}
	if !h.together {
		w.parts[0].instances = w.parts[0].instances[:n]
	}
	return w
}

// stand has the cell judge as if a planned job was submitted, all of it that the pool would admit was charged, and its head stood in the queue,
// until undo is called; false: the queue is full.
func (s *State) stand(p *planWork, h *planHead) (undo func(), stands bool) {
	j, q, c := p.job, s.queueOf(p.job.spec), h.parts[0].class
	back := s.suppose(j)
	s.pools.Charge(j.spec.Pool, p.charged, j.work())
	if j.offered, j.waiting = c, s.now; h.together {
		j.starting = h.gang
	}
	needs := h.each()
	err := s.line(q, c, &needs, h.times())
	free := make([]resource.Vector, len(s.shards))
	for n, sh := range s.shards {
		free[n], sh.free = sh.free, sh.free.Sub(p.takes(sh)).Add(p.leaves(sh))
	}
	return func() {
		for n, sh := range s.shards {
			sh.free = free[n]
		}
		q.queue.Remove(j.ID)
		j.offered, j.starting = nil, nil
		back()
	}, err == nil
}

// takes is what the plan would take of a shard.
func (p *planWork) takes(sh *shardState) (sum resource.Vector) {
	for _, part := range p.booked[sh] {
		sum = sum.Add(part.class.class.Needs.Scale(int64(len(part.sure))))
	}
	if p.trial == nil {
		return sum
	}
	for n := range p.trial.found[sh] {
		r := &p.trial.found[sh][n]
		sum = sum.Add(r.Class.Needs.Scale(int64(r.Count)))
	}
	return sum
}

// leaves is what those give back in a shard who were found so far to make room.
func (p *planWork) leaves(sh *shardState) (sum resource.Vector) {
	if p.trial == nil {
		return sum
	}
	add := func(j *job, i uint32) {
		if t := &j.tasks[i]; t.runState.Live() && t.runState != workload.RunKilling && t.host.shard == sh {
			sum = sum.Add(*j.needs(i))
		}
	}
	for n := range p.trial.doomed {
		d := &p.trial.doomed[n]
		if d.gang == nil {
			add(d.job, d.instance)
			continue
		}
		for _, i := range d.gang.All() {
			add(d.job, i)
		}
	}
	return sum
}

// planAhead goes on with what the pool would not admit of a planned job. What of it fits once those have made room who were found so far would be
// admitted, and look for hosts; for the rest it asks the next shard who of lower priority would make room, in the way in which it would be asked
// ahead of admission. When there is nothing more, it answers.
func (s *State) planAhead(p *planWork) {
	t := p.trial
	if t.head = nil; len(p.heads) == 0 || t.rounds == maxPlanRounds || p.admittedWaits() {
		s.planEnd(p)
		return
	}
	head := &p.heads[0]
	var victims *preemption.Snapshot
	var sh *shardState
	undo, stands := s.stand(p, head)
	in, admitted := s.plannedPlea(p, head, stands)
	if in != nil {
		in.tried = t.tried
		sh, victims = s.whomToAsk(in), s.joined(s.aboveEntitlement(), s.below(in.claim), in.claim)
	}
	undo()
	switch {
	case admitted > 0:
		s.planAdmitted(p, head, int(admitted))
		return
	case sh == nil || len(victims.Jobs) == 0:
		s.planEnd(p)
		return
	}
	t.head = in
	requests := make([]preemption.Request, 0, len(in.work.parts))
	for _, part := range in.work.parts {
		requests = append(requests, preemption.Request{
			Class: part.class.class, Count: len(part.instances), Gang: in.work.together, Victims: victims, DryRun: true, Unit: maxPlanUnit,
			Within: in.work.oneDomain(),
		})
	}
	s.sendTrial(sh, p, victims, requests)
}

// planAdmitted has a part of a head look for hosts, and for those who would make room there, as admitted work does.
func (s *State) planAdmitted(p *planWork, head *planHead, n int) {
	t := p.trial
	u := &placeWork{job: p.job, gang: head.gang, together: head.together, admitted: maxPlanUnit - maxPlanRounds - uint64(t.rounds)} //nolint:gosec // a few
	t.rounds++
	t.free, t.tried, t.parts = true, nil, slices.Clone(head.parts)
	if !head.together {
		t.parts[0].instances = t.parts[0].instances[:n]
	}
	u.parts = t.parts
	for i := range t.parts {
		t.parts[i].unit = u
		p.sure[t.parts[i].class] += len(t.parts[i].instances)
		p.charged = p.charged.Add(t.parts[i].class.class.Needs.Scale(int64(len(t.parts[i].instances))))
	}
	p.pass(n)
	s.planAsk(p)
}

// pass takes so much off the first in line.
func (p *planWork) pass(n int) {
	head := &p.heads[0]
	if head.together || n == len(head.parts[0].instances) {
		p.heads = p.heads[1:]
		return
	}
	head.parts[0].instances = head.parts[0].instances[n:]
}

// maxPlanUnit is the unit of a head in a question. The numbers of others are lower.
const maxPlanUnit = math.MaxUint32

// admittedWaits reports whether something that the pool would admit finds no room on hosts. Nothing else of the job would be asked for before it.
func (p *planWork) admittedWaits() bool {
	for _, n := range p.sure { // whether there is any: the order does not matter
		if n > 0 {
			return true
		}
	}
	return false
}

// plannedPlea is the question for as much of a head as lower priorities use the room of; nil: they do not use enough, somebody else goes first,
// or so much of it is admitted as it says.
func (s *State) plannedPlea(p *planWork, h *planHead, stands bool) (in *plea, admitted int64) {
	if !stands {
		return nil, 0
	}
	j, q := p.job, s.queueOf(p.job.spec)
	left, first := s.leewayOf(q, j)
	if !first {
		return nil, 0
	}
	needs := h.each()
	free := left.with(p.trial.freed(j, s))
	if admitted = free.times(&needs, h.times()); admitted > 0 {
		return nil, admitted
	}
	if lowest, some := q.lowest(s.steps); !some || lowest >= j.spec.Priority || j.offered.joinsDomain(j.starting) {
		return nil, 0
	}
	n := left.with(s.heldBelow(q, j)).times(&needs, min(h.times(), maxAsked))
	if n == 0 {
		return nil, 0
	}
	all := needs.Scale(n)
	short := free.lacks(j, &all)
	return &plea{work: h.work(j, n), claim: headClaim(j, &short)}, 0
}

// freed is what those give back who were found so far to make room, of what bounds a job.
func (t *planTrial) freed(j *job, s *State) (l leeway) {
	for n := range t.doomed {
		d := &t.doomed[n]
		use := d.use(s)
		if d.job.spec.Revocable || d.job.spec.Pool != j.spec.Pool {
			continue
		}
		l.pool = l.pool.Add(use)
		if d.job.spec.Owner == j.spec.Owner {
			l.owner = l.owner.Add(use)
		}
		if d.job.spec.Controller {
			l.controllers = l.controllers.Add(use)
		}
	}
	return l
}

// headPledged judges what a shard says of a planned job's head as if it was in earnest, and goes on.
func (s *State) headPledged(sh *shardState, p *planWork, results []shard.PledgeResult) {
	t := p.trial
	in, head := t.head, &p.heads[0]
	if len(results) != t.known+len(in.work.parts) {
		s.planAhead(p)
		return
	}
	undo, _ := s.stand(p, head)
	h := s.hearTrial(t, in)
	list := s.hearHead(sh, h, results[t.known:])
	undo()
	if len(list) == 0 {
		s.planAhead(p)
		return
	}
	s.doom(t, h)
	t.result.Instances += len(list)
	t.rounds++
	t.tried = nil
	counts := map[*jobClass]int{}
	for _, pl := range list {
		counts[pl.class]++
		p.charged = p.charged.Add(pl.class.class.Needs)
	}
	for _, part := range in.work.parts {
		r := preemption.Request{Class: part.class.class, Count: counts[part.class], Gang: in.work.together, Victims: t.victims, DryRun: true}
		if in.work.together {
			r.Unit, r.Within = maxPlanUnit-uint32(t.rounds), in.work.oneDomain()
		}
		if r.Count > 0 {
			t.found[sh] = append(t.found[sh], r)
		}
	}
	p.pass(len(list))
	s.planAhead(p)
}

// hearHead is the pledges that would be kept for a head.
func (s *State) hearHead(sh *shardState, h *hearing, results []shard.PledgeResult) (list []*pledge) {
	before := len(h.doomed)
	w := h.in.work
	rest := 0
	for n := range w.parts {
		left := len(w.parts[n].instances)
		for m := range results[n].Pledges {
			r := &results[n].Pledges[m]
			first := len(h.doomed)
			if host := s.hosts[r.Host]; left > 0 && host != nil && host.shard == sh && h.all(r.Victims) {
				list = append(list, &pledge{class: w.parts[n].class, room: r.Assignment, victimsAt: first})
				left--
			}
		}
		rest += left
	}
	if list = h.coverSome(list); len(list) == 0 || w.together && rest > 0 || !s.inOneDomain(w, list) {
		h.forget(before)
		return nil
	}
	return list
}

// planEnd says what came of it.
func (s *State) planEnd(p *planWork) {
	if t := p.trial; t.result.Instances > 0 {
		t.result.Wait = time.Duration(s.holdOff())
		p.plan.Preemption = &t.result
	}
	s.planDone(p)
}
