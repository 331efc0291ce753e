package runner_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// crowd is the number of short runs that a crash server launches.
const crowd = 20

// crashServer launches one long run and, once that runs, many short ones that each leave a line; it says so after each launch, and waits to
// be killed.
func crashServer(root string) {
	started := make(chan struct{}, crowd)
	r, err := runner.Open(runner.Config{Root: root, Observe: func(run runner.Run) {
		if run.Phase == runner.Started && run.Spec.ID == "long" {
			started <- struct{}{}
		}
	}})
	if err == nil {
		_, err = r.Launch(context.Background(), []runner.Spec{{ID: "long", Command: []string{"/bin/sleep", "1000"}}})
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	<-started
	fmt.Println("long")
	specs := make([]runner.Spec, crowd)
	for i := range specs {
		specs[i] = runner.Spec{ID: fmt.Sprintf("r%d", i), Command: []string{"/bin/sh", "-c", "echo >> ../count"}}
	}
	if _, err = r.Launch(context.Background(), specs); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("crowd")
	select {}
}

// TestAServersSuddenDeath kills the server's whole process group at different moments. No accepted run may be missing, run twice, or
// have died with it.
func TestAServersSuddenDeath(t *testing.T) {
	for _, moment := range []string{"long", "crowd", "first-exit"} {
		t.Run(moment, func(t *testing.T) {
			root := t.TempDir()
			server := exec.Command("/proc/self/exe")
			server.Env = append(os.Environ(), serverRoot+"="+root)
			server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stdout, err := server.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, bufio.NewScanner(stdout), strings.TrimSuffix(strings.Replace(moment, "first-exit", "crowd", 1), "\n"))
			if moment == "first-exit" {
				waitForFile(t, filepath.Join(root, "runs", "*", shim.ExitFile))
			}
			if err := syscall.Kill(-server.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = server.Wait() // it was killed, and says so

			b := newBench(t, runner.Config{Root: root})
			if long, ok := b.Get("long"); !ok || long.Phase != runner.Started {
				t.Errorf("the long run was found as %+v", long)
			}
			short := 0
			for _, run := range b.Runs() {
				if run.Spec.ID == "long" {
					continue
				}
				short++
				if exit := b.exit(t, run.Spec.ID); exit.Verdict != shim.Exited || exit.Code != 0 {
					t.Errorf("run %s ended with %+v", run.Spec.ID, exit)
				}
				if raw, err := os.ReadFile(filepath.Join(root, "runs", run.Spec.ID, "count")); err != nil || string(raw) != "\n" {
					t.Errorf("run %s ran %d times (%v)", run.Spec.ID, len(raw), err)
				}
			}
			if moment != "long" && short != crowd {
				t.Errorf("%d of %d accepted runs are known", short, crowd)
			}
		})
	}
}

func waitFor(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	for lines.Scan() {
		if lines.Text() == want {
			return
		}
		if strings.HasPrefix(lines.Text(), "failed") {
			t.Fatal(lines.Text())
		}
	}
	t.Fatalf("the server ended before it said %q", want)
}

func waitForFile(t *testing.T, pattern string) {
	t.Helper()
	(&bench{wake: make(chan struct{})}).until(t, pattern, func() bool {
		found, err := filepath.Glob(pattern)
		return err == nil && len(found) > 0
	})
}
