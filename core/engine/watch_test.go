package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
)

// touch makes one revision with one change.
func (c *cell) touch(share int64) {
	c.t.Helper()
	c.do(scheduler.ApplyPool{ID: workload.PoolID{77}, Path: "/watched", Pool: respool.Pool{Kind: respool.Elastic, Share: share}})
}

// follow returns the changes after a revision up to the newest one there is.
func (c *cell) follow(after uint64, match func(*scheduler.Change) bool) []engine.Event {
	c.t.Helper()
	last := c.Revision()
	w, err := c.Watch(after, match)
	if err != nil {
		c.t.Fatalf("watch after %d of %d: %v", after, last, err)
	}
	defer w.Close()
	var all []engine.Event
	done, cancel := context.WithCancel(context.Background())
	cancel() // Next returns what there is, and does not wait for more
	for {
		page, err := w.Next(done)
		if len(page.Changes) > 1000 { // a watcher that is stuck keeps one
			c.t.Fatalf("a page has %d changes", len(page.Changes))
		}
		for _, e := range page.Changes {
			if e.Revision <= last {
				all = append(all, e)
			}
		}
		switch {
		case errors.Is(err, context.Canceled) || page.Revision >= last:
			return all
		case err != nil:
			c.t.Fatalf("watch after %d of %d: %v", after, last, err)
		}
	}
}

// sameTail compares what a watch gave with the part of all changes after a revision.
func sameTail(t *testing.T, all, got []engine.Event, after uint64) {
	t.Helper()
	at, _ := slices.BinarySearchFunc(all, after+1, func(e engine.Event, revision uint64) int {
		return int(int64(e.Revision) - int64(revision)) //nolint:gosec // small numbers
	})
	same := func(a, b engine.Event) bool { return a.Revision == b.Revision && *a.Change == *b.Change }
	if !slices.EqualFunc(all[at:], got, same) {
		t.Errorf("after %d came %d changes, not the %d that there were", after, len(got), len(all)-at)
	}
}

// Every change comes once and in order, whatever the cursor, from memory and from the store, and after a restart from the store alone.
func TestWatchFromAnyCursor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const revisions = 4096 + 700 // more than the ring holds
		memory := &memstore.Disk{}
		c := open(t, memory, nil).run()
		w, err := c.Watch(0, everything)
		if err != nil {
			t.Fatal(err)
		}
		var all []engine.Event
		for n := range revisions {
			c.touch(int64(n + 1))
			if n%100 == 0 || n == revisions-1 { // keeps up, so that it reads the ring only
				for len(all) == 0 || all[len(all)-1].Revision < c.Revision() {
					page, err := w.Next(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, page.Changes...)
				}
			}
		}
		w.Close()
		count := 0
		for n, e := range all {
			if n > 0 && e.Revision < all[n-1].Revision {
				t.Fatalf("revision %d came after %d", e.Revision, all[n-1].Revision)
			}
			if e.Kind == scheduler.ChangePool && e.Name == "watched" {
				if count++; e.Version != uint64(count) {
					t.Fatalf("change %d is of version %d", count, e.Version)
				}
			}
		}
		if count != revisions {
			t.Fatalf("%d changes of %d came", count, revisions)
		}
		last := c.Revision()
		cut := last - 4096 // about where the ring begins
		cursors := []uint64{0, 1, 2, cut - 300, cut - 65, cut - 64, cut - 1, cut, cut + 1, last - 65, last - 64, last - 1, last}
		for _, after := range cursors {
			sameTail(t, all, c.follow(after, everything), after)
		}
		none := c.follow(0, func(*scheduler.Change) bool { return false })
		if len(none) != 0 {
			t.Errorf("%d changes matched nothing", len(none))
		}
		c.end()

		c = open(t, memory, nil).run()
		defer c.end()
		c.touch(1 << 20)
		all = append(all, c.follow(last, everything)...)
		for _, after := range cursors {
			sameTail(t, all, c.follow(after, everything), after)
		}
	})
}

// A time is found in memory and in the store, between revisions and on them, before the first and after the last.
func TestRevisionAt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := &memstore.Disk{}
		c := open(t, memory, nil).run()
		for n := range 300 {
			if n%3 == 0 { // several share a moment
				time.Sleep(time.Second)
			}
			c.touch(int64(n + 1))
		}
		all := c.follow(0, everything)
		check := func(where string) {
			t.Helper()
			for n := 0; n < len(all); n += 31 {
				for _, off := range []time.Duration{-time.Millisecond, 0, time.Millisecond} {
					at := time.Unix(0, all[n].At).Add(off)
					after, err := c.RevisionAt(at)
					if err != nil {
						t.Fatal(err)
					}
					first := slices.IndexFunc(all, func(e engine.Event) bool { return !time.Unix(0, e.At).Before(at) })
					if first < 0 {
						first = len(all)
					}
					got := c.follow(after, everything)
					if want := len(all) - first; len(got) < want || where == "memory" && len(got) != want {
						t.Fatalf("%s: since %v came %d changes, not %d", where, at, len(got), want)
					}
					if len(got) > 0 && got[0].Revision != append(all[first:], got...)[0].Revision {
						t.Fatalf("%s: since %v the first is of revision %d", where, at, got[0].Revision)
					}
				}
			}
		}
		check("memory")
		if after, err := c.RevisionAt(time.Time{}); err != nil || after >= all[0].Revision {
			t.Errorf("since ever: after %d, %v", after, err)
		}
		if after, err := c.RevisionAt(time.Unix(1<<40, 0)); err != nil || after != c.Revision() {
			t.Errorf("since the future: after %d of %d, %v", after, c.Revision(), err)
		}
		c.end()
		c = open(t, memory, nil).run() // what was memory is the store now
		defer c.end()
		check("store")
	})
}

// Few revisions with many changes each leave the ring too, and are found in the store.
func TestWatchOfManyChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const hosts, rounds = 2_000, 34 // one change a host and round: more than the ring holds
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		machines := newCluster(t, "c", hosts, oneCore)
		c.attach(machines)
		settle()
		for n := range rounds - 1 {
			machines.set(func(m *cluster) { m.rename(fmt.Sprint("round ", n)) })
			synctest.Wait()
		}
		settle()
		seen := map[workload.HostID]int{}
		all := c.follow(0, func(c *scheduler.Change) bool { return c.Kind == scheduler.ChangeHost })
		for _, e := range all {
			seen[e.Host]++
		}
		if len(all) != hosts*rounds || len(seen) != hosts {
			t.Errorf("%d changes of %d hosts came, not %d", len(all), len(seen), hosts*rounds)
		}
		for _, back := range []int{1, 1 << 16} { // 1 << 16 is about where the ring begins
			after := all[len(all)-back].Revision
			sameTail(t, all, c.follow(after, everything), after)
		}
	})
}

// What a commit under way has put in the store already is not shown, even to a watch that reads the store.
func TestWatchOfTheStoreSeesDurableChangesOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := &memstore.Disk{}
		c := open(t, memory, nil).run()
		for n := range 10 {
			c.touch(int64(n + 1))
		}
		old := c.Revision()
		c.end()
		s, err := memstore.Open(t.Context(), memory, memstore.Config{Cell: cellName})
		if err != nil {
			t.Fatal(err)
		}
		late := &slowSync{Store: s}
		c = openOn(t, late, nil).run()
		release := late.hold()
		var all sync.WaitGroup
		all.Go(func() { c.touch(100) })
		settle()
		durable := c.Revision()
		if durable != old+1 {
			t.Fatalf("revision %d follows %d", durable, old)
		}
		for _, e := range c.follow(old-5, everything) {
			if e.Revision > durable {
				t.Errorf("revision %d was shown before it was durable", e.Revision)
			}
		}
		w, err := c.Watch(old-5, everything)
		if err != nil {
			t.Fatal(err)
		}
		page, err := w.Next(t.Context())
		if err != nil || page.Revision > durable || len(page.Changes) != 5 {
			t.Errorf("a page of %d changes up to %d, %v, while %d is durable", len(page.Changes), page.Revision, err, durable)
		}
		release()
		all.Wait()
		if page, err = w.Next(t.Context()); err != nil || len(page.Changes) != 1 || page.Changes[0].Revision != durable+1 {
			t.Errorf("then came %+v, %v", page, err)
		}
		w.Close()
		c.end()
	})
}

// slowSync shows its groups to snapshots before Commit returns, as a store may.
type slowSync struct {
	store.Store
	disk
}

func (s *slowSync) Commit(ctx context.Context, groups []store.Group) error {
	if err := s.Store.Commit(ctx, groups); err != nil {
		return err
	}
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		<-held
	}
	return nil
}

func (s *slowSync) Snapshot() (store.Snapshot, error) { return s.Store.Snapshot() }

func TestWatchBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const history = 70_000
		memory := &memstore.Disk{}
		begun := open(t, memory, nil).run()
		begun.end()
		s, err := memstore.Open(t.Context(), memory, memstore.Config{Cell: cellName})
		if err != nil {
			t.Fatal(err)
		}
		// As if so many groups had been.
		old, err := record.NewCodec(keyspace(t)).EncodeGroup(scheduler.Group{Sequence: history})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), []store.Group{old}); err != nil {
			t.Fatal(err)
		}
		c := openOn(t, s, nil).run()
		defer c.end()
		last := c.Revision()
		if last != history+1 {
			t.Fatalf("revision %d follows %d", last, history)
		}
		oldest := last - scheduler.ChangesKept
		if _, err := c.Watch(oldest-1, everything); !errors.Is(err, engine.ErrCompacted) {
			t.Errorf("a watch beyond the log: %v", err)
		}
		if _, err := c.Watch(last+1, everything); !errors.Is(err, engine.ErrFuture) {
			t.Errorf("a watch of the future: %v", err)
		}
		w, err := c.Watch(oldest, everything)
		if err != nil {
			t.Fatalf("a watch of the whole log: %v", err)
		}
		defer w.Close()
		c.touch(1) // moves the end of the log past the watch
		if _, err := w.Next(t.Context()); !errors.Is(err, engine.ErrCompacted) {
			t.Errorf("the watch that fell out of the log: %v", err)
		}
		// Who begins with the oldest that is kept does not fall out at once.
		after, err := c.RevisionAt(time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		w2, err := c.Watch(after, everything)
		if err != nil {
			t.Fatal(err)
		}
		defer w2.Close()
		for n := range 10 {
			c.touch(int64(n + 2))
		}
		if page, err := w2.Poll(t.Context()); err != nil || len(page.Changes) == 0 {
			t.Errorf("a watch of all that is kept: %d changes, %v", len(page.Changes), err)
		}
	})
}

// A watch at the end of the log reads while a commit is removing what it reads: it is told, and never skips.
func TestWatchThatIsOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := &memstore.Disk{}
		c := open(t, memory, nil).run()
		c.end()
		s, err := memstore.Open(t.Context(), memory, memstore.Config{Cell: cellName})
		if err != nil {
			t.Fatal(err)
		}
		codec := record.NewCodec(keyspace(t))
		const first = 10
		part, err := codec.EncodeGroup(scheduler.Group{Sequence: first, Writes: []scheduler.Write{{Record: scheduler.ChangesRecord{
			Sequence: first, Changes: []scheduler.Change{{Kind: scheduler.ChangeHost, Name: "the one that must not be skipped"}},
		}}}})
		if err != nil {
			t.Fatal(err)
		}
		end, err := codec.EncodeGroup(scheduler.Group{Sequence: first + scheduler.ChangesKept - 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), []store.Group{part, end}); err != nil {
			t.Fatal(err)
		}
		late := &slowSync{Store: s}
		c = openOn(t, late, nil).run() // its first group is one before the one that removes the part
		w, err := c.Watch(first-1, everything)
		if err != nil {
			t.Fatal(err)
		}
		release := late.hold()
		var all sync.WaitGroup
		all.Go(func() { c.touch(1) })
		settle()
		if page, err := w.Next(t.Context()); !errors.Is(err, engine.ErrCompacted) {
			t.Errorf("the watch went on to %d, %v, past a change that was removed", page.Revision, err)
		}
		release()
		all.Wait()
		w.Close()
		c.end()
	})
}

func TestStuckWatchersHoldUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		open := open(t, &memstore.Disk{}, nil).run()
		defer open.end()
		var stuck []*engine.Subscription
		for range 100 {
			w, err := open.Watch(0, everything)
			if err != nil {
				t.Fatal(err)
			}
			stuck = append(stuck, w)
		}
		for n := range 500 {
			open.touch(int64(n + 1))
		}
		all := open.follow(0, everything)
		for _, w := range stuck { // each has missed nothing
			var got []engine.Event
			for len(got) < len(all) {
				page, err := w.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, page.Changes...)
			}
			sameTail(t, all, got, 0)
			w.Close()
		}
	})
}

func TestWatchersAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		most, now := 0, 0
		c := open(t, &memstore.Disk{}, &telemetry.Trace{WatchersChanged: func(n int) { most, now = max(most, n), n }}).run()
		defer c.end()
		var watches []*engine.Subscription
		for range engine.MaxWatchers {
			w, err := c.Watch(0, everything)
			if err != nil {
				t.Fatal(err)
			}
			watches = append(watches, w)
		}
		if _, err := c.Watch(0, everything); !errors.Is(err, engine.ErrManyWatchers) {
			t.Errorf("one too many: %v", err)
		}
		watches[0].Close()
		watches[0].Close() // counts once
		w, err := c.Watch(0, everything)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Watch(0, everything); !errors.Is(err, engine.ErrManyWatchers) {
			t.Errorf("one too many after a close: %v", err)
		}
		for _, w := range append(watches, w) {
			w.Close()
		}
		if most != engine.MaxWatchers || now != 0 {
			t.Errorf("%d watchers at most, %d at last", most, now)
		}
	})
}

func TestWatchWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		w, err := c.Watch(c.Revision(), func(c *scheduler.Change) bool { return c.Kind == scheduler.ChangeJob })
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		beat, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c.touch(1) // does not match
		page, err := w.Next(beat)
		if !errors.Is(err, context.DeadlineExceeded) || len(page.Changes) != 0 || page.Revision != c.Revision() {
			t.Errorf("a beat gave %+v, %v at revision %d", page, err, c.Revision())
		}
		var woken sync.WaitGroup
		woken.Go(func() {
			if page, err := w.Next(t.Context()); err != nil || len(page.Changes) != 1 || page.Changes[0].Job != (workload.JobID{1}) {
				t.Errorf("the job gave %+v, %v", page, err)
			}
		})
		synctest.Wait()
		c.do(batch(1, 0))
		woken.Wait()
	})
}

// What one watcher makes of a change is there for all others; what depends on something else is made anew, and so is what is read from the
// store.
func TestWatchersShareWhatTheyEncode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := &memstore.Disk{}
		c := open(t, memory, nil).run()
		c.touch(1)
		made := 0
		encode := func(key string, events []engine.Event) string {
			last := &events[len(events)-1]
			return string(last.Encoded(key, func() []byte { made++; return fmt.Appendf(nil, "%s %d", key, last.Revision) }))
		}
		for range 3 {
			if got, want := encode("a", c.follow(0, everything)), fmt.Sprint("a ", c.Revision()); got != want {
				t.Errorf("encoded %q, want %q", got, want)
			}
		}
		if made != 1 {
			t.Errorf("encoded %d times", made)
		}
		if got, want := encode("b", c.follow(0, everything)), fmt.Sprint("b ", c.Revision()); got != want || made != 2 {
			t.Errorf("encoded %q, want %q", got, want)
		}
		c.end()
		c = open(t, memory, nil).run()
		defer c.end()
		for range 2 {
			encode("b", c.follow(0, func(c *scheduler.Change) bool { return c.Kind == scheduler.ChangePool }))
		}
		if made != 4 {
			t.Errorf("encoded %d times, want twice more from the store", made)
		}
	})
}

// A few watchers are woken at every change; a thousand together, and not for each, and miss nothing.
func TestManyWatchersAreWokenTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		const changes = 200
		for watchers, mostPages := range map[int]int{1: changes, 1000: changes/20 + 2} {
			var idle []*engine.Subscription
			for range watchers {
				w, err := c.Watch(c.Revision(), everything)
				if err != nil {
					t.Fatal(err)
				}
				idle = append(idle, w)
			}
			pages, seen := 0, 0
			var late time.Duration
			var watching sync.WaitGroup
			watching.Go(func() {
				for seen < changes {
					page, err := idle[0].Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					pages++
					seen += len(page.Changes)
					late = max(late, time.Since(time.Unix(0, page.Changes[0].At)))
				}
			})
			for n := range changes {
				c.touch(int64(1000*watchers + n))
				time.Sleep(time.Millisecond)
			}
			watching.Wait()
			if seen != changes || pages > mostPages || (watchers == 1 && pages < changes) || late > 25*time.Millisecond {
				t.Errorf("%d watchers: %d changes in %d pages, up to %v late", watchers, seen, pages, late)
			}
			for _, w := range idle {
				w.Close()
			}
		}
	})
}
