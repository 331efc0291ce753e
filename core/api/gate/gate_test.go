package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// enter is Enter for a call that must come in at once.
func enter(t *testing.T, g *Gate, name string) *Pass {
	t.Helper()
	p, err := g.Enter(ended(), name)
	if err != nil {
		t.Fatalf("%s does not come in: %v", name, err)
	}
	return p
}

// ended is the context of a caller who does not wait.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func wantEmpty(t *testing.T, g *Gate) {
	t.Helper()
	if g.total != (usage{}) || len(g.principals) != 0 {
		t.Errorf("the gate still holds %+v of %d principals", g.total, len(g.principals))
	}
}

// One principal takes half of the places, and whoever comes then finds room at once, down to an equal share.
func TestNobodyHoldsMoreThanIsLeft(t *testing.T) {
	g := New(Limits{Calls: 12})
	var passes []*Pass
	take := func(name string, want int) {
		t.Helper()
		for n := 0; ; n++ {
			p, err := g.Enter(ended(), name)
			if err != nil {
				if n != want || !errors.Is(err, context.Canceled) {
					t.Errorf("%s got %d places and then %v, want %d", name, n, err, want)
				}
				return
			}
			passes = append(passes, p)
		}
	}
	take("greedy", 6)
	take("second", 3)
	take("third", 2) // of the three that are left
	for _, p := range passes[:3] {
		p.Leave()
		p.Leave() // does nothing
	}
	take("greedy", 1) // it holds 3, and 4 are left
	for _, p := range passes {
		p.Leave()
	}
	wantEmpty(t, g)
}

// Places that become free are given in order of arrival.
func TestFreePlacesAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Calls: 4})
		first, second := enter(t, g, "greedy"), enter(t, g, "greedy")
		other := enter(t, g, "modest") // 3 of 4: nobody else may have a second place
		var mu sync.Mutex
		var order []string
		var done sync.WaitGroup
		for n, name := range []string{"greedy", "greedy", "modest"} {
			done.Go(func() {
				p, err := g.Enter(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, fmt.Sprintf("%s %d", name, n))
				mu.Unlock()
				p.Leave()
			})
			synctest.Wait()
		}
		first.Leave() // greedy 1, modest 1, free 2: both may
		done.Wait()
		if len(order) != 3 || order[0] != "greedy 0" {
			t.Errorf("they came in as %v", order)
		}
		second.Leave()
		other.Leave()
		wantEmpty(t, g)
	})
}

// A line is as long as there are places, and nobody waits for ever.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{Calls: 4})
		inside := []*Pass{enter(t, g, "a"), enter(t, g, "a")}
		var waiting sync.WaitGroup
		began := time.Now()
		for range 2 {
			waiting.Go(func() {
				if _, err := g.Enter(t.Context(), "a"); !errors.Is(err, ErrLate) {
					t.Errorf("a call that waits ends with %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := g.Enter(t.Context(), "a"); !errors.Is(err, ErrCalls) {
			t.Errorf("one call more than the line takes meets %v", err)
		}
		enter(t, g, "b").Leave() // whom all this does not touch
		waiting.Wait()
		if took := time.Since(began); took != Patience {
			t.Errorf("they waited for %v", took)
		}
		for _, p := range inside {
			p.Leave()
		}
		wantEmpty(t, g)
	})
}

func TestStreamsAndBytesAreShared(t *testing.T) {
	g := New(Limits{Streams: 4, Bytes: 100})
	a, errA := g.EnterStream("a")
	b, errB := g.EnterStream("a")
	_, full := g.EnterStream("a")
	c, errC := g.EnterStream("c")
	if err := errors.Join(errA, errB, errC); err != nil || !errors.Is(full, ErrStreams) {
		t.Fatalf("streams: %v; the third of one principal: %v", err, full)
	}
	if err := errors.Join(a.Hold(30), b.Hold(20), c.Hold(25)); err != nil {
		t.Error(err)
	}
	if err := a.Hold(1); !errors.Is(err, ErrBytes) {
		t.Errorf("more than half of the bytes: %v", err)
	}
	a.Leave()
	if err := a.Hold(1); !errors.Is(err, ErrBytes) {
		t.Errorf("bytes of a call that has ended: %v", err)
	}
	if err := c.Hold(25); err != nil {
		t.Error(err)
	}
	b.Leave()
	c.Leave()
	wantEmpty(t, g)
}

// However many calls three greedy principals repeat, in whatever order they end: each comes to an equal share, and a modest one keeps what it
// asks for.
func TestGreedyPrincipalsComeToEqualShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := New(Limits{Calls: 40})
		type guest struct {
			name string
			w    *waiter
		}
		var guests []guest
		arrive := func(name string) bool {
			w := g.arrive(name)
			if w != nil {
				guests = append(guests, guest{name, w})
			}
			return w != nil
		}
		for _, name := range []string{"first", "second", "third"} {
			for arrive(name) {
			}
		}
		dice := rapid.Uint64().Draw(t, "seed")
		for range 400 {
			dice = dice*6364136223846793005 + 1442695040888963407
			n := int(dice>>33) % len(guests)
			if x := guests[n]; g.principals[x.name].waiting == 0 || !waits(x.w) {
				guests = append(guests[:n], guests[n+1:]...)
				(&Pass{gate: g, name: x.name, held: usage{calls: 1}}).Leave()
				arrive(x.name)
			}
			if w := g.arrive("modest"); w == nil || waits(w) {
				t.Fatal("a modest principal is made to wait")
			}
			(&Pass{gate: g, name: "modest", held: usage{calls: 1}}).Leave()
		}
		for _, name := range []string{"first", "second", "third"} {
			if n := g.principals[name].calls; n < 9 || n > 11 {
				t.Fatalf("%s has %d of 40 places, and an equal share is 10", name, n)
			}
		}
	})
}

func waits(w *waiter) bool {
	select {
	case <-w.turn:
		return false
	default:
		return true
	}
}

// Whatever comes, waits, gives up and leaves: nothing exceeds its bound, nobody waits who could come in, and nothing is left at the end.
func TestGateKeepsItsWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2, 9).Draw(t, "limit")
		g := New(Limits{Calls: limit})
		names := []string{"a", "b", "c"}
		type guest struct {
			name string
			w    *waiter
		}
		var guests []guest
		leave := func(n int) {
			x := guests[n]
			guests = append(guests[:n], guests[n+1:]...)
			if !waits(x.w) {
				(&Pass{gate: g, name: x.name, held: usage{calls: 1}}).Leave()
			} else {
				g.giveUp(x.name, x.w)
			}
		}
		check := func() {
			inside, waiting := map[string]int{}, map[string]int{}
			total := 0
			for _, x := range guests {
				if !waits(x.w) {
					inside[x.name]++
					total++
				} else {
					waiting[x.name]++
				}
			}
			if total > limit || g.total.calls != total || g.total.waiting != len(guests)-total || g.total.waiting > limit {
				t.Fatalf("%d are inside and %d wait, of %d; the gate has %+v", total, len(guests)-total, limit, g.total)
			}
			for _, name := range names {
				if waiting[name] > 0 && inside[name] < limit-total {
					t.Fatalf("%s has %d inside of %d and waits", name, inside[name], total)
				}
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if len(guests) > 0 && rapid.IntRange(0, 2).Draw(t, "what") == 0 {
				leave(rapid.IntRange(0, len(guests)-1).Draw(t, "who"))
			} else {
				name := rapid.SampledFrom(names).Draw(t, "name")
				if w := g.arrive(name); w != nil {
					guests = append(guests, guest{name, w})
				}
			}
			check()
		}
		for len(guests) > 0 {
			leave(len(guests) - 1)
		}
		if g.total != (usage{}) || len(g.principals) != 0 {
			t.Fatalf("left: %+v", g.total)
		}
	})
}
