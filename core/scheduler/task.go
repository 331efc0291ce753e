package scheduler

import (
	"maps"
	"slices"
	"sort"
	"strconv"

	"github.com/paceline-sched/paceline/core/lifecycle"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// plannedJob lays out no more of a job than placement asks of it: a plan of a million instances is as cheap as one of ten.
func plannedJob(rec JobRecord, spec *workload.JobSpec) *job {
	j := &job{JobRecord: rec, spec: spec, sweep: -1, planned: spec.Kind != workload.Daemon}
	j.layOutGangs()
	return j
}

// newJob lays out a job in memory with every instance PENDING.
func newJob(rec JobRecord, spec *workload.JobSpec, specBytes int) *job {
	j := plannedJob(rec, spec)
	j.specBytes, j.planned = specBytes, false
	if spec.Kind == workload.Daemon {
		j.daemonHome = map[workload.HostID]uint32{}
	} else {
		j.tasks = make([]task, spec.Instances)
	}
	j.byState[workload.InstancePending] = uint32(len(j.tasks))
	j.byRun[workload.RunNone] = uint32(len(j.tasks))
	for _, c := range j.classes {
		c.waiting = c.size()
		if c.gang == nil {
			c.returned = append(c.returned, c.members...)
		}
	}
	for _, g := range j.gangs {
		g.byState[workload.InstancePending] = g.Size
	}
	if spec.Gang != nil && len(j.Gangs) != len(spec.Gang.Groups) {
		j.Gangs = slices.Repeat([]GangLife{{Generation: 1}}, len(spec.Gang.Groups))
	}
	return j
}

func (c *jobClass) size() uint32 {
	if c.index > 0 {
		return uint32(len(c.members))
	}
	j, unit := c.job, c.job.loners
	n := uint32(len(j.tasks))
	if j.planned {
		n = j.spec.Instances
	}
	if c.gang != nil {
		unit, n = c.gang.classes, c.gang.Size
	} else {
		for _, g := range j.gangs {
			n -= g.Size
		}
	}
	for _, other := range unit[1:] {
		n -= uint32(len(other.members))
	}
	return n
}

// classOf costs a binary search per overridden class, of which most jobs have none.
func (j *job) classOf(i uint32) *jobClass {
	unit := j.loners
	if g := j.gangOf(i); g != nil {
		unit = g.classes
	}
	for _, c := range unit[1:] {
		if n := sort.Search(len(c.members), func(n int) bool { return c.members[n] >= i }); n < len(c.members) && c.members[n] == i {
			return c
		}
	}
	return unit[0]
}

func (j *job) override(i uint32) *workload.Override {
	o := j.spec.Overrides
	if n := sort.Search(len(o), func(n int) bool { return o[n].Instance >= i }); n < len(o) && o[n].Instance == i {
		return &o[n]
	}
	return nil
}

func (j *job) needs(i uint32) *resource.Vector { return &j.classOf(i).class.Needs }

func (j *job) runID(i uint32) workload.RunID {
	t := &j.tasks[i]
	return workload.RunID{Job: j.ID, Instance: i, Generation: t.generation, Run: t.run}
}

func (j *job) taskRecord(i uint32) TaskRecord {
	t := &j.tasks[i]
	r := TaskRecord{
		Job: j.ID, Instance: i, Generation: t.generation, Run: t.run, State: t.state, RunState: t.runState, Reason: t.reason,
		Healthy: t.healthy, Config: t.config, Failures: t.failures, Restart: t.restart, Attempts: t.attempts, Devices: t.devices,
		ExitCode: t.exitCode, Since: t.since, Placed: t.placed, Started: t.started, NotBefore: t.notBefore, HeldMillis: t.heldMillis,
	}
	if r.State == workload.InstanceAdmitted {
		r.State = workload.InstancePending
	}
	if t.host != nil {
		r.Host = t.host.ID
	}
	if t.extra != nil {
		r.Ports, r.Message, r.Signal = t.extra.ports, t.extra.message, t.extra.signal
	}
	return r
}

// setMessage keeps what few runs have out of the task itself.
func (t *task) setExtra(ports []uint16, message string, signal int32) {
	if len(ports) == 0 && message == "" && signal == 0 {
		t.extra = nil
		return
	}
	t.extra = &taskExtra{ports: ports, message: message, signal: signal}
}

func (t *task) ports() []uint16 {
	if t.extra == nil {
		return nil
	}
	return t.extra.ports
}

// charges reports whether an instance counts as usage of its pool: from admission on, and as long as its run state says so.
func (t *task) charges() bool {
	return t.state == workload.InstanceAdmitted || t.runState.Traits().Charges
}

// dying reports whether an instance's run makes room for other work and has not ended yet.
func (t *task) dying() bool {
	return t.runState == workload.RunKilling && t.reason == workload.ReasonPreempted
}

// end keeps what of a pool's usage is being killed.
func (q *poolQueue) end(needs *resource.Vector, on bool) {
	if on {
		q.ending = q.ending.Add(*needs)
		return
	}
	q.ending = q.ending.Sub(*needs)
}

// die keeps what of a pool's usage is on its way out by preemption.
func (q *poolQueue) die(needs *resource.Vector, on bool) {
	if on {
		q.dying = q.dying.Add(*needs)
		return
	}
	q.dying = q.dying.Sub(*needs)
}

// set moves an instance to a state. It is the only place that does, so that counts, ledgers and records follow by
// construction.
func (s *State) set(j *job, i uint32, state workload.InstanceState, run workload.RunState, reason workload.Reason) {
	t := &j.tasks[i]
	class := j.classOf(i)
	charged, live, wasHealthy := t.charges(), t.runState.Live(), t.healthy && t.runState == workload.RunRunning
	wasPlaced, wasDying, wasEnding := t.runState == workload.RunPlaced, t.dying(), t.runState == workload.RunKilling
	silent := run == t.runState && (state == workload.InstanceAdmitted || t.state == workload.InstanceAdmitted) &&
		(state == workload.InstancePending || t.state == workload.InstancePending)
	ended := run.Traits().Terminal && live

	class.moved(t.state, state)
	j.byRun[t.runState]--
	j.byRun[run]++
	if class.gang != nil {
		class.gang.runMoved(t.runState, run)
	} else if state == workload.InstancePending {
		class.comeBack(i)
	}
	t.state, t.runState, t.reason = state, run, reason
	if !silent {
		t.since = s.now
	}
	if run != workload.RunRunning {
		t.healthy = false
	}
	j.countHealthy(wasHealthy, t.healthy && run == workload.RunRunning)

	if now := t.charges(); now != charged {
		s.charge(j, &class.class.Needs, now)
	}
	s.foresee(j, t, &class.class.Needs)
	if now := run.Live(); now != live {
		s.occupy(j, t, &class.class.Needs, now)
		s.hold(class, t, now)
	}
	if now := t.dying(); now != wasDying {
		s.queueOf(j.spec).die(&class.class.Needs, now)
	}
	if now := run == workload.RunKilling; now != wasEnding {
		s.queueOfJob(j).end(&class.class.Needs, now)
	}
	if now := run == workload.RunPlaced; now != wasPlaced {
		t.host.expect(now)
	}
	s.touch(j)
	if !silent {
		if e := s.dirtyTask(j, i); ended {
			e.ended = true
		}
	}
}

// moved keeps count of an instance that goes from one state to another.
func (c *jobClass) moved(from, to workload.InstanceState) {
	c.job.byState[from]--
	c.job.byState[to]++
	c.countWaiting(from, ^uint32(0))
	c.countWaiting(to, 1)
	if c.gang != nil {
		c.gang.byState[from]--
		c.gang.byState[to]++
	}
}

// countWaiting adds to what the class has of a state in which an instance waits.
func (c *jobClass) countWaiting(state workload.InstanceState, n uint32) {
	switch state {
	case workload.InstancePending:
		c.waiting += n
	case workload.InstanceAdmitted:
		c.admitted += n
	case workload.InstanceBackingOff:
		c.backingOff += n
	default: // it runs, or has ended
	}
}

func (j *job) countHealthy(was, is bool) {
	if was && !is {
		j.healthy--
	}
	if is && !was {
		j.healthy++
	}
}

// occupy keeps the host and cell ledgers of what live runs hold.
func (s *State) occupy(j *job, t *task, needs *resource.Vector, on bool) {
	h := t.host
	if on {
		if j.live++; j.live == 1 {
			q := s.queueOf(j.spec)
			j.slot = len(q.running)
			q.running = append(q.running, j)
		}
		s.live++
		s.used = s.used.Add(*needs)
		h.used = h.used.Add(*needs)
		s.queueOfJob(j).hold(h.Cluster, needs, on)
		h.tasks++
		if h.shard != nil {
			h.shard.free = h.shard.free.Sub(*needs)
		}
		return
	}
	if j.live--; j.live == 0 {
		s.queueOf(j.spec).leaves(j)
	}
	s.live--
	s.used = s.used.Sub(*needs)
	h.used = h.used.Sub(*needs)
	s.queueOfJob(j).hold(h.Cluster, needs, on)
	h.tasks--
	s.freed++
	if h.shard != nil {
		h.shard.free = h.shard.free.Add(*needs)
	}
}

// leaves takes a job out of those with live runs.
func (q *poolQueue) leaves(j *job) {
	last := q.running[len(q.running)-1]
	q.running[j.slot], last.slot = last, j.slot
	q.running[len(q.running)-1] = nil
	q.running = q.running[:len(q.running)-1]
}

// expect notes that a run on the host waits for its first status, or does no more.
func (h *hostState) expect(on bool) {
	n := -1
	if on {
		n = 1
	}
	h.unheard += n
	if h.shard != nil {
		h.shard.unheard += n
	}
}

// setHome keeps count of whom a host's record must outlive.
func (s *State) setHome(t *task, h *hostState) {
	if t.host != nil {
		t.host.homes--
	}
	if t.host = h; h != nil {
		h.homes++
	}
}

// touch notes that the job's waiting work may have changed, for the cycle of this Step.
func (s *State) touch(j *job) {
	s.miscounted(j)
	if !j.isMoved {
		j.isMoved = true
		s.moved = append(s.moved, j)
	}
}

// take picks up to n waiting instances of a class of loners, returned ones first, and marks them ADMITTED.
func (s *State) take(c *jobClass, n int, into []uint32) []uint32 {
	j, charged := c.job, int64(0)
	rest := c.returned
	for len(rest) > 0 && n > 0 {
		i := rest[0]
		rest = rest[1:]
		if j.tasks[i].state == workload.InstancePending {
			into = append(into, i)
			charged += s.shift(j, i, workload.InstanceAdmitted)
			n--
		}
	}
	c.returned = rest
	if len(rest) == 0 {
		c.returned = nil
	}
	for ; c.index == 0 && n > 0 && int(c.fresh) < len(j.tasks); c.fresh++ {
		i := c.fresh
		if t := &j.tasks[i]; t.state != workload.InstancePending || t.touched || j.classOf(i) != c {
			continue // it is among the returned ones, or another class's
		}
		into = append(into, i)
		charged += s.shift(j, i, workload.InstanceAdmitted)
		n--
	}
	s.chargeMany(j, &c.class.Needs, charged)
	return into
}

// shift does what set does for an instance that goes from PENDING to ADMITTED or back, which no record tells, but for the charge. It returns
// how often its needs are to be charged; below zero, refunded. A class that no host takes comes and goes hundreds of instances at a time.
func (s *State) shift(j *job, i uint32, to workload.InstanceState) int64 {
	t, c := &j.tasks[i], j.classOf(i)
	was := t.charges()
	c.moved(t.state, to)
	if c.gang == nil && to == workload.InstancePending {
		c.comeBack(i)
	}
	t.state = to
	s.foresee(j, t, &c.class.Needs)
	s.touch(j)
	switch now := t.charges(); {
	case now && !was:
		return 1
	case was && !now:
		return -1
	}
	return 0
}

// chargeMany posts the charge of so many instances of one class as one.
func (s *State) chargeMany(j *job, needs *resource.Vector, n int64) {
	if all := needs.Scale(max(n, -n)); n != 0 {
		s.charge(j, &all, n > 0)
	}
}

func (s *State) admitted(j *job, i uint32) {
	t := &j.tasks[i]
	s.set(j, i, workload.InstanceAdmitted, t.runState, t.reason)
}

// comeBack queues a returned instance. One that goes and comes without being taken leaves entries behind, which are dropped before they
// outgrow what waits.
func (c *jobClass) comeBack(i uint32) {
	const slack = 64
	if len(c.returned) >= 2*int(c.waiting)+slack {
		seen := make(map[uint32]bool, c.waiting)
		c.returned = slices.DeleteFunc(c.returned, func(r uint32) bool {
			drop := seen[r] || r == i || c.job.tasks[r].state != workload.InstancePending
			seen[r] = true
			return drop
		})
	}
	c.returned = append(c.returned, i)
}

// unadmit returns instances that found no host.
func (s *State) unadmit(j *job, instances []uint32) {
	var class *jobClass
	charged := int64(0)
	for _, i := range instances {
		if j.tasks[i].state != workload.InstanceAdmitted {
			continue
		}
		if c := j.classOf(i); c != class {
			if class != nil {
				s.chargeMany(j, &class.class.Needs, charged)
			}
			class, charged = c, 0
		}
		charged += s.shift(j, i, workload.InstancePending)
	}
	if class != nil {
		s.chargeMany(j, &class.class.Needs, charged)
	}
}

// goal is what is wanted of one instance.
func (j *job) goal(i uint32) lifecycle.Goal {
	t := &j.tasks[i]
	switch {
	case j.Goal != GoalRun, j.daemonHome != nil && !t.matched:
		return lifecycle.Stop
	case j.Restart.Batch > 0 && t.restart < j.Restart.Number && j.Restart.covers(i):
		return lifecycle.Renew
	}
	return lifecycle.Run
}

// devicesOf spells a device set out for a driver.
func devicesOf(set placement.DeviceSet, needs *resource.Vector) (devices []int, milli int64) {
	if set == 0 {
		return nil, 0
	}
	for d := range placement.MaxDevices {
		if set&(1<<d) != 0 {
			devices = append(devices, d)
		}
	}
	return devices, min(needs[resource.GPU], 1000)
}

// environment is what a run finds beside the variables that its host manager adds.
func (j *job) environment(s *State, i uint32, o *workload.Override) map[string]string {
	size := len(j.spec.Template.Env) + 16
	if o != nil {
		size += len(o.Env)
	}
	env := make(map[string]string, size)
	env["PACELINE_JOB"] = j.spec.Name
	if j.spelled.step != s.steps {
		instances := len(j.tasks)
		if j.planned {
			instances = int(j.spec.Instances)
		}
		j.spelled = spelled{s.steps, j.ID.String(), s.pools.Path(j.spec.Pool), strconv.Itoa(instances)}
	}
	env["PACELINE_JOB_ID"] = j.spelled.id
	env["PACELINE_POOL"] = j.spelled.pool
	env["PACELINE_INSTANCE"] = strconv.Itoa(int(i))
	env["PACELINE_INSTANCES"] = j.spelled.instances
	if g := j.gangOf(i); g != nil {
		s.gangEnvironment(g, i, env)
	}
	maps.Copy(env, j.spec.Template.Env)
	if o != nil {
		maps.Copy(env, o.Env)
	}
	return env
}

func merged(under, over map[string]string) map[string]string {
	if len(over) == 0 {
		return under
	}
	all := make(map[string]string, len(under)+len(over))
	maps.Copy(all, under)
	maps.Copy(all, over)
	return all
}
