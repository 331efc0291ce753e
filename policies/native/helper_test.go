package native_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/native"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policy"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "20"); err != nil { // each starts some modules; the command line may say otherwise
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// loaded keeps the modules that were built and loaded, by command: compiling them is most of what these tests cost. They stay until the process ends.
var loaded sync.Map

// guest builds one of the commands below policies/builtin/guests, puts its section on and loads it.
func guest(t testing.TB, name string) *wasm.Version {
	t.Helper()
	if v, ok := loaded.Load(name); ok {
		return v.(*wasm.Version)
	}
	bare := build(t, name)
	var section []byte
	if p := native.Find(name); p != nil {
		section = p.Section()
	} else {
		var err error
		if section, err = wasm.Describe(t.Context(), bare, wasm.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	stamped, err := wasm.Stamp(bare, section)
	if err != nil {
		t.Fatal(err)
	}
	m, err := wasm.Check(stamped, wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := wasm.Load(context.WithoutCancel(t.Context()), m, wasm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(name, v)
	return v
}

// build builds a command as a module.
func build(t testing.TB, name string) []byte {
	t.Helper()
	command := "../builtin/guests/" + name
	for _, source := range []string{command + "/main.go", "../../sdk/policy/export.go", "../../sdk/policy/topk/topk.go"} {
		if _, err := os.Stat(source); err != nil { // go test runs anew when what a test looked at has changed; it does not see what modules are built from
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "policy.wasm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, command)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	bare, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return bare
}

// trusted loads a program without a sandbox.
func trusted(t testing.TB, p *policy.Program, config wasm.Config) *wasm.Version {
	t.Helper()
	v, err := wasm.LoadNative(p, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Release)
	return v
}

// placer returns a placer of a version that fails the test on a fault.
func placer(t interface{ Fatal(...any) }, v *wasm.Version, config wasm.PlacerConfig) *wasm.Placer {
	config.Slot = &wasm.Slot{}
	config.Slot.Swap(v)
	config.OnFault = func(f *wasm.Fault) { t.Fatal(f) }
	return wasm.NewPlacer(config)
}

func newNames(t testing.TB, named ...string) *resource.Names {
	t.Helper()
	names, err := resource.NewNames(named)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// drawTables draws equal tables.
func drawTables(t *rapid.T, names *resource.Names, tables ...**host.Table) {
	for i := range tables {
		*tables[i] = host.New(names, 200)
	}
	for i := range rapid.IntRange(0, 90).Draw(t, "hosts") {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 15: 1}, Name: fmt.Sprintf("h%d", i), Ready: rapid.IntRange(0, 9).Draw(t, "ready") > 0,
			Attributes: map[string]string{"rack": fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "rack"))},
			Capacity: resource.Vector{
				resource.CPU: int64(rapid.IntRange(0, 8).Draw(t, "cpu")) * 1000, resource.Memory: int64(rapid.IntRange(0, 8).Draw(t, "memory")) * 512,
				resource.FirstNamed: int64(rapid.IntRange(0, 3).Draw(t, "licences")),
			},
			Foreign: resource.Vector{resource.CPU: int64(rapid.IntRange(0, 2).Draw(t, "foreign")) * 500},
		}
		for range rapid.IntRange(0, 4).Draw(t, "devices") {
			h.Devices = append(h.Devices, host.Device{Model: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model"), Milli: 1000})
		}
		for _, table := range tables {
			row, err := (*table).Upsert(h)
			if err != nil {
				t.Fatal(err)
			}
			(*table).SetDraining(row, i%13 == 5)
		}
	}
}

// drawRequest draws a request. Strategies are named, so that the core does by itself what the policy of that name does.
func drawRequest(t *rapid.T, strategy workload.Strategy) placement.Request {
	spec := &workload.JobSpec{Kind: workload.Batch, Placement: workload.Placement{Strategy: strategy}}
	needs := &spec.Template.Needs
	needs[resource.CPU] = int64(rapid.IntRange(0, 4).Draw(t, "cpu")) * 500
	needs[resource.Memory] = int64(rapid.IntRange(0, 4).Draw(t, "memory")) * 256
	needs[resource.GPU] = rapid.SampledFrom([]int64{0, 0, 300, 500, 1000, 2000}).Draw(t, "gpu")
	needs[resource.FirstNamed] = rapid.SampledFrom([]int64{0, 0, 1}).Draw(t, "licences")
	if rapid.IntRange(0, 3).Draw(t, "models") == 0 {
		spec.Template.GPUModels = []string{"a"}
	}
	switch rapid.IntRange(0, 5).Draw(t, "wish") {
	case 0:
		spec.Placement.Constraints = []workload.Constraint{{Key: "rack", Op: workload.OpIn, Values: []string{"1", "2"}}}
	case 1:
		spec.Placement.Preferences = []workload.Preference{{Constraint: workload.Constraint{Key: "rack", Op: workload.OpIn, Values: []string{"3"}}, Weight: 30}}
	}
	r := placement.Request{Class: placement.NewClass(workload.JobID{1}, spec, nil), Count: rapid.IntRange(1, 120).Draw(t, "count")}
	r.Gang = rapid.IntRange(0, 5).Draw(t, "gang") == 0
	return r
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
