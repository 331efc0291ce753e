package shim

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOwnCgroup(t *testing.T) {
	const v1 = "25 24 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	const v2 = "34 24 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct{ mounts, groups, want, fails string }{
		"found":       {v1 + v2, "4:memory:/x\n0::/user/me\n", "/sys/fs/cgroup/unified/user/me", ""},
		"not mounted": {v1, "0::/\n", "", "no cgroup v2 tree"},
		"not in it":   {v2, "4:memory:/x\n", "", "in no cgroup"},
	} {
		mounts, groups := filepath.Join(t.TempDir(), "mountinfo"), filepath.Join(t.TempDir(), "cgroup")
		for path, text := range map[string]string{mounts: c.mounts, groups: c.groups} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := OwnCgroup(mounts, groups)
		if got != c.want || (err == nil) != (c.fails == "") || (err != nil && !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A task is in its cgroup from its first instruction, and the shim is not, whether or not clone3 may be used.
func TestForkIn(t *testing.T) {
	own, err := OwnCgroup(MountsFile, CgroupFile)
	if err != nil {
		t.Skip("there are no cgroups of version 2:", err)
	}
	group := filepath.Join(own, fmt.Sprintf("paceline-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("no cgroup can be made here:", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	environment := []string{"GOMEMLIMIT=no limit that Go knows", "GODEBUG=inittrace=1", "_GO=1", "__GOAL=", "A=GO", "GO=", "_="}
	for name, fork := range map[string]func(string, string, []string, *syscall.ProcAttr) (int, error){"clone3": forkIn, "entering": forkEntering} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pid, err := fork(group, "/bin/cat", []string{"cat", CgroupFile, "/proc/self/environ"}, &syscall.ProcAttr{Env: environment, Files: []uintptr{0, w.Fd(), 2}, Sys: &syscall.SysProcAttr{}})
		_ = w.Close() // the task has its own
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		said, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close() // it was only read
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(said), strings.Join(environment, "\x00")) {
			t.Errorf("%s: the task has not got its environment:\n%q", name, said)
		}
		if !strings.Contains(string(said), "/"+filepath.Base(group)+"\n") {
			t.Errorf("%s: the task is in\n%s, want %s", name, said, group)
		}
		if now, err := OwnCgroup(MountsFile, CgroupFile); err != nil || now != own {
			t.Errorf("%s: the shim is in %s (%v) and was in %s", name, now, err, own)
		}
	}
}

// What keeps the task from starting is told, as it is by clone3.
func TestForkEnteringFails(t *testing.T) {
	for want, args := range map[string][2]string{
		"enter the run's cgroup": {filepath.Join(t.TempDir(), "none"), "/bin/true"},
		"permission denied":      {t.TempDir(), "/dev/null"},
	} {
		pid, err := forkEntering(args[0], args[1], []string{"x"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("process %d, %v; want %q", pid, err, want)
		}
	}
}
