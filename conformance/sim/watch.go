package sim

import (
	"slices"
	"time"
)

// watcher follows the event log as a watch does, at its own pace, from one core to the next.
type watcher struct {
	w      *world
	jitter random
	until  int64 // it does not read before
	name   string
	every  time.Duration
	page   int
	after  uint64 // the last revision that it knows
	read   int    // entries of the judge's log that it has seen
}

func (r *watcher) start() {
	r.w.after(r.jitter.around(r.every), func() {
		if r.w.now >= r.until {
			r.look()
		}
		r.start()
	})
}

// look reads one page and reports whether there was one.
func (r *watcher) look() bool {
	c := r.w.cell
	if c.state == nil {
		return false
	}
	snap, err := c.store.Snapshot()
	r.w.must(err)
	defer snap.Close()
	parts, err := c.codec.Changes(snap, r.after+1, r.page, 1<<20)
	r.w.must(err)
	if hook := r.w.opts.Interpose; hook != nil && hook.Log != nil {
		parts = hook.Log(parts)
	}
	for _, part := range parts {
		if r.read >= len(r.w.judge.log) {
			r.w.fail(CheckWatches, "the %s watcher reads revision %d, which is not durable", r.name, part.Sequence)
		}
		want := &r.w.judge.log[r.read]
		if part.Sequence != want.Sequence || !slices.Equal(part.Changes, want.Changes) {
			r.w.fail(CheckWatches, "the %s watcher reads revision %d and expects %d:\n%+v\n%+v", r.name, part.Sequence, want.Sequence, part, *want)
		}
		r.read++
		r.after = part.Sequence
	}
	return len(parts) > 0
}

// catchUp reads to the end, which must be the end of what was made durable.
func (r *watcher) catchUp() {
	for more := true; more; {
		more = r.look()
	}
	if r.read != len(r.w.judge.log) {
		r.w.fail(CheckWatches, "the %s watcher has seen %d of %d revisions", r.name, r.read, len(r.w.judge.log))
	}
}
