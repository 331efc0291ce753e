package cluster

import (
	"fmt"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// Validate says what is wrong with the form of a call; nil: nothing.
func Validate(call *scheduler.Call) *Refusal {
	expect := func(ok bool, what string) *Refusal {
		if ok {
			return nil
		}
		return badRequest("Failed to validate scheduler::Call: Expecting '" + what + "' to be present")
	}
	if call.Type == scheduler.Call_UNKNOWN {
		return expect(false, "type")
	}
	if call.Type == scheduler.Call_SUBSCRIBE {
		if call.Subscribe == nil {
			return expect(false, "subscribe")
		}
		if call.Subscribe.FrameworkInfo.GetID().GetValue() != call.GetFrameworkID().GetValue() {
			return badRequest("Failed to validate scheduler::Call: 'framework_id' differs from 'subscribe.framework_info.id'")
		}
		return nil
	}
	if call.FrameworkID == nil {
		return expect(false, "framework_id")
	}
	if name, ok := detail(call); name != "" && !ok {
		return expect(false, name)
	}
	switch {
	case call.Type == scheduler.Call_ACKNOWLEDGE && len(call.Acknowledge.UUID) != 16,
		call.Type == scheduler.Call_ACKNOWLEDGE_OPERATION_STATUS && len(call.AcknowledgeOperationStatus.UUID) != 16:
		return badRequest("Failed to validate scheduler::Call: Not a valid UUID")
	}
	return nil
}

// detail returns the name of the message that belongs to a call, and whether it is there; "": none is needed.
func detail(call *scheduler.Call) (name string, present bool) {
	switch call.Type {
	case scheduler.Call_ACCEPT:
		return "accept", call.Accept != nil
	case scheduler.Call_DECLINE:
		return "decline", call.Decline != nil
	case scheduler.Call_ACCEPT_INVERSE_OFFERS:
		return "accept_inverse_offers", call.AcceptInverseOffers != nil
	case scheduler.Call_DECLINE_INVERSE_OFFERS:
		return "decline_inverse_offers", call.DeclineInverseOffers != nil
	case scheduler.Call_KILL:
		return "kill", call.Kill != nil
	case scheduler.Call_SHUTDOWN:
		return "shutdown", call.Shutdown != nil
	case scheduler.Call_ACKNOWLEDGE:
		return "acknowledge", call.Acknowledge != nil
	case scheduler.Call_ACKNOWLEDGE_OPERATION_STATUS:
		return "acknowledge_operation_status", call.AcknowledgeOperationStatus != nil
	case scheduler.Call_RECONCILE:
		return "reconcile", call.Reconcile != nil
	case scheduler.Call_RECONCILE_OPERATIONS:
		return "reconcile_operations", call.ReconcileOperations != nil
	case scheduler.Call_MESSAGE:
		return "message", call.Message != nil
	case scheduler.Call_REQUEST:
		return "request", call.Request != nil
	case scheduler.Call_UPDATE_FRAMEWORK:
		return "update_framework", call.UpdateFramework != nil
	default:
		return "", true
	}
}

// Call is any call but SUBSCRIBE, already known to be well-formed, with the stream id that came with it; "": none did. Nil means that it
// was taken; whether it had the effect that the caller wanted shows in events.
func (c *Cluster) Call(stream string, call *scheduler.Call) *Refusal {
	id := call.FrameworkID.Value
	f := c.frameworks[id]
	switch {
	case f == nil || f.removed || f.strange:
		return badRequest("Framework cannot be found")
	case f.stream == "":
		return &Refusal{Code: 403, Text: "Framework is not subscribed"}
	case stream == "":
		return badRequest("All non-subscribe calls should include the 'Mesos-Stream-Id' header")
	case stream != f.stream:
		return badRequest(fmt.Sprintf("The stream ID '%s' included in this request didn't match the stream ID currently associated with framework ID %s", stream, id))
	}
	if call.Type == scheduler.Call_UPDATE_FRAMEWORK {
		return c.updateInfo(f, call.UpdateFramework)
	}
	c.serve(f, call)
	return nil
}

// serve carries out a call that cannot be refused any more.
func (c *Cluster) serve(f *framework, call *scheduler.Call) {
	switch call.Type {
	case scheduler.Call_TEARDOWN:
		c.remove(f)
	case scheduler.Call_ACCEPT:
		c.accept(f, call.Accept)
	case scheduler.Call_DECLINE:
		c.decline(f, call.Decline.OfferIDs, call.Decline.Filters)
	case scheduler.Call_ACCEPT_INVERSE_OFFERS:
		c.answerInverse(f, call.AcceptInverseOffers.InverseOfferIDs, call.AcceptInverseOffers.Filters, true)
	case scheduler.Call_DECLINE_INVERSE_OFFERS:
		c.answerInverse(f, call.DeclineInverseOffers.InverseOfferIDs, call.DeclineInverseOffers.Filters, false)
	case scheduler.Call_REVIVE:
		c.revive(f, call.GetRevive().GetRoles())
	case scheduler.Call_SUPPRESS:
		c.suppress(f, call.GetSuppress().GetRoles())
	case scheduler.Call_KILL:
		c.killCall(f, call.Kill)
	case scheduler.Call_SHUTDOWN:
		c.shutdown(f, call.Shutdown.ExecutorID.Value, call.Shutdown.AgentID.Value)
	case scheduler.Call_ACKNOWLEDGE:
		c.acknowledge(f, call.Acknowledge.AgentID.Value, call.Acknowledge.TaskID.Value, call.Acknowledge.UUID)
	case scheduler.Call_ACKNOWLEDGE_OPERATION_STATUS:
		c.acknowledgeOperation(f, call.AcknowledgeOperationStatus)
	case scheduler.Call_RECONCILE:
		c.reconcile(f, call.Reconcile)
	case scheduler.Call_RECONCILE_OPERATIONS:
		c.reconcileOperations(f, call.ReconcileOperations)
	case scheduler.Call_UNKNOWN, scheduler.Call_SUBSCRIBE, scheduler.Call_UPDATE_FRAMEWORK:
		// Served before.
	case scheduler.Call_MESSAGE, scheduler.Call_REQUEST:
		// A master passes messages on to executors, which here do not listen, and ignores requests.
	}
}
