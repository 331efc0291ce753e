package host

import (
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Table is the host table of one shard.
type Table struct{ names *resource.Names }

// New returns an empty table of at most maxRows hosts. names is read, never changed; kinds that it gains later are picked up.
func New(names *resource.Names, maxRows int) *Table { return &Table{names: names} }

// Upsert adds a host or replaces what is known of it; what tasks hold there stays. Capacity may fall below what is used: free
// room is then negative and nothing more is placed. It fails, changing nothing, on a host beyond the bounds of this package.
func (t *Table) Upsert(h Host) (Row, error) { return NoRow, nil }

// Remove forgets a host and everything on it; the occupants must not be released afterwards. Its row may be given to another.
func (t *Table) Remove(row Row) {}

// Lookup returns the row of a host.
func (t *Table) Lookup(id workload.HostID) (Row, bool) { return NoRow, false }

// SetDraining marks a host on which nothing new may be placed, or lifts the mark. Upsert leaves the mark alone.
func (t *Table) SetDraining(row Row, draining bool) {}

// Take books an occupant on a host. It refuses an occupant that makes no sense there (a device that the host has not), never one
// that overfills it: placement checks room, a replay of bound runs must not.
func (t *Table) Take(row Row, o Occupant) error { return nil }

// Release gives back what Take booked. It fails, changing nothing, when the books hold no such occupant.
func (t *Table) Release(row Row, o Occupant) error { return nil }

// Len returns the number of hosts, Rows the size of the row space: every row is below it.
func (t *Table) Len() int { return 0 }

// Rows returns the size of the row space.
func (t *Table) Rows() int { return 0 }

// Has reports whether a host stands at row.
func (t *Table) Has(row Row) bool { return false }

// ID returns the identity of the host at row.
func (t *Table) ID(row Row) workload.HostID { return workload.HostID{} }

// Host returns what Upsert was last told of the host at row. Its maps and slices must not be changed.
func (t *Table) Host(row Row) *Host { return nil }

// Draining reports the mark of SetDraining.
func (t *Table) Draining(row Row) bool { return false }

// Tasks returns how many occupants the host at row has.
func (t *Table) Tasks(row Row) int { return 0 }

// Free returns the room left on the host at row; negative where it is overfull.
func (t *Table) Free(row Row) resource.Vector { return resource.Vector{} }

// Revision grows with every change of the table.
func (t *Table) Revision() uint64 { return 0 }
