package respool

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Quota is a policy of what pools are entitled to, in place of max-min. It may be slow and it may be wrong: whoever asks it does so off the loop,
// on a Snapshot, and takes nothing of the answer that Snapshot.Propose refuses.
type Quota interface {
	// Entitle returns one entitlement for each row of the snapshot, in its order. What it says of the root, the first, is not looked at.
	Entitle(s *Snapshot) ([]resource.Vector, error)
}

// Snapshot is a tree with its figures, as the last Entitle left them. It is immutable.
type Snapshot struct {
	Kinds []string // the names of the kinds that the cell knows, in order; all figures of others are zero
	Rows  []Row    // the root first, parents before their children, siblings by name
}

// Row is one pool of a Snapshot.
type Row struct {
	ID     workload.PoolID
	Parent int32 // a row; -1: this is the root
	Path   string
	// Reservation is what the pool is guaranteed today, of the root the whole capacity: all that there is to hand out.
	Reservation resource.Vector
	// Ceiling is the most that the pool may be entitled to: its limit, or its reservation where it never gets more, being static or without a share.
	// Unlimited: as much as its parent.
	Ceiling resource.Vector
	Share   int64
	Demand  resource.Vector // what its work uses and waits for together, as far as it could ever be given
	Usage   resource.Vector
}

// Proposal is what a policy entitles pools to. It has passed the checks of the Snapshot that it is about.
type Proposal map[workload.PoolID]resource.Vector

// Snapshot copies the figures of the last Entitle. It costs O(pools).
func (t *Tree) Snapshot() *Snapshot {
	order := t.preorder()
	s := &Snapshot{Rows: make([]Row, len(order))}
	for k := range resource.Kind(t.names.Len()) {
		s.Kinds = append(s.Kinds, t.names.Name(k))
	}
	at := make(map[*node]int32, len(order))
	for i, n := range order {
		at[n] = int32(i) //nolint:gosec // at most MaxPools
		parent, path := int32(-1), "/"
		if n.parent != nil {
			parent = at[n.parent]
			path = strings.TrimSuffix(s.Rows[parent].Path, "/") + "/" + n.pool.Name
		}
		s.Rows[i] = Row{ID: n.pool.ID, Parent: parent, Path: path, Reservation: n.effective, Share: n.pool.Share, Demand: n.demand, Usage: n.usage}
		for k := range s.Kinds {
			s.Rows[i].Ceiling[k] = n.ceiling(resource.Kind(k))
		}
	}
	return s
}

// ceiling is the most of a kind that a policy may entitle a pool to.
func (n *node) ceiling(k resource.Kind) int64 {
	if !n.borrows() {
		return n.effective[k]
	}
	return n.pool.Limit.Of(k)
}

// Guarantee is the least of a kind that the pool has to be entitled to: its reservation, up to its demand.
func (r *Row) Guarantee(k resource.Kind) int64 { return min(r.Reservation[k], r.Demand[k]) }

// Propose checks entitlements, one for each row, in every kind: no pool has less than its guarantee or more than its ceiling, and children have
// no more than their parent together. The error names the pool and what would be right.
func (s *Snapshot) Propose(entitlements []resource.Vector) (Proposal, error) {
	if len(entitlements) != len(s.Rows) {
		return nil, fmt.Errorf("it gave %d entitlements for %d pools: give each pool one, the root too", len(entitlements), len(s.Rows))
	}
	if len(s.Rows) == 0 {
		return Proposal{}, nil
	}
	left := make([]resource.Vector, len(s.Rows)) // by children
	left[0] = s.Rows[0].Reservation
	p := make(Proposal, len(s.Rows))
	for i := 1; i < len(s.Rows); i++ {
		r, given := &s.Rows[i], entitlements[i]
		for k := len(s.Kinds); k < len(given); k++ {
			given[k] = 0
		}
		for k, name := range s.Kinds {
			least := r.Guarantee(resource.Kind(k))
			switch above := &left[r.Parent]; {
			case given[k] < least:
				return nil, fmt.Errorf("it gave pool %s %s=%d: its reservation is %d and its demand %d, so at least the smaller is due", r.Path, name, given[k], r.Reservation[k], r.Demand[k])
			case given[k] > r.Ceiling[k]:
				return nil, fmt.Errorf("it gave pool %s %s=%d: at most %d are allowed", r.Path, name, given[k], r.Ceiling[k])
			case given[k] > above[k]:
				return nil, fmt.Errorf("it gave pool %s %s=%d: of what is its parent's, %s, %d are left", r.Path, name, given[k], s.Rows[r.Parent].Path, above[k])
			default:
				above[k] -= given[k]
			}
		}
		left[i] = given
		p[r.ID] = given
	}
	return p, nil
}

// Follow has Entitle go by a policy's proposal from its next call on, nil: by max-min. A proposal is about the tree of its Snapshot and is merged with the
// tree of the day, per kind, top down:
//
//  1. Every pool has its guarantee of the day: its reservation up to its demand.
//  2. Beyond that it gets what was proposed, at most its ceiling of the day. For a pool that the proposal does not know, max-min
//     among its siblings takes the place of what was proposed.
//  3. Where a parent has not enough for that, what its children get beyond their guarantees shrinks in proportion.
//  4. What then is left stays with the parent, and nobody's work may use it.
//
// So whatever a policy proposes, and whatever changed since, guarantees, ceilings and sums hold.
func (t *Tree) Follow(p Proposal) {
	t.following = p != nil
	for id, n := range t.nodes {
		n.proposed = nil
		if v, known := p[id]; known {
			n.proposed = &v
		}
	}
}

// Follows reports whether a pool is entitled by a policy's proposal.
func (t *Tree) Follows(id workload.PoolID) bool {
	n := t.nodes[id]
	return n != nil && n.proposed != nil
}

// hasUnproposed reports whether there is a child of n that no policy has seen.
func (n *node) hasUnproposed() bool {
	return slices.ContainsFunc(n.children, func(c *node) bool { return c.proposed == nil })
}

// merge replaces the entitlements of n's children by those of the proposal. Of a child that is not in it max-min has set the entitlement.
func (t *Tree) merge(n *node, k resource.Kind) {
	left := n.entitlement[k]
	for _, c := range n.children {
		left -= min(c.demand[k], c.effective[k])
	}
	claims := t.claims[:0]
	wanted := int64(0)
	for _, c := range n.children {
		floor := min(c.demand[k], c.effective[k])
		target := c.entitlement[k]
		if c.proposed != nil {
			target = c.proposed[k]
		}
		c.entitlement[k] = floor
		if want := min(max(target, 0), c.ceiling(k)) - floor; want > 0 {
			claims = append(claims, claim{node: c, weight: want, want: want})
			wanted = saturatingAdd(wanted, want)
		}
	}
	t.claims = claims
	switch {
	case wanted <= left:
		for i := range claims {
			claims[i].grant = claims[i].want
		}
	case left == 0:
		return
	default:
		apportion(left, weigh(wanted, claims), claims)
	}
	for i := range claims {
		claims[i].node.entitlement[k] += min(claims[i].grant, claims[i].want)
	}
}

// weigh returns the sum of the weights, which it scales down when that is more than an int64 holds.
func weigh(sum int64, claims []claim) int64 {
	if sum < Unlimited {
		return sum
	}
	sum = 0
	for i := range claims {
		claims[i].weight = max(claims[i].weight/(2*MaxPools), 1)
		sum += claims[i].weight
	}
	return sum
}
