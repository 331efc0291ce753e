// Package score computes the two score columns of a table, as core/host does, from what its hosts have and what is free.
//
// It is pure. A Scale may be read by any number of readers.
package score

import "github.com/paceline-sched/paceline/sdk/policyabi"

const (
	shareBits = 22 // a share of one kind is 0 to 1 << shareBits
	spanShift = 8  // from there to policyabi.ScoreSpan
	gpu       = 3  // the kind
	gpuWeight = 64 // of GPUs against any other kind in what is left over
)

// Columns is a column for each kind, nil for kinds that the table does not have.
type Columns = [policyabi.MaxKinds][]int32

// Scale is the size of a table's largest hosts, in powers of two. The zero value is that of an empty table.
type Scale struct {
	has    [policyabi.MaxKinds]bool
	shift  [policyabi.MaxKinds]uint8
	weight int64 // of all kinds together
}

// Measure finds the scale of a table in one pass over what its hosts have.
func Measure(total *Columns) Scale {
	var s Scale
	for k := range total {
		most := int32(0)
		for _, q := range total[k] {
			most = max(most, q)
		}
		if most <= 0 {
			continue
		}
		shift := uint8(0)
		for int64(1)<<shift < int64(most) {
			shift++
		}
		s.has[k], s.shift[k] = true, shift
		s.weight += weightOf(k)
	}
	return s
}

func weightOf(k int) int64 {
	if k == gpu {
		return gpuWeight
	}
	return 1
}

// Row returns what is left over on a row, as a share of the largest hosts', and what is free there, as a share of its own: 0 to policyabi.ScoreSpan.
func (s *Scale) Row(free, total *Columns, row int) (leftover, freeShare int32) {
	var left, share, present int64
	for k := range total {
		if !s.has[k] || free[k] == nil {
			continue
		}
		room := int64(total[k][row])
		if room <= 0 {
			continue
		}
		is := min(max(int64(free[k][row]), 0), room) << shareBits
		left += weightOf(k) * (is >> s.shift[k])
		share += is / room
		present++
	}
	if present == 0 {
		return 0, 0
	}
	return int32(left << spanShift / s.weight), int32(share << spanShift / present)
}
