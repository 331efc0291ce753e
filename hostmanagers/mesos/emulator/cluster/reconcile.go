package cluster

import (
	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// killCall is a KILL call. An unknown task is answered as if somebody had asked for it.
func (c *Cluster) killCall(f *framework, call *scheduler.Call_Kill) {
	t := f.tasks[call.TaskID.Value]
	if t == nil || (call.AgentID != nil && t.agent.id != call.AgentID.Value) {
		c.reconcileOne(f, call.TaskID, call.AgentID)
		return
	}
	if t.agent.connected {
		c.killTask(t, call.KillPolicy, nil)
	}
}

// reconcile is a RECONCILE call; no tasks: every one that the master knows.
func (c *Cluster) reconcile(f *framework, call *scheduler.Call_Reconcile) {
	if len(call.Tasks) == 0 {
		for _, t := range f.taskOrder {
			c.latest(t)
		}
		return
	}
	for i := range call.Tasks {
		c.reconcileOne(f, call.Tasks[i].TaskID, call.Tasks[i].AgentID)
	}
}

// latest says of a known task what its framework was told last.
func (c *Cluster) latest(t *task) {
	status := mesos.TaskStatus{
		TaskID: mesos.TaskID{Value: t.id}, State: pointer(t.state), Message: pointer("Reconciliation: Latest task state"),
		Reason: mesos.REASON_RECONCILIATION.Enum(), AgentID: &mesos.AgentID{Value: t.agent.id},
	}
	if t.status != nil {
		status.ContainerStatus, status.Healthy, status.CheckStatus = t.status.ContainerStatus, t.status.Healthy, t.status.CheckStatus
	}
	c.say(t.framework, status)
}

func (c *Cluster) reconcileOne(f *framework, id mesos.TaskID, agentID *mesos.AgentID) {
	if t := f.tasks[id.Value]; t != nil {
		c.latest(t)
		return
	}
	if agentID == nil {
		if t := f.unreachable[id.Value]; t != nil {
			agentID = &mesos.AgentID{Value: t.agent.id}
		}
	}
	state, message := mesos.TASK_UNKNOWN, "Task is unknown"
	var lost *mesos.TimeInfo
	if a := c.agents[agentID.GetValue()]; agentID != nil && a != nil {
		switch {
		case a.registered:
			state, message = mesos.TASK_GONE, "Task is unknown to the agent"
		case a.markedGone:
			state, message = mesos.TASK_GONE_BY_OPERATOR, "Task is gone"
		case !a.gone && !a.strange:
			state, message = mesos.TASK_UNREACHABLE, "Task is unreachable"
			lost = &mesos.TimeInfo{Nanoseconds: a.lostAt.UnixNano()}
		}
	}
	if !f.partitionAware {
		state = mesos.TASK_LOST
	}
	c.say(f, mesos.TaskStatus{
		TaskID: id, State: &state, Message: pointer("Reconciliation: " + message), Reason: mesos.REASON_RECONCILIATION.Enum(),
		AgentID: agentID, UnreachableTime: lost,
	})
}
