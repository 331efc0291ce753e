package admission

import (
	"math"
	"math/bits"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// MaxVisits bounds the entries that one Admit looks at. Entries that need a kind somebody already waits for are stepped over in
// bulk and do not count; every other one is granted what it wants, or starts to wait for a kind, or is out of reach. So only
// thousands of small jobs that fit, or of jobs out of reach, ever meet the bound; the next call starts from the front again.
const MaxVisits = 1 << 14

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
}

// Admit appends to grants what may start now, in order, until limit tasks are granted. A gang is not cut: it may exceed the
// limit, so that no gang is too large for it. The queue stays as it is. Without room left the cost is O(log n).
func (q *Queue) Admit(grants []Grant, room *Room, limit int) ([]Grant, Outcome) {
	w := q.newWalk(room, limit)
	w.grants = grants
	if !w.run(q.root) {
		w.out.Unseen = q.Len() - rank(q.root, w.stoppedAt)
	}
	return w.grants, w.out
}

// Verdict is what Explain says of a job.
type Verdict uint8

// The verdicts.
const (
	Admissible Verdict = iota // all its tasks would start now
	First                     // first in line for a kind of which too little is free
	Behind                    // needs a kind for which an earlier job waits
	OutOfReach                // needs more than the pool could give with all its preemptible work gone
	NotReached                // too many jobs before it: MaxVisits
)

func (v Verdict) String() string {
	return [...]string{"admissible", "first in line", "behind", "out of reach", "not reached"}[min(v, NotReached)]
}

// Standing explains where a job stands in its queue.
type Standing struct {
	Ahead   int // jobs before it
	Verdict Verdict
	Tasks   int // that would start now
	// The kind that decides, with First, Behind and OutOfReach, and where it is short.
	Kind    resource.Kind
	Account Account
	// Need is what the next unit takes of Kind; Has is what there is, free with First and in all with OutOfReach.
	Need, Has int64
}

// Explain says what Admit would do for one job, without limit. It costs as much as Admit.
func (q *Queue) Explain(job workload.JobID, room *Room) (Standing, bool) {
	n := q.byJob[job]
	if n == nil {
		return Standing{}, false
	}
	w := q.newWalk(room, math.MaxInt)
	w.until = n
	s := Standing{Verdict: NotReached}
	if w.run(q.root); w.out.Stop != StopBound {
		s = w.try(n)
	}
	s.Ahead = rank(q.root, n)
	return s, true
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
	entitlement, reservation resource.Vector // still free and kept for nobody
	ceiling                  resource.Vector // all of the entitlement
	guaranteed               resource.Vector // all of the reservation
	preemptible              resource.Vector // the entitlement without what non-preemptible work uses
	controllers              Bound
	closed                   mask // somebody waits for it, or nothing of it will ever be free
	limit                    int
	grants                   []Grant
	out                      Outcome
	until, stoppedAt         *node

	number       uint64 // of the walk in its queue
	owners       *ownerSet
	ownerBound   func(string) (Bound, bool)
	ownersClosed [resource.MaxKinds]uint64 // bits of which every owner waits for the kind within his bound
	anyClosed    mask                      // kinds for which there are such bits
}

func (q *Queue) newWalk(room *Room, limit int) walk {
	q.walks++
	w := walk{
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

// run visits the entries below n in order and steps over subtrees in which every entry needs something closed. It returns false
// when the walk is over.
func (w *walk) run(n *node) bool {
	if n == nil || w.stepsOver(n) {
		return true
	}
	if !w.run(n.left) {
		return false
	}
	if w.until != nil && !n.entry.before(&w.until.entry) {
		return false
	}
	if n.needs&w.closed == 0 && w.waitsFor(n) == 0 {
		switch {
		case w.limit <= 0:
			w.out.Stop, w.stoppedAt = StopLimit, n
			return false
		case w.out.Visited == MaxVisits:
			w.out.Stop, w.stoppedAt = StopBound, n
			return false
		}
		w.out.Visited++
		if s := w.try(n); s.Verdict == OutOfReach {
			w.out.OutOfReach++
		}
	}
	return w.run(n.right)
}

// try grants what fits of one entry and keeps room for its next unit if something remains.
func (w *walk) try(n *node) Standing {
	e := &n.entry
	waits := w.waitsFor(n)
	if s, out := w.outOfReach(n); out {
		return s
	}
	if behind := n.needs & w.closed; behind != 0 {
		bit := bits.TrailingZeros64(uint64(behind))
		return Standing{Verdict: Behind, Kind: resource.Kind(bit % resource.MaxKinds), Account: accountOf(bit)}
	}
	if waits != 0 {
		return Standing{Verdict: Behind, Kind: resource.Kind(bits.TrailingZeros64(uint64(waits))), Account: OfOwner}
	}
	fit := w.fit(n)
	if fit < e.unit() {
		fit = 0
	}
	tasks := min(fit, max(w.limit, e.unit()))
	w.take(n, tasks)
	if tasks < fit || tasks == e.Count {
		return Standing{Verdict: Admissible, Tasks: tasks}
	}
	unit := e.unit()
	if tasks > 0 {
		unit = 1 // the gang has started; the rest follows one by one
	}
	s := w.keep(n, unit)
	s.Tasks = tasks
	return s
}

// fit is how many tasks of the entry find room everywhere they need it.
func (w *walk) fit(n *node) int {
	e := &n.entry
	free := w.entitlement
	if e.NonPreemptible {
		free = free.Min(w.reservation)
	}
	if e.Controller {
		free = free.Min(w.controllers.Left)
	}
	if w.bounds(n.owner) {
		free = free.Min(n.owner.bound.Left)
	}
	return int(e.Needs.Times(&free, int64(e.Count)))
}

// bounds reports whether the owner, whom the walk has met, has a bound.
func (w *walk) bounds(o *owner) bool { return w.ownerBound != nil && o.bounded }

// outOfReach reports an entry whose unit can never fit into what the pool has.
func (w *walk) outOfReach(n *node) (Standing, bool) {
	e := &n.entry
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
		case w.bounds(n.owner) && need > n.owner.bound.Limit[k]:
			s.Account, s.Has = OfOwner, n.owner.bound.Limit[k]
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

func (w *walk) take(n *node, tasks int) {
	if tasks == 0 {
		return
	}
	e := &n.entry
	used := e.Needs.Scale(int64(tasks))
	w.entitlement = w.entitlement.Sub(used)
	if e.NonPreemptible {
		w.reservation = w.reservation.Sub(used)
	}
	if e.Controller {
		w.controllers.Left = w.controllers.Left.Sub(used)
	}
	if w.bounds(n.owner) {
		n.owner.bound.Left = n.owner.bound.Left.Sub(used)
	}
	w.limit -= tasks
	w.out.Tasks += tasks
	w.grants = append(w.grants, Grant{Job: e.Job, Tasks: tasks})
}

// keep holds room for the next unit of an entry that is short of something, and closes the kinds in which it is short. The narrowest
// account in which it is short decides: it keeps nothing of the wider ones, as what frees room there frees it in these too.
func (w *walk) keep(n *node, unit int) Standing {
	e := &n.entry
	need := e.Needs.Scale(int64(unit))
	if o := n.owner; w.bounds(o) {
		if s, short := keepIn(&o.bound.Left, &need, func(k int) { w.closeOwner(o, k) }); short {
			s.Account = OfOwner
			return s
		}
	}
	if e.Controller {
		if s, short := w.keepFor(&w.controllers.Left, &need, inControllers); short {
			return s
		}
	}
	if e.NonPreemptible {
		if s, short := w.keepFor(&w.reservation, &need, inReservation); short {
			return s
		}
	}
	s, _ := w.keepFor(&w.entitlement, &need, inEntitlement)
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
