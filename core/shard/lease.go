package shard

import (
	"math"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
)

// tenant is room on a host: first held by a lease, then bound to the run that was launched on it. A run that the core replayed or that the
// cluster reported is a tenant that never had a lease.
//
// A cell of a million runs has as many of these, so the size counts: 128 bytes, one of the sizes in which memory is handed out. Fields stand
// in an order that leaves no gaps, and what few tenants have stands apart.
type tenant struct {
	// The room. class is nil for a run of unknown size: while it lives its host takes nothing new.
	hostID workload.HostID
	host   *machineHost // nil: not known, or the run has ended
	class  *placement.Class
	extra  *tenantExtra // nil: nothing of it
	run    workload.RunID
	slot   int32 // in host.tenants

	lease Lease // 0: a run's
	// moment is, of a lease, when it runs out, and of a run, when it was first known to run; 0: it was not.
	moment int64
	heard  word

	seen     uint32 // the inventory that knew it, or after which a status of it came
	launched uint32 // the inventory after which it was sent; 0: not by this machine
	place    int32  // in Machine.held; -1: not held
	devices  placement.DeviceSet
	booked   bool // the table holds it
	bound    bool // the core of the present epoch has the run
}

// tenantExtra is what few tenants have. It is never changed, only replaced.
type tenantExtra struct {
	ports    []uint16
	message  string
	host     string // where the cluster says the run is, if not on the tenant's host
	exitCode int32
	signal   int32
}

func (t *tenant) ended() bool { return t.heard.state.Traits().Terminal }

func (t *tenant) ports() []uint16 {
	if t.extra == nil {
		return nil
	}
	return t.extra.ports
}

func (t *tenant) setPorts(ports []uint16) {
	e := tenantExtra{ports: ports}
	if t.extra != nil {
		e = *t.extra
		e.ports = ports
	}
	t.setExtra(e)
}

func (t *tenant) setExtra(e tenantExtra) {
	t.extra = nil
	if len(e.ports) > 0 || e.message != "" || e.host != "" || e.exitCode != 0 || e.signal != 0 {
		t.extra = &e
	}
}

// word is the last status heard of a run, less what is in tenantExtra.
type word struct {
	token   driver.Token
	at      int64             // UTC nanoseconds; noTime: it said none
	state   workload.RunState // RunNone: nothing was heard yet
	reason  workload.Reason
	healthy bool
}

const noTime = math.MinInt64

// keep notes the last status of a tenant's run.
func (m *Machine) keep(t *tenant, s *driver.Status) {
	t.heard = word{token: s.Token, at: noTime, state: s.State, reason: s.Reason, healthy: s.Healthy}
	if !s.At.IsZero() {
		t.heard.at = s.At.UnixNano()
	}
	if s.State == workload.RunRunning && t.moment == 0 {
		if t.moment = m.now; !s.At.IsZero() {
			t.moment = t.heard.at
		}
		m.search.Moved(t.row())
	}
	e := tenantExtra{ports: t.ports(), message: s.Message, exitCode: s.ExitCode, signal: s.Signal}
	h := t.host
	if h == nil {
		h = m.hosts[t.hostID]
	}
	if h == nil || s.Host != h.record.Name {
		e.host = s.Host
	}
	t.setExtra(e)
}

// lastStatus is what was heard of a run last. The host of one that ended is left out once it has left the cluster.
func (m *Machine) lastStatus(t *tenant) driver.Status {
	w := &t.heard
	s := driver.Status{Run: t.run, Token: w.token, State: w.state, Reason: w.reason, Healthy: w.healthy}
	if h := m.hosts[t.hostID]; h != nil {
		s.Host = h.record.Name
	}
	if e := t.extra; e != nil {
		s.ExitCode, s.Signal, s.Message = e.exitCode, e.signal, e.message
		if e.host != "" {
			s.Host = e.host
		}
	}
	if w.at != noTime {
		s.At = time.Unix(0, w.at).UTC()
	}
	return s
}

// newTenant returns a blank tenant.
func (m *Machine) newTenant() *tenant {
	if n := len(m.spare); n > 0 {
		t := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return t
	}
	return &tenant{place: -1}
}

// maxSpare bounds the tenants kept for reuse.
const maxSpare = 2 * MaxBatch

// discard takes back a tenant that nothing points to any more.
func (m *Machine) discard(t *tenant) {
	if len(m.spare) < maxSpare {
		*t = tenant{place: -1}
		m.spare = append(m.spare, t)
	}
}

// book takes a tenant's room in the table, where its host is known. A room that the table calls senseless, as after GPUs were taken out of
// a host under a live run, is held against the host as one of unknown size.
func (m *Machine) book(t *tenant) {
	h := m.hosts[t.hostID]
	if h == nil {
		m.homeless++
		return
	}
	m.settle(t, h)
	if !m.take(t) {
		h.unsized++
		m.touch(h)
	}
}

// take books a settled tenant in the table if that can be done.
func (m *Machine) take(t *tenant) bool {
	h := t.host
	if t.class == nil || !h.known() || m.table.Take(h.row, t.class.Occupant(t.devices, t.ports())) != nil {
		return false
	}
	t.booked = true
	h.booked++
	return true
}

// settle enters a tenant in its host's list.
func (m *Machine) settle(t *tenant, h *machineHost) {
	t.host, t.slot = h, int32(len(h.tenants)) //nolint:gosec // within what a host holds
	h.tenants = append(h.tenants, t)
	m.search.Moved(h.row)
}

// vacate gives a tenant's room back.
func (m *Machine) vacate(t *tenant) {
	h := t.host
	if h == nil {
		m.homeless--
		return
	}
	if t.booked {
		// It fails only for room that the table does not hold, which is what is wanted.
		_ = m.table.Release(h.row, t.class.Occupant(t.devices, t.ports()))
		t.booked = false
		h.booked--
	} else {
		h.unsized--
		m.touch(h)
	}
	if len(h.pledges) > 0 {
		m.ripen(h)
	}
	m.search.Moved(h.row)
	last := len(h.tenants) - 1
	h.tenants[t.slot] = h.tenants[last]
	h.tenants[t.slot].slot = t.slot
	h.tenants[last] = nil
	h.tenants = h.tenants[:last]
	t.host = nil
}

// hold makes a lease of room that a placer has taken in the table.
func (m *Machine) hold(h *machineHost, class *placement.Class, a *placement.Assignment) Lease {
	m.lastLease++
	t := m.newTenant()
	t.hostID, t.class, t.devices, t.booked = h.id, class, a.Devices, true
	t.setPorts(a.Ports)
	h.booked++
	t.lease, t.moment = m.lastLease, m.now+int64(LeaseTTL)
	m.settle(t, h)
	m.leases[t.lease] = t
	m.held.push(t)
	return t.lease
}

// unhold takes a lease out of the book; its room stays taken.
func (m *Machine) unhold(t *tenant) {
	m.held.remove(t)
	delete(m.leases, t.lease)
}

// dropLease ends a lease and gives its room back.
func (m *Machine) dropLease(t *tenant) {
	m.unpledge(t)
	m.unhold(t)
	m.vacate(t)
	m.discard(t)
}

// expire drops the leases whose time is over.
func (m *Machine) expire() {
	for len(m.held) > 0 && m.held[0].moment <= m.now {
		m.stats.ExpiredLeases++
		m.dropLease(m.held[0])
	}
}

// release gives leases back. One that has run out or is bound by now is not the caller's to give.
func (m *Machine) release(leases []Lease) {
	for _, lease := range leases {
		if t := m.leases[lease]; t != nil {
			m.dropLease(t)
		}
	}
}

// leaseHeap holds the held leases, the one that runs out first at 0. Leases that run out together do so in the order in which they were
// given.
type leaseHeap []*tenant

func (h leaseHeap) before(a, b *tenant) bool {
	return a.moment < b.moment || (a.moment == b.moment && a.lease < b.lease)
}

func (h *leaseHeap) push(t *tenant) {
	*h = append(*h, t)
	t.place = int32(len(*h) - 1) //nolint:gosec // at most maxHeld
	h.up(len(*h) - 1)
}

func (h *leaseHeap) remove(t *tenant) {
	last := len(*h) - 1
	at := int(t.place)
	h.swap(at, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	t.place = -1
	if at < last {
		h.down(at)
		h.up(at)
	}
}

func (h leaseHeap) up(at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if !h.before(h[at], h[parent]) {
			return
		}
		h.swap(at, parent)
		at = parent
	}
}

func (h leaseHeap) down(at int) {
	for {
		child := 2*at + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h.before(h[child+1], h[child]) {
			child++
		}
		if !h.before(h[child], h[at]) {
			return
		}
		h.swap(at, child)
		at = child
	}
}

func (h leaseHeap) swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].place, h[b].place = int32(a), int32(b) //nolint:gosec // as in push
}
