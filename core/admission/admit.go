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
	w := newWalk(room, limit)
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
	// The kind that decides, with First, Behind and OutOfReach. OfReservation: it is short in the reservation, not in the
	// entitlement.
	Kind          resource.Kind
	OfReservation bool
	// Need is what the next unit takes of Kind; Has is what there is, free with First and in all with OutOfReach.
	Need, Has int64
}

// Explain says what Admit would do for one job, without limit. It costs as much as Admit.
func (q *Queue) Explain(job workload.JobID, room *Room) (Standing, bool) {
	n := q.byJob[job]
	if n == nil {
		return Standing{}, false
	}
	w := newWalk(room, math.MaxInt)
	w.until = n
	s := Standing{Verdict: NotReached}
	if w.run(q.root); w.out.Stop != StopBound {
		s = w.try(n)
	}
	s.Ahead = rank(q.root, n)
	return s, true
}

// mask is a set of (account, kind) pairs: from bit 0 on the kinds in the entitlement, then those in the reservation, then those in
// the part of the entitlement that non-preemptible work leaves to preemptible work.
type mask uint64

const (
	inEntitlement = 0
	inReservation = resource.MaxKinds
	inPreemptible = 2 * resource.MaxKinds
)

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
	}
	return m
}

// walk is one pass over a queue.
type walk struct {
	entitlement, reservation resource.Vector // still free and kept for nobody
	ceiling                  resource.Vector // all of the entitlement
	guaranteed               resource.Vector // all of the reservation
	preemptible              resource.Vector // the entitlement without what non-preemptible work uses
	closed                   mask            // somebody waits for it, or nothing of it will ever be free
	limit                    int
	grants                   []Grant
	out                      Outcome
	until, stoppedAt         *node
}

func newWalk(room *Room, limit int) walk {
	w := walk{
		entitlement: room.Entitlement.Sub(room.Usage),
		reservation: room.Reservation.Sub(room.NonPreemptibleUsage),
		ceiling:     room.Entitlement,
		guaranteed:  room.Reservation,
		preemptible: room.Entitlement.Sub(room.NonPreemptibleUsage),
		limit:       limit,
	}
	for k := range resource.MaxKinds {
		w.closeIf(w.ceiling[k] <= 0, inEntitlement+k)
		w.closeIf(w.guaranteed[k] <= 0, inReservation+k)
		w.closeIf(w.preemptible[k] <= 0, inPreemptible+k)
	}
	return w
}

func (w *walk) closeIf(condition bool, bit int) {
	if condition {
		w.closed |= 1 << bit
	}
}

// run visits the entries below n in order and steps over subtrees in which every entry needs something closed. It returns false
// when the walk is over.
func (w *walk) run(n *node) bool {
	if n == nil || n.common&w.closed != 0 {
		return true
	}
	if !w.run(n.left) {
		return false
	}
	if w.until != nil && !n.entry.before(&w.until.entry) {
		return false
	}
	if n.needs&w.closed == 0 {
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
	if s, out := w.outOfReach(e); out {
		return s
	}
	if behind := n.needs & w.closed; behind != 0 {
		bit := bits.TrailingZeros64(uint64(behind))
		return Standing{Verdict: Behind, Kind: resource.Kind(bit % resource.MaxKinds), OfReservation: bit >= inReservation}
	}
	free := w.entitlement
	if e.NonPreemptible {
		free = free.Min(w.reservation)
	}
	fit := int(e.Needs.Times(&free, int64(e.Count)))
	if fit < e.unit() {
		fit = 0
	}
	tasks := min(fit, max(w.limit, e.unit()))
	w.take(e, tasks)
	if tasks < fit || tasks == e.Count {
		return Standing{Verdict: Admissible, Tasks: tasks}
	}
	unit := e.unit()
	if tasks > 0 {
		unit = 1 // the gang has started; the rest follows one by one
	}
	s := w.keep(e, unit)
	s.Tasks = tasks
	return s
}

// outOfReach reports an entry whose unit can never fit into what the pool has.
func (w *walk) outOfReach(e *Entry) (Standing, bool) {
	reach := &w.preemptible
	if e.NonPreemptible {
		reach = &w.ceiling
	}
	unit := e.Needs.Scale(int64(e.unit()))
	for k, need := range unit {
		s := Standing{Verdict: OutOfReach, Kind: resource.Kind(k), Need: need, Has: reach[k]}
		switch {
		case need == 0:
		case e.NonPreemptible && need > w.guaranteed[k]:
			s.OfReservation, s.Has = true, w.guaranteed[k]
			return s, true
		case need > reach[k]:
			return s, true
		}
	}
	return Standing{}, false
}

func (w *walk) take(e *Entry, tasks int) {
	if tasks == 0 {
		return
	}
	used := e.Needs.Scale(int64(tasks))
	w.entitlement = w.entitlement.Sub(used)
	if e.NonPreemptible {
		w.reservation = w.reservation.Sub(used)
	}
	w.limit -= tasks
	w.out.Tasks += tasks
	w.grants = append(w.grants, Grant{Job: e.Job, Tasks: tasks})
}

// keep holds room for the next unit of an entry that is short of something, and closes the kinds in which it is short.
func (w *walk) keep(e *Entry, unit int) Standing {
	need := e.Needs.Scale(int64(unit))
	if e.NonPreemptible {
		if s, short := w.keepIn(&w.reservation, &need, inReservation); short {
			return s
		}
	}
	s, _ := w.keepIn(&w.entitlement, &need, inEntitlement)
	return s
}

// keepIn does so in one account and returns the first kind in which it is short.
func (w *walk) keepIn(free, need *resource.Vector, account int) (Standing, bool) {
	var s Standing
	short := false
	for k, q := range need {
		if q > free[k] && q > 0 {
			if !short {
				s = Standing{Verdict: First, Kind: resource.Kind(k), OfReservation: account == inReservation, Need: q, Has: free[k]}
			}
			short = true
			w.closed |= 1 << (account + k)
		}
		free[k] -= min(q, max(free[k], 0))
	}
	return s, short
}
