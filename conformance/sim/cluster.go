package sim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// cluster is one simulated cluster, the world that outlives every process, and the shard that speaks for it.
type cluster struct {
	w      *world
	name   string
	id     shard.ID
	world  *simulated.Cluster
	remote bool // its shard has a process of its own, which outlives the core's
	jitter random

	proc     *process
	link     *link       // from the core, of the present assignment
	linkLife int         // grows when messages under way are lost
	assigned shard.Epoch // the newest that the core sent

	hosts   []driver.Host // all that ever were
	present map[string]bool
	down    map[string]bool
	cut     bool
	// stubborn are runs that do not die of a kill before a time.
	stubborn map[workload.RunID]int64
}

// drawCluster makes a cluster of any kind.
func (w *world) drawCluster(n int) clusterPlan {
	f := &w.opts.Faults
	plan := clusterPlan{Name: fmt.Sprintf("c%d", n), Remote: w.random.IntN(2) == 0}
	for i := range w.opts.Hosts {
		plan.Hosts = append(plan.Hosts, w.drawHost(i))
	}
	plan.Launch, plan.Kill = w.random.between(0, 2*time.Second), w.random.between(0, 3*time.Second)
	if w.opts.Lending {
		plan.Kill = w.random.between(0, 20*time.Second)
	}
	plan.Faults = simulated.Faults{
		LoseStatus: int32(f.LoseStatus), DuplicateStatus: int32(f.DuplicateStatus), DelayStatus: int32(f.DelayStatus),
		MaxDelay: pick(w.random, time.Second, 40*time.Second), LaunchFailure: int32(f.LaunchFailure),
	}
	return plan
}

// newCluster makes what is planned.
func newCluster(w *world, n int) *cluster {
	plan := &w.plans[n]
	c := &cluster{
		w: w, name: plan.Name, id: shard.ID(plan.Name + "/0"), remote: plan.Remote, jitter: newJitter(w.opts.Seed, plan.Name),
		hosts: slices.Clone(plan.Hosts), present: map[string]bool{}, down: map[string]bool{}, stubborn: map[workload.RunID]int64{},
	}
	for i := range c.hosts {
		c.present[c.hosts[i].Name] = true
	}
	world, err := simulated.New(simulated.Config{
		Hosts: slices.Clone(c.hosts), Seed: w.opts.Seed + uint64(n), Virtual: true, Origin: time.Unix(0, origin),
		LaunchLatency: plan.Launch, KillLatency: plan.Kill, Faults: plan.Faults,
	})
	w.must(err)
	c.world = world
	return c
}

func (w *world) drawHost(i int) driver.Host {
	r := w.random
	h := driver.Host{
		Name: fmt.Sprintf("h%02d", i), Ready: true,
		Attributes: map[string]string{"rack": fmt.Sprintf("r%d", i%3), "zone": fmt.Sprintf("z%d", i%2)},
		Capacity:   map[string]int64{"cpu_milli": pick(r, int64(2000), 4000, 8000), "memory_mib": pick(r, int64(4096), 16384)},
		Ports:      []driver.PortRange{{First: 31000, Last: 31003}, {First: 31010, Last: 31012}},
	}
	if r.IntN(4) == 0 {
		h.Pool = "batch"
	}
	if r.IntN(3) == 0 {
		h.Capacity[licence] = 3
	}
	model := pick(r, "A100", "T4")
	for range pick(r, 0, 0, 2, 4) {
		h.Devices = append(h.Devices, driver.Device{Model: model, Milli: 1000})
	}
	h.Capacity["gpu_milli"] = int64(len(h.Devices)) * 1000
	return h
}

// licence is an extended resource.
const licence = "licence"

// attach gives the shard, as it is or as a new process, to the core that runs now.
func (c *cluster) attach() {
	if c.proc == nil {
		c.proc = newProcess(c)
	}
	down := c.w.link(c.jitter, c.name+"/down")
	c.link = &down
	c.w.cell.deliver(scheduler.ShardAttached{Shard: c.id, Cluster: c.name})
}

// send is the way of a message from the core to the shard. One under way reaches the process that runs when it arrives.
func (c *cluster) send(m shard.Message) {
	c.w.report.Messages++
	if a, ok := m.(shard.Assign); ok {
		c.assigned = a.Epoch
	}
	if hook := c.w.opts.Interpose; hook != nil && hook.Send != nil {
		m = hook.Send(m)
	}
	life := c.linkLife
	c.link.send(func() {
		if c.linkLife != life || c.proc == nil {
			return
		}
		if e := epochOf(m); e.Less(c.proc.out.Epoch) {
			c.w.fault("stale-epoch-to-shard", "%s: %T under %v, now %v", c.id, m, e, c.proc.out.Epoch)
		}
		c.proc.handle(m)
	})
}

// epochOf is the epoch that a message of the core carries.
func epochOf(m shard.Message) shard.Epoch {
	switch m := m.(type) {
	case shard.Assign:
		return m.Epoch
	case shard.Names:
		return m.Epoch
	case shard.Replay:
		return m.Epoch
	case shard.Place:
		return m.Epoch
	case shard.Launch:
		return m.Epoch
	case shard.Kill:
		return m.Epoch
	case shard.Release:
		return m.Epoch
	case shard.Acknowledge:
		return m.Epoch
	case shard.Watch:
		return m.Epoch
	case shard.SetDraining:
		return m.Epoch
	}
	return shard.Epoch{Cell: math.MaxUint64} // not of the core
}

// coreDied takes a shard in the core's process along; of one in its own, some of the messages that were under way still arrive.
func (c *cluster) coreDied() {
	if !c.remote {
		c.killProcess()
		return
	}
	if c.jitter.IntN(2) == 0 {
		c.linkLife++
	}
}

func (c *cluster) killProcess() {
	if c.proc != nil {
		c.proc.die()
		c.proc = nil
	}
	c.linkLife++
}

func (c *cluster) crashShard() bool {
	if c.w.cell.state == nil {
		return false
	}
	c.w.fault(shardCrash, "%s", c.id)
	c.killProcess()
	c.attach()
	return true
}

// reattach makes a new assignment while messages of the former one may be under way.
func (c *cluster) reattach(lossy bool) bool {
	if c.w.cell.state == nil {
		return false
	}
	c.w.fault(shardReattached, "%s", c.id)
	if lossy {
		c.linkLife++
	}
	c.attach()
	return true
}

func (c *cluster) cutLink(d time.Duration) bool {
	if c.cut {
		return false
	}
	c.w.fault(clusterCut, "%s for %v", c.name, d)
	c.cut = true
	c.world.Cut(errors.New("the network is down"))
	c.w.after(d, c.joinLink)
	return true
}

func (c *cluster) joinLink() {
	if c.cut {
		c.cut = false
		c.w.trace("%s is reached again", c.name)
		c.world.Mend()
	}
}

// drawStrike has something happen to one host.
func (c *cluster) drawStrike() {
	h := c.hosts[c.w.random.IntN(len(c.hosts))]
	e := event{what: hostDown, who: c.name + "/" + h.Name}
	switch {
	case !c.present[h.Name]:
		e.what = hostJoins
	case c.down[h.Name]:
		e.what = pick(c.w.random, hostUp, hostUpEmpty)
	case c.w.random.IntN(3) == 0:
		e.what = hostLeaves
		if c.w.random.IntN(2) == 0 { // a machine that was taken for gone and was not
			c.w.after(c.w.random.between(time.Millisecond, 8*time.Second), func() { c.w.perform(event{what: hostJoins, who: e.who}) })
		}
	}
	c.w.perform(e)
}

// strikeHost does to a host what an event says, if it can be done to it as it is.
func (c *cluster) strikeHost(e *event) bool {
	_, name, _ := strings.Cut(e.who, "/")
	i := slices.IndexFunc(c.hosts, func(h driver.Host) bool { return h.Name == name })
	if i < 0 || c.present[name] != (e.what != hostJoins) || c.down[name] != (e.what == hostUp || e.what == hostUpEmpty) {
		return false
	}
	c.w.fault(e.what, "%s", e.who)
	switch e.what {
	case hostJoins:
		c.present[name] = true
		c.w.must(c.world.AddHosts(c.hosts[i]))
	case hostLeaves:
		delete(c.present, name)
		c.w.must(c.world.RemoveHost(name))
	case hostDown:
		c.down[name] = true
		c.w.must(c.world.HostDown(name))
	case hostUp, hostUpEmpty:
		delete(c.down, name)
		c.w.must(c.world.HostUp(name, e.what == hostUpEmpty))
	}
	c.w.truth.look(c)
	return true
}

// heal ends all faults and connects once more, which tells what was lost on the way.
func (c *cluster) heal() {
	c.w.must(c.world.SetFaults(simulated.Faults{}))
	for _, h := range c.hosts {
		switch {
		case !c.present[h.Name]:
			c.w.must(c.world.AddHosts(h))
		case c.down[h.Name]:
			c.w.must(c.world.HostUp(h.Name, false))
		}
		c.present[h.Name] = true
	}
	clear(c.down)
	c.cut = true
	c.world.Cut(errors.New("one last time"))
	c.w.after(time.Second, c.joinLink)
}

// enlarge adds room for everybody.
func (c *cluster) enlarge() {
	big := driver.Host{
		Name: "large", Ready: true, Attributes: map[string]string{"rack": "r0", "zone": "z0"},
		Capacity: map[string]int64{"cpu_milli": 400_000, "memory_mib": 1 << 20, "gpu_milli": 16_000, licence: 1000},
		Ports:    []driver.PortRange{{First: 31000, Last: 31999}},
	}
	for n := range 16 {
		big.Devices = append(big.Devices, driver.Device{Model: []string{"A100", "T4"}[n%2], Milli: 1000})
	}
	c.w.must(c.world.AddHosts(big))
	c.hosts = append(c.hosts, big)
	c.present[big.Name] = true
}

// advance lets the cluster's next event happen and tells its connection.
func (c *cluster) advance() {
	c.w.must(c.world.Advance(time.Unix(0, c.w.now)))
	c.w.truth.look(c)
}

// remains is what is left on a cluster where nothing should run.
func (c *cluster) remains() string {
	if live := c.world.Living(nil); len(live) > 0 {
		return fmt.Sprintf("%d runs live on %s, the first %s", len(live), c.name, live[0].Run)
	}
	if c.proc == nil {
		return c.name + " has no shard"
	}
	if stats := c.proc.machine.Stats(); stats.Held > 0 || stats.Runs > 0 {
		return fmt.Sprintf("shard %s holds %d leases and %d runs", c.id, stats.Held, stats.Runs)
	}
	return ""
}
