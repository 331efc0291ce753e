package usage

import (
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Sample is one reading of a pool's counters, in whole unit-seconds since they began.
type Sample struct {
	At   int64 // UTC nanoseconds, a multiple of Period
	Pool workload.PoolID
	Path string // of the pool then
	Leaf bool   // it held work itself then; the usage of an inner pool is that of the leaves below it
	// First is when its counters began, in UTC nanoseconds.
	First int64
	Held  resource.Vector
	// The pool's balance.
	Entitled, Demanded, Deficit, Overage resource.Vector
	// Owners are read every OwnerPeriod only, in order of their names.
	Owners []OwnerReading
}

// OwnerReading is one reading of an account.
type OwnerReading struct {
	Owner string
	Held  resource.Vector
}

// The periods of readings.
const (
	Period      = time.Minute
	OwnerPeriod = 10 * time.Minute
)

// Level is one resolution at which readings are kept.
type Level struct {
	Every time.Duration // between two readings
	For   time.Duration // how long they are kept
}

// Levels are the resolutions, finest first: readings at a full hour are kept longest. A pool has at most about 2,600.
var Levels = [...]Level{
	{Every: Period, For: 2 * time.Hour},
	{Every: OwnerPeriod, For: 48 * time.Hour},
	{Every: time.Hour, For: Retention},
}

// Retention is how far back reports reach.
const Retention = 90 * 24 * time.Hour

// IsDue reports whether readings of a time belong to a level's and to no coarser one's: when For has passed they go.
func (l Level) IsDue(at int64) bool {
	for _, o := range Levels {
		if o.Every > l.Every && at%int64(o.Every) == 0 {
			return false
		}
	}
	return at%int64(l.Every) == 0
}

// Next is the first time of readings after a time.
func Next(at int64) int64 { return at - at%int64(Period) + int64(Period) }
