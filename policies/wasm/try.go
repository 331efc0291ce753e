package wasm

import (
	"fmt"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// The table of the trial.
const (
	trialRows    = 1024
	trialDevices = 8
	trialTasks   = 48
	trialMix     = 64 // classes
)

// try brings an instance up for each kind that the policy is of and has it decide on tables of the trial's own. What that costs is what calls are measured by
// from then on.
func (v *Version) try() error {
	for _, kind := range v.module.Capability.Kinds {
		if err := v.tryKind(kind); err != nil {
			return err
		}
	}
	return nil
}

// tryPlace places some tasks.
func (v *Version) tryPlace() error {
	slot := &Slot{}
	slot.Swap(v)
	var fault *Fault
	p := NewPlacer(PlacerConfig{Slot: slot, OnFault: func(f *Fault) { fault = f }, CallWork: 1 << 40, Expected: trialExpected()})
	defer p.Close()
	t := trialTable()
	for range 2 { // a second time for what the first one only set up
		for _, class := range trialClasses() {
			for _, n := range []int{1, trialTasks} {
				before := v.counters.Fuel.Load()
				p.Plan(t, []placement.Request{{Class: class, Count: n}})
				if fault != nil {
					return fault
				}
				v.budget.used(p.call.work, int64(v.counters.Fuel.Load()-before))
			}
		}
	}
	v.budget.seal()
	return nil
}

// trialTable has no two hosts that are alike: a policy that remembers what it saw of one is to pay for each.
func trialTable() *host.Table {
	names, err := resource.NewNames(nil)
	if err != nil {
		panic("no names are always good names: " + err.Error())
	}
	t := host.New(names, trialRows)
	for i := range trialRows {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprintf("trial-%d", i), Ready: true,
			Capacity: resource.Vector{resource.CPU: int64(32000 + i%7*8000 + i), resource.Memory: int64(65536 << (i % 3)), resource.Disk: 1 << 20},
		}
		if i%4 == 0 {
			for l := range int64(trialDevices) { // some have less, as when shares of them are gone
				h.Devices = append(h.Devices, host.Device{Model: "trial", Milli: host.DeviceMilli - l%2*100*l})
			}
		}
		if _, err := t.Upsert(h); err != nil {
			panic("the trial's own hosts are within bounds: " + err.Error())
		}
	}
	return t
}

func trialClasses() []*placement.Class {
	var classes []*placement.Class
	for _, needs := range []resource.Vector{
		{resource.CPU: 1000, resource.Memory: 2048},
		{resource.CPU: 4000, resource.Memory: 8192, resource.GPU: 500},
		{resource.CPU: 8000, resource.Memory: 16384, resource.Disk: 100, resource.GPU: 2000},
	} {
		spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: needs}}
		classes = append(classes, placement.NewClass(workload.JobID{}, spec, nil))
	}
	return classes
}

// trialExpected is a class mix for policies that look ahead: they do more for each row, the more classes they are told.
func trialExpected() []placement.Share {
	var mix []placement.Share
	for i := range int64(trialMix) {
		spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{
			Needs: resource.Vector{resource.CPU: 500 * (1 + i%16), resource.Memory: 1024 * (1 + i%7), resource.GPU: 50 * i % 1050},
		}}
		mix = append(mix, placement.Share{Class: placement.NewClass(workload.JobID{}, spec, nil), Weight: float64(trialMix + 1 - i)})
	}
	return mix
}
