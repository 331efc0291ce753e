package framework

import (
	"cmp"
	"maps"
	"slices"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/workload"
)

// offer is a part of one agent that the framework holds.
type offer struct {
	id    string
	agent *agent
	role  string
	parts bundle
}

// takeOffers takes in what the master offers.
func (m *Machine) takeOffers(offers []mesos.Offer) {
	m.gather.offered = true
	var unknown []mesos.OfferID
	touched := make([]*agent, 0, len(offers))
	for i := range offers {
		o := &offers[i]
		a := m.agent(o.AgentID.Value)
		if a == nil {
			unknown = append(unknown, o.ID)
			continue
		}
		m.takeOffer(a, o)
		touched = append(touched, a)
	}
	m.decline(unknown, m.cfg.DeclineFor)
	for _, a := range touched {
		m.flush(a)
	}
}

func (m *Machine) takeOffer(a *agent, o *mesos.Offer) {
	m.describe(a, &facts{o.Hostname, o.GetURL().GetAddress().Port, o.Attributes, o.Domain})
	m.found(a)
	if a.inactive { // nothing is offered of an agent that is drained
		a.inactive = false
		m.touch(a)
	}
	m.watchWindow(a, windowOf(o.Unavailability))
	taken := &offer{id: o.ID.Value, agent: a, role: o.GetAllocationInfo().GetRole(), parts: m.flavors.parse(o.Resources)}
	if taken.role == "" {
		taken.role = m.cfg.Roles[0]
	}
	if m.offers[taken.id] != nil {
		return // said twice
	}
	m.offers[taken.id] = taken
	a.offers = append(a.offers, taken)
	a.loose, a.looseUntil, a.filtered = nil, 0, 0
	m.touch(a)
	m.blur(a)
	m.returned[a] = struct{}{} // until somebody wants it
	if len(a.offers) > maxFragments {
		m.giveBack(a.offers[:len(a.offers)-1], 0)
	}
}

// rescind takes an offer back. What was in it may be offered again soon, as after a maintenance schedule was posted, or not.
func (m *Machine) rescind(id string) {
	o := m.offers[id]
	if o == nil {
		return
	}
	m.dropOffer(o)
	m.loosen(o.agent, o.parts)
}

// dropOffer forgets an offer.
func (m *Machine) dropOffer(o *offer) {
	delete(m.offers, o.id)
	o.agent.offers = slices.DeleteFunc(o.agent.offers, func(other *offer) bool { return other == o })
	m.touch(o.agent)
	m.blur(o.agent)
}

// loosen counts resources as the agent's though nobody holds them for us: the master is expected to offer them.
func (m *Machine) loosen(a *agent, parts bundle) {
	if a.lost || len(parts) == 0 {
		return
	}
	a.loose = a.loose.plus(parts)
	if !m.suppressed && m.subscribed {
		m.expire(a, m.now+int64(m.cfg.LooseFor))
	}
}

// expire says when loose resources that were not offered are others'.
func (m *Machine) expire(a *agent, at int64) {
	if a.filtered > m.now {
		at = max(at, a.filtered+int64(m.cfg.LooseFor))
	}
	a.looseUntil = at
	if m.sweepAt == 0 {
		m.sweepAt = m.now + int64(m.cfg.LooseFor)/2 + 1
	}
}

// sweep ends the time of loose resources. Little that a master does not offer stays: it will be offered with more.
func (m *Machine) sweep() {
	m.sweepAt = 0
	more := false
	for _, a := range m.agents {
		if a.looseUntil == 0 {
			continue
		}
		if a.looseUntil > m.now {
			more = true
			continue
		}
		a.looseUntil = 0
		if a.loose.offerable() {
			a.loose = nil
			m.touch(a)
		}
	}
	if more {
		m.sweepAt = m.now + int64(m.cfg.LooseFor)/2 + 1
	}
}

// giveBack declines offers of agents. after is the filter; 0: they come again with the next round of the allocator.
func (m *Machine) giveBack(offers []*offer, after time.Duration) {
	ids := make([]mesos.OfferID, 0, len(offers))
	for _, o := range slices.Clone(offers) {
		ids = append(ids, mesos.OfferID{Value: o.id})
		m.dropOffer(o)
		if after > 0 {
			o.agent.filtered = max(o.agent.filtered, m.now+int64(after))
		}
		m.loosen(o.agent, o.parts)
	}
	m.decline(ids, after)
}

func (m *Machine) decline(ids []mesos.OfferID, after time.Duration) {
	for batch := range slices.Chunk(ids, maxOffers) {
		m.call(&scheduler.Call{Type: scheduler.Call_DECLINE, Decline: &scheduler.Call_Decline{OfferIDs: batch, Filters: refuse(after)}})
	}
}

func refuse(after time.Duration) *mesos.Filters {
	seconds := after.Seconds()
	return &mesos.Filters{RefuseSeconds: &seconds}
}

// wanted reports whether offers are wanted at all.
func (m *Machine) wanted() bool { return m.demand || m.waiting > 0 || m.quietAt > m.now }

// Demand says whether work waits.
func (m *Machine) Demand(now int64, waiting bool, out *Output) {
	m.begin(now, out)
	m.demand = waiting
	if !waiting {
		for _, a := range m.agents {
			if len(a.offers) > 0 {
				m.returned[a] = struct{}{}
			}
		}
	}
	m.end()
}

// pace asks for offers or ends them, as they are wanted, and gives back those that nobody wants.
func (m *Machine) pace() {
	m.giveBackUnwanted()
	switch {
	case m.wanted() && (m.suppressed || m.revive):
		if m.revived == 0 || m.now >= m.revived+int64(m.cfg.ReviveEvery) {
			m.reviveOffers()
		}
	case !m.wanted() && !m.suppressed:
		m.suppressed = true
		m.call(&scheduler.Call{Type: scheduler.Call_SUPPRESS, Suppress: &scheduler.Call_Suppress{Roles: m.cfg.Roles}})
		for _, a := range m.agents {
			a.looseUntil = 0 // nothing will be offered that could tell
		}
		m.sweepAt = 0
	}
}

// giveBackUnwanted declines the offers that came and for which there is neither demand nor a launch.
func (m *Machine) giveBackUnwanted() {
	if m.demand {
		clear(m.returned) // until there is none
		return
	}
	var unwanted []*offer
	for a := range m.returned {
		if len(a.waiting) == 0 {
			unwanted = append(unwanted, a.offers...)
			delete(m.returned, a)
		}
	}
	slices.SortFunc(unwanted, func(x, y *offer) int { return cmp.Compare(x.id, y.id) })
	m.giveBack(unwanted, m.cfg.DeclineFor)
}

// reviveOffers ends suppression and all filters. What is not offered soon then is others'.
func (m *Machine) reviveOffers() {
	m.suppressed, m.revive, m.revived = false, false, m.now
	m.call(&scheduler.Call{Type: scheduler.Call_REVIVE, Revive: &scheduler.Call_Revive{Roles: m.cfg.Roles}})
	for _, a := range m.agents {
		a.filtered = 0
		if len(a.loose) > 0 {
			m.expire(a, m.now+int64(m.cfg.LooseFor))
		}
	}
}

// probe looks at the hosts: agents may have come or gone unheard, and while offers are suppressed others may have taken or left room.
func (m *Machine) probe() {
	m.probeAt = m.now + int64(m.cfg.ProbeEvery)
	m.out.Census = AskAgents
	if m.censusBad && !m.wanted() {
		m.quietAt = m.now + int64(m.cfg.ProbeFor) // lets offers come; pace revives, and suppresses again
	}
}

// Agent is what the operator API says of an agent.
type Agent struct {
	ID         string
	Hostname   string
	Port       int32
	Attributes []mesos.Attribute
	Domain     *mesos.DomainInfo
	// Total is all that it has, Allocated what frameworks use of it.
	Total, Allocated []mesos.Resource
	// Inactive says that an operator deactivated or drains it.
	Inactive bool
}

// Task is what the operator API says of a task of the framework.
type Task struct {
	ID        string
	Resources []mesos.Resource
}

// Census is what the operator API says of a cluster.
type Census struct {
	Agents []Agent
	// Tasks are the framework's, if they were asked for: what those of an earlier process hold.
	Tasks []Task
	// Err says that it cannot be asked, or that what it says is not to be used.
	Err error
}

// Learn takes in a census. Where offers or tasks say more, they count: it may be older than they are.
func (m *Machine) Learn(now int64, census *Census, out *Output) {
	m.begin(now, out)
	m.censusBad = census.Err != nil
	m.gather.counted = true
	if census.Err == nil {
		m.gather.learned = true
		m.count(census.Agents)
		m.size(census.Tasks)
	}
	if m.subscribed && !m.told {
		m.tryInventory()
	}
	m.end()
}

// size notes what tasks of an earlier process hold. Those that the master has not spoken of yet are looked up when it does.
func (m *Machine) size(tasks []Task) {
	for i := range tasks {
		id, err := workload.ParseRunID(tasks[i].ID)
		if err != nil {
			continue
		}
		if m.sizes == nil {
			m.sizes = map[workload.RunID]bundle{}
		}
		m.sizes[id] = m.flavors.parse(tasks[i].Resources)
	}
	for _, r := range m.runs {
		m.weigh(r)
	}
}

// weigh gives a run of an earlier process its size, if that is known.
func (m *Machine) weigh(r *run) {
	size, known := m.sizes[r.id]
	if !known {
		return
	}
	delete(m.sizes, r.id)
	if r.phase == sent && r.taken == nil {
		r.taken = size
		r.agent.used = r.agent.used.plus(size)
		m.touch(r.agent)
	}
}

func (m *Machine) count(agents []Agent) {
	listed := make(map[string]bool, len(agents))
	for i := range agents {
		fact := &agents[i]
		listed[fact.ID] = true
		a := m.agent(fact.ID)
		if a == nil {
			continue
		}
		known, total := a.name != "", m.flavors.parse(fact.Total)
		a.total = total.scalars()
		m.describe(a, &facts{fact.Hostname, fact.Port, fact.Attributes, fact.Domain})
		m.found(a)
		if a.inactive != fact.Inactive {
			a.inactive = fact.Inactive
			m.touch(a)
		}
		if known && (len(a.offers) > 0 || len(a.waiting) > 0 || (m.told && !m.suppressed)) {
			continue
		}
		a.loose = total.minus(m.flavors.parse(fact.Allocated))
		for _, o := range a.offers {
			a.loose = a.loose.minus(o.parts)
		}
		m.touch(a)
		if m.told && !m.suppressed {
			m.expire(a, m.now+int64(m.cfg.LooseFor))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.agents)) { // those that the master does not have any more
		switch a := m.agents[id]; {
		case listed[id] || len(a.offers) > 0:
		case a.name != "" && !a.lost:
			m.agentFailed(id)
		case a.name == "" && len(a.runs) == 0: // known from a task only, which is over
			m.forgetAgent(a)
		}
	}
}
