package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// recover reads the root and decides, for each run, by what can be proven:
//
//	exit record                    it ended; the record says how
//	another boot id                the machine restarted: no process of it can live
//	lock held                      its shim lives: attach
//	lock free, lock file empty     no shim ever took charge: it may be started now
//	lock free, lock file written   the shim was ended by force: end what is left of the task
func (r *Runner) recover() error {
	for _, dir := range []string{newDir, trashDir} {
		if err := removeEntries(filepath.Join(r.cfg.Root, dir)); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(filepath.Join(r.cfg.Root, runsDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := r.recoverRun(e.Name()); err != nil {
			return err
		}
	}
	slices.SortStableFunc(r.waiting, func(a, b *run) int { return a.spec.Accepted.Compare(b.spec.Accepted) })
	slices.SortStableFunc(r.retired, func(a, b *run) int { return a.exit.Ended.Compare(b.exit.Ended) })
	return nil
}

func removeEntries(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) recoverRun(id string) error {
	run, err := r.readRun(id)
	if err != nil {
		return err
	}
	if run == nil {
		return nil
	}
	r.mu.Lock()
	r.runs[id] = run
	r.mu.Unlock()
	switch {
	case run.exit != nil:
		run.phase = Ended
		if run.acked {
			r.retired = append(r.retired, run)
			r.toKeep.set()
		}
	case run.spec.Boot != r.boot:
		r.end(run, shim.Rebooted, "the machine restarted while the run was under way")
	default:
		if err := r.recoverLive(run); err != nil {
			return err
		}
	}
	// The owner asks for the recovered runs by itself; it is told of what comes after.
	r.mu.Lock()
	run.told = run.phase
	r.mu.Unlock()
	return nil
}

// recoverLive recovers a run of this boot that has no exit record.
func (r *Runner) recoverLive(run *run) error {
	run.phase = Accepted
	lock, err := lockFile(filepath.Join(run.dir, shim.LockFile))
	if errors.Is(err, unix.EWOULDBLOCK) {
		if handle := r.attach(run); handle != nil {
			r.own(func() { r.attend(run, handle) })
		} else {
			r.own(func() { r.reattach(run) })
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer closeQuietly(lock)
	info, err := lock.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 {
		r.conclude(run)
		return nil
	}
	r.waiting = append(r.waiting, run)
	return nil
}

// readRun reads a run's records; nil: there is nothing to make a run of.
func (r *Runner) readRun(id string) (*run, error) {
	run := &run{dir: filepath.Join(r.cfg.Root, runsDir, id), spec: &shim.Spec{ID: id}}
	err := shim.Load(run.dir, shim.SpecFile, run.spec)
	if err == nil && run.spec.ID != id {
		err = fmt.Errorf("its spec is that of run %.80q", run.spec.ID)
	}
	if err != nil {
		run.spec = &shim.Spec{ID: id}
		left := r.sweep(run)
		r.problem(run, fmt.Errorf("its directory is damaged; it is set aside, and its processes are ended but for %d: %w", left, err))
		return nil, r.setAside(run)
	}
	var start shim.Start
	if err := shim.Load(run.dir, shim.StartFile, &start); err == nil {
		run.start = &start
	}
	var kill shim.Kill
	if err := shim.Load(run.dir, shim.KillFile, &kill); err == nil {
		run.kill = &kill
	}
	var exit shim.Exit
	switch err := shim.Load(run.dir, shim.ExitFile, &exit); {
	case err == nil:
		run.exit = &exit
	case !errors.Is(err, fs.ErrNotExist):
		r.problem(run, err)
	}
	if run.acked, err = shim.Exists(run.dir, ackedFile); err != nil {
		return nil, err
	}
	run.marked, err = shim.Exists(run.dir, markFile)
	return run, err
}

// setAside moves a damaged directory out of the way. Only the newest damaged one of a name is kept.
func (r *Runner) setAside(run *run) error {
	aside := filepath.Join(r.cfg.Root, damagedDir, filepath.Base(run.dir))
	if err := os.MkdirAll(filepath.Dir(aside), 0o700); err != nil {
		return err
	}
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	return os.Rename(run.dir, aside)
}
