package shard

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// nativePlacer is the source that knows the native placer alone.
type nativePlacer struct{ placer placement.Placer }

func (n nativePlacer) Placer(policy string) (placement.Placer, bool) {
	switch workload.Strategy(policy) {
	case "", workload.StrategyBestFit, workload.StrategyPack, workload.StrategySpread:
		return n.placer, true
	}
	return nil, false
}

// planner is a placer that can tell where it would place.
type planner interface {
	Plan(t *host.Table, requests []placement.Request) []placement.Result
}

// place answers one batch. Requests that follow each other and want the same placer go to it together.
func (m *Machine) place(p Place) {
	if slices.ContainsFunc(p.Requests, func(r PlaceRequest) bool { return !r.DryRun && r.Class != nil && m.inCluster(r.Class) }) {
		m.want()
	}
	if !m.ready() {
		m.refuseBatch(p)
		return
	}
	results := make([]PlaceResult, len(p.Requests))
	left := MaxBatch
	for from := 0; from < len(p.Requests); {
		to := from
		for to < len(p.Requests) && alike(&p.Requests[from], &p.Requests[to]) && m.admissible(&p.Requests[to], &left) {
			to++
		}
		if to == from { // one that cannot be served
			results[from].Refused = max(0, p.Requests[from].Count)
			to++
		} else {
			m.serve(p.Requests[from:to], results[from:to])
		}
		from = to
	}
	for i := range results {
		if !p.Requests[i].DryRun {
			m.stats.Placed += uint64(len(results[i].Assignments))
			m.stats.Refused += uint64(results[i].Refused)
		}
	}
	m.out.reply(Placed{Batch: p.Batch, Results: results})
	m.reportHosts() // those whose books a placer left wrong
}

// refuseBatch answers a batch that nobody looked at.
func (m *Machine) refuseBatch(p Place) {
	results := make([]PlaceResult, len(p.Requests))
	for i := range results {
		results[i].Refused = max(0, p.Requests[i].Count)
		m.stats.Refused += uint64(results[i].Refused)
	}
	m.out.reply(Placed{Batch: p.Batch, Results: results})
}

func alike(a, b *PlaceRequest) bool {
	return a.DryRun == b.DryRun && a.Trial == b.Trial && a.Class != nil && b.Class != nil && a.Class.Placement.Strategy == b.Class.Placement.Strategy
}

// admissible reports whether a request may go to a placer, and takes its tasks off what the batch may still hold.
func (m *Machine) admissible(r *PlaceRequest, left *int) bool {
	if r.Count <= 0 || r.Count > *left || (!r.DryRun && r.Count > maxHeld-len(m.held)) {
		return false
	}
	if clusters := r.Class.Placement.Clusters; len(clusters) > 0 && !slices.Contains(clusters, m.config.Cluster) {
		return false
	}
	if _, ok := m.placers.Placer(string(r.Class.Placement.Strategy)); !ok {
		return false
	}
	*left -= r.Count
	return true
}

// serve asks one placer for a stretch of requests and takes leases on what it found.
func (m *Machine) serve(requests []PlaceRequest, results []PlaceResult) {
	asked := m.requests[:0]
	for i := range requests {
		r := &requests[i]
		asked = append(asked, placement.Request{
			Class: r.Class, Count: r.Count, Gang: r.Gang, Host: r.Host, Seed: r.Seed, Unit: r.Unit, Within: r.Within, Want: r.Want,
			Pool: r.Pool, Priority: r.Priority, Revocable: r.Revocable,
		})
	}
	m.requests = asked
	placer, _ := m.placers.Placer(string(requests[0].Class.Placement.Strategy))
	plans, canPlan := placer.(planner)
	dry := requests[0].DryRun
	var found []placement.Result
	if dry && canPlan {
		found = plans.Plan(m.table, asked)
	} else {
		found = placer.Place(m.table, asked)
	}
	for i := range requests {
		var r placement.Result
		if i < len(found) {
			r = found[i]
		}
		if dry {
			results[i] = m.planned(&requests[i], &r, !canPlan)
		} else {
			results[i] = m.accept(&requests[i], &r)
		}
	}
	for i := range found {
		if i >= len(requests) { // answers to questions that nobody asked
			m.stats.RefusedAssignments += uint64(len(found[i].Assignments))
		}
		for _, a := range found[i].Assignments {
			m.audit(a.Row)
		}
	}
	clear(asked)
}

// audit makes the table hold what the machine's books say of the host at row, in case that a placer took more there, or less, than was
// accepted of it.
func (m *Machine) audit(row host.Row) {
	if h := m.hosts[m.table.ID(row)]; h != nil && m.table.Tasks(row) != h.booked {
		m.rebuild(h)
	}
}

// accept checks what a placer found for one request and takes leases on it. A placer is not trusted: what does not hold against the table
// counts as refused, and a gang with it. Its room is given back by the audit that follows.
func (m *Machine) accept(r *PlaceRequest, found *placement.Result) PlaceResult {
	good := make([]int, 0, r.Count)
	for i := range found.Assignments {
		if len(good) < r.Count && m.check(r, &found.Assignments[i], true) {
			good = append(good, i)
		} else {
			m.stats.RefusedAssignments++
		}
	}
	if r.Gang && len(good) < r.Count {
		good = nil
	}
	result := PlaceResult{Refused: r.Count - len(good)}
	if result.Refused > 0 {
		result.Reasons = found.Reasons
	}
	if len(good) > 0 {
		result.Assignments = make([]Assignment, len(good))
	}
	for n, i := range good {
		a := &found.Assignments[i]
		h := m.hosts[m.table.ID(a.Row)]
		result.Assignments[n] = Assignment{Lease: m.hold(h, r.Class, a), Host: h.id, Devices: a.Devices, Ports: slices.Clone(a.Ports)}
	}
	return result
}

// planned turns what a placer would do into a result without leases. taken says that it has done it.
func (m *Machine) planned(r *PlaceRequest, found *placement.Result, taken bool) PlaceResult {
	result := PlaceResult{Refused: r.Count, Reasons: found.Reasons}
	most := r.Count
	if r.Gang {
		most = max(most, r.Want)
	}
	for i := range found.Assignments {
		a := &found.Assignments[i]
		if len(result.Assignments) < most && m.check(r, a, taken) {
			result.Assignments = append(result.Assignments, Assignment{Host: m.table.ID(a.Row), Devices: a.Devices, Ports: a.Ports})
			result.Refused = max(result.Refused-1, 0)
		}
	}
	if r.Gang && result.Refused > 0 {
		result.Assignments, result.Refused = nil, r.Count
	}
	if result.Refused > 0 {
		result.Nearest = m.nearest(r.Class, r.Host)
	}
	return result
}

// check reports whether one assignment may stand. taken says that its room is booked, so that an overfull host shows as negative room.
func (m *Machine) check(r *PlaceRequest, a *placement.Assignment, taken bool) bool {
	if !m.table.Has(a.Row) {
		return false
	}
	h := m.hosts[m.table.ID(a.Row)]
	if h == nil || !h.mayTake() || m.table.Draining(a.Row) || !r.Class.Matches(m.table, a.Row) {
		return false
	}
	if (r.Host != workload.HostID{}) && r.Host != h.id {
		return false
	}
	if taken {
		free := m.table.Free(a.Row)
		for kind, need := range r.Class.Needs {
			if need > 0 && free[kind] < 0 {
				return false
			}
		}
		lanes, _ := m.table.Lanes(a.Row)
		for device, free := range lanes {
			if a.Devices&(1<<device) != 0 && free < 0 {
				return false
			}
		}
	}
	wanted := int((r.Class.Needs[resource.GPU] + host.DeviceMilli - 1) / host.DeviceMilli)
	return bits.OnesCount16(uint16(a.Devices)) == wanted &&
		a.Devices&^m.table.DevicesOf(a.Row, r.Class.GPUModels) == 0 &&
		portsFit(r.Class.Ports, a.Ports)
}

// portsFit reports whether the ports answer the needs one by one, none of them twice.
func portsFit(needs, ports []uint16) bool {
	if len(needs) != len(ports) {
		return false
	}
	for i, port := range ports {
		if port == 0 || (needs[i] != 0 && needs[i] != port) || slices.Contains(ports[:i], port) {
			return false
		}
	}
	return true
}

// launch binds leases to runs and has the runs started. A run that is here already is left alone: the message was repeated.
func (m *Machine) launch(l Launch) {
	if !m.ready() {
		m.refuseLaunches(l.Launches, fmt.Sprintf("shard %s is out of contact with its cluster", m.config.ID))
		for i := range l.Launches {
			if t := m.leases[l.Launches[i].Lease]; t != nil {
				m.dropLease(t)
			}
		}
		return
	}
	launches := make([]driver.Launch, 0, len(l.Launches))
	for i := range l.Launches {
		r := &l.Launches[i]
		if m.runs.find(r.Launch.Run) != nil {
			m.stats.IgnoredMessages++
			continue
		}
		t, why := m.leaseFor(r)
		if why != "" {
			m.refuseLaunch(r.Launch.Run, workload.ReasonLaunchRefused, why)
			continue
		}
		m.unpledge(t)
		m.unhold(t)
		t.lease, t.moment = 0, 0
		t.run, t.bound, t.launched = r.Launch.Run, true, m.inventory
		m.runs.put(t)
		m.search.Moved(t.row())
		launches = append(launches, r.Launch)
		launches[len(launches)-1].Host = t.host.record.Name
	}
	if len(launches) > 0 {
		m.out.call(LaunchCall{Launches: launches})
	}
}

// leaseFor finds the lease of a launch, or says why there is none to launch on.
func (m *Machine) leaseFor(r *LaunchRun) (*tenant, string) {
	t := m.leases[r.Lease]
	switch {
	case t == nil:
		return nil, "its lease has run out"
	case t.hostID != r.HostID:
		return nil, "its lease is on another host"
	case !t.host.mayTake():
		name := t.host.record.Name
		m.dropLease(t)
		return nil, fmt.Sprintf("host %s takes no new runs", name)
	case !m.cleared(t):
		name := t.host.record.Name
		m.dropLease(t)
		return nil, fmt.Sprintf("the room pledged on host %s is not free yet", name)
	}
	return t, ""
}

func (m *Machine) refuseLaunches(launches []LaunchRun, why string) {
	for i := range launches {
		m.refuseLaunch(launches[i].Launch.Run, workload.ReasonLaunchRefused, why)
	}
}

// refuseLaunch tells the core that a run was not started, in one reply with its neighbours that were refused for the same reason.
func (m *Machine) refuseLaunch(run workload.RunID, reason workload.Reason, why string) {
	m.stats.RefusedLaunches++
	if n := len(m.out.Replies); n > 0 {
		if last, ok := m.out.Replies[n-1].(LaunchRefused); ok && last.Reason == reason && last.Message == why {
			last.Runs = append(last.Runs, run)
			m.out.Replies[n-1] = last
			return
		}
	}
	m.out.reply(LaunchRefused{Runs: []workload.RunID{run}, Reason: reason, Message: why})
}

// launchFailed takes in that the driver started none of these runs. A run of which the cluster has spoken was started after all.
func (m *Machine) launchFailed(f LaunchFailed) {
	for _, id := range f.Runs {
		t := m.runs.find(id)
		switch {
		case t == nil || t.launched == 0 || t.heard.state != workload.RunNone:
			m.stats.IgnoredMessages++
		case t.bound && !m.replayed: // the merge will find it missing
			t.launched = 0
		default:
			if t.bound {
				m.refuseLaunch(id, workload.ReasonLaunchFailed, f.Reason)
			}
			m.forget(t)
		}
	}
	m.reportHosts()
}
