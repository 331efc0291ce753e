package mesos_test

import (
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"
	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// identity keeps a framework's id in memory, across drivers.
type identity struct {
	mu sync.Mutex
	id string
}

func (i *identity) Load() (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.id, nil
}

func (i *identity) Save(id string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.id = id
	return nil
}

// world is an emulated cluster, and what drivers of it are made of.
type world struct {
	emulator *emulator.Emulator
	config   mesos.Config
	agents   map[string]string // ids by host name
}

func scalar(name string, value float64) mesosapi.Resource {
	return mesosapi.Resource{Name: name, Type: mesosapi.SCALAR.Enum(), Scalar: &mesosapi.Value_Scalar{Value: value}}
}

func ranges(name string, first, last uint64) mesosapi.Resource {
	return mesosapi.Resource{Name: name, Type: mesosapi.RANGES.Enum(), Ranges: &mesosapi.Value_Ranges{Range: []mesosapi.Value_Range{{Begin: first, End: last}}}}
}

func text(name, value string) mesosapi.Attribute {
	return mesosapi.Attribute{Name: name, Type: mesosapi.TEXT, Text: &mesosapi.Value_Text{Value: value}}
}

// plainAgent is an agent as the recorded ones were.
func plainAgent(n int) cluster.Agent {
	return cluster.Agent{
		Hostname: "agent-" + strconv.Itoa(n) + ".local", Port: 5051 + n,
		Resources:  []mesosapi.Resource{ranges("ports", 31000, 32000), scalar("cpus", 8), scalar("mem", 16384), scalar("disk", 100000)},
		Attributes: []mesosapi.Attribute{text("rack", "r"+strconv.Itoa(n))},
	}
}

// newWorld starts an emulated master with two agents, over HTTP.
func newWorld(t testing.TB, cfg emulator.Config) *world {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	cfg.Cluster.Hostname, cfg.Cluster.Port = "127.0.0.1", address.Port
	if cfg.Cluster.AllocationInterval == 0 {
		cfg.Cluster.AllocationInterval = 50 * time.Millisecond
	}
	e, err := emulator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{emulator: e, agents: map[string]string{}, config: mesos.Config{
		Masters: []string{"http://" + listener.Addr().String()}, Identity: &identity{}, FrameworkName: "kit",
		Drain: drivertestPatience, // what was acknowledged is forgotten, however slow the machine is
	}}
	w.config.Connection.FirstWait = 10 * time.Millisecond
	w.config.Connection.LongestWait = 50 * time.Millisecond
	e.Do(func(c *cluster.Cluster) {
		for n := range 2 {
			a := plainAgent(n)
			w.agents[a.Hostname] = c.AddAgent(a)
		}
	})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = e.Serve(listener) // ends when the emulator is closed, and whoever cannot connect finds out
	}()
	t.Cleanup(func() {
		e.Close()
		_ = listener.Close() // closed already, if it was served
		<-served
	})
	return w
}

func (w *world) cluster() drivertest.Cluster {
	return drivertest.Cluster{
		Connect: func() (driver.Driver, error) { return mesos.New(w.config) },
		Cut: func() {
			w.emulator.Follow("") // nobody leads for a while
			w.emulator.Cut()
		},
		Mend: w.emulator.Lead,
		RemoveHost: func(name string) {
			w.emulator.Do(func(c *cluster.Cluster) { c.RemoveAgent(w.agents[name], "it was told to shut down") })
		},
	}
}

func says(words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) { l.Command = words }
}

func sayBad(l *driver.Launch) { l.Command = []string{"unfetchable"} }

func checked(words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) {
		l.Command = words
		l.Health = &workload.HealthCheck{Exec: []string{"check"}, Interval: 20 * time.Millisecond, FailureThreshold: 2}
	}
}

// behave is what a command means to an emulated agent.
func behave(t *mesosapi.TaskInfo) cluster.Behaviour {
	const moment = time.Millisecond
	b := cluster.Behaviour{Start: moment, Run: moment, For: cluster.Forever, Term: moment}
	switch words := t.Command.Arguments; words[0] {
	case "exit":
		code, err := strconv.Atoi(words[1])
		if err != nil {
			panic(err)
		}
		b.For, b.Status = moment, cluster.ExitStatus{Code: code}
	case "deaf":
		b.IgnoresTerm = true
		b.Checks = []cluster.CheckResult{{After: moment}}
	case "unfetchable":
		b.FetchFails = true
	case "well":
		b.Checks = []cluster.CheckResult{{After: 20 * moment}}
	case "sick":
		b.Checks = []cluster.CheckResult{{After: moment, ExitCode: 1}, {After: 2 * moment, ExitCode: 1}}
	}
	return b
}

var virtual = drivertest.Work{
	Exit:    func(l *driver.Launch, code int32) { says("exit", strconv.Itoa(int(code)))(l) },
	Forever: says("forever"),
	Deaf:    checked("deaf"),
	Bad:     sayBad,
	Healthy: checked("well"),
	Sick:    checked("sick"),
}

// TestConformance runs the kit of all drivers against an emulated master whose tasks are emulated, too.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
		c := newWorld(t, emulator.Config{Cluster: cluster.Config{Behave: behave}}).cluster()
		c.Work = virtual
		return c
	})
}

// TestConformanceOfProcesses runs it against one whose tasks are processes of this machine.
func TestConformanceOfProcesses(t *testing.T) {
	t.Parallel()
	cluster := func(t testing.TB) drivertest.Cluster {
		processes, err := emulator.NewLocal(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, emulator.Config{Processes: processes})
		processes.Serve(w.emulator)
		t.Cleanup(func() { // after the emulator is closed: cleanups run backwards, so it is closed here first
			w.emulator.Close()
			if err := processes.Close(); err != nil {
				t.Error(err)
			}
		})
		c := w.cluster()
		c.Work = drivertest.Work{
			Exit:    func(l *driver.Launch, code int32) { says("sh", "-c", "exit "+strconv.Itoa(int(code)))(l) },
			Forever: says("sleep", "1000"),
			Bad: func(l *driver.Launch) {
				says("true")(l)
				l.Needs = map[string]int64{"gpu_milli": 500}
			},
		}
		return c
	}
	for _, check := range drivertest.Checks() {
		if check.Name == "AfterTheEndNothingIsTaken" {
			continue // it counts goroutines, and those that watch over the run that goes on are the emulator's, in this process
		}
		t.Run(check.Name, func(t *testing.T) {
			t.Parallel()
			check.Run(t, cluster(t))
		})
	}
}
