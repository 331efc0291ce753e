package admission

import (
	"container/heap"
	"math"

	"github.com/paceline-sched/paceline/core/resource"
)

// inTurns goes through a view by owners: the next look is always at the first entry, by submission, of whoever has used least, and a turn
// gives him what brings him level with the next.
func (w *walk) inTurns(v *view) bool {
	v.weigh(w.usage, w.now)
	turns := w.queue.lanes[:0]
	for _, l := range v.lanes {
		if !w.stepsOver(l.root) {
			l.last = nil
			turns = append(turns, l)
		}
	}
	heap.Init(&turns)
	defer func() { w.queue.lanes = turns[:0] }()
	for len(turns) > 0 {
		l := turns[0]
		if used := w.used(l.owner); used != l.usage { // he was given something at another priority
			l.usage = used
			heap.Fix(&turns, 0)
			continue
		}
		n := w.after(l.root, l.last)
		if n == nil {
			heap.Pop(&turns)
			continue
		}
		if w.over(n) {
			return false
		}
		if w.lookInTurn(l, n, w.turn(turns, n.item)); w.turns {
			return false
		}
	}
	return true
}

// lookInTurn tries the lane's next entry. The lane stays at it when only the turn is over.
func (w *walk) lookInTurn(l *lane, n *node, turn int) {
	before := w.limit
	s := w.look(n.item, min(w.limit, turn))
	granted := before - w.limit
	if granted > 0 {
		l.owner.give(w.number, n.entry.Needs.Scale(int64(granted)))
	}
	if s.Verdict != Admissible || granted == 0 || n.granted == n.entry.Count {
		l.last = n
	}
}

// used is what an owner has used, with what this walk gave him.
func (w *walk) used(o *owner) float64 {
	given := resource.Vector{}
	if o.givenIn == w.number {
		given = o.given
	}
	return w.usage.with(w.now, o.name, given)
}

func (o *owner) give(walk uint64, v resource.Vector) {
	if o.givenIn != walk {
		o.given, o.givenIn = resource.Vector{}, walk
	}
	o.given = o.given.Add(v)
}

// turn is how many tasks of an entry bring its owner level with the next one of the same priority.
func (w *walk) turn(turns laneHeap, it *item) int {
	next := math.Inf(1)
	for _, l := range turns[1:min(3, len(turns))] {
		if l.priority == turns[0].priority {
			next = min(next, l.usage)
		}
	}
	each := w.usage.ahead(&it.entry.Needs)
	if math.IsInf(next, 1) || each == 0 {
		return math.MaxInt
	}
	return int(min((next-turns[0].usage)/each, float64(it.entry.Count))) + 1
}

// after returns the first entry behind another that is worth a look; behind nil: of all. It steps over subtrees as run does.
func (w *walk) after(n, last *node) *node {
	if n == nil || w.stepsOver(n) {
		return nil
	}
	if last == nil || last.before(n) {
		if found := w.after(n.left, last); found != nil {
			return found
		}
		if w.mayLook(n.item) {
			return n
		}
	}
	return w.after(n.right, last)
}

// laneHeap has the owner at 0 whose turn it is.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(a, b int) bool { return compareLanes(h[a], h[b]) < 0 }
func (h laneHeap) Swap(a, b int)      { h[a], h[b] = h[b], h[a] }
func (h *laneHeap) Push(x any)        { *h = append(*h, x.(*lane)) } //nolint:errcheck,forcetypeassert // only lanes are pushed
func (h *laneHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
