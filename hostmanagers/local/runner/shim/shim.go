package shim

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	// Name is argv[0] of a shim; it is followed by the run's name. Nothing else makes a process a shim.
	Name = "paceline-shim"
	// LockFD is the locked lock file, which a shim inherits.
	LockFD = 3
	// ReadyFD is the pipe, also inherited, that a shim closes once the start record is written or will not be.
	ReadyFD = 4

	// Wake is the signal that makes a shim look at the kill request. By default a process ignores it, so one that arrives
	// before the shim listens does no harm, and the shim looks once by itself then.
	Wake = syscall.SIGCONT

	// EndPolitely and EndNow ask for the end without a kill request, when no disk takes one. The first leaves BareGrace.
	EndPolitely = syscall.SIGUSR1
	// EndNow is EndPolitely without grace.
	EndNow = syscall.SIGUSR2
	// BareGrace is the time between the two kills of EndPolitely.
	BareGrace = 10 * time.Second

	// drainTime bounds the wait for output after the last process of a run ended: only a process that escaped can hold the pipe.
	drainTime = 2 * time.Second
	// exitRetry and exitTries bound how long a shim tries to write the exit record to a broken disk.
	exitRetry = time.Second
	exitTries = 600
	// reserveBytes is the room kept for the exit record.
	reserveBytes = 4096
	// maxMessage bounds the message of an exit record, well inside reserveBytes.
	maxMessage = 1024
)

//nolint:gochecknoinits // a shim must be at work before a large binary initialises; the package comment has the reasons
func init() {
	if IsShim(os.Args) {
		os.Exit(serve(os.Args[1]))
	}
	if len(os.Args) > 0 && os.Args[0] == enterName {
		enter(os.Args[1:])
	}
}

// IsShim reports whether a process with these arguments is a shim.
func IsShim(args []string) bool { return len(args) == 2 && args[0] == Name }

// serve is a shim's life. Its working directory is the run's.
func serve(id string) int {
	lock, ready := os.NewFile(LockFD, LockFile), os.NewFile(ReadyFD, "ready")
	syscall.CloseOnExec(LockFD)
	syscall.CloseOnExec(ReadyFD)
	closeInherited()
	if _, err := fmt.Fprintf(lock, "shim %d took charge\n", os.Getpid()); err != nil {
		fmt.Fprintln(os.Stderr, "a shim is started by a runner, not by hand:", err)
		return 2
	}
	t := &task{}
	if err := t.prepare(id); err != nil {
		fmt.Fprintln(os.Stderr, "the shim cannot serve:", err)
		return 1
	}
	t.run(func() { _ = ready.Close() })
	return t.finish()
}

// closeInherited closes what the server's own parent left open in it and it passed on: a shim that outlives them would keep, say, a
// pipe from its end. Go opens every file of its own as close-on-exec, which tells them apart.
func closeInherited() {
	const getFlags, closeOnExec = syscall.F_GETFD, syscall.FD_CLOEXEC
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // without /proc the shim fails at its next step, and says so
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= ReadyFD {
			continue
		}
		if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), getFlags, 0); errno == 0 && flags&closeOnExec == 0 {
			_ = syscall.Close(fd) // it was never ours
		}
	}
}

// task is the run that this shim serves.
type task struct {
	spec     Spec
	reserved *os.File
	pid      int
	started  time.Time
	exit     Exit
	outputs  []*output

	mu     sync.Mutex
	ended  bool // the leader is being reaped: its pid and group must not be signalled any more
	killed bool
	reason string
	forced *time.Timer
	limit  time.Time // when the final kill is due
}

// prepare reads what to do and makes the shim the one that every orphan of the task falls to.
func (t *task) prepare(id string) error {
	if err := Load(".", SpecFile, &t.spec); err != nil {
		return err
	}
	if t.spec.ID != id {
		return fmt.Errorf("the run here is %q, not %q", t.spec.ID, id)
	}
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("become the reaper of orphans: %w", errno)
	}
	t.exit = Exit{Version: Version, ID: id}
	return t.reserve()
}

// run starts the task and waits until nothing of it lives. It calls ready once the outcome of the start is on disk.
func (t *task) run(ready func()) {
	wake := make(chan os.Signal, 1)
	signal.Notify(wake, Wake)
	bare := make(chan os.Signal, 2)
	signal.Notify(bare, EndPolitely, EndNow)
	// The end of the machine or of a terminal is the task's business. These are caught, not ignored, because the task would inherit
	// that they are ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)

	var kill Kill
	if err := Load(".", KillFile, &kill); err == nil {
		t.exit.Verdict, t.exit.KillReason, t.exit.Message = Killed, kill.Reason, "killed before it was started"
		return
	}
	pumps, err := t.start()
	if err != nil {
		t.exit.Verdict, t.exit.Message = LaunchFailed, clip(err.Error())
		return
	}
	if err := t.recordStart(); err != nil {
		// Without the record a restarted server could not find the run: it must not go on.
		t.signal(syscall.SIGKILL)
		t.exit.Message = clip("ended because its start could not be recorded: " + err.Error())
	}
	ready()
	go t.serveKills(wake, bare)
	t.reap()
	t.drain(pumps)
}

// pump is one output stream on its way to disk.
type pump struct {
	pipe *os.File
	done chan struct{}
}

// start starts the task in a process group of its own.
func (t *task) start() ([]pump, error) {
	program, err := LookUp(t.spec.Command[0], t.spec.Env)
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(null)
	files, pumps, writers := []uintptr{null.Fd()}, []pump(nil), []*os.File(nil)
	defer func() {
		for _, w := range writers {
			closeQuietly(w) // the task has its own
		}
	}()
	for _, stream := range []string{"stdout", "stderr"} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		writers = append(writers, w)
		o := newOutput(".", stream, t.spec.Logs)
		t.outputs = append(t.outputs, o)
		p := pump{pipe: r, done: make(chan struct{})}
		go o.pump(r, p.done)
		files, pumps = append(files, w.Fd()), append(pumps, p)
	}
	attributes := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig speaks of the parent *thread*: this runs in init, on the main thread, which lives as long as the shim does.
	t.pid, err = forkIn(t.spec.Cgroup, program, t.spec.Command, &syscall.ProcAttr{Dir: WorkDir, Env: t.spec.Env, Files: files, Sys: attributes})
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", program, err)
	}
	t.started = time.Now()
	return pumps, nil
}

func (t *task) recordStart() error {
	self, _, err := Identify(os.Getpid())
	if err != nil {
		return err
	}
	leader, _, err := Identify(t.pid)
	if err != nil {
		return err
	}
	return Save(".", StartFile, &Start{Version: Version, ID: t.spec.ID, Boot: t.spec.Boot, Shim: self, Task: leader, At: t.started.UTC()})
}

// LookUp finds a program as a task's own PATH would.
func LookUp(command string, env []string) (string, error) {
	if strings.Contains(command, "/") {
		return command, nil // relative to the working directory; exec reports what is wrong with it
	}
	path := ""
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		candidate := filepath.Join(dir, command)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("command %q was not found in the task's PATH %q", clip(command), clip(path))
}

// serveKills carries out kill requests, one look at the file per signal.
func (t *task) serveKills(wake, bare <-chan os.Signal) {
	for {
		var kill Kill
		if err := Load(".", KillFile, &kill); err == nil {
			t.kill(time.Duration(kill.GraceMillis)*time.Millisecond, kill.Reason)
		} else if !errors.Is(err, os.ErrNotExist) {
			fmt.Fprintln(os.Stderr, "the kill request cannot be read:", err)
		}
		select {
		case <-wake:
		case s := <-bare:
			if s == EndNow {
				t.kill(0, "")
			} else {
				t.kill(BareGrace, "")
			}
		}
	}
}

// kill asks the task to end and makes sure that it does after grace.
func (t *task) kill(grace time.Duration, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	limit := time.Now().Add(grace)
	if !t.killed {
		t.killed, t.reason, t.limit = true, reason, limit
		if grace > 0 {
			t.signalLocked(syscall.SIGTERM)
			t.signalLocked(syscall.SIGCONT) // a stopped group would not see the other one
		}
		t.forced = time.AfterFunc(grace, func() { t.signal(syscall.SIGKILL) })
		return
	}
	if limit.Before(t.limit) {
		t.limit = limit
		t.forced.Reset(grace)
	}
}

func (t *task) signal(s syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signalLocked(s)
}

func (t *task) signalLocked(s syscall.Signal) {
	if !t.ended {
		_ = syscall.Kill(-t.pid, s) // the group may be empty but for a leader that just ended
	}
}

// reap waits for the task's end, ends whatever it left behind, and takes down how it ended.
func (t *task) reap() {
	for {
		pid := waitAny()
		if pid == t.pid {
			break
		}
		_, _ = syscall.Wait4(pid, nil, 0, nil) // an orphan that ended by itself
	}
	// The leader is dead but not reaped: its pid still names its group.
	t.mu.Lock()
	t.signalLocked(syscall.SIGKILL)
	t.ended = true
	if t.forced != nil {
		t.forced.Stop()
	}
	t.exit.KillReason = t.reason
	t.exit.Verdict = Exited
	if t.killed {
		t.exit.Verdict = Killed
	}
	t.mu.Unlock()

	var status syscall.WaitStatus
	var usage syscall.Rusage
	for {
		if _, err := syscall.Wait4(t.pid, &status, 0, &usage); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	t.exit.Started, t.exit.Ended = t.started.UTC(), time.Now().UTC()
	t.exit.CPUMillis = (usage.Utime.Nano() + usage.Stime.Nano()) / int64(time.Millisecond)
	t.exit.MaxRSSKiB = usage.Maxrss
	if status.Signaled() {
		t.exit.Signal = int(status.Signal())
		t.exit.Code = 128 + t.exit.Signal
	} else {
		t.exit.Code = status.ExitStatus()
	}
	endOrphans()
	t.leaveCgroup()
}

// waitAny waits until some child has ended, and leaves it to be reaped.
func waitAny() int {
	const pAll = 0
	// si_pid opens the union that follows three 32-bit words, aligned as a pointer is.
	const word = unsafe.Sizeof(uintptr(0))
	const siginfoPID = (12 + word - 1) &^ (word - 1)
	var info [128]byte
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info)), syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if errno == 0 {
			return int(*(*int32)(unsafe.Pointer(&info[siginfoPID])))
		}
	}
}

// endOrphans kills and reaps all that fell to this process: what the task's processes started and left, in whatever group. It
// ends when there is nothing left, because until then the run is not over.
func endOrphans() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) {
			return
		}
		if pid > 0 || err != nil {
			continue
		}
		orphans, err := children(os.Getpid())
		if err != nil {
			fmt.Fprintln(os.Stderr, "the task's orphans cannot be listed:", err)
			return
		}
		for _, orphan := range orphans {
			_ = syscall.Kill(orphan, syscall.SIGKILL) // an unreaped child of ours: the pid is surely it
		}
		if len(orphans) > 0 {
			_, _ = syscall.Wait4(-1, nil, 0, nil)
		}
	}
}

// leaveCgroup takes down whether the memory limit ended the task, and removes the run's cgroup.
func (t *task) leaveCgroup() {
	if t.spec.Cgroup == "" {
		return
	}
	events, err := os.ReadFile(filepath.Join(t.spec.Cgroup, "memory.events"))
	if err == nil && t.exit.Signal == int(syscall.SIGKILL) {
		t.exit.OutOfMem = oomKills(string(events)) > 0
	}
	if err := os.Remove(t.spec.Cgroup); err != nil {
		fmt.Fprintln(os.Stderr, "the run's cgroup stays:", err)
	}
}

// oomKills reads the count of out-of-memory kills from a memory.events file.
func oomKills(events string) int {
	for line := range strings.Lines(events) {
		var n int
		if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
			return n
		}
	}
	return 0
}

// drain waits for the last output.
func (t *task) drain(pumps []pump) {
	deadline := time.Now().Add(drainTime)
	for _, p := range pumps {
		_ = p.pipe.SetReadDeadline(deadline) // a pipe always has one
		<-p.done
	}
	for _, o := range t.outputs {
		t.exit.LostOutput += o.lost
	}
}

// reserve writes a blank exit record, so that its blocks exist before the disk is full.
func (t *task) reserve() error {
	f, err := os.OpenFile(reserveFile, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	t.reserved = f
	if _, err := f.WriteString(strings.Repeat(" ", reserveBytes)); err != nil {
		return err
	}
	return f.Sync()
}

// finish makes the exit record durable and returns the shim's exit code.
func (t *task) finish() int {
	if t.exit.Ended.IsZero() {
		t.exit.Ended = time.Now().UTC()
	}
	var err error
	for range exitTries {
		if err = t.saveExit(); err == nil {
			return 0
		}
		if errors.Is(err, os.ErrNotExist) {
			break // the run's directory was removed: nobody will ask
		}
		time.Sleep(exitRetry)
	}
	fmt.Fprintln(os.Stderr, "the exit record cannot be written:", err)
	return 1
}

func (t *task) saveExit() error {
	raw, err := Encode(&t.exit)
	if err != nil {
		return err
	}
	if _, err := t.reserved.WriteAt(raw, 0); err != nil { // blanks follow, which the format allows
		return err
	}
	if err := t.reserved.Sync(); err != nil {
		return err
	}
	if err := os.Rename(reserveFile, ExitFile); err != nil {
		return err
	}
	return SyncDir(".")
}

func closeQuietly(f *os.File) { _ = f.Close() } // it was only read, or never ours to write

func clip(s string) string {
	if len(s) > maxMessage {
		return s[:maxMessage] + "..."
	}
	return s
}
