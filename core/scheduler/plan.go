package scheduler

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// planWork is a plan on its way through the shards:
//  1. all its units that the pool would admit go to one shard after the other, together, as each takes room from the next; what a shard has no
//     room for goes on; then so does what it would not admit;
//  2. gangs that no shard takes alone gather over several, see planGather;
//  3. for what is left others may have to make room, see planVictims;
//  4. for what the pool would not admit lower priorities of it may have to, see planAhead.
type planWork struct {
	token   uint64
	plan    *Plan
	job     *job                        // made for the plan alone: it is in no index
	probe   *probe                      // what the plan is for; nil: an answer to PlanJob
	booked  map[*shardState][]placePart // what would be placed there
	gathers []*placeWork                // units to be gathered
	order   []*shardState               // of the first of them: still to be asked
	held    []plannedRoom               // by the first of them
	later   *placeWork                  // what goes to the shards after the rest; nil: nothing
	lost    []placePart                 // nobody has room for these
	sure    map[*jobClass]int           // how many of each class it would admit
	charged resource.Vector             // what these need
	heads   []planHead                  // what it would not, in the order in which it would be first in line
	first   bool                        // in line, when it came to its queue
	short   *PendingReason              // why it would not admit all; nil: it would
	trial   *planTrial

	rehearsed []placement.ClassID // of each of the plan's rehearsals
	could     []possible          // where classes might find room later
}

// plannedRoom is room in a shard for a part of a gang that gathers.
type plannedRoom struct {
	shard *shardState
	part  placePart
	found []shard.Assignment
}

// planJob answers what a submission would do. The placement is tried by the shards without taking room, so the answer comes later;
// what would be refused at once is refused at once.
func (s *State) planJob(token uint64, cmd *PlanJob) *Error {
	spec := cmd.Spec
	plan := &Plan{Hosts: map[string]int{}}
	old, exists := s.byName[jobName{spec.Pool, spec.Name}]
	if exists && !old.State.Terminal() {
		plan.Exists = true
		if !old.isAsked(cmd.Asked) {
			plan.Changes = s.differences(old.spec, spec)
		}
	}
	same := plan.Exists && len(plan.Changes) == 0
	if cmd.Denied != nil && !same {
		return cmd.Denied
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
	if same {
		s.external(Reply{Answer: Answer{Token: token, Plan: plan}})
		return nil
	}
	if spec.Kind == workload.Daemon {
		s.planDaemon(p)
	}
	units := p.units()
	s.planAdmission(p, units)
	s.sendPlan(p, units)
	return nil
}

// units lists what of the planned job goes together: the start of each gang, then its single instances, class by class. There is no more of it
// than one batch holds, and than may run at once. Members of a class of which nobody starts with the gang are left out.
func (p *planWork) units() []*placeWork {
	left := shard.MaxBatch
	if most := p.job.spec.MaxRunning; most > 0 {
		left = min(left, int(most))
	}
	var units []*placeWork
	for _, g := range p.job.gangs {
		u := &placeWork{job: p.job, gang: g, together: true, parts: startParts(g)}
		size := 0
		for n := range u.parts {
			u.parts[n].want = int(u.parts[n].class.size())
			size += u.parts[n].want
		}
		if int(g.Min) > left {
			continue
		}
		if size > left { // its start is looked at, and nobody who joins
			for n := range u.parts {
				u.parts[n].want = len(u.parts[n].instances)
			}
			size = int(g.Min)
		}
		left -= size
		units = append(units, u)
	}
	for _, c := range p.job.loners {
		if n := min(int(c.size()), left); n > 0 {
			left -= n
			units = append(units, &placeWork{job: p.job, parts: []placePart{{class: c, instances: make([]uint32, n), want: n}}})
		}
	}
	return units
}

// startParts is the members of a gang that start together, by class. The instances are a number only.
func startParts(g *gang) []placePart {
	counts := make([]int, len(g.classes))
	for rank, i := range g.All() {
		if rank == g.Min {
			break
		}
		counts[g.job.classOf(i).index]++
	}
	var parts []placePart
	for n, c := range g.classes {
		if counts[n] > 0 {
			parts = append(parts, placePart{class: c, instances: make([]uint32, counts[n])})
		}
	}
	return parts
}

// planAdmission says how much of the units the pool would admit, if their demand counted: the starts of gangs, then those in none, then members
// that join, as a job offers them to its queue. Once something does not fit the rest waits behind it. Where somebody else is first in line, he is
// left out of account.
func (s *State) planAdmission(p *planWork, units []*placeWork) {
	line := inLine(units)
	if len(line) == 0 { // a daemon, or a gang that is too large to be looked at
		return
	}
	undo, _ := s.stand(p, &line[0])
	defer undo()
	room, first := s.roomInLine(p.job)
	p.first = first
	p.sure = map[*jobClass]int{}
	for _, h := range line {
		each := h.each()
		n := int64(0)
		if len(p.heads) == 0 {
			n = each.Times(&room, h.times())
		}
		room = room.Sub(each.Scale(n))
		p.charged = p.charged.Add(each.Scale(n))
		for _, part := range h.parts {
			admitted := len(part.instances)
			if !h.together {
				admitted = int(n)
			} else if n == 0 {
				admitted = 0
			}
			p.sure[part.class] += admitted
			p.plan.Admitted += admitted
			p.plan.Checked += len(part.instances)
		}
		if n == h.times() {
			continue
		}
		if !h.together {
			h.parts[0].instances = h.parts[0].instances[n:]
		}
		p.heads = append(p.heads, h)
	}
	if p.plan.Admitted < p.plan.Checked {
		if r, short := s.whyPool(p.job, atOnce(p.job.spec)); short {
			r.Instances = p.plan.Checked - p.plan.Admitted
			p.short = &r
		}
	}
}

// suppose has the cell judge by the entitlements that it would come to if a planned job's demand counted, until undo is called. It costs a
// copy of the tree and a recomputation.
func (s *State) suppose(j *job) (undo func()) {
	q := s.queueOf(j.spec)
	changed, off := q.changed, s.demandOff
	s.demands(j, atOnce(j.spec).Min(mostDemand))
	is := s.pools
	s.pools = is.Clone()
	s.planEntitle(s.pools)
	s.demands(j, resource.Vector{})
	q.changed, s.demandOff = changed, off
	return func() { s.pools = is }
}

// sendPlan sends all units to the first shard: those that the pool would admit, then the others, which would come after them.
func (s *State) sendPlan(p *planWork, units []*placeWork) {
	s.plans++
	p.booked = map[*shardState][]placePart{}
	now, later := &placeWork{plan: p, job: p.job}, &placeWork{plan: p, job: p.job}
	number := uint64(0)
	add := func(w, u *placeWork) {
		number++
		u.admitted, w.host = number, u.host
		for _, part := range u.parts {
			part.unit = u
			w.parts = append(w.parts, part)
		}
	}
	for _, u := range units {
		first, rest := p.split(u)
		if first != nil {
			add(now, first)
		}
		if rest != nil {
			add(later, rest)
		}
	}
	switch {
	case len(now.parts) == 0 && len(later.parts) == 0: // a daemon, or a gang that is too large to be looked at
		s.planDone(p)
	case len(now.parts) == 0:
		s.enqueue(later)
	default:
		if len(later.parts) > 0 {
			p.later = later
		}
		s.enqueue(now)
	}
}

// split divides a unit into what the pool would admit and the rest. Those who join a gang stay with its start.
func (p *planWork) split(u *placeWork) (first, rest *placeWork) {
	part := u.parts[0]
	switch sure := p.sure[part.class]; {
	case p.probe != nil || u.gang != nil && sure > 0 || sure == len(part.instances):
		return u, nil
	case sure == 0:
		return nil, u
	default:
		one, other := *u, *u
		one.parts = []placePart{{class: part.class, instances: part.instances[:sure], want: sure}}
		other.parts = []placePart{{class: part.class, instances: part.instances[sure:], want: part.want - sure}}
		return &one, &other
	}
}

// roomInLine is what the pool would admit of a planned job that stands in its queue. first says that nobody is before it; else it is what the pool
// would admit if that was so.
func (s *State) roomInLine(j *job) (all resource.Vector, first bool) {
	q := s.queueOf(j.spec)
	room, _ := s.room(q)
	left, first := q.queue.LeftFor(j.ID, &room)
	if !first {
		return s.planRoom(j), false
	}
	return left.Entitlement.Min(left.Reservation).Min(left.Owner).Min(left.Controllers), true
}

// planRoom is what the bounds of a job's pool leave.
func (s *State) planRoom(j *job) resource.Vector {
	bars := s.bars(j.spec)
	room := bars[0].left
	for _, b := range bars[1:] {
		room = room.Min(b.left)
	}
	return room
}

// trialRequests asks a shard where the parts of the n-th work of a batch would go, beside what would be placed there already.
func (s *State) trialRequests(list []shard.PlaceRequest, n int, sh *shardState, w *placeWork) []shard.PlaceRequest {
	booked := w.plan.booked[sh]
	w.parts, w.known = append(slices.Clone(booked), w.parts[w.known:]...), len(booked)
	for i := range w.parts {
		p := &w.parts[i]
		r := shard.PlaceRequest{
			Class: s.served(p.class), Count: len(p.instances), Seed: s.cfg.Seed, DryRun: true, Trial: uint32(n) + 1,
			Pool: s.pools.Path(p.class.job.spec.Pool), Priority: p.class.job.spec.Priority, Revocable: p.class.job.spec.Revocable,
		}
		if w.host != nil {
			r.Host = w.host.ID
		}
		if u := p.unit; u != nil && u.together {
			r.Within = u.within()
			if w.to == nil {
				r.Gang, r.Want, r.Unit = true, p.want, uint32(u.admitted)
			}
		}
		list = append(list, r)
	}
	return list
}

// planned takes one shard's answer to a plan and asks the next shard for the rest.
func (s *State) planned(sh *shardState, w *placeWork, results []shard.PlaceResult) {
	p := w.plan
	parts, results := w.parts[w.known:], results[w.known:]
	if w.to != nil {
		s.planGathered(sh, p, parts, results)
		return
	}
	var rest []placePart
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].unit == parts[0].unit {
			n++
		}
		rest = append(rest, s.plannedUnit(sh, p, parts[:n], results[:n])...)
		parts, results = parts[n:], results[n:]
	}
	w.parts, w.known = rest, 0
	w.tried = append(w.tried, sh)
	if len(rest) == 0 {
		s.planGather(p)
		return
	}
	s.enqueue(w)
}

// plannedUnit notes where a unit would go, and returns what of it goes on to the next shard.
func (s *State) plannedUnit(sh *shardState, p *planWork, parts []placePart, results []shard.PlaceResult) (rest []placePart) {
	u := parts[0].unit
	if u.together {
		whole := true
		for n := range results {
			whole = whole && len(results[n].Assignments) >= len(parts[n].instances) && !slices.ContainsFunc(results[n].Assignments, s.unknownHost)
			p.probe.note(&results[n], parts[n].class)
		}
		if !whole || !s.stayTogether(u, results) {
			for n := range results {
				parts[n].noteRefusal(&results[n])
				p.couldRun(sh, parts[n].class, &results[n].Reasons)
			}
			u.noteRoom(sh, results)
			return parts
		}
		u.together = false // it starts here: the others join it
		for n := range parts {
			parts[n].refusal = placement.Reasons{}
		}
	}
	bound := u.gang != nil && u.topology().Required
	for n := range parts {
		part := &parts[n]
		s.bookPlanned(sh, p, part, results[n].Assignments)
		left := max(part.want, len(part.instances)) - len(results[n].Assignments)
		if left <= 0 {
			continue
		}
		part.instances, part.want = make([]uint32, left), left
		part.noteRefusal(&results[n])
		p.couldRun(sh, part.class, &results[n].Reasons)
		if u.gang == nil {
			p.probe.note(&results[n], part.class)
		}
		if bound {
			s.planUnitLost(p, &placeWork{job: p.job, gang: u.gang, parts: []placePart{*part}, tried: []*shardState{sh}})
			continue
		}
		rest = append(rest, *part)
	}
	return rest
}

func (s *State) unknownHost(a shard.Assignment) bool { return s.hosts[a.Host] == nil }

// bookPlanned notes instances that would be placed.
func (s *State) bookPlanned(sh *shardState, p *planWork, part *placePart, list []shard.Assignment) {
	if len(list) == 0 {
		return
	}
	booked := placePart{class: part.class, instances: make([]uint32, len(list))}
	for n := range min(len(list), p.sure[part.class]) { // only a job's own plan has such
		booked.sure = append(booked.sure, list[n].Host)
		p.sure[part.class]--
	}
	p.booked[sh] = append(p.booked[sh], booked)
	s.rehearse(p, sh, part.class, &list[0], len(list))
	for _, a := range list {
		p.plan.Placeable++
		if h := s.hosts[a.Host]; h != nil && (len(p.plan.Hosts) < MaxPlanHosts || p.plan.Hosts[h.Name] > 0) {
			p.plan.Hosts[h.Name]++
		}
	}
}

// planRefused settles what no shard has room for.
func (s *State) planRefused(w *placeWork) {
	p := w.plan
	if w.to != nil { // the shard that was to take a part of a gang is gone
		s.planGathered(w.to, p, w.parts[w.known:], make([]shard.PlaceResult, len(w.parts)-w.known))
		return
	}
	for parts := w.parts[w.known:]; len(parts) > 0; {
		n, u := 1, parts[0].unit
		for n < len(parts) && parts[n].unit == u {
			n++
		}
		u.parts, parts = parts[:n], parts[n:]
		u.tried = w.tried
		if u.together && p.probe == nil && len(s.gatherRooms(u)) > 0 {
			p.gathers = append(p.gathers, u)
			continue
		}
		s.planUnitLost(p, u)
	}
	s.planGather(p)
}

// planUnitLost says why a unit would wait.
func (s *State) planUnitLost(p *planWork, u *placeWork) {
	u.sumRooms()
	r := PendingReason{Kind: PendingNoShard, Message: "no cluster that it may use is ready"}
	if len(u.tried) > 0 {
		scarcest, never := u.scarcest()
		r = whyRefused(&scarcest, never && s.triedAll(u))
		if scarcest.Counts[placement.ReasonConstraint] > 0 {
			r.Message += s.whyUnable(p.job.spec.Template.Execution)
		}
	}
	r.Instances = u.tasks()
	if n := len(p.plan.Pending) - 1; n >= 0 && p.plan.Pending[n].Kind == r.Kind && p.plan.Pending[n].Message == r.Message {
		p.plan.Pending[n].Instances += r.Instances // the rest of a class that the pool would not admit whole
	} else {
		p.plan.Pending = append(p.plan.Pending, r)
	}
	if r.Kind == PendingPlacement {
		p.lost = append(p.lost, u.parts...)
	}
}

// scarcest is the refusal of the class of a unit for which there is least room, with the figures of the whole gang.
func (w *placeWork) scarcest() (worst placement.Reasons, never bool) {
	worst = w.parts[0].refusal
	size, largest := 0, 0
	for n := range w.parts {
		r := &w.parts[n].refusal
		size, largest, never = size+r.GangSize, largest+r.GangLargest, never || r.NeverFits
		if r.NeverFits && !worst.NeverFits || r.NeverFits == worst.NeverFits && r.GangLargest*worst.GangSize < worst.GangLargest*r.GangSize {
			worst = *r
		}
	}
	worst.GangSize, worst.GangLargest = size, largest
	return worst, never
}

// planGather takes the next gang that no shard takes alone over the shards in which it would gather, or goes on when there is none.
func (s *State) planGather(p *planWork) {
	switch {
	case len(p.gathers) > 0:
	case p.later != nil:
		s.enqueue(p.later)
		p.later, s.dispatchAgain = nil, true
		return
	default:
		s.planVictims(p)
		return
	}
	p.order, p.held = nil, nil
	for _, r := range s.gatherRooms(p.gathers[0]) {
		p.order = append(p.order, r.shard)
	}
	s.planGathered(nil, p, p.gathers[0].parts, nil)
}

// planGathered notes what a shard would take of a gathering gang, and asks the next one for the rest. What is planned there already goes along.
func (s *State) planGathered(sh *shardState, p *planWork, parts []placePart, results []shard.PlaceResult) {
	u := p.gathers[0]
	var rest []placePart
	for n := range parts {
		part := parts[n]
		if sh != nil {
			p.held = append(p.held, plannedRoom{sh, part, results[n].Assignments})
			part.instances = part.instances[:max(len(part.instances)-len(results[n].Assignments), 0)]
		}
		if len(part.instances) > 0 {
			rest = append(rest, part)
		}
	}
	switch {
	case len(rest) == 0:
		for n := range p.held {
			s.bookPlanned(p.held[n].shard, p, &p.held[n].part, p.held[n].found)
		}
		p.gathers = p.gathers[1:]
		s.planJoin(p, u)
	case len(p.order) == 0: // less room than it seemed: all start or none
		p.gathers = p.gathers[1:]
		s.planUnitLost(p, u)
		s.planGather(p)
	default:
		to := p.order[0]
		p.order = p.order[1:]
		s.enqueue(&placeWork{plan: p, job: p.job, to: to, parts: rest})
		s.dispatchAgain = true
	}
}

// planJoin goes on with those who join a gang that gathered. Where it has to stay in one cluster they are left out.
func (s *State) planJoin(p *planWork, u *placeWork) {
	u.together = false
	w := &placeWork{plan: p, job: p.job}
	for _, part := range u.parts {
		if left := part.want - len(part.instances); left > 0 && !u.topology().Required {
			part.instances, part.want, part.refusal = make([]uint32, left), left, placement.Reasons{}
			w.parts = append(w.parts, part)
		}
	}
	if len(w.parts) == 0 {
		s.planGather(p)
		return
	}
	s.enqueue(w)
	s.dispatchAgain = true
}

// planDone answers.
func (s *State) planDone(p *planWork) {
	s.plans--
	if p.probe != nil {
		s.probed(p.probe)
		return
	}
	if p.short != nil {
		p.plan.Pending = append(p.plan.Pending, *p.short)
	}
	s.rehearseLost(p)
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
	case a.Type() == reflect.TypeFor[*execution.Spec]():
		d.compare(orZero(a), orZero(b), field)
	case partOfExecution(a.Type()) && a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		d.compare(a.Elem(), b.Elem(), field)
	case partOfExecution(a.Type()) && a.Kind() == reflect.Slice && a.Len() == b.Len():
		for n := range a.Len() {
			d.compare(a.Index(n), b.Index(n), fmt.Sprintf("%s[%d]", field, n))
		}
	case isVector:
		vb, _ := b.Interface().(resource.Vector)
		for k := range va {
			if va[k] != vb[k] {
				d.add(join(field, d.state.names.Name(resource.Kind(k))), strconv.FormatInt(va[k], 10), strconv.FormatInt(vb[k], 10))
			}
		}
	case a.Kind() == reflect.Struct:
		for n := range a.NumField() {
			name := a.Type().Field(n).Name
			if name == "Execution" { // its fields stand in the task itself
				d.compare(a.Field(n), b.Field(n), field)
				continue
			}
			d.compare(a.Field(n), b.Field(n), join(field, fileName(name)))
		}
	default:
		d.add(field, show(a), show(b))
	}
}

// orZero is what a pointer points at, or nothing of that kind.
func orZero(v reflect.Value) reflect.Value {
	if v.IsNil() {
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}

// partOfExecution reports whether a type is a pointer to, or a list of, what core/execution defines.
func partOfExecution(t reflect.Type) bool {
	return (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) && t.Elem().PkgPath() == reflect.TypeFor[execution.Spec]().PkgPath()
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
	case "Main":
		return "container"
	case "Patch":
		return "pod_patch"
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
	if raw, is := v.Interface().([]byte); is {
		text = string(raw)
	}
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	return strings.ToValidUTF8(text, "") // what a cut leaves of a letter could not be sent
}

func (s *State) firstDifference(old, now *workload.JobSpec) string {
	if d := s.differences(old, now); len(d) > 0 {
		return d[0].Field
	}
	return "nothing"
}
