package drivertest_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is one way in which toy breaks the contract.
type fault string

const (
	none            fault = ""
	noInventory     fault = "never sends an inventory"
	lateInventory   fault = "sends a status before the inventory"
	wrongCode       fault = "reports every exit code as 0"
	forgetsEnds     fault = "forgets ends before they are acknowledged"
	keepsEnds       fault = "keeps ends that were acknowledged"
	startsTwice     fault = "starts a duplicate launch over again"
	ignoresKills    fault = "ignores kills"
	silentOnUnknown fault = "does not answer for unknown runs"
	goesBack        fault = "reports RUNNING after the end"
	shrinkingTokens fault = "gives smaller and smaller tokens"
	talksAtOnce     fault = "calls the sink from two goroutines"
	hangs           fault = "does not return from Wait"
	leaks           fault = "leaves a goroutine behind"
	takesWhenOver   fault = "takes launches after its end"
	diesWithDriver  fault = "loses its runs with its driver"
	alwaysHealthy   fault = "reports a sick run healthy"
	noHost          fault = "leaves out the host of a status"
)

// toyRun is a run of a toy: it ends a moment after it began, or by a kill.
type toyRun struct {
	last  driver.Status
	acked bool
}

// world is a small cluster for the kit to be tried on. What a run does is its command's first word.
type world struct {
	fault   fault
	release chan struct{} // closed at the end, to free what a fault held

	mu    sync.Mutex
	token driver.Token
	runs  map[workload.RunID]*toyRun
}

// toy is a connection to a world.
type toy struct {
	*world
	sink  driver.Sink
	ctx   context.Context
	calls chan func()
	done  chan struct{}
}

func (w *world) connect() (driver.Driver, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == diesWithDriver {
		w.runs = map[workload.RunID]*toyRun{}
	}
	return &toy{world: w, calls: make(chan func(), 10_000), done: make(chan struct{})}, nil
}

func (t *toy) Start(ctx context.Context, sink driver.Sink) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx, t.sink = ctx, sink
	inventory := driver.Inventory{Hosts: []driver.Host{{Name: "toy", Ready: true, Capacity: map[string]int64{"cpu_milli": 1, "memory_mib": 1}}}}
	for _, r := range t.runs {
		if !r.acked || t.fault == keepsEnds {
			if t.fault != forgetsEnds || !r.last.State.Traits().Terminal {
				inventory.Runs = append(inventory.Runs, r.last)
			}
		}
	}
	if t.fault == lateInventory {
		t.say(func() { sink.Statuses([]driver.Status{{State: workload.RunRunning}}) })
	}
	if t.fault != noInventory {
		t.say(func() { sink.Inventory(inventory) })
	}
	go t.serve(ctx)
	return nil
}

func (t *toy) say(call func()) { t.calls <- call }

func (t *toy) serve(ctx context.Context) {
	if t.fault == leaks {
		go func() { <-t.release }()
	}
	for {
		select {
		case call := <-t.calls:
			if t.fault == talksAtOnce {
				go call()
			}
			call()
		case <-ctx.Done():
			if t.fault != hangs {
				close(t.done)
			}
			return
		}
	}
}

// put makes s the run's last status and sends it. t.mu is held.
func (t *toy) put(s driver.Status) {
	t.token++
	s.Token, s.At, s.Host = t.token, time.Unix(1, 0), "toy"
	if t.fault == shrinkingTokens {
		s.Token = 1<<40 - t.token
	}
	if t.fault == noHost {
		s.Host = ""
	}
	t.runs[s.Run].last = s
	t.send(s)
}

func (t *toy) send(s driver.Status) {
	sink := t.sink
	t.say(func() { sink.Statuses([]driver.Status{s}) })
}

func (t *toy) Launch(_ context.Context, launches []driver.Launch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ctx.Err(); err != nil && t.fault != takesWhenOver {
		return err
	}
	for _, l := range launches {
		if old := t.runs[l.Run]; old != nil && t.fault != startsTwice {
			t.send(old.last)
			continue
		}
		t.runs[l.Run] = &toyRun{}
		t.put(driver.Status{Run: l.Run, State: workload.RunRunning, Healthy: l.Health == nil || t.fault == alwaysHealthy})
		var code int32
		switch _, err := fmt.Sscanf(l.Command[0], "exit %d", &code); {
		case err == nil:
			end := driver.Status{Run: l.Run, State: workload.RunSucceeded, Reason: workload.ReasonExited, ExitCode: code}
			if code != 0 && t.fault != wrongCode {
				end.State = workload.RunFailed
			}
			t.put(end)
			if t.fault == goesBack {
				t.put(driver.Status{Run: l.Run, State: workload.RunRunning})
			}
		case l.Command[0] == "sick":
			t.put(driver.Status{Run: l.Run, State: workload.RunFailed, Reason: workload.ReasonUnhealthy, Message: "sick"})
		}
	}
	return nil
}

func (t *toy) Kill(_ context.Context, kills []driver.Kill) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range kills {
		r := t.runs[k.Run]
		switch {
		case t.fault == ignoresKills:
		case r == nil:
			t.unknown(k.Run)
		case r.last.State.Traits().Terminal:
			t.send(r.last)
		default:
			t.put(driver.Status{Run: k.Run, State: workload.RunKilled, Signal: 15})
		}
	}
	return nil
}

func (t *toy) unknown(id workload.RunID) {
	if t.fault != silentOnUnknown {
		t.send(driver.Status{Run: id, State: workload.RunLost, Reason: workload.ReasonNotFound, At: time.Unix(1, 0)})
	}
}

func (t *toy) Acknowledge(_ context.Context, tokens []driver.Token) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.runs {
		if r.last.State.Traits().Terminal && slices.Contains(tokens, r.last.Token) {
			r.acked = true
		}
	}
	return nil
}

func (t *toy) Reconcile(_ context.Context, runs []workload.RunID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(runs) == 0 {
		for _, r := range t.runs {
			t.send(r.last)
		}
	}
	for _, id := range runs {
		if r := t.runs[id]; r != nil {
			t.send(r.last)
		} else {
			t.unknown(id)
		}
	}
	return nil
}

func (t *toy) Wait() {
	select {
	case <-t.done:
	case <-t.release:
	}
}

var toyWork = drivertest.Work{
	Exit:    func(l *driver.Launch, code int32) { l.Command = []string{fmt.Sprint("exit ", code)} },
	Forever: func(l *driver.Launch) { l.Command = []string{"forever"} },
	Sick: func(l *driver.Launch) {
		l.Command, l.Health = []string{"sick"}, &workload.HealthCheck{}
	},
}

func newToy(t testing.TB, f fault) drivertest.Cluster {
	w := &world{fault: f, release: make(chan struct{}), runs: map[workload.RunID]*toyRun{}}
	t.Cleanup(func() { close(w.release) })
	patience := 100 * time.Millisecond // for what does not come
	if f == none {
		patience = drivertest.DefaultPatience
	}
	return drivertest.Cluster{Connect: w.connect, Work: toyWork, Patience: patience}
}

func TestAGoodDriverPasses(t *testing.T) {
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster { return newToy(t, none) })
}

// trial is a testing.TB whose failures are the result.
type trial struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	skipped  bool
	cleanups []func()
}

func (t *trial) Helper() {}

func (t *trial) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

func (t *trial) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func (t *trial) Skip(...any) {
	t.skipped = true
	runtime.Goexit()
}

func (t *trial) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}

func (t *trial) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// try runs something as a test of its own, to its end or its Goexit.
func (t *trial) try(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// TestTheKitCanFail shows for each way of breaking the contract that some check objects to it.
func TestTheKitCanFail(t *testing.T) {
	for f, check := range map[fault]string{
		noInventory: "InventoryComesFirst", lateInventory: "InventoryComesFirst", wrongCode: "ExitCodesAreReported",
		forgetsEnds: "AnEndIsKeptUntilAcknowledged", keepsEnds: "AnEndIsKeptUntilAcknowledged",
		startsTwice: "ADuplicateLaunchStartsNothing", ignoresKills: "APoliteKillEndsARun", silentOnUnknown: "AKillOfAnUnknownRunIsAnswered",
		goesBack: "ARunIsReportedToItsEnd", shrinkingTokens: "ARunIsReportedToItsEnd", noHost: "ARunIsReportedToItsEnd",
		talksAtOnce: "CallsMayBeConcurrent", hangs: "AfterTheEndNothingIsTaken", leaks: "AfterTheEndNothingIsTaken",
		takesWhenOver: "AfterTheEndNothingIsTaken", diesWithDriver: "ANewConnectionFindsLiveRuns", alwaysHealthy: "SicknessEndsARun",
	} {
		t.Run(strings.ReplaceAll(string(f), " ", "-"), func(t *testing.T) {
			all := drivertest.Checks()
			i := slices.IndexFunc(all, func(c drivertest.Check) bool { return c.Name == check })
			if i < 0 {
				t.Fatalf("there is no check %s", check)
			}
			b := &trial{TB: t}
			b.try(func() { all[i].Run(b, newToy(t, f)) })
			for _, cleanup := range b.cleanups {
				b.try(cleanup)
			}
			if !b.Failed() {
				t.Errorf("a driver that %s passes %s", f, check)
			}
		})
	}
}
