package scheduler

import (
	"slices"
	"sort"
	"time"

	"github.com/paceline-sched/paceline/core/lifecycle"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// gang is one gang of a job in memory. What it may do follows from how many members are where; workload.GangSpec has the rules.
type gang struct {
	workload.Gang
	job     *job
	index   int         // among the spec's groups
	classes []*jobClass // the first is of the members that no other one has
	// starts is what the Min members of the lowest ranks need together: they are the ones that start.
	starts resource.Vector

	byState [workload.NumInstanceStates]uint32
	live    uint32 // members whose run holds resources
	killing uint32 // of them, those being killed

	ending bool            // this generation is being ended: no member starts any more
	cause  workload.Reason // why, while it is

	told told
}

// gangSpan is a stretch of instances that are members of one gang.
type gangSpan struct {
	workload.InstanceRange
	gang *gang
}

// layOutGangs makes the gangs of a job and its classes: each gang has classes of its own, and so have the instances in none.
func (j *job) layOutGangs() {
	gangs := j.spec.Gangs()
	plain := placement.NewClass(j.ID, j.spec, nil)
	if len(gangs) == 0 || len(j.spec.Gang.Groups) > 0 {
		j.loners = []*jobClass{{job: j, class: plain}}
	}
	for n := range gangs {
		g := &gang{Gang: gangs[n], job: j, index: n}
		g.classes = []*jobClass{{job: j, gang: g, class: plain}}
		j.gangs = append(j.gangs, g)
		for _, r := range g.Members {
			j.spans = append(j.spans, gangSpan{r, g})
		}
	}
	slices.SortFunc(j.spans, func(a, b gangSpan) int { return int(int64(a.First) - int64(b.First)) })
	j.splitClasses()
	j.classes = slices.Clone(j.loners)
	for _, g := range j.gangs {
		j.classes = append(j.classes, g.classes...)
		g.starts = g.classes[0].class.Needs.Scale(int64(g.Min))
		for _, c := range g.classes[1:] {
			for _, i := range c.members {
				if rank, _ := g.Rank(i); rank < g.Min {
					g.starts = g.starts.Sub(g.classes[0].class.Needs).Add(c.class.Needs)
				}
			}
		}
	}
}

// splitClasses gives every distinct set of overridden needs and labels a class of its own, in each gang and among the loners.
func (j *job) splitClasses() {
	type unitClass struct {
		gang *gang
		id   placement.ClassID
	}
	plain := map[unitClass]*jobClass{}
	for n := range j.spec.Overrides {
		o := &j.spec.Overrides[n]
		if o.Needs == nil && len(o.Labels) == 0 {
			continue
		}
		g := j.gangOf(o.Instance)
		list := &j.loners
		if g != nil {
			list = &g.classes
		}
		class := placement.NewClass(j.ID, j.spec, o)
		if class.ID == (*list)[0].class.ID {
			continue
		}
		key := unitClass{g, class.ID}
		c := plain[key]
		if c == nil {
			c = &jobClass{job: j, gang: g, index: len(*list), class: class}
			plain[key] = c
			*list = append(*list, c)
		}
		c.members = append(c.members, o.Instance)
	}
}

// gangOf finds the gang of an instance; nil: it is on its own.
func (j *job) gangOf(i uint32) *gang {
	if len(j.spans) == 0 {
		return nil
	}
	n := sort.Search(len(j.spans), func(n int) bool { return j.spans[n].Last >= i })
	if n == len(j.spans) || i < j.spans[n].First {
		return nil
	}
	return j.spans[n].gang
}

// GangLife of a gang: a job that is one gang keeps it in its own record, as before there were several.
func (g *gang) generation() uint32 {
	if len(g.job.spec.Gang.Groups) == 0 {
		return g.job.Generation
	}
	return g.job.Gangs[g.index].Generation
}

func (g *gang) failures() uint32 {
	if len(g.job.spec.Gang.Groups) == 0 {
		return g.job.Failures
	}
	return g.job.Gangs[g.index].Failures
}

// live on: the record of a job that was handed out keeps its list.
func (g *gang) count(generations, failures uint32) {
	j := g.job
	if len(j.spec.Gang.Groups) == 0 {
		j.Generation += generations
		j.Failures += failures
		return
	}
	j.Gangs = slices.Clone(j.Gangs)
	j.Gangs[g.index].Generation += generations
	j.Gangs[g.index].Failures += failures
}

// generationOf is the life that a new run of the instance belongs to.
func (j *job) generationOf(i uint32) uint32 {
	if g := j.gangOf(i); g != nil {
		return g.generation()
	}
	return j.Generation
}

// runMoved keeps count of a member's run.
func (g *gang) runMoved(from, to workload.RunState) {
	if from.Live() {
		g.live--
	}
	if to.Live() {
		g.live++
	}
	if from == workload.RunKilling {
		g.killing--
	}
	if to == workload.RunKilling {
		g.killing++
	}
}

// present is how many members the gang can count on.
func (g *gang) present() uint32 { return g.live - g.killing + g.byState[workload.InstanceDone] }

// ready reports whether the gang waits as a whole and may be admitted now, as far as its job is concerned.
func (g *gang) ready() bool {
	if g.ending || g.byState[workload.InstancePending] != g.Size {
		return false
	}
	if free, bounded := g.job.window(); bounded && free < int64(g.Min) {
		return false
	}
	for _, c := range g.classes {
		if c.blocked && (c.held || !c.keeps()) {
			return false
		}
	}
	return true
}

// growing reports whether members may join a gang that has started.
func (g *gang) growing() bool {
	return !g.ending && !g.finishing() && g.byState[workload.InstancePending] > 0 && g.live > 0 && g.present() >= g.Min
}

// finishing reports whether a member has succeeded in this generation: nobody joins any more.
func (g *gang) finishing() bool { return g.byState[workload.InstanceDone] > 0 }

// startWork is the start of the members that start together, by class.
func (g *gang) startWork() *placeWork {
	w := &placeWork{job: g.job, gang: g, generation: g.generation(), together: true}
	for _, c := range g.classes {
		w.parts = append(w.parts, placePart{class: c})
	}
	for rank, i := range g.All() {
		if rank == g.Min {
			break
		}
		p := &w.parts[g.job.classOf(i).index]
		p.instances = append(p.instances, i)
	}
	w.parts = slices.DeleteFunc(w.parts, func(p placePart) bool { return len(p.instances) == 0 })
	return w
}

// joinWork is up to n members of one class that wait to join a gang which has started, those of the lowest ranks.
func (c *jobClass) joinWork(n int) *placeWork {
	j, g := c.job, c.gang
	w := &placeWork{job: j, gang: g, generation: g.generation(), parts: []placePart{{class: c}}}
	p := &w.parts[0]
	for _, i := range g.All() {
		if len(p.instances) == n {
			break
		}
		if j.tasks[i].state == workload.InstancePending && j.classOf(i) == c {
			p.instances = append(p.instances, i)
		}
	}
	return w
}

// starters admits the members that start together.
func (s *State) starters(g *gang) *placeWork {
	w := g.startWork()
	w.admitted = s.started
	s.started++
	s.admitAll(w)
	return w
}

// joiners admits up to n members of one class that join their gang.
func (s *State) joiners(c *jobClass, n int) *placeWork {
	w := c.joinWork(n)
	s.admitAll(w)
	return w
}

func (s *State) admitAll(w *placeWork) {
	for n := range w.parts {
		for _, i := range w.parts[n].instances {
			s.admitted(w.job, i)
		}
	}
}

// settleMember says what becomes of a member whose run has ended, and of its gang.
func (s *State) settleMember(g *gang, i uint32, end workload.RunState, reason workload.Reason) {
	j := g.job
	if end == workload.RunSucceeded && j.spec.Kind == workload.Batch && !g.ending {
		s.set(j, i, workload.InstanceDone, end, reason)
		s.gangMayBeDone(g)
		return
	}
	s.set(j, i, workload.InstanceBackingOff, end, reason)
	switch {
	case g.ending:
		s.gangMayRestart(g)
	case g.present() >= g.Min:
		s.backOff(j, i)
		s.gangMayBeDone(g)
	default:
		if end == workload.RunFailed {
			g.count(0, 1)
		}
		s.endGang(g, reason, workload.ReasonGangFailed)
	}
}

// gangMayBeDone ends the waiting of members that were not needed: all others have ended well.
func (s *State) gangMayBeDone(g *gang) {
	if g.live > 0 || g.byState[workload.InstanceDone] < g.Min {
		return
	}
	for _, i := range g.All() {
		if t := &g.job.tasks[i]; !t.state.Terminal() {
			s.set(g.job, i, workload.InstanceDone, t.runState, t.reason)
		}
	}
}

// endGang ends this generation of a gang: its live members are killed and keep why in their records (GANG_FAILED, PREEMPTED, RESTART_REQUESTED),
// and when the last of them is gone the gang is tried again as a whole, or given up. cause is what the gang shows meanwhile. A gang that is ending already
// goes on doing so.
func (s *State) endGang(g *gang, cause, why workload.Reason) {
	if g.ending {
		return
	}
	j := g.job
	g.ending, g.cause = true, cause
	if len(j.spec.Gang.Groups) == 0 {
		j.Reason = cause
	}
	s.dirtyJob(j)
	for _, i := range g.All() { // at most MaxGang
		t := &j.tasks[i]
		if t.state == workload.InstanceAdmitted {
			s.set(j, i, workload.InstancePending, t.runState, t.reason)
		}
		s.kill(j, i, why)
	}
	s.gangMayRestart(g)
}

// gangMayRestart begins the next generation once no member lives, or gives the gang up.
func (s *State) gangMayRestart(g *gang) {
	j := g.job
	if !g.ending || g.live > 0 || j.Goal != GoalRun {
		return
	}
	preempted := g.cause == workload.ReasonPreempted && j.spec.OnPreemption == workload.PreemptKill
	if preempted || (j.spec.Kind == workload.Batch && g.failures() > j.spec.Retry.MaxRetries) {
		g.ending = false
		for _, i := range g.All() {
			if t := &j.tasks[i]; t.state != workload.InstanceFailed {
				s.set(j, i, workload.InstanceFailed, t.runState, t.reason)
			}
		}
		s.jobMayEnd(j)
		return
	}
	restart := g.cause == workload.ReasonRestartRequested
	g.ending, g.cause = false, workload.ReasonNone
	g.count(1, 0)
	if len(j.spec.Gang.Groups) == 0 {
		j.Reason = workload.ReasonNone
	}
	s.dirtyJob(j)
	if restart { // nothing went wrong: it starts at once
		for _, i := range g.All() {
			t := &j.tasks[i]
			t.notBefore = s.now
			s.set(j, i, workload.InstancePending, t.runState, t.reason)
		}
		return
	}
	attempts := uint32(0) // runs that were stable have begun anew, see runEnded
	for _, i := range g.All() {
		attempts = max(attempts, j.tasks[i].attempts)
	}
	attempts++
	first := workload.RunID{Job: j.ID, Instance: g.Members[0].First, Generation: g.generation()}
	delay := lifecycle.Backoff(j.spec.Retry, attempts, s.cfg.Seed, first)
	for _, i := range g.All() {
		t := &j.tasks[i]
		t.attempts = attempts
		t.notBefore = s.now + int64(delay)
		s.set(j, i, workload.InstancePending, t.runState, t.reason)
	}
	s.holdGang(g, delay)
}

// holdGang keeps a gang that failed out of its queue for a delay, whatever happens.
func (s *State) holdGang(g *gang, delay time.Duration) {
	for _, c := range g.classes {
		s.block(c, delay)
		c.held = true
		c.refusal, c.neverFits = placement.Reasons{}, false
	}
}

// recoverGang takes a gang up where the records of its members say that it stood. A crash between two groups may have left it in pieces: then
// the generation is ended, as it was going to be or never started.
func (s *State) recoverGang(g *gang) {
	j := g.job
	present, over, cause := uint32(0), uint32(0), workload.ReasonGangFailed
	for _, i := range g.All() {
		t := &j.tasks[i]
		alive := t.runState.Live() && t.runState != workload.RunKilling
		if t.generation == g.generation() && (alive || t.state == workload.InstanceDone) {
			present++
		}
		if t.state.Terminal() {
			over++
		}
		if t.generation == g.generation() && t.reason == workload.ReasonPreempted {
			cause = workload.ReasonPreempted
		}
		if t.reason == workload.ReasonRestartRequested && (t.runState == workload.RunKilling || t.state == workload.InstanceBackingOff) {
			cause = workload.ReasonRestartRequested // members that run and have this reason are on their way out for it
		}
	}
	first := &j.tasks[g.Members[0].First]
	switch {
	case over == g.Size:
	case present >= g.Min:
		s.gangMayBeDone(g)
	case g.byState[workload.InstancePending] < g.Size:
		s.endGang(g, cause, workload.ReasonGangFailed)
	case first.notBefore > s.now:
		s.holdGang(g, time.Duration(first.notBefore-s.now))
	}
}
