package sim

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// TestScenarios plays every scenario that is kept. Each once found something broken.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scenarios: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			s := readScenario(t, file)
			if _, err := s.Run(); err != nil {
				t.Error(err)
			}
		})
	}
}

func readScenario(t *testing.T, file string) *Scenario {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ReadScenario(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return s
}

// TestScenarioIsTheSeed wants a scenario to be the very run that it was recorded from.
func TestScenarioIsTheSeed(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 4; seed++ {
		o := brief(seed)
		want, script := spellOut(t, o)
		var text bytes.Buffer
		if _, err := script.WriteTo(&text); err != nil {
			t.Fatal(err)
		}
		s, err := ReadScenario(&text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Run()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("seed %d played from its scenario: %v\n%+v\n%+v", seed, err, got, want)
		}
	}
}

// spellOut is a run with its scenario.
func spellOut(t *testing.T, o Options) (Report, *Scenario) {
	t.Helper()
	w := newWorld(o, nil)
	report, err := w.play(nil)
	if err != nil {
		t.Fatal(err)
	}
	return report, w.failure("", "").Scenario
}

// TestFailuresBecomeScenarios wants a wrong program to leave a scenario that still finds it, and that the right one passes.
func TestFailuresBecomeScenarios(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"everybody gets the first device", "statuses are acknowledged before they are durable", "old launches are sent again"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failure := findMutant(t, mutants[name])
			if failure == nil {
				t.Fatal("not caught")
			}
			shrunk, fails := failure.Scenario.Shrink(mutants[name])
			if !fails {
				t.Fatal("the scenario does not fail as its seed did")
			}
			file := filepath.Join(t.TempDir(), "found.txt")
			if err := shrunk.save(file, failure); err != nil {
				t.Fatal(err)
			}
			again := readScenario(t, file)
			if _, err := again.Run(); err != nil {
				t.Errorf("the right program fails: %v", err)
			}
			again.Options.Interpose = mutants[name]()
			_, err := again.Run()
			var found *Failure
			if !errors.As(err, &found) || found.Checker != failure.Checker {
				t.Errorf("the wrong program is not found by %s, but: %v", failure.Checker, err)
			}
			t.Logf("%d of %d events are left", len(again.Events), len(failure.Scenario.Events))
			if len(again.Events) > len(failure.Scenario.Events)/2 {
				t.Errorf("%d of %d events are left, too many", len(again.Events), len(failure.Scenario.Events))
			}
		})
	}
}

// TestCommandsSurviveTheirSpelling draws what the generators draw.
func TestCommandsSurviveTheirSpelling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := Draw(rapid.Uint64().Draw(t, "seed"))
		o.Faults = Faults{} // the cell is to be up
		w := newWorld(o, nil)
		w.build(nil)
		for _, command := range []scheduler.Command{
			w.users.submission(w.users.draw(), true), w.users.pool(),
			scheduler.PlanJob{Spec: w.users.draw()},
			scheduler.StopJob{Delete: true, ExpectedVersion: 7},
			scheduler.RestartJob{Batch: 2, Grace: time.Second},
			scheduler.DeletePool{Path: "/a"},
			scheduler.NameResources{Names: []string{licence}},
			scheduler.DrainHost{Draining: true},
			scheduler.ApplyPool{Path: "/b", Pool: respool.Pool{UserLimit: respool.Limits{}.With(3, 0)}},
		} {
			text := encodeCommand(command)
			got, err := decodeCommand(text)
			if err != nil || encodeCommand(got) != text || !sameCommand(got, command) {
				t.Fatalf("%s: %v\n%+v\n%+v", text, err, got, command)
			}
		}
	})
}

// sameCommand takes empty maps and slices for none.
func sameCommand(a, b scheduler.Command) bool {
	if _, is := a.(scheduler.ApplyPool); is {
		return a == b
	}
	return compact(a) == compact(b)
}

func FuzzReadScenario(f *testing.F) {
	f.Add("checker gangs\noptions {\"Seed\":1,\"Safety\":1,\"Mend\":1}\ncluster {\"Name\":\"c0\"}\nat 1s core-crash\nat 2s slow-call c0 =1s #2\n" +
		"at 3s call StopJob {\"Job\":[1],\"Delete\":true}\nat 4s call ApplyPool {\"Command\":{\"Path\":\"/a\"},\"Limit\":{\"1\":5}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ReadScenario(strings.NewReader(text))
		if err != nil {
			return
		}
		var one, two strings.Builder
		if _, err := s.WriteTo(&one); err != nil {
			t.Fatal(err)
		}
		again, err := ReadScenario(strings.NewReader(one.String()))
		if err != nil {
			t.Fatalf("%v:\n%s", err, one.String())
		}
		if _, err := again.WriteTo(&two); err != nil || one.String() != two.String() {
			t.Fatalf("%v\n%s\n%s", err, one.String(), two.String())
		}
	})
}
