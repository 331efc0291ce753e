package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"

	"github.com/paceline-sched/paceline/sdk/client"
)

// The pace of following. Events say when something may have changed, the look itself is a fresh read: it is never stale, and at most
// as frequent as a person can see.
const (
	followAtMost  = 250 * time.Millisecond // between two reads
	followAtLeast = 2 * time.Second        // read anyway: not everything that is shown has events
	followOutage  = time.Minute            // a server that is away for longer has gone
	plainEvery    = 5 * time.Second        // between two progress lines where none can be redrawn
)

// follow reads now and after every change that the events of interest announce, until read says that it is done or fails. It reads at its own
// pace when there are no events to be had. Once it has read, it sits out the restart of a server.
func follow(ctx context.Context, c *client.Client, interest *pacelinev1.WatchEventsRequest, read func(context.Context) (bool, error)) error {
	changed := make(chan struct{}, 1)
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stop()
	watcher.Go(func() {
		// Its end is no failure: reads go on without it, and say what is wrong with the server.
		_ = c.Watch(watching, interest, func(*pacelinev1.WatchEventsResponse) error {
			// One without events counts too: it comes first, and whatever happened before it was not watched.
			select {
			case changed <- struct{}{}:
			default:
			}
			return nil
		})
	})
	var lastRead time.Time
	for {
		done, err := read(ctx)
		switch {
		case err == nil:
			lastRead = time.Now()
		case connect.CodeOf(err) != connect.CodeUnavailable || lastRead.IsZero() || time.Since(lastRead) > followOutage:
			return err
		}
		if done {
			return nil
		}
		if err := pause(ctx, followAtMost, nil); err != nil {
			return err
		}
		if err := pause(ctx, followAtLeast-followAtMost, changed); err != nil {
			return err
		}
	}
}

// pause waits for d, for a signal on early, or for the end of ctx, which is its error.
func pause(ctx context.Context, d time.Duration, early <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// progress shows how a wait goes on: one line redrawn on a terminal, a line now and then elsewhere.
type progress struct {
	w        io.Writer
	now      func() time.Time
	terminal bool
	last     string
	lastTime time.Time
}

func (a *app) progress() *progress {
	return &progress{w: a.Err, now: a.Now, terminal: a.Terminal}
}

func (p *progress) show(line string) {
	switch {
	case line == p.last:
		return
	case p.terminal:
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	case p.last != "" && p.now().Sub(p.lastTime) < plainEvery:
		return
	default:
		fmt.Fprintln(p.w, line)
	}
	p.last, p.lastTime = line, p.now()
}

// done makes room for what comes next.
func (p *progress) done() {
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// bar draws a share of a whole.
func bar(done, total uint64) string {
	const width = 20
	if total == 0 {
		return ""
	}
	filled := int(min(done, total) * width / total)
	cells := slices.Repeat([]byte{'.'}, width)
	for i := range filled {
		cells[i] = '#'
	}
	return fmt.Sprintf("[%s] %3d%%", cells, min(done, total)*100/total)
}

// listing is a list that a command shows, once or again and again.
type listing[T proto.Message] struct {
	layout   output.Columns[T]
	envelope func([]T) proto.Message
	key      func(T) string
	read     func(context.Context) (items []T, more bool, err error)
	interest *pacelinev1.WatchEventsRequest // what changes the list
}

// show writes the list.
func show[T proto.Message](ctx context.Context, a *app, l listing[T]) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	items, more, err := l.read(ctx)
	if err != nil {
		return err
	}
	a.noteMore(more, len(items))
	if len(items) == 0 && p.Format.ForPeople() {
		fmt.Fprintln(a.Err, "Nothing found.")
		return nil
	}
	return output.List(p, items, l.layout, l.envelope)
}

// showAndWatch writes the list and keeps it up to date until interrupted: redrawn on a terminal, elsewhere as one more row for each
// item that changed, or one JSON line.
func showAndWatch[T proto.Message](ctx context.Context, a *app, c *client.Client, l listing[T]) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	seen := map[string]T{}
	first := true
	err = follow(ctx, c, l.interest, func(ctx context.Context) (bool, error) {
		items, more, err := l.read(ctx)
		if err != nil {
			return false, err
		}
		var changed []T
		current := make(map[string]T, len(items))
		for _, item := range items {
			key := l.key(item)
			current[key] = item
			if before, ok := seen[key]; !ok || !proto.Equal(before, item) {
				changed = append(changed, item)
			}
		}
		gone := len(seen) > 0 && len(current) < len(seen)
		seen = current
		if first {
			a.noteMore(more, len(items))
		}
		if len(changed) == 0 && !gone && !first {
			return false, nil
		}
		defer func() { first = false }()
		if a.Terminal && p.Format.ForPeople() {
			fmt.Fprint(a.Out, "\x1b[H\x1b[2J")
			return false, p.Rows(output.Cells(p, items, l.layout))
		}
		return false, appendRows(p, changed, l, first)
	})
	if errors.Is(err, context.Canceled) {
		return nil // the user has seen enough
	}
	return err
}

func appendRows[T proto.Message](p *output.Printer, items []T, l listing[T], headers bool) error {
	switch p.Format {
	case output.JSON, output.YAML:
		for _, item := range items {
			if err := p.Line(item); err != nil {
				return err
			}
		}
		return nil
	case output.Name:
		return output.List(p, items, l.layout, l.envelope)
	default:
		rows := *p
		rows.NoHeaders = p.NoHeaders || !headers
		return rows.Rows(output.Cells(p, items, l.layout))
	}
}
