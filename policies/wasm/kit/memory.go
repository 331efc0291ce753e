package kit

import (
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
)

const (
	memoryRows = 64
	// memoryDoublings is how often a policy whose memory still grows is watched for twice as long: an allocator, or a collector, needs calls to come to rest.
	memoryDoublings = 3
)

// rest watches an instance's memory over many calls. It must come to rest: for as many calls as there were before it must not grow. call makes a call and returns the memory's size
// in bytes and how many calls there were.
func (r *Report) rest(name string, o Options, call func() (size, calls int, err error)) {
	watch := o.Calls / 2
	size, calls := 0, 0
	run := func() bool {
		for range watch {
			var err error
			if size, calls, err = call(); err != nil {
				r.add(name, Failed, "after %d calls: %v", calls, err)
				return false
			}
		}
		return true
	}
	for doubling := 0; run(); doubling++ {
		was := size
		if !run() {
			return
		}
		if size == was {
			r.add(name, Passed, "%d KiB, the same for the last %d of %d calls", size>>10, watch, calls)
			return
		}
		if doubling == memoryDoublings {
			r.add(name, Failed, "it grew from %d to %d KiB in the last %d of %d calls: free, or reuse, what a call allocates", was>>10, size>>10, watch, calls)
			return
		}
		watch *= 2
	}
}

// memory watches the memory of a policy of placement.
func (j *judge) memory() {
	s := scene{hosts: fixed(memoryRows), work: 1 << 40}
	size, calls := 0, 0
	p := j.newPlayer(&s, func(_ *player, c *wasm.Call) { size, calls = c.Memory, calls+1 })
	defer p.placer.Close()
	st := stage{scene: &s, draw: newDraw(j.options.Seed, 1<<20, 0), books: newBooks(), tables: alike(p)}
	if why := st.raise(); why != "" {
		j.report.add("memory", Failed, "%s", why)
		return
	}
	spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 500, resource.Memory: 256}}}
	requests := []placement.Request{{Class: placement.NewClass(workload.JobID{1}, spec, nil), Count: 4}}
	j.report.rest("memory", j.options, func() (int, int, error) {
		if p.placer.Plan(p.table, requests); p.fault != nil {
			return size, calls, p.fault
		}
		return size, calls, nil
	})
}
