package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// slowDisk is a cell on a disk so slow that nothing is durable until the test says so, before a shard that answers at once.
type slowDisk struct {
	t       *testing.T
	state   *scheduler.State
	shard   *shard.Machine
	out     shard.Output
	waiting []scheduler.Effect // for durability
	token   driver.Token
	last    driver.Launch
	now     int64  // stands still unless the test moves it
	wake    int64  // of the cell
	demand  []bool // as the driver is told
}

const slowDiskStart = int64(time.Hour)

func newSlowDisk(t *testing.T, hosts int) *slowDisk {
	t.Helper()
	c := &slowDisk{t: t, now: slowDiskStart}
	var err error
	if c.state, _, err = scheduler.Start(scheduler.Config{Cell: "test"}, scheduler.NewImage(), 1, slowDiskStart); err != nil {
		t.Fatal(err)
	}
	if c.shard, err = shard.New(shard.Config{ID: "c/0", Cluster: "c", Demands: true}); err != nil {
		t.Fatal(err)
	}
	inventory := driver.Inventory{}
	for n := range hosts {
		inventory.Hosts = append(inventory.Hosts, driver.Host{
			Name: fmt.Sprintf("host-%d", n), Capacity: map[string]int64{"cpu_milli": 64_000, "memory_mib": 256 << 10}, Ready: true,
			Attributes: execution.WithFeatures(nil, execution.Features()...),
		})
	}
	c.shard.Handle(slowDiskStart, shard.InventoryArrived{Inventory: inventory}, &c.out)
	c.step(scheduler.ShardAttached{Shard: "c/0", Cluster: "c"})
	return c
}

// step lets the cell and the shard talk until they have nothing more to say. Time stands still, so whoever waits for a timer waits for ever.
func (c *slowDisk) step(events ...scheduler.Event) {
	for len(events) > 0 {
		out := c.state.Step(c.now, events)
		c.wake = out.Wake
		c.waiting = append(c.waiting, out.External...)
		events = nil
		for _, e := range out.Internal {
			events = append(events, c.tell(e)...)
		}
	}
}

// durable releases what has waited for the disk.
func (c *slowDisk) durable() {
	waiting := c.waiting
	c.waiting = nil
	var events []scheduler.Event
	for _, e := range waiting {
		events = append(events, c.tell(e)...)
	}
	c.step(events...)
}

func (c *slowDisk) tell(e scheduler.Effect) (events []scheduler.Event) {
	to, ok := e.(scheduler.ToShard)
	if !ok {
		return nil
	}
	inbox := []shard.Message{to.Message}
	for ; len(inbox) > 0; inbox = inbox[1:] {
		c.shard.Handle(c.now, inbox[0], &c.out)
		if c.out.Demand != nil {
			c.demand = append(c.demand, *c.out.Demand)
		}
		for _, r := range c.out.Replies {
			events = append(events, scheduler.ShardReplied{Shard: "c/0", Epoch: c.out.Epoch, Reply: r})
		}
		for _, call := range c.out.Calls {
			launch, ok := call.(shard.LaunchCall)
			if !ok {
				continue
			}
			var statuses []driver.Status
			for _, l := range launch.Launches {
				c.token, c.last = c.token+1, l
				statuses = append(statuses, driver.Status{Run: l.Run, Token: c.token, State: workload.RunRunning, Healthy: true, Host: l.Host})
			}
			inbox = append(inbox, shard.StatusesArrived{Statuses: statuses})
		}
	}
	return events
}

func (c *slowDisk) job(id workload.JobID) scheduler.JobView {
	c.t.Helper()
	v, ok := c.state.Reader().Job(id)
	if !ok {
		c.t.Fatal("the job is not known")
	}
	return v
}

// A slow disk must slow placement down. When placement ran ahead of the commits, its leases went past what a shard holds, the rest of the job
// counted as refused, and with no room freed it waited half a minute on an empty cluster.
func TestPlacementKeepsThePaceOfCommits(t *testing.T) {
	const instances = 100_000
	c := newSlowDisk(t, 2000)
	id := workload.JobID{1}
	c.step(scheduler.Call{Token: 1, Command: scheduler.SubmitJob{ID: id, SpecBytes: 200, Spec: &workload.JobSpec{
		Name: "wide", Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: instances, Preemptible: true,
		Template: workload.TaskTemplate{Command: []string{"true"}, Needs: resource.Vector{resource.CPU: 1000, resource.Memory: 1024}},
	}}})
	for running := uint32(0); running < instances; {
		v := c.job(id)
		if placed := v.ByRun[workload.RunPlaced]; placed == 0 || placed > 8*shard.MaxBatch {
			t.Fatalf("%d runs wait for the disk, %d run already: it should be some, and not many", placed, running)
		}
		c.durable()
		now := c.job(id).ByRun[workload.RunRunning]
		if now <= running {
			t.Fatalf("stuck at %d of %d running: %v", now, instances, c.job(id).ByState)
		}
		running = now
	}
}

// TestLaunchSaysHowTasksRun: what a job says of its containers reaches the cluster, and that it may be ended at any time.
func TestLaunchSaysHowTasksRun(t *testing.T) {
	t.Parallel()
	c := newSlowDisk(t, 1)
	how := &execution.Spec{Main: execution.Container{Image: "app"}, User: "ada"}
	c.step(scheduler.Call{Token: 1, Command: scheduler.SubmitJob{ID: workload.JobID{1}, SpecBytes: 200, Spec: &workload.JobSpec{
		Name: "a", Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: 1, Preemptible: true,
		Template: workload.TaskTemplate{Execution: how, Needs: resource.Vector{resource.CPU: 1000}},
	}}})
	for range 3 {
		c.durable()
	}
	if c.last.Execution != how || c.last.Revocable || len(c.last.Command) > 0 {
		t.Errorf("launched: %+v", c.last)
	}
}

// TestWorkThatWaitsIsDemand: as long as work waits for room, a driver that holds what it is offered on demand is not told that nobody wants it. It would
// give it all back.
func TestWorkThatWaitsIsDemand(t *testing.T) {
	t.Parallel()
	c := newSlowDisk(t, 2)
	submit := func(n byte, instances uint32) {
		c.step(scheduler.Call{Token: uint64(n), Command: scheduler.SubmitJob{ID: workload.JobID{n}, SpecBytes: 200, Spec: &workload.JobSpec{
			Name: fmt.Sprintf("job-%d", n), Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: instances, Preemptible: true,
			Template: workload.TaskTemplate{Command: []string{"true"}, Needs: resource.Vector{resource.CPU: 40_000}},
		}}})
		for len(c.waiting) > 0 {
			c.durable()
		}
	}
	submit(1, 2) // one on each host
	submit(2, 1) // fits the pool and no host
	if v := c.job(workload.JobID{2}); c.job(workload.JobID{1}).ByRun[workload.RunRunning] != 2 || v.ByState[workload.InstanceActive] != 0 {
		t.Fatalf("the second job does not wait: %v", v.ByState)
	}
	for end := c.now + int64(10*time.Minute); c.now < end; {
		if c.now = max(c.wake, c.now+int64(time.Millisecond)); c.out.NextWake > 0 {
			c.now = min(c.now, c.out.NextWake)
		}
		c.tell(scheduler.ToShard{Message: shard.Wake{}})
		c.step(scheduler.Woken{})
		for len(c.waiting) > 0 {
			c.durable()
		}
	}
	if len(c.demand) != 1 || !c.demand[0] {
		t.Errorf("the driver was told %v, it should be told once that work waits", c.demand)
	}
}

// TestPlanShowsWhatCanBeSent: a long value is cut, and never within a letter.
func TestPlanShowsWhatCanBeSent(t *testing.T) {
	t.Parallel()
	c := newSlowDisk(t, 1)
	spec := func(patch string) *workload.JobSpec {
		return &workload.JobSpec{
			Name: "a", Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: 1, Preemptible: true,
			Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 1000}, Execution: &execution.Spec{
				Main: execution.Container{Image: "app"}, Kubernetes: &execution.Kubernetes{Patch: []byte(patch)},
			}},
		}
	}
	c.step(scheduler.Call{Token: 1, Command: scheduler.SubmitJob{ID: workload.JobID{1}, SpecBytes: 200, Spec: spec("{}")}})
	c.waiting = nil
	c.step(scheduler.Call{Token: 2, Command: scheduler.PlanJob{Spec: spec("x" + strings.Repeat("é", 200)), Asked: [32]byte{1}}})
	var plan *scheduler.Plan
	for _, e := range c.waiting {
		if r, ok := e.(scheduler.Reply); ok && r.Answer.Plan != nil {
			plan = r.Answer.Plan
		}
	}
	if plan == nil || len(plan.Changes) != 1 {
		t.Fatalf("the plan is %+v", plan)
	}
	if says := fmt.Sprintf("%+v", plan.Changes[0]); !utf8.ValidString(says) || !strings.Contains(says, "éé...") {
		t.Errorf("the change is %q", says)
	}
}
