package admission

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
)

// The express order. Its figures are round ones of those that were tried (1 to 60 minutes, a 32nd to a quarter): the time hardly matters, and
// a larger part makes short work wait still less and long work more.
const (
	// ExpressTime is the longest run time that counts as short.
	ExpressTime = 10 * time.Minute
	// ExpressParts says how much of the entitlement is kept free for short work: one part in so many.
	ExpressParts = 8
)

// rank is where an entry waits in an order, before submission decides.
type rank struct {
	priority int32
	band     band
	key      float64 // lower goes first
}

// band comes before the key.
type band uint8

const (
	overdue   band = iota // waited longer than the pool's patience; the key is since when
	estimated             // the key is the size or the time
	unknown               // nobody said how long it takes
	unsized               // the order does not ask
)

// ages reports whether the entry goes to the front once it has waited too long.
func (r *rank) ages() bool { return r.band == estimated || r.band == unknown }

func (r *rank) before(o *rank) bool {
	switch {
	case r.priority != o.priority:
		return r.priority > o.priority
	case r.band != o.band:
		return r.band < o.band
	}
	return r.key < o.key
}

// rankOf places an entry in an order.
func (e *Entry) rank(order respool.Order) rank {
	r := rank{priority: e.Priority, band: unsized}
	switch order {
	case respool.OrderPriorityFIFO, respool.OrderFairUser:
		return r
	case respool.OrderSmallestFirst, respool.OrderShortestFirst, respool.OrderExpress:
	}
	if e.RunTime == 0 {
		r.band = unknown
		return r
	}
	r.band, r.key = estimated, float64(e.RunTime)
	if order != respool.OrderShortestFirst {
		r.key *= float64(e.milliProcessors()) // the only rounding: equal sizes have equal keys, whatever they are made of
	}
	return r
}

// milliProcessors is what the entry's unit takes: GPUs if it needs any, or CPUs. Either counts alike.
func (e *Entry) milliProcessors() int64 {
	n := e.Needs[resource.GPU]
	if n == 0 {
		n = e.Needs[resource.CPU]
	}
	return n * int64(e.unit())
}

// express reports work that may use what the express order keeps free.
func (e *Entry) express() bool { return e.RunTime > 0 && e.RunTime <= ExpressTime }

// view is the entries of a queue in one order: one tree, or a tree for each priority and owner when owners take turns.
type view struct {
	order respool.Order
	slot  int  // of an item's nodes
	fills bool // entries are looked for that fit: nodes know bounds of their subtrees
	root  *node

	lanes  []*lane // in no order
	byLane map[laneKey]*lane
}

type laneKey struct {
	priority int32
	owner    *owner
}

// lane is the entries of one priority and owner, by submission.
type lane struct {
	laneKey
	root *node
	at   int // in view.lanes

	// What the present walk knows.
	usage float64
	last  *node // the last entry looked at; nil: none
}

func (v *view) fair() bool { return v.order == respool.OrderFairUser }

// tree is where the node belongs.
func (v *view) tree(n *node) **node {
	if !v.fair() {
		return &v.root
	}
	if n.lane == nil {
		key := laneKey{n.entry.Priority, n.owner}
		l := v.byLane[key]
		if l == nil {
			if v.byLane == nil {
				v.byLane = map[laneKey]*lane{}
			}
			l = &lane{laneKey: key, at: len(v.lanes)}
			v.byLane[key] = l
			v.lanes = append(v.lanes, l)
		}
		n.lane = l
	}
	return &n.lane.root
}

func (v *view) put(it *item) {
	n := &node{item: it, rank: it.entry.rank(v.order), heap: heapOrder(it.entry.Job)}
	if v.fills {
		n.below = &least{}
	}
	it.nodes[v.slot] = n
	tree := v.tree(n)
	*tree = insert(*tree, n)
}

func (v *view) remove(it *item) {
	n := it.nodes[v.slot]
	tree := v.tree(n)
	if *tree = remove(*tree, n); *tree == nil && n.lane != nil {
		last := v.lanes[len(v.lanes)-1]
		v.lanes[n.lane.at], last.at = last, n.lane.at
		v.lanes = v.lanes[:len(v.lanes)-1]
		delete(v.byLane, n.lane.laneKey)
	}
	it.nodes[v.slot] = nil
}

// staysPut reports whether the entry may be replaced by another without moving.
func (v *view) staysPut(it *item, by *Entry) bool {
	old := &it.entry
	if old.Sequence != by.Sequence || (v.fair() && old.Owner != by.Owner) {
		return false
	}
	r := by.rank(v.order)
	if n := it.nodes[v.slot]; n.rank.band == overdue {
		return r.priority == n.rank.priority && old.Since == by.Since
	}
	return r == it.nodes[v.slot].rank
}

func (v *view) refresh(it *item) { refresh(*v.tree(it.nodes[v.slot]), it.nodes[v.slot]) }

// age sends to the front who has waited longer than patience, each once. It returns when the next will have; math.MaxInt64: nobody will.
func (v *view) age(now int64, patience time.Duration) int64 {
	for {
		n := oldest(v.root)
		if n == nil {
			return math.MaxInt64
		}
		due := n.entry.Since + int64(patience)
		if due > now {
			return due
		}
		v.root = remove(v.root, n)
		n.rank.band, n.rank.key = overdue, float64(n.entry.Since)
		v.root = insert(v.root, n)
	}
}

// ahead is how many entries go before it.
func (v *view) ahead(it *item, usage *Usage, now int64) int {
	n := it.nodes[v.slot]
	ahead := rankOf(*v.tree(n), n)
	if n.lane == nil {
		return ahead
	}
	v.weigh(usage, now)
	for _, l := range v.lanes {
		if compareLanes(l, n.lane) < 0 {
			ahead += l.root.size
		}
	}
	return ahead
}

// each visits all entries in order, owners one after the other.
func (v *view) each(usage *Usage, now int64, yield func(Entry) bool) {
	if !v.fair() {
		each(v.root, yield)
		return
	}
	v.weigh(usage, now)
	for _, l := range slices.SortedFunc(slices.Values(v.lanes), compareLanes) {
		if !each(l.root, yield) {
			return
		}
	}
}

// weigh finds what every owner has used.
func (v *view) weigh(usage *Usage, now int64) {
	for _, l := range v.lanes {
		l.usage = usage.with(now, l.owner.name, resource.Vector{})
	}
}

func compareLanes(a, b *lane) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.usage, b.usage), cmp.Compare(a.owner.name, b.owner.name))
}
