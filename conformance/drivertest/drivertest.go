// Package drivertest states what core/driver demands of a host manager as tests, and runs them against any driver.
//
// A driver's tests call Run with a function that makes a cluster for one check. The kit speaks to the driver through core/driver alone; how
// a task of a certain behaviour is written for that cluster, and how its connection is cut, the cluster tells it. What a cluster cannot
// do, it leaves nil, and the kit skips what needs it.
//
// Nothing here sleeps: the kit waits for what the sink hears, up to the cluster's patience, and lets a cluster with virtual time
// move it meanwhile. Statuses that are no ends it acknowledges as they come, as a shard does. Concurrency: one check at a time; a check's
// own goroutines end with it.
package drivertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// DefaultPatience bounds each wait.
const DefaultPatience = 2 * time.Minute

// Cluster is a cluster under test. It has at least one ready host.
type Cluster struct {
	// Connect returns a driver that has not started. The kit ends each before it connects the next; the cluster goes on meanwhile.
	Connect func() (driver.Driver, error)
	Work    Work
	// Tick moves virtual time on a little. The kit calls it while it waits; nil: time passes by itself.
	Tick func()
	// Cut breaks the driver's connection, Mend lets it connect again. nil: it cannot be broken.
	Cut, Mend func()
	// RemoveHost takes a host out of the cluster for ever; nil: hosts cannot be removed.
	RemoveHost func(name string)
	// Firm says that the cluster keeps to the grace that a kill began with, whatever comes later.
	Firm bool
	// Keeps says that the cluster keeps ended runs for their output after their end was acknowledged, for as long as a check takes: a new connection tells
	// of them once more.
	Keeps bool
	// Patience bounds each wait. Default: DefaultPatience.
	Patience time.Duration
}

// Work writes tasks: each function fills in what makes a launch behave as its name says.
type Work struct {
	Exit    func(l *driver.Launch, code int32) // ends by itself, soon, with this code
	Forever func(l *driver.Launch)             // runs until killed, politely or not
	Deaf    func(l *driver.Launch)             // ignores the polite kill once it is healthy; nil: no such thing
	Bad     func(l *driver.Launch)             // cannot be started; nil: no such thing
	// Healthy and Sick run until killed, under a health check that passes, or fails. nil: the driver runs no health checks.
	Healthy, Sick func(l *driver.Launch)
	Print         func(l *driver.Launch, text string) // writes text to stdout and ends with 0; nil: no logs
}

// Check is one demand on a driver.
type Check struct {
	Name string
	run  func(*session)
}

// Run runs every check on a cluster of its own.
func Run(t *testing.T, cluster func(testing.TB) Cluster) {
	for _, check := range Checks() {
		t.Run(check.Name, func(t *testing.T) { check.Run(t, cluster(t)) })
	}
}

// Run runs the check on a fresh cluster.
func (c Check) Run(t testing.TB, cluster Cluster) {
	t.Helper()
	if cluster.Patience == 0 {
		cluster.Patience = DefaultPatience
	}
	if cluster.Tick == nil {
		cluster.Tick = func() {}
	}
	s := &session{TB: t, cluster: cluster}
	t.Cleanup(s.end)
	c.run(s)
}

// session is one check's work with its cluster: one connection at a time.
type session struct {
	testing.TB
	cluster Cluster

	driver driver.Driver
	sink   *recorder
	cancel context.CancelFunc
	runs   uint32
	live   []workload.RunID // launched and not known to have ended
}

// connect starts a new driver and waits for its inventory.
func (s *session) connect() driver.Inventory {
	s.Helper()
	d, err := s.cluster.Connect()
	if err != nil {
		s.Fatalf("connect: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.driver, s.cancel, s.sink = d, cancel, newRecorder()
	if err := d.Start(ctx, s.sink); err != nil {
		cancel()
		s.driver = nil
		s.Fatalf("Start: %v", err)
	}
	s.await("an inventory", func() bool { return s.sink.inventories() > 0 })
	return s.sink.inventory()
}

// disconnect ends the driver and reports what its sink objected to.
func (s *session) disconnect() {
	s.Helper()
	if s.driver == nil {
		return
	}
	d := s.driver
	s.driver = nil
	s.cancel()
	done := make(chan struct{})
	go func() { d.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(s.cluster.Patience):
		s.Fatalf("Wait did not return within %s of the end of the context", s.cluster.Patience)
	}
	s.sink.close()
	for _, complaint := range s.sink.complaints() {
		s.Errorf("the sink was called against the contract: %s", complaint)
	}
}

// end leaves no run and no driver behind.
func (s *session) end() {
	if s.driver == nil && len(s.live) > 0 && !s.Failed() {
		s.connect()
	}
	if s.driver != nil && len(s.live) > 0 && !s.Failed() {
		s.kill(0, s.live...)
		for _, id := range s.live {
			s.terminal(id)
		}
	} else if s.driver != nil && len(s.live) > 0 {
		kills := make([]driver.Kill, len(s.live))
		for i, id := range s.live {
			kills[i].Run = id
		}
		_ = s.driver.Kill(context.Background(), kills) // the check has failed already; this is only tidying
	}
	s.disconnect()
}

// await waits for a condition on what the sink heard.
func (s *session) await(what string, met func() bool) {
	s.Helper()
	deadline := time.NewTimer(s.cluster.Patience)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		// Looked at before the condition: what arrives in between wakes the next wait.
		heard := s.sink.heard()
		s.progress()
		if met() {
			return
		}
		s.cluster.Tick()
		select {
		case <-heard:
		case <-tick.C: // conditions may look at more than the sink, and virtual time must go on
		case <-deadline.C:
			s.Fatalf("did not come within %s: %s\nheard: %s", s.cluster.Patience, what, s.sink)
		}
	}
}

// progress acknowledges what has come and is no end, as a shard does: a cluster may hold back a run's next status until then.
func (s *session) progress() {
	tokens := s.sink.progress()
	if s.driver == nil || len(tokens) == 0 {
		return
	}
	_ = s.driver.Acknowledge(context.Background(), tokens) // a driver that is out of contact says it again
}

// launches makes n launches on the first ready host.
func (s *session) launches(n int, work func(*driver.Launch)) []driver.Launch {
	s.Helper()
	host := ""
	for _, h := range s.sink.inventory().Hosts {
		if h.Ready {
			host = h.Name
			break
		}
	}
	if host == "" {
		s.Fatalf("the cluster has no ready host")
	}
	list := make([]driver.Launch, n)
	for i := range list {
		s.runs++
		list[i] = driver.Launch{
			Run:  workload.RunID{Job: workload.JobID{0: 'k', 1: 'i', 2: 't'}, Instance: s.runs, Generation: 1, Run: 1},
			Host: host, Needs: map[string]int64{"cpu_milli": 10, "memory_mib": 32}, KillGrace: time.Second,
		}
		work(&list[i])
	}
	return list
}

// start launches one run.
func (s *session) start(work func(*driver.Launch)) driver.Launch {
	s.Helper()
	l := s.launches(1, work)
	s.launch(l...)
	return l[0]
}

func (s *session) launch(list ...driver.Launch) {
	s.Helper()
	if err := s.driver.Launch(context.Background(), list); err != nil {
		s.Fatalf("Launch: %v", err)
	}
	for _, l := range list {
		s.live = append(s.live, l.Run)
	}
}

func (s *session) kill(grace time.Duration, runs ...workload.RunID) {
	s.Helper()
	kills := make([]driver.Kill, len(runs))
	for i, run := range runs {
		kills[i] = driver.Kill{Run: run, Grace: grace}
	}
	if err := s.driver.Kill(context.Background(), kills); err != nil {
		s.Fatalf("Kill: %v", err)
	}
}

// running waits until a run is reported running.
func (s *session) running(id workload.RunID) driver.Status {
	s.Helper()
	s.await(fmt.Sprintf("run %s running", id), func() bool {
		last := s.sink.last(id)
		return last.State == workload.RunRunning || last.State.Traits().Terminal
	})
	last := s.sink.last(id)
	if last.State != workload.RunRunning {
		s.Fatalf("run %s never ran: %+v", id, last)
	}
	return last
}

// terminal waits for a run's last status.
func (s *session) terminal(id workload.RunID) driver.Status {
	s.Helper()
	s.await(fmt.Sprintf("the end of run %s", id), func() bool {
		last := s.sink.last(id)
		return last.State.Traits().Terminal
	})
	for i, l := range s.live {
		if l == id {
			s.live = append(s.live[:i:i], s.live[i+1:]...)
			break
		}
	}
	last := s.sink.last(id)
	return last
}

// expect checks a status against what it must say.
func (s *session) expect(got driver.Status, state workload.RunState, reason workload.Reason, code int32) {
	s.Helper()
	if got.State != state || got.Reason != reason || got.ExitCode != code {
		s.Errorf("run %s is reported %s %s, exit code %d (%q), want %s %s, exit code %d",
			got.Run, got.State, got.Reason, got.ExitCode, got.Message, state, reason, code)
	}
	if len(got.Message) > driver.MaxMessage {
		s.Errorf("run %s has a message of %d bytes, more than %d", got.Run, len(got.Message), driver.MaxMessage)
	}
	if got.At.IsZero() {
		s.Errorf("run %s is reported without a time", got.Run)
	}
}

func (s *session) acknowledge(tokens ...driver.Token) {
	s.Helper()
	if err := s.driver.Acknowledge(context.Background(), tokens); err != nil {
		s.Fatalf("Acknowledge: %v", err)
	}
}

// reconcile asks, and waits for the answers to named runs.
func (s *session) reconcile(runs ...workload.RunID) {
	s.Helper()
	r, ok := s.driver.(driver.Reconciler)
	if !ok {
		s.Skip("the driver does not reconcile")
	}
	before := map[workload.RunID]int{}
	for _, id := range runs {
		before[id] = s.sink.count(id)
	}
	if err := r.Reconcile(context.Background(), runs); err != nil {
		s.Fatalf("Reconcile: %v", err)
	}
	for _, id := range runs {
		s.await(fmt.Sprintf("the state of run %s", id), func() bool { return s.sink.count(id) > before[id] })
	}
}

// find returns a run's status in an inventory.
func find(inventory driver.Inventory, id workload.RunID) (driver.Status, bool) {
	for _, status := range inventory.Runs {
		if status.Run == id {
			return status, true
		}
	}
	return driver.Status{}, false
}
