package preemption

import (
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxStands bounds the classes whose offers are kept for later requests of the same call.
const maxStands = 64

// stand is the offers that a request left to the next one of its class in the same call.
type stand struct {
	class  placement.ClassID
	ledger *ledger
	wait   bool
	heap   offers
	next   int // in its crowd
	seen   int // of Search.moved
}

// serves reports whether the offers are in the order that a request wants.
func (st *stand) serves(q *query) bool {
	return st.class == q.request.Class.ID && st.ledger == q.ledger && st.wait == q.request.Wait
}

// crowd is the hosts on which somebody may be taken, in the order of the least that this can cost, whatever for: where somebody has to go, no class is
// offered more. All classes of a call share it, and each looks at a host once nothing that it has seen is better than what the crowd says of that one.
type crowd struct {
	ledger *ledger
	wait   bool
	sorted []offer // bounds, in order, as far as anybody has asked
	rest   offers
	seen   int // of Search.moved
}

// at returns the bound at a place in the order; nil: there are no more.
func (c *crowd) at(place int) *offer {
	for place >= len(c.sorted) && len(c.rest) > 0 {
		c.sorted = append(c.sorted, c.rest[0])
		c.rest.pop()
	}
	if place < len(c.sorted) {
		return &c.sorted[place]
	}
	return nil
}

// crowded returns the hosts on which a request may take somebody.
func (q *query) crowded() *crowd {
	s := q.search
	for i := range s.crowds {
		if c := s.crowds[i]; c.ledger == q.ledger && c.wait == q.request.Wait {
			return c
		}
	}
	c := s.spareCrowd
	if s.spareCrowd = nil; c == nil {
		c = &crowd{}
	}
	*c = crowd{ledger: q.ledger, wait: q.request.Wait, sorted: c.sorted[:0], rest: c.rest[:0], seen: len(s.moved)}
	s.crowds = append(s.crowds, c)
	for row := range s.table.Usable().Rows {
		if o, some := q.leastFor(row); some {
			c.rest = append(c.rest, o)
		}
	}
	c.rest.init()
	return c
}

// leastFor bounds what a host can offer to any class for which somebody has to go there. It reports false where nobody may be taken.
func (q *query) leastFor(row host.Row) (o offer, some bool) {
	t := &q.search.rows[row]
	seats, tiers, gangs := q.seats(row, t)
	if len(tiers) == 0 {
		return o, false
	}
	o = offer{tier: tiers[0], runs: 1, work: q.work(seats[0].started), row: row}
	reach := 1
	for ; reach < len(tiers) && tiers[reach] == o.tier; reach++ {
		o.work = min(o.work, q.work(seats[reach].started))
	}
	if gangs {
		o.runs, o.work = q.cheapest(t.order[:reach])
	}
	return o, true
}

// shared reports whether what the class is offered may serve another request: no named host or domain, and nothing in it that a task elsewhere changes.
func (q *query) shared() bool {
	return q.within == nil && (q.request.Host == workload.HostID{}) && q.rows.ByHost() && !q.search.apart
}

// stand makes the heap: of what an earlier request of the class left, with what moved since; of the hosts where nobody has to go, with the crowd
// behind them; or of every host.
func (q *query) stand() {
	switch {
	case !q.shared():
		q.clearHeap()
		for row := range q.rows.All() {
			if q.allows(row) {
				q.add(row)
			}
		}
		q.heap.init()
	case !q.takeOver():
		q.crowd, q.next = q.crowded(), 0
		q.clearHeap()
		for row := range q.rows.All() {
			if lacks := q.lacks(row, &q.search.rows[row]); !q.exceeded(&lacks) {
				q.add(row)
			}
		}
		q.heap.init()
		q.lookAgain(q.crowd.seen)
	}
}

// add looks at a host for the heap, which has to be put in order afterwards.
func (q *query) add(row host.Row) {
	if o, ok := q.look(row); ok {
		q.heap = append(q.heap, o)
	}
}

// clearHeap begins a new heap, where one was before if there was any.
func (q *query) clearHeap() {
	s := q.search
	if last := len(s.spareHeaps) - 1; q.heap == nil && last >= 0 {
		q.heap, s.spareHeaps[last] = s.spareHeaps[last], nil
		s.spareHeaps = s.spareHeaps[:last]
	}
	q.heap = q.heap[:0]
}

// takeOver has the request go on where an earlier one of its class stopped.
func (q *query) takeOver() bool {
	s := q.search
	for i := range s.stands {
		st := &s.stands[i]
		if !st.serves(q) {
			continue
		}
		q.heap = st.heap
		if len(st.heap)+len(s.moved)-st.seen > 2*s.table.Rows() {
			return false
		}
		q.crowd, q.next = q.crowded(), st.next
		if len(s.moved) > st.seen {
			s.round++
		}
		q.lookAgain(st.seen)
		return true
	}
	return false
}

// lookAgain offers the hosts that moved since.
func (q *query) lookAgain(since int) {
	last := host.NoRow
	for _, row := range q.search.moved[since:] {
		if row == last {
			continue
		}
		last = row
		if o, ok := q.look(row); ok && q.rows.Eligible(row) {
			q.heap.push(o)
		}
	}
}

// best returns the best of what was seen, once nothing that was not seen can be better; nil: there is nothing.
func (q *query) best() *offer {
	for q.crowd != nil {
		bound := q.crowd.at(q.next)
		if bound == nil || len(q.heap) > 0 && q.heap[0].before(bound) {
			break
		}
		q.next++
		if !q.rows.Eligible(bound.row) {
			continue
		}
		if o, ok := q.look(bound.row); ok {
			q.heap.push(o)
		}
	}
	if len(q.heap) == 0 {
		return nil
	}
	return &q.heap[0]
}

// keep leaves the offers to the next request of the class.
func (q *query) keep() {
	s := q.search
	if !q.shared() {
		s.spareHeap(q.heap)
		q.heap = nil
		return
	}
	kept := stand{class: q.request.Class.ID, ledger: q.ledger, wait: q.request.Wait, heap: q.heap, next: q.next, seen: len(s.moved)}
	for i := range s.stands {
		if s.stands[i].serves(q) {
			s.stands[i] = kept
			return
		}
	}
	if len(s.stands) < maxStands {
		s.stands = append(s.stands, kept)
	}
}

// forgetStands ends what requests of a call share.
func (s *Search) forgetStands() {
	for i := range s.stands {
		s.spareHeap(s.stands[i].heap)
	}
	clear(s.stands)
	s.stands = s.stands[:0]
	if len(s.crowds) > 0 {
		s.spareCrowd = s.crowds[0]
	}
	clear(s.crowds)
	s.crowds = s.crowds[:0]
}

// maxSpareHeaps bounds the heaps whose memory is kept.
const maxSpareHeaps = 4

func (s *Search) spareHeap(h offers) {
	if h != nil && len(s.spareHeaps) < maxSpareHeaps {
		s.spareHeaps = append(s.spareHeaps, h[:0])
	}
}

// leave takes the offers back: those of a request that was undone were made under bounds that are wider again.
func (q *query) leave() {
	s := q.search
	for i := range s.stands {
		if s.stands[i].serves(q) {
			s.spareHeap(s.stands[i].heap)
			s.stands = slices.Delete(s.stands, i, i+1) // no other does: keep replaces
			return
		}
	}
}
