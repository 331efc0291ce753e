package scheduler

import (
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// scanBound is how many objects a filtered list looks at before it gives back what it has found, with a place to go on from.
const scanBound = 20_000

// Cell returns the cell's totals.
func (r Reader) Cell() CellView {
	s := r.s
	v := CellView{
		Epoch: s.epoch, Sequence: s.sequence, Named: s.names.Named(), Capacity: s.capacity, Used: s.used, Jobs: len(s.jobs),
		Instances: s.instances, LiveRuns: s.live, Pending: s.pending,
	}
	for _, h := range s.hostNames {
		if h.Present {
			v.Hosts++
			if h.mayTake() {
				v.Ready++
			}
		}
	}
	for _, sh := range s.shards {
		v.Shards = append(v.Shards, sh.view())
	}
	return v
}

// Names returns a copy of the cell's resource names.
func (r Reader) Names() *resource.Names {
	n, err := resource.NewNames(r.s.names.Named())
	if err != nil {
		panic("scheduler: its own resource names were refused: " + err.Error())
	}
	return n
}

// Job finds a job.
func (r Reader) Job(id workload.JobID) (JobView, bool) {
	j, ok := r.s.jobs[id]
	if !ok {
		return JobView{}, false
	}
	return r.s.jobView(j), true
}

// JobNamed finds the newest job of that name.
func (r Reader) JobNamed(pool workload.PoolID, name string) (JobView, bool) {
	j, ok := r.s.byName[jobName{pool, name}]
	if !ok {
		return JobView{}, false
	}
	return r.s.jobView(j), true
}

// Jobs returns up to limit jobs in submission order after the given order, and the order to go on after; 0: that was all. A page may hold
// fewer than limit, even none, when few match.
func (r Reader) Jobs(after uint64, limit int, filter JobFilter) ([]JobView, uint64) {
	s := r.s
	pools := make(map[workload.PoolID]bool, len(filter.Pools))
	for _, id := range filter.Pools {
		pools[id] = true
	}
	var page []JobView
	looked := 0
	for at := s.orderIndex(after + 1); at < len(s.order); at++ {
		j := s.order[at]
		if j == nil {
			continue
		}
		if looked++; len(page) == limit || looked > scanBound {
			return page, j.Order - 1
		}
		if (len(filter.Pools) == 0 || pools[j.spec.Pool]) && filter.matches(j) {
			page = append(page, s.jobView(j))
		}
	}
	return page, 0
}

func (f *JobFilter) matches(j *job) bool {
	switch {
	case len(f.States) > 0 && !slices.Contains(f.States, j.State),
		len(f.Kinds) > 0 && !slices.Contains(f.Kinds, j.spec.Kind),
		f.Owner != "" && f.Owner != j.spec.Owner,
		f.Name != "" && f.Name != j.spec.Name:
		return false
	}
	for k, v := range f.Labels {
		if j.spec.Labels[k] != v {
			return false
		}
	}
	return true
}

// Task finds an instance.
func (r Reader) Task(id workload.JobID, instance uint32) (TaskView, bool) {
	j, ok := r.s.jobs[id]
	if !ok || int(instance) >= len(j.tasks) {
		return TaskView{}, false
	}
	return r.s.taskView(j, instance), true
}

// Tasks returns up to limit instances from the given one on, and the next instance to ask for, or -1. A page may hold fewer, as Jobs.
func (r Reader) Tasks(id workload.JobID, from uint32, limit int, filter TaskFilter) ([]TaskView, int64) {
	j, ok := r.s.jobs[id]
	if !ok {
		return nil, -1
	}
	var page []TaskView
	looked := 0
	for i := int64(from); i < int64(len(j.tasks)); i++ {
		if looked++; len(page) == limit || looked > scanBound {
			return page, i
		}
		t := &j.tasks[i]
		if (len(filter.States) == 0 || slices.Contains(filter.States, t.state)) &&
			(len(filter.RunStates) == 0 || slices.Contains(filter.RunStates, t.runState)) &&
			(filter.Host == workload.HostID{} || (t.host != nil && t.host.ID == filter.Host)) {
			page = append(page, r.s.taskView(j, uint32(i)))
		}
	}
	return page, -1
}

// PlacementPolicy is the policy that a job's tasks are placed by: its own, or that of its pool; "": the cell's default.
func (r Reader) PlacementPolicy(j *JobView) string {
	if own := j.Spec.Placement.Strategy; own != "" {
		return string(own)
	}
	return r.s.pools.PlacementPolicy(j.Spec.Pool)
}

// Pool finds a pool by path; "/" is the cell.
func (r Reader) Pool(path string) (PoolView, bool) {
	id, ok := r.s.pools.Lookup(path)
	if !ok {
		return PoolView{}, false
	}
	return r.PoolByID(id)
}

// PoolByID finds a pool.
func (r Reader) PoolByID(id workload.PoolID) (PoolView, bool) {
	p, ok := r.s.pools.Pool(id)
	if !ok {
		return PoolView{}, false
	}
	return r.s.poolView(p), true
}

// Pools returns the subtree under path in depth-first order, itself first.
func (r Reader) Pools(path string) []PoolView {
	id, ok := r.s.pools.Lookup(path)
	if !ok {
		return nil
	}
	var list []PoolView
	if root, ok := r.s.pools.Pool(id); ok {
		list = append(list, r.s.poolView(root))
	}
	prefix := strings.TrimSuffix(path, "/") + "/"
	for p := range r.s.pools.All() {
		if p.ID != id && strings.HasPrefix(r.s.pools.Path(p.ID), prefix) {
			list = append(list, r.s.poolView(p))
		}
	}
	return list
}

// Host finds a host.
func (r Reader) Host(id workload.HostID) (HostView, bool) {
	h, ok := r.s.hosts[id]
	if !ok {
		return HostView{}, false
	}
	return r.s.hostView(h), true
}

// Hosts returns up to limit hosts in order of cluster and name after the given ones, and whether there are more.
func (r Reader) Hosts(afterCluster, afterName string, limit int) ([]HostView, bool) {
	all := r.s.hostNames
	from := sort.Search(len(all), func(n int) bool {
		c := strings.Compare(all[n].Cluster, afterCluster)
		return c > 0 || (c == 0 && all[n].Name > afterName)
	})
	var page []HostView
	for _, h := range all[from:] {
		if len(page) == limit {
			return page, true
		}
		page = append(page, r.s.hostView(h))
	}
	return page, false
}

func (s *State) jobView(j *job) JobView {
	v := JobView{
		JobRecord: j.JobRecord, Spec: j.spec, PoolPath: s.poolPath(j.spec.Pool), Instances: uint32(len(j.tasks)), ByState: j.byState,
		ByRun: j.byRun, Healthy: j.healthy, Held: j.held(s.now).Whole,
	}
	if j.Restart.Batch > 0 {
		v.RestartUnits, v.RestartDown = j.units(uint32(len(j.tasks))), uint32(len(j.renewing))
		v.RestartDone = max(j.units(j.renewNext), v.RestartDown) - v.RestartDown
	}
	return v
}

func (s *State) taskView(j *job, i uint32) TaskView {
	v := TaskView{TaskRecord: j.taskRecord(i), Needs: *j.needs(i)}
	v.State = j.tasks[i].state
	if g := j.gangOf(i); g != nil {
		view := g.view()
		v.Gang = &view
		v.Rank, _ = g.Rank(i)
	}
	if h := j.tasks[i].host; h != nil {
		v.HostName, v.Cluster = h.Name, h.Cluster
	}
	return v
}

func (s *State) poolView(p respool.Pool) PoolView {
	v := PoolView{Pool: p, Path: s.pools.Path(p.ID)}
	if p.ID != respool.RootID {
		v.Parent = s.pools.Path(p.Parent)
	}
	if a, ok := s.pools.Account(p.ID); ok {
		v.Reservation, v.Entitlement, v.Usage, v.NonPreemptible, v.Demand = a.Reservation, a.Entitlement, a.Usage, a.NonPreemptibleUsage, a.Demand
		v.Jobs, v.EntitledBy = a.Jobs, s.entitledBy(p.ID)
		v.Controllers, v.Revocable = a.ControllerUsage, RevocableView{a.RevocableEntitlement, a.RevocableDemand, a.RevocableUsage}
	}
	for _, q := range s.queuesOf(p.ID) {
		v.Waiting += q.queue.Len()
	}
	return v
}

func (s *State) hostView(h *hostState) HostView {
	v := HostView{HostRecord: h.HostRecord, Used: h.used, Tasks: h.tasks, Details: h.details}
	v.Summary.Attributes = maps.Clone(h.Summary.Attributes)
	v.Past = !h.Present && h.tasks == 0 && s.now-h.Since >= s.keptFor(h)
	return v
}
