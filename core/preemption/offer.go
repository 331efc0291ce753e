package preemption

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
)

// offer is a host on which one more task fits, and what that costs; or a bound of it.
type offer struct {
	tier  int64 // of the worst victim; -1: nobody has to go
	runs  int64
	work  int64
	row   host.Row
	round uint64 // of Search: in a later one it may have become worse
}

// onlyBound is the round of an offer that the host cannot better, and may not make.
const onlyBound = 0

func (a *offer) before(b *offer) bool {
	switch {
	case a.tier != b.tier:
		return a.tier < b.tier
	case a.runs != b.runs:
		return a.runs < b.runs
	case a.work != b.work:
		return a.work < b.work
	}
	return a.row < b.row
}

// offers is a heap with the best on top. No host on which the class fits is better than its best entry; one may have several.
type offers []offer

func (h offers) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *offers) push(o offer) {
	*h = append(*h, o)
	all := *h
	for at := len(all) - 1; at > 0; {
		parent := (at - 1) / 2
		if !all[at].before(&all[parent]) {
			return
		}
		all[at], all[parent] = all[parent], all[at]
		at = parent
	}
}

func (h *offers) pop() {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	*h = (*h)[:last]
	h.down(0)
}

func (h offers) down(at int) {
	for {
		child := 2*at + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&h[at]) {
			return
		}
		h[at], h[child] = h[child], h[at]
		at = child
	}
}

// maxStands bounds the classes whose offers are kept for later requests of the same call.
const maxStands = 64

// stand is the offers that a request left to the next one of its class in the same call.
type stand struct {
	class  placement.ClassID
	ledger *ledger
	wait   bool
	heap   offers
	seen   int // of Search.moved
}

// serves reports whether the offers are in the order that a request wants.
func (st *stand) serves(q *query) bool {
	return st.class == q.request.Class.ID && st.ledger == q.ledger && st.wait == q.request.Wait
}

// shared reports whether what the class is offered may serve another request: no named host or domain, and nothing in it that a task elsewhere changes.
func (q *query) shared() bool {
	return q.within == nil && (q.request.Host == workload.HostID{}) && q.rows.ByHost()
}

// stand makes the heap: from what an earlier request of the class left, with what moved since, or from every host.
func (q *query) stand() {
	s := q.search
	if q.shared() {
		for i := range s.stands {
			st := &s.stands[i]
			if !st.serves(q) {
				continue
			}
			if len(st.heap)+len(s.moved)-st.seen > 2*s.table.Rows() {
				q.heap = st.heap[:0]
				break
			}
			q.heap = st.heap
			if len(s.moved) > st.seen {
				s.round++
			}
			for _, row := range s.moved[st.seen:] {
				if o, ok := q.look(row); ok && q.rows.Eligible(row) {
					q.heap.push(o)
				}
			}
			return
		}
	}
	if q.heap == nil && len(s.spareHeaps) > 0 {
		last := len(s.spareHeaps) - 1
		q.heap, s.spareHeaps[last] = s.spareHeaps[last], nil
		s.spareHeaps = s.spareHeaps[:last]
	}
	for row := range q.rows.All() {
		if q.allows(row) {
			if o, ok := q.look(row); ok {
				q.heap = append(q.heap, o)
			}
		}
	}
	q.heap.init()
}

// keep leaves the offers to the next request of the class.
func (q *query) keep() {
	s := q.search
	if !q.shared() {
		s.spareHeap(q.heap)
		q.heap = nil
		return
	}
	kept := stand{class: q.request.Class.ID, ledger: q.ledger, wait: q.request.Wait, heap: q.heap, seen: len(s.moved)}
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

func (s *Search) forgetStands() {
	for i := range s.stands {
		s.spareHeap(s.stands[i].heap)
	}
	clear(s.stands)
	s.stands = s.stands[:0]
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
			s.stands[i] = stand{}
		}
	}
}
