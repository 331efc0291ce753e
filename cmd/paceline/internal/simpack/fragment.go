package simpack

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// fragmentation returns how many thousandths of free GPU a task drawn from the trace could not use, in expectation: the
// measure of the FGD paper. On a host that cannot take the task, all that is free is lost to it, so too when it asks for no GPU;
// on one that can, the free shares of those devices that are too small for it.
func (w *trace) fragmentation(table *host.Table) float64 {
	total := 0.0
	for row := range host.Row(table.Rows()) {
		free := table.Free(row)
		if free[resource.GPU] <= 0 {
			continue
		}
		lanes, _ := table.Lanes(row)
		model := table.Host(row).Devices[0].Model
		lost := int64(0)
		for i := range w.shapes {
			s := &w.shapes[i]
			lost += s.weight * unusable(&s.task, &free, lanes, model)
		}
		total += float64(lost) / float64(len(w.order))
	}
	return total
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
