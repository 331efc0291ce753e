package cluster

import (
	"fmt"
	"slices"
	"strings"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// accepted is what an ACCEPT has to work with.
type accepted struct {
	framework *framework
	agent     *agent
	role      string
	left      bundle
}

// accept is an ACCEPT call. What it names that is wrong is answered with events.
func (c *Cluster) accept(f *framework, call *scheduler.Call_Accept) {
	offers, text := c.findOffers(f, call.OfferIDs)
	if text != "" {
		for _, o := range offers {
			c.take(o)
			c.refuse(f, o.role, o.agent, o.resources, call.Filters)
		}
		c.refuseOperations(f, call.Operations, text)
		return
	}
	w := &accepted{framework: f, agent: offers[0].agent, role: offers[0].role}
	for _, o := range offers {
		c.take(o)
		w.left = w.left.plus(o.resources)
	}
	for i := range call.Operations {
		c.operate(w, &call.Operations[i])
	}
	c.refuse(f, w.role, w.agent, w.left, call.Filters)
}

// findOffers returns the valid ones of the offers that are named, and what is wrong with them together.
func (c *Cluster) findOffers(f *framework, ids []mesos.OfferID) (offers []*offer, text string) {
	if len(ids) == 0 {
		return nil, "No offers specified"
	}
	for _, id := range ids {
		o := c.offers[id.Value]
		switch {
		case o == nil || o.framework != f:
			text = cmpOr(text, "Offer "+id.Value+" is no longer valid")
		case slices.Contains(offers, o):
			text = cmpOr(text, "Duplicate offer "+o.id+" in offer list")
		default:
			offers = append(offers, o)
		}
	}
	if text != "" {
		return offers, text
	}
	for _, o := range offers[1:] {
		if first := offers[0]; o.agent != first.agent {
			return offers, fmt.Sprintf("Aggregated offers must belong to one single agent. Offer %s uses agent %s and agent %s", o.id, o.agent.id, first.agent.id)
		}
		if first := offers[0]; o.role != first.role {
			return offers, fmt.Sprintf("Aggregated offers must be allocated to the same role. Offer %s uses role %s but another is using role %s", o.id, o.role, first.role)
		}
	}
	return offers, ""
}

func cmpOr(first, second string) string {
	if first != "" {
		return first
	}
	return second
}

// refuseOperations answers the operations of an ACCEPT whose offers are not valid.
func (c *Cluster) refuseOperations(f *framework, operations []mesos.Offer_Operation, text string) {
	state := mesos.TASK_LOST
	if f.partitionAware {
		state = mesos.TASK_DROPPED
	}
	message := "Task launched with invalid offers: " + text
	for i := range operations {
		o := &operations[i]
		for _, t := range launched(o) {
			c.say(f, mesos.TaskStatus{
				TaskID: t.TaskID, State: &state, Message: &message, Reason: mesos.REASON_INVALID_OFFERS.Enum(), AgentID: &t.AgentID,
			})
		}
		if o.ID != nil && len(launched(o)) == 0 {
			c.tellOperation(f, mesos.OperationStatus{OperationID: o.ID, State: mesos.OPERATION_DROPPED, Message: pointer("Operation attempted with invalid offers: " + text)})
		}
	}
}

// launched returns the tasks of an operation.
func launched(o *mesos.Offer_Operation) []mesos.TaskInfo {
	switch {
	case o.Type == mesos.Offer_Operation_LAUNCH && o.Launch != nil:
		return o.Launch.TaskInfos
	case o.Type == mesos.Offer_Operation_LAUNCH_GROUP && o.LaunchGroup != nil:
		return o.LaunchGroup.TaskGroup.Tasks
	default:
		return nil
	}
}

func (c *Cluster) operate(w *accepted, o *mesos.Offer_Operation) {
	switch {
	case o.Type == mesos.Offer_Operation_LAUNCH && o.Launch != nil:
		for i := range o.Launch.TaskInfos {
			c.launch(w, &o.Launch.TaskInfos[i])
		}
	case o.Type == mesos.Offer_Operation_LAUNCH_GROUP && o.LaunchGroup != nil:
		c.launchGroup(w, o.LaunchGroup)
	default:
		c.convert(w, o)
	}
}

func (c *Cluster) invalidTask(f *framework, t *mesos.TaskInfo, reason mesos.TaskStatus_Reason, text string) {
	c.say(f, mesos.TaskStatus{TaskID: t.TaskID, State: mesos.TASK_ERROR.Enum(), Message: &text, Reason: &reason, AgentID: &t.AgentID})
}

// launch starts one task, or says what is wrong with it.
func (c *Cluster) launch(w *accepted, t *mesos.TaskInfo) {
	text := invalid(w, t)
	if text == "" && (t.Command != nil) == (t.Executor != nil) {
		text = "Task should have at least one (but not both) of CommandInfo or ExecutorInfo present"
	}
	if text == "" && t.Executor != nil && t.Executor.Command == nil {
		text = "'ExecutorInfo.command' must be set for 'CUSTOM' executor"
	}
	var e *executor
	var extra []mesos.Resource
	if t.Executor != nil {
		if e = w.find(t.Executor.ExecutorID.Value); e == nil {
			extra = t.Executor.Resources
		}
	}
	resources := slices.Concat(t.Resources, extra)
	if text == "" {
		text = w.lacks(resources)
	}
	if text != "" {
		c.invalidTask(w.framework, t, mesos.REASON_TASK_INVALID, text)
		return
	}
	if t.Executor != nil && e == nil {
		e = c.addExecutor(w, t.Executor)
	}
	w.left = w.left.minus(parse(resources))
	c.begin(c.addTask(w, t, e))
}

// launchGroup starts the tasks of a group, or says of each what is wrong with one.
func (c *Cluster) launchGroup(w *accepted, g *mesos.Offer_Operation_LaunchGroup) {
	text := invalidExecutor(&g.Executor)
	tasks := g.TaskGroup.Tasks
	resources := slices.Clone(g.Executor.Resources)
	for i := range tasks {
		text = cmpOr(text, invalid(w, &tasks[i]))
		if tasks[i].Executor != nil {
			text = cmpOr(text, "'TaskInfo.executor' must not be set")
		}
		resources = append(resources, tasks[i].Resources...)
	}
	text = cmpOr(text, w.lacks(resources))
	if text != "" {
		for i := range tasks {
			c.invalidTask(w.framework, &tasks[i], mesos.REASON_TASK_GROUP_INVALID, text)
		}
		return
	}
	w.left = w.left.minus(parse(resources))
	e := w.find(g.Executor.ExecutorID.Value)
	if e == nil {
		e = c.addExecutor(w, &g.Executor)
		e.custom = false
	}
	var started []*task
	for i := range tasks {
		started = append(started, c.addTask(w, &tasks[i], e))
	}
	for _, t := range started {
		c.begin(t)
	}
}

// find returns the framework's executor of that id on the agent.
func (w *accepted) find(id string) *executor {
	for _, e := range w.framework.executors {
		if e.id == id && e.agent == w.agent {
			return e
		}
	}
	return nil
}

func (c *Cluster) addExecutor(w *accepted, info *mesos.ExecutorInfo) *executor {
	e := &executor{
		id: info.ExecutorID.Value, container: c.uuid(), framework: w.framework, agent: w.agent, role: w.role, resources: parse(info.Resources), custom: true,
	}
	w.framework.executors = append(w.framework.executors, e)
	return e
}

func (c *Cluster) addTask(w *accepted, info *mesos.TaskInfo, e *executor) *task {
	t := &task{
		id: info.TaskID.Value, info: info, framework: w.framework, agent: w.agent, role: w.role, resources: parse(info.Resources),
		state: mesos.TASK_STAGING, executor: e,
	}
	if e != nil {
		e.tasks = append(e.tasks, t)
	}
	c.keep(t)
	return t
}

// invalid says what is wrong with a task, whoever runs it and whatever is left.
func invalid(w *accepted, t *mesos.TaskInfo) string {
	id := t.TaskID.Value
	switch {
	case id == "":
		return "'' is an invalid task ID: ID must not be empty"
	case len(id) > 255:
		return "ID must not be greater than 255 characters"
	case id == "." || id == ".." || strings.ContainsFunc(id, func(r rune) bool { return r == '/' || r == '\\' || r < ' ' || r == 0x7f || r == ' ' }):
		return "'" + id + "' contains invalid characters"
	case w.framework.tasks[id] != nil:
		return "Task has duplicate ID: " + id
	case t.AgentID.Value != w.agent.id:
		return "Task uses invalid agent " + t.AgentID.Value + " while agent " + w.agent.id + " is expected"
	case len(t.Resources) == 0:
		return "Task uses no resources"
	}
	return ""
}

func invalidExecutor(e *mesos.ExecutorInfo) string {
	if e.Type == mesos.ExecutorInfo_CUSTOM && e.Command == nil {
		return "'ExecutorInfo.command' must be set for 'CUSTOM' executor"
	}
	resources := parse(e.Resources)
	if resources.milli("cpus") < 10 {
		return fmt.Sprintf("Executor '%s' uses less CPUs (%s) than the minimum required (0.01)", e.ExecutorID.Value, orNone(resources.find("cpus")))
	}
	if resources.milli("mem") < 32000 {
		return fmt.Sprintf("Executor '%s' uses less memory (%s) than the minimum required (32MB)", e.ExecutorID.Value, orNone(resources.find("mem")))
	}
	return ""
}

func orNone(p *part) string {
	if p == nil {
		return "None"
	}
	return p.amountText()
}

// lacks says that resources are more than what is left; "": they are not. Resources without a role count as allocated to the offer's.
func (w *accepted) lacks(resources []mesos.Resource) string {
	role, foreign := w.role, false
	for i := range resources {
		if other := resources[i].GetAllocationInfo().GetRole(); other != "" && other != w.role {
			role, foreign = other, true
		}
	}
	needed := parse(resources)
	if !foreign && w.left.has(needed) {
		return ""
	}
	return "Total resources " + needed.text(role) + " required by task and its executor is more than available " + w.left.text(w.role)
}
