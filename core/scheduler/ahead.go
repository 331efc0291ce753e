package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// Room ahead of admission. Work that is first in line and short of what its pool, its owner or controllers may use is not charged while lower
// priorities of its pool make room: a charge would take the ledger past its bound. It is pledged room on hosts and stays PENDING; the victims go
// on being charged until they have ended; then admission lets the first in line go, as it does with whatever comes free, and what is let go
// takes the room that was pledged for it.

// maxWeighed bounds the runs of one rank among which victims are chosen for what they use of their pool.
const maxWeighed = 1 << 16

// pressHeads asks for room for those who are first in line in a queue. It returns when to look again; 0: no need.
func (s *State) pressHeads(q *poolQueue) (again int64) {
	if q.revocable {
		return 0
	}
	for _, id := range q.queue.Waits() {
		if j := s.jobs[id]; j != nil && j.offered != nil {
			again = earlier(again, s.pressHead(q, j))
		}
	}
	return again
}

func (s *State) pressHead(q *poolQueue, j *job) (again int64) {
	c := j.offered
	if j.shortAt == 0 {
		j.shortAt = s.now
	}
	if c.asking || s.now < j.calmUntil || c.joinsDomain(j.starting) {
		return 0
	}
	if lowest, some := q.lowest(s.steps); !some || lowest >= j.spec.Priority {
		j.calmUntil = s.now + int64(shortestAsk) // none of them starts while it waits
		return 0
	}
	if due := max(j.shortAt+s.holdOff(), c.askAt); s.now < due {
		return due
	}
	c.askAt = s.now + int64(shortestAsk)
	in, ending := s.headPlea(q, j)
	if ending || !s.mayPreempt() {
		return c.askAt
	}
	if in == nil || s.press.tasks+in.work.tasks() > maxPledged || !s.plead(in) {
		s.askLater(c)
		return c.askAt
	}
	return 0
}

// headPlea is the question for as much of a head's work as lower priorities use the room of; nil: they do not use enough. ending says that
// enough comes free anyway.
func (s *State) headPlea(q *poolQueue, j *job) (in *plea, ending bool) {
	free, first := s.leewayOf(q, j)
	if !first {
		return nil, false
	}
	needs, n := j.offered.class.Needs, min(j.offered.wanted(), maxAsked)
	if j.starting != nil {
		needs, n = j.starting.starts, 1
	}
	n = free.with(s.heldBelow(q, j)).times(&needs, n)
	if n == 0 {
		return nil, false
	}
	all := needs.Scale(n)
	short := free.lacks(j, &all)
	if short.none() {
		return nil, true
	}
	w := s.headWork(j, int(n))
	if w.tasks() == 0 || slices.ContainsFunc(w.parts, func(p placePart) bool { return p.class.asking }) {
		return nil, false
	}
	return &plea{work: w, since: j.shortAt, claim: headClaim(j, &short)}, false
}

// headClaim is what a head may claim that is short of something.
func headClaim(j *job, short *shortage) claim {
	return claim{
		pool: j.spec.Pool, priority: j.spec.Priority, between: true, ahead: true,
		owner: j.spec.Owner, ofOwner: above(&short.owner), controllers: above(&short.controllers),
	}
}

// headWork is what a job has standing in its queue, up to n tasks of it, as it would be sent off. A daemon's hosts come one after another.
func (s *State) headWork(j *job, n int) *placeWork {
	c := j.offered
	var w *placeWork
	switch {
	case j.starting != nil:
		w = j.starting.startWork()
	case c.gang != nil:
		w = c.joinWork(n)
	case j.daemonHome != nil:
		w = &placeWork{job: j, parts: []placePart{{class: c}}}
		if all := c.peek(len(c.returned)); len(all) > 0 {
			i := all[c.turn%len(all)]
			w.host, w.parts[0].instances = j.tasks[i].host, []uint32{i}
		}
	default:
		w = &placeWork{job: j, parts: []placePart{{class: c, instances: c.peek(n)}}}
	}
	w.ahead = true
	return w
}

// peek lists up to n instances that take would pick.
func (c *jobClass) peek(n int) (list []uint32) {
	j := c.job
	seen := map[uint32]bool{}
	for _, i := range c.returned {
		if len(list) == n {
			return list
		}
		if j.tasks[i].state == workload.InstancePending && !seen[i] {
			seen[i] = true
			list = append(list, i)
		}
	}
	for i := c.fresh; c.index == 0 && len(list) < n && int(i) < len(j.tasks); i++ {
		if t := &j.tasks[i]; t.state == workload.InstancePending && !t.touched && !seen[i] && j.classOf(i) == c {
			list = append(list, i)
		}
	}
	return list
}

// leeway is what is left of everything that bounds a job's work in its pool.
type leeway struct{ pool, reservation, owner, controllers resource.Vector }

// leewayOf asks admission what it has left for a head, and counts in what is ending already. It returns false when the job is not first in line.
func (s *State) leewayOf(q *poolQueue, j *job) (leeway, bool) {
	room, ok := s.room(q)
	if !ok {
		return leeway{}, false
	}
	left, first := q.queue.LeftFor(j.ID, &room)
	l := leeway{left.Entitlement.Add(q.ending), left.Reservation, left.Owner, left.Controllers}
	if unit := j.offered.class.Needs; !unit.FitsIn(&l.owner) {
		l.owner = l.owner.Add(q.endingOf(func(o *job) bool { return o.spec.Owner == j.spec.Owner }))
	}
	if unit := j.offered.class.Needs; !unit.FitsIn(&l.controllers) {
		l.controllers = l.controllers.Add(q.endingOf(func(o *job) bool { return o.spec.Controller }))
	}
	return l, first
}

// endingOf is what runs of some jobs use that are being killed.
func (q *poolQueue) endingOf(counts func(*job) bool) (sum resource.Vector) {
	for _, j := range q.running {
		if j.byRun[workload.RunKilling] == 0 || !counts(j) {
			continue
		}
		for i := range j.tasks {
			if j.tasks[i].runState == workload.RunKilling {
				sum = sum.Add(*j.needs(uint32(i)))
			}
		}
	}
	return sum
}

// heldBelow is the most that lower priorities could give back of what bounds a job's work.
func (s *State) heldBelow(q *poolQueue, j *job) (l leeway) {
	for _, o := range q.inferiors(j.spec.Priority) {
		most := resource.Vector{}
		for _, c := range o.classes {
			most = most.Max(c.class.Needs)
		}
		gives := o.usage.Min(most.Scale(int64(o.budget().Left())))
		l.pool = l.pool.Add(gives)
		if o.spec.Owner == j.spec.Owner {
			l.owner = l.owner.Add(gives)
		}
		if o.spec.Controller {
			l.controllers = l.controllers.Add(gives)
		}
	}
	return l
}

func (l leeway) with(o leeway) leeway {
	return leeway{l.pool.Add(o.pool), l.reservation.Add(o.reservation), l.owner.Add(o.owner), l.controllers.Add(o.controllers)}
}

// times is how often the needs fit in all of it, at most n times.
func (l leeway) times(needs *resource.Vector, n int64) int64 {
	for _, v := range [...]*resource.Vector{&l.pool, &l.reservation, &l.owner, &l.controllers} {
		n = needs.Times(v, n)
	}
	return n
}

// lacks is what a job lacks for the needs. Reservations are left out: nobody who may be preempted uses them.
func (l leeway) lacks(j *job, needs *resource.Vector) shortage {
	return shortage{job: j, pool: shortOf(needs, &l.pool), owner: shortOf(needs, &l.owner), controllers: shortOf(needs, &l.controllers)}
}

// shortage is what a job lacks of its pool, of what its owner may use of that, and of what controllers may; negative where there is more than
// enough.
type shortage struct {
	job                      *job
	pool, owner, controllers resource.Vector
}

func (x *shortage) none() bool { return !above(&x.pool) && !above(&x.owner) && !above(&x.controllers) }

func above(v *resource.Vector) bool {
	return slices.ContainsFunc(v[:], func(q int64) bool { return q > 0 })
}

// less is the shortage once a job has given something back.
func (x shortage) less(of *job, use resource.Vector) shortage {
	if of.spec.Revocable || of.spec.Pool != x.job.spec.Pool {
		return x
	}
	x.pool = x.pool.Sub(use)
	if of.spec.Owner == x.job.spec.Owner {
		x.owner = x.owner.Sub(use)
	}
	if of.spec.Controller {
		x.controllers = x.controllers.Sub(use)
	}
	return x
}

// helps reports whether something that a job gives back makes the shortage smaller.
func (x *shortage) helps(of *job, use *resource.Vector) bool {
	smaller := func(short *resource.Vector) bool {
		for k := range short {
			if short[k] > 0 && use[k] > 0 {
				return true
			}
		}
		return false
	}
	return smaller(&x.pool) || (of.spec.Owner == x.job.spec.Owner && smaller(&x.owner)) || (of.spec.Controller && smaller(&x.controllers))
}

// cover takes more victims of lower priority, wherever in the cell they run, until the pool and the other bounds have room for the pledges. It
// returns false when there are not enough, or the job is not first in line any more.
func (h *hearing) cover(list []*pledge) bool {
	s, w := h.state, h.in.work
	if w.job.offered != w.parts[0].class && (w.gang == nil || w.job.starting != w.gang) {
		return false
	}
	var needs resource.Vector
	for _, p := range list {
		needs = needs.Add(p.class.class.Needs)
	}
	free, ok := s.leewayOf(s.queueOfJob(w.job), w.job)
	if !ok || !needs.FitsIn(&free.reservation) {
		return false
	}
	short := free.lacks(w.job, &needs)
	for n := range h.doomed {
		short = short.less(h.doomed[n].job, h.doomed[n].use(s))
	}
	first := len(h.doomed)
	if !h.collect(&short) {
		h.forget(first)
		return false
	}
	for n := len(h.doomed) - 1; n >= first; n-- { // who turns out to be needless is let off
		d := &h.doomed[n]
		use := d.use(s)
		if more := short.less(d.job, resource.Vector{}.Sub(use)); more.none() {
			short = more
			h.letOff(n)
		}
	}
	// The rate: others may have spent it since this was asked, and fewer tasks take fewer.
	spent := len(h.doomed) > first && !h.planned && !s.mayPreempt()
	spent = spent || len(list) > 1 && !h.planned && !w.together && int64(h.count())*millionths > s.press.tokens
	if spent || !h.staysFirst() {
		h.forget(first)
		return false
	}
	return true
}

// staysFirst reports whether the job is first in line still once its victims have ended. Where they leave room under the bound of an owner or of
// controllers, work that goes before the job may stop waiting for that and begin to wait for what the job was to get.
func (h *hearing) staysFirst() bool {
	s, w := h.state, h.in.work
	q := s.queueOfJob(w.job)
	room, ok := s.room(q)
	if !ok || room.Owner == nil && room.Controllers == nil {
		return ok
	}
	var directed resource.Vector
	owners := map[string]resource.Vector{}
	for n := range h.doomed {
		d := &h.doomed[n]
		if d.job.spec.Revocable || d.job.spec.Pool != w.job.spec.Pool {
			continue
		}
		use := d.use(s)
		room.Usage = room.Usage.Sub(use)
		owners[d.job.spec.Owner] = owners[d.job.spec.Owner].Add(use)
		if d.job.spec.Controller {
			directed = directed.Add(use)
		}
	}
	if bound := room.Controllers; bound != nil {
		room.Controllers = &admission.Bound{Limit: bound.Limit, Left: bound.Left.Add(directed)}
	}
	if bound := room.Owner; bound != nil {
		room.Owner = func(owner string) (admission.Bound, bool) {
			b, bounded := bound(owner)
			b.Left = b.Left.Add(owners[owner])
			return b, bounded
		}
	}
	_, first := q.queue.LeftFor(w.job.ID, &room)
	return first
}

// coverSome covers as many of the pledges as can be, at least half of the most, and lets the victims of the others off. What starts together is
// covered whole or not at all.
func (h *hearing) coverSome(list []*pledge) []*pledge {
	for len(list) > 0 && !h.cover(list) {
		n := len(list) / 2
		if h.in.work.together {
			n = 0
		}
		h.forget(list[n].victimsAt)
		list = list[:n]
	}
	return list
}

// collect takes victims until nothing is short: first those that do not run yet, then by rank, then what began last.
func (h *hearing) collect(short *shortage) bool {
	if short.none() {
		return true
	}
	jobs := h.state.below(h.in.claim).Jobs
	slices.SortStableFunc(jobs, func(a, b preemption.Job) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, running := range []bool{false, true} {
		for rest := jobs; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].Rank == rest[0].Rank {
				n++
			}
			for _, r := range h.state.weigh(rest[:n], running) {
				use := r.use(h.state)
				if before := len(h.doomed); !short.helps(r.job, &use) || !h.admit(r.job.runID(r.instance)) || len(h.doomed) == before {
					continue
				}
				if *short = short.less(r.job, use); short.none() {
					return true
				}
			}
			rest = rest[n:]
		}
	}
	return false
}

// weigh lists the runs of some entries of a snapshot, of each gang one, what began last first.
func (s *State) weigh(entries []preemption.Job, running bool) (list []doomed) {
	for n := range entries {
		e := &entries[n]
		j := s.jobs[e.ID]
		if e.Gang != nil && e.Gang.Runs > 0 {
			g := j.gangOf(e.Gang.Members[0].First)
			for _, i := range g.All() {
				if t := &j.tasks[i]; t.runState.Live() && t.runState != workload.RunKilling {
					if running == (e.Gang.Work > 0) {
						list = append(list, doomed{job: j, instance: i, gang: g})
					}
					break
				}
			}
			continue
		}
		for i := range j.tasks {
			t := &j.tasks[i]
			if len(list) == maxWeighed || e.Gang != nil {
				break
			}
			if t.runState.Live() && t.runState != workload.RunKilling && running == (t.started != 0) && j.gangOf(uint32(i)) == nil {
				list = append(list, doomed{job: j, instance: uint32(i)})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b doomed) int {
		return cmp.Or(cmp.Compare(b.job.tasks[b.instance].started, a.job.tasks[a.instance].started), cmp.Compare(a.job.Order, b.job.Order))
	})
	return list
}

// headInVain has the queue look again at a head for whom nobody made room.
func (s *State) headInVain(w *placeWork) {
	w.parts[0].class.turn++
	s.watch(s.queueOfJob(w.job), w.parts[0].class.askAt)
}

// redeem gives admitted work the room that others have made for it, or are making. What is left in it has none.
func (s *State) redeem(w *placeWork) {
	if w.together {
		s.redeemStart(w)
		return
	}
	p := &w.parts[0]
	if p.class.promised == 0 {
		return
	}
	var ready []*pledge
	p.instances = slices.DeleteFunc(p.instances, func(i uint32) bool {
		room := s.promiseFor(w)
		if room == nil {
			return false
		}
		room.instance = i
		if room.redeem(); room.ready {
			ready = append(ready, room)
		}
		return true
	})
	for _, room := range ready {
		s.launchPledges(room.work, []*pledge{room})
	}
}

// promiseFor finds a pledge for work that was just admitted, one that is ready if there is any.
func (s *State) promiseFor(w *placeWork) (found *pledge) {
	for _, other := range w.job.pledged {
		if other.place.together || s.outlived(other.place) {
			continue
		}
		for _, p := range other.list {
			if !p.promised || p.class != w.parts[0].class || (w.host != nil && p.room.Host != w.host.ID) {
				continue
			}
			if p.ready {
				return p
			}
			if found == nil {
				found = p
			}
		}
	}
	return found
}

// redeemStart does so for a gang's start, which is pledged whole or not at all.
func (s *State) redeemStart(w *placeWork) {
	for _, other := range w.job.pledged {
		if !other.place.ahead || other.place.gang != w.gang || !other.place.together || s.outlived(other.place) || !other.list[0].promised {
			continue
		}
		w.parts = nil
		ready := true
		for _, p := range other.list {
			p.redeem()
			ready = ready && p.ready
		}
		if ready {
			s.launchPledges(other, slices.Clone(other.list))
		}
		return
	}
}

// redeem notes that the pledge's instance was admitted.
func (p *pledge) redeem() {
	p.admitted, p.promised = true, false
	p.class.promised--
}

// promise notes pledges that were made ahead of admission.
func (s *State) promise(w *pledgedWork) {
	for _, p := range w.list {
		p.promised = true
		p.class.promised++
		if p.class.job.daemonHome != nil { // its host is next
			p.class.returned = slices.Insert(slices.DeleteFunc(p.class.returned, func(i uint32) bool { return i == p.instance }), 0, p.instance)
		}
	}
	s.touch(w.place.job)
}

// keepsPromise reports whether room that was pledged ahead of admission is still wanted. spare counts down how many of each class are.
func (s *State) keepsPromise(w *pledgedWork, p *pledge, spare map[*jobClass]int64) bool {
	j := w.place.job
	if s.outlived(w.place) || !j.runnable() {
		return false
	}
	if w.place.wait {
		return s.stillKept(w, p)
	}
	if w.place.together {
		return w.place.gang.ready()
	}
	if t := &j.tasks[p.instance]; w.place.host != nil {
		return t.state == workload.InstancePending && t.matched
	}
	if g := p.class.gang; g != nil && !g.growing() {
		return false
	}
	if _, known := spare[p.class]; !known {
		spare[p.class] = p.class.wanted()
	}
	spare[p.class]--
	return spare[p.class] >= 0
}

// outranked reports whether a head would have to yield what is pledged to it: work of higher priority of its pool goes from shard to shard, and one
// has refused it already.
func (s *State) outranked(w *placeWork) bool {
	goesFirst := func(o *placeWork) bool {
		return len(o.tried) > 0 && o.plan == nil && o.job.spec.Pool == w.job.spec.Pool && o.job.spec.Priority > w.job.spec.Priority && !s.outlived(o)
	}
	if slices.ContainsFunc(s.outbox, goesFirst) {
		return true
	}
	for _, b := range s.batches {
		if slices.ContainsFunc(b.work, goesFirst) {
			return true
		}
	}
	return false
}

// spare gives room back unused for work that goes first, and has the head ask again.
func (s *State) spare(sh *shardState, in *plea, results []shard.PledgeResult) {
	s.lapse(sh, results, nil)
	s.closePlea(in)
	s.queueOfJob(in.work.job).spared = true
	in.work.parts[0].class.askAt = s.now + int64(shortestAsk)
	s.headInVain(in.work)
}

// yield gives up what is pledged to heads of lower priority in the pool of work that every shard refused, and reports whether there was any, or
// some was spared.
func (s *State) yield(w *placeWork) (some bool) {
	q := s.queueOfJob(w.job)
	some, q.spared = q.spared, false
	for _, id := range sortedKeys(s.press.works) {
		o := s.press.works[id]
		if o == nil || !o.place.ahead || o.place.job.spec.Pool != w.job.spec.Pool || o.place.job.spec.Priority >= w.job.spec.Priority {
			continue
		}
		if !slices.ContainsFunc(o.list, func(p *pledge) bool { return p.admitted }) {
			s.dropPledges(o)
			some = true
		}
	}
	return some
}

// whyPledged says what a job waits for to whom room is pledged.
func (s *State) whyPledged(j *job, admitted bool) (string, bool) {
	runs, some := 0, false
	ending, kept := map[workload.HostID]bool{}, map[workload.HostID]bool{}
	for _, w := range j.pledged {
		mine := false
		for _, p := range w.list {
			if p.admitted == admitted && p.promised == !admitted {
				mine, kept[p.room.Host] = true, true
			}
		}
		some = some || mine
		for _, id := range w.victims {
			if o, lives := s.runOf(id); mine && lives {
				runs++
				ending[o.tasks[id.Instance].host.ID] = true
			}
		}
	}
	switch {
	case !some:
		return "", false
	case runs > 0:
		return fmt.Sprintf("waiting for %s to end on %s", plural(runs, "preempted run"), plural(len(ending), "host")), true
	}
	return fmt.Sprintf("room is kept for it on %s", plural(len(kept), "host")), true
}
