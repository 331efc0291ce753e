package simrun

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// virtual is a scheduler with its shards and their simulated clusters, and the one goroutine's place in time.
type virtual struct {
	state  *scheduler.State
	shards []*simShard
	watch  watcher
	store  func(scheduler.Group) error // nil: groups are dropped
	seed   uint64
	now    int64
	events []scheduler.Event // for the next Step
	wake   int64             // of the core; 0: none
	token  uint64
	failed error // the first; ends the run

	steps, writes int
}

// watcher is told what happens between core and clusters. It may say how a launch goes: a job has one template.
type watcher interface {
	launched(l *driver.Launch)
	heard(r shard.Reply)
}

// start makes the cell, still without a shard.
func (c *virtual) start(watch watcher, cfg scheduler.Config, store func(scheduler.Group) error) error {
	c.watch, c.seed, c.store, c.now = watch, cfg.Seed, store, int64(origin)
	cfg.Cell = "simulation"
	state, groups, err := scheduler.Start(cfg, scheduler.NewImage(), 1, c.now)
	if err != nil {
		return fmt.Errorf("start the cell: %w", err)
	}
	c.state = state
	return c.commit(groups)
}

// simShard is one shard with the simulated cluster below it.
type simShard struct {
	cell    *virtual
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

func (c *virtual) addShard(ctx context.Context, n int, hosts []driver.Host) (*simShard, error) {
	name := fmt.Sprintf("simulated-%d", n)
	cluster, err := simulated.New(simulated.Config{Hosts: hosts, Seed: c.seed, Virtual: true, Origin: time.Unix(0, c.now)})
	if err != nil {
		return nil, fmt.Errorf("make a cluster: %w", err)
	}
	sh := &simShard{cell: c, id: shard.ID(name + "/0"), cluster: cluster, driver: cluster.Driver()}
	sh.machine, err = shard.New(shard.Config{ID: sh.id, Cluster: name, Reconciles: true})
	if err != nil {
		return nil, fmt.Errorf("make a shard: %w", err)
	}
	if err := sh.driver.Start(ctx, sh); err != nil {
		return nil, fmt.Errorf("connect to a cluster: %w", err)
	}
	c.shards = append(c.shards, sh)
	c.events = append(c.events, scheduler.ShardAttached{Shard: sh.id, Cluster: name})
	return sh, nil
}

// ask gives the core a command; a refusal ends the run.
func (c *virtual) ask(cmd scheduler.Command) {
	c.token++
	c.events = append(c.events, scheduler.Call{Token: c.token, Caller: scheduler.Caller{Principal: "simulation"}, Command: cmd})
}

// next is the first moment at which the cell itself has something to do; math.MaxInt64: never.
func (c *virtual) next() int64 {
	next := int64(math.MaxInt64)
	if c.wake != 0 {
		next = c.wake
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

func (c *virtual) fail(err error) {
	if c.failed == nil {
		c.failed = err
	}
}

// settle lets happen what follows, until nothing more does at this moment.
func (c *virtual) settle() error {
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
	// The cluster follows the cell's time even when it has nothing to say: what is launched now begins now.
	if at, ok := sh.cluster.Next(); len(sh.inbox) > 0 || ok && at.UnixNano() <= c.now {
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
			c.watch.heard(r)
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
			sh.cell.watch.launched(&call.Launches[i])
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
func (c *virtual) step() {
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

func (c *virtual) commit(groups []scheduler.Group) error {
	for _, g := range groups {
		c.writes += len(g.Writes)
		if c.store == nil {
			continue
		}
		if err := c.store(g); err != nil {
			return fmt.Errorf("commit group %d: %w", g.Sequence, err)
		}
	}
	return nil
}

func (c *virtual) effects(list []scheduler.Effect) {
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
