package framework_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/maintenance"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

func ready(t fataler, agents int) *world {
	w := newWorld(t, cluster.Config{Seed: 1, PingTimeout: time.Second, MaxPings: 3}, framework.Config{})
	for range agents {
		w.addAgent()
	}
	w.subscribe()
	w.pass(6 * time.Second)
	return w
}

// fail takes the calls of one type that are under way, and says that they failed. It returns how many there were.
func (w *world) fail(kind scheduler.Call_Type, outcome framework.Outcome) int {
	failed := 0
	for i := 0; i < len(w.calls); {
		if w.calls[i].Type != kind {
			i++
			continue
		}
		call := w.calls[i]
		w.calls = slices.Delete(w.calls, i, i+1)
		failed++
		w.input(func(now int64, out *framework.Output) { w.machine.Failed(now, &call, outcome, errors.New("503"), out) })
	}
	return failed
}

// TestFailedAcknowledgements: one that the master did not take is sent again after a second, two, four, and so before the agent says the
// status anew.
func TestFailedAcknowledgements(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := ready(t, 1)
		l := w.launch("host-1", func(l *driver.Launch) { l.Command = []string{"for", "1h"} })
		w.pass(3 * time.Second)
		if s := w.statuses[l.Run]; s.State != workload.RunStarting {
			t.Fatalf("it is %+v", s)
		}
		w.acknowledge()
		for n := range rapid.IntRange(0, 2).Draw(t, "failures") {
			if failed := w.fail(scheduler.Call_ACKNOWLEDGE, rapid.SampledFrom([]framework.Outcome{framework.NotTaken, framework.Unanswered}).Draw(t, "outcome")); failed != 1 {
				t.Fatalf("after %d failures %d acknowledgements were made", n, failed)
			}
			w.now = w.now.Add(time.Second<<n - 1)
			w.input(w.machine.Wake)
			if w.fail(scheduler.Call_ACKNOWLEDGE, framework.NotTaken) != 0 {
				t.Fatalf("after %d failures it was sent too early", n+1)
			}
			w.now = w.now.Add(1)
			w.input(w.machine.Wake)
		}
		w.pass(time.Second)
		if s := w.statuses[l.Run]; s.State != workload.RunRunning {
			t.Fatalf("it is %+v: the agent has not heard the acknowledgement of the status before", s)
		}
	})
}

// TestResendingEnds: a master that takes nothing is not asked for ever; the agent's own retries are left.
func TestResendingEnds(t *testing.T) {
	t.Parallel()
	w := ready(t, 1)
	w.launch("host-1")
	w.pass(3 * time.Second)
	w.acknowledge()
	made := 0
	for until := w.now.Add(time.Hour); w.now.Before(until); w.now = w.now.Add(time.Second) { // no event is delivered meanwhile
		w.input(w.machine.Wake)
		made += w.fail(scheduler.Call_ACKNOWLEDGE, framework.NotTaken)
		w.calls = nil
	}
	if made != 8 {
		t.Errorf("the acknowledgement was made %d times", made)
	}
}

// TestTheInventoryWaitsForTheMaster: as long as it does not take the question what tasks there are, none is said to be missing.
func TestTheInventoryWaitsForTheMaster(t *testing.T) {
	t.Parallel()
	w := ready(t, 1)
	l := w.launch("host-1", func(l *driver.Launch) { l.Command = []string{"for", "1h"} })
	w.pass(3 * time.Second)
	w.acknowledge()
	w.pass(time.Second)
	w.restart()
	w.subscribe()
	for until := w.now.Add(time.Minute); w.now.Before(until); w.now = w.now.Add(250 * time.Millisecond) {
		w.input(w.machine.Wake)
		w.fail(scheduler.Call_RECONCILE, framework.NotTaken)
		w.settle()
	}
	if w.connected {
		t.Fatal("there is an inventory, though nobody said what runs")
	}
	w.pass(3 * time.Second)
	if s := w.statuses[l.Run]; !w.connected || s.State != workload.RunRunning {
		t.Fatalf("after the master was heard: connected: %t, %+v", w.connected, s)
	}
}

// TestAnInventoryDoesNotWaitForEver: a master that takes the question and never answers is given up on.
func TestAnInventoryDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	w := ready(t, 1)
	w.restart()
	w.subscribe()
	w.hang(59 * time.Second)
	if w.connected {
		t.Fatal("there is an inventory, though nobody said what runs")
	}
	w.hang(7 * time.Second)
	if !w.connected || len(w.hosts) != 1 {
		t.Fatalf("after AnswerWait: connected: %t, %d hosts", w.connected, len(w.hosts))
	}
}

// TestHalfAQuestion: the end of a reconciliation whose beginning the master did not take is no answer.
func TestHalfAQuestion(t *testing.T) {
	t.Parallel()
	w := ready(t, 1)
	l := w.launch("host-1", func(l *driver.Launch) { l.Command = []string{"for", "1h"} })
	w.pass(3 * time.Second)
	w.acknowledge()
	w.pass(time.Second)
	w.restart()
	w.subscribe()
	call := w.calls[0]
	w.calls = w.calls[1:]
	w.input(func(now int64, out *framework.Output) {
		w.machine.Failed(now, &call, framework.NotTaken, errors.New("503"), out)
	})
	w.settle()
	if w.connected {
		t.Fatal("there is an inventory, though half of the question was lost")
	}
	w.pass(2 * time.Second)
	if s := w.statuses[l.Run]; !w.connected || s.State != workload.RunRunning {
		t.Fatalf("after the whole question: connected: %t, %+v", w.connected, s)
	}
}

func withProxy(l *driver.Launch) {
	l.Command = []string{"for", "2s"}
	l.Execution = &execution.Spec{Sidecars: []execution.Container{
		{Name: "proxy", Command: []string{"for", "1000h"}, Needs: map[string]int64{"cpu_milli": 100, "memory_mib": 64}},
	}}
}

// endOfMain lets a run of two containers work until the main one has ended, and acknowledges that at once.
func endOfMain(t *testing.T, w *world) {
	t.Helper()
	l := w.launch("host-1", withProxy)
	for range 10_000 {
		w.pass(time.Millisecond)
		if s := w.statuses[l.Run]; s.State == workload.RunSucceeded {
			return
		}
		w.acknowledge()
	}
	t.Fatal("it has not ended")
}

// TestLateWordsOfAContainer: what runs beside the main container of a run may outlive the run's acknowledgement, and then it is no run.
func TestLateWordsOfAContainer(t *testing.T) {
	t.Parallel()
	w := ready(t, 1)
	endOfMain(t, w)
	w.acknowledge()
	w.pass(time.Minute)
	if s := w.machine.Stats(); s.Runs != 0 || len(w.cluster.Tasks()) != 0 {
		t.Fatalf("%+v, and the master has %d tasks", s, len(w.cluster.Tasks()))
	}
}

// TestAContainerIsLeftOver: if the kill of what runs beside the main container is lost, and the process with it, it is found and ended.
func TestAContainerIsLeftOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster.Config{Seed: 1}, framework.Config{})
	w.addAgent()
	w.subscribe()
	w.pass(6 * time.Second)
	l := w.launch("host-1", withProxy)
	for range 10_000 {
		w.now = w.now.Add(time.Millisecond)
		w.master(func(*cluster.Cluster) {})
		w.input(w.machine.Wake)
		for len(w.events) > 0 {
			w.hearOne()
		}
		w.calls = slices.DeleteFunc(w.calls, func(c framework.Call) bool { return c.Type == scheduler.Call_KILL })
		w.acknowledge()
		w.settle()
	}
	if _, known := w.statuses[l.Run]; known || len(w.cluster.Tasks()) != 1 {
		t.Fatalf("the run is known: %t, and %d tasks are left", known, len(w.cluster.Tasks()))
	}
	stream := w.stream
	w.stream = ""
	w.master(func(c *cluster.Cluster) { c.Disconnect(stream) })
	w.restart()
	w.subscribe()
	for range 12 {
		w.pass(10 * time.Second)
		w.acknowledge()
	}
	if tasks := w.cluster.Tasks(); len(tasks) != 0 || w.machine.Stats().Runs != 0 {
		t.Fatalf("%d tasks are left, and %+v", len(tasks), w.machine.Stats())
	}
}

// TestARunWithoutAHost: a run that was refused because its host is not there may be running all the same, started by an earlier process.
func TestARunWithoutAHost(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", ".proxy"} {
		w := ready(t, 1)
		l := w.launch("no-such-host")
		if s := w.statuses[l.Run]; s.State != workload.RunLost {
			t.Fatalf("it is %+v", s)
		}
		task := l.Run.String() + suffix
		update := &scheduler.Event{Type: scheduler.Event_UPDATE, Update: &scheduler.Event_Update{Status: mesos.TaskStatus{
			TaskID: mesos.TaskID{Value: task}, State: mesos.TASK_RUNNING.Enum(), UUID: []byte("0123456789abcdef"),
		}}}
		w.events = append(w.events, update) // without an agent
		w.hearOne()
		whole := *update.Update
		whole.Status.AgentID = &mesos.AgentID{Value: "agent-of-old"}
		w.events = append(w.events, &scheduler.Event{Type: scheduler.Event_UPDATE, Update: &whole})
		w.hearOne()
		if !slices.ContainsFunc(w.calls, func(c framework.Call) bool { return c.Kill != nil && c.Kill.TaskID.Value == task }) {
			t.Errorf("task %s is not ended", task)
		}
	}
}

// TestUnavailableForEver: a window may be longer than time is counted.
func TestUnavailableForEver(t *testing.T) {
	t.Parallel()
	w := ready(t, 1)
	name, ip := "host-1", "127.0.0.1"
	w.master(func(c *cluster.Cluster) {
		c.SetSchedule(&maintenance.Schedule{Windows: []maintenance.Window{{
			MachineIDs: []mesos.MachineID{{Hostname: &name, IP: &ip}}, Unavailability: mesos.Unavailability{
				Start: mesos.TimeInfo{Nanoseconds: w.now.Add(time.Minute).UnixNano()}, Duration: &mesos.DurationInfo{Nanoseconds: math.MaxInt64},
			},
		}}})
	})
	w.input(func(now int64, out *framework.Output) { w.machine.Demand(now, true, out) })
	w.pass(5 * time.Second)
	if h := w.hosts[name]; h.Ready || !strings.HasPrefix(h.Message, "unavailable from") {
		t.Errorf("it is ready: %t (%s)", h.Ready, h.Message)
	}
}

// TestCallsComeInOneOrder: what waited for a subscription goes out in the order of the hosts' names, whatever order the machine keeps them in.
func TestCallsComeInOneOrder(t *testing.T) {
	t.Parallel()
	w := ready(t, 9)
	w.input(func(now int64, out *framework.Output) { w.machine.Demand(now, false, out) })
	w.pass(20 * time.Second)
	var tasks []string
	for n := range 9 {
		tasks = append(tasks, w.launch("host-"+string(rune('1'+n))).Run.String())
	}
	w.lose()
	w.heard = nil
	w.subscribe()
	w.settle()
	var sent []string
	for _, line := range w.heard {
		for _, task := range tasks {
			if strings.Contains(line, "-> ACCEPT") && strings.Contains(line, task) {
				sent = append(sent, task)
			}
		}
	}
	if !slices.Equal(sent, tasks) {
		t.Errorf("sent in this order:\n%s", strings.Join(sent, "\n"))
	}
}

// TestSettingsOfBothKinds: a job that can go to either kind of cluster runs here as one that says nothing of Kubernetes; one for Kubernetes alone does not start.
func TestSettingsOfBothKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		execution execution.Spec
		want      workload.RunState
	}{
		{execution.Spec{Mesos: &execution.Mesos{}, Kubernetes: &execution.Kubernetes{Namespace: "web"}}, workload.RunRunning},
		{execution.Spec{Kubernetes: &execution.Kubernetes{Namespace: "web"}}, workload.RunFailed},
	} {
		w := ready(t, 1)
		l := w.launch("host-1", func(l *driver.Launch) { l.Command, l.Execution = []string{"for", "1h"}, &c.execution })
		for n := 0; n < 20 && w.statuses[l.Run].State != c.want; n++ {
			w.acknowledge()
			w.pass(500 * time.Millisecond)
		}
		if s := w.statuses[l.Run]; s.State != c.want {
			t.Errorf("settings for Mesos: %t, for Kubernetes: %t: %+v, want %v", c.execution.Mesos != nil, c.execution.Kubernetes != nil, s, c.want)
		}
	}
}
