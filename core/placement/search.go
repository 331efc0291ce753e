package placement

import (
	"math"
	"math/bits"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// point is the unit in which weights are given: a hundredth of a strategy's range.
const point = host.ScoreSpan / 100

// search is the state of serving one request.
type search struct {
	native *Native
	table  *host.Table
	class  *Class
	know   *knowledge
	count  int

	needs []need  // at least scanWidth, those that refuse most often first; the rest are padding
	more  []need  // what does not go into needs
	base  []int64 // the strategy's column
	sign  int64   // 1, or -1 when the fullest column value wins
	terms []term
	// domain is the one that the hosts must be in; 0: any.
	domains host.Domains
	domain  uint32
	only    *restriction // domains that a gang must stay out of; nil: none

	closed        host.Bitmap // hosts that hold exclusive work of others; nil for exclusive classes
	models, ports bool        // the class needs more than columns can tell
	local         bool        // placing a task changes nothing for other hosts
}

// need is one condition "column >= amount".
type need struct {
	column  []int64
	amount  int64
	devices bool // about single devices, not about a sum
}

// scanWidth is how many conditions the scan tests in one go. Three columns and a score are what a scan can stream through before it
// pays for more.
const scanWidth = 3

func (n *Native) search(t *host.Table, class *Class, count int) *search {
	s := &search{native: n, table: t, class: class, know: n.learn(t, class), count: count, sign: 1}
	switch class.Placement.Strategy {
	case workload.StrategyPack:
		s.base = t.FreeShare()
	case workload.StrategySpread:
		s.base, s.sign = t.FreeShare(), -1
	case workload.StrategyBestFit, "":
		s.base = t.Leftover()
	default: // a name that is not ours was somebody else's to serve; the default strategy is better than none
		s.base = t.Leftover()
	}
	s.listNeeds()
	s.ports = len(class.Ports) > 0
	s.models = len(class.GPUModels) > 0 && class.Needs[resource.GPU] > 0
	if !class.Placement.Exclusive {
		s.closed = t.Exclusive()
	}
	s.compileTerms()
	return s
}

func (s *search) listNeeds() {
	t, c := s.table, s.class
	list := make([]need, 0, scanWidth+2)
	if gpu := c.Needs[resource.GPU]; gpu > 0 {
		if gpu < host.DeviceMilli {
			list = append(list, need{t.LargestShare(), gpu, true})
		} else {
			list = append(list, need{t.WholeFree(), c.deviceCount(), true})
		}
	}
	for k, amount := range c.Needs {
		if amount > 0 && resource.Kind(k) != resource.GPU {
			list = append(list, need{column: t.FreeOf(resource.Kind(k)), amount: amount})
		}
	}
	if gpu := c.Needs[resource.GPU]; gpu > 0 {
		list = append(list, need{column: t.FreeOf(resource.GPU), amount: gpu})
	}
	if n := len(c.Ports); n > 0 {
		list = append(list, need{column: t.PortsFree(), amount: int64(n)})
	}
	for i := range list {
		if list[i].column == nil { // nobody has any
			list[i] = need{column: s.base, amount: math.MaxInt64}
		}
	}
	for len(list) < scanWidth {
		list = append(list, need{column: s.base, amount: math.MinInt64 / 2})
	}
	s.needs, s.more = list[:scanWidth], list[scanWidth:]
}

// mask returns the hosts of one bitmap word that may be looked at.
func (s *search) mask(word int) uint64 {
	m := s.know.eligible[word] & s.table.Usable()[word]
	if s.closed != nil {
		m &^= s.closed[word]
	}
	return m
}

// candidate is a host with room and its cost.
type candidate struct {
	cost int64
	row  host.Row
}

func (a candidate) less(b candidate) bool {
	return a.cost < b.cost || a.cost == b.cost && a.row < b.row
}

// anyCost is above every cost, noCost below.
const (
	anyCost = math.MaxInt64
	noCost  = math.MinInt64
)

// scan calls found for every host with room that is statically fit, in ascending order. found returns the cost from which on it wants no more hosts,
// which never rises: most are not worth a call.
func (s *search) scan(found func(candidate) int64) {
	if s.plain() && s.domain == 0 {
		s.scanColumns(found)
		return
	}
	below, domain := int64(anyCost), s.domain
	for w := range s.know.eligible {
		for m := s.mask(w); m != 0; m &= m - 1 {
			row := host.Row(w*64 + bits.TrailingZeros64(m))
			if domain != 0 && s.domains.Of(row) != domain || !s.fits(row) {
				continue
			}
			if cost := s.cost(row); cost < below {
				below = found(candidate{cost, row})
			}
		}
	}
}

// scanColumns is scan where four columns say everything.
//
// The test of the three main conditions is one branch: each difference is negative exactly when its condition fails, and so is the bitwise or
// of the three. Quantities are bounded by resource.MaxQuantity, so the differences cannot overflow.
func (s *search) scanColumns(found func(candidate) int64) {
	a, b, c := s.needs[0].amount, s.needs[1].amount, s.needs[2].amount
	rows := s.table.Rows()
	colA, colB, colC, base := s.needs[0].column[:rows], s.needs[1].column[:rows], s.needs[2].column[:rows], s.base[:rows]
	sign, below := s.sign, int64(anyCost)
	for w := range s.know.eligible {
		for m := s.mask(w); m != 0; m &= m - 1 {
			row := w*64 + bits.TrailingZeros64(m)
			if cost := sign * base[row]; cost < below && (colA[row]-a)|(colB[row]-b)|(colC[row]-c) >= 0 {
				below = found(candidate{cost, host.Row(row)})
			}
		}
	}
}

// plain reports whether the three main conditions and the strategy's column say everything.
func (s *search) plain() bool {
	return len(s.more) == 0 && !s.ports && !s.models && !s.class.Placement.Exclusive && s.know.bonus == nil && len(s.terms) == 0 &&
		s.class.Needs[resource.GPU] <= host.DeviceMilli
}

// fits reports whether the host at row, one of the mask, has room and meets every condition that only depends on itself.
func (s *search) fits(row host.Row) bool {
	for _, n := range s.needs {
		if n.column[row] < n.amount {
			return false
		}
	}
	return s.fitsRest(row)
}

func (s *search) fitsRest(row host.Row) bool {
	for _, n := range s.more {
		if n.column[row] < n.amount {
			return false
		}
	}
	if s.models && size(s.openDevices(row)) < s.class.deviceCount() || s.oddDevices() {
		return false
	}
	if s.ports && !s.table.PortsFit(row, s.class.Ports) {
		return false
	}
	if s.class.Placement.Exclusive && !s.table.OnlyJob(row, s.class.Job) {
		return false
	}
	for i := range s.terms {
		if x := &s.terms[i]; x.still && !x.allows(x.counter.Domain(row)) {
			return false
		}
	}
	return true
}

// cost returns the part of a host's cost that only depends on itself.
func (s *search) cost(row host.Row) int64 {
	cost := s.sign * s.base[row]
	if s.know.bonus != nil {
		cost -= s.know.bonus[row]
	}
	for i := range s.terms {
		if x := &s.terms[i]; x.still {
			cost += x.cost(x.counter.Domain(row))
		}
	}
	return cost
}

// take books one task on a host that fits.
func (s *search) take(row host.Row) Assignment { return s.takeOn(row, s.pickDevices(row)) }

func (s *search) takeOn(row host.Row, devices DeviceSet) Assignment {
	a := Assignment{Row: row, Devices: devices, Ports: s.table.PickPorts(row, s.class.Ports)}
	if err := s.table.Take(row, s.class.Occupant(a.Devices, a.Ports)); err != nil {
		panic("placement: the table refuses a host that it offered: " + err.Error())
	}
	return a
}

// placeAll places tasks until all are, or none more fits. A gang that cannot be finished is given back, after which the result only
// counts how many members had found room.
func (s *search) placeAll(r *Request) []Assignment {
	if s.local {
		placed := s.placeLocal(r.Count)
		if r.Gang && len(placed) < r.Count {
			undo(s.table, s.class, placed)
		}
		return placed
	}
	return s.placeByDomain(r)
}

// placeLocal serves classes whose tasks change the cost of their own host only: the best count hosts are all that can matter.
func (s *search) placeLocal(count int) []Assignment {
	if count == 1 {
		best := candidate{row: host.NoRow}
		s.scan(func(c candidate) int64 {
			best = c
			return c.cost
		})
		if best.row == host.NoRow {
			return nil
		}
		return []Assignment{s.take(best.row)}
	}
	heap := s.bestOf(count)
	if len(heap) == 0 {
		return nil
	}
	placed := make([]Assignment, 0, count)
	for len(placed) < count && len(heap) > 0 {
		row := heap[0].row
		placed = append(placed, s.take(row))
		if s.closedNow(row) || !s.fits(row) {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		} else {
			heap[0].cost = s.cost(row)
		}
		siftDown(heap, 0, candidate.less)
	}
	return placed
}

// closedNow reports whether a host left the mask by what was just placed on it. Only a class can close a host to itself that is
// exclusive and does not know its job, which NewClass never makes; the check keeps such a class from looping.
func (s *search) closedNow(row host.Row) bool {
	return s.mask(int(row)/64)>>(uint(row)%64)&1 == 0
}

// bestOf returns the count cheapest hosts as a heap with the cheapest on top.
func (s *search) bestOf(count int) []candidate {
	heap := s.native.heap[:0] // the dearest on top, while it is being filled
	worse := func(a, b candidate) bool { return b.less(a) }
	s.scan(func(c candidate) int64 {
		switch {
		case len(heap)+1 < count:
			heap = append(heap, c)
			return anyCost
		case len(heap) < count:
			heap = append(heap, c)
			heapify(heap, worse)
		default:
			heap[0] = c
			siftDown(heap, 0, worse)
		}
		return heap[0].cost // rows ascend, so an equal cost loses
	})
	s.native.heap = heap
	heapify(heap, candidate.less)
	return heap
}

func heapify(heap []candidate, less func(a, b candidate) bool) {
	for i := len(heap)/2 - 1; i >= 0; i-- {
		siftDown(heap, i, less)
	}
}

func siftDown(heap []candidate, i int, less func(a, b candidate) bool) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && less(heap[child+1], heap[child]) {
			child++
		}
		if !less(heap[child], heap[i]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}
