package respool

import (
	"math/bits"

	"github.com/paceline-sched/paceline/core/resource"
)

// revocable is a node's part in the second ledger. None of it ever counts toward entitlement, limit or overage.
type revocable struct {
	usage       resource.Vector
	demand      resource.Vector // clipped by the part of the slack that the pool may have
	entitlement resource.Vector
}

// entitleRevocable shares out the slack: the capacity that ordinary work neither uses nor may start using now. A leaf's ordinary work
// takes the larger of its usage and of its demand within its entitlement; whatever is entitled beyond that lies idle and is slack, also
// that of static pools. So revocable work never starts in the place of work that the next cycle admits, and what it has started on slack
// that is gone stands over its entitlement and goes first.
//
// The slack is shared by weighted max-min fairness over the pools with revocable demand, by the shares that they have anyway; reservations
// and limits play no part, and a share of 0 gets none. RevocablePercent bounds the part of the whole slack that a pool gets together with
// all below it. What nobody demands is handed to nobody.
func (t *Tree) entitleRevocable(order []*node, capacity resource.Vector) {
	kinds := resource.Kind(t.names.Len())
	t.slack = capacity
	asked := false
	for _, n := range order[1:] {
		if len(n.children) > 0 {
			continue
		}
		for k := range kinds {
			t.slack[k] -= max(n.usage[k], min(n.wanted(k), n.entitlement[k]))
		}
		asked = asked || !n.asked.Revocable.IsZero()
	}
	t.slack = t.slack.Max(resource.Vector{})
	if !asked && !t.anyRevocable {
		return
	}
	t.anyRevocable = asked
	for i := len(order) - 1; i >= 0; i-- {
		t.countRevocable(order[i])
	}
	t.root.revocable.entitlement = t.slack.Min(t.root.revocable.demand)
	for _, n := range order {
		for _, c := range n.children {
			c.revocable.entitlement = resource.Vector{}
		}
		for k := range kinds {
			t.share(n, k, n.revocable.entitlement[k], toRevocableDemand)
		}
	}
}

var toRevocableDemand = filling{
	func(c *node) bool { return c.pool.Share > 0 },
	func(c *node) *resource.Vector { return &c.revocable.entitlement },
	func(c *node, k resource.Kind) int64 { return c.revocable.demand[k] },
}

// countRevocable sets n's revocable demand; those of its children are set.
func (t *Tree) countRevocable(n *node) {
	demand := n.asked.Revocable
	if len(n.children) > 0 || n == t.root {
		demand = resource.Vector{}
		for _, c := range n.children {
			demand = demand.Add(c.revocable.demand)
		}
	}
	for k := range demand {
		most := t.slack[k]
		switch {
		case n != t.root && n.pool.Share == 0:
			most = 0
		case n.pool.RevocablePercent > 0:
			most = percentOf(most, n.pool.RevocablePercent)
		}
		demand[k] = min(demand[k], most)
	}
	n.revocable.demand = demand
}

// percentOf is that part of the whole, rounded down. It does not overflow.
func percentOf(whole int64, percent uint8) int64 {
	hi, lo := bits.Mul64(uint64(whole), uint64(percent))
	q, _ := bits.Div64(hi, lo, 100) // hi < 100, as percent <= 100 and whole < 2^63
	return int64(q)
}

// Slack is what the last Entitle found that ordinary work neither uses nor may start using.
func (t *Tree) Slack() resource.Vector { return t.slack }
