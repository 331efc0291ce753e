package simulated

import (
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// Cut breaks the connection: the sink hears Disconnected, calls of the driver fail, and the world goes on.
func (c *Cluster) Cut(reason error) {
	c.change(func() { c.cutLink(reason) })
}

// Mend lets the driver connect again: the sink hears a new inventory.
func (c *Cluster) Mend() { c.change(c.mendLink) }

// SetFaults changes what goes wrong by itself from now on. What is under way already, a delayed status or a host's return, still comes.
func (c *Cluster) SetFaults(faults Faults) error {
	if err := faults.validate(); err != nil {
		return err
	}
	c.change(func() {
		old := c.cfg.Faults
		c.cfg.Faults = faults
		if old.CutEvery == 0 {
			c.scheduleCut()
		}
		if old.HostFailureEvery == 0 {
			c.scheduleHostFailure()
		}
	})
	return nil
}

// Struck is how often the faults of Faults have happened to runs.
type Struck struct{ LostStatuses, DuplicatedStatuses, DelayedStatuses, FailedLaunches int }

// Struck tells what has gone wrong so far.
func (c *Cluster) Struck() Struck {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.struck
}

// Living is a run that lives, whether or not anybody can hear of it.
type Living struct {
	Run  workload.RunID
	Host string
}

// Living appends to list the runs that live now, host by host, each host's in the order of their launches. It is the world's own truth,
// for simulators that judge a scheduler by it; a scheduler gets to know what the sink tells.
func (c *Cluster) Living(list []Living) []Living {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.hosts {
		for r := h.first; r != nil; r = r.next {
			if !r.actual.state.Traits().Terminal {
				list = append(list, Living{Run: r.id, Host: h.Name})
			}
		}
	}
	return list
}

// HostDown takes a host out of contact. Its runs go on, and nobody hears of them.
func (c *Cluster) HostDown(name string) error { return c.changeHost(name, c.failHost) }

// HostUp brings a host back, with its runs or without.
func (c *Cluster) HostUp(name string, empty bool) error {
	return c.changeHost(name, func(h *host) { c.reviveHost(h, empty) })
}

// RemoveHost takes a host out of the cluster for ever, and its runs with it.
func (c *Cluster) RemoveHost(name string) error { return c.changeHost(name, c.dropHost) }

// AddHosts adds hosts, or replaces what is said of the ones that are there.
func (c *Cluster) AddHosts(hosts ...driver.Host) error {
	c.mu.Lock()
	known := len(c.hosts)
	c.mu.Unlock()
	if known+len(hosts) > MaxHosts {
		return fmt.Errorf("simulated: %d and %d more hosts are more than %d", known, len(hosts), MaxHosts)
	}
	c.change(func() {
		changed := make([]driver.Host, 0, len(hosts))
		for _, h := range hosts {
			if old := c.byName[h.Name]; old != nil {
				old.Host = h
			} else {
				c.addHost(h)
			}
			changed = append(changed, c.byName[h.Name].view())
		}
		c.tell(call{changed: changed})
	})
	return nil
}

// change makes something happen now.
func (c *Cluster) change(happen func()) {
	c.mu.Lock()
	c.look()
	c.elapse(c.now)
	happen()
	served := c.served
	c.mu.Unlock()
	if served != nil {
		served.rouse()
	}
}

func (c *Cluster) changeHost(name string, happen func(*host)) (err error) {
	c.change(func() {
		h := c.byName[name]
		if h == nil {
			err = fmt.Errorf("simulated: there is no host %.80q", name)
			return
		}
		happen(h)
	})
	return err
}

// tell puts a call other than statuses into the outbox. c.mu is held, here and below.
func (c *Cluster) tell(next call) {
	if c.served != nil && !c.cut && !c.greet {
		c.outbox = append(c.outbox, next)
	}
}

func (c *Cluster) cutLink(reason error) {
	if c.cut {
		return
	}
	c.linkEpoch++
	c.outbox = nil // what was under way is lost
	// A driver that waits for its first inventory has nothing to lose yet.
	c.tell(call{lost: reason})
	c.cut = true
}

func (c *Cluster) mendLink() {
	if c.cut {
		c.cut, c.greet = false, true
		c.linkEpoch++
	}
}

func (c *Cluster) scheduleCut() {
	if every := c.cfg.Faults.CutEvery; every > 0 {
		c.cuts++
		c.timers.push(timer{at: c.now + around(draw(c.cfg.Seed, forCutTime, c.cuts), every), kind: linkCut})
	}
}

func (c *Cluster) scheduleHostFailure() {
	if every := c.cfg.Faults.HostFailureEvery; every > 0 {
		c.failures++
		c.timers.push(timer{at: c.now + around(draw(c.cfg.Seed, forHostTime, c.failures), every), kind: hostFails})
	}
}

// failSomeHost takes a host that is up out of contact for a while.
func (c *Cluster) failSomeHost() {
	if c.cfg.Faults.HostFailureEvery == 0 {
		return // it was called off meanwhile
	}
	if n := len(c.hosts); n > 0 {
		first := int(draw(c.cfg.Seed, forHostChoice, c.failures) % uint64(n))
		for i := range n {
			if h := c.hosts[(first+i)%n]; !h.down {
				c.failHost(h)
				c.timers.push(timer{at: c.now + int64(c.cfg.Faults.HostOutage), kind: hostReturns, host: h})
				break
			}
		}
	}
	c.scheduleHostFailure()
}

func (c *Cluster) returnHost(h *host) {
	if !h.removed {
		c.reviveHost(h, happens(draw(c.cfg.Seed, forHostReturn, c.failures), c.cfg.Faults.ReturnEmpty))
	}
}

func (c *Cluster) failHost(h *host) {
	if h.down {
		return
	}
	h.down = true
	c.tell(call{changed: []driver.Host{h.view()}})
	for r := h.first; r != nil; r = r.next {
		c.reportAs(r, stand{state: workload.RunUnreachable, reason: workload.ReasonHostUnreachable, at: c.now})
	}
}

func (c *Cluster) reviveHost(h *host, empty bool) {
	if !h.down {
		return
	}
	h.down = false
	c.tell(call{changed: []driver.Host{h.view()}})
	for r := h.first; r != nil; {
		next := r.next // the run may leave the list
		switch {
		case empty:
			c.conclude(r, stand{state: workload.RunLost, reason: workload.ReasonHostReturnedEmpty})
		case r.actual.state.Traits().Terminal:
			c.settle(r)
		case r.killed:
			r.epoch++
			c.timers.push(timer{at: c.now, kind: runKilled, run: r, epoch: r.epoch})
		default:
			c.report(r)
		}
		r = next
	}
}

func (c *Cluster) dropHost(h *host) {
	delete(c.byName, h.Name)
	c.hosts = slices.DeleteFunc(c.hosts, func(o *host) bool { return o == h })
	h.removed, h.down = true, false
	c.tell(call{removed: []string{h.Name}})
	for r := h.first; r != nil; {
		next := r.next
		c.conclude(r, stand{state: workload.RunLost, reason: workload.ReasonHostLost})
		r = next
	}
}
