package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/badgerstore"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"

	shardruntime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

func TestMain(m *testing.M) {
	if agents := os.Getenv(emulatorAgents); agents != "" { // this is the process of a cluster, see mesos_test.go
		serveMesos(agents)
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	cellName = "bench"
	// patience bounds every wait: a rig that hangs must fail, not sit there.
	patience = 10 * time.Minute
	// glance is how often a wait looks at the cell. A look costs the loop microseconds.
	glance = 2 * time.Millisecond
)

var caller = scheduler.Caller{Principal: "bench"}

// rig is a cell at work with its clusters.
type rig struct {
	tb     testing.TB
	dir    string
	worlds []func() driver.Driver // a new connection to each cluster
	store  *badgerstore.Store
	cell   *engine.Engine
	cancel context.CancelFunc
	work   sync.WaitGroup
	jobs   uint64

	module   []byte // of the policy that places; nil: the built-in one does
	policies *registry.Registry

	busy struct{ steps, commits atomic.Int64 } // nanoseconds
}

// newRig starts a cell over so many generated hosts, in as many shards as they need, and waits until all of them are ready.
func newRig(tb testing.TB, hosts int, connect func(hosts []driver.Host) func() driver.Driver) *rig {
	tb.Helper()
	return newPolicyRig(tb, hosts, connect, nil)
}

// newPolicyRig is newRig with a policy that places.
func newPolicyRig(tb testing.TB, hosts int, connect func(hosts []driver.Host) func() driver.Driver, module []byte) *rig {
	tb.Helper()
	all, err := simulated.Generate(simulated.Fleet{Hosts: hosts, Seed: 1})
	if err != nil {
		tb.Fatal(err)
	}
	r := &rig{tb: tb, dir: tb.TempDir(), module: module}
	for len(all) > 0 {
		n := min(len(all), shard.MaxRows)
		r.worlds, all = append(r.worlds, connect(all[:n])), all[n:]
	}
	r.start()
	r.await("hosts are ready", func(c scheduler.Reader) bool { return c.Cell().Ready == hosts })
	return r
}

// simulate makes a simulated cluster of hosts, whose runs end when their jobs say so.
func simulate(tb testing.TB) func(hosts []driver.Host) func() driver.Driver {
	return func(hosts []driver.Host) func() driver.Driver {
		world, err := simulated.New(simulated.Config{Hosts: hosts, Seed: 1})
		if err != nil {
			tb.Fatal(err)
		}
		return func() driver.Driver { return world.Driver() }
	}
}

// start opens the store and runs engine and shards.
func (r *rig) start() {
	r.tb.Helper()
	keys, err := store.NewKeyspace(cellName)
	if err != nil {
		r.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	if r.store, err = badgerstore.Open(ctx, badgerstore.Config{Dir: r.dir, Cell: cellName}); err != nil {
		r.tb.Fatal(err)
	}
	config := engine.Config{Cell: scheduler.Config{Cell: cellName, Seed: 1}, Store: r.store, Keys: keys, Trace: &telemetry.Trace{
		StepDone:   func(s telemetry.Step) { r.busy.steps.Add(int64(s.Duration)) },
		CommitDone: func(c telemetry.Commit) { r.busy.commits.Add(int64(c.Duration)) },
	}}
	if r.cell, err = engine.Open(ctx, config); err != nil {
		r.tb.Fatal(err)
	}
	cell := r.cell
	r.work.Go(func() {
		if err := cell.Run(ctx); err != nil {
			r.tb.Error(err)
		}
	})
	r.choose(ctx)
	for n, world := range r.worlds {
		id := fmt.Sprintf("sim/%d", n)
		placers := r.policies.Source(id)
		runtime, err := shardruntime.New(shardruntime.Config{
			Machine: shard.Config{ID: shard.ID(id), Cluster: "sim", Placers: placers}, Driver: world(), Core: cell,
		})
		if err != nil {
			r.tb.Fatal(err)
		}
		r.work.Go(func() {
			defer placers.Close()
			if err := runtime.Run(ctx); err != nil {
				r.tb.Error(err)
			}
		})
		if err := cell.Attach(ctx, runtime); err != nil {
			r.tb.Fatal(err)
		}
	}
}

// choose opens the registry of policies, and lets the rig's own place.
func (r *rig) choose(ctx context.Context) {
	r.tb.Helper()
	config := registry.Config{Store: r.cell, Kit: kit.Options{Rounds: 1, Calls: 200}, Wasm: wasm.Config{Limits: wasm.Limits{StartFuel: registry.StartFuel}}}
	r.policies = registry.New(config)
	if err := r.policies.Open(ctx); err != nil {
		r.tb.Fatal(err)
	}
	r.work.Go(func() { r.policies.Run(ctx) })
	if book := r.policies.Book(); r.module == nil || book.Find("guest") != nil {
		return
	}
	digest, err := r.policies.Push(ctx, "bench", rollout.Upload{Policy: "guest", Module: r.module})
	if err != nil {
		r.tb.Fatal(err)
	}
	for _, event := range []rollout.Event{rollout.Move{Policy: "guest", Digest: digest, To: rollout.Active}, rollout.SetDefault{JobKind: "batch", Policy: "guest"}} {
		if _, err := r.policies.Change(ctx, "bench", event); err != nil {
			r.tb.Fatal(err)
		}
	}
}

// stop ends everything but the simulated clusters, whose runs go on.
func (r *rig) stop() {
	r.tb.Helper()
	r.cancel()
	r.work.Wait()
	r.policies.Close()
	if err := r.store.Close(); err != nil {
		r.tb.Error(err)
	}
}

// await polls the cell until it is as wanted.
func (r *rig) await(what string, reached func(scheduler.Reader) bool) {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for there := false; !there; {
		if err := r.cell.Read(ctx, func(c scheduler.Reader) { there = reached(c) }); err != nil {
			r.tb.Fatalf("waiting until %s: %v", what, err)
		}
		if !there {
			<-tick.C
		}
	}
}

// awaitRunning waits until so many instances of the job run.
func (r *rig) awaitRunning(job workload.JobID, n int) {
	r.tb.Helper()
	r.await(fmt.Sprintf("%d tasks run", n), func(c scheduler.Reader) bool {
		v, _ := c.Job(job)
		return int(v.ByRun[workload.RunRunning]) == n
	})
}

// awaitSucceeded waits for the job's good end.
func (r *rig) awaitSucceeded(job workload.JobID) {
	r.tb.Helper()
	r.await("the job has succeeded", func(c scheduler.Reader) bool {
		v, _ := c.Job(job)
		return v.State == workload.JobSucceeded
	})
}

// submit hands in a batch job of one-core tasks that last so long (0: for ever) and returns when it is acknowledged, which is to say
// durable.
func (r *rig) submit(instances int, lasts time.Duration) workload.JobID {
	r.tb.Helper()
	r.jobs++
	a, err := r.cell.Do(context.Background(), caller, batchJob(r.jobs, instances, lasts))
	if err != nil || a.Err != nil {
		r.tb.Fatalf("submit: %v, %v", err, a.Err)
	}
	return a.Job.ID
}

func batchJob(number uint64, instances int, lasts time.Duration) scheduler.SubmitJob {
	spec := &workload.JobSpec{
		Name: fmt.Sprintf("job-%d", number), Pool: respool.DefaultID, Owner: "bench", Kind: workload.Batch, Instances: uint32(instances), Preemptible: true,
		Template: workload.TaskTemplate{
			Command: []string{"/usr/bin/work", "--shard", "$PACELINE_INSTANCE"}, KillGrace: time.Second,
			Needs:      resource.Vector{resource.CPU: 1000, resource.Memory: 2048},
			Simulation: workload.Simulation{Duration: lasts},
		},
	}
	id := workload.JobID{0: 1}
	binary.BigEndian.PutUint64(id[8:], number)
	return scheduler.SubmitJob{ID: id, Spec: spec, SpecBytes: 200}
}
