package shard

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Nearest is which host comes nearest to taking a task that no host takes now, among those where nothing but room is missing.
type Nearest struct {
	Host  workload.HostID
	Lacks resource.Vector // what is missing there
	Hosts int             // hosts where nothing but room is missing
}

// Less reports whether less is missing at n than at o, as parts of what a task needs, the scarcest kind first. No host is more than any.
func (n *Nearest) Less(o *Nearest, needs *resource.Vector) bool {
	if n.Hosts == 0 || o.Hosts == 0 {
		return n.Hosts > 0
	}
	a, b := n.part(needs), o.part(needs)
	return a < b
}

// part is the largest part of a need that is missing.
func (n *Nearest) part(needs *resource.Vector) float64 {
	most := 0.0
	for k, lack := range n.Lacks {
		if lack > 0 {
			most = max(most, float64(lack)/float64(needs[k]))
		}
	}
	return most
}

// nearest looks at every host, which only a dry run can afford. Ports, devices one by one, and what else is on the hosts are left to the
// reasons of the refusal.
func (m *Machine) nearest(class *placement.Class) (best Nearest) {
	hosts := 0
	for row := range host.Row(m.table.Rows()) {
		if !m.table.Has(row) || m.table.Draining(row) || !class.Matches(m.table, row) {
			continue
		}
		h := m.table.Host(row)
		if !h.Ready || !class.Needs.FitsIn(&h.Capacity) {
			continue
		}
		free := m.table.Free(row)
		var lacks resource.Vector
		for k, need := range class.Needs {
			if need > 0 {
				lacks[k] = max(need-free[k], 0)
			}
		}
		if lacks.IsZero() {
			continue
		}
		hosts++
		if n := (Nearest{Host: m.table.ID(row), Lacks: lacks, Hosts: 1}); n.Less(&best, &class.Needs) {
			best = n
		}
	}
	best.Hosts = hosts
	return best
}
