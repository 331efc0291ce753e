package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// converting is how long an agent takes for an operation.
const converting = 15 * time.Millisecond

// operation is one with an id, until its status is acknowledged.
type operation struct {
	id     string
	agent  *agent
	uuid   []byte
	status mesos.OperationStatus
}

// convert carries out an operation that turns resources into others, and reports on it if it has an id.
func (c *Cluster) convert(w *accepted, o *mesos.Offer_Operation) {
	from, to, err := conversion(w, o)
	if err == nil && !w.left.has(from) {
		err = fmt.Errorf("%s does not contain %s", w.left.text(w.role), from.text(w.role))
	}
	if err != nil {
		if o.ID != nil {
			c.tellOperation(w.framework, mesos.OperationStatus{OperationID: o.ID, State: mesos.OPERATION_ERROR, Message: pointer(err.Error())})
		}
		return
	}
	w.left = w.left.minus(from).plus(to)
	w.agent.total = w.agent.total.minus(from).plus(to)
	if o.ID == nil {
		return
	}
	uuid := c.uuidBytes()
	done := &operation{id: o.ID.Value, agent: w.agent, uuid: uuid, status: mesos.OperationStatus{
		OperationID: o.ID, State: mesos.OPERATION_FINISHED, AgentID: &mesos.AgentID{Value: w.agent.id},
	}}
	w.framework.operations = append(w.framework.operations, done)
	c.after(converting, func() { c.reportOperation(w.framework, done, firstRetry) })
}

// reportOperation says that an operation is done, again and again until that is acknowledged.
func (c *Cluster) reportOperation(f *framework, done *operation, wait time.Duration) {
	if !slices.Contains(f.operations, done) {
		return
	}
	status := done.status
	status.UUID = &mesos.UUID{Value: done.uuid}
	c.tellOperation(f, status)
	c.after(wait, func() { c.reportOperation(f, done, min(2*wait, lastRetry)) })
}

func (c *Cluster) tellOperation(f *framework, status mesos.OperationStatus) {
	c.deliver(f, &scheduler.Event{
		Type: scheduler.Event_UPDATE_OPERATION_STATUS, UpdateOperationStatus: &scheduler.Event_UpdateOperationStatus{Status: status},
	})
}

// conversion says what an operation turns into what.
func conversion(w *accepted, o *mesos.Offer_Operation) (from, to bundle, err error) {
	var asked []mesos.Resource
	var undo func(*mesos.Resource)
	reverse := false
	switch {
	case o.Type == mesos.Offer_Operation_RESERVE && o.Reserve != nil:
		asked, undo = o.Reserve.Resources, unreserved
	case o.Type == mesos.Offer_Operation_UNRESERVE && o.Unreserve != nil:
		asked, undo, reverse = o.Unreserve.Resources, unreserved, true
	case o.Type == mesos.Offer_Operation_CREATE && o.Create != nil:
		asked, undo = o.Create.Volumes, plain
	case o.Type == mesos.Offer_Operation_DESTROY && o.Destroy != nil:
		asked, undo, reverse = o.Destroy.Volumes, plain, true
	default:
		return nil, nil, errors.New("Operation type is not supported") //nolint:staticcheck // a master's style
	}
	for i := range asked {
		after := asked[i]
		p := parsePart(&after)
		if role := p.reservedTo(); o.Type == mesos.Offer_Operation_RESERVE && role != w.role {
			//nolint:staticcheck // a master's words
			return nil, nil, fmt.Errorf("A reserve operation was attempted for a resource with role '%s', but the resource was allocated to role '%s'; on agent %s at %s (%s)",
				role, w.role, w.agent.id, w.agent.pid(), w.agent.info.Hostname)
		}
		before := *p.like
		p.amount(&before)
		undo(&before)
		from, to = from.plus(bundle{parsePart(&before)}), to.plus(bundle{p})
	}
	if reverse {
		from, to = to, from
	}
	return from, to, nil
}

// unreserved takes the last reservation away.
func unreserved(r *mesos.Resource) {
	if n := len(r.Reservations); n > 0 {
		r.Reservations = r.Reservations[: n-1 : n-1]
	}
	if len(r.Reservations) == 0 {
		r.Reservations = nil
	}
}

// plain takes a persistent volume away.
func plain(r *mesos.Resource) {
	r.Disk, r.Shared = nil, nil
}

// acknowledgeOperation is an ACKNOWLEDGE_OPERATION_STATUS call.
func (c *Cluster) acknowledgeOperation(f *framework, call *scheduler.Call_AcknowledgeOperationStatus) {
	f.operations = slices.DeleteFunc(f.operations, func(o *operation) bool {
		return o.id == call.OperationID.Value && bytes.Equal(o.uuid, call.UUID)
	})
}

// reconcileOperations is a RECONCILE_OPERATIONS call; none named: all.
func (c *Cluster) reconcileOperations(f *framework, call *scheduler.Call_ReconcileOperations) {
	if len(call.Operations) == 0 {
		for _, o := range f.operations {
			c.tellOperation(f, o.status)
		}
		return
	}
	for _, asked := range call.Operations {
		status := mesos.OperationStatus{
			OperationID: pointer(asked.OperationID), AgentID: asked.AgentID, State: mesos.OPERATION_UNKNOWN,
			Message: pointer("Reconciliation: Operation is unknown"),
		}
		for _, o := range f.operations {
			if o.id == asked.OperationID.Value {
				status = o.status
			}
		}
		c.tellOperation(f, status)
	}
}
