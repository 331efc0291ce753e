package shard_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	runtime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = shard.Epoch{Cell: 1, Shard: 1}

// bench is a runtime at work between a cluster and a core that writes down what it is told.
type bench struct {
	*runtime.Runtime
	t       *testing.T
	cluster *cluster
	stop    context.CancelFunc
	ended   chan error

	mu      sync.Mutex
	replies []shard.Reply
	epochs  []shard.Epoch // of each reply
	gate    chan struct{} // when set, Deliver waits for it
}

// Deliver implements runtime.Core.
func (b *bench) Deliver(_ shard.ID, e shard.Epoch, replies []shard.Reply) {
	b.mu.Lock()
	gate := b.gate
	b.mu.Unlock()
	if gate != nil {
		<-gate
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replies = append(b.replies, replies...)
	for range replies {
		b.epochs = append(b.epochs, e)
	}
}

// recorder keeps what the hooks are told.
type recorder struct {
	mu       sync.Mutex
	stats    shard.Stats
	statuses int // messages with statuses
	queued   int // most replies that waited
	gaveUp   []runtime.CallInfo
}

func (r *recorder) hook(c *runtime.Config) {
	c.Hooks.Handled = func(h runtime.HandledInfo) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stats = h.Stats
		r.queued = max(r.queued, h.QueuedReplies)
		if h.Message == "statuses" {
			r.statuses++
		}
	}
	c.Hooks.GaveUp = func(info runtime.CallInfo) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gaveUp = append(r.gaveUp, info)
	}
}

// read returns what was recorded so far.
func (r *recorder) read() (stats shard.Stats, statuses, queued int, gaveUp []runtime.CallInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats, r.statuses, r.queued, r.gaveUp
}

// start runs a shard over a cluster in a synctest bubble and takes it to the point where it is ready.
func start(t *testing.T, c *cluster, change ...func(*runtime.Config)) *bench {
	t.Helper()
	b := newBench(t, c, change...)
	b.send(shard.Assign{Epoch: epoch})
	b.send(shard.Replay{Epoch: epoch, Done: true})
	synctest.Wait()
	if _, ready := find[shard.Ready](b); !ready {
		t.Fatalf("it does not become ready: %v", b.told())
	}
	return b
}

func newBench(t *testing.T, c *cluster, change ...func(*runtime.Config)) *bench {
	t.Helper()
	b := &bench{t: t, cluster: c, ended: make(chan error, 1)}
	config := runtime.Config{Machine: shard.Config{ID: "c/0", Cluster: "c"}, Driver: c, Core: b}
	for _, f := range change {
		f(&config)
	}
	r, err := runtime.New(config)
	if err != nil {
		t.Fatal(err)
	}
	b.Runtime = r
	ctx, cancel := context.WithCancel(t.Context())
	b.stop = cancel
	go func() { b.ended <- r.Run(ctx) }()
	t.Cleanup(cancel)
	return b
}

func (b *bench) send(m shard.Message) {
	b.t.Helper()
	if err := b.Send(b.t.Context(), m); err != nil {
		b.t.Fatalf("send %T: %v", m, err)
	}
}

func (b *bench) told() []shard.Reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.replies
}

func (b *bench) setGate(gate chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate = gate
}

// finish stops the runtime and waits for it.
func (b *bench) finish() {
	b.t.Helper()
	b.stop()
	if err := <-b.ended; err != nil {
		b.t.Errorf("Run ended with %v", err)
	}
	if err := b.Send(context.Background(), shard.Wake{}); !errors.Is(err, runtime.ErrStopped) {
		b.t.Errorf("a message after the end: %v", err)
	}
}

// find returns the last reply of a kind.
func find[R shard.Reply](b *bench) (last R, found bool) {
	for _, r := range b.told() {
		if v, ok := r.(R); ok {
			last, found = v, true
		}
	}
	return last, found
}

// statuses returns the run's statuses that the core was told.
func (b *bench) statuses(run workload.RunID) (states []workload.RunState, tokens []driver.Token) {
	for _, r := range b.told() {
		if s, ok := r.(shard.RunStatus); ok && s.Status.Run == run {
			states, tokens = append(states, s.Status.State), append(tokens, s.Status.Token)
		}
	}
	return states, tokens
}

func (b *bench) expect(run workload.RunID, want ...workload.RunState) []driver.Token {
	b.t.Helper()
	states, tokens := b.statuses(run)
	if !slices.Equal(states, want) {
		b.t.Fatalf("the core heard %v of the run, not %v", states, want)
	}
	return tokens
}

func runID(n int) workload.RunID {
	return workload.RunID{Job: workload.JobID{1}, Instance: uint32(n), Generation: 1, Run: 1}
}

func oneCPU() *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Service}
	spec.Template.Needs[resource.CPU] = 1000
	return placement.NewClass(workload.JobID{1}, spec, nil)
}

// place asks for room and returns the answer.
func (b *bench) place(count int) []shard.Assignment {
	b.t.Helper()
	b.send(shard.Place{Epoch: epoch, Requests: []shard.PlaceRequest{{Class: oneCPU(), Count: count}}})
	synctest.Wait()
	placed, ok := find[shard.Placed](b)
	if !ok {
		b.t.Fatal("a batch was not answered")
	}
	return placed.Results[0].Assignments
}

// launch starts runs from the given number on.
func (b *bench) launch(first, count int) {
	b.t.Helper()
	m := shard.Launch{Epoch: epoch}
	for i, a := range b.place(count) {
		m.Launches = append(m.Launches, shard.LaunchRun{Lease: a.Lease, HostID: a.Host, Launch: driver.Launch{Run: runID(first + i)}})
	}
	b.send(m)
	synctest.Wait()
}

func kill(n int) shard.Kill {
	return shard.Kill{Epoch: epoch, Kills: []driver.Kill{{Run: runID(n)}}}
}

func TestLifeOfARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a", "b")
		b := start(t, c)
		defer b.finish()
		b.launch(1, 1)
		b.expect(runID(1), workload.RunRunning)
		log, err := b.ReadLog(t.Context(), runID(1), driver.LogRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(log); err != nil || len(text) == 0 {
			t.Errorf("its log reads %q, %v", text, err)
		}
		if !b.Capabilities().Logs {
			t.Error("the driver's capabilities were lost")
		}
		b.send(kill(1))
		synctest.Wait()
		tokens := b.expect(runID(1), workload.RunRunning, workload.RunKilled)
		b.send(shard.Acknowledge{Epoch: epoch, Tokens: tokens})
		synctest.Wait()
		c.set(func(c *cluster) {
			if c.runs[runID(1)].known {
				t.Error("the cluster keeps a run whose end was acknowledged")
			}
		})
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.epochs {
			if e != epoch {
				t.Errorf("replies came under %v", e)
			}
		}
	})
}

func TestLeasesRunOutByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &recorder{}
		b := start(t, newCluster("a"), seen.hook)
		defer b.finish()
		b.place(3)
		time.Sleep(shard.LeaseTTL - time.Nanosecond)
		synctest.Wait()
		if stats, _, _, _ := seen.read(); stats.Held != 3 {
			t.Fatalf("%d leases are held just before their end", stats.Held)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if stats, _, _, _ := seen.read(); stats.Held != 0 || stats.ExpiredLeases != 3 {
			t.Fatalf("at their end: %+v", stats)
		}
	})
}

// offers is a cluster that holds offers only while work waits.
type offers struct {
	*cluster
	demands chan bool
}

func (o offers) Demand(waiting bool) { o.demands <- waiting }

func TestTheDriverIsToldOfDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := offers{newCluster("a"), make(chan bool, 8)}
		b := start(t, c.cluster, func(config *runtime.Config) { config.Driver = c })
		defer b.finish()
		if len(c.demands) != 0 {
			t.Error("there was demand before anybody asked for hosts")
		}
		b.place(1000) // more than there is room for
		b.place(1)
		if len(c.demands) != 1 || !<-c.demands {
			t.Fatal("the driver was not told once that work waits")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(c.demands) != 1 || <-c.demands {
			t.Fatal("the driver was not told once that no work waits")
		}
	})
}

func TestLaunchErrorsAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		b := start(t, c)
		defer b.finish()
		c.set(func(c *cluster) { c.fail["launch"] = 1 })
		b.launch(1, 2)
		refused, ok := find[shard.LaunchRefused](b)
		if !ok || len(refused.Runs) != 2 || refused.Reason != workload.ReasonLaunchFailed || refused.Message != errCluster.Error() {
			t.Fatalf("the failed launch was told as %+v", refused)
		}
		if n := c.calls("launch"); n != 1 {
			t.Errorf("it was tried %d times", n)
		}
		if free := len(b.place(64)); free != 64 {
			t.Errorf("its room was not freed: %d of 64 fit", free)
		}
	})
}

func TestKillsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		seen := &recorder{}
		b := start(t, c, seen.hook)
		defer b.finish()
		b.launch(1, 1)

		c.set(func(c *cluster) { c.fail["kill"] = 2 })
		begun := time.Now()
		b.send(kill(1))
		for c.calls("kill") < 3 && time.Since(begun) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		b.expect(runID(1), workload.RunRunning, workload.RunKilled)
		if took := time.Since(begun); took < 300*time.Millisecond || took > time.Second {
			t.Errorf("three attempts took %v", took)
		}

		c.set(func(c *cluster) { c.fail["acknowledge"] = 1 << 20 })
		b.send(shard.Acknowledge{Epoch: epoch, Tokens: []driver.Token{1}})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		_, _, _, gaveUp := seen.read()
		if n := c.calls("acknowledge"); len(gaveUp) != 1 || gaveUp[0].Attempt != n || gaveUp[0].Call != "acknowledge" || !errors.Is(gaveUp[0].Err, errCluster) {
			t.Errorf("after %d attempts: %+v", n, gaveUp)
		}
	})
}

func TestRetriesWaitForTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		b := start(t, c)
		defer b.finish()
		b.launch(1, 1)
		c.cut()
		c.set(func(c *cluster) { c.fail["kill"] = 1 })
		b.send(kill(1))
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := c.calls("kill"); n != 1 {
			t.Fatalf("%d attempts while the cluster was away", n)
		}
		if _, told := find[shard.NotReady](b); !told {
			t.Fatal("the core was not told that the cluster is away")
		}
		c.connect()
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		b.expect(runID(1), workload.RunRunning, workload.RunRunning, workload.RunKilled)
	})
}

// TestSlowCore holds the core up while the driver floods: what waits is bounded, nothing is lost or reordered, and the core's own messages
// are taken all the while.
func TestSlowCore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		seen := &recorder{}
		b := start(t, c, seen.hook)
		defer b.finish()
		b.launch(1, 1)
		gate := make(chan struct{})
		b.setGate(gate)
		const flood = 50_000
		c.set(func(c *cluster) {
			for range flood {
				c.report(driver.Status{Run: runID(1), State: workload.RunRunning, Host: "a"})
			}
		})
		synctest.Wait()
		for range 1000 {
			b.send(shard.Release{Epoch: epoch})
		}
		synctest.Wait()
		if _, _, queued, _ := seen.read(); queued == 0 || queued > 2*8192 {
			t.Errorf("%d replies waited for the core", queued)
		}
		b.setGate(nil)
		close(gate)
		synctest.Wait()
		_, tokens := b.statuses(runID(1))
		if len(tokens) != flood+1 {
			t.Fatalf("%d of %d statuses arrived", len(tokens), flood+1)
		}
		for i := 1; i < len(tokens); i++ {
			if tokens[i] != tokens[i-1]+1 {
				t.Fatalf("status %d came after %d", tokens[i], tokens[i-1])
			}
		}
	})
}

// TestSlowDriver has the driver hang: Send blocks in the end, and the driver's news still reach the core.
func TestSlowDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		b := start(t, c)
		defer b.finish()
		b.launch(1, 1)
		hang := make(chan struct{})
		c.set(func(c *cluster) { c.hang = hang })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		sent := 0
		for b.Send(ctx, kill(1)) == nil {
			if sent++; sent > 10_000 {
				t.Fatal("Send never blocks")
			}
		}
		c.set(func(c *cluster) { c.report(driver.Status{Run: runID(1), State: workload.RunRunning, Host: "a"}) })
		synctest.Wait()
		b.expect(runID(1), workload.RunRunning, workload.RunRunning)
		c.set(func(c *cluster) { c.hang = nil })
		close(hang)
		synctest.Wait()
		if n := c.calls("kill"); n != sent {
			t.Errorf("%d of %d kills were made", n, sent)
		}
	})
}

// TestStopWhileEverythingHangs ends a runtime whose driver and core are both stuck.
func TestStopWhileEverythingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		b := start(t, c)
		b.launch(1, 1)
		gate := make(chan struct{})
		b.setGate(gate)
		c.set(func(c *cluster) {
			c.hang = make(chan struct{})
			for range 20_000 {
				c.report(driver.Status{Run: runID(1), State: workload.RunRunning, Host: "a"})
			}
		})
		b.send(kill(1))
		synctest.Wait()
		b.stop()
		synctest.Wait()
		select {
		case <-b.ended:
			t.Fatal("Run ended before its delivery did")
		default:
		}
		close(gate) // the core stops, as Core asks of it
		b.finish()
	})
}

// TestEpochsAreNotMixed lets replies under two epochs pile up: each is delivered under its own.
func TestEpochsAreNotMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newCluster("a"))
		defer b.finish()
		gate := make(chan struct{})
		b.setGate(gate)
		for i := range 6 {
			b.send(shard.Place{Epoch: shard.Epoch{Cell: 1, Shard: uint64(i % 2)}, Batch: uint64(i)})
		}
		synctest.Wait()
		b.setGate(nil)
		close(gate)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, r := range b.replies {
			if placed, ok := r.(shard.Placed); ok && b.epochs[i] != (shard.Epoch{Cell: 1, Shard: placed.Batch % 2}) {
				t.Errorf("the answer to batch %d came under %v", placed.Batch, b.epochs[i])
			}
		}
	})
}

func TestStartFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.startErr = errCluster
		b := newBench(t, c)
		if err := <-b.ended; !errors.Is(err, errCluster) {
			t.Fatalf("Run ended with %v", err)
		}
		if err := b.Run(t.Context()); err == nil {
			t.Error("Run ran twice")
		}
		if _, err := b.ReadLog(t.Context(), runID(1), driver.LogRequest{}); err == nil {
			t.Error("a log was read from a cluster that is not there")
		}
	})
}

// TestInventoryOvertakesLaunch cuts the cluster off while launches are under way: each run comes to one end that the core hears of, and
// none is launched twice.
func TestInventoryOvertakesLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		b := start(t, c)
		defer b.finish()
		hang := make(chan struct{})
		c.set(func(c *cluster) { c.hang = hang })
		b.launch(1, 1)
		c.cut()
		c.connect() // an inventory from before the launch
		synctest.Wait()
		if missing, told := find[shard.RunsMissing](b); told {
			t.Fatalf("%v was given up while its launch was under way", missing.Runs)
		}
		c.set(func(c *cluster) { c.hang = nil })
		close(hang)
		synctest.Wait()
		b.expect(runID(1), workload.RunRunning, workload.RunRunning) // the launch's, and the answer to the look-up
		if n := c.calls("reconcile"); n != 1 {
			t.Errorf("the cluster was asked %d times", n)
		}
	})
}

// TestStatusesAreJoined lets statuses pile up and sees them handled together.
func TestStatusesAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a")
		seen := &recorder{}
		b := start(t, c, seen.hook)
		defer b.finish()
		b.launch(1, 1)
		gate := make(chan struct{})
		b.setGate(gate)
		c.set(func(c *cluster) {
			for range 30_000 {
				c.report(driver.Status{Run: runID(1), State: workload.RunRunning, Host: "a"})
			}
			c.tell(func(s driver.Sink) { s.HostsChanged(nil, []string{"a"}) })
		})
		synctest.Wait()
		b.setGate(nil)
		close(gate)
		synctest.Wait()
		if _, handled, _, _ := seen.read(); handled == 0 || handled >= 30_000 {
			t.Errorf("30000 statuses were handled in %d steps", handled)
		}
		states, _ := b.statuses(runID(1))
		if states[len(states)-1] != workload.RunLost || len(states) != 30_002 {
			t.Errorf("%d statuses, the last is %v", len(states), states[len(states)-1])
		}
	})
}

// TestManualClock runs leases by a clock that is not the machine's.
func TestManualClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &manualClock{now: 1}
		seen := &recorder{}
		b := start(t, newCluster("a"), seen.hook, func(c *runtime.Config) { c.Clock = clock })
		defer b.finish()
		b.place(1)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if stats, _, _, _ := seen.read(); stats.Held != 1 {
			t.Fatal("the wall clock ended a lease")
		}
		clock.advance(shard.LeaseTTL)
		synctest.Wait()
		if stats, _, _, _ := seen.read(); stats.Held != 0 {
			t.Fatal("the lease outlived its clock")
		}
	})
}

// manualClock moves when told to.
type manualClock struct {
	mu     sync.Mutex
	now    int64
	timers []*manualTimer
}

func (c *manualClock) Now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) NewTimer() runtime.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := &manualTimer{clock: c, fired: make(chan time.Time, 1)}
	c.timers = append(c.timers, timer)
	return timer
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += int64(d)
	for _, timer := range c.timers {
		timer.fire()
	}
}

type manualTimer struct {
	clock *manualClock
	at    int64 // 0: stopped
	fired chan time.Time
}

// fire is called with the clock's lock held.
func (t *manualTimer) fire() {
	if t.at != 0 && t.at <= t.clock.now {
		t.at = 0
		t.fired <- time.Unix(0, t.clock.now)
	}
}

func (t *manualTimer) C() <-chan time.Time { return t.fired }

func (t *manualTimer) Reset(after time.Duration) {
	t.Stop()
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.at = t.clock.now + int64(after)
	t.fire()
}

func (t *manualTimer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.at = 0
	select {
	case <-t.fired:
	default:
	}
}
