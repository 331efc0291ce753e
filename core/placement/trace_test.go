package placement_test

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/csv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestGangsOnRealTopology places gangs of whole 8-GPU hosts on the network of a real training cluster (Alibaba Lingjun 2023: 847 hosts below 48
// rack switches, 3 aggregation switches) while others end. A gang that must stay below one switch is refused only when no switch has so many
// free hosts, and takes the switch with the fewest that are enough; one that would rather is below one whenever it can be.
func TestGangsOnRealTopology(t *testing.T) {
	table, switches := lingjun(t)
	native, class := placement.NewNative(), gpuHostClass()
	random := rand.New(rand.NewPCG(1, 2))
	free := map[string]int{} // free hosts by switch
	for row := range host.Row(table.Rows()) {
		free[switches[row]]++
	}
	var running [][]placement.Assignment
	placed, refused, split := 0, 0, 0
	for range 4000 {
		if len(running) > 0 && random.IntN(5) < 2 {
			n := random.IntN(len(running))
			for _, a := range running[n] {
				if err := table.Release(a.Row, class.Occupant(a.Devices, a.Ports)); err != nil {
					t.Fatal(err)
				}
				free[switches[a.Row]]++
			}
			running = slices.Delete(running, n, n+1)
			continue
		}
		r := placement.Request{
			Class: class, Count: 1 + random.IntN(24), Gang: true, Unit: 1, Within: placement.Within{Key: "ASW", Required: random.IntN(2) == 0},
		}
		tightest, all := 0, 0
		for _, n := range free {
			all += n
			if n >= r.Count && (tightest == 0 || n < tightest) {
				tightest = n
			}
		}
		got := native.Place(table, []placement.Request{r})[0]
		used := map[string]int{}
		for _, a := range got.Assignments {
			used[switches[a.Row]]++
		}
		switch {
		case got.Refused > 0 && (tightest > 0 || (!r.Within.Required && all >= r.Count)):
			t.Fatalf("a gang of %d was refused: %+v; the tightest switch has %d hosts free, all have %d", r.Count, got.Reasons, tightest, all)
		case got.Refused > 0:
			refused++
			continue
		case tightest > 0 && (len(used) != 1 || free[switches[got.Assignments[0].Row]] != tightest):
			t.Fatalf("a gang of %d went to %v; a switch with %d free hosts was enough", r.Count, used, tightest)
		case len(used) > 1 && r.Within.Required:
			t.Fatalf("a gang of %d that must stay below one switch is below %v", r.Count, used)
		case len(used) > 1:
			split++
		}
		for name, n := range used {
			free[name] -= n
		}
		placed++
		running = append(running, got.Assignments)
	}
	t.Logf("%d gangs placed, %d of them split, %d refused", placed, split, refused)
	if placed == 0 || split == 0 || refused == 0 {
		t.Error("the cluster was never full enough to test anything")
	}
}

// lingjun reads the topology from the folder of traces.
func lingjun(t *testing.T) (*host.Table, []string) {
	t.Helper()
	folder := os.Getenv("PACELINE_TRACES")
	if folder == "" {
		t.Skip("PACELINE_TRACES is not set: it names a folder with inventory/lingjun2023_topology.csv.gz")
	}
	file, err := os.Open(filepath.Join(folder, "inventory", "lingjun2023_topology.csv.gz")) //nolint:gosec // the tester's own folder
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	table := host.New(&resource.Names{}, len(lines))
	var switches []string
	for n, line := range lines[1:] {
		h := host.Host{
			Name: line[0], Ready: true, Attributes: map[string]string{"DSW": line[1], "PSW": line[2], "ASW": line[3]},
			Capacity: resource.Vector{resource.CPU: 96_000, resource.GPU: 8000},
		}
		for range 8 {
			h.Devices = append(h.Devices, host.Device{Model: "gpu", Milli: 1000})
		}
		binary.BigEndian.PutUint64(h.ID[:], uint64(n+1))
		row, err := table.Upsert(h)
		if err != nil || int(row) != len(switches) {
			t.Fatalf("line %d: row %d, %v", n+2, row, err)
		}
		switches = append(switches, line[3])
	}
	return table, switches
}

func gpuHostClass() *placement.Class {
	return placement.NewClass(workload.JobID{}, &workload.JobSpec{
		Kind: workload.Batch, Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 90_000, resource.GPU: 8000}},
	}, nil)
}
