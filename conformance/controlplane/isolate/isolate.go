package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	// firstWord makes this program the first process of new namespaces.
	firstWord = "isolated-init"
	// variable names, inside, the cgroups that are the program's.
	variable = "PACELINE_ISOLATED"
	// politeness is how long a program may take to end when it is asked to.
	politeness = 20 * time.Second
)

// Inside says whether this process was started by Run.
func Inside() bool { return os.Getenv(variable) != "" }

// Cgroup is the name below which the program may make cgroups, in every tree of cgroups. It begins with a slash.
func Cgroup() string { return "/" + os.Getenv(variable) }

// Run runs a command in namespaces of its own, and returns once nothing of it is left. The output is this process's; log is told
// what is waited for. An *exec.ExitError says how the command ended.
func Run(ctx context.Context, log io.Writer, command []string) error {
	if os.Geteuid() != 0 {
		return errors.New("real kubelets make namespaces, mounts and cgroups, which takes root: run this as root")
	}
	lock, err := acquire(log)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // gives the lock back
	if err := able(); err != nil {
		return err
	}
	if err := sweep(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start a program in namespaces of its own: %w", err)
	}
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := exec.CommandContext(ctx, self, append([]string{firstWord}, command...)...) //nolint:gosec // the caller says what
	child.Env = append(os.Environ(), variable+"="+prefix+fmt.Sprint(os.Getpid()))
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = politeness
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("make namespaces for processes, mounts and a network: %w (it takes root with CAP_SYS_ADMIN; in a container, a privileged one)", err)
	}
	return errors.Join(child.Wait(), sweep())
}

// able says why this machine cannot run a program apart. Its caller has the lock: two at once would take each other's probes away.
func able() error {
	trees, err := cgroupTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		probe := filepath.Join(tree, prefix+"probe")
		if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // the kernel's files
			return fmt.Errorf("real kubelets need cgroups of their own, and none can be made in %s: %w (in a container, mount the cgroups writable)", tree, err)
		}
		if err := os.Remove(probe); err != nil {
			return fmt.Errorf("remove a cgroup again: %w", err)
		}
	}
	return nil
}

// acquire waits until nobody else on this machine runs one.
func acquire(log io.Writer) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "paceline-isolated.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("see whether somebody else runs kubelets here: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		fmt.Fprintln(log, "somebody else runs kubelets on this machine; waiting for their end")
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for others who run kubelets here: %w", err), lock.Close())
	}
	return lock, nil
}
