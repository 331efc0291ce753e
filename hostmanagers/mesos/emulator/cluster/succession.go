package cluster

import (
	"slices"
	"time"
)

// Succeed replaces the master by one that knows nothing, as when the registry is in memory and its master is killed: subscriptions break,
// offers are void, and calls are refused until the framework subscribes with its id. Agents go on with their tasks, and those that were
// connected register with the new master after a while; until then it does not know them.
func (c *Cluster) Succeed(after time.Duration) {
	c.cfg.MasterID = c.uuid()
	c.nextOffer, c.nextFramework, c.nextAgent = 0, 0, 0
	c.inverse = map[string]*inverseOffer{}
	for _, f := range c.order {
		c.voidOffers(f)
		c.stop(f.heartbeat)
		c.stop(f.removal)
		if f.stream != "" {
			c.emit(Close{Stream: f.stream, Broken: true})
			delete(c.streams, f.stream)
			f.stream = ""
		}
		f.strange, f.operations = true, nil
		f.filters = map[string]map[*agent][]filter{}
		f.removal = c.after(time.Duration(f.info.GetFailoverTimeout()*float64(time.Second)), func() { c.remove(f) })
	}
	for _, a := range c.roster {
		c.estrange(a, after)
	}
}

// estrange makes an agent unknown to the new master until it registers.
func (c *Cluster) estrange(a *agent, after time.Duration) {
	c.stop(a.pings)
	if a.registered {
		c.total.add(a.total, -1)
	}
	a.registered, a.strange, a.free, a.draining = false, true, nil, false
	for _, t := range slices.Clone(a.tasks) {
		t.framework.unreachable[t.id] = t
		c.forget(t)
	}
	for _, u := range a.streams {
		c.stop(u.retry)
	}
	if !a.connected {
		return
	}
	a.connected = false
	c.after(after, func() {
		if a.strange {
			c.ReturnAgent(a.id)
		}
	})
}
