package shard

import "time"

// Clock is the time that a shard's leases run by.
type Clock interface {
	// Now is in nanoseconds and never runs backwards. It is called from several goroutines.
	Now() int64
	// NewTimer returns a timer that does not run yet.
	NewTimer() Timer
}

// Timer fires once after each Reset. It is used by one goroutine.
type Timer interface {
	// C receives when the timer fires. After Reset or Stop it holds nothing from before.
	C() <-chan time.Time
	Reset(after time.Duration)
	Stop()
}

// NewWallClock returns the clock of this machine: the wall time of the call, carried on by the monotonic clock, so that a clock that is set
// neither lengthens nor ends a lease.
func NewWallClock() Clock {
	now := time.Now()
	return wallClock{start: now, base: now.UnixNano()}
}

type wallClock struct {
	start time.Time
	base  int64
}

func (c wallClock) Now() int64 { return c.base + int64(time.Since(c.start)) }

func (c wallClock) NewTimer() Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return wallTimer{t}
}

type wallTimer struct{ timer *time.Timer }

func (t wallTimer) C() <-chan time.Time       { return t.timer.C }
func (t wallTimer) Reset(after time.Duration) { t.timer.Reset(after) }
func (t wallTimer) Stop()                     { t.timer.Stop() }
