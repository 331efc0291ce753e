package respool

import (
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Try calls look while the tree is as it would be with another record of a pool that is the leaf or stands above it, and puts everything back
// afterwards. What look may ask for are the leaf's account, without the part of it that is about revocable work, and its owners' bounds; the
// demands are those that the last Entitle knew. An error says that the edit is not allowed. False without one says that look was not called,
// as the path alone does not tell: the edit would change what pools beside it are guaranteed, or the capacity is not the last Entitle's. Such an
// edit has to be tried on a Clone.
//
// An edit of one pool moves demands on the path from it to the root, and entitlements of those on the path and their siblings. So only these
// are worked out, by what Entitle works them out with: the cost is that of the siblings along the path, and of the check that every edit
// goes through. look must not change the tree.
func (t *Tree) Try(p Pool, leaf workload.PoolID, capacity resource.Vector, look func()) (called bool, err error) {
	n, at := t.nodes[p.ID], t.nodes[leaf]
	p.Queue = p.Queue.WithDefaults()
	if err := p.check(t.names); err != nil {
		return false, err
	}
	if n == nil || at == nil || p.Parent != n.pool.Parent || p.Name != n.pool.Name || capacity.Max(resource.Vector{}) != t.root.entitlement {
		return false, nil
	}
	var path []*node // from the root to the leaf
	for ; at != nil; at = at.parent {
		path = append(path, at)
	}
	slices.Reverse(path)
	if !slices.Contains(path, n) {
		return false, nil
	}
	old := n.pool
	n.pool = p
	defer func() { n.pool = old }()
	if err := t.check(); err != nil {
		return false, err
	}
	saved := save(path)
	defer saved.restore(path)
	if !t.reservePath(path, saved) {
		return false, nil
	}
	kinds := resource.Kind(t.names.Len())
	for i := len(path) - 1; i >= 0; i-- {
		for k := range kinds {
			path[i].countDemand(k, (*node).wanted)
		}
	}
	for _, n := range path {
		for k := range kinds {
			t.distribute(n, k)
		}
	}
	look()
	return true, nil
}

// figures are what Entitle finds for a pool, as far as Try changes it.
type figures struct{ nominal, effective, demand, entitlement resource.Vector }

// figuresOf are those of the root, then those of the children of each pool on a path.
type figuresOf []figures

func save(path []*node) figuresOf {
	saved := figuresOf{path[0].figures()}
	for _, n := range path {
		for _, c := range n.children {
			saved = append(saved, c.figures())
		}
	}
	return saved
}

func (s figuresOf) restore(path []*node) {
	path[0].set(&s[0])
	at := 1
	for _, n := range path {
		for _, c := range n.children {
			c.set(&s[at])
			at++
		}
	}
}

func (n *node) figures() figures { return figures{n.nominal, n.effective, n.demand, n.entitlement} }

func (n *node) set(f *figures) {
	n.nominal, n.effective, n.demand, n.entitlement = f.nominal, f.effective, f.demand, f.entitlement
}

// reservePath sets the reservations along a path. It returns false when those of a pool beside the path would differ.
func (t *Tree) reservePath(path []*node, was figuresOf) bool {
	at := 1
	for i, n := range path {
		for k := range resource.Kind(t.names.Len()) {
			t.reserve(n, k)
		}
		for _, c := range n.children {
			old := &was[at]
			at++
			if c != path[min(i+1, len(path)-1)] && (c.effective != old.effective || c.nominal != old.nominal) {
				return false
			}
		}
	}
	return true
}
