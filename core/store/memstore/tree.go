package memstore

import (
	"bytes"
	"hash/maphash"

	"github.com/paceline-sched/paceline/core/store"
)

// tree is a treap whose nodes never change once they are linked (Seidel and Aragon, "Randomized search trees", 1996): a change
// copies the path to it, so a snapshot is a copy of the root. A node's rank is a hash of its key. Its shape alone, never its
// order, differs between processes.
type tree struct{ root *node }

type node struct {
	left, right *node
	key, value  []byte
	rank        uint64
}

var rankSeed = maphash.MakeSeed()

func (t tree) apply(g store.Group) tree {
	for _, op := range g.Ops {
		if op.Value == nil {
			t = t.remove(op.Key)
		} else {
			t = t.put(op.Key, op.Value)
		}
	}
	return t
}

// put and remove copy what they keep.
func (t tree) put(key, value []byte) tree {
	n := &node{key: bytes.Clone(key), value: append([]byte{}, value...), rank: maphash.Bytes(rankSeed, key)}
	less, more := t.remove(key).root.split(key)
	return tree{join(join(less, n), more)}
}

func (t tree) remove(key []byte) tree {
	if _, ok := t.get(key); !ok {
		return t
	}
	return tree{t.root.remove(key)}
}

func (n *node) remove(key []byte) *node {
	switch c := bytes.Compare(key, n.key); {
	case c == 0:
		return join(n.left, n.right)
	case c < 0:
		return &node{n.left.remove(key), n.right, n.key, n.value, n.rank}
	default:
		return &node{n.left, n.right.remove(key), n.key, n.value, n.rank}
	}
}

// split parts the keys under key from the others.
func (n *node) split(key []byte) (less, more *node) {
	if n == nil {
		return nil, nil
	}
	if bytes.Compare(n.key, key) < 0 {
		a, b := n.right.split(key)
		return &node{n.left, a, n.key, n.value, n.rank}, b
	}
	a, b := n.left.split(key)
	return a, &node{b, n.right, n.key, n.value, n.rank}
}

// join is the inverse of split: all keys of a are under those of b.
func join(a, b *node) *node {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.rank > b.rank:
		return &node{a.left, join(a.right, b), a.key, a.value, a.rank}
	default:
		return &node{join(a, b.left), b.right, b.key, b.value, b.rank}
	}
}

func (t tree) get(key []byte) ([]byte, bool) {
	for n := t.root; n != nil; {
		switch c := bytes.Compare(key, n.key); {
		case c == 0:
			return n.value, true
		case c < 0:
			n = n.left
		default:
			n = n.right
		}
	}
	return nil, false
}

// ascend visits the keys from start on in order while visit says so.
func (t tree) ascend(start []byte, visit func(key, value []byte) bool) { t.root.ascend(start, visit) }

func (n *node) ascend(start []byte, visit func(key, value []byte) bool) bool {
	if n == nil {
		return true
	}
	if bytes.Compare(n.key, start) >= 0 {
		if !n.left.ascend(start, visit) || !visit(n.key, n.value) {
			return false
		}
	}
	return n.right.ascend(start, visit)
}
