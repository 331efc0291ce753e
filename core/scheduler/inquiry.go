package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/estimate"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxProbes bounds the dry runs of one inquiry: one of the work as it is, the others without one restriction each.
const maxProbes = 16

// What an explanation says of itself where it does not say all.
const (
	noteBusy    = "the hosts were not asked what would let it start, as they are asked on behalf of many others at this moment; ask again shortly"
	noteUntried = "not every edit of its pools was tried out, as many are asked for at this moment; ask again shortly"
)

// inquiry is an explanation on its way through the shards. It is answered when the last of its probes is.
type inquiry struct {
	token uint64
	job   *job
	open  int
	found []Remedy
	notes []string
}

// probe is one dry run of an inquiry.
type probe struct {
	inquiry *inquiry
	plan    *planWork
	without string // the restriction that is left out; empty: none
	nearest shard.Nearest
	needs   resource.Vector
}

// note keeps the nearest host that any shard has. A plan without a probe does not want it.
func (p *probe) note(r *shard.PlaceResult, c *jobClass) {
	if p == nil {
		return
	}
	p.needs = c.class.Needs
	hosts := p.nearest.Hosts + r.Nearest.Hosts
	if r.Nearest.Hosts > 0 && (p.nearest.Hosts == 0 || r.Nearest.Lacks.PartOf(&p.needs) < p.nearest.Lacks.PartOf(&p.needs)) {
		p.nearest = r.Nearest
	}
	p.nearest.Hosts = hosts
}

// inquire explains a job. What hosts refuse is tried again by the shards without taking room, once as it is and once without each of its
// restrictions: a shard looks at each of its hosts once for each.
func (s *State) inquire(token uint64, id workload.JobID) *Error {
	j, ok := s.jobs[id]
	if !ok {
		return refuse(NotFound, "job", "list the jobs and choose one", "job %s is not known", id)
	}
	q := &inquiry{token: token, job: j, open: 1}
	switch c := j.refusedClass(s); {
	case c == nil:
	case s.plans+maxProbes > MaxPlans:
		q.notes = append(q.notes, noteBusy)
	default:
		s.sendProbes(q, c)
	}
	s.concluded(q)
	return nil
}

// refusedClass is the first class that waits for hosts or a cluster, not for its pool.
func (j *job) refusedClass(s *State) *jobClass {
	if !j.runnable() {
		return nil
	}
	for _, c := range j.classes {
		if c.waiting > 0 && !c.held && (c.blocked || !s.anyReady(c)) {
			return c
		}
	}
	return nil
}

func (s *State) sendProbes(q *inquiry, c *jobClass) {
	at := slices.Index(q.job.classes, c)
	n, together := 1, false
	if g := c.gang; g != nil && !g.growing() {
		n, together = min(int(g.Min), int(c.size()), shard.MaxBatch), true
	}
	var home *hostState
	if q.job.daemonHome != nil {
		if home = c.refusedHome(); home == nil {
			return
		}
	}
	for _, v := range variants(q.job.spec) {
		rec := JobRecord{ID: q.job.ID, Order: q.job.Order, Goal: GoalRun}
		p := &planWork{plan: &Plan{Hosts: map[string]int{}}, job: plannedJob(rec, v.spec)}
		if at >= len(p.job.classes) {
			continue
		}
		p.probe = &probe{inquiry: q, plan: p, without: v.without}
		q.open++
		class := p.job.classes[at]
		s.sendPlan(p, []*placeWork{{
			job: p.job, gang: class.gang, host: home, together: together, parts: []placePart{{class: class, instances: make([]uint32, n)}},
		}})
	}
}

// refusedHome is the host of the first of a daemon's instances that wait: no other would do for it.
func (c *jobClass) refusedHome() *hostState {
	for i := range c.job.tasks {
		if t := &c.job.tasks[i]; t.state == workload.InstancePending && t.matched && c.job.classOf(uint32(i)) == c {
			return t.host
		}
	}
	return nil
}

// variant is a job's spec without one of its restrictions.
type variant struct {
	spec    *workload.JobSpec
	without string
}

// restrictions names what a job asks for beside quantities.
func restrictions(spec *workload.JobSpec) (list []string) {
	for _, v := range variants(spec)[1:] {
		list = append(list, v.without)
	}
	return list
}

// variants lists a spec as it is, and without each of its restrictions, at most maxProbes in all.
func variants(spec *workload.JobSpec) []variant {
	list := []variant{{spec: spec}}
	without := func(what string, edit func(*workload.JobSpec)) {
		if len(list) < maxProbes {
			edited := *spec
			edit(&edited)
			list = append(list, variant{&edited, what})
		}
	}
	p := &spec.Placement
	if len(p.Clusters) > 0 {
		without("clusters "+strings.Join(p.Clusters, ", "), func(e *workload.JobSpec) { e.Placement.Clusters = nil })
	}
	if p.HostPool != "" {
		without("host pool "+p.HostPool, func(e *workload.JobSpec) { e.Placement.HostPool = "" })
	}
	for n, c := range p.Constraints {
		without("constraint "+describeConstraint(&c), func(e *workload.JobSpec) {
			e.Placement.Constraints = slices.Delete(slices.Clone(p.Constraints), n, n+1)
		})
	}
	for _, f := range spec.Template.Execution.Asks() {
		if f != execution.FeatureCommand {
			without(f.Noun(), func(e *workload.JobSpec) { e.Template.Execution = spec.Template.Execution.Without(f) })
		}
	}
	if models := spec.Template.GPUModels; len(models) > 0 {
		without("GPU model "+strings.Join(models, ", "), func(e *workload.JobSpec) { e.Template.GPUModels = nil })
	}
	for n, a := range p.Affinities {
		if a.Weight == 0 {
			word := "affinity"
			if a.Anti {
				word = "anti-affinity"
			}
			without(word+" by "+a.Topology, func(e *workload.JobSpec) {
				e.Placement.Affinities = slices.Delete(slices.Clone(p.Affinities), n, n+1)
			})
		}
	}
	for n, sp := range p.Spreads {
		if sp.MaxSkew > 0 {
			without("spread over "+sp.Topology, func(e *workload.JobSpec) {
				e.Placement.Spreads = slices.Delete(slices.Clone(p.Spreads), n, n+1)
			})
		}
	}
	if p.Exclusive {
		without("exclusive hosts", func(e *workload.JobSpec) { e.Placement.Exclusive = false })
	}
	for n, port := range spec.Template.Ports {
		if port.Number != 0 {
			without(fmt.Sprintf("fixed port %d", port.Number), func(e *workload.JobSpec) {
				e.Template.Ports = slices.Clone(spec.Template.Ports)
				e.Template.Ports[n].Number = 0
			})
		}
	}
	if spec.Gang != nil && spec.Gang.Topology.Required {
		without("one "+spec.Gang.Topology.Key+" for the gang", func(e *workload.JobSpec) {
			g := *spec.Gang
			g.Topology.Required = false
			e.Gang = &g
		})
	}
	return list
}

func describeConstraint(c *workload.Constraint) string {
	switch c.Op {
	case workload.OpExists:
		return c.Key + " exists"
	case workload.OpNotExists:
		return c.Key + " does not exist"
	case workload.OpIn, workload.OpNotIn, workload.OpGt, workload.OpLt:
	}
	word := map[workload.Operator]string{workload.OpIn: "in", workload.OpNotIn: "not in", workload.OpGt: ">", workload.OpLt: "<"}[c.Op]
	return c.Key + " " + word + " " + strings.Join(c.Values, ", ")
}

// probed takes in what became of a probe.
func (s *State) probed(p *probe) {
	q := p.inquiry
	plan := p.plan.plan
	switch {
	case p.without != "" && plan.Placeable > 0 && len(plan.Pending) == 0:
		q.found = append(q.found, Remedy{
			Kind: RemedyRestriction, Restriction: p.without, size: 1, Message: p.without + " were not asked for",
		})
	case p.without == "" && p.nearest.Hosts > 0 && p.plan.job.spec.Gang == nil:
		s.hostRemedies(p)
	}
	s.concluded(q)
}

func (s *State) hostRemedies(p *probe) {
	n := &p.nearest
	r := Remedy{Kind: RemedyHostRoom, Amount: n.Lacks, Host: s.hostPath(n.Host), Hosts: n.Hosts, size: n.Lacks.PartOf(&p.needs)}
	r.Message = fmt.Sprintf("%s came free on host %s", s.names.Amounts(&n.Lacks), r.Host)
	if n.Hosts > 1 {
		r.Message += fmt.Sprintf(", the nearest of %s that lack nothing but room", plural(n.Hosts, "host"))
	}
	p.inquiry.found = append(p.inquiry.found, r)
	p.inquiry.found = append(p.inquiry.found, s.returns(p.inquiry.job, n, p.needs)...)
}

// concluded counts one part of an inquiry as done, and answers after the last.
func (s *State) concluded(q *inquiry) {
	if q.open--; q.open > 0 {
		return
	}
	e, ok := s.Reader().Explain(q.job.ID)
	if !ok {
		s.external(Reply{Answer: Answer{Token: q.token, Err: refuse(NotFound, "job", "", "job %s was erased meanwhile", q.job.ID)}})
		return
	}
	remedies := q.found
	if q.job.refusedClass(s) == nil {
		remedies = nil // what the probes found is over
	}
	switch {
	case e.Dominant == PendingNoMatchingHost:
		remedies = s.matchRemedies(q.job)
	case e.Dominant != 0 && q.job.offered != nil:
		more, start, untried := s.outlook(q.job)
		remedies, e.Start = append(remedies, more...), start
		if untried {
			q.notes = append(q.notes, noteUntried)
		}
	}
	if e.Dominant != 0 {
		e.At = s.now
	}
	e.Remedies, e.Notes = smallest(remedies), q.notes
	s.external(Reply{Answer: Answer{Token: q.token, Why: &e}})
}

// EstimateStart tells when the job's work that stands in its pool's queue will start, on the best basis and by the pool's pace alone.
func (r Reader) EstimateStart(id workload.JobID) (best, pace estimate.Start) {
	if j, ok := r.s.jobs[id]; ok && j.offered != nil {
		question, start := r.s.forecast(j)
		return start, question.AtPace()
	}
	return estimate.Start{}, estimate.Start{}
}

// outlook says what would let the job's offered work start, and when it will.
func (s *State) outlook(j *job) (remedies []Remedy, start estimate.Start, untried bool) {
	question, start := s.forecast(j)
	own := question.Own
	all := own
	for _, u := range question.Ahead {
		all = all.Add(u.Needs.Scale(u.Count))
	}
	if !question.Whole {
		all = own // too many to say what would be enough for all of them; what the pool lacks for this one alone is too little
		if !own.FitsIn(&question.Free) {
			return nil, start, false
		}
	}
	ahead, _ := s.queueOf(j.spec).queue.Ahead(j.ID)
	remedies, untried = s.poolRemedies(j, own, all, ahead)
	return remedies, start, untried
}

// forecast gathers what an estimate of the job's start goes by, and makes it. It costs as much as looking at the estimate's bounds.
func (s *State) forecast(j *job) (estimate.Question, estimate.Start) {
	q := s.queueOf(j.spec)
	entry, _ := q.queue.Get(j.ID)
	question := estimate.Question{Now: s.now, Free: s.planRoom(j), Own: entry.Needs, RunTime: entry.RunTime, Pace: &q.pace}
	if p, ok := s.pools.Pool(q.pool); ok {
		question.Fills = p.Queue.Backfill == respool.BackfillEASY
	}
	var standing admission.Standing
	if room, ok := s.room(q); ok {
		standing, _ = q.queue.Explain(j.ID, &room)
	}
	for e := range q.queue.All() {
		if e.Job == j.ID {
			question.Whole = true
			break
		}
		if len(question.Ahead) == estimate.MaxAhead {
			break
		}
		if (standing.Account == admission.OfOwner && e.Owner != entry.Owner) || (standing.Account == admission.OfControllers && !e.Controller) {
			continue // it waits for another bound
		}
		question.Ahead = append(question.Ahead, estimate.Unit{Needs: e.Needs, Count: int64(e.Count), RunTime: e.RunTime})
		question.Tasks += s.tasksOf(&e)
	}
	if ahead, _ := q.queue.Ahead(j.ID); !question.Whole && len(question.Ahead) > 0 {
		question.Tasks = question.Tasks * int64(ahead) / int64(len(question.Ahead)) // the rest like the first of them
	}
	q.ends.Visit(func(at int64, v resource.Vector) bool {
		if at < s.now {
			at = s.now + int64(admission.Overrun)
		}
		question.Ends = append(question.Ends, estimate.End{At: at, Holds: v})
		return len(question.Ends) < estimate.MaxEnds
	})
	if standing.Start != 0 { // back-fill has promised it a time
		return question, estimate.Start{At: standing.Start, Basis: estimate.RunTimes}
	}
	return question, question.Answer()
}

// tasksOf is how many tasks an entry stands for: a gang's start is one of many.
func (s *State) tasksOf(e *admission.Entry) int64 {
	if j := s.jobs[e.Job]; j != nil && j.starting != nil {
		return int64(j.starting.Min)
	}
	return int64(e.Count)
}
