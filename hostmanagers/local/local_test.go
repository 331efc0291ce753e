package local_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/conformance/freeport"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/local"
)

// patience bounds every wait for a real process.
const patience = 2 * time.Minute

// desk is a started driver and what its sink heard.
type desk struct {
	*local.Driver
	t      testing.TB
	cancel context.CancelFunc

	mu        sync.Mutex
	inventory *driver.Inventory
	last      map[workload.RunID]driver.Status
	wake      chan struct{}
}

func (d *desk) hear(what func()) {
	d.mu.Lock()
	what()
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *desk) Inventory(i driver.Inventory) {
	d.hear(func() {
		d.inventory = &i
		for _, s := range i.Runs {
			d.last[s.Run] = s
		}
	})
}
func (d *desk) HostsChanged([]driver.Host, []string) {}
func (d *desk) Disconnected(error)                   {}
func (d *desk) Statuses(list []driver.Status) {
	d.hear(func() {
		for _, s := range list {
			d.last[s.Run] = s
		}
	})
}

func open(t testing.TB, cfg local.Config) *desk {
	t.Helper()
	made, err := local.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := &desk{Driver: made, t: t, cancel: cancel, last: map[workload.RunID]driver.Status{}, wake: make(chan struct{}, 1)}
	if err := d.Start(ctx, d); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	d.until("an inventory", func() bool { return d.inventory != nil })
	return d
}

func (d *desk) close() {
	d.cancel()
	d.Wait()
}

func (d *desk) until(what string, met func() bool) {
	d.t.Helper()
	deadline := time.After(patience)
	for {
		d.mu.Lock()
		ok := met()
		d.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-d.wake:
		case <-deadline:
			d.t.Fatalf("not within %s: %s; heard %+v", patience, what, d.last)
		}
	}
}

func (d *desk) ended(id workload.RunID) driver.Status {
	d.t.Helper()
	d.until("the end of a run", func() bool { return d.last[id].State.Traits().Terminal })
	return d.last[id]
}

func (d *desk) launch(l driver.Launch) driver.Launch {
	d.t.Helper()
	if l.Run == (workload.RunID{}) {
		l.Run = runID(1)
	}
	if l.Host == "" {
		l.Host = "local-0"
	}
	if err := d.Launch(context.Background(), []driver.Launch{l}); err != nil {
		d.t.Fatal(err)
	}
	return l
}

func (d *desk) kill(id workload.RunID) {
	d.t.Helper()
	if err := d.Kill(context.Background(), []driver.Kill{{Run: id}}); err != nil {
		d.t.Fatal(err)
	}
	d.ended(id)
}

func (d *desk) stdout(id workload.RunID) string {
	d.t.Helper()
	r, err := d.ReadLog(context.Background(), id, driver.LogRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(raw)
}

func runID(i int) workload.RunID {
	return workload.RunID{Job: workload.JobID{2}, Instance: uint32(i), Generation: 1, Run: 1}
}

func TestATasksEnvironment(t *testing.T) {
	d := open(t, local.Config{Root: t.TempDir(), Hosts: 2, Devices: []driver.Device{{Model: "m", Milli: 1000}, {Model: "m", Milli: 1000}}})
	l := d.launch(driver.Launch{
		Command: []string{"sh", "-c", `echo "$PACELINE_RUN_ID $PACELINE_HOST $PACELINE_PORT_WEB_UI $CUDA_VISIBLE_DEVICES $LANG $OWN"; [ "$HOME" = "$PWD" ] && echo home`},
		Host:    "local-1", Env: map[string]string{"OWN": "mine", "LANG": "C", "PACELINE_RUN_ID": "forged"},
		Ports: []driver.AssignedPort{{Name: "web-ui", Number: freePort(t)}}, Devices: []int{0, 1},
	})
	d.ended(l.Run)
	if got, want := d.stdout(l.Run), fmt.Sprintf("%s local-1 %d 2,3 C mine\nhome\n", l.Run, l.Ports[0].Number); got != want {
		t.Errorf("the task saw %q, want %q", got, want)
	}
}

func freePort(t testing.TB) uint16 {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return uint16(port)
}

func TestWhatTheMachineRefuses(t *testing.T) {
	d := open(t, local.Config{Root: t.TempDir()})
	foreign, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	port := uint16(foreign.Addr().(*net.TCPAddr).Port)
	for i, c := range []struct {
		launch driver.Launch
		reason workload.Reason
	}{
		{driver.Launch{Ports: []driver.AssignedPort{{Name: "p", Number: port}}}, workload.ReasonPortTaken},
		{driver.Launch{Host: "elsewhere"}, workload.ReasonLaunchFailed},
		{driver.Launch{Execution: &execution.Spec{Main: execution.Container{Image: "app"}}}, workload.ReasonLaunchFailed},
		{driver.Launch{Execution: &execution.Spec{User: "nobody"}}, workload.ReasonLaunchFailed},
	} {
		c.launch.Command, c.launch.Run = []string{"true"}, runID(i+1)
		l := d.launch(c.launch)
		if end := d.ended(l.Run); end.State != workload.RunFailed || end.Reason != c.reason || end.Message == "" {
			t.Errorf("it ended as %+v, want reason %s", end, c.reason)
		}
	}
	if err := d.Launch(t.Context(), []driver.Launch{{Run: runID(9), Host: "local-0"}}); err == nil {
		t.Error("a launch without a command was taken")
	}
}

func TestNetworkHealthChecks(t *testing.T) {
	d := open(t, local.Config{Root: t.TempDir()})
	http, tcp := workload.HealthCheck{HTTP: &workload.HTTPCheck{Port: "web", Path: "/"}}, workload.HealthCheck{TCP: &workload.TCPCheck{Port: "web"}}
	for i, check := range []workload.HealthCheck{http, tcp} {
		check.Interval, check.FailureThreshold = time.Millisecond, 1_000_000
		port := freePort(t)
		l := d.launch(driver.Launch{
			Run: runID(i + 1), Command: []string{"sleep", "1000"}, Health: &check, Ports: []driver.AssignedPort{{Name: "web", Number: port}},
		})
		d.until("it runs", func() bool { return d.last[l.Run].State == workload.RunRunning })
		// The test answers in the task's place.
		server, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		var done sync.WaitGroup
		done.Go(func() {
			for {
				c, err := server.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n")
				_ = c.Close()
			}
		})
		d.until("it is healthy", func() bool { return d.last[l.Run].Healthy })
		_ = server.Close()
		done.Wait()
		d.kill(l.Run)
	}
	for i, check := range []workload.HealthCheck{http, tcp} {
		check.Interval, check.FailureThreshold = time.Millisecond, 2
		l := d.launch(driver.Launch{Run: runID(i + 3), Command: []string{"sleep", "1000"}, Health: &check})
		if end := d.ended(l.Run); end.Reason != workload.ReasonUnhealthy || !strings.Contains(end.Message, `no port named "web"`) {
			t.Errorf("a check of a port that the run does not have ended it as %+v", end)
		}
	}
}

func TestATokenFromBeforeARestartAcknowledgesNothing(t *testing.T) {
	root := t.TempDir()
	d := open(t, local.Config{Root: root})
	first := d.ended(d.launch(driver.Launch{Command: []string{"true"}}).Run)
	d.close()
	d = open(t, local.Config{Root: root})
	second := d.ended(first.Run)
	if second.Token <= first.Token {
		t.Errorf("after a restart the token is %d, before it was %d", second.Token, first.Token)
	}
	if err := d.Acknowledge(t.Context(), []driver.Token{first.Token}); err != nil {
		t.Fatal(err)
	}
	d.close()
	d = open(t, local.Config{Root: root})
	if len(d.inventory.Runs) != 1 {
		t.Errorf("an old token acknowledged the end")
	}
	if err := d.Acknowledge(t.Context(), []driver.Token{d.last[first.Run].Token}); err != nil {
		t.Fatal(err)
	}
	if got := d.stdout(first.Run); got != "" {
		t.Errorf("its output is %q", got)
	}
	d.close()
	if d = open(t, local.Config{Root: root}); len(d.inventory.Runs) != 0 {
		t.Errorf("the acknowledged end is there again: %+v", d.inventory.Runs)
	}
	// The directory is kept, so the run is still known: nothing is started again.
	d.launch(driver.Launch{Command: []string{"sleep", "1000"}})
	if again := d.ended(first.Run); again.State != workload.RunSucceeded || again.Token != 0 {
		t.Errorf("a launch of an acknowledged run is answered with %+v", again)
	}
}

func TestTheInventorySaysWhatIsNotEnforced(t *testing.T) {
	d := open(t, local.Config{Root: t.TempDir(), Hosts: 3, HostsPerRack: 2, NamePrefix: "h", Cgroup: "/nowhere", Capacity: map[string]int64{"cpu_milli": 5, "license": 2}})
	if c := d.Capabilities(); c.Isolation || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "limits not enforced: ") {
		t.Errorf("the capabilities are %+v", c)
	}
	defer func() {
		d.close()
		if c := d.Capabilities(); len(c.Notes) != 1 {
			t.Errorf("after the driver's end the capabilities are %+v", c)
		}
	}()
	hosts := d.inventory.Hosts
	if len(hosts) != 3 {
		t.Fatalf("there are %d hosts", len(hosts))
	}
	last := hosts[2]
	if last.Name != "h2" || last.Attributes["rack"] != "rack-1" || last.Capacity["cpu_milli"] != 5 || last.Capacity["license"] != 2 ||
		last.Capacity["memory_mib"] <= 0 || !last.Ready || !strings.Contains(last.Message, "limits not enforced: ") {
		t.Errorf("the last host is %+v", last)
	}
	if a, b := hosts[0].Ports[0], hosts[1].Ports[0]; a.Last >= b.First || a.First != local.DefaultPorts.First {
		t.Errorf("the port ranges are %v and %v", a, b)
	}
}

func TestTheConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]local.Config{
		"no root":       {},
		"many hosts":    {Root: "x", Hosts: local.MaxHosts + 1},
		"few ports":     {Root: "x", Hosts: 3, Ports: driver.PortRange{First: 1, Last: 2}},
		"no resource":   {Root: "x", Capacity: map[string]int64{"Not A Name": 1}},
		"negative":      {Root: "x", Capacity: map[string]int64{"cpu_milli": -1}},
		"negative rack": {Root: "x", HostsPerRack: -1},
	} {
		if _, err := local.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// BenchmarkShortRuns measures 500 short runs from one launch to the last end.
func BenchmarkShortRuns(b *testing.B) {
	const n = 500
	d := open(b, local.Config{Root: b.TempDir(), KeepRuns: -1})
	for i := range b.N {
		launches := make([]driver.Launch, n)
		for j := range launches {
			launches[j] = driver.Launch{Run: runID(i*n + j + 1), Host: "local-0", Command: []string{"true"}}
		}
		if err := d.Launch(b.Context(), launches); err != nil {
			b.Fatal(err)
		}
		for j := range launches {
			s := d.ended(launches[j].Run)
			if err := d.Acknowledge(b.Context(), []driver.Token{s.Token}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
