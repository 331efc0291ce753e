package decision_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// native is a source of one placer for all names.
type native struct{ placer placement.Placer }

func (n native) Placer(string) (placement.Placer, bool) { return n.placer, true }

// clock is moved by the test and read by writers, too.
type clock struct{ ticks chan int64 }

func newClock() clock {
	c := clock{make(chan int64, 1)}
	c.ticks <- time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano()
	return c
}

func (c clock) add(d time.Duration) {
	now := <-c.ticks
	c.ticks <- now + int64(d)
}

func (c clock) now() time.Time {
	now := <-c.ticks
	c.ticks <- now
	return time.Unix(0, now)
}

// cell is a core so plain that it only knows how to keep a shard busy, by a seed: batches, launches, ends, hosts that change and go, drains, pledges.
type cell struct {
	t        testing.TB
	rng      *rand.Rand
	clock    clock
	machine  *shard.Machine
	recorder *decision.Recorder
	out      shard.Output
	epoch    shard.Epoch
	classes  []*placement.Class
	runs     []workload.RunID
	hosts    []driver.Host
	batch    uint64
	next     uint32
	token    driver.Token
	placed   int
	refused  int
	pledged  int
}

func newCell(t testing.TB, seed uint64, c clock, log *decision.Log, source placement.PlacerSource, hosts int) *cell {
	t.Helper()
	recorder, err := log.Record("c/0", source)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := shard.New(shard.Config{ID: "c/0", Cluster: "c", Placers: recorder})
	if err != nil {
		t.Fatal(err)
	}
	x := &cell{t: t, rng: rand.New(rand.NewPCG(seed, 1)), clock: c, machine: machine, recorder: recorder, epoch: shard.Epoch{Cell: 1, Shard: 1}}
	for i := range hosts {
		x.hosts = append(x.hosts, x.host(i))
	}
	x.handle(shard.Assign{Epoch: x.epoch, Named: []string{"licence"}})
	x.handle(shard.InventoryArrived{Inventory: driver.Inventory{Hosts: x.hosts}})
	x.handle(shard.Replay{Epoch: x.epoch, Done: true})
	x.classes = classes()
	return x
}

func (x *cell) host(i int) driver.Host {
	h := driver.Host{
		Name: fmt.Sprintf("n%03d", i), Ready: x.rng.IntN(20) > 0, Attributes: map[string]string{"rack": fmt.Sprint(i / 4), "zone": fmt.Sprint(x.rng.IntN(3))},
		Capacity: map[string]int64{"cpu_milli": int64(4000 * (1 + x.rng.IntN(4))), "memory_mib": 32 << 10, "licence": int64(x.rng.IntN(3))},
		Ports:    []driver.PortRange{{First: 20000, Last: 20009}},
	}
	if i%3 == 0 {
		for range 4 {
			h.Devices = append(h.Devices, driver.Device{Model: []string{"a", "b"}[i%2], Milli: 1000})
		}
	}
	return h
}

// classes are of all that placement looks at: ports, devices, shares of them, models, spreads, affinities, exclusiveness.
func classes() []*placement.Class {
	var list []*placement.Class
	add := func(job byte, needs resource.Vector, change func(*workload.JobSpec)) {
		spec := &workload.JobSpec{Kind: workload.Batch, Labels: map[string]string{"app": fmt.Sprint(job % 3)}}
		spec.Template.Needs = needs
		if change != nil {
			change(spec)
		}
		list = append(list, placement.NewClass(workload.JobID{job}, spec, nil))
	}
	add(1, resource.Vector{resource.CPU: 500, resource.Memory: 512}, nil)
	add(2, resource.Vector{resource.CPU: 1500, resource.Memory: 4096}, func(s *workload.JobSpec) { s.Placement.Strategy = workload.StrategyPack })
	add(3, resource.Vector{resource.CPU: 1000, resource.GPU: 500}, nil)
	add(4, resource.Vector{resource.CPU: 1000, resource.GPU: 2000}, func(s *workload.JobSpec) { s.Template.GPUModels = []string{"b"} })
	add(5, resource.Vector{resource.CPU: 250}, func(s *workload.JobSpec) {
		s.Template.Ports = []workload.Port{{Name: "http"}, {Name: "x", Number: 20003}}
	})
	add(6, resource.Vector{resource.CPU: 500}, func(s *workload.JobSpec) { s.Placement.Spreads = []workload.Spread{{Topology: "zone", MaxSkew: 2}} })
	add(7, resource.Vector{resource.CPU: 2000}, func(s *workload.JobSpec) { s.Placement.Exclusive = true })
	add(8, resource.Vector{resource.CPU: 500}, func(s *workload.JobSpec) {
		s.Placement.Affinities = []workload.Affinity{{Selector: map[string]string{"app": "2"}, Topology: "rack"}}
	})
	add(9, resource.Vector{resource.CPU: 500, resource.FirstNamed: 1}, func(s *workload.JobSpec) { s.Placement.Strategy = workload.StrategySpread })
	add(10, resource.Vector{resource.CPU: 3000}, func(s *workload.JobSpec) {
		s.Placement.Constraints = []workload.Constraint{{Key: "zone", Op: workload.OpNotIn, Values: []string{"1"}}}
	})
	return list
}

func (x *cell) handle(m shard.Message) {
	x.clock.add(time.Millisecond)
	x.machine.Handle(x.clock.now().UnixNano(), m, &x.out)
}

func (x *cell) class() *placement.Class { return x.classes[x.rng.IntN(len(x.classes))] }

// step does one thing.
func (x *cell) step() {
	switch n := x.rng.IntN(100); {
	case n < 45:
		x.place()
	case n < 85:
		x.end(1 + x.rng.IntN(12))
	case n < 88:
		i := x.rng.IntN(len(x.hosts))
		x.handle(shard.HostsUpdated{Changed: []driver.Host{x.host(i)}})
	case n < 90:
		x.handle(shard.HostsUpdated{Removed: []string{x.hosts[x.rng.IntN(len(x.hosts))].Name}})
	case n < 94:
		id := shard.HostID("c", x.hosts[x.rng.IntN(len(x.hosts))].Name)
		x.handle(shard.SetDraining{Epoch: x.epoch, Hosts: []workload.HostID{id}, Draining: x.rng.IntN(2) == 0})
	case n < 97:
		x.preempt()
	default:
		x.clock.add(time.Duration(x.rng.IntN(20)) * time.Second) // leases run out
		x.handle(shard.Wake{})
	}
}

func (x *cell) place() {
	var requests []shard.PlaceRequest
	for unit := range 1 + x.rng.IntN(3) {
		r := shard.PlaceRequest{Class: x.class(), Count: 1 + x.rng.IntN(6), Seed: 7, Pool: "/a", Priority: int32(x.rng.IntN(3)) - 1, Revocable: x.rng.IntN(4) == 0}
		switch x.rng.IntN(8) {
		case 0:
			r.Gang = true
		case 1:
			r.Gang, r.Unit, r.Want, r.Within = true, uint32(unit+1), r.Count+2, placement.Within{Key: "rack", Required: x.rng.IntN(2) == 0}
		case 2:
			r.Within = placement.Within{Key: "zone", Domain: "1"}
		case 3:
			r.Host = shard.HostID("c", x.hosts[x.rng.IntN(len(x.hosts))].Name)
		case 4:
			r.DryRun = true
		}
		requests = append(requests, r)
	}
	x.batch++
	x.handle(shard.Place{Epoch: x.epoch, Batch: x.batch, Requests: requests})
	for _, reply := range x.out.Replies {
		if placed, ok := reply.(shard.Placed); ok {
			x.launch(requests, placed.Results)
			return
		}
	}
}

func (x *cell) launch(requests []shard.PlaceRequest, results []shard.PlaceResult) {
	var launches []shard.LaunchRun
	var dropped []shard.Lease
	for i, result := range results {
		if requests[i].DryRun {
			continue
		}
		x.placed += len(result.Assignments)
		x.refused += result.Refused
		for _, a := range result.Assignments {
			if x.rng.IntN(20) == 0 {
				dropped = append(dropped, a.Lease)
				continue
			}
			x.next++
			run := workload.RunID{Job: workload.JobID{99}, Instance: x.next, Generation: 1, Run: 1}
			launches = append(launches, shard.LaunchRun{Lease: a.Lease, HostID: a.Host, Launch: driver.Launch{Run: run}})
			x.runs = append(x.runs, run)
		}
	}
	x.handle(shard.Release{Epoch: x.epoch, Leases: dropped})
	x.handle(shard.Launch{Epoch: x.epoch, Launches: launches})
}

func (x *cell) end(n int) {
	var list []driver.Status
	var tokens []driver.Token
	for range min(n, len(x.runs)) {
		i := x.rng.IntN(len(x.runs))
		x.token++
		list = append(list, driver.Status{Run: x.runs[i], Token: x.token, State: workload.RunSucceeded})
		tokens = append(tokens, x.token)
		x.runs = slices.Delete(x.runs, i, i+1)
	}
	x.handle(shard.StatusesArrived{Statuses: list})
	x.handle(shard.Acknowledge{Epoch: x.epoch, Tokens: tokens})
}

// preempt has room made and takes it, or lets it go.
func (x *cell) preempt() {
	x.handle(shard.Preempt{Epoch: x.epoch, Batch: 1, Now: 1, Requests: []preemption.Request{{
		Class: x.classes[1], Count: 1, DryRun: x.rng.IntN(2) == 0, Wait: x.rng.IntN(2) == 0,
		Victims: &preemption.Snapshot{Jobs: []preemption.Job{{ID: workload.JobID{99}, Allow: 1 << 20, Pool: -1}}},
	}}})
	for _, reply := range x.out.Replies {
		if p, ok := reply.(shard.Pledged); ok {
			for _, pledge := range p.Results[0].Pledges {
				if pledge.Lease != 0 {
					x.pledged++
				}
			}
		}
	}
}

func openLog(t testing.TB, c clock, config decision.Config) *decision.Log {
	t.Helper()
	config.Now = c.now
	if config.Dir == "" {
		config.Dir = t.TempDir()
	}
	if config.FlushEvery == 0 {
		config.FlushEvery = time.Millisecond
	}
	log, err := decision.OpenLog(config)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// record runs a cell of a seed for so many steps.
func record(t testing.TB, dir string, seed uint64, steps int, change func(*decision.Config)) *cell {
	t.Helper()
	c := newClock()
	told := teller{wrote: make(chan struct{}, 1)}
	config := decision.Config{Dir: dir, OnWrite: told.add}
	if change != nil {
		change(&config)
	}
	asked := &counted{Native: placement.NewNative()}
	x := newCell(t, seed, c, openLog(t, c, config), native{asked}, 24)
	for n := range steps {
		x.step()
		if n%200 == 199 { // the writer must not be too far behind to begin another segment in time
			x.handle(shard.Place{Epoch: x.epoch, Requests: []shard.PlaceRequest{{Class: x.classes[0], Count: 1}}})
			for _, reply := range x.out.Replies {
				if placed, ok := reply.(shard.Placed); ok {
					x.placed += len(placed.Results[0].Assignments)
				}
			}
			for told.records.Load()+told.dropped.Load() < asked.batches {
				<-told.wrote
			}
		}
	}
	x.recorder.Close()
	return x
}

// counted counts what it is asked to decide.
type counted struct {
	*placement.Native
	batches uint64
}

func (c *counted) Place(t *host.Table, requests []placement.Request) []placement.Result {
	c.batches++
	return c.Native.Place(t, requests)
}

// TestReplayOfItself is the proof of the log: the recorded policy, asked again, gives every batch the same answer to the last bit, and every segment's table is what the one
// before leads to.
func TestReplayOfItself(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			x := record(t, dir, seed, 700, func(c *decision.Config) { c.SegmentBytes = 3 << 10 })
			report, err := decision.Replay(t.Context(), dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("native", "")}, Differences: 3})
			if err != nil {
				t.Fatal(err)
			}
			p := report.Policies[0]
			if p.Identical != report.Batches || p.Elsewhere+p.OnlyFirst+p.OnlySecond != 0 || p.Waits != (decision.Waits{}) || p.Displaced+p.Overfull+report.Mismatches+report.Torn+report.Gaps != 0 {
				t.Errorf("the recorded policy differs from itself: %+v\n%+v", report, p)
			}
			if report.Placed != x.placed || x.placed == 0 || x.refused == 0 || x.pledged == 0 || report.Outside == 0 || report.Segments < 3 || p.Same != x.placed {
				t.Errorf("%d placed, %d refused, %d pledged; the replay saw %+v", x.placed, x.refused, x.pledged, report)
			}
			segments, err := decision.Segments(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range segments { // each stands alone
				part, err := decision.Replay(t.Context(), dir, decision.Options{Range: decision.Range{Since: s.Began + 1}, Contenders: []decision.Contender{decision.Builtin("native", "")}})
				if err != nil || part.From.UnixNano() != s.Began || part.Policies[0].Identical != part.Batches || part.Mismatches != 0 {
					t.Errorf("from segment %d on: %+v, %v", s.Number, part, err)
				}
			}
			if p.Figures.HostsUsed != report.Recorded.HostsUsed || p.Figures.Fragmented != report.Recorded.Fragmented || report.Recorded.HostsUsed == 0 {
				t.Errorf("the figures differ: %+v and %+v", p.Figures, report.Recorded)
			}
		})
	}
}
