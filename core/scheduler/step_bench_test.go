package scheduler_test

import (
	"encoding/binary"
	"fmt"
	"strconv"
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

// BenchmarkGangs takes gangs from their submission, all at once, until all members run, on 5,000 hosts: admission, placement, records. The
// time is for one gang, all of a cell's work on it included; what the disk and the cluster take comes on top.
func BenchmarkGangs(b *testing.B) {
	for _, size := range []uint32{3, 64} {
		for _, key := range []string{"", "rack"} {
			b.Run(fmt.Sprintf("members=%d/topology=%s", size, key), func(b *testing.B) {
				const gangs = 1000
				for range b.N {
					b.StopTimer()
					c := newStepRig(b, 5000)
					c.stay = true
					b.StartTimer()
					for range gangs {
						c.submitGang(size, key)
					}
					for c.launched < gangs*int(size) {
						c.round()
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/gangs/1e6, "ms/gang")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkChange is one change in a cell of so many live tasks: a run whose health changed, and a job of one task from its submission to its
// end, through the shard and with all records. What grows with the cell is a scan of it; the caches of the processor alone may know its size.
func BenchmarkChange(b *testing.B) {
	for _, live := range []uint32{1_000, 100_000, 1_000_000} {
		var c *stepRig // made once it is asked for
		rig := func() *stepRig {
			if c == nil {
				c = newStepRig(b, 16_000)
				c.stay = true
				c.submit(live)
				for c.launched < int(live) || len(c.events) > 0 {
					c.round()
				}
			}
			return c
		}
		b.Run(fmt.Sprintf("live=%d/health", live), func(b *testing.B) {
			c := rig()
			before := c.groups
			for b.Loop() {
				c.token++
				c.last.Token, c.last.Healthy = c.token, !c.last.Healthy
				c.tell(shard.StatusesArrived{Statuses: []driver.Status{c.last}})
				c.round()
			}
			if c.groups-before < b.N {
				b.Fatalf("%d changes made %d groups", b.N, c.groups-before)
			}
		})
		b.Run(fmt.Sprintf("live=%d/task", live), func(b *testing.B) {
			c := rig()
			for b.Loop() {
				before := c.launched
				c.submit(1)
				for c.launched == before {
					c.round()
				}
				c.token++
				c.last.Token, c.last.State = c.token, workload.RunSucceeded
				c.tell(shard.StatusesArrived{Statuses: []driver.Status{c.last}})
				c.round()
			}
		})
	}
}

// stepRig is a cell before one shard. A run ends in the round after it was started, unless it is to stay.
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
	stay      bool
	launched  int
	groups    int
	last      driver.Status // of the run that was launched last
	jobs      uint64
	poolIDs   []workload.PoolID
	pledges   int // tasks for which room was pledged
	kills     int
	stepped   time.Duration // in the last Step
	searched  time.Duration // by the shard for victims, since that Step
}

func newStepRig(b *testing.B, hosts int) *stepRig {
	return newStepRigOf(b, hosts, scheduler.Config{Cell: "bench"})
}

func newStepRigOf(b *testing.B, hosts int, config scheduler.Config) *stepRig {
	state, _, err := scheduler.Start(config, scheduler.NewImage(), 1, slowDiskStart)
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
			Attributes: map[string]string{"rack": strconv.Itoa(n / 40)},
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
	c.jobs++
	id := workload.JobID{1}
	binary.BigEndian.PutUint64(id[8:], c.jobs)
	c.events = append(c.events, scheduler.Call{Token: 1, Command: scheduler.SubmitJob{ID: id, SpecBytes: 200, Spec: &workload.JobSpec{
		Name: fmt.Sprint("wide-", c.jobs), Pool: respool.DefaultID, Owner: "alice", Kind: workload.Batch, Instances: instances, Preemptible: true,
		Template: workload.TaskTemplate{
			Command: []string{"true"}, Needs: resource.Vector{resource.CPU: 1000, resource.Memory: 1024}, Env: map[string]string{"A": "1"},
		},
	}}})
}

func (c *stepRig) submitGang(size uint32, topology string) {
	c.submit(size)
	call, _ := c.events[len(c.events)-1].(scheduler.Call)
	job, _ := call.Command.(scheduler.SubmitJob)
	job.Spec.Gang = &workload.GangSpec{Topology: workload.GangTopology{Key: topology, Required: topology != ""}}
	job.Spec.Template.Needs = resource.Vector{resource.CPU: 100, resource.Memory: 100}
}

// round is one Step and what the shard and the cluster make of it.
func (c *stepRig) round() {
	events := c.events
	c.events = nil
	c.now += int64(10 * time.Millisecond)
	began := time.Now()
	out := c.state.Step(c.now, events)
	c.stepped, c.searched = time.Since(began), 0
	c.stepping += c.stepped
	c.groups += len(out.Groups)
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
			switch e := e.(type) {
			case scheduler.ToShard:
				c.tell(e.Message)
			case scheduler.Reply:
				if e.Answer.Err != nil {
					panic(e.Answer.Err)
				}
			}
		}
	}
}

func (c *stepRig) tell(m shard.Message) {
	for inbox := []shard.Message{m}; len(inbox) > 0; inbox = inbox[1:] {
		began := time.Now()
		c.machine.Handle(c.now, inbox[0], &c.out)
		if _, ok := inbox[0].(shard.Preempt); ok {
			c.searched += time.Since(began)
		}
		for _, r := range c.out.Replies {
			c.events = append(c.events, scheduler.ShardReplied{Shard: "c/0", Epoch: c.out.Epoch, Reply: r})
			if pledged, ok := r.(shard.Pledged); ok {
				for n := range pledged.Results {
					c.pledges += len(pledged.Results[n].Pledges)
				}
			}
		}
		for _, call := range c.out.Calls {
			switch call := call.(type) {
			case shard.LaunchCall:
				inbox = append(inbox, shard.StatusesArrived{Statuses: c.launch(call.Launches)})
			case shard.KillCall:
				inbox = append(inbox, shard.StatusesArrived{Statuses: c.kill(call.Kills)})
			}
		}
	}
}

// launch has runs run at once.
func (c *stepRig) launch(launches []driver.Launch) []driver.Status {
	statuses := make([]driver.Status, 0, len(launches))
	for n := range launches {
		c.token++
		statuses = append(statuses, driver.Status{Run: launches[n].Run, Token: c.token, State: workload.RunRunning, Healthy: true, Host: launches[n].Host})
	}
	c.launched += len(statuses)
	c.last = statuses[len(statuses)-1]
	if !c.stay {
		c.running = append(c.running, statuses...)
	}
	return statuses
}

// kill ends runs at once.
func (c *stepRig) kill(kills []driver.Kill) []driver.Status {
	statuses := make([]driver.Status, 0, len(kills))
	for n := range kills {
		c.token++
		statuses = append(statuses, driver.Status{Run: kills[n].Run, Token: c.token, State: workload.RunKilled, Reason: workload.ReasonStopRequested})
	}
	c.kills += len(statuses)
	return statuses
}
