package shard

import (
	"slices"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// pledge is a lease on room that others have to leave first.
type pledge struct {
	tenant  *tenant
	victims []workload.RunID // that were not dying when it was made
	waits   bool             // they end by themselves; the room may come free by others as well
	told    bool             // the core knows that its room is free
}

// Why a run is dying.
const (
	dyingForPledge uint8 = 1 << iota // it is the victim of a pledge, and the core is expected to end it
	dyingByKill                      // the core has sent its kill
)

// markKilled notes that runs are on their way out, so that nobody is ended for room that comes free anyway.
func (m *Machine) markKilled(kills []driver.Kill) {
	for i := range kills {
		if t := m.runs.find(kills[i].Run); t != nil && !t.ended() {
			m.dying[kills[i].Run] |= dyingByKill
			m.search.Moved(t.row())
		}
	}
}

// preempt answers one Preempt.
func (m *Machine) preempt(p Preempt) {
	if slices.ContainsFunc(p.Requests, func(r preemption.Request) bool { return !r.DryRun && r.Class != nil && m.inCluster(r.Class) }) {
		m.want()
	}
	if !m.ready() {
		m.refusePreempt(p)
		return
	}
	results := make([]PledgeResult, len(p.Requests))
	asked := make([]preemption.Request, len(p.Requests))
	left := min(MaxBatch, MaxPledges-len(m.pledges), maxHeld-len(m.held))
	for i := range p.Requests {
		results[i].Refused = max(p.Requests[i].Count, 0)
		if r := &p.Requests[i]; r.Class != nil && r.Count > 0 && (r.DryRun || r.Count <= left) && m.inCluster(r.Class) {
			asked[i] = *r
			if !r.DryRun {
				left -= r.Count
			}
		}
	}
	found := m.search.Serve(preemption.Board{Table: m.table, Tenants: residents{m}, Now: p.Now}, asked)
	for i := range found {
		if asked[i].Class == nil {
			continue
		}
		results[i].Refused = found[i].Refused
		for n := range found[i].Assignments {
			results[i].Pledges = append(results[i].Pledges, m.pledge(&asked[i], &found[i].Assignments[n]))
		}
	}
	m.out.reply(Pledged{Batch: p.Batch, Results: results})
}

func (m *Machine) refusePreempt(p Preempt) {
	results := make([]PledgeResult, len(p.Requests))
	for i := range results {
		results[i].Refused = max(p.Requests[i].Count, 0)
	}
	m.out.reply(Pledged{Batch: p.Batch, Results: results})
}

func (m *Machine) inCluster(c *placement.Class) bool {
	return len(c.Placement.Clusters) == 0 || slices.Contains(c.Placement.Clusters, m.config.Cluster)
}

// pledge makes a lease of what the search has taken in the table.
func (m *Machine) pledge(r *preemption.Request, a *preemption.Assignment) Pledge {
	out := Pledge{Assignment: Assignment{Host: m.table.ID(a.Row), Devices: a.Devices, Ports: slices.Clone(a.Ports)}, Victims: a.Victims}
	if r.DryRun {
		return out
	}
	h := m.hosts[out.Host]
	out.Lease = m.hold(h, r.Class, &a.Assignment)
	t := m.leases[out.Lease]
	m.held.remove(t)
	t.moment = m.now + int64(PledgeTTL)
	m.held.push(t)
	p := &pledge{tenant: t, waits: r.Wait, victims: slices.Clone(a.Victims)}
	if !r.Wait {
		for _, id := range p.victims {
			m.dying[id] |= dyingForPledge
			m.movedRun(id)
		}
	}
	m.pledges[out.Lease] = p
	h.pledges = append(h.pledges, p)
	m.ripen(h)
	return out
}

// unpledge takes a pledge out of the books; its room stays taken. Victims who were not killed by now are as alive as ever.
func (m *Machine) unpledge(t *tenant) {
	p := m.pledges[t.lease]
	if p == nil {
		return
	}
	delete(m.pledges, t.lease)
	if h := t.host; h != nil {
		h.pledges = slices.DeleteFunc(h.pledges, func(o *pledge) bool { return o == p })
	}
	for _, id := range p.victims {
		if p.waits {
			break
		}
		if m.dying[id] &^= dyingForPledge; m.dying[id] == 0 {
			delete(m.dying, id)
			m.movedRun(id)
		}
	}
}

// ripen has the pledges of a host looked at when the message has been handled.
func (m *Machine) ripen(h *machineHost) {
	if !h.ripe {
		h.ripe = true
		m.ripe = append(m.ripe, h)
	}
}

// tellRipe tells the core of pledges whose room has come free.
func (m *Machine) tellRipe() {
	if len(m.ripe) == 0 {
		return
	}
	var ready PledgeReady
	for _, h := range m.ripe {
		h.ripe = false
		for _, p := range h.pledges {
			if !p.told && m.cleared(p.tenant) {
				p.told = true
				ready.Leases = append(ready.Leases, p.tenant.lease)
			}
		}
	}
	clear(m.ripe)
	m.ripe = m.ripe[:0]
	if len(ready.Leases) > 0 {
		slices.Sort(ready.Leases)
		m.out.reply(ready)
	}
}

// cleared reports whether the room of a lease is free for it. Of one that is no pledge it always was. Other pledges on the host do not count:
// nobody is there for them yet.
func (m *Machine) cleared(t *tenant) bool {
	p := m.pledges[t.lease]
	if p == nil {
		return true
	}
	h := t.host
	if h == nil || !h.known() {
		return false
	}
	if !p.waits && slices.ContainsFunc(p.victims, func(id workload.RunID) bool { return m.livesOn(h, id) }) {
		return false
	}
	var others []host.Occupant
	for _, o := range h.pledges {
		if o != p && o.tenant.booked {
			others = append(others, o.tenant.class.Occupant(o.tenant.devices, o.tenant.ports()))
		}
	}
	own := t.class.Occupant(t.devices, t.ports())
	free := false
	// The pledge itself is left out as well: what then fits where it stood is judged as for anybody.
	err := m.table.Without(h.row, append(others, own), func() { free = m.standsOn(t, h.row) })
	return err == nil && free
}

func (m *Machine) livesOn(h *machineHost, id workload.RunID) bool {
	t := m.runs.find(id)
	return t != nil && !t.ended() && t.host == h
}

// standsOn reports whether the room of a tenant that is not booked is free on a row: sums, its devices, its ports, and that nobody is in the
// way who wants a host for himself.
func (m *Machine) standsOn(t *tenant, row host.Row) bool {
	free := m.table.Free(row)
	for kind, need := range t.class.Needs {
		if need > 0 && free[kind] < need && resource.Kind(kind) != resource.GPU {
			return false
		}
	}
	lanes, _ := m.table.Lanes(row)
	for device, milli := range lanes {
		if t.devices&(1<<device) != 0 && milli < t.class.DeviceMilli() {
			return false
		}
	}
	if t.class.Placement.Exclusive {
		return m.table.OnlyJob(row, t.class.Job) && m.table.PortsFit(row, t.ports())
	}
	return !m.table.Exclusive().Has(row) && m.table.PortsFit(row, t.ports())
}

// movedRun has the search look anew at the host of a run.
func (m *Machine) movedRun(id workload.RunID) {
	if t := m.runs.find(id); t != nil {
		m.search.Moved(t.row())
	}
}

// row is where a tenant stands in the table, if it does.
func (t *tenant) row() host.Row {
	if t.host == nil {
		return host.NoRow
	}
	return t.host.row
}

// residents shows the machine's tenants to the search.
type residents struct{ m *Machine }

// Tenants lists the runs that the core knows. Others' leases are no runs, and what the core does not know it cannot end.
func (r residents) Tenants(row host.Row, into []preemption.Run) []preemption.Run {
	h := r.m.hosts[r.m.table.ID(row)]
	if h == nil {
		return into
	}
	for _, t := range h.tenants {
		if t.lease == 0 && t.booked && t.bound {
			into = append(into, preemption.Run{
				ID: t.run, Class: t.class, Devices: t.devices, Ports: t.ports(), Started: t.moment, Dying: r.m.dying[t.run] != 0,
			})
		}
	}
	return into
}
