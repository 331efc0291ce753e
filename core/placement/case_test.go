package placement_test

import (
	"fmt"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// fleet returns a table of hosts with 10 CPUs each in racks of perRack.
func fleet(t *testing.T, hosts, perRack int) *host.Table {
	t.Helper()
	table := host.New(&resource.Names{}, hosts)
	for i := range hosts {
		_, err := table.Upsert(host.Host{
			ID: hostID(i), Name: fmt.Sprint("h", i), Ready: true, Capacity: resource.Vector{10_000, 1000},
			Attributes: map[string]string{"rack": fmt.Sprint(i / perRack)},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return table
}

func classOf(cpu int64, wish workload.Placement) *placement.Class {
	return placement.NewClass(workload.JobID{1}, &workload.JobSpec{
		Labels: map[string]string{"job": "j"}, Template: workload.TaskTemplate{Needs: resource.Vector{cpu}}, Placement: wish,
	}, nil)
}

// TestGangFindsItsDomain places a gang that must stay within a rack where the rack that looks best is too small.
func TestGangFindsItsDomain(t *testing.T) {
	t.Parallel()
	table := fleet(t, 6, 2) // three racks of two hosts
	gang := classOf(4000, workload.Placement{Affinities: []workload.Affinity{{Selector: map[string]string{"job": "j"}, Topology: "rack"}}})
	native := placement.NewNative()
	if err := table.Take(0, host.Occupant{Needs: resource.Vector{5000}}); err != nil {
		t.Fatal(err)
	}
	got := native.Place(table, []placement.Request{{Class: gang, Count: 4, Gang: true}})[0]
	if fmt.Sprint(got.Assignments) != "[{2 0 []} {2 0 []} {3 0 []} {3 0 []}]" {
		t.Fatalf("best-fit starts in rack 0, which holds three; all four fit in rack 1: %+v", got)
	}
	got = native.Place(table, []placement.Request{{Class: classOf(4000, workload.Placement{}), Count: 9, Gang: true}})[0]
	if got.Refused != 9 || got.Reasons.GangLargest != 7 || got.Reasons.Counts[placement.ReasonGang] != 4 || got.Reasons.Counts[placement.ReasonCPU] != 2 {
		t.Fatalf("seven of nine members fit on four hosts: %+v", got)
	}
}

// TestRefusedGangTouchesNothing asks twice for what does not fit: not even the table's revision may move.
func TestRefusedGangTouchesNothing(t *testing.T) {
	t.Parallel()
	table := fleet(t, 3, 1)
	native := placement.NewNative()
	revision := table.Revision()
	for range 2 {
		got := native.Place(table, []placement.Request{{Class: classOf(6000, workload.Placement{}), Count: 4, Gang: true}})[0]
		if got.Refused != 4 || got.Reasons.GangLargest != 3 || got.Reasons.NeverFits {
			t.Fatalf("%+v", got)
		}
	}
	if table.Revision() != revision {
		t.Fatal("a refused gang was placed and taken back")
	}
}

// TestRefusalFollowsNeighbours refuses a class that keeps away from its own kind, lets hosts change in every way that matters to it, and
// compares with a placer that remembers nothing.
func TestRefusalFollowsNeighbours(t *testing.T) {
	t.Parallel()
	apart := workload.Affinity{Selector: map[string]string{"job": "j"}, Topology: workload.TopologyHost, Anti: true}
	byRack := workload.Affinity{Selector: map[string]string{"job": "j"}, Topology: "rack", Anti: true}
	for _, wish := range []workload.Affinity{apart, byRack} {
		table := fleet(t, 6, 2)
		class := classOf(4000, workload.Placement{Affinities: []workload.Affinity{wish}})
		own := class.Occupant(0, nil)
		native := placement.NewNative()
		check := func(step string) {
			t.Helper()
			got, want := native.Explain(table, class), placement.NewNative().Explain(table, class)
			if got != want {
				t.Fatalf("%s: %s: remembered %+v, found %+v", wish.Topology, step, got, want)
			}
		}
		place := func(count, refused int) {
			t.Helper()
			if r := native.Place(table, []placement.Request{{Class: class, Count: count}})[0]; r.Refused != refused {
				t.Fatalf("%s: %d of %d refused, want %d: %+v", wish.Topology, r.Refused, count, refused, r.Reasons)
			}
		}
		rooms := 6
		if wish.Topology == "rack" {
			rooms = 3
		}
		place(7, 7-rooms)
		place(1, 1)
		check("full")
		for row := range host.Row(6) {
			if table.Tasks(row) == 0 {
				continue
			}
			if err := table.Release(row, own); err != nil {
				t.Fatal(err)
			}
			check("one left")
			place(2, 1)
			check("and came back")
		}
		if err := table.Take(1, host.Occupant{Needs: resource.Vector{6001}}); err != nil {
			t.Fatal(err)
		}
		check("another came")
	}
}

// TestClassesAreForgotten asks for more classes than are remembered, twice, so that some come back after they were forgotten.
func TestClassesAreForgotten(t *testing.T) {
	t.Parallel()
	table := fleet(t, 2, 1)
	native := placement.NewNative()
	for range 2 {
		for cpu := range int64(600) {
			want := 2
			if cpu*19 > 10_000 {
				want = 0
			}
			reasons := native.Explain(table, classOf(cpu*19, workload.Placement{}))
			if free := reasons.Hosts - reasons.Counts[placement.ReasonCPU]; free != want {
				t.Fatalf("%d milli fits on %d hosts, want %d: %+v", cpu*19, free, want, reasons)
			}
		}
	}
}

func TestReasonNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{"": true}
	for r := range placement.NumReasons + 1 {
		if seen[r.String()] {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
}

func ExampleNative_Place() {
	table := host.New(&resource.Names{}, 10)
	for i, cpu := range []int64{8000, 4000} {
		if _, err := table.Upsert(host.Host{
			ID: workload.HostID{byte(i)}, Name: fmt.Sprint("host-", i), Ready: true, Capacity: resource.Vector{resource.CPU: cpu},
		}); err != nil {
			fmt.Println(err)
			return
		}
	}
	class := placement.NewClass(workload.JobID{1}, &workload.JobSpec{
		Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 3000}},
	}, nil)
	result := placement.NewNative().Place(table, []placement.Request{{Class: class, Count: 4}})[0]
	for _, a := range result.Assignments {
		fmt.Println(table.Host(a.Row).Name)
	}
	fmt.Println(result.Refused, "refused for", placement.ReasonCPU, "by", result.Reasons.Counts[placement.ReasonCPU], "hosts")
	// Output:
	// host-1
	// host-0
	// host-0
	// 1 refused for cpu by 2 hosts
}
