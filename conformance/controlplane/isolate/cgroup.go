package isolate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// prefix begins the names of all cgroups that are ours.
	prefix = "paceline-isolated-"
	// sweeps and pause bound the wait for processes to leave a cgroup.
	sweeps = 100
	pause  = 50 * time.Millisecond
)

// cgroupTrees are the roots of the trees of cgroups: one in version 2, one for each controller in version 1.
func cgroupTrees() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.procs")); err == nil {
		return []string{cgroupRoot}, nil
	}
	found, err := filepath.Glob(filepath.Join(cgroupRoot, "*", "cgroup.procs"))
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("real kubelets need cgroups, and there are none at %s: mount them", cgroupRoot)
	}
	trees := make([]string, len(found))
	for i, file := range found {
		trees[i] = filepath.Dir(file)
	}
	return trees, nil
}

// MakeCgroup makes a cgroup, by a name below Cgroup, in every tree.
func MakeCgroup(name string) error {
	trees, err := cgroupTrees()
	if err != nil {
		return err
	}
	for _, tree := range trees {
		dir := tree
		for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
			if err := handOn(dir); err != nil {
				return err
			}
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the kernel's files
				return fmt.Errorf("make a cgroup: %w", err)
			}
			if err := inherit(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// handOn has a cgroup of version 2 give its controllers to those below.
func handOn(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // version 1
	}
	if err != nil {
		return fmt.Errorf("look for controllers: %w", err)
	}
	for name := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("give controller %s to the cgroups below %s: %w", name, dir, err)
		}
	}
	return nil
}

// inherit gives a cpuset of version 1 what its parent has: a new one has nothing, and takes no process.
func inherit(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		now, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(now)) != "" {
			continue
		}
		above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // version 2, right below its root
		}
		if err != nil {
			return fmt.Errorf("give a cgroup its processors: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), above, 0); err != nil {
			return fmt.Errorf("give a cgroup its processors: %w", err)
		}
	}
	return nil
}

// sweep removes the cgroups of all earlier runs, and kills what may still be in them.
func sweep() error {
	trees, err := cgroupTrees()
	if err != nil {
		return err
	}
	for range sweeps {
		left := 0
		for _, tree := range trees {
			roots, err := filepath.Glob(filepath.Join(tree, prefix+"*"))
			if err != nil {
				return fmt.Errorf("look for cgroups of earlier runs: %w", err)
			}
			for _, root := range roots {
				left += remove(root)
			}
		}
		if left == 0 {
			return nil
		}
		time.Sleep(pause)
	}
	return fmt.Errorf("cgroups %s/*/%s* are still in use, by processes that cannot be killed", cgroupRoot, prefix)
}

// remove removes a cgroup with those below it, and returns how many stay for now.
func remove(dir string) (left int) {
	below, err := os.ReadDir(dir)
	if err != nil {
		return 0 // it is gone
	}
	for _, entry := range below {
		if entry.IsDir() {
			left += remove(filepath.Join(dir, entry.Name()))
		}
	}
	if os.Remove(dir) == nil || left > 0 {
		return left
	}
	raw, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // it may be gone
	for word := range strings.FieldsSeq(string(raw)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
	}
	return 1
}
