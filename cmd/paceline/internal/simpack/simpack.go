// Package simpack measures packing: it feeds a trace of tasks to the host table and the placement that clusters are scheduled
// with, and reports how much of the GPU capacity ends up allocated, how much is left in unusable pieces, and why tasks were refused.
//
// The protocol is that of "Beware of Fragmentation" (Weng et al., USENIX ATC'23), so that its published figures compare: hosts
// with GPUs only; the tasks, sorted by name, are shuffled by a seed, then more are drawn from them until they ask for the wanted multiple of the GPU
// capacity; each is placed or dropped, nobody leaves, nobody waits.
//
// It owns the protocol and the report. It never measures time: a report is a function of its options and input. A Run has no
// shared state and starts no goroutines.
package simpack

import (
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/fragment"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of a run.
const (
	MaxSeeds  = 1000
	MaxDemand = 10.0
	maxHosts  = 1 << 17
	maxTasks  = 1 << 20
)

// Levels are the demands, in percent of the GPU capacity, at which a run is measured; those up to the run's demand count.
var Levels = []int{50, 60, 70, 80, 85, 90, 95, 100, 105, 110, 120, 130}

// Options say what to run.
type Options struct {
	Hosts  []Host
	Tasks  []Task
	Policy *Policy
	Seeds  []int64 // 1 to MaxSeeds, one repetition each
	Demand float64 // GPU demand as a multiple of the capacity, above 0, at most MaxDemand
}

// Host is one machine of the inventory.
type Host struct {
	Name      string
	CPUMilli  int64
	MemoryMiB int64
	GPUs      int
	Model     string
}

// Task is one task of the trace.
type Task struct {
	Name      string
	CPUMilli  int64
	MemoryMiB int64
	GPUs      int
	GPUMilli  int64    // of each device; 1000 unless GPUs is 1
	Models    []string // allowed GPU models; none: any
}

func (t *Task) gpuMilli() int64 { return int64(t.GPUs) * t.GPUMilli }

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	switch {
	case o.Policy == nil:
		return errors.New("no policy was given")
	case len(o.Seeds) == 0 || len(o.Seeds) > MaxSeeds:
		return fmt.Errorf("%d seeds were given: give 1 to %d", len(o.Seeds), MaxSeeds)
	case !(o.Demand > 0 && o.Demand <= MaxDemand):
		return fmt.Errorf("demand %v must be above 0 and at most %v times the capacity", o.Demand, MaxDemand)
	case !slices.ContainsFunc(o.Hosts, func(h Host) bool { return h.GPUs > 0 }):
		return errors.New("no host of the inventory has a GPU: packing is measured on GPU hosts only")
	case !slices.ContainsFunc(o.Tasks, func(t Task) bool { return t.gpuMilli() > 0 }):
		return errors.New("no task of the trace asks for a GPU: demand is measured in GPUs")
	}
	return nil
}

// Run runs the protocol once for each seed.
func Run(o Options) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	w := newWorkload(&o)
	report := Report{
		Policy: o.Policy.Name, Digest: o.Policy.Digest, Seeds: o.Seeds, Demand: o.Demand,
		Hosts: len(w.hosts), GPUs: int(w.capacity / host.DeviceMilli), NotPlaced: map[string]int{},
	}
	allocated, fragmented := newSeries(o.Demand), newSeries(o.Demand)
	for _, seed := range o.Seeds {
		if err := w.repeat(o.Policy, seed, &report, allocated, fragmented); err != nil {
			return Report{}, fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	report.Allocated, report.Fragmented = allocated.finish(), fragmented.finish()
	return report, nil
}

// shape is all tasks that ask for the same.
type shape struct {
	task   Task
	class  *placement.Class
	weight int64 // how many tasks of the trace have it
}

// trace is the input of all repetitions, in the form they need.
type trace struct {
	hosts    []Host  // with GPUs
	shapes   []shape // in the order of first use
	order    []int   // shape of each task, by task name
	likely   []placement.Share
	capacity int64 // GPU, in thousandths
	target   int64 // demand to reach, likewise
}

func newWorkload(o *Options) *trace {
	w := &trace{}
	for _, h := range o.Hosts {
		if h.GPUs > 0 {
			w.hosts = append(w.hosts, h)
			w.capacity += int64(h.GPUs) * host.DeviceMilli
		}
	}
	w.target = int64(float64(w.capacity) * o.Demand)
	tasks := slices.Clone(o.Tasks)
	slices.SortStableFunc(tasks, func(a, b Task) int { return strings.Compare(a.Name, b.Name) })
	index := map[placement.ClassID]int{}
	for _, t := range tasks {
		class := classOf(&t, o.Policy.strategy)
		i, ok := index[class.ID]
		if !ok {
			i = len(w.shapes)
			index[class.ID] = i
			w.shapes = append(w.shapes, shape{task: t, class: class})
		}
		w.shapes[i].weight++
		w.order = append(w.order, i)
	}
	w.likely = w.expected()
	return w
}

func classOf(t *Task, policy workload.Strategy) *placement.Class {
	return placement.NewClass(workload.JobID{}, &workload.JobSpec{
		Kind: workload.Batch,
		Template: workload.TaskTemplate{
			Needs:     resource.Vector{resource.CPU: t.CPUMilli, resource.Memory: t.MemoryMiB, resource.GPU: t.gpuMilli()},
			GPUModels: t.Models,
		},
		Placement: workload.Placement{Strategy: policy},
	}, nil)
}

// draw returns the shapes of one repetition's tasks in the order of their arrival. The calls on rng are part of the protocol.
func (w *trace) draw(seed int64) []int {
	rng := rand.New(rand.NewSource(seed))
	list := slices.Clone(w.order)
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	demand := int64(0)
	for _, s := range list {
		demand += w.shapes[s].task.gpuMilli()
	}
	for drawn := len(list); demand < w.target; {
		s := list[rng.Intn(drawn)]
		list = append(list, s)
		demand += w.shapes[s].task.gpuMilli()
	}
	return list
}

func (w *trace) table() (*host.Table, error) {
	table := host.New(&resource.Names{}, len(w.hosts))
	for i, h := range w.hosts {
		row := host.Host{
			Name: h.Name, Ready: true,
			Capacity: resource.Vector{resource.CPU: h.CPUMilli, resource.Memory: h.MemoryMiB},
		}
		row.ID[14], row.ID[15], row.ID[13], row.ID[0] = byte(i>>8), byte(i), byte(i>>16), 1
		for range h.GPUs {
			row.Devices = append(row.Devices, host.Device{Model: h.Model, Milli: host.DeviceMilli})
		}
		if _, err := table.Upsert(row); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// mix is what a task to come is drawn from: the trace.
func (w *trace) mix() *fragment.Measure {
	var m fragment.Measure
	for i := range w.shapes {
		m.Add(w.shapes[i].class, w.shapes[i].weight)
	}
	return &m
}

// repeat places the tasks of one seed until the demand is reached, and measures at each level on the way.
func (w *trace) repeat(policy *Policy, seed int64, report *Report, allocated, fragmented *series) error {
	table, err := w.table()
	if err != nil {
		return err
	}
	placer := policy.placer(w.likely)
	defer placer.close()
	placed, demand := int64(0), int64(0)
	level := 0
	mix := w.mix()
	for _, s := range w.draw(seed) {
		if demand >= w.target {
			break
		}
		result := placer.Place(table, []placement.Request{{Class: w.shapes[s].class, Count: 1}})[0]
		if placer.fault != nil {
			return placer.fault
		}
		report.Tasks++
		demand += w.shapes[s].task.gpuMilli()
		if result.Refused == 0 {
			placed += w.shapes[s].task.gpuMilli()
		} else {
			report.NotPlaced[dominant(&result.Reasons).String()]++
		}
		for level < len(allocated.levels) && demand >= int64(allocated.levels[level])*w.capacity/100 {
			allocated.add(level, percent(placed, w.capacity))
			fragmented.add(level, 100*mix.Of(table)/float64(w.capacity))
			level++
		}
	}
	return nil
}

func percent(part, whole int64) float64 { return 100 * float64(part) / float64(whole) }

// dominant returns the reason that most hosts gave, the first in precedence among equals.
func dominant(r *placement.Reasons) placement.Reason {
	best := placement.Reason(0)
	for reason := range placement.NumReasons {
		if r.Counts[reason] > r.Counts[best] {
			best = reason
		}
	}
	return best
}
