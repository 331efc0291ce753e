package policy

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
	"github.com/paceline-sched/paceline/sdk/policy"
)

// The twins say in Go what the examples say in their languages.
type (
	bestFit     struct{}
	saveGPUs    struct{}
	fewestTasks struct{}
	warm        struct{}
)

func (*bestFit) Order() (string, bool) { return "leftover", false }

func (*saveGPUs) Cost(r *policy.Request, h policy.Host) int64 {
	cost := h.Leftover() / 2
	if r.Need(policy.GPU) == 0 && h.Total(policy.GPU) > 0 {
		cost += policy.Span / 2
	}
	return cost
}

func (*fewestTasks) Cost(_ *policy.Request, h policy.Host) int64 { return h.Tasks() }

func (*warm) Cost(_ *policy.Request, h policy.Host) int64 {
	if h.Tasks() == 0 {
		return h.Leftover() + 100*policy.Point
	}
	return h.Leftover()
}

var twins = map[string]struct {
	program any
	columns []string
}{
	"best-fit":     {&bestFit{}, []string{"leftover"}},
	"save-gpus":    {&saveGPUs{}, []string{"leftover", "total.gpu"}},
	"fewest-tasks": {&fewestTasks{}, []string{"tasks"}},
	"warm":         {&warm{}, []string{"leftover", "tasks"}},
}

// buildExample builds an example, or skips the test where its toolchain is missing.
func buildExample(t *testing.T, dir string) []byte {
	t.Helper()
	if tools, err := filepath.Abs("../../../../.tools/assemblyscript/node_modules/.bin"); err == nil { // where `make policy-tools` puts it
		t.Setenv("PATH", os.Getenv("PATH")+string(filepath.ListSeparator)+tools)
	}
	module, err := build(t.Context(), dir)
	var missing *missingError
	if errors.As(err, &missing) {
		t.Skipf("%v; `make policy-tools` installs what is missing", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// TestExamplesPlaceAsTheirTwins builds each example, judges it, and holds it against its twin on random tables.
func TestExamplesPlaceAsTheirTwins(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..", "examples", "policies")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			twin, ok := twins[e.Name()]
			if !ok {
				t.Fatal("the example has no twin: write one")
			}
			module := buildExample(t, filepath.Join(root, e.Name()))
			scenes := []string{"no hosts", "full table", "random tables", "gangs", "hosts that a bitmap leaves out", "preferences", "GPUs", "named resources"}
			o := kit.Options{Rounds: 1, Calls: 1000, Scenes: scenes}
			m, err := wasm.Check(module, o.Config.Limits)
			if err != nil {
				t.Fatal(err)
			}
			v, err := wasm.Load(t.Context(), m, o.Config)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Release()
			var r kit.Report
			if err := kit.Try(t.Context(), &r, v, o); err != nil || r.Err() != nil {
				t.Fatal(err, r.Err())
			}
			p, err := policy.New(policy.Info{Name: "twin", Columns: twin.columns}, twin.program)
			if err != nil {
				t.Fatal(err)
			}
			native, err := wasm.LoadNative(p, wasm.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer native.Release()
			o.Rounds = 4
			if why, err := kit.Compare(t.Context(), native, v, o); err != nil || why != "" {
				t.Fatal(err, why)
			}
		})
	}
}
