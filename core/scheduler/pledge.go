package scheduler

import (
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

type pledgeKey struct {
	shard shard.ID
	lease shard.Lease
}

// pledge is room on a host that one instance gets when it is free, and the instance is admitted.
type pledge struct {
	work     *pledgedWork
	shard    *shardState
	class    *jobClass
	instance uint32 // until it is admitted, any of the class may come in its place, but for a gang's start and a daemon's
	room     shard.Assignment
	ready    bool
	admitted bool
	promised bool // it is made ahead of admission, and counts in its class: admission keeps room for it
	// victimsAt is where its victims begin among those of its hearing.
	victimsAt int
}

// pledgedWork is the pledges of one answer: a gang's start together, loners each by itself. Of room that is kept for a gang over several shards, it is
// those of all their answers.
type pledgedWork struct {
	id    uint64
	place *placeWork
	list  []*pledge
	// victims were ended for it.
	victims []workload.RunID
	// partial says that other shards are still asked for the rest.
	partial bool
}

// pledged takes the answer to one question.
func (s *State) pledged(sh *shardState, r *shard.Pledged) {
	q, ok := s.press.asked[r.Batch]
	if ok && q.shard == sh && q.plan != nil {
		delete(s.press.asked, r.Batch)
		s.planPledged(sh, q.plan, r.Results)
		return
	}
	parts := 0
	if ok {
		for _, in := range q.list {
			parts += len(in.work.parts)
		}
	}
	if !ok || q.shard != sh || parts != len(r.Results) {
		for n := range r.Results {
			sh.takeBack(r.Results[n].Pledges)
		}
		return
	}
	delete(s.press.asked, r.Batch)
	sh.asked = false
	s.press.lapses = lapses{}
	at := 0
	for _, in := range q.list {
		n := len(in.work.parts)
		s.answered(sh, in, r.Results[at:at+n])
		at += n
	}
}

func (sh *shardState) takeBack(pledges []shard.Pledge) {
	for n := range pledges {
		if pledges[n].Lease != 0 {
			sh.releases = append(sh.releases, pledges[n].Lease)
		}
	}
}

// answered judges what a shard proposes for one piece of work: nothing of it is taken on trust.
func (s *State) answered(sh *shardState, in *plea, results []shard.PledgeResult) {
	if in.work.wait {
		s.keptBy(sh, in, results)
		return
	}
	if s.outlived(in.work) || !s.wanted(in.work) {
		s.lapse(sh, results, nil)
		s.closePlea(in)
		if !s.outlived(in.work) {
			for n := range in.work.parts {
				s.unadmit(in.work.job, in.work.parts[n].instances)
			}
		}
		return
	}
	if in.overtaken() {
		s.lapse(sh, results, nil)
		s.closePlea(in)
		s.headInVain(in.work)
		return
	}
	if in.work.ahead && s.outranked(in.work) {
		s.spare(sh, in, results)
		return
	}
	h := s.hear(in)
	list, rest := s.choose(sh, h, in, results)
	if in.work.ahead {
		list = h.coverSome(list)
	}
	if len(list) == 0 || in.work.together && rest > 0 || !s.inOneDomain(in.work, list) {
		s.lapse(sh, results, nil)
		s.notHere(sh, in)
		return
	}
	s.lapse(sh, results, list)
	s.closePlea(in)
	s.keepPledges(in, list, h)
	h.carryOut()
	s.refuseRest(in.work, list)
}

// inOneDomain holds pledges against a required topology.
func (s *State) inOneDomain(w *placeWork, list []*pledge) bool {
	key := w.oneDomain()
	return key == "" || !slices.ContainsFunc(list, func(p *pledge) bool {
		d := domainOf(s.hosts[p.room.Host], key)
		return d == "" || d != domainOf(s.hosts[list[0].room.Host], key)
	})
}

// waits reports whether an instance still waits for the hosts of some work.
func (w *placeWork) waits(i uint32) bool {
	state := w.job.tasks[i].state
	return state == workload.InstanceAdmitted || w.ahead && state == workload.InstancePending
}

// wanted reports whether all that starts together, or any loner, still waits.
func (s *State) wanted(w *placeWork) bool {
	some, all := false, true
	for n := range w.parts {
		for _, i := range w.parts[n].instances {
			waits := w.waits(i)
			some, all = some || waits, all && waits
		}
	}
	return all || some && !w.together
}

// choose gives instances to the pledges whose victims may go, and says how many instances got none.
func (s *State) choose(sh *shardState, h *hearing, in *plea, results []shard.PledgeResult) (list []*pledge, rest int) {
	for n := range in.work.parts {
		part := &in.work.parts[n]
		waiting := slices.DeleteFunc(slices.Clone(part.instances), func(i uint32) bool {
			return !in.work.waits(i)
		})
		for m := range results[n].Pledges {
			p := &results[n].Pledges[m]
			host := s.hosts[p.Host]
			first := len(h.doomed)
			if len(waiting) == 0 || host == nil || host.shard != sh || (in.work.host != nil && in.work.host != host) ||
				s.press.lapses.under(p) || !h.all(p.Victims) {
				s.noteLapse(p)
				continue
			}
			list = append(list, &pledge{
				shard: sh, class: part.class, instance: waiting[0], room: p.Assignment, admitted: !in.work.ahead, victimsAt: first,
			})
			waiting = waiting[1:]
		}
		rest += len(waiting)
	}
	return list, rest
}

// lapses are the hosts of an answer on which victims of a pledge stay that was not taken. What the shard pledged after it may rest on the room
// that they were to leave.
type lapses struct {
	everywhere bool // the mates of a gang were to leave other hosts, too
	hosts      map[workload.HostID]bool
}

func (l *lapses) under(p *shard.Pledge) bool { return l.everywhere || l.hosts[p.Host] }

func (s *State) noteLapse(p *shard.Pledge) {
	l := &s.press.lapses
	for _, id := range p.Victims {
		if j, lives := s.runOf(id); lives && j.gangOf(id.Instance) != nil {
			l.everywhere = true
		}
	}
	if len(p.Victims) > 0 {
		if l.hosts == nil {
			l.hosts = map[workload.HostID]bool{}
		}
		l.hosts[p.Host] = true
	}
}

// lapse gives back what was pledged for one piece of work and is not in the list.
func (s *State) lapse(sh *shardState, results []shard.PledgeResult, list []*pledge) {
	for n := range results {
		for m := range results[n].Pledges {
			p := &results[n].Pledges[m]
			if !slices.ContainsFunc(list, func(o *pledge) bool { return o.room.Lease == p.Lease }) {
				s.noteLapse(p)
				sh.takeBack(results[n].Pledges[m : m+1])
			}
		}
	}
}

// all takes the victims of one pledge in, or none of them.
func (h *hearing) all(victims []workload.RunID) bool {
	if len(victims) > 0 && !h.affordable() {
		return false
	}
	before := len(h.doomed)
	for _, id := range victims {
		if !h.admit(id) {
			h.forget(before)
			return false
		}
	}
	return true
}

// forget lets off who was admitted after the first n.
func (h *hearing) forget(n int) {
	for _, d := range h.doomed[n:] {
		h.restore(&d)
	}
	h.doomed = h.doomed[:n]
}

// letOff lets one of them off.
func (h *hearing) letOff(n int) {
	h.restore(&h.doomed[n])
	h.doomed = slices.Delete(h.doomed, n, n+1)
}

// restore takes a victim out of the sums.
func (h *hearing) restore(d *doomed) {
	use := d.use(h.state)
	delete(h.named, d.unit())
	q := h.state.queueOf(d.job.spec)
	h.taken[q] = h.taken[q].Sub(use)
	h.lost[d.job] -= uint32(d.runs) //nolint:gosec // what was added
}

// use is what a victim gives back: of a gang, all that its live members use.
func (d *doomed) use(s *State) resource.Vector {
	if d.gang != nil {
		use, _ := s.gangUse(d.gang)
		return use
	}
	return *d.job.needs(d.instance)
}

// runs names all that are ended, the mates of gangs too.
func (h *hearing) runs() (list []workload.RunID) {
	for _, d := range h.doomed {
		if d.gang == nil {
			list = append(list, d.job.runID(d.instance))
			continue
		}
		for _, i := range d.gang.All() {
			if t := &d.job.tasks[i]; t.runState.Live() && t.runState != workload.RunKilling {
				list = append(list, d.job.runID(i))
			}
		}
	}
	return list
}

// patience is how long the victims may take.
func (h *hearing) patience() time.Duration {
	longest := time.Duration(0)
	for _, d := range h.doomed {
		longest = max(longest, d.job.grace(d.instance))
	}
	return longest + pledgePatience
}

func (s *State) keepPledges(in *plea, list []*pledge, h *hearing) {
	w := s.book(in.work, list, h.patience())
	w.victims = h.runs()
	for _, p := range list {
		p.class.asking = true
	}
	if in.work.ahead {
		s.promise(w)
	}
}

// book enters pledges in the books, for a time.
func (s *State) book(place *placeWork, list []*pledge, patience time.Duration) *pledgedWork {
	w := &pledgedWork{id: s.nextBatch, place: place}
	s.nextBatch++
	s.press.works[w.id] = w
	s.enterPledges(w, list)
	place.job.pledged = append(place.job.pledged, w)
	s.setTimer(timer{at: s.now + int64(patience), kind: timerPledge, batch: w.id})
	return w
}

// enterPledges enters pledges under their work.
func (s *State) enterPledges(w *pledgedWork, list []*pledge) {
	w.list = append(w.list, list...)
	s.press.tasks += len(list)
	for _, p := range list {
		p.work = w
		s.press.pledges[pledgeKey{p.shard.id, p.room.Lease}] = p
	}
}

// refuseRest refuses the loners for which there was no room to be had.
func (s *State) refuseRest(w *placeWork, list []*pledge) {
	p := &w.parts[0]
	if w.together || w.ahead || len(w.parts) > 1 {
		return
	}
	rest := slices.DeleteFunc(slices.Clone(p.instances), func(i uint32) bool {
		return slices.ContainsFunc(list, func(o *pledge) bool { return o.instance == i })
	})
	if len(rest) > 0 {
		s.unadmit(w.job, rest)
	}
}

// pledgesReady launches work whose room has come free.
func (s *State) pledgesReady(sh *shardState, r *shard.PledgeReady) {
	for _, lease := range r.Leases {
		p := s.press.pledges[pledgeKey{sh.id, lease}]
		if p == nil {
			continue // given back meanwhile
		}
		p.ready = true
		if w := p.work; w.place.wait && !p.admitted {
			s.keptReady(w)
		} else if !p.admitted {
			continue
		} else if !w.place.together {
			s.launchPledges(w, []*pledge{p})
		} else if !slices.ContainsFunc(w.list, func(o *pledge) bool { return !o.ready }) {
			s.launchPledges(w, slices.Clone(w.list))
		}
	}
}

func (s *State) launchPledges(w *pledgedWork, list []*pledge) {
	j := w.place.job
	for _, p := range list {
		if s.outlived(w.place) || j.tasks[p.instance].state != workload.InstanceAdmitted || !s.stands(p) {
			s.dropSome(w, list)
			return
		}
	}
	for _, p := range list {
		s.unlist(w, p)
		p.class.fed()
		s.bindRun(j, p.instance, s.hosts[p.room.Host], &p.room)
	}
	for _, p := range list {
		s.launchRun(j, p.instance, p.room.Lease)
	}
}

// stands reports whether something may be started in the room of a pledge. Whether a shard is in contact is asked of kept room only: for others
// people had to go, and a shard that is out of contact may be back when the launch comes.
func (s *State) stands(p *pledge) bool {
	h := s.hosts[p.room.Host]
	return h != nil && h.shard == p.shard && (!p.work.place.wait || p.shard.mayStart(h))
}

// unlist takes a pledge off the books.
func (s *State) unlist(w *pledgedWork, p *pledge) {
	delete(s.press.pledges, pledgeKey{p.shard.id, p.room.Lease})
	w.list = slices.DeleteFunc(w.list, func(o *pledge) bool { return o == p })
	s.press.tasks--
	if p.promised {
		p.promised = false
		p.class.promised--
		s.touch(p.class.job)
	}
	if len(w.list) > 0 {
		return
	}
	delete(s.press.works, w.id)
	j := w.place.job
	j.pledged = slices.DeleteFunc(j.pledged, func(o *pledgedWork) bool { return o == w })
	if w.place.wait {
		s.startKeeping(w.place, -1)
		return
	}
	for n := range w.place.parts {
		w.place.parts[n].class.asking = false
	}
	s.touch(j)
}

// dropPledges gives pledges up: the work went away, or those who were to make room do not. What still waits is PENDING again.
func (s *State) dropPledges(w *pledgedWork) { s.dropSome(w, slices.Clone(w.list)) }

// dropSome gives up some pledges: all of them where the work starts together. A shard that has another epoch by now has dropped them itself, and
// is told nothing.
func (s *State) dropSome(w *pledgedWork, list []*pledge) {
	j := w.place.job
	for _, p := range list {
		s.unlist(w, p)
		p.shard.releases = append(p.shard.releases, p.room.Lease)
		if p.admitted && s.jobs[j.ID] == j && !s.outlived(w.place) {
			s.unadmit(j, []uint32{p.instance})
		}
	}
}

// reviewPledges gives room back that a job does not want any more.
func (s *State) reviewPledges(j *job) {
	if len(j.pledged) == 0 {
		return
	}
	spare := map[*jobClass]int64{}
	for _, w := range slices.Clone(j.pledged) {
		gone := slices.DeleteFunc(slices.Clone(w.list), func(p *pledge) bool {
			if !p.admitted {
				return s.keepsPromise(w, p, spare)
			}
			return !s.outlived(w.place) && j.tasks[p.instance].state == workload.InstanceAdmitted
		})
		if len(gone) > 0 && w.place.together {
			s.dropPledges(w)
			continue
		}
		for _, p := range gone {
			s.unlist(w, p)
			p.shard.releases = append(p.shard.releases, p.room.Lease)
		}
	}
}

// pledgeTimedOut gives up on victims that do not end.
func (s *State) pledgeTimedOut(id uint64) {
	w := s.press.works[id]
	if w == nil {
		return
	}
	for _, p := range w.list {
		if s.askLater(p.class); w.place.wait {
			p.class.keepAt = s.now + int64(keepFor)
		}
	}
	s.dropPledges(w)
}

// dropPledgesOn gives up the pledges on a host that takes nothing any more.
func (s *State) dropPledgesOn(host workload.HostID) {
	for _, id := range sortedKeys(s.press.works) {
		w := s.press.works[id]
		lost := slices.DeleteFunc(slices.Clone(w.list), func(p *pledge) bool { return p.room.Host != host })
		if len(lost) > 0 && w.place.together {
			lost = slices.Clone(w.list)
		}
		s.dropSome(w, lost)
	}
}
