package wasm

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// tank is a counter that a test empties.
type tank struct {
	api.MutableGlobal
	v atomic.Int64
}

func (t *tank) Get() uint64  { return uint64(t.v.Load()) }
func (t *tank) Set(v uint64) { t.v.Store(int64(v)) }

// TestClockStopsWhatComputes computes without using fuel until the clock empties the tank, again and again, as a guest that writes the counter back may need.
func TestClockStopsWhatComputes(t *testing.T) {
	counter := &tank{}
	w := watch{tank: counter}
	for range 2 {
		counter.Set(1)
		w.begin()
		deadline := time.Now().Add(2 * time.Minute)
		for emptiedTimes := 0; emptiedTimes < 3; {
			if int64(counter.Get()) < 0 {
				counter.Set(1)
				emptiedTimes++
			}
			if time.Now().After(deadline) {
				t.Fatal("the clock did nothing")
			}
		}
		if !w.end() {
			t.Fatal("it acted and does not say so")
		}
	}
	counter.Set(1)
	w.begin()
	if w.end() || counter.Get() != 1 {
		t.Fatal("a short call was stopped")
	}
}

// TestFuelOfAStoppedCall counts no more than the call had, or one that the clock stopped would drown all others in the sum.
func TestFuelOfAStoppedCall(t *testing.T) {
	in := Instance{tank: &tank{}}
	for _, c := range []struct{ left, want int64 }{{100, 0}, {40, 60}, {0, 100}, {-5, 100}, {emptied, 100}} {
		in.tank.Set(uint64(c.left))
		if got := in.used(100); got != c.want {
			t.Errorf("with %d left %d of 100 are used, not %d", c.left, got, c.want)
		}
	}
}
