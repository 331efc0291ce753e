package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"
	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

const (
	mesosAgents = 10_000
	mesosTasks  = 100_000
	// emulatorAgents is the variable that makes this program an emulated cluster of so many agents.
	emulatorAgents = "PACELINE_BENCH_MESOS_AGENTS"
)

// serveMesos is an emulated Mesos cluster, whose tasks end at once, until stdin is closed. It says where it is on stdout.
func serveMesos(agents string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	n, err := strconv.Atoi(agents)
	fail(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	cfg := emulator.Config{Cluster: cluster.Config{
		Behave: func(*mesosapi.TaskInfo) cluster.Behaviour { return cluster.Behaviour{} },
	}}
	e, err := emulator.New(cfg)
	fail(err)
	e.Do(func(c *cluster.Cluster) {
		for i := range n {
			c.AddAgent(cluster.Agent{Hostname: fmt.Sprintf("agent-%05d", i), Port: 5051, Resources: cluster.Plain(8, 16384, 100_000, 31000, 32000)})
		}
	})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is what counts
		e.Close()
	}()
	fmt.Println(listener.Addr())
	fail(e.Serve(listener))
}

// mesosCluster starts an emulated cluster in a process of its own, and returns the address of its master, and what ends it and tells the processor
// time that it used.
func mesosCluster(tb testing.TB, agents int) (address string, stop func() time.Duration) {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), emulatorAgents+"="+strconv.Itoa(agents))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := command.Start(); err != nil {
		tb.Fatal(err)
	}
	stop = sync.OnceValue(func() time.Duration {
		_ = stdin.Close() // ends it
		if err := command.Wait(); err != nil {
			tb.Error(err)
		}
		return command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	})
	tb.Cleanup(func() { stop() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(line), stop
}

// identity keeps a framework's id in memory.
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

func mesosDriver(tb testing.TB, address string) *mesos.Driver {
	tb.Helper()
	d, err := mesos.New(mesos.Config{Masters: []string{"http://" + address}, Identity: &identity{}})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// cpuTime is what this process has used so far.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// perTask reports the processor time that tasks took of this process, and of the one that they ran in.
func perTask(b *testing.B, used, emulated time.Duration) {
	b.ReportMetric(used.Seconds()*1e3/float64(mesosTasks*b.N), "cpu-ms/task")
	b.ReportMetric(emulated.Seconds()*1e3/float64(mesosTasks*b.N), "emulator-cpu-ms/task")
}

// awaitAcknowledged waits until a driver has nothing left of any run: all ends are acknowledged.
func awaitAcknowledged(tb testing.TB, d *mesos.Driver) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for d.Stats().Runs > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("ends were not acknowledged: %+v", d.Stats())
		}
	}
}

// BenchmarkMesos is a job of 100,000 tasks that end at once, from its submission until all have ended well and the master's agents have been
// told that this is known, on 10,000 agents over HTTP. The cluster runs in a process of its own on the same processors; cpu-ms/task is
// of the cell: scheduler, store, shard and driver.
func BenchmarkMesos(b *testing.B) {
	b.ReportAllocs()
	b.StopTimer()
	var used, emulated time.Duration
	for range b.N {
		address, stop := mesosCluster(b, mesosAgents)
		d := mesosDriver(b, address)
		r := &rig{tb: b, dir: b.TempDir(), worlds: []func() driver.Driver{func() driver.Driver { return d }}}
		r.start()
		r.await("hosts are ready", func(c scheduler.Reader) bool { return c.Cell().Ready == mesosAgents })
		before := cpuTime(b)
		b.StartTimer()
		r.awaitSucceeded(r.submit(mesosTasks, 0))
		awaitAcknowledged(b, d)
		b.StopTimer()
		used += cpuTime(b) - before
		r.stop()
		emulated += stop()
	}
	perTask(b, used, emulated)
	rate(b, mesosTasks, "tasks/s")
}

// ender is a sink that knows nothing but whom to acknowledge to, and how many runs have ended.
type ender struct {
	tb     testing.TB
	driver *mesos.Driver
	hosts  chan []driver.Host
	ended  chan int
}

func (e *ender) Inventory(i driver.Inventory)       { e.hosts <- i.Hosts }
func (*ender) HostsChanged([]driver.Host, []string) {}
func (*ender) Disconnected(error)                   {}
func (e *ender) Statuses(statuses []driver.Status) {
	tokens := make([]driver.Token, len(statuses))
	ended := 0
	for i := range statuses {
		tokens[i] = statuses[i].Token
		if statuses[i].State.Traits().Terminal {
			ended++
		}
		if s := &statuses[i]; s.State.Traits().Terminal && s.State != workload.RunSucceeded {
			e.tb.Errorf("run %s ended as %s %s: %s", s.Run, s.State, s.Reason, s.Message)
		}
	}
	_ = e.driver.Acknowledge(context.Background(), tokens) // fails only at the end
	e.ended <- ended
}

// BenchmarkMesosDriver is the driver's part alone: the same tasks, launched in batches of a thousand on hosts in turn, so many at once as the cell has under
// way, and acknowledged as they come.
func BenchmarkMesosDriver(b *testing.B) {
	const batch, most = 1000, 20_000
	b.ReportAllocs()
	b.StopTimer()
	var used, emulated time.Duration
	for range b.N {
		address, stop := mesosCluster(b, mesosAgents)
		d := mesosDriver(b, address)
		sink := &ender{b, d, make(chan []driver.Host, 1), make(chan int, mesosTasks)}
		ctx, cancel := context.WithCancel(b.Context())
		if err := d.Start(ctx, sink); err != nil {
			b.Fatal(err)
		}
		d.Demand(true)
		hosts := <-sink.hosts
		before := cpuTime(b)
		b.StartTimer()
		launched, ended := 0, 0
		for ended < mesosTasks {
			if launched < mesosTasks && launched-ended < most {
				if err := d.Launch(ctx, launches(hosts, launched, batch)); err != nil {
					b.Fatal(err)
				}
				launched += batch
				continue
			}
			ended += <-sink.ended
		}
		awaitAcknowledged(b, d)
		b.StopTimer()
		used += cpuTime(b) - before
		cancel()
		d.Wait()
		emulated += stop()
	}
	perTask(b, used, emulated)
	rate(b, mesosTasks, "tasks/s")
}

// launches makes some launches, four to a host.
func launches(hosts []driver.Host, first, n int) []driver.Launch {
	list := make([]driver.Launch, n)
	needs := map[string]int64{"cpu_milli": 1000, "memory_mib": 2048}
	for i := range list {
		list[i] = driver.Launch{
			Run:  workload.RunID{Job: workload.JobID{1}, Instance: uint32(first + i), Generation: 1, Run: 1}, //nolint:gosec // not negative
			Host: hosts[(first+i)/4%len(hosts)].Name, Command: []string{"/usr/bin/work", "--shard", "7"}, Needs: needs, KillGrace: time.Second,
		}
	}
	return slices.Clip(list)
}
