package wasm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := wasm.CompileChild(os.Stdin, dir, wasm.Limits{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// childEnv makes the test binary compile into the directory that it names.
const childEnv = "PACELINE_TEST_COMPILE"

func guest(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "guests", name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func load(t testing.TB, binary []byte, config wasm.Config) *wasm.Version {
	t.Helper()
	m, err := wasm.Check(binary, config.Limits)
	if err != nil {
		t.Fatal(err)
	}
	v, err := wasm.Load(t.Context(), m, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Release)
	return v
}

// placer returns a placer of a version, and where its faults go.
func placer(t testing.TB, v *wasm.Version, config wasm.PlacerConfig) (*wasm.Placer, *[]*wasm.Fault) {
	t.Helper()
	faults := &[]*wasm.Fault{}
	config.Slot = &wasm.Slot{}
	config.Slot.Swap(v)
	if config.OnFault == nil {
		config.OnFault = func(f *wasm.Fault) { *faults = append(*faults, f) }
	}
	p := wasm.NewPlacer(config)
	t.Cleanup(p.Close)
	return p, faults
}

func newNames(t testing.TB, named ...string) *resource.Names {
	t.Helper()
	names, err := resource.NewNames(named)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func hostID(i int) workload.HostID {
	return workload.HostID{0: byte(i), 1: byte(i >> 8), 2: byte(i >> 16), 15: 1}
}

// plainTable has n hosts of a few sizes, some with GPUs, some in use.
func plainTable(t testing.TB, n int) *host.Table {
	t.Helper()
	table := host.New(newNames(t), n)
	for i := range n {
		h := host.Host{
			ID: hostID(i), Name: fmt.Sprintf("h%d", i), Ready: true, Attributes: map[string]string{"rack": fmt.Sprintf("r%d", i/8)},
			Capacity: resource.Vector{resource.CPU: int64(16000 + i*7919%5*16000), resource.Memory: int64(65536 + i*104729%3*65536), resource.Disk: 1 << 20},
		}
		if i%4 == 0 {
			for range 8 {
				h.Devices = append(h.Devices, host.Device{Model: "a", Milli: 1000})
			}
		}
		row, err := table.Upsert(h)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			busy := newClass(resource.Vector{resource.CPU: int64(1000 + i*31%9*1000), resource.Memory: int64(1024 * (1 + i%17))}, workload.Placement{})
			if err := table.Take(row, busy.Occupant(0, nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return table
}

func newClass(needs resource.Vector, p workload.Placement) *placement.Class {
	return placement.NewClass(workload.JobID{1}, &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: needs}, Placement: p}, nil)
}

// books is everything that a table holds, to compare.
func books(t *host.Table) string {
	s := ""
	for row := range host.Row(t.Rows()) {
		free, _ := t.Lanes(row)
		s += fmt.Sprint(row, t.Has(row), t.Free(row), *free, t.Tasks(row), "\n")
	}
	return s
}

// smallTable has 100 hosts: row 3 is draining, row 5 full.
func smallTable(t testing.TB) *host.Table {
	t.Helper()
	table := plainTable(t, 100)
	table.SetDraining(3, true)
	free := table.Free(5)
	free[resource.GPU] = 0
	if err := table.Take(5, newClass(free, workload.Placement{}).Occupant(0, nil)); err != nil {
		t.Fatal(err)
	}
	return table
}
