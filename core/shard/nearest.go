package shard

import (
	"bytes"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxHolders bounds the jobs that a Nearest lists.
const maxHolders = 64

// Nearest is which host comes nearest to taking a task that no host takes now, among those where nothing but room is missing.
type Nearest struct {
	Host  workload.HostID
	Lacks resource.Vector // what is missing there
	Hosts int             // hosts where nothing but room is missing
	// Holders are the jobs with live runs on Host, by id, at most maxHolders.
	Holders []holder
}

// holder is what the live runs of one job hold on a host.
type holder struct {
	Job   workload.JobID
	Holds resource.Vector
	// Shares says that some of it are shares of GPUs, which may lie on several devices.
	Shares bool
}

// nearest looks at every host, or at the one that is asked for; only a dry run can afford it.
func (m *Machine) nearest(class *placement.Class, only workload.HostID) Nearest {
	row := host.NoRow
	if only != (workload.HostID{}) {
		h := m.hosts[only]
		if h == nil || !h.known() {
			return Nearest{}
		}
		row = h.row
	}
	found := m.judge.Nearest(m.table, class, row)
	if found.Hosts == 0 {
		return Nearest{}
	}
	best := Nearest{Host: m.table.ID(found.Row), Lacks: found.Lacks, Hosts: found.Hosts}
	if h := m.hosts[best.Host]; h != nil {
		best.Holders = h.holders()
	}
	return best
}

// holders sums up by job what the core could have ended on the host.
func (h *machineHost) holders() (list []holder) {
	at := map[workload.JobID]int{}
	for _, t := range h.tenants {
		if t.lease != 0 || !t.booked || !t.bound {
			continue
		}
		n, known := at[t.run.Job]
		if !known {
			n = len(list)
			at[t.run.Job], list = n, append(list, holder{Job: t.run.Job})
		}
		list[n].Holds = list[n].Holds.Add(t.class.Needs)
		list[n].Shares = list[n].Shares || t.class.Needs[resource.GPU]%1000 != 0
	}
	slices.SortFunc(list, func(a, b holder) int { return bytes.Compare(a.Job[:], b.Job[:]) })
	return list[:min(len(list), maxHolders)]
}
