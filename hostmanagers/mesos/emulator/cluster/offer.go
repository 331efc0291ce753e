package cluster

import (
	"cmp"
	"slices"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// The least that is worth an offer (the flag --min_allocatable_resources).
const (
	minCPUMilli = 10
	minMemMilli = 32000
)

// defaultRefusal is the filter of who names none.
const defaultRefusal = 5 * time.Second

// maxRefusal is what longer filters are cut to: 365 days.
const maxRefusal = 365 * 24 * time.Hour

// hearing is how long after a call the allocator begins to count a filter's time.
const hearing = 5 * time.Millisecond

// offer is what a framework may take of an agent in one role.
type offer struct {
	id        string
	framework *framework
	agent     *agent
	role      string
	resources bundle
	expiry    *timer
}

// filter holds back what a framework refused: resources of an agent, in a role.
type filter struct {
	resources bundle
	until     time.Time
}

// tick is a run of the allocator by the clock.
func (c *Cluster) tick() {
	c.allocate(c.roster)
	c.inverseOffers()
	c.after(c.cfg.AllocationInterval+c.cfg.AllocationTime, c.tick)
}

// candidate is a framework in one of its roles.
type candidate struct {
	framework *framework
	role      string
}

// allocate offers what is free on some agents: to the role that has the least, in it to the framework that has the least, all of it.
func (c *Cluster) allocate(agents []*agent) {
	made := map[*framework][]*offer{}
	for _, a := range c.shuffled(agents) {
		for worthwhile(a.free) {
			o := c.offerOf(a)
			if o == nil {
				break
			}
			made[o.framework] = append(made[o.framework], o)
		}
	}
	for _, f := range c.order {
		if offers := made[f]; len(offers) > 0 {
			c.announce(f, offers)
		}
	}
}

// shuffled returns the agents that take part, in the order in which the allocator goes through them.
func (c *Cluster) shuffled(agents []*agent) []*agent {
	var able []*agent
	for _, a := range agents {
		if a.connected && !a.gone && !a.draining && worthwhile(a.free) {
			able = append(able, a)
		}
	}
	if c.cfg.Order == nil || len(able) < 2 {
		return able
	}
	names := make([]string, len(able))
	for i, a := range able {
		names[i] = a.info.Hostname
	}
	c.cfg.Order(names)
	slices.SortStableFunc(able, func(x, y *agent) int {
		return cmp.Compare(slices.Index(names, x.info.Hostname), slices.Index(names, y.info.Hostname))
	})
	return able
}

func worthwhile(b bundle) bool {
	return b.milli("cpus") >= minCPUMilli || b.milli("mem") >= minMemMilli
}

// offerOf makes the next offer of an agent, or returns nil: nobody may have what is free.
func (c *Cluster) offerOf(a *agent) *offer {
	for _, who := range c.candidates() {
		open := a.free.only(func(p *part) bool {
			return p.open(who.role) && (who.framework.revocable || p.like.Revocable == nil)
		}).ordered()
		if !worthwhile(open) || c.filtered(who, a, open) {
			continue
		}
		a.free = a.free.minus(open)
		who.framework.holding(who.role).add(open, 1)
		o := &offer{id: c.offerID(), framework: who.framework, agent: a, role: who.role, resources: open}
		c.offers[o.id] = o
		a.offers = append(a.offers, o)
		if c.cfg.OfferTimeout > 0 {
			o.expiry = c.after(c.cfg.OfferTimeout, func() { c.rescind(o) })
		}
		return o
	}
	return nil
}

// candidates returns who wants offers, those with the least first.
func (c *Cluster) candidates() []candidate {
	byRole := map[string]share{}
	var able []candidate
	for _, f := range c.order {
		for _, role := range f.roles {
			if byRole[role] == nil {
				byRole[role] = share{}
			}
			for name, held := range f.held[role] {
				byRole[role][name] += held
			}
			if f.stream != "" && !f.suppressed[role] {
				able = append(able, candidate{f, role})
			}
		}
	}
	if len(able) < 2 {
		return able
	}
	slices.SortStableFunc(able, func(x, y candidate) int {
		return cmp.Or(
			cmp.Compare(byRole[x.role].dominant(c.total), byRole[y.role].dominant(c.total)),
			cmp.Compare(x.role, y.role),
			cmp.Compare(x.framework.held[x.role].dominant(c.total), y.framework.held[y.role].dominant(c.total)),
			cmp.Compare(x.framework.id, y.framework.id),
		)
	})
	return able
}

// filtered reports whether a filter holds back resources, and forgets filters that ran out.
func (c *Cluster) filtered(who candidate, a *agent, free bundle) bool {
	held := who.framework.filters[who.role]
	if len(held[a]) == 0 {
		return false
	}
	held[a] = slices.DeleteFunc(held[a], func(f filter) bool { return !f.until.After(c.now) })
	if len(held[a]) == 0 {
		delete(held, a)
	}
	return slices.ContainsFunc(held[a], func(f filter) bool { return f.resources.has(free) })
}

// forgetFilters ends the filters on an agent that the allocator no longer has.
func (c *Cluster) forgetFilters(a *agent) {
	for _, f := range c.order {
		for _, held := range f.filters {
			delete(held, a)
		}
	}
}

func (c *Cluster) announce(f *framework, offers []*offer) {
	list := make([]mesos.Offer, len(offers))
	for i, o := range offers {
		list[i] = c.describe(o)
	}
	c.deliver(f, &scheduler.Event{Type: scheduler.Event_OFFERS, Offers: &scheduler.Event_Offers{Offers: list}})
}

func (c *Cluster) describe(o *offer) mesos.Offer {
	a, f := o.agent, o.framework
	d := mesos.Offer{
		ID: mesos.OfferID{Value: o.id}, FrameworkID: mesos.FrameworkID{Value: f.id}, AgentID: mesos.AgentID{Value: a.id},
		Hostname: a.info.Hostname, URL: a.url(), Domain: a.info.Domain, Resources: o.resources.write(f, o.role), Attributes: a.info.Attributes,
		Unavailability: c.unavailability(a),
	}
	for _, e := range f.executors {
		if e.agent == a {
			d.ExecutorIDs = append(d.ExecutorIDs, mesos.ExecutorID{Value: e.id})
		}
	}
	if f.multiRole {
		d.AllocationInfo = &mesos.Resource_AllocationInfo{Role: pointer(o.role)}
	}
	return d
}

// take removes an offer; what becomes of its resources is the caller's.
func (c *Cluster) take(o *offer) {
	delete(c.offers, o.id)
	o.agent.offers = slices.DeleteFunc(o.agent.offers, func(other *offer) bool { return other == o })
	c.stop(o.expiry)
}

// release gives resources back to the allocator.
func (c *Cluster) release(f *framework, role string, a *agent, resources bundle) {
	f.holding(role).add(resources, -1)
	if a.registered {
		a.free = a.free.plus(resources)
	}
}

// refuse gives resources of an offer back and holds them back from who refused them.
func (c *Cluster) refuse(f *framework, role string, a *agent, resources bundle, filters *mesos.Filters) {
	if len(resources) == 0 {
		return
	}
	c.release(f, role, a, resources)
	if patience := refusal(filters); patience > 0 {
		if f.filters[role] == nil {
			f.filters[role] = map[*agent][]filter{}
		}
		f.filters[role][a] = append(f.filters[role][a], filter{resources: resources, until: c.now.Add(patience + hearing)})
	}
}

func refusal(filters *mesos.Filters) time.Duration {
	if filters == nil || filters.RefuseSeconds == nil {
		return defaultRefusal
	}
	asked := *filters.RefuseSeconds
	switch {
	case asked != asked || asked < 0:
		return defaultRefusal
	case asked > maxRefusal.Seconds():
		return maxRefusal
	default:
		return time.Duration(asked * float64(time.Second))
	}
}

// rescind takes an offer back and says so.
func (c *Cluster) rescind(o *offer) {
	if c.offers[o.id] != o {
		return
	}
	c.take(o)
	c.release(o.framework, o.role, o.agent, o.resources)
	c.deliver(o.framework, &scheduler.Event{Type: scheduler.Event_RESCIND, Rescind: &scheduler.Event_Rescind{OfferID: mesos.OfferID{Value: o.id}}})
}

// rescindAgent takes back all offers of an agent.
func (c *Cluster) rescindAgent(a *agent) {
	for _, o := range slices.Clone(a.offers) {
		c.rescind(o)
	}
}

// offersOf returns a framework's offers, the oldest first.
func (c *Cluster) offersOf(f *framework) []*offer {
	var mine []*offer
	for _, a := range c.roster {
		for _, o := range a.offers {
			if o.framework == f {
				mine = append(mine, o)
			}
		}
	}
	return mine
}

// voidOffers takes a framework's offers back without a word.
func (c *Cluster) voidOffers(f *framework) {
	for _, o := range c.offersOf(f) {
		c.take(o)
		c.release(f, o.role, o.agent, o.resources)
	}
}

// decline is a DECLINE call. Unknown offers are ignored.
func (c *Cluster) decline(f *framework, ids []mesos.OfferID, filters *mesos.Filters) {
	for _, id := range ids {
		if o := c.offers[id.Value]; o != nil && o.framework == f {
			c.take(o)
			c.refuse(f, o.role, o.agent, o.resources, filters)
		}
	}
}

// suppress is a SUPPRESS call; no roles: all of them. Roles that are not the framework's are ignored, with the whole call.
func (c *Cluster) suppress(f *framework, roles []string) {
	for _, role := range named(f, roles) {
		f.suppressed[role] = true
	}
}

// revive is a REVIVE call: filters and suppression of the roles end, and offers come at once.
func (c *Cluster) revive(f *framework, roles []string) {
	revived := named(f, roles)
	if len(revived) == 0 {
		return
	}
	for _, role := range revived {
		delete(f.suppressed, role)
		delete(f.filters, role)
	}
	c.allocate(c.roster)
}

// named returns the roles that a call means: none named is all, and a foreign one makes the call void.
func named(f *framework, roles []string) []string {
	if len(roles) == 0 {
		return f.roles
	}
	for _, role := range roles {
		if !slices.Contains(f.roles, role) {
			return nil
		}
	}
	return roles
}
