package mesos_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// listener is a sink that keeps hosts and the last status of each run.
type listener struct {
	mu       sync.Mutex
	hosts    map[string]driver.Host
	statuses map[workload.RunID]driver.Status
}

func newListener() *listener {
	return &listener{hosts: map[string]driver.Host{}, statuses: map[workload.RunID]driver.Status{}}
}

func (l *listener) Inventory(i driver.Inventory) {
	l.Statuses(i.Runs) // hosts are waited for, so they come last
	l.HostsChanged(i.Hosts, nil)
}

func (l *listener) HostsChanged(changed []driver.Host, _ []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range changed {
		l.hosts[h.Name] = h
	}
}

func (l *listener) Statuses(statuses []driver.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range statuses {
		l.statuses[s.Run] = s
	}
}

func (*listener) Disconnected(error) {}

func (l *listener) host(name string) driver.Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[name]
}

func (l *listener) status(id workload.RunID) driver.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statuses[id]
}

// until polls a condition, for as long as the kit would.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(drivertestPatience)
	for !met() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it did not come to pass: %s", what)
		}
	}
}

// begin starts a driver of the world, and ends it with the test.
func (w *world) begin(t *testing.T) (*mesos.Driver, *listener, context.CancelFunc) {
	t.Helper()
	return w.beginWith(t, firstHost)
}

// beginWith starts a driver and waits until it knows a host.
func (w *world) beginWith(t *testing.T, host string) (*mesos.Driver, *listener, context.CancelFunc) {
	t.Helper()
	d, err := mesos.New(w.config)
	if err != nil {
		t.Fatal(err)
	}
	l := newListener()
	ctx, cancel := context.WithCancel(t.Context())
	if err := d.Start(ctx, l); err != nil {
		t.Fatal(err)
	}
	end := func() { cancel(); d.Wait() }
	t.Cleanup(end)
	until(t, "an inventory", func() bool { return l.host(host).Name != "" })
	return d, l, end
}

const firstHost = "agent-0.local"

// TestReservationsAndVolumes takes disk through its whole life: reserved, a volume, and given back, each with the master's word that it was done.
func TestReservationsAndVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	d, l, _ := w.begin(t)
	d.Demand(true)
	try := func(what string, do func(context.Context) error) { // once the host is offered again
		t.Helper()
		until(t, what, func() bool {
			err := do(t.Context())
			if err != nil && !strings.Contains(err.Error(), "ask again when it is offered") {
				t.Fatalf("%s: %v", what, err)
			}
			return err == nil
		})
	}
	gib := map[string]int64{"disk_mib": 1024}
	volume := mesos.Volume{Host: firstHost, ID: "data", Path: "data", MiB: 512}
	try("reserve", func(ctx context.Context) error { return d.Reserve(ctx, firstHost, "", gib) })
	try("create", func(ctx context.Context) error { return d.CreateVolume(ctx, volume) })
	until(t, "a volume is no room for tasks", func() bool { return l.host(firstHost).Capacity["disk_mib"] == 100000-512 })
	if err := d.DestroyVolume(t.Context(), mesos.Volume{Host: firstHost, ID: "other"}); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("a volume that is not there was destroyed: %v", err)
	}
	if err := d.Reserve(t.Context(), "no-such-host", "", gib); err == nil || !strings.Contains(err.Error(), "no-such-host") {
		t.Errorf("a host that is not there had something reserved: %v", err)
	}
	try("destroy", func(ctx context.Context) error { return d.DestroyVolume(ctx, volume) })
	try("unreserve", func(ctx context.Context) error { return d.Unreserve(ctx, firstHost, "", gib) })
	until(t, "all is room for tasks again", func() bool { return l.host(firstHost).Capacity["disk_mib"] == 100000 })
}

// TestARestartKnowsWhatRunsHold looks at hosts with the eyes of a driver that did not launch what runs on them.
func TestARestartKnowsWhatRunsHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	d, l, end := w.begin(t)
	run := workload.RunID{Job: workload.JobID{1}, Generation: 1, Run: 1}
	launch := driver.Launch{Run: run, Host: firstHost, Command: []string{"forever"}, Needs: map[string]int64{"cpu_milli": 8000, "memory_mib": 16000}}
	if err := d.Launch(t.Context(), []driver.Launch{launch}); err != nil {
		t.Fatal(err)
	}
	until(t, "the run has started", func() bool { return l.status(run).State == workload.RunStarting })
	end()
	_, l, _ = w.begin(t)
	if h := l.host(firstHost); h.Capacity["cpu_milli"] != 8000 || h.Capacity["memory_mib"] != 16384 || h.ID == "" {
		t.Errorf("with its run on it the host is %+v", h)
	}
	if s := l.status(run); s.Host != firstHost || s.State != workload.RunStarting {
		t.Errorf("the run is found as %+v", s)
	}
}

// TestLeavingAMasterThatNeverKnewUs: there is nobody to tell, unless an earlier driver was subscribed.
func TestLeavingAMasterThatNeverKnewUs(t *testing.T) {
	t.Parallel()
	for id, known := range map[string]bool{"": false, "M-0000": true} {
		d, err := mesos.New(mesos.Config{Masters: []string{"http://127.0.0.1:1"}, Identity: &identity{id: id}})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Leave(t.Context()); (err != nil) != known {
			t.Errorf("as framework %q: %v", id, err)
		}
	}
}

// TestARestartKeepsTheGrace takes an agent away and starts another driver while it is gone. Back in time its run goes on; too late it is lost, and ended.
func TestARestartKeepsTheGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		grace time.Duration
		lost  bool
	}{{"within", time.Hour, false}, {"beyond", time.Millisecond, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, emulator.Config{Cluster: cluster.Config{Behave: behave, PingTimeout: 10 * time.Millisecond, MaxPings: 2}})
			hasty(&w.config)
			w.config.Limits.UnreachableGrace = time.Hour
			run := w.stranded(t)
			w.config.Limits.UnreachableGrace = c.grace
			d, l, _ := w.beginWith(t, "agent-1.local")
			if s := l.status(run); s.State != workload.RunNone {
				t.Fatalf("the master told of a run on an agent out of contact without being asked: %+v", s)
			}
			if err := d.Reconcile(t.Context(), []workload.RunID{run}); err != nil {
				t.Fatal(err)
			}
			want := workload.RunUnreachable
			if c.lost {
				want = workload.RunLost
			}
			until(t, "the run is found "+want.String(), func() bool { return l.status(run).State == want })
			if err := d.Acknowledge(t.Context(), []driver.Token{l.status(run).Token}); err != nil {
				t.Fatal(err)
			}
			w.emulator.Do(func(cl *cluster.Cluster) { cl.ReturnAgent(w.agents[firstHost]) })
			until(t, "the run is back", func() bool { return l.status(run).State == workload.RunRunning })
			if !c.lost {
				return
			}
			if err := d.Kill(t.Context(), []driver.Kill{{Run: run}}); err != nil {
				t.Fatal(err)
			}
			until(t, "the old run has ended", func() bool { // what it says meanwhile has to be acknowledged first
				s := l.status(run)
				_ = d.Acknowledge(t.Context(), []driver.Token{s.Token})
				return s.State == workload.RunKilled
			})
		})
	}
}

// stranded starts a run by a driver of its own, which ends, and takes the agent of the run out of contact.
func (w *world) stranded(t *testing.T) workload.RunID {
	t.Helper()
	d, l, end := w.begin(t)
	run := workload.RunID{Job: workload.JobID{1}, Generation: 1, Run: 1}
	launch := driver.Launch{Run: run, Host: firstHost, Command: []string{"forever"}, Needs: map[string]int64{"cpu_milli": 100, "memory_mib": 64}}
	if err := d.Launch(t.Context(), []driver.Launch{launch}); err != nil {
		t.Fatal(err)
	}
	until(t, "the run runs", func() bool {
		s := l.status(run)
		_ = d.Acknowledge(t.Context(), []driver.Token{s.Token})
		return s.State == workload.RunRunning
	})
	w.emulator.Do(func(c *cluster.Cluster) { c.LoseAgent(w.agents[firstHost]) })
	until(t, "the agent is out of contact", func() bool { return l.status(run).State == workload.RunUnreachable })
	end()
	return run
}

// TestConfigIsChecked names what is wrong with a configuration, and never a secret.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*mesos.Config)
		want   string
	}{
		{func(c *mesos.Config) { c.Masters = nil }, "no Mesos master is named"},
		{func(c *mesos.Config) { c.Identity = nil }, "Identity"},
		{func(c *mesos.Config) { c.FailoverTimeout = time.Millisecond }, "FailoverTimeout is 1ms"},
		{func(c *mesos.Config) { c.Roles = []string{""} }, "role"},
		{func(c *mesos.Config) { c.Limits.OfferWait = -1 }, "negative"},
		{func(c *mesos.Config) { c.Principal = "paceline" }, "principal needs a secret"},
	} {
		cfg := mesos.Config{Masters: []string{"http://127.0.0.1:5050"}, Identity: &identity{}}
		c.change(&cfg)
		if _, err := mesos.New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("wanted words about %q, got %v", c.want, err)
		}
	}
}
