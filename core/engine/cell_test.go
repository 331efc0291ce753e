package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
)

func TestMain(m *testing.M) {
	// The compressor keeps channels. Made in a bubble, they would be of no use in the next.
	frame, err := store.AppendFrame(nil, make([]byte, 2*store.CompressFrom))
	if err == nil {
		_, err = store.OpenFrame(frame)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const cellName = "test"

var user = scheduler.Caller{Principal: "alice", Tenant: "ads"}

// cluster is a cluster with the real shard machine before it. It starts what it is told to, at once; its runs outlive every engine, and
// end when a test says so or when they are killed.
type cluster struct {
	id shard.ID

	mu      sync.Mutex
	machine *shard.Machine
	out     shard.Output
	engine  *engine.Engine // whom replies go to
	runs    map[workload.RunID]*driver.Status
	order   []workload.RunID
	token   driver.Token
	hosts   []driver.Host
	heard   []string // the kinds of messages from the core, in order
	epochs  []shard.Epoch
	started map[workload.RunID]int
	refuses error         // Send answers it
	stuck   chan struct{} // Send waits for its end
}

func newCluster(t testing.TB, name string, hosts int, capacity map[string]int64) *cluster {
	t.Helper()
	c := &cluster{id: shard.ID(name + "/0"), runs: map[workload.RunID]*driver.Status{}, started: map[workload.RunID]int{}}
	var err error
	if c.machine, err = shard.New(shard.Config{ID: c.id, Cluster: name}); err != nil {
		t.Fatal(err)
	}
	for n := range hosts {
		c.hosts = append(c.hosts, driver.Host{Name: fmt.Sprintf("%s-%05d", name, n), Capacity: capacity, Ready: true})
	}
	c.machine.Handle(time.Now().UnixNano(), shard.InventoryArrived{Inventory: driver.Inventory{Hosts: append([]driver.Host(nil), c.hosts...)}}, &c.out)
	return c
}

func (c *cluster) ID() shard.ID { return c.id }

func (c *cluster) Send(ctx context.Context, m shard.Message) error {
	c.mu.Lock()
	refuses, stuck := c.refuses, c.stuck
	c.mu.Unlock()
	if stuck != nil {
		select {
		case <-stuck:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if refuses != nil {
		return refuses
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = append(c.heard, strings.TrimPrefix(fmt.Sprintf("%T", m), "shard."))
	if a, ok := m.(shard.Assign); ok {
		c.epochs = append(c.epochs, a.Epoch)
	}
	c.handle(m)
	return nil
}

func (c *cluster) ReadLog(_ context.Context, run workload.RunID, _ driver.LogRequest) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("output of " + run.String())), nil
}

func (c *cluster) Rehearse(_ context.Context, l *driver.Launch) (driver.Rehearsal, error) {
	return driver.Rehearsal{Refused: "not on " + l.Host}, nil
}

// handle gives the machine a message and what its driver says to that, and delivers the replies. c.mu is held, so that replies keep
// their order.
func (c *cluster) handle(m shard.Message) {
	for inbox := []shard.Message{m}; len(inbox) > 0; inbox = inbox[1:] {
		c.machine.Handle(time.Now().UnixNano(), inbox[0], &c.out)
		if len(c.out.Replies) > 0 {
			c.engine.Deliver(c.id, c.out.Epoch, append([]shard.Reply(nil), c.out.Replies...))
		}
		for _, call := range c.out.Calls {
			if statuses := c.call(call); statuses != nil {
				inbox = append(inbox, shard.StatusesArrived{Statuses: statuses})
			}
		}
	}
}

func (c *cluster) call(call shard.Call) (statuses []driver.Status) {
	switch call := call.(type) {
	case shard.LaunchCall:
		for _, l := range call.Launches {
			if c.started[l.Run]++; c.started[l.Run] == 1 {
				c.order = append(c.order, l.Run)
			}
			c.runs[l.Run] = &driver.Status{Host: l.Host}
			statuses = append(statuses, c.say(l.Run, workload.RunRunning))
		}
	case shard.KillCall:
		for _, k := range call.Kills {
			if r := c.runs[k.Run]; r != nil && !r.State.Traits().Terminal {
				statuses = append(statuses, c.say(k.Run, workload.RunKilled))
			}
		}
	case shard.AckCall, shard.ReconcileCall:
	}
	return statuses
}

func (c *cluster) say(run workload.RunID, state workload.RunState) driver.Status {
	c.token++
	s := c.runs[run]
	s.Run, s.State, s.Token, s.Healthy = run, state, c.token, state == workload.RunRunning
	return *s
}

// finish ends up to most live runs, oldest first.
func (c *cluster) finish(most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const chunk = 1024 // statuses in one message
	for most > 0 && len(c.order) > 0 {
		n := min(chunk, most, len(c.order))
		var statuses []driver.Status
		for _, run := range c.order[:n] {
			if c.runs[run].State == workload.RunRunning {
				statuses = append(statuses, c.say(run, workload.RunSucceeded))
			}
		}
		c.order, most = c.order[n:], most-n
		c.handle(shard.StatusesArrived{Statuses: statuses})
	}
}

// rename has every host say something else of itself. c.mu is held.
func (c *cluster) rename(message string) {
	for n := range c.hosts {
		c.hosts[n].Message = message
	}
	c.handle(shard.HostsUpdated{Changed: append([]driver.Host(nil), c.hosts...)})
}

func (c *cluster) count(kind string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.heard {
		if k == kind {
			n++
		}
	}
	return n
}

// doubled returns a run that was started more than once.
func (c *cluster) doubled() (workload.RunID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for run, n := range c.started {
		if n > 1 {
			return run, true
		}
	}
	return workload.RunID{}, false
}

func (c *cluster) set(change func(c *cluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// disk is a store whose commits can be held up, and which refuses a hole in the order of groups.
type disk struct {
	store.Store

	mu       sync.Mutex
	held     chan struct{} // commits wait for its end
	commits  int           // begun
	sequence uint64        // of the last group
	hole     error
}

func (d *disk) Commit(ctx context.Context, groups []store.Group) error {
	d.mu.Lock()
	held := d.held
	d.commits++
	for _, g := range groups {
		for _, op := range g.Ops {
			if bytes.HasSuffix(op.Key, []byte("/meta/sequence")) {
				next := binary.BigEndian.Uint64(op.Value)
				if d.sequence != 0 && next != d.sequence+1 {
					d.hole = fmt.Errorf("group %d follows group %d", next, d.sequence)
				}
				d.sequence = next
			}
		}
	}
	d.mu.Unlock()
	if held != nil {
		<-held
	}
	return d.Store.Commit(ctx, groups)
}

// hold stops every commit from now on until release is called.
func (d *disk) hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(chan struct{})
	d.held = held
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.held = nil
		close(held)
	}
}

func (d *disk) begun() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.commits
}

// cell is an engine that runs, on a disk that outlives it.
type cell struct {
	*engine.Engine

	t     testing.TB
	disk  *disk
	stop  func() error // ends Run and returns what it did
	ended chan struct{}
}

func keyspace(t testing.TB) store.Keyspace {
	t.Helper()
	keys, err := store.NewKeyspace(cellName)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// open recovers a cell from memory without running it.
func open(t testing.TB, memory *memstore.Disk, trace *telemetry.Trace) *cell {
	t.Helper()
	s, err := memstore.Open(t.Context(), memory, memstore.Config{Cell: cellName})
	if err != nil {
		t.Fatal(err)
	}
	return openOn(t, s, trace)
}

func openOn(t testing.TB, s store.Store, trace *telemetry.Trace) *cell {
	t.Helper()
	c := &cell{t: t, disk: &disk{Store: s}, ended: make(chan struct{})}
	var err error
	c.Engine, err = engine.Open(t.Context(), engine.Config{
		Cell: scheduler.Config{Cell: cellName, Seed: 1}, Store: c.disk, Keys: keyspace(t), Trace: trace,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts the engine. The test's end stops it, if it was not stopped before.
func (c *cell) run() *cell {
	ctx, cancel := context.WithCancel(context.Background())
	var result error
	go func() {
		defer close(c.ended)
		result = c.Run(ctx)
	}()
	c.stop = func() error {
		cancel()
		<-c.ended
		return result
	}
	return c
}

// end stops the cell, which must not have failed, and closes its store.
func (c *cell) end() {
	c.t.Helper()
	if err := c.stop(); err != nil {
		c.t.Errorf("run: %v", err)
	}
	if c.disk.hole != nil {
		c.t.Error(c.disk.hole)
	}
	if err := c.disk.Store.Close(); err != nil {
		c.t.Error(err)
	}
}

// attach gives the cluster to the cell and tells it whom to answer.
func (c *cell) attach(to *cluster) {
	c.t.Helper()
	to.set(func(to *cluster) { to.engine = c.Engine })
	if err := c.Attach(context.Background(), to); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cell) do(command scheduler.Command) scheduler.Answer {
	c.t.Helper()
	a, err := c.Do(context.Background(), user, command)
	if err != nil {
		c.t.Fatalf("%T: %v", command, err)
	}
	if a.Err != nil {
		c.t.Fatalf("%T was refused: %v", command, a.Err)
	}
	return a
}

// job reads a job.
func (c *cell) job(id workload.JobID) (v scheduler.JobView, there bool) {
	c.t.Helper()
	if err := c.Read(context.Background(), func(r scheduler.Reader) { v, there = r.Job(id) }); err != nil {
		c.t.Fatal(err)
	}
	return v, there
}

func (c *cell) view() (v scheduler.CellView) {
	c.t.Helper()
	if err := c.Read(context.Background(), func(r scheduler.Reader) { v = r.Cell() }); err != nil {
		c.t.Fatal(err)
	}
	return v
}

// settle lets everything happen that follows from what was done, timers of the next second included.
func settle() {
	time.Sleep(time.Second) // of the bubble's clock
	synctest.Wait()
}

// batch is a job that a cluster of one-core hosts can run.
func batch(n byte, instances uint32) scheduler.SubmitJob {
	spec := &workload.JobSpec{
		Name: fmt.Sprintf("job-%d", n), Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: instances, Preemptible: true,
		Template: workload.TaskTemplate{
			Command: []string{"true"}, Needs: resource.Vector{resource.CPU: 100, resource.Memory: 64}, KillGrace: time.Second,
		},
	}
	return scheduler.SubmitJob{ID: workload.JobID{n}, Spec: spec, SpecBytes: 200}
}

var oneCore = map[string]int64{"cpu_milli": 1000, "memory_mib": 1000}

// bubble runs a test on a clock of its own.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func TestAJobRunsToItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		hosts := newCluster(t, "c", 3, oneCore)
		c.attach(hosts)
		settle()
		if v := c.view(); v.Ready != 3 || len(v.Shards) != 1 || v.Epoch != c.Epoch() || v.Epoch != 1 {
			t.Fatalf("the cell is %+v", v)
		}
		job := c.do(batch(1, 25)).Job
		settle()
		if v, _ := c.job(job.ID); v.ByRun[workload.RunRunning] != 25 {
			t.Fatalf("of 25 instances run %d: %v", v.ByRun[workload.RunRunning], v.ByState)
		}
		hosts.finish(25)
		settle()
		if v, _ := c.job(job.ID); v.State != workload.JobSucceeded {
			t.Fatalf("the job is %v: %v", v.State, v.ByState)
		}
		runs, err := c.Runs(job.ID, 24)
		if err != nil || len(runs) != 1 || runs[0].State != workload.RunSucceeded || runs[0].ID.Instance != 24 {
			t.Errorf("the history of instance 24 is %+v, %v", runs, err)
		}
		log, err := c.ReadLog(t.Context(), hosts.id, runs[0].ID, driver.LogRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(log); string(text) != "output of "+runs[0].ID.String() {
			t.Errorf("the log is %q", text)
		}
		if _, err := c.ReadLog(t.Context(), "nowhere/0", runs[0].ID, driver.LogRequest{}); err == nil || !strings.Contains(err.Error(), "nowhere/0") {
			t.Errorf("a log of an unknown shard: %v", err)
		}
	})
}

func TestStopEndsEverything(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		hosts := newCluster(t, "c", 1, oneCore)
		c.attach(hosts)
		c.do(batch(1, 5))
		settle()
		w, err := c.Watch(c.Revision(), func(*scheduler.Change) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		c.end()
		c.Deliver(hosts.id, shard.Epoch{}, nil) // returns
		if err := c.Attach(t.Context(), hosts); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("attach: %v", err)
		}
		if _, err := c.Do(t.Context(), user, batch(2, 1)); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("do: %v", err)
		}
		if err := c.Read(t.Context(), func(scheduler.Reader) { t.Error("looked") }); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("read: %v", err)
		}
		if _, err := w.Next(t.Context()); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("next: %v", err)
		}
		if _, err := c.Watch(0, nil); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("watch: %v", err)
		}
		if err := c.Run(t.Context()); err == nil {
			t.Error("it ran a second time")
		}
		w.Close()
		w.Close()
	})
}
