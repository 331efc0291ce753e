package decision

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// What a Log does unless told otherwise, and its least.
const (
	DefaultRetain       = int64(256) << 20
	DefaultSegmentBytes = int64(16) << 20
	DefaultSegmentAge   = time.Hour
	DefaultFlushEvery   = 50 * time.Millisecond
	LeastRetain         = int64(128) << 10
)

// extension is the end of a segment's name.
const extension = ".decisions"

// Config is what a Log is made of.
type Config struct {
	// Dir holds the segments, a folder for each shard. It is made with mode 0700.
	Dir string
	// Retain bounds the bytes that are kept; the oldest segments go first. Those that are being written stay. Default DefaultRetain.
	Retain int64
	// SegmentBytes and SegmentAge are from when on another segment is begun. A segment costs a copy of the table, some milliseconds of the shard. Default
	// DefaultSegmentBytes, but an eighth of Retain at most, and DefaultSegmentAge.
	SegmentBytes int64
	SegmentAge   time.Duration
	// FlushEvery is how long an entry may wait to be written. Default DefaultFlushEvery.
	FlushEvery time.Duration
	Now        func() time.Time // default: time.Now
	Log        *slog.Logger     // default: nothing is logged
	// OnWrite is told by the writers what was written and dropped since they told last. It may be called from several goroutines.
	OnWrite func(telemetry.Decisions)
}

// Log is a directory of segments.
type Log struct {
	config Config
	mu     sync.Mutex
	open   map[string]bool // segments that are being written
}

// OpenLog makes the directory if it is not there.
func OpenLog(config Config) (*Log, error) {
	config.Retain = cmp.Or(config.Retain, DefaultRetain)
	config.SegmentBytes = cmp.Or(config.SegmentBytes, min(DefaultSegmentBytes, config.Retain/8))
	config.SegmentAge = cmp.Or(config.SegmentAge, DefaultSegmentAge)
	config.FlushEvery = cmp.Or(config.FlushEvery, DefaultFlushEvery)
	if config.Retain < LeastRetain {
		return nil, fmt.Errorf("%d bytes are too few for a log of decisions: give %d or more", config.Retain, LeastRetain)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.OnWrite == nil {
		config.OnWrite = func(telemetry.Decisions) {}
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the log of decisions: %w", err)
	}
	return &Log{config: config, open: map[string]bool{}}, nil
}

// Record returns a source of the same placers that records what they decide for a shard. Close it when the shard has ended.
func (l *Log) Record(shard string, source placement.PlacerSource) (*Recorder, error) {
	dir := filepath.Join(l.config.Dir, strings.ReplaceAll(shard, "/", "."))
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	next := uint64(0)
	sequence := uint64(0)
	segments, err := listDir(dir)
	if err != nil {
		return nil, err
	}
	if n := len(segments); n > 0 {
		next = segments[n-1].number + 1
		if sequence, err = lastSequence(segments[n-1].path); err != nil {
			l.config.Log.Warn("the last segment of decisions cannot be read; it stays", slog.String(telemetry.KeyShard, shard), slog.Any(telemetry.KeyError, err))
		}
	}
	return newRecorder(l, shard, source, &writer{log: l, shard: shard, dir: dir, next: next}, sequence), nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a directory of the log of decisions: %w", err)
	}
	return nil
}

// lastSequence returns the sequence after that of the last decision of a segment.
func lastSequence(path string) (next uint64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	_, err = Read(file, func(e Event) error {
		switch {
		case e.Header != nil:
			next = e.Header.Sequence
		case e.Decision != nil:
			next = e.Decision.Sequence + 1
		}
		return nil
	})
	return next, err
}

// segmentFile is a segment by its name.
type segmentFile struct {
	path   string
	number uint64
	bytes  int64
	at     time.Time // last written
}

// listDir lists the segments of one shard, oldest first. A directory that is not there has none.
func listDir(dir string) ([]segmentFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the log of decisions: %w", err)
	}
	var list []segmentFile
	for _, entry := range entries {
		name, isSegment := strings.CutSuffix(entry.Name(), extension)
		number, err := strconv.ParseUint(name, 16, 64)
		if !isSegment || err != nil {
			continue // somebody else's
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, fmt.Errorf("list the log of decisions: %w", err)
		}
		list = append(list, segmentFile{filepath.Join(dir, entry.Name()), number, info.Size(), info.ModTime()})
	}
	slices.SortFunc(list, func(a, b segmentFile) int { return cmp.Compare(a.number, b.number) })
	return list, nil
}

// list lists the segments of all shards.
func list(dir string) ([]segmentFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the log of decisions: %w", err)
	}
	var all []segmentFile
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		some, err := listDir(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// begin notes that a segment is being written, and removes what is too much.
func (l *Log) begin(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[path] = true
	all, err := list(l.config.Dir)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, s := range all {
		total += s.bytes
	}
	// What is open will grow to a segment each.
	limit := l.config.Retain - int64(len(l.open))*l.config.SegmentBytes
	slices.SortFunc(all, func(a, b segmentFile) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.number, b.number)) })
	for _, s := range all {
		if total <= limit {
			break
		}
		if l.open[s.path] {
			continue
		}
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old segment of decisions: %w", err)
		}
		total -= s.bytes
	}
	return nil
}

func (l *Log) ended(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, path)
}

// writer writes the segments of one shard. It has one user.
type writer struct {
	log   *Log
	shard string
	dir   string
	next  uint64 // number of the next segment

	file    io.WriteCloser // nil: none is open
	path    string
	encoder *encoder
	written int64 // to it
	total   int64 // to all
	began   int64
	dropped uint64 // decisions that could not be written, since a segment was begun
}

// changes writes changes, if a segment is open.
func (w *writer) changes(list []Change) error {
	if w.file == nil {
		return nil
	}
	return w.encoder.changes(list)
}

// segment begins a segment. The one before is closed.
func (w *writer) segment(h Header, first *snapshot) error {
	if err := w.close(); err != nil {
		return err
	}
	h.Shard, h.Number, h.Dropped = w.shard, w.next, h.Dropped+w.dropped
	w.dropped = h.Dropped // should it fail, the next one says so
	w.next++
	path := filepath.Join(w.dir, fmt.Sprintf("%016x%s", h.Number, extension))
	var err error
	if w.encoder, err = newEncoder(&h, first.state); err != nil {
		return err
	}
	if err := w.log.begin(path); err != nil {
		w.log.ended(path)
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		w.log.ended(path)
		return fmt.Errorf("begin a segment of decisions: %w", err)
	}
	w.file, w.path, w.written, w.began, w.dropped = file, path, 0, h.Began, 0
	return nil
}

// flush writes what is encoded and reports whether it is time for another segment.
func (w *writer) flush(now int64) (due bool, err error) {
	n, err := w.file.Write(w.encoder.b)
	w.written += int64(n)
	w.total += int64(n)
	w.encoder.b = w.encoder.b[:0]
	if err != nil {
		return false, fmt.Errorf("write decisions: %w", err)
	}
	return w.written >= w.log.config.SegmentBytes || now-w.began >= int64(w.log.config.SegmentAge), nil
}

// close ends the segment that is open, if one is.
func (w *writer) close() error {
	if w.file == nil {
		return nil
	}
	w.encoder.end()
	_, err := w.flush(0)
	return errors.Join(err, w.abandon())
}

// abandon leaves the segment that is open as it is.
func (w *writer) abandon() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.log.ended(w.path)
	w.file = nil
	return err
}
