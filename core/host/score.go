package host

import (
	"math/bits"

	"github.com/paceline-sched/paceline/core/resource"
)

// ScoreSpan is the value of both score columns for a host that is wholly free and, for Leftover, the largest of the table.
const ScoreSpan = int64(1) << 30

const (
	shareBits   = 22 // a share of one kind is 0 to 1<<shareBits; with resource.MaxQuantity at 1<<40 the shift stays inside int64
	spanShift   = 8  // from shares to ScoreSpan
	gpuWeight   = 64 // of GPU against any other kind in Leftover: a free device decides, other kinds break ties
	sizeClasses = 42 // power-of-two classes of capacities
)

// sizes counts the hosts of a table by kind and power-of-two class of capacity, so that the largest class is known at any time
// without a look at all hosts. Powers of two keep the classes from moving with every host that comes or goes.
type sizes [resource.MaxKinds][sizeClasses]int32

func sizeClass(quantity int64) int {
	if quantity <= 0 {
		return 0
	}
	return min(bits.Len64(uint64(quantity-1))+1, sizeClasses-1) // 1<<(class-1) >= quantity
}

// largest returns the highest class in use of a kind, 0 when no host has any of it.
func (s *sizes) largest(k int) int {
	for c := sizeClasses - 1; c > 0; c-- {
		if s[k][c] > 0 {
			return c
		}
	}
	return 0
}

// add counts a host's capacity in or out and reports whether the scale of any kind moved.
func (s *sizes) add(capacity *resource.Vector, n int32) bool {
	moved := false
	for k, q := range capacity {
		if class := sizeClass(q); class > 0 {
			before := s.largest(k)
			s[k][class] += n
			moved = moved || s.largest(k) != before
		}
	}
	return moved
}

// rescale recomputes the shifts and weights of Leftover, and the column.
func (t *Table) rescale() {
	t.scaled = t.scaled[:0]
	t.totalWeight = 0
	for k := range t.free {
		if class := t.sizes.largest(k); class > 0 {
			s := scaledKind{kind: k, weight: 1, shift: uint(class - 1)}
			if resource.Kind(k) == resource.GPU {
				s.weight = gpuWeight
			}
			t.scaled = append(t.scaled, s)
			t.totalWeight += s.weight
		}
	}
	for row := range t.hosts {
		if t.hosts[row] != nil {
			t.scoreRow(Row(row))
		}
	}
}

type scaledKind struct {
	kind   int
	weight int64
	shift  uint
}

// scoreRow recomputes both score columns of one host.
func (t *Table) scoreRow(row Row) {
	var left, share, present int64
	for _, s := range t.scaled {
		room := t.capacity[s.kind][row]
		if room <= 0 {
			continue
		}
		free := min(max(t.free[s.kind][row], 0), room) << shareBits
		left += s.weight * (free >> s.shift)
		share += free / room
		present++
	}
	if present == 0 {
		t.leftover[row], t.freeShare[row] = 0, 0
		return
	}
	t.leftover[row] = left << spanShift / t.totalWeight
	t.freeShare[row] = share << spanShift / present
}

// Leftover returns the column of what is left on each host in absolute terms: the weighted mean over the table's kinds of
// free / largest capacity in the table (rounded up to a power of two), as a fraction of ScoreSpan. GPU weighs gpuWeight times the
// others. It must not be changed.
func (t *Table) Leftover() []int64 { return t.leftover }

// FreeShare returns the column of what is left relative to the host itself: the mean over the kinds it has of free / capacity, as
// a fraction of ScoreSpan. It must not be changed.
func (t *Table) FreeShare() []int64 { return t.freeShare }
