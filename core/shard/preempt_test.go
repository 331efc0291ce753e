package shard_test

import (
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// crowd is a shard of one host of 4 CPUs that is full with four runs of one CPU.
type crowd struct {
	t       *testing.T
	machine *shard.Machine
	out     shard.Output
	epoch   shard.Epoch
	class   map[int64]*placement.Class
}

func crowded(t *testing.T) *crowd {
	machine, err := shard.New(shard.Config{ID: "c/0", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{t: t, machine: machine, epoch: shard.Epoch{Cell: 1, Shard: 1}, class: map[int64]*placement.Class{}}
	for _, cpu := range []int64{1000, 2000} {
		spec := &workload.JobSpec{Kind: workload.Batch}
		spec.Template.Needs[resource.CPU] = cpu
		c.class[cpu] = placement.NewClass(workload.JobID{1}, spec, nil)
	}
	c.handle(shard.InventoryArrived{Inventory: driver.Inventory{Hosts: []driver.Host{modelHost("h")}}})
	c.handle(shard.Assign{Epoch: c.epoch})
	c.handle(shard.Replay{Epoch: c.epoch, Done: true})
	c.handle(shard.Place{Epoch: c.epoch, Batch: 1, Requests: []shard.PlaceRequest{{Class: c.class[1000], Count: 4}}})
	for i, a := range c.out.Replies[0].(shard.Placed).Results[0].Assignments {
		c.launch(a.Lease, uint32(i))
		c.say(uint32(i), workload.RunRunning)
	}
	return c
}

func (c *crowd) handle(m shard.Message) { c.machine.Handle(1, m, &c.out) }

func crowdRun(i uint32) workload.RunID {
	return workload.RunID{Job: workload.JobID{1}, Instance: i, Generation: 1, Run: 1}
}

// launch reports whether the shard sent the launch on.
func (c *crowd) launch(lease shard.Lease, i uint32) bool {
	c.handle(shard.Launch{Epoch: c.epoch, Launches: []shard.LaunchRun{{
		Lease: lease, HostID: shard.HostID("c", "h"), Launch: driver.Launch{Run: crowdRun(i)},
	}}})
	return len(collect(c.out.Calls, func(l shard.LaunchCall) []driver.Launch { return l.Launches })) == 1
}

func (c *crowd) say(i uint32, state workload.RunState) {
	c.handle(shard.StatusesArrived{Statuses: []driver.Status{{Run: crowdRun(i), Host: "h", State: state, Token: driver.Token(i + 1)}}})
}

func (c *crowd) preempt(r preemption.Request) shard.PledgeResult {
	r.Victims = &preemption.Snapshot{Jobs: []preemption.Job{{ID: workload.JobID{1}, Allow: 100, Pool: -1}}}
	c.handle(shard.Preempt{Epoch: c.epoch, Batch: 2, Now: 1, Requests: []preemption.Request{r}})
	return c.out.Replies[0].(shard.Pledged).Results[0] // anything else is a failure
}

func (c *crowd) ready() []shard.Lease {
	return collect(c.out.Replies, func(r shard.PledgeReady) []shard.Lease { return r.Leases })
}

func (c *crowd) want(what string, ok bool) {
	c.t.Helper()
	if !ok {
		c.t.Fatalf("%s: %+v", what, c.out)
	}
}

func TestPledge(t *testing.T) {
	c := crowded(t)
	first := c.preempt(preemption.Request{Class: c.class[2000], Count: 1})
	c.want("two have to go", len(first.Pledges) == 1 && len(first.Pledges[0].Victims) == 2 && c.ready() == nil)
	second := c.preempt(preemption.Request{Class: c.class[1000], Count: 1})
	c.want("one more has to go", len(second.Pledges) == 1 && len(second.Pledges[0].Victims) == 1)
	c.want("nobody for two", !slices.Contains(first.Pledges[0].Victims, second.Pledges[0].Victims[0]))
	c.handle(shard.Place{Epoch: c.epoch, Batch: 3, Requests: []shard.PlaceRequest{{Class: c.class[1000], Count: 1}}})
	c.want("what is pledged is nobody else's", c.out.Replies[0].(shard.Placed).Results[0].Refused == 1)

	v := first.Pledges[0].Victims
	c.say(v[0].Instance, workload.RunKilled)
	c.want("half of the room is not enough", c.ready() == nil)
	c.handle(shard.Place{Epoch: c.epoch, Batch: 4, Requests: []shard.PlaceRequest{{Class: c.class[1000], Count: 1}}})
	c.want("nor anybody else's", c.out.Replies[0].(shard.Placed).Results[0].Refused == 1)
	c.say(v[1].Instance, workload.RunKilled)
	c.want("the room of one pledge is free, whatever the other waits for", slices.Equal(c.ready(), []shard.Lease{first.Pledges[0].Lease}))
	c.want("and is launched on", c.launch(first.Pledges[0].Lease, 10))

	c.want("the other is not", !c.launch(second.Pledges[0].Lease, 11))
	c.say(second.Pledges[0].Victims[0].Instance, workload.RunKilled)
	c.want("and its pledge is gone", c.ready() == nil && c.machine.Stats().Pledged == 0)
}

func TestPledgeGivenBack(t *testing.T) {
	c := crowded(t)
	first := c.preempt(preemption.Request{Class: c.class[2000], Count: 1})
	c.handle(shard.Release{Epoch: c.epoch, Leases: []shard.Lease{first.Pledges[0].Lease}})
	again := c.preempt(preemption.Request{Class: c.class[2000], Count: 2})
	c.want("who was let off may have to go again", len(again.Pledges) == 2 && c.machine.Stats().Pledged == 2)
	c.handle(shard.Assign{Epoch: shard.Epoch{Cell: 2, Shard: 2}})
	c.want("another owner has no pledges", c.machine.Stats().Pledged == 0 && c.machine.Stats().Held == 0)
	c.epoch = shard.Epoch{Cell: 2, Shard: 2}
	c.handle(shard.Replay{Epoch: c.epoch, Done: true, Bound: []shard.BoundRun{{Run: crowdRun(0), Host: shard.HostID("c", "h"), Class: c.class[1000], Started: 1}}})
	known := c.preempt(preemption.Request{Class: c.class[1000], Count: 2})
	c.want("only what the core knows has to go", len(known.Pledges) == 1 && known.Pledges[0].Victims[0] == crowdRun(0) && known.Refused == 1)
}

// TestPledgeWaits keeps room for who comes next: whoever ends first makes it free.
func TestPledgeWaits(t *testing.T) {
	c := crowded(t)
	kept := c.preempt(preemption.Request{Class: c.class[2000], Count: 1, Wait: true})
	c.want("two are waited for", len(kept.Pledges) == 1 && len(kept.Pledges[0].Victims) == 2 && c.ready() == nil)
	var others []uint32
	for i := range uint32(4) {
		if !slices.Contains(kept.Pledges[0].Victims, crowdRun(i)) {
			others = append(others, i)
		}
	}
	c.say(others[0], workload.RunSucceeded)
	c.want("one ended", c.ready() == nil)
	c.say(others[1], workload.RunSucceeded)
	c.want("two ended, no matter who", len(c.ready()) == 1)
}

// TestKilledNeedsNoVictim: room that comes free anyway costs nobody.
func TestKilledNeedsNoVictim(t *testing.T) {
	c := crowded(t)
	c.handle(shard.Kill{Epoch: c.epoch, Kills: []driver.Kill{{Run: crowdRun(2)}}})
	r := c.preempt(preemption.Request{Class: c.class[1000], Count: 1})
	c.want("nobody has to go", len(r.Pledges) == 1 && len(r.Pledges[0].Victims) == 0 && c.ready() == nil)
	c.say(2, workload.RunKilled)
	c.want("it is free once the killed is gone", len(c.ready()) == 1)
	dry := c.preempt(preemption.Request{Class: c.class[1000], Count: 1, DryRun: true})
	c.want("a dry run pledges nothing", len(dry.Pledges) == 1 && dry.Pledges[0].Lease == 0 && c.machine.Stats().Pledged == 1)
}

// TestSearchIsTold has the search look at the host before each thing that changes a run there and not its room.
func TestSearchIsTold(t *testing.T) {
	c := crowded(t)
	look := func() {
		c.handle(shard.Preempt{Epoch: c.epoch, Batch: 9, Now: 1, Requests: []preemption.Request{{Class: c.class[2000], Count: 1, Victims: &preemption.Snapshot{}}}})
		n, _ := c.machine.SearchRemembers()
		c.want("it is looked at", n == 1)
	}
	told := func(what string) {
		_, right := c.machine.SearchRemembers()
		c.want("the search is told that "+what, right)
	}
	c.say(0, workload.RunSucceeded)
	c.handle(shard.Place{Epoch: c.epoch, Batch: 5, Requests: []shard.PlaceRequest{{Class: c.class[1000], Count: 1}}})
	lease := c.out.Replies[0].(shard.Placed).Results[0].Assignments[0].Lease
	look()
	c.want("a lease is launched on", c.launch(lease, 10))
	told("a run was launched")
	look()
	c.say(10, workload.RunRunning)
	told("it runs")
	look()
	c.handle(shard.Kill{Epoch: c.epoch, Kills: []driver.Kill{{Run: crowdRun(10)}}})
	told("it is dying")
	look()
	c.handle(shard.Assign{Epoch: shard.Epoch{Cell: 2, Shard: 2}})
	told("another core knows of no run")
}
