package wasm

import (
	"sync/atomic"
	"time"
)

const (
	// generosity is how many times the fuel of the trial a call may use. Toolchains differ by two orders of magnitude in what they need for the same work, and a
	// policy's work differs from table to table.
	generosity = 20
	// leastGenerosity is that of a policy whose memory is as large as may be. Fuel counts instructions, and one that misses every cache takes a hundred times as long as others. What stays
	// within cachedBytes does not miss all of them; above, generosity shrinks as memory grows.
	leastGenerosity = 5
	cachedBytes     = 16 << 20
	// leastFuel is what every call has.
	leastFuel = int64(1) << 20
	// taskWork is what placing a task counts for, in rows looked at.
	taskWork = 64
	// aim is how long a call should take: the collector of the host waits for guests.
	aim = 500 * time.Microsecond
	// freshNanos is what a unit of work is taken to cost before the first call, in 1/256 of a nanosecond: the slowest toolchain's scan.
	freshNanos = 30 << 8
)

// work is the size of a call, in rows looked at.
func work(rows, requests, tasks int) int64 {
	return int64(rows)*int64(requests) + taskWork*int64(tasks)
}

// budget is what calls of a version may use, as its trial showed, and how long they take.
type budget struct {
	perWork atomic.Int64 // fuel for 256 units of work; 0: not tried yet
	nanos   atomic.Int64 // 1/256 ns for a unit of work, a moving mean
	most    int64        // what perWork will be, during the trial
}

// used takes in what a call of the trial used.
func (b *budget) used(work, fuel int64) { b.most = max(b.most, fuel<<8/max(work, 1)) }

// seal ends the trial.
func (b *budget) seal() { b.perWork.Store(max(b.most, 1)) }

// fuel is what a call of an instance with so much memory may use, at most limit.
func (b *budget) fuel(work int64, memory int, limit int64) int64 {
	per := b.perWork.Load()
	if per == 0 {
		return limit
	}
	times := generous(memory)
	if work > limit/per<<8/times { // beyond the limit, and perhaps beyond int64
		return limit
	}
	return min(max(times*per*work>>8, leastFuel), limit)
}

// generous is how many times the fuel of the trial a call may use.
func generous(memory int) int64 {
	if memory <= cachedBytes {
		return generosity
	}
	return max(generosity*cachedBytes/int64(memory), leastGenerosity)
}

// took takes in how long a call took.
func (b *budget) took(work int64, d time.Duration) {
	is := int64(d) << 8 / max(work, 1)
	was := b.nanos.Load()
	if was == 0 {
		b.nanos.Store(max(is, 1))
		return
	}
	b.nanos.Store(max(was+(is-was)/8, 1))
}

// room is how much work a call should have.
func (b *budget) room() int64 {
	nanos := b.nanos.Load()
	if nanos == 0 {
		nanos = freshNanos
	}
	return int64(aim) << 8 / nanos
}
