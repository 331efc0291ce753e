package cluster

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

const (
	// defaultGrace is from TERM to KILL.
	defaultGrace = 3 * time.Second
	// groupPause is from the end of a group's task to the kill of the others.
	groupPause = 10 * time.Millisecond
	// executorExit is from the end of a group's last task to the end of their executor.
	executorExit = 40 * time.Millisecond
)

// executor runs the tasks of a group, or is a framework's own.
type executor struct {
	id        string
	container string // its own; those of its tasks are nested in it
	framework *framework
	agent     *agent
	role      string
	resources bundle
	custom    bool
	tasks     []*task // that have not ended
	failed    bool    // one has, and the others go
	over      bool
}

// container is a task's process and what its executor says of it.
type container struct {
	id      string
	task    *task
	behave  Behaviour
	state   mesos.TaskState // the latest, whether the framework heard of it or not
	killing bool
	reason  *mesos.TaskStatus_Reason // of the kill
	failing *mesos.TaskStatus_Reason // it counts as failed, for this
	healthy *bool
	checked *mesos.CheckStatusInfo
	misses  int // failed health checks in a row
	timers  []*timer
	pid     uint32
}

func (ct *container) describe() *mesos.ContainerStatus {
	status := &mesos.ContainerStatus{
		ContainerID: &mesos.ContainerID{Value: ct.id},
		NetworkInfos: []mesos.NetworkInfo{{IPAddresses: []mesos.NetworkInfo_IPAddress{
			{IPAddress: &ct.task.agent.info.IP},
		}}},
	}
	if e := ct.task.executor; e != nil && !e.custom {
		status.ContainerID.Parent = &mesos.ContainerID{Value: e.container}
	}
	if ct.pid > 0 {
		status.ExecutorPID = &ct.pid
	}
	return status
}

// later is after, for something that a container does; it is off when the container ends.
func (c *Cluster) later(ct *container, d time.Duration, do func()) {
	ct.timers = append(ct.timers, c.after(d, do))
}

// begin starts a task's process.
func (c *Cluster) begin(t *task) {
	ct := &container{id: c.uuid(), task: t, state: mesos.TASK_STAGING, pid: uint32(1000 + c.chance.IntN(30000))} //nolint:gosec // not negative
	t.container = ct
	c.containers[ct.id] = ct
	if c.cfg.Behave == nil {
		c.emit(Start{Container: ct.id, Task: t.info})
		return
	}
	ct.behave = c.cfg.Behave(t.info)
	c.later(ct, ct.behave.Start, func() { c.started(ct) })
}

// Started says that a process that Start asked for runs.
func (c *Cluster) Started(id string, pid uint32) {
	if ct := c.containers[id]; ct != nil && ct.state == mesos.TASK_STAGING {
		ct.pid = pid
		ct.behave.For = Forever
		c.started(ct)
	}
}

// Ended says that a process that Start asked for is over, or never came to be.
func (c *Cluster) Ended(id string, status ExitStatus) {
	if ct := c.containers[id]; ct != nil {
		c.exit(ct, status)
	}
}

func (c *Cluster) started(ct *container) {
	switch {
	case ct.behave.FetchFails:
		message := fmt.Sprintf("Failed to launch container: Failed to fetch all URIs for container '%s': exited with status 1", ct.id)
		c.collapse(ct, mesos.REASON_CONTAINER_LAUNCH_FAILED, message)
		return
	case ct.task.executor != nil && ct.task.executor.custom:
		if c.cfg.Behave == nil {
			return // what a framework's own executor says is not heard; its end is
		}
		c.exit(ct, ct.behave.Status)
		return
	}
	c.report(ct, mesos.TASK_STARTING, nil, "")
	c.later(ct, ct.behave.Run, func() { c.running(ct) })
}

func (c *Cluster) running(ct *container) {
	c.report(ct, mesos.TASK_RUNNING, nil, "")
	if ct.behave.For >= 0 {
		c.later(ct, ct.behave.For, func() { c.exit(ct, ct.behave.Status) })
	}
	for _, result := range ct.behave.Checks {
		c.later(ct, result.After, func() { c.check(ct, result.ExitCode) })
	}
	if limit := ct.task.info.GetMaxCompletionTime(); limit != nil {
		c.later(ct, time.Duration(limit.Nanoseconds), func() {
			ct.failing = mesos.REASON_MAX_COMPLETION_TIME_REACHED.Enum()
			c.terminate(ct, defaultGrace)
		})
	}
}

// check takes the result of a health check or check.
func (c *Cluster) check(ct *container, code int) {
	info := ct.task.info
	if info.Check != nil {
		code32 := int32(code) //nolint:gosec // an exit code
		ct.checked = &mesos.CheckStatusInfo{Type: info.Check.Type.Enum(), Command: &mesos.CheckStatusInfo_Command{ExitCode: &code32}}
		c.report(ct, mesos.TASK_RUNNING, mesos.REASON_TASK_CHECK_STATUS_UPDATED.Enum(), "")
		return
	}
	if info.HealthCheck == nil || ct.killing {
		return
	}
	if code == 0 {
		if ct.healthy == nil || !*ct.healthy {
			c.health(ct, true)
		}
		ct.misses = 0
		return
	}
	c.health(ct, false)
	most := 3
	if info.HealthCheck.ConsecutiveFailures != nil {
		most = int(*info.HealthCheck.ConsecutiveFailures)
	}
	if ct.misses++; most > 0 && ct.misses >= most {
		c.kill(ct, defaultGrace, nil)
	}
}

func (c *Cluster) health(ct *container, healthy bool) {
	ct.healthy = &healthy
	c.report(ct, mesos.TASK_RUNNING, mesos.REASON_TASK_HEALTH_CHECK_STATUS_UPDATED.Enum(), "")
}

// report posts an update of the executor.
func (c *Cluster) report(ct *container, state mesos.TaskState, reason *mesos.TaskStatus_Reason, message string) {
	ct.state = state
	status := c.status(ct, state, reason, message)
	status.Source = mesos.SOURCE_EXECUTOR.Enum()
	status.ContainerStatus = ct.describe()
	if check := ct.task.info.Check; check != nil { // without a result, but where it is the news
		status.CheckStatus = &mesos.CheckStatusInfo{Type: check.Type.Enum(), Command: &mesos.CheckStatusInfo_Command{}}
		if reason != nil && *reason == mesos.REASON_TASK_CHECK_STATUS_UPDATED {
			status.CheckStatus = ct.checked
		}
	}
	if reason != nil && *reason == mesos.REASON_TASK_HEALTH_CHECK_STATUS_UPDATED || terminal(state) {
		status.Healthy = ct.healthy
	}
	c.post(ct.task, status)
}

func (c *Cluster) status(ct *container, state mesos.TaskState, reason *mesos.TaskStatus_Reason, message string) *mesos.TaskStatus {
	t := ct.task
	status := &mesos.TaskStatus{
		TaskID: mesos.TaskID{Value: t.id}, State: &state, Reason: reason, AgentID: &mesos.AgentID{Value: t.agent.id},
		ExecutorID: &mesos.ExecutorID{Value: t.id}, Timestamp: pointer(seconds(c.now)), UUID: c.uuidBytes(),
	}
	if t.executor != nil {
		status.ExecutorID.Value = t.executor.id
	}
	if message != "" {
		status.Message = &message
	}
	return status
}

// collapse ends a container whose executor can no longer speak for it: the agent does.
func (c *Cluster) collapse(ct *container, reason mesos.TaskStatus_Reason, message string) {
	if !c.close(ct) {
		return
	}
	ct.state = mesos.TASK_FAILED
	status := c.status(ct, mesos.TASK_FAILED, &reason, message)
	status.Source = mesos.SOURCE_AGENT.Enum()
	c.post(ct.task, status)
}

// close ends everything that a container was going to do; false: it had ended.
func (c *Cluster) close(ct *container) bool {
	if c.containers[ct.id] != ct {
		return false
	}
	delete(c.containers, ct.id)
	for _, t := range ct.timers {
		c.stop(t)
	}
	return true
}

// exit is the end of a process.
func (c *Cluster) exit(ct *container, status ExitStatus) {
	e := ct.task.executor
	if e != nil && e.custom {
		if e.over {
			return
		}
		c.endExecutor(e, status)
		for _, t := range slices.Clone(e.tasks) {
			c.collapse(t.container, mesos.REASON_EXECUTOR_TERMINATED, "Executor terminated")
		}
		return
	}
	if !c.close(ct) {
		return
	}
	message := fmt.Sprintf("Command exited with status %d", status.Code)
	state := mesos.TASK_FAILED
	if status.Signal != 0 {
		message = "Command terminated with signal " + signalName(status.Signal)
	} else if status.Code == 0 {
		state = mesos.TASK_FINISHED
	}
	reason := ct.failing
	if ct.killing {
		state, reason = mesos.TASK_KILLED, ct.reason
	} else if reason != nil {
		state = mesos.TASK_FAILED
	}
	c.report(ct, state, reason, message)
	if e != nil {
		c.leaveGroup(e, ct.task, state)
	}
}

// signalName is a signal's name as strsignal gives it.
func signalName(signal int) string {
	switch syscall.Signal(signal) {
	case syscall.SIGKILL:
		return "Killed"
	case syscall.SIGTERM:
		return "Terminated"
	default:
		return syscall.Signal(signal).String()
	}
}

// leaveGroup takes a task that ended out of its group: after a failure the others are killed, after the last the executor ends.
func (c *Cluster) leaveGroup(e *executor, t *task, state mesos.TaskState) {
	e.tasks = slices.DeleteFunc(e.tasks, func(other *task) bool { return other == t })
	if len(e.tasks) == 0 {
		c.after(executorExit, func() {
			if len(e.tasks) == 0 { // no other group has joined it
				c.endExecutor(e, ExitStatus{})
			}
		})
		return
	}
	if state == mesos.TASK_FINISHED || e.failed {
		return
	}
	e.failed = true
	c.after(groupPause, func() {
		for _, other := range slices.Clone(e.tasks) {
			c.kill(other.container, graceOf(other.info.KillPolicy), nil)
		}
	})
}

// endExecutor frees what an executor used and reports its end.
func (c *Cluster) endExecutor(e *executor, status ExitStatus) {
	if e.over {
		return
	}
	e.over = true
	f := e.framework
	if !slices.Contains(f.executors, e) {
		return // went with its framework
	}
	f.executors = slices.DeleteFunc(f.executors, func(other *executor) bool { return other == e })
	c.release(f, e.role, e.agent, e.resources)
	raw := int32(status.Code<<8 | status.Signal) //nolint:gosec // a wait status
	c.deliver(f, &scheduler.Event{Type: scheduler.Event_FAILURE, Failure: &scheduler.Event_Failure{
		AgentID: &mesos.AgentID{Value: e.agent.id}, ExecutorID: &mesos.ExecutorID{Value: e.id}, Status: &raw,
	}})
}

func graceOf(policy *mesos.KillPolicy) time.Duration {
	if policy == nil || policy.GracePeriod == nil {
		return defaultGrace
	}
	return time.Duration(policy.GracePeriod.Nanoseconds)
}

// killTask is a KILL that reaches a task. The policy counts only for executors that heed it.
func (c *Cluster) killTask(t *task, policy *mesos.KillPolicy, reason *mesos.TaskStatus_Reason) {
	grace := graceOf(t.info.KillPolicy)
	if policy != nil && (t.executor != nil || t.agent.info.HTTPExecutor) {
		grace = graceOf(policy)
	}
	c.kill(t.container, grace, reason)
}

func (c *Cluster) kill(ct *container, grace time.Duration, reason *mesos.TaskStatus_Reason) {
	if ct.killing || c.containers[ct.id] != ct {
		return
	}
	ct.killing, ct.reason = true, reason
	if ct.state == mesos.TASK_STAGING {
		if c.cfg.Behave == nil {
			c.emit(Signal{Container: ct.id, Kill: true}) // Start was asked for
		}
		c.exit(ct, ExitStatus{Signal: int(syscall.SIGTERM)})
		return
	}
	if ct.task.framework.killingState {
		c.report(ct, mesos.TASK_KILLING, reason, "")
	}
	c.terminate(ct, grace)
}

// terminate ends a process, by force after the grace.
func (c *Cluster) terminate(ct *container, grace time.Duration) {
	if c.cfg.Behave == nil {
		c.emit(Signal{Container: ct.id})
		c.later(ct, grace, func() { c.emit(Signal{Container: ct.id, Kill: true}) })
		return
	}
	if ct.behave.IgnoresTerm {
		c.later(ct, grace+ct.behave.Term, func() { c.exit(ct, ExitStatus{Signal: int(syscall.SIGKILL)}) })
		return
	}
	c.later(ct, ct.behave.Term, func() { c.exit(ct, ct.behave.killed(syscall.SIGTERM)) })
}

// killed is how a process ends by a signal.
func (b *Behaviour) killed(signal syscall.Signal) ExitStatus {
	if b.EndSignal != 0 {
		signal = syscall.Signal(b.EndSignal)
	}
	return ExitStatus{Signal: int(signal)}
}

// shutdown is a SHUTDOWN call: all tasks of an executor are killed by force.
func (c *Cluster) shutdown(f *framework, executorID, agentID string) {
	for _, t := range slices.Clone(f.taskOrder) {
		ct := t.container
		mine := t.id == executorID
		if t.executor != nil {
			mine = t.executor.id == executorID
		}
		if !mine || t.agent.id != agentID || ct.killing || c.containers[ct.id] != ct {
			continue
		}
		ct.killing = true
		if f.killingState && ct.state != mesos.TASK_STAGING {
			c.report(ct, mesos.TASK_KILLING, nil, "")
		}
		if c.cfg.Behave == nil {
			c.emit(Signal{Container: ct.id, Kill: true})
			continue
		}
		c.later(ct, ct.behave.Term, func() { c.exit(ct, ct.behave.killed(syscall.SIGKILL)) })
	}
}

// Crash ends a task's container process from outside; its executor dies with it. A fault to inject.
func (c *Cluster) Crash(frameworkID, taskID string) {
	f := c.frameworks[frameworkID]
	if f == nil || f.tasks[taskID] == nil {
		return
	}
	ct := f.tasks[taskID].container
	if c.cfg.Behave == nil {
		c.emit(Signal{Container: ct.id, Kill: true})
	}
	c.collapse(ct, mesos.REASON_EXECUTOR_TERMINATED, "Executor terminated")
}

// endContainer ends a task's process because nobody wants to hear of it any more.
func (c *Cluster) endContainer(t *task) {
	t.agent.streams = slices.DeleteFunc(t.agent.streams, func(u *updates) bool {
		if u.task == t {
			c.stop(u.retry)
		}
		return u.task == t
	})
	if t.container != nil && c.close(t.container) && c.cfg.Behave == nil {
		c.emit(Signal{Container: t.container.id, Kill: true})
	}
}
