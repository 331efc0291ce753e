package policy

import (
	"encoding/binary"
	"unsafe"

	"github.com/paceline-sched/paceline/sdk/policy/internal/score"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

var le = binary.LittleEndian

// Table is the hosts of a shard, column by column, at this moment of the call: what earlier tasks took is off. Columns have a value for each of Rows; a
// column that the policy did not ask for, or that the scheduler does not have, is nil. They must not be written.
type Table struct {
	arena   []byte
	log     func(level int, text string)
	header  policyabi.Header
	entries []policyabi.Entry
	kinds   int // those that may have a column are below it

	free, total, usage, slack score.Columns
	deviceFree                []int16 // MaxDevices for each row
	deviceModel               []int16
	deviceWhole               []int32
	deviceLargest             []int32
	tasks                     []int32
	leftover, freeShare       []int32
	host                      []int64

	scale  score.Scale
	scaled bool     // the scale is that of the table as it is
	stamps []uint64 // by row
	clock  uint64   // the last stamp that was given
	taken  []int32  // rows that the last call took room on: the host puts them right

	mix        []Class
	mixBytes   []byte // what mix was read from
	mixVersion uint64
	mixEpoch   uint64 // the call that mix was compared in
}

// view sees count numbers of an arena that is aligned for them. Hosts and guests are little-endian.
func view[T any](arena []byte, offset uint32, count int) []T {
	if count == 0 {
		return []T{} // nil would mean that there is no such column
	}
	var one T
	last := int(offset) + count*int(unsafe.Sizeof(one))
	return unsafe.Slice((*T)(unsafe.Pointer(&arena[offset:last][0])), count)
}

// open makes the table the one in the arena, at the beginning of a call.
func (t *Table) open(h *policyabi.Header) error {
	old := t.header
	t.header = *h
	if t.entries == nil || old.Generation != h.Generation || old.Rows != h.Rows || old.Capacity != h.Capacity {
		if err := t.bind(); err != nil {
			return err
		}
	}
	t.refresh(old.Epoch)
	return nil
}

// bind finds the columns.
func (t *Table) bind() error {
	entries, err := policyabi.DecodeDirectory(t.arena, &t.header)
	if err != nil {
		return err
	}
	t.entries, t.kinds = entries, 0
	for k := range policyabi.ColumnID(policyabi.MaxKinds) {
		t.free[k], t.total[k] = t.ints(policyabi.ColumnFree+k), t.ints(policyabi.ColumnTotal+k)
		t.usage[k], t.slack[k] = t.ints(policyabi.ColumnUsage+k), t.ints(policyabi.ColumnSlack+k)
		if t.free[k] != nil || t.total[k] != nil {
			t.kinds = int(k) + 1
		}
	}
	t.deviceFree = t.lanes(policyabi.ColumnDeviceFree)
	t.deviceModel = t.lanes(policyabi.ColumnDeviceModel)
	t.deviceWhole, t.deviceLargest = t.ints(policyabi.ColumnDeviceWhole), t.ints(policyabi.ColumnDeviceLargest)
	t.tasks = t.ints(policyabi.ColumnTasks)
	t.leftover, t.freeShare = t.ints(policyabi.ColumnLeftover), t.ints(policyabi.ColumnFreeShare)
	t.host = t.longs(policyabi.ColumnHost)
	if len(t.stamps) < int(t.header.Capacity) {
		t.stamps = make([]uint64, t.header.Capacity)
	}
	t.scaled = false
	return nil
}

func (t *Table) entry(id policyabi.ColumnID, typ policyabi.ElementType) *policyabi.Entry {
	e := policyabi.Find(t.entries, id, 0)
	if e == nil || e.Type != typ || int(e.Stride) != typ.Size()*int(e.Lanes) {
		return nil
	}
	return e
}

func column[T any](t *Table, id policyabi.ColumnID, typ policyabi.ElementType, lanes int) []T {
	e := t.entry(id, typ)
	if e == nil || int(e.Lanes) != lanes {
		return nil
	}
	return view[T](t.arena, e.Offset, lanes*int(t.header.Rows))
}

func (t *Table) ints(id policyabi.ColumnID) []int32 {
	return column[int32](t, id, policyabi.Int32, 1)
}

func (t *Table) longs(id policyabi.ColumnID) []int64 {
	return column[int64](t, id, policyabi.Int64, 1)
}

func (t *Table) lanes(id policyabi.ColumnID) []int16 {
	return column[int16](t, id, policyabi.Int16, policyabi.MaxDevices)
}

// refresh gives new stamps to the rows that changed since the last call.
func (t *Table) refresh(seen uint64) {
	h := &t.header
	if h.BaseEpoch != seen || h.DirtyCount == policyabi.AllDirty || t.clock == 0 {
		t.clock++
		for row := range t.stamps {
			t.stamps[row] = t.clock
		}
		t.scaled = false
	} else {
		for _, row := range view[uint32](t.arena, h.Dirty, int(h.DirtyCount)) {
			t.touch(int(row))
		}
		for _, row := range t.taken {
			t.touch(int(row))
		}
	}
	t.taken = t.taken[:0]
}

func (t *Table) touch(row int) {
	if row < len(t.stamps) {
		t.clock++
		t.stamps[row] = t.clock
	}
}

// Rows is the number of rows. Some may have no host; no bitmap opens those.
func (t *Table) Rows() int { return int(t.header.Rows) }

// Host is a row, to look at.
func (t *Table) Host(row int) Host { return Host{t, row} }

// Kinds is a number above all kinds that the table has.
func (t *Table) Kinds() int { return t.kinds }

// Named finds the kind of a named resource whose column the policy asked for, as in "free:licences".
func (t *Table) Named(name string) (Kind, bool) {
	for k := len(policyabi.KindNames); k < t.kinds; k++ {
		if e := policyabi.Find(t.entries, policyabi.ColumnFree+policyabi.ColumnID(k), policyabi.Hash(name)); e != nil {
			return Kind(k), true
		}
	}
	return 0, false
}

// Shift is the unit of a kind in this table: 1 << Shift of the kind's own. It is 0 but for enormous quantities.
func (t *Table) Shift(k Kind) uint8 {
	if e := policyabi.Find(t.entries, policyabi.ColumnFree+policyabi.ColumnID(k), 0); e != nil {
		return e.Shift
	}
	return 0
}

// Free is what is free of a kind; it may be negative.
func (t *Table) Free(k Kind) []int32 { return t.free[k] }

// Total is what the hosts have of a kind.
func (t *Table) Total(k Kind) []int32 { return t.total[k] }

// Usage is what is measured to be in use of a kind, whatever tasks asked for.
func (t *Table) Usage(k Kind) []int32 { return t.usage[k] }

// Slack is the room of a kind for revocable work.
func (t *Table) Slack(k Kind) []int32 { return t.slack[k] }

// Leftover is what is free as a share of the largest host's, 0 to Span, a GPU weighing 64 times other kinds: the cost of best-fit.
func (t *Table) Leftover() []int32 { return t.leftover }

// FreeShare is what is free as a share of the host's own, 0 to Span: the cost of pack, and Span less that of spread.
func (t *Table) FreeShare() []int32 { return t.freeShare }

// Column is an int32 column by its name in Info.Columns, such as "ports", "flags" or "topology:rack". It looks the name up: a policy does that once for a request.
func (t *Table) Column(name string) []int32 {
	e := t.named(name)
	if e == nil {
		return nil
	}
	return view[int32](t.arena, e.Offset, int(t.header.Rows))
}

// named finds an int32 column, nil for none.
func (t *Table) named(name string) *policyabi.Entry {
	w, err := policyabi.ParseWant(name)
	if err != nil {
		return nil
	}
	key := uint64(0)
	if w.Name != "" {
		key = policyabi.Hash(w.Name)
	}
	for i := range t.entries {
		e := &t.entries[i]
		family := e.ID >= w.Column && (e.ID < w.Column+policyabi.MaxKinds || w.Column == policyabi.ColumnExtension)
		same := e.ID == w.Column || key != 0 && family
		if same && e.Key == key && e.Type == policyabi.Int32 && e.Lanes == 1 && e.Stride == 4 {
			return e
		}
	}
	return nil
}

// Hosts is the identity of the host on each row, the same in every table; it needs "host" among the columns.
func (t *Table) Hosts() []int64 { return t.host }

// Stamp is a number that a row gets anew whenever anything on it changes, also by what the call itself takes there. What a policy computed of a row holds while the stamp
// and Generation are the same. It is never 0.
func (t *Table) Stamp(row int) uint64 { return t.stamps[row] }

// Generation changes when units, models or domains take another meaning.
func (t *Table) Generation() uint64 { return t.header.Generation }

// Scratch is memory that stays as the policy left it; zero at first. What stands there must be derivable from nothing.
func (t *Table) Scratch() []byte {
	return t.arena[t.header.Scratch : t.header.Scratch+t.header.ScratchBytes]
}

// Log tells people something, at one of policyabi's levels: at most 1,024 bytes, at most 16 times a call.
func (t *Table) Log(level int, text string) { t.log(level, text) }

// Seed is the call's own randomness.
func (t *Table) Seed() uint64 { return t.header.Seed }

// Time is the scheduler's, in milliseconds since 1970 UTC.
func (t *Table) Time() int64 { return t.header.Time }

// Class is one class of the work that the scheduler expects.
type Class struct {
	ID      uint64
	Weight  float64 // of all classes together 1
	Needs   [4]int32
	Share   int32  // thousandths of each device
	Devices int32  // how many
	Models  uint64 // that will do, bit by number; 0: all
}

// Mix is the work that the scheduler expects, the heaviest class first, and a number that grows when that changes. The slice is valid until the end of the call.
func (t *Table) Mix() (classes []Class, version uint64) {
	h := &t.header
	if t.mixVersion > 0 && t.mixEpoch == h.Epoch {
		return t.mix, t.mixVersion
	}
	t.mixEpoch = h.Epoch
	raw := t.arena[h.Mix : h.Mix+h.MixCount*policyabi.MixBytes]
	if string(raw) == string(t.mixBytes) && t.mixVersion > 0 {
		return t.mix, t.mixVersion
	}
	t.mixVersion++
	t.mixBytes = append(t.mixBytes[:0], raw...)
	t.mix = t.mix[:0]
	for i := range int(h.MixCount) {
		m, err := policyabi.DecodeMix(t.arena, h, i)
		if err != nil {
			break
		}
		t.mix = append(t.mix, Class{m.Class, m.Weight, m.Needs, m.Share, m.Devices, m.Models})
	}
	return t.mix, t.mixVersion
}

// rescore computes the score columns of a row anew.
func (t *Table) rescore(row int) {
	if t.leftover == nil && t.freeShare == nil {
		return
	}
	if !t.scaled {
		t.scale, t.scaled = score.Measure(&t.total), true
	}
	left, share := t.scale.Row(&t.free, &t.total, row)
	if t.leftover != nil {
		t.leftover[row] = left
	}
	if t.freeShare != nil {
		t.freeShare[row] = share
	}
}
