package wasm

import (
	"sync"
	"syscall"
	"time"

	"github.com/tetratelabs/wazero/api"
)

const (
	// maxCallTime is when the clock stops a call that its fuel should have stopped long before: code that costs little fuel may still miss every
	// cache. It counts twice: time that goes by, then time that this process computes, because on a busy machine a good policy may wait for a processor.
	maxCallTime = 50 * time.Millisecond
	// retry is how long a stopped guest is given to notice. It may have been about to write the counter itself.
	retry = time.Millisecond
	// emptied is so far below zero that nothing brings it back, and so far above the least number that no charge wraps it round.
	emptied = -1 << 62
)

// watch empties the tank of a call that goes on for too long.
type watch struct {
	tank  api.MutableGlobal
	timer *time.Timer

	mu       sync.Mutex
	deadline time.Time     // zero: no call is on
	computed time.Duration // by this process when the deadline was first passed; 0: it was not
	acted    bool
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline, w.computed, w.acted = time.Now().Add(maxCallTime), 0, false
	if w.timer == nil {
		w.timer = time.AfterFunc(maxCallTime, w.fire)
		return
	}
	w.timer.Reset(maxCallTime)
}

// fire may be late and meet the next call: the deadline tells.
func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deadline.IsZero() {
		return
	}
	if left := time.Until(w.deadline); left > 0 {
		w.timer.Reset(left)
		return
	}
	now := processTime()
	if w.computed == 0 {
		w.computed = now
	}
	if left := w.computed + maxCallTime - now; left > 0 {
		w.timer.Reset(max(left/2, retry))
		return
	}
	w.acted = true
	w.tank.Set(1<<64 + emptied)
	w.timer.Reset(retry)
}

// end reports whether the call had to be stopped.
func (w *watch) end() bool {
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = time.Time{}
	return w.acted
}

// processTime is how long this process has computed, on all processors.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return time.Duration(time.Now().UnixNano()) // the clock must do
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// threadTime is how long this thread has computed.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD, which package syscall leaves out
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		return -1
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// computedSince is how long this thread has computed since it had computed for so long. A goroutine that went on in another thread meanwhile cannot tell: then all of the time
// that went by counts.
func computedSince(before, went time.Duration) time.Duration {
	now := threadTime()
	if before < 0 || now < before || now-before > went {
		return went
	}
	return now - before
}
