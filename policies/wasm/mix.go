package wasm

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

const (
	// mixMemory is how many tasks the mix remembers: beyond it all counts are halved.
	mixMemory = 1 << 16
	// mixStep is the least number of tasks after which the mix is told anew.
	mixStep = 64
)

// mix is the work that was asked for lately, by class: what policies take for the work to come.
type mix struct {
	counts map[placement.ClassID]*mixEntry
	total  int64
	fresh  int64 // since it was told last
	told   []byte
}

type mixEntry struct {
	class *placement.Class
	tasks int64
}

func (x *mix) add(r *placement.Request) {
	if x.counts == nil {
		x.counts = map[placement.ClassID]*mixEntry{}
	}
	e := x.counts[r.Class.ID]
	if e == nil {
		e = &mixEntry{class: r.Class}
		x.counts[r.Class.ID] = e
	}
	n := min(int64(r.Count), mixMemory/2)
	e.tasks += n
	x.total += n
	x.fresh += n
	for x.total > mixMemory || len(x.counts) > 4*policyabi.MaxMix {
		x.halve()
	}
}

func (x *mix) halve() {
	x.total = 0
	for id, e := range x.counts { // each is judged on its own
		if e.tasks /= 2; e.tasks == 0 {
			delete(x.counts, id)
		}
		x.total += e.tasks
	}
}

// encode writes the mix for an image and returns the number of entries. Small changes are not worth telling.
func (x *mix) encode(m *image, b []byte) uint32 {
	if x.told == nil || x.fresh >= max(mixStep, x.total/16) {
		x.tell(m)
	}
	return uint32(copy(b, x.told) / policyabi.MixBytes)
}

func (x *mix) tell(m *image) {
	x.fresh = 0
	entries := make([]*mixEntry, 0, len(x.counts))
	for _, e := range x.counts {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b *mixEntry) int {
		return cmp.Or(cmp.Compare(b.tasks, a.tasks), cmp.Compare(a.class.ID, b.class.ID))
	})
	entries = entries[:min(len(entries), policyabi.MaxMix)]
	total := int64(0)
	for _, e := range entries {
		total += e.tasks
	}
	x.told = make([]byte, len(entries)*policyabi.MixBytes)
	for i, e := range entries {
		entry := policyabi.Mix{
			Class: uint64(e.class.ID), Weight: float64(e.tasks) / float64(total), Share: int32(e.class.DeviceMilli()), Devices: int32(e.class.Devices()),
		}
		for k := range entry.Needs {
			entry.Needs[k] = m.units(resource.Kind(k), e.class.Needs[k])
		}
		for _, name := range e.class.GPUModels {
			if n, known := m.models[name]; known && n < 64 {
				entry.Models |= 1 << n
			}
		}
		entry.Encode(x.told[i*policyabi.MixBytes:])
	}
}
