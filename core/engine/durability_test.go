package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
)

func everything(*scheduler.Change) bool { return true }

func TestNobodySeesWhatIsNotDurable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		settle()
		before := c.Revision()
		w, err := c.Watch(before, everything)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		release := c.disk.hold()
		var answered, read, watched atomic.Bool
		var all sync.WaitGroup
		all.Go(func() { c.do(batch(1, 1)); answered.Store(true) })
		synctest.Wait()
		all.Go(func() {
			if _, there := c.job(workload.JobID{1}); !there {
				t.Error("a read after the step does not see the job")
			}
			read.Store(true)
		})
		all.Go(func() {
			if _, err := w.Next(t.Context()); err != nil {
				t.Error(err)
			}
			watched.Store(true)
		})
		settle()
		if answered.Load() || read.Load() || watched.Load() || c.Revision() != before {
			t.Errorf("before its commit a job was answered %v, read %v, watched %v, at revision %d after %d",
				answered.Load(), read.Load(), watched.Load(), c.Revision(), before)
		}
		release()
		all.Wait()
		if c.Revision() == before {
			t.Error("the revision stood still")
		}
	})
}

func TestEffectsAndDurability(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		hosts := newCluster(t, "c", 3, oneCore)
		c.attach(hosts)
		settle()
		release := c.disk.hold()
		var all sync.WaitGroup
		for n := range 3 { // each in a step of its own: later steps run while the commit of the first is held up
			all.Go(func() { c.do(batch(byte(n+1), 5)) })
			settle()
			if got := hosts.count("Place"); got != n+1 {
				t.Errorf("after %d jobs the cluster was asked %d times to place, although none is durable", n+1, got)
			}
		}
		if n := hosts.count("Launch"); n != 0 {
			t.Errorf("%d launches were sent before they were durable", n)
		}
		commits := c.disk.begun()
		release()
		all.Wait()
		settle()
		if n := c.disk.begun() - commits; n > 4 {
			t.Errorf("what waited for one commit took %d more", n)
		}
		if v := c.view(); v.LiveRuns != 15 {
			t.Errorf("%d of 15 runs live", v.LiveRuns)
		}
	})
}

func TestAFailedCommitStopsTheCell(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := &memstore.Disk{}
		steps := 0
		c := open(t, memory, &telemetry.Trace{StepDone: func(telemetry.Step) { steps++ }}).run()
		hosts := newCluster(t, "c", 3, oneCore)
		c.attach(hosts)
		c.do(batch(1, 5))
		settle()
		w, err := c.Watch(c.Revision(), everything)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		broken := errors.New("the disk is on fire")
		memory.FailCommit(1, broken)
		release := c.disk.hold()
		var all sync.WaitGroup
		for n := range 20 {
			all.Go(func() {
				if _, err := c.Do(t.Context(), user, batch(byte(n+2), 1)); !errors.Is(err, engine.ErrStopped) {
					t.Errorf("do: %v", err)
				}
			})
			synctest.Wait() // the read sees what the call did
			all.Go(func() {
				if err := c.Read(t.Context(), func(scheduler.Reader) {}); !errors.Is(err, engine.ErrStopped) {
					t.Errorf("read: %v", err)
				}
			})
			synctest.Wait()
		}
		all.Go(func() {
			if _, err := w.Next(t.Context()); !errors.Is(err, engine.ErrStopped) {
				t.Errorf("next: %v", err)
			}
		})
		launches := hosts.count("Launch")
		release()
		all.Wait()
		<-c.ended
		if err := c.stop(); !errors.Is(err, broken) {
			t.Errorf("run: %v", err)
		} else if !strings.Contains(err.Error(), "up to revision") {
			t.Errorf("the error does not say what failed: %v", err)
		}
		if n := hosts.count("Launch"); n != launches {
			t.Error("something was launched that is not durable")
		}
		if err := c.disk.Store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// stepper holds the loop up at the end of each step.
type stepper struct {
	mu   sync.Mutex
	held chan struct{}
}

func (s *stepper) trace() *telemetry.Trace {
	return &telemetry.Trace{StepDone: func(telemetry.Step) {
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		if held != nil {
			<-held
		}
	}}
}

func (s *stepper) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = make(chan struct{})
}

// next lets the loop go on to the end of the next step, if it waits.
func (s *stepper) next() {
	select {
	case s.held <- struct{}{}:
	default:
	}
}

func (s *stepper) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.held)
	s.held = nil
}

// A stop under load leaves no hole in the order of groups, and keeps what was answered.
func TestStopUnderLoad(t *testing.T) {
	for range 30 { // what the loop takes first is a matter of luck
		bubble(t, func(t *testing.T) {
			memory, steps := &memstore.Disk{}, &stepper{}
			c := open(t, memory, steps.trace()).run()
			settle()
			steps.hold()
			var all sync.WaitGroup
			var mu sync.Mutex
			kept := map[workload.JobID]bool{}
			for n := range 12 {
				all.Go(func() {
					a, err := c.Do(t.Context(), user, batch(byte(n+1), 2))
					if err == nil && a.Err == nil {
						mu.Lock()
						kept[a.Job.ID] = true
						mu.Unlock()
					}
				})
				synctest.Wait()
				if n == 3 {
					all.Go(func() { _ = c.stop() })
					synctest.Wait()
				}
				steps.next()
			}
			steps.release()
			all.Wait()
			c.end()
			again := open(t, memory, nil).run()
			for id := range kept {
				if _, there := again.job(id); !there {
					t.Errorf("job %s was answered and is gone", id)
				}
			}
			again.end()
		})
	}
}

// Whenever the machine goes down: what was answered is there afterwards, no run is started twice, and all work ends.
func TestRecovery(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		crashes := rapid.SliceOfN(rapid.Uint64Range(1, 12), 1, 4).Draw(r, "groups until each crash")
		failed := ""
		bubble(t, func(t *testing.T) { failed = recoverFrom(t, crashes) })
		if failed != "" {
			r.Fatal(failed)
		}
	})
}

func recoverFrom(t *testing.T, crashes []uint64) string {
	memory := &memstore.Disk{}
	hosts := newCluster(t, "c", 3, oneCore)
	kept := map[workload.JobID]bool{}
	epoch, next := uint64(0), byte(1)
	for _, after := range crashes {
		c := open(t, memory, nil)
		if c.Epoch() <= epoch {
			return fmt.Sprintf("epoch %d follows epoch %d", c.Epoch(), epoch)
		}
		epoch = c.Epoch()
		c.run()
		memory.CrashAfter(after)
		hosts.set(func(to *cluster) { to.engine = c.Engine })
		if err := c.Attach(t.Context(), hosts); err != nil && !errors.Is(err, engine.ErrStopped) { // the cell's first commit may be its last
			return err.Error()
		}
		for range 4 {
			a, err := c.Do(t.Context(), user, batch(next, 6))
			next++
			switch {
			case err == nil && a.Err == nil:
				kept[a.Job.ID] = true
			case err == nil:
				return a.Err.Error()
			case !errors.Is(err, engine.ErrStopped):
				return err.Error()
			}
			hosts.finish(2)
		}
		settle()
		memory.CrashAfter(1 << 40)
		memory.Kill() // where it did not crash by itself
		if err := c.stop(); err != nil && !errors.Is(err, memstore.ErrCrashed) {
			return err.Error()
		}
	}
	c := open(t, memory, nil).run()
	defer c.end()
	c.attach(hosts)
	for range 40 {
		settle()
		hosts.finish(30)
	}
	for id := range kept {
		if v, there := c.job(id); !there || v.State != workload.JobSucceeded {
			return fmt.Sprintf("job %s: known %v, %v, instances %v, runs %v", id, there, v.State, v.ByState, v.ByRun)
		}
	}
	if run, twice := hosts.doubled(); twice {
		return fmt.Sprintf("run %s was started twice", run)
	}
	return ""
}

func TestTooManyCallsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil) // does not run: everything waits
		const bound = 1024
		var all sync.WaitGroup
		for range bound {
			all.Go(func() { c.do(scheduler.NameResources{}) })
			all.Go(func() { c.view() })
		}
		synctest.Wait()
		if _, err := c.Do(t.Context(), user, scheduler.NameResources{}); !errors.Is(err, engine.ErrOverloaded) {
			t.Errorf("do: %v", err)
		}
		if err := c.Read(t.Context(), func(scheduler.Reader) {}); !errors.Is(err, engine.ErrOverloaded) {
			t.Errorf("read: %v", err)
		}
		c.run()
		all.Wait()
		c.view()
		c.end()
	})
}

func TestCallersMayLeave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := c.Do(ctx, user, batch(1, 1)); !errors.Is(err, context.Canceled) {
				t.Errorf("do: %v", err)
			}
		})
		all.Go(func() {
			if err := c.Read(ctx, func(scheduler.Reader) { t.Error("looked for somebody who had left") }); !errors.Is(err, context.Canceled) {
				t.Errorf("read: %v", err)
			}
		})
		synctest.Wait()
		leave()
		all.Wait()
		c.run()
		settle()
		if _, there := c.job(workload.JobID{1}); !there { // the command was in the queue: its outcome was unknown to its caller
			t.Error("the job of a caller who left is gone")
		}
		c.end()
	})
}

func TestRefusalsAreAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		a, err := c.Do(t.Context(), user, scheduler.StopJob{Job: workload.JobID{9}})
		if err != nil || a.Err == nil || a.Err.Kind != scheduler.NotFound {
			t.Errorf("stop of an unknown job: %+v, %v", a, err)
		}
		if len(c.do(batch(1, 1)).Warnings) == 0 {
			t.Error("nobody was told that no cluster is there")
		}
	})
}

func TestIncarnationAndEpochOverRestarts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		memory := &memstore.Disk{}
		var first *cell
		for n := range 3 {
			c := open(t, memory, nil).run()
			if first == nil {
				first = c
			}
			if c.Epoch() != uint64(n+1) || c.Incarnation() != first.Incarnation() {
				t.Errorf("start %d has epoch %d and incarnation %s after %s", n, c.Epoch(), c.Incarnation(), first.Incarnation())
			}
			c.do(scheduler.ApplyPool{ID: workload.PoolID{byte(n + 10)}, Path: fmt.Sprintf("/p%d", n), Pool: respool.Pool{Kind: respool.Elastic, Share: 1}})
			c.end()
		}
		c := open(t, memory, nil).run()
		defer c.end()
		if err := c.Read(t.Context(), func(r scheduler.Reader) {
			if got := len(r.Pools("/")); got != 4 {
				t.Errorf("%d pools are left of 4", got)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}

func TestASecondAttachment(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		hosts := newCluster(t, "c", 5, oneCore)
		c.attach(hosts)
		settle()
		var all sync.WaitGroup
		for n := range 60 { // attached while launches and acknowledgements are on their way
			all.Go(func() { c.do(batch(byte(n+1), 3)) })
			all.Go(func() { c.attach(hosts) })
			all.Go(func() { hosts.finish(3) })
			if n%5 == 0 {
				synctest.Wait()
			}
		}
		all.Wait()
		for range 40 {
			settle()
			hosts.finish(1 << 10)
		}
		for n := range 60 {
			if v, _ := c.job(workload.JobID{byte(n + 1)}); v.State != workload.JobSucceeded {
				t.Errorf("job %d is %v: %v, runs %v", n, v.State, v.ByState, v.ByRun)
			}
		}
		if run, twice := hosts.doubled(); twice {
			t.Errorf("run %s was started twice", run)
		}
		last := shard.Epoch{}
		for _, e := range hosts.epochs {
			if !last.Less(e) {
				t.Errorf("assignment %v follows %v", e, last)
			}
			last = e
		}
	})
}

// A glance sees what a read would, and does not wait for the commit that a read waits for.
func TestGlanceDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, err := memstore.Open(t.Context(), &memstore.Disk{}, memstore.Config{Cell: cellName})
		if err != nil {
			t.Fatal(err)
		}
		late := &slowSync{Store: s}
		c := openOn(t, late, nil).run()
		release := late.hold()
		var all sync.WaitGroup
		all.Go(func() { c.touch(100) })
		settle()
		seen := false
		look := func(r scheduler.Reader) { _, seen = r.Pool("/watched") }
		began := time.Now()
		if err := c.Glance(t.Context(), look); err != nil || !seen || time.Since(began) > time.Second {
			t.Errorf("a glance: %v, saw the pool: %v, took %v", err, seen, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Read(ctx, look); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a read of what is not durable: %v", err)
		}
		release()
		all.Wait()
		if err := c.Read(t.Context(), look); err != nil || !seen {
			t.Errorf("a read of what is: %v", err)
		}
		c.end()
	})
}
