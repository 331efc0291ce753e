package placement

import (
	"math/bits"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// openDevices returns the devices of an allowed model that can give what the class takes of one.
func (s *search) openDevices(row host.Row) DeviceSet {
	free, _ := s.table.Lanes(row)
	return enough(s.table.DevicesOf(row, s.class.GPUModels), free, s.class.DeviceMilli())
}

// enough returns the devices of a set that have at least milli.
func enough(set DeviceSet, lanes *[MaxDevices]int64, milli int64) DeviceSet {
	for rest := uint16(set); rest != 0; rest &= rest - 1 {
		if i := bits.TrailingZeros16(rest); lanes[i] < milli {
			set &^= 1 << i
		}
	}
	return set
}

func size(set DeviceSet) int64 { return int64(bits.OnesCount16(uint16(set))) }

// pickDevices chooses the devices for one task on a host that fits.
func (s *search) pickDevices(row host.Row) DeviceSet {
	if s.class.Needs[resource.GPU] <= 0 {
		return 0
	}
	open := s.openDevices(row)
	if s.class.DeviceMilli() == host.DeviceMilli {
		var picked DeviceSet
		for range s.class.deviceCount() {
			lowest := open & -open
			picked |= lowest
			open &^= lowest
		}
		return picked
	}
	free, _ := s.table.Lanes(row)
	best := -1
	for rest := uint16(open); rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros16(rest)
		if best < 0 || s.sign*free[i] < s.sign*free[best] {
			best = i
		}
	}
	return 1 << best
}

// oddDevices reports a need that no host can serve: more than one device, and not whole ones.
func (s *search) oddDevices() bool {
	gpu := s.class.Needs[resource.GPU]
	return gpu > host.DeviceMilli && gpu%host.DeviceMilli != 0
}

// timesDevices returns how many tasks the devices of a host can serve.
func (s *search) timesDevices(row host.Row) int64 {
	milli := s.class.DeviceMilli()
	if milli == 0 {
		return int64(^uint64(0) >> 1)
	}
	open := s.openDevices(row)
	if milli == host.DeviceMilli {
		return size(open) / s.class.deviceCount()
	}
	free, _ := s.table.Lanes(row)
	n := int64(0)
	for rest := uint16(open); rest != 0; rest &= rest - 1 {
		n += free[bits.TrailingZeros16(rest)] / milli
	}
	return n
}

// refusedByDevices tells a lack of free devices from a lack of devices of an allowed model.
func (s *search) refusedByDevices(row host.Row, free int64) (Reason, bool) {
	if s.class.Needs[resource.GPU] <= 0 {
		return 0, false
	}
	lanes, _ := s.table.Lanes(row)
	want := s.class.deviceCount()
	unused := enough(s.table.DevicesOf(row, nil), lanes, s.class.DeviceMilli())
	switch {
	case free < s.class.Needs[resource.GPU] || size(unused) < want || s.oddDevices():
		return ReasonGPU, true
	case size(s.openDevices(row)) >= want:
		return 0, false
	case s.class.modelsFit(s.table, row):
		return ReasonGPU, true
	}
	return ReasonGPUModel, true
}

// devicesEverFit reports whether the devices of a host would do if they were all free.
func (s *search) devicesEverFit(row host.Row) bool {
	if s.class.Needs[resource.GPU] <= 0 {
		return true
	}
	_, capacity := s.table.Lanes(row)
	open := enough(s.table.DevicesOf(row, s.class.GPUModels), capacity, s.class.DeviceMilli())
	return size(open) >= s.class.deviceCount() && !s.oddDevices()
}
