package shard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// machineHost is one host with who is on it.
type machineHost struct {
	id      workload.HostID
	record  driver.Host // as the driver gave it
	row     host.Row    // host.NoRow: the table refused it, see fault
	fault   string
	able    bool             // may take new runs, as the table has it
	unnamed map[string]int64 // capacity that no name of the core covers
	listed  uint32           // the last inventory that had it
	touched bool             // in Machine.touched

	tenants []*tenant
	pledges []*pledge
	ripe    bool // in Machine.ripe
	booked  int  // tenants that the table holds
	unsized int  // the others: their size is not known
}

func (h *machineHost) known() bool { return h.row != host.NoRow }

// mayTake reports whether the host is in a state to take new runs; a draining mark is another matter.
func (h *machineHost) mayTake() bool { return h.known() && h.record.Ready && h.unsized == 0 }

// touch notes that a host has to be brought up to date in the table and reported at the end of the message.
func (m *Machine) touch(h *machineHost) {
	if !h.touched {
		h.touched = true
		m.touched = append(m.touched, h)
	}
}

// takeInventory replaces what is known of the cluster by its whole truth.
func (m *Machine) takeInventory(inventory driver.Inventory) {
	m.inventory++
	m.connected, m.elsewhere = true, make(map[string]bool, len(inventory.Elsewhere))
	for _, name := range inventory.Elsewhere {
		m.elsewhere[name] = true
	}
	m.putHosts(inventory.Hosts)
	for _, h := range m.sortedHosts() {
		if h.listed != m.inventory {
			m.unlist(h)
		}
	}
	for i := range inventory.Runs {
		if s := &inventory.Runs[i]; reportable(s) {
			m.hear(s)
		} else {
			m.stats.RefusedStatuses++
		}
	}
	if m.replayed {
		m.merge()
	} else {
		m.syncTouched()
	}
}

// updateHosts takes in single hosts. The runs on one that went are lost: nobody else will say so.
func (m *Machine) updateHosts(u HostsUpdated) {
	if !m.connected {
		m.stats.IgnoredMessages++ // the inventory that comes next has it all
		return
	}
	m.putHosts(u.Changed)
	var removed []*machineHost
	for _, name := range u.Removed {
		h := m.byName[name]
		if h == nil {
			m.stats.IgnoredMessages++
			continue
		}
		m.loseRuns(h)
		m.unlist(h)
		removed = append(removed, h)
	}
	m.reportHosts(removed...)
}

// moveHosts gives up hosts that another shard has now. Nothing is said of them: the core hears of them from that shard.
func (m *Machine) moveHosts(names []string) {
	if !m.connected {
		m.stats.IgnoredMessages++ // the inventory that comes next has it all
		return
	}
	for _, name := range names {
		h := m.byName[name]
		if h == nil {
			m.stats.IgnoredMessages++
			continue
		}
		m.elsewhere[name] = true
		m.dropLeasesOn(h)
		for _, t := range slices.Clone(h.tenants) {
			m.forget(t)
		}
		for _, w := range m.watches {
			delete(w.matches, h.id)
		}
		m.unlist(h)
	}
}

// elsewhereIDs are the hosts that other shards have.
func (m *Machine) elsewhereIDs() map[workload.HostID]bool {
	ids := make(map[workload.HostID]bool, len(m.elsewhere))
	for name := range m.elsewhere {
		ids[HostID(m.config.Cluster, name)] = true
	}
	return ids
}

// putHosts adds or replaces hosts, in the order of their names, so that the rows do not depend on the order in which a driver lists them.
func (m *Machine) putHosts(records []driver.Host) {
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b driver.Host) int { return strings.Compare(a.Name, b.Name) })
	var added []workload.HostID
	for i := range records {
		if i+1 < len(records) && records[i].Name == records[i+1].Name {
			m.stats.RefusedHosts++ // the later one counts
			continue
		}
		if id, isNew := m.putHost(&records[i]); isNew {
			added = append(added, id)
		}
	}
	if len(added) > 0 && m.homeless > 0 {
		m.rehome()
	}
}

// maxHostName is the contract of driver.Host.
const maxHostName = 253

func (m *Machine) putHost(record *driver.Host) (id workload.HostID, isNew bool) {
	h, shown, details := m.byName[record.Name], bound(record.ID, driver.MaxHostID), boundDetails(record.Details)
	switch {
	case h != nil:
		h.listed = m.inventory
		if sameHost(&h.record, record) {
			if h.record.ID != shown || !maps.Equal(h.record.Details, details) { // the table knows neither
				h.record.ID, h.record.Details = shown, details
				m.touch(h)
			}
			return h.id, false
		}
	case record.Name == "" || len(record.Name) > maxHostName || len(m.hosts) >= MaxRows:
		m.stats.RefusedHosts++
		return workload.HostID{}, false
	default:
		h = &machineHost{id: HostID(m.config.Cluster, record.Name), row: host.NoRow, listed: m.inventory}
		m.hosts[h.id], m.byName[record.Name] = h, h
		delete(m.elsewhere, record.Name)
		isNew = true
	}
	h.record = *record
	h.record.ID, h.record.Details = shown, details
	m.derive(h)
	m.touch(h)
	return h.id, isNew
}

// derive brings the table's row of a host in line with its record.
func (m *Machine) derive(h *machineHost) {
	r := &h.record
	h.able = h.record.Ready && h.unsized == 0
	row := host.Host{
		ID: h.id, Name: r.Name, Attributes: r.Attributes, Pool: r.Pool, Capacity: m.capacity(h), Foreign: r.Foreign, Ready: h.able,
	}
	for _, d := range r.Devices {
		row.Devices = append(row.Devices, host.Device{Model: d.Model, Milli: d.Milli})
	}
	for _, p := range r.Ports {
		row.Ports = append(row.Ports, host.PortRange{First: p.First, Last: p.Last})
	}
	at, err := m.table.Upsert(row)
	if err != nil {
		m.fault(h, err)
		return
	}
	h.row, h.fault = at, ""
	if len(h.pledges) > 0 {
		m.ripen(h)
	}
	_, marked := m.marks[h.id]
	if m.table.Draining(at) != marked {
		m.table.SetDraining(at, marked)
	}
	for _, t := range h.tenants { // those that an earlier form of the host had no place for
		if !t.booked && m.take(t) {
			h.unsized--
			m.touch(h)
		}
	}
}

// fault takes a host that the table refuses out of it. It stays known, so that the core can show what is wrong with it.
func (m *Machine) fault(h *machineHost, err error) {
	h.fault = err.Error()
	if !h.known() {
		return
	}
	m.dropLeasesOn(h)
	m.leaveTable(h)
}

// leaveTable takes a host out of the table; its tenants stay on it unbooked.
func (m *Machine) leaveTable(h *machineHost) {
	m.table.Remove(h.row)
	h.row = host.NoRow
	for _, t := range h.tenants {
		t.booked = false
	}
	h.booked, h.unsized = 0, len(h.tenants)
}

// rebuild enters a host and its tenants in the table anew.
func (m *Machine) rebuild(h *machineHost) {
	m.leaveTable(h)
	m.derive(h)
	m.sync(h)
}

// sync lets the table know whether a host may take runs. Each round books runs that were unsized, if any, so it ends.
func (m *Machine) sync(h *machineHost) {
	for h.known() && h.able != (h.record.Ready && h.unsized == 0) {
		m.derive(h)
	}
}

func (m *Machine) dropLeasesOn(h *machineHost) {
	for i := len(h.tenants) - 1; i >= 0; i-- { // backwards: dropping moves the last one, already seen, into the gap
		if h.tenants[i].lease != 0 {
			m.dropLease(h.tenants[i])
		}
	}
}

// loseRuns ends the runs on a host that left its cluster. A run that was sent and not heard of may still be on its way, and the host may be
// back before it arrives: what becomes of that one is for the cluster to say.
func (m *Machine) loseRuns(h *machineHost) {
	runs := slices.DeleteFunc(slices.Clone(h.tenants), func(t *tenant) bool {
		return t.lease != 0 || (t.launched != 0 && t.heard.state == workload.RunNone)
	})
	slices.SortFunc(runs, compareTenants)
	for _, t := range runs {
		lost := driver.Status{
			Run: t.run, State: workload.RunLost, Reason: workload.ReasonHostLost, Host: h.record.Name,
			Message: "its host left the cluster",
		}
		if m.replayed {
			m.report(t.bound, &lost)
		}
		m.forget(t)
	}
}

// unlist forgets a host. Runs that are still on it become homeless: what they are is for the merge to say.
func (m *Machine) unlist(h *machineHost) {
	m.dropLeasesOn(h)
	for _, t := range h.tenants {
		t.host, t.booked = nil, false
		m.homeless++
	}
	h.tenants, h.booked, h.unsized = nil, 0, 0
	if h.known() {
		m.table.Remove(h.row)
		h.row = host.NoRow
	}
	delete(m.hosts, h.id)
	delete(m.byName, h.record.Name)
}

// rehome books the live runs whose host has appeared, in the order of their ids.
func (m *Machine) rehome() {
	var found []*tenant
	for t := range m.runs.all() {
		if t.host == nil && !t.ended() && m.hosts[t.hostID] != nil {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, compareTenants)
	for _, t := range found {
		m.homeless--
		m.book(t)
	}
}

// syncTouched brings the table up to date with hosts that became able or unable to take runs, and returns the touched ones that are still
// there, by name.
func (m *Machine) syncTouched() []*machineHost {
	touched := m.touched[:0]
	for _, h := range m.touched {
		if m.hosts[h.id] != h {
			h.touched = false
			continue
		}
		m.sync(h)
		h.touched = false
		touched = append(touched, h)
	}
	m.touched = m.touched[:0]
	slices.SortFunc(touched, compareHosts)
	return touched
}

// reportHosts ends a message that may have changed hosts: it tells the core which, and what that means to the daemons.
func (m *Machine) reportHosts(removed ...*machineHost) {
	if len(m.touched) == 0 && len(removed) == 0 {
		return
	}
	changed := m.syncTouched()
	if !m.ready() {
		return
	}
	slices.SortFunc(removed, compareHosts)
	reply := Hosts{Changed: make([]HostSummary, 0, len(changed))}
	for _, h := range changed {
		reply.Changed = append(reply.Changed, m.summary(h))
	}
	for _, h := range removed {
		reply.Removed = append(reply.Removed, h.id)
	}
	m.out.reply(reply)
	m.rematch(changed, removed)
}

func (m *Machine) sortedHosts() []*machineHost {
	list := make([]*machineHost, 0, len(m.hosts))
	for _, h := range m.hosts {
		list = append(list, h)
	}
	slices.SortFunc(list, compareHosts)
	return list
}

func compareHosts(a, b *machineHost) int { return strings.Compare(a.record.Name, b.record.Name) }

// summary is what the core learns of a host.
func (m *Machine) summary(h *machineHost) HostSummary {
	r := &h.record
	_, marked := m.marks[h.id]
	s := HostSummary{
		ID: h.id, Name: r.Name, Attributes: r.Attributes, HostPool: r.Pool, Unnamed: h.unnamed, Foreign: r.Foreign, Devices: r.Devices,
		Ready: h.mayTake(), Draining: marked, Message: r.Message, ClusterID: r.ID, Details: r.Details,
	}
	switch {
	case !h.known(): // no capacity: what cannot be used must not be entitled to
		s.Unnamed, s.Foreign = nil, resource.Vector{}
		s.Message = "not usable: " + h.fault
	case h.unsized > 0:
		s.Capacity = m.table.Host(h.row).Capacity
		s.Message = fmt.Sprintf("takes nothing new until the runs of unknown size on it have ended (%d)", h.unsized)
	default:
		s.Capacity = m.table.Host(h.row).Capacity
	}
	return s
}

// capacity turns a record's quantities into a vector by the core's names. What they do not cover is kept aside.
func (m *Machine) capacity(h *machineHost) resource.Vector {
	var v resource.Vector
	h.unnamed = nil
	for name, q := range h.record.Capacity {
		q = min(max(q, 0), resource.MaxQuantity)
		kind, ok := m.names.Lookup(name)
		switch {
		case ok:
			v[kind] = q
		case q > 0 && resource.CheckName(name) == nil:
			if h.unnamed == nil {
				h.unnamed = map[string]int64{}
			}
			h.unnamed[name] = q
		}
	}
	v[resource.GPU] = 0 // GPUs are what the devices say
	for _, d := range h.record.Devices {
		v[resource.GPU] += d.Milli
	}
	return v
}

// renumber reads the core's vectors by another core's names from now on.
func (m *Machine) renumber(named []string) {
	if slices.Equal(m.names.Named(), named) {
		return
	}
	*m.names = resource.Names{}
	m.intern(named)
	for _, h := range m.sortedHosts() {
		m.derive(h)
	}
	m.syncTouched()
}

// learnNames takes on names behind those that are known. A list that contradicts them is ignored: a kind never changes its name.
func (m *Machine) learnNames(named []string) {
	old := m.names.Named()
	if len(named) < len(old) || !slices.Equal(named[:len(old)], old) {
		m.stats.IgnoredMessages++
		return
	}
	m.intern(named[len(old):])
	for _, h := range m.sortedHosts() {
		if slices.ContainsFunc(named[len(old):], func(name string) bool { return h.unnamed[name] != 0 }) {
			m.derive(h)
			m.touch(h)
		}
	}
	m.reportHosts()
}

// intern stops at a name that no core may send, since the kinds after it would be wrong.
func (m *Machine) intern(named []string) {
	for _, name := range named {
		if _, err := m.names.Intern(name); err != nil {
			m.stats.IgnoredMessages++
			return
		}
	}
}

// setDraining marks hosts, seen or not.
func (m *Machine) setDraining(s SetDraining) {
	for _, id := range s.Hosts {
		h := m.hosts[id]
		_, marked := m.marks[id]
		switch {
		case marked == s.Draining:
			continue
		case s.Draining && h == nil && len(m.marks) >= maxMarks:
			m.stats.IgnoredMessages++
			continue
		case s.Draining:
			m.marks[id] = struct{}{}
		default:
			delete(m.marks, id)
		}
		if h == nil {
			continue
		}
		if h.known() {
			m.table.SetDraining(h.row, s.Draining)
		}
		m.touch(h)
	}
	m.reportHosts()
}

// boundDetails keeps a driver to its bounds: of more details the first by name count.
func boundDetails(details map[string]string) map[string]string {
	fits := len(details) <= driver.MaxDetails
	for name, value := range details {
		fits = fits && len(name) <= driver.MaxDetailName && len(value) <= driver.MaxDetailValue
	}
	if fits {
		return details
	}
	kept := make(map[string]string, driver.MaxDetails)
	for _, name := range slices.Sorted(maps.Keys(details)) {
		if len(kept) < driver.MaxDetails && len(name) <= driver.MaxDetailName {
			kept[name] = bound(details[name], driver.MaxDetailValue)
		}
	}
	return kept
}

// bound cuts a text for people to so many bytes, between characters.
func bound(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// sameHost reports whether two records say the same of what placement looks at.
func sameHost(a, b *driver.Host) bool {
	return a.Name == b.Name && a.Pool == b.Pool && a.Foreign == b.Foreign && a.Ready == b.Ready && a.Message == b.Message &&
		maps.Equal(a.Attributes, b.Attributes) && maps.Equal(a.Capacity, b.Capacity) &&
		slices.Equal(a.Devices, b.Devices) && slices.Equal(a.Ports, b.Ports)
}

func compareRuns(a, b workload.RunID) int {
	return cmp.Or(
		workload.ID(a.Job).Compare(workload.ID(b.Job)), cmp.Compare(a.Instance, b.Instance),
		cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Run, b.Run),
	)
}

func compareTenants(a, b *tenant) int { return compareRuns(a.run, b.run) }
