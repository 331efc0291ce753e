package cluster_test

import (
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// TestANewMasterKnowsNothing kills a master while a task runs: nobody is known to the next one but who comes, and the task goes on.
func TestANewMasterKnowsNothing(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := cluster.New(cluster.Config{Behave: cluster.Lasting(10 * time.Second)}, now)
	agent := c.AddAgent(cluster.Agent{Hostname: "agent", Resources: cluster.Plain(4, 4096, 1000, 0, 0)})
	patience, checkpoint := 60.0, true
	info := &mesos.FrameworkInfo{User: "nobody", Name: "test", Roles: []string{"test"}, FailoverTimeout: &patience, Checkpoint: &checkpoint, Capabilities: []mesos.FrameworkInfo_Capability{
		{Type: mesos.FrameworkInfo_Capability_MULTI_ROLE}, {Type: mesos.FrameworkInfo_Capability_PARTITION_AWARE},
	}}
	subscribe := func(stream string) {
		c.Subscribe(stream, &scheduler.Call{Type: scheduler.Call_SUBSCRIBE, Subscribe: &scheduler.Call_Subscribe{FrameworkInfo: info}})
	}
	// heard returns the states of the task, the offers and the broken streams since the last time.
	heard := func() (states []mesos.TaskState, offers []mesos.Offer, broken int) {
		now = now.Add(time.Second)
		c.Advance(now)
		for _, effect := range c.TakeEffects() {
			switch effect := effect.(type) {
			case cluster.Close:
				if effect.Broken {
					broken++
				}
			case cluster.Deliver:
				if s := effect.Event.GetSubscribed(); s != nil {
					info.ID = s.FrameworkID
				}
				if u := effect.Event.GetUpdate(); u != nil {
					states = append(states, u.Status.GetState())
				}
				offers = append(offers, effect.Event.GetOffers().GetOffers()...)
			}
		}
		return states, offers, broken
	}
	call := func(stream string, call *scheduler.Call) *cluster.Refusal {
		call.FrameworkID = info.ID
		return c.Call(stream, call)
	}
	subscribe("first")
	_, offers, _ := heard()
	launch := mesos.Offer_Operation{Type: mesos.Offer_Operation_LAUNCH, Launch: &mesos.Offer_Operation_Launch{TaskInfos: []mesos.TaskInfo{{
		Name: "t", TaskID: mesos.TaskID{Value: "t"}, AgentID: offers[0].AgentID, Command: &mesos.CommandInfo{}, Resources: cluster.Plain(1, 64, 1, 0, 0),
	}}}}
	if refused := call("first", &scheduler.Call{Type: scheduler.Call_ACCEPT, Accept: &scheduler.Call_Accept{
		OfferIDs: []mesos.OfferID{offers[0].ID}, Operations: []mesos.Offer_Operation{launch},
	}}); refused != nil {
		t.Fatal(refused)
	}
	heard()
	c.Succeed(1500 * time.Millisecond)
	if refused := call("first", &scheduler.Call{Type: scheduler.Call_REVIVE}); refused == nil || refused.Text != "Framework cannot be found" {
		t.Fatalf("a call to the new master: %v", refused)
	}
	subscribe("second")
	ask := &scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{Tasks: []scheduler.Call_Reconcile_Task{
		{TaskID: mesos.TaskID{Value: "t"}, AgentID: &mesos.AgentID{Value: agent}},
	}}}
	if refused := call("second", ask); refused != nil {
		t.Fatal(refused)
	}
	if states, offers, broken := heard(); broken != 1 || len(offers) != 0 || len(states) != 1 || states[0] != mesos.TASK_UNKNOWN {
		t.Fatalf("before the agent is back: %v, %d offers, %d broken streams", states, len(offers), broken)
	}
	states, offers, _ := heard()
	if len(states) == 0 || states[0] != mesos.TASK_RUNNING || len(offers) != 1 || offers[0].AgentID.Value != agent || cpus(&offers[0]) != 3 {
		t.Fatalf("when the agent is back: %v, offers %v", states, offers)
	}
}

func cpus(o *mesos.Offer) float64 {
	for _, r := range o.Resources {
		if r.Name == "cpus" {
			return r.Scalar.Value
		}
	}
	return 0
}
