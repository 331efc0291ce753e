package kubelet_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/conformance/kubelet"
	"github.com/paceline-sched/paceline/core/workload"
)

var (
	update = flag.Bool("update", false, "record what real kubelets do")
	keep   = flag.String("keep", "", "keep certificates, configurations and logs of real kubelets in this empty folder")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Emulated kubelets do what was recorded of real ones.
func TestEmulated(t *testing.T) {
	t.Parallel()
	w := emulatedWorld(t)
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			if sc.differs != "" {
				t.Skip("not emulated: " + sc.differs)
			}
			judge(t, w, &sc, false)
		})
	}
}

// Real kubelets do what was recorded, and what no emulator without programs can do. With -update they are recorded anew.
func TestReal(t *testing.T) {
	if os.Getenv("PACELINE_KUBELETS") == "" {
		t.Skip("needs real kubelets: make conformance-kubelet")
	}
	w := realWorld(t)
	t.Run("together", func(t *testing.T) {
		for i, check := range drivertest.Checks() {
			t.Run(check.Name, func(t *testing.T) {
				if check.Name != "AfterTheEndNothingIsTaken" { // which counts goroutines
					t.Parallel()
				}
				check.Run(t, kit(t, w, "kit-"+strconv.Itoa(i)))
			})
		}
		for _, sc := range scenarios() {
			t.Run(sc.name, func(t *testing.T) {
				if !sc.alone {
					t.Parallel()
				}
				judge(t, w, &sc, *update)
			})
		}
		for _, c := range contents() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.play(newStage(t, w, w.nodes[0]))
			})
		}
	})
	if left := programs(t); len(left) > 0 {
		t.Errorf("programs of containers still run: %q", left)
	}
}

// programs are those of containers that run on this machine. What the kubelets have yet to end is waited for.
func programs(t *testing.T) (left []string) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(100*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		left = nil
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, _ := os.ReadFile(file) // it may be gone
			words := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
			if words[0] == controlplane.Task && words[len(words)-1] != "pause" {
				left = append(left, strings.Join(words, " "))
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return left
		}
	}
}

// judge plays a scenario and compares its account with the recorded one.
func judge(t *testing.T, w *world, sc *scenario, record bool) {
	t.Helper()
	node := w.nodes[0]
	if sc.alone {
		node = w.nodes[1]
	}
	s := newStage(t, w, node)
	run := sc.play(s)
	got := s.account(run, sc)
	file := filepath.Join("testdata", sc.name+".txt")
	if record {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("recorded:\n%s\ngot:\n%s\nheard:\n%s\npods:\n%s", want, got, s.sink, s.seen)
	}
}

// account is what became of a run: of one that lives for a while all that was told, of others the last word.
func (s *stage) account(run workload.RunID, sc *scenario) string {
	s.await("the end of the pod", func() bool { return s.seen.settled(run.String()) })
	told := s.sink.history(run)
	if !sc.lives && len(told) > 0 {
		told = told[len(told)-1:]
	}
	text := kubelet.Account(told, s.seen.last(run.String()))
	for _, m := range sc.masked {
		var kept []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, m) {
				line, _, _ = strings.Cut(line, ":")
				line = strings.TrimSpace(line) + ": (said in other words each time)\n"
			}
			kept = append(kept, line)
		}
		text = strings.Join(kept, "")
	}
	return fmt.Sprintf("# %s\n%s", sc.about, text)
}
