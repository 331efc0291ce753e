package framework

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

// gathering is what is awaited before the inventory of a subscription can be given.
type gathering struct {
	began      int64
	marker     string // a task that is none: the answer about it ends the answers to the reconciliation before
	reconciled bool
	offered    bool  // offers have come
	counted    bool  // the operator API was asked, with success or without
	learned    bool  // with success
	rumours    int   // runs whose end was told without details
	again      bool  // the master did not take the question, and will be asked once more
	questions  int   // that were made up so far; each has its own marker
	patience   int64 // until when the answer to the present one is waited for if runs of an earlier process depend on it
	deadline   int64
	hosts      int64 // when the first offers are not waited for any more
	settled    int64 // when updates with details are not waited for any more; 0: nothing else is
}

var errReplaced = errors.New("the framework subscribed anew")

// rumourWait is how long the inventory waits for updates about ends that reconciliation told of.
const rumourWait = int64(1e9)

// until is when the next step of gathering is due after a time.
func (g *gathering) until(now int64) int64 {
	at := g.deadline
	for _, step := range []int64{g.hosts, g.settled} {
		if step > now {
			at = min(at, step)
		}
	}
	return at
}

// Subscribed begins a subscription. master is the master's own id: another one may not know yet what the one before knew.
func (m *Machine) Subscribed(now int64, master string, out *Output) {
	m.lose() // in case that the end of the one before was not told
	m.begin(now, out)
	if m.told {
		m.told = false
		m.out.News = append(m.out.News, news.Item{Disconnected: errReplaced})
	}
	m.subscribed, m.suppressed, m.revive, m.quietAt = true, false, false, 0
	if master != m.master {
		m.master, m.met = master, m.now
	}
	for _, r := range m.runs {
		r.answered = false
	}
	for _, a := range m.agents {
		a.filtered = 0 // a new subscription has none
	}
	rumours := m.gather.rumours
	m.gather = gathering{
		began: m.now, marker: fmt.Sprintf("paceline.end-of-reconciliation.%d", m.now), rumours: rumours, patience: m.now + int64(m.cfg.AnswerWait),
		deadline: m.now + int64(m.cfg.InventoryWait), hosts: m.now + int64(m.cfg.HostsWait),
	}
	m.out.Census = AskAgents
	if !m.known {
		m.out.Census = AskAgentsAndTasks
	}
	m.askAll()
	m.reconcileOperations()
	m.end()
}

// askAll asks for all tasks, and behind that for one that is none.
func (m *Machine) askAll() {
	m.reconcileAll()
	m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{
		Tasks: []scheduler.Call_Reconcile_Task{{TaskID: mesos.TaskID{Value: m.gather.marker}}},
	}})
}

// gatherAgain asks for all tasks anew, because the master did not take that. The inventory waits for it: without it, runs of an earlier process
// would be taken for lost, and started a second time.
func (m *Machine) gatherAgain() {
	if !m.subscribed || m.gather.again {
		return
	}
	g := &m.gather
	g.again, g.reconciled = true, false
	g.questions++
	g.marker = fmt.Sprintf("paceline.end-of-reconciliation.%d.%d", g.began, g.questions) // an answer to the former says nothing: part of that was lost
	g.deadline = m.now + firstResend + int64(m.cfg.InventoryWait)
	g.patience = m.now + firstResend + int64(m.cfg.AnswerWait)
	began := g.began
	m.after(firstResend, func() {
		if m.subscribed && m.gather.began == began {
			m.gather.again = false
			m.askAll()
		}
	})
}

func (m *Machine) reconcileAll() {
	m.implicitAt = m.now + int64(m.cfg.ReconcileEvery)
	m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{}})
}

// Lost ends a subscription: its offers are void.
func (m *Machine) Lost(now int64, reason error, out *Output) {
	m.lose() // before anything that is due now makes a call
	m.begin(now, out)
	if m.told {
		m.told = false
		m.out.News = append(m.out.News, news.Item{Disconnected: reason})
	}
	m.end()
}

// lose forgets what holds for one subscription only.
func (m *Machine) lose() {
	if !m.subscribed {
		return
	}
	m.subscribed = false
	for _, o := range m.offers {
		o.agent.offers = nil
		o.agent.loose = o.agent.loose.plus(o.parts)
	}
	for _, a := range m.agents {
		a.looseUntil = 0
	}
	clear(m.offers)
	clear(m.returned)
	clear(m.asked)
	m.unknown = nil
	m.sweepAt, m.probeAt, m.implicitAt = 0, 0, 0
}

// unheard reports whether runs of an earlier process may be missing because the master has not answered yet, though it did not refuse to.
func (m *Machine) unheard() bool {
	return m.inherited && !m.known && !m.gather.reconciled && m.now < m.gather.patience
}

// tryInventory gives the inventory as soon as everything is there, or the time is over.
func (m *Machine) tryInventory() {
	g := &m.gather
	switch {
	case m.now >= g.deadline && m.unheard():
		g.deadline = m.now + int64(m.cfg.InventoryWait)
		m.askAll()
		return
	case m.now < g.deadline:
		hosts := g.learned || g.offered && g.counted || m.now >= g.hosts
		if !g.reconciled || !hosts {
			return
		}
		if g.settled == 0 {
			g.settled = m.now + rumourWait
		}
		if g.rumours > 0 && m.now < g.settled {
			return
		}
	}
	m.told, m.known, m.sizes = true, true, nil
	m.probeAt = m.now + int64(m.cfg.ProbeEvery)
	for _, a := range m.dirty {
		a.dirty = false
	}
	m.dirty = m.dirty[:0]
	m.out.News = append(m.out.News, news.Item{Inventory: m.inventory()})
	for _, r := range m.sortedRuns() {
		if r.phase == sent && !r.answered {
			m.doubt(r)
			m.hush(r)
		}
	}
	for _, a := range m.sortedAgents() { // what was not offered by now is others', unless nobody was asked
		if len(a.offers) > 0 {
			m.returned[a] = struct{}{}
		}
		if len(a.loose) > 0 {
			m.expire(a, m.now+int64(m.cfg.LooseFor))
		}
		if len(a.waiting) > 0 {
			m.flush(a)
		}
	}
}

func (m *Machine) sortedRuns() []*run {
	list := make([]*run, 0, len(m.runs))
	for _, r := range m.runs {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *run) int { return strings.Compare(a.task, b.task) })
	return list
}

// sortedAgents returns the agents that have a name, in its order.
func (m *Machine) sortedAgents() []*agent {
	list := make([]*agent, 0, len(m.names))
	for _, a := range m.names {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *agent) int { return strings.Compare(a.name, b.name) })
	return list
}

// inventory is everything that is known.
func (m *Machine) inventory() *driver.Inventory {
	inventory := &driver.Inventory{Hosts: make([]driver.Host, 0, len(m.names))}
	for _, a := range m.sortedAgents() {
		if a.lost && len(a.runs) == 0 {
			m.forgetAgent(a)
			continue
		}
		m.compose(a)
		inventory.Hosts = append(inventory.Hosts, a.row)
	}
	for _, r := range m.sortedRuns() {
		if r.last.State == workload.RunNone {
			continue // sent, and no word of it yet: that is asked for
		}
		if r.agent != nil {
			r.last.Host = r.agent.name // it may have got its name since
		}
		inventory.Runs = append(inventory.Runs, r.last)
	}
	slices.SortFunc(inventory.Runs, func(a, b driver.Status) int { return int(int64(a.Token) - int64(b.Token)) }) //nolint:gosec // tokens are close to each other
	return inventory
}

// doubt has a run reconciled by name.
func (m *Machine) doubt(r *run) {
	if !r.queued {
		r.queued = true
		m.doubts = append(m.doubts, r)
	}
}

// askDoubts reconciles some runs by name, if the time has come.
func (m *Machine) askDoubts() {
	if len(m.doubts) == 0 || m.now < m.doubtAt {
		return
	}
	n := min(len(m.doubts), m.cfg.ReconcileBatch)
	var tasks []scheduler.Call_Reconcile_Task
	for _, r := range m.doubts[:n] {
		r.queued = false
		if m.runs[r.id] == r && r.phase == sent {
			tasks = append(tasks, scheduler.Call_Reconcile_Task{TaskID: mesos.TaskID{Value: r.task}, AgentID: &mesos.AgentID{Value: r.agent.id}})
		}
	}
	m.doubts = slices.Delete(m.doubts, 0, n)
	if len(tasks) > 0 {
		m.doubtAt = m.now + int64(m.cfg.ReconcilePause)
		m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{Tasks: tasks}})
	}
}

// openQuestion is a run that is to be asked for again.
type openQuestion struct {
	at int64
	id workload.RunID
}

// unknownYet reports whether the answer about a run that neither the machine nor the master knows is put off: while agents may still register with
// the master, one of them may have it from an earlier process. It is asked for again then.
func (m *Machine) unknownYet(id workload.RunID) bool {
	queued, asked := m.asked[id]
	if !asked || !m.inherited || m.now >= m.met+int64(m.cfg.ReregisterGrace) {
		return false
	}
	if !queued {
		m.asked[id] = true
		m.unknown = append(m.unknown, openQuestion{at: m.now + int64(m.cfg.UnknownAgain), id: id})
	}
	return true
}

// askUnknown asks once more for some of the runs that the master did not know, if the time has come.
func (m *Machine) askUnknown() {
	if m.now < m.askAt {
		return
	}
	n := 0
	var tasks []scheduler.Call_Reconcile_Task
	for ; n < len(m.unknown) && m.unknown[n].at <= m.now && len(tasks) < m.cfg.ReconcileBatch; n++ {
		id := m.unknown[n].id
		if queued := m.asked[id]; queued {
			m.asked[id] = false
			tasks = append(tasks, scheduler.Call_Reconcile_Task{TaskID: mesos.TaskID{Value: id.String()}})
		}
	}
	m.unknown = slices.Delete(m.unknown, 0, n)
	if len(tasks) > 0 {
		m.askAt = m.now + int64(m.cfg.ReconcilePause)
		m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{Tasks: tasks}})
	}
}

// Reconcile asks for the state of runs, of all if none is named. What is over and not acknowledged is told at once; the rest the master
// answers.
func (m *Machine) Reconcile(now int64, ids []workload.RunID, out *Output) error {
	m.begin(now, out)
	defer m.end()
	if !m.told {
		return ErrNotConnected
	}
	if len(ids) == 0 {
		for _, r := range m.sortedRuns() {
			m.repeat(r)
		}
		m.reconcileAll()
		return nil
	}
	var tasks []scheduler.Call_Reconcile_Task
	for _, id := range ids {
		r := m.runs[id]
		task := scheduler.Call_Reconcile_Task{TaskID: mesos.TaskID{Value: id.String()}}
		switch {
		case r == nil:
			m.ask(id)
		case r.phase == sent:
			r.wanted = true
			task.AgentID = &mesos.AgentID{Value: r.agent.id}
		case r.phase == ended:
			m.repeat(r)
			continue
		default:
			continue // it waits for an offer, and will be heard of
		}
		tasks = append(tasks, task)
	}
	for batch := range slices.Chunk(tasks, m.cfg.ReconcileBatch) {
		m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{Tasks: batch}})
	}
	return nil
}
