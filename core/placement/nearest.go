package placement

import (
	"math/bits"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// Nearest is the host that comes nearest to taking a task which no host takes now, among those where nothing but room is missing: what the
// host is, what else is on it and around it, and its ports are right, and empty it would do.
type Nearest struct {
	Row   host.Row
	Lacks resource.Vector // what is missing there; of GPUs, whole devices where the task takes whole ones
	Hosts int             // such hosts; 0: there is none, or nobody can be sure
}

// Nearest looks at every host, or at one alone if only is not host.NoRow; only a dry run can afford it. Least is missing where the largest part of a need that is missing is
// smallest; ties go to the lowest row. It is silent about classes that must be near others: those may be the very ones to go.
func (n *Native) Nearest(t *host.Table, class *Class, only host.Row) (best Nearest) {
	for i := range class.Placement.Affinities {
		if a := &class.Placement.Affinities[i]; !a.Anti && a.Weight == 0 {
			return Nearest{}
		}
	}
	s := n.search(t, class, 1)
	least := 0.0
	for row := range host.Row(t.Rows()) {
		if only != host.NoRow && row != only {
			continue
		}
		lacks, ok := s.lacks(row)
		if !ok {
			continue
		}
		if part := lacks.PartOf(&class.Needs); best.Hosts == 0 || part < least {
			best.Row, best.Lacks, least = row, lacks, part
		}
		best.Hosts++
	}
	return best
}

// lacks is what is missing at a host where something is, and nothing but room.
func (s *search) lacks(row host.Row) (lacks resource.Vector, onlyRoom bool) {
	if !s.table.Has(row) || !s.everFits(row) || (s.ports && !s.table.PortsFit(row, s.class.Ports)) {
		return lacks, false
	}
	if _, refused := s.refusedBySelf(row); refused {
		return lacks, false
	}
	if _, refused := s.refusedByOthers(row); refused {
		return lacks, false
	}
	free := s.table.Free(row)
	for k, need := range s.class.Needs {
		if need > 0 {
			lacks[k] = max(need-free[k], 0)
		}
	}
	if s.class.Needs[resource.GPU] > 0 {
		lacks[resource.GPU] = max(lacks[resource.GPU], s.lacksDevices(row))
	}
	return lacks, !lacks.IsZero()
}

// lacksDevices is what is missing of devices of an allowed model: whole ones, or of the one that has most left.
func (s *search) lacksDevices(row host.Row) int64 {
	milli, free := s.class.DeviceMilli(), int64(0)
	lanes, _ := s.table.Lanes(row)
	if milli == host.DeviceMilli {
		return host.DeviceMilli * max(0, s.class.deviceCount()-size(s.openDevices(row)))
	}
	for rest := uint16(s.table.DevicesOf(row, s.class.GPUModels)); rest != 0; rest &= rest - 1 {
		free = max(free, lanes[bits.TrailingZeros16(rest)])
	}
	return max(0, milli-free)
}
