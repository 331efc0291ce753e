package engine

import (
	"testing"
	"time"
)

// TestClockSetBack follows a cell's clock over changes of the wall clock. A time made by Add keeps its monotonic reading, so taking that away and
// adding only to the wall is what a changed clock looks like.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := cellClock{now: start.UnixNano(), at: start}
	if got := c.read(start.Add(time.Second)); got != start.UnixNano()+int64(time.Second) {
		t.Fatalf("after a second the clock shows %d", got-start.UnixNano())
	}
	before := c.now
	c.now += int64(time.Hour) // the wall stood an hour further when it was last read: it has been set back since
	if got := c.read(start.Add(3 * time.Second)); got != before+int64(time.Hour)+int64(2*time.Second) {
		t.Fatalf("two seconds later a clock that was set back shows %v more", time.Duration(got-before))
	}
	if got := c.until(c.now + int64(time.Minute)); got != time.Minute {
		t.Fatalf("a minute is %v away", got)
	}
	if got := c.until(c.now - 5); got != 0 {
		t.Fatalf("what is past is %v away", got)
	}
	c.now -= int64(2 * time.Hour) // now the wall stands further than what the clock showed: it was set forward
	if got, want := c.read(start.Add(4*time.Second)), start.Add(4*time.Second).UnixNano(); got != want {
		t.Fatalf("a clock that was set forward shows %v less than the wall", time.Duration(want-got))
	}
}
