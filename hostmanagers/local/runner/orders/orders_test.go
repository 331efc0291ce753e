package orders_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/orders"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for a real process.
const patience = 2 * time.Minute

func hear[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(patience):
		t.Fatalf("nothing was heard in %v", patience)
		panic("unreachable")
	}
}

// phases hears of runs; there is room for all that a test starts.
func phases() (heard chan runner.Run, observe func(runner.Run)) {
	heard = make(chan runner.Run, 64)
	return heard, func(run runner.Run) { heard <- run }
}

func until(t *testing.T, heard <-chan runner.Run, id string, phase runner.Phase) runner.Run {
	t.Helper()
	for {
		if run := hear(t, heard); run.Spec.ID == id && run.Phase == phase {
			return run
		}
	}
}

// acknowledged waits until nothing runs, and nothing but output is kept.
func acknowledged(t *testing.T, r *runner.Runner) {
	t.Helper()
	over := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		runs := r.Runs()
		if !slices.ContainsFunc(runs, func(run runner.Run) bool { return run.Phase != runner.Ended || !run.Acknowledged }) {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("runs that are not done with: %+v", runs)
		}
	}
}

func start(refused chan<- string, id string, command ...string) orders.Start {
	return orders.Start{
		Spec: func() (runner.Spec, error) {
			if id == "unspecified" {
				return runner.Spec{}, errors.New("no such thing")
			}
			return runner.Spec{ID: id, Command: command}, nil
		},
		Refused: func(error) { refused <- id },
	}
}

// What cannot run is refused and takes nothing with it; a signal reaches what was ordered before it; what has ended is acknowledged.
func TestOrders(t *testing.T) {
	t.Parallel()
	heard, observe := phases()
	q, err := orders.Open(t.TempDir(), observe)
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan string, 3)
	q.Start(start(refused, "long", "/bin/sleep", "1000"))
	q.Start(start(refused, "unspecified"))
	q.Start(start(refused, "commandless"))
	q.Start(start(refused, "short", "/bin/true"))
	q.Signal("stranger", 0, "nobody knows it")
	no := []string{hear(t, refused), hear(t, refused)}
	slices.Sort(no)
	if !slices.Equal(no, []string{"commandless", "unspecified"}) {
		t.Errorf("refused were %q", no)
	}
	if run := until(t, heard, "short", runner.Ended); run.Exit == nil || run.Exit.Code != 0 {
		t.Errorf("the short process ended with %+v", run.Exit)
	}
	q.Signal("long", 0, "it is long")
	until(t, heard, "long", runner.Ended)
	acknowledged(t, q.Runner())
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if q.Context().Err() == nil || len(refused) > 0 {
		t.Errorf("after Close the context says %v, and %d more were refused", q.Context().Err(), len(refused))
	}
}

// What an earlier owner of the directory left, ended or not, is ended and acknowledged.
func TestWhatIsLeft(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	heard, observe := phases()
	r, err := runner.Open(runner.Config{Root: root, Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	left := []runner.Spec{{ID: "short", Command: []string{"/bin/true"}}, {ID: "long", Command: []string{"/bin/sleep", "1000"}}}
	if _, err := r.Launch(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	until(t, heard, "short", runner.Ended)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	heard, observe = phases()
	q, err := orders.Open(root, observe)
	if err != nil {
		t.Fatal(err)
	}
	until(t, heard, "long", runner.Ended)
	acknowledged(t, q.Runner())
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// Once a queue is closed, nothing of what it started is left: each run has its record of the end, the last thing that is written, also one whose process was just
// about to start.
func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	heard, observe := phases()
	q, err := orders.Open(root, observe)
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan string, 8)
	for n := range 4 {
		q.Start(start(refused, fmt.Sprintf("long-%d", n), "/bin/sleep", "1000"))
	}
	until(t, heard, "long-3", runner.Started)
	for n := range 4 {
		q.Start(start(refused, fmt.Sprintf("late-%d", n), "/bin/sleep", "1000"))
	}
	until(t, heard, "late-0", runner.Accepted)
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	runs, err := os.ReadDir(filepath.Join(root, "runs"))
	if err != nil || len(runs) < 5 {
		t.Fatalf("there were %d runs: %v", len(runs), err)
	}
	for _, run := range runs {
		if there, err := shim.Exists(filepath.Join(root, "runs", run.Name()), shim.ExitFile); !there {
			t.Errorf("%s is not over: %v", run.Name(), err)
		}
	}
}
