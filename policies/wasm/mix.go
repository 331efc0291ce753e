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
	counts  map[placement.ClassID]*mixEntry
	total   int64
	fresh   int64             // since it was told last
	told    []placement.Share // never changed, only replaced
	version uint64            // of told; 0: nothing was told yet
	fixed   bool              // told was given
}

// fix makes the mix what is expected, whatever is asked for.
func (x *mix) fix(expected []placement.Share) {
	list := slices.Clone(expected)
	slices.SortStableFunc(list, func(a, b placement.Share) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Class.ID, b.Class.ID))
	})
	list = list[:min(len(list), policyabi.MaxMix)]
	total := 0.0
	for _, s := range list {
		total += s.Weight
	}
	for i := range list {
		list[i].Weight /= total
	}
	x.told, x.version, x.fixed = list, 1, true
}

type mixEntry struct {
	class *placement.Class
	tasks int64
}

func (x *mix) add(r *placement.Request) {
	if x.fixed {
		return
	}
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

// renew tells the mix anew. Small changes are not worth telling.
func (x *mix) renew() {
	if x.version == 0 || !x.fixed && x.fresh >= max(mixStep, x.total/16) {
		x.tell()
	}
}

// force tells a mix that was told before.
func (x *mix) force(told []placement.Share) {
	told = told[:min(len(told), policyabi.MaxMix)]
	if x.version == 0 || !slices.Equal(x.told, told) {
		x.told = told
		x.version++
	}
}

// encode writes the mix for an image that does not have it yet and returns the number of entries.
func (x *mix) encode(m *image, b []byte) uint32 {
	if m.mix != x.version {
		m.mix, m.mixSent = x.version, false
		for i := range x.told {
			encodeShare(m, &x.told[i], b[i*policyabi.MixBytes:])
		}
	}
	return uint32(len(x.told))
}

func (x *mix) tell() {
	x.fresh = 0
	x.version++
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
	x.told = make([]placement.Share, 0, len(entries))
	for _, e := range entries {
		x.told = append(x.told, placement.Share{Class: e.class, Weight: float64(e.tasks) / float64(total)})
	}
}

func encodeShare(m *image, s *placement.Share, b []byte) {
	entry := policyabi.Mix{Class: uint64(s.Class.ID), Weight: s.Weight, Share: int32(s.Class.DeviceMilli()), Devices: int32(s.Class.Devices())}
	for k := range entry.Needs {
		entry.Needs[k] = m.units(resource.Kind(k), s.Class.Needs[k])
	}
	for _, name := range s.Class.GPUModels {
		if n, known := m.models[name]; known && n < 64 {
			entry.Models |= 1 << n
		}
	}
	if len(s.Class.GPUModels) > 0 && entry.Models == 0 {
		entry.Models = 1 // no device is of model 0
	}
	entry.Encode(b)
}
