package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// crowd is some frameworks on one cluster that call at random.
type crowd struct {
	*cluster.Cluster
	now     time.Time
	agents  []string
	streams map[string]string // framework ids by stream
	offers  map[string]*mesos.Offer
	holder  map[string]string           // streams by offer
	updates map[string]mesos.TaskStatus // to be acknowledged, by stream and task
	ended   map[string]string           // uuids of ends, by task
	tasks   int
	next    int
}

func newCrowd() *crowd {
	w := &crowd{
		now: time.Unix(1e9, 0), streams: map[string]string{}, offers: map[string]*mesos.Offer{}, holder: map[string]string{},
		updates: map[string]mesos.TaskStatus{}, ended: map[string]string{},
	}
	w.Cluster = cluster.New(cluster.Config{PingTimeout: time.Second, MaxPings: 1, Behave: cluster.Lasting(4 * time.Second)}, w.now)
	for n := range 3 {
		w.agents = append(w.agents, w.AddAgent(cluster.Agent{Hostname: fmt.Sprint("agent-", n), Resources: cluster.Plain(4, 4096, 1000, 0, 0)}))
	}
	return w
}

func (w *crowd) subscribe() {
	w.next++
	stream := fmt.Sprint("stream-", w.next)
	w.streams[stream] = ""
	checkpoint, patience := w.next%3 > 0, float64(w.next%4)
	w.Subscribe(stream, &scheduler.Call{Type: scheduler.Call_SUBSCRIBE, Subscribe: &scheduler.Call_Subscribe{FrameworkInfo: &mesos.FrameworkInfo{
		User: "nobody", Name: "crowd", Checkpoint: &checkpoint, FailoverTimeout: &patience, Roles: []string{fmt.Sprint("role-", w.next%2)},
		Capabilities: []mesos.FrameworkInfo_Capability{{Type: mesos.FrameworkInfo_Capability_MULTI_ROLE}, {Type: mesos.FrameworkInfo_Capability_PARTITION_AWARE}},
	}}})
}

// hear takes in what the cluster emitted.
func (w *crowd) hear(t *rapid.T) {
	for _, effect := range w.TakeEffects() {
		switch effect := effect.(type) {
		case cluster.Close:
			w.leave(effect.Stream)
		case cluster.Deliver:
			w.event(t, effect.Stream, effect.Event)
		}
	}
}

// leave forgets a stream; its offers are void.
func (w *crowd) leave(stream string) {
	delete(w.streams, stream)
	for id, holder := range w.holder {
		if holder == stream {
			delete(w.offers, id)
			delete(w.holder, id)
		}
	}
}

func (w *crowd) event(t *rapid.T, stream string, e *scheduler.Event) {
	switch e.Type {
	case scheduler.Event_SUBSCRIBED:
		w.streams[stream] = e.Subscribed.FrameworkID.Value
	case scheduler.Event_OFFERS:
		for i := range e.Offers.Offers {
			o := &e.Offers.Offers[i]
			if w.offers[o.ID.Value] != nil {
				t.Fatalf("offer %s is made twice", o.ID.Value)
			}
			w.offers[o.ID.Value], w.holder[o.ID.Value] = o, stream
		}
	case scheduler.Event_RESCIND:
		delete(w.offers, e.Rescind.OfferID.Value)
		delete(w.holder, e.Rescind.OfferID.Value)
	case scheduler.Event_UPDATE:
		s := e.Update.Status
		if len(s.UUID) == 0 {
			return
		}
		w.updates[stream+" "+s.TaskID.Value] = s
		if s.GetState() == mesos.TASK_FINISHED || s.GetState() == mesos.TASK_KILLED {
			if before := w.ended[s.TaskID.Value]; before != "" && before != string(s.UUID) {
				t.Fatalf("task %s ends twice", s.TaskID.Value)
			}
			w.ended[s.TaskID.Value] = string(s.UUID)
		}
	default:
	}
}

func (w *crowd) call(t *rapid.T, stream string, call *scheduler.Call) {
	call.FrameworkID = &mesos.FrameworkID{Value: w.streams[stream]}
	if refused := w.Call(stream, call); refused != nil {
		t.Fatalf("%s is refused: %s", call.Type, refused.Text)
	}
	w.hear(t)
}

// check holds that nothing is given to two at once.
func (w *crowd) check(t *rapid.T) {
	for _, a := range w.Agents() {
		sum := map[string]float64{}
		for _, r := range append(a.AllocatedResources, a.OfferedResources...) {
			sum[r.Name] += r.GetScalar().GetValue()
		}
		for _, r := range a.TotalResources {
			if sum[r.Name] > r.GetScalar().GetValue()+1e-6 {
				t.Fatalf("%s: %v of %v %s are offered or used", a.AgentInfo.Hostname, sum[r.Name], r.GetScalar().GetValue(), r.Name)
			}
		}
	}
}

// anyKey draws a key of a map, the same for the same draws.
func anyKey[V any](t *rapid.T, m map[string]V) string {
	return rapid.SampledFrom(sortedKeys(m)).Draw(t, "which")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// TestNothingIsGivenTwice calls at random, loses agents and brings them back. No resource may be offered or used twice, no task may end
// twice, and when everybody has left, whoever comes is offered everything.
func TestNothingIsGivenTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newCrowd()
		w.subscribe()
		w.hear(t)
		t.Repeat(map[string]func(*rapid.T){
			"": w.check,
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
				w.Advance(w.now)
				w.hear(t)
			},
			"subscribe": func(t *rapid.T) { w.subscribe(); w.hear(t) },
			"launch":    w.launch,
			"acknowledge": func(t *rapid.T) {
				if len(w.updates) == 0 {
					t.Skip("nothing to acknowledge")
				}
				key := anyKey(t, w.updates)
				s := w.updates[key]
				delete(w.updates, key)
				stream, _, _ := strings.Cut(key, " ")
				if w.streams[stream] == "" {
					return
				}
				w.call(t, stream, &scheduler.Call{Type: scheduler.Call_ACKNOWLEDGE, Acknowledge: &scheduler.Call_Acknowledge{
					AgentID: *s.AgentID, TaskID: s.TaskID, UUID: s.UUID,
				}})
				if rapid.Bool().Draw(t, "kill") {
					w.call(t, stream, &scheduler.Call{Type: scheduler.Call_KILL, Kill: &scheduler.Call_Kill{TaskID: s.TaskID}})
				}
			},
			"teardown": func(t *rapid.T) {
				if len(w.streams) == 0 {
					t.Skip("nobody is there")
				}
				w.call(t, anyKey(t, w.streams), &scheduler.Call{Type: scheduler.Call_TEARDOWN})
			},
			"drop": func(t *rapid.T) {
				if len(w.streams) == 0 {
					t.Skip("nobody is there")
				}
				stream := anyKey(t, w.streams)
				w.Disconnect(stream)
				w.leave(stream)
				w.hear(t)
			},
			"succeed": func(t *rapid.T) {
				w.Succeed(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
				w.hear(t)
				if len(w.offers) > 0 || len(w.streams) > 0 {
					t.Fatalf("a dead master's %d offers and %d subscriptions are left", len(w.offers), len(w.streams))
				}
			},
			"lose": func(t *rapid.T) { w.LoseAgent(rapid.SampledFrom(w.agents).Draw(t, "agent")); w.hear(t) },
			"return": func(t *rapid.T) {
				w.ReturnAgent(rapid.SampledFrom(w.agents).Draw(t, "agent"))
				w.hear(t)
			},
		})
		w.everythingIsFree(t)
	})
}

// launch accepts an offer with a task or two, or with none.
func (w *crowd) launch(t *rapid.T) {
	if len(w.offers) == 0 {
		t.Skip("nothing is offered")
	}
	id := anyKey(t, w.offers)
	o, stream := w.offers[id], w.holder[id]
	delete(w.offers, id)
	delete(w.holder, id)
	var tasks []mesos.TaskInfo
	for range rapid.IntRange(0, 2).Draw(t, "tasks") {
		w.tasks++
		name := fmt.Sprint("task-", w.tasks)
		tasks = append(tasks, mesos.TaskInfo{
			Name: name, TaskID: mesos.TaskID{Value: name}, AgentID: o.AgentID, Command: &mesos.CommandInfo{},
			Resources: cluster.Plain(rapid.Float64Range(0.1, 3).Draw(t, "cpus"), 64, 1, 0, 0),
		})
	}
	w.call(t, stream, &scheduler.Call{Type: scheduler.Call_ACCEPT, Accept: &scheduler.Call_Accept{
		OfferIDs: []mesos.OfferID{o.ID}, Filters: &mesos.Filters{RefuseSeconds: new(float64)},
		Operations: []mesos.Offer_Operation{{Type: mesos.Offer_Operation_LAUNCH, Launch: &mesos.Offer_Operation_Launch{TaskInfos: tasks}}},
	}})
}

// everythingIsFree ends all frameworks and sees what a new one is offered.
func (w *crowd) everythingIsFree(t *rapid.T) {
	for _, stream := range sortedKeys(w.streams) {
		w.call(t, stream, &scheduler.Call{Type: scheduler.Call_TEARDOWN})
	}
	w.now = w.now.Add(10 * time.Second) // nobody's patience is longer
	w.Advance(w.now)
	w.hear(t)
	for _, agent := range w.agents {
		w.ReturnAgent(agent)
	}
	w.subscribe()
	w.hear(t)
	got := map[string]float64{}
	for _, o := range w.offers {
		for _, r := range o.Resources {
			got[r.Name] += r.GetScalar().GetValue()
		}
	}
	for name, want := range map[string]float64{"cpus": 12, "mem": 12288, "disk": 3000} {
		if got[name] < want-1e-6 || got[name] > want+1e-6 {
			t.Fatalf("after everybody left %v %s are offered, of %v", got[name], name, want)
		}
	}
}
