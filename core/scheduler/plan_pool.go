package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// PoolEffect is what a plan would do to one pool.
type PoolEffect struct {
	ID            workload.PoolID // zero: it would be created
	Path          string          // afterwards; of a deleted pool, its last
	OldPath       string          // empty: it would be created
	Changed       bool            // itself, not only what it is entitled to
	Deleted       bool
	Before, After resource.Vector // entitlements at the demand of the moment
	Usage         resource.Vector
	OverBefore    resource.Vector // usage above the entitlement
	OverAfter     resource.Vector
	Exposed       []ExposedJob // who would make room for OverAfter, in the order of eviction, at most MaxExposed
	ExposedJobs   int          // how many jobs there are of them
	ExposedRuns   int          // and how many of their runs would go
}

// ExposedJob is a job that would be among the first to make room.
type ExposedJob struct {
	ID        workload.JobID
	Name      string
	Owner     string
	Priority  int32
	Instances int // admitted or live
	Going     int // of the live ones: would go
	Usage     resource.Vector
}

// PlanPools tells what edits, made one after the other, would do, and does nothing. Pools that neither change nor are entitled to anything
// else are left out. It costs two recomputations of all entitlements and, if a pool would be exposed, a look at its live runs.
func (r Reader) PlanPools(caller Caller, edits []Command) ([]PoolEffect, *Error) {
	s := r.s
	before := s.pools.Clone()
	s.planEntitle(before)
	after := before.Clone()
	var gone []respool.Pool
	for n, cmd := range edits {
		edit, err := s.editPool(after, caller, cmd)
		if err != nil {
			err.Field = fmt.Sprintf("edits[%d].%s", n, err.Field)
			return nil, err
		}
		if _, was := before.Pool(edit.pool.ID); edit.deleted && was {
			gone = append(gone, edit.pool)
		}
	}
	s.planEntitle(after)
	var effects []PoolEffect
	for p := range after.All() {
		if e, differs := effect(before, after, p.ID); differs {
			effects = append(effects, e)
		}
	}
	s.expose(after, effects)
	for _, p := range gone {
		a, _ := before.Account(p.ID)
		path := before.Path(p.ID)
		effects = append(effects, PoolEffect{ID: p.ID, Path: path, OldPath: path, Changed: true, Deleted: true, Before: a.Entitlement})
	}
	return effects, nil
}

// planEntitle brings a copy of the tree up to the demand of the moment.
func (s *State) planEntitle(t *respool.Tree) {
	for p := range t.All() {
		if queues := s.queuesOf(p.ID); len(queues) > 0 && t.IsLeaf(p.ID) {
			s.tellDemand(t, p.ID, queues)
		}
	}
	t.Entitle(s.capacity)
}

// effect compares one pool of two trees; false when nothing about it differs.
func effect(before, after *respool.Tree, id workload.PoolID) (PoolEffect, bool) {
	is, _ := after.Account(id)
	now, _ := after.Pool(id)
	e := PoolEffect{
		Path: after.Path(id), Changed: true, After: is.Entitlement, Usage: is.Usage, OverAfter: is.Usage.Sub(is.Entitlement).Max(resource.Vector{}),
	}
	old, existed := before.Pool(id)
	if !existed {
		return e, true
	}
	was, _ := before.Account(id)
	old.Version, old.UpdatedAt = now.Version, now.UpdatedAt // they say that it was edited, not what it is
	e.ID, e.OldPath, e.Changed = id, before.Path(id), now != old
	e.Before, e.OverBefore = was.Entitlement, was.Usage.Sub(was.Entitlement).Max(resource.Vector{})
	return e, e.Changed || e.Before != e.After || e.Path != e.OldPath
}

// expose lists for each pool above its entitlement the jobs that would make room for others first.
func (s *State) expose(t *respool.Tree, effects []PoolEffect) {
	for n := range effects {
		if e := &effects[n]; !e.OverAfter.IsZero() && t.IsLeaf(e.ID) {
			s.exposePool(e)
		}
	}
}

// exposure is what goes as one: a run, or all runs of a gang.
type exposure struct {
	started  int64
	instance uint32 // of a gang, its first
	job      int32  // among the candidates
}

// exposePool goes through a pool's work in the order of eviction until what it uses beyond its entitlement is given back: what does not run yet,
// then by rank, then what began last; no job loses more than its budget allows. Its cost is that of the live runs of the ranks that are reached.
func (s *State) exposePool(e *PoolEffect) {
	q := s.queues[queueKey{e.ID, false}]
	if q == nil {
		return
	}
	jobs, ranks := s.exposedRanks(q, e)
	left := e.OverAfter
	lost := make([]uint32, len(jobs))
	listed := make([]int, len(jobs)) // 1 + its place in the list; a job that is too many has the place after it
	for _, running := range []bool{false, true} {
		for from := 0; from < len(jobs) && !left.IsZero(); {
			to := from + 1
			for to < len(jobs) && ranks[to] == ranks[from] {
				to++
			}
			for _, x := range exposures(jobs, from, to, running) {
				j := jobs[x.job]
				use, runs := *j.needs(x.instance), uint32(1)
				if g := j.gangOf(x.instance); g != nil {
					use, _ = s.gangUse(g)
					runs = g.live - g.killing
				}
				if !overlap(&use, &left) || j.budget().Left() < lost[x.job]+runs {
					continue
				}
				left = left.Sub(use).Max(resource.Vector{})
				lost[x.job] += runs
				e.expose(j, int(runs), &listed[x.job])
			}
			from = to
		}
	}
}

// expose counts runs of a job that would go.
func (e *PoolEffect) expose(j *job, runs int, listed *int) {
	e.ExposedRuns += runs
	if *listed == 0 {
		e.ExposedJobs++
		if *listed = MaxExposed + 1; len(e.Exposed) < MaxExposed {
			e.Exposed = append(e.Exposed, ExposedJob{
				ID: j.ID, Name: j.spec.Name, Owner: j.spec.Owner, Priority: j.spec.Priority,
				Instances: int(j.byState[workload.InstanceAdmitted] + j.live), Usage: j.usage,
			})
			*listed = len(e.Exposed)
		}
	}
	if *listed <= MaxExposed {
		e.Exposed[*listed-1].Going += runs
	}
}

// exposedRanks lists the jobs of a queue that may have to make room, in the order of their ranks.
func (s *State) exposedRanks(q *poolQueue, e *PoolEffect) ([]*job, []int32) {
	jobs := slices.DeleteFunc(slices.Clone(q.running), func(j *job) bool { return !j.spec.Preemptible || j.budget().Left() == 0 })
	slices.SortFunc(jobs, func(a, b *job) int { return cmp.Compare(a.Order, b.Order) })
	over := preemption.Overage(e.Usage, e.After)
	candidates := make([]preemption.Candidate, len(jobs))
	for n, j := range jobs {
		candidates[n] = preemption.Candidate{Job: j.ID, Pool: j.spec.Pool, Priority: j.spec.Priority, Over: over}
	}
	rankOf := map[*job]int32{}
	for n, rank := range s.cfg.Victims.Ranker.Rank(candidates) {
		if n < len(jobs) {
			rankOf[jobs[n]] = rank
		}
	}
	slices.SortStableFunc(jobs, func(a, b *job) int { return cmp.Compare(rankOf[a], rankOf[b]) })
	ranks := make([]int32, len(jobs))
	for n, j := range jobs {
		ranks[n] = rankOf[j]
	}
	return jobs, ranks
}

// exposures lists what of some jobs may go, all of it running or none, what began last first.
func exposures(jobs []*job, from, to int, running bool) (list []exposure) {
	for at := from; at < to; at++ {
		j := jobs[at]
		for i := range j.tasks {
			t := &j.tasks[i]
			if !t.runState.Live() || t.runState == workload.RunKilling || (t.started != 0) != running || j.gangOf(uint32(i)) != nil {
				continue
			}
			list = append(list, exposure{t.started, uint32(i), int32(at)}) //nolint:gosec // at most MaxJobs
		}
		for _, g := range j.gangs {
			if g.live > g.killing && !g.ending && g.began() != 0 == running {
				list = append(list, exposure{g.began(), g.first(), int32(at)}) //nolint:gosec // as above
			}
		}
	}
	slices.SortFunc(list, func(a, b exposure) int {
		return cmp.Or(cmp.Compare(b.started, a.started), cmp.Compare(a.job, b.job), cmp.Compare(a.instance, b.instance))
	})
	return list
}

// began is when the first of a gang's live members came to run; 0: none has.
func (g *gang) began() (first int64) {
	for _, i := range g.All() {
		if t := &g.job.tasks[i]; t.runState.Live() && t.runState != workload.RunKilling && t.started != 0 && (first == 0 || t.started < first) {
			first = t.started
		}
	}
	return first
}

// overlap reports whether v has something of a kind of which there is something in of.
func overlap(v, of *resource.Vector) bool {
	for k := range v {
		if v[k] > 0 && of[k] > 0 {
			return true
		}
	}
	return false
}
