package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/recordio"
)

const (
	// maxRedirects bounds how often one attempt follows from master to master.
	maxRedirects = 4
	// usualHeartbeat is what counts if a master does not say how often it sends heartbeats.
	usualHeartbeat = 15 * time.Second
	// longestHeartbeat bounds what a master may say.
	longestHeartbeat = 10 * time.Minute
)

// What masters say, word by word.
const (
	saysRemoved  = "Framework has been removed"
	saysReplaced = "Framework failed over"
)

// endsSubscription says whether a refusal of a call means that the master does not know the subscription.
func endsSubscription(r *RefusedError) bool {
	switch r.Code {
	case http.StatusForbidden, // "Framework is not subscribed"
		http.StatusTemporaryRedirect: // another master leads, with subscriptions of its own
		return true
	case http.StatusBadRequest:
		return strings.HasPrefix(r.Text, "Framework cannot be found") || strings.HasPrefix(r.Text, "The stream ID ")
	default:
		return false
	}
}

// subscribe makes one attempt, and serves the subscription until it ends. It returns how long that lasted, and why it ended.
func (c *Connection) subscribe(ctx context.Context, handler Handler) (time.Duration, error) {
	x, at, err := c.reach(ctx)
	if err != nil {
		return 0, err
	}
	defer x.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if kind := x.response.Header.Get("Content-Type"); kind != mediaType {
		return 0, fmt.Errorf("the Mesos master at %s answers a subscription in %q, not in %s", at, printable(kind), mediaType)
	}
	s := &subscription{owner: c, at: at, id: x.response.Header.Get(streamHeader), stream: x, ctx: ctx, cancel: cancel, opening: make(chan struct{}, 1)}
	stop := context.AfterFunc(ctx, x.close)
	defer stop()
	events := recordio.NewReader(x.response.Body)
	first, err := c.confirm(s, events)
	if err != nil {
		return 0, s.reason(err)
	}
	began := time.Now()
	c.begun++
	c.note(func(status *Status) {
		c.sub = s
		*status = Status{Subscribed: true, Framework: s.framework.Value, Master: at.String(), Since: began}
	})
	c.cfg.Logger.Info("subscribed to a Mesos master", slog.String(telemetry.KeyAddress, at.String()))
	var info mesos.MasterInfo
	if first.MasterInfo != nil {
		info = *first.MasterInfo
	}
	handler.Subscribed(s.framework, info)
	var watch sync.WaitGroup
	watch.Go(func() {
		if c.leaders.moved(ctx) {
			s.lose(errors.New("the Mesos master leads no more"))
		}
	})
	err = s.reason(c.serve(events, handler))
	cancel(err)
	watch.Wait()
	c.note(func(status *Status) {
		c.sub = nil
		now := time.Now()
		status.Subscribed, status.Since, status.Err, status.ErrAt = false, now, err, now
	})
	c.finish(s.end())
	handler.Lost(err)
	return time.Since(began), err
}

// reason is why a subscription ended, given what its stream said last.
func (s *subscription) reason(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the Mesos master at %s is silent: not even a heartbeat came", s.at)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the Mesos master at %s ended the subscription", s.at)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the connection to the Mesos master at %s broke", s.at)
	default:
		return err
	}
}

// reach finds the master that leads and sends it the SUBSCRIBE call. All addresses are tried.
func (c *Connection) reach(ctx context.Context) (*exchange, target, error) {
	candidates, err := c.leaders.locate(ctx)
	if err != nil {
		return nil, target{}, err
	}
	body, err := c.subscribeCall()
	if err != nil {
		return nil, target{}, err
	}
	var failed []error
	for _, at := range candidates {
		x, at, err := c.follow(ctx, at, schedulerPath, body)
		if err == nil {
			c.leaders.found(at)
			return x, at, nil
		}
		if ctx.Err() != nil {
			return nil, target{}, context.Cause(ctx)
		}
		failed = append(failed, err)
	}
	return nil, target{}, errors.Join(failed...)
}

// subscribeCall encodes the SUBSCRIBE call.
func (c *Connection) subscribeCall() ([]byte, error) {
	info := *c.cfg.Framework
	call := &scheduler.Call{Type: scheduler.Call_SUBSCRIBE, Subscribe: &scheduler.Call_Subscribe{FrameworkInfo: &info}}
	c.mu.Lock()
	id := c.id
	c.mu.Unlock()
	info.ID = nil
	if id != "" {
		call.FrameworkID, info.ID = &mesos.FrameworkID{Value: id}, &mesos.FrameworkID{Value: id}
	}
	if c.cfg.Principal != "" {
		info.Principal = &c.cfg.Principal
	}
	if c.cfg.Suppressed != nil {
		call.Subscribe.SuppressedRoles = c.cfg.Suppressed()
	}
	body, err := call.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the SUBSCRIBE call to the Mesos master: %w", err)
	}
	return body, nil
}

// follow posts to a master, and to the one that it redirects to. The answer is one of success.
func (c *Connection) follow(ctx context.Context, at target, path string, body []byte) (*exchange, target, error) {
	for range maxRedirects + 1 {
		x, err := c.post(ctx, at, path, body)
		if err != nil {
			return nil, at, err
		}
		switch x.response.StatusCode {
		case http.StatusOK:
			return x, at, nil
		case http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusMovedPermanently, http.StatusFound:
			at, err = at.redirected(x.response.Header.Get("Location"), path)
		default:
			err = fmt.Errorf("%s: %w", at, refusal(x.response))
		}
		x.close()
		if err != nil {
			return nil, at, err
		}
	}
	return nil, at, fmt.Errorf("the Mesos masters redirect to one another, more than %d times", maxRedirects)
}

// confirm waits for SUBSCRIBED, makes the framework's id durable, and from then on listens for heartbeats.
func (c *Connection) confirm(s *subscription, events *recordio.Reader) (*scheduler.Event_Subscribed, error) {
	event, err := nextEvent(events)
	if err != nil {
		return nil, fmt.Errorf("subscribe to the Mesos master at %s: %w", s.at, err)
	}
	if event.Type == scheduler.Event_ERROR {
		return nil, saidError(event, true)
	}
	first := event.Subscribed
	if event.Type != scheduler.Event_SUBSCRIBED || first.GetFrameworkID() == nil || first.FrameworkID.Value == "" {
		return nil, fmt.Errorf("the Mesos master at %s begins a subscription with %s, and not by confirming it", s.at, event.Type)
	}
	s.framework = *first.FrameworkID
	c.mu.Lock()
	known := c.id == s.framework.Value
	c.id = s.framework.Value // kept even if it cannot be saved, or each attempt would be one framework more
	c.mu.Unlock()
	if !known || c.unsaved {
		c.unsaved = true
		if err := c.cfg.Identity.Save(s.framework.Value); err != nil {
			return nil, fmt.Errorf("keep the Mesos framework's id: %w", err)
		}
		c.unsaved = false
	}
	beat := usualHeartbeat
	if seconds := first.GetHeartbeatIntervalSeconds(); seconds > 0 {
		beat = time.Duration(min(seconds, longestHeartbeat.Seconds()) * float64(time.Second))
	}
	s.stream.grace = max(beat*time.Duration(c.cfg.Missed), c.cfg.FirstWait)
	_ = s.stream.conn.SetDeadline(time.Time{}) // a connection that is closed fails by itself
	return first, nil
}

// saidError is what an ERROR event means, in answer to a subscription or later.
func saidError(event *scheduler.Event, refusal bool) error {
	text := printable(event.GetError().GetMessage())
	switch {
	case strings.HasPrefix(text, saysRemoved):
		return ErrRemoved
	case strings.HasPrefix(text, saysReplaced):
		return ErrReplaced
	case refusal:
		return &RefusedError{Text: text}
	default:
		return fmt.Errorf("the Mesos master ends the subscription: %s", text)
	}
}

// serve hands events to the handler until the stream ends.
func (c *Connection) serve(events *recordio.Reader, handler Handler) error {
	for {
		event, err := nextEvent(events)
		switch {
		case err != nil:
			return err
		case event.Type == scheduler.Event_HEARTBEAT:
		case event.Type == scheduler.Event_ERROR:
			return saidError(event, false)
		default:
			handler.Event(event)
		}
	}
}

// nextEvent reads an event, which holds on to nothing of the reader's. At the end of the stream the error is io.EOF.
func nextEvent(from *recordio.Reader) (*scheduler.Event, error) {
	record, err := from.Next()
	if err != nil {
		return nil, err
	}
	event := new(scheduler.Event)
	if err := decode(event, record); err != nil {
		return nil, err
	}
	return event, nil
}

// message is one of mesos-go's.
type message interface{ Unmarshal(data []byte) error }

// decode reads a message. The decoders of mesos-go were generated when such code could still run out of its slice.
func decode(to message, data []byte) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the Mesos master sends a broken message: %v", fault)
		}
	}()
	if err := to.Unmarshal(data); err != nil {
		return fmt.Errorf("the Mesos master sends a message that cannot be read: %w", err)
	}
	return nil
}
