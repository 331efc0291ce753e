// Package shard runs a core/shard machine: it gives it a clock, queues, a driver to call and a core to answer.
//
// It owns goroutines and queues, never a decision: what to place, launch or forget is the machine's. It knows no cluster; drivers come in
// through core/driver, and what it sees goes out through Hooks and a logger.
//
// Concurrency: Run starts three goroutines and waits for all of them before it returns. The loop alone touches the machine. The caller makes
// the driver's calls one after the other, so that a run's Launch comes before its Kill; the deliverer hands replies to the core. The loop
// never blocks on either of them, nor do they on each other, so a slow driver and a slow core can hold up their own work only:
// when the core lags, the driver's news wait in the driver; when the driver lags, Send blocks.
// Send, ReadLog, Rehearse and Capabilities may be called from any goroutine.
package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
)

// The bounds of a runtime.
const (
	coreQueueLength   = 256  // messages of the core that wait for the loop
	driverQueueLength = 64   // calls of the driver's sink that wait for the loop
	maxCalls          = 256  // driver calls that wait for the caller before the core's messages have to wait
	maxReplies        = 8192 // replies that wait for the core before the driver's news have to wait
	maxDelivery       = 4096 // replies handed to the core at once; one message's replies stay together
	maxTokens         = 8192 // tokens acknowledged by one call
	maxStatuses       = 4096 // statuses handled at once when several calls of the sink have piled up
)

// ErrStopped is returned by Send once Run has ended or is ending.
var ErrStopped = errors.New("the shard has stopped")

// Core is the receiver of a shard's replies.
type Core interface {
	// Deliver takes replies in order, from one goroutine. It may block while the core is busy, even in a Send to the same shard, but must
	// return once the core stops. The replies are the core's to keep.
	Deliver(id shard.ID, epoch shard.Epoch, replies []shard.Reply)
}

// Config is what a Runtime is made of.
type Config struct {
	Machine shard.Config // Reconciles and Demands are filled in from Driver
	Driver  driver.Driver
	Core    Core
	Clock   Clock        // default: the wall clock
	Log     *slog.Logger // default: nothing is logged
	Hooks   Hooks
	Parts   int // into how many shards the cluster is cut; 0: that is not known
}

// Runtime is one shard at work.
type Runtime struct {
	config  Config
	machine *shard.Machine

	running   atomic.Bool // Run was called
	connected atomic.Bool // the driver's Start has returned without error
	stopping  chan struct{}

	fromCore   chan shard.Message
	fromDriver chan shard.Message
	jobs       chan job
	results    chan result
	deliveries chan delivery
}

// New makes a runtime; nothing happens before Run.
func New(config Config) (*Runtime, error) {
	if config.Driver == nil || config.Core == nil {
		return nil, fmt.Errorf("shard %s: a runtime needs a Driver and a Core", config.Machine.ID)
	}
	if config.Clock == nil {
		config.Clock = NewWallClock()
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	_, config.Machine.Reconciles = config.Driver.(driver.Reconciler)
	_, config.Machine.Demands = config.Driver.(driver.Demander)
	machine, err := shard.New(config.Machine)
	if err != nil {
		return nil, err
	}
	config.Log = config.Log.With(slog.String(telemetry.KeyShard, string(config.Machine.ID)), slog.String(telemetry.KeyCluster, config.Machine.Cluster))
	return &Runtime{
		config:     config,
		machine:    machine,
		stopping:   make(chan struct{}),
		fromCore:   make(chan shard.Message, coreQueueLength),
		fromDriver: make(chan shard.Message, driverQueueLength),
		jobs:       make(chan job),
		results:    make(chan result),
		deliveries: make(chan delivery),
	}, nil
}

// ID names the shard.
func (r *Runtime) ID() shard.ID { return r.config.Machine.ID }

// Parts is into how many shards the cluster is cut; 0: that is not known.
func (r *Runtime) Parts() int { return r.config.Parts }

// Run works until ctx ends, or until the driver could not be started, which is the error that it returns. It may be called once. When it
// returns, the driver has released everything and no goroutine is left.
func (r *Runtime) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("shard %s: Run was called twice", r.ID())
	}
	ctx, cancel := context.WithCancel(ctx)
	started := make(chan error, 1)
	var group sync.WaitGroup
	group.Go(func() { r.makeCalls(ctx) })
	group.Go(func() { r.deliver(ctx) })
	group.Go(func() { started <- r.config.Driver.Start(ctx, sink{r}) })

	err := newLoop(r).run(ctx, started)

	cancel()
	close(r.stopping)
	group.Wait()
	r.config.Driver.Wait()
	r.connected.Store(false)
	if err != nil {
		return fmt.Errorf("shard %s: starting the driver: %w", r.ID(), err)
	}
	return nil
}

// Send gives the machine a message of the core. It blocks while the queue is full; an error means that the message was not taken.
func (r *Runtime) Send(ctx context.Context, m shard.Message) error {
	select {
	case <-r.stopping: // first, so that a stopped shard takes nothing even while its queue has room
		return ErrStopped
	default:
	}
	select {
	case r.fromCore <- m:
		return nil
	case <-r.stopping:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Capabilities are the driver's.
func (r *Runtime) Capabilities() driver.Capabilities {
	if capable, ok := r.config.Driver.(driver.Capable); ok {
		return capable.Capabilities()
	}
	return driver.Capabilities{}
}

// ReadLog reads a run's output from the driver, see driver.LogReader.
func (r *Runtime) ReadLog(ctx context.Context, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error) {
	reader, ok := r.config.Driver.(driver.LogReader)
	if !ok {
		return nil, driver.ErrNoLogs
	}
	if !r.connected.Load() {
		return nil, fmt.Errorf("reading the output of run %s: shard %s is not connected to its cluster; try again later", run, r.ID())
	}
	return reader.ReadLog(ctx, run, request)
}

// Rehearse asks the driver about a launch, see driver.Rehearser.
func (r *Runtime) Rehearse(ctx context.Context, launch *driver.Launch) (driver.Rehearsal, error) {
	rehearser, ok := r.config.Driver.(driver.Rehearser)
	if !ok {
		return driver.Rehearsal{}, driver.ErrNoRehearsal
	}
	if !r.connected.Load() {
		return driver.Rehearsal{}, fmt.Errorf("shard %s is not connected to its cluster", r.ID())
	}
	return rehearser.Rehearse(ctx, launch)
}

// deliver hands replies to the core until ctx ends.
func (r *Runtime) deliver(ctx context.Context) {
	for {
		select {
		case d := <-r.deliveries:
			r.config.Core.Deliver(r.ID(), d.epoch, d.replies)
		case <-ctx.Done():
			return
		}
	}
}

// sink turns the driver's calls into messages. It blocks while the queue is full: that is the back-pressure on the driver.
type sink struct{ runtime *Runtime }

func (s sink) Inventory(i driver.Inventory) { s.put(shard.InventoryArrived{Inventory: i}) }

func (s sink) HostsChanged(changed []driver.Host, removed []string) {
	s.put(shard.HostsUpdated{Changed: changed, Removed: removed})
}

// HostsMoved implements driver.Mover.
func (s sink) HostsMoved(names []string) { s.put(shard.HostsMoved{Hosts: names}) }

func (s sink) Statuses(statuses []driver.Status) {
	if len(statuses) > 0 {
		s.put(shard.StatusesArrived{Statuses: statuses})
	}
}

func (s sink) Disconnected(reason error) {
	m := shard.DriverLost{Reason: "the driver gave no reason"}
	if reason != nil {
		m.Reason = clip(reason.Error())
	}
	s.put(m)
}

func (s sink) put(m shard.Message) {
	select {
	case s.runtime.fromDriver <- m:
	case <-s.runtime.stopping:
	}
}

// clip keeps an error's text within what a status may carry.
func clip(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > driver.MaxMessage {
		return strings.ToValidUTF8(text[:driver.MaxMessage-3], "") + "..."
	}
	return text
}
