package runner

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// limits enforces Limits through cgroup v2, or says why it cannot.
type limits struct {
	parent string // under which each run gets its cgroup; "": not enforced
	why    string // not enforced
}

// cpuPeriod is the length in microseconds over which a CPU limit is enforced; the kernel's default.
const cpuPeriod = 100_000

// delegateAttribute is what systemd marks a cgroup with that it has handed over.
const delegateAttribute = "user.delegate"

// Limits reports whether memory and CPU limits are enforced, and if not, why.
func (r *Runner) Limits() (enforced bool, why string) { return r.limits.parent != "", r.limits.why }

// detectLimits finds out whether this process may make limited cgroups. It makes the runner's own one, and nothing else.
func detectLimits(configured, root string) limits {
	parent := configured
	if parent == "" {
		own, err := shim.OwnCgroup(shim.MountsFile, shim.CgroupFile)
		if err != nil {
			return limits{why: err.Error()}
		}
		parent = delegatedAbove(own)
	}
	hash := fnv.New64a()
	hash.Write([]byte(root)) // never fails
	dir := filepath.Join(parent, "paceline-"+hex.EncodeToString(hash.Sum(nil)))
	if err := prepareCgroup(parent, dir); err != nil {
		return limits{why: err.Error()}
	}
	return limits{parent: dir}
}

// delegatedAbove returns the cgroup under which runs get theirs: the one above own, where systemd says that it has handed that over, else own. systemd puts
// the server into a group of its own below (DelegateSubgroup=), as a cgroup that passes on its controllers may not hold processes.
func delegatedAbove(own string) string {
	above := filepath.Dir(own)
	value := make([]byte, 1)
	if n, err := unix.Getxattr(above, delegateAttribute, value); err != nil || n != 1 || value[0] != '1' {
		return own // also of a file system without such attributes
	}
	return above
}

// prepareCgroup makes dir under parent so that its children can be limited.
func prepareCgroup(parent, dir string) error {
	controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("%s is no cgroup v2: %w", parent, err)
	}
	for _, wanted := range []string{"cpu", "memory"} {
		if !slices.Contains(strings.Fields(string(controllers)), wanted) {
			return fmt.Errorf("the cgroup v2 at %s has no %s controller (it has %q)", parent, wanted, strings.TrimSpace(string(controllers)))
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return fmt.Errorf("no right to make a cgroup under %s: %w", parent, err)
	}
	for _, group := range []string{parent, dir} {
		if err := writeCgroup(group, "cgroup.subtree_control", "+cpu +memory"); err != nil {
			_ = os.Remove(dir) // nothing is in it, or it stays
			return fmt.Errorf("%s cannot pass on its controllers (%s): %w", group, mendCgroup, err)
		}
	}
	return nil
}

// mendCgroup is what a cgroup lacks that holds processes, or is another's.
const mendCgroup = "it must be delegated and hold no processes itself: under systemd 254 or later, Delegate=cpu memory and DelegateSubgroup=server"

func writeCgroup(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// path returns the cgroup of a run; "": it needs none.
func (l limits) path(id string, want Limits) string {
	if l.parent == "" || want == (Limits{}) {
		return ""
	}
	return filepath.Join(l.parent, id)
}

// apply makes a run's cgroup with its limits.
func (l limits) apply(dir string, want Limits) error {
	if dir == "" {
		return nil
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return fmt.Errorf("make the run's cgroup: %w", err)
	}
	if want.MemoryBytes > 0 {
		if err := writeCgroup(dir, "memory.max", strconv.FormatInt(want.MemoryBytes, 10)); err != nil {
			return fmt.Errorf("limit the run's memory: %w", err)
		}
		// Swap would only delay the end; a kernel without it has no such file.
		_ = writeCgroup(dir, "memory.swap.max", "0")
	}
	if want.CPUMilli > 0 {
		quota := max(1000, want.CPUMilli*cpuPeriod/1000) // the kernel takes no quota under a millisecond
		if err := writeCgroup(dir, "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod)); err != nil {
			return fmt.Errorf("limit the run's CPU: %w", err)
		}
	}
	return nil
}
