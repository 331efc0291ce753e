package cluster

import (
	"fmt"
	"slices"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// reregistering is from an agent's return to its updates.
const reregistering = 10 * time.Millisecond

// agent is one agent, as the master and as itself sees it.
type agent struct {
	id         string
	info       Agent
	total      bundle
	free       bundle // neither offered nor used
	offers     []*offer
	tasks      []*task // that the master knows on it
	connected  bool    // its process runs and reaches the master
	registered bool    // false: unreachable, gone or removed
	gone       bool    // removed for good
	markedGone bool    // by an operator
	draining   bool
	strange    bool      // the master, which is new, has not heard of it
	since      time.Time // when it registered; pings count from there
	lostAt     time.Time // when it became unreachable
	pings      *timer
	streams    []*updates        // unacknowledged updates of its tasks
	answers    map[string]answer // to inverse offers, by framework
}

func (a *agent) pid() string { return fmt.Sprintf("slave(1)@%s:%d", a.info.IP, a.info.Port) }

func (a *agent) url() *mesos.URL {
	return &mesos.URL{
		Scheme: "http", Path: pointer("/slave(1)"),
		Address: mesos.Address{Hostname: &a.info.Hostname, IP: &a.info.IP, Port: int32(a.info.Port)}, //nolint:gosec // a port
	}
}

// AddAgent registers a new agent and returns its id. Its resources are offered at once.
func (c *Cluster) AddAgent(info Agent) string {
	setDefault(&info.IP, "127.0.0.1")
	setDefault(&info.Port, 5051)
	if info.ID == "" {
		info.ID = fmt.Sprintf("%s-S%d", c.cfg.MasterID, c.nextAgent)
		c.nextAgent++
	}
	total := parse(info.Resources)
	a := &agent{id: info.ID, info: info, total: total, free: total, connected: true, registered: true, since: c.now}
	c.agents[a.id] = a
	c.roster = append(c.roster, a)
	c.total.add(total, 1)
	for _, s := range info.Tasks {
		c.adopt(a, s)
	}
	c.allocate([]*agent{a})
	return a.id
}

// adopt enters a task that an agent brings along. Those of frameworks that the master does not know yet are left alone.
func (c *Cluster) adopt(a *agent, s Survivor) {
	f := c.frameworks[s.FrameworkID]
	if f == nil || f.removed {
		return
	}
	t := &task{id: s.Info.TaskID.Value, info: s.Info, framework: f, agent: a, role: s.Role, resources: parse(s.Info.Resources)}
	t.container = &container{id: c.uuid(), task: t, state: mesos.TASK_RUNNING, behave: Behaviour{For: Forever}, pid: 1}
	c.containers[t.container.id] = t.container
	c.restore(t, "Unknown agent reregistered")
}

// LoseAgent says that an agent's process, or the way to it, is gone. Its tasks go on.
func (c *Cluster) LoseAgent(id string) {
	a := c.agents[id]
	if a != nil && a.strange {
		a.strange, a.lostAt = false, c.now // it will not register by itself
	}
	if a == nil || !a.connected {
		return
	}
	a.connected = false
	c.rescindAgent(a)
	for _, t := range slices.Clone(a.tasks) {
		if !t.framework.info.GetCheckpoint() {
			c.lose(t, mesos.TASK_LOST, mesos.REASON_AGENT_DISCONNECTED, "Agent "+a.info.Hostname+" disconnected")
			c.endContainer(t)
		}
	}
	missed := c.now.Sub(a.since) % c.cfg.PingTimeout
	patience := time.Duration(c.cfg.MaxPings+1)*c.cfg.PingTimeout - missed
	a.pings = c.after(patience, func() { c.unreachable(a) })
}

// unreachable is what the master does when an agent has missed its pings.
func (c *Cluster) unreachable(a *agent) {
	a.registered, a.lostAt, a.free = false, c.now, nil
	c.forgetFilters(a)
	c.total.add(a.total, -1)
	for _, t := range slices.Clone(a.tasks) {
		t.framework.unreachable[t.id] = t
		state := mesos.TASK_LOST
		if t.framework.partitionAware {
			state = mesos.TASK_UNREACHABLE
		}
		c.lose(t, state, mesos.REASON_AGENT_REMOVED, "health check timed out")
	}
	c.failure(a)
}

// failure tells every framework that an agent is gone.
func (c *Cluster) failure(a *agent) {
	for _, f := range c.order {
		c.deliver(f, &scheduler.Event{Type: scheduler.Event_FAILURE, Failure: &scheduler.Event_Failure{AgentID: &mesos.AgentID{Value: a.id}}})
	}
}

// ReturnAgent says that an agent has registered again under the id that it had.
func (c *Cluster) ReturnAgent(id string) {
	a := c.agents[id]
	if a == nil || a.connected || a.gone {
		return
	}
	c.stop(a.pings)
	wasLost := !a.registered
	a.connected, a.registered, a.strange, a.since = true, true, false, c.now
	if wasLost {
		c.readmit(a)
		c.allocate([]*agent{a})
	}
	c.after(reregistering, func() {
		for _, u := range slices.Clone(a.streams) {
			c.resume(u)
			if u.late { // its executor says it again, too
				c.forward(u)
			}
			u.late = false
		}
	})
}

// readmit puts an agent that was unreachable and its tasks back.
func (c *Cluster) readmit(a *agent) {
	a.free = a.total
	c.total.add(a.total, 1)
	for _, f := range c.order {
		for _, e := range f.executors {
			if e.agent == a {
				a.free = a.free.minus(e.resources)
			}
		}
		for _, t := range byID(f.unreachable) {
			if t.agent == a {
				delete(f.unreachable, t.id)
				c.restore(t, "Unreachable agent re-reregistered")
			}
		}
	}
}

// RemoveAgent says that an agent unregistered: it was told to shut down, and its tasks with it. Why ends up in messages.
func (c *Cluster) RemoveAgent(id, why string) {
	a := c.agents[id]
	if a == nil || !a.registered {
		return
	}
	c.drop(a, mesos.TASK_LOST, mesos.REASON_AGENT_REMOVED, "Agent "+a.info.Hostname+" removed: "+why)
}

// drop ends an agent's life with the master.
func (c *Cluster) drop(a *agent, state mesos.TaskState, reason mesos.TaskStatus_Reason, message string) {
	for _, t := range slices.Clone(a.tasks) {
		c.lose(t, state, reason, message)
		c.endContainer(t)
	}
	c.rescindAgent(a)
	c.rescindInverse(a)
	c.forgetFilters(a)
	c.stop(a.pings)
	if a.registered { // else that was done when it became unreachable
		c.total.add(a.total, -1)
	}
	a.connected, a.registered, a.gone, a.free = false, false, true, nil
	a.markedGone = state == mesos.TASK_GONE_BY_OPERATOR
	c.roster = slices.DeleteFunc(c.roster, func(other *agent) bool { return other == a })
	c.failure(a)
}

// MarkGone is an operator's MARK_AGENT_GONE.
func (c *Cluster) MarkGone(id string) {
	if a := c.agents[id]; a != nil && !a.gone {
		c.drop(a, mesos.TASK_GONE_BY_OPERATOR, mesos.REASON_AGENT_REMOVED_BY_OPERATOR, "Agent has been marked gone")
	}
}

// Drain is an operator's DRAIN_AGENT: its tasks are killed, and nothing is offered until Reactivate.
func (c *Cluster) Drain(id string) {
	a := c.agents[id]
	if a == nil || a.gone {
		return
	}
	a.draining = true
	c.rescindAgent(a)
	for _, t := range slices.Clone(a.tasks) {
		c.killTask(t, nil, mesos.REASON_AGENT_DRAINING.Enum())
	}
}

// Reactivate is an operator's REACTIVATE_AGENT. Offers come with the next run of the allocator.
func (c *Cluster) Reactivate(id string) {
	if a := c.agents[id]; a != nil {
		a.draining = false
	}
}
