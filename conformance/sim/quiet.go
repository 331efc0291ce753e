package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of the quiet in a cell whose pools lend, when the load does not change any more.
const (
	// quietFor is how long nobody must have been told to make room before the cell counts as settled: longer than any delay of the cell.
	quietFor = 90 * time.Second
	// quietWithin is when that must have come about.
	quietWithin = 15 * time.Minute
	// maxEvicted is how often one instance may make room in the quiet.
	maxEvicted = 4
)

// circles is who made room for whom since the load last changed.
type circles struct {
	last  int64 // when somebody was told to go, in the world's time
	times map[instanceOf]int
	jobs  map[workload.JobID]map[workload.JobID]bool // from the victim to who asked
	pools map[workload.PoolID]map[workload.PoolID]bool
}

type instanceOf struct {
	job workload.JobID
	n   uint32
}

func newCircles() circles {
	return circles{
		times: map[instanceOf]int{}, jobs: map[workload.JobID]map[workload.JobID]bool{}, pools: map[workload.PoolID]map[workload.PoolID]bool{},
	}
}

// add takes in the evictions of a Step and wants nobody to make room in a circle once it is quiet: neither jobs, nor pools that are above
// their entitlement.
func (c *circles) add(r *rooms) {
	c.last = r.w.now
	if !r.quiet {
		return
	}
	for n := range r.news {
		e := &r.news[n]
		victim, by := r.sight.jobs[e.run.Job], r.sight.jobs[e.by]
		key := instanceOf{e.run.Job, e.run.Instance}
		if c.times[key]++; c.times[key] > maxEvicted {
			r.w.fail(CheckLending, "instance %d of job %s makes room for the %dth time though the load does not change; now for %s", key.n,
				victim.Spec.Name, c.times[key], by.Spec.Name)
		}
		connect(c.jobs, e.run.Job, e.by)
		if reaches(c.jobs, e.by, e.run.Job) {
			r.w.fail(CheckLending, "job %s makes room for %s, and has had room made by it, though the load does not change", victim.Spec.Name, by.Spec.Name)
		}
		if victim.Spec.Revocable || victim.Spec.Pool == by.Spec.Pool {
			continue
		}
		connect(c.pools, victim.Spec.Pool, by.Spec.Pool)
		if reaches(c.pools, by.Spec.Pool, victim.Spec.Pool) {
			r.w.fail(CheckLending, "pool %s makes room for pool %s, and has had room made by it, though the load does not change", victim.PoolPath, by.PoolPath)
		}
	}
}

func connect[K comparable](graph map[K]map[K]bool, from, to K) {
	if graph[from] == nil {
		graph[from] = map[K]bool{}
	}
	graph[from][to] = true
}

func reaches[K comparable](graph map[K]map[K]bool, from, to K) bool {
	seen := map[K]bool{}
	open := []K{from}
	for len(open) > 0 {
		at := open[len(open)-1]
		open = open[:len(open)-1]
		if at == to {
			return true
		}
		if seen[at] {
			continue
		}
		seen[at] = true
		for next := range graph[at] {
			open = append(open, next)
		}
	}
	return false
}

// quieten is the phase between faults and mending in which the load does not change: what can be told apart from entitlements by making room
// must come to an end.
func (w *world) quieten() {
	for _, c := range w.clusters {
		c.heal()
	}
	w.users.lift()
	w.runUntil(w.now + int64(10*time.Second))
	w.users.flood()
	w.runUntil(w.now + int64(2*time.Minute)) // what was stopped ends, what it had goes to others
	w.trace("--- the load does not change any more")
	w.rooms.quiet, w.rooms.circles = true, newCircles()
	w.rooms.circles.last = w.now
	end := w.now + int64(quietWithin)
	for {
		w.runUntil(w.now + int64(5*time.Second))
		rest := w.unsettled()
		if rest == "" {
			break
		}
		if w.now >= end {
			by := CheckLending
			if w.keptRoom() != "" {
				by = CheckRooms // it is kept for nobody
			}
			w.fail(by, "%v after the load last changed %s", quietWithin, rest)
		}
	}
	w.rooms.quiet = false
	w.users.ebb()
	w.runUntil(w.now + int64(10*time.Second))
}

// unsettled is what is still going on; empty: nothing.
func (w *world) unsettled() string {
	c := w.cell
	switch {
	case c.state == nil || len(c.pending) > 0 || len(c.events) > 0 || len(w.users.calls) > 0:
		return "the core is busy"
	case w.now-w.rooms.circles.last < int64(quietFor):
		return "work still makes room for other work"
	}
	if rest := w.keptRoom(); rest != "" {
		return rest
	}
	return w.starving()
}

// keptRoom is room that is kept, or asked for; empty: there is none.
func (w *world) keptRoom() string {
	switch {
	case len(w.rooms.kept) > 0:
		return fmt.Sprintf("%d rooms are kept", len(w.rooms.kept))
	case len(w.rooms.questions) > 0:
		return "a shard is asked for room"
	}
	for _, cl := range w.clusters {
		if n := cl.proc.machine.Stats().Pledged; n > 0 {
			return fmt.Sprintf("shard %s keeps %d rooms that the core knows nothing of", cl.id, n)
		}
	}
	return ""
}

// starving is work that is entitled to room and does not get it, though a host has it, or would have it if a single run left that may be told
// to; and gangs that run with fewer members than they need.
func (w *world) starving() string {
	reader := w.cell.state.Reader()
	s := look(reader, false)
	hosts, _ := reader.Hosts("", "", 1000)
	for _, j := range s.sorted() {
		if rest := shortGang(reader, j); rest != "" {
			return rest
		}
	}
	for _, p := range s.pools {
		j := s.firstInLine(p)
		if j == nil || !s.entitledToMore(p, j) {
			continue
		}
		for n := range hosts {
			if how := s.roomOn(&hosts[n], p, j); how != "" {
				return fmt.Sprintf("pool %s uses %v and is entitled to %v, but its first in line waits, though %s:\n%s", p.Path, p.Usage, p.Entitlement, how,
					w.describe(j.JobView))
			}
		}
	}
	return ""
}

func (s *sight) sorted() []*jobSight {
	list := make([]*jobSight, 0, len(s.jobs))
	for _, j := range s.jobs {
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b *jobSight) int { return strings.Compare(a.ID.String(), b.ID.String()) })
	return list
}

// shortGang is a gang that runs without the members that it cannot be without.
func shortGang(reader scheduler.Reader, j *jobSight) string {
	if j.Spec.Gang == nil || j.State.Terminal() {
		return ""
	}
	e, _ := reader.Explain(j.ID)
	for _, g := range e.Gangs {
		if !g.Ending && g.Present > 0 && g.Present < g.Min {
			return fmt.Sprintf("gang %s of job %s goes on with %d of the %d members that it needs", g.Name, j.Spec.Name, g.Present, g.Min)
		}
	}
	return ""
}

// firstInLine is the job of a pool that goes before all others that wait, if it is one whose next instance may go anywhere, and the pool's
// line is one in which the first goes first.
func (s *sight) firstInLine(p *poolSight) (first *jobSight) {
	if p.Pool.Queue.Order != respool.OrderPriorityFIFO || p.Pool.Queue.Backfill != respool.BackfillNone {
		return nil
	}
	for _, j := range s.jobs {
		waits := j.ByState[workload.InstancePending]+j.ByState[workload.InstanceAdmitted] > 0
		if j.Spec.Pool == p.Pool.ID && waits && !j.Spec.Revocable && (first == nil || goesBefore(&j.JobView, &first.JobView)) {
			first = j
		}
	}
	if first == nil || !undemanding(first.Spec) || first.Goal != scheduler.GoalRun || first.Restart.Batch > 0 {
		return nil
	}
	if m := first.Spec.MaxRunning; m > 0 && first.ByState[workload.InstanceAdmitted]+first.ByState[workload.InstanceActive] >= m {
		return nil
	}
	return first
}

func undemanding(s *workload.JobSpec) bool {
	p, t := &s.Placement, &s.Template
	return s.Kind != workload.Daemon && s.Gang == nil && !s.Controller && len(s.Overrides) == 0 && len(t.Ports) == 0 &&
		t.Needs[resource.GPU] == 0 && !p.Exclusive && p.HostPool == "" && len(p.Constraints)+len(p.Affinities)+len(p.Spreads)+len(p.Clusters) == 0
}

// entitledToMore reports whether the next instance of a job is within all that its pool may use.
func (s *sight) entitledToMore(p *poolSight, j *jobSight) bool {
	need := j.Spec.Template.Needs
	usage, firm, owner := p.Usage, p.NonPreemptible, resource.Vector{}
	if j.ByState[workload.InstanceAdmitted] > 0 { // it is counted already
		usage, firm, owner = usage.Sub(need), firm.Sub(need), owner.Sub(need)
	}
	for _, o := range s.jobs {
		if o.Spec.Pool == p.Pool.ID && o.Spec.Owner == j.Spec.Owner && !o.Spec.Revocable {
			for n := range o.tasks {
				if charged(&o.tasks[n]) {
					owner = owner.Add(needsOf(o.Spec, o.tasks[n].Instance))
				}
			}
		}
	}
	for k := range need {
		if need[k] == 0 {
			continue
		}
		limit := p.Pool.UserLimit.Of(resource.Kind(k))
		switch {
		case usage[k]+need[k] > p.Entitlement[k],
			limit != respool.Unlimited && owner[k]+need[k] > limit,
			!j.Spec.Preemptible && firm[k]+need[k] > p.Reservation[k]:
			return false
		}
	}
	return true
}

// roomOn is how an instance of a job would fit on a host: as it is, or without one run that may be told to go. Empty: it would not.
func (s *sight) roomOn(h *scheduler.HostView, p *poolSight, j *jobSight) string {
	if !h.Present || !h.Summary.Ready || h.Draining {
		return ""
	}
	need := j.Spec.Template.Needs
	free := h.Summary.Capacity.Sub(h.Summary.Foreign).Sub(h.Used)
	if need.FitsIn(&free) {
		if s.alone(h) {
			return ""
		}
		return "host " + h.Name + " has room for it"
	}
	for _, o := range s.sorted() {
		if o == j || !o.Spec.Preemptible || o.Spec.Gang != nil || o.Spec.Placement.Exclusive || !s.mayGoFor(o, p, j) {
			continue
		}
		for n := range o.tasks {
			t := &o.tasks[n]
			if t.Host != h.ID || !t.RunState.Live() || t.RunState == workload.RunKilling {
				continue
			}
			if without := free.Add(needsOf(o.Spec, t.Instance)); need.FitsIn(&without) && !s.alone(h) {
				return fmt.Sprintf("run %d of job %s (pool %s) could make room for it on host %s", t.Instance, o.Spec.Name, o.PoolPath, h.Name)
			}
		}
	}
	return ""
}

// alone reports whether somebody has a host for himself.
func (s *sight) alone(h *scheduler.HostView) bool {
	for _, j := range s.jobs {
		if j.Spec.Placement.Exclusive && slices.ContainsFunc(j.tasks, func(t scheduler.TaskView) bool { return t.Host == h.ID && t.RunState.Live() }) {
			return true
		}
	}
	return false
}

// mayGoFor reports whether instances of one job may make room for another.
func (s *sight) mayGoFor(o *jobSight, p *poolSight, j *jobSight) bool {
	if o.Spec.Kind == workload.Service {
		down := uint32(0)
		for n := range o.tasks {
			if t := &o.tasks[n]; t.RunState != workload.RunRunning || !t.Healthy {
				down++
			}
		}
		if down >= o.Spec.MaxUnavailable {
			return false
		}
	}
	if o.Spec.Revocable {
		return true
	}
	if o.Spec.Pool == p.Pool.ID {
		return false
	}
	from := s.pools[o.Spec.Pool]
	for k, need := range j.Spec.Template.Needs {
		if need > 0 && o.Spec.Template.Needs[k] > 0 && from.effective[k] > from.Entitlement[k] {
			return len(o.Spec.Overrides) == 0
		}
	}
	return false
}
