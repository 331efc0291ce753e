package policytest

import (
	"math"
	"slices"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/internal/score"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// families of a column for each kind.
var perKind = []policyabi.ColumnID{policyabi.ColumnFree, policyabi.ColumnTotal, policyabi.ColumnInverse, policyabi.ColumnSlack, policyabi.ColumnUsage}

// columns lists what the table has of what is wanted: everything but named resources.
func (b *books) columns(wants []policyabi.Want) []policyabi.Column {
	var list []policyabi.Column
	slot := policyabi.ColumnID(0)
	for _, w := range wants {
		switch {
		case w.Column == policyabi.ColumnTopology:
			list = append(list, policyabi.Column{ID: w.Column + slot, Key: policyabi.Hash(w.Name)})
			slot++
		case w.Column == policyabi.ColumnExtension:
			list = append(list, policyabi.Column{ID: w.Column, Key: policyabi.Hash(w.Name), Type: policyabi.Int32, Lanes: 1})
		case w.Name != "":
		case w.Every:
			for k := range policyabi.KindNames {
				list = append(list, policyabi.Column{ID: w.Column + policyabi.ColumnID(k)})
			}
		default:
			list = append(list, policyabi.Column{ID: w.Column})
		}
	}
	var once []policyabi.Column
	for _, c := range list {
		if !slices.Contains(once, c) {
			once = append(once, c)
		}
	}
	return once
}

// fill writes the columns.
func (b *books) fill(arena []byte, layout *policyabi.Layout, wants []policyabi.Want) {
	scale := score.Measure(&b.total)
	for i := range layout.Entries {
		e := &layout.Entries[i]
		for row := range b.hosts {
			cell := arena[int(e.Offset)+row*int(e.Stride):][:e.Stride]
			switch {
			case e.ID >= policyabi.ColumnDeviceFree && e.ID <= policyabi.ColumnDeviceModel:
				b.putLanes(cell, e.ID, row)
			case e.Type == policyabi.Int64:
				le.PutUint64(cell, uint64(row+1))
			case e.ID >= policyabi.ColumnInverse && e.ID < policyabi.ColumnInverse+policyabi.MaxKinds:
				inverse := float32(0)
				if total := b.total[e.ID-policyabi.ColumnInverse][row]; total > 0 {
					inverse = 1 / float32(total)
				}
				le.PutUint32(cell, math.Float32bits(inverse))
			default:
				le.PutUint32(cell, uint32(b.number(e, row, &scale, wants)))
			}
		}
	}
}

// number is the value of an int32 column.
func (b *books) number(e *policyabi.Entry, row int, scale *score.Scale, wants []policyabi.Want) int32 {
	h := &b.hosts[row]
	for _, first := range perKind {
		if e.ID < first || e.ID >= first+policyabi.MaxKinds {
			continue
		}
		k := e.ID - first
		switch first {
		case policyabi.ColumnFree:
			return b.free[k][row]
		case policyabi.ColumnTotal:
			return b.total[k][row]
		case policyabi.ColumnUsage:
			return int32([...]int64{h.Usage.CPU, h.Usage.Memory, h.Usage.Disk, 0}[k])
		default:
			return 0
		}
	}
	left, share := scale.Row(&b.free, &b.total, row)
	whole, largest := int32(0), int32(0)
	for _, free := range b.lanes[row] {
		if free >= policyabi.DeviceMilli {
			whole++
		}
		largest = max(largest, int32(free))
	}
	switch e.ID {
	case policyabi.ColumnLeftover:
		return left
	case policyabi.ColumnFreeShare:
		return share
	case policyabi.ColumnDeviceWhole:
		return whole
	case policyabi.ColumnDeviceLargest:
		return largest
	case policyabi.ColumnTasks:
		return int32(h.Tasks)
	case policyabi.ColumnFlags:
		return policyabi.HostUsable | policyabi.HostReady
	default:
		return b.given(e, row, wants)
	}
}

// given is a column that the host was told with.
func (b *books) given(e *policyabi.Entry, row int, wants []policyabi.Want) int32 {
	h := &b.hosts[row]
	for _, w := range wants {
		if w.Column == policyabi.ColumnTopology && e.ID >= w.Column && e.ID < w.Column+policyabi.MaxTopologies && e.Key == policyabi.Hash(w.Name) {
			return b.domain(w.Name, h.Topology[w.Name])
		}
		if value, told := h.Columns[w.String()]; told && (w.Column == e.ID) && (w.Name == "" || policyabi.Hash(w.Name) == e.Key) {
			return value
		}
	}
	return 0
}

// domain numbers the values of an attribute from 1, in the order of the hosts.
func (b *books) domain(attribute, value string) int32 {
	seen := []string{""}
	for i := range b.hosts {
		if v := b.hosts[i].Topology[attribute]; !slices.Contains(seen, v) {
			seen = append(seen, v)
		}
	}
	return int32(slices.Index(seen, value))
}

func (b *books) putLanes(cell []byte, id policyabi.ColumnID, row int) {
	for l, free := range b.lanes[row][:min(len(b.lanes[row]), policy.MaxDevices)] {
		v := int64(policyabi.DeviceMilli)
		switch id {
		case policyabi.ColumnDeviceFree:
			v = free
		case policyabi.ColumnDeviceModel:
			v = int64(b.models[b.hosts[row].GPUs[l].Model])
		default: // what there is of it
		}
		le.PutUint16(cell[2*l:], uint16(v))
	}
}
