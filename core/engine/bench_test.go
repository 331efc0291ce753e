package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
	"github.com/paceline-sched/paceline/core/workload"
)

// BenchmarkEngine is a cell on disk with 10,000 hosts behind the real shard machine, in a cluster that does at once what it is told:
// one job of 100,000 tasks from its submission until all run and then until all have ended, each task with its records and its run
// history durable. ack is the time until the caller has his answer.
func BenchmarkEngine(b *testing.B) {
	const hosts, tasks = 10_000, 100_000
	var ack, running, ended time.Duration
	for b.Loop() {
		b.StopTimer()
		c := openOn(b, openBadger(b, b.TempDir()), nil).run()
		machines := newCluster(b, "c", hosts, map[string]int64{"cpu_milli": 16_000, "memory_mib": 64_000})
		c.attach(machines)
		eventually(b, func() bool { return c.view().Ready == hosts })
		b.StartTimer()

		began := time.Now()
		job := c.do(batch(1, tasks)).Job.ID
		ack += time.Since(began)
		await(b, c, func(v *scheduler.JobView) bool { return v.ByRun[workload.RunRunning] == tasks }, job)
		running += time.Since(began)
		began = time.Now()
		machines.finish(tasks)
		await(b, c, func(v *scheduler.JobView) bool { return v.State == workload.JobSucceeded }, job)
		ended += time.Since(began)

		b.StopTimer()
		c.end()
		b.StartTimer()
	}
	n := float64(b.N)
	b.ReportMetric(ack.Seconds()*1e3/n, "ms/ack")
	b.ReportMetric(tasks*n/running.Seconds(), "started/s")
	b.ReportMetric(tasks*n/ended.Seconds(), "ended/s")
	b.ReportMetric(tasks*n/(running+ended).Seconds(), "tasks/s")
}

func openBadger(t testing.TB, dir string) store.Store {
	t.Helper()
	s, err := badgerstore.Open(t.Context(), badgerstore.Config{Dir: dir, Cell: cellName, Reserve: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// await polls a job: a read costs a microsecond.
func await(t testing.TB, c *cell, holds func(v *scheduler.JobView) bool, job workload.JobID) {
	t.Helper()
	var last scheduler.JobView
	eventually(t, func() bool {
		last, _ = c.job(job)
		return holds(&last)
	})
}

// eventually polls on the wall clock, for what bubbles cannot hold.
func eventually(t testing.TB, holds func() bool) {
	t.Helper()
	const poll, patience = 2 * time.Millisecond, 2 * time.Minute
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come about in %v", patience)
		}
		<-time.After(poll)
	}
}

// On a real disk, with real time.
func TestOnDisk(t *testing.T) {
	dir := t.TempDir()
	c := openOn(t, openBadger(t, dir), nil).run()
	hosts := newCluster(t, "c", 5, oneCore)
	c.attach(hosts)
	job := c.do(batch(1, 60)).Job.ID
	await(t, c, func(v *scheduler.JobView) bool { return v.ByRun[workload.RunRunning] == 50 }, job) // all that fit
	revision := c.Revision()
	c.end()
	hosts.finish(20) // while nobody is there to hear of it

	c = openOn(t, openBadger(t, dir), nil).run()
	defer c.end()
	if c.Epoch() != 2 || c.Revision() <= revision {
		t.Errorf("epoch %d at revision %d after %d", c.Epoch(), c.Revision(), revision)
	}
	c.attach(hosts)
	await(t, c, func(v *scheduler.JobView) bool {
		return v.ByState[workload.InstanceDone] == 20 && v.ByRun[workload.RunRunning] == 40
	}, job)
	hosts.finish(60)
	await(t, c, func(v *scheduler.JobView) bool { return v.State == workload.JobSucceeded }, job)
	if run, twice := hosts.doubled(); twice {
		t.Errorf("run %s was started twice", run)
	}
	if all := c.follow(0, everything); len(all) < 2*60 {
		t.Errorf("%d changes are few for 60 runs", len(all))
	}
	var backup countingWriter
	if err := c.Backup(t.Context(), &backup); err != nil || backup == 0 {
		t.Errorf("a backup of %d bytes, %v", backup, err)
	}
	if _, err := c.ReadLog(t.Context(), hosts.id, workload.RunID{Job: job}, driver.LogRequest{}); err != nil {
		t.Error(fmt.Errorf("log: %w", err))
	}
}

type countingWriter int

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}
