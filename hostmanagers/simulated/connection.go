package simulated

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

var (
	_ driver.Driver     = (*Driver)(nil)
	_ driver.Capable    = (*Driver)(nil)
	_ driver.Reconciler = (*Driver)(nil)
)

// Driver is one connection to a cluster.
type Driver struct {
	cluster *Cluster
	ctx     context.Context // of Start
	sink    driver.Sink
	wake    chan struct{}
	done    sync.WaitGroup
}

// Driver returns a connection that has not started.
func (c *Cluster) Driver() *Driver { return &Driver{cluster: c, wake: make(chan struct{}, 1)} }

// Start takes over the cluster from any former connection. In virtual time, the sink hears the inventory at the next Advance.
func (d *Driver) Start(ctx context.Context, sink driver.Sink) error {
	c := d.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.sink != nil {
		return errors.New("simulated: a connection starts only once")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	d.ctx, d.sink = ctx, sink
	c.served, c.greet, c.outbox = d, true, nil
	c.linkEpoch++
	if !c.cfg.Virtual {
		d.done.Go(d.serve)
	}
	return nil
}

// serve is the goroutine of a connection in wall time.
func (d *Driver) serve() {
	c := d.cluster
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.mu.Lock()
		c.look()
		c.elapse(c.now)
		at, pending := c.timers.next()
		wait := time.Duration(at - c.now)
		c.mu.Unlock()
		d.flush()
		var due <-chan time.Time
		if pending {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-d.wake:
		case <-due:
		case <-d.ctx.Done():
			c.mu.Lock()
			if c.served == d {
				c.served, c.outbox = nil, nil
			}
			c.mu.Unlock()
			return
		}
	}
}

// flush makes the calls that the sink is due.
func (d *Driver) flush() {
	c := d.cluster
	c.mu.Lock()
	if c.served != d || d.ctx.Err() != nil {
		c.mu.Unlock()
		return
	}
	var greeting *driver.Inventory
	if c.greet && !c.cut {
		inventory := c.inventory()
		greeting, c.greet, c.outbox = &inventory, false, nil
	}
	calls := c.outbox
	c.outbox = nil
	c.mu.Unlock()
	if greeting != nil {
		d.sink.Inventory(*greeting)
	}
	for _, next := range calls {
		switch {
		case next.lost != nil:
			d.sink.Disconnected(next.lost)
		case next.statuses != nil:
			d.sink.Statuses(next.statuses)
		default:
			d.sink.HostsChanged(next.changed, next.removed)
		}
	}
}

// rouse has serve look again. In virtual time the next Advance looks.
func (d *Driver) rouse() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// with lets a call of the connection happen, if the connection stands.
func (d *Driver) with(happen func(*Cluster) error) error {
	c := d.cluster
	c.mu.Lock()
	err := d.stands()
	if err == nil {
		c.look()
		c.elapse(c.now)
		err = d.stands() // the link may have been cut by what was due
	}
	if err == nil {
		err = happen(c)
	}
	c.mu.Unlock()
	d.rouse()
	return err
}

// stands needs the cluster's mutex.
func (d *Driver) stands() error {
	switch c := d.cluster; {
	case d.sink == nil:
		return errors.New("simulated: the connection has not started")
	case d.ctx.Err() != nil:
		return fmt.Errorf("simulated: the connection has ended: %w", d.ctx.Err())
	case c.served != d:
		return errors.New("simulated: another connection has taken over the cluster")
	case c.cut:
		return errors.New("simulated: the connection is cut")
	case len(c.outbox) > maxCalls:
		return fmt.Errorf("simulated: more than %d calls of the sink are due: let it catch up", maxCalls)
	}
	return nil
}

// Launch starts runs.
func (d *Driver) Launch(_ context.Context, launches []driver.Launch) error {
	return d.with(func(c *Cluster) error {
		if len(c.runs)+len(launches) > MaxRuns {
			return fmt.Errorf("simulated: %d runs are known and %d is the most: acknowledge ended ones", len(c.runs), MaxRuns)
		}
		for i := range launches {
			c.launch(&launches[i])
		}
		return nil
	})
}

// Kill ends runs.
func (d *Driver) Kill(_ context.Context, kills []driver.Kill) error {
	return d.with(func(c *Cluster) error {
		for i := range kills {
			c.kill(&kills[i])
		}
		return nil
	})
}

// Acknowledge forgets ended runs.
func (d *Driver) Acknowledge(_ context.Context, tokens []driver.Token) error {
	return d.with(func(c *Cluster) error {
		for _, token := range tokens {
			c.acknowledge(token)
		}
		return nil
	})
}

// Reconcile sends the last status of the runs, or of all.
func (d *Driver) Reconcile(_ context.Context, runs []workload.RunID) error {
	return d.with(func(c *Cluster) error {
		for _, id := range runs {
			if r := c.runs[id]; r != nil {
				c.resend(r)
			} else {
				c.send(c.unknown(id))
			}
		}
		if len(runs) == 0 {
			for _, s := range c.statuses() {
				c.resend(c.runs[s.Run])
			}
		}
		return nil
	})
}

// Capabilities says what the simulation offers.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		HealthChecks: true, VirtualTime: d.cluster.cfg.Virtual,
		Notes: []string{"simulated: no process runs; a task with a health check becomes healthy after its initial delay"},
	}
}

// Wait blocks until the connection's goroutine has ended.
func (d *Driver) Wait() { d.done.Wait() }
