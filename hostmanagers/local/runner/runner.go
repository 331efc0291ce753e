package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// The directories and files below a root. The names inside a run's directory that are the runner's, not the shim's.
const (
	runsDir    = "runs"
	newDir     = "new"
	trashDir   = "trash"
	damagedDir = "damaged"
	rootLock   = "lock"
	ackedFile  = "acknowledged"
	markFile   = "mark"

	// sandboxVariable is set for every task to its working directory.
	sandboxVariable = "PACELINE_SANDBOX"

	// rootTries is how often the root's lock is tried, firstLook apart. Looks are counted, not time: when the machine stands still, whoever has to let go of the lock does, too.
	rootTries = 200

	// writers bounds the directories being written at once; they share the disk's flushes.
	writers = 16
)

// ErrUnknown is returned for a run that the runner does not know.
var ErrUnknown = errors.New("no such run")

// Runner serves one root.
type Runner struct {
	cfg    Config
	boot   string
	limits limits
	lock   *os.File

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	runs    map[string]*run
	waiting []*run // accepted, to be started, oldest first; bounded by MaxRuns
	news    []*run // with phases that the observer has not heard of; each run at most once
	retired []*run // acknowledged, not yet with the janitor; each run once

	toStart, toTell, toKeep signal
}

// signal wakes one goroutine: any number of set calls before it looks make one wake.
type signal chan struct{}

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Open takes hold of a root, recovers every run in it and begins to work. Close gives it back.
func Open(cfg Config) (*Runner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	boot, err := shim.BootID()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{runsDir, newDir, trashDir} {
		if err := os.MkdirAll(filepath.Join(cfg.Root, dir), 0o700); err != nil {
			return nil, fmt.Errorf("prepare the runner's root: %w", err)
		}
	}
	lock, err := lockRoot(filepath.Join(cfg.Root, rootLock))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("the runs under %s are served by another process: stop it, or use another directory", cfg.Root)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the runner's root: %w", err)
	}
	r := &Runner{
		cfg: cfg, boot: boot, lock: lock, limits: detectLimits(cfg.Cgroup, cfg.Root),
		runs:    map[string]*run{},
		toStart: make(signal, 1), toTell: make(signal, 1), toKeep: make(signal, 1),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.recover(); err != nil {
		r.cancel()
		r.work.Wait()
		_ = lock.Close() // the error that counts is reported
		return nil, fmt.Errorf("recover the runs under %s: %w", cfg.Root, err)
	}
	r.own(r.tell)
	r.own(r.keep)
	for range cfg.Starts {
		r.own(r.starter)
	}
	return r, nil
}

// own starts a goroutine that Close waits for. Only Open calls it; afterwards the goroutines that it started use attend.
func (r *Runner) own(f func()) {
	r.work.Add(1)
	go func() {
		defer r.work.Done()
		f()
	}()
}

// Close stops watching and gives up the root. The runs go on.
func (r *Runner) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.cancel()
	for _, run := range r.runs {
		if run.pidfd != nil {
			run.pidfd.close() // wakes its attendant
		}
	}
	r.mu.Unlock()
	r.work.Wait()
	return r.lock.Close()
}

// lockRoot locks the root. A process that a killed server was about to start holds the server's files for the instant until it executes its
// program, so a lock that is held is tried for a while.
func lockRoot(path string) (lock *os.File, err error) {
	for range rootTries {
		if lock, err = lockFile(path); !errors.Is(err, unix.EWOULDBLOCK) {
			return lock, err
		}
		time.Sleep(firstLook)
	}
	return nil, err
}

// problem reports what goes on without.
func (r *Runner) problem(run *run, err error) { r.cfg.Problem(Problem{Run: run.spec.ID, Err: err}) }

// lockFile opens a file and locks it; the lock lives as long as the open file does, in whatever process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// Launch accepts runs: when it returns nil, each is durable and certain to be started, by this process or the next. It returns
// the runs that were known before; nothing happens to those. After an error nothing of the call has happened.
func (r *Runner) Launch(ctx context.Context, specs []Spec) (known []Run, err error) {
	fresh, known, err := r.claim(specs)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.withdraw(fresh)
		}
	}()
	if err := r.checkRoom(); err != nil {
		return nil, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, run := range fresh {
		group.Go(func() error {
			if err := groupCtx.Err(); err != nil {
				return err
			}
			return r.write(run)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := shim.SyncDir(filepath.Join(r.cfg.Root, runsDir)); err != nil {
		return nil, fmt.Errorf("make %d runs durable: %w", len(fresh), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range fresh {
		r.advance(run, Accepted)
		r.waiting = append(r.waiting, run)
	}
	r.toStart.set()
	return known, nil
}

// claim reserves the names of the specs that are new.
func (r *Runner) claim(specs []Spec) (fresh []*run, known []Run, err error) {
	now := r.cfg.Now().UTC()
	made := make([]*run, len(specs))
	for i := range specs {
		s := &specs[i]
		record := &shim.Spec{
			Version: shim.Version, ID: s.ID, Boot: r.boot, Accepted: now, Command: s.Command, Env: r.environment(s),
			Logs: r.cfg.Logs, Cgroup: r.limits.path(s.ID, s.Limits), Limits: s.Limits, Owner: s.Owner,
		}
		if _, err := shim.Encode(record); err != nil {
			return nil, nil, fmt.Errorf("run %.80s cannot be launched: %w", s.ID, err)
		}
		made[i] = &run{dir: filepath.Join(r.cfg.Root, runsDir, s.ID), spec: record}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, errors.New("the runner is closed")
	}
	if len(r.runs)+len(specs) > MaxRuns {
		return nil, nil, fmt.Errorf("%d runs are known and %d is the most: acknowledge ended ones", len(r.runs), MaxRuns)
	}
	for _, run := range made {
		if old := r.runs[run.spec.ID]; old != nil {
			known = append(known, old.snapshot(old.phase))
			continue
		}
		r.runs[run.spec.ID] = run
		fresh = append(fresh, run)
	}
	return fresh, known, nil
}

// environment adds the variable by which every process of a run can be told: the path of its sandbox, which no other run has.
func (r *Runner) environment(s *Spec) []string {
	env := slices.DeleteFunc(slices.Clone(s.Env), func(e string) bool { return strings.HasPrefix(e, sandboxVariable+"=") })
	return append(env, sandboxVariable+"="+r.Sandbox(s.ID))
}

// checkRoom refuses work that a full disk would cut short.
func (r *Runner) checkRoom() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(r.cfg.Root, &fs); err != nil {
		return fmt.Errorf("look at the disk under %s: %w", r.cfg.Root, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < MinFreeBytes {
		return fmt.Errorf("the disk under %s has %d bytes left, fewer than the %d that a launch wants: make room", r.cfg.Root, free, MinFreeBytes)
	}
	return nil
}

// write makes a run's directory. It appears under runs/ with everything in it or not at all.
func (r *Runner) write(run *run) error {
	building := filepath.Join(r.cfg.Root, newDir, run.spec.ID)
	err := os.Mkdir(building, 0o700)
	if err == nil {
		err = os.Mkdir(filepath.Join(building, shim.WorkDir), 0o700)
	}
	if err == nil {
		err = shim.Save(building, shim.SpecFile, run.spec)
	}
	if err == nil {
		err = os.Rename(building, run.dir)
	}
	if err != nil {
		return fmt.Errorf("write run %s: %w", run.spec.ID, err)
	}
	run.written = true
	return nil
}

// withdraw undoes claim and write. Nothing of the runs was started, because only accepted runs are.
func (r *Runner) withdraw(fresh []*run) {
	for _, run := range fresh {
		if err := os.RemoveAll(filepath.Join(r.cfg.Root, newDir, run.spec.ID)); err != nil {
			r.problem(run, fmt.Errorf("remove the directory of a withdrawn run: %w", err))
		}
		if !run.written {
			continue // what has its name is not ours
		}
		if err := r.discard(run); err != nil {
			r.problem(run, fmt.Errorf("remove the directory of a withdrawn run: %w", err))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range fresh {
		delete(r.runs, run.spec.ID)
	}
}

// discard removes a run's directory by way of the trash, so that a crash never leaves a half one under runs/.
func (r *Runner) discard(run *run) error {
	trash := filepath.Join(r.cfg.Root, trashDir, run.spec.ID)
	if err := os.Rename(run.dir, trash); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return os.RemoveAll(trash)
}

// advance moves a run to a later phase and has the observer told. r.mu is held.
func (r *Runner) advance(run *run, to Phase) {
	run.phase = max(run.phase, to)
	if !run.queued {
		run.queued = true
		r.news = append(r.news, run)
		r.toTell.set()
	}
}

// tell calls the observer with every phase that each run went through.
func (r *Runner) tell() {
	for {
		r.mu.Lock()
		var batch []Run
		for _, run := range r.news {
			run.queued = false
			for phase := run.told + 1; phase <= run.phase; phase++ {
				if phase == Started && run.start == nil {
					continue // it ended without ever starting
				}
				batch = append(batch, run.snapshot(phase))
			}
			run.told = run.phase
		}
		r.news = nil
		r.mu.Unlock()
		for _, snapshot := range batch {
			r.cfg.Observe(snapshot)
		}
		select {
		case <-r.toTell:
		case <-r.ctx.Done():
			return
		}
	}
}

// Kill asks for the end of a run: SIGTERM to its group, and after grace SIGKILL to all that is left. The request is durable when Kill
// returns, unless the disk takes nothing more: then the shim is told without one, with shim.BareGrace for every grace but 0. It says how the run stands; a run that ended is not changed. The first request's reason counts, the shortest grace does; MaxGrace is
// the longest.
func (r *Runner) Kill(id string, grace time.Duration, reason string) (Run, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.runs[id]
	if run == nil || run.phase == preparing {
		return Run{}, fmt.Errorf("run %.80q: %w", id, ErrUnknown)
	}
	if run.phase == Ended {
		return run.snapshot(run.phase), nil
	}
	kill := &shim.Kill{Version: shim.Version, ID: id, GraceMillis: killGrace(grace), Reason: reason}
	if run.kill != nil {
		kill.Reason = run.kill.Reason
	}
	// The write is under the lock: two requests must not mix, and kills are rare against everything else.
	if err := shim.Save(run.dir, shim.KillFile, kill); err != nil {
		err = fmt.Errorf("write the kill request of run %s: %w", id, err)
		if run.pidfd == nil {
			return Run{}, err
		}
		// A full disk must not keep work alive: it may be what fills it.
		r.problem(run, fmt.Errorf("it is ended by a bare signal: %w", err))
		run.kill = kill
		r.endBare(run, grace)
		return run.snapshot(run.phase), nil
	}
	run.kill = kill
	r.wake(run)
	return run.snapshot(run.phase), nil
}

// endBare ends a run without a durable request. r.mu is held.
func (r *Runner) endBare(run *run, grace time.Duration) {
	s := shim.EndPolitely
	if grace <= 0 {
		s = shim.EndNow
	}
	_ = run.pidfd.signal(s) // a shim that just ended has nothing left to kill
}

// wake has the shim look at the kill request. A shim that is not there yet looks by itself. r.mu is held.
func (r *Runner) wake(run *run) {
	if run.pidfd == nil {
		return
	}
	// The pidfd is this very shim, whoever has its pid by now; a shim that just ended needs no waking.
	_ = run.pidfd.signal(shim.Wake)
}

// Get returns a run.
func (r *Runner) Get(id string) (Run, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.runs[id]
	if run == nil || run.phase == preparing {
		return Run{}, false
	}
	return run.snapshot(run.phase), true
}

// Runs returns all runs, sorted by id.
func (r *Runner) Runs() []Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Run, 0, len(r.runs))
	for _, run := range r.runs {
		if run.phase != preparing {
			all = append(all, run.snapshot(run.phase))
		}
	}
	slices.SortFunc(all, func(a, b Run) int { return strings.Compare(a.Spec.ID, b.Spec.ID) })
	return all
}

// Mark sets a run's mark, which survives restarts. Its meaning is the owner's.
func (r *Runner) Mark(id string) error {
	return r.leave(id, markFile, func(target *run) { target.marked = true })
}

// Acknowledge says that nobody needs to hear of an ended run again: its directory is now kept for its output alone. A run that has not
// ended is not changed.
func (r *Runner) Acknowledge(id string) error {
	known, ok := r.Get(id)
	if !ok {
		return fmt.Errorf("run %.80q: %w", id, ErrUnknown)
	}
	if known.Phase != Ended || known.Acknowledged {
		return nil
	}
	return r.leave(id, ackedFile, func(target *run) {
		if !target.acked {
			target.acked = true
			r.retired = append(r.retired, target)
			r.toKeep.set()
		}
	})
}

// leave puts an empty file into a run's directory. It is not synced: after a crash of the machine a forgotten mark only makes somebody
// hear of something twice.
func (r *Runner) leave(id, name string, then func(*run)) error {
	r.mu.Lock()
	run := r.runs[id]
	r.mu.Unlock()
	if run == nil {
		return fmt.Errorf("run %.80q: %w", id, ErrUnknown)
	}
	if err := os.WriteFile(filepath.Join(run.dir, name), nil, 0o600); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("mark run %s: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	then(run)
	return nil
}

// Sandbox returns the working directory of a run, whether or not there is such a run.
func (r *Runner) Sandbox(id string) string {
	return filepath.Join(r.cfg.Root, runsDir, id, shim.WorkDir)
}
