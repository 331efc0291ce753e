package respool

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Tree is the pools of one cell with their ledgers and entitlements. Edits either hold whole or change nothing.
type Tree struct {
	names *resource.Names
	nodes map[workload.PoolID]*node // the root included
	root  *node

	// order is the tree in preorder, or nil after an edit. It and claims are reused by every Entitle.
	order  []*node
	claims []claim

	following    bool            // a policy's proposal
	slack        resource.Vector // what ordinary work neither uses nor may start using
	anyRevocable bool            // the last Entitle met revocable demand
}

type node struct {
	pool     Pool
	parent   *node
	children []*node // by name, then id
	jobs     int     // leaves only
	usage    resource.Vector
	pinned   resource.Vector // the non-preemptible part of usage
	// controllers is the part of usage that directs other work, owners each owner's part.
	controllers  resource.Vector
	owners       map[string]*resource.Vector
	ownersShared bool // with a copy of the tree: to be copied before a change
	revocable    revocable
	asked        Demand // leaves only

	// What the last Entitle found.
	percent     uint8           // the narrowest ControllerPercent here and above; 0: none
	nominal     resource.Vector // reservation before scaling
	effective   resource.Vector // reservation after scaling
	demand      resource.Vector // what counts of the demand
	entitlement resource.Vector
	foreseen    resource.Vector  // what controllers' parts are taken of; at least entitlement
	proposed    *resource.Vector // by a policy, never written to; nil: nothing
}

// NewTree builds the tree of the given records, in any order. The root must not be among them. names is read, never changed;
// kinds that join it later join the tree.
func NewTree(names *resource.Names, pools []Pool) (*Tree, error) {
	if len(pools) > MaxPools {
		return nil, fmt.Errorf("%d pools are too many: a cell has at most %d", len(pools), MaxPools)
	}
	t := &Tree{names: names, nodes: make(map[workload.PoolID]*node, len(pools)+1)}
	t.root = &node{pool: Pool{ID: RootID, Kind: Elastic, Share: DefaultShare}}
	t.nodes[RootID] = t.root
	for i := range pools {
		p := pools[i]
		p.Queue = p.Queue.WithDefaults()
		if err := p.check(names); err != nil {
			return nil, err
		}
		if other := t.nodes[p.ID]; other != nil {
			return nil, fmt.Errorf("pools %s and %s have the same id %s: draw another for one of them", other.pool.Name, p.Name, p.ID)
		}
		t.nodes[p.ID] = &node{pool: p}
	}
	for i := range pools {
		n := t.nodes[pools[i].ID]
		parent := t.nodes[n.pool.Parent]
		if parent == nil {
			return nil, fmt.Errorf("pool %s: its parent %s does not exist: add the parent first", n.pool.Name, n.pool.Parent)
		}
		n.parent = parent
		parent.children = append(parent.children, n)
	}
	for _, n := range t.nodes {
		slices.SortFunc(n.children, byName)
	}
	for i := range pools {
		if err := t.checkRooted(t.nodes[pools[i].ID]); err != nil {
			return nil, err
		}
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	return t, nil
}

// checkRooted reports a pool whose ancestors form a cycle or are too many. Afterwards t.check may recurse.
func (t *Tree) checkRooted(n *node) error {
	at := n
	for range MaxDepth {
		if at = at.parent; at == t.root {
			return nil
		}
	}
	for range len(t.nodes) {
		if at == n {
			return fmt.Errorf("pool %s is its own ancestor: give it a parent outside its subtree", n.pool.Name)
		}
		if at = at.parent; at == nil {
			return tooDeep(n.pool.Name)
		}
	}
	return fmt.Errorf("the ancestors of pool %s form a cycle: give one of them a parent nearer to the root", n.pool.Name)
}

func tooDeep(name string) error {
	return fmt.Errorf("pool %s is more than %d levels below the root: move it up", name, MaxDepth)
}

func byName(a, b *node) int {
	if c := strings.Compare(a.pool.Name, b.pool.Name); c != 0 {
		return c
	}
	return compareIDs(a, b)
}

func compareIDs(a, b *node) int { return bytes.Compare(a.pool.ID[:], b.pool.ID[:]) }

// Add puts a new pool below p.Parent, which must hold no jobs.
func (t *Tree) Add(p Pool) error {
	p.Queue = p.Queue.WithDefaults()
	if err := p.check(t.names); err != nil {
		return err
	}
	if other := t.nodes[p.ID]; other != nil {
		return fmt.Errorf("pool %s: its id %s belongs to %s already: draw another", p.Name, p.ID, other.path())
	}
	if len(t.nodes) > MaxPools {
		return fmt.Errorf("pool %s is one too many: a cell has at most %d; delete an idle one", p.Name, MaxPools)
	}
	parent, err := t.newParent(&p)
	if err != nil {
		return err
	}
	n := &node{pool: p}
	n.attach(parent)
	if err := t.check(); err != nil {
		n.detach()
		return err
	}
	t.nodes[p.ID] = n
	parent.asked = Demand{} // it is no leaf any more
	t.order = nil
	return nil
}

// newParent finds the pool below which p is to stand.
func (t *Tree) newParent(p *Pool) (*node, error) {
	parent := t.nodes[p.Parent]
	switch {
	case parent == nil:
		return nil, fmt.Errorf("pool %s: its parent %s does not exist: add the parent first", p.Name, p.Parent)
	case len(parent.children) == 0 && (parent.jobs > 0 || !parent.usage.IsZero() || !parent.revocable.usage.IsZero()):
		return nil, fmt.Errorf("pool %s cannot stand below %s, which holds %d jobs and uses %s: only pools without children hold work; let it end first or choose another parent",
			p.Name, parent.path(), parent.jobs, t.names.Format(parent.usage.Add(parent.revocable.usage)))
	case parent.depth() >= MaxDepth:
		return nil, tooDeep(parent.path() + "/" + p.Name)
	}
	return parent, nil
}

// Update replaces the record of the pool with p.ID. Another Parent moves the pool with its subtree and everything charged to
// it; running work is not touched.
func (t *Tree) Update(p Pool) error {
	p.Queue = p.Queue.WithDefaults()
	if err := p.check(t.names); err != nil {
		return err
	}
	n := t.nodes[p.ID]
	if n == nil {
		return fmt.Errorf("pool %s with id %s does not exist: add it instead", p.Name, p.ID)
	}
	parent, old := n.parent, n.pool
	if p.Parent != old.Parent {
		var err error
		if parent, err = t.newParent(&p); err != nil {
			return err
		}
		for at := parent; at != nil; at = at.parent {
			if at == n {
				return fmt.Errorf("pool %s cannot move below %s, its own descendant: choose a parent outside its subtree", n.path(), parent.path())
			}
		}
	}
	from := n.parent
	n.detach()
	n.pool = p
	n.attach(parent)
	if err := t.check(); err != nil {
		n.detach()
		n.pool = old
		n.attach(from)
		return err
	}
	parent.asked = Demand{}
	t.order = nil
	return nil
}

// Delete removes a pool that has neither children nor work.
func (t *Tree) Delete(id workload.PoolID) error {
	n := t.nodes[id]
	switch {
	case n == nil:
		return fmt.Errorf("pool %s does not exist", id)
	case n == t.root:
		return fmt.Errorf("the root cannot be deleted: delete the pools below it")
	case len(n.children) > 0:
		return fmt.Errorf("pool %s has %d children, the first is %s: delete or move them first", n.path(), len(n.children), n.children[0].path())
	case n.jobs > 0:
		return fmt.Errorf("pool %s holds %d jobs: stop them or let them end first", n.path(), n.jobs)
	case !n.usage.IsZero() || !n.revocable.usage.IsZero():
		return fmt.Errorf("pool %s still uses %s: wait until its last run has ended", n.path(), t.names.Format(n.usage.Add(n.revocable.usage)))
	}
	n.detach()
	delete(t.nodes, id)
	t.order = nil
	return nil
}

// attach links n below parent and adds what it uses to all above.
func (n *node) attach(parent *node) {
	n.parent = parent
	i, _ := slices.BinarySearchFunc(parent.children, n, byName)
	parent.children = slices.Insert(parent.children, i, n)
	n.postAbove(1)
}

// detach undoes attach.
func (n *node) detach() {
	n.postAbove(-1)
	i := slices.Index(n.parent.children, n)
	n.parent.children = slices.Delete(n.parent.children, i, i+1)
	n.parent = nil
}

// postAbove adds what n uses to all above it, or takes it away.
func (n *node) postAbove(sign int64) {
	for at := n.parent; at != nil; at = at.parent {
		add(&at.usage, &n.usage, sign)
		add(&at.pinned, &n.pinned, sign)
		add(&at.controllers, &n.controllers, sign)
		add(&at.revocable.usage, &n.revocable.usage, sign)
		for owner, v := range n.owners {
			at.postOwner(owner, v, sign)
		}
	}
}

// check walks the whole tree: edits are rare, and what one of them breaks may stand far from it.
func (t *Tree) check() error {
	open := resource.Vector{}
	for k := range open {
		open[k] = Unlimited
	}
	return t.checkChildren(t.root, 0, open, open)
}

// checkChildren checks the children of n and all below. room is the most that n's reservation can be, limit its ceiling; both
// are Unlimited where only the capacity of the day decides.
func (t *Tree) checkChildren(n *node, depth int, room, limit resource.Vector) error {
	var sum resource.Vector
	var rest *node
	for i, c := range n.children {
		switch {
		case depth == MaxDepth:
			return tooDeep(c.path())
		case i > 0 && n.children[i-1].pool.Name == c.pool.Name:
			return fmt.Errorf("pool %s exists twice: a name must be unique below its parent; choose another", c.path())
		case c.pool.ReserveRest && rest != nil:
			return fmt.Errorf("pools %s and %s both reserve the rest of %s: give one of them a reservation", rest.path(), c.path(), n.path())
		case c.pool.ReserveRest:
			rest = c
		}
		sum = sum.Add(c.pool.Reservation)
	}
	for k := range resource.Kind(t.names.Len()) {
		if sum[k] > room[k] {
			return fmt.Errorf("pool %s: its children reserve %s=%d together, over the %d that it can guarantee itself: raise its reservation or lower a child's by %d",
				n.path(), t.names.Name(k), sum[k], room[k], sum[k]-room[k])
		}
	}
	for _, c := range n.children {
		below, err := t.checkLimit(c, limit)
		if err != nil {
			return err
		}
		if len(c.children) == 0 {
			continue
		}
		within := c.pool.Reservation
		if c == rest {
			within = remaining(room, sum).Min(below)
		}
		if err := t.checkChildren(c, depth+1, within, below); err != nil {
			return err
		}
	}
	return nil
}

// checkLimit compares c's limit with the ceiling above it and returns the one that holds below. That c's reservation is under
// it follows: the sum over c's siblings fits the parent's, which is under the parent's ceiling.
func (t *Tree) checkLimit(c *node, above resource.Vector) (resource.Vector, error) {
	limit := above
	for k := range resource.Kind(t.names.Len()) {
		limit[k] = min(above[k], c.pool.Limit.Of(k))
		if c.pool.Limit.set[k] && c.pool.Limit.quantity[k] > above[k] {
			return limit, fmt.Errorf("pool %s: its limit of %s=%d is over the %d that holds above it: lower it or raise the limit of its parent",
				c.path(), t.names.Name(k), c.pool.Limit.quantity[k], above[k])
		}
	}
	return limit, nil
}

// remaining is what sum leaves of room; what was Unlimited stays so.
func remaining(room, sum resource.Vector) resource.Vector {
	for k := range room {
		if room[k] != Unlimited {
			room[k] -= sum[k]
		}
	}
	return room
}

// Len returns the number of pools, the root not counted.
func (t *Tree) Len() int { return len(t.nodes) - 1 }

// Pool returns the record of one pool.
func (t *Tree) Pool(id workload.PoolID) (Pool, bool) {
	n := t.nodes[id]
	if n == nil || n == t.root {
		return Pool{}, false
	}
	return n.pool, true
}

// All visits every pool but the root: parents before children, siblings by name.
func (t *Tree) All() iter.Seq[Pool] {
	return func(yield func(Pool) bool) {
		for _, n := range t.preorder()[1:] {
			if !yield(n.pool) {
				return
			}
		}
	}
}

// IDs is All for who wants no more of the pools: a pool is large to copy.
func (t *Tree) IDs() iter.Seq[workload.PoolID] {
	return func(yield func(workload.PoolID) bool) {
		for _, n := range t.preorder()[1:] {
			if !yield(n.pool.ID) {
				return
			}
		}
	}
}

// preorder returns the root and everything below it, parents before children, siblings by name.
func (t *Tree) preorder() []*node {
	if t.order == nil {
		t.order = appendSubtree(make([]*node, 0, len(t.nodes)), t.root)
	}
	return t.order
}

func appendSubtree(order []*node, n *node) []*node {
	order = append(order, n)
	for _, c := range n.children {
		order = appendSubtree(order, c)
	}
	return order
}

// IsLeaf reports whether the pool exists and may hold jobs.
func (t *Tree) IsLeaf(id workload.PoolID) bool {
	n := t.nodes[id]
	return n != nil && n != t.root && len(n.children) == 0
}

// Within reports whether a pool is root or stands below it.
func (t *Tree) Within(id, root workload.PoolID) bool {
	for n := t.nodes[id]; n != nil; n = n.parent {
		if n.pool.ID == root {
			return true
		}
	}
	return false
}

// Parent returns the pool above one; false for the root and for an unknown one.
func (t *Tree) Parent(id workload.PoolID) (workload.PoolID, bool) {
	n := t.nodes[id]
	if n == nil || n.parent == nil {
		return workload.PoolID{}, false
	}
	return n.parent.pool.ID, true
}

// Lookup returns the pool at a path such as "/prod/web"; the leading slash may be missing.
func (t *Tree) Lookup(path string) (workload.PoolID, bool) {
	at := t.root
	rest := strings.TrimPrefix(path, "/")
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		i, ok := slices.BinarySearchFunc(at.children, name, func(c *node, name string) int { return strings.Compare(c.pool.Name, name) })
		if !ok {
			return workload.PoolID{}, false
		}
		at = at.children[i]
	}
	return at.pool.ID, true
}

// Path returns where a pool stands, "/" for the root and "" for one that does not exist.
func (t *Tree) Path(id workload.PoolID) string {
	n := t.nodes[id]
	if n == nil {
		return ""
	}
	return n.path()
}

// PlacementPolicy is the policy of a pool, or of the nearest one above it that has one; "": none has.
func (t *Tree) PlacementPolicy(id workload.PoolID) string {
	for n := t.nodes[id]; n != nil; n = n.parent {
		if n.pool.PlacementPolicy != "" {
			return n.pool.PlacementPolicy
		}
	}
	return ""
}

func (n *node) path() string {
	if n.parent == nil {
		return "/"
	}
	var names [MaxDepth + 1]string
	i := len(names)
	for at := n; at.parent != nil && i > 0; at = at.parent {
		i--
		names[i] = at.pool.Name
	}
	return "/" + strings.Join(names[i:], "/")
}

func (n *node) depth() int {
	depth := 0
	for at := n.parent; at != nil; at = at.parent {
		depth++
	}
	return depth
}
