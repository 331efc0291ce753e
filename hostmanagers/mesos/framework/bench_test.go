package framework_test

import (
	"fmt"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

// connected is a machine that has its inventory, and wants offers.
func connected(b *testing.B) (*framework.Machine, *framework.Output) {
	b.Helper()
	m, err := framework.New(framework.Config{Roles: []string{"rec"}})
	if err != nil {
		b.Fatal(err)
	}
	out, now := &framework.Output{}, began.UnixNano()
	m.Subscribed(now, "M", out)
	m.Learn(now, &framework.Census{}, out)
	m.Event(now, &scheduler.Event{Update: &scheduler.Event_Update{Status: markerAnswer(now)}}, out)
	m.Demand(now, true, out)
	return m, out
}

func offerOf(n, agent int) mesos.Offer {
	role := "rec"
	resources := cluster.Plain(8, 16384, 100000, 31000, 32000)
	for i := range resources {
		resources[i].AllocationInfo = &mesos.Resource_AllocationInfo{Role: &role}
	}
	return mesos.Offer{
		ID: mesos.OfferID{Value: fmt.Sprintf("M-O%d", n)}, AgentID: mesos.AgentID{Value: fmt.Sprintf("M-S%d", agent)},
		Hostname: fmt.Sprintf("host-%d", agent), Resources: resources, AllocationInfo: &mesos.Resource_AllocationInfo{Role: &role},
	}
}

// BenchmarkOffer is what an offer of a known agent costs the machine until it is used by a launch of one task: the offer, the launch and the ACCEPT,
// with the one update that ends it.
func BenchmarkOffer(b *testing.B) {
	const agents = 1000
	m, out := connected(b)
	now := began.UnixNano()
	needs := map[string]int64{"cpu_milli": 1000, "memory_mib": 1024}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		agent := n % agents
		offers := &scheduler.Event_Offers{Offers: []mesos.Offer{offerOf(n, agent)}}
		m.Event(now, &scheduler.Event{Offers: offers}, out)
		l := driver.Launch{
			Run:  workload.RunID{Job: workload.JobID{1}, Instance: uint32(n % workload.MaxInstances), Generation: 1, Run: uint32(n/workload.MaxInstances) + 1}, //nolint:gosec // not negative
			Host: fmt.Sprintf("host-%d", agent), Command: []string{"work"}, Needs: needs,
		}
		if err := m.Launch(now, []driver.Launch{l}, out); err != nil {
			b.Fatal(err)
		}
		if len(out.Calls) != 1 || out.Calls[0].Accept == nil {
			b.Fatalf("launched by %v", out.Calls)
		}
		m.Event(now, &scheduler.Event{Update: &scheduler.Event_Update{Status: mesos.TaskStatus{
			TaskID: mesos.TaskID{Value: l.Run.String()}, State: mesos.TASK_FINISHED.Enum(), AgentID: &offers.Offers[0].AgentID,
		}}}, out)
		m.Acknowledge(now, []driver.Token{out.News[0].Statuses[0].Token}, out)
		n++
	}
}

// BenchmarkUpdate is what an update of a run costs the machine: the status, and its acknowledgement. Each run has three.
func BenchmarkUpdate(b *testing.B) {
	m, out := connected(b)
	now := began.UnixNano()
	m.Event(now, &scheduler.Event{Offers: &scheduler.Event_Offers{Offers: []mesos.Offer{offerOf(0, 0)}}}, out)
	states := []mesos.TaskState{mesos.TASK_STARTING, mesos.TASK_RUNNING, mesos.TASK_FINISHED}
	timestamp, message := float64(began.Unix()), "Command exited with status 0"
	var uuid [16]byte
	var task string
	tokens := make([]driver.Token, 1)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n%3 == 0 {
			now += int64(time.Millisecond)
			task = workload.RunID{Job: workload.JobID{1}, Instance: uint32(n / 3 % workload.MaxInstances), Generation: 1, Run: uint32(n/3/workload.MaxInstances) + 1}.String() //nolint:gosec // not negative
		}
		uuid[0], uuid[1], uuid[2], uuid[3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
		m.Event(now, &scheduler.Event{Update: &scheduler.Event_Update{Status: mesos.TaskStatus{
			TaskID: mesos.TaskID{Value: task}, State: &states[n%3], AgentID: &mesos.AgentID{Value: "M-S0"}, UUID: append([]byte(nil), uuid[:]...),
			Timestamp: &timestamp, Message: &message,
		}}}, out)
		tokens[0] = out.News[0].Statuses[0].Token
		m.Acknowledge(now, tokens, out)
		n++
	}
	if runs := m.Stats().Runs; runs > 1 {
		b.Fatalf("%d runs are left", runs)
	}
}
