package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// The streams of a run, as Output takes them.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// followPause is how often a following reader looks for more output.
const followPause = 100 * time.Millisecond

// Output returns a stream of a run from an offset on; a negative one counts from the present end. Bytes that were rotated away are skipped.
// With follow, the reader waits for more until the run has ended or ctx has. It is not safe for concurrent use; close it.
func (r *Runner) Output(ctx context.Context, id, stream string, offset int64, follow bool) (io.ReadCloser, error) {
	r.mu.Lock()
	run := r.runs[id]
	known := run != nil && run.phase != preparing
	r.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("the output of run %.80q: %w", id, ErrUnknown)
	}
	reader := &outputReader{ctx: ctx, runner: r, run: run, stream: stream, offset: offset, follow: follow}
	if offset < 0 {
		_, end, err := reader.bounds()
		if err != nil {
			return nil, fmt.Errorf("the output of run %s: %w", id, err)
		}
		reader.offset = max(0, end+offset)
	}
	return reader, nil
}

// outputReader reads a stream across its files. Where a file starts in the stream follows from its number.
type outputReader struct {
	ctx    context.Context
	runner *Runner
	run    *run
	stream string
	offset int64
	follow bool

	file   *os.File
	number int64 // of file
}

func (o *outputReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		// Whether the run is over is asked before the reading: what was written before its end is then read for sure.
		over := o.runner.over(o.run)
		n, err := o.readOnce(p)
		if n > 0 || err != nil {
			return n, err
		}
		if !o.follow || over {
			return 0, io.EOF
		}
		select {
		case <-time.After(followPause):
		case <-o.ctx.Done():
			return 0, o.ctx.Err()
		case <-o.runner.ctx.Done():
			return 0, fmt.Errorf("the output of run %s: the runner was closed", o.run.spec.ID)
		}
	}
}

// over reports whether a run has ended.
func (r *Runner) over(run *run) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return run.phase == Ended
}

// readOnce reads what is there; 0 and no error: nothing for now.
func (o *outputReader) readOnce(p []byte) (int, error) {
	size := o.run.spec.Logs.FileBytes
	for {
		if err := o.ctx.Err(); err != nil {
			return 0, err
		}
		if o.file == nil {
			if opened, err := o.open(); !opened || err != nil {
				return 0, err
			}
		}
		n, err := o.file.ReadAt(p, o.offset-o.number*size)
		o.offset += int64(n)
		if n > 0 {
			return n, nil
		}
		if !errors.Is(err, io.EOF) {
			return 0, err
		}
		if o.offset < (o.number+1)*size {
			return 0, nil
		}
		if err := o.Close(); err != nil {
			return 0, err
		}
	}
}

// open opens the file that holds the offset, or the oldest one if that is rotated away.
func (o *outputReader) open() (bool, error) {
	first, _, err := o.bounds()
	if err != nil {
		return false, err
	}
	o.offset = max(o.offset, first)
	o.number = o.offset / o.run.spec.Logs.FileBytes
	o.file, err = os.Open(filepath.Join(o.run.dir, shim.LogFile(o.stream, o.number)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // not there yet, or rotated away this instant: looked for again
	}
	return err == nil, err
}

// bounds returns the offsets of the first byte kept and of the end.
func (o *outputReader) bounds() (first, end int64, err error) {
	entries, err := os.ReadDir(o.run.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, ErrUnknown // removed with the oldest kept runs
	}
	if err != nil {
		return 0, 0, err
	}
	first = -1
	size := o.run.spec.Logs.FileBytes
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), o.stream+".")
		number, err := strconv.ParseInt(digits, 10, 48)
		if !ok || err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // rotated away this instant
		}
		if first < 0 || number*size < first {
			first = number * size
		}
		end = max(end, number*size+info.Size())
	}
	return max(first, 0), end, nil
}

// Close may be called more than once.
func (o *outputReader) Close() error {
	if o.file == nil {
		return nil
	}
	file := o.file
	o.file = nil
	return file.Close()
}
