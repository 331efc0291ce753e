package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// Kept room. A gang or a task of the size of a host may find room in pieces for ever, each of which small work takes as soon as it comes free. Once
// it has been refused for long enough, room is kept for it where it will come free by itself: nobody is ended, but nobody else gets it either. The
// work goes on looking for hosts meanwhile; whatever it finds first, it takes.

// Bounds of kept room.
const (
	// keepPatience is how long every shard must have refused work before room is kept for it. Room that is kept stands idle while it gathers, and
	// on a small cell that may be most of it: shorter, and a burst of small work waits for one large task that may never start.
	keepPatience = 5 * time.Minute
	// keepFor is how long room is kept at most, and within what time runs have to be expected to end for room to be kept where they are. Who did
	// not get it waits as long for the next attempt.
	keepFor = 30 * time.Minute
	// maxKept bounds those for whom room is kept at once in the cell; in a pool it is one.
	maxKept = 64
	// keptParts says how much is kept at once: one part in so many of the cell's capacity, but for one job's that needs more.
	keptParts = 4
	// bigParts says what a large task is: one part in so many of an average host. A gang is large whatever its members are.
	bigParts = 4
	// maxEnding bounds the jobs whose runs are waited for.
	maxEnding = 1 << 14
)

// keepRoom asks for room to be kept for work that every shard has just refused.
func (s *State) keepRoom(w *placeWork) {
	j := w.job
	c := w.parts[0].class
	if s.outlived(w) || c.starvedAt == 0 || s.now-c.starvedAt < int64(keepPatience) || s.now < c.keepAt || c.neverFits || j.spec.Revocable {
		return
	}
	q := s.queueOfJob(j)
	in := &plea{work: keptWork(w)}
	if q.keeping || s.press.kept >= maxKept || in.work == nil || s.press.tasks+in.work.tasks() > maxPledged ||
		!s.mayKeep(in.work) {
		return
	}
	if !s.plead(in) {
		c.keepAt = s.now + int64(keepPatience)
	}
}

// keptWork is what room is kept for: all that starts of a gang, or one task; nil for members that join a gang, which has started.
func keptWork(w *placeWork) *placeWork {
	out := &placeWork{job: w.job, gang: w.gang, generation: w.generation, host: w.host, together: w.together, ahead: true, wait: true}
	switch {
	case w.together:
		out.parts = w.gang.startWork().parts
	case w.gang != nil:
		return nil
	default:
		out.parts = []placePart{{class: w.parts[0].class, instances: w.parts[0].instances[:1]}}
	}
	return out
}

// needs is what the tasks of some work need together.
func (w *placeWork) needs() (sum resource.Vector) {
	for n := range w.parts {
		sum = sum.Add(w.parts[n].class.class.Needs.Scale(int64(len(w.parts[n].instances))))
	}
	return sum
}

// mayKeep reports whether the work is large enough for room to be kept for it, and what is kept stays small enough.
func (s *State) mayKeep(w *placeWork) bool {
	hosts := int64(0)
	for _, sh := range s.shards {
		hosts += int64(sh.hosts)
	}
	needs := w.needs()
	large := w.together
	for k, need := range needs {
		large = large || need > 0 && need >= s.capacity[k]/max(hosts, 1)/bigParts
	}
	if !large {
		return false
	}
	all := s.press.keptRoom.Add(needs)
	for k, n := range all {
		if s.press.kept > 0 && needs[k] > 0 && n > s.capacity[k]/keptParts {
			return false
		}
	}
	return true
}

// soonEnding is the batch work that is expected to end by itself before long: by its run time, because runs of it have ended within that time,
// or because it is young. What has run for long without any of this is as likely to go on.
func (s *State) soonEnding() *preemption.Snapshot {
	type ending struct {
		job *job
		in  time.Duration
	}
	var list []ending
	for _, q := range s.allQueues() {
		for _, j := range q.running {
			if in, known := s.endsWithin(j); known {
				list = append(list, ending{j, in})
			}
		}
	}
	slices.SortFunc(list, func(a, b ending) int { return cmp.Or(cmp.Compare(a.in, b.in), cmp.Compare(a.job.Order, b.job.Order)) })
	snap := &preemption.Snapshot{}
	for _, e := range list[:min(len(list), maxEnding)] {
		rank := int32(min(e.in/time.Second, math.MaxInt32)) //nolint:gosec // bounded here
		snap.Jobs = append(snap.Jobs, preemption.Job{ID: e.job.ID, Rank: rank, Allow: math.MaxInt32, Pool: -1})
	}
	return snap
}

// endsWithin says within what time a run of the job that begins now is expected to end, if that is soon.
func (s *State) endsWithin(j *job) (time.Duration, bool) {
	switch {
	case j.spec.Kind != workload.Batch:
		return 0, false
	case j.spec.RunTime > keepFor:
		return 0, false
	case j.Started == 0, s.now-j.Started <= int64(j.spec.RunTime+keepFor):
		return cmp.Or(j.spec.RunTime, keepFor), true
	} // beyond that, what its runs did counts, not what was said of them
	ended, held := int64(j.byState[workload.InstanceDone]), int64(0)
	for _, c := range j.classes {
		held += c.heldMillis
	}
	if ended == 0 || held/ended > keepFor.Milliseconds() {
		return 0, false
	}
	return time.Duration(held/ended) * time.Millisecond, true
}

// allQueues lists the queues of all pools, in the tree's order.
func (s *State) allQueues() (all []*poolQueue) {
	for p := range s.pools.All() {
		all = append(all, s.queuesOf(p.ID)...)
	}
	return all
}

// keptBy takes a shard's answer to the question for room that is to be kept.
func (s *State) keptBy(sh *shardState, in *plea, results []shard.PledgeResult) {
	w := in.work
	list, awaited, rest := s.roomIn(sh, in, results)
	if !s.inOneDomain(w, list) {
		rest = max(rest, 1)
	}
	refused := rest > 0 && in.spread == nil
	if refused || !s.mayBook(in) {
		for n := range results {
			sh.takeBack(results[n].Pledges)
		}
		if refused {
			s.notHere(sh, in)
		} else {
			s.closePlea(in)
			s.unbook(in)
		}
		return
	}
	var booked *pledgedWork
	switch {
	case in.spread != nil && in.spread.booked != nil:
		booked = in.spread.booked
		s.enterPledges(booked, list)
	case len(list) > 0:
		booked = s.book(w, list, keepFor)
		s.startKeeping(w, 1)
	}
	if booked != nil {
		booked.victims = append(booked.victims, awaited...)
		booked.partial = rest > 0
	}
	if rest > 0 {
		in.spread.booked = booked
		s.notHere(sh, in)
		return
	}
	s.closePlea(in)
	s.keptReady(booked)
}

// roomIn is what a shard proposes to keep for the members that have no room yet, whose end is awaited, and how many members are left.
func (s *State) roomIn(sh *shardState, in *plea, results []shard.PledgeResult) (list []*pledge, awaited []workload.RunID, rest int) {
	w := in.work
	for n := range w.parts {
		homeless := in.homeless(n)
		rest += len(homeless)
		for m := range results[n].Pledges {
			p := &results[n].Pledges[m]
			host := s.hosts[p.Host]
			if m < len(homeless) && host != nil && host.shard == sh && (w.host == nil || w.host == host) {
				list = append(list, &pledge{shard: sh, class: w.parts[n].class, instance: homeless[m], room: p.Assignment})
				awaited = append(awaited, p.Victims...)
			} else {
				sh.takeBack(results[n].Pledges[m : m+1])
			}
		}
	}
	return list, awaited, rest - len(list)
}

// mayBook reports whether room is still wanted that is to be kept, and what was kept of it in other shards still is.
func (s *State) mayBook(in *plea) bool {
	if s.outlived(in.work) || !s.wanted(in.work) {
		return false
	}
	if in.spread != nil && in.spread.booked != nil {
		return s.press.works[in.spread.booked.id] != nil
	}
	return !s.queueOfJob(in.work.job).keeping // another of the pool asked in the same moment
}

// startKeeping counts room that is kept, or is kept no more.
func (s *State) startKeeping(w *placeWork, sign int64) {
	s.queueOfJob(w.job).keeping = sign > 0
	s.press.kept += int(sign)
	if needs := w.needs(); sign > 0 {
		s.press.keptRoom = s.press.keptRoom.Add(needs)
	} else {
		s.press.keptRoom = s.press.keptRoom.Sub(needs)
	}
}

// keptReady has work try for admission at once when all of its kept room is free and may be used; what is let go then takes it.
func (s *State) keptReady(w *pledgedWork) {
	if !w.place.wait || w.partial || slices.ContainsFunc(w.list, func(p *pledge) bool { return !p.ready || p.promised || p.admitted || !s.stands(p) }) {
		return
	}
	for _, p := range w.list {
		p.promised = true
		p.class.promised++
	}
	s.touch(w.place.job)
}

// retryKept looks at kept room again when hosts or shards may have come back to work.
func (s *State) retryKept() {
	if s.press.kept == 0 {
		return
	}
	for _, id := range sortedKeys(s.press.works) {
		s.keptReady(s.press.works[id])
	}
}

// whyKept says where room is kept for a class, if it is.
func (s *State) whyKept(c *jobClass) string {
	for _, w := range c.job.pledged {
		if !w.place.wait || !slices.ContainsFunc(w.list, func(p *pledge) bool { return p.class == c }) {
			continue
		}
		hosts, runs := map[workload.HostID]bool{}, 0
		for _, p := range w.list {
			hosts[p.room.Host] = true
		}
		for _, id := range w.victims {
			if _, lives := s.runOf(id); lives {
				runs++
			}
		}
		verb := "are"
		if runs == 1 {
			verb = "is"
		}
		return fmt.Sprintf("; room is kept for it on %s, where %s %s expected to end", plural(len(hosts), "host"), plural(runs, "run"), verb)
	}
	return ""
}

// stillKept reports whether kept room is still wanted.
func (s *State) stillKept(w *pledgedWork, p *pledge) bool {
	j := w.place.job
	if g := w.place.gang; w.place.together {
		return !g.ending && g.byState[workload.InstancePending]+g.byState[workload.InstanceAdmitted] == g.Size
	}
	t := &j.tasks[p.instance]
	return w.place.waits(p.instance) && (w.place.host == nil || t.matched)
}
