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
	// sweepPause is how long a process is first given to show its environment: in the middle of an exec it has none. It doubles up to sweepPauseMost.
	sweepPause     = 2 * time.Millisecond
	sweepPauseMost = 200 * time.Millisecond
)

// belonging is what was found out about a process.
type belonging int

const (
	foreign belonging = iota // or gone
	unknown                  // it is becoming another program
	ended                    // it was the run's
	stayed                   // it is the run's
)

// sweep ends every process that belongs to a run without a shim, and returns how many it could not end. A process belongs to the run if
// its environment names the run's sandbox; all that the task started do, unless they changed their own environment.
func (r *Runner) sweep(run *run) int {
	if run.spec.Cgroup != "" {
		// The cgroup knows them all, if there is one.
		_ = os.WriteFile(filepath.Join(run.spec.Cgroup, "cgroup.kill"), []byte("1"), 0)
	}
	mark := []byte(sandboxVariable + "=" + filepath.Join(run.dir, shim.WorkDir) + "\x00")
	left, pause := 0, sweepPause
	for range sweepRounds {
		var found [stayed + 1]int
		for _, pid := range processes() {
			found[endIfMarked(pid, mark)]++
		}
		if left = found[stayed]; found[ended]+found[unknown] == 0 {
			break
		}
		if found[ended] == 0 {
			time.Sleep(pause)
			pause = min(2*pause, sweepPauseMost)
		}
	}
	return left
}

// endIfMarked kills a process if its environment has the mark. It reads the environment after it has the handle, so that what it kills is
// what it read.
func endIfMarked(pid int, mark []byte) belonging {
	if is := marked(pid, mark); is != stayed {
		return is
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return foreign // ended meanwhile
	}
	defer func() { _ = unix.Close(fd) }()
	if is := marked(pid, mark); is != stayed {
		return is
	}
	if err := unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0); err != nil {
		return stayed
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(sweepWait.Milliseconds())); err != nil || n != 1 {
		return stayed
	}
	return ended
}

// marked tells whose a process is, which stays.
func marked(pid int, mark []byte) belonging {
	dir := "/proc/" + strconv.Itoa(pid)
	environ, err := os.ReadFile(dir + "/environ")
	switch {
	case err != nil: // gone, or not ours to look at
		return foreign
	case bytes.Contains(environ, mark):
		return stayed
	case len(environ) > 0:
		return foreign
	}
	// Without an environment are threads of the kernel and what ended, which have no program; programs that were given none, which have a command
	// line; and those that the kernel is just loading, which have a program and neither.
	if _, err := os.Readlink(dir + "/exe"); err != nil {
		return foreign
	}
	if line, err := os.ReadFile(dir + "/cmdline"); err != nil || len(line) == 0 {
		return unknown // or gone, as the next look will tell
	}
	if environ, err = os.ReadFile(dir + "/environ"); err == nil && bytes.Contains(environ, mark) {
		return stayed // it was loaded meanwhile
	}
	return foreign
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
