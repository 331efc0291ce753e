package scheduler

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxVictimJobs bounds the jobs of a snapshot. Pools furthest above their entitlement come first.
const maxVictimJobs = 1 << 14

// maxSnapshots bounds the claims for which one Step looks for victims; the others wait for the next Step.
const maxSnapshots = 16

// claim is what decides who may make room for some work. Pleas with equal claims draw on one snapshot.
type claim struct {
	pool     workload.PoolID
	priority int32
	between  bool // pools above their entitlement have to give as well
	ahead    bool // of work that is not admitted: work of its own pool has to go in any case, so that goes first
	// With ahead, the bound beside the pool's that is used up: work under the same bound has to go.
	owner       string
	ofOwner     bool
	controllers bool
}

// renew begins a Step's snapshots. One Step has one answer for all that ask, so that they draw on it together.
func (p *pressure) renew(step uint64) {
	if p.step != step {
		p.step, p.between, p.claims, p.ending, p.known = step, nil, nil, nil, false
	}
}

// betweenPools is who of any pool may make room, and all revocable work.
type betweenPools struct {
	snap  *preemption.Snapshot
	pools []workload.PoolID // those of the snapshot
	ranks []int32           // of its jobs, from 0 to span-1
	span  int32
}

// victimsBetween is who of other pools may make room, and all revocable work.
func (s *State) victimsBetween() *betweenPools {
	p := &s.press
	if p.renew(s.steps); p.between == nil {
		p.between = s.aboveEntitlement()
	}
	return p.between
}

// victimsOf is who may make room for a plea, or will by itself.
func (s *State) victimsOf(in *plea) (*preemption.Snapshot, bool) {
	if !in.work.wait {
		return s.victimsFor(in.claim)
	}
	p := &s.press
	if p.renew(s.steps); p.ending == nil {
		p.ending = s.soonEnding()
	}
	return p.ending, true
}

// victimsFor is who may make room for a claim; false: this Step has made snapshots enough.
func (s *State) victimsFor(c claim) (*preemption.Snapshot, bool) {
	p := &s.press
	p.renew(s.steps)
	snap, known := p.claims[c]
	switch {
	case known:
		return snap, true
	case len(p.claims) == maxSnapshots:
		return nil, false
	}
	snap = s.below(c)
	if c.between {
		between := s.victimsBetween()
		switch {
		case len(snap.Jobs) == 0 && !slices.Contains(between.pools, c.pool):
			snap = between.snap
		default:
			snap = s.joined(between, snap, c)
		}
	}
	if p.claims == nil {
		p.claims = map[claim]*preemption.Snapshot{}
	}
	p.claims[c] = snap
	return snap, true
}

// victimsOfPlan is who may make room for a job that is only planned.
func (s *State) victimsOfPlan(j *job) *preemption.Snapshot {
	c := claim{pool: j.spec.Pool, priority: j.spec.Priority}
	return s.joined(s.aboveEntitlement(), s.below(c), c)
}

// anyVictims reports whether there is anybody at all who may make room for a job's admitted work.
func (s *State) anyVictims(j *job, between bool) bool {
	lowest, some := s.queueOfJob(j).lowest(s.steps)
	return some && lowest < j.spec.Priority || between && s.anyAbove()
}

// lowest is the lowest priority of the queue's live work that may be preempted.
func (q *poolQueue) lowest(step uint64) (priority int32, some bool) {
	if q.lowestIn != step {
		q.lowestIn, q.lowestIs, q.anyLower = step, math.MaxInt32, false
		for _, j := range q.running {
			if j.spec.Preemptible {
				q.lowestIs, q.anyLower = min(q.lowestIs, j.spec.Priority), true
			}
		}
	}
	return q.lowestIs, q.anyLower
}

// inferiors lists the jobs of a queue with live work that may make room for a priority, the lowest first.
func (q *poolQueue) inferiors(priority int32) []*job {
	var list []*job
	for _, j := range q.running {
		if j.spec.Preemptible && j.spec.Priority < priority {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *job) int {
		return cmp.Or(cmp.Compare(a.spec.Priority, b.spec.Priority), cmp.Compare(a.Order, b.Order))
	})
	return list[:min(len(list), maxVictimJobs)]
}

// below is the work of lower priority in the pool that claims.
func (s *State) below(c claim) *preemption.Snapshot {
	snap, candidates := s.listBelow(c.pool, c.priority)
	s.ranked(c.pool, snap, candidates)
	if !c.ofOwner && !c.controllers {
		return snap
	}
	ranks, span := dense(snap.Jobs)
	for n := range snap.Jobs { // whoever is under the bound that is used up goes first: others could not help there
		e := &snap.Jobs[n]
		if e.Rank = ranks[n]; !c.counts(s.jobs[e.ID]) {
			e.Rank += span
		}
	}
	return snap
}

// listBelow lists the work of a pool below a priority.
func (s *State) listBelow(pool workload.PoolID, priority int32) (*preemption.Snapshot, []preemption.Candidate) {
	snap := s.snapshot()
	var candidates []preemption.Candidate
	if q := s.queues[queueKey{pool: pool}]; q != nil {
		for _, j := range q.inferiors(priority) {
			candidates = s.enlist(snap, candidates, j, -1, 0)
		}
	}
	return snap, candidates
}

// counts reports whether a job is under every bound beside the pool's that the claim is short in.
func (c *claim) counts(j *job) bool {
	return (!c.ofOwner || j.spec.Owner == c.owner) && (!c.controllers || j.spec.Controller)
}

// joined makes one snapshot of two. Those of other pools go before those of the pool that claims; ahead of admission it is the other way round. The
// ordinary work of that pool is taken from the snapshot of its own alone.
func (s *State) joined(between *betweenPools, own *preemption.Snapshot, c claim) *preemption.Snapshot {
	snap := s.snapshot()
	snap.Pools = between.snap.Pools
	snap.Jobs = make([]preemption.Job, 0, len(between.snap.Jobs)+len(own.Jobs))
	ranks, span := dense(own.Jobs)
	ownFrom, betweenFrom := between.span, int32(0)
	if c.ahead {
		ownFrom, betweenFrom = 0, span
	}
	addOwn := func() {
		for n := range own.Jobs {
			snap.Jobs = append(snap.Jobs, own.Jobs[n])
			snap.Jobs[len(snap.Jobs)-1].Rank = ranks[n] + ownFrom
		}
	}
	if c.ahead {
		addOwn()
	}
	except := int32(slices.Index(between.pools, c.pool)) //nolint:gosec // at most MaxPools
	for n := range between.snap.Jobs {
		if e := &between.snap.Jobs[n]; e.Pool < 0 || e.Pool != except {
			snap.Jobs = append(snap.Jobs, *e)
			snap.Jobs[len(snap.Jobs)-1].Rank = between.ranks[n] + betweenFrom
		}
	}
	if !c.ahead {
		addOwn()
	}
	return snap
}

// dense brings the ranks of jobs close together, from 0 to span-1.
func dense(jobs []preemption.Job) (ranks []int32, span int32) {
	var all []int32
	for n := range jobs { // neighbours mostly have the same
		if n == 0 || jobs[n].Rank != jobs[n-1].Rank {
			all = append(all, jobs[n].Rank)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	ranks = make([]int32, len(jobs))
	for n := range jobs {
		if n > 0 && jobs[n].Rank == jobs[n-1].Rank {
			ranks[n] = ranks[n-1]
			continue
		}
		at, _ := slices.BinarySearch(all, jobs[n].Rank)
		ranks[n] = int32(at) //nolint:gosec // at most maxVictimJobs and their gangs
	}
	return ranks, int32(len(all)) //nolint:gosec // as above
}

// victimPool is a pool that uses more than it is entitled to, or the revocable work of one.
type victimPool struct {
	queue   *poolQueue
	over    resource.Vector
	overage int64
}

// aboveEntitlement is the work of pools above their entitlement and all revocable work.
func (s *State) aboveEntitlement() *betweenPools {
	snap, pools, candidates := s.listAbove()
	b := &betweenPools{snap: s.ranked(workload.PoolID{}, snap, candidates), pools: pools}
	b.ranks, b.span = dense(b.snap.Jobs)
	return b
}

// listAbove lists the work of aboveEntitlement, and the pools of the snapshot.
func (s *State) listAbove() (snap *preemption.Snapshot, ids []workload.PoolID, candidates []preemption.Candidate) {
	pools := slices.Collect(s.victimPools())
	jobs := 0
	for _, p := range pools {
		jobs += len(p.queue.running)
	}
	jobs = min(jobs, maxVictimJobs)
	slices.SortStableFunc(pools, func(a, b victimPool) int { return cmp.Compare(b.overage, a.overage) })
	snap = s.snapshot()
	snap.Jobs = make([]preemption.Job, 0, jobs)
	candidates = make([]preemption.Candidate, 0, jobs)
	for _, p := range pools {
		at := int32(-1)
		if !p.queue.revocable {
			at = int32(len(snap.Pools)) //nolint:gosec // at most MaxPools
			snap.Pools, ids = append(snap.Pools, preemption.Pool{Over: p.over}), append(ids, p.queue.pool)
		}
		for _, j := range p.queue.running {
			if len(snap.Jobs) >= maxVictimJobs {
				break
			}
			candidates = s.enlist(snap, candidates, j, at, p.overage)
		}
	}
	return snap, ids, candidates
}

// snapshot is an empty one under the cell's policy.
func (s *State) snapshot() *preemption.Snapshot {
	return &preemption.Snapshot{Plain: s.cfg.Victims.Plain}
}

// anyAbove reports whether there is anybody in the snapshot that aboveEntitlement would make. It is asked much more often.
func (s *State) anyAbove() bool {
	p := &s.press
	if p.renew(s.steps); p.between != nil {
		return len(p.between.snap.Jobs) > 0
	}
	if p.known {
		return p.any
	}
	p.known, p.any = true, false
	if s.cfg.Victims.Nobody {
		return false
	}
	for v := range s.victimPools() {
		if slices.ContainsFunc(v.queue.running, (*job).mayGive) {
			p.any = true
			break
		}
	}
	return p.any
}

// mayGive reports whether a job with live runs is listed in snapshots.
func (j *job) mayGive() bool {
	return j.spec.Preemptible && j.budgetLeft() > 0 && (len(j.gangs) > 0 || len(j.loners) > 0)
}

// victimPools yields the pools that use more than they are entitled to, and revocable work.
func (s *State) victimPools() iter.Seq[victimPool] {
	return func(yield func(victimPool) bool) {
		for id := range s.pools.IDs() {
			for _, q := range s.queuesOf(id) {
				if len(q.running) == 0 {
					continue
				}
				v := victimPool{queue: q, overage: math.MaxInt64}
				if !q.revocable {
					entitled, used := s.pools.Standing(id)
					used = q.effective(used)
					if v.over = used.Sub(entitled).Max(resource.Vector{}); v.over.IsZero() {
						continue
					}
					v.overage = preemption.Overage(used, entitled)
				}
				if !yield(v) {
					return
				}
			}
		}
	}
}

// ranked gives jobs their ranks: those of the list of a pool, or of a zero one, see rankList.
func (s *State) ranked(list workload.PoolID, snap *preemption.Snapshot, candidates []preemption.Candidate) *preemption.Snapshot {
	if s.cfg.Victims.Nobody {
		snap.Jobs = nil
		return snap
	}
	for n, rank := range s.advised(list, snap.Jobs, s.cfg.Victims.Ranker.Rank(candidates)) {
		if n < len(snap.Jobs) {
			snap.Jobs[n].Rank = max(rank, 0)
		}
	}
	return snap
}

// enlist enters a job with live runs, each of its gangs for itself.
func (s *State) enlist(snap *preemption.Snapshot, candidates []preemption.Candidate, j *job, pool int32, overage int64) []preemption.Candidate {
	allow := int32(min(j.budgetLeft(), math.MaxInt32)) //nolint:gosec // bounded in the call
	if !j.spec.Preemptible || allow == 0 {
		return candidates
	}
	add := func(g *preemption.Gang) {
		snap.Jobs = append(snap.Jobs, preemption.Job{ID: j.ID, Revocable: j.spec.Revocable, Pool: pool, Allow: allow, Gang: g})
		candidates = append(candidates, preemption.Candidate{Job: j.ID, Pool: j.spec.Pool, Priority: j.spec.Priority, Over: overage})
	}
	for _, g := range j.gangs {
		if g.live > g.killing && !g.ending {
			use, work := s.gangUse(g)
			add(&preemption.Gang{Members: g.Members, Runs: int32(g.live), Use: use, Work: work}) //nolint:gosec // at most MaxGang
		} else {
			add(&preemption.Gang{Members: g.Members}) // on its way out already
			snap.Jobs[len(snap.Jobs)-1].Allow = 0
		}
	}
	if len(j.loners) > 0 {
		add(nil)
	}
	return candidates
}

// gangUse is what the live members of a gang use, and how long they have run, together.
func (s *State) gangUse(g *gang) (use resource.Vector, work int64) {
	for _, i := range g.All() {
		t := &g.job.tasks[i]
		if !t.runState.Live() || t.runState == workload.RunKilling {
			continue
		}
		use = use.Add(*g.job.needs(i))
		if t.started != 0 {
			work += s.now - t.started
		}
	}
	return use, work
}

// hearing checks a shard's choice of victims against the cell as it is now.
type hearing struct {
	state   *State
	in      *plea
	claim   claim
	planned bool            // nothing is carried out
	needs   resource.Vector // kinds that the work asks for
	taken   map[*poolQueue]resource.Vector
	lost    map[*job]uint32
	named   map[unit]bool // the doomed
	doomed  []doomed
}

// unit is what goes together: a gang, or an instance in none.
type unit struct {
	job      *job
	instance uint32
	gang     *gang
}

// doomed is a run that is to make room; of a gang, one of its members.
type doomed struct {
	job      *job
	instance uint32
	gang     *gang
	runs     int
	why      string
}

func (d *doomed) unit() unit {
	if d.gang != nil {
		return unit{gang: d.gang}
	}
	return unit{job: d.job, instance: d.instance}
}

func (s *State) hear(in *plea) *hearing {
	h := &hearing{state: s, in: in, claim: s.claimOf(in), taken: map[*poolQueue]resource.Vector{}, lost: map[*job]uint32{}, named: map[unit]bool{}}
	for n := range in.work.parts {
		h.needs = h.needs.Add(in.work.parts[n].class.class.Needs)
	}
	return h
}

// admit takes one victim in, or says that it must not go. What has ended, is ending, or was taken in before, gives nothing more.
func (h *hearing) admit(id workload.RunID) bool {
	j, lives := h.state.runOf(id)
	if !lives || j.tasks[id.Instance].runState == workload.RunKilling {
		return true
	}
	g := j.gangOf(id.Instance)
	d := doomed{job: j, instance: id.Instance, gang: g, runs: 1}
	if (g != nil && g.ending) || h.named[d.unit()] {
		return true
	}
	use := *j.needs(id.Instance)
	if g != nil {
		use, _ = h.state.gangUse(g)
		d.runs = int(g.live - g.killing)
	}
	why, may := h.may(j, &use)
	if !may || uint64(j.budget().Left()) < uint64(h.lost[j])+uint64(d.runs) { //nolint:gosec // a count
		return false
	}
	d.why = why + h.state.orderedBy()
	q := h.state.queueOf(j.spec)
	h.taken[q] = h.taken[q].Add(use)
	h.lost[j] += uint32(d.runs) //nolint:gosec // at most MaxGang
	h.named[d.unit()] = true
	h.doomed = append(h.doomed, d)
	return true
}

// may reports whether a job may give up something for the work, and why in words.
func (h *hearing) may(j *job, use *resource.Vector) (string, bool) {
	s, w := h.state, h.in.work
	by := fmt.Sprintf("preempted for job %s of pool %s: ", w.job.spec.Name, s.poolPath(w.job.spec.Pool))
	switch {
	case !j.spec.Preemptible || j == w.job || w.job.spec.Revocable:
		return "", false
	case !j.spec.Revocable && j.spec.Pool == w.job.spec.Pool:
		return by + fmt.Sprintf("its priority %d is below %d", j.spec.Priority, w.job.spec.Priority), j.spec.Priority < w.job.spec.Priority
	case !h.claim.between:
		return "", false
	case j.spec.Revocable:
		return by + "revocable work goes first", true
	}
	q := s.queueOf(j.spec)
	a, _ := s.pools.Account(j.spec.Pool)
	used := q.effective(a.Usage)
	left := used.Sub(h.taken[q])
	for k := range use {
		if h.needs[k] > 0 && use[k] > 0 && left[k] > a.Entitlement[k] {
			overage := preemption.Overage(used, a.Entitlement) / 10_000
			verb := "was"
			if h.planned {
				verb = "would be"
			}
			return by + fmt.Sprintf("pool %s %s %d %% over its entitlement", s.poolPath(j.spec.Pool), verb, overage), true
		}
	}
	return "", false
}

// carryOut ends the victims.
func (h *hearing) carryOut() {
	s := h.state
	for _, d := range h.doomed {
		s.spend(d.runs)
		if d.gang == nil {
			s.preempt(d.job, d.instance, d.why)
			continue
		}
		for _, i := range d.gang.All() {
			if t := &d.job.tasks[i]; t.runState.Live() && t.runState != workload.RunKilling { // who is ending anyway ends for another reason
				t.setExtra(t.ports(), d.why, 0)
			}
		}
		s.endGang(d.gang, workload.ReasonPreempted, workload.ReasonPreempted)
	}
}

// preempt ends a run that makes room, and keeps for whom in its record.
func (s *State) preempt(j *job, i uint32, why string) {
	t := &j.tasks[i]
	t.setExtra(t.ports(), why, 0)
	s.kill(j, i, workload.ReasonPreempted)
}
