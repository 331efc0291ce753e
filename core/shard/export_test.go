package shard

import (
	"reflect"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/preemption"
)

// Table lets tests compare the books with what they expect. They only read it.
func (m *Machine) Table() *host.Table { return m.table }

// SearchRemembers reports whether what the machine's search remembers of hosts is as it is, and of how many it remembers anything.
func (m *Machine) SearchRemembers() (hosts int, right bool) {
	for row := range host.Row(m.table.Rows()) {
		runs, remembered := m.search.Remembered(m.table, row)
		if !remembered {
			continue
		}
		hosts++
		now := residents{m}.Tenants(row, nil)
		slices.SortFunc(now, func(a, b preemption.Run) int { return compareRuns(a.ID, b.ID) })
		if len(runs)+len(now) > 0 && !reflect.DeepEqual(runs, now) {
			return hosts, false
		}
	}
	return hosts, true
}

// The bounds that tests fill.
const (
	MaxHeld      = maxHeld
	MaxForeign   = maxForeign
	MaxWatches   = maxWatches
	AskEvery     = askEvery
	AnswerWithin = answerWithin
)
