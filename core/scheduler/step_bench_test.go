package scheduler_test

import (
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// BenchmarkStep takes a job of 100,000 tasks from its submission until every task has run and ended well, before a real shard machine on a
// disk that costs nothing. ns/task and the allocations are those of the whole cycle: two statuses a task, placement by the shard, records.
// The time inside Step alone is step-ns/task.
func BenchmarkStep(b *testing.B) {
	const instances = 100_000
	b.ReportAllocs()
	stepping := time.Duration(0)
	for range b.N {
		b.StopTimer()
		c := newStepRig(b, 2000)
		b.StartTimer()
		c.submit(instances)
		for c.succeeded < instances {
			c.round()
		}
		stepping += c.stepping
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/instances, "ns/task")
	b.ReportMetric(float64(stepping.Nanoseconds())/float64(b.N)/instances, "step-ns/task")
	b.ReportMetric(0, "ns/op")
}

// stepRig is a cell before one shard. A run ends in the round after it was started.
type stepRig struct {
	state     *scheduler.State
	machine   *shard.Machine
	out       shard.Output
	events    []scheduler.Event
	running   []driver.Status
	token     driver.Token
	succeeded int
	now       int64
	stepping  time.Duration
}

func newStepRig(b *testing.B, hosts int) *stepRig {
	state, _, err := scheduler.Start(scheduler.Config{Cell: "bench"}, scheduler.NewImage(), 1, slowDiskStart)
	if err != nil {
		b.Fatal(err)
	}
	machine, err := shard.New(shard.Config{ID: "c/0", Cluster: "c"})
	if err != nil {
		b.Fatal(err)
	}
	c := &stepRig{state: state, machine: machine, now: slowDiskStart}
	inventory := driver.Inventory{}
	for n := range hosts {
		inventory.Hosts = append(inventory.Hosts, driver.Host{
			Name: "host-" + string(rune('a'+n%26)) + time.Duration(n).String(), Capacity: map[string]int64{"cpu_milli": 64_000, "memory_mib": 256 << 10}, Ready: true,
		})
	}
	c.tell(shard.InventoryArrived{Inventory: inventory})
	c.events = append(c.events, scheduler.ShardAttached{Shard: "c/0", Cluster: "c"})
	for len(c.events) > 0 {
		c.round()
	}
	c.stepping = 0
	return c
}

func (c *stepRig) submit(instances uint32) {
	c.events = append(c.events, scheduler.Call{Token: 1, Command: scheduler.SubmitJob{ID: workload.JobID{1}, SpecBytes: 200, Spec: &workload.JobSpec{
		Name: "wide", Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: instances, Preemptible: true,
		Template: workload.TaskTemplate{
			Command: []string{"true"}, Needs: resource.Vector{resource.CPU: 1000, resource.Memory: 1024}, Env: map[string]string{"A": "1"},
		},
	}}})
}

// round is one Step and what the shard and the cluster make of it.
func (c *stepRig) round() {
	events := c.events
	c.events = nil
	c.now += int64(10 * time.Millisecond)
	began := time.Now()
	out := c.state.Step(c.now, events)
	c.stepping += time.Since(began)
	ended := c.running
	c.running = nil
	for n := range ended {
		c.token++
		ended[n].Token, ended[n].State = c.token, workload.RunSucceeded
	}
	c.succeeded += len(ended)
	if len(ended) > 0 {
		c.tell(shard.StatusesArrived{Statuses: ended})
	}
	for _, list := range [][]scheduler.Effect{out.Internal, out.External} {
		for _, e := range list {
			if to, ok := e.(scheduler.ToShard); ok {
				c.tell(to.Message)
			}
		}
	}
}

func (c *stepRig) tell(m shard.Message) {
	for inbox := []shard.Message{m}; len(inbox) > 0; inbox = inbox[1:] {
		c.machine.Handle(c.now, inbox[0], &c.out)
		for _, r := range c.out.Replies {
			c.events = append(c.events, scheduler.ShardReplied{Shard: "c/0", Epoch: c.out.Epoch, Reply: r})
		}
		for _, call := range c.out.Calls {
			launch, ok := call.(shard.LaunchCall)
			if !ok {
				continue
			}
			statuses := make([]driver.Status, 0, len(launch.Launches))
			for n := range launch.Launches {
				l := &launch.Launches[n]
				c.token++
				statuses = append(statuses, driver.Status{Run: l.Run, Token: c.token, State: workload.RunRunning, Healthy: true, Host: l.Host})
			}
			c.running = append(c.running, statuses...)
			inbox = append(inbox, shard.StatusesArrived{Statuses: statuses})
		}
	}
}
