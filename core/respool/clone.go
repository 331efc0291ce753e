package respool

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/core/workload"
)

// Clone returns a copy that edits and recomputations may change for the sake of what they would give. It costs as much as a recomputation,
// and no edit of a cell is frequent enough for a way to undo edits to pay.
func (t *Tree) Clone() *Tree {
	c := &Tree{names: t.names, nodes: make(map[workload.PoolID]*node, len(t.nodes)), following: t.following, slack: t.slack, anyRevocable: t.anyRevocable}
	nodes := make([]node, len(t.nodes)) // in one piece: a thousand pools are two megabytes
	order := t.preorder()
	for i, n := range order {
		twin := &nodes[i]
		n.ownersShared = true // by both, until one of them changes it
		*twin = *n
		twin.children = make([]*node, 0, len(n.children))
		c.nodes[n.pool.ID] = twin
		if n.parent == nil {
			c.root = twin
			continue
		}
		twin.parent = c.nodes[n.parent.pool.ID]
		twin.parent.children = append(twin.parent.children, twin) // the preorder has siblings in their order
	}
	return c
}

// Apportion splits an amount in proportion to weights, rounded by largest remainder, ties to the first. Negative weights count as none;
// where nothing has a weight, nobody gets anything.
func Apportion(amount int64, weights []int64) []int64 {
	parts, remainders := make([]int64, len(weights)), make([]uint64, len(weights))
	total := int64(0)
	for _, w := range weights {
		total = saturatingAdd(total, max(w, 0))
	}
	if total == 0 || amount <= 0 {
		return parts
	}
	left, order := amount, make([]int, len(weights))
	for i, w := range weights {
		hi, lo := bits.Mul64(uint64(max(w, 0)), uint64(amount))
		quotient, remainder := bits.Div64(hi, lo, uint64(total))
		parts[i], remainders[i], order[i] = int64(quotient), remainder, i
		left -= parts[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainders[b], remainders[a]) })
	for i := 0; left > 0 && i < len(order); i++ {
		parts[order[i]]++
		left--
	}
	return parts
}
