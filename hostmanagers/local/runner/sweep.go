package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

const (
	// sweepRounds bounds the search for what a dead shim left: each round ends what the last one's victims had started.
	sweepRounds = 50
	// sweepWait is how long a killed process is given to be gone.
	sweepWait = time.Second
)

// sweep ends every process that belongs to a run without a shim, and returns how many it could not end. A process belongs to the run if
// its environment names the run's sandbox; all that the task started do, unless they changed their own environment.
func (r *Runner) sweep(run *run) int {
	if run.spec.Cgroup != "" {
		// The cgroup knows them all, if there is one.
		_ = os.WriteFile(filepath.Join(run.spec.Cgroup, "cgroup.kill"), []byte("1"), 0)
	}
	mark := []byte(sandboxVariable + "=" + filepath.Join(run.dir, shim.WorkDir) + "\x00")
	left := 0
	for range sweepRounds {
		found, stayed := 0, 0
		for _, pid := range processes() {
			switch ended, ours := endIfMarked(pid, mark); {
			case ours && !ended:
				stayed++
				found++
			case ours:
				found++
			}
		}
		if left = stayed; found == stayed {
			break
		}
	}
	return left
}

// endIfMarked kills a process if its environment has the mark. It reads the environment after it has the handle, so that what it kills is
// what it read.
func endIfMarked(pid int, mark []byte) (ended, ours bool) {
	environ := "/proc/" + strconv.Itoa(pid) + "/environ"
	if raw, err := os.ReadFile(environ); err != nil || !bytes.Contains(raw, mark) {
		return false, false // not ours, or not ours to look at
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, false // ended meanwhile
	}
	defer func() { _ = unix.Close(fd) }()
	if raw, err := os.ReadFile(environ); err != nil || !bytes.Contains(raw, mark) {
		return false, false
	}
	if err := unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0); err != nil {
		return false, true
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(sweepWait.Milliseconds()))
	return err == nil && n == 1, true
}

func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // without /proc there would be no boot id and no runner
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
