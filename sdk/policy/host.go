package policy

import (
	"math/bits"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Host is one row of a table.
type Host struct {
	table *Table
	row   int
}

// Table is where the host stands.
func (h Host) Table() *Table { return h.table }

// Row is its row.
func (h Host) Row() int { return h.row }

// at is a value of a column, 0 where there is none.
func (h Host) at(column []int32) int64 {
	if h.row < len(column) {
		return int64(column[h.row])
	}
	return 0
}

// Free is what is free of a kind; it may be negative.
func (h Host) Free(k Kind) int64 { return h.at(h.table.free[k]) }

// Total is what the host has of a kind; it needs "total.*" or the kind's own among the columns.
func (h Host) Total(k Kind) int64 { return h.at(h.table.total[k]) }

// Usage is what is measured to be in use; it needs "usage.*" or the kind's own.
func (h Host) Usage(k Kind) int64 { return h.at(h.table.usage[k]) }

// Leftover is a value of Table.Leftover; it needs "leftover".
func (h Host) Leftover() int64 { return h.at(h.table.leftover) }

// FreeShare is a value of Table.FreeShare; it needs "free_share".
func (h Host) FreeShare() int64 { return h.at(h.table.freeShare) }

// Tasks is how many tasks are there; it needs "tasks".
func (h Host) Tasks() int64 { return h.at(h.table.tasks) }

// MaxDevices bounds the GPUs of a host.
const MaxDevices = policyabi.MaxDevices

// DevicesFree is thousandths of each GPU that are free, nil where the table has no devices.
func (h Host) DevicesFree() *[MaxDevices]int16 { return h.lanes(h.table.deviceFree) }

// DeviceModels is the model of each GPU, 0 for none, nil where the table has no devices.
func (h Host) DeviceModels() *[MaxDevices]int16 { return h.lanes(h.table.deviceModel) }

func (h Host) lanes(column []int16) *[MaxDevices]int16 {
	if column == nil {
		return nil
	}
	return (*[MaxDevices]int16)(column[h.row*MaxDevices:])
}

// Devices is a set of a host's GPUs, bit by lane.
type Devices uint16

// Len is how many there are.
func (d Devices) Len() int { return bits.OnesCount16(uint16(d)) }

// Lowest is the first of them.
func (d Devices) Lowest() int { return bits.TrailingZeros16(uint16(d)) }

// OpenDevices is the GPUs of a host that can each give what a task of the request takes of one.
func (h Host) OpenDevices(r *Request) Devices {
	free, models := h.DevicesFree(), h.DeviceModels()
	if free == nil {
		return 0
	}
	var open Devices
	for l, milli := range free {
		if milli > 0 && int32(milli) >= r.share && (models == nil || r.allows(models[l])) {
			open |= 1 << l
		}
	}
	return open
}

// LeastFree is the device of a set with the least free, the lowest among equals: where shares go, so that others stay whole.
func (h Host) LeastFree(open Devices) Devices { return h.extreme(open, 1) }

// MostFree is the device of a set with the most free, the lowest among equals.
func (h Host) MostFree(open Devices) Devices { return h.extreme(open, -1) }

func (h Host) extreme(open Devices, sign int16) Devices {
	free, best := h.DevicesFree(), -1
	if free == nil {
		return 0
	}
	for rest := open; rest != 0; rest &= rest - 1 {
		if l := rest.Lowest(); best < 0 || sign*free[l] < sign*free[best] {
			best = l
		}
	}
	if best < 0 {
		return 0
	}
	return 1 << best
}

// usual chooses as the scheduler does where a policy does not say.
func usual(r *Request, h Host, open Devices) Devices {
	if r.share < WholeDevice {
		return h.LeastFree(open)
	}
	return InOrder(r, open)
}

// WholeDevice is thousandths of a GPU.
const WholeDevice = policyabi.DeviceMilli

// InOrder is the first devices of a set, as many as a task of the request takes.
func InOrder(r *Request, open Devices) Devices {
	var picked Devices
	for range r.devices {
		lowest := open & -open
		picked |= lowest
		open &^= lowest
	}
	return picked
}
