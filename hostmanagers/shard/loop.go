package shard

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// delivery is what the core is handed at once.
type delivery struct {
	epoch   shard.Epoch
	replies []shard.Reply
}

// loop is the state of the goroutine that drives the machine.
type loop struct {
	runtime *Runtime
	output  shard.Output
	timer   Timer
	wake    int64 // of the machine; 0: none

	calls    []job // wait for the caller, in order
	retrying []job // failed and wait for their due time, or for the driver to be back
	lost     bool  // the driver is out of contact
	demand   *bool // that the driver has not been told; nil: it has
	outbox   []delivery
	replies  int // in outbox

	ahead shard.Message // read from the driver's queue while statuses were gathered
}

func newLoop(r *Runtime) *loop {
	return &loop{runtime: r, timer: r.config.Clock.NewTimer()}
}

// run handles messages until ctx ends or the driver fails to start. It blocks nowhere but in this select, and every send in it has its
// receiver in a goroutine that waits for nothing else.
func (l *loop) run(ctx context.Context, started <-chan error) error {
	defer l.timer.Stop()
	for {
		l.arm()
		jobs, next := l.nextJob()
		deliveries, first := l.nextDelivery()
		select {
		case <-ctx.Done():
			return nil
		case err := <-started:
			if err != nil && ctx.Err() == nil {
				return err
			}
			l.runtime.connected.Store(err == nil)
			l.tellDemand()
		case m := <-l.coreQueue():
			l.handle(m)
		case m := <-l.driverQueue():
			l.handleDriver(m)
		case res := <-l.runtime.results:
			l.finish(res)
		case jobs <- next:
			l.calls[0] = job{}
			l.calls = l.calls[1:]
		case deliveries <- first:
			l.replies -= len(first.replies)
			l.outbox[0] = delivery{}
			l.outbox = l.outbox[1:]
		case <-l.timer.C():
			l.fire()
		}
	}
}

// coreQueue is closed to the core while too many calls wait for the driver.
func (l *loop) coreQueue() <-chan shard.Message {
	if len(l.calls) >= maxCalls {
		return nil
	}
	return l.runtime.fromCore
}

// driverQueue is closed to the driver while too many replies wait for the core. The core's own messages are taken nevertheless: the replies
// to them are bounded by what it asked, and a core that is blocked in Send could not take a reply.
func (l *loop) driverQueue() <-chan shard.Message {
	if l.replies >= maxReplies {
		return nil
	}
	return l.runtime.fromDriver
}

func (l *loop) nextJob() (chan<- job, job) {
	if len(l.calls) == 0 || !l.runtime.connected.Load() {
		return nil, job{}
	}
	return l.runtime.jobs, l.calls[0]
}

func (l *loop) nextDelivery() (chan<- delivery, delivery) {
	if len(l.outbox) == 0 {
		return nil, delivery{}
	}
	return l.runtime.deliveries, l.outbox[0]
}

// handleDriver handles a message of the driver, and with one that brings statuses those that piled up behind it.
func (l *loop) handleDriver(m shard.Message) {
	if first, ok := m.(shard.StatusesArrived); ok {
		m = l.gather(first)
	}
	l.handleContact(m)
	if l.ahead != nil {
		m, l.ahead = l.ahead, nil
		l.handleContact(m)
	}
}

// gather joins the statuses that wait in the queue, up to maxStatuses and up to the first message of another kind.
func (l *loop) gather(first shard.StatusesArrived) shard.StatusesArrived {
	joined := false
	for len(first.Statuses) < maxStatuses {
		select {
		case m := <-l.runtime.fromDriver:
			more, ok := m.(shard.StatusesArrived)
			if !ok {
				l.ahead = m
				return first
			}
			if !joined { // the driver's slice is not ours to grow
				first.Statuses, joined = slices.Clone(first.Statuses), true
			}
			first.Statuses = append(first.Statuses, more.Statuses...)
		default:
			return first
		}
	}
	return first
}

// handleContact handles a message of the driver and notes whether it is in contact with its cluster.
func (l *loop) handleContact(m shard.Message) {
	switch c := m.(type) {
	case shard.DriverLost:
		l.lost = true
		l.runtime.config.Log.Warn("the driver lost its cluster", slog.String(telemetry.KeyReason, c.Reason))
	case shard.InventoryArrived:
		l.lost = false
		now := l.runtime.config.Clock.Now()
		for i := range l.retrying {
			l.retrying[i].attempt, l.retrying[i].due = 0, now
		}
		l.runtime.config.Log.Info("the driver has its cluster's inventory", slog.Int(telemetry.KeyCount, len(c.Inventory.Hosts)))
	}
	l.handle(m)
}

// handle gives the machine one message and queues what it answers.
func (l *loop) handle(m shard.Message) {
	begun := l.runtime.config.Clock.Now()
	l.runtime.machine.Handle(begun, m, &l.output)
	l.wake = l.output.NextWake
	if n := len(l.output.Replies); n > 0 {
		l.queueReplies(l.output.Epoch, l.output.Replies)
	}
	for _, call := range l.output.Calls {
		l.queueCall(call)
	}
	if l.output.Demand != nil {
		waiting := *l.output.Demand
		l.demand = &waiting
		l.tellDemand()
	}
	if hook := l.runtime.config.Hooks.Handled; hook != nil {
		hook(HandledInfo{
			Message: kind(m), Took: time.Duration(l.runtime.config.Clock.Now() - begun),
			Replies: len(l.output.Replies), Calls: len(l.output.Calls),
			QueuedMessages: len(l.runtime.fromCore) + len(l.runtime.fromDriver), QueuedReplies: l.replies, QueuedCalls: len(l.calls),
			Stats: l.runtime.machine.Stats(),
		})
	}
}

// tellDemand tells the driver whether work waits, once it has started. It does not block.
func (l *loop) tellDemand() {
	demander, ok := l.runtime.config.Driver.(driver.Demander)
	if l.demand == nil || !ok || !l.runtime.connected.Load() {
		return
	}
	demander.Demand(*l.demand)
	l.demand = nil
}

// queueReplies puts replies behind those that wait, in the same delivery when it is of the same epoch and not too long.
func (l *loop) queueReplies(epoch shard.Epoch, replies []shard.Reply) {
	l.replies += len(replies)
	if n := len(l.outbox); n > 0 {
		last := &l.outbox[n-1]
		if last.epoch == epoch && len(last.replies)+len(replies) <= maxDelivery {
			last.replies = append(last.replies, replies...)
			return
		}
	}
	l.outbox = append(l.outbox, delivery{epoch, slices.Clone(replies)})
}

// queueCall puts a call behind those that wait; acknowledgements that follow each other become one.
func (l *loop) queueCall(call shard.Call) {
	if ack, ok := call.(shard.AckCall); ok && len(l.calls) > 0 {
		last := &l.calls[len(l.calls)-1]
		if waiting, ok := last.call.(shard.AckCall); ok && last.attempt == 0 && len(waiting.Tokens) < maxTokens {
			last.call = shard.AckCall{Tokens: append(waiting.Tokens, ack.Tokens...)}
			return
		}
	}
	l.calls = append(l.calls, job{call: call})
}

// finish takes note of a call that was made.
func (l *loop) finish(res result) {
	if res.err == nil {
		return
	}
	if launch, ok := res.job.call.(shard.LaunchCall); ok {
		l.runtime.config.Log.Warn("the driver refused a launch", slog.Int(telemetry.KeyCount, len(launch.Launches)), slog.Any(telemetry.KeyError, res.err))
		l.handle(launchFailed(launch, res.err))
		return
	}
	if res.job.attempt >= maxAttempts || len(l.retrying) >= maxRetrying {
		info := res.job.info(0, res.err)
		l.runtime.config.Log.Error("gave up a call of the driver", slog.String(telemetry.KeyMethod, info.Call), slog.Int(telemetry.KeyCount, info.Items),
			slog.Int(telemetry.KeyAttempt, info.Attempt), slog.Any(telemetry.KeyError, res.err))
		if l.runtime.config.Hooks.GaveUp != nil {
			l.runtime.config.Hooks.GaveUp(info)
		}
		return
	}
	res.job.due = l.runtime.config.Clock.Now() + int64(backoff(res.job.attempt))
	l.retrying = append(l.retrying, res.job)
}

// fire does what is due.
func (l *loop) fire() {
	now := l.runtime.config.Clock.Now()
	if !l.lost {
		waiting := l.retrying[:0]
		for _, j := range l.retrying {
			if j.due <= now {
				l.calls = append(l.calls, j)
			} else {
				waiting = append(waiting, j)
			}
		}
		clear(l.retrying[len(waiting):])
		l.retrying = waiting
	}
	if l.wake != 0 && l.wake <= now {
		l.handle(shard.Wake{})
	}
}

// arm sets the timer to the next thing that becomes due.
func (l *loop) arm() {
	next := int64(math.MaxInt64)
	if l.wake != 0 {
		next = l.wake
	}
	if !l.lost {
		for _, j := range l.retrying {
			next = min(next, j.due)
		}
	}
	if next == math.MaxInt64 {
		l.timer.Stop()
		return
	}
	l.timer.Reset(time.Duration(max(0, next-l.runtime.config.Clock.Now())))
}
