package simrun

import (
	"context"
	"encoding/binary"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// cell runs a trace of hosts and tasks.
type cell struct {
	virtual
	options *Options
	work    *work
	byHost  map[string]*simShard
	end     int64

	nextJob, nextHostEvent int
	nextSample             int64
	tally
}

// newCell makes a cell whose hosts are dealt out to its shards, and its pools.
func newCell(ctx context.Context, o *Options, w *work) (*cell, error) {
	c := &cell{options: o, work: w, byHost: map[string]*simShard{}, end: w.span, nextSample: int64(origin)}
	c.tally = newTally(o, w)
	victims, err := victimPolicy(o.Victims)
	if err != nil {
		return nil, err
	}
	if err := c.start(c, scheduler.Config{Seed: o.Seed, Victims: victims}, o.Commit); err != nil {
		return nil, err
	}
	dealt := make([][]driver.Host, o.Shards)
	for i := range o.Hosts {
		dealt[i%o.Shards] = append(dealt[i%o.Shards], o.machine(&o.Hosts[i]))
	}
	for n, hosts := range dealt {
		sh, err := c.addShard(ctx, n, hosts)
		if err != nil {
			return nil, err
		}
		for i := range hosts {
			c.byHost[hosts[i].Name] = sh
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
	return min(next, c.virtual.next())
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

// jobOf finds the job of a run: its number is in its id.
func (c *cell) jobOf(id workload.JobID) *job { return &c.work.jobs[binary.BigEndian.Uint32(id[12:])] }
