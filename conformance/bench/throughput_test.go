package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

const (
	fleetHosts = 10_000
	jobTasks   = 100_000
	smallJobs  = 50_000
	submitters = 64 // callers at once
	// taskLasts is long enough that every task is seen RUNNING before it ends, and short beside what 100,000 of them take.
	taskLasts = 200 * time.Millisecond
)

// TestRig makes sure that what the benchmarks measure happens.
func TestRig(t *testing.T) {
	r := newRig(t, 20, simulate(t))
	defer func() { r.stop() }()
	stays := r.submit(100, 0)
	r.awaitRunning(stays, 100)
	r.awaitSucceeded(r.submit(200, time.Millisecond))
	r.stop()
	r.start()
	r.awaitRunning(stays, 100)
}

// measured runs one story per iteration on a fresh cell; only what lies between the two calls of the timer counts. %stepping and %committing are
// how much of that time the cell's loop was in a Step, and the committer in the store: near 100 is what bounds the row.
func measured(b *testing.B, hosts int, story func(r *rig)) {
	b.ReportAllocs()
	b.StopTimer()
	var stepping, committing int64
	for range b.N {
		r := newRig(b, hosts, simulate(b))
		runtime.GC() // what building the rig left over is not the story's to collect
		steps, commits := r.busy.steps.Load(), r.busy.commits.Load()
		story(r)
		stepping += r.busy.steps.Load() - steps
		committing += r.busy.commits.Load() - commits
		r.stop()
	}
	b.ReportMetric(100*float64(stepping)/float64(b.Elapsed()), "%stepping")
	b.ReportMetric(100*float64(committing)/float64(b.Elapsed()), "%committing")
}

func rate(b *testing.B, n int, unit string) {
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), unit)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRunning is a job of 100,000 tasks from its submission until it is acknowledged, and until all tasks run and their records say so.
func BenchmarkRunning(b *testing.B) {
	var acknowledged time.Duration
	measured(b, fleetHosts, func(r *rig) {
		b.StartTimer()
		began := time.Now()
		job := r.submit(jobTasks, 0)
		acknowledged += time.Since(began)
		r.awaitRunning(job, jobTasks)
		b.StopTimer()
	})
	b.ReportMetric(acknowledged.Seconds()*1e3/float64(b.N), "ms/ack")
	rate(b, jobTasks, "tasks/s")
}

// BenchmarkSucceeded is a job of 100,000 tasks from its submission until all have ended well, their runs among the records.
func BenchmarkSucceeded(b *testing.B) {
	measured(b, fleetHosts, func(r *rig) {
		b.StartTimer()
		r.awaitSucceeded(r.submit(jobTasks, taskLasts))
		b.StopTimer()
	})
	rate(b, jobTasks, "tasks/s")
}

// BenchmarkWatched is BenchmarkSucceeded with ten watchers of every change; every one must have seen every task's end.
func BenchmarkWatched(b *testing.B) {
	const watchers = 10
	measured(b, fleetHosts, func(r *rig) {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		defer cancel()
		var watching sync.WaitGroup
		seen := make([]int, watchers)
		for n := range watchers {
			w, err := r.cell.Watch(r.cell.Revision(), func(*scheduler.Change) bool { return true })
			if err != nil {
				b.Fatal(err)
			}
			watching.Go(func() {
				defer w.Close()
				seen[n] = countEnds(ctx, b, w, jobTasks)
			})
		}
		b.StartTimer()
		r.awaitSucceeded(r.submit(jobTasks, taskLasts))
		b.StopTimer()
		watching.Wait()
		for _, n := range seen {
			if n != jobTasks {
				b.Fatalf("a watcher has seen %d ends of %d", n, jobTasks)
			}
		}
	})
	rate(b, jobTasks, "tasks/s")
}

// countEnds follows a watch until so many tasks have ended.
func countEnds(ctx context.Context, tb testing.TB, w *engine.Subscription, want int) (ends int) {
	for ends < want {
		events, err := w.Next(ctx)
		if err != nil {
			tb.Errorf("watch: %v", err)
			return ends
		}
		for n := range events.Changes {
			if c := &events.Changes[n]; c.Kind == scheduler.ChangeTask && c.RunState == workload.RunSucceeded {
				ends++
			}
		}
	}
	return ends
}

// BenchmarkSmallJobs is 50,000 jobs of 1 to 20 tasks each from 64 callers at once, until the last is acknowledged. Their tasks are placed,
// run and end meanwhile.
func BenchmarkSmallJobs(b *testing.B) {
	measured(b, fleetHosts, func(r *rig) {
		b.StartTimer()
		var callers sync.WaitGroup
		for n := range submitters {
			callers.Go(func() { submitSmall(b, r.cell, n) })
		}
		callers.Wait()
		b.StopTimer()
		r.await("nothing is left", func(c scheduler.Reader) bool {
			v := c.Cell()
			return v.Jobs == smallJobs && v.LiveRuns == 0 && v.Pending == 0
		})
	})
	rate(b, smallJobs, "jobs/s")
}

// submitSmall is one caller's part of the small jobs.
func submitSmall(tb testing.TB, cell *engine.Engine, first int) {
	dice := rand.New(rand.NewPCG(1, uint64(first)))
	for number := first; number < smallJobs; number += submitters {
		command := batchJob(uint64(number+1), 1+dice.IntN(20), taskLasts)
		for {
			a, err := cell.Do(tb.Context(), caller, command)
			if errors.Is(err, engine.ErrOverloaded) {
				runtime.Gosched()
				continue
			}
			if err != nil || a.Err != nil {
				tb.Errorf("submit job %d: %v, %v", number, err, a.Err)
				return
			}
			break
		}
	}
}
