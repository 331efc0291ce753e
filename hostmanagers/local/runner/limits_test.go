package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// tree writes files under a directory. What stands in for a cgroup directory takes every write, as the kernel's would.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Where systemd has handed over the cgroup above, runs get theirs there.
func TestDelegatedAbove(t *testing.T) {
	above := tree(t, map[string]string{"server/cgroup.procs": ""})
	own := filepath.Join(above, "server")
	if got := delegatedAbove(own); got != own {
		t.Errorf("a group above that nobody handed over was taken: %s", got)
	}
	for value, want := range map[string]string{"0": own, "1": above, "10": own} {
		if err := unix.Setxattr(above, delegateAttribute, []byte(value), 0); err != nil {
			t.Skip("the file system has no such attributes:", err)
		}
		if got := delegatedAbove(own); got != want {
			t.Errorf("above says %q: %s, want %s", value, got, want)
		}
	}
}

func TestLimitsSayWhyTheyAreNotEnforced(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"is no cgroup v2":       {"x": ""},
		"has no memory":         {"cgroup.controllers": "cpu io\n"},
		"cannot pass on":        {"cgroup.controllers": "cpu memory\n"},
		"has no cpu controller": {"cgroup.controllers": "\n"},
	} {
		if l := detectLimits(tree(t, files), "/root"); l.parent != "" || !strings.Contains(l.why, want) {
			t.Errorf("limits %+v, want the reason %q", l, want)
		}
	}
}

func TestLimitsAreWritten(t *testing.T) {
	dir := tree(t, map[string]string{"memory.max": "", "memory.swap.max": "", "cpu.max": ""})
	if err := (limits{}).apply(dir, Limits{MemoryBytes: 64 << 20, CPUMilli: 1500}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "cpu.max": "150000 100000"} {
		if raw, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(raw) != want {
			t.Errorf("%s is %q (%v), want %q", file, raw, err, want)
		}
	}
	if err := (limits{}).apply(t.TempDir(), Limits{MemoryBytes: 1}); err == nil {
		t.Error("a limit that could not be written was passed over")
	}
	l := limits{parent: "/cg"}
	if got := l.path("a", Limits{CPUMilli: 1}); got != "/cg/a" {
		t.Errorf("the cgroup is %q", got)
	}
	if got := l.path("a", Limits{}); got != "" {
		t.Errorf("a run without limits has the cgroup %q", got)
	}
}

// A run that a process accepted, and did not come to start, is started by the next one with its limits.
func TestAnAcceptedRunKeepsItsLimits(t *testing.T) {
	groups := tree(t, map[string]string{"a/memory.max": "", "a/memory.swap.max": ""})
	boot, err := shim.BootID()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	cfg := Config{Root: t.TempDir(), Observe: func(run Run) {
		if run.Phase == Ended {
			close(ended)
		}
	}}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{runsDir, newDir} {
		if err := os.Mkdir(filepath.Join(cfg.Root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	killed := &Runner{
		cfg: cfg, boot: boot, limits: limits{parent: groups}, runs: map[string]*run{},
		toStart: make(signal, 1), toTell: make(signal, 1), toKeep: make(signal, 1),
	}
	if _, err := killed.Launch(t.Context(), []Spec{{ID: "a", Command: []string{"/bin/true"}, Limits: Limits{MemoryBytes: 64 << 20}}}); err != nil {
		t.Fatal(err)
	}
	next, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}()
	<-ended // what stands in for a cgroup takes no process
	if raw, err := os.ReadFile(filepath.Join(groups, "a", "memory.max")); err != nil || string(raw) != "67108864" {
		t.Errorf("memory.max is %q (%v)", raw, err)
	}
}
