package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestOwnCgroup(t *testing.T) {
	const v1 = "25 24 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	const v2 = "34 24 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct{ mounts, groups, want, fails string }{
		"found":       {v1 + v2, "4:memory:/x\n0::/user/me\n", "/sys/fs/cgroup/unified/user/me", ""},
		"not mounted": {v1, "0::/\n", "", "no cgroup v2 tree"},
		"not in it":   {v2, "4:memory:/x\n", "", "in no cgroup"},
	} {
		root := tree(t, map[string]string{"mountinfo": c.mounts, "cgroup": c.groups})
		got, err := ownCgroup(filepath.Join(root, "mountinfo"), filepath.Join(root, "cgroup"))
		if got != c.want || (err == nil) != (c.fails == "") || (err != nil && !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %q, %v", name, got, err)
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
