package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// The kernel's word on the mounts that this process sees, and on the cgroups that it is in.
const (
	MountsFile = "/proc/self/mountinfo"
	CgroupFile = "/proc/self/cgroup"
)

// membersFile of a cgroup takes the process that is to be in it; 0 is the one that writes.
const membersFile = "cgroup.procs"

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
		return forkFrom(group, program, command, attributes)
	}
	return pid, err
}

// forkFrom starts a program from within a cgroup, and returns to this process' own: a child begins where its parent is. It is for where clone3 is forbidden,
// which would start it there; systemd's RestrictNamespaces= and some containers do that.
func forkFrom(group, program string, command []string, attributes *syscall.ProcAttr) (int, error) {
	own, err := OwnCgroup(MountsFile, CgroupFile)
	if err != nil {
		return 0, err
	}
	back, err := os.OpenFile(filepath.Join(own, membersFile), os.O_WRONLY, 0)
	if err != nil {
		return 0, fmt.Errorf("open the cgroup to return to: %w", err)
	}
	defer closeQuietly(back)
	if err := os.WriteFile(filepath.Join(group, membersFile), []byte("0"), 0); err != nil {
		return 0, fmt.Errorf("enter the run's cgroup: %w", err)
	}
	pid, err := syscall.ForkExec(program, command, attributes)
	if _, moved := back.WriteString("0"); moved != nil {
		fmt.Fprintln(os.Stderr, "the shim stays in the run's cgroup, and under its limits:", moved)
	}
	return pid, err
}
