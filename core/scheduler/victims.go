package scheduler

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxVictimJobs bounds the jobs of a snapshot. Pools furthest above their entitlement come first.
const maxVictimJobs = 1 << 14

// victimsBetween is who may make room. One Step has one answer for all that ask, so that they draw on it together.
func (s *State) victimsBetween() *preemption.Snapshot {
	if p := &s.press; p.step != s.steps || p.between == nil {
		p.step, p.between = s.steps, s.aboveEntitlement()
	}
	return s.press.between
}

// victimPool is a pool that uses more than it is entitled to, or the revocable work of one.
type victimPool struct {
	queue   *poolQueue
	over    resource.Vector
	overage int64
}

// aboveEntitlement is the work of pools above their entitlement and all revocable work.
func (s *State) aboveEntitlement() *preemption.Snapshot {
	var pools []victimPool
	for p := range s.pools.All() {
		a, _ := s.pools.Account(p.ID)
		for _, q := range s.queuesOf(p.ID) {
			if len(q.running) == 0 {
				continue
			}
			if q.revocable {
				pools = append(pools, victimPool{queue: q, overage: math.MaxInt64})
				continue
			}
			used := q.effective(a.Usage)
			if over := used.Sub(a.Entitlement).Max(resource.Vector{}); !over.IsZero() {
				pools = append(pools, victimPool{q, over, preemption.Overage(used, a.Entitlement)})
			}
		}
	}
	slices.SortStableFunc(pools, func(a, b victimPool) int { return cmp.Compare(b.overage, a.overage) })
	snap := &preemption.Snapshot{Plain: s.cfg.Victims.Plain}
	var candidates []preemption.Candidate
	for _, p := range pools {
		at := int32(-1)
		if !p.queue.revocable {
			at = int32(len(snap.Pools)) //nolint:gosec // at most MaxPools
			snap.Pools = append(snap.Pools, preemption.Pool{Over: p.over})
		}
		for _, j := range p.queue.running {
			if len(snap.Jobs) >= maxVictimJobs {
				break
			}
			candidates = s.enlist(snap, candidates, j, at, p.overage)
		}
	}
	return s.ranked(snap, candidates)
}

func (s *State) ranked(snap *preemption.Snapshot, candidates []preemption.Candidate) *preemption.Snapshot {
	for n, rank := range s.cfg.Victims.Ranker.Rank(candidates) {
		if n < len(snap.Jobs) {
			snap.Jobs[n].Rank = max(rank, 0)
		}
	}
	return snap
}

// enlist enters a job with live runs, each of its gangs for itself.
func (s *State) enlist(snap *preemption.Snapshot, candidates []preemption.Candidate, j *job, pool int32, overage int64) []preemption.Candidate {
	allow := int32(min(j.budget().Left(), math.MaxInt32)) //nolint:gosec // bounded in the call
	if !j.spec.Preemptible || allow == 0 {
		return candidates
	}
	add := func(e preemption.Job) {
		e.ID, e.Revocable, e.Pool, e.Allow = j.ID, j.spec.Revocable, pool, allow
		snap.Jobs = append(snap.Jobs, e)
		candidates = append(candidates, preemption.Candidate{Job: j.ID, Pool: j.spec.Pool, Priority: j.spec.Priority, Over: overage})
	}
	for _, g := range j.gangs {
		if g.live > g.killing && !g.ending {
			use, work := s.gangUse(g)
			add(preemption.Job{Members: g.Members, Gang: int32(g.live), Use: use, Work: work}) //nolint:gosec // at most MaxGang
		} else {
			add(preemption.Job{Members: g.Members}) // on its way out already
			snap.Jobs[len(snap.Jobs)-1].Allow = 0
		}
	}
	if len(j.loners) > 0 {
		add(preemption.Job{})
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
	planned bool            // nothing is carried out
	needs   resource.Vector // kinds that the work asks for
	taken   map[*poolQueue]resource.Vector
	lost    map[*job]uint32
	gangs   map[*gang]bool
	doomed  []doomed
}

// doomed is a run that is to make room; of a gang, one of its members.
type doomed struct {
	job      *job
	instance uint32
	gang     *gang
	runs     int
	why      string
}

func (s *State) hear(in *plea) *hearing {
	h := &hearing{state: s, in: in, taken: map[*poolQueue]resource.Vector{}, lost: map[*job]uint32{}, gangs: map[*gang]bool{}}
	for n := range in.work.parts {
		h.needs = h.needs.Add(in.work.parts[n].class.class.Needs)
	}
	return h
}

// admit takes one victim in, or says that it must not go. What has ended, or is ending, need not.
func (h *hearing) admit(id workload.RunID) bool {
	j, lives := h.state.runOf(id)
	if !lives || j.tasks[id.Instance].runState == workload.RunKilling {
		return true
	}
	g := j.gangOf(id.Instance)
	if g != nil && (g.ending || h.gangs[g]) {
		return true
	}
	d := doomed{job: j, instance: id.Instance, gang: g, runs: 1}
	use := *j.needs(id.Instance)
	if g != nil {
		use, _ = h.state.gangUse(g)
		d.runs = int(g.live - g.killing)
	}
	why, may := h.may(j, &use)
	if !may || uint64(j.budget().Left()) < uint64(h.lost[j])+uint64(d.runs) { //nolint:gosec // a count
		return false
	}
	d.why = why
	q := h.state.queueOf(j.spec)
	h.taken[q] = h.taken[q].Add(use)
	h.lost[j] += uint32(d.runs) //nolint:gosec // at most MaxGang
	if g != nil {
		h.gangs[g] = true
	}
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
