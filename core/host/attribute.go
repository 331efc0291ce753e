package host

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/paceline-sched/paceline/core/workload"
)

// column is one attribute over all rows, its values interned. Value 0 is "absent".
type column struct {
	ids    []uint32 // by row
	values []value  // values[id]
	index  map[string]uint32
	spare  []uint32 // ids without a row
	rows   int      // rows that have the attribute
}

type value struct {
	text     string
	number   int64
	isNumber bool
	rows     int32
}

func newColumn(rows int) *column {
	return &column{ids: make([]uint32, rows), values: make([]value, 1), index: map[string]uint32{}}
}

func (c *column) set(row Row, text string) {
	c.clear(row)
	id, ok := c.index[text]
	if !ok {
		id = c.newValue(text)
	}
	c.values[id].rows++
	c.ids[row] = id
	c.rows++
}

func (c *column) newValue(text string) uint32 {
	v := valueOf(text)
	var id uint32
	if n := len(c.spare); n > 0 {
		id, c.spare = c.spare[n-1], c.spare[:n-1]
		c.values[id] = v
	} else {
		id = uint32(len(c.values))
		c.values = append(c.values, v)
	}
	c.index[text] = id
	return id
}

func valueOf(text string) value {
	v := value{text: text}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		v.number, v.isNumber = n, true
	}
	return v
}

func (c *column) clear(row Row) {
	id := c.ids[row]
	if id == 0 {
		return
	}
	c.ids[row] = 0
	c.rows--
	v := &c.values[id]
	if v.rows--; v.rows == 0 {
		delete(c.index, v.text)
		*v = value{}
		c.spare = append(c.spare, id)
	}
}

// meets applies a constraint to one value.
func (v *value) meets(c *workload.Constraint, present bool) bool {
	switch c.Op {
	case workload.OpIn:
		return present && slices.Contains(c.Values, v.text)
	case workload.OpNotIn:
		return !present || !slices.Contains(c.Values, v.text)
	case workload.OpExists:
		return present
	case workload.OpNotExists:
		return !present
	case workload.OpGt, workload.OpLt:
		if !present || !v.isNumber || len(c.Values) != 1 {
			return false
		}
		bound, err := strconv.ParseInt(c.Values[0], 10, 64)
		if err != nil {
			return false
		}
		if c.Op == workload.OpGt {
			return v.number > bound
		}
		return v.number < bound
	}
	return false
}

var absent value

// Meets reports whether the host at row meets a constraint. An operator outside the enum is met by nobody.
func (t *Table) Meets(row Row, c *workload.Constraint) bool {
	col := t.columns[c.Key]
	if col == nil || col.ids[row] == 0 {
		return absent.meets(c, false)
	}
	return col.values[col.ids[row]].meets(c, true)
}

// Meets reports whether a host meets a constraint, as Table.Meets does of one that is in a table.
func (h *Host) Meets(c *workload.Constraint) bool {
	text, present := h.Attributes[c.Key]
	if c.Key == workload.TopologyHost {
		text, present = h.Name, true
	}
	if !present {
		return absent.meets(c, false)
	}
	v := valueOf(text)
	return v.meets(c, true)
}

// Require takes the rows that fail a constraint out of set. It judges each distinct value once, so that a label with one value
// per host costs no more than the hosts.
func (t *Table) Require(set Bitmap, c *workload.Constraint) {
	col := t.columns[c.Key]
	if col == nil {
		if !absent.meets(c, false) {
			clear(set)
		}
		return
	}
	met := make([]bool, len(col.values))
	for id := range col.values {
		met[id] = col.values[id].meets(c, id != 0)
	}
	for row, id := range col.ids {
		if !met[id] {
			set.Set(Row(row), false)
		}
	}
}

// setAttributes files the attributes of a host under row in place of what stood there. The counters are moved along.
func (t *Table) setAttributes(row Row, h *Host) {
	t.count(row, -1)
	if old := t.hosts[row]; old != nil {
		for key := range old.Attributes {
			t.columns[key].clear(row)
		}
		t.columns[workload.TopologyHost].clear(row)
	}
	if h != nil {
		for key, text := range h.Attributes {
			t.columnFor(key).set(row, text)
		}
		t.columnFor(workload.TopologyHost).set(row, h.Name)
	}
	t.count(row, 1)
}

func (t *Table) columnFor(key string) *column {
	c := t.columns[key]
	if c == nil {
		c = newColumn(len(t.hosts))
		t.columns[key] = c
	}
	return c
}

// checkKeys refuses a host whose attribute keys would be too many for the table, after dropping keys that no host has any more.
func (t *Table) checkKeys(h *Host) error {
	if len(h.Attributes) > MaxAttributes {
		return fmt.Errorf("host %q has %d attributes, at most %d are allowed", h.Name, len(h.Attributes), MaxAttributes)
	}
	fresh := 0
	for key := range h.Attributes {
		if t.columns[key] == nil {
			fresh++
		}
	}
	if fresh == 0 || len(t.columns)+fresh <= MaxKeys {
		return nil
	}
	for key, c := range t.columns {
		if _, wanted := h.Attributes[key]; c.rows == 0 && !wanted && key != workload.TopologyHost {
			t.dropCounters(func(c *Counter) bool { return c.topology == key })
			delete(t.columns, key)
		}
	}
	if len(t.columns)+fresh > MaxKeys {
		return fmt.Errorf("host %q brings %d new attribute keys, the hosts of this table have %d already and at most %d are allowed: "+
			"leave keys that no constraint names out of the inventory", h.Name, fresh, len(t.columns), MaxKeys)
	}
	return nil
}
