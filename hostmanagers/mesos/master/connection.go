package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/telemetry"
)

// settled is how long a subscription has to last for the waits to begin anew.
const settled = time.Second

// Connection is one framework's connection to the master that leads.
type Connection struct {
	cfg     Config
	leaders locator

	mu     sync.Mutex
	sub    *subscription // nil: there is none
	status Status
	id     string // of the framework; "": none yet

	// Run's goroutine owns the following.
	unsaved   bool    // the id is not durable
	finishing []*pipe // of subscriptions that are over
	begun     int     // subscriptions so far
}

// Status is how a connection stands.
type Status struct {
	// Subscribed says whether the master sends events.
	Subscribed bool
	// Framework is the framework's id; "" before the first subscription.
	Framework string
	// Master is the address of the master that leads, or led when last heard of; "" before the first subscription.
	Master string
	// Since is when the subscription began, or ended.
	Since time.Time
	// Err says why there is no subscription, once one has ended or an attempt has failed, and ErrAt since when that is known.
	Err   error
	ErrAt time.Time
	// Attempts is how many have failed in a row since the last subscription ended.
	Attempts int
	// Next is when the next attempt begins; zero: one is under way, or none is needed.
	Next time.Time
}

// New checks a Config and makes a connection that does nothing before Run.
func New(cfg Config) (*Connection, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	leaders, err := newLocator(&cfg)
	if err != nil {
		return nil, err
	}
	return &Connection{cfg: cfg, leaders: leaders}, nil
}

// Status tells how the connection stands.
func (c *Connection) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Leader is the address of the master that leads, as far as it is known: Status().Master.
func (c *Connection) Leader() string { return c.Status().Master }

// Run subscribes, and subscribes again whenever the subscription ends, until ctx is done. It returns ctx's error, ErrRemoved or ErrReplaced
// if the Config says so, a *RefusedError with Code 0 if the master refuses FrameworkInfo, or why the framework's id cannot be loaded. What
// else goes wrong is tried again, shows in Status and is logged.
func (c *Connection) Run(ctx context.Context, handler Handler) error {
	id, err := c.cfg.Identity.Load()
	if err != nil {
		return fmt.Errorf("load the Mesos framework's id: %w", err)
	}
	c.note(func(s *Status) { c.id, s.Framework = id, id })
	defer c.leaders.close()
	defer c.leave()
	var waits waits
	for {
		before := c.begun
		lasted, err := c.subscribe(ctx, handler)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait, end := waits.next(&c.cfg, lasted, err)
		attempts := c.failed(err, c.begun == before, wait)
		if end {
			return err
		}
		if errors.Is(err, ErrRemoved) {
			c.note(func(*Status) { c.id = "" })
		}
		c.cfg.Logger.Log(ctx, level(attempts), "not subscribed to the Mesos master", slog.Any(telemetry.KeyReason, err), slog.Int(telemetry.KeyAttempt, attempts), slog.Duration(telemetry.KeyDuration, wait))
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		c.note(func(s *Status) { s.Next = time.Time{} })
	}
}

// failed notes that there is no subscription, because the last one ended or because an attempt came to nothing, and returns how many attempts have since.
func (c *Connection) failed(err error, attempt bool, wait time.Duration) (attempts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.status
	if attempt {
		s.Attempts++
	}
	s.Err, s.ErrAt = err, time.Now()
	if wait > 0 {
		s.Next = s.ErrAt.Add(wait)
	}
	return s.Attempts
}

// level is how loud a failure is told: the end of a subscription and the first failed attempt always, the others ever more seldom, so that a master that is
// away for a day fills no log, and what has changed meanwhile is still told.
func level(attempts int) slog.Level {
	if attempts&(attempts-1) == 0 { // 0, 1, 2, 4, 8 and so on
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// finish waits for the last answers of a subscription, while the next one is being tried for.
func (c *Connection) finish(p *pipe) {
	c.finishing = slices.DeleteFunc(c.finishing, func(p *pipe) bool {
		if !p.broken() {
			return false
		}
		p.work.Wait() // it is broken, so they end
		return true
	})
	if p != nil {
		c.finishing = append(c.finishing, p)
	}
}

// leave ends what is left of all subscriptions.
func (c *Connection) leave() {
	for _, p := range c.finishing {
		p.close(ErrNotSubscribed)
	}
}

func (c *Connection) note(f func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.status)
}

// waits decides how long to wait for the next attempt.
type waits struct {
	failures int // in a row
	replaced int // since the start
}

// next says what to do after an attempt whose subscription lasted that long.
func (w *waits) next(cfg *Config, lasted time.Duration, err error) (wait time.Duration, end bool) {
	if lasted >= settled {
		w.failures = 0
	}
	w.failures++
	var refused *RefusedError
	switch {
	case errors.Is(err, ErrReplaced):
		w.replaced++
		wait = doubled(cfg.Retake, w.replaced, maxRetakeWait)
		return wait/2 + jittered(cfg, wait), cfg.Retake == 0
	case errors.Is(err, ErrRemoved) && !cfg.Renew, errors.As(err, &refused) && refused.Code == 0:
		return 0, true
	default:
		return jittered(cfg, doubled(cfg.FirstWait, w.failures, cfg.LongestWait)), false
	}
}

// maxRetakeWait bounds the wait before the framework's id is taken back from another process.
const maxRetakeWait = time.Hour

// doubled is first, twice as long for each time after the first, and at most longest.
func doubled(first time.Duration, times int, longest time.Duration) time.Duration {
	for ; times > 1 && first < longest; times-- {
		first *= 2
	}
	return min(first, longest)
}

func jittered(cfg *Config, wait time.Duration) time.Duration {
	return time.Duration(cfg.Random() * float64(wait))
}

// subscription is the time from SUBSCRIBED to the end of the stream.
type subscription struct {
	owner     *Connection
	at        target
	id        string // of the stream
	framework mesos.FrameworkID
	stream    *exchange
	ctx       context.Context // ends with it
	cancel    context.CancelCauseFunc

	opening chan struct{} // holds one while a pipe is being opened
	calls   *pipe         // guarded by opening
}

// lose ends a subscription, for the first reason that is given.
func (s *subscription) lose(reason error) {
	s.cancel(reason)
	s.stream.close()
}

// pipe returns what carries calls, and opens it if need be.
func (s *subscription) pipe(ctx context.Context) (*pipe, error) {
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.ctx.Done():
		return nil, ErrNotSubscribed
	}
	if s.ctx.Err() != nil {
		return nil, ErrNotSubscribed
	}
	if s.calls != nil {
		if !s.calls.broken() {
			return s.calls, nil
		}
		s.calls.work.Wait() // it is broken, so they end
		s.calls = nil
	}
	authorization, err := s.owner.credentials()
	if err != nil {
		return nil, err
	}
	conn, err := s.owner.dial(s.ctx, s.at)
	if err != nil {
		return nil, err
	}
	s.calls = newPipe(conn, head(s.at, schedulerPath, authorization, s.id, false), &s.owner.cfg, s.refused)
	return s.calls, nil
}

// refused says what a refused call means, and ends the subscription if the master does not know it any more.
func (s *subscription) refused(r *RefusedError) error {
	if !endsSubscription(r) {
		return r
	}
	s.lose(fmt.Errorf("a call is refused: %w", r))
	return fmt.Errorf("%w: %w", ErrNotSubscribed, r)
}

// end closes the stream, and lets calls that were sent be answered: a stream also ends because of a call, and the calls before it were taken.
func (s *subscription) end() *pipe {
	s.stream.close()
	s.opening <- struct{}{}
	defer func() { <-s.opening }()
	if s.calls != nil {
		s.calls.finish()
	}
	return s.calls
}

// Call sends one call, with the framework's id and the stream's filled in, and returns nil when the master has taken it. Wrapping
// ErrNotSubscribed: it was not taken, and Handler.Subscribed will say when it can be tried again. Wrapping ErrUnanswered: nobody knows. Any
// other error, such as a *RefusedError: it was not taken. A call that is taken can still come to nothing: its effect is told by events.
func (c *Connection) Call(ctx context.Context, call *scheduler.Call) error {
	if errs := c.Send(ctx, call); errs != nil {
		return errs[0]
	}
	return nil
}

// Send sends calls in their order, without waiting for one's answer before the next, and returns their outcomes as Call does, or nil if all
// were taken. Calls of one Send reach the master in order; so do those of two when one returns before the other begins.
func (c *Connection) Send(ctx context.Context, calls ...*scheduler.Call) []error {
	c.mu.Lock()
	s := c.sub
	c.mu.Unlock()
	b := newBatch(len(calls))
	if len(calls) == 0 {
		return nil
	}
	if s == nil {
		b.settleAll(0, ErrNotSubscribed)
		return b.errs
	}
	for sent := 0; sent < len(calls); {
		n := min(len(calls)-sent, max(1, c.cfg.InFlight/2))
		if err := s.send(ctx, b, sent, calls[sent:sent+n]); err != nil {
			b.settleAll(sent, err)
			break
		}
		sent += n
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		b.settleAll(0, fmt.Errorf("%w: %w", ErrUnanswered, context.Cause(ctx)))
	}
	return b.errs
}

// send puts some of a batch's calls on their way, or returns why none can be sent.
func (s *subscription) send(ctx context.Context, b *batch, first int, calls []*scheduler.Call) error {
	p, err := s.pipe(ctx)
	if err != nil {
		return err
	}
	if err := p.room.Acquire(ctx, int64(len(calls))); err != nil {
		return context.Cause(ctx)
	}
	filled := make([]*scheduler.Call, len(calls))
	for i, call := range calls {
		whole := *call
		whole.FrameworkID = &s.framework
		filled[i] = &whole
	}
	p.enqueue(b, first, filled)
	return nil
}
