package host

import (
	"fmt"
	"math/bits"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// group is all occupants that counters and exclusiveness cannot tell apart. Groups live as long as they have occupants, so their
// number is bounded by what runs.
type group struct {
	key       groupKey
	labels    *LabelSet
	occupants int32
	counters  []*Counter // those whose selector matches
}

type groupKey struct {
	job       workload.JobID
	exclusive bool
	labels    string
}

// resident is the occupants of one group on one host.
type resident struct {
	group     int32
	occupants int32
}

// Take books an occupant on a host. It refuses an occupant that makes no sense anywhere (a negative need), never one that
// overfills the host: placement checks room, a replay of bound runs must not.
func (t *Table) Take(row Row, o Occupant) error {
	if !t.Has(row) {
		return fmt.Errorf("take room on row %d: no host stands there", row)
	}
	if err := o.check(); err != nil {
		return fmt.Errorf("take room on host %q: %w", t.hosts[row].Name, err)
	}
	t.put(row, &o)
	t.touch(row)
	if t.journal != nil {
		t.journal.Took(row, o)
	}
	return nil
}

func (t *Table) put(row Row, o *Occupant) {
	t.enter(row, o)
	t.move(row, o, -1)
	if len(o.Ports) > 0 {
		t.ports[row].take(o.Ports)
		t.portsFree[row] = t.ports[row].free()
	}
}

// Release gives back what Take booked. It fails, changing nothing, when the books hold no such occupant.
func (t *Table) Release(row Row, o Occupant) error {
	if err := t.lift(row, &o); err != nil {
		return err
	}
	t.touch(row)
	if t.journal != nil {
		t.journal.Released(row, o)
	}
	return nil
}

// lift is Release without a trace in the table's history.
func (t *Table) lift(row Row, o *Occupant) error {
	if !t.Has(row) {
		return fmt.Errorf("release room on row %d: no host stands there", row)
	}
	g, known := t.groupIndex[o.groupKey()]
	at := -1
	if known {
		at = t.residentAt(row, g)
	}
	if at < 0 || !t.ports[row].holds(o.Ports) {
		return fmt.Errorf("release room on host %q: no such occupant of job %s with ports %v is there", t.hosts[row].Name, o.Job, o.Ports)
	}
	t.leave(row, at)
	t.move(row, o, 1)
	if len(o.Ports) > 0 {
		t.ports[row].release(o.Ports)
		t.portsFree[row] = t.ports[row].free()
	}
	return nil
}

// Without shows look the table as it would be without some occupants of a host, and puts them back. Their going and coming leaves no trace
// in the history of changes; what look takes there does, and may drive the free room below zero once they are back. It fails, having called
// nothing, when the books do not hold one of them.
func (t *Table) Without(row Row, occupants []Occupant, look func()) error {
	for i := range occupants {
		if err := t.lift(row, &occupants[i]); err != nil {
			for n := range i {
				t.put(row, &occupants[n])
			}
			return err
		}
	}
	look()
	for i := range occupants {
		t.put(row, &occupants[i])
	}
	return nil
}

func (o *Occupant) check() error {
	switch {
	case o.Needs.HasNegative():
		return fmt.Errorf("a need is negative: %v", o.Needs)
	case o.Devices != 0 && (o.Milli <= 0 || o.Milli > DeviceMilli):
		return fmt.Errorf("a share of %d of a device must be from 1 to %d", o.Milli, DeviceMilli)
	}
	return nil
}

func (o *Occupant) groupKey() groupKey {
	return groupKey{job: o.Job, exclusive: o.Exclusive, labels: o.Labels.Canonical()}
}

// move adds sign times an occupant's needs to the free columns and device lanes.
func (t *Table) move(row Row, o *Occupant, sign int64) {
	for k, need := range &o.Needs {
		if need != 0 {
			t.ensureKind(resource.Kind(k))
			t.free[k][row] += sign * need
		}
	}
	if o.Devices != 0 {
		lanes := &t.laneFree[row]
		for set := uint16(o.Devices); set != 0; set &= set - 1 {
			lanes[bits.TrailingZeros16(set)] += sign * o.Milli
		}
		t.deriveDevices(row)
	}
	t.tasks[row] -= int32(sign)
	t.scoreRow(row)
}

// enter counts an occupant into its group and the counters.
func (t *Table) enter(row Row, o *Occupant) {
	key := o.groupKey()
	g, known := t.groupIndex[key]
	if !known {
		g = t.newGroup(key, o.Labels)
	}
	t.groups[g].occupants++
	if at := t.residentAt(row, g); at >= 0 {
		t.residents[row][at].occupants++
	} else {
		t.residents[row] = append(t.residents[row], resident{group: g, occupants: 1})
	}
	for _, c := range t.groups[g].counters {
		c.add(row, 1)
	}
	if o.Exclusive {
		t.exclusive.Set(row, true)
	}
}

func (t *Table) residentAt(row Row, g int32) int {
	for i := range t.residents[row] {
		if t.residents[row][i].group == g {
			return i
		}
	}
	return -1
}

// leave takes one occupant out of the resident at index at.
func (t *Table) leave(row Row, at int) {
	rs := t.residents[row]
	g := rs[at].group
	for _, c := range t.groups[g].counters {
		c.add(row, -1)
	}
	if rs[at].occupants--; rs[at].occupants == 0 {
		rs[at] = rs[len(rs)-1]
		t.residents[row] = rs[:len(rs)-1]
		if t.groups[g].key.exclusive {
			t.exclusive.Set(row, t.anyExclusive(row))
		}
	}
	if t.groups[g].occupants--; t.groups[g].occupants == 0 {
		t.dropGroup(g)
	}
}

func (t *Table) anyExclusive(row Row) bool {
	for _, r := range t.residents[row] {
		if t.groups[r.group].key.exclusive {
			return true
		}
	}
	return false
}

func (t *Table) newGroup(key groupKey, labels *LabelSet) int32 {
	g := group{key: key, labels: labels}
	for _, c := range t.counters { // their order is of no consequence: each is added to on its own
		if c.selector.matches(&g) {
			g.counters = append(g.counters, c)
		}
	}
	var i int32
	if n := len(t.spareGroups); n > 0 {
		i, t.spareGroups = t.spareGroups[n-1], t.spareGroups[:n-1]
		t.groups[i] = g
	} else {
		i = int32(len(t.groups))
		t.groups = append(t.groups, g)
	}
	t.groupIndex[key] = i
	return i
}

func (t *Table) dropGroup(g int32) {
	delete(t.groupIndex, t.groups[g].key)
	t.groups[g] = group{}
	t.spareGroups = append(t.spareGroups, g)
}

// OnlyJob reports whether every occupant of the host at row is of the given job, none included.
func (t *Table) OnlyJob(row Row, job workload.JobID) bool {
	for _, r := range t.residents[row] {
		if t.groups[r.group].key.job != job {
			return false
		}
	}
	return true
}

// Exclusive returns the hosts that hold exclusive occupants. It must not be changed.
func (t *Table) Exclusive() Bitmap { return t.exclusive }
