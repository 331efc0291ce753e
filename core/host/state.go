package host

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// State is all that bears on what is placed on a table, as plain data: a table made of it by Restore answers as the one that it was taken of, ties
// included, and goes on doing so when both see the same changes.
type State struct {
	Names   []string // of extended resources, in the order of their kinds
	Rows    []RowState
	Spare   []Row // rows without a host; the last is given out first
	Columns []ColumnState
}

// RowState is one row. What stands there is held by occupants of which only the sums are known.
type RowState struct {
	Host      *Host // nil: no host stands there. Its Attributes are in Columns.
	Draining  bool
	Used      resource.Vector   // by occupants
	Lanes     [MaxDevices]int64 // thousandths taken of each device
	Ports     []uint16          // taken, ascending; twice where two claim one
	Residents []ResidentState   // in no order that means anything, see Sort
}

// ResidentState is how many occupants on a host counters and exclusiveness cannot tell apart.
type ResidentState struct {
	Job       workload.JobID
	Exclusive bool
	Labels    *LabelSet
	Occupants int32
}

// ColumnState is one attribute over all rows.
type ColumnState struct {
	Key    string
	Values []string // by number; number 0 is "absent", and the spare ones are nobody's
	Spare  []uint32 // numbers without a row; the last is given out first
	IDs    []uint32 // number of the value, by row
}

// maxUsed bounds what occupants of one host take together, far below where sums would overflow.
const maxUsed = int64(1) << 56

// State copies the table. Hosts are shared, not copied.
func (t *Table) State() *State {
	s := &State{Names: t.names.Named(), Rows: make([]RowState, len(t.hosts)), Spare: slices.Clone(t.spare)}
	n := 0
	for row := range t.residents {
		n += len(t.residents[row])
	}
	residents := make([]ResidentState, 0, n)
	for row := range s.Rows {
		if t.hosts[row] == nil {
			continue
		}
		from := len(residents)
		for _, r := range t.residents[row] {
			g := &t.groups[r.group]
			residents = append(residents, ResidentState{g.key.job, g.key.exclusive, g.labels, r.occupants})
		}
		t.copyRow(Row(row), &s.Rows[row])
		s.Rows[row].Residents = residents[from:len(residents):len(residents)]
	}
	for _, key := range slices.Sorted(maps.Keys(t.columns)) {
		c := t.columns[key]
		if len(c.values) == 1 {
			continue
		}
		column := ColumnState{Key: key, Values: make([]string, len(c.values)), Spare: slices.Clone(c.spare), IDs: slices.Clone(c.ids)}
		for id := range c.values {
			column.Values[id] = c.values[id].text
		}
		s.Columns = append(s.Columns, column)
	}
	return s
}

// Sort brings a state into the form that equal tables have alike.
func (s *State) Sort() {
	for row := range s.Rows {
		slices.SortFunc(s.Rows[row].Residents, compareResidents)
	}
}

func (t *Table) copyRow(row Row, s *RowState) {
	h := t.hosts[row]
	s.Host, s.Draining, s.Ports = h, t.draining.Has(row), slices.Clone(t.ports[row].taken)
	for k := range t.free {
		if t.free[k] != nil {
			s.Used[k] = h.Capacity[k] - h.Foreign[k] - t.free[k][row]
		}
	}
	for i := range s.Lanes {
		s.Lanes[i] = t.laneCap[row][i] - t.laneFree[row][i]
	}
}

func compareResidents(a, b ResidentState) int {
	exclusive := func(r *ResidentState) int {
		if r.Exclusive {
			return 1
		}
		return 0
	}
	return cmp.Or(bytes.Compare(a.Job[:], b.Job[:]), cmp.Compare(exclusive(&a), exclusive(&b)), cmp.Compare(a.Labels.Canonical(), b.Labels.Canonical()))
}

// Restore makes a table of a State, which may come from a file: it fails on one that no table can have.
func Restore(maxRows int, s *State) (*Table, error) {
	names, err := resource.NewNames(s.Names)
	if err != nil {
		return nil, fmt.Errorf("restore a table: %w", err)
	}
	if len(s.Rows) > maxRows {
		return nil, fmt.Errorf("restore a table: it has %d rows, at most %d are allowed", len(s.Rows), maxRows)
	}
	t := New(names, maxRows)
	for range s.Rows {
		t.newRow()
	}
	if err := t.restoreColumns(s); err != nil {
		return nil, fmt.Errorf("restore a table: %w", err)
	}
	for row := range s.Rows {
		if s.Rows[row].Host == nil {
			continue
		}
		if err := t.restoreRow(Row(row), &s.Rows[row]); err != nil {
			return nil, fmt.Errorf("restore a table: row %d: %w", row, err)
		}
	}
	empty := len(s.Rows) - len(t.byID)
	seen := map[Row]bool{}
	for _, row := range s.Spare {
		if row < 0 || int(row) >= len(s.Rows) || t.hosts[row] != nil || seen[row] {
			return nil, fmt.Errorf("restore a table: row %d cannot be spare", row)
		}
		seen[row] = true
	}
	if len(seen) != empty {
		return nil, fmt.Errorf("restore a table: %d rows are empty and %d spare", empty, len(seen))
	}
	t.spare = slices.Clone(s.Spare)
	t.rescale()
	return t, nil
}

// restoreColumns files the attributes of all rows.
func (t *Table) restoreColumns(s *State) error {
	if len(s.Columns) > MaxKeys+MaxCounters {
		return fmt.Errorf("%d attributes, at most %d are allowed", len(s.Columns), MaxKeys+MaxCounters)
	}
	for i := range s.Columns {
		from := &s.Columns[i]
		if old := t.columns[from.Key]; old != nil && old.rows > 0 || len(from.Values) == 0 || len(from.IDs) != len(s.Rows) {
			return fmt.Errorf("attribute %q is there twice, has no values or not one for each row", from.Key)
		}
		c := newColumn(len(s.Rows))
		for _, text := range from.Values[1:] {
			c.newValue(text)
		}
		for _, id := range from.Spare {
			if id == 0 || int(id) >= len(c.values) {
				return fmt.Errorf("attribute %q has no value %d", from.Key, id)
			}
			c.values[id] = value{}
		}
		if err := c.restore(from, s.Rows); err != nil {
			return err
		}
		t.columns[from.Key] = c
	}
	return nil
}

// restore counts the rows of each value and finds out whether the numbers agree.
func (c *column) restore(from *ColumnState, rows []RowState) error {
	for row, id := range from.IDs {
		if int(id) >= len(c.values) || (id != 0 && rows[row].Host == nil) {
			return fmt.Errorf("attribute %q: row %d cannot have value %d", from.Key, row, id)
		}
		if id != 0 {
			c.ids[row] = id
			c.values[id].rows++
			c.rows++
		}
	}
	clear(c.index)
	unused := 0
	for id := 1; id < len(c.values); id++ {
		if c.values[id].rows == 0 {
			unused++
			continue
		}
		if _, twice := c.index[c.values[id].text]; twice {
			return fmt.Errorf("attribute %q: value %q is there twice", from.Key, c.values[id].text)
		}
		c.index[c.values[id].text] = uint32(id)
	}
	spare := slices.Clone(from.Spare)
	slices.Sort(spare)
	if len(slices.Compact(spare)) != unused || len(from.Spare) != unused {
		return fmt.Errorf("attribute %q: %d values are unused and %d spare", from.Key, unused, len(from.Spare))
	}
	for _, id := range from.Spare {
		if c.values[id].rows != 0 {
			return fmt.Errorf("attribute %q: value %d is in use and spare", from.Key, id)
		}
	}
	c.spare = slices.Clone(from.Spare)
	return nil
}

// restoreRow enters a host whose attributes are filed, and what is on it.
func (t *Table) restoreRow(row Row, s *RowState) error {
	h := *s.Host
	h.Attributes = nil
	if err := t.check(&h); err != nil {
		return err
	}
	h = normal(h)
	for key, c := range t.columns {
		switch id := c.ids[row]; {
		case id == 0:
		case key != workload.TopologyHost:
			if h.Attributes == nil {
				h.Attributes = map[string]string{}
			}
			h.Attributes[key] = c.values[id].text
		case c.values[id].text != h.Name:
			return fmt.Errorf("host %q is filed under the name %q", h.Name, c.values[id].text)
		}
	}
	if _, twice := t.byID[h.ID]; twice || len(h.Attributes) > MaxAttributes || t.columns[workload.TopologyHost].ids[row] == 0 {
		return fmt.Errorf("host %q is there twice, has too many attributes or no name", h.Name)
	}
	t.byID[h.ID] = row
	t.setRoom(row, &h)
	t.hosts[row] = &h
	t.draining.Set(row, s.Draining)
	t.usable.Set(row, h.Ready && !s.Draining)
	if err := t.restoreOccupants(row, s); err != nil {
		return fmt.Errorf("host %q: %w", h.Name, err)
	}
	t.reshape(row)
	return nil
}

func (t *Table) restoreOccupants(row Row, s *RowState) error {
	for k, used := range s.Used {
		if used < 0 || used > maxUsed {
			return fmt.Errorf("occupants take %d of %s", used, t.names.Name(resource.Kind(k)))
		}
		if used > 0 {
			t.ensureKind(resource.Kind(k))
			t.free[k][row] -= used
		}
	}
	for i, milli := range s.Lanes {
		if milli < 0 || milli > maxUsed {
			return fmt.Errorf("occupants take %d of device %d", milli, i)
		}
		t.laneFree[row][i] -= milli
	}
	t.deriveDevices(row)
	t.ports[row].taken = slices.Clone(s.Ports)
	slices.Sort(t.ports[row].taken)
	t.portsFree[row] = t.ports[row].free()
	for i := range s.Residents {
		r := &s.Residents[i]
		key := groupKey{job: r.Job, exclusive: r.Exclusive, labels: r.Labels.Canonical()}
		g, known := t.groupIndex[key]
		if !known {
			g = t.newGroup(key, r.Labels)
		}
		if r.Occupants <= 0 || t.residentAt(row, g) >= 0 {
			return fmt.Errorf("%d occupants of job %s, or they are listed twice", r.Occupants, r.Job)
		}
		t.groups[g].occupants += r.Occupants
		t.residents[row] = append(t.residents[row], resident{group: g, occupants: r.Occupants})
		t.tasks[row] += r.Occupants
		if r.Exclusive {
			t.exclusive.Set(row, true)
		}
	}
	return nil
}
