package scenarios

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/conformance/sim"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// world is one cell with its clusters. Nothing in it happens but by a command or by what a command sets off.
type world struct {
	fatal    func(message string)
	after    func() // what else holds after every step; nil: nothing
	cfg      scheduler.Config
	now      int64
	state    *scheduler.State
	image    *scheduler.Image // what is durable
	clusters map[string]*cluster
	events   []scheduler.Event
	answers  []scheduler.Answer
	changes  []scheduler.Change
	wake     int64
	nextID   uint16
	policies policies
	asked    int // questions to policies
	token    uint64

	// What the disk has not taken yet while holding: a crash may lose any tail of it.
	holding bool
	held    []heldOutput
	idle    int // Steps since a check, in which nothing was said
}

// mostIdle bounds the Steps without a check in which the cell heard nothing and said nothing: half of all, while time passes.
const mostIdle = 8

// heldOutput is a Step's output that waits for durability.
type heldOutput struct {
	groups   []scheduler.Group
	external []scheduler.Effect
}

// cluster is what a driver would speak for. Runs outlive the core.
type cluster struct {
	name     string
	of       string // the cluster whose second shard this is, or name
	machine  *shard.Machine
	out      shard.Output
	hosts    []driver.Host
	runs     map[workload.RunID]*clusterRun
	order    []workload.RunID
	token    driver.Token
	lost     bool // the driver is out of contact
	mute     bool // accepts launches and says nothing
	hung     bool // its shard answers nothing
	answers  int  // batches that its shard answers before it hangs; 0: no bound
	stubborn bool // does not die of a kill
	kills    int  // that reached the cluster
	inbox    []shard.Message
}

type clusterRun struct {
	env    map[string]string
	status driver.Status
	acked  bool
	starts int
}

func newWorld(t *testing.T) *world {
	w := &world{
		fatal: func(message string) { t.Helper(); t.Fatal(message) }, now: int64(time.Second), clusters: map[string]*cluster{}, image: scheduler.NewImage(),
		cfg: scheduler.Config{Cell: "test", Seed: 1, JobRetention: time.Hour, IdempotencyWindow: 2 * time.Hour},
	}
	w.boot()
	return w
}

// boot starts a core on what is durable.
func (w *world) boot() {
	state, groups, err := scheduler.Start(w.cfg, w.image, w.image.Cell.Epoch+1, w.now)
	if err != nil {
		w.fatal(fmt.Sprintf("start: %v", err))
	}
	w.state = state
	w.events, w.wake = nil, 0
	w.commit(groups)
	w.tellPolicies()
	for _, name := range w.clusterNames() {
		c := w.clusters[name]
		w.connect(c)
	}
	w.settle()
}

func (w *world) clusterNames() []string {
	names := make([]string, 0, len(w.clusters))
	for name := range w.clusters {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// connect gives a cluster a fresh shard machine, as a restarted process would.
func (w *world) connect(c *cluster) {
	id := shard.ID(c.name + "/0")
	m, err := shard.New(shard.Config{ID: id, Cluster: c.of})
	if err != nil {
		w.fatal(err.Error())
	}
	c.machine, c.inbox = m, nil
	w.events = append(w.events, scheduler.ShardAttached{Shard: id, Cluster: c.of})
	if !c.lost {
		c.inbox = append(c.inbox, c.inventory())
	}
}

func (c *cluster) inventory() shard.Message {
	inv := driver.Inventory{Hosts: slices.Clone(c.hosts)}
	for _, id := range c.order {
		if r := c.runs[id]; !r.acked {
			inv.Runs = append(inv.Runs, r.status)
		}
	}
	return shard.InventoryArrived{Inventory: inv}
}

func (w *world) commit(groups []scheduler.Group) {
	for _, g := range groups {
		if g.Sequence != w.image.Sequence+1 {
			w.fatal(fmt.Sprintf("group %d follows group %d", g.Sequence, w.image.Sequence))
		}
		if len(g.Writes) > 100 {
			w.fatal(fmt.Sprintf("group %d has %d writes", g.Sequence, len(g.Writes)))
		}
		w.image.ApplyGroup(g)
		for _, wr := range g.Writes {
			if c, ok := wr.Record.(scheduler.ChangesRecord); ok && !wr.Delete {
				w.changes = append(w.changes, c.Changes...)
			}
		}
	}
}

// settle runs the cell until nothing is left to do at this time.
func (w *world) settle() {
	const bound = 10_000
	for n := range bound {
		busy := false
		for _, name := range w.clusterNames() {
			busy = w.serve(w.clusters[name]) || busy
		}
		if len(w.events) > 0 || (w.wake != 0 && w.wake <= w.now) {
			w.step()
			busy = true
		}
		if !busy {
			return
		}
		if n == bound-1 {
			w.fatal(fmt.Sprintf("the cell does not come to rest: %d events, wake %d, now %d", len(w.events), w.wake, w.now))
		}
	}
}

func (w *world) step() {
	events := w.events
	w.events = nil
	out := w.state.Step(w.now, events)
	w.wake = out.Wake
	w.effects(out.Internal)
	w.held = append(w.held, heldOutput{out.Groups, out.External})
	if w.holding {
		return
	}
	w.release()
	if w.idle++; w.idle == mostIdle || len(events)+len(out.Groups)+len(out.Internal)+len(out.External) > 0 {
		w.check()
	}
}

// release makes everything durable that waits for it, in order, and lets go what hangs on it.
func (w *world) release() {
	for len(w.held) > 0 {
		h := w.held[0]
		w.held = w.held[1:]
		w.commit(h.groups)
		w.effects(h.external)
	}
}

// crash ends the core when all but the newest groups were durable; what was to follow them never happened.
func (w *world) crash(lose int) {
	var groups []scheduler.Group
	for _, h := range w.held {
		groups = append(groups, h.groups...)
	}
	w.commit(groups[:max(len(groups)-lose, 0)])
	w.held, w.holding = nil, false
	w.boot()
}

// check holds after every step.
func (w *world) check() {
	w.idle = 0
	if w.after != nil {
		w.after()
	}
	if diff := sim.ImageDifference(w.state.Image(), w.image); diff != "" {
		w.fatal("the groups do not give the state:\n" + diff)
	}
	w.checkWaiting()
	reader := w.state.Reader()
	onClusters := map[string]resource.Vector{}
	charged, revocable, owners := map[string]resource.Vector{}, map[string]resource.Vector{}, map[string]resource.Vector{}
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for _, j := range jobs {
		tasks, _ := reader.Tasks(j.ID, 0, 1<<20, scheduler.TaskFilter{})
		for _, t := range tasks {
			if t.RunState.Live() {
				onClusters[j.PoolPath+" "+t.Cluster] = onClusters[j.PoolPath+" "+t.Cluster].Add(t.Needs)
			}
			switch {
			case t.State != workload.InstanceAdmitted && !t.RunState.Live():
			case j.Spec.Revocable:
				revocable[j.PoolPath] = revocable[j.PoolPath].Add(t.Needs)
			default:
				charged[j.PoolPath] = charged[j.PoolPath].Add(t.Needs)
				owners[j.PoolPath+" "+j.Spec.Owner] = owners[j.PoolPath+" "+j.Spec.Owner].Add(t.Needs)
			}
		}
	}
	pools := reader.Pools("/")
	for n, p := range pools {
		if p.Path == "/" || n+1 < len(pools) && strings.HasPrefix(pools[n+1].Path, p.Path+"/") {
			continue // a pool's children follow it
		}
		if p.Usage != charged[p.Path] || p.Revocable.Usage != revocable[p.Path] {
			w.fatal(fmt.Sprintf("pool %s is charged %v for %v, and for revocable work %v for %v", p.Path, p.Usage, charged[p.Path],
				p.Revocable.Usage, revocable[p.Path]))
		}
		for _, c := range reader.PoolClusters(p.Pool.ID) {
			if held := c.Usage.Add(c.Revocable); held != onClusters[p.Path+" "+c.Cluster] {
				w.fatal(fmt.Sprintf("pool %s holds %v in cluster %s, where its runs hold %v", p.Path, held, c.Cluster, onClusters[p.Path+" "+c.Cluster]))
			}
		}
		for _, u := range reader.PoolOwners(p.Pool.ID) {
			if u.Usage != owners[p.Path+" "+u.Owner] {
				w.fatal(fmt.Sprintf("pool %s charges %s %v for %v", p.Path, u.Owner, u.Usage, owners[p.Path+" "+u.Owner]))
			}
		}
	}
}

func (w *world) effects(list []scheduler.Effect) {
	for _, e := range list {
		switch e := e.(type) {
		case scheduler.AskQuota:
			w.answerQuota(e)
		case scheduler.AskRanks:
			w.answerRanks(e)
		case scheduler.Reply:
			w.answers = append(w.answers, e.Answer)
		case scheduler.ToShard:
			name, _, _ := strings.Cut(string(e.Shard), "/")
			c := w.clusters[name]
			c.inbox = append(c.inbox, e.Message)
		}
	}
}

// serve lets a cluster's shard handle what waits for it.
func (w *world) serve(c *cluster) bool {
	if len(c.inbox) == 0 || c.hung {
		return false
	}
	inbox := c.inbox
	c.inbox = nil
	for n, m := range inbox {
		if _, batch := m.(shard.Place); batch && c.answers > 0 {
			if c.answers--; c.answers == 0 {
				c.hung, c.inbox = true, inbox[n:]
				return true
			}
		}
		c.machine.Handle(w.now, m, &c.out)
		for _, r := range c.out.Replies {
			w.events = append(w.events, scheduler.ShardReplied{Shard: shard.ID(c.name + "/0"), Epoch: c.out.Epoch, Reply: r})
		}
		for _, call := range c.out.Calls {
			w.call(c, call)
		}
	}
	return true
}

func (w *world) call(c *cluster, call shard.Call) {
	if c.lost {
		return
	}
	switch call := call.(type) {
	case shard.LaunchCall:
		for _, l := range call.Launches {
			if r := c.runs[l.Run]; r != nil {
				w.fatal(fmt.Sprintf("run %s was launched twice", l.Run))
			}
			c.runs[l.Run] = &clusterRun{starts: 1, env: l.Env, status: driver.Status{Run: l.Run, Host: l.Host, State: workload.RunStarting}}
			c.order = append(c.order, l.Run)
			if !c.mute {
				c.say(l.Run, driver.Status{State: workload.RunRunning, Healthy: l.Health == nil})
			}
		}
	case shard.KillCall:
		c.kills += len(call.Kills)
		for _, k := range call.Kills {
			r := c.runs[k.Run]
			switch {
			case r == nil || r.acked:
				c.inbox = append(c.inbox, shard.StatusesArrived{Statuses: []driver.Status{{
					Run: k.Run, State: workload.RunLost, Reason: workload.ReasonNotFound,
				}}})
			case r.status.State.Traits().Terminal || c.stubborn:
			default:
				c.say(k.Run, driver.Status{State: workload.RunKilled, Signal: 15})
			}
		}
	case shard.AckCall:
		for _, token := range call.Tokens {
			for _, r := range c.runs {
				if r.status.Token == token && r.status.State.Traits().Terminal {
					r.acked = true
				}
			}
		}
	case shard.ReconcileCall:
	}
}

// say makes the cluster report a run.
func (c *cluster) say(id workload.RunID, s driver.Status) {
	r := c.runs[id]
	c.token++
	s.Run, s.Host, s.Token = id, r.status.Host, c.token
	r.status = s
	if !c.lost {
		c.inbox = append(c.inbox, shard.StatusesArrived{Statuses: []driver.Status{s}})
	}
}
