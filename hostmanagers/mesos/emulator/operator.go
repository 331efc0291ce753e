package emulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/maintenance"
	"github.com/mesos/mesos-go/api/v1/lib/master"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/wire"
)

// operator serves the operator API below /api/v1.
func (e *Emulator) operator(r *request) *answer {
	call := &master.Call{}
	if a := decode(r, call); a != nil {
		return a
	}
	if call.Type == master.Call_UNKNOWN {
		return text(http.StatusBadRequest, "Failed to validate master::Call: Expecting 'type' to be present")
	}
	protobuf, ok := accepts(r)
	if !ok {
		return notAcceptable()
	}
	var a *answer
	e.Do(func(c *cluster.Cluster) {
		if a = e.command(c, call); a == nil {
			a = query(c, call, protobuf)
		}
	})
	return a
}

// command carries out a call that changes something; nil: it is none.
func (e *Emulator) command(c *cluster.Cluster, call *master.Call) *answer {
	var refused *cluster.Refusal
	switch {
	case call.Type == master.Call_DRAIN_AGENT && call.DrainAgent != nil:
		c.Drain(call.DrainAgent.AgentID.Value)
	case call.Type == master.Call_REACTIVATE_AGENT && call.ReactivateAgent != nil:
		c.Reactivate(call.ReactivateAgent.AgentID.Value)
	case call.Type == master.Call_MARK_AGENT_GONE && call.MarkAgentGone != nil:
		c.MarkGone(call.MarkAgentGone.AgentID.Value)
	case call.Type == master.Call_UPDATE_MAINTENANCE_SCHEDULE && call.UpdateMaintenanceSchedule != nil:
		refused = c.SetSchedule(&call.UpdateMaintenanceSchedule.Schedule)
	case call.Type == master.Call_START_MAINTENANCE && call.StartMaintenance != nil:
		refused = c.MachinesDown(call.StartMaintenance.Machines)
	case call.Type == master.Call_STOP_MAINTENANCE && call.StopMaintenance != nil:
		refused = c.MachinesUp(call.StopMaintenance.Machines)
	default:
		return nil
	}
	if refused != nil {
		return text(refused.Code, refused.Text)
	}
	return &answer{code: http.StatusOK}
}

// query answers a call that reads.
func query(c *cluster.Cluster, call *master.Call, protobuf bool) *answer {
	response := &master.Response{Type: master.Response_Type(master.Response_Type_value[call.Type.String()])}
	info := c.MasterInfo()
	switch call.Type {
	case master.Call_GET_HEALTH:
		response.GetHealth = &master.Response_GetHealth{Healthy: true}
	case master.Call_GET_VERSION:
		response.GetVersion = &master.Response_GetVersion{VersionInfo: mesos.VersionInfo{Version: info.GetVersion()}}
	case master.Call_GET_MASTER:
		response.GetMaster = &master.Response_GetMaster{MasterInfo: &info}
	case master.Call_GET_MAINTENANCE_SCHEDULE:
		response.GetMaintenanceSchedule = &master.Response_GetMaintenanceSchedule{Schedule: *c.Schedule()}
	case master.Call_GET_MAINTENANCE_STATUS:
		response.GetMaintenanceStatus = &master.Response_GetMaintenanceStatus{Status: *c.MaintenanceStatus()}
	case master.Call_GET_AGENTS:
		response.GetAgents = &master.Response_GetAgents{Agents: c.Agents()}
	case master.Call_GET_FRAMEWORKS:
		response.GetFrameworks = &master.Response_GetFrameworks{Frameworks: c.Frameworks()}
	case master.Call_GET_TASKS:
		response.GetTasks = &master.Response_GetTasks{Tasks: c.Tasks()}
	case master.Call_GET_EXECUTORS, master.Call_GET_OPERATIONS, master.Call_GET_QUOTA, master.Call_GET_ROLES, master.Call_GET_METRICS,
		master.Call_GET_LOGGING_LEVEL, master.Call_GET_STATE:
		// Answered without content: tools ask, and nothing here would be true.
	default:
		return text(http.StatusNotImplemented, "The emulated master does not serve "+call.Type.String())
	}
	a := &answer{code: http.StatusOK, headers: []string{"Content-Type: " + jsonType}}
	if protobuf {
		a.headers[0] = "Content-Type: " + protoType
		body, err := response.Marshal()
		if err != nil {
			return text(http.StatusInternalServerError, "encode the response: "+err.Error())
		}
		a.body = body
		return a
	}
	a.body = wire.AppendJSON(nil, response)
	return a
}

// older serves the endpoints from before the operator API.
func (e *Emulator) older(r *request) *answer {
	switch r.path {
	case "/health":
		return &answer{code: http.StatusOK}
	case "/maintenance/schedule":
		if r.Method == http.MethodPost {
			return e.postSchedule(r)
		}
	case "/machine/down", "/machine/up":
		return e.postMachines(r)
	}
	var body any
	e.Do(func(c *cluster.Cluster) { body = view(c, r.path) })
	if body == nil {
		return text(http.StatusNotFound, "404 Not Found.")
	}
	return sorted(body)
}

// sorted writes what an older GET endpoint answers: keys in order, the length first.
func sorted(body any) *answer {
	var out bytes.Buffer
	w := json.NewEncoder(&out)
	w.SetEscapeHTML(false)
	if err := w.Encode(body); err != nil {
		return text(http.StatusInternalServerError, "encode the answer: "+err.Error())
	}
	return &answer{code: http.StatusOK, headers: []string{"Content-Type: " + jsonType}, body: bytes.TrimSuffix(out.Bytes(), []byte("\n")), lengthy: true}
}

// generic turns a message into plain JSON values.
func generic(message any) any {
	parsed, err := wire.ParseJSON(wire.AppendJSON(nil, message))
	if err != nil {
		panic("JSON of our own making does not parse: " + err.Error())
	}
	return parsed
}

func (e *Emulator) postSchedule(r *request) *answer {
	schedule := &maintenance.Schedule{}
	if a := assign(r, schedule); a != nil {
		return a
	}
	return e.change(func(c *cluster.Cluster) *cluster.Refusal { return c.SetSchedule(schedule) })
}

func assign(r *request, message any) *answer {
	parsed, err := wire.ParseJSON(r.body)
	if err == nil {
		err = wire.Assign(message, parsed)
	}
	if err != nil {
		return text(http.StatusBadRequest, err.Error())
	}
	return nil
}

func (e *Emulator) postMachines(r *request) *answer {
	parsed, err := wire.ParseJSON(r.body)
	if err != nil {
		return text(http.StatusBadRequest, err.Error())
	}
	list := &master.Call_StartMaintenance{}
	if err := wire.Assign(list, map[string]any{"machines": parsed}); err != nil {
		return text(http.StatusBadRequest, err.Error())
	}
	return e.change(func(c *cluster.Cluster) *cluster.Refusal {
		if r.path == "/machine/down" {
			return c.MachinesDown(list.Machines)
		}
		return c.MachinesUp(list.Machines)
	})
}

func (e *Emulator) change(f func(*cluster.Cluster) *cluster.Refusal) *answer {
	var refused *cluster.Refusal
	e.Do(func(c *cluster.Cluster) { refused = f(c) })
	if refused != nil {
		return text(refused.Code, refused.Text)
	}
	return &answer{code: http.StatusOK}
}

// view returns what a GET endpoint shows; nil: there is no such endpoint.
func view(c *cluster.Cluster, path string) any {
	info := c.MasterInfo()
	switch path {
	case "/version":
		return map[string]any{"version": info.GetVersion()}
	case "/metrics/snapshot":
		return map[string]any{"master/elected": 1.0}
	case "/maintenance/schedule":
		return generic(c.Schedule())
	case "/maintenance/status":
		return generic(c.MaintenanceStatus())
	case "/slaves":
		return map[string]any{"slaves": oldAgents(c), "recovered_slaves": []any{}}
	case "/frameworks":
		return map[string]any{"frameworks": oldFrameworks(c), "completed_frameworks": []any{}, "unregistered_frameworks": []any{}}
	case "/tasks":
		return map[string]any{"tasks": oldTasks(c)}
	case "/state", "/state-summary":
		return map[string]any{
			"id": info.ID, "pid": info.GetPID(), "hostname": info.GetHostname(), "version": info.GetVersion(), "leader": info.GetPID(),
			"slaves": oldAgents(c), "recovered_slaves": []any{}, "frameworks": oldFrameworks(c), "completed_frameworks": []any{},
		}
	case "/roles":
		return map[string]any{"roles": []any{}}
	case "/quota":
		return map[string]any{}
	case "/weights":
		return []any{}
	default:
		return nil
	}
}

// oldResources writes resources as the older endpoints do: sums by name.
func oldResources(resources []mesos.Resource) map[string]any {
	sums := map[string]any{"cpus": 0.0, "gpus": 0.0, "mem": 0.0, "disk": 0.0}
	for i := range resources {
		r := &resources[i]
		switch {
		case r.Scalar != nil:
			sum, _ := sums[r.Name].(float64)
			sums[r.Name] = sum + r.Scalar.Value
		case r.Ranges != nil:
			var words []string
			for _, one := range r.GetRanges().GetRange() {
				words = append(words, fmt.Sprintf("%d-%d", one.Begin, one.End))
			}
			sums[r.Name] = "[" + strings.Join(words, ", ") + "]"
		}
	}
	return sums
}

func oldAgents(c *cluster.Cluster) []any {
	list := []any{}
	for _, a := range c.Agents() {
		attributes := map[string]any{}
		for _, attribute := range a.AgentInfo.Attributes {
			if attributes[attribute.Name] = attribute.GetText().GetValue(); attribute.Scalar != nil {
				attributes[attribute.Name] = attribute.Scalar.Value
			}
		}
		capabilities := []string{}
		for _, capability := range a.Capabilities {
			capabilities = append(capabilities, capability.Type.String())
		}
		list = append(list, map[string]any{
			"capabilities": capabilities,
			"id":           a.AgentInfo.ID.Value, "hostname": a.AgentInfo.Hostname, "port": a.AgentInfo.GetPort(), "pid": a.GetPID(),
			"attributes": attributes, "active": a.Active, "deactivated": a.GetDeactivated(), "version": a.Version,
			"resources": oldResources(a.TotalResources), "used_resources": oldResources(a.AllocatedResources),
			"offered_resources": oldResources(a.OfferedResources), "registered_time": float64(a.RegisteredTime.Nanoseconds) / 1e9,
		})
	}
	return list
}

func oldFrameworks(c *cluster.Cluster) []any {
	list := []any{}
	for _, f := range c.Frameworks() {
		list = append(list, map[string]any{
			"id": f.FrameworkInfo.ID.Value, "name": f.FrameworkInfo.Name, "user": f.FrameworkInfo.User, "active": f.Active,
			"connected": f.Connected, "hostname": f.FrameworkInfo.GetHostname(), "roles": f.FrameworkInfo.Roles,
			"checkpoint": f.FrameworkInfo.GetCheckpoint(), "failover_timeout": f.FrameworkInfo.GetFailoverTimeout(),
		})
	}
	return list
}

func oldTasks(c *cluster.Cluster) []any {
	list := []any{}
	for _, t := range c.Tasks() {
		list = append(list, map[string]any{
			"id": t.TaskID.Value, "name": t.Name, "framework_id": t.FrameworkID.Value, "slave_id": t.AgentID.Value,
			"state": t.GetState().String(), "resources": oldResources(t.Resources),
		})
	}
	return list
}
