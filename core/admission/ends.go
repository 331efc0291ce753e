package admission

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
)

// Overrun is how much longer a run is expected to take that has outlived its estimate, again and again until it ends. A constant, as
// nothing is known any more: short enough that little is filled back on the strength of it, long enough that the first in line is not
// promised the very next moment for ever.
const Overrun = time.Minute

// Ends is when the running work of a pool is expected to end, as far as anybody has said. The zero value is empty and ready for use. It
// has one owner and is not safe for concurrent use.
type Ends struct {
	root *end
}

// end is what ends at one moment, in a treap by time in which every node knows the sum of its subtree.
type end struct {
	at          int64
	heap        uint64
	tasks       int
	all, fixed  resource.Vector // of the tasks; fixed is the part of those that may not be preempted
	sum         accounts
	left, right *end
}

// accounts is one quantity of the entitlement and one of the reservation.
type accounts struct {
	entitlement, reservation resource.Vector
}

func (a accounts) plus(o *accounts) accounts {
	return accounts{a.entitlement.Add(o.entitlement), a.reservation.Add(o.reservation)}
}

func (a accounts) minus(o *accounts) accounts {
	return accounts{a.entitlement.Sub(o.entitlement), a.reservation.Sub(o.reservation)}
}

// holds reports whether there is room for what is needed.
func (a *accounts) holds(need *accounts) bool {
	return need.entitlement.FitsIn(&a.entitlement) && need.reservation.FitsIn(&a.reservation)
}

// Add notes that a task is expected to end then and give back v. It costs O(log n) of the moments at which something ends.
func (s *Ends) Add(at int64, v *resource.Vector, nonPreemptible bool) {
	s.root = s.root.with(at, v, nonPreemptible)
}

// Remove undoes one Add.
func (s *Ends) Remove(at int64, v *resource.Vector, nonPreemptible bool) {
	s.root = s.root.without(at, v, nonPreemptible)
}

// Moments is how many different ends are known.
func (s *Ends) Moments() int {
	var count func(*end) int
	count = func(n *end) int {
		if n == nil {
			return 0
		}
		return 1 + count(n.left) + count(n.right)
	}
	return count(s.root)
}

func (n *end) with(at int64, v *resource.Vector, fixed bool) *end {
	switch {
	case n == nil:
		n = &end{at: at, heap: mix(uint64(at)), tasks: 1, all: *v}
		if fixed {
			n.fixed = *v
		}
	case at == n.at:
		n.tasks++
		n.all = n.all.Add(*v)
		if fixed {
			n.fixed = n.fixed.Add(*v)
		}
	case at < n.at:
		if n.left = n.left.with(at, v, fixed); n.left.heap > n.heap {
			l := n.left
			n.left, l.right = l.right, n
			n.update()
			n = l
		}
	default:
		if n.right = n.right.with(at, v, fixed); n.right.heap > n.heap {
			r := n.right
			n.right, r.left = r.left, n
			n.update()
			n = r
		}
	}
	n.update()
	return n
}

func (n *end) without(at int64, v *resource.Vector, fixed bool) *end {
	switch {
	case n == nil:
		panic(fmt.Sprintf("admission: a task ends at %d that nobody noted", at))
	case at < n.at:
		n.left = n.left.without(at, v, fixed)
	case at > n.at:
		n.right = n.right.without(at, v, fixed)
	default:
		if n.tasks--; n.tasks == 0 {
			return joinEnds(n.left, n.right)
		}
		n.all = n.all.Sub(*v)
		if fixed {
			n.fixed = n.fixed.Sub(*v)
		}
	}
	n.update()
	return n
}

func joinEnds(before, after *end) *end {
	switch {
	case before == nil:
		return after
	case after == nil:
		return before
	case before.heap > after.heap:
		before.right = joinEnds(before.right, after)
		before.update()
		return before
	}
	after.left = joinEnds(before, after.left)
	after.update()
	return after
}

func (n *end) own() accounts { return accounts{n.all, n.fixed} }

func (n *end) update() {
	n.sum = n.own()
	for _, c := range [...]*end{n.left, n.right} {
		if c != nil {
			n.sum = n.sum.plus(&c.sum)
		}
	}
}

// until is what ends at a time or before.
func (n *end) until(at int64) (sum accounts) {
	for n != nil {
		if n.at > at {
			n = n.left
			continue
		}
		own := n.own()
		sum = sum.plus(&own)
		if n.left != nil {
			sum = sum.plus(&n.left.sum)
		}
		n = n.right
	}
	return sum
}

// first is the earliest end by which free holds what is needed; free only grows with time, so it can be searched for.
func (n *end) first(free accounts, need *accounts) (at int64, known bool) {
	for n != nil {
		by := free
		if n.left != nil {
			by = by.plus(&n.left.sum)
		}
		own := n.own()
		if by = by.plus(&own); by.holds(need) {
			at, known = n.at, true
			n = n.left
			continue
		}
		free = by
		n = n.right
	}
	return at, known
}

// earliest is when there will be room for what is needed, and what is free then; false: by what is known, never. What has outlived its
// estimate counts as ending after Overrun. It costs O(log n).
func (s *Ends) earliest(now int64, free accounts, need *accounts) (at int64, then accounts, known bool) {
	if s == nil || s.root == nil {
		return 0, free, false
	}
	late := s.root.until(now - 1)
	punctual := free.minus(&late)
	grace := now + int64(Overrun)
	if at, known = s.root.first(punctual, need); known && at < grace {
		sum := s.root.until(at)
		return at, punctual.plus(&sum), true
	}
	at, known = s.root.first(free, need)
	if known {
		at = max(at, grace)
		sum := s.root.until(at)
		return at, free.plus(&sum), true
	}
	return 0, free, false
}

// Visit visits what ends, in order of time, until yield has enough. What has outlived its estimate is visited first.
func (s *Ends) Visit(yield func(at int64, v resource.Vector) bool) {
	if s.root != nil {
		s.root.visit(yield)
	}
}

func (n *end) visit(yield func(at int64, v resource.Vector) bool) bool {
	return n == nil || (n.left.visit(yield) && yield(n.at, n.all) && n.right.visit(yield))
}
