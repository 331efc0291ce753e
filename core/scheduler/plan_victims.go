package scheduler

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// PlanPreemption says what others would have to give up for a planned job. It is what preemption would do if nothing changed until then.
type PlanPreemption struct {
	Instances int           // of the job, that would start by it
	Runs      int           // of others, that would be ended
	Victims   []PlanVictim  // the first of them, at most MaxPlanVictims
	Wait      time.Duration // how long the job would wait at least before others had to go
}

// Describe says it in a sentence.
func (p *PlanPreemption) Describe() string {
	if p.Runs == 0 {
		return plural(p.Instances, "instance") + " would start once runs that are ending have ended"
	}
	return fmt.Sprintf("%s would start once %s of others made room, after two entitlement periods (%v) at the earliest; "+
		"entitlements that move until then may change that", plural(p.Instances, "instance"), plural(p.Runs, "run"), p.Wait)
}

// PlanVictim is a run that would make room for a planned job.
type PlanVictim struct {
	Job      workload.JobID
	Name     string
	Pool     string // path
	Instance uint32
	Host     string
	Why      string
}

// planTrial asks the shards who would make room for what a plan found none for.
type planTrial struct {
	parts   []placePart // still without room
	tried   []*shardState
	known   int                                  // of the requests of the question: for what is planned in the shard already
	found   map[*shardState][]preemption.Request // for which others would make room there
	free    bool                                 // only free room is looked for
	head    *plea                                // that is asked for; nil: the parts are
	victims *preemption.Snapshot                 // of the last question
	rounds  int                                  // in which room was found for heads
	taken   map[*poolQueue]resource.Vector
	lost    map[*job]uint32
	named   map[unit]bool
	doomed  []doomed // so far
	result  PlanPreemption
}

// planVictims asks whose work would make room for what is left of a plan, under the rules by which it would be asked for, but at once and
// without ending anybody. Nobody has to go while others are first in line in the pool.
func (s *State) planVictims(p *planWork) {
	if p.probe != nil || p.job.spec.Revocable || !p.first || len(p.lost) == 0 && len(p.heads) == 0 {
		s.planDone(p)
		return
	}
	p.trial = &planTrial{
		parts: p.admittedLost(), found: map[*shardState][]preemption.Request{},
		taken: map[*poolQueue]resource.Vector{}, lost: map[*job]uint32{}, named: map[unit]bool{},
	}
	s.planAsk(p)
}

// admittedLost is what the pool would admit and no shard has room for.
func (p *planWork) admittedLost() (parts []placePart) {
	left := maps.Clone(p.sure)
	for _, part := range p.lost {
		if !part.unit.together && part.class.joinsDomain(nil) {
			continue
		}
		n := min(len(part.instances), left[part.class])
		if part.unit.together && n < len(part.instances) {
			continue // its whole start is admitted, or nothing of it
		}
		left[part.class] -= n
		if part.instances = part.instances[:n]; n > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// planAsk asks the next shard, with what is planned there already, or answers.
func (s *State) planAsk(p *planWork) {
	t := p.trial
	var sh *shardState
	for _, one := range s.shards {
		if sh == nil && one.ready && !slices.Contains(t.tried, one) && len(t.parts) > 0 && mayUse(t.parts[0].class, one) {
			sh = one
		}
	}
	victims := &preemption.Snapshot{}
	if sh != nil && !t.free {
		undo := s.suppose(p.job)
		victims = s.victimsOfPlan(p.job)
		undo()
	}
	switch {
	case sh != nil && t.free: // of those who are found to leave it is room that is free, too
		victims = &preemption.Snapshot{}
	case len(victims.Jobs) > 0:
	case t.free:
		t.free, t.tried = false, nil
		s.planAsk(p)
		return
	default:
		t.tried = nil
		s.planAhead(p)
		return
	}
	var requests []preemption.Request
	for _, part := range t.parts {
		r := preemption.Request{Class: part.class.class, Count: len(part.instances), Victims: victims, DryRun: true}
		if u := part.unit; u.together {
			r.Gang, r.Unit, r.Within = true, uint32(u.admitted), u.oneDomain()
		}
		requests = append(requests, r)
	}
	s.sendTrial(sh, p, victims, requests)
}

// sendTrial asks a shard who would make room, beside what is planned there already.
func (s *State) sendTrial(sh *shardState, p *planWork, victims *preemption.Snapshot, requests []preemption.Request) {
	p.trial.victims = victims
	known := append(p.knownIn(sh, victims), p.trial.found[sh]...)
	p.trial.known = len(known)
	m := shard.Preempt{Epoch: sh.epoch, Batch: s.nextBatch, Now: s.now, Requests: append(known, requests...)}
	s.nextBatch++
	s.press.asked[m.Batch] = &question{shard: sh, plan: p}
	s.setTimer(timer{at: s.now + int64(batchTimeout), kind: timerQuestion, batch: m.Batch})
	s.internal(ToShard{Shard: sh.id, Message: m})
}

// maxPinned bounds the hosts on which a question of a plan books what would be placed there. What goes beyond is booked where the search likes.
const maxPinned = 64

// knownIn is what of the plan the pool would admit and the shard place.
func (p *planWork) knownIn(sh *shardState, victims *preemption.Snapshot) (list []preemption.Request) {
	for _, part := range p.booked[sh] {
		hosts := slices.SortedFunc(slices.Values(part.sure), func(a, b workload.HostID) int { return bytes.Compare(a[:], b[:]) })
		for len(hosts) > 0 {
			n := 1
			for n < len(hosts) && hosts[n] == hosts[0] {
				n++
			}
			r := preemption.Request{Class: part.class.class, Count: n, Victims: victims, DryRun: true, Host: hosts[0]}
			if len(list) >= maxPinned {
				n = len(hosts)
				r.Count, r.Host = n, workload.HostID{}
			}
			list, hosts = append(list, r), hosts[n:]
		}
	}
	return list
}

// planPledged judges what a shard says of a plan as if it was in earnest, and goes on with the next one.
func (s *State) planPledged(sh *shardState, p *planWork, results []shard.PledgeResult) {
	t := p.trial
	t.tried = append(t.tried, sh)
	if t.head != nil {
		s.headPledged(sh, p, results)
		return
	}
	if len(results) == t.known+len(t.parts) {
		undo := s.suppose(p.job)
		parts := t.parts
		t.parts = nil
		for results = results[t.known:]; len(parts) > 0; {
			n := 1
			for parts[0].unit.together && n < len(parts) && parts[n].unit == parts[0].unit {
				n++
			}
			t.parts = append(t.parts, s.hearPlan(sh, p, parts[:n], results[:n])...)
			parts, results = parts[n:], results[n:]
		}
		undo()
	}
	s.planAsk(p)
}

// hearPlan judges the victims of one unit and returns what of it is left without room.
func (s *State) hearPlan(sh *shardState, p *planWork, parts []placePart, results []shard.PledgeResult) (rest []placePart) {
	t := p.trial
	h := s.hearTrial(t, &plea{work: &placeWork{job: p.job, parts: parts}})
	found := make([]int, len(parts))
	whole := true
	for n := range parts {
		for m := range results[n].Pledges {
			if found[n] < len(parts[n].instances) && s.hosts[results[n].Pledges[m].Host] != nil && h.all(results[n].Pledges[m].Victims) {
				found[n]++
			}
		}
		whole = whole && found[n] == len(parts[n].instances)
	}
	if parts[0].unit.together && !whole {
		h.forget(len(t.doomed))
		return parts
	}
	for n := range parts {
		part := &parts[n]
		t.result.Instances += found[n]
		p.sure[part.class] -= found[n]
		if found[n] > 0 {
			r := preemption.Request{Class: part.class.class, Count: found[n], Victims: t.victims, DryRun: true}
			if u := part.unit; u.together {
				r.Gang, r.Unit, r.Within = true, uint32(u.admitted), u.oneDomain()
			}
			t.found[sh] = append(t.found[sh], r)
		}
		if parts[n].instances = parts[n].instances[found[n]:]; len(parts[n].instances) > 0 {
			rest = append(rest, parts[n])
		}
	}
	s.doom(t, h)
	return rest
}

// hearTrial judges what a shard says of a plan beside what it said before.
func (s *State) hearTrial(t *planTrial, in *plea) *hearing {
	h := s.hear(in)
	h.taken, h.lost, h.named, h.doomed, h.planned = t.taken, t.lost, t.named, slices.Clone(t.doomed), true
	return h
}

// doom notes whom a hearing has added.
func (s *State) doom(t *planTrial, h *hearing) {
	for n := len(t.doomed); n < len(h.doomed); n++ {
		t.result.Runs += h.doomed[n].runs
		s.nameVictims(&t.result, &h.doomed[n])
	}
	t.doomed = h.doomed
}

// nameVictims lists a run that would go; of a gang, all.
func (s *State) nameVictims(r *PlanPreemption, d *doomed) {
	name := func(i uint32) {
		task := &d.job.tasks[i]
		if len(r.Victims) == MaxPlanVictims || !task.runState.Live() || task.runState == workload.RunKilling {
			return
		}
		_, why, _ := strings.Cut(d.why, ": ")
		r.Victims = append(r.Victims, PlanVictim{
			Job: d.job.ID, Name: d.job.spec.Name, Pool: s.poolPath(d.job.spec.Pool), Instance: i, Host: task.host.Name, Why: why,
		})
	}
	if d.gang == nil {
		name(d.instance)
		return
	}
	for _, i := range d.gang.All() {
		name(i)
	}
}
