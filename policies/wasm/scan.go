package wasm

import (
	"math/bits"
	"unsafe"

	"github.com/paceline-sched/paceline/sdk/policyabi"
	"github.com/tetratelabs/wazero/api"
)

// scanned is a row with its cost, as scan_topk reports it.
type scanned struct{ row, cost int32 }

func (a scanned) less(b scanned) bool { return a.cost < b.cost || a.cost == b.cost && a.row < b.row }

// condition is "column >= need".
type condition struct {
	column []int32
	need   int32
}

// int32s sees a column of the arena as numbers. Columns begin at multiples of policyabi.Alignment of an arena that is itself aligned; hosts are little-endian, like
// guests.
func int32s(b []byte, e *policyabi.Entry) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(&b[e.Offset])), e.Rows)
}

// scanTopK is policyabi.ImportScan: the scan that guests do most, at the speed of the host. It reads the guest's own copy of the table, so that what a guest took off there
// counts, and the host's layout, so that a guest can mislead nobody but itself.
func scanTopK(in *Instance, m api.Module, stack []uint64) {
	index, column, k, at := int(int32(stack[0])), int32(stack[1]), int(int32(stack[2])), uint32(stack[3])
	stack[0] = uint64(uint32(0xffffffff))
	if in.layout == nil || in.memory == nil || in.base == 0 || k <= 0 || k > policyabi.MaxScan {
		return
	}
	b := in.arena()
	out, ok := m.Memory().Read(at, uint32(8*k))
	if b == nil || !ok {
		return
	}
	h := in.layout.Header
	h.Rows = min(le.Uint32(b[policyabi.HeaderRows:]), h.Capacity)
	r, err := policyabi.DecodeRequest(b, &h, index)
	if err != nil {
		return
	}
	charge(m, int64(h.Rows))
	s := scan{in: in, b: b, r: &r, rows: int(h.Rows), k: k, sign: 1}
	if column < 0 {
		s.sign, column = -1, -column
	}
	cost := policyabi.Find(in.layout.Entries, policyabi.ColumnID(column), 0)
	if cost == nil || cost.Type != policyabi.Int32 || cost.Lanes != 1 {
		return
	}
	s.cost = int32s(b, cost)
	s.require(&h)
	s.run()
	for i, c := range s.sorted() {
		le.PutUint32(out[8*i:], uint32(c.row))
		le.PutUint32(out[8*i+4:], uint32(c.cost))
	}
	stack[0] = uint64(len(s.heap))
}

type scan struct {
	in   *Instance
	b    []byte
	r    *policyabi.Request
	rows int
	k    int
	sign int32
	cost []int32
	bias []int32
	need [4]condition // the first four; the rest is in more
	more []condition
	heap []scanned // the worst on top
}

// require lists the conditions. A column that the policy did not want is in the request's bitmap.
func (s *scan) require(h *policyabi.Header) {
	var list []condition
	add := func(id policyabi.ColumnID, need int32) {
		if e := policyabi.Find(s.in.layout.Entries, id, 0); e != nil && need > 0 {
			list = append(list, condition{int32s(s.b, e), need})
		}
	}
	for k, need := range s.r.Needs {
		add(policyabi.ColumnFree+policyabi.ColumnID(k), need)
	}
	if s.r.Share == policyabi.DeviceMilli {
		add(policyabi.ColumnDeviceWhole, s.r.Devices)
	} else {
		add(policyabi.ColumnDeviceLargest, s.r.Share)
	}
	if s.r.Extension != 0 {
		x, err := policyabi.DecodeExtension(s.b[s.r.Extension : h.Extension+h.ExtensionBytes])
		if err == nil {
			for _, n := range x.Named {
				add(policyabi.ColumnFree+policyabi.ColumnID(n.Kind), n.Amount)
			}
		}
	}
	for i := range s.need {
		s.need[i] = condition{s.cost, -1 << 30} // always so: costs are above it
		if i < len(list) {
			s.need[i] = list[i]
		}
	}
	if len(list) > len(s.need) {
		s.more = list[len(s.need):]
	}
	if s.r.Bias != 0 {
		s.bias = int32s(s.b, &policyabi.Entry{Offset: s.r.Bias, Rows: h.Capacity})
	}
}

// run tests four conditions in one branch: a difference is negative when its condition fails, and none can overflow.
func (s *scan) run() {
	s.heap = s.in.heap[:0]
	a, b, c, d := s.need[0], s.need[1], s.need[2], s.need[3]
	words := s.b[s.r.Bitmap:]
	colA, colB, colC, colD, cost := a.column[:s.rows], b.column[:s.rows], c.column[:s.rows], d.column[:s.rows], s.cost[:s.rows]
	for w := 0; w*64 < s.rows; w++ {
		for m := le.Uint64(words[8*w:]); m != 0; m &= m - 1 {
			row := w*64 + bits.TrailingZeros64(m)
			if row >= s.rows {
				break
			}
			if (colA[row]-a.need)|(colB[row]-b.need)|(colC[row]-c.need)|(colD[row]-d.need) < 0 {
				continue
			}
			v := s.sign * cost[row]
			if s.bias != nil {
				v += s.bias[row]
			}
			if len(s.heap) == s.k && v >= s.heap[0].cost || !s.fitsMore(row) {
				continue
			}
			s.offer(scanned{int32(row), v})
		}
	}
	s.in.heap = s.heap
}

func (s *scan) fitsMore(row int) bool {
	for i := range s.more {
		if s.more[i].column[row] < s.more[i].need {
			return false
		}
	}
	return true
}

func (s *scan) offer(c scanned) {
	if len(s.heap) < s.k {
		s.heap = append(s.heap, c)
		for i := len(s.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if !s.heap[up].less(s.heap[i]) {
				return
			}
			s.heap[up], s.heap[i] = s.heap[i], s.heap[up]
			i = up
		}
		return
	}
	s.heap[0] = c
	s.sink(0, len(s.heap))
}

func (s *scan) sink(i, n int) {
	for {
		child := 2*i + 1
		if child >= n {
			return
		}
		if child+1 < n && s.heap[child].less(s.heap[child+1]) {
			child++
		}
		if !s.heap[i].less(s.heap[child]) {
			return
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
}

// sorted turns the heap into ascending order.
func (s *scan) sorted() []scanned {
	for n := len(s.heap) - 1; n > 0; n-- {
		s.heap[0], s.heap[n] = s.heap[n], s.heap[0]
		s.sink(0, n)
	}
	return s.heap
}
