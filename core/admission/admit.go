package admission

import (
	"math"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// MaxVisits bounds the entries that one Admit looks at. Entries that need a kind somebody already waits for are stepped over in
// bulk and do not count; every other one is granted what it wants, or starts to wait for a kind, or is out of reach. So only
// thousands of small jobs that fit, or of jobs out of reach, ever meet the bound; the next call starts from the front again.
const MaxVisits = 1 << 14

// MaxCandidates bounds the entries and subtrees that back-fill looks at in one Admit.
const MaxCandidates = 1 << 12

// MaxWaits bounds Queue.Waits.
const MaxWaits = 1 << 8

// Room is where the pool stands. Usage counts all that was admitted, placed or not.
type Room struct {
	Entitlement         resource.Vector
	Usage               resource.Vector
	Reservation         resource.Vector // as scaled to today's capacity
	NonPreemptibleUsage resource.Vector // a part of Usage
	Controllers         *Bound          // on the entries that direct other work, together; nil: none
	// Owner tells the bound on one owner's entries together, if there is one. It is asked at most once per owner and walk. nil: nobody has
	// one.
	Owner func(name string) (Bound, bool)

	Now int64 // nanoseconds; ends, patience and usage are measured by it
	// Ends is when the running work of the pool is expected to end, for back-fill. nil: nobody knows.
	Ends *Ends
	// Shares is what owners have used, for the order in which they take turns. nil: nobody has used anything.
	Shares *Usage
}

// Grant lets Tasks tasks of a job start.
type Grant struct {
	Job   workload.JobID
	Tasks int
}

// Stop says why Admit looked no further.
type Stop uint8

// The ends of a walk.
const (
	StopDone  Stop = iota // every entry was looked at, or needs what an earlier one waits for
	StopLimit             // the limit was reached
	StopBound             // MaxVisits was reached
)

func (s Stop) String() string { return [...]string{"done", "limit", "bound"}[min(s, StopBound)] }

// Outcome sums up one Admit.
type Outcome struct {
	Tasks      int // granted
	Visited    int // entries looked at one by one
	OutOfReach int // of them, passed over because they cannot fit into what the pool has
	Stop       Stop
	Unseen     int // entries behind the one at which the walk stopped, that one included; 0 with StopDone
	Head       Head
	// Again is when the walk may end otherwise although nothing changed: somebody loses patience then. 0: nobody does.
	Again int64
}

// Head is the entry that is first in line for room in the pool.
type Head struct {
	Job   workload.JobID
	Since int64 // since when it waits
	// Start is when it starts at the latest if all run times are right: its reservation, with back-fill. 0: nobody knows.
	Start int64
}

// Admit appends to grants what may start now, in order, until limit tasks are granted. A gang is not cut: it may exceed the
// limit, so that no gang is too large for it. The entries stay as they are. Without room left the cost is O(log n), and O(owners that wait)
// where owners take turns.
func (q *Queue) Admit(grants []Grant, room *Room, limit int) ([]Grant, Outcome) {
	again := int64(math.MaxInt64)
	for _, v := range q.views() {
		again = min(again, v.age(room.Now, q.policy.Patience))
	}
	w := q.newWalk(room, limit)
	w.grants, w.again = grants, again
	q.waits = q.waits[:0]
	q.walk(&w)
	if w.out.Stop != StopDone {
		w.out.Unseen = q.unseen(&w)
	}
	if w.out.Head != (Head{}) && w.again != math.MaxInt64 {
		w.out.Again = w.again
	}
	q.remember(&w)
	return w.grants, w.out
}

// walk goes through the queue, and then through the candidates for back-fill if they have an order of their own.
func (q *Queue) walk(w *walk) {
	if !w.through(&q.main) && w.turns {
		w.turns = false
		w.through(&q.candidates)
	}
}

// unseen counts what was not looked at; where owners take turns or candidates have their own order, the most that it may be.
func (q *Queue) unseen(w *walk) int {
	if q.main.fair() || w.phase == backfilling {
		return q.Len() - w.out.Visited
	}
	return q.Len() - rankOf(q.main.root, w.stoppedAt)
}

// Left is what the walk has left for an entry when it comes to it. It is negative where more is used than there is, and math.MaxInt64 where
// nothing bounds the entry.
type Left struct {
	Entitlement resource.Vector // without what the order has the entry leave free
	Reservation resource.Vector
	Controllers resource.Vector
	Owner       resource.Vector
}

// LeftFor says what Admit would find left for one job, were it not short of anything. It returns false when somebody else is first in line for
// something that the job needs, or the job is out of reach. It costs as much as Admit.
func (q *Queue) LeftFor(job workload.JobID, room *Room) (Left, bool) {
	it := q.byJob[job]
	if it == nil {
		return Left{}, false
	}
	w := q.newWalk(room, math.MaxInt)
	w.asked = it
	q.walk(&w)
	return w.left, w.isFirst
}

// leave notes what is left for the entry that is asked for, when the walk comes to it first.
func (w *walk) leave(it *item) {
	if w.isFirst {
		return
	}
	e := &it.entry
	w.isFirst = w.phase != backfilling
	w.left = Left{Entitlement: w.entitlement, Reservation: unbounded.Left, Controllers: unbounded.Left, Owner: unbounded.Left}
	if w.queue.policy.Order == respool.OrderExpress {
		w.left.Entitlement = w.left.Entitlement.Sub(w.expressRoom(e))
	}
	if e.NonPreemptible {
		w.left.Reservation = w.reservation
	}
	if e.Controller {
		w.left.Controllers = w.controllers.Left
	}
	if w.bounds(it.owner) {
		w.left.Owner = it.owner.bound.Left
	}
}

// mask is a set of (account, kind) pairs: from bit 0 on the kinds in the entitlement, then those in the reservation, in the part of the
// entitlement that non-preemptible work leaves to preemptible work, and in what controllers may use.
type mask uint64

const (
	inEntitlement = 0
	inReservation = resource.MaxKinds
	inPreemptible = 2 * resource.MaxKinds
	inControllers = 3 * resource.MaxKinds
)

// accountOf names the account of a bit of a mask.
func accountOf(bit int) Account {
	return [...]Account{OfEntitlement, OfReservation, OfEntitlement, OfControllers}[bit/resource.MaxKinds]
}

func needsOf(e *Entry) mask {
	m := mask(0)
	for k, need := range e.Needs {
		if need == 0 {
			continue
		}
		m |= 1 << (inEntitlement + k)
		if e.NonPreemptible {
			m |= 1 << (inReservation + k)
		} else {
			m |= 1 << (inPreemptible + k)
		}
		if e.Controller {
			m |= 1 << (inControllers + k)
		}
	}
	return m
}

// walk is one pass over a queue.
type walk struct {
	queue                    *Queue
	entitlement, reservation resource.Vector // still free and kept for nobody
	ceiling                  resource.Vector // all of the entitlement
	guaranteed               resource.Vector // all of the reservation
	preemptible              resource.Vector // the entitlement without what non-preemptible work uses
	controllers              Bound
	closed                   mask // somebody waits for it, or nothing of it will ever be free
	limit                    int
	grants                   []Grant
	out                      Outcome
	stoppedAt                *node

	number       uint64 // of the walk in its queue
	owners       *ownerSet
	ownerBound   func(string) (Bound, bool)
	ownersClosed [resource.MaxKinds]uint64 // bits of which every owner waits for the kind within his bound
	anyClosed    mask                      // kinds for which there are such bits

	now    int64
	ends   *Ends
	usage  *Usage
	again  int64
	phase  phase
	turns  bool // the walk goes on with the candidates
	head   reservation
	passed int // nodes of which back-fill looked at the subtree

	asked   *item   // by LeftFor
	left    Left    // for who is asked for
	isFirst bool    // left holds
	survey  *Survey // what it finds is noted here; nil: it is not
}

func (q *Queue) newWalk(room *Room, limit int) walk {
	q.walks++
	q.now, q.usage, q.starting = room.Now, room.Shares, q.starting[:0]
	w := walk{
		queue:       q,
		entitlement: room.Entitlement.Sub(room.Usage),
		reservation: room.Reservation.Sub(room.NonPreemptibleUsage),
		ceiling:     room.Entitlement,
		guaranteed:  room.Reservation,
		preemptible: room.Entitlement.Sub(room.NonPreemptibleUsage),
		controllers: unbounded,
		limit:       limit,
		number:      q.walks,
		owners:      &q.owners,
		ownerBound:  room.Owner,
		now:         room.Now,
		ends:        room.Ends,
		usage:       room.Shares,
		again:       math.MaxInt64,
	}
	if q.policy.Backfill == respool.BackfillNone {
		w.phase = keeping
	}
	if room.Owner != nil {
		q.owners.closed = [resource.MaxKinds][ownerBits]int32{}
	}
	if room.Controllers != nil {
		w.controllers = *room.Controllers
	}
	for k := range resource.MaxKinds {
		w.closeIf(w.controllers.Limit[k] <= 0, inControllers+k)
		w.closeIf(w.ceiling[k] <= 0, inEntitlement+k)
		w.closeIf(w.guaranteed[k] <= 0, inReservation+k)
		w.closeIf(w.preemptible[k] <= 0, inPreemptible+k)
	}
	return w
}

var unbounded = func() (b Bound) {
	for k := range b.Limit {
		b.Limit[k], b.Left[k] = math.MaxInt64, math.MaxInt64
	}
	return b
}()

func (w *walk) closeIf(condition bool, bit int) {
	if condition {
		w.closed |= 1 << bit
	}
}

// through goes through the entries of a view in their order. It returns false when the walk ends there, or turns to the candidates.
func (w *walk) through(v *view) bool {
	if v.fair() {
		return w.inTurns(v)
	}
	return w.run(v, v.root)
}

// run visits the entries below n in order and steps over subtrees in which every entry needs something closed, or none can be filled back.
func (w *walk) run(v *view, n *node) bool {
	if n == nil || w.stepsOver(n) {
		return true
	}
	if !w.run(v, n.left) {
		return false
	}
	if w.survey != nil {
		w.survey.pass(n, v)
	}
	if w.mayLook(n.item) {
		if w.over(n) {
			return false
		}
		if w.look(n.item, w.limit); w.turns {
			return false
		}
	}
	return w.run(v, n.right)
}

// mayLook reports whether the entry is worth a look. Who was given everything, or is the first in line, is no candidate any more.
func (w *walk) mayLook(it *item) bool {
	if it.needs&w.closed != 0 || w.waitsFor(it) != 0 {
		return false
	}
	return w.phase != backfilling || it != w.head.item && (it.walk != w.number || it.granted < it.entry.Count)
}

// over reports whether the walk ends before it looks at n.
func (w *walk) over(n *node) bool {
	switch {
	case w.limit <= 0:
		w.out.Stop = StopLimit
	case w.out.Visited == MaxVisits || w.passed >= MaxCandidates:
		w.out.Stop = StopBound
	default:
		return false
	}
	w.stoppedAt = n
	return true
}

// look tries an entry.
func (w *walk) look(it *item, limit int) Standing {
	w.out.Visited++
	s := w.try(it, limit)
	if s.Verdict == OutOfReach {
		w.out.OutOfReach++
	}
	if w.survey != nil {
		w.survey.note(it, &s)
	}
	return s
}

// try grants what fits of one entry, up to a limit, and keeps room for its next unit if something remains.
func (w *walk) try(it *item, limit int) Standing {
	e := &it.entry
	if s, out := w.outOfReach(e, it.owner); out {
		return s
	}
	if it == w.asked {
		w.leave(it)
	}
	unit, left := e.unit(), e.Count
	if it.walk == w.number { // it has started; the rest follows one by one
		unit, left = 1, left-it.granted
	}
	fit := w.fit(it, left, false)
	if fit < unit && w.due(e) {
		fit = w.fit(it, unit, true)
	}
	if fit < unit {
		fit = 0
	}
	tasks := min(fit, max(limit, unit))
	w.take(it, tasks)
	if tasks < fit || tasks == left {
		return Standing{Verdict: Admissible, Tasks: tasks}
	}
	if tasks > 0 {
		unit = 1
	}
	s := w.wait(it, unit)
	s.Tasks = tasks
	return s
}

// fit is how many tasks of the entry find room everywhere they need it, at most limit. Who is due need not leave anything free.
func (w *walk) fit(it *item, limit int, due bool) int {
	e := &it.entry
	free := w.entitlement
	if w.phase == backfilling && !w.endsInTime(e) {
		free = free.Min(w.head.extra.entitlement)
		if e.NonPreemptible {
			free = free.Min(w.head.extra.reservation)
		}
	}
	if w.queue.policy.Order == respool.OrderExpress && !due {
		free = free.Sub(w.expressRoom(e))
	}
	if e.NonPreemptible {
		free = free.Min(w.reservation)
	}
	if e.Controller {
		free = free.Min(w.controllers.Left)
	}
	if w.bounds(it.owner) {
		free = free.Min(it.owner.bound.Left)
	}
	return int(e.Needs.Times(&free, int64(limit)))
}

// bounds reports whether the owner, whom the walk has met, has a bound.
func (w *walk) bounds(o *owner) bool { return w.ownerBound != nil && o.bounded }

// outOfReach reports an entry whose unit can never fit into what the pool has.
func (w *walk) outOfReach(e *Entry, o *owner) (Standing, bool) {
	reach := &w.preemptible
	if e.NonPreemptible {
		reach = &w.ceiling
	}
	unit := e.Needs.Scale(int64(e.unit()))
	for k, need := range unit {
		if need == 0 {
			continue
		}
		s := Standing{Verdict: OutOfReach, Kind: resource.Kind(k), Need: need, Has: reach[k]}
		switch {
		case w.bounds(o) && need > o.bound.Limit[k]:
			s.Account, s.Has = OfOwner, o.bound.Limit[k]
		case e.Controller && need > w.controllers.Limit[k]:
			s.Account, s.Has = OfControllers, w.controllers.Limit[k]
		case e.NonPreemptible && need > w.guaranteed[k]:
			s.Account, s.Has = OfReservation, w.guaranteed[k]
		case need <= reach[k]:
			continue
		}
		return s, true
	}
	return Standing{}, false
}

func (w *walk) take(it *item, tasks int) {
	if tasks == 0 {
		return
	}
	e := &it.entry
	used := e.Needs.Scale(int64(tasks))
	w.entitlement = w.entitlement.Sub(used)
	if w.phase == backfilling && !w.endsInTime(e) {
		w.head.extra.entitlement = w.head.extra.entitlement.Sub(used)
		if e.NonPreemptible {
			w.head.extra.reservation = w.head.extra.reservation.Sub(used)
		}
	}
	if e.NonPreemptible {
		w.reservation = w.reservation.Sub(used)
	}
	if e.Controller {
		w.controllers.Left = w.controllers.Left.Sub(used)
	}
	if w.bounds(it.owner) {
		it.owner.bound.Left = it.owner.bound.Left.Sub(used)
	}
	w.limit -= tasks
	w.out.Tasks += tasks
	if it.walk != w.number {
		it.walk, it.granted, it.grant = w.number, 0, len(w.grants)
		w.grants = append(w.grants, Grant{Job: e.Job})
		if w.phase == filling && e.RunTime > 0 {
			w.queue.starting = append(w.queue.starting, it)
		}
	}
	it.granted += tasks
	w.grants[it.grant].Tasks += tasks
}

// wait decides what becomes of an entry that is short of something for its next unit. Who is short in a bound of his own waits there alone.
// Otherwise the first in line is promised a time, with back-fill, or room is kept for it.
func (w *walk) wait(it *item, unit int) Standing {
	e := &it.entry
	need := e.Needs.Scale(int64(unit))
	if o := it.owner; w.bounds(o) {
		if s, short := keepIn(&o.bound.Left, &need, func(k int) { w.closeOwner(o, k) }); short {
			w.note(e)
			s.Account = OfOwner
			return s
		}
	}
	if e.Controller {
		if s, short := w.keepFor(&w.controllers.Left, &need, inControllers); short {
			w.note(e)
			return s
		}
	}
	if w.phase == backfilling {
		return w.behindHead(e, &need)
	}
	w.note(e)
	if w.out.Head == (Head{}) {
		w.out.Head = Head{Job: e.Job, Since: e.Since}
	}
	if w.phase == filling {
		if !e.Kept {
			if s, promised := w.reserve(it, &need); promised {
				return s
			}
		}
		w.phase = keeping
	}
	return w.keep(e, &need)
}

// note lists an entry as first in line.
func (w *walk) note(e *Entry) {
	if w.asked == nil && len(w.queue.waits) < MaxWaits {
		w.queue.waits = append(w.queue.waits, e.Job)
	}
}

// keep holds room for the next unit of an entry that is short of something, and closes the kinds in which it is short. Who is short in the
// reservation keeps nothing of the entitlement, as what frees room there frees it here too.
func (w *walk) keep(e *Entry, need *resource.Vector) Standing {
	if e.NonPreemptible {
		if s, short := w.keepFor(&w.reservation, need, inReservation); short {
			return s
		}
	}
	if w.queue.policy.Order == respool.OrderExpress {
		spare := w.expressRoom(e)
		more := need.Add(spare)
		s, _ := w.keepFor(&w.entitlement, &more, inEntitlement)
		s.Spare = spare[s.Kind]
		return s
	}
	s, _ := w.keepFor(&w.entitlement, need, inEntitlement)
	return s
}

func (w *walk) keepFor(free, need *resource.Vector, account int) (Standing, bool) {
	s, short := keepIn(free, need, func(k int) { w.closed |= 1 << (account + k) })
	s.Account = accountOf(account)
	return s, short
}

// keepIn keeps room in one account, shuts the kinds in which it is short, and returns the first of them.
func keepIn(free, need *resource.Vector, shut func(k int)) (s Standing, short bool) {
	for k, q := range need {
		if q > free[k] && q > 0 {
			if !short {
				s = Standing{Verdict: First, Kind: resource.Kind(k), Need: q, Has: free[k]}
			}
			short = true
			shut(k)
		}
		free[k] -= min(q, max(free[k], 0))
	}
	return s, short
}
