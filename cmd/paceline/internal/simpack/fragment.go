package simpack

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// losses remembers what is lost on each host as long as the host does not change: most do not from one level to the next.
type losses struct {
	version []uint64 // of the row when lost was computed
	lost    []float64
}

// fragmentation returns how many thousandths of free GPU a task drawn from the trace could not use, in expectation: the
// measure of the FGD paper. On a host that cannot take the task, all that is free is lost to it, so too when it asks for no GPU;
// on one that can, the free shares of those devices that are too small for it.
func (w *trace) fragmentation(table *host.Table, l *losses) float64 {
	if l.version == nil {
		l.version, l.lost = make([]uint64, table.Rows()), make([]float64, table.Rows())
	}
	total := 0.0
	for row := range host.Row(table.Rows()) {
		if v := table.Version(row); l.version[row] != v {
			l.version[row], l.lost[row] = v, w.lostOn(table, row)
		}
		total += l.lost[row]
	}
	return total
}

func (w *trace) lostOn(table *host.Table, row host.Row) float64 {
	free := table.Free(row)
	if free[resource.GPU] <= 0 {
		return 0
	}
	lanes, _ := table.Lanes(row)
	model := table.Host(row).Devices[0].Model
	lost := int64(0)
	for i := range w.shapes {
		s := &w.shapes[i]
		lost += s.weight * unusable(&s.task, &free, lanes, model)
	}
	return float64(lost) / float64(len(w.order))
}

func unusable(t *Task, free *resource.Vector, lanes *[host.MaxDevices]int64, model string) int64 {
	allowed := len(t.Models) == 0
	for _, m := range t.Models {
		allowed = allowed || m == model
	}
	if t.GPUs == 0 || !allowed || t.CPUMilli > free[resource.CPU] || t.MemoryMiB > free[resource.Memory] {
		return free[resource.GPU]
	}
	enough, tooSmall := 0, int64(0)
	for _, lane := range lanes {
		if lane >= t.GPUMilli {
			enough++
		} else {
			tooSmall += lane
		}
	}
	if enough < t.GPUs {
		return free[resource.GPU]
	}
	return tooSmall
}
