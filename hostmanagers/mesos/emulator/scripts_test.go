package emulator_test

import (
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// script is how a stage of the recordings is replayed. Times are seconds since its start.
type script struct {
	name    string
	streams []stream
	// tick is when the allocator first runs: its phase in the recording. Default: found there.
	tick map[string]float64
	// allocation is what a run of the allocator took, where the machine was too busy for the default.
	allocation map[string]time.Duration
	config     func(*cluster.Config)
	agent      func(*cluster.Agent) // changes the agents
	// steps are what is not in a framework's list of calls: other requests, and what happened to agents.
	steps []step
	// adjust says what the updates do not show of a process's times.
	adjust   func(task string, b *cluster.Behaviour)
	alone    bool // there is only the agent that is offered
	onlyJSON bool
}

// stream is one subscription: when it is opened, and after how long the framework drops it.
type stream struct {
	stage       string
	opens, drop float64
	after       string   // what opens counts from, see anchor; default: the start
	align       []string // the sum of these is when the allocator's clock brings offers
	// silent are tasks of which nothing is acknowledged, or "id STATE" for one update of it; "protobuf id" for that half alone.
	silent []string
}

type step struct {
	at    float64
	after string // what at counts from, see anchor; default: the start
	do    func(*world)
}

// acknowledges reports whether the recorded framework acknowledged an update.
func (s *stream) acknowledges(enc, task, state string) bool {
	return !slices.ContainsFunc(s.silent, func(silent string) bool {
		return silent == task || silent == task+" "+state || silent == enc+" "+task
	})
}

// sendRest sends all requests of a stage in the order of their names, but for some.
func sendRest(stage string, but ...string) func(*world) {
	return func(w *world) {
		for _, label := range w.labels(stage) {
			if !slices.Contains(but, label) {
				w.send(w.enc + "/" + stage + "." + label)
			}
		}
	}
}

// sendSome sends the requests of a stage whose labels begin alike.
func sendSome(stage, prefix string) func(*world) {
	return func(w *world) {
		for _, label := range w.labels(stage) {
			if strings.HasPrefix(label, prefix) {
				w.send(w.enc + "/" + stage + "." + label)
			}
		}
	}
}

// follow does something while the master thinks that another one leads; "": none, "self": it does.
func follow(leader string, do func(*world)) func(*world) {
	return func(w *world) {
		if leader != "self" {
			w.emulator.Follow(leader)
		}
		do(w)
		w.emulator.Lead()
	}
}

// refused are the subscriptions of stage 10: the one that goes on, and those that are refused with an event.
var refused = []stream{
	{stage: "10-invalid-calls"},
	{stage: "10-invalid-calls.subscribe-bad-role", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-duplicate-roles", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-huge-failover-timeout", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-negative-failover-timeout", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-role-and-roles", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-role-slash", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-role-with-multi-role", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-roles-without-multi-role", opens: 0.3},
	{stage: "10-invalid-calls.subscribe-suppressed-not-in-roles", opens: 0.3},
}

// runs says how long a process ran, where nobody acknowledged its updates in time.
func runs(id string, d time.Duration) func(string, *cluster.Behaviour) {
	return func(task string, b *cluster.Behaviour) {
		if task == id {
			b.Run, b.For = 20*time.Millisecond, d
		}
	}
}

func one(stage string) []stream { return []stream{{stage: stage}} }

// send sends requests of a stage one after another.
func send(stage string, labels ...string) func(*world) {
	return func(w *world) {
		for _, label := range labels {
			w.send(w.enc + "/" + stage + "." + label)
		}
	}
}

// change does something to an agent from outside.
func change(host string, f func(c *cluster.Cluster, agent string)) func(*world) {
	return func(w *world) {
		w.emulator.Do(func(c *cluster.Cluster) { f(c, w.agents[host]) })
	}
}

func lose(host string) func(*world)      { return change(host, (*cluster.Cluster).LoseAgent) }
func bringBack(host string) func(*world) { return change(host, (*cluster.Cluster).ReturnAgent) }

// partly names the answers of which only status and headers are compared, with the reason.
func partly(name string) (reason string, ok bool) {
	for part, reason := range bodiesLeftOut {
		if strings.Contains(name, part) {
			return reason, true
		}
	}
	return "", false
}

const statistics = "the older endpoints carry statistics and history that the emulator does not keep"

var bodiesLeftOut = map[string]string{
	"frameworks-while-disconnected":     statistics,
	"frameworks-after-failover-timeout": statistics,
	"16-operator.get-":                  statistics,
	"16-operator.v1-get-":               "the operator API answers with a part of the fields",
	"16-operator.v1-no-accept":          "the operator API answers with a part of the fields",
	"15-agent-shutdown.v1-get-agents":   "the operator API answers with a part of the fields",
	"13-maintenance.slaves":             statistics,
	"19a-static-reservations-refined.s": statistics,
	"14-agent-lost.slaves":              statistics,
	"29-unacked-per-task.tasks":         statistics,
	"27-get-state-gzip":                 statistics,
	"20-zk.nonleader-get-version":       statistics,
	"20-zk.nonleader-get-metrics":       statistics,
}

// leftOut are the stages that are not replayed, with the reason.
var leftOut = map[string]string{
	"17": "it records how mesos-go's client fails on this master's JSON; what the master says there is said in other stages",
	"28": "the proxy that recorded it altered what the master said",
}

const (
	lost      = "14-agent-lost"
	shutdown  = "15-agent-shutdown"
	maintain  = "13-maintenance"
	restarted = "24-agent-restarted"
	uncheck   = "25-agent-killed-no-checkpoint"
	pings     = "30-agent-killed-default-pings"
)

func fastPings(c *cluster.Config) { c.PingTimeout, c.MaxPings = time.Second, 3 }

var scripts = []script{
	{name: "01", streams: one("01-subscribe-suppressed")},
	{name: "02", streams: one("02-launch")},
	{name: "03", streams: one("03-task-errors"), allocation: map[string]time.Duration{"json": 15700 * time.Microsecond}},
	{
		name: "03b-task", streams: one("03b-task-errors"), allocation: map[string]time.Duration{"json": 2 * time.Millisecond},
		tick: map[string]float64{"json": 0.6, "protobuf": 0.55}, adjust: func(task string, b *cluster.Behaviour) {
			if task == "d-custom" {
				b.Start, b.Status.Code = 200*time.Millisecond, 5
			}
		},
	},
	{name: "04", streams: one("04-decline")},
	{
		name: "05", streams: []stream{{stage: "05-no-acknowledge", silent: []string{"n-1"}}},
		adjust: runs("n-1", time.Second),
	},
	{name: "06", streams: one("06-launch-group")},
	{name: "07", streams: one("07-reconcile")},
	{name: "08", streams: one("08-reserve")},
	{
		name: "09", streams: []stream{
			{stage: "09a-first-subscriber"},
			{stage: "09b-second-subscriber-same-id", after: "09a-first-subscriber ERROR#1", opens: -0.01, drop: 2.8},
			{stage: "09c-resubscribe-after-drop", opens: 6.5, drop: 1},
			{stage: "09d-resubscribe-after-failover-timeout", opens: 16},
			{stage: "09e-failover-timeout-zero", opens: 17, drop: 1},
			{stage: "09f-resubscribe-failover-timeout-zero", opens: 18.5},
			{
				stage: "09g-subscribe-with-unknown-id", opens: 19,
				align: []string{"09g-subscribe-with-unknown-id ERROR#1", "09h-resubscribe-with-changed-info OFFERS#1"},
			},
			{stage: "09h-resubscribe-with-changed-info", after: "09g-subscribe-with-unknown-id ERROR#1"},
			{stage: "09i-resubscribe-changing-user", after: "09h-resubscribe-with-changed-info ERROR#1"},
			{stage: "09j-subscribe-after-teardown", opens: 28},
		},
		steps: []step{
			{5.8, "", send("09b-second-subscriber-same-id", "call-while-disconnected")},
			{5.9, "", send("09b-frameworks-while-disconnected", "")},
			{15.9, "", send("09c-frameworks-after-failover-timeout", "")},
			{28.5, "", send("09j-subscribe-after-teardown", "call-after-teardown")},
		},
	},
	{
		name: "10", streams: refused, steps: []step{
			{0.06, "", send("10-invalid-calls", "kill-without-agent")},
			{0.2, "", sendRest("10-invalid-calls", "kill-without-agent", "teardown", "call-after-teardown")},
		},
	},
	{name: "11", streams: one("11-no-capabilities")},
	{name: "12", streams: []stream{{stage: "12-two-roles"}, {stage: "12b-second-framework", opens: 3.1}}},
	{
		name: "14", streams: one(lost), config: fastPings, steps: []step{
			{-0.004, lost + " RESCIND#1", lose("agent-2.local")},
			{7, "", send(lost, "slaves-unreachable")},
			{-0.004, lost + " TASK_RUNNING#2", bringBack("agent-2.local")},
		},
	},
	{
		name: "13", streams: one(maintain), allocation: map[string]time.Duration{"json": 2500 * time.Microsecond, "protobuf": 2 * time.Millisecond}, steps: []step{
			{-0.004, maintain + " RESCIND#1", send(maintain, "post-schedule", "get-schedule", "get-status-draining")},
			{-0.05, maintain + " INVERSE_OFFERS#2", send(maintain, "get-status-declined")},
			{-0.05, maintain + " INVERSE_OFFERS#3", send(maintain, "get-status-accepted", "v1-get-maintenance-schedule", "v1-get-maintenance-status")},
			{-0.004, maintain + " TASK_LOST#1", send(maintain, "machine-down-unscheduled", "machine-down", "machine-down-again", "get-status-down", "slaves-while-down")},
			{-0.2, maintain + " OFFERS#-1", send(maintain, "machine-up", "machine-up-again", "get-status-up", "get-schedule-after-up", "post-schedule-bad-json", "post-schedule-no-machines")},
			{-0.006, maintain + " OFFERS#-1", send(maintain, "post-schedule-empty")},
		},
	},
	{
		name: "15", streams: one(shutdown), steps: []step{
			{-0.004, shutdown + " TASK_LOST#1", change("agent-2.local", func(c *cluster.Cluster, id string) { c.RemoveAgent(id, "the agent unregistered") })},
			{-0.004, shutdown + " OFFERS#3", func(w *world) { w.freshAgent("agent-2.local", "-S2") }},
			{-0.004, shutdown + " RESCIND#2", send(shutdown, "v1-drain-agent")},
			{-0.3, shutdown + " OFFERS#5", send(shutdown, "v1-get-agents-drained", "v1-reactivate-agent")},
			{-0.004, shutdown + " TASK_GONE_BY_OPERATOR#1", send(shutdown, "v1-mark-agent-gone")},
		},
	},
	{
		name: "16", streams: one("16-framework"), steps: []step{
			{1, "", sendRest("16-operator", "agent-get-containers", "agent-get-state")},
		},
	},
	{
		name: "18", streams: one("18-http-command-executor"),
		agent: func(a *cluster.Agent) { a.HTTPExecutor = true },
	},
	{
		name: "19", streams: []stream{
			{stage: "19a-static-reservations-refined"},
			{stage: "19b-static-reservations-old-format", opens: 4},
			{stage: "19c-multi-role-without-refinement", opens: 8},
		},
		steps: []step{{2, "", send("19a-static-reservations-refined", "slaves")}},
	},
	{
		name: "20", streams: []stream{{stage: "20a-zk-leader", drop: 2}, {stage: "20b-zk-new-leader", opens: 8}}, onlyJSON: true, alone: true,
		steps: []step{
			{1.226, "", (*world).failOver},
			{3, "", follow("master.local:5250", sendSome("20-zk", "nonleader-"))},
			{4, "", follow("", sendSome("20-zk", "no-leader-"))},
			{5, "", follow("master.local:5250", send("20-zk", "failover-1-status-307"))},
			{6, "", follow("self", send("20-zk", "failover-2-status-400"))},
			{0.29, "20b-zk-new-leader SUBSCRIBED#1", (*world).survive},
		},
	},
	{name: "21", streams: []stream{{stage: "21-revocable"}, {stage: "21b-not-revocable-capable", opens: 8}}},
	{name: "22", streams: one("22-offer-timeout"), config: func(c *cluster.Config) { c.OfferTimeout = 3 * time.Second }},
	{
		name: "23", streams: one("23-executor-killed"),
		steps: []step{{-0.004, "23-executor-killed REASON_EXECUTOR_TERMINATED#1", func(w *world) { w.crash("k-1") }}},
	},
	{
		name: "24", streams: one(restarted), config: fastPings, steps: []step{
			{-0.004, restarted + " RESCIND#1", lose("agent-2.local")},
			{-0.008, restarted + " OFFERS#3", bringBack("agent-2.local")},
			{-0.004, restarted + " TASK_FINISHED#1", bringBack("agent-2.local")},
		},
		adjust: runs("ar-2", 5*time.Second),
	},
	{
		name: "25", streams: one(uncheck), config: fastPings, steps: []step{
			{-0.004, uncheck + " RESCIND#1", lose("agent-2.local")},
			{-0.004, uncheck + " OFFERS#3", bringBack("agent-2.local")},
		},
	},
	{name: "26", streams: []stream{{stage: "26a-competing-a"}, {stage: "26b-competing-b", opens: 0.003}}},
	{
		name: "27", steps: []step{
			{0.1, "", send("27-http-1.0", "")},
			{0.2, "", send("27-get-state-gzip", "")},
			{0.3, "", func(w *world) {
				for _, kind := range []string{"absent", "application-star", "gzip", "json-q", "other-encoding", "protobuf-then-json", "star"} {
					w.checkHead(w.enc + "/27-subscribe-accept-" + kind)
				}
			}},
		},
	},
	{
		name: "29", streams: []stream{
			{stage: "29-unacked-per-task", drop: 4.6, silent: []string{"p-1", "p-2 TASK_FINISHED"}},
			{
				stage: "29b-resubscribed", opens: 5, align: []string{"29b-resubscribed OFFERS#2"},
				silent: []string{"p-1 TASK_RUNNING", "protobuf p-1", "protobuf p-2"},
			},
		},
		adjust: runs("p-1", time.Second), steps: []step{{4, "", send("29-unacked-per-task", "tasks")}},
	},
	{
		name: "30", streams: one(pings), onlyJSON: true, steps: []step{
			{1.25, "", lose("agent-2.local")},
			{-0.004, pings + " TASK_RUNNING#2", bringBack("agent-2.local")},
		},
	},
	{name: "31", streams: one("31-group-kill-policy")},
	{
		name: "32", streams: []stream{
			{stage: "32a-no-failover-timeout", drop: 1},
			{stage: "32b-resubscribe-no-failover-timeout", opens: 2},
			{stage: "32c-http-1.0", opens: 3},
		},
		steps: []step{{3.005, "", send("32c-http-1.0", "revive")}},
	},
}
