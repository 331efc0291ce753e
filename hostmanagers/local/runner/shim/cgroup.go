package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// The kernel's word on the mounts that this process sees, and on the cgroups that it is in.
const (
	MountsFile = "/proc/self/mountinfo"
	CgroupFile = "/proc/self/cgroup"
)

const (
	// membersFile of a cgroup takes the process that is to be in it; 0 is the one that writes.
	membersFile = "cgroup.procs"
	// enterName is what a shim calls the process that becomes the task once it has entered the task's cgroup, and failedFD where that says why it
	// could not.
	enterName = "paceline-enter"
	failedFD  = 3
)

// OwnCgroup returns the directory of the v2 cgroup that this process is in, by files in the form of MountsFile and CgroupFile.
func OwnCgroup(mountinfo, cgroup string) (string, error) {
	mounts, err := os.ReadFile(mountinfo)
	if err != nil {
		return "", fmt.Errorf("cannot look for cgroups: %w", err)
	}
	mount := ""
	for line := range strings.Lines(string(mounts)) {
		// "36 35 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
		before, after, ok := strings.Cut(line, " - ")
		if fields := strings.Fields(before); ok && strings.HasPrefix(after, "cgroup2 ") && len(fields) >= 5 {
			mount = fields[4]
			break
		}
	}
	if mount == "" {
		return "", errors.New("no cgroup v2 tree is mounted")
	}
	groups, err := os.ReadFile(cgroup)
	if err != nil {
		return "", fmt.Errorf("cannot look for cgroups: %w", err)
	}
	for line := range strings.Lines(string(groups)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join(mount, path), nil
		}
	}
	return "", fmt.Errorf("this process is in no cgroup of the v2 tree at %s", mount)
}

// forkIn starts a program in a cgroup; "": in this process' own.
func forkIn(group, program string, command []string, attributes *syscall.ProcAttr) (int, error) {
	if group == "" {
		return syscall.ForkExec(program, command, attributes)
	}
	dir, err := os.Open(group)
	if err != nil {
		return 0, fmt.Errorf("open the run's cgroup: %w", err)
	}
	defer closeQuietly(dir)
	sys := attributes.Sys
	sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	pid, err := syscall.ForkExec(program, command, attributes)
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) {
		sys.UseCgroupFD, sys.CgroupFD = false, 0
		return forkEntering(group, program, command, attributes)
	}
	return pid, err
}

// forkEntering starts a program that enters the cgroup and becomes the task: for where clone3 is forbidden, by which the kernel would start the task in there.
// systemd's RestrictNamespaces= and some containers do that. The shim itself stays out: the kernel could take it for the process to end.
func forkEntering(group, program string, command []string, attributes *syscall.ProcAttr) (int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer closeQuietly(r)
	with := *attributes
	with.Files = append(slices.Clone(attributes.Files), w.Fd()) // it is failedFD: a task has the three usual ones
	with.Env = veiled(attributes.Env)
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{enterName, group, program}, command...), &with)
	closeQuietly(w)
	if err != nil {
		return 0, err
	}
	failed, err := io.ReadAll(r) // ends when the process has become the task, or has ended
	if err == nil && len(failed) > 0 {
		err = errors.New(string(failed))
	}
	if err == nil {
		return pid, nil
	}
	_ = syscall.Kill(pid, syscall.SIGKILL) // an unreaped child of ours: the pid is surely it
	_, waited := syscall.Wait4(pid, nil, 0, nil)
	return 0, errors.Join(err, waited)
}

// goVariables begin like this. The Go runtime of the process that enters the cgroup would obey the task's own: one that it does not understand ends it.
const goVariables = "GO"

func forGo(entry string) bool { return strings.HasPrefix(strings.TrimLeft(entry, "_"), goVariables) }

// veiled returns an environment in which Go's runtime finds no variable of its own.
func veiled(environment []string) []string {
	list := slices.Clone(environment)
	for i, entry := range list {
		if forGo(entry) {
			list[i] = "_" + entry
		}
	}
	return list
}

// unveiled undoes veiled.
func unveiled(environment []string) []string {
	for i, entry := range environment {
		if forGo(entry) {
			environment[i] = strings.TrimPrefix(entry, "_")
		}
	}
	return environment
}

// enter is the whole life of the process that forkEntering starts, or never returns: it becomes the task.
func enter(args []string) {
	syscall.CloseOnExec(failedFD)
	err := errors.New("it was not told what to start")
	if len(args) > 2 {
		group, program, command := args[0], args[1], args[2:]
		if err = os.WriteFile(filepath.Join(group, membersFile), []byte("0"), 0); err != nil {
			err = fmt.Errorf("enter the run's cgroup: %w", err)
		} else {
			err = syscall.Exec(program, command, unveiled(os.Environ()))
		}
	}
	_, _ = syscall.Write(failedFD, []byte(err.Error())) // there is nobody else to tell
	os.Exit(1)
}
