package simulated_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var work = drivertest.Work{
	Exit: func(l *driver.Launch, code int32) {
		l.Simulation = workload.Simulation{Duration: 5 * time.Millisecond, ExitCode: code}
	},
	Forever: func(l *driver.Launch) { l.Simulation = workload.Simulation{} },
	Healthy: func(l *driver.Launch) { l.Health = &workload.HealthCheck{InitialDelay: 5 * time.Millisecond} },
}

func hosts(t testing.TB, n int) []driver.Host {
	t.Helper()
	made, err := simulated.Generate(simulated.Fleet{Hosts: n, HostsPerRack: 2})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func newCluster(t testing.TB, cfg simulated.Config) *simulated.Cluster {
	t.Helper()
	if cfg.Hosts == nil {
		cfg.Hosts = hosts(t, 3)
	}
	c, err := simulated.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConformance(t *testing.T) {
	for _, virtual := range []bool{false, true} {
		t.Run(fmt.Sprintf("virtual=%t", virtual), func(t *testing.T) {
			drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
				c := newCluster(t, simulated.Config{Virtual: virtual, LaunchLatency: time.Millisecond, KillLatency: 3 * time.Millisecond})
				k := drivertest.Cluster{
					Connect: func() (driver.Driver, error) { return c.Driver(), nil },
					Work:    work,
					Cut:     func() { c.Cut(errors.New("cut by the test")) },
					Mend:    c.Mend,
					RemoveHost: func(name string) {
						if err := c.RemoveHost(name); err != nil {
							t.Error(err)
						}
					},
				}
				if virtual {
					k.Tick = func() {
						if err := c.Advance(c.Now().Add(time.Millisecond)); err != nil {
							t.Error(err)
						}
					}
				}
				return k
			})
		})
	}
}

// scribe is a sink that writes down what it hears.
type scribe struct {
	lines       []string
	inventories []driver.Inventory
	statuses    []driver.Status
}

func (s *scribe) Inventory(i driver.Inventory) {
	s.inventories = append(s.inventories, i)
	s.lines = append(s.lines, fmt.Sprintf("inventory %d %v", len(i.Hosts), i.Runs))
}

func (s *scribe) HostsChanged(changed []driver.Host, removed []string) {
	for _, h := range changed {
		s.lines = append(s.lines, fmt.Sprintf("host %s ready=%t", h.Name, h.Ready))
	}
	if len(removed) > 0 {
		s.lines = append(s.lines, fmt.Sprint("removed ", removed))
	}
}

func (s *scribe) Statuses(list []driver.Status) {
	s.statuses = append(s.statuses, list...)
	for _, status := range list {
		s.lines = append(s.lines, fmt.Sprintf("%s: %d %s %s %d %d", status.At.Format("05.000"), status.Run.Instance, status.State, status.Reason, status.ExitCode, status.Signal))
	}
}

func (s *scribe) Disconnected(err error) {
	s.lines = append(s.lines, fmt.Sprint("disconnected: ", err))
}

func runID(i int) workload.RunID {
	return workload.RunID{Job: workload.JobID{1}, Instance: uint32(i), Generation: 1, Run: 1}
}

// world is a virtual cluster with a scribe connected.
type world struct {
	t testing.TB
	*simulated.Cluster
	driver *simulated.Driver
	scribe
}

func newWorld(t testing.TB, cfg simulated.Config) *world {
	t.Helper()
	cfg.Virtual = true
	w := &world{t: t, Cluster: newCluster(t, cfg)}
	w.connect()
	return w
}

func (w *world) connect() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	w.driver = w.Cluster.Driver()
	w.check(w.driver.Start(ctx, &w.scribe))
	w.pass(0)
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time pass, event by event.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end := w.Now().Add(d)
	for {
		next, ok := w.Next()
		if !ok || next.After(end) {
			break
		}
		w.check(w.Advance(next))
	}
	w.check(w.Advance(end))
}

func (w *world) launch(i, host int, s workload.Simulation) {
	w.t.Helper()
	w.check(w.driver.Launch(context.Background(), []driver.Launch{{Run: runID(i), Host: fmt.Sprintf("sim-%d", host), Simulation: s}}))
}

// story returns what the scribe heard since the last call.
func (w *world) story() string {
	s := strings.Join(w.lines, "\n")
	w.lines = nil
	return s
}

func (w *world) heard(want ...string) {
	w.t.Helper()
	if got := w.story(); got != strings.Join(want, "\n") {
		w.t.Errorf("the sink heard\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestVirtualTimeIsExact(t *testing.T) {
	w := newWorld(t, simulated.Config{LaunchLatency: 2 * time.Second, DefaultDuration: 10 * time.Second})
	w.story()
	w.launch(1, 0, workload.Simulation{})
	w.launch(2, 0, workload.Simulation{Duration: time.Second, ExitCode: 7})
	w.pass(time.Minute - 48*time.Second)
	w.heard(
		"00.000: 1 STARTING  0 0", "00.000: 2 STARTING  0 0", "02.000: 1 RUNNING  0 0", "02.000: 2 RUNNING  0 0",
		"03.000: 2 FAILED EXITED 7 0", "12.000: 1 SUCCEEDED EXITED 0 0")
}

func TestAHostOutOfContact(t *testing.T) {
	w := newWorld(t, simulated.Config{})
	w.launch(1, 0, workload.Simulation{})
	w.launch(2, 0, workload.Simulation{Duration: 5 * time.Second})
	w.launch(3, 0, workload.Simulation{})
	w.pass(time.Second)
	w.story()
	w.check(w.HostDown("sim-0"))
	w.launch(4, 0, workload.Simulation{})
	w.pass(9 * time.Second)
	w.heard("host sim-0 ready=false",
		"01.000: 1 UNREACHABLE HOST_UNREACHABLE 0 0", "01.000: 2 UNREACHABLE HOST_UNREACHABLE 0 0", "01.000: 3 UNREACHABLE HOST_UNREACHABLE 0 0",
		"01.000: 4 LOST HOST_UNREACHABLE 0 0")
	w.check(w.driver.Kill(t.Context(), []driver.Kill{{Run: runID(3), Grace: time.Second}}))
	w.check(w.HostUp("sim-0", false))
	w.pass(time.Second)
	w.heard("host sim-0 ready=true", "00.000: 1 RUNNING  0 0", "05.000: 2 SUCCEEDED EXITED 0 0", "10.000: 3 KILLED  143 15")
}

func TestAShorterGraceEndsARunSooner(t *testing.T) {
	w := newWorld(t, simulated.Config{KillLatency: time.Minute})
	w.launch(1, 0, workload.Simulation{})
	w.launch(2, 0, workload.Simulation{})
	w.pass(0)
	w.story()
	kill := func(i int, grace time.Duration) {
		w.check(w.driver.Kill(t.Context(), []driver.Kill{{Run: runID(i), Grace: grace}}))
	}
	kill(1, time.Hour)
	kill(2, 2*time.Second)
	w.pass(5 * time.Second)
	kill(1, 0)
	w.pass(time.Hour)
	w.heard("02.000: 2 KILLED  143 15", "05.000: 1 KILLED  137 9")
}

func TestAHostThatReturnsEmpty(t *testing.T) {
	w := newWorld(t, simulated.Config{})
	w.launch(1, 1, workload.Simulation{})
	w.check(w.HostDown("sim-1"))
	w.pass(time.Second)
	w.story()
	w.check(w.HostUp("sim-1", true))
	w.pass(time.Second)
	w.heard("host sim-1 ready=true", "01.000: 1 LOST HOST_RETURNED_EMPTY 0 0")
	if err := w.HostDown("nowhere"); err == nil {
		t.Error("a host that is not there went down")
	}
}

func TestANewConnectionTakesOver(t *testing.T) {
	w := newWorld(t, simulated.Config{})
	old := w.driver
	w.launch(1, 0, workload.Simulation{Duration: time.Minute})
	w.connect()
	if err := old.Launch(t.Context(), []driver.Launch{{Run: runID(2), Host: "sim-0"}}); err == nil {
		t.Error("the old connection still launches")
	}
	if runs := w.inventories[len(w.inventories)-1].Runs; len(runs) != 1 || runs[0].State != workload.RunRunning {
		t.Errorf("the new connection finds %v", runs)
	}
}

func TestLaunchFailuresAndFailingRuns(t *testing.T) {
	w := newWorld(t, simulated.Config{Seed: 5, Faults: simulated.Faults{LaunchFailure: 100}})
	const n = 2000
	for i := range n {
		w.launch(i, i%3, workload.Simulation{Duration: time.Hour, FailurePerMille: 500})
	}
	w.pass(2 * time.Hour)
	count := map[workload.Reason]int{}
	failed := 0
	for _, s := range w.statuses {
		if s.State.Traits().Terminal {
			count[s.Reason]++
			if s.ExitCode == 1 {
				failed++
			}
		}
	}
	if unstarted := count[workload.ReasonLaunchFailed]; unstarted < n/20 || unstarted > n/5 {
		t.Errorf("%d of %d could not be started, want about a tenth", unstarted, n)
	}
	if exited := count[workload.ReasonExited]; failed < exited*4/10 || failed > exited*6/10 {
		t.Errorf("%d of %d runs failed, want about a half", failed, exited)
	}
}

// TestFaultsKeepTheContract plays random histories under every fault: the same seed gives the same history, each run's statuses stay in
// order, and once the faults are over everybody's end is known.
func TestFaultsKeepTheContract(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chance := rapid.Int32Range(0, 300)
		cfg := simulated.Config{
			Seed: rapid.Uint64().Draw(t, "seed"), LaunchLatency: time.Second, KillLatency: time.Second,
			Faults: simulated.Faults{
				LoseStatus: chance.Draw(t, "lose"), DuplicateStatus: chance.Draw(t, "duplicate"), DelayStatus: chance.Draw(t, "delay"),
				MaxDelay: 20 * time.Second, LaunchFailure: chance.Draw(t, "launch failure"), ReturnEmpty: chance.Draw(t, "return empty"),
				HostFailureEvery: time.Minute, HostOutage: 10 * time.Second, CutEvery: time.Minute, CutFor: 5 * time.Second,
			},
		}
		kills := rapid.SliceOfN(rapid.IntRange(0, 39), 0, 10).Draw(t, "kills")
		first, second := play(t, cfg, kills), play(t, cfg, kills)
		if a, b := strings.Join(first.lines, "\n"), strings.Join(second.lines, "\n"); a != b {
			t.Fatalf("one seed, two histories:\n%s\n\n%s", a, b)
		}
		first.inOrder(t)
		first.allEnded(t)
	})
}

func TestFaultsAreCounted(t *testing.T) {
	const runs = 400
	fleet := hosts(t, 4)
	c, err := simulated.New(simulated.Config{
		Hosts: fleet, Virtual: true, LaunchLatency: time.Second,
		Faults: simulated.Faults{LoseStatus: 100, DuplicateStatus: 100, DelayStatus: 100, MaxDelay: time.Second, LaunchFailure: 100},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := c.Driver()
	if err := d.Start(t.Context(), &counter{}); err != nil {
		t.Fatal(err)
	}
	for n := range uint32(runs) {
		l := driver.Launch{Run: workload.RunID{Instance: n, Run: 1}, Host: fleet[n%4].Name}
		if err := d.Launch(t.Context(), []driver.Launch{l}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Advance(time.Unix(60, 0)); err != nil {
		t.Fatal(err)
	}
	s := c.Struck() // of 800 statuses and 400 launches
	for what, n := range map[string]int{"lost": s.LostStatuses, "duplicated": s.DuplicatedStatuses, "delayed": s.DelayedStatuses, "launches": 2 * s.FailedLaunches} {
		if n < 40 || n > 160 {
			t.Errorf("%s: %d of about 80", what, n)
		}
	}
}

// history is a scribe of a whole play.
type history struct {
	scribe
	launched map[int]bool
}

func play(t *rapid.T, cfg simulated.Config, kills []int) *history {
	cfg.Virtual = true
	fleet, err := simulated.Generate(simulated.Fleet{Hosts: 4})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Hosts = fleet
	c, err := simulated.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h, d := &history{launched: map[int]bool{}}, c.Driver()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := d.Start(ctx, h); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		l := driver.Launch{Run: runID(i), Host: fmt.Sprintf("sim-%d", i%4), Simulation: workload.Simulation{Duration: 30 * time.Second}}
		// Refused while the link is cut; then nothing has happened.
		h.launched[i] = d.Launch(ctx, []driver.Launch{l}) == nil
		if slices.Contains(kills, i) {
			_ = d.Kill(ctx, []driver.Kill{{Run: runID(i / 2), Grace: time.Duration(i%2) * time.Minute}}) // refused while the link is cut
		}
		if err := c.Advance(c.Now().Add(4 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		if err := c.Advance(c.Now().Add(11 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_ = d.Reconcile(ctx, nil) // refused while the link is cut; there are 20 tries
	}
	return h
}

func (h *history) last() map[int]driver.Status {
	last := map[int]driver.Status{}
	for _, s := range h.statuses {
		last[int(s.Run.Instance)] = s
	}
	return last
}

func (h *history) inOrder(t *rapid.T) {
	newest := map[workload.RunID]driver.Status{}
	for _, s := range h.statuses {
		if old := newest[s.Run]; s.Token < old.Token && s.Token != 0 {
			t.Fatalf("run %d: %s (token %d) came after %s (token %d)", s.Run.Instance, s.State, s.Token, old.State, old.Token)
		} else if old.State.Traits().Terminal && s.State != old.State && s.Token != 0 {
			t.Fatalf("run %d: %s came after its end %s", s.Run.Instance, s.State, old.State)
		}
		newest[s.Run] = s
	}
}

func (h *history) allEnded(t *rapid.T) {
	last := h.last()
	for i, launched := range h.launched {
		if s, ok := last[i]; launched && (!ok || !s.State.Traits().Terminal) {
			t.Fatalf("run %d was launched and its end never told; last: %+v", i, s)
		}
	}
}

func TestWallTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, simulated.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		s, d := &scribe{}, c.Driver()
		if err := d.Start(ctx, s); err != nil {
			t.Fatal(err)
		}
		if err := d.Launch(ctx, []driver.Launch{{Run: runID(1), Host: "sim-0", Simulation: workload.Simulation{Duration: time.Hour}}}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.Sleep(2 * time.Hour) // bubble time
		synctest.Wait()
		cancel()
		d.Wait()
		if n := len(s.statuses); n == 0 || s.statuses[n-1].State != workload.RunSucceeded || !s.statuses[n-1].At.Equal(start.Add(time.Hour)) {
			t.Errorf("heard %v", s.lines)
		}
		if err := c.Advance(time.Now()); err == nil {
			t.Error("the wall clock was advanced")
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	one := hosts(t, 1)
	for name, cfg := range map[string]simulated.Config{
		"no hosts":        {},
		"twin hosts":      {Hosts: append(hosts(t, 1), one...)},
		"chance":          {Hosts: one, Faults: simulated.Faults{LoseStatus: 1001}},
		"delay of what":   {Hosts: one, Faults: simulated.Faults{DelayStatus: 1}},
		"endless outage":  {Hosts: one, Faults: simulated.Faults{HostFailureEvery: time.Second}},
		"endless cut":     {Hosts: one, Faults: simulated.Faults{CutEvery: time.Second}},
		"negative":        {Hosts: one, LaunchLatency: -1},
		"negative faults": {Hosts: one, Faults: simulated.Faults{MaxDelay: -1}},
	} {
		if _, err := simulated.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// counter is a sink that only counts.
type counter struct{ ends int }

func (*counter) Inventory(driver.Inventory)           {}
func (*counter) HostsChanged([]driver.Host, []string) {}
func (*counter) Disconnected(error)                   {}
func (c *counter) Statuses(list []driver.Status) {
	for i := range list {
		if list[i].State.Traits().Terminal {
			c.ends++
		}
	}
}

// BenchmarkLaunch measures one run's whole life on 50,000 hosts, 100,000 runs alive at once.
func BenchmarkLaunch(b *testing.B) {
	const batch, alive = 1000, 100_000
	c := newCluster(b, simulated.Config{Hosts: hosts(b, 50_000), Virtual: true})
	ctx := b.Context()
	s, d := &counter{}, c.Driver()
	if err := d.Start(ctx, s); err != nil {
		b.Fatal(err)
	}
	names := make([]string, 50_000)
	for i := range names {
		names[i] = fmt.Sprintf("sim-%d", i)
	}
	launches := make([]driver.Launch, batch)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += batch {
		for i := range launches {
			launches[i] = driver.Launch{
				Run: runID(done + i), Host: names[(done+i)%len(names)], Simulation: workload.Simulation{Duration: alive / batch * time.Second},
			}
		}
		if err := d.Launch(ctx, launches); err != nil {
			b.Fatal(err)
		}
		if err := c.Advance(c.Now().Add(time.Second)); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "launches/s")
}
