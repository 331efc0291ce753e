package runner_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// serverRoot, when set, makes the test binary a server for crash tests: see crashServer.
const serverRoot = "PACELINE_TEST_SERVER_ROOT"

func TestMain(m *testing.M) {
	if root := os.Getenv(serverRoot); root != "" {
		crashServer(root)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for a real process.
const patience = 2 * time.Minute

// bench is a runner on a root of its own, and what its observer heard.
type bench struct {
	*runner.Runner
	cfg runner.Config

	mu     sync.Mutex
	phases map[string][]runner.Phase
	ended  map[string]runner.Run
	wake   chan struct{}
}

func newBench(t testing.TB, cfg runner.Config) *bench {
	t.Helper()
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	b := &bench{cfg: cfg, phases: map[string][]runner.Phase{}, ended: map[string]runner.Run{}, wake: make(chan struct{}, 1)}
	b.cfg.Observe = b.observe
	b.open(t)
	t.Cleanup(func() { b.end(t) })
	return b
}

func (b *bench) open(t testing.TB) {
	t.Helper()
	var err error
	if b.Runner, err = runner.Open(b.cfg); err != nil {
		t.Fatal(err)
	}
}

// reopen is a restart of the server.
func (b *bench) reopen(t testing.TB) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b.open(t)
}

func (b *bench) observe(run runner.Run) {
	b.mu.Lock()
	b.phases[run.Spec.ID] = append(b.phases[run.Spec.ID], run.Phase)
	if run.Phase == runner.Ended {
		b.ended[run.Spec.ID] = run
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// end leaves no process behind.
func (b *bench) end(t testing.TB) {
	for _, run := range b.Runs() {
		if run.Phase != runner.Ended {
			if _, err := b.Kill(run.Spec.ID, 0, ""); err != nil {
				t.Error(err)
			}
		}
	}
	b.until(t, "every run ended", func() bool {
		for _, run := range b.Runs() {
			if run.Phase != runner.Ended {
				return false
			}
		}
		return true
	})
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// until waits for a condition that the observer's calls, or time, bring about.
func (b *bench) until(t testing.TB, what string, met func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-b.wake:
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (b *bench) launch(t testing.TB, id string, command ...string) {
	t.Helper()
	spec := runner.Spec{ID: id, Command: command, Env: []string{"PATH=/usr/bin:/bin"}}
	if _, err := b.Launch(t.Context(), []runner.Spec{spec}); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) started(t testing.TB, id string) runner.Run {
	t.Helper()
	b.until(t, id+" started", func() bool { run, _ := b.Get(id); return run.Phase >= runner.Started })
	run, _ := b.Get(id)
	return run
}

func (b *bench) exit(t testing.TB, id string) *shim.Exit {
	t.Helper()
	b.until(t, id+" ended", func() bool { run, _ := b.Get(id); return run.Phase == runner.Ended })
	run, _ := b.Get(id)
	return run.Exit
}

func (b *bench) output(t testing.TB, id, stream string, offset int64) string {
	t.Helper()
	r, err := b.Output(t.Context(), id, stream, offset, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// alive does not count a process that has ended and that init has not waited for yet.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

func TestARunsEndIsRecorded(t *testing.T) {
	b := newBench(t, runner.Config{})
	cases := map[string]struct {
		command []string
		verdict shim.Verdict
		code    int
		signal  syscall.Signal
		message string
	}{
		"good":      {command: []string{"true"}, verdict: shim.Exited},
		"bad":       {command: []string{"sh", "-c", "exit 7"}, verdict: shim.Exited, code: 7},
		"signalled": {command: []string{"sh", "-c", "kill -SEGV $$"}, verdict: shim.Exited, code: 139, signal: syscall.SIGSEGV},
		"unknown":   {command: []string{"no-such-command"}, verdict: shim.LaunchFailed, message: "not found in the task's PATH"},
		"no-file":   {command: []string{"/no/such/file"}, verdict: shim.LaunchFailed, message: "no such file"},
		"directory": {command: []string{"/tmp"}, verdict: shim.LaunchFailed, message: "permission denied"},
	}
	for id, c := range cases {
		b.launch(t, id, c.command...)
	}
	for id, c := range cases {
		exit := b.exit(t, id)
		if exit.Verdict != c.verdict || exit.Code != c.code || exit.Signal != int(c.signal) || !strings.Contains(exit.Message, c.message) {
			t.Errorf("%s ended with %+v, want %+v", id, exit, c)
		}
		if exit.Ended.IsZero() || (c.verdict == shim.Exited && exit.Started.IsZero()) {
			t.Errorf("%s has no times: %+v", id, exit)
		}
	}
}

func TestTheObserverHearsEveryPhaseInOrder(t *testing.T) {
	b := newBench(t, runner.Config{})
	b.launch(t, "short", "true")
	b.launch(t, "never", "no-such-command")
	b.until(t, "both told", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.ended) == 2 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := fmt.Sprint(b.phases); got != fmt.Sprint(map[string][]runner.Phase{
		"short": {runner.Accepted, runner.Started, runner.Ended},
		"never": {runner.Accepted, runner.Ended},
	}) {
		t.Errorf("phases: %s", got)
	}
}

func TestTheTasksSurroundings(t *testing.T) {
	b := newBench(t, runner.Config{})
	b.launch(t, "env", "sh", "-c", "pwd; env | sort; ls /proc/self/fd | wc -l; cut -d' ' -f5,6 /proc/$$/stat")
	b.exit(t, "env")
	work := filepath.Join(b.cfg.Root, "runs", "env", "work")
	lines := strings.Split(strings.TrimSpace(b.output(t, "env", runner.Stdout, 0)), "\n")
	run, _ := b.Get("env")
	// Four files: three streams, and the one that ls reads. The process leads its group and is in the shim's session.
	want := []string{work, "PACELINE_SANDBOX=" + work, "PATH=/usr/bin:/bin", "PWD=" + work, "4", fmt.Sprint(run.Start.Task.PID, " ", run.Start.Shim.PID)}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("the task saw\n%q, want\n%q", lines, want)
	}
}

func TestDuplicateLaunchStartsNothing(t *testing.T) {
	b := newBench(t, runner.Config{})
	count := filepath.Join(t.TempDir(), "count")
	b.launch(t, "once", "sh", "-c", "echo >> "+count)
	b.exit(t, "once")
	known, err := b.Launch(t.Context(), []runner.Spec{{ID: "once", Command: []string{"sh", "-c", "echo >> " + count}}})
	if err != nil || len(known) != 1 || known[0].Exit == nil {
		t.Fatalf("a second launch: %v, %v", known, err)
	}
	b.reopen(t)
	if known, err = b.Launch(t.Context(), []runner.Spec{{ID: "once", Command: []string{"true"}}}); err != nil || len(known) != 1 {
		t.Fatalf("a launch after a restart: %v, %v", known, err)
	}
	if raw, err := os.ReadFile(count); err != nil || string(raw) != "\n" {
		t.Errorf("it ran %d times (%v)", len(raw), err)
	}
}

func TestALaunchThatFailsLeavesNothing(t *testing.T) {
	b := newBench(t, runner.Config{})
	specs := []runner.Spec{{ID: "fine", Command: []string{"true"}}, {ID: "../escape", Command: []string{"true"}}}
	if _, err := b.Launch(t.Context(), specs); err == nil {
		t.Fatal("a bad name was accepted")
	}
	// An obstacle on the disk, found after the first directory was written.
	if err := os.WriteFile(filepath.Join(b.cfg.Root, "runs", "blocked"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	specs[1].ID = "blocked"
	if _, err := b.Launch(t.Context(), specs); err == nil {
		t.Fatal("a run without a directory was accepted")
	}
	if err := os.Remove(filepath.Join(b.cfg.Root, "runs", "blocked")); err != nil {
		t.Fatal(err)
	}
	if runs := b.Runs(); len(runs) != 0 {
		t.Errorf("%d runs are known", len(runs))
	}
	if known, err := b.Launch(t.Context(), specs); err != nil || len(known) != 0 {
		t.Errorf("the same launch, once it is possible: %v, %v", known, err)
	}
	b.exit(t, "fine")
	b.exit(t, "blocked")
}

func TestKill(t *testing.T) {
	b := newBench(t, runner.Config{})
	t.Run("polite", func(t *testing.T) {
		b.launch(t, "polite", "sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done")
		b.until(t, "it is up", func() bool { return b.output(t, "polite", runner.Stdout, 0) == "up\n" })
		mustKill(t, b, "polite", time.Hour, "why")
		exit := b.exit(t, "polite")
		if exit.Verdict != shim.Killed || exit.Code != 3 || exit.KillReason != "why" {
			t.Errorf("it ended with %+v", exit)
		}
		if out := b.output(t, "polite", runner.Stdout, 0); out != "up\nbye\n" {
			t.Errorf("its output is %q", out)
		}
	})
	t.Run("final", func(t *testing.T) {
		b.launch(t, "deaf", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done")
		b.until(t, "it is up", func() bool { return b.output(t, "deaf", runner.Stdout, 0) == "up\n" })
		mustKill(t, b, "deaf", time.Hour, "first")
		mustKill(t, b, "deaf", 50*time.Millisecond, "second") // shortens the wait, keeps the reason
		exit := b.exit(t, "deaf")
		if exit.Verdict != shim.Killed || exit.Signal != int(syscall.SIGKILL) || exit.KillReason != "first" {
			t.Errorf("it ended with %+v", exit)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		b.launch(t, "stopped", "sleep", "1000")
		run := b.started(t, "stopped")
		if err := syscall.Kill(run.Start.Task.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		mustKill(t, b, "stopped", time.Hour, "")
		if exit := b.exit(t, "stopped"); exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("it ended with %+v", exit)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		if _, err := b.Kill("nobody", 0, ""); !errors.Is(err, runner.ErrUnknown) {
			t.Errorf("the error is %v", err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		b.launch(t, "over", "true")
		b.exit(t, "over")
		run, err := b.Kill("over", 0, "")
		if err != nil || run.Exit == nil || run.Exit.Verdict != shim.Exited {
			t.Errorf("it says %+v, %v", run, err)
		}
	})
}

func mustKill(t *testing.T, b *bench, id string, grace time.Duration, reason string) {
	t.Helper()
	if _, err := b.Kill(id, grace, reason); err != nil {
		t.Fatal(err)
	}
}

func TestAKillNeedsNoDisk(t *testing.T) {
	var problems atomic.Int32
	b := newBench(t, runner.Config{Problem: func(runner.Problem) { problems.Add(1) }})
	for i, grace := range []time.Duration{0, time.Hour} {
		id := fmt.Sprintf("r%d", i)
		b.launch(t, id, "sleep", "1000")
		b.started(t, id)
		// A directory in its way stops the request as a full disk would.
		if err := os.Mkdir(filepath.Join(b.cfg.Root, "runs", id, "."+shim.KillFile+".new"), 0o700); err != nil {
			t.Fatal(err)
		}
		mustKill(t, b, id, grace, "why")
		want := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i]
		if exit := b.exit(t, id); exit.Verdict != shim.Killed || exit.Signal != int(want) || exit.KillReason != "why" {
			t.Errorf("with grace %s it ended with %+v", grace, exit)
		}
	}
	if problems.Load() != 2 {
		t.Errorf("%d problems were reported, want 2", problems.Load())
	}
}

func TestKillsAroundTheStartAreNotLost(t *testing.T) {
	b := newBench(t, runner.Config{Starts: 4, Problem: func(p runner.Problem) { t.Errorf("run %s: %v", p.Run, p.Err) }})
	graces := []time.Duration{0, time.Hour, 12*runner.MaxGrace + time.Hour}
	for i := range 24 {
		id := fmt.Sprintf("r%d", i)
		b.launch(t, id, "sleep", "1000")
		if i%3 == 1 {
			b.until(t, "accepted", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.phases[id]) > 0 })
		}
		mustKill(t, b, id, graces[i/3%len(graces)], "")
	}
	for i := range 24 {
		if exit := b.exit(t, fmt.Sprintf("r%d", i)); exit.Verdict != shim.Killed {
			t.Errorf("run %d ended with %+v", i, exit)
		}
	}
}

func TestNothingSurvivesItsRun(t *testing.T) {
	b := newBench(t, runner.Config{})
	// One in the group, one in a session of its own, and a grandchild whose parent is gone.
	b.launch(t, "parent", "sh", "-c", "sleep 1000 & echo $!; setsid sleep 1001 & (setsid sleep 1002 & echo $!); sleep 0.2; exit 0")
	b.exit(t, "parent")
	pids := strings.Fields(b.output(t, "parent", runner.Stdout, 0))
	if len(pids) != 2 {
		t.Fatalf("its output is %q", pids)
	}
	for _, line := range pids {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err != nil {
			t.Fatal(err)
		}
		if alive(pid) {
			t.Errorf("process %d lives on", pid)
		}
	}
}

func TestRestartFindsEveryRun(t *testing.T) {
	b := newBench(t, runner.Config{Starts: 1})
	gate := filepath.Join(t.TempDir(), "gate")
	b.launch(t, "long", "sleep", "1000")
	b.launch(t, "ends", "sh", "-c", "until [ -e "+gate+" ]; do sleep 0.02; done; exit 5")
	b.launch(t, "ended", "true")
	long := b.started(t, "long")
	b.started(t, "ends")
	b.exit(t, "ended")
	if err := b.Mark("long"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exitFile := filepath.Join(b.cfg.Root, "runs", "ends", shim.ExitFile)
	b.until(t, "the shim wrote while nobody watched", func() bool { _, err := os.Stat(exitFile); return err == nil })
	b.open(t)
	again, ok := b.Get("long")
	if !ok || again.Phase != runner.Started || *again.Start != *long.Start || !again.Marked {
		t.Errorf("the living run was found as %+v", again)
	}
	if run, _ := b.Get("ends"); run.Phase != runner.Ended || run.Exit.Code != 5 {
		t.Errorf("the run that ended meanwhile was found as %+v", run)
	}
	if run, _ := b.Get("ended"); run.Phase != runner.Ended || run.Exit.Verdict != shim.Exited {
		t.Errorf("the ended run was found as %+v", run)
	}
	mustKill(t, b, "long", 0, "")
	if exit := b.exit(t, "long"); exit.Verdict != shim.Killed {
		t.Errorf("the re-attached run ended with %+v", exit)
	}
}

func TestAcceptedRunsStartAfterARestart(t *testing.T) {
	hold := make(chan struct{})
	cfg := runner.Config{Root: t.TempDir(), Starts: 1, Admit: func(*shim.Spec) error { <-hold; return errors.New("not by this one") }}
	b := newBench(t, cfg)
	count := filepath.Join(t.TempDir(), "count")
	for i := range 5 {
		b.launch(t, fmt.Sprintf("r%d", i), "sh", "-c", "echo >> "+count)
	}
	// The first is refused in the starter's hands; the others are still waiting when the runner closes.
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	b.until(t, "no launch is taken any more", func() bool {
		_, err := b.Launch(t.Context(), []runner.Spec{{ID: "late", Command: []string{"true"}}})
		return err != nil
	})
	close(hold)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	b.cfg.Admit = nil
	b.open(t)
	ran := 0
	for _, run := range b.Runs() {
		if b.exit(t, run.Spec.ID).Verdict == shim.Exited {
			ran++
		}
	}
	raw, err := os.ReadFile(count)
	if err != nil {
		t.Fatal(err)
	}
	if ran < 4 || strings.Count(string(raw), "\n") > ran {
		t.Errorf("%d runs ended by themselves, and the command ran %d times", ran, strings.Count(string(raw), "\n"))
	}
}

func TestAShimEndedByForce(t *testing.T) {
	for _, watched := range []bool{true, false} {
		t.Run(fmt.Sprintf("watched=%t", watched), func(t *testing.T) {
			b := newBench(t, runner.Config{})
			// A process that left its group and its parent, so that only its environment tells whose it is.
			b.launch(t, "victim", "sh", "-c", "(setsid sleep 1003 & echo $!); exec sleep 1004")
			run := b.started(t, "victim")
			b.until(t, "the escaped process told its pid", func() bool { return strings.HasSuffix(b.output(t, "victim", runner.Stdout, 0), "\n") })
			var escaped int
			if _, err := fmt.Sscan(b.output(t, "victim", runner.Stdout, 0), &escaped); err != nil {
				t.Fatal(err)
			}
			if !watched {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := syscall.Kill(run.Start.Shim.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if !watched {
				_, _ = syscall.Wait4(run.Start.Shim.PID, nil, 0, nil) // in real life init does this
				b.open(t)
			}
			if exit := b.exit(t, "victim"); exit.Verdict != shim.ShimDied || exit.Message == "" {
				t.Errorf("it ended with %+v", exit)
			}
			b.until(t, "its processes are gone", func() bool { return !alive(run.Start.Task.PID) && !alive(escaped) })
			b.reopen(t)
			if again, _ := b.Get("victim"); again.Phase != runner.Ended || again.Exit.Verdict != shim.ShimDied {
				t.Errorf("after a restart it is %+v", again)
			}
		})
	}
}

// In the middle of an exec a process shows no environment, so that it cannot be told whose it is: these are always in the middle of one.
func TestASweepFindsThoseThatBecomeAnotherProgram(t *testing.T) {
	b := newBench(t, runner.Config{})
	again := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(again, []byte("#!/bin/sh\nexec \"$0\"\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	const escaped = 8
	b.launch(t, "victim", "sh", "-c", fmt.Sprintf("for i in $(seq %d); do setsid %s & echo $!; done; exec sleep 1005", escaped, again))
	run := b.started(t, "victim")
	b.until(t, "the escaped processes told their pids", func() bool { return strings.Count(b.output(t, "victim", runner.Stdout, 0), "\n") == escaped })
	pids := strings.Fields(b.output(t, "victim", runner.Stdout, 0))
	if err := syscall.Kill(run.Start.Shim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit := b.exit(t, "victim"); exit.Verdict != shim.ShimDied {
		t.Errorf("it ended with %+v", exit)
	}
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		b.until(t, "process "+text+" is gone", func() bool { return !alive(pid) })
	}
}

func TestAnotherBootMeansLost(t *testing.T) {
	b := newBench(t, runner.Config{})
	b.launch(t, "old", "sleep", "1000")
	run := b.started(t, "old")
	mustKill(t, b, "old", 0, "")
	b.exit(t, "old")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// What the disk would hold had the machine restarted: the records of a former boot and no exit record. The pid now
	// belongs to this very test.
	dir := filepath.Join(b.cfg.Root, "runs", "old")
	spec, start := *run.Spec, *run.Start
	spec.Boot = "another"
	start.Boot, start.Shim.PID, start.Task.PID = "another", os.Getpid(), os.Getpid()
	if err := errors.Join(os.Remove(filepath.Join(dir, shim.ExitFile)), shim.Save(dir, shim.SpecFile, &spec), shim.Save(dir, shim.StartFile, &start)); err != nil {
		t.Fatal(err)
	}
	b.open(t)
	if exit := b.exit(t, "old"); exit.Verdict != shim.Rebooted {
		t.Errorf("it ended with %+v", exit)
	}
}

func TestADamagedRunIsSetAside(t *testing.T) {
	b := newBench(t, runner.Config{})
	b.launch(t, "damaged", "sleep", "1000")
	run := b.started(t, "damaged")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.cfg.Root, "runs", "damaged", shim.SpecFile), []byte(`{"version":`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.open(t)
	if _, ok := b.Get("damaged"); ok {
		t.Error("it is known")
	}
	// The shim, which nobody knows any more, writes how the task ended: not into a directory that the test's end is just removing.
	b.until(t, "its processes are gone", func() bool { return !alive(run.Start.Task.PID) && !alive(run.Start.Shim.PID) })
	if _, err := os.Stat(filepath.Join(b.cfg.Root, "damaged", "damaged")); err != nil {
		t.Error(err)
	}
}

func TestARootHasOneRunner(t *testing.T) {
	b := newBench(t, runner.Config{})
	if _, err := runner.Open(runner.Config{Root: b.cfg.Root}); err == nil || !strings.Contains(err.Error(), "served by another process") {
		t.Errorf("a second runner: %v", err)
	}
}

func TestOutputRotates(t *testing.T) {
	b := newBench(t, runner.Config{Logs: shim.LogLimits{FileBytes: 4096, Files: 2}})
	b.launch(t, "loud", "sh", "-c", "i=0; while [ $i -lt 1500 ]; do printf '%07d\\n' $i; i=$((i+1)); done; echo fine >&2")
	b.exit(t, "loud")
	var whole strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&whole, "%07d\n", i)
	}
	want := whole.String() // 12,000 bytes: files 1 and 2 are kept
	for _, c := range []struct{ offset, from int64 }{{0, 4096}, {4096, 4096}, {8000, 8000}, {8192, 8192}, {11992, 11992}, {12000, 12000}, {13000, 12000}, {-8, 11992}, {-1 << 40, 4096}} {
		if got := b.output(t, "loud", runner.Stdout, c.offset); got != want[c.from:] {
			t.Errorf("from %d on there are %d bytes (%.20q), want those from %d on", c.offset, len(got), got, c.from)
		}
	}
	if got := b.output(t, "loud", runner.Stderr, 0); got != "fine\n" {
		t.Errorf("the other stream is %q", got)
	}
}

func TestOutputFollows(t *testing.T) {
	b := newBench(t, runner.Config{Logs: shim.LogLimits{FileBytes: 4096, Files: 64}})
	gate := filepath.Join(t.TempDir(), "gate")
	b.launch(t, "slow", "sh", "-c", "echo one; until [ -e "+gate+" ]; do sleep 0.02; done; head -c 9000 /dev/zero; echo two")
	r, err := b.Output(t.Context(), "slow", runner.Stdout, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	first := make([]byte, 4)
	if _, err := io.ReadFull(r, first); err != nil || string(first) != "one\n" {
		t.Fatalf("it began with %q, %v", first, err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || len(rest) != 9004 || !strings.HasSuffix(string(rest), "two\n") {
		t.Errorf("it went on for %d bytes, %v", len(rest), err)
	}
}

func TestAcknowledgedRunsAreKeptWithinBounds(t *testing.T) {
	b := newBench(t, runner.Config{KeepRuns: 3})
	for i := range 6 {
		id := fmt.Sprintf("r%d", i)
		b.launch(t, id, "echo", id)
		if err := b.Acknowledge(id); err != nil { // too early or just in time: never an error
			t.Fatal(err)
		}
		b.exit(t, id)
		if err := b.Acknowledge(id); err != nil {
			t.Fatal(err)
		}
	}
	b.until(t, "three are left", func() bool { return len(b.Runs()) == 3 })
	if got := b.output(t, "r5", runner.Stdout, 0); got != "r5\n" {
		t.Errorf("the output of a kept run is %q", got)
	}
	if _, err := b.Output(t.Context(), "r0", runner.Stdout, 0, false); !errors.Is(err, runner.ErrUnknown) {
		t.Errorf("the output of a removed run: %v", err)
	}
	b.cfg.KeepRuns = -1
	b.reopen(t)
	b.until(t, "none is left", func() bool { return len(b.Runs()) == 0 })
}

func TestExec(t *testing.T) {
	b := newBench(t, runner.Config{})
	b.launch(t, "host", "sleep", "1000")
	b.started(t, "host")
	if err := b.Exec(t.Context(), "host", []string{"sh", "-c", `[ "$PWD" = "$PACELINE_SANDBOX" ]`}); err != nil {
		t.Errorf("in the sandbox: %v", err)
	}
	if err := b.Exec(t.Context(), "host", []string{"sh", "-c", "echo broken; exit 2"}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a failing command: %v", err)
	}
	if err := b.Exec(t.Context(), "nobody", []string{"true"}); !errors.Is(err, runner.ErrUnknown) {
		t.Errorf("beside no run: %v", err)
	}
}

// BenchmarkStart measures one short run from its launch to its end, many at once.
func BenchmarkStart(b *testing.B) {
	w := newBench(b, runner.Config{KeepRuns: -1})
	specs := make([]runner.Spec, b.N)
	for i := range specs {
		specs[i] = runner.Spec{ID: fmt.Sprintf("r%d", i), Command: []string{"/bin/true"}}
	}
	b.ResetTimer()
	if _, err := w.Launch(b.Context(), specs); err != nil {
		b.Fatal(err)
	}
	w.until(b, "all ended", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.ended) == b.N })
	b.StopTimer()
}
