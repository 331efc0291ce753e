package members

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/hostmanagers/split"
)

// How connections that end are made again: after firstRetry, and twice as long after each that fails soon, up to lastRetry, give or take a fifth.
const (
	firstRetry, lastRetry = time.Second, time.Minute
	jitter                = 5 // one in so many
)

// Member is a cluster to connect to.
type Member struct {
	Name   string
	Kind   cluster.Kind
	Shards int // 0: 1
	// Connect makes a driver, which is not started. It is called for each attempt.
	Connect func() (driver.Driver, error)

	spec *cluster.Spec // of one that was added; nil: flags name it
}

// connectsBy reports whether a connection by a spec would be like the member's: labels do not matter to it.
func (m *Member) connectsBy(s *cluster.Spec) bool {
	if m.spec == nil {
		return false
	}
	own := *m.spec
	own.Labels = s.Labels
	return own.Equal(s)
}

// shardIDs are the names of a member's shards.
func (m *Member) shardIDs() []shard.ID {
	ids := make([]shard.ID, max(m.Shards, 1))
	for n := range ids {
		ids[n] = shard.ID(fmt.Sprintf("%s/%d", m.Name, n))
	}
	return ids
}

// connection keeps one member connected until it is ended.
type connection struct {
	member  Member
	byFlags bool
	manager *Manager
	cancel  context.CancelFunc
	ended   chan struct{} // closed when nothing of it is left

	mu       sync.Mutex
	driver   driver.Driver   // of the present attempt; nil: there is none
	splitter *split.Splitter // nil: it is not cut
	attempts int
	next     time.Time
	err      error
	errAt    time.Time
	can      *driver.Capabilities
}

// run works until ctx ends.
func (c *connection) run(ctx context.Context) {
	defer close(c.ended)
	log := c.manager.config.Log
	delay := firstRetry
	for {
		began := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			delay = firstRetry
		}
		wait := delay + rand.N(2*delay/jitter) - delay/jitter //nolint:gosec // nobody gains from knowing it
		attempts := c.failed(err, time.Since(began) > lastRetry, time.Now().Add(wait))
		log.Log(ctx, level(attempts), "the connection to a cluster ended; it is made again", slog.String(telemetry.KeyCluster, c.member.Name), slog.Any(telemetry.KeyError, err),
			slog.Int(telemetry.KeyAttempt, attempts), slog.Duration(telemetry.KeyDuration, wait))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		c.trying()
		delay = min(2*delay, lastRetry)
	}
}

// failed notes that a connection has ended, and returns how many have, one soon after another.
func (c *connection) failed(err error, lasted bool, next time.Time) (attempts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lasted {
		c.attempts = 0
	}
	c.attempts++
	c.err, c.errAt, c.next, c.driver, c.splitter = err, time.Now(), next, nil, nil
	return c.attempts
}

// level is how loud an end is told: of a row the first always, the others ever more seldom.
func level(attempts int) slog.Level {
	if attempts&(attempts-1) == 0 { // 1, 2, 4, 8 and so on
		return slog.LevelError
	}
	return slog.LevelDebug
}

func (c *connection) trying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.Time{}
}

// once connects and works until the connection ends, or ctx.
func (c *connection) once(ctx context.Context) error {
	d, err := c.member.Connect()
	if err != nil {
		return err
	}
	ids := c.member.shardIDs()
	drivers := []driver.Driver{d}
	var splitter *split.Splitter
	if len(ids) > 1 {
		if splitter, err = split.New(split.Config{Driver: d, Parts: len(ids)}); err != nil {
			return err
		}
		drivers = splitter.Drivers()
	}
	c.mu.Lock()
	c.driver, c.splitter = d, splitter
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(ids))
	var group sync.WaitGroup
	for n, id := range ids {
		group.Go(func() {
			errs[n] = c.manager.config.Serve(ctx, Shard{ID: id, Cluster: c.member.Name, Parts: len(ids), Driver: drivers[n]})
			cancel() // the shards of a connection end together
		})
	}
	group.Wait()
	c.mu.Lock()
	c.noteCapabilities()
	c.mu.Unlock()
	return errors.Join(errs...)
}

// noteCapabilities keeps what the driver can do, for when there is none. It knows all of that once it has started. mu is held.
func (c *connection) noteCapabilities() {
	if c.driver == nil {
		return
	}
	c.can = &driver.Capabilities{}
	if capable, ok := c.driver.(driver.Capable); ok {
		*c.can = capable.Capabilities()
	}
}

// end stops the connection and waits for that. Runs go on.
func (c *connection) end() {
	c.cancel()
	<-c.ended
}

// leave has the cluster forget the cell. The connection has to be up.
func (c *connection) leave(ctx context.Context) (keepsPlace bool, err error) {
	c.mu.Lock()
	d := c.driver
	c.mu.Unlock()
	if d == nil {
		return true, errors.New("there is no connection")
	}
	leaver, ok := d.(driver.Leaver)
	if !ok {
		return false, nil
	}
	return true, leaver.Leave(ctx)
}

// tell says how it fares.
func (c *connection) tell() api.Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteCapabilities()
	out := api.Connection{Kind: c.member.Kind, ByFlags: c.byFlags, Attempts: c.attempts, Next: c.next, ErrorAt: c.errAt, Capabilities: c.can}
	if c.err != nil {
		out.Error = c.err.Error()
	}
	if describer, ok := c.driver.(driver.Describer); ok {
		d := describer.Describe()
		out.Details = d.Details
		if d.Err != nil {
			out.Error, out.ErrorAt, out.Attempts, out.Next = d.Err.Error(), d.ErrAt, d.Attempts, d.Next
		}
	}
	if c.splitter != nil {
		if n := c.splitter.Homeless(); n > 0 {
			out.Notes = append(out.Notes, fmt.Sprintf("%d hosts are in no shard, as each takes %d: give the cluster more shards", n, shard.MaxRows))
		}
	}
	return out
}
