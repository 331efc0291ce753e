package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Explain answers why instances of a job wait. It works the reasons out when asked: nothing is kept for it on the hot path.
func (r Reader) Explain(id workload.JobID) (Explanation, bool) {
	s := r.s
	j, ok := s.jobs[id]
	if !ok {
		return Explanation{}, false
	}
	e := Explanation{Job: s.jobView(j)}
	e.Pool, _ = r.PoolByID(j.spec.Pool)
	if q := s.queues[queueKey{j.spec.Pool, j.spec.Revocable}]; q != nil {
		e.Queued = q.queue.Len()
		if ahead, queued := q.queue.Ahead(id); queued {
			e.Position = ahead + 1
		}
	}
	for _, g := range j.gangs {
		e.Gangs = append(e.Gangs, g.view())
	}
	if j.State.Terminal() || j.Goal != GoalRun {
		return e, true
	}
	for _, c := range j.classes {
		e.Reasons = append(e.Reasons, s.whyWaiting(c)...)
	}
	e.Reasons = mergeReasons(e.Reasons)
	e.Reasons = append(e.Reasons, j.whyBackingOff()...)
	if n := int(j.byState[workload.InstanceAdmitted]); n > 0 {
		e.Reasons = append(e.Reasons, PendingReason{
			Kind: PendingBeingPlaced, Instances: n, Message: s.whyAdmitted(j),
		})
	}
	if j.homeless() {
		e.Reasons = append(e.Reasons, s.noMatchingHost(j))
	}
	slices.SortStableFunc(e.Reasons, func(a, b PendingReason) int { return a.Kind.rank() - b.Kind.rank() })
	if len(e.Reasons) > 0 {
		e.Dominant = e.Reasons[0].Kind
	}
	return e, true
}

// mergeReasons makes one of neighbours that say the same: a job may have a thousand gangs.
func mergeReasons(list []PendingReason) []PendingReason {
	kept := list[:0]
	for _, r := range list {
		if n := len(kept) - 1; n >= 0 && kept[n].Kind == r.Kind && kept[n].Message == r.Message {
			kept[n].Instances += r.Instances
		} else {
			kept = append(kept, r)
		}
	}
	return kept
}

// whyAdmitted says who is at work for instances that were admitted.
func (s *State) whyAdmitted(j *job) string {
	if g := s.gathering; g != nil && g.work.job == j {
		return fmt.Sprintf("a gang gathers over shards: %d of %d members have found a host", len(g.held), g.work.tasks())
	}
	if why, pledged := s.whyPledged(j, true); pledged {
		return why
	}
	for _, w := range s.gathers {
		if w.job == j {
			return "a gang has to gather over shards, and another one does so now"
		}
	}
	return "a shard is looking for hosts"
}

// offers reports whether the class is what stands in the queue.
func (j *job) offers(c *jobClass) bool {
	return c == j.offered || (j.starting != nil && c.gang == j.starting)
}

func (j *job) whyBackingOff() []PendingReason {
	if j.byState[workload.InstanceBackingOff] == 0 {
		return nil
	}
	r := PendingReason{Kind: PendingBackoff}
	var last workload.Reason
	for i := range j.tasks {
		if t := &j.tasks[i]; t.state == workload.InstanceBackingOff {
			r.Instances++
			if r.NotBefore == 0 || t.notBefore < r.NotBefore {
				r.NotBefore, last = t.notBefore, t.reason
			}
		}
	}
	r.Message = fmt.Sprintf("%s ended (%s) and wait before they are tried again", plural(r.Instances, "instance"), last)
	return []PendingReason{r}
}

// whyWaiting explains the PENDING instances of one class.
func (s *State) whyWaiting(c *jobClass) []PendingReason {
	j := c.job
	waiting := int(c.waiting)
	if waiting == 0 {
		return nil
	}
	var list []PendingReason
	within := int(c.withinWindow())
	if within > 0 {
		r := s.whyClass(c)
		r.Instances = within
		list = append(list, r)
	}
	if within < waiting {
		list = append(list, PendingReason{
			Kind: PendingWindow, Instances: waiting - within,
			Message: fmt.Sprintf("max_running lets %s live at once", plural(int(j.spec.MaxRunning), "instance")),
		})
	}
	return list
}

// whyClass finds the one reason that holds a class up now.
func (s *State) whyClass(c *jobClass) PendingReason {
	j := c.job
	if !s.anyReady(c) {
		return PendingReason{Kind: PendingNoShard, Message: "no cluster that it may use is ready: " + s.shardTrouble(c)}
	}
	switch state := c.state(); state {
	case waitsPromised:
		why, _ := s.whyPledged(j, false)
		return PendingReason{Kind: state.kind(), Message: why}
	case waitsHeld:
		return PendingReason{Kind: state.kind(), NotBefore: c.retryAt, Message: "its gang failed and waits before it is tried again"}
	case waitsRefused, waitsNever:
		r := whyRefused(&c.refusal, state == waitsNever)
		if c.refusal.Counts[placement.ReasonConstraint] > 0 {
			r.Message += s.whyUnable(j.spec.Template.Execution)
		}
		r.Message += s.whyKept(c)
		return r
	case waitsFinished:
		return PendingReason{Kind: state.kind(), Message: "its gang is finishing, as a member has succeeded: nobody joins any more"}
	default: // in the queue, or to be
	}
	q := s.queueOf(j.spec)
	room, ok := s.room(q)
	if !ok || !j.offers(c) {
		return PendingReason{Kind: PendingQueue, Message: "other instances of the job go first"}
	}
	standing, _ := q.queue.Explain(j.ID, &room)
	return s.whyQueued(j, standing)
}

// whyQueued puts a standing in the pool's queue into words.
func (s *State) whyQueued(j *job, st admission.Standing) PendingReason {
	kind := s.standingKind(j.spec, &st)
	_, what := accountOf(j.spec, st.Account)
	r := PendingReason{Kind: kind, Resource: s.names.Name(st.Kind), Needed: st.Need, Available: max(st.Has, 0), Position: st.Ahead}
	if kind == PendingEntitlement {
		what = s.entitlementOf(j.spec.Pool)
	}
	pool := s.poolPath(j.spec.Pool)
	switch st.Verdict {
	case admission.First:
		r.Message = s.fallsShort(st.Kind, r.Needed, r.Available, what, pool) + "; it is the next to get what becomes free"
		r.StartBy = st.Start
		if st.Spare > 0 {
			r.Message += fmt.Sprintf("; %s of that stay free for short work", s.names.Figure(st.Kind, st.Spare))
		}
	case admission.OutOfReach:
		r.Message = fmt.Sprintf("needs %s, and the whole %s of pool %s is %s", s.names.Amount(st.Kind, r.Needed), what, pool,
			s.names.Figure(st.Kind, r.Available))
		if has := s.capacity[st.Kind]; has < st.Need {
			r.Available = has
			r.Message = fmt.Sprintf("needs %s, and all hosts of the cell together have %s", s.names.Amount(st.Kind, r.Needed), s.names.Figure(st.Kind, has))
			if r.Hosts = s.tooSmall(&j.offered.class.Needs); r.Hosts.NeverFits {
				r.Message += "; " + describeRefusal(&r.Hosts, true)
			}
		}
	case admission.Behind:
		r = PendingReason{Kind: kind, Resource: s.names.Name(st.Kind), Position: st.Ahead}
		r.Message = fmt.Sprintf("%s ahead of it, and one of them waits for %s too", ahead(st.Ahead, pool), s.names.Noun(st.Kind))
		if st.Account == admission.OfOwner || st.Account == admission.OfControllers {
			r.Message = fmt.Sprintf("another job waits for %s of the %s of pool %s too", s.names.Noun(st.Kind), what, pool)
		}
	case admission.NotReached:
		r = PendingReason{Kind: kind, Position: st.Ahead, Message: ahead(st.Ahead, pool) + " ahead of it"}
	case admission.Admissible:
		r = PendingReason{Kind: kind, Message: "it is next to be admitted"}
	}
	return r
}

func (s *State) fallsShort(k resource.Kind, need, left int64, what, pool string) string {
	return fmt.Sprintf("needs %s, and %s is left of the %s of pool %s", s.names.Amount(k, need), s.names.Figure(k, left), what, pool)
}

// accountOf names what an account measures, in a sentence: "the whole ... of pool /a".
func accountOf(spec *workload.JobSpec, a admission.Account) (PendingKind, string) {
	switch {
	case a == admission.OfReservation:
		return PendingReservation, "reservation (its work may not be preempted)"
	case a == admission.OfControllers:
		return PendingControllerLimit, "part for controllers"
	case a == admission.OfOwner:
		return PendingUserLimit, "limit of owner " + spec.Owner
	case spec.Revocable:
		return PendingSlack, "slack for revocable work"
	}
	return PendingEntitlement, "entitlement"
}

func ahead(n int, pool string) string {
	if n == 1 {
		return "1 job of pool " + pool + " is"
	}
	return fmt.Sprintf("%d jobs of pool %s are", n, pool)
}

func whyRefused(refusal *placement.Reasons, never bool) PendingReason {
	if refusal.Hosts == 0 {
		return PendingReason{Kind: PendingPlacement, Message: "the clusters that it may use have no host to look at, or gave no answer; they are asked again"}
	}
	r := PendingReason{Kind: PendingPlacement, Hosts: *refusal, Message: describeRefusal(refusal, never)}
	if never {
		r.Kind = PendingNeverFits
	}
	return r
}

// whyUnable says how many hosts cannot do what a task is made of, in the form "; 12 hosts cannot run container images".
func (s *State) whyUnable(e *execution.Spec) string {
	unable := func(f execution.Feature, is func(string) bool) string {
		n := 0
		for _, h := range s.hostNames {
			if h.Present && is(h.Summary.Attributes[string(f)]) {
				n++
			}
		}
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("; %s cannot %s", plural(n, "host"), f.Verb())
	}
	asked := e.Asks()
	if len(asked) == 0 {
		return unable(execution.FeatureCommand, func(v string) bool { return v == execution.FeatureNo })
	}
	m := ""
	for _, f := range asked {
		m += unable(f, func(v string) bool { return v != execution.FeatureYes })
	}
	return m
}

// tooSmall counts the hosts that could not hold one task even if they were empty, by the first kind that they lack. It looks at capacities
// alone: who never got as far as a shard has no better account.
func (s *State) tooSmall(needs *resource.Vector) placement.Reasons {
	r := placement.Reasons{NeverFits: true}
	for _, h := range s.hostNames {
		if !h.Present {
			continue
		}
		r.Hosts++
		lacks := placement.NumReasons
		for k, need := range needs {
			if need > h.Summary.Capacity[k] {
				lacks = reasonOf(resource.Kind(k))
				break
			}
		}
		if lacks == placement.NumReasons {
			r.NeverFits = false
			return r
		}
		r.Counts[lacks]++
	}
	return r
}

func reasonOf(k resource.Kind) placement.Reason {
	builtin := [resource.FirstNamed]placement.Reason{
		resource.CPU: placement.ReasonCPU, resource.Memory: placement.ReasonMemory, resource.Disk: placement.ReasonDisk,
		resource.GPU: placement.ReasonGPU,
	}
	if k < resource.FirstNamed {
		return builtin[k]
	}
	return placement.ReasonNamed
}

// describeRefusal says it in the form "4213 hosts: cpu 3900, label 313".
func describeRefusal(r *placement.Reasons, never bool) string {
	var parts []string
	for reason, n := range r.Counts {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", placement.Reason(reason), n))
		}
	}
	m := fmt.Sprintf("%s: %s", plural(r.Hosts, "host"), strings.Join(parts, ", "))
	switch {
	case r.GangSize == 0 && r.GangDomain != "":
		m += fmt.Sprintf("; they have to join their gang in %s", r.GangDomain)
	case r.GangSize == 0:
	case r.GangDomain != "":
		m += fmt.Sprintf("; largest placeable now: %d of %d (in %s)", r.GangLargest, r.GangSize, r.GangDomain)
	default:
		m += fmt.Sprintf("; largest placeable now: %d of %d", r.GangLargest, r.GangSize)
	}
	if never {
		m += "; none would take it even if it were empty"
	}
	return m
}

// whyPool compares what is needed with what the pool has left.
func (s *State) whyPool(j *job, need resource.Vector) (PendingReason, bool) {
	for _, b := range s.bars(j.spec) {
		if need.FitsIn(&b.left) {
			continue
		}
		scarcest, worst := resource.Kind(0), -1.0
		for k, n := range need {
			if n > 0 && n > b.left[k] {
				if short := float64(n-b.left[k]) / float64(n); short > worst {
					scarcest, worst = resource.Kind(k), short
				}
			}
		}
		r := PendingReason{Kind: b.kind, Resource: s.names.Name(scarcest), Needed: need[scarcest], Available: max(b.left[scarcest], 0)}
		if b.kind == PendingEntitlement {
			b.what = s.entitlementOf(j.spec.Pool)
		}
		r.Message = s.fallsShort(scarcest, r.Needed, r.Available, b.what, s.poolPath(j.spec.Pool))
		return r, true
	}
	return PendingReason{}, false
}

func (s *State) anyReady(c *jobClass) bool {
	for _, sh := range s.shards {
		if sh.ready && mayUse(c, sh) {
			return true
		}
	}
	return false
}

func (s *State) shardTrouble(c *jobClass) string {
	for _, sh := range s.shards {
		if mayUse(c, sh) {
			return fmt.Sprintf("shard %s: %s", sh.id, sh.message)
		}
	}
	if len(c.class.Placement.Clusters) > 0 {
		return fmt.Sprintf("none of %s is connected", strings.Join(c.class.Placement.Clusters, ", "))
	}
	return "none is connected"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
