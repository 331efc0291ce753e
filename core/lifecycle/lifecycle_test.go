package lifecycle

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/workload"
)

// commentOf reads the table in a function's doc comment, one row of words a line.
func commentOf(t *testing.T, function string) [][]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "lifecycle.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != function {
			continue
		}
		for line := range strings.Lines(f.Doc.Text()) {
			if strings.HasPrefix(line, "\t") {
				rows = append(rows, strings.Fields(line))
			}
		}
	}
	return rows
}

// TestNextIsItsTable prints the goal table from the code and compares it with the one in the doc comment.
func TestNextIsItsTable(t *testing.T) {
	rows := [][]string{{"goal", "PENDING", "ADMITTED", "ACTIVE", "killing", "BACKING_OFF", "DONE", "FAILED", "STOPPED"}}
	for goal := range numGoal {
		row := []string{goal.String()}
		for _, state := range rows[0][1:] {
			s, killing := stateNamed(state), state == "killing"
			if killing {
				s = workload.InstanceActive
			}
			row = append(row, Next(goal, s, killing).String())
		}
		rows = append(rows, row)
	}
	if got, want := fmt.Sprint(rows), fmt.Sprint(commentOf(t, "Next")); got != want {
		t.Errorf("the code says\n%s\nits comment says\n%s", got, want)
	}
}

func stateNamed(name string) workload.InstanceState {
	for s := range workload.InstanceState(workload.NumInstanceStates) {
		if s.String() == name {
			return s
		}
	}
	return 0
}

// TestAfterIsItsTable does so for the endings.
func TestAfterIsItsTable(t *testing.T) {
	row := func(e Ending) string {
		var cells []string
		for _, kind := range []workload.Kind{workload.Batch, workload.Service, workload.Daemon} {
			e.Kind = kind
			v := After(e)
			cell := v.State.String()
			if !v.Counts && e.State != workload.RunSucceeded && v.State == workload.InstanceBackingOff {
				cell += ", not counted"
			}
			cells = append(cells, cell)
		}
		if cells[1] != cells[2] {
			t.Errorf("%+v: a service becomes %s, a daemon %s", e, cells[1], cells[2])
		}
		return cells[0] + " " + cells[1]
	}
	retried := row(Ending{State: workload.RunFailed, Failures: 1, MaxRetries: 2})
	spent := row(Ending{State: workload.RunFailed, Failures: 2, MaxRetries: 2})
	other := row(Ending{State: workload.RunKilled, Reason: workload.ReasonLaunchTimeout})
	if again := row(Ending{State: workload.RunLost, Reason: workload.ReasonLaunchRefused, Attempts: 1}); again != other {
		t.Errorf("a second refusal in a row gives %s, other losses %s", again, other)
	}
	for _, state := range []workload.RunState{workload.RunLost, workload.RunPreempted} {
		if r := row(Ending{State: state, Reason: workload.ReasonHostLost}); r != other {
			t.Errorf("%s gives %s, KILLED gives %s", state, r, other)
		}
	}
	dropped := row(Ending{State: workload.RunPreempted, Reason: workload.ReasonPreempted, OnPreemption: workload.PreemptKill})
	batch, service, _ := strings.Cut(retried, " ")
	given, service2, _ := strings.Cut(spent, " ")
	if service != service2 {
		t.Errorf("a service with failures left becomes %s, without %s", service, service2)
	}
	want := strings.Join([]string{
		"ending batch service, daemon",
		"SUCCEEDED " + row(Ending{State: workload.RunSucceeded}),
		"FAILED " + batch + " while retries " + service,
		"are left, else " + given,
		"KILLED for a restart " + row(Ending{State: workload.RunKilled, Reason: workload.ReasonRestartRequested}),
		"LOST, launch refused, " + row(Ending{State: workload.RunLost, Reason: workload.ReasonLaunchRefused}),
		"for the first time",
		"PREEMPTED, on_preemption " + dropped,
		"is kill",
		"KILLED, LOST, PREEMPTED " + other,
		"by anything else",
	}, "\n")
	var got []string
	for _, cells := range commentOf(t, "After") {
		got = append(got, strings.Join(cells, " "))
	}
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("the comment says\n%s\nthe code says\n%s", text, want)
	}
}

func TestBackoffStaysInItsBand(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		initial := time.Duration(rapid.Int64Range(0, math.MaxInt64/4).Draw(t, "initial"))
		ceiling := time.Duration(rapid.Int64Range(0, math.MaxInt64/4*3).Draw(t, "ceiling"))
		attempt := rapid.Uint32().Draw(t, "attempt")
		seed := rapid.Uint64().Draw(t, "seed")
		run := workload.RunID{Instance: rapid.Uint32().Draw(t, "instance")}
		policy := workload.RetryPolicy{Initial: initial, Max: ceiling}
		got := Backoff(policy, attempt, seed, run)
		if again := Backoff(policy, attempt, seed, run); got != again {
			t.Fatalf("%v, then %v", got, again)
		}
		if initial == 0 {
			initial = DefaultInitialBackoff
		}
		if ceiling == 0 {
			ceiling = DefaultMaxBackoff
		}
		mean := float64(min(initial, ceiling)) * math.Pow(2, float64(max(attempt, 1)-1))
		mean = min(mean, float64(ceiling))
		if f := float64(got); f < mean*0.75-2 || f > mean*1.25+2 {
			t.Fatalf("attempt %d of %v to %v waits %v; the middle of its band is %v", attempt, initial, ceiling, got, time.Duration(mean))
		}
	})
}
