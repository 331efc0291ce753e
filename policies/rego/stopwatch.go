package rego

import (
	"sync"
	"syscall"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

// stopwatch counts time as rules use it up: what goes by, but no more than this process computes meanwhile. On a busy machine good rules
// may wait for a processor, which says nothing of them.
type stopwatch struct {
	began    time.Time
	computed time.Duration
}

func newStopwatch() stopwatch { return stopwatch{time.Now(), processTime()} }

func (s stopwatch) spent() time.Duration {
	return max(min(time.Since(s.began), processTime()-s.computed), 0)
}

// processTime is how long this process has computed, on all processors.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return time.Duration(time.Now().UnixNano()) // the clock must do
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// leastLook is between two looks at the time of one evaluation, at least.
const leastLook = time.Millisecond

// alarm stops an evaluation that has used up its time.
type alarm struct {
	stop  topdown.Cancel
	watch stopwatch
	limit time.Duration

	mu    sync.Mutex
	timer *time.Timer
	over  bool // nobody is to be stopped any more
}

func newAlarm(limit time.Duration) *alarm {
	a := &alarm{stop: topdown.NewCancel(), watch: newStopwatch(), limit: limit}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = time.AfterFunc(limit, a.ring)
	return a
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	if left := a.limit - a.watch.spent(); left > 0 {
		a.timer.Reset(max(left, leastLook))
		return
	}
	a.stop.Cancel()
}

func (a *alarm) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.timer.Stop()
}
