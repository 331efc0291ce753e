package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

const (
	// firstLook and lastLook bound the pauses between looks at a shim that was found in the instant of its own start.
	firstLook, lastLook = 5 * time.Millisecond, 500 * time.Millisecond
	// lastWords bounds what is quoted of a dead shim's messages.
	lastWords = 400
)

// shimEnvironment keeps a shim small: one processor and early collection, for it has next to nothing to compute. A shim that was built with
// the race detector does not linger at its end.
var shimEnvironment = []string{"GOMAXPROCS=1", "GOGC=50", "GORACE=atexit_sleep_ms=0"}

// starter starts accepted runs, one after another.
func (r *Runner) starter() {
	for {
		if run := r.nextToStart(); run != nil {
			r.begin(run)
			continue
		}
		select {
		case <-r.toStart:
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *Runner) nextToStart() *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 || r.closed {
		return nil
	}
	run := r.waiting[0]
	r.waiting[0] = nil
	r.waiting = r.waiting[1:]
	if len(r.waiting) > 0 {
		r.toStart.set() // for the next starter: one signal may stand for many runs
	}
	return run
}

// enqueue has a run started, or concluded if it turns out that it was started before.
func (r *Runner) enqueue(run *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, run)
	r.toStart.set()
}

// begin starts one run's shim and waits until it has written what came of it. It starts nothing unless the lock file proves that nothing
// was started before.
func (r *Runner) begin(run *run) {
	lock, err := lockFile(filepath.Join(run.dir, shim.LockFile))
	if errors.Is(err, unix.EWOULDBLOCK) {
		r.own(func() { r.reattach(run) }) // a shim, or a process about to execute: either way it passes
		return
	}
	if err != nil {
		r.end(run, shim.LaunchFailed, "its lock file: "+err.Error())
		return
	}
	defer closeQuietly(lock)
	if info, err := lock.Stat(); err != nil || info.Size() > 0 {
		r.conclude(run) // a shim was there before
		return
	}
	if err := r.cfg.Admit(run.spec); err != nil {
		r.end(run, shim.Refused, err.Error())
		return
	}
	if err := r.limits.apply(run.spec.Cgroup, run.spec.Limits); err != nil {
		r.end(run, shim.LaunchFailed, err.Error())
		return
	}
	handle, ready, err := r.fork(run, lock)
	if err != nil {
		r.end(run, shim.LaunchFailed, fmt.Sprintf("start the shim (%s): %v", r.cfg.Executable, err))
		return
	}
	r.hold(run, handle)
	// From here the lock is the shim's alone.
	_ = lock.Close()
	stop := context.AfterFunc(r.ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	_, _ = io.Copy(io.Discard, ready) // ends when the shim closes its end or dies
	stop()
	_ = ready.Close() // it was only read
	r.noteStart(run)
	r.own(func() { r.attend(run, handle) })
}

// fork starts the shim in a session of its own, with the lock and one end of a pipe.
func (r *Runner) fork(run *run, lock *os.File) (handle *pidfd, ready *os.File, err error) {
	ready, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer closeQuietly(w)
	null, err := os.Open(os.DevNull)
	if err != nil {
		_ = ready.Close() // the error that counts is reported
		return nil, nil, err
	}
	defer closeQuietly(null)
	fd := -1
	pid, err := syscall.ForkExec(r.cfg.Executable, []string{shim.Name, run.spec.ID}, &syscall.ProcAttr{
		Dir:   run.dir,
		Env:   shimEnvironment,
		Files: []uintptr{null.Fd(), lock.Fd(), lock.Fd(), shim.LockFD: lock.Fd(), shim.ReadyFD: w.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &fd},
	})
	if err == nil && fd < 0 {
		fd, err = unix.PidfdOpen(pid, 0) // it is our unreaped child: the pid is surely it
	}
	if err == nil {
		handle, err = newPidfd(fd, pid)
	}
	if err != nil {
		_ = ready.Close() // the error that counts is reported
		return nil, nil, err
	}
	return handle, ready, nil
}

// hold makes a run's shim known, and wakes it if a kill request came while it was not.
func (r *Runner) hold(run *run, handle *pidfd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run.pidfd = handle
	if r.closed {
		handle.close()
	}
	if run.kill != nil {
		r.wake(run)
	}
}

// noteStart takes in the start record, if there is one.
func (r *Runner) noteStart(run *run) bool {
	var start shim.Start
	if err := shim.Load(run.dir, shim.StartFile, &start); err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	run.start = &start
	r.advance(run, Started)
	return true
}

// attend waits for the end of a run's shim.
func (r *Runner) attend(run *run, handle *pidfd) {
	if !handle.wait() {
		return // closed: somebody else will find out
	}
	r.mu.Lock()
	run.pidfd = nil
	r.mu.Unlock()
	handle.close()
	r.conclude(run)
}

// reattach finds the shim of a run whose lock is held. It may be in the instant of its start or of its end, so that its records say nothing
// yet; those pass by themselves.
func (r *Runner) reattach(run *run) {
	pause := firstLook
	for {
		if handle := r.attach(run); handle != nil {
			r.attend(run, handle)
			return
		}
		if lock, err := lockFile(filepath.Join(run.dir, shim.LockFile)); err == nil {
			// Nobody holds it now, so a start settles it: begin looks whether there was a shim.
			closeQuietly(lock)
			r.enqueue(run)
			return
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastLook)
		case <-r.ctx.Done():
			return
		}
	}
}

// attach opens a handle on a run's living shim, if the start record names it and it lives.
func (r *Runner) attach(run *run) *pidfd {
	if !r.noteStart(run) {
		return nil
	}
	handle, err := openPidfd(run.start.Shim.PID)
	if err != nil {
		return nil
	}
	// The handle is on whoever has the pid now; only the start time says who that is.
	if now, _, err := shim.Identify(handle.pid); err != nil || now != run.start.Shim {
		handle.close()
		return nil
	}
	r.hold(run, handle)
	return handle
}

// closeQuietly closes what was only read, or is written elsewhere: there is nothing that the error could mean.
func closeQuietly(c io.Closer) { _ = c.Close() }

// conclude takes in the exit record of a run whose shim is gone, and writes one if the shim could not.
func (r *Runner) conclude(run *run) {
	r.noteStart(run)
	var exit shim.Exit
	err := shim.Load(run.dir, shim.ExitFile, &exit)
	if err == nil {
		r.finish(run, &exit)
		return
	}
	words := r.shimsWords(run)
	if errors.Is(err, fs.ErrNotExist) && words == "" {
		r.end(run, shim.LaunchFailed, "the shim could not begin: "+r.cfg.Executable+" must be a program that links the runner")
		return
	}
	if left := r.sweep(run); left > 0 {
		r.problem(run, fmt.Errorf("%d of its processes do not end, and its shim is gone", left))
	}
	r.end(run, shim.ShimDied, "its shim was ended by force; how the task fared is unknown. The shim's last words: "+words)
}

// shimsWords returns the end of what a shim wrote; "": it never took charge.
func (r *Runner) shimsWords(run *run) string {
	raw, err := os.ReadFile(filepath.Join(run.dir, shim.LockFile))
	if err != nil {
		return err.Error()
	}
	if len(raw) > lastWords {
		raw = raw[len(raw)-lastWords:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(raw), "?"))
}

// end writes the exit record of a run that has no shim to do so, and takes it in.
func (r *Runner) end(run *run, verdict shim.Verdict, message string) {
	exit := &shim.Exit{Version: shim.Version, ID: run.spec.ID, Verdict: verdict, Message: message, Ended: r.cfg.Now().UTC()}
	if run.start != nil {
		exit.Started = run.start.At
	}
	if err := shim.Save(run.dir, shim.ExitFile, exit); err != nil {
		// What it says stays true: a restart comes to the same conclusion.
		r.problem(run, fmt.Errorf("write the exit record: %w", err))
	}
	if run.spec.Cgroup != "" && verdict != shim.Rebooted {
		_ = os.Remove(run.spec.Cgroup) // it may never have been made
	}
	r.finish(run, exit)
}

func (r *Runner) finish(run *run, exit *shim.Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if exit.Verdict == shim.Killed && exit.KillReason == "" && run.kill != nil {
		exit.KillReason = run.kill.Reason // of a request that no disk took
	}
	run.exit = exit
	r.advance(run, Ended)
}
