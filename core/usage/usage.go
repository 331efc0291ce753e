// Package usage keeps the accounts of a cell: what the work of each pool and owner held, in resource-seconds, and how that compares
// with what the pool was entitled to.
//
// # Accounts
//
// An Account belongs to one owner in one pool. It counts the room that runs hold, from the moment at which a run is bound to its host
// to its end: what a host cannot give to anybody else is what is charged for. A run adds its needs times its life. Work that waits holds nothing.
//
// Counters only grow. What was used in a span of time is the difference of two readings; so a reading that is missing makes a figure
// coarser and never wrong. Readings are Samples, taken every minute and thinned out as they grow old: see Levels.
//
// # Exactness
//
// Times count in whole milliseconds, quantities in the unit of their kind, and nothing is rounded before a Sample, which holds whole
// unit-seconds. The sum over the runs of an owner is his account, to the last millisecond; the tests compute the one from the other.
//
// The package is pure: it reads no clock and draws on no randomness. A Ledger has one owner and is not safe for concurrent use; Samples are
// values.
package usage

import (
	"math"
	"math/bits"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
)

// Seconds are resource-seconds per kind: an exact number of milliseconds times units. Values are comparable. They saturate at 2^63-1
// unit-seconds.
type Seconds struct {
	Whole resource.Vector           // unit-seconds
	Milli [resource.MaxKinds]uint16 // thousandths of them, below 1000
}

// Add adds units held for some milliseconds. Neither may be negative.
func (s *Seconds) Add(units *resource.Vector, milliseconds int64) {
	if milliseconds <= 0 {
		return
	}
	for k, q := range units {
		if q <= 0 {
			continue
		}
		hi, lo := bits.Mul64(uint64(q), uint64(milliseconds))
		lo, carry := bits.Add64(lo, uint64(s.Milli[k]), 0)
		if hi += carry; hi >= 1000 { // the quotient would not fit
			s.Whole[k], s.Milli[k] = math.MaxInt64, 0
			continue
		}
		quotient, remainder := bits.Div64(hi, lo, 1000)
		if sum := uint64(s.Whole[k]) + quotient; quotient <= math.MaxInt64 && sum <= math.MaxInt64 {
			s.Whole[k], s.Milli[k] = int64(sum), uint16(remainder)
			continue
		}
		s.Whole[k], s.Milli[k] = math.MaxInt64, 0
	}
}

// Plus returns s + o.
func (s Seconds) Plus(o Seconds) Seconds {
	for k := range s.Whole {
		milli := s.Milli[k] + o.Milli[k]
		carry := int64(milli / 1000)
		sum := s.Whole[k] + o.Whole[k]
		if sum < 0 || sum > math.MaxInt64-carry {
			s.Whole[k], s.Milli[k] = math.MaxInt64, 0
			continue
		}
		s.Whole[k], s.Milli[k] = sum+carry, milli%1000
	}
	return s
}

// Minus returns s - o, which must not be more than s.
func (s Seconds) Minus(o Seconds) Seconds {
	for k := range s.Whole {
		milli := int64(s.Milli[k]) - int64(o.Milli[k])
		borrow := int64(0)
		if milli < 0 {
			milli, borrow = milli+1000, 1
		}
		s.Whole[k], s.Milli[k] = s.Whole[k]-o.Whole[k]-borrow, uint16(milli)
	}
	return s
}

// IsZero reports whether nothing was held.
func (s Seconds) IsZero() bool { return s == Seconds{} }

// Milliseconds is a time in UTC nanoseconds as the accounts count it.
func Milliseconds(at int64) int64 { return at / int64(time.Millisecond) }
