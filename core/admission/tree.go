package admission

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// item is one job's entry. It stands in the view of the queue's order and, where back-fill has an order of its own, in a second one.
type item struct {
	entry Entry
	owner *owner
	needs mask // what the entry needs
	least least
	nodes [2]*node

	// What the present walk knows.
	walk    uint64
	granted int
	grant   int // index of its grant
}

// node is an item's place in a treap: a search tree by the order of entries that is a heap by a hash, and thus balanced in expectation
// whatever order jobs come in. No randomness: the same jobs make the same tree.
type node struct {
	*item
	rank        rank
	lane        *lane // of a view by owners; nil elsewhere
	heap        uint64
	left, right *node
	size        int
	common      mask   // what every entry of the subtree needs
	owners      uint64 // the bits of those who have entries in the subtree
	oldest      int64  // the earliest Since in the subtree of those who are still patient
	below       *least // of the subtree; nil where nothing is filled back from this tree
}

// least bounds entries from below: none needs less of a kind for its unit, none takes less time. Nobody needs to be all of
// that at once.
type least struct {
	unit    resource.Vector
	runTime time.Duration
}

// atLeast does so for one entry. One without an estimate may take for ever.
func (e *Entry) atLeast() least {
	l := least{unit: e.Needs.Scale(int64(e.unit())), runTime: e.RunTime}
	if l.runTime == 0 {
		l.runTime = math.MaxInt64
	}
	return l
}

func (l *least) meet(o *least) {
	for k, q := range &o.unit {
		l.unit[k] = min(l.unit[k], q)
	}
	l.runTime = min(l.runTime, o.runTime)
}

// heapOrder spreads job ids evenly (the finaliser of splitmix64).
func heapOrder(job workload.JobID) uint64 {
	return mix(binary.BigEndian.Uint64(job[:8]) ^ binary.BigEndian.Uint64(job[8:]))
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// before orders the entries of one tree. Submission and then job ids settle what ranks leave open.
func (n *node) before(o *node) bool {
	switch {
	case n.rank != o.rank:
		return n.rank.before(&o.rank)
	case n.entry.Sequence != o.entry.Sequence:
		return n.entry.Sequence < o.entry.Sequence
	}
	return workload.ID(n.entry.Job).Compare(workload.ID(o.entry.Job)) < 0
}

func (n *node) update() {
	n.size, n.common, n.owners, n.oldest = 1, n.needs, 1<<n.owner.bit, math.MaxInt64
	if n.rank.ages() {
		n.oldest = n.entry.Since
	}
	if n.below != nil {
		*n.below = n.least
	}
	for _, c := range [...]*node{n.left, n.right} {
		if c == nil {
			continue
		}
		n.size += c.size
		n.common &= c.common
		n.owners |= c.owners
		n.oldest = min(n.oldest, c.oldest)
		if n.below != nil {
			n.below.meet(c.below)
		}
	}
}

func insert(root, n *node) *node {
	switch {
	case root == nil || n.heap > root.heap:
		n.left, n.right = split(root, n)
		root = n
	case n.before(root):
		root.left = insert(root.left, n)
	default:
		root.right = insert(root.right, n)
	}
	root.update()
	return root
}

// split parts a tree into what goes before n and the rest.
func split(root, n *node) (before, after *node) {
	if root == nil {
		return nil, nil
	}
	if root.before(n) {
		root.right, after = split(root.right, n)
		before = root
	} else {
		before, root.left = split(root.left, n)
		after = root
	}
	root.update()
	return before, after
}

func remove(root, n *node) *node {
	switch {
	case root == n:
		return join(n.left, n.right)
	case n.before(root):
		root.left = remove(root.left, n)
	default:
		root.right = remove(root.right, n)
	}
	root.update()
	return root
}

// join makes one tree of two of which the first goes before the second.
func join(before, after *node) *node {
	switch {
	case before == nil:
		return after
	case after == nil:
		return before
	case before.heap > after.heap:
		before.right = join(before.right, after)
		before.update()
		return before
	}
	after.left = join(before, after.left)
	after.update()
	return after
}

// refresh brings the sums on the way down to n up to date after its entry changed without moving.
func refresh(root, n *node) {
	if root != n {
		if n.before(root) {
			refresh(root.left, n)
		} else {
			refresh(root.right, n)
		}
	}
	root.update()
}

func rankOf(root, n *node) int {
	ahead := 0
	for root != n {
		if n.before(root) {
			root = root.left
			continue
		}
		ahead += 1 + sizeOf(root.left)
		root = root.right
	}
	return ahead + sizeOf(n.left)
}

func sizeOf(n *node) int {
	if n == nil {
		return 0
	}
	return n.size
}

func each(n *node, yield func(Entry) bool) bool {
	return n == nil || each(n.left, yield) && yield(n.entry) && each(n.right, yield)
}

// oldest returns a node of the earliest Since among those who are still patient.
func oldest(n *node) *node {
	for n != nil && n.oldest != math.MaxInt64 {
		switch {
		case n.left != nil && n.left.oldest == n.oldest:
			n = n.left
		case n.right != nil && n.right.oldest == n.oldest:
			n = n.right
		default:
			return n
		}
	}
	return nil
}
