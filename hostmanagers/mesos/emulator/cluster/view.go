package cluster

import (
	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/master"
)

// agentCapabilities are those of a current agent.
var agentCapabilities = []mesos.AgentInfo_Capability{
	{Type: mesos.AgentInfo_Capability_MULTI_ROLE},
	{Type: mesos.AgentInfo_Capability_HIERARCHICAL_ROLE},
	{Type: mesos.AgentInfo_Capability_RESERVATION_REFINEMENT},
	{Type: mesos.AgentInfo_Capability_RESOURCE_PROVIDER},
	{Type: mesos.AgentInfo_Capability_RESIZE_VOLUME},
	{Type: mesos.AgentInfo_Capability_AGENT_OPERATION_FEEDBACK},
	{Type: mesos.AgentInfo_Capability_AGENT_DRAINING},
	{Type: mesos.AgentInfo_Capability_TASK_RESOURCE_LIMITS},
}

// endpoint is whom operators see resources as: roles and allocations in the old format.
func endpoint() *framework { return &framework{multiRole: true} }

// Agents describes the agents that are registered, as the operator API does.
func (c *Cluster) Agents() []master.Response_GetAgents_Agent {
	var list []master.Response_GetAgents_Agent
	for _, a := range c.roster {
		if !a.registered {
			continue
		}
		described := master.Response_GetAgents_Agent{
			AgentInfo: mesos.AgentInfo{
				Hostname: a.info.Hostname, Port: pointer(int32(a.info.Port)), Resources: a.info.Resources, //nolint:gosec // a port
				Attributes: a.info.Attributes, ID: &mesos.AgentID{Value: a.id}, Domain: a.info.Domain,
			},
			Active: a.connected && !a.draining, Deactivated: pointer(a.draining), Version: c.cfg.Version, PID: pointer(a.pid()),
			RegisteredTime: &mesos.TimeInfo{Nanoseconds: a.since.UnixNano()}, TotalResources: unallocated(a.total.write(endpoint(), "")),
			Capabilities: agentCapabilities,
		}
		for _, t := range a.tasks {
			if !t.freed {
				described.AllocatedResources = append(described.AllocatedResources, t.resources.write(endpoint(), t.role)...)
			}
		}
		for _, o := range a.offers {
			described.OfferedResources = append(described.OfferedResources, o.resources.write(endpoint(), o.role)...)
		}
		list = append(list, described)
	}
	return list
}

// unallocated takes the mark of an allocation off.
func unallocated(resources []mesos.Resource) []mesos.Resource {
	for i := range resources {
		resources[i].AllocationInfo = nil
	}
	return resources
}

// Frameworks describes the frameworks that are not removed.
func (c *Cluster) Frameworks() []master.Response_GetFrameworks_Framework {
	var list []master.Response_GetFrameworks_Framework
	for _, f := range c.order {
		connected := f.stream != ""
		described := master.Response_GetFrameworks_Framework{FrameworkInfo: f.info, Active: connected, Connected: connected}
		for _, o := range c.offersOf(f) {
			described.Offers = append(described.Offers, c.describe(o))
		}
		list = append(list, described)
	}
	return list
}

// Tasks describes the tasks that the master knows.
func (c *Cluster) Tasks() []mesos.Task {
	var list []mesos.Task
	for _, f := range c.order {
		for _, t := range f.taskOrder {
			described := mesos.Task{
				Name: t.info.Name, TaskID: mesos.TaskID{Value: t.id}, FrameworkID: mesos.FrameworkID{Value: f.id},
				AgentID: mesos.AgentID{Value: t.agent.id}, State: pointer(t.state), Resources: t.resources.write(endpoint(), t.role),
				Labels: t.info.Labels,
			}
			if t.status != nil {
				described.Statuses = []mesos.TaskStatus{*t.status}
			}
			list = append(list, described)
		}
	}
	return list
}
