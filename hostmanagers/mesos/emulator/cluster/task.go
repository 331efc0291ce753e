package cluster

import (
	"bytes"
	"slices"
	"strings"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// The waits before an unacknowledged update is sent again: they double from the first to the last.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// task is a task that the master knows.
type task struct {
	id        string
	info      *mesos.TaskInfo
	framework *framework
	agent     *agent
	role      string
	resources bundle
	state     mesos.TaskState   // as last sent to the framework
	status    *mesos.TaskStatus // last sent; nil: none
	freed     bool              // its resources went back
	executor  *executor         // nil: it has its own
	container *container
}

// updates are what an agent has to say of a task until the framework has heard it. Only the first is under way.
type updates struct {
	task  *task
	queue []*mesos.TaskStatus // never empty while the agent holds it
	wait  time.Duration
	retry *timer
	late  bool // something came while the agent was away
}

func terminal(state mesos.TaskState) bool {
	switch state {
	case mesos.TASK_FINISHED, mesos.TASK_FAILED, mesos.TASK_KILLED, mesos.TASK_ERROR, mesos.TASK_LOST, mesos.TASK_DROPPED, mesos.TASK_GONE,
		mesos.TASK_GONE_BY_OPERATOR:
		return true
	default:
		return false
	}
}

// byID returns tasks in the order of their ids.
func byID(tasks map[string]*task) []*task {
	list := make([]*task, 0, len(tasks))
	for _, t := range tasks {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *task) int { return strings.Compare(a.id, b.id) })
	return list
}

// keep enters a task into the master's lists.
func (c *Cluster) keep(t *task) {
	t.framework.tasks[t.id] = t
	t.framework.taskOrder = append(t.framework.taskOrder, t)
	t.agent.tasks = append(t.agent.tasks, t)
}

// forget takes a task out of the master's lists and frees its resources.
func (c *Cluster) forget(t *task) {
	c.free(t)
	delete(t.framework.tasks, t.id)
	same := func(other *task) bool { return other == t }
	t.framework.taskOrder = slices.DeleteFunc(t.framework.taskOrder, same)
	t.agent.tasks = slices.DeleteFunc(t.agent.tasks, same)
}

func (c *Cluster) free(t *task) {
	if !t.freed {
		t.freed = true
		c.release(t.framework, t.role, t.agent, t.resources)
	}
}

// post queues an update of an agent, and sends it if nothing is before it.
func (c *Cluster) post(t *task, status *mesos.TaskStatus) {
	i := slices.IndexFunc(t.agent.streams, func(u *updates) bool { return u.task == t })
	if i < 0 {
		i = len(t.agent.streams)
		t.agent.streams = append(t.agent.streams, &updates{task: t, wait: firstRetry})
	}
	u := t.agent.streams[i]
	u.queue = append(u.queue, status)
	if !t.agent.connected {
		u.late = true
		return
	}
	if len(u.queue) == 1 {
		c.forward(u)
	}
}

// forward sends the first update of a task to the master, and from there to the framework.
func (c *Cluster) forward(u *updates) {
	if len(u.queue) == 0 || !u.task.agent.connected || u.task.framework.removed {
		return
	}
	c.stop(u.retry)
	u.retry = c.after(u.wait, func() {
		u.wait = min(2*u.wait, lastRetry)
		c.forward(u)
	})
	t, status := u.task, u.queue[0]
	t.state, t.status = status.GetState(), status
	if terminal(u.queue[len(u.queue)-1].GetState()) {
		c.free(t)
	}
	c.deliver(t.framework, update(status))
}

// resume sends the first update again as if for the first time.
func (c *Cluster) resume(u *updates) {
	u.wait = firstRetry
	c.forward(u)
}

// resend sends all of a framework's unacknowledged updates.
func (c *Cluster) resend(f *framework) {
	for _, a := range c.roster {
		for _, u := range slices.Clone(a.streams) {
			if u.task.framework == f {
				c.resume(u)
			}
		}
	}
}

// acknowledge is an ACKNOWLEDGE call. What does not fit the update under way is ignored.
func (c *Cluster) acknowledge(f *framework, agentID, taskID string, uuid []byte) {
	a := c.agents[agentID]
	if a == nil || !a.connected {
		return
	}
	i := slices.IndexFunc(a.streams, func(u *updates) bool { return u.task.framework == f && u.task.id == taskID })
	if i < 0 || !bytes.Equal(a.streams[i].queue[0].UUID, uuid) {
		return
	}
	u := a.streams[i]
	done := u.queue[0]
	u.queue = u.queue[1:]
	c.stop(u.retry)
	if terminal(done.GetState()) {
		c.forget(u.task)
	}
	if len(u.queue) == 0 {
		a.streams = slices.Delete(a.streams, i, i+1)
		return
	}
	c.resume(u)
}

// update wraps a status.
func update(status *mesos.TaskStatus) *scheduler.Event {
	return &scheduler.Event{Type: scheduler.Event_UPDATE, Update: &scheduler.Event_Update{Status: *status}}
}

// say sends a status of the master's own, which is not to be acknowledged.
func (c *Cluster) say(f *framework, status mesos.TaskStatus) {
	status.Source = mesos.SOURCE_MASTER.Enum()
	status.Timestamp = pointer(seconds(c.now))
	c.deliver(f, update(&status))
}

// lose takes a task away because its agent is gone, and says so.
func (c *Cluster) lose(t *task, state mesos.TaskState, reason mesos.TaskStatus_Reason, message string) {
	status := mesos.TaskStatus{
		TaskID: mesos.TaskID{Value: t.id}, State: &state, Message: &message, Reason: &reason, AgentID: &mesos.AgentID{Value: t.agent.id},
	}
	if state == mesos.TASK_UNREACHABLE {
		status.UnreachableTime = &mesos.TimeInfo{Nanoseconds: t.agent.lostAt.UnixNano()}
	}
	c.forget(t)
	c.say(t.framework, status)
}

// restore puts a task back that its agent still has.
func (c *Cluster) restore(t *task, message string) {
	if terminal(t.container.state) {
		c.restoreEnded(t)
		return
	}
	t.freed, t.state = false, t.container.state
	t.agent.free = t.agent.free.minus(t.resources)
	t.framework.holding(t.role).add(t.resources, 1)
	c.keep(t)
	status := mesos.TaskStatus{
		TaskID: mesos.TaskID{Value: t.id}, State: pointer(t.state), Message: &message, Reason: mesos.REASON_AGENT_REREGISTERED.Enum(),
		AgentID: &mesos.AgentID{Value: t.agent.id}, ContainerStatus: t.container.describe(),
	}
	t.status = &status
	c.say(t.framework, status)
}

// restoreEnded puts back a task that has ended while the framework has not acknowledged all that its agent has to say of it.
func (c *Cluster) restoreEnded(t *task) {
	i := slices.IndexFunc(t.agent.streams, func(u *updates) bool { return u.task == t })
	if i < 0 {
		return
	}
	t.freed, t.status = true, t.agent.streams[i].queue[0]
	t.state = t.status.GetState()
	c.keep(t)
}

// quit ends a task without a word: its framework is gone.
func (c *Cluster) quit(t *task) {
	c.forget(t)
	c.endContainer(t)
}
