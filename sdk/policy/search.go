package policy

import (
	"math"
	"unsafe"

	"github.com/paceline-sched/paceline/sdk/policy/internal/outside"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// candidate is a host with room and its cost.
type candidate struct {
	cost int64
	row  int32
}

func (a candidate) less(b candidate) bool {
	return a.cost < b.cost || a.cost == b.cost && a.row < b.row
}

// blockRows is how many hosts a BlockScorer gets at a time.
const blockRows = 128

// anyCost is above every cost, and far enough from the ends of int64 to subtract from.
const anyCost = math.MaxInt64 >> 1

// search is what finding the cheapest hosts works with.
type search struct {
	conditions []condition
	heap       []candidate // while it fills, the dearest on top; then the cheapest
	most       int         // candidates wanted
	below      int64       // a host at this cost or above is not wanted
	rows       [blockRows]int32
	costs      [blockRows]int64
	found      []byte  // what outside.Scan writes to
	zeros      []int32 // a column where there is none
}

// place places the tasks of a request:
//  1. the cheapest hosts are found in one look at all of them, as many as there are tasks: a task changes the cost of its own host only, so they hold every choice;
//  2. each task goes to the cheapest, which is then priced anew, or leaves when it is full;
//  3. a gang that is not complete gives everything back when the next request begins, so that it finds the room.
func (c *Call) place(r *Request) int {
	c.begin(r)
	s := &c.search
	left := r.count - len(c.took)
	s.heap, s.most, s.below = s.heap[:0], min(left, c.table.Rows()), anyCost
	if s.most <= 0 {
		return 0
	}
	c.look(r)
	heap, placed := s.heap, 0
	for placed < left && len(heap) > 0 {
		row := int(heap[0].row)
		if !c.take(r, row, heap[0].cost) {
			break
		}
		if placed++; placed == left {
			return placed
		}
		if c.fits(r, row) {
			heap[0].cost = c.price(r, row)
		} else {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		}
		sinkCheapest(heap, 0)
	}
	return placed
}

// look fills the heap with the cheapest hosts, the cheapest on top.
func (c *Call) look(r *Request) {
	s := &c.search
	plain := c.by != nil && c.scorer == nil && c.block == nil && c.filter == nil
	switch {
	case plain && outside.Scan != nil && c.lookFromOutside(r):
		return
	case plain && r.bias == nil:
		c.lookByColumn(r)
	default:
		c.lookByBlock(r)
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		sinkCheapest(s.heap, i)
	}
}

// fits reports whether a host has room for one more task and the policy allows it.
func (c *Call) fits(r *Request, row int) bool {
	for i := range c.search.conditions {
		if x := &c.search.conditions[i]; int64(x.column[row]) < x.need {
			return false
		}
	}
	return r.Open(row) && c.fitsRest(r, row)
}

// fitsRest is what fits asks beyond conditions on columns and the bitmap.
func (c *Call) fitsRest(r *Request, row int) bool {
	h := Host{c.table, row}
	if r.models != nil && r.devices > 0 && h.OpenDevices(r).Len() < int(r.devices) {
		return false
	}
	return c.filter == nil || c.filter.Allow(r, h)
}

// price is the cost of a host.
func (c *Call) price(r *Request, row int) int64 {
	if c.scorer != nil || c.block != nil {
		s := &c.search
		s.rows[0] = int32(row)
		c.priceRows(r, s.rows[:1], s.costs[:1])
		return s.costs[0] + r.Bias(row)
	}
	return c.columnCost(int64(c.by[row])) + r.Bias(row)
}

func (c *Call) columnCost(v int64) int64 {
	if c.largest {
		return Span - v
	}
	return v
}

// lookByColumn is the look of a policy whose cost is a column. A difference is negative when its condition fails, so one branch tests all of
// them and whether the host is cheap enough; quantities are within 32 bits, so none overflows.
func (c *Call) lookByColumn(r *Request) {
	s := &c.search
	rows := c.table.Rows()
	always := condition{c.by, noNeed}
	x := [3]condition{always, always, always}
	more := s.conditions[copy(x[:], s.conditions):]
	sign, base := int64(1), int64(0)
	if c.largest {
		sign, base = -1, Span
	}
	needA, needB, needC, below := x[0].need, x[1].need, x[2].need, s.below-base
	for at := 0; at < rows; at += 64 {
		open := r.open[at/64]
		if open == 0 {
			continue
		}
		end := min(at+64, rows)
		cost := c.by[at:end]
		colA, colB, colC := x[0].column[at:end][:len(cost)], x[1].column[at:end][:len(cost)], x[2].column[at:end][:len(cost)]
		for i, v := range cost {
			price := sign * int64(v)
			if (int64(colA[i])-needA)|(int64(colB[i])-needB)|(int64(colC[i])-needC)|(below-1-price) < 0 || open>>(uint(i)&63)&1 == 0 {
				continue
			}
			if len(more) > 0 && !meets(more, at+i) || r.models != nil && !c.fitsRest(r, at+i) {
				continue
			}
			s.offer(candidate{base + price, int32(at + i)})
			below = s.below - base
		}
	}
}

func meets(conditions []condition, row int) bool {
	for i := range conditions {
		if x := &conditions[i]; int64(x.column[row]) < x.need {
			return false
		}
	}
	return true
}

// lookByBlock collects hosts with room and prices them in blocks.
func (c *Call) lookByBlock(r *Request) {
	s := &c.search
	rows, n := c.table.Rows(), 0
	rest := r.models != nil || c.filter != nil
	var x [3]condition
	count := copy(x[:], s.conditions)
	for ; count < len(x); count++ { // a condition that always holds, on any column that is there
		x[count] = condition{c.anyColumn(), noNeed}
	}
	more := s.conditions[min(len(s.conditions), len(x)):]
	needA, needB, needC := x[0].need, x[1].need, x[2].need
	known, stamps := c.memory.known(r), c.table.stamps
	for at := 0; at < rows; at += 64 {
		open := r.open[at/64]
		if open == 0 {
			continue
		}
		end := min(at+64, rows)
		colA := x[0].column[at:end]
		var memos []memo // of these rows, where there are any
		if known != nil {
			memos = known[at:end]
		}
		stamp, below := stamps[at:end][:len(colA)], s.below
		colB, colC := x[1].column[at:end][:len(colA)], x[2].column[at:end][:len(colA)]
		for i, v := range colA {
			if (int64(v)-needA)|(int64(colB[i])-needB)|(int64(colC[i])-needC) < 0 || open>>(uint(i)&63)&1 == 0 {
				continue
			}
			if i < len(memos) && memos[i].stamp == stamp[i] && memos[i].cost >= below { // too dear, as is known
				continue
			}
			if len(more) > 0 && !meets(more, at+i) || rest && !c.fitsRest(r, at+i) {
				continue
			}
			s.rows[n] = int32(at + i)
			n++
		}
		if n > blockRows-64 || end == rows {
			c.priceBlock(r, n)
			n = 0
		}
	}
	c.priceBlock(r, n)
}

// anyColumn is a column to test a condition on that always holds.
func (c *Call) anyColumn() []int32 {
	for k := range c.table.kinds {
		if c.table.free[k] != nil {
			return c.table.free[k]
		}
	}
	if rows := c.table.Rows(); len(c.search.zeros) < rows {
		c.search.zeros = make([]int32, rows)
	}
	return c.search.zeros
}

func (c *Call) priceBlock(r *Request, n int) {
	if n == 0 {
		return
	}
	s := &c.search
	rows, costs := s.rows[:n], s.costs[:n]
	if c.scorer != nil || c.block != nil {
		c.priceRows(r, rows, costs)
	} else {
		for i, row := range rows {
			costs[i] = c.columnCost(int64(c.by[row]))
		}
	}
	for i, row := range rows {
		if cost := costs[i] + r.Bias(int(row)); cost < s.below {
			s.offer(candidate{cost, row})
		}
	}
}

// lookFromOutside lets the scheduler scan. It reports false when it cannot.
func (c *Call) lookFromOutside(r *Request) bool {
	s := &c.search
	e := c.table.named(c.order)
	if s.most > policyabi.MaxScan || e == nil {
		return false
	}
	id := int32(e.ID)
	if c.largest {
		id = -id
	}
	if need := 8 * s.most; len(s.found) < need {
		s.found = make([]byte, need)
	}
	n := outside.Scan(int32(r.index), id, int32(s.most), unsafe.Pointer(&s.found[0]))
	if n < 0 {
		return false
	}
	for i := range int(n) {
		row, cost := int32(le.Uint32(s.found[8*i:])), int64(int32(le.Uint32(s.found[8*i+4:])))
		if r.models != nil && !c.fitsRest(r, int(row)) {
			continue
		}
		if c.largest {
			cost += Span
		}
		s.heap = append(s.heap, candidate{cost, row})
	}
	return true // in ascending order, which is a heap
}

// offer puts a host among the cheapest that are wanted. Rows come in ascending order, so an equal cost loses.
func (s *search) offer(c candidate) {
	switch {
	case len(s.heap)+1 < s.most:
		s.heap = append(s.heap, c)
		return
	case len(s.heap) < s.most:
		s.heap = append(s.heap, c)
		for i := len(s.heap)/2 - 1; i >= 0; i-- {
			sinkDearest(s.heap, i)
		}
	default:
		s.heap[0] = c
		sinkDearest(s.heap, 0)
	}
	s.below = s.heap[0].cost
}

func sinkDearest(heap []candidate, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && heap[child].less(heap[child+1]) {
			child++
		}
		if !heap[i].less(heap[child]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}

func sinkCheapest(heap []candidate, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && heap[child+1].less(heap[child]) {
			child++
		}
		if !heap[child].less(heap[i]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}
