package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

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
	Exposed       []ExposedJob // who would make room for OverAfter first, at most MaxExposed
}

// ExposedJob is a job that would be among the first to make room.
type ExposedJob struct {
	ID        workload.JobID
	Name      string
	Owner     string
	Priority  int32
	Instances int // admitted or live
	Usage     resource.Vector
}

// PlanPools tells what edits, made one after the other, would do, and does nothing. Pools that neither change nor are entitled to anything
// else are left out. It costs two recomputations of all entitlements and, if a pool would be exposed, a look at every job.
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

// expose lists for each pool above its entitlement the jobs that would make room first: of the lowest priority, of these whoever runs
// nothing yet, then whoever began last.
func (s *State) expose(t *respool.Tree, effects []PoolEffect) {
	exposed := map[workload.PoolID]*PoolEffect{}
	for n := range effects {
		if e := &effects[n]; !e.OverAfter.IsZero() && t.IsLeaf(e.ID) {
			exposed[e.ID] = e
		}
	}
	if len(exposed) == 0 {
		return
	}
	victims := map[workload.PoolID][]*job{}
	for _, j := range s.order {
		if j == nil || !j.spec.Preemptible || j.spec.Revocable || j.usage.IsZero() || exposed[j.spec.Pool] == nil {
			continue
		}
		victims[j.spec.Pool] = append(victims[j.spec.Pool], j)
	}
	for id, e := range exposed {
		jobs := victims[id]
		slices.SortStableFunc(jobs, func(a, b *job) int {
			return cmp.Or(cmp.Compare(a.spec.Priority, b.spec.Priority), cmp.Compare(b.began(), a.began()), cmp.Compare(b.Order, a.Order))
		})
		left := e.OverAfter
		for _, j := range jobs {
			if len(e.Exposed) == MaxExposed || left.IsZero() {
				break
			}
			if !overlap(&j.usage, &left) {
				continue
			}
			left = left.Sub(j.usage).Max(resource.Vector{})
			e.Exposed = append(e.Exposed, ExposedJob{
				ID: j.ID, Name: j.spec.Name, Owner: j.spec.Owner, Priority: j.spec.Priority,
				Instances: int(j.byState[workload.InstanceAdmitted] + j.live), Usage: j.usage,
			})
		}
	}
}

// began is when the job's first run began; never, if none has.
func (j *job) began() int64 {
	if j.Started == 0 {
		return math.MaxInt64
	}
	return j.Started
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
