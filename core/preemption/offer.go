package preemption

import "github.com/paceline-sched/paceline/core/host"

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
