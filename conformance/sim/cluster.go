package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// cluster is one simulated cluster, the world that outlives every process, and the shard that speaks for it.
type cluster struct {
	w      *world
	name   string
	id     shard.ID
	world  *simulated.Cluster
	remote bool // its shard has a process of its own, which outlives the core's

	proc     *process
	link     *link       // from the core, of the present assignment
	linkLife int         // grows when messages under way are lost
	assigned shard.Epoch // the newest that the core sent

	hosts   []driver.Host // all that ever were
	present map[string]bool
	down    map[string]bool
	cut     bool
}

func newCluster(w *world, n int) *cluster {
	c := &cluster{
		w: w, name: fmt.Sprintf("c%d", n), remote: w.random.IntN(2) == 0, present: map[string]bool{}, down: map[string]bool{},
	}
	c.id = shard.ID(c.name + "/0")
	for i := range w.opts.Hosts {
		h := c.newHost(i)
		c.hosts = append(c.hosts, h)
		c.present[h.Name] = true
	}
	f := &w.opts.Faults
	world, err := simulated.New(simulated.Config{
		Hosts: slices.Clone(c.hosts), Seed: w.opts.Seed + uint64(n), Virtual: true, Origin: time.Unix(0, origin),
		LaunchLatency: w.random.between(0, 2*time.Second), KillLatency: w.random.between(0, 3*time.Second),
		Faults: simulated.Faults{
			LoseStatus: int32(f.LoseStatus), DuplicateStatus: int32(f.DuplicateStatus), DelayStatus: int32(f.DelayStatus),
			MaxDelay: pick(w.random, time.Second, 40*time.Second), LaunchFailure: int32(f.LaunchFailure),
		},
	})
	w.must(err)
	c.world = world
	return c
}

func (c *cluster) newHost(i int) driver.Host {
	r := c.w.random
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
	c.link = &link{w: c.w}
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
		if c.linkLife == life && c.proc != nil {
			c.proc.handle(m)
		}
	})
}

// coreDied takes a shard in the core's process along; of one in its own, some of the messages that were under way still arrive.
func (c *cluster) coreDied() {
	if !c.remote {
		c.killProcess()
		return
	}
	if c.w.random.IntN(2) == 0 {
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

func (c *cluster) crashShard() {
	if c.w.cell.state == nil {
		return
	}
	c.w.fault("shard crash", "%s", c.id)
	c.killProcess()
	c.attach()
}

// reattach makes a new assignment while messages of the former one may be under way.
func (c *cluster) reattach() {
	if c.w.cell.state == nil {
		return
	}
	c.w.fault("shard attached anew", "%s", c.id)
	if c.w.random.IntN(2) == 0 {
		c.linkLife++
	}
	c.attach()
}

func (c *cluster) cutLink() {
	if c.cut {
		return
	}
	c.w.fault("cluster cut off", "%s", c.name)
	c.cut = true
	c.world.Cut(errors.New("the network is down"))
	c.w.after(c.w.random.between(10*time.Millisecond, 40*time.Second), c.joinLink)
}

func (c *cluster) joinLink() {
	if c.cut {
		c.cut = false
		c.w.trace("%s is reached again", c.name)
		c.world.Mend()
	}
}

// strikeHost does something bad to one host.
func (c *cluster) strikeHost() {
	h := c.hosts[c.w.random.IntN(len(c.hosts))]
	switch {
	case !c.present[h.Name]:
		c.joinHost(h)
	case c.down[h.Name]:
		empty := c.w.random.IntN(2) == 0
		c.w.fault("host returns", "%s/%s, empty %v", c.name, h.Name, empty)
		delete(c.down, h.Name)
		c.w.must(c.world.HostUp(h.Name, empty))
	case c.w.random.IntN(3) == 0:
		c.w.fault("host leaves", "%s/%s", c.name, h.Name)
		delete(c.present, h.Name)
		c.w.must(c.world.RemoveHost(h.Name))
		if c.w.random.IntN(2) == 0 { // a machine that was taken for gone and was not
			c.w.after(c.w.random.between(time.Millisecond, 8*time.Second), func() { c.joinHost(h) })
		}
	default:
		c.w.fault("host out of contact", "%s/%s", c.name, h.Name)
		c.down[h.Name] = true
		c.w.must(c.world.HostDown(h.Name))
	}
	c.w.truth.look(c)
}

func (c *cluster) joinHost(h driver.Host) {
	if !c.present[h.Name] {
		c.w.fault("host joins", "%s/%s", c.name, h.Name)
		c.present[h.Name] = true
		c.w.must(c.world.AddHosts(h))
	}
}

// mend ends all faults, adds room for everybody, and connects once more, which tells what was lost on the way.
func (c *cluster) mend() {
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
	c.cut = true
	c.world.Cut(errors.New("one last time"))
	c.w.after(time.Second, c.joinLink)
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
