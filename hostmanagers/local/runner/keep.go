package runner

import (
	"fmt"
	"io/fs"
	"path/filepath"
)

// kept is an acknowledged run whose directory is kept for its output.
type kept struct {
	run   *run
	bytes int64
}

// keep is the janitor: it owns the list of kept runs, oldest first, and removes from its head what exceeds the bounds.
func (r *Runner) keep() {
	var list []kept
	var total int64
	for {
		r.mu.Lock()
		retired := r.retired
		r.retired = nil
		r.mu.Unlock()
		for _, run := range retired {
			k := kept{run: run, bytes: diskUse(run.dir)}
			list = append(list, k)
			total += k.bytes
		}
		for len(list) > 0 && (len(list) > r.cfg.KeepRuns || total > r.cfg.KeepBytes) && r.ctx.Err() == nil {
			r.remove(list[0].run)
			total -= list[0].bytes
			list[0] = kept{}
			list = list[1:]
		}
		select {
		case <-r.toKeep:
		case <-r.ctx.Done():
			return
		}
	}
}

// remove forgets a run and then removes its directory: until that is done its name cannot be launched again, because
// the directory is in the way.
func (r *Runner) remove(run *run) {
	if err := r.discard(run); err != nil {
		r.problem(run, fmt.Errorf("remove the directory of a kept run: %w", err))
		return // it stays known, and is tried again after a restart
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runs, run.spec.ID)
}

// diskUse sums the sizes of the files under a directory. What cannot be read counts nothing.
func diskUse(dir string) int64 {
	var total int64
	// The walk itself never fails: every error is skipped.
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}
