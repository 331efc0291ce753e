package engine

import "time"

// cellClock is the time that a cell is told: the wall's, but never slower than the monotonic clock. So a wall clock that is set back neither
// stops the cell's timers until it has caught up, nor makes time run backwards; one that is set forward is followed. The loop alone uses it.
type cellClock struct {
	now int64     // UTC nanoseconds, as last told
	at  time.Time // when that was, with its monotonic reading
}

// read returns the time at the moment t of time.Now.
func (c *cellClock) read(t time.Time) int64 {
	c.now = max(t.UnixNano(), c.now+int64(t.Sub(c.at)))
	c.at = t
	return c.now
}

// until is how long the cell has to wait for a time that it was told by read.
func (c *cellClock) until(when int64) time.Duration { return max(time.Duration(when-c.now), 0) }
