package scheduler

import (
	"fmt"
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
	parts  []placePart // still without room
	tried  []*shardState
	known  int // of the requests of the question: for what is planned in the shard already
	taken  map[*poolQueue]resource.Vector
	lost   map[*job]uint32
	named  map[unit]bool
	result PlanPreemption
}

// planVictims asks whose work would make room for what is left of a plan, under the rules by which it would be asked for, but at once and
// without ending anybody.
func (s *State) planVictims(p *planWork) {
	if p.probe != nil || p.job.spec.Revocable || len(p.lost) == 0 {
		s.planDone(p)
		return
	}
	t := &planTrial{taken: map[*poolQueue]resource.Vector{}, lost: map[*job]uint32{}, named: map[unit]bool{}}
	t.parts = p.withinRoom()
	p.trial = t
	s.planAsk(p)
}

// withinRoom is what of the lost the pool is entitled to beside what would be placed.
func (p *planWork) withinRoom() (parts []placePart) {
	room := p.room
	for _, list := range p.booked { // a sum: the order does not matter
		for n := range list {
			room = room.Sub(list[n].class.class.Needs.Scale(int64(len(list[n].instances))))
		}
	}
	for _, part := range p.lost {
		u := part.unit
		switch needs := part.class.class.Needs; {
		case !u.together && part.class.joinsDomain(nil):
		case u.together && len(parts) > 0 && parts[len(parts)-1].unit == u:
			parts = append(parts, part)
		case u.together:
			if u.gang.starts.FitsIn(&room) && part.class == u.parts[0].class {
				room = room.Sub(u.gang.starts)
				parts = append(parts, part)
			}
		default:
			if n := needs.Times(&room, int64(len(part.instances))); n > 0 {
				room = room.Sub(needs.Scale(n))
				part.instances = part.instances[:n]
				parts = append(parts, part)
			}
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
	if sh != nil {
		undo := s.suppose(p.job)
		victims = s.victimsOfPlan(p.job)
		undo()
	}
	if len(victims.Jobs) == 0 {
		if t.result.Instances > 0 {
			t.result.Wait = time.Duration(s.holdOff())
			p.plan.Preemption = &t.result
		}
		s.planDone(p)
		return
	}
	known := p.booked[sh]
	t.known = len(known)
	m := shard.Preempt{Epoch: sh.epoch, Batch: s.nextBatch, Now: s.now}
	s.nextBatch++
	for _, part := range append(slices.Clone(known), t.parts...) {
		r := preemption.Request{Class: part.class.class, Count: len(part.instances), Victims: victims, DryRun: true}
		if u := part.unit; u != nil && u.together {
			r.Gang, r.Unit, r.Within = true, uint32(u.admitted), u.oneDomain()
		}
		m.Requests = append(m.Requests, r)
	}
	s.press.asked[m.Batch] = &question{shard: sh, plan: p}
	s.setTimer(timer{at: s.now + int64(batchTimeout), kind: timerQuestion, batch: m.Batch})
	s.internal(ToShard{Shard: sh.id, Message: m})
}

// planPledged judges what a shard says of a plan as if it was in earnest, and goes on with the next one.
func (s *State) planPledged(sh *shardState, p *planWork, results []shard.PledgeResult) {
	t := p.trial
	t.tried = append(t.tried, sh)
	if len(results) == t.known+len(t.parts) {
		undo := s.suppose(p.job)
		parts := t.parts
		t.parts = nil
		for results = results[t.known:]; len(parts) > 0; {
			n := 1
			for parts[0].unit.together && n < len(parts) && parts[n].unit == parts[0].unit {
				n++
			}
			t.parts = append(t.parts, s.hearPlan(p, parts[:n], results[:n])...)
			parts, results = parts[n:], results[n:]
		}
		undo()
	}
	s.planAsk(p)
}

// hearPlan judges the victims of one unit and returns what of it is left without room.
func (s *State) hearPlan(p *planWork, parts []placePart, results []shard.PledgeResult) (rest []placePart) {
	t := p.trial
	h := s.hear(&plea{work: &placeWork{job: p.job, parts: parts}})
	h.taken, h.lost, h.named, h.planned = t.taken, t.lost, t.named, true
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
		h.forget(0)
		return parts
	}
	for n := range parts {
		t.result.Instances += found[n]
		if parts[n].instances = parts[n].instances[found[n]:]; len(parts[n].instances) > 0 {
			rest = append(rest, parts[n])
		}
	}
	for _, d := range h.doomed {
		t.result.Runs += d.runs
		s.nameVictims(&t.result, &d)
	}
	return rest
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
