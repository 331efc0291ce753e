package kubefaults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"

	shardruntime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

const (
	// asCell is the variable that makes this program a cell at work, as its orders say.
	asCell = "PACELINE_TEST_KUBERNETES_CELL"
	owner  = "faults"
	// servers are the instances of each service.
	servers = 8
)

func TestMain(m *testing.M) {
	if text := os.Getenv(asCell); text != "" {
		var o orders
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			err = o.obey(context.Background())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cell:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// orders are what a process of the cell is told.
type orders struct {
	Dir, Kubeconfig string
	Tasks           uint32
	Life            int // its number, from 1 on
	// Patch changes the pods of tasks.
	Patch                    string
	Start, Unreachable, Kill time.Duration // the driver's graces
	Late                     time.Duration // for how long a creation without an answer is waited for; 0: as long as the driver does
	LongestWait              time.Duration
	// Keep and KeepPods are how long, and how many of, the pods of runs that have ended stay.
	Keep     time.Duration
	KeepPods int
}

// testament is what a cell says once all its jobs are over and no trouble is left.
type testament struct {
	State string
	Done  uint32
	// Left is what is still taken; "": nothing.
	Left string
	Runs []ending
}

// ending is the record of a run.
type ending struct {
	Run, State, Reason string
	Placed, Ended      time.Time
}

// The jobs of a cell: one of tasks, and a service for each life.
var theJob = workload.JobID{1}

func serviceOf(life int) workload.JobID { return workload.JobID{2, byte(life >> 8), byte(life)} }

// cell is a cell at work.
type cell struct {
	*engine.Engine
	orders
	driver *kubernetes.Driver
	ctx    context.Context
}

// obey runs a cell with its store, its shard and its driver. It submits the job if it is not there, stops the services of earlier lives and begins one.
// When all is over it says "over"; on the first line from stdin it waits until nothing is left and tells its testament. It goes on until stdin is closed, or it is
// killed.
func (o *orders) obey(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	keys, err := store.NewKeyspace("faults")
	if err != nil {
		return err
	}
	kept, err := badgerstore.Open(ctx, badgerstore.Config{Dir: filepath.Join(o.Dir, "store"), Cell: "faults", Reserve: 1 << 20})
	if err != nil {
		return err
	}
	defer kept.Close()
	core, err := engine.Open(ctx, engine.Config{Cell: scheduler.Config{Cell: "faults", Seed: 1}, Store: kept, Keys: keys})
	if err != nil {
		return err
	}
	d, err := o.connect(core.Epoch())
	if err != nil {
		return err
	}
	runtime, err := shardruntime.New(shardruntime.Config{Machine: shard.Config{ID: "kube/0", Cluster: "kube"}, Driver: d, Core: core})
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() { _ = core.Run(ctx) })
	work.Go(func() { _ = runtime.Run(ctx) })
	if err := core.Attach(ctx, runtime); err != nil {
		return err
	}
	c := &cell{core, *o, d, ctx}
	err = c.live(bufio.NewReader(os.Stdin))
	if errors.Is(err, io.EOF) { // it is to end
		return nil
	}
	return err
}

func (o *orders) connect(epoch uint64) (*kubernetes.Driver, error) {
	api, err := kubernetes.Connect(o.Kubeconfig, "")
	if err != nil {
		return nil, err
	}
	cfg := kubernetes.Config{
		API: api, Pods: manifest.Config{Owner: owner, Epoch: epoch, DefaultImage: "none"}, LongestWait: o.LongestWait,
	}
	cfg.Limits.StartGrace, cfg.Limits.UnreachableGrace, cfg.Limits.KillMargin = o.Start, o.Unreachable, o.Kill
	cfg.Limits.LateCreation = o.Late
	cfg.Limits.KeepEnded, cfg.Limits.KeepEndedPods = o.Keep, o.KeepPods
	return kubernetes.New(cfg)
}

func (c *cell) live(stdin *bufio.Reader) error {
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.until(func(r scheduler.Reader) bool {
		v, _ := r.Job(theJob)
		return v.State.Terminal()
	}); err != nil {
		return err
	}
	for life := 1; life <= c.Life; life++ {
		if err := c.stop(life); err != nil {
			return err
		}
	}
	if err := c.until(func(r scheduler.Reader) bool {
		for life := 1; life <= c.Life; life++ {
			if v, there := r.Job(serviceOf(life)); there && !v.State.Terminal() {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	fmt.Println("over")
	if _, err := stdin.ReadString('\n'); err != nil {
		return err
	}
	t, err := c.testify()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(t); err != nil {
		return err
	}
	_, err = stdin.ReadString('\n')
	return err
}

// until looks at the cell again and again.
func (c *cell) until(good func(scheduler.Reader) bool) error {
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for {
		is := false
		if err := c.Read(c.ctx, func(r scheduler.Reader) { is = good(r) }); err != nil || is {
			return err
		}
		select {
		case <-ticks.C:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
}

func (c *cell) begin() error {
	work := workload.JobSpec{
		Name: "work", Pool: respool.DefaultID, Owner: "test", Kind: workload.Batch, Instances: c.Tasks,
		Retry:    workload.RetryPolicy{MaxRetries: 1000, Initial: 50 * time.Millisecond, Max: 200 * time.Millisecond},
		Template: workload.TaskTemplate{Command: []string{"work"}, KillGrace: time.Second, Needs: resource.Vector{resource.CPU: 1000, resource.Memory: 128}},
	}
	if c.Patch != "" {
		work.Template.Execution = &execution.Spec{Kubernetes: &execution.Kubernetes{Patch: []byte(c.Patch)}}
	}
	if err := c.submit(theJob, &work); err != nil {
		return err
	}
	for life := 1; life < c.Life; life++ {
		if err := c.stop(life); err != nil {
			return err
		}
	}
	return c.submit(serviceOf(c.Life), &workload.JobSpec{
		Name: fmt.Sprintf("service-%d", c.Life), Pool: respool.DefaultID, Owner: "test", Kind: workload.Service, Instances: servers,
		Retry:    workload.RetryPolicy{Initial: 50 * time.Millisecond, Max: 200 * time.Millisecond},
		Template: workload.TaskTemplate{Command: []string{"serve"}, KillGrace: time.Second, Needs: resource.Vector{resource.CPU: 1000, resource.Memory: 128}},
	})
}

func (c *cell) submit(id workload.JobID, spec *workload.JobSpec) error {
	there := false
	if err := c.Read(c.ctx, func(r scheduler.Reader) { _, there = r.Job(id) }); err != nil || there {
		return err
	}
	return c.command(scheduler.SubmitJob{ID: id, SpecBytes: 200, Spec: spec})
}

func (c *cell) stop(life int) error {
	running := false
	if err := c.Read(c.ctx, func(r scheduler.Reader) {
		v, there := r.Job(serviceOf(life))
		running = there && v.Goal == scheduler.GoalRun
	}); err != nil || !running {
		return err
	}
	return c.command(scheduler.StopJob{Job: serviceOf(life)})
}

func (c *cell) command(command scheduler.Command) error {
	a, err := c.Do(c.ctx, scheduler.Caller{Principal: "test"}, command)
	if err == nil && a.Err != nil {
		return a.Err
	}
	return err
}

// testify waits until nothing is left, and tells how all runs ended.
func (c *cell) testify() (*testament, error) {
	t := &testament{}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	bounded := &cell{c.Engine, c.orders, c.driver, ctx}
	err := bounded.until(func(r scheduler.Reader) bool {
		t.Left = c.left(r)
		v, _ := r.Job(theJob)
		t.State, t.Done = v.State.String(), v.ByState[workload.InstanceDone]
		return t.Left == ""
	})
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	for instance := range c.Tasks {
		if err := c.tell(t, theJob, instance); err != nil {
			return nil, err
		}
	}
	for life := 1; life <= c.Life; life++ {
		for instance := range uint32(servers) {
			if err := c.tell(t, serviceOf(life), instance); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

func (c *cell) tell(t *testament, job workload.JobID, instance uint32) error {
	runs, err := c.Runs(job, instance)
	for i := range runs {
		r := &runs[i]
		t.Runs = append(t.Runs, ending{r.ID.String(), r.State.String(), r.Reason.String(), time.Unix(0, r.Placed), time.Unix(0, r.Ended)})
	}
	return err
}

// left says what of the cell's room is still taken.
func (c *cell) left(r scheduler.Reader) string {
	v := r.Cell()
	stats := c.driver.Stats()
	if v.LiveRuns > 0 || !v.Used.IsZero() || stats.Runs > 0 || stats.Calls > 0 {
		return fmt.Sprintf("%d live runs, %v used; in the driver %+v", v.LiveRuns, v.Used, stats)
	}
	hosts, _ := r.Hosts("", "", 1000)
	for i := range hosts {
		if h := &hosts[i]; h.Tasks > 0 || !h.Used.IsZero() {
			return fmt.Sprintf("host %s has %d tasks and %v used", h.Name, h.Tasks, h.Used)
		}
	}
	if p, there := r.PoolByID(respool.DefaultID); there && (!p.Usage.IsZero() || p.Waiting > 0) {
		return fmt.Sprintf("the pool uses %v, and %d wait", p.Usage, p.Waiting)
	}
	return ""
}
