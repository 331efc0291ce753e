package shard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

func TestNewNeedsNames(t *testing.T) {
	for _, config := range []shard.Config{{}, {ID: "c/0"}, {Cluster: "c"}} {
		if _, err := shard.New(config); err == nil {
			t.Errorf("%+v was taken", config)
		}
	}
}

// TestHostID holds the hash to its first values: it is in records of every cell.
func TestHostID(t *testing.T) {
	if got, want := shard.HostID("east", "node-1").String(), "a22m48lrfa90fom3vbk64n15fg"; got != want {
		t.Errorf("the id of node-1 in east was %s once and is %s now", want, got)
	}
	if shard.HostID("a", "bc") == shard.HostID("ab", "c") {
		t.Error("two hosts whose names join to the same text have one id")
	}
}

// fleet is a ready machine with the native placer and so many equal hosts.
func fleet(t testing.TB, hosts int) *shard.Machine {
	t.Helper()
	m, err := shard.New(shard.Config{ID: "c/0", Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	inventory := driver.Inventory{}
	for i := range hosts {
		inventory.Hosts = append(inventory.Hosts, driver.Host{
			Name: fmt.Sprintf("n%05d", i), Ready: true, Capacity: map[string]int64{"cpu_milli": 64000, "memory_mib": 256 << 10},
			Attributes: map[string]string{"rack": fmt.Sprint(i / 40)}, Ports: []driver.PortRange{{First: 20000, Last: 20099}},
		})
	}
	var out shard.Output
	m.Handle(1, shard.Assign{Epoch: fleetEpoch}, &out)
	m.Handle(1, shard.InventoryArrived{Inventory: inventory}, &out)
	m.Handle(1, shard.Replay{Epoch: fleetEpoch, Done: true}, &out)
	return m
}

var fleetEpoch = shard.Epoch{Cell: 1, Shard: 1}

func fleetClass(ports int) *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Batch}
	spec.Template.Needs[resource.CPU], spec.Template.Needs[resource.Memory] = 2000, 4096
	for i := range ports {
		spec.Template.Ports = append(spec.Template.Ports, workload.Port{Name: fmt.Sprint("p", i)})
	}
	return placement.NewClass(workload.JobID{1}, spec, nil)
}

// TestNativePlacer runs the machine with the placer that it has by default: room, ports and hosts come out consistent.
func TestNativePlacer(t *testing.T) {
	m := fleet(t, 10)
	var out shard.Output
	place := func(count int, request shard.PlaceRequest) shard.PlaceResult {
		request.Class, request.Count = fleetClass(2), count
		m.Handle(2, shard.Place{Epoch: fleetEpoch, Requests: []shard.PlaceRequest{request}}, &out)
		return out.Replies[0].(shard.Placed).Results[0]
	}
	plan := place(5, shard.PlaceRequest{DryRun: true})
	if len(plan.Assignments) != 5 || m.Stats().Held != 0 {
		t.Fatalf("a dry run gave %+v and holds %d leases", plan, m.Stats().Held)
	}
	all := place(400, shard.PlaceRequest{}) // there is room for 32 a host
	if len(all.Assignments) != 320 || all.Refused != 80 || all.Reasons.Hosts != 10 {
		t.Fatalf("%d placed, %d refused, %+v", len(all.Assignments), all.Refused, all.Reasons)
	}
	if stats := m.Stats(); stats.RefusedAssignments != 0 {
		t.Fatalf("the check refused %d assignments of the native placer", stats.RefusedAssignments)
	}
	type port struct {
		host   workload.HostID
		number uint16
	}
	seen := map[port]bool{}
	for _, a := range all.Assignments {
		for _, number := range a.Ports {
			if p := (port{a.Host, number}); seen[p] {
				t.Fatalf("port %d of a host was given twice", number)
			} else {
				seen[p] = true
			}
		}
	}
	if gang := place(2, shard.PlaceRequest{Gang: true}); gang.Refused != 2 {
		t.Fatalf("a gang was placed on full hosts: %+v", gang)
	}
	m.Handle(2, shard.Release{Epoch: fleetEpoch, Leases: []shard.Lease{all.Assignments[0].Lease}}, &out)
	freed := all.Assignments[0].Host
	if r := place(1, shard.PlaceRequest{Host: freed}); len(r.Assignments) != 1 || r.Assignments[0].Host != freed {
		t.Fatalf("a daemon on a host with room got %+v", r)
	}
}

// TestHostileMessages hands the machine what no core or driver should send: it answers or ignores, and works on.
func TestHostileMessages(t *testing.T) {
	m := fleet(t, 1)
	class := fleetClass(0)
	long := strings.Repeat("x", 300)
	run := workload.RunID{Job: workload.JobID{9}, Generation: 1, Run: 1}
	messages := []shard.Message{
		shard.Place{Epoch: fleetEpoch},
		shard.Place{Epoch: fleetEpoch, Requests: []shard.PlaceRequest{{Count: 3}, {Class: class, Count: -1}, {Class: class, Count: 1 << 40}, {Class: class, Count: 1, Host: workload.HostID{1}}}},
		shard.Launch{Epoch: fleetEpoch, Launches: []shard.LaunchRun{{}, {Lease: 1 << 60}}},
		shard.Watch{Epoch: fleetEpoch, Selectors: make([]shard.Selector, 2*shard.MaxWatches)},
		shard.SetDraining{Epoch: fleetEpoch, Hosts: make([]workload.HostID, 3), Draining: true},
		shard.Names{Epoch: fleetEpoch, Named: []string{"Not A Name"}},
		shard.Acknowledge{Epoch: fleetEpoch, Tokens: []driver.Token{0, 77}},
		shard.Kill{Epoch: fleetEpoch},
		shard.HostsUpdated{Changed: []driver.Host{
			{},
			{Name: long},
			{Name: "n00000", Capacity: map[string]int64{"cpu_milli": -5, "memory_mib": 1 << 62, "": 3, "UPPER": 1}},
			{Name: "twin", Ready: true},
			{Name: "twin"},
			{Name: "ports", Ports: []driver.PortRange{{First: 9, Last: 3}}},
			{Name: "gpu", Devices: []driver.Device{{Milli: -1}, {Milli: 1 << 50}}},
		}, Removed: []string{"", long, "twin", "twin"}},
		shard.StatusesArrived{Statuses: []driver.Status{{}, {Run: run, State: 200}, {Run: run, State: workload.RunPlaced}, {Run: run, State: workload.RunRunning, Host: "nowhere"}}},
		shard.LaunchFailed{Runs: []workload.RunID{run, {}}},
		shard.InventoryArrived{Inventory: driver.Inventory{Runs: []driver.Status{{}, {Run: run, State: workload.RunLost}}}},
		shard.DriverLost{},
		shard.Assign{},
		shard.Assign{Epoch: shard.Epoch{Cell: 2}, Named: []string{"fine", "fine", "", "cpu_milli"}},
		shard.Replay{Epoch: shard.Epoch{Cell: 2}, Bound: []shard.BoundRun{{}, {Run: run}, {Run: run, Class: class, Devices: 0xffff, Ports: []uint16{0, 1, 1}}}, Done: true},
	}
	var out shard.Output
	for _, message := range messages {
		m.Handle(3, message, &out)
	}
	m.Handle(4, shard.InventoryArrived{Inventory: driver.Inventory{Hosts: []driver.Host{{Name: "n", Ready: true, Capacity: map[string]int64{"cpu_milli": 4000, "memory_mib": 8192}}}}}, &out)
	m.Handle(4, shard.Place{Epoch: shard.Epoch{Cell: 2}, Requests: []shard.PlaceRequest{{Class: class, Count: 1}}}, &out)
	if placed, ok := out.Replies[0].(shard.Placed); !ok || len(placed.Results[0].Assignments) != 1 {
		t.Fatalf("it does not place any more: %+v", out.Replies)
	}
}

// TestBounds fills what is bounded.
func TestBounds(t *testing.T) {
	m := fleet(t, shard.MaxRows+5)
	if stats := m.Stats(); stats.Hosts != shard.MaxRows || stats.RefusedHosts != 5 {
		t.Errorf("%d hosts, %d refused", stats.Hosts, stats.RefusedHosts)
	}
	var out shard.Output
	class := fleetClass(0)
	for range shard.MaxHeld/shard.MaxBatch + 1 {
		m.Handle(2, shard.Place{Epoch: fleetEpoch, Requests: []shard.PlaceRequest{{Class: class, Count: shard.MaxBatch}}}, &out)
	}
	if stats := m.Stats(); stats.Held != shard.MaxHeld || stats.Refused != shard.MaxBatch {
		t.Errorf("%d leases held, %d tasks refused", stats.Held, stats.Refused)
	}
	statuses := make([]driver.Status, shard.MaxForeign+1)
	for i := range statuses {
		statuses[i] = driver.Status{Run: workload.RunID{Instance: uint32(i)}, State: workload.RunFailed, Token: driver.Token(i + 1)}
	}
	m.Handle(2, shard.StatusesArrived{Statuses: statuses}, &out)
	if stats := m.Stats(); stats.Runs != shard.MaxForeign {
		t.Errorf("%d foreign runs are remembered", stats.Runs)
	}
	if foreign := out.Replies[0].(shard.Foreign); len(foreign.Statuses) != len(statuses) {
		t.Errorf("%d foreign runs are reported", len(foreign.Statuses))
	}
}

// BenchmarkCycle is one task's way through a shard of 10,000 hosts: placed in a batch of 64, launched, running, ended, acknowledged.
func BenchmarkCycle(b *testing.B) {
	const batch = 64
	m := fleet(b, 10_000)
	class := fleetClass(0)
	var out shard.Output
	now, run, token := int64(1), uint32(0), driver.Token(0)
	launches := make([]shard.LaunchRun, batch)
	statuses := make([]driver.Status, batch)
	tokens := make([]driver.Token, batch)
	b.ReportAllocs()
	tasks := 0
	for b.Loop() {
		now++
		tasks += batch
		m.Handle(now, shard.Place{Epoch: fleetEpoch, Requests: []shard.PlaceRequest{{Class: class, Count: batch}}}, &out)
		assignments := out.Replies[0].(shard.Placed).Results[0].Assignments
		if len(assignments) != batch {
			b.Fatalf("%d placed", len(assignments))
		}
		for i, a := range assignments {
			run++
			launches[i] = shard.LaunchRun{Lease: a.Lease, HostID: a.Host, Launch: driver.Launch{Run: workload.RunID{Instance: run, Generation: 1, Run: 1}}}
		}
		m.Handle(now, shard.Launch{Epoch: fleetEpoch, Launches: launches}, &out)
		for _, state := range []workload.RunState{workload.RunRunning, workload.RunSucceeded} {
			for i := range statuses {
				token++
				tokens[i] = token
				statuses[i] = driver.Status{Run: launches[i].Launch.Run, State: state, Token: token}
			}
			m.Handle(now, shard.StatusesArrived{Statuses: statuses}, &out)
			m.Handle(now, shard.Acknowledge{Epoch: fleetEpoch, Tokens: tokens}, &out)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tasks), "ns/task")
	if stats := m.Stats(); stats.Held != 0 || stats.Runs != 0 {
		b.Fatalf("left over: %+v", stats)
	}
}
