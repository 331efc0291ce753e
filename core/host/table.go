package host

import (
	"fmt"
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Table is the host table of one shard.
type Table struct {
	names   *resource.Names
	maxRows int

	hosts []*Host // nil: the row is spare
	byID  map[workload.HostID]Row
	spare []Row

	// Columns by kind, then row. Those of a kind that nobody has or needs are nil.
	capacity [resource.MaxKinds][]int64
	free     [resource.MaxKinds][]int64 // capacity - foreign - occupants

	laneCap  [][MaxDevices]int64
	laneFree [][MaxDevices]int64
	whole    []int64 // devices wholly free
	largest  []int64 // largest free share of any device

	ports     []portSet
	portsFree []int64

	usable    Bitmap // ready and not draining
	draining  Bitmap
	exclusive Bitmap // holds exclusive occupants

	columns     map[string]*column
	residents   [][]resident
	tasks       []int32
	groups      []group
	groupIndex  map[groupKey]int32
	spareGroups []int32
	counters    map[counterKey]*Counter
	counterUse  uint64

	sizes       sizes
	scaled      []scaledKind
	totalWeight int64
	leftover    []int64
	freeShare   []int64

	revision uint64
	version  []uint64  // revision at which a row last changed
	all      changeLog // rows whose anything changed
	shape    changeLog // rows whose attributes, pool, devices, capacity or readiness changed
	journal  Journal   // nil: nobody
}

// Names are those of the resources. They must not be changed by others than the table's owner.
func (t *Table) Names() *resource.Names { return t.names }

// New returns an empty table of at most maxRows hosts. names is read for messages, never changed.
func New(names *resource.Names, maxRows int) *Table {
	t := &Table{
		names: names, maxRows: maxRows,
		byID:       map[workload.HostID]Row{},
		columns:    map[string]*column{},
		groupIndex: map[groupKey]int32{},
		counters:   map[counterKey]*Counter{},
	}
	t.columnFor(workload.TopologyHost)
	return t
}

// Upsert adds a host or replaces what is known of it; what tasks hold there stays. Capacity may fall below what is used: free
// room is then negative and nothing more is placed. It fails, changing nothing, on a host beyond the bounds of this package. h.Attributes must
// not be changed afterwards.
func (t *Table) Upsert(h Host) (Row, error) {
	if err := t.check(&h); err != nil {
		return NoRow, err
	}
	h = normal(h)
	row, known := t.byID[h.ID]
	if !known {
		if t.Len() >= t.maxRows {
			return NoRow, fmt.Errorf("host %q is one too many: the table holds at most %d hosts", h.Name, t.maxRows)
		}
		row = t.newRow()
		t.byID[h.ID] = row
	}
	t.setAttributes(row, &h)
	moved := t.setRoom(row, &h)
	t.hosts[row] = &h
	if moved {
		t.rescale()
	} else {
		t.scoreRow(row)
	}
	t.usable.Set(row, h.Ready && !t.draining.Has(row))
	t.reshape(row)
	if t.journal != nil {
		t.journal.Upserted(row, &h)
	}
	return row, nil
}

func (t *Table) check(h *Host) error {
	if len(h.Devices) > MaxDevices {
		return fmt.Errorf("host %q has %d devices, at most %d are allowed", h.Name, len(h.Devices), MaxDevices)
	}
	for i, d := range h.Devices {
		if d.Milli < 0 || d.Milli > DeviceMilli {
			return fmt.Errorf("host %q: device %d offers %d thousandths, it must be 0 to %d", h.Name, i, d.Milli, DeviceMilli)
		}
	}
	for k := range h.Capacity {
		if q, f := h.Capacity[k], h.Foreign[k]; q < 0 || q > resource.MaxQuantity || f < 0 || f > resource.MaxQuantity {
			return fmt.Errorf("host %q: capacity %d and foreign use %d of %s must be 0 to %d", h.Name, q, f, t.names.Name(resource.Kind(k)), resource.MaxQuantity)
		}
	}
	if err := checkPorts(h); err != nil {
		return err
	}
	return t.checkKeys(h)
}

// normal returns h in its normal form. Its attributes may be the caller's: a copy of each host's would be a good part of a large table.
func normal(h Host) Host {
	if _, has := h.Attributes[workload.TopologyHost]; has {
		h.Attributes = maps.Clone(h.Attributes)
		delete(h.Attributes, workload.TopologyHost)
	}
	h.Devices = slices.Clone(h.Devices)
	h.Ports = normalRanges(h.Ports)
	h.Capacity[resource.GPU] = 0
	for _, d := range h.Devices {
		h.Capacity[resource.GPU] += d.Milli
	}
	return h
}

// newRow returns a spare row, or a new one with every column extended by it.
func (t *Table) newRow() Row {
	if n := len(t.spare); n > 0 {
		row := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return row
	}
	row := Row(len(t.hosts))
	t.hosts = append(t.hosts, nil)
	for k := range t.free {
		if t.free[k] != nil {
			t.capacity[k] = append(t.capacity[k], 0)
			t.free[k] = append(t.free[k], 0)
		}
	}
	for _, c := range t.columns {
		c.ids = append(c.ids, 0)
	}
	t.laneCap = append(t.laneCap, [MaxDevices]int64{})
	t.laneFree = append(t.laneFree, [MaxDevices]int64{})
	t.ports = append(t.ports, portSet{})
	t.residents = append(t.residents, nil)
	t.tasks = append(t.tasks, 0)
	t.version = append(t.version, 0)
	for _, c := range []*[]int64{&t.whole, &t.largest, &t.portsFree, &t.leftover, &t.freeShare} {
		*c = append(*c, 0)
	}
	if int(row)%wordBits == 0 {
		t.usable = append(t.usable, 0)
		t.draining = append(t.draining, 0)
		t.exclusive = append(t.exclusive, 0)
	}
	return row
}

// setRoom replaces capacity, devices and ports of a row, leaving what is used, and reports whether the table's scales moved.
func (t *Table) setRoom(row Row, h *Host) bool {
	var before, used resource.Vector
	var old Host
	if t.hosts[row] != nil {
		old = *t.hosts[row]
		before = old.Capacity
	}
	for k := range h.Capacity {
		if h.Capacity[k] != 0 || h.Foreign[k] != 0 {
			t.ensureKind(resource.Kind(k))
		}
		if t.free[k] != nil {
			used[k] = before[k] - old.Foreign[k] - t.free[k][row]
			t.capacity[k][row] = h.Capacity[k]
			t.free[k][row] = h.Capacity[k] - h.Foreign[k] - used[k]
		}
	}
	var lanes [MaxDevices]int64
	for i, d := range h.Devices {
		lanes[i] = d.Milli
	}
	for i := range lanes {
		t.laneFree[row][i] += lanes[i] - t.laneCap[row][i]
	}
	t.laneCap[row] = lanes
	t.deriveDevices(row)
	t.ports[row].ranges = h.Ports
	t.portsFree[row] = t.ports[row].free()
	shrunk := t.sizes.add(&before, -1)
	grown := t.sizes.add(&h.Capacity, 1)
	return shrunk || grown
}

func (t *Table) ensureKind(k resource.Kind) {
	if t.free[k] == nil {
		t.capacity[k] = make([]int64, len(t.hosts))
		t.free[k] = make([]int64, len(t.hosts))
	}
}

func (t *Table) deriveDevices(row Row) {
	var whole, largest int64
	for _, free := range &t.laneFree[row] {
		if free >= DeviceMilli {
			whole++
		}
		largest = max(largest, free)
	}
	t.whole[row], t.largest[row] = whole, largest
}

// Remove forgets a host and everything on it; the occupants must not be released afterwards. Its row may be given to another.
func (t *Table) Remove(row Row) {
	if !t.Has(row) {
		return
	}
	t.setAttributes(row, nil)
	t.count(row, -1)
	for _, r := range t.residents[row] {
		g := &t.groups[r.group]
		if g.occupants -= r.occupants; g.occupants == 0 {
			t.dropGroup(r.group)
		}
	}
	old := t.hosts[row]
	t.residents[row], t.tasks[row] = nil, 0
	delete(t.byID, old.ID)
	for k := range t.free {
		if t.free[k] != nil {
			t.capacity[k][row], t.free[k][row] = 0, 0
		}
	}
	t.laneCap[row], t.laneFree[row] = [MaxDevices]int64{}, [MaxDevices]int64{}
	t.whole[row], t.largest[row], t.portsFree[row], t.leftover[row], t.freeShare[row] = 0, 0, 0, 0, 0
	t.ports[row] = portSet{}
	for _, set := range []Bitmap{t.usable, t.draining, t.exclusive} {
		set.Set(row, false)
	}
	t.hosts[row] = nil
	t.spare = append(t.spare, row)
	if t.sizes.add(&old.Capacity, -1) {
		t.rescale()
	}
	t.reshape(row)
	if t.journal != nil {
		t.journal.Removed(row)
	}
}

// SetDraining marks a host on which nothing new may be placed, or lifts the mark. Upsert leaves the mark alone.
func (t *Table) SetDraining(row Row, draining bool) {
	if !t.Has(row) || t.draining.Has(row) == draining {
		return
	}
	t.draining.Set(row, draining)
	t.usable.Set(row, t.hosts[row].Ready && !draining)
	t.reshape(row)
	if t.journal != nil {
		t.journal.Drained(row, draining)
	}
}

// touch notes that a row changed; reshape, that more than the room on it did.
func (t *Table) touch(row Row) {
	t.revision++
	t.version[row] = t.revision
	t.all.add(row)
}

func (t *Table) reshape(row Row) {
	t.touch(row)
	t.shape.add(row)
}
