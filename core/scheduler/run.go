package scheduler

import (
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/lifecycle"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// killCall is a kill on its way to the shard of the run's host.
type killCall = driver.Kill

type ackToken = driver.Token

// startRun binds an admitted instance to a host and has it launched.
func (s *State) startRun(j *job, i uint32, h *hostState, a *shard.Assignment) {
	s.bindRun(j, i, h, a)
	s.launchRun(j, i, a.Lease)
}

// bindRun binds an admitted instance to a host: from here on the run exists.
func (s *State) bindRun(j *job, i uint32, h *hostState, a *shard.Assignment) {
	t := &j.tasks[i]
	if t.dirty != 0 { // its last run may have ended just now, with room ready for the next
		s.ownRun(&s.dirty[t.dirty-1])
	}
	s.setHome(t, h)
	t.generation = j.generationOf(i)
	t.run++
	t.config = j.Config
	t.restart = j.Restart.Number
	t.placed, t.started, t.notBefore = s.now, 0, 0
	j.waiting = 0
	t.exitCode = 0
	t.devices = a.Devices
	t.setExtra(a.Ports, "", 0)
	s.set(j, i, workload.InstanceActive, workload.RunPlaced, workload.ReasonNone)
	s.queueOf(j.spec).pace.Note(s.now, 1)
	if j.State == workload.JobPending {
		j.State = workload.JobRunning
		s.dirtyJob(j)
	}
	s.awaitLaunch(j, i, t.run)
}

// launchRun sends a bound run to its host. A gang's go when all that start together are bound, so that each can be told of the others.
func (s *State) launchRun(j *job, i uint32, lease shard.Lease) {
	h := j.tasks[i].host
	h.shard.launches = append(h.shard.launches, shard.LaunchRun{Lease: lease, HostID: h.ID, Launch: s.launch(j, i)})
}

// status applies one word of a cluster about a run. It is the same for a first word, a repeated one and one that comes late.
func (s *State) status(from *shardState, st *driver.Status) {
	if st.Token != 0 {
		from.acks = append(from.acks, st.Token)
	}
	j, ok := s.jobs[st.Run.Job]
	if !ok || int(st.Run.Instance) >= len(j.tasks) {
		s.foreign(from, st)
		return
	}
	i := st.Run.Instance
	t := &j.tasks[i]
	if t.run != st.Run.Run || t.generation != st.Run.Generation || !t.runState.Live() {
		s.foreign(from, st)
		return
	}
	if st.State.Traits().Terminal {
		s.runEnded(j, i, st)
		return
	}
	s.runProgressed(j, i, st)
}

// foreign answers a word about a run that is not the present one of its instance: whatever is still alive there has no
// business to be.
func (s *State) foreign(from *shardState, st *driver.Status) {
	if !st.State.Traits().Terminal {
		from.kills = append(from.kills, driver.Kill{Run: st.Run})
	}
}

// runProgressed moves a run forward. Statuses that lag behind what is known change nothing.
func (s *State) runProgressed(j *job, i uint32, st *driver.Status) {
	t := &j.tasks[i]
	switch {
	case t.runState == workload.RunKilling:
		return
	case st.State < t.runState && t.runState != workload.RunUnreachable:
		return
	case st.State == t.runState && (st.State != workload.RunRunning || st.Healthy == t.healthy):
		return
	}
	if st.State == workload.RunRunning && t.started == 0 {
		t.started = s.now
		s.jobStarted(j)
	}
	if st.State == workload.RunKilling { // by its cluster: the kill of a later stop would be held back
		s.remindOfKill(j, i)
	}
	was := t.healthy && t.runState == workload.RunRunning
	healthy := st.Healthy && st.State == workload.RunRunning
	if t.runState == workload.RunRunning { // set() takes care of every other state
		t.healthy = healthy
		j.countHealthy(was, healthy)
		s.set(j, i, t.state, st.State, st.Reason)
		return
	}
	s.set(j, i, t.state, st.State, st.Reason)
	t.healthy = healthy
	j.countHealthy(false, healthy)
}

func (s *State) jobStarted(j *job) {
	if j.Started != 0 {
		return
	}
	j.Started = s.now
	s.dirtyJob(j)
}

// runEnded settles a terminal status: history, ledgers, and what becomes of the instance.
func (s *State) runEnded(j *job, i uint32, st *driver.Status) {
	t := &j.tasks[i]
	end, reason := st.State, st.Reason
	if t.runState == workload.RunKilling && (end != workload.RunSucceeded || j.spec.Kind != workload.Batch) {
		end = workload.RunKilled
		if t.reason != workload.ReasonNone {
			reason = t.reason
		}
		if reason == workload.ReasonPreempted {
			end = workload.RunPreempted
		}
	}
	t.exitCode = st.ExitCode
	message := st.Message
	if t.dying() && t.extra != nil {
		message = t.extra.message // for whom it made room says more than that it was killed
	}
	t.setExtra(t.ports(), message, st.Signal)
	if t.started != 0 && s.now-t.started >= int64(lifecycle.StableAfter) {
		t.attempts = 0
	}
	s.settle(j, i, end, reason)
}

// settle applies the table of endings.
func (s *State) settle(j *job, i uint32, end workload.RunState, reason workload.Reason) {
	t := &j.tasks[i]
	switch {
	case j.goal(i) == lifecycle.Stop && end == workload.RunSucceeded && j.spec.Kind == workload.Batch:
		s.set(j, i, workload.InstanceDone, end, reason) // also a member of a gang that has failed: nobody tries that again
	case j.goal(i) == lifecycle.Stop:
		s.set(j, i, workload.InstanceStopped, end, reason)
	case j.gangOf(i) != nil:
		s.settleMember(j.gangOf(i), i, end, reason)
	default:
		v := lifecycle.After(lifecycle.Ending{
			Kind: j.spec.Kind, State: end, Reason: reason, Failures: t.failures, MaxRetries: j.spec.Retry.MaxRetries,
			Attempts: t.attempts, OnPreemption: j.spec.OnPreemption,
		})
		if v.Counts {
			t.failures++
		}
		switch {
		case v.State == workload.InstanceBackingOff:
			s.backOff(j, i)
		case v.Reason == workload.ReasonLaunchRefused:
			t.attempts++ // at once, but not again and again
		}
		s.set(j, i, v.State, end, reason)
	}
	s.jobMayEnd(j)
}

// backOff sets when an instance whose run ended is tried again.
func (s *State) backOff(j *job, i uint32) {
	t := &j.tasks[i]
	t.attempts++
	t.notBefore = s.now + int64(lifecycle.Backoff(j.spec.Retry, t.attempts, s.cfg.Seed, j.runID(i)))
	s.setTimer(timer{at: t.notBefore, kind: timerBackoff, job: j, instance: i})
}

// kill asks for the end of a live run and remembers why.
func (s *State) kill(j *job, i uint32, reason workload.Reason) {
	t := &j.tasks[i]
	if !t.runState.Live() || t.runState == workload.RunKilling {
		return
	}
	s.set(j, i, t.state, workload.RunKilling, reason)
	s.sendKill(j, i)
	s.remindOfKill(j, i)
}

// sendKill sends, or sends again, the kill of a run in KILLING.
func (s *State) sendKill(j *job, i uint32) {
	h := j.tasks[i].host
	sh := h.shard
	if sh == nil { // out of contact since the start of this core: its cluster may know the run all the same
		sh = s.shardByID(shard.ID(h.Shard))
	}
	if sh != nil {
		sh.kills = append(sh.kills, killCall{Run: j.runID(i), Grace: j.grace(i)})
	}
}

// remindOfKill sets the one timer that sends the kill again for as long as the run does not end.
func (s *State) remindOfKill(j *job, i uint32) {
	s.setTimer(timer{at: s.now + int64(j.grace(i)+s.cfg.KillResend), kind: timerKill, job: j, instance: i, run: j.tasks[i].run})
}

func (j *job) grace(i uint32) time.Duration {
	if j.tasks[i].reason == workload.ReasonRestartRequested && j.Restart.Grace > 0 {
		return j.Restart.Grace
	}
	return j.spec.Template.KillGrace
}

// lostRun ends a run that its cluster does not know, or whose host is gone.
func (s *State) lostRun(j *job, i uint32, reason workload.Reason, message string) {
	s.runEnded(j, i, &driver.Status{State: workload.RunLost, Reason: reason, Message: message})
}

// runOf finds the instance whose present, live run this is.
func (s *State) runOf(id workload.RunID) (*job, bool) {
	j, ok := s.jobs[id.Job]
	if !ok || int(id.Instance) >= len(j.tasks) {
		return nil, false
	}
	t := &j.tasks[id.Instance]
	return j, t.run == id.Run && t.generation == id.Generation && t.runState.Live()
}

// jobMayEnd finishes a job none of whose instances has anything left to do.
func (s *State) jobMayEnd(j *job) {
	if j.State.Terminal() {
		return
	}
	open := j.byState[workload.InstancePending] + j.byState[workload.InstanceAdmitted] + j.byState[workload.InstanceActive] +
		j.byState[workload.InstanceBackingOff]
	if open > 0 || (j.Goal == GoalRun && j.spec.Kind != workload.Batch) {
		return
	}
	switch {
	case j.Goal != GoalRun && j.GoalReason == workload.ReasonDeadline:
		j.State, j.Reason = workload.JobFailed, workload.ReasonDeadline
	case j.Goal != GoalRun:
		j.State, j.Reason = workload.JobStopped, workload.ReasonStopRequested
	case j.byState[workload.InstanceFailed] > 0:
		j.State, j.Reason = workload.JobFailed, workload.ReasonNoRetriesLeft
	default:
		j.State, j.Reason = workload.JobSucceeded, workload.ReasonNone
	}
	j.Finished = s.now
	j.Restart.Batch = 0
	s.leaveQueue(j)
	s.pools.DetachJob(j.spec.Pool)
	s.dirtyJobLast(j)
	s.touch(j)
	if j.Goal == GoalDelete {
		s.expire(j)
		return
	}
	s.setTimer(timer{at: s.now + int64(s.cfg.JobRetention), kind: timerExpiry, job: j})
}

// launch is what the cluster is told to run.
func (s *State) launch(j *job, i uint32) driver.Launch {
	t := &j.tasks[i]
	o := j.override(i)
	l := s.launchOf(j, i, o, t.ports())
	l.Run = j.runID(i)
	l.Devices, l.DeviceMilli = devicesOf(t.devices, &j.classOf(i).class.Needs)
	l.Env = j.environment(s, i, o)
	return l
}

// launchOf is what an instance's launch has from its job.
func (s *State) launchOf(j *job, i uint32, o *workload.Override, ports []uint16) driver.Launch {
	tmpl := &j.spec.Template
	l := driver.Launch{
		Pool: s.pools.Path(j.spec.Pool), Command: tmpl.Command, Labels: tmpl.Labels, Health: tmpl.Health, KillGrace: tmpl.KillGrace,
		Simulation: tmpl.Simulation, Execution: tmpl.Execution, Revocable: j.spec.Revocable, Needs: s.namedNeeds(j.classOf(i)),
	}
	for n, p := range ports {
		l.Ports = append(l.Ports, driver.AssignedPort{Name: tmpl.Ports[n].Name, Number: p})
	}
	if o != nil {
		if len(o.Command) > 0 {
			l.Command = o.Command
		}
		l.Labels = merged(tmpl.Labels, o.Labels)
	}
	return l
}

func retryDelay(previous time.Duration) time.Duration {
	if previous == 0 {
		return shortestRetry
	}
	return min(previous*2, longestRetry)
}

// namedNeeds spells the needs of a class out, once for all its launches, which only read them.
func (s *State) namedNeeds(c *jobClass) map[string]int64 {
	if c.named == nil {
		c.named = make(map[string]int64, 4)
		for k, q := range c.class.Needs {
			if q != 0 {
				c.named[s.names.Name(resource.Kind(k))] = q
			}
		}
	}
	return c.named
}
