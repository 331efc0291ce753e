package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// coreMutant is a wrong core: a place in the source that says something else. wrong("name") is true in the mutant of that name, and
// either("name", x, y) is x there. No switch stands in the program itself: the test compiles another one, over an overlay of the source,
// and a production build cannot.
type coreMutant struct {
	name  string
	by    Checker // that is to catch it
	edits []edit
}

// edit replaces the one place in a file that reads so.
type edit struct{ file, right, wrong string }

var coreMutants = append(lendingMutants, []coreMutant{
	{"gangs are admitted partly", CheckGangs, []edit{{
		"core/scheduler/gang.go", "if rank == g.Min {", `if rank == max(g.Min-either[uint32]("gangs are admitted partly", 1, 0), 1) {`,
	}}},
	{"gangs start partly", CheckGangs, []edit{
		{
			"core/scheduler/place.go", "for m, i := range w.parts[n].instances {\n\t\t\ta :=",
			`for m, i := range w.parts[n].instances[either("gangs start partly", 1, 0):] {` + "\n\t\t\ta :=",
		},
		{
			"core/scheduler/place.go", "for m, i := range w.parts[n].instances {\n\t\t\ts.launchRun(",
			`for m, i := range w.parts[n].instances[either("gangs start partly", 1, 0):] {` + "\n\t\t\ts.launchRun(",
		},
	}},
	{"a member counts that is of a former generation", CheckGangs, []edit{{
		"core/scheduler/run.go", "t.generation = j.generationOf(i)",
		`t.generation = either("a member counts that is of a former generation", max(t.generation, 1), j.generationOf(i))`,
	}}},
	{"a gang's next life has the same generation", CheckGangs, []edit{{
		"core/scheduler/gang.go", "j.Generation += generations", `j.Generation += either("a gang's next life has the same generation", 0, generations)`,
	}}},
	{"limits are ignored", CheckEntitlement, []edit{{
		"core/respool/entitle.go", "{ return c.pool.Limit.Of(k) }", `{ return either("limits are ignored", Unlimited, c.pool.Limit.Of(k)) }`,
	}}},
	{"shares are ignored", CheckEntitlement, []edit{{
		"core/respool/entitle.go", "claim{node: c, weight: c.pool.Share,", `claim{node: c, weight: either("shares are ignored", 1, c.pool.Share),`,
	}}},
	{"the entitlement is ignored", CheckPools, []edit{{
		"core/scheduler/ledger.go", "Entitlement: a.Entitlement, Usage", `Entitlement: either("the entitlement is ignored", a.Entitlement.Scale(4), a.Entitlement), Usage`,
	}}},
	{"non-preemptible work passes the reservation", CheckPools, []edit{{
		"core/scheduler/ledger.go", "Reservation: a.Reservation,",
		`Reservation: either("non-preemptible work passes the reservation", a.Entitlement, a.Reservation),`,
	}}},
	{"nothing is kept for the first in line", CheckQueues, []edit{
		{"core/admission/admit.go", "w.closed |= 1 << (account + k) })", `w.closed |= either[mask]("nothing is kept for the first in line", 0, 1<<(account+k)) })`},
		{"core/admission/admit.go", "free[k] -= min(q, max(free[k], 0))", `free[k] -= either("nothing is kept for the first in line", 0, min(q, max(free[k], 0)))`},
	}},
	{"an ended run keeps its charge", CheckPools, []edit{{
		"core/scheduler/ledger.go", "s.pools.Refund(j.spec.Pool, *needs, j.work())",
		`if !wrong("an ended run keeps its charge") { s.pools.Refund(j.spec.Pool, *needs, j.work()) }`,
	}}},
}...)

// mutantVariable of the environment names the core mutant that a mutated program is to be, and seedsVariable the seeds that it has to survive.
const (
	mutantVariable = "PACELINE_SIM_MUTANT"
	seedsVariable  = "PACELINE_SIM_SEEDS"
)

func spellSeeds(seeds []uint64) string {
	return strings.Trim(fmt.Sprint(seeds), "[]")
}

func namedSeeds(t *testing.T) (seeds []uint64) {
	t.Helper()
	for _, text := range strings.Fields(os.Getenv(seedsVariable)) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

const overlaid = `package %s

import "os"

var theMutant = os.Getenv("` + mutantVariable + `")

func wrong(name string) bool { return name == theMutant }

func either[T any](name string, mutated, right T) T {
	if wrong(name) {
		return mutated
	}
	return right
}
`

var mutatedFlag = flag.Bool("sim.mutated", false, "this program is a core mutant, to be caught")

// TestCoreMutants wants every wrong core to be caught by the checker that is there for it.
func TestCoreMutants(t *testing.T) {
	t.Parallel()
	if *mutatedFlag {
		t.Skip("it is one")
	}
	program := mutate(t)
	t.Run("no mutant", func(t *testing.T) {
		t.Parallel()
		out, err := exec.CommandContext(t.Context(), program, "-test.run", "^TestMutantSeeds$", "-test.v", "-sim.mutated").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestMutantSeeds/") {
			t.Errorf("the right core does not pass: %v\n%s", err, out)
		}
	})
	for _, m := range coreMutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			run := exec.CommandContext(t.Context(), program, "-test.run", "^TestCaught$", "-test.v", "-sim.mutated")
			run.Env = append(os.Environ(), mutantVariable+"="+m.name, seedsVariable+"="+spellSeeds(seedsOf(m.name)))
			out, err := run.CombinedOutput()
			found := caughtLine.FindSubmatch(out)
			if err != nil || found == nil {
				t.Fatalf("it is not caught: %v\n%s", err, out)
			}
			if t.Logf("%s", found[0]); Checker(found[1]) != m.by {
				t.Errorf("caught by the checker of %s, not of %s", found[1], m.by)
			}
		})
	}
}

var caughtLine = regexp.MustCompile(`caught by seed \d+ after \S+, by the checker of ([a-z]+): .*`)

// TestCaught is what TestCoreMutants has a mutated program do.
func TestCaught(t *testing.T) {
	if !*mutatedFlag {
		t.Skip("no -sim.mutated")
	}
	seeds := namedSeeds(t)
	f := findMutant(t, func() *Interposer { return nil }, seeds...)
	if f == nil {
		t.Fatalf("the seeds %d have not caught it", seeds)
	}
	t.Log(caught(f))
}

// mutate compiles this package over a source with all mutants in it.
func mutate(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	sources := map[string]string{}
	for _, m := range coreMutants {
		for _, e := range m.edits {
			if sources[e.file] == "" {
				text, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				sources[e.file] = string(text)
			}
			if n := strings.Count(sources[e.file], e.right); n != 1 {
				t.Fatalf("%s has %q %d times: mend the mutant %q to break the same promise in the code as it is now", e.file, e.right, n, m.name)
			}
			sources[e.file] = strings.Replace(sources[e.file], e.right, e.wrong, 1)
		}
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	put := func(file, text string) {
		to := filepath.Join(folder, fmt.Sprintf("%d.go", len(overlay.Replace)))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = to
	}
	var packages []string
	for file, text := range sources {
		put(file, text)
		if dir := filepath.Dir(file); !slices.Contains(packages, dir) {
			packages = append(packages, dir)
			put(filepath.Join(dir, "overlaid_mutant.go"), fmt.Sprintf(overlaid, filepath.Base(dir)))
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	listFile, program := filepath.Join(folder, "overlay.json"), filepath.Join(folder, "mutants.test")
	if err := os.WriteFile(listFile, list, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-race=false", "-overlay", listFile, "-o", program, "./conformance/sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
