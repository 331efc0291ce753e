package framework_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

// began is when every world begins.
var began = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// fataler is a test, whoever runs it.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is an emulated cluster and a machine that is its framework, without a wire between them: calls and events wait in queues until they
// are delivered. It holds the machine to what a shard expects of a driver.
type world struct {
	t       fataler
	now     time.Time
	cluster *cluster.Cluster
	machine *framework.Machine
	out     framework.Output
	config  framework.Config
	info    mesos.FrameworkInfo

	subscriptions int
	stream        string // of the present subscription; "": there is none
	masterID      string
	calls         []framework.Call   // under way to the master
	events        []*scheduler.Event // under way to the framework
	census        framework.Question // that was asked
	noOperator    bool               // the operator API cannot be asked

	connected   bool // the last word was an inventory
	hosts       map[string]driver.Host
	statuses    map[workload.RunID]driver.Status // the last of each
	newest      driver.Token
	unacked     []driver.Token
	feedback    []framework.Feedback
	launched    map[workload.RunID]bool
	sent        map[string]int // ACCEPTs in which a task went out
	numbers     uint32
	inventories int
	heard       []string // what went to and fro, the latest of it
}

// maxHeard bounds what a world remembers for a failure's sake.
const maxHeard = 400

func (w *world) trace(format string, args ...any) {
	if len(w.heard) == maxHeard {
		w.heard = slices.Delete(w.heard, 0, maxHeard/2)
	}
	w.heard = append(w.heard, fmt.Sprintf("%9.3f ", w.now.Sub(began).Seconds())+fmt.Sprintf(format, args...))
}

func newWorld(t fataler, clusterConfig cluster.Config, config framework.Config) *world {
	t.Helper()
	if clusterConfig.Behave == nil {
		clusterConfig.Behave = behave
	}
	config.Roles = append(config.Roles, "rec")
	w := &world{
		t: t, now: began, cluster: cluster.New(clusterConfig, began), config: config, hosts: map[string]driver.Host{},
		statuses: map[workload.RunID]driver.Status{}, launched: map[workload.RunID]bool{}, sent: map[string]int{},
	}
	checkpoint, timeout := true, 3600.0
	w.info = mesos.FrameworkInfo{User: "root", Name: "world", Roles: config.Roles, Checkpoint: &checkpoint, FailoverTimeout: &timeout}
	for _, c := range []mesos.FrameworkInfo_Capability_Type{
		mesos.FrameworkInfo_Capability_MULTI_ROLE, mesos.FrameworkInfo_Capability_PARTITION_AWARE, mesos.FrameworkInfo_Capability_REVOCABLE_RESOURCES,
		mesos.FrameworkInfo_Capability_RESERVATION_REFINEMENT, mesos.FrameworkInfo_Capability_TASK_KILLING_STATE,
	} {
		w.info.Capabilities = append(w.info.Capabilities, mesos.FrameworkInfo_Capability{Type: c})
	}
	w.restart()
	return w
}

// restart replaces the machine by a new one of the same framework.
func (w *world) restart() {
	w.t.Helper()
	config := w.config
	config.FirstToken = uint64(w.newest) //nolint:gosec // any
	m, err := framework.New(config)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.machine, w.out = m, framework.Output{}
	if w.info.ID != nil {
		m.Inherit()
	}
	w.calls, w.events, w.connected, w.unacked = nil, nil, false, nil
	w.statuses = map[workload.RunID]driver.Status{}
}

// behave is how long a task lasts, by its command; without one, by its id.
func behave(t *mesos.TaskInfo) cluster.Behaviour {
	b := cluster.Behaviour{Start: 20 * time.Millisecond, Run: 10 * time.Millisecond, For: cluster.Forever, Term: 5 * time.Millisecond}
	if words := t.GetCommand().GetArguments(); len(words) == 2 && words[0] == "for" {
		d, err := time.ParseDuration(words[1])
		if err != nil {
			panic(err)
		}
		b.For = d
		return b
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.TaskID.Value)) // a hash takes everything
	switch x := h.Sum32(); x % 4 {
	case 0:
		b.For, b.Status.Code = time.Duration(x%5000)*time.Millisecond, int(x/7%2)
	case 1:
		b.For = 0
	case 2:
		b.IgnoresTerm = true
	}
	return b
}

func scalar(name string, value float64) mesos.Resource {
	return mesos.Resource{Name: name, Type: mesos.SCALAR.Enum(), Scalar: &mesos.Value_Scalar{Value: value}}
}

func (w *world) addAgent(resources ...mesos.Resource) string {
	if resources == nil {
		resources = cluster.Plain(8, 16384, 100000, 31000, 32000)
	}
	w.numbers++
	name := "host-" + strconv.Itoa(int(w.numbers))
	id := ""
	w.master(func(c *cluster.Cluster) { id = c.AddAgent(cluster.Agent{Hostname: name, Resources: resources}) })
	return id
}

// master does something with the cluster, and queues what it says.
func (w *world) master(f func(c *cluster.Cluster)) {
	w.cluster.Advance(w.now)
	f(w.cluster)
	w.collect()
}

func (w *world) collect() {
	for _, effect := range w.cluster.TakeEffects() {
		if e, ok := effect.(cluster.Deliver); ok && e.Stream == w.stream && e.Event.Type != scheduler.Event_HEARTBEAT {
			w.events = append(w.events, e.Event)
		}
	}
}

// subscribe begins a subscription, of the framework that there is already if there was one before.
func (w *world) subscribe() {
	w.t.Helper()
	w.subscriptions++
	w.stream = "stream-" + strconv.Itoa(w.subscriptions)
	w.calls, w.events = nil, nil
	info := w.info
	w.master(func(c *cluster.Cluster) {
		c.Subscribe(w.stream, &scheduler.Call{
			Type: scheduler.Call_SUBSCRIBE, FrameworkID: info.ID, Subscribe: &scheduler.Call_Subscribe{FrameworkInfo: &info},
		})
	})
	if len(w.events) == 0 || w.events[0].Subscribed == nil {
		w.t.Fatalf("not subscribed: %v", w.events)
	}
	w.info.ID = w.events[0].Subscribed.FrameworkID
	w.masterID = w.events[0].Subscribed.MasterInfo.ID
	w.events = w.events[1:]
	w.input(func(now int64, out *framework.Output) { w.machine.Subscribed(now, w.masterID, out) })
}

// lose ends the subscription. What is under way is lost.
func (w *world) lose() {
	w.t.Helper()
	if w.stream == "" {
		return
	}
	stream := w.stream
	lost := w.calls
	w.stream, w.events, w.calls = "", nil, nil
	w.input(func(now int64, out *framework.Output) { w.machine.Lost(now, errors.New("cut"), out) })
	for i := range lost {
		w.input(func(now int64, out *framework.Output) {
			w.machine.Failed(now, &lost[i], framework.NotTaken, errors.New("cut"), out)
		})
	}
	w.master(func(c *cluster.Cluster) { c.Disconnect(stream) })
}

// input gives the machine an input and takes in what follows.
func (w *world) input(f func(now int64, out *framework.Output)) {
	w.t.Helper()
	f(w.now.UnixNano(), &w.out)
	for _, call := range w.out.Calls {
		if w.stream == "" {
			w.t.Fatalf("a call without a subscription: %s", call.Type)
		}
		w.trace("-> %s", describe(call.Call))
		if call.Accept != nil {
			for i := range call.Accept.Operations {
				if l := call.Accept.Operations[i].Launch; l != nil {
					for n := range l.TaskInfos {
						w.sent[l.TaskInfos[n].TaskID.Value]++
					}
				}
			}
		}
		w.calls = append(w.calls, call)
	}
	for i := range w.out.News {
		w.hear(&w.out.News[i])
	}
	w.feedback = append(w.feedback, w.out.Feedback...)
	w.census = max(w.census, w.out.Census)
}

// hear is the sink.
func (w *world) hear(n *news.Item) {
	w.t.Helper()
	w.trace("   %s", newsText(n))
	if !w.connected && n.Inventory == nil {
		w.t.Fatalf("news before the inventory: %+v", n)
	}
	switch {
	case n.Inventory != nil:
		w.connected = true
		w.inventories++
		clear(w.hosts)
		for _, h := range n.Inventory.Hosts {
			w.hosts[h.Name] = h
		}
		for _, s := range n.Inventory.Runs {
			w.note(s)
		}
	case n.Disconnected != nil:
		w.connected = false
	case n.Statuses != nil:
		for _, s := range n.Statuses {
			w.note(s)
		}
	default:
		for _, h := range n.Changed {
			w.hosts[h.Name] = h
		}
		for _, name := range n.Removed {
			if _, known := w.hosts[name]; !known {
				w.t.Fatalf("host %s was removed and was not there", name)
			}
			delete(w.hosts, name)
		}
	}
}

// progress orders states. Equal ones may alternate.
func progress(s workload.RunState) int {
	switch {
	case s.Traits().Terminal:
		return 3
	case s == workload.RunRunning, s == workload.RunKilling, s == workload.RunUnreachable:
		return 2
	}
	return 1
}

func (w *world) note(s driver.Status) {
	w.t.Helper()
	if s.Token == 0 && (s.State != workload.RunLost || s.Reason != workload.ReasonNotFound) {
		w.t.Fatalf("a status without a token: %+v", s)
	}
	last, known := w.statuses[s.Run]
	switch {
	case s.State < workload.RunStarting:
		w.t.Fatalf("a state that is not a driver's to tell: %+v", s)
	case known && progress(s.State) < progress(last.State) && last.State != workload.RunUnreachable:
		w.t.Fatalf("run %s went from %s back to %s", s.Run, last.State, s.State)
	case known && last.State.Traits().Terminal && (s.State != last.State && s.Reason != workload.ReasonNotFound):
		w.t.Fatalf("run %s ended as %s and then as %s", s.Run, last.State, s.State)
	case s.Token < last.Token && s.Token != 0:
		w.t.Fatalf("run %s: token %d after %d", s.Run, s.Token, last.Token)
	}
	if s.Token == 0 { // it is not known: there is nothing to remember
		delete(w.statuses, s.Run)
		return
	}
	w.statuses[s.Run] = s
	w.newest = max(w.newest, s.Token)
	if s.Token != 0 && !slices.Contains(w.unacked, s.Token) {
		w.unacked = append(w.unacked, s.Token)
	}
}

// acknowledge acknowledges all that was told. Ends are forgotten, as a shard does.
func (w *world) acknowledge() {
	w.t.Helper()
	tokens := w.unacked
	w.unacked = nil
	for id, s := range w.statuses {
		if s.State.Traits().Terminal && (s.Token == 0 || slices.Contains(tokens, s.Token)) {
			delete(w.statuses, id)
		}
	}
	w.input(func(now int64, out *framework.Output) { w.machine.Acknowledge(now, tokens, out) })
}

// sendOne delivers the first call that is under way.
func (w *world) sendOne() {
	w.t.Helper()
	call := w.calls[0]
	w.calls = w.calls[1:]
	whole := *call.Call
	whole.FrameworkID = w.info.ID
	if r := cluster.Validate(&whole); r != nil {
		w.t.Fatalf("%s is malformed: %s", describe(call.Call), r.Text)
	}
	w.master(func(c *cluster.Cluster) {
		if r := c.Call(w.stream, &whole); r != nil {
			w.t.Fatalf("%s is refused: %s", describe(call.Call), r.Text)
		}
	})
}

// hearOne delivers the first event that is under way.
func (w *world) hearOne() {
	w.t.Helper()
	e := w.events[0]
	w.events = w.events[1:]
	w.trace("<- %s", eventText(e))
	w.input(func(now int64, out *framework.Output) { w.machine.Event(now, e, out) })
}

func eventText(e *scheduler.Event) string {
	switch {
	case e.Update != nil:
		return "UPDATE " + e.Update.Status.TaskID.Value + " " + e.Update.Status.GetState().String() + " " + e.Update.Status.GetMessage()
	case e.Offers != nil:
		text := "OFFERS"
		for i := range e.Offers.Offers {
			text += " " + short(e.Offers.Offers[i].ID.Value) + "@" + e.Offers.Offers[i].Hostname
		}
		return text
	}
	return e.Type.String()
}

func newsText(n *news.Item) string {
	switch {
	case n.Inventory != nil:
		return fmt.Sprintf("inventory: %d hosts, %d runs", len(n.Inventory.Hosts), len(n.Inventory.Runs))
	case n.Disconnected != nil:
		return "disconnected"
	case n.Statuses != nil:
		return fmt.Sprintf("statuses %+v", n.Statuses)
	}
	return fmt.Sprintf("hosts changed: %d, removed %v", len(n.Changed), n.Removed)
}

// answerCensus answers for the operator API, if it was asked.
func (w *world) answerCensus() {
	w.t.Helper()
	if w.census == framework.AskNothing {
		return
	}
	census := &framework.Census{}
	if w.noOperator {
		census.Err = errors.New("403")
	} else {
		w.master(func(c *cluster.Cluster) {
			for _, a := range c.Agents() {
				census.Agents = append(census.Agents, framework.Agent{
					ID: a.AgentInfo.ID.Value, Hostname: a.AgentInfo.Hostname, Port: a.AgentInfo.GetPort(), Attributes: a.AgentInfo.Attributes,
					Domain: a.AgentInfo.Domain, Total: a.TotalResources, Allocated: a.AllocatedResources, Inactive: a.GetDeactivated(),
				})
			}
			for _, t := range c.Tasks() {
				if w.info.ID != nil && t.FrameworkID == *w.info.ID {
					census.Tasks = append(census.Tasks, framework.Task{ID: t.TaskID.Value, Resources: t.Resources})
				}
			}
		})
	}
	w.census = framework.AskNothing
	w.input(func(now int64, out *framework.Output) { w.machine.Learn(now, census, out) })
}

// settle delivers everything that is under way, until nothing is.
func (w *world) settle() {
	w.t.Helper()
	for range 100_000 {
		switch {
		case len(w.calls) > 0:
			w.sendOne()
		case len(w.events) > 0:
			w.hearOne()
		case w.census != framework.AskNothing:
			w.answerCensus()
		default:
			return
		}
	}
	w.t.Fatalf("it does not come to rest: %v", w.heard[max(0, len(w.heard)-20):])
}

// pass lets time pass. Whatever is due happens when it is, and is delivered at once.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	until := w.now.Add(d)
	for steps := 0; ; steps++ {
		if steps > 200_000 {
			w.t.Fatalf("it is awake all the time: %v", w.heard[max(0, len(w.heard)-20):])
		}
		w.settle()
		next := until
		if at, ok := w.cluster.Next(); ok && at.Before(next) {
			next = at
		}
		due := w.machine.Next()
		if at := time.Unix(0, due).UTC(); due > 0 && at.Before(next) {
			next = at
		}
		if next.After(w.now) {
			w.now = next
		}
		w.master(func(*cluster.Cluster) {})
		if due > 0 && due <= w.now.UnixNano() {
			w.input(w.machine.Wake)
		}
		if !w.now.Before(until) {
			break
		}
	}
	w.settle()
}

// hang lets time pass while questions what tasks there are get lost, and nobody hears of that.
func (w *world) hang(d time.Duration) {
	w.t.Helper()
	for until := w.now.Add(d); w.now.Before(until); w.now = w.now.Add(250 * time.Millisecond) {
		w.master(func(*cluster.Cluster) {})
		w.input(w.machine.Wake)
		w.calls = slices.DeleteFunc(w.calls, func(c framework.Call) bool { return c.Type == scheduler.Call_RECONCILE })
		w.settle()
	}
}

// launch starts a run on a host.
func (w *world) launch(host string, change ...func(*driver.Launch)) driver.Launch {
	w.t.Helper()
	w.numbers++
	l := driver.Launch{
		Run:  workload.RunID{Job: workload.JobID{1}, Instance: w.numbers, Generation: 1, Run: 1},
		Host: host, Command: []string{"work"}, Needs: map[string]int64{"cpu_milli": 1000, "memory_mib": 1024}, KillGrace: time.Second,
	}
	for _, f := range change {
		f(&l)
	}
	w.input(func(now int64, out *framework.Output) {
		if err := w.machine.Launch(now, []driver.Launch{l}, out); err == nil {
			w.launched[l.Run] = true
		} else if w.connected {
			w.t.Fatalf("launch: %v", err)
		}
	})
	return l
}

// short leaves a master's prefix off an id.
func short(id string) string { return id[strings.LastIndexByte(id, '-')+1:] }

// describe writes a call for people.
func describe(c *scheduler.Call) string {
	text := c.Type.String()
	switch {
	case c.Accept != nil:
		text += offerText(c.Accept.OfferIDs, c.Accept.Filters)
		for i := range c.Accept.Operations {
			text += " " + operationText(&c.Accept.Operations[i])
		}
	case c.Decline != nil:
		text += offerText(c.Decline.OfferIDs, c.Decline.Filters)
	case c.Kill != nil:
		text += fmt.Sprintf(" %s within %s", c.Kill.TaskID.Value, time.Duration(c.Kill.GetKillPolicy().GetGracePeriod().GetNanoseconds()))
	case c.Acknowledge != nil:
		text += " " + c.Acknowledge.TaskID.Value
	case c.Reconcile != nil:
		for _, t := range c.Reconcile.Tasks {
			text += " " + t.TaskID.Value
		}
	}
	return text
}

func offerText(ids []mesos.OfferID, filters *mesos.Filters) string {
	text := ""
	for _, id := range ids {
		text += " " + short(id.Value)
	}
	return text + fmt.Sprintf(" for %gs", filters.GetRefuseSeconds())
}

func operationText(o *mesos.Offer_Operation) string {
	text := o.Type.String()
	switch {
	case o.Launch != nil:
		for i := range o.Launch.TaskInfos {
			text += " " + o.Launch.TaskInfos[i].TaskID.Value + resourceText(o.Launch.TaskInfos[i].Resources)
		}
	case o.LaunchGroup != nil:
		text += " executor" + resourceText(o.LaunchGroup.Executor.Resources)
		for _, t := range o.LaunchGroup.TaskGroup.Tasks {
			text += " " + t.TaskID.Value + resourceText(t.Resources)
		}
	}
	return text
}

func resourceText(resources []mesos.Resource) string {
	text := "("
	for i := range resources {
		r := &resources[i]
		if i > 0 {
			text += " "
		}
		text += r.Name
		if r.Revocable != nil {
			text += "~"
		}
		if n := len(r.Reservations); n > 0 {
			text += "@" + r.Reservations[n-1].GetRole()
		}
		if r.Ranges != nil {
			for _, p := range r.Ranges.Range {
				text += fmt.Sprintf(":%d-%d", p.Begin, p.End)
			}
		} else {
			text += fmt.Sprintf(":%g", r.GetScalar().GetValue())
		}
	}
	return text + ")"
}
