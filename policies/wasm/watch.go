package wasm

import (
	"sync"
	"time"

	"github.com/tetratelabs/wazero/api"
)

const (
	// maxCallTime is when the clock stops a call that its fuel should have stopped long before: code that costs little fuel may still miss every
	// cache.
	maxCallTime = 20 * time.Millisecond
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
	deadline time.Time // zero: no call is on
	acted    bool
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline, w.acted = time.Now().Add(maxCallTime), false
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
