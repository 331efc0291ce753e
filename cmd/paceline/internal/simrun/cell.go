package simrun

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// cell is a scheduler with its shards, and the one goroutine's place in time.
type cell struct {
	options *Options
	work    *work
	state   *scheduler.State
	shards  []*simShard
	byHost  map[string]*simShard
	now     int64
	end     int64
	events  []scheduler.Event // for the next Step
	wake    int64             // of the core; 0: none
	token   uint64
	failed  error // the first; ends the run

	nextJob, nextHostEvent int
	nextSample             int64
	tally
}

// simShard is one shard with the simulated cluster below it.
type simShard struct {
	cell    *cell
	id      shard.ID
	machine *shard.Machine
	cluster *simulated.Cluster
	driver  *simulated.Driver
	inbox   []shard.Message
	out     shard.Output
	wake    int64
}

// The sink of a cluster: what it says waits in the inbox until the machine's turn.
var _ driver.Sink = (*simShard)(nil)

func (sh *simShard) Inventory(i driver.Inventory) { sh.tell(shard.InventoryArrived{Inventory: i}) }
func (sh *simShard) Statuses(s []driver.Status)   { sh.tell(shard.StatusesArrived{Statuses: s}) }
func (sh *simShard) Disconnected(reason error)    { sh.tell(shard.DriverLost{Reason: reason.Error()}) }

func (sh *simShard) HostsChanged(changed []driver.Host, removed []string) {
	sh.tell(shard.HostsUpdated{Changed: changed, Removed: removed})
}

func (sh *simShard) tell(m shard.Message) { sh.inbox = append(sh.inbox, m) }

// newCell makes a cell whose hosts are dealt out to its shards, and its pools.
func newCell(ctx context.Context, o *Options, w *work) (*cell, error) {
	c := &cell{options: o, work: w, byHost: map[string]*simShard{}, now: int64(origin), end: w.span, nextSample: int64(origin)}
	c.tally = newTally(o, w)
	state, groups, err := scheduler.Start(scheduler.Config{Cell: "simulation", Seed: o.Seed}, scheduler.NewImage(), 1, c.now)
	if err != nil {
		return nil, fmt.Errorf("start the cell: %w", err)
	}
	c.state = state
	if err := c.commit(groups); err != nil {
		return nil, err
	}
	dealt := make([][]driver.Host, o.Shards)
	for i := range o.Hosts {
		dealt[i%o.Shards] = append(dealt[i%o.Shards], o.machine(&o.Hosts[i]))
	}
	for n, hosts := range dealt {
		if err := c.addShard(ctx, n, hosts); err != nil {
			return nil, err
		}
	}
	for i := range w.pools {
		c.ask(w.pools[i])
	}
	return c, nil
}

// machine is a host as its cluster offers it.
func (o *Options) machine(h *Host) driver.Host {
	return driver.Host{
		Name: h.Name, Ready: true, Attributes: map[string]string{"platform": h.Platform},
		Capacity: map[string]int64{
			"cpu_milli":  quantity(h.CPU, scale.CPUMilli, o.OvercommitCPU),
			"memory_mib": quantity(h.Memory, scale.MemoryMiB, o.OvercommitMemory),
		},
	}
}

func (c *cell) addShard(ctx context.Context, n int, hosts []driver.Host) error {
	name := fmt.Sprintf("simulated-%d", n)
	cluster, err := simulated.New(simulated.Config{Hosts: hosts, Seed: c.options.Seed, Virtual: true, Origin: time.Unix(0, c.now)})
	if err != nil {
		return fmt.Errorf("make a cluster: %w", err)
	}
	sh := &simShard{cell: c, id: shard.ID(name + "/0"), cluster: cluster, driver: cluster.Driver()}
	sh.machine, err = shard.New(shard.Config{ID: sh.id, Cluster: name, Reconciles: true})
	if err != nil {
		return fmt.Errorf("make a shard: %w", err)
	}
	if err := sh.driver.Start(ctx, sh); err != nil {
		return fmt.Errorf("connect to a cluster: %w", err)
	}
	for i := range hosts {
		c.byHost[hosts[i].Name] = sh
	}
	c.shards = append(c.shards, sh)
	c.events = append(c.events, scheduler.ShardAttached{Shard: sh.id, Cluster: name})
	return nil
}

// ask gives the core a command; a refusal ends the run.
func (c *cell) ask(cmd scheduler.Command) {
	c.token++
	c.events = append(c.events, scheduler.Call{Token: c.token, Caller: scheduler.Caller{Principal: "simulation"}, Command: cmd})
}

// run goes from one moment at which something happens to the next:
//  1. everything that follows from what happened is done, at this very moment;
//  2. a sample is taken if one is due;
//  3. time moves to whatever comes first;
//  4. what the trace has for that moment goes in.
func (c *cell) run(ctx context.Context) error {
	if err := c.settle(); err != nil { // hosts and pools, before the first task
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err //nolint:wrapcheck // the caller's own
		}
		c.submitDue()
		c.changeDueHosts()
		if err := c.settle(); err != nil {
			return err
		}
		if c.now >= c.nextSample {
			c.sample()
			c.nextSample += int64(c.options.Sample)
		}
		next := c.next()
		if next > c.end {
			c.now = c.end
			c.sample()
			return nil
		}
		c.now = max(c.now, next)
	}
}

// next is the first moment at which something happens.
func (c *cell) next() int64 {
	next := c.nextSample
	if c.nextJob < len(c.work.jobs) {
		next = min(next, c.work.jobs[c.nextJob].at)
	}
	if c.nextHostEvent < len(c.options.Events) {
		next = min(next, c.hostEventAt())
	}
	if c.wake != 0 {
		next = min(next, c.wake)
	}
	for _, sh := range c.shards {
		if sh.wake != 0 {
			next = min(next, sh.wake)
		}
		if at, ok := sh.cluster.Next(); ok {
			next = min(next, at.UnixNano())
		}
	}
	return next
}

func (c *cell) hostEventAt() int64 {
	return max(c.options.virtual(c.options.Events[c.nextHostEvent].At), int64(origin))
}

func (c *cell) submitDue() {
	for ; c.nextJob < len(c.work.jobs) && c.work.jobs[c.nextJob].at <= c.now; c.nextJob++ {
		j := &c.work.jobs[c.nextJob]
		c.ask(scheduler.SubmitJob{ID: j.id, Spec: j.spec})
		c.count(j, c.now)
	}
}

// changeDueHosts lets machines come and go. Cluster's calls fail for hosts that are not there: the trace removes some twice.
func (c *cell) changeDueHosts() {
	for ; c.nextHostEvent < len(c.options.Events) && c.hostEventAt() <= c.now; c.nextHostEvent++ {
		e := &c.options.Events[c.nextHostEvent]
		sh := c.byHost[e.Host.Name]
		switch {
		case e.Kind == HostRemoved && sh != nil:
			c.fail(sh.cluster.RemoveHost(e.Host.Name))
			delete(c.byHost, e.Host.Name)
		case e.Kind == HostRemoved:
			continue
		case sh == nil:
			sh = c.shards[len(c.byHost)%len(c.shards)]
			c.byHost[e.Host.Name] = sh
			fallthrough
		default:
			c.fail(sh.cluster.AddHosts(c.options.machine(&e.Host)))
		}
		c.hostEvents++
	}
}

func (c *cell) fail(err error) {
	if c.failed == nil {
		c.failed = err
	}
}

// settle lets happen what follows, until nothing more does at this moment.
func (c *cell) settle() error {
	for range maxRounds {
		busy := false
		for _, sh := range c.shards {
			busy = sh.serve() || busy
		}
		if len(c.events) > 0 || (c.wake != 0 && c.wake <= c.now) {
			c.step()
			busy = true
		}
		switch {
		case c.failed != nil:
			return c.failed
		case !busy:
			return nil
		}
	}
	return errors.New("the cell does not come to rest: this is a fault of the scheduler")
}

// serve lets a cluster say what it has to say and the shard handle what waits for it.
func (sh *simShard) serve() bool {
	c := sh.cell
	if at, ok := sh.cluster.Next(); ok && at.UnixNano() <= c.now {
		c.fail(sh.cluster.Advance(time.Unix(0, c.now)))
	}
	if len(sh.inbox) == 0 && (sh.wake == 0 || sh.wake > c.now) {
		return false
	}
	if len(sh.inbox) == 0 {
		sh.tell(shard.Wake{})
	}
	inbox := sh.inbox
	sh.inbox = nil
	for _, m := range inbox {
		sh.machine.Handle(c.now, m, &sh.out)
		sh.wake = sh.out.NextWake
		for _, r := range sh.out.Replies {
			c.heard(r)
			c.events = append(c.events, scheduler.ShardReplied{Shard: sh.id, Epoch: sh.out.Epoch, Reply: r})
		}
		for _, call := range sh.out.Calls {
			c.fail(sh.call(call))
		}
	}
	return true
}

// call does what a shard runtime does with a call. The cluster is there all the time and refuses nothing, so an error is a fault.
func (sh *simShard) call(call shard.Call) error {
	ctx := context.Background() // a simulated cluster answers at once
	switch call := call.(type) {
	case shard.LaunchCall:
		for i := range call.Launches {
			sh.cell.launched(&call.Launches[i])
		}
		return sh.driver.Launch(ctx, call.Launches) //nolint:wrapcheck // ends the run, which says when
	case shard.KillCall:
		return sh.driver.Kill(ctx, call.Kills) //nolint:wrapcheck // as above
	case shard.AckCall:
		return sh.driver.Acknowledge(ctx, call.Tokens) //nolint:wrapcheck // as above
	case shard.ReconcileCall:
		return sh.driver.Reconcile(ctx, call.Runs) //nolint:wrapcheck // as above
	}
	return fmt.Errorf("a shard made a call of the unknown kind %T", call)
}

// step takes the place of the engine: groups are durable the moment they are made.
func (c *cell) step() {
	events := c.events
	c.events = nil
	if len(events) > maxEvents {
		c.events = events[maxEvents:]
		events = events[:maxEvents:maxEvents]
	}
	out := c.state.Step(c.now, events)
	c.wake = out.Wake
	c.steps++
	c.effects(out.Internal)
	c.fail(c.commit(out.Groups))
	c.effects(out.External)
}

func (c *cell) commit(groups []scheduler.Group) error {
	for _, g := range groups {
		c.writes += len(g.Writes)
		if c.options.Commit == nil {
			continue
		}
		if err := c.options.Commit(g); err != nil {
			return fmt.Errorf("commit group %d: %w", g.Sequence, err)
		}
	}
	return nil
}

func (c *cell) effects(list []scheduler.Effect) {
	for _, e := range list {
		switch e := e.(type) {
		case scheduler.Reply:
			if e.Answer.Err != nil {
				c.fail(fmt.Errorf("the cell refused a command: %w", e.Answer.Err))
			}
		case scheduler.ToShard:
			for _, sh := range c.shards {
				if sh.id == e.Shard {
					sh.tell(e.Message)
				}
			}
		}
	}
}

// jobOf finds the job of a run: its number is in its id.
func (c *cell) jobOf(id workload.JobID) *job { return &c.work.jobs[binary.BigEndian.Uint32(id[12:])] }
