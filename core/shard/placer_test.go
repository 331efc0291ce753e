package shard_test

import (
	"cmp"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// firstFit is a placer so plain that a reader of a scenario sees where work will go: the lowest row with room.
type firstFit struct{}

func (firstFit) Place(t *host.Table, requests []placement.Request) []placement.Result {
	results := make([]placement.Result, len(requests))
	for i := range requests {
		r, result := &requests[i], &results[i]
		for row := host.Row(0); int(row) < t.Rows() && len(result.Assignments) < r.Count; row++ {
			for len(result.Assignments) < r.Count && usable(t, row, r) {
				a := placement.Assignment{Row: row, Devices: pickDevices(t, row, r.Class), Ports: r.Class.Ports}
				if t.Take(row, r.Class.Occupant(a.Devices, a.Ports)) != nil {
					break
				}
				result.Assignments = append(result.Assignments, a)
			}
		}
		result.Refused = r.Count - len(result.Assignments)
		result.Reasons.Hosts = t.Len()
		if r.Gang && result.Refused > 0 {
			result.Reasons.GangLargest = len(result.Assignments)
			for _, a := range result.Assignments {
				if err := t.Release(a.Row, r.Class.Occupant(a.Devices, a.Ports)); err != nil {
					panic(err)
				}
			}
			result.Assignments, result.Refused = nil, r.Count
		}
	}
	return results
}

func usable(t *host.Table, row host.Row, r *placement.Request) bool {
	if !t.Has(row) || !t.Host(row).Ready || t.Draining(row) || !r.Class.Matches(t, row) {
		return false
	}
	if (r.Host != workload.HostID{}) && t.ID(row) != r.Host {
		return false
	}
	free := t.Free(row)
	return r.Class.Needs.FitsIn(&free)
}

// pickDevices takes the lowest devices with enough left.
func pickDevices(t *host.Table, row host.Row, class *placement.Class) placement.DeviceSet {
	var set placement.DeviceSet
	free, _ := t.Lanes(row)
	for need, device := class.Needs[resource.GPU], 0; need > 0 && device < host.MaxDevices; device++ {
		if share := min(need, host.DeviceMilli); free[device] >= share {
			set |= 1 << device
			need -= share
		}
	}
	return set
}

// placers are the sources of tests: one placer per policy name.
type placers map[string]placement.Placer

func (p placers) Placer(policy string) (placement.Placer, bool) {
	placer, ok := p[cmp.Or(policy, string(workload.StrategyBestFit))]
	return placer, ok
}

// overfill is a placer that puts everything on the lowest row, whatever is free there.
type overfill struct{}

func (overfill) Place(t *host.Table, requests []placement.Request) []placement.Result {
	results := make([]placement.Result, len(requests))
	for i, r := range requests {
		for range r.Count {
			a := placement.Assignment{Row: 0, Devices: pickDevices(t, 0, r.Class)}
			if t.Take(a.Row, r.Class.Occupant(a.Devices, nil)) == nil {
				results[i].Assignments = append(results[i].Assignments, a)
			}
		}
	}
	return results
}

// vandal is a placer whose answers make no sense: rows that are not there, too many assignments, too many results.
type vandal struct{}

func (vandal) Place(t *host.Table, requests []placement.Request) []placement.Result {
	nonsense := []placement.Assignment{{Row: -1}, {Row: host.Row(t.Rows())}, {Row: 0, Devices: 1 << 15}, {Row: 0, Ports: []uint16{80}}}
	results := make([]placement.Result, len(requests)+1)
	for i := range results {
		results[i].Assignments = nonsense
	}
	return results
}
