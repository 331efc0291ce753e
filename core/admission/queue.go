// Package admission owns the queue of one pool: in which order its jobs wait, and which of them may start tasks now.
//
// Jobs go by priority, then first in, first out. Admit compares them in that order with the room that the pool's entitlement and
// reservation leave. It never decides how much room there is (core/respool), where a task runs (core/placement), or who must
// make room (core/preemption), and it changes no queue: the caller records what it granted and sets the entries anew.
//
// # A job that does not fit
//
// Tasks start one by one, a gang's least number at once. An entry that cannot start its next unit (one task, or the gang) waits
// for the kinds of resource in which it is short. All that is free of those is kept for it, and of the other kinds that it needs
// as much as the unit takes. Whoever comes later and needs a kind that somebody waits for is passed over; nothing is kept for
// it, as it is not the first in line. So at most one unit per kind is kept: the first in line takes whatever becomes free and
// cannot starve, and a job that needs no GPU passes any number of jobs that wait for one.
//
// A unit that would not fit even if all preemptible work of the pool ended is out of reach. It is passed over and keeps nothing,
// or the pool would drain for work that cannot start.
//
// Non-preemptible entries need room both in the reservation and in the entitlement. One that is short in the reservation
// keeps nothing of the entitlement: what frees the one frees the other.
//
// # Bounds beside the pool's
//
// Entries may share a ceiling of their own within the pool: those of one owner, and those that direct other work. One that is short in
// such a bound waits within it by the same rule: what is free of the bound is kept for it, and later entries under the same bound that
// need that kind are passed over. It keeps nothing of the pool, so nobody else waits for it.
//
// The package is pure. A Queue has one owner and is not safe for concurrent use.
package admission

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// MaxEntries bounds the jobs that wait in one queue.
const MaxEntries = 1 << 20

// Entry is one job with tasks that wait.
type Entry struct {
	Job            workload.JobID
	Priority       int32           // higher goes first
	Sequence       uint64          // order of submission, lower goes first
	Needs          resource.Vector // of one task
	Count          int             // tasks that want to start now, inside the job's max_running; at least 1
	Gang           int             // the fewest that may start together, at most Count; 0 and 1: each by itself
	NonPreemptible bool
	Controller     bool   // directs other work: Room.Controllers bounds such entries together
	Owner          string // whose it is: Room.Owner bounds an owner's entries together
}

// unit is the number of tasks that the entry must start together.
func (e *Entry) unit() int { return max(1, e.Gang) }

// before orders entries. Job ids settle what equal sequences leave open.
func (e *Entry) before(o *Entry) bool {
	switch {
	case e.Priority != o.Priority:
		return e.Priority > o.Priority
	case e.Sequence != o.Sequence:
		return e.Sequence < o.Sequence
	}
	return workload.ID(e.Job).Compare(workload.ID(o.Job)) < 0
}

// Queue is the waiting jobs of one pool. The zero value is empty and ready for use.
type Queue struct {
	root   *node
	byJob  map[workload.JobID]*node
	owners ownerSet
	walks  uint64 // so far, to tell what an owner knows of an earlier one
}

// Set puts an entry into the queue or replaces the one of the same job. It costs O(log n).
func (q *Queue) Set(e Entry) error {
	old := q.byJob[e.Job]
	switch {
	case e.Needs.HasNegative():
		return fmt.Errorf("job %s: a task's needs must not be negative: %v", e.Job, e.Needs)
	case e.Count < 1 || e.Count > workload.MaxInstances:
		return fmt.Errorf("job %s: %d waiting tasks must be between 1 and %d; remove a job that waits no more", e.Job, e.Count, workload.MaxInstances)
	case e.Gang < 0 || e.Gang > e.Count:
		return fmt.Errorf("job %s: a gang of %d must be between 0 and the %d tasks that wait", e.Job, e.Gang, e.Count)
	case old == nil && len(q.byJob) == MaxEntries:
		return fmt.Errorf("job %s is one too many: a pool's queue holds at most %d; let others end first or use another pool", e.Job, MaxEntries)
	}
	if old == nil {
		n := &node{entry: e, heap: heapOrder(e.Job), owner: q.owners.enter(e.Owner)}
		if q.byJob == nil {
			q.byJob = make(map[workload.JobID]*node)
		}
		q.byJob[e.Job] = n
		q.root = insert(q.root, n)
		return nil
	}
	if old.owner.name != e.Owner {
		q.owners.exit(old.owner)
		old.owner = q.owners.enter(e.Owner)
	}
	if old.entry.Priority == e.Priority && old.entry.Sequence == e.Sequence {
		old.entry = e
		refresh(q.root, old)
		return nil
	}
	q.root = remove(q.root, old)
	old.entry = e
	q.root = insert(q.root, old)
	return nil
}

// Remove takes a job out of the queue and reports whether it was there. It costs O(log n).
func (q *Queue) Remove(job workload.JobID) bool {
	n := q.byJob[job]
	if n == nil {
		return false
	}
	q.root = remove(q.root, n)
	q.owners.exit(n.owner)
	delete(q.byJob, job)
	return true
}

// Len returns the number of jobs that wait.
func (q *Queue) Len() int { return len(q.byJob) }

// Get returns a job's entry.
func (q *Queue) Get(job workload.JobID) (Entry, bool) {
	n := q.byJob[job]
	if n == nil {
		return Entry{}, false
	}
	return n.entry, true
}

// Ahead returns how many jobs wait before the given one. It costs O(log n).
func (q *Queue) Ahead(job workload.JobID) (int, bool) {
	n := q.byJob[job]
	if n == nil {
		return 0, false
	}
	return rank(q.root, n), true
}

// All visits the entries in order. The queue must not change meanwhile.
func (q *Queue) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) { each(q.root, yield) }
}

// node is one entry in a treap: a search tree by the order of entries that is a heap by a hash, and thus balanced in
// expectation whatever order jobs come in. No randomness: the same jobs make the same tree.
type node struct {
	entry       Entry
	owner       *owner
	heap        uint64
	left, right *node
	size        int
	needs       mask   // what the entry needs
	common      mask   // what every entry of the subtree needs
	owners      uint64 // the bits of those who have entries in the subtree
}

// heapOrder spreads job ids evenly (the finaliser of splitmix64).
func heapOrder(job workload.JobID) uint64 {
	x := binary.BigEndian.Uint64(job[:8]) ^ binary.BigEndian.Uint64(job[8:])
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (n *node) update() {
	n.needs = needsOf(&n.entry)
	n.size, n.common, n.owners = 1, n.needs, 1<<n.owner.bit
	for _, c := range [...]*node{n.left, n.right} {
		if c != nil {
			n.size += c.size
			n.common &= c.common
			n.owners |= c.owners
		}
	}
}

func insert(root, n *node) *node {
	switch {
	case root == nil || n.heap > root.heap:
		n.left, n.right = split(root, &n.entry)
		root = n
	case n.entry.before(&root.entry):
		root.left = insert(root.left, n)
	default:
		root.right = insert(root.right, n)
	}
	root.update()
	return root
}

// split parts a tree into what goes before e and the rest.
func split(root *node, e *Entry) (before, after *node) {
	if root == nil {
		return nil, nil
	}
	if root.entry.before(e) {
		root.right, after = split(root.right, e)
		before = root
	} else {
		before, root.left = split(root.left, e)
		after = root
	}
	root.update()
	return before, after
}

func remove(root, n *node) *node {
	switch {
	case root == n:
		return join(n.left, n.right)
	case n.entry.before(&root.entry):
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
		if n.entry.before(&root.entry) {
			refresh(root.left, n)
		} else {
			refresh(root.right, n)
		}
	}
	root.update()
}

func rank(root, n *node) int {
	ahead := 0
	for root != n {
		if n.entry.before(&root.entry) {
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
