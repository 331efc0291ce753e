package mesos_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"

	shardruntime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

var tasks = flag.Int("tasks", 100, "`number` of tasks of TestFaults")

// asCell is the variable that makes this program a cell at work: its folder, the master's address, and the number of tasks.
const asCell = "PACELINE_TEST_MESOS_CELL"

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(asCell)); len(words) == 3 {
		if err := beCell(words[0], words[1], words[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// file keeps a framework's id in a file.
type file string

func (f file) Load() (string, error) {
	id, err := os.ReadFile(string(f))
	if os.IsNotExist(err) {
		return "", nil
	}
	return string(id), err
}

func (f file) Save(id string) error {
	if err := os.WriteFile(string(f)+".new", []byte(id), 0o600); err != nil {
		return err
	}
	return os.Rename(string(f)+".new", string(f))
}

// outcome is what a cell says when its job is over.
type outcome struct {
	State string
	Done  uint32
}

var theJob = workload.JobID{1}

// beCell runs a cell with its store, its shard and its driver, submits the job if it is not there, and says how it ended. It goes on until
// stdin is closed, or it is killed.
func beCell(dir, address, count string) error {
	var instances uint32
	if _, err := fmt.Sscan(count, &instances); err != nil {
		return fmt.Errorf("read the number of tasks: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	keys, err := store.NewKeyspace("faults")
	if err != nil {
		return err
	}
	kept, err := badgerstore.Open(ctx, badgerstore.Config{Dir: filepath.Join(dir, "store"), Cell: "faults", Reserve: 1 << 20})
	if err != nil {
		return err
	}
	defer kept.Close()
	cell, err := engine.Open(ctx, engine.Config{Cell: scheduler.Config{Cell: "faults", Seed: 1}, Store: kept, Keys: keys})
	if err != nil {
		return err
	}
	cfg := mesos.Config{Masters: []string{address}, Identity: file(filepath.Join(dir, "framework")), Roles: []string{role}}
	cfg.Limits.SuppressAfter, cfg.Limits.HearsayFor = time.Second, 11*time.Second
	d, err := mesos.New(cfg)
	if err != nil {
		return err
	}
	runtime, err := shardruntime.New(shardruntime.Config{Machine: shard.Config{ID: "mesos/0", Cluster: "mesos"}, Driver: d, Core: cell})
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() { _ = cell.Run(ctx) })
	work.Go(func() { _ = runtime.Run(ctx) })
	if err := cell.Attach(ctx, runtime); err != nil {
		return err
	}
	if err := submit(ctx, cell, instances); err != nil {
		return err
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	var o outcome
	for {
		if err := cell.Read(ctx, func(c scheduler.Reader) {
			if v, _ := c.Job(theJob); v.State.Terminal() {
				o.State, o.Done = v.State.String(), v.ByState[workload.InstanceDone]
			}
		}); err != nil {
			return err
		}
		if o.State != "" && d.Stats().Runs == 0 { // the master was told that the ends are known
			break
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return nil
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(&o); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func submit(ctx context.Context, cell *engine.Engine, instances uint32) error {
	there := false
	if err := cell.Read(ctx, func(c scheduler.Reader) { _, there = c.Job(theJob) }); err != nil || there {
		return err
	}
	a, err := cell.Do(ctx, scheduler.Caller{Principal: "test"}, scheduler.SubmitJob{ID: theJob, SpecBytes: 200, Spec: &workload.JobSpec{
		Name: "faults", Pool: respool.DefaultID, Owner: "test", Kind: workload.Batch, Instances: instances,
		Template: workload.TaskTemplate{Command: []string{"work"}, KillGrace: time.Second, Needs: resource.Vector{resource.CPU: 1000, resource.Memory: 128}},
	}})
	if err == nil && a.Err != nil {
		return a.Err
	}
	return err
}

// troubles are how often what goes wrong, and how long it lasts. 0: never.
type troubles struct{ kill, cut, newMaster, loseAgent, loseFor time.Duration }

// TestFaults runs a job in a cell that is killed and started again and again, on an emulated cluster whose connections break in the middle of
// records, which says things twice and late, and refuses acknowledgements; then on one whose masters die and whose agents are lost, too.
// Every task has to reach its goal. In the first case none may be started twice; in both nothing may be left at the end. In the second a cell that has just
// been started may ask a master that is as new, and does not know of an agent that is lost: then its tasks are lost, too, and tried again.
func TestFaults(t *testing.T) {
	t.Parallel()
	if *live != "" {
		t.Skip("a live master is not broken")
	}
	some, all := troubles{kill: 700 * time.Millisecond, cut: 300 * time.Millisecond}, troubles{
		kill: 900 * time.Millisecond, cut: 700 * time.Millisecond, newMaster: time.Second, loseAgent: time.Second, loseFor: 2 * time.Second,
	}
	if *tasks >= long {
		some = troubles{kill: 7 * time.Second, cut: 3 * time.Second}
		all = troubles{kill: 11 * time.Second, cut: 7 * time.Second, newMaster: 5 * time.Second, loseAgent: 4 * time.Second, loseFor: 30 * time.Second}
	}
	for name, trouble := range map[string]troubles{"connections": some, "clusters": all} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			f.run(trouble)
			f.check(trouble.newMaster == 0)
		})
	}
}

// long is the number of tasks from which faults come at the pace of real ones, and everything is waited for.
const long = 5000

// faulty is an emulated cluster in trouble, and the cell on it.
type faulty struct {
	*testing.T
	emulator *emulator.Emulator
	url, dir string
	agents   []string

	mu       sync.Mutex
	launches map[string]int // by task id
	kills    int
}

func newFaulty(t *testing.T) *faulty {
	t.Helper()
	f := &faulty{T: t, dir: t.TempDir(), launches: map[string]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seldom := func() bool { return rand.Float64() < 0.02 }
	cfg := emulator.Config{Faults: emulator.Faults{Duplicate: seldom, Repeat: seldom, Refuse: seldom}}
	cfg.Cluster.Hostname, cfg.Cluster.Port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	cfg.Cluster.Behave = func(info *mesosapi.TaskInfo) cluster.Behaviour {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.launches[info.TaskID.Value]++
		return cluster.Behaviour{Start: 10 * time.Millisecond, Run: 10 * time.Millisecond, For: time.Duration(rand.IntN(400)) * time.Millisecond}
	}
	if f.emulator, err = emulator.New(cfg); err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + l.Addr().String()
	f.emulator.Do(func(c *cluster.Cluster) {
		for n := range 10 {
			f.agents = append(f.agents, c.AddAgent(cluster.Agent{Hostname: fmt.Sprintf("agent-%d", n), Resources: cluster.Plain(8, 16384, 100000, 31000, 32000)}))
		}
	})
	served := make(chan error, 1)
	go func() { served <- f.emulator.Serve(l) }()
	t.Cleanup(func() {
		f.emulator.Close()
		<-served
	})
	return f
}

// run lets a cell do its job while everything goes wrong.
func (f *faulty) run(trouble troubles) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 30*time.Minute)
	defer cancel()
	suffering, relieve := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer relieve()
	every := func(period time.Duration, do func()) {
		if period == 0 {
			return
		}
		work.Go(func() {
			ticks := time.NewTicker(period)
			defer ticks.Stop()
			for {
				select {
				case <-ticks.C:
					do()
				case <-suffering.Done():
					return
				}
			}
		})
	}
	every(trouble.cut, f.emulator.Cut)
	every(trouble.newMaster, func() { f.emulator.Do(func(c *cluster.Cluster) { c.Succeed(200 * time.Millisecond) }) })
	every(trouble.loseAgent, func() {
		id := f.agents[rand.IntN(len(f.agents))]
		f.emulator.Do(func(c *cluster.Cluster) { c.LoseAgent(id) })
		work.Go(func() {
			select {
			case <-time.After(trouble.loseFor):
			case <-suffering.Done():
			}
			f.emulator.Do(func(c *cluster.Cluster) { c.ReturnAgent(id) })
		})
	})
	for said := (*outcome)(nil); said == nil; f.kills++ {
		patience := trouble.kill * time.Duration(1+f.kills/3) // or a slow machine would never get anywhere
		said = f.life(ctx, patience, relieve)
		if said != nil && (said.State != workload.JobSucceeded.String() || int(said.Done) != *tasks) {
			f.Errorf("the job ended as %s, with %d of %d tasks done", said.State, said.Done, *tasks)
		}
		if ctx.Err() != nil {
			f.Fatal("the job does not end")
		}
	}
}

// life is one process of the cell, which is killed after a while unless its job ends before. Then all trouble ends, and what is left is
// looked at while the cell is there.
func (f *faulty) life(ctx context.Context, patience time.Duration, relieve func()) *outcome {
	f.Helper()
	self, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	command := exec.CommandContext(ctx, self)
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", asCell, f.dir, f.url, *tasks))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		f.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := command.Start(); err != nil {
		f.Fatal(err)
	}
	killer := time.AfterFunc(patience, func() { _ = command.Process.Kill() }) // it may have ended
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	inTime := killer.Stop()
	var said outcome
	if err == nil && inTime {
		if err := json.Unmarshal(line, &said); err != nil {
			f.Fatal(err)
		}
		relieve()
		f.left()
	}
	_ = stdin.Close() // asks it to end
	waited := command.Wait()
	if !inTime {
		return nil
	}
	if err != nil || waited != nil {
		f.Fatalf("the cell ended by itself: %v", waited)
	}
	return &said
}

// left waits until nothing is left of the job at the master, and, with time enough, of its offers.
func (f *faulty) left() {
	f.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; <-time.After(10 * time.Millisecond) {
		used, offered, live := 0.0, 0.0, 0
		f.emulator.Do(func(c *cluster.Cluster) {
			live = len(c.Tasks())
			for _, a := range c.Agents() {
				used, offered = used+cpus(a.AllocatedResources), offered+cpus(a.OfferedResources)
			}
		})
		if live == 0 && used == 0 && (offered == 0 || *tasks < long) {
			return
		}
		if time.Now().After(deadline) {
			f.Errorf("%d tasks are left, %v processors are used and %v are offered", live, used, offered)
			return
		}
	}
}

func cpus(resources []mesosapi.Resource) float64 {
	sum := 0.0
	for i := range resources {
		if resources[i].Name == "cpus" {
			sum += resources[i].GetScalar().GetValue()
		}
	}
	return sum
}

// check looks at what was launched.
func (f *faulty) check(once bool) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	runs := map[uint32]int{}
	again := 0
	for id, count := range f.launches {
		run, err := workload.ParseRunID(id)
		if err != nil || count > 1 {
			f.Errorf("task %s was launched %d times (%v)", id, count, err)
		}
		if runs[run.Instance]++; runs[run.Instance] == 2 {
			again++
		}
	}
	if len(runs) != *tasks {
		f.Errorf("%d instances were started, of %d", len(runs), *tasks)
	}
	if once && again > 0 {
		f.Errorf("%d instances were started more than once, though the cluster lost nothing", again)
	}
	f.Logf("%d tasks, %d launches, the cell was killed %d times", *tasks, len(f.launches), f.kills-1)
}
