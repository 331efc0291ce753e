package isolate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/conformance/controlplane/isolate"
)

// outer has this test binary call Run, so that it can be killed.
const outer = "PACELINE_ISOLATE_OUTER"

func TestMain(m *testing.M) {
	isolate.Main()
	if script := os.Getenv(outer); script != "" {
		var exit *exec.ExitError
		switch err := isolate.Run(context.Background(), os.Stderr, []string{"sh", "-c", script}); {
		case errors.As(err, &exit):
			os.Exit(exit.ExitCode())
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// Whoever may not make namespaces is told so.
func TestWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this is root")
	}
	if err := isolate.Run(t.Context(), os.Stderr, []string{"true"}); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("without root: %v", err)
	}
	if isolate.Inside() {
		t.Error("this process is said to be inside")
	}
}

// findTree has a script find a tree of cgroups, of version 1 or 2, as $d.
const findTree = "for d in /sys/fs/cgroup/memory /sys/fs/cgroup; do [ -e $d/cgroup.procs ] && break; done; "

func privileged(t *testing.T) {
	t.Helper()
	if os.Getenv("PACELINE_KUBELETS") == "" {
		t.Skip("makes mounts and cgroups: make conformance-kubelet")
	}
}

// What a program leaves behind is gone when it ends, and its exit code is told.
func TestNothingIsLeft(t *testing.T) {
	privileged(t)
	mark := filepath.Join(t.TempDir(), "mark")
	out, err := run(t, findTree+`mkdir $d/$PACELINE_ISOLATED
		sleep 1000 & echo > /var/lib/paceline-isolated-test; mount -t tmpfs none /mnt; ls /run; readlink /proc/self/ns/net; touch `+mark+`; exit 7`).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("it ended with %v: %s", err, out)
	}
	if net, _ := os.Readlink("/proc/self/ns/net"); bytes.Contains(out, []byte(net)) {
		t.Errorf("it has this machine's network: %s", out)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error("it does not see this machine's files")
	}
	clean(t)
}

// Nothing survives that Run is killed: what runs ends with it, and the next run removes the cgroups.
func TestKilled(t *testing.T) {
	privileged(t)
	dir := t.TempDir()
	pidfile := filepath.Join(dir, "pid")
	// The process tells its number outside by the cgroup that it is in.
	command := run(t, findTree+`mkdir $d/$PACELINE_ISOLATED
		sleep 1000 & echo $! > $d/$PACELINE_ISOLATED/cgroup.procs; echo $d/$PACELINE_ISOLATED > `+pidfile+`.new; mv `+pidfile+`.new `+pidfile+`; sleep 1000`)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var group string
	wait(t, "the process", func() bool {
		raw, err := os.ReadFile(pidfile)
		group = strings.TrimSpace(string(raw))
		return err == nil
	})
	raw, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid < 2 {
		t.Fatalf("the process in there is %q: %v", raw, err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	wait(t, "the end of what was started", func() bool { return syscall.Kill(pid, 0) != nil })
	if out, err := run(t, "true").CombinedOutput(); err != nil {
		t.Fatalf("the next run: %v: %s", err, out)
	}
	clean(t)
}

func run(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), self)
	command.Env = append(os.Environ(), outer+"="+script)
	return command
}

func clean(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/paceline-isolated-*", "/sys/fs/cgroup/*/paceline-isolated-*", "/var/lib/paceline-isolated-test"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("there is still %v", left)
		}
	}
	if mounts, _ := os.ReadFile("/proc/self/mounts"); bytes.Contains(mounts, []byte(" /mnt tmpfs")) {
		t.Error("its mount is still there")
	}
}

func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(2*time.Minute), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("in vain waited for %s", what)
		}
	}
}
