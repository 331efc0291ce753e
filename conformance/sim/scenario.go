package sim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// Scenario is one run spelled out: the clusters, every call of a user, and every fault with its time. It needs none of the generators that
// once made it, so it keeps its meaning when they change. What it leaves to chance are latencies, from the seed in its Options.
type Scenario struct {
	Checker  Checker // that failed when it was recorded
	Options  Options
	Clusters []clusterPlan
	Events   []event
}

// clusterPlan is a cluster before anything happens.
type clusterPlan struct {
	Name   string
	Remote bool // its shard has a process of its own
	Launch time.Duration
	Kill   time.Duration
	Faults simulated.Faults
	Hosts  []driver.Host
}

// event is something that the world does to the cell.
type event struct {
	at      time.Duration // since the origin
	what    string
	who     string            // a cluster, a host of one, or another place; one word
	value   int64             // what it takes to do it again
	nth     int               // of a fault in passing: how many questions like it were asked before at the same instant
	command scheduler.Command // of a call
}

// The kinds of events beside callEvent, which carries a command.
const (
	callEvent       = "call"
	coreCrash       = "core-crash"
	clockJump       = "clock-jump" // value: how far off the clock is from now on
	shardCrash      = "shard-crash"
	shardReattached = "shard-attached-anew" // value 1: what is under way is lost
	clusterCut      = "cluster-cut-off"     // value: for how long
	hostDown        = "host-out-of-contact"
	hostUp          = "host-returns"
	hostUpEmpty     = "host-returns-empty"
	hostLeaves      = "host-leaves"
	hostJoins       = "host-joins"
	watchStalls     = "watcher-stalls" // value: for how long
	clusterLost     = "cluster-lost"
	clusterReturns  = "cluster-returns" // value 1: without what it ran
	// The faults in passing: they strike the first thing of their kind that comes along.
	slowMessage   = "slow-message"
	slowCommit    = "slow-commit"
	commitCrash   = "commit-crash" // value: in the place of which write
	commitFailure = "commit-failure"
	slowCall      = "slow-call"
	callFails     = "call-failed"
	reordered     = "status-reordered"  // value: how
	stubbornKill  = "kill-does-nothing" // value: for how long
	slowAnswer    = "slow-answer"       // about room that was made
	wrongVictims  = "wrong-victims"     // in such an answer; value: how
)

// passing are the events that wait for something to strike.
var passing = []string{slowMessage, slowCommit, commitCrash, commitFailure, slowCall, callFails, reordered, stubbornKill, slowAnswer, wrongVictims}

// timed are the events whose value is a time.
var timed = []string{clockJump, clusterCut, watchStalls, slowMessage, slowCommit, slowCall, stubbornKill, slowAnswer}

// WriteTo writes the scenario as text: see ReadScenario.
func (s *Scenario) WriteTo(w io.Writer) (int64, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "checker %s\noptions %s\n", s.Checker, compact(&s.Options))
	for n := range s.Clusters {
		fmt.Fprintf(&out, "cluster %s\n", compact(&s.Clusters[n]))
	}
	for n := range s.Events {
		out.WriteString(s.Events[n].String())
		out.WriteByte('\n')
	}
	n, err := io.WriteString(w, out.String())
	return int64(n), err
}

func (e *event) String() string {
	if e.what == callEvent {
		return fmt.Sprintf("at %v call %s", e.at, encodeCommand(e.command))
	}
	text := fmt.Sprintf("at %v %s", e.at, e.what)
	if e.who != "" {
		text += " " + e.who
	}
	switch {
	case slices.Contains(timed, e.what):
		text += fmt.Sprintf(" =%v", time.Duration(e.value))
	case e.value != 0:
		text += fmt.Sprintf(" =%d", e.value)
	}
	if e.nth > 0 {
		text += fmt.Sprintf(" #%d", e.nth)
	}
	return text
}

// maxLine bounds a line of a scenario, and maxEvents the lines.
const (
	maxLine   = 1 << 20
	maxEvents = 1 << 20
)

// ReadScenario reads a scenario: one thing a line, '#' at the beginning of a line for a comment.
//
//	checker <name>               that failed when it was recorded
//	options <Options in JSON>    zero fields left out
//	cluster <clusterPlan in JSON>
//	at <time> call <command> <its fields in JSON>
//	at <time> <fault> [<where>] [=<value>] [#<skipped>]
func ReadScenario(r io.Reader) (*Scenario, error) {
	s := &Scenario{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.readLine(line); err != nil {
			return nil, fmt.Errorf("read a scenario: line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read a scenario: %w", err)
	}
	if len(s.Clusters) == 0 || s.Options.Safety <= 0 || s.Options.Mend <= 0 {
		return nil, fmt.Errorf("read a scenario: it has %d clusters, and its options give it %v and then %v: it needs some of each",
			len(s.Clusters), s.Options.Safety, s.Options.Mend)
	}
	s.Options.Clusters = len(s.Clusters)
	return s, nil
}

func (s *Scenario) readLine(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "checker":
		s.Checker = Checker(rest)
		return nil
	case "options":
		return json.Unmarshal([]byte(rest), &s.Options)
	case "cluster":
		var c clusterPlan
		if err := json.Unmarshal([]byte(rest), &c); err != nil {
			return err
		}
		s.Clusters = append(s.Clusters, c)
		return nil
	case "at":
		if len(s.Events) == maxEvents {
			return fmt.Errorf("more than %d events", maxEvents)
		}
		e, err := readEvent(rest)
		s.Events = append(s.Events, e)
		return err
	}
	return fmt.Errorf("it begins with %q: use checker, options, cluster, at or #", word)
}

func readEvent(text string) (e event, err error) {
	at, rest, _ := strings.Cut(text, " ")
	if e.at, err = time.ParseDuration(at); err != nil {
		return e, err
	}
	e.what, rest, _ = strings.Cut(rest, " ")
	if e.what == callEvent {
		e.command, err = decodeCommand(rest)
		return e, err
	}
	if actions[e.what] == nil && !slices.Contains(passing, e.what) {
		return e, fmt.Errorf("nothing is called %q", e.what)
	}
	for _, field := range strings.Fields(rest) {
		switch {
		case field[0] == '=' && slices.Contains(timed, e.what):
			var d time.Duration
			d, err = time.ParseDuration(field[1:])
			e.value = int64(d)
		case field[0] == '=':
			e.value, err = strconv.ParseInt(field[1:], 10, 64)
		case field[0] == '#':
			e.nth, err = strconv.Atoi(field[1:])
		default:
			e.who = field
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// script plays a scenario, and records one.
type script struct {
	replay   bool
	armed    map[place][]event // faults in passing that are still to come, by time
	asked    map[place]question
	recorded []event
	moment   int // of the last event that waited for nothing
}

// place is where faults of a kind may strike.
type place struct{ what, who string }

// question is the last one that a place was asked.
type question struct {
	at int64
	n  int // times before at that very instant
}

func newScript(from *Scenario) *script {
	s := &script{armed: map[place][]event{}, asked: map[place]question{}, replay: from != nil}
	if from == nil {
		return s
	}
	for _, e := range from.Events {
		if slices.Contains(passing, e.what) {
			s.armed[place{e.what, e.who}] = append(s.armed[place{e.what, e.who}], e)
		}
	}
	return s
}

// record keeps what happens.
func (w *world) record(e event) {
	e.at = time.Duration(w.now - origin)
	w.script.recorded = append(w.script.recorded, e)
}

// strikes asks whether a fault in passing strikes now, and how. A generated world draws that; a scripted one looks it up.
func (w *world) strikes(p place, chance int, draw func() int64) (value int64, struck bool) {
	if w.calm {
		return 0, false
	}
	q := w.script.asked[p]
	if q.at == w.now {
		q.n++
	} else {
		q = question{at: w.now}
	}
	w.script.asked[p] = q
	e := event{what: p.what, who: p.who, nth: q.n}
	if w.script.replay {
		armed := w.script.armed[p]
		now := time.Duration(w.now - origin)
		if len(armed) == 0 || armed[0].at > now || (armed[0].at == now && armed[0].nth > q.n) {
			return 0, false
		}
		e.value = armed[0].value
		w.script.armed[p] = armed[1:]
	} else {
		if !w.random.happens(chance) {
			return 0, false
		}
		e.value = draw()
	}
	w.record(e)
	w.fault(p.what, "%s %d", p.who, e.value)
	return e.value, true
}

// nothing is the value of a fault that needs none.
func nothing() int64 { return 0 }

// lasting draws a time as the value of a fault.
func (w *world) lasting(low, high time.Duration) func() int64 {
	return func() int64 { return int64(w.random.between(low, high)) }
}

// actions do the events that wait for nothing. They report false when there is nothing to do it to.
var actions = map[string]func(w *world, e *event) bool{
	coreCrash:       func(w *world, _ *event) bool { return w.cell.crash() },
	clockJump:       func(w *world, e *event) bool { return w.cell.jump(e.value) },
	shardCrash:      onCluster(func(c *cluster, _ *event) bool { return c.crashShard() }),
	shardReattached: onCluster(func(c *cluster, e *event) bool { return c.reattach(e.value != 0) }),
	clusterCut:      onCluster(func(c *cluster, e *event) bool { return c.cutLink(time.Duration(e.value)) }),
	hostDown:        onCluster((*cluster).strikeHost),
	hostUp:          onCluster((*cluster).strikeHost),
	hostUpEmpty:     onCluster((*cluster).strikeHost),
	hostLeaves:      onCluster((*cluster).strikeHost),
	hostJoins:       onCluster((*cluster).strikeHost),
	clusterLost:     onCluster(func(c *cluster, _ *event) bool { return c.loseHosts() }),
	clusterReturns:  onCluster(func(c *cluster, e *event) bool { return c.returnHosts(e.value != 0) }),
	watchStalls:     func(w *world, e *event) bool { return w.stallWatcher(e.who, time.Duration(e.value)) },
}

func onCluster(do func(*cluster, *event) bool) func(*world, *event) bool {
	return func(w *world, e *event) bool {
		name, _, _ := strings.Cut(e.who, "/")
		for _, c := range w.clusters {
			if c.name == name {
				return do(c, e)
			}
		}
		return false
	}
}

// perform does an event now and records it. No two share a moment, as a cluster may move on between two moments of the same time: a scenario,
// which plays each in a moment of its own, would be another run. Calls reach no cluster at once, and may share one.
func (w *world) perform(e event) {
	if e.what == callEvent {
		w.users.call(e.command)
		return
	}
	if w.script.moment == w.moments {
		w.fail(CheckProgram, "the generators do a second thing in one moment, %s %s: give it an appointment of its own", e.what, e.who)
	}
	w.script.moment = w.moments
	before := len(w.script.recorded)
	if w.record(e); !actions[e.what](w, &e) {
		w.script.recorded = w.script.recorded[:before]
	}
}
