package scheduler

import (
	"cmp"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

type (
	// PoolsExplanation is why tasks of some pools wait. Every task that waits has one reason, the first that holds it up in the order of
	// precedence; the counts are those of Explain, summed over all jobs.
	PoolsExplanation struct {
		Tasks   int64        // PENDING, ADMITTED or BACKING_OFF
		Jobs    int          // that they are of
		Reasons []waitReason // by precedence
		Rows    []waitRow    // most tasks first, at most as many as were asked for
		// MoreRows and MoreTasks are what was left out of Rows.
		MoreRows  int
		MoreTasks int64
		Heads     []waitHead // of the queues with most tasks, at most MaxWaitHeads
		MoreHeads int
	}

	// waitReason sums up one reason.
	waitReason struct {
		Kind    PendingKind
		Tasks   int64
		Jobs    int // a job counts for each of its reasons
		Classes int // rows
		Since   int64
	}

	// waitRow is the tasks of one class in one pool that wait for one reason.
	waitRow struct {
		Kind  PendingKind
		Pool  string
		Class waitClass
		Tasks int64
		Jobs  int
		// Example is the job that has waited longest, since Since, without getting a host.
		Example workload.JobID
		Name    string
		Since   int64
	}

	// waitClass is what tasks that count together ask for.
	waitClass struct {
		Needs                             resource.Vector // of one task
		Restrictions                      []string        // as remedies name them
		Gang, GangMin                     uint32          // 0: each by itself
		Revocable, NonPreemptible, Direct bool
		// Mixed says that this is many classes: there are more than the cell tells apart. Nothing else is set then.
		Mixed bool
	}

	// waitHead is the job that goes first in a queue.
	waitHead struct {
		Pool      string
		Revocable bool
		Job       workload.JobID
		Name      string
		Queued    int // jobs in the queue
		Reason    PendingReason
		Since     int64
	}

	// WaitingTasks counts the tasks of a top pool, and all below it, by reason.
	WaitingTasks struct {
		Pool  string
		Tasks [numPendingKinds]int64 // by PendingKind
	}
)

// queueReasons is why the jobs of one queue wait.
type queueReasons struct {
	state   *State
	survey  *admission.Survey // nil: nothing stands in the queue
	visited map[*waitMember]PendingKind
}

// reasonsOf looks at a queue: it costs as much as one look for work to admit. The census must be up to date.
func (s *State) reasonsOf(q *poolQueue) *queueReasons {
	r := &queueReasons{state: s}
	room, ok := s.room(q)
	if !ok || q.queue.Len() == 0 {
		return r
	}
	r.survey, r.visited = q.queue.Survey(&room), map[*waitMember]PendingKind{}
	for i := range r.survey.Visited {
		v := &r.survey.Visited[i]
		if j := s.jobs[v.Job]; j != nil {
			kind := s.standingKind(j.spec, &v.Standing)
			for _, m := range j.waits {
				r.visited[m] = kind
			}
		}
	}
	return r
}

// groupReasons is why the jobs of one group wait, as far as it is the same for all.
type groupReasons [numWaitStates]PendingKind

func (r *queueReasons) of(g *waitGroup) (by groupReasons) {
	s, c := r.state, g.members[0].class
	ready := s.anyReady(c)
	for w := range by {
		state := waitState(w)
		switch {
		case !ready && state.needsCluster():
			by[w] = PendingNoShard
		case !state.inQueue():
			by[w] = state.kind()
		case g.tasks[w] == 0 || r.survey == nil || g.key.rest:
			by[w] = PendingQueue
		default:
			e := admission.Entry{
				Needs: c.class.Needs, Count: 1, NonPreemptible: g.key.pinned, Controller: g.key.directs, Owner: g.key.owner,
			}
			if state == waitsStarting {
				e.Needs = c.gang.starts
			}
			standing := r.survey.Rest(&e)
			by[w] = s.standingKind(c.job.spec, &standing)
		}
	}
	return by
}

// kindOf is the reason for which a member's tasks in one state wait.
func (r *queueReasons) kindOf(m *waitMember, w waitState, by *groupReasons) PendingKind {
	if w.inQueue() && by[w] != PendingNoShard {
		if kind, ok := r.visited[m]; ok {
			return kind
		}
	}
	return by[w]
}

// tallies counts a group's tasks and jobs by reason.
func (r *queueReasons) tallies(g *waitGroup, by *groupReasons, visited []*waitMember) (tasks [numPendingKinds]int64, jobs [numPendingKinds]int) {
	for w, kind := range by {
		tasks[kind] += g.tasks[w]
		jobs[kind] += g.jobs[w]
	}
	for _, m := range visited {
		for w := waitsOffered; w <= waitsStarting; w++ {
			if n := int64(m.tasks[w]); n > 0 {
				from, to := by[w], r.kindOf(m, w, by)
				tasks[from] -= n
				tasks[to] += n
				jobs[from]--
				jobs[to]++
			}
		}
	}
	for kind := range jobs {
		jobs[kind] = min(jobs[kind], len(g.members)) // several states of one job may come to the same
	}
	return tasks, jobs
}

// byGroup sorts the visited members out.
func (r *queueReasons) byGroup() map[*waitGroup][]*waitMember {
	groups := map[*waitGroup][]*waitMember{}
	for m := range r.visited {
		groups[m.group] = append(groups[m.group], m)
	}
	return groups
}

// oldest is the member that has waited longest for one reason, of those that are looked at.
func (r *queueReasons) oldest(g *waitGroup, by *groupReasons, kind PendingKind) *waitMember {
	var best *waitMember
	for n, m := range g.members[:min(len(g.members), maxSearched)] {
		if (best != nil && !g.members.Less(n, best.slot)) || !r.waitsFor(m, by, kind) {
			continue
		}
		if best = m; n == 0 {
			break
		}
	}
	return best
}

// waitsFor reports whether tasks of a member wait for a reason.
func (r *queueReasons) waitsFor(m *waitMember, by *groupReasons, kind PendingKind) bool {
	for w, tasks := range m.tasks {
		if tasks > 0 && r.kindOf(m, waitState(w), by) == kind {
			return true
		}
	}
	return false
}

// ExplainPools tells why tasks of leaf pools wait, with at most rows groups. It costs a look at each of their queues, as for admission, and at each
// of their classes; neither tasks nor jobs matter. With 1,000,000 tasks in 1,000 classes, of 1,000 or of 200,000 jobs, it takes 2 to 5 ms.
func (r Reader) ExplainPools(pools []workload.PoolID, rows int) PoolsExplanation {
	s := r.s
	s.countWaiting()
	var out PoolsExplanation
	var all []waitRow
	var queues []*poolQueue
	for _, id := range pools {
		for _, q := range s.queuesOf(id) {
			if len(q.waitList) > 0 {
				all = s.explainQueue(all, q, &out)
			}
			if q.queue.Len() > 0 {
				queues = append(queues, q)
			}
		}
	}
	out.Reasons = sumReasons(all)
	slices.SortFunc(all, func(a, b waitRow) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), a.Kind.rank()-b.Kind.rank(), strings.Compare(a.Pool, b.Pool),
			workload.ID(a.Example).Compare(workload.ID(b.Example)))
	})
	shown := min(len(all), rows, MaxWaitRows)
	for i := range all[shown:] {
		out.MoreTasks += all[shown+i].Tasks
	}
	out.Rows, out.MoreRows = all[:shown], len(all)-shown
	for i := range out.Rows {
		w := &out.Rows[i]
		j := s.jobs[w.Example]
		w.Name, w.Since = j.spec.Name, j.waitingSince()
		if !w.Class.Mixed {
			w.Class.Restrictions = restrictions(j.spec)
		}
	}
	s.heads(&out, queues)
	return out
}

// rowKey tells rows of one queue apart: owners count together.
type rowKey struct {
	waitSort
	kind PendingKind
}

// explainQueue appends the rows of a queue.
func (s *State) explainQueue(rows []waitRow, q *poolQueue, out *PoolsExplanation) []waitRow {
	reasons := s.reasonsOf(q)
	visited := reasons.byGroup()
	path := s.poolPath(q.pool)
	at := make(map[rowKey]int, len(q.waitList))
	out.Jobs += q.waitingJobs
	for _, g := range q.waitList {
		by := reasons.of(g)
		tasks, jobs := reasons.tallies(g, &by, visited[g])
		for k := range numPendingKinds {
			if jobs[k] == 0 {
				continue
			}
			key := rowKey{g.key.waitSort, k}
			n, known := at[key]
			if !known {
				n = len(rows)
				at[key] = n
				rows = append(rows, waitRow{Kind: k, Pool: path, Class: g.class()})
			}
			w := &rows[n]
			w.Tasks, w.Jobs = w.Tasks+tasks[k], w.Jobs+jobs[k]
			out.Tasks += tasks[k]
			m := reasons.oldest(g, &by, k)
			if m == nil { // none of those that have waited longest
				m = g.members[0]
			}
			if !known || m.before(w.Since, s.jobs[w.Example].Order) {
				w.Example, w.Since = m.class.job.ID, m.since
			}
		}
	}
	return rows
}

func (m *waitMember) before(since int64, order uint64) bool {
	return cmp.Or(cmp.Compare(m.since, since), cmp.Compare(m.class.job.Order, order)) < 0
}

// waitingSince is since when a job waits. A daemon without a host has waited since it lost its last one, if it ever had one.
func (j *job) waitingSince() int64 {
	since := j.waiting
	if since == 0 {
		since = j.Created
		if j.homeless() {
			for i := range j.tasks {
				since = max(since, j.tasks[i].since)
			}
		}
	}
	return since
}

// class is what a group's tasks ask for.
func (g *waitGroup) class() waitClass {
	if g.key.rest {
		return waitClass{Mixed: true}
	}
	c := g.members[0].class
	w := waitClass{Needs: c.class.Needs, Revocable: g.queue.revocable, NonPreemptible: g.key.pinned, Direct: g.key.directs}
	if c.gang != nil {
		w.Gang, w.GangMin = c.gang.Size, c.gang.Min
	}
	return w
}

func sumReasons(rows []waitRow) (list []waitReason) {
	var by [numPendingKinds]waitReason
	for i := range rows {
		w, r := &rows[i], &by[rows[i].Kind]
		r.Kind, r.Tasks, r.Jobs, r.Classes = w.Kind, r.Tasks+w.Tasks, r.Jobs+w.Jobs, r.Classes+1
		if r.Since == 0 || w.Since < r.Since {
			r.Since = w.Since
		}
	}
	for _, r := range by {
		if r.Classes > 0 {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b waitReason) int { return a.Kind.rank() - b.Kind.rank() })
	return list
}

// heads tells who goes first in the longest queues.
func (s *State) heads(out *PoolsExplanation, queues []*poolQueue) {
	slices.SortFunc(queues, func(a, b *poolQueue) int {
		return cmp.Or(cmp.Compare(b.queue.Len(), a.queue.Len()), strings.Compare(s.poolPath(a.pool), s.poolPath(b.pool)))
	})
	for _, q := range queues[:min(len(queues), MaxWaitHeads)] {
		if j := s.headOf(q); j != nil && j.offered != nil {
			r := s.whyClass(j.offered)
			r.Instances = int(j.offered.withinWindow())
			out.Heads = append(out.Heads, waitHead{
				Pool: s.poolPath(q.pool), Revocable: q.revocable, Job: j.ID, Name: j.spec.Name, Queued: q.queue.Len(), Reason: r, Since: j.waitingSince(),
			})
		}
	}
	out.MoreHeads = len(queues) - len(out.Heads)
}

// headOf is the job that waits first for room in the pool, or else the first in order.
func (s *State) headOf(q *poolQueue) *job {
	if head, ok := q.queue.Head(); ok && s.jobs[head.Job] != nil {
		if _, queued := q.queue.Get(head.Job); queued {
			return s.jobs[head.Job]
		}
	}
	for e := range q.queue.All() {
		return s.jobs[e.Job]
	}
	return nil
}

// WaitingByReason counts what waits in the whole cell, by top pool and reason, for the first so many top pools by name and for all others together,
// without a path. It costs as much as ExplainPools of all pools.
func (r Reader) WaitingByReason(pools int) []WaitingTasks {
	s := r.s
	s.countWaiting()
	var list []WaitingTasks
	top := map[workload.PoolID]int{} // by pool, the place of its top pool in list
	for p := range s.pools.All() {
		n, below := top[p.Parent]
		if !below || p.Parent == respool.RootID {
			if n = len(list); n < pools {
				list = append(list, WaitingTasks{Pool: s.poolPath(p.ID)})
			} else if n = pools; len(list) == pools {
				list = append(list, WaitingTasks{})
			}
		}
		top[p.ID] = n
		for _, q := range s.queuesOf(p.ID) {
			if len(q.waitList) == 0 {
				continue
			}
			reasons := s.reasonsOf(q)
			visited := reasons.byGroup()
			for _, g := range q.waitList {
				by := reasons.of(g)
				tasks, _ := reasons.tallies(g, &by, visited[g])
				for k, n := range tasks {
					list[top[p.ID]].Tasks[k] += n
				}
			}
		}
	}
	return list
}
