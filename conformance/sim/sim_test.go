package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/scheduler"
)

var (
	seedFlag = flag.Uint64("sim.seed", 0, "replay this seed and write its trace")
	soakFlag = flag.Duration("sim.for", 0, "run fresh seeds for so long and print the figures")
	outFlag  = flag.String("sim.out", "", "the folder that traces go to; default: a temporary one")
)

// brief are the options of a seed in the everyday tests: as Draw has them, but for a shorter time.
func brief(seed uint64) Options {
	o := Draw(seed)
	o.Safety, o.FullEvery = 3*time.Minute, 8
	return o
}

// simulate runs one seed. One that fails leaves its trace and its scenario.
func simulate(t *testing.T, o Options) Report {
	t.Helper()
	report, err := Run(o)
	var failure *Failure
	if errors.As(err, &failure) {
		t.Errorf("%v\n%s\nreplay it by: make sim SEED=%d", err, leave(t, failure), o.Seed)
	}
	return report
}

// leave writes what somebody needs who looks for the cause, and says where it is.
func leave(t *testing.T, f *Failure) string {
	t.Helper()
	folder := *outFlag
	if folder == "" {
		made, err := os.MkdirTemp("", "paceline-sim-") //nolint:usetesting // it outlives the test: somebody is to read it
		if err != nil {
			t.Fatal(err)
		}
		folder = made
	}
	base := filepath.Join(folder, fmt.Sprintf("seed-%d-%v", f.Options.Seed, f.Options.Safety))
	file, err := os.Create(base + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	o := f.Options
	o.Trace = file
	_, _ = Run(o) // it fails as before
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	scenario, fails := f.Scenario.Shrink(nil)
	if err := scenario.save(base+".scenario", f); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("the trace is in %s.txt\nthe scenario, %d of %d events, is in %s.scenario: put it into testdata as a .txt once it passes",
		base, len(scenario.Events), len(f.Scenario.Events), base)
	if !fails {
		text += "\nplayed, it does not fail in the same way: use the seed"
	}
	return text
}

// save writes a scenario with the reason why it is there.
func (s *Scenario) save(file string, f *Failure) error {
	var text strings.Builder
	first, _, _ := strings.Cut(f.Message, "\n")
	fmt.Fprintf(&text, "# Found by seed %d after %v:\n# %s\n", f.Options.Seed, f.At, clip(first))
	if _, err := s.WriteTo(&text); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// everyFault is what the fixed seeds must have suffered, each at least once.
var everyFault = []string{
	"call-failed", "clock-jump-back", "clock-jump-forward", "cluster-cut-off", "commit-crash", "commit-failure", "core-crash", "host-joins",
	"host-leaves", "host-out-of-contact", "host-returns", "host-returns-empty", "launch-after-its-time", "launch-failed", "pool-edited-live",
	"shard-attached-anew", "shard-crash", "slow-call", "slow-commit", "slow-message", "stale-epoch-to-core", "stale-epoch-to-shard",
	"status-delayed", "status-duplicated", "status-lost", "status-reordered", "watcher-stalls", "cluster-lost", "cluster-returns",
	"kill-does-nothing", "slow-answer", "wrong-victims",
}

// everyRoom is what must have happened over the fixed seeds when room was made.
var everyRoom = []string{
	"asked", "used", "evicted-between", "evicted-inside", "evicted-elsewhere", "evicted-revocable", "evicted-gang", "evicted-service",
	"beneficiary-went-away", "core-crash-under-pledge", "shard-lost-under-pledge",
}

// fixedSeeds have all that can happen between them.
var fixedSeeds = []uint64{36, 48, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212}

// TestFixedSeeds also keeps the generators honest: what is never drawn is never tested.
func TestFixedSeeds(t *testing.T) {
	reports := make([]Report, len(fixedSeeds))
	t.Run("seed", func(t *testing.T) {
		for n := range reports {
			t.Run(fmt.Sprint(fixedSeeds[n]), func(t *testing.T) {
				t.Parallel()
				reports[n] = simulate(t, brief(fixedSeeds[n]))
			})
		}
	})
	var sum Report
	for n, r := range reports {
		t.Logf("seed %d: %v", fixedSeeds[n], r)
		sum.Add(r)
	}
	t.Logf("together: %v", sum)
	for _, kind := range everyFault {
		if sum.Faults[kind] == 0 {
			t.Errorf("%q never happened", kind)
		}
		delete(sum.Faults, kind)
	}
	for _, kind := range everyRoom {
		if sum.Rooms[kind] == 0 {
			t.Errorf("%q never happened", kind)
		}
	}
	if len(sum.Faults) > 0 {
		t.Errorf("faults that the list of this test lacks: %v", sum.Faults)
	}
	if sum.Runs < 1000 || sum.Jobs < 150 {
		t.Errorf("%d runs of %d jobs are too few", sum.Runs, sum.Jobs)
	}
}

// TestSeed replays the seed that is given, at its full length and then as the everyday tests run it.
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("no -sim.seed")
	}
	for _, o := range []Options{Draw(*seedFlag), brief(*seedFlag)} {
		t.Logf("%v", &o)
		t.Logf("%v", simulate(t, o))
	}
}

// TestSoak runs fresh seeds until the time is over, each at its full length and then as the everyday tests run it, which draws other work. The everyday tests have fixed
// seeds alone: what they say is to depend on nothing but the code.
func TestSoak(t *testing.T) {
	if *soakFlag == 0 {
		t.Skip("no -sim.for")
	}
	var sum Report
	began := time.Now()
	seed := uint64(began.UnixNano()) % 1e12
	seeds := 0
	for ; time.Since(began) < *soakFlag && !t.Failed(); seed++ {
		sum.Add(simulate(t, Draw(seed)))
		sum.Add(simulate(t, brief(seed)))
		seeds++
	}
	t.Logf("%d seeds, the last %d, in %v: %v", seeds, seed-1, time.Since(began).Round(time.Second), sum)
}

// TestSameSeedSameHistory wants two runs of a seed to write the same bytes: nothing in the cell may depend on the order of a map or on the
// time of day.
func TestSameSeedSameHistory(t *testing.T) {
	t.Parallel()
	o := brief(7)
	one, two := simulate(t, o), simulate(t, o)
	if !reflect.DeepEqual(one, two) {
		t.Errorf("one seed, two histories:\n%+v\n%+v", one, two)
	}
	o.Seed = 8
	if other := simulate(t, o); other.Digest == one.Digest {
		t.Error("another seed has the same history")
	}
}

// TestComparisonsSeeEveryField sets one field after the other: a comparison that forgets one would let its loss pass.
func TestComparisonsSeeEveryField(t *testing.T) {
	for f := range reflect.TypeFor[scheduler.TaskRecord]().Fields() {
		var x, y scheduler.TaskRecord
		setSomething(t, reflect.ValueOf(&y).Elem().FieldByIndex(f.Index))
		if sameTask(&x, &y) {
			t.Errorf("TaskRecord.%s is not compared", f.Name)
		}
	}
	for f := range reflect.TypeFor[scheduler.JobRecord]().Fields() {
		if f.Name == "Restart" {
			continue
		}
		var x, y scheduler.JobRecord
		setSomething(t, reflect.ValueOf(&y).Elem().FieldByIndex(f.Index))
		if sameJob(&x, &y) {
			t.Errorf("JobRecord.%s is not compared", f.Name)
		}
	}
	for f := range reflect.TypeFor[scheduler.Restart]().Fields() {
		var x, y scheduler.JobRecord
		setSomething(t, reflect.ValueOf(&y.Restart).Elem().FieldByIndex(f.Index))
		if sameJob(&x, &y) {
			t.Errorf("Restart.%s is not compared", f.Name)
		}
	}
	for f := range reflect.TypeFor[scheduler.HostRecord]().Fields() {
		if f.Name == "Summary" {
			continue
		}
		var x, y scheduler.HostRecord
		setSomething(t, reflect.ValueOf(&y).Elem().FieldByIndex(f.Index))
		if sameHost(x, y) {
			t.Errorf("HostRecord.%s is not compared", f.Name)
		}
	}
	for f := range reflect.TypeFor[scheduler.HostFacts]().Fields() {
		var x, y scheduler.HostRecord
		setSomething(t, reflect.ValueOf(&y.Summary).Elem().FieldByIndex(f.Index))
		if sameHost(x, y) {
			t.Errorf("HostFacts.%s is not compared", f.Name)
		}
	}
}

// setSomething gives a value of any kind that a record has something other than its zero.
func setSomething(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Array:
		setSomething(t, v.Index(0))
	case reflect.Struct:
		setSomething(t, v.Field(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	default:
		t.Fatalf("no value for a %s", v.Type())
	}
}

// TestFailuresTellTheSeed looks at what somebody sees whose change breaks something.
func TestFailuresTellTheSeed(t *testing.T) {
	o := brief(3)
	o.Interpose = &Interposer{Log: repeatRevision}
	_, err := Run(o)
	var failure *Failure
	if !errors.As(err, &failure) || failure.Options.Seed != 3 || !strings.HasPrefix(err.Error(), "seed 3: ") {
		t.Errorf("the failure says %v", err)
	}
}
