package respool

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
)

// Entitle computes every pool's effective reservation and entitlement from the capacity of the cell, the tree and the demand of
// the leaves. A negative capacity counts as none. Kinds are independent of one another. Per kind and node, top down:
//
//  1. An elastic pool gets min(demand, reservation); a static one gets its reservation and takes no further part.
//  2. The surplus goes to the pools that want more, in proportion to their shares, each up to its limit and demand
//     (weighted max-min: nobody's part can grow but at the cost of one that has less for its share).
//  3. What nobody demands goes to all in proportion to their shares, each up to its limit.
//
// A pool's demand is what it could be given: the sum over its children, clipped by its limit. A static pool's is its
// reservation whatever its work wants, and with a share of 0 it is at most the reservation; were more to count, the parent
// would draw capacity that nobody below it can take while others wait. Reservations scale down in proportion when they exceed
// their parent's effective one. Results are rounded by largest remainder, ties by pool id, so that they add up exactly and
// depend on nothing but the records. The cost is O(n log n) per kind in the worst case; nothing is allocated once the
// scratch has grown.
//
// A policy's proposal takes the place of the three steps, see Follow.
//
// What controllers may use is found by a computation of its own, see bound.go, and revocable work has its own ledger, see revocable.go.
//
// The algorithm is water-filling as in Bertsekas and Gallager, Data Networks, section 6.5, applied to each node of the tree.
func (t *Tree) Entitle(capacity resource.Vector) {
	order := t.preorder()
	kinds := resource.Kind(t.names.Len())
	whole := capacity.Max(resource.Vector{})
	t.root.nominal, t.root.effective, t.root.entitlement = whole, whole, whole
	for _, n := range order {
		n.inheritPercent()
		for k := range kinds {
			t.reserve(n, k)
		}
	}
	foreseen := t.entitleControllers(order)
	t.fillTree(order, (*node).wanted)
	for _, n := range order {
		if !foreseen {
			n.foreseen = n.entitlement
		}
		n.foreseen = n.foreseen.Max(n.entitlement)
	}
	t.entitleRevocable(order, whole)
}

// fillTree sets demands and entitlements, given what the leaves want.
func (t *Tree) fillTree(order []*node, wanted func(*node, resource.Kind) int64) {
	kinds := resource.Kind(t.names.Len())
	for _, n := range slices.Backward(order) {
		for k := range kinds {
			n.countDemand(k, wanted)
		}
	}
	for _, n := range order {
		for k := range kinds {
			t.distribute(n, k)
		}
	}
}

// reserve sets the reservations of n's children from n's.
func (t *Tree) reserve(n *node, k resource.Kind) {
	var rest *node
	total := int64(0)
	for _, c := range n.children {
		c.nominal[k] = c.pool.Reservation[k]
		total += c.nominal[k]
		if c.pool.ReserveRest {
			rest = c
		}
	}
	if rest != nil {
		rest.nominal[k] = min(max(0, n.nominal[k]-total), rest.pool.Limit.Of(k))
		total += rest.nominal[k]
	}
	if total <= n.effective[k] {
		for _, c := range n.children {
			c.effective[k] = c.nominal[k]
		}
		return
	}
	claims := t.claims[:0]
	for _, c := range n.children {
		c.effective[k] = 0
		if c.nominal[k] > 0 {
			claims = append(claims, claim{node: c, weight: c.nominal[k], want: c.nominal[k]})
		}
	}
	apportion(n.effective[k], total, claims)
	for i := range claims {
		claims[i].node.effective[k] = claims[i].grant
	}
	t.claims = claims
}

// countDemand sets n's demand; those of its children are set.
func (n *node) countDemand(k resource.Kind, leafWants func(*node, resource.Kind) int64) {
	wanted := int64(0)
	if len(n.children) == 0 {
		wanted = leafWants(n, k)
	}
	for _, c := range n.children {
		wanted = saturatingAdd(wanted, c.demand[k])
	}
	switch {
	case n.pool.Kind == Static:
		n.demand[k] = n.effective[k]
	case n.pool.Share == 0:
		n.demand[k] = min(wanted, n.effective[k])
	default:
		n.demand[k] = min(wanted, n.pool.Limit.Of(k))
	}
}

// wanted is what the ordinary work of a leaf uses and waits for, as far as it can ever be admitted.
func (n *node) wanted(k resource.Kind) int64 {
	return saturatingAdd(n.asked.Preemptible[k], min(n.asked.NonPreemptible[k], n.effective[k]))
}

// distribute splits n's entitlement among its children.
func (t *Tree) distribute(n *node, k resource.Kind) {
	if len(n.children) == 0 {
		return
	}
	left := n.entitlement[k]
	for _, c := range n.children {
		c.entitlement[k] = min(c.demand[k], c.effective[k])
		left -= c.entitlement[k]
	}
	if left < 0 {
		panic(fmt.Sprintf("respool: pool %s: its children's guaranteed %s exceeds its entitlement by %d", n.path(), t.names.Name(k), -left))
	}
	if !t.following || n.hasUnproposed() {
		left -= t.share(n, k, left, toDemand)
		t.share(n, k, left, toLimit)
	}
	if t.following {
		t.merge(n, k)
	}
}

// filling is a round of sharing: who takes part, what it raises, and up to where.
type filling struct {
	takesPart func(c *node) bool
	level     func(c *node) *resource.Vector
	ceiling   func(c *node, k resource.Kind) int64
}

var (
	toDemand = filling{(*node).borrows, (*node).entitled, func(c *node, k resource.Kind) int64 { return c.demand[k] }}
	toLimit  = filling{(*node).borrows, (*node).entitled, func(c *node, k resource.Kind) int64 { return c.pool.Limit.Of(k) }}
)

func (n *node) borrows() bool              { return n.pool.Kind != Static && n.pool.Share > 0 }
func (n *node) entitled() *resource.Vector { return &n.entitlement }

// share raises the levels of n's children by amount in proportion to their shares, each up to its ceiling, and returns how much found
// a taker.
func (t *Tree) share(n *node, k resource.Kind, amount int64, f filling) int64 {
	if amount == 0 {
		return 0
	}
	claims := t.claims[:0]
	for _, c := range n.children {
		if !f.takesPart(c) {
			continue
		}
		if want := f.ceiling(c, k) - f.level(c)[k]; want > 0 {
			claims = append(claims, claim{node: c, weight: c.pool.Share, want: min(want, amount)})
		}
	}
	t.claims = claims
	given := fill(amount, claims)
	for i := range claims {
		f.level(claims[i].node)[k] += claims[i].grant
	}
	return given
}

func saturatingAdd(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return Unlimited
}

// claim is one pool's part in a distribution. weight and want are positive.
type claim struct {
	node      *node
	weight    int64
	want      int64
	grant     int64  // the result
	remainder uint64 // what rounding down took from the grant, in parts of the total weight
}

// fillRounds bounds the linear passes of fill. Each raises the level and drops the claims that it satisfies; almost always a
// few suffice, and sorting settles the rest.
const fillRounds = 6

// fill grants amount by weighted max-min fairness and returns what was granted: amount, or the sum of all wants when that is
// less. The claims are re-ordered. No want is over amount.
func fill(amount int64, claims []claim) int64 {
	wanted, weight := int64(0), int64(0)
	for i := range claims {
		wanted = saturatingAdd(wanted, claims[i].want)
		weight += claims[i].weight
	}
	if wanted <= amount {
		for i := range claims {
			claims[i].grant = claims[i].want
		}
		return wanted
	}
	left, open := amount, claims
	for range fillRounds {
		before := len(open)
		left, weight, open = satisfy(left, weight, open)
		if len(open) == before {
			apportion(left, weight, open)
			return amount
		}
	}
	// Where the level stops in the order of want per weight, everybody before it is satisfied.
	slices.SortFunc(open, func(a, b claim) int { return compareProducts(a.want, b.weight, b.want, a.weight) })
	for len(open) > 0 && compareProducts(open[0].want, weight, left, open[0].weight) <= 0 {
		c := &open[0]
		c.grant = c.want
		left, weight, open = left-c.want, weight-c.weight, open[1:]
	}
	apportion(left, weight, open)
	return amount
}

// satisfy grants in full the claims that want no more than their proportion of amount. Those stay below the final level too:
// whoever takes less than its proportion raises the level for the others. It returns what is left, the weight of the claims
// still open, and these.
func satisfy(amount, weight int64, claims []claim) (int64, int64, []claim) {
	left, leftWeight, done := amount, weight, 0
	for i := range claims {
		c := &claims[i]
		if compareProducts(c.want, weight, amount, c.weight) > 0 {
			continue
		}
		c.grant = c.want
		left, leftWeight = left-c.want, leftWeight-c.weight
		claims[i], claims[done] = claims[done], claims[i]
		done++
	}
	return left, leftWeight, claims[done:]
}

// apportion grants amount in proportion to weight, rounded by largest remainder, ties by pool id. total is the sum of the
// weights. A claim's grant rounds up only if it was no integer, so it never passes an integer bound on its exact part.
func apportion(amount, total int64, claims []claim) {
	left := amount
	for i := range claims {
		c := &claims[i]
		hi, lo := bits.Mul64(uint64(c.weight), uint64(amount))
		quotient, remainder := bits.Div64(hi, lo, uint64(total)) // hi < total, as weight <= total and amount < 2^63
		c.grant, c.remainder = int64(quotient), remainder
		left -= c.grant
	}
	if left == 0 {
		return
	}
	slices.SortFunc(claims, func(a, b claim) int {
		if c := cmp.Compare(b.remainder, a.remainder); c != 0 {
			return c
		}
		return compareIDs(a.node, b.node)
	})
	for i := range left {
		claims[i].grant++
	}
}

// compareProducts compares a*b with c*d; no factor is negative.
func compareProducts(a, b, c, d int64) int {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	otherHi, otherLo := bits.Mul64(uint64(c), uint64(d))
	if hi != otherHi {
		return cmp.Compare(hi, otherHi)
	}
	return cmp.Compare(lo, otherLo)
}
