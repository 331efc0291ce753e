package shard

import (
	"slices"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// replay enters the runs that the core has bound here. The core's word on a run's room replaces the shard's own.
func (m *Machine) replay(r Replay) {
	if m.replayed {
		m.stats.IgnoredMessages++
		return
	}
	for i := range r.Bound {
		m.bind(&r.Bound[i])
	}
	switch {
	case !r.Done:
		m.syncTouched()
		return
	case m.connected:
		m.replayed = true
		m.merge()
	default:
		m.replayed = true
		m.syncTouched()
	}
}

// adopt enters the runs on hosts that came from another shard. Until their replay is done the core's list has them.
func (m *Machine) adopt(bound []BoundRun) {
	if !m.replayed {
		m.stats.IgnoredMessages++
		return
	}
	for i := range bound {
		m.bind(&bound[i])
	}
	m.reportHosts()
}

func (m *Machine) bind(b *BoundRun) {
	t := m.runs.find(b.Run)
	switch {
	case t == nil:
		t = m.newTenant()
		t.run = b.Run
		m.runs.put(t)
		m.foreign++
	case !t.ended():
		m.vacate(t)
	}
	t.hostID, t.class, t.devices = b.Host, b.Class, b.Devices
	if b.Started != 0 {
		t.moment = b.Started
	}
	t.setPorts(b.Ports)
	if !t.bound {
		t.bound = true
		m.foreign--
	}
	if !t.ended() {
		m.book(t)
	}
}

// merge joins the core's list of runs with the cluster's, tells the core what came of it, and opens the shard for placement. It needs both:
// a replay that is done and an inventory. A cluster may leave out runs on hosts that are out of contact, so these are asked for by name.
func (m *Machine) merge() {
	runs := make([]*tenant, 0, m.runs.len())
	for t := range m.runs.all() {
		runs = append(runs, t)
	}
	slices.SortFunc(runs, compareTenants)
	m.awaitNobody()
	var missing, asked []workload.RunID
	var strangers []driver.Status
	var elsewhere map[workload.HostID]bool
	for _, t := range runs {
		known := t.seen == m.inventory || (t.bound && t.ended())
		// Sent, and no word of it yet. If an inventory came after it that does not have it, the cluster is asked once more by name: the
		// inventory may have been drawn up before the launch.
		onItsWay := !known && t.heard.state == workload.RunNone &&
			(t.launched == m.inventory || (t.launched != 0 && m.config.Reconciles))
		if onItsWay && t.launched != m.inventory {
			asked = append(asked, t.run)
		}
		if !known && !onItsWay && t.bound && m.hosts[t.hostID] == nil && elsewhere == nil {
			elsewhere = m.elsewhereIDs()
		}
		switch {
		case known && t.bound:
			status := m.lastStatus(t)
			m.report(true, &status)
			m.forgetIfSettled(t)
		case known:
			strangers = append(strangers, m.lastStatus(t))
			m.forgetIfSettled(t)
		case onItsWay && t.bound: // its status will come
		case t.bound && m.config.Reconciles && m.away(t.hostID, elsewhere): // it may live: the cluster's word of it decides
			asked = append(asked, t.run)
			m.await(t.run)
		case onItsWay:
			strangers = append(strangers, driver.Status{Run: t.run, State: workload.RunLaunching, Host: t.hostName()})
		default:
			if t.bound && (m.hosts[t.hostID] != nil || !elsewhere[t.hostID]) { // else the shard that has its host says what it is
				missing = append(missing, t.run)
			}
			m.forget(t)
		}
	}
	if missing != nil {
		m.out.reply(RunsMissing{Runs: missing})
	}
	if strangers != nil {
		m.out.reply(Foreign{Statuses: strangers})
	}
	if asked != nil {
		m.out.call(ReconcileCall{Runs: asked})
	}
	m.syncTouched()
	m.open()
}

// open tells the core of every host and match, and that it may ask for more.
func (m *Machine) open() {
	hosts := m.sortedHosts()
	reply := Hosts{Complete: true, Changed: make([]HostSummary, 0, len(hosts))}
	for _, h := range hosts {
		reply.Changed = append(reply.Changed, m.summary(h))
	}
	m.out.reply(reply)
	for _, w := range m.watches {
		m.reportWhole(w, hosts)
	}
	m.out.reply(Ready{})
}

// reportable reports whether a driver may say such a thing of a run.
func reportable(s *driver.Status) bool {
	return s.State >= workload.RunStarting && int(s.State) < workload.NumRunStates
}

// status takes in one status and passes it on.
func (m *Machine) status(s *driver.Status) {
	if !reportable(s) {
		m.stats.RefusedStatuses++
		return
	}
	t := m.hear(s)
	if !m.replayed {
		return // the merge will report it
	}
	m.report(t != nil && t.bound, s)
	if t != nil {
		m.forgetIfSettled(t)
	}
}

// hear notes a status, and frees the room of a run that it ends. It returns nil for a run that is not remembered.
func (m *Machine) hear(s *driver.Status) *tenant {
	ends := s.State.Traits().Terminal
	t := m.runs.find(s.Run)
	if t == nil {
		if m.replayed && m.foreign >= maxForeign { // before a replay is done, every run looks foreign
			return nil
		}
		t = m.newTenant()
		t.run, t.hostID, t.seen = s.Run, HostID(m.config.Cluster, s.Host), m.inventory
		m.keep(t, s)
		m.runs.put(t)
		m.foreign++
		if ends {
			m.settleEnd(t)
		} else {
			m.book(t)
		}
		return t
	}
	t.seen = m.inventory
	m.answered(t.run)
	switch {
	case t.ended():
		if ends && s.Token != t.heard.token { // delivered anew
			m.unsettle(t)
			t.heard.token = s.Token
			m.settleEnd(t)
		}
		return t
	case !ends && s.Token != 0 && s.Token < t.heard.token:
		return t // older than what is known
	}
	m.keep(t, s)
	if ends {
		m.vacate(t)
		m.settleEnd(t)
	}
	return t
}

// settleEnd waits for the acknowledgement of an ended run's status.
func (m *Machine) settleEnd(t *tenant) {
	if t.heard.token != 0 {
		m.ended[t.heard.token] = t
	}
}

func (m *Machine) unsettle(t *tenant) {
	if m.ended[t.heard.token] == t {
		delete(m.ended, t.heard.token)
	}
}

// forgetIfSettled forgets a run that ended with nothing to acknowledge.
func (m *Machine) forgetIfSettled(t *tenant) {
	if t.ended() && t.heard.token == 0 {
		m.forget(t)
	}
}

// forget takes a run out of the books, with its room if it has any.
func (m *Machine) forget(t *tenant) {
	if t.ended() {
		m.unsettle(t)
	} else {
		m.vacate(t)
	}
	if !t.bound {
		m.foreign--
	}
	delete(m.dying, t.run)
	m.answered(t.run)
	m.runs.remove(t.run)
	m.discard(t)
}

// report tells the core of a run's status: as news of its own run, or of one that it does not have here.
func (m *Machine) report(bound bool, s *driver.Status) {
	if bound {
		m.out.reply(RunStatus{Status: *s})
		return
	}
	if n := len(m.out.Replies); n > 0 {
		if last, ok := m.out.Replies[n-1].(Foreign); ok {
			last.Statuses = append(last.Statuses, *s)
			m.out.Replies[n-1] = last
			return
		}
	}
	m.out.reply(Foreign{Statuses: []driver.Status{*s}})
}

// acknowledge passes tokens on and forgets the runs whose end is durable now.
func (m *Machine) acknowledge(tokens []driver.Token) {
	passed := make([]driver.Token, 0, len(tokens))
	for _, token := range tokens {
		if token == 0 {
			continue
		}
		passed = append(passed, token)
		if t := m.ended[token]; t != nil {
			m.forget(t)
		}
	}
	if len(passed) > 0 {
		m.out.call(AckCall{Tokens: passed})
	}
}

func (t *tenant) hostName() string {
	if t.host == nil {
		return ""
	}
	return t.host.record.Name
}
