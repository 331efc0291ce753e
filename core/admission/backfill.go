package admission

import (
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
)

// phase is what a walk does with an entry that does not fit.
type phase uint8

const (
	filling     phase = iota // nobody waits yet: the first who has to is promised a time
	backfilling              // somebody was promised one
	keeping                  // room is kept
)

// reservation is what the first in line was promised.
type reservation struct {
	item  *item
	known bool
	start int64
	extra accounts // free beside it from the start on
}

// reserve promises the first in line the earliest time at which, by what is known, there will be room for it. It returns false when room
// is to be kept for it instead: nobody knows when there will be any, or the first promise was broken, and it has lost patience.
func (w *walk) reserve(it *item, need *resource.Vector) (Standing, bool) {
	e := &it.entry
	free := accounts{w.entitlement, w.reservation}
	needed := accounts{entitlement: *need}
	if e.NonPreemptible {
		needed.reservation = *need
	}
	spare := resource.Vector{}
	if w.queue.policy.Order == respool.OrderExpress {
		spare = w.expressRoom(e)
		needed.entitlement = needed.entitlement.Add(spare)
	}
	s := shortage(&free, &needed)
	if s.Account == OfEntitlement {
		s.Spare = spare[s.Kind]
	}
	h := reservation{item: it}
	var then accounts
	w.noteStarts(true)
	h.start, then, h.known = w.ends.earliest(w.now, free, &needed)
	w.noteStarts(false)
	h.extra = then.minus(&needed)
	from := e.Since
	if h.known {
		from = h.start
		if was := &w.queue.head; was.Job == e.Job && was.Start != 0 {
			from = min(from, was.Start)
		}
	}
	patience := int64(w.queue.policy.Patience)
	if from+patience <= w.now {
		return s, false
	}
	if !h.known || from < h.start {
		w.again = min(w.again, from+patience)
	}
	w.phase, w.head = backfilling, h
	w.turns = w.queue.policy.Candidates != w.queue.policy.Order
	if h.known {
		s.Start, w.out.Head.Start = h.start, h.start
	}
	return s, true
}

// noteStarts counts what this walk lets go among what will end, or no more.
func (w *walk) noteStarts(on bool) {
	if w.ends == nil {
		w.ends = &Ends{}
	}
	for _, it := range w.queue.starting {
		e := &it.entry
		used := e.Needs.Scale(int64(it.granted))
		if on {
			w.ends.Add(w.now+int64(e.RunTime), &used, e.NonPreemptible)
		} else {
			w.ends.Remove(w.now+int64(e.RunTime), &used, e.NonPreemptible)
		}
	}
}

// due reports whether the time has come that the first in line was promised. What express order has it leave free may have grown since then, as
// non-preemptible work ended; that must not delay it.
func (w *walk) due(e *Entry) bool {
	h := &w.queue.head
	return w.phase == filling && h.Job == e.Job && h.Start != 0 && h.Start <= w.now && w.queue.byJob[e.Job].walk != w.number
}

// remember keeps the earliest time that the first in line was promised. Once a part of it has started, the rest is promised anew.
func (q *Queue) remember(w *walk) {
	head := w.out.Head
	started := head.Job == q.head.Job && head != (Head{}) && q.byJob[head.Job].walk == w.number
	if q.head.Job == head.Job && q.head.Start != 0 && head.Start != 0 && !started {
		head.Start = min(head.Start, q.head.Start)
	}
	q.head = head
}

// shortage is the first kind of which too little is free.
func shortage(free, need *accounts) Standing {
	for k := range resource.Kind(resource.MaxKinds) {
		switch {
		case need.reservation[k] > max(free.reservation[k], 0):
			return Standing{Verdict: First, Kind: k, Account: OfReservation, Need: need.reservation[k], Has: free.reservation[k]}
		case need.entitlement[k] > max(free.entitlement[k], 0):
			return Standing{Verdict: First, Kind: k, Need: need.entitlement[k], Has: free.entitlement[k]}
		}
	}
	return Standing{Verdict: First}
}

// behindHead is where an entry stands that cannot be filled back now.
func (w *walk) behindHead(e *Entry, need *resource.Vector) Standing {
	free := accounts{w.entitlement, w.reservation}
	if !w.endsInTime(e) {
		free.entitlement = free.entitlement.Min(w.head.extra.entitlement)
		free.reservation = free.reservation.Min(w.head.extra.reservation)
	}
	needed := accounts{entitlement: *need}
	if e.NonPreemptible {
		needed.reservation = *need
	}
	if w.queue.policy.Order == respool.OrderExpress {
		needed.entitlement = needed.entitlement.Add(w.expressRoom(e))
	}
	s := shortage(&free, &needed)
	return Standing{Verdict: Behind, Kind: s.Kind, Account: s.Account}
}

// endsInTime reports whether the entry is gone when the first in line starts. Nobody can tell when nobody knows that time: then everybody
// passes, for as long as the first in line has patience.
func (w *walk) endsInTime(e *Entry) bool {
	return !w.head.known || e.RunTime > 0 && e.RunTime <= time.Duration(w.head.start-w.now)
}

// mayFill reports whether something below the node might be filled back, by the least that anything there needs.
func (w *walk) mayFill(n *node) bool {
	if n.below == nil {
		return true
	}
	w.passed++
	if w.passed > MaxCandidates || !n.below.unit.FitsIn(&w.entitlement) {
		return w.passed > MaxCandidates // over() ends the walk
	}
	return !w.head.known || n.below.runTime <= time.Duration(w.head.start-w.now) || n.below.unit.FitsIn(&w.head.extra.entitlement)
}

// expressRoom is what the entry must leave free for short work. An entry too large for that leaves what it can.
func (w *walk) expressRoom(e *Entry) (room resource.Vector) {
	if e.express() {
		return room
	}
	reach := &w.preemptible
	if e.NonPreemptible {
		reach = &w.ceiling
	}
	unit := int64(e.unit())
	for k, need := range e.Needs {
		if need > 0 {
			room[k] = max(0, min(w.ceiling[k]/ExpressParts, reach[k]-need*unit))
		}
	}
	return room
}
