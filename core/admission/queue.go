// Package admission owns the queue of one pool: in which order its jobs wait, and which of them may start tasks now.
//
// Jobs go by priority, then by the pool's order, then first in, first out. Admit compares them in that order with the room that the
// pool's entitlement and reservation leave. It never decides how much room there is (core/respool), where a task runs
// (core/placement), or who must make room (core/preemption), and it changes no entry: the caller records what it granted and sets the
// entries anew.
//
// # Orders
//
//   - priority-fifo: by submission.
//   - fair-user: the owner who used least goes first, by submission within an owner. Use is measured in dominant shares and decays
//     (Usage); what a walk gives counts at once, so owners take turns in it and are given the same as far as they want it.
//   - smallest-first: processors times run time, of one unit: the CPUs of a task or of a gang's least number, or its GPUs if it needs any.
//   - shortest-first: run time.
//   - express: as smallest-first, but longer work leaves one part in ExpressParts of the entitlement free, of every kind that it needs, for
//     work of ExpressTime and less. It assumes that many jobs are short, and that estimates tell the short from the long. Long work waits
//     a little longer for less room; short work finds some about to be free at any time. Measured in docs/sim-run.md.
//
// Where the order asks for run times, work without an estimate goes behind the rest, and whoever has waited longer than the pool's
// patience goes before all of younger age, so that nobody waits for ever behind a stream of smaller work. By submission nobody can be
// passed for ever, and whoever passes by turns has used more afterwards.
//
// # Back-fill
//
// With EASY back-fill (Lifka, 1995; Mu'alem and Feitelson, 2001) the first entry that does not fit is promised the time at which it will,
// by the expected ends of what runs (Ends). Others may go before it, in an order of their own if the pool has one for candidates, if
// they are gone by then, or need only what is free beside it from then on, in every kind of resource. So no candidate delays the first in
// line as long as run times are right. Entries of a better rank that come later may.
//
// What nobody said an end of counts as never ending. When the first in line cannot be promised a time for that reason, others pass it
// until it has waited for the pool's patience; then room is kept for it as without back-fill. So it is when the first promise that it was
// given was broken by that much.
//
// # Cost
//
// Admit looks at the entries that it lets go, one that does not fit for each kind, and the subtrees between that may hold a candidate:
// nodes know what all of their subtree needs, and the least that anything in it needs. At most MaxVisits entries and MaxCandidates
// subtrees are looked at. With 100,000 entries of 1,000 classes of which none can start, an Admit takes some 10 microseconds, and with
// owners who take turns less than one more for each owner that waits; a Set or Remove takes two to ten.
//
// # A job that does not fit
//
// Without back-fill, room is kept. Tasks start one by one, a gang's least number at once. An entry that cannot start its next unit (one task, or the gang) waits
// for the kinds of resource in which it is short. All that is free of those is kept for it, and of the other kinds that it needs
// as much as the unit takes. Whoever comes later and needs a kind that somebody waits for is passed over; nothing is kept for
// it, as it is not the first in line. So at most one unit per kind is kept: the first in line takes whatever becomes free and
// cannot starve, and a job that needs no GPU passes any number of jobs that wait for one.
//
// A unit that would not fit even if all preemptible work of the pool ended is out of reach. It is passed over and keeps nothing,
// or the pool would drain for work that cannot start.
//
// An entry for which others are made to give room (Entry.Kept) waits in that way with back-fill too: who made room must not be filled back into it.
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
	"fmt"
	"iter"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
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
	// RunTime is about how long one task runs; 0: nobody said.
	RunTime time.Duration
	// Since is since when it waits without getting anything, in the time of Room.Now.
	Since int64
	// Kept says that others are making room for it: what comes free is kept for it, and nobody is filled back before it.
	Kept bool
}

// unit is the number of tasks that the entry must start together.
func (e *Entry) unit() int { return max(1, e.Gang) }

// Queue is the waiting jobs of one pool. The zero value is empty and ready for use, by priority and submission and without back-fill.
type Queue struct {
	policy     respool.QueuePolicy
	main       view // in the queue's order
	candidates view // in that of candidates, if it is another
	byJob      map[workload.JobID]*item
	owners     ownerSet
	walks      uint64   // so far, to tell what an owner or an item knows of an earlier one
	lanes      laneHeap // of the last walk
	starting   []*item  // what it let go before anybody had to wait
	head       Head
	waits      []workload.JobID // of the last Admit
	now        int64            // of the last walk
	usage      *Usage
}

// SetPolicy changes how the entries wait. It puts all of them in order anew, at O(n log n), if it has to.
func (q *Queue) SetPolicy(p respool.QueuePolicy) {
	if p.Backfill == respool.BackfillNone {
		p.Candidates = p.Order
	}
	if p = p.WithDefaults(); p == q.policy {
		return
	}
	was := q.policy
	q.policy = p
	if p.Order == was.Order && p.Backfill == was.Backfill && p.Candidates == was.Candidates && p.Patience >= was.Patience {
		return
	}
	all := make([]*item, 0, len(q.byJob))
	for _, it := range q.byJob {
		it.nodes = [2]*node{}
		all = append(all, it)
	}
	fills := p.Backfill == respool.BackfillEASY
	q.main = view{order: p.Order, fills: fills && p.Candidates == p.Order}
	q.candidates = view{order: p.Candidates, fills: fills, slot: 1}
	for _, it := range all { // in any order: a treap's form depends on what is in it only
		for _, v := range q.views() {
			v.put(it)
		}
	}
}

// views are those that every entry stands in.
func (q *Queue) views() []*view {
	if q.policy.Candidates == q.policy.Order {
		return []*view{&q.main}
	}
	return []*view{&q.main, &q.candidates}
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
	case e.RunTime < 0:
		return fmt.Errorf("job %s: a run time of %v must not be negative", e.Job, e.RunTime)
	case old == nil && len(q.byJob) == MaxEntries:
		return fmt.Errorf("job %s is one too many: a pool's queue holds at most %d; let others end first or use another pool", e.Job, MaxEntries)
	}
	if old == nil {
		it := &item{entry: e, needs: needsOf(&e), least: e.atLeast(), owner: q.owners.enter(e.Owner)}
		if q.byJob == nil {
			q.byJob = make(map[workload.JobID]*item)
		}
		q.byJob[e.Job] = it
		for _, v := range q.views() {
			v.put(it)
		}
		return nil
	}
	q.replace(old, &e)
	return nil
}

func (q *Queue) replace(it *item, e *Entry) {
	var stays [2]bool
	for _, v := range q.views() {
		if stays[v.slot] = v.staysPut(it, e); !stays[v.slot] {
			v.remove(it)
		}
	}
	if it.owner.name != e.Owner {
		q.owners.exit(it.owner)
		it.owner = q.owners.enter(e.Owner)
	}
	it.entry, it.needs, it.least = *e, needsOf(e), e.atLeast()
	for _, v := range q.views() {
		if stays[v.slot] {
			v.refresh(it)
		} else {
			v.put(it)
		}
	}
}

// Remove takes a job out of the queue and reports whether it was there. It costs O(log n).
func (q *Queue) Remove(job workload.JobID) bool {
	it := q.byJob[job]
	if it == nil {
		return false
	}
	for _, v := range q.views() {
		v.remove(it)
	}
	q.owners.exit(it.owner)
	delete(q.byJob, job)
	return true
}

// Len returns the number of jobs that wait.
func (q *Queue) Len() int { return len(q.byJob) }

// Get returns a job's entry.
func (q *Queue) Get(job workload.JobID) (Entry, bool) {
	it := q.byJob[job]
	if it == nil {
		return Entry{}, false
	}
	return it.entry, true
}

// Ahead returns how many jobs wait before the given one. It costs O(log n), and O(owners that wait) more where owners take turns; then it
// counts all jobs of those who have used less.
func (q *Queue) Ahead(job workload.JobID) (int, bool) {
	it := q.byJob[job]
	if it == nil {
		return 0, false
	}
	return q.main.ahead(it, q.usage, q.now), true
}

// All visits the entries in order, and owners who take turns one after the other. The queue must not change meanwhile.
func (q *Queue) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) { q.main.each(q.usage, q.now, yield) }
}

// Waits lists whom the last Admit found first in line somewhere, in the pool or within a bound of their own, in order: at most MaxWaits.
// Work of lower priority may have to make room for them. The list holds until the next Admit.
func (q *Queue) Waits() []workload.JobID { return q.waits }

// Head returns the entry that the last Admit found first in line for room in the pool, and since when it waits; false: nobody is.
func (q *Queue) Head() (Head, bool) { return q.head, q.head != Head{} }
