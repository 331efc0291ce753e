package wasm

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// What one call may hold.
const (
	maxCallRequests = 64
	maxCallTasks    = 4096
	maxCallBiases   = 8
	extensionBytes  = 16384
	// spareRows is how much of the capacity is left for hosts to come, as a shift: an eighth.
	spareRows = 3
	// fullEvery is how many calls go by before the whole table is written again, whatever the guest did to it.
	fullEvery = 64
)

var le = binary.LittleEndian

// image is the arena as the host keeps it. It follows a host table and writes itself into an instance.
type image struct {
	table  *host.Table
	names  *resource.Names
	wants  []policyabi.Want
	layout policyabi.Layout
	header policyabi.Header
	b      []byte // everything up to layout.Written

	columns []column
	shifts  [resource.MaxKinds]uint8
	kinds   [resource.MaxKinds]bool // that the table has
	models  map[string]uint16
	seen    host.Position
	changed []host.Row // since the last call
	mark    []uint64   // by row: the epoch in which it was last put into changed
	all     bool       // everything changed
	calls   int
	mix     uint64 // version of the mix in b
	mixSent bool   // and the guest has it
}

// column writes one column's cells.
type column struct {
	entry *policyabi.Entry
	put   func(cell []byte, row host.Row)
}

// newImage lays an arena out for a table.
func newImage(t *host.Table, names *resource.Names, v *Version) (*image, error) {
	m := &image{table: t, names: names, wants: v.module.Capability.Columns, models: map[string]uint16{}}
	m.measure()
	rows := max(t.Rows(), policyabi.Alignment)
	capacity := min((rows+rows>>spareRows+policyabi.Alignment-1)&^(policyabi.Alignment-1), policyabi.MaxRows)
	c := &v.module.Capability
	var err error
	m.layout, err = policyabi.Plan(policyabi.Shape{
		Kind: policyabi.Place, Rows: max(capacity, t.Rows()), Columns: m.choose(),
		Requests: maxCallRequests, Results: maxCallTasks, Bitmaps: maxCallRequests, Biases: maxCallBiases,
		Config: len(v.encoded), Mix: policyabi.MaxMix, Dirty: policyabi.MaxDirty, Extension: extensionBytes,
		Scratch: min(c.Scratch+c.ScratchPerRow*capacity, policyabi.MaxScratch),
	})
	if err != nil {
		return nil, err
	}
	m.b = make([]byte, m.layout.Written)
	m.mark = make([]uint64, m.layout.Header.Capacity)
	m.header = m.layout.Header
	m.header.Generation, m.header.MixCount = 1, 0
	copy(m.b[m.header.Config:], v.encoded)
	m.bind()
	m.rewrite()
	m.header.Encode(m.b)
	return m, nil
}

// measure finds the kinds that the table has, and the units in which their quantities fit.
func (m *image) measure() {
	var most resource.Vector
	for row := range host.Row(m.table.Rows()) {
		if h := m.table.Host(row); h != nil {
			most = most.Max(h.Capacity)
		}
	}
	for k, q := range most {
		m.kinds[k] = m.table.FreeOf(resource.Kind(k)) != nil
		m.shifts[k] = uint8(max(bits.Len64(uint64(q))-bits.Len64(policyabi.MaxQuantity), 0))
	}
}

// choose lists the columns that the policy wants and the table has.
func (m *image) choose() []policyabi.Column {
	var list []policyabi.Column
	slot := policyabi.ColumnID(0)
	add := func(c policyabi.Column) {
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	for _, w := range m.wants {
		switch base := w.Column; {
		case base == policyabi.ColumnTopology:
			if slot < policyabi.MaxTopologies {
				add(policyabi.Column{ID: base + slot, Key: policyabi.Hash(w.Name)})
				slot++
			}
		case ofKinds(base):
			for k := range m.kinds {
				if m.kinds[k] && m.meant(w, resource.Kind(k)) {
					add(m.quantity(firstOf(base)+policyabi.ColumnID(k), resource.Kind(k)))
				}
			}
		case base >= policyabi.ColumnFlags && base <= policyabi.ColumnHost, base >= policyabi.ColumnDeviceFree && base <= policyabi.ColumnDeviceLargest:
			add(policyabi.Column{ID: base})
		}
	}
	return list
}

// ofKinds reports whether a column is one for each kind that a host table can fill.
func ofKinds(id policyabi.ColumnID) bool {
	return id >= policyabi.ColumnFree && id < policyabi.ColumnInverse+policyabi.MaxKinds
}

func firstOf(id policyabi.ColumnID) policyabi.ColumnID {
	return id &^ (policyabi.MaxKinds - 1) // the three families begin at multiples of it
}

// meant reports whether a wanted column of kinds is that of kind k.
func (m *image) meant(w policyabi.Want, k resource.Kind) bool {
	switch {
	case w.Every:
		return true
	case w.Name != "":
		if m.names == nil {
			return false
		}
		named, ok := m.names.Lookup(w.Name)
		return ok && named == k
	}
	return w.Column-firstOf(w.Column) == policyabi.ColumnID(k)
}

func (m *image) quantity(id policyabi.ColumnID, k resource.Kind) policyabi.Column {
	c := policyabi.Column{ID: id}
	if id < policyabi.ColumnInverse {
		c.Shift = m.shifts[k]
	}
	if k >= resource.FirstNamed && m.names != nil && int(k) < m.names.Len() {
		c.Key = policyabi.Hash(m.names.Name(k))
	}
	return c
}

// bind ties each column to what fills it.
func (m *image) bind() {
	m.columns = m.columns[:0]
	topologies := m.topologies()
	for i := range m.layout.Entries {
		e := &m.layout.Entries[i]
		m.columns = append(m.columns, column{e, m.filler(e, topologies)})
		e.Encode(m.b[int(m.header.Directory)+i*policyabi.EntryBytes:])
	}
}

func (m *image) topologies() map[uint64]string {
	keys := map[uint64]string{}
	for _, w := range m.wants {
		if w.Column == policyabi.ColumnTopology {
			keys[policyabi.Hash(w.Name)] = w.Name
		}
	}
	return keys
}

func (m *image) filler(e *policyabi.Entry, topologies map[uint64]string) func([]byte, host.Row) {
	t := m.table
	small := func(column func() []int64) func([]byte, host.Row) {
		return func(cell []byte, row host.Row) { le.PutUint32(cell, uint32(int32(clamp(column()[row])))) }
	}
	switch id := e.ID; {
	case ofKinds(id):
		return m.ofKind(id, resource.Kind(id-firstOf(id)))
	case id >= policyabi.ColumnTopology && id < policyabi.ColumnTopology+policyabi.MaxTopologies:
		key := topologies[e.Key]
		return func(cell []byte, row host.Row) { le.PutUint32(cell, t.Domains(key).Of(row)) }
	case id == policyabi.ColumnDeviceFree, id == policyabi.ColumnDeviceTotal:
		return func(cell []byte, row host.Row) {
			free, total := t.Lanes(row)
			lanes := total
			if id == policyabi.ColumnDeviceFree {
				lanes = free
			}
			for l, milli := range lanes {
				le.PutUint16(cell[2*l:], uint16(int16(max(milli, math.MinInt16))))
			}
		}
	case id == policyabi.ColumnDeviceModel:
		return m.putModels
	case id == policyabi.ColumnDeviceWhole:
		return small(t.WholeFree)
	case id == policyabi.ColumnDeviceLargest:
		return small(t.LargestShare)
	case id == policyabi.ColumnFlags:
		return m.putFlags
	case id == policyabi.ColumnTasks:
		return func(cell []byte, row host.Row) { le.PutUint32(cell, uint32(t.Tasks(row))) }
	case id == policyabi.ColumnLeftover:
		return small(t.Leftover)
	case id == policyabi.ColumnFreeShare:
		return small(t.FreeShare)
	case id == policyabi.ColumnPorts:
		return small(t.PortsFree)
	case id == policyabi.ColumnVersion:
		return func(cell []byte, row host.Row) { le.PutUint64(cell, t.Version(row)) }
	default: // policyabi.ColumnHost
		return func(cell []byte, row host.Row) {
			identity := t.ID(row)
			le.PutUint64(cell, le.Uint64(identity[:8]))
		}
	}
}

// clamp holds a quantity to what the ABI promises; the host's own table decides what fits.
func clamp(v int64) int64 {
	return min(max(v, -policyabi.MaxQuantity-1), int64(policyabi.ScoreSpan))
}

func (m *image) ofKind(id policyabi.ColumnID, k resource.Kind) func([]byte, host.Row) {
	t, shift := m.table, m.shifts[k]
	total := func(row host.Row) int64 {
		if h := t.Host(row); h != nil {
			return h.Capacity[k]
		}
		return 0
	}
	switch firstOf(id) {
	case policyabi.ColumnFree:
		return func(cell []byte, row host.Row) {
			le.PutUint32(cell, uint32(int32(max(t.FreeOf(k)[row]>>shift, -policyabi.MaxQuantity-1))))
		}
	case policyabi.ColumnTotal:
		return func(cell []byte, row host.Row) { le.PutUint32(cell, uint32(int32(total(row)>>shift))) }
	default: // policyabi.ColumnInverse
		return func(cell []byte, row host.Row) {
			inverse := float32(0)
			if all := total(row) >> shift; all > 0 {
				inverse = 1 / float32(all)
			}
			le.PutUint32(cell, math.Float32bits(inverse))
		}
	}
}

// maxModels bounds the models that get a number; others are told as model 0x7fff.
const (
	maxModels    = 1024
	unknownModel = 0x7fff
)

func (m *image) model(name string) uint16 {
	n, known := m.models[name]
	switch {
	case known:
		return n
	case len(m.models) >= maxModels:
		return unknownModel
	}
	n = uint16(len(m.models) + 1)
	m.models[name] = n
	return n
}

func (m *image) putModels(cell []byte, row host.Row) {
	clear(cell)
	if h := m.table.Host(row); h != nil {
		for l := range h.Devices {
			le.PutUint16(cell[2*l:], m.model(h.Devices[l].Model))
		}
	}
}

func (m *image) putFlags(cell []byte, row host.Row) {
	t, flags := m.table, uint32(0)
	if t.Usable().Has(row) {
		flags |= policyabi.HostUsable
	}
	if h := t.Host(row); h != nil && h.Ready {
		flags |= policyabi.HostReady
	}
	if t.Draining(row) {
		flags |= policyabi.HostDraining
	}
	if t.Exclusive().Has(row) {
		flags |= policyabi.HostExclusive
	}
	le.PutUint32(cell, flags)
}

// fits reports whether the layout still has room for the table as it is.
func (m *image) fits(t *host.Table) bool {
	if m.table != t || t.Rows() > int(m.header.Capacity) {
		return false
	}
	for k := range m.kinds {
		if !m.kinds[k] && t.FreeOf(resource.Kind(k)) != nil {
			return false
		}
	}
	return true
}

// follow brings the image up to date with its table. When hosts changed shape every row is looked at, because the scale of scores and the unit of a kind may have moved.
func (m *image) follow() {
	m.header.Epoch++
	m.changed, m.all = m.changed[:0], false
	reshaped := false
	if !m.table.Reshaped(m.seen, func(host.Row) { reshaped = true }) || reshaped {
		m.reshape()
		return
	}
	if !m.table.Changed(m.seen, m.note) {
		m.rewrite()
		return
	}
	m.seen = m.table.Now()
	for _, row := range m.changed {
		m.putRow(m.b, row)
	}
	m.all = len(m.changed) > policyabi.MaxDirty
}

// note puts a row among the changed ones, once in an epoch.
func (m *image) note(row host.Row) {
	if m.mark[row] != m.header.Epoch {
		m.mark[row] = m.header.Epoch
		m.changed = append(m.changed, row)
	}
}

// reshape measures again. A unit that moved changes what the guest has seen so far.
func (m *image) reshape() {
	shifts := m.shifts
	m.measure()
	if shifts != m.shifts {
		m.header.Generation++
		m.mix = 0 // needs have other units
		for i := range m.layout.Entries {
			if e := &m.layout.Entries[i]; ofKinds(e.ID) && e.ID < policyabi.ColumnInverse {
				e.Shift = m.shifts[e.ID-firstOf(e.ID)]
			}
		}
		m.bind()
	}
	m.rewrite()
}

// rewrite writes every cell.
func (m *image) rewrite() {
	m.seen, m.all = m.table.Now(), true
	m.header.Rows = uint32(m.table.Rows())
	for i := range m.columns {
		c := &m.columns[i]
		at, stride := int(c.entry.Offset), int(c.entry.Stride)
		for row := range host.Row(m.header.Rows) {
			c.put(m.b[at+int(row)*stride:at+int(row+1)*stride], row)
		}
	}
}

func (m *image) putRow(b []byte, row host.Row) {
	for i := range m.columns {
		e := m.columns[i].entry
		m.columns[i].put(b[int(e.Offset)+int(row)*int(e.Stride):int(e.Offset)+int(row+1)*int(e.Stride)], row)
	}
}

// copyRow writes a row of the image into an arena.
func (m *image) copyRow(arena []byte, row host.Row) {
	for i := range m.columns {
		e := m.columns[i].entry
		from := int(e.Offset) + int(row)*int(e.Stride)
		copy(arena[from:from+int(e.Stride)], m.b[from:])
	}
}

// columnsEnd is where the columns end and what belongs to one call begins.
func (m *image) columnsEnd() uint32 { return m.header.Dirty }

// send writes the image into the arena of an instance: the changed rows, or everything. used is the end of what the call's own sections use.
func (m *image) send(in *Instance, restore []host.Row, used uint32) {
	arena := in.arena()
	fresh := in.epoch != m.header.Epoch-1
	m.header.BaseEpoch = in.epoch
	m.header.DirtyCount = policyabi.AllDirty
	if !fresh && !m.all {
		m.header.DirtyCount = uint32(len(m.changed))
		for i, row := range m.changed {
			le.PutUint32(m.b[int(m.header.Dirty)+4*i:], uint32(row))
		}
	}
	m.header.Encode(m.b)
	if fresh || m.all || m.calls%fullEvery == 0 {
		copy(arena, m.b[:used])
	} else {
		copy(arena, m.b[:m.header.Directory])
		if !m.mixSent {
			copy(arena[m.header.Mix:], m.b[m.header.Mix:m.header.Mix+m.header.MixCount*policyabi.MixBytes])
		}
		copy(arena[m.columnsEnd():], m.b[m.columnsEnd():used])
		for _, row := range m.changed {
			m.copyRow(arena, row)
		}
		for _, row := range restore {
			m.copyRow(arena, row)
		}
	}
	m.mixSent = true
	m.calls++
	in.epoch = m.header.Epoch
}

// results are the first of those that a guest wrote.
func (m *image) results(in *Instance, count int) []byte {
	from := int(m.header.Results)
	return in.arena()[from : from+count*policyabi.ResultBytes]
}

// units rounds a need up to the unit of its column.
func (m *image) units(k resource.Kind, need int64) int32 {
	if need <= 0 {
		return 0
	}
	shift := m.shifts[k]
	return int32(min((need+1<<shift-1)>>shift, policyabi.MaxNeed))
}

// covered reports whether the policy sees what is free of a kind.
func (m *image) covered(k resource.Kind) bool {
	return policyabi.Find(m.layout.Entries, policyabi.ColumnFree+policyabi.ColumnID(k), 0) != nil
}
