package host

import (
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Lookup returns the row of a host.
func (t *Table) Lookup(id workload.HostID) (Row, bool) {
	row, ok := t.byID[id]
	if !ok {
		return NoRow, false
	}
	return row, true
}

// Len returns the number of hosts.
func (t *Table) Len() int { return len(t.hosts) - len(t.spare) }

// Rows returns the size of the row space: every row is below it.
func (t *Table) Rows() int { return len(t.hosts) }

// Has reports whether a host stands at row.
func (t *Table) Has(row Row) bool { return row >= 0 && int(row) < len(t.hosts) && t.hosts[row] != nil }

// ID returns the identity of the host at row; zero when none stands there.
func (t *Table) ID(row Row) workload.HostID {
	if !t.Has(row) {
		return workload.HostID{}
	}
	return t.hosts[row].ID
}

// Host returns what Upsert was last told of the host at row, nil when none stands there. It must not be changed.
func (t *Table) Host(row Row) *Host {
	if !t.Has(row) {
		return nil
	}
	return t.hosts[row]
}

// Draining reports the mark of SetDraining.
func (t *Table) Draining(row Row) bool { return t.Has(row) && t.draining.Has(row) }

// Tasks returns how many occupants the host at row has.
func (t *Table) Tasks(row Row) int {
	if !t.Has(row) {
		return 0
	}
	return int(t.tasks[row])
}

// Free returns the room left on the host at row; negative where it is overfull.
func (t *Table) Free(row Row) resource.Vector {
	var v resource.Vector
	if t.Has(row) {
		for k := range t.free {
			if t.free[k] != nil {
				v[k] = t.free[k][row]
			}
		}
	}
	return v
}

// FreeOf returns the column of free room of one kind, nil when nobody has any. It must not be changed.
func (t *Table) FreeOf(k resource.Kind) []int64 { return t.free[k] }

// Usable returns the hosts that are ready and not draining. It must not be changed.
func (t *Table) Usable() Bitmap { return t.usable }

// Lanes returns the free thousandths of each device of the host at row, and those it has in all.
func (t *Table) Lanes(row Row) (free, capacity *[MaxDevices]int64) {
	return &t.laneFree[row], &t.laneCap[row]
}

// WholeFree returns the column of wholly free devices, LargestShare that of the largest free share of a device. They must not be
// changed.
func (t *Table) WholeFree() []int64 { return t.whole }

// LargestShare returns the column of the largest free share of any device of a host.
func (t *Table) LargestShare() []int64 { return t.largest }

// DevicesOf returns the devices of the host at row whose model is one of models; all when models is empty.
func (t *Table) DevicesOf(row Row, models []string) DeviceSet {
	var set DeviceSet
	for i := range t.hosts[row].Devices {
		if len(models) == 0 || slices.Contains(models, t.hosts[row].Devices[i].Model) {
			set |= 1 << i
		}
	}
	return set
}

// PortsFree returns the column of ports that are offered and not taken. It must not be changed.
func (t *Table) PortsFree() []int64 { return t.portsFree }

// Revision grows with every change of the table.
func (t *Table) Revision() uint64 { return t.revision }

// Version returns the revision at which the host at row last changed. It grows over removals too, so it also tells two hosts
// apart that had one row after another.
func (t *Table) Version(row Row) uint64 { return t.version[row] }

// Position is a reader's place in the table's history of changes. The zero Position is before all of it.
type Position struct{ all, shape uint64 }

// Now returns the position after every change so far.
func (t *Table) Now() Position { return Position{all: t.all.next, shape: t.shape.next} }

// Changed calls visit for every row changed since a position, some more than once. It returns false, having called nothing, when
// the position is too far back: the reader must look at every row.
func (t *Table) Changed(since Position, visit func(Row)) bool {
	return replay(&t.all, since.all, visit)
}

// Reshaped is Changed for changes other than of occupants: attributes, pool, devices, capacity, readiness.
func (t *Table) Reshaped(since Position, visit func(Row)) bool {
	return replay(&t.shape, since.shape, visit)
}

func replay(l *changeLog, from uint64, visit func(Row)) bool {
	older, newer, ok := l.since(from)
	for _, row := range older {
		visit(row)
	}
	for _, row := range newer {
		visit(row)
	}
	return ok
}
