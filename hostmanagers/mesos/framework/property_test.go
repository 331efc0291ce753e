package framework_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/maintenance"
	"github.com/mesos/mesos-go/api/v1/lib/master"
	"github.com/mesos/mesos-go/api/v1/lib/resources"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
)

// history draws what happens in a world.
type history struct {
	*world
	rapid  *rapid.T
	agents []string // ids
	away   []string // of these, out of contact
}

// TestHistories lets anything happen in any order, with calls and events under way meanwhile, and holds the machine to safety at every step: a
// run's states go forward, it ends once, it is sent once unless the master refused it. Then everything is mended, and it is held to liveness: what
// is killed ends, nothing waits, and the framework holds exactly the offers that the master says it holds, and none once there is no demand.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{rapid: rt, world: newWorld(rt, cluster.Config{Seed: 1, PingTimeout: time.Second, MaxPings: 3}, framework.Config{
			UnreachableGrace: 20 * time.Second, ReregisterGrace: 10 * time.Second,
		})}
		h.noOperator = rapid.Bool().Draw(rt, "without operator API")
		for range rapid.IntRange(1, 4).Draw(rt, "agents") {
			h.agents = append(h.agents, h.addAgent())
		}
		h.subscribe()
		h.pass(6 * time.Second)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			h.step()
		}
		h.mend()
		h.checkRest()
	})
}

// step does one thing.
func (h *history) step() {
	actions := map[string]func(){
		"launch": h.launchSome, "send": h.sendSome, "hear": h.hearSome, "pass": h.passSome, "acknowledge": h.acknowledge, "kill": h.killSome,
		"demand": h.toggle, "lose agent": h.loseAgent, "return agent": h.returnAgent, "lose connection": h.cut, "reconcile": h.reconcileSome,
		"duplicate": h.duplicate, "fail a call": h.failCall, "remove agent": h.removeAgent, "drain": h.drainAgent, "crash": h.crash,
		"new master": h.newMaster, "rival": h.rival, "reorder": h.reorder, "maintenance": h.maintain,
	}
	weights := []string{
		"launch", "launch", "launch", "launch", "send", "send", "send", "hear", "hear", "hear", "pass", "pass", "pass", "acknowledge", "acknowledge",
		"acknowledge", "kill", "demand", "lose agent", "return agent", "return agent", "lose connection", "reconcile", "duplicate", "fail a call",
		"remove agent", "drain", "crash", "new master", "rival", "reorder", "maintenance",
	}
	actions[rapid.SampledFrom(weights).Draw(h.rapid, "action")]()
}

func (h *history) someHost() string {
	names := slices.Sorted(maps.Keys(h.hosts))
	if len(names) == 0 {
		return "no-such-host"
	}
	return rapid.SampledFrom(names).Draw(h.rapid, "host")
}

func (h *history) launchSome() {
	for range rapid.IntRange(1, 4).Draw(h.rapid, "launches") {
		h.launch(h.someHost(), func(l *driver.Launch) {
			l.Needs["cpu_milli"] = int64(rapid.IntRange(1, 9000).Draw(h.rapid, "cpu"))
			if rapid.IntRange(0, 3).Draw(h.rapid, "with a port") == 0 {
				l.Ports = []driver.AssignedPort{{Name: "web", Number: uint16(rapid.IntRange(31000, 31010).Draw(h.rapid, "port"))}} //nolint:gosec // in range
			}
		})
	}
}

func (h *history) sendSome() {
	for range rapid.IntRange(0, len(h.calls)).Draw(h.rapid, "calls") {
		h.sendOne()
	}
}

func (h *history) hearSome() {
	for range rapid.IntRange(0, len(h.events)).Draw(h.rapid, "events") {
		h.hearOne()
	}
	h.answerCensus()
}

func (h *history) passSome() {
	h.pass(time.Duration(rapid.IntRange(1, 8000).Draw(h.rapid, "ms")) * time.Millisecond)
}

func (h *history) someRun() (workload.RunID, bool) {
	ids := slices.SortedFunc(maps.Keys(h.launched), func(a, b workload.RunID) int { return int(a.Instance) - int(b.Instance) })
	if len(ids) == 0 {
		return workload.RunID{}, false
	}
	return rapid.SampledFrom(ids).Draw(h.rapid, "run"), true
}

func (h *history) killSome() {
	if id, ok := h.someRun(); ok {
		h.killRun(id, time.Duration(rapid.IntRange(0, 5).Draw(h.rapid, "grace"))*time.Second)
	}
}

func (w *world) killRun(id workload.RunID, grace time.Duration) {
	w.input(func(now int64, out *framework.Output) {
		if err := w.machine.Kill(now, []driver.Kill{{Run: id, Grace: grace}}, out); err != nil && w.connected {
			w.t.Fatalf("kill: %v", err)
		}
	})
}

func (h *history) toggle() {
	waiting := rapid.Bool().Draw(h.rapid, "demand")
	h.input(func(now int64, out *framework.Output) { h.machine.Demand(now, waiting, out) })
}

func (h *history) someAgent() string { return rapid.SampledFrom(h.agents).Draw(h.rapid, "agent") }

func (h *history) loseAgent() {
	id := h.someAgent()
	h.away = append(h.away, id)
	h.master(func(c *cluster.Cluster) { c.LoseAgent(id) })
}

func (h *history) returnAgent() {
	for _, id := range h.away {
		h.master(func(c *cluster.Cluster) { c.ReturnAgent(id) })
	}
	h.away = nil
}

func (h *history) removeAgent() {
	id := h.someAgent()
	h.master(func(c *cluster.Cluster) { c.RemoveAgent(id, "it was told to") })
	h.agents = append(h.agents, h.addAgent())
}

func (h *history) drainAgent() {
	id := h.someAgent()
	h.master(func(c *cluster.Cluster) { c.Drain(id) })
	h.passSome()
	h.master(func(c *cluster.Cluster) { c.Reactivate(id) })
}

func (h *history) cut() {
	h.lose()
	if rapid.Bool().Draw(h.rapid, "some time") {
		h.pass(time.Duration(rapid.IntRange(1, 9000).Draw(h.rapid, "ms")) * time.Millisecond)
	}
	h.subscribe()
}

// crash is the end of the process, and another one in its place.
func (h *history) crash() {
	stream := h.stream
	h.stream = ""
	h.master(func(c *cluster.Cluster) { c.Disconnect(stream) })
	h.restart()
	h.subscribe()
	if rapid.Bool().Draw(h.rapid, "the master hangs") {
		h.hang(time.Duration(rapid.IntRange(1, 20).Draw(h.rapid, "seconds")) * time.Second)
	}
	h.pass(6 * time.Second)
	for _, task := range h.cluster.Tasks() {
		if id, err := workload.ParseRunID(task.TaskID.Value); err == nil && task.GetState() == mesos.TASK_RUNNING && h.statuses[id].State == workload.RunNone {
			h.t.Fatalf("the new process has not heard of %s, which runs: a shard would start it again", id)
		}
	}
}

func (h *history) reconcileSome() {
	var ids []workload.RunID
	if id, ok := h.someRun(); ok && rapid.Bool().Draw(h.rapid, "named") {
		ids = append(ids, id)
	}
	h.input(func(now int64, out *framework.Output) {
		if err := h.machine.Reconcile(now, ids, out); err != nil && h.connected {
			h.t.Fatalf("reconcile: %v", err)
		}
	})
}

func (h *history) duplicate() {
	for i, e := range h.events {
		if e.Update != nil {
			h.events = slices.Insert(h.events, i, e)
			return
		}
	}
}

// failCall loses the first call that is under way; who made it is told that, or that nobody knows.
func (h *history) failCall() {
	if len(h.calls) == 0 {
		return
	}
	call := h.calls[0]
	outcome := framework.NotTaken
	if rapid.Bool().Draw(h.rapid, "unanswered") {
		outcome = framework.Unanswered
	}
	if outcome == framework.Unanswered && rapid.Bool().Draw(h.rapid, "taken") {
		h.sendOne()
	} else {
		h.calls = h.calls[1:]
	}
	h.input(func(now int64, out *framework.Output) {
		h.machine.Failed(now, &call, outcome, errors.New("reset"), out)
	})
}

// newMaster is another master that has never heard of anything. The agents come to it one by one, with the tasks that run on them.
func (h *history) newMaster() {
	survivors := map[string][]cluster.Survivor{}
	// The old master tells what it told last, so some of these have ended already, and their room is others'.
	room := map[string]mesos.Resources{}
	for _, a := range h.cluster.Agents() {
		room[a.AgentInfo.ID.Value] = a.TotalResources
	}
	for _, t := range h.cluster.Tasks() {
		if left := room[t.AgentID.Value]; t.GetState() == mesos.TASK_RUNNING && resources.ContainsAll(left, t.Resources) {
			room[t.AgentID.Value] = left.Minus(t.Resources...)
			survivors[t.AgentID.Value] = append(survivors[t.AgentID.Value], cluster.Survivor{
				FrameworkID: t.FrameworkID.Value, Role: "rec", Info: &mesos.TaskInfo{TaskID: t.TaskID, AgentID: t.AgentID, Resources: t.Resources},
			})
		}
	}
	old := h.cluster.Agents()
	h.lose()
	h.numbers++
	h.cluster = cluster.New(cluster.Config{Seed: uint64(h.numbers), PingTimeout: time.Second, MaxPings: 3, Behave: behave}, h.now)
	h.agents, h.away = nil, nil
	h.subscribe()
	for _, a := range old {
		h.pass(time.Duration(rapid.IntRange(0, 2000).Draw(h.rapid, "ms")) * time.Millisecond)
		h.master(func(c *cluster.Cluster) {
			h.agents = append(h.agents, c.AddAgent(cluster.Agent{
				ID: a.AgentInfo.ID.Value, Hostname: a.AgentInfo.Hostname, Resources: a.AgentInfo.Resources, Tasks: survivors[a.AgentInfo.ID.Value],
			}))
		})
	}
	if len(h.agents) == 0 {
		h.agents = append(h.agents, h.addAgent())
	}
}

// rival is another framework that takes what it is offered, for a while.
func (h *history) rival() {
	checkpoint, stream := true, "rival"
	info := mesos.FrameworkInfo{User: "root", Name: "rival", Roles: []string{"other"}, Checkpoint: &checkpoint, Capabilities: h.info.Capabilities}
	h.master(func(c *cluster.Cluster) {
		c.Subscribe(stream, &scheduler.Call{Type: scheduler.Call_SUBSCRIBE, Subscribe: &scheduler.Call_Subscribe{FrameworkInfo: &info}})
	})
	h.passSome() // it holds its offers meanwhile
	h.master(func(c *cluster.Cluster) { c.Disconnect(stream) })
}

// reorder swaps updates of different tasks that follow each other.
func (h *history) reorder() {
	for i := 1; i < len(h.events); i++ {
		a, b := h.events[i-1], h.events[i]
		if a.Update != nil && b.Update != nil && a.Update.Status.TaskID != b.Update.Status.TaskID {
			h.events[i-1], h.events[i] = b, a
		}
	}
}

// maintain announces that some host will be unavailable, and that it will not after all.
func (h *history) maintain() {
	name := h.someHost()
	schedule := func(windows ...maintenance.Window) {
		h.master(func(c *cluster.Cluster) { c.SetSchedule(&maintenance.Schedule{Windows: windows}) })
	}
	if name == "no-such-host" {
		return
	}
	from := h.now.Add(time.Duration(rapid.IntRange(0, 1200).Draw(h.rapid, "in")) * time.Second)
	ip := "127.0.0.1"
	schedule(maintenance.Window{
		MachineIDs:     []mesos.MachineID{{Hostname: &name, IP: &ip}},
		Unavailability: mesos.Unavailability{Start: mesos.TimeInfo{Nanoseconds: from.UnixNano()}, Duration: &mesos.DurationInfo{Nanoseconds: int64(time.Hour)}},
	})
	h.passSome()
	schedule()
}

// mend brings everything back and lets it come to rest.
func (h *history) mend() {
	h.returnAgent()
	if h.stream == "" {
		h.subscribe()
	}
	h.input(func(now int64, out *framework.Output) { h.machine.Demand(now, true, out) })
	for range 12 {
		h.acknowledge()
		h.pass(10 * time.Second)
	}
	for n := 0; n < 30 && (h.machine.Stats().Runs > 0 || len(h.unacked) > 0); n++ {
		for id, s := range h.statuses {
			if !s.State.Traits().Terminal {
				h.killRun(id, 0)
			}
		}
		h.pass(time.Second)
		h.acknowledge()
		h.pass(20 * time.Second)
	}
}

// checkRest holds the world at rest to what it must be.
func (h *history) checkRest() {
	h.t.Helper()
	defer func() {
		for _, line := range h.heard {
			h.rapid.Log(line) // told only if it fails
		}
	}()
	if s := h.machine.Stats(); s.Runs != 0 || s.Waiting != 0 || s.Unacked != 0 {
		h.t.Fatalf("at rest there are %+v; the last statuses are %+v", s, h.statuses)
	}
	if tasks := h.cluster.Tasks(); len(tasks) > 0 {
		h.t.Fatalf("the master still has %d tasks, such as %s in %s", len(tasks), tasks[0].TaskID.Value, tasks[0].GetState())
	}
	held := len(h.masterOffers())
	if stats := h.machine.Stats(); stats.Offers != held {
		h.t.Fatalf("the framework thinks that it holds %d offers, the master %d", stats.Offers, held)
	}
	h.checkCapacity()
	h.input(func(now int64, out *framework.Output) { h.machine.Demand(now, false, out) })
	h.pass(10 * time.Second)
	if held := len(h.masterOffers()); held != 0 || h.machine.Stats().Offers != 0 {
		h.t.Fatalf("without demand it holds %d offers, %d by the master's word", h.machine.Stats().Offers, held)
	}
	h.checkCapacity()
	h.pass(2 * time.Minute)
	h.checkCapacity()
	for range 3 { // launches have offers come, and go again
		l := h.launch(h.someHost(), func(l *driver.Launch) { l.Command = []string{"for", "1h"} })
		h.pass(3 * time.Second)
		if s := h.statuses[l.Run]; s.State != workload.RunStarting {
			h.t.Fatalf("a run on a host with room is %+v", s)
		}
	}
	h.pass(30 * time.Second)
	if held := len(h.masterOffers()); held != 0 || h.machine.Stats().Offers != 0 {
		h.t.Fatalf("after launches without demand it holds %d offers, %d by the master's word", h.machine.Stats().Offers, held)
	}
}

func (h *history) masterOffers() []mesos.Offer {
	for _, f := range h.cluster.Frameworks() {
		if f.FrameworkInfo.ID.Value == h.info.ID.Value {
			return f.Offers
		}
	}
	return nil
}

// checkCapacity holds the hosts to what the agents have, as nobody else uses them.
func (h *history) checkCapacity() {
	h.t.Helper()
	agents := h.cluster.Agents()
	if h.noOperator { // an agent that went while there was no subscription stays as a host without room
		for name, host := range h.hosts {
			if host.Capacity["cpu_milli"] == 0 && !slices.ContainsFunc(agents, func(a master.Response_GetAgents_Agent) bool { return a.AgentInfo.Hostname == name }) {
				delete(h.hosts, name)
			}
		}
	}
	if len(agents) != len(h.hosts) {
		h.t.Fatalf("there are %d agents and %d hosts: %v", len(agents), len(h.hosts), slices.Sorted(maps.Keys(h.hosts)))
	}
	for _, a := range agents {
		host := h.hosts[a.AgentInfo.Hostname]
		if host.ID != a.AgentInfo.ID.Value || !host.Ready || host.Capacity["cpu_milli"] != 8000 || host.Capacity["memory_mib"] != 16384 {
			h.t.Fatalf("agent %s %s is the host %+v", a.AgentInfo.Hostname, a.AgentInfo.ID.Value, host)
		}
		if !slices.Equal(host.Ports, []driver.PortRange{{First: 31000, Last: 32000}}) {
			h.t.Fatalf("agent %s has the ports %v", a.AgentInfo.Hostname, host.Ports)
		}
	}
}
