package scheduler

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// planWork is a plan on its way through the shards.
type planWork struct {
	token uint64
	plan  *Plan
	job   *job   // made for the plan alone: it is in no index
	open  int    // works not yet answered
	probe *probe // what the plan is for; nil: an answer to PlanJob
}

// planJob answers what a submission would do. The placement is tried by the shards without taking room, so the answer comes later;
// what would be refused at once is refused at once.
func (s *State) planJob(token uint64, spec *workload.JobSpec) *Error {
	plan := &Plan{Hosts: map[string]int{}}
	old, exists := s.byName[jobName{spec.Pool, spec.Name}]
	if exists && !old.State.Terminal() {
		plan.Exists = true
		plan.Changes = s.differences(old.spec, spec)
	}
	if err := s.checkSpec(spec, 0); err != nil {
		return err
	}
	if s.plans >= MaxPlans {
		err := refuse(ResourceExhausted, "", "try again in a moment", "%d plans are being worked on, and no more are taken", s.plans)
		err.RetryAfter = time.Second
		return err
	}
	p := &planWork{token: token, plan: plan, job: plannedJob(JobRecord{Order: s.nextOrder, Goal: GoalRun}, spec)}
	if plan.Exists && len(plan.Changes) == 0 {
		s.external(Reply{Answer: Answer{Token: token, Plan: plan}})
		return nil
	}
	s.sendPlan(p)
	return nil
}

func (s *State) sendPlan(p *planWork) {
	left := shard.MaxBatch
	room := s.planRoom(p.job)
	s.plans++
	for _, c := range p.job.classes {
		n := min(int(c.size()), left)
		if n == 0 {
			continue
		}
		left -= n
		p.plan.Checked += n
		admitted := c.class.Needs.Times(&room, int64(n))
		room = room.Sub(c.class.Needs.Scale(admitted))
		p.plan.Admitted += int(admitted)
		p.open++
		s.enqueue(&placeWork{plan: p, job: p.job, together: c.gang != nil && !c.gang.Elastic(), parts: []placePart{{class: c, instances: make([]uint32, n)}}})
	}
	if p.open == 0 { // a daemon's hosts are found out when it runs
		s.plans--
		s.external(Reply{Answer: Answer{Token: p.token, Plan: p.plan}})
	}
}

// planRoom is what the pool would still admit.
func (s *State) planRoom(j *job) resource.Vector {
	bars := s.bars(j.spec)
	room := bars[0].left
	for _, b := range bars[1:] {
		room = room.Min(b.left)
	}
	return room
}

// planned takes one shard's answer to a plan and asks the next shard for the rest.
func (s *State) planned(sh *shardState, w *placeWork, results []shard.PlaceResult) {
	p := w.plan
	for _, a := range results[0].Assignments {
		p.plan.Placeable++
		if h := s.hosts[a.Host]; h != nil && (len(p.plan.Hosts) < MaxPlanHosts || p.plan.Hosts[h.Name] > 0) {
			p.plan.Hosts[h.Name]++
		}
	}
	rest := w.parts[0].instances[:min(results[0].Refused, len(w.parts[0].instances))]
	if len(rest) == 0 {
		s.planAnswered(p)
		return
	}
	w.parts[0].instances = rest
	w.parts[0].noteRefusal(&results[0])
	p.probe.note(&results[0], w.parts[0].class)
	w.tried = append(w.tried, sh)
	s.enqueue(w)
}

func (s *State) planRefused(w *placeWork) {
	part := &w.parts[0]
	r := PendingReason{Kind: PendingNoShard, Message: "no cluster that it may use is ready"}
	if len(w.tried) > 0 {
		r = whyRefused(&part.refusal, part.refusal.NeverFits && s.triedAll(w))
	}
	r.Instances = len(part.instances)
	w.plan.plan.Pending = append(w.plan.plan.Pending, r)
	s.planAnswered(w.plan)
}

func (s *State) planAnswered(p *planWork) {
	p.open--
	if p.open > 0 {
		return
	}
	s.plans--
	if p.probe != nil {
		s.probed(p.probe)
		return
	}
	if a := p.plan; a.Admitted < a.Checked {
		if r, short := s.whyPool(p.job, atOnce(p.job.spec)); short {
			r.Instances = a.Checked - a.Admitted
			a.Pending = append(a.Pending, r)
		}
	}
	s.external(Reply{Answer: Answer{Token: p.token, Plan: p.plan}})
}

// differences lists the fields in which two specs differ, by their path in a job file.
func (s *State) differences(old, now *workload.JobSpec) []FieldChange {
	d := differ{state: s}
	d.compare(reflect.ValueOf(*old), reflect.ValueOf(*now), "")
	return d.list
}

// MaxPlans bounds the plans that wait for shards at one time.
const MaxPlans = 64

// maxFieldChanges bounds the differences that a plan lists.
const maxFieldChanges = 100

type differ struct {
	state *State
	list  []FieldChange
}

func (d *differ) compare(a, b reflect.Value, field string) {
	if len(d.list) >= maxFieldChanges || reflect.DeepEqual(a.Interface(), b.Interface()) || (empty(a) && empty(b)) {
		return
	}
	va, isVector := a.Interface().(resource.Vector)
	switch {
	case isVector:
		vb, _ := b.Interface().(resource.Vector)
		for k := range va {
			if va[k] != vb[k] {
				d.add(join(field, d.state.names.Name(resource.Kind(k))), strconv.FormatInt(va[k], 10), strconv.FormatInt(vb[k], 10))
			}
		}
	case a.Kind() == reflect.Struct:
		for n := range a.NumField() {
			d.compare(a.Field(n), b.Field(n), join(field, fileName(a.Type().Field(n).Name)))
		}
	default:
		d.add(field, show(a), show(b))
	}
}

// empty reports a list or map without entries: a spec that was stored and read may have nil where another has none.
func empty(v reflect.Value) bool {
	return (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0
}

func (d *differ) add(field, old, now string) {
	if len(d.list) < maxFieldChanges {
		d.list = append(d.list, FieldChange{Field: field, Old: old, New: now})
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fileName is how a job file spells a field of the spec.
func fileName(name string) string {
	switch name {
	case "Template":
		return "task"
	case "Needs":
		return "resources"
	}
	var b strings.Builder
	for n, r := range name {
		if unicode.IsUpper(r) && n > 0 && (n+1 == len(name) || !unicode.IsUpper(rune(name[n-1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// show renders a value in a message, within bounds.
func show(v reflect.Value) string {
	const longest = 200
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "none"
		}
		v = v.Elem()
	}
	text := fmt.Sprintf("%v", v.Interface())
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	return text
}

func (s *State) firstDifference(old, now *workload.JobSpec) string {
	if d := s.differences(old, now); len(d) > 0 {
		return d[0].Field
	}
	return "nothing"
}
