// Package fragment measures how much of the free GPU capacity of a host table is in pieces of no use to the work that comes: the measure of "Beware of
// Fragmentation" (Weng et al., USENIX ATC'23). It is pure; a Measure has one owner.
package fragment

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
)

// Measure is a mix of work, and what is lost to it on the hosts of one table. The zero value holds no work.
type Measure struct {
	shapes []shape
	index  map[placement.ClassID]int
	total  int64

	table   *host.Table // of the last call of Of
	version []uint64    // of the row when lost was computed
	lost    []float64
}

// shape is all tasks of a class.
type shape struct {
	class  *placement.Class
	weight int64
}

// Add counts more tasks of a class into the mix.
func (m *Measure) Add(class *placement.Class, tasks int64) {
	if m.index == nil {
		m.index = map[placement.ClassID]int{}
	}
	i, known := m.index[class.ID]
	if !known {
		i = len(m.shapes)
		m.index[class.ID] = i
		m.shapes = append(m.shapes, shape{class: class})
	}
	m.shapes[i].weight += tasks
	m.total += tasks
	m.table = nil
}

// Of returns how many thousandths of free GPU a task drawn from the mix could not use, in expectation. On a host that cannot take the task, all that
// is free is lost to it, so too when it asks for no GPU; on one that can, the free shares of those devices that are too small for it or of another model.
// What is lost on a host is remembered until the host changes: most do not from one call to the next.
func (m *Measure) Of(t *host.Table) float64 {
	if m.total == 0 {
		return 0
	}
	if m.table != t || len(m.version) != t.Rows() {
		m.table, m.version, m.lost = t, make([]uint64, t.Rows()), make([]float64, t.Rows())
	}
	total := 0.0
	for row := range host.Row(t.Rows()) {
		if v := t.Version(row); m.version[row] != v {
			m.version[row], m.lost[row] = v, m.lostOn(t, row)
		}
		total += m.lost[row]
	}
	return total
}

func (m *Measure) lostOn(t *host.Table, row host.Row) float64 {
	free := t.Free(row)
	if !t.Has(row) || free[resource.GPU] <= 0 {
		return 0
	}
	lost := int64(0)
	for i := range m.shapes {
		lost += m.shapes[i].weight * unusable(t, row, &free, m.shapes[i].class)
	}
	return float64(lost) / float64(m.total)
}

func unusable(t *host.Table, row host.Row, free *resource.Vector, c *placement.Class) int64 {
	for k, need := range &c.Needs {
		if resource.Kind(k) != resource.GPU && need > 0 && need > free[k] {
			return free[resource.GPU]
		}
	}
	allowed := t.DevicesOf(row, c.GPUModels)
	lanes, _ := t.Lanes(row)
	enough, tooSmall := 0, int64(0)
	for i, lane := range lanes {
		switch {
		case allowed&(1<<i) != 0 && lane >= c.DeviceMilli():
			enough++
		case lane > 0:
			tooSmall += lane
		}
	}
	if c.Devices() == 0 || enough < c.Devices() {
		return free[resource.GPU]
	}
	return tooSmall
}
