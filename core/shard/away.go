package shard

import (
	"maps"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
)

// The bounds of asking a cluster about runs on hosts that are out of contact.
const (
	// askEvery is how often a run is asked for that was asked for before, while no word of it comes.
	askEvery = 30 * time.Second
	// answerWithin is how long an inventory waits for a word of such a run: longer than agents take to register with a new master. A run of which
	// the cluster has said nothing by then is missing.
	answerWithin = 15 * time.Minute
)

// questions are the runs that an inventory left out while their hosts were out of contact. Each waits for the cluster's own word of it.
type questions struct {
	runs  map[workload.RunID]struct{}
	next  int64 // when they are asked for again; 0: there are none
	until int64 // when they are missing
}

// away reports whether a host is out of contact, so that its cluster may be silent about the runs on it. One that another shard has is not.
func (m *Machine) away(id workload.HostID, elsewhere map[workload.HostID]bool) bool {
	if h := m.hosts[id]; h != nil {
		return !h.record.Ready
	}
	return !elsewhere[id]
}

// await has a run asked for, now and then, until something is heard of it.
func (m *Machine) await(run workload.RunID) {
	if m.awaited.next == 0 {
		m.awaited.next, m.awaited.until = m.now+int64(askEvery), m.now+int64(answerWithin)
	}
	m.awaited.runs[run] = struct{}{}
}

// answered takes in that a run was heard of, or is of no interest any more.
func (m *Machine) answered(run workload.RunID) {
	if m.awaited.next == 0 { // as nearly always, and each status comes here
		return
	}
	delete(m.awaited.runs, run)
	if len(m.awaited.runs) == 0 {
		m.awaitNobody()
	}
}

func (m *Machine) awaitNobody() {
	clear(m.awaited.runs)
	m.awaited.next, m.awaited.until = 0, 0
}

// askAgain asks once more for what was not answered, or gives it up when the time is over.
func (m *Machine) askAgain() {
	if m.awaited.next == 0 || m.now < m.awaited.next {
		return
	}
	runs := slices.SortedFunc(maps.Keys(m.awaited.runs), compareRuns)
	if m.now < m.awaited.until {
		m.awaited.next = min(m.now+int64(askEvery), m.awaited.until)
		m.out.call(ReconcileCall{Runs: runs})
		return
	}
	for _, run := range runs {
		m.forget(m.runs.find(run))
	}
	m.out.reply(RunsMissing{Runs: runs})
	m.reportHosts()
}
