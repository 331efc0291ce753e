package simpack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/simpack"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// build makes a module of a built-in policy.
func build(t *testing.T, name string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name+".wasm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", path, "github.com/paceline-sched/paceline/policies/builtin/guests/"+name)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	bare, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	section, err := wasm.Describe(t.Context(), bare, wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	stamped, err := wasm.Stamp(bare, section)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, stamped, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestModules holds built-in policies against their modules: every figure of a run is the same. With the trace files and PACELINE_WHOLE=1 a whole repetition of the
// protocol is run, of more policies, else one on an extract.
func TestModules(t *testing.T) {
	t.Parallel()
	hosts, pods, names := hostsFile, podsFile, []string{"least-residue"}
	if traces := os.Getenv("PACELINE_TRACES"); traces != "" && os.Getenv("PACELINE_WHOLE") != "" {
		hosts, pods = filepath.Join(traces, "inventory/openb_nodes.csv"), filepath.Join(traces, "tasks/openb_pods_default.csv")
		names = append(names, "best-fit", "fgd")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := simpack.Run(options(t, hosts, pods, name, 42))
			if err != nil {
				t.Fatal(err)
			}
			got, err := simpack.Run(options(t, hosts, pods, build(t, name), 42))
			if err != nil {
				t.Fatal(err)
			}
			if got.Policy != name+".wasm" || !strings.HasPrefix(got.Digest, "sha256:") {
				t.Errorf("the report is about %q, digest %q", got.Policy, got.Digest)
			}
			got.Policy, got.Digest = want.Policy, ""
			if !reflect.DeepEqual(got, want) {
				t.Errorf("the module: %+v\nnatively: %+v", got, want)
			}
		})
	}
}

// TestLookingAheadPays: on the extract, too, policies that know the class mix leave less unallocated than best-fit.
func TestLookingAheadPays(t *testing.T) {
	t.Parallel()
	seeds := []int64{42, 43, 44, 45, 46, 47, 48, 49, 50, 51}
	mean := func(name string) float64 {
		r, err := simpack.Run(options(t, hostsFile, podsFile, name, seeds...))
		if err != nil {
			t.Fatal(err)
		}
		p, _ := r.Allocated.At(130)
		return p.Mean
	}
	bestFit, fgd, residue := mean("best-fit"), mean("fgd"), mean("least-residue")
	if fgd <= bestFit || residue <= fgd {
		t.Errorf("allocated at 130 %% demand: best-fit %.2f, fgd %.2f, least-residue %.2f", bestFit, fgd, residue)
	}
	t.Logf("best-fit %.2f, fgd %.2f, least-residue %.2f", bestFit, fgd, residue)
}

// TestPublishedFragmentation holds policies on the full traces to what was published for FGD (ATC'23), and to best-fit. It needs the trace files.
func TestPublishedFragmentation(t *testing.T) {
	t.Parallel()
	traces := os.Getenv("PACELINE_TRACES")
	if traces == "" {
		t.Skip("PACELINE_TRACES does not name the folder of the traces")
	}
	if os.Getenv("PACELINE_WHOLE") == "" {
		t.Skip("it takes half a minute: set PACELINE_WHOLE=1, or make traces")
	}
	mean := func(pods, policy string, demand int) float64 {
		o := options(t, filepath.Join(traces, "inventory/openb_nodes.csv"), filepath.Join(traces, "tasks/openb_pods_"+pods), policy, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51)
		r, err := simpack.Run(o)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := r.Allocated.At(demand)
		return p.Mean
	}
	for _, c := range []struct {
		pods             string
		published, short float64
	}{{"default.csv", 95.23, 0.25}, {"cpu200.csv.gz", 94.82, 0.25}, {"gpushare40.csv.gz", 93.96, 0.25}, {"multigpu20.csv.gz", 95.53, 0.25}, {"gpuspec10.csv.gz", 94.66, 0.8}} {
		if fgd := mean(c.pods, "fgd", 100); fgd < c.published-c.short {
			t.Errorf("%s: fgd allocates %.2f %%, published is %.2f", c.pods, fgd, c.published)
		}
		if residue := mean(c.pods, "least-residue", 100); residue <= c.published {
			t.Errorf("%s: least-residue allocates %.2f %%, fgd was published with %.2f", c.pods, residue, c.published)
		}
	}
	const lead = 1.5
	if bestFit, fgd := mean("default.csv", "best-fit", 100), mean("default.csv", "fgd", 100); fgd < bestFit+lead {
		t.Errorf("fgd allocates %.2f %%, best-fit %.2f", fgd, bestFit)
	}
}
