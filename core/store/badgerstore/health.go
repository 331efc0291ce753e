package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/paceline-sched/paceline/core/telemetry"
)

// health is what the store knows of its disk. Badger only logs what fails in the background and tries it again, which a failed sync does not
// allow: the kernel forgets what it could not write, and the next sync succeeds without it. So whatever Badger complains of ends the store.
type health struct {
	watched atomic.Bool // Open's own complaints come back as its error
	broken  chan struct{}
	once    sync.Once
	cause   error // set before broken is closed
}

func newHealth() *health { return &health{broken: make(chan struct{})} }

func (h *health) watch() { h.watched.Store(true) }

// fail notes the first failure.
func (h *health) fail(err error) {
	h.once.Do(func() {
		h.cause = err
		close(h.broken)
	})
}

// err is the first failure, or nil.
func (h *health) err() error {
	select {
	case <-h.broken:
		return h.cause
	default:
		return nil
	}
}

// What Badger says, in the goroutine that would try again next, when it could not flush its buffer or merge tables.
const (
	flushFailed   = "error flushing memtable"
	compactFailed = "[Compactor: %d] LOG Compact FAILED"
	// compactWaits begins the one cause that is none: another compactor has moved the levels meanwhile.
	compactWaits = "there is a non-empty level"
)

// badgerLogger passes Badger's messages on, and hears from them what becomes of the disk. They are free text, so the text is an attribute
// and the message constant. What Badger calls information is of use only to who works on this package.
type badgerLogger struct {
	log    *slog.Logger
	health *health
}

func (l badgerLogger) write(level slog.Level, format string, args []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "badger", slog.String(telemetry.KeyText, strings.TrimSpace(fmt.Sprintf(format, args...))))
	}
}

func (l badgerLogger) Errorf(format string, args ...any) {
	l.write(slog.LevelError, format, args)
	retries := strings.HasPrefix(format, flushFailed)
	if retries || l.health.watched.Load() {
		l.health.fail(cause(format, args))
	}
	if retries {
		l.freeze()
	}
}

func (l badgerLogger) Warningf(format string, args ...any) {
	l.write(slog.LevelWarn, format, args)
	if err := cause(format, args); strings.HasPrefix(format, compactFailed) && !strings.HasPrefix(err.Error(), compactWaits) {
		l.health.fail(fmt.Errorf("merge tables: %w", err))
		l.freeze()
	}
}

// freeze keeps Badger from trying again: the goroutine stays here until the process ends, which is soon. Nothing waits for it, for the
// store does not close a broken Badger. What lies on the disk then is what a crash in this moment would leave.
func (l badgerLogger) freeze() { select {} }

// cause is the error among a message's arguments, or else all of the message.
func cause(format string, args []any) error {
	for _, a := range args {
		if err, ok := a.(error); ok {
			return err
		}
	}
	return errors.New(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l badgerLogger) Infof(format string, args ...any) { l.write(slog.LevelDebug, format, args) }
func (l badgerLogger) Debugf(string, ...any)            {}
