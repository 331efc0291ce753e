package engine

import (
	"context"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
)

type call struct {
	event  scheduler.Call
	answer chan scheduler.Answer
}

type read struct {
	glance bool          // it does not wait for durability
	done   chan struct{} // closed once what look saw is durable, or after a glance

	mu   sync.Mutex
	look func(scheduler.Reader) // nil once it was called, or will not be
}

// run calls look, unless its caller has gone.
func (r *read) run(reader scheduler.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.look != nil {
		r.look(reader)
	}
}

// giveUp returns when look is not running and never will be: it writes to what its caller owns.
func (r *read) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look = nil
}

type delivery struct {
	id      shard.ID
	epoch   shard.Epoch
	replies []shard.Reply
}

// loop gives the state its inputs, a Step at a time, until ctx ends.
func (e *Engine) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	seen := time.NewTicker(cellPeriod)
	defer seen.Stop()
	var events []scheduler.Event
	for ctx.Err() == nil {
		events = events[:0]
		var reads []*read
		select {
		case <-ctx.Done():
			return
		case c := <-e.calls:
			events = e.takeCall(events, c)
		case d := <-e.deliveries:
			events = takeDelivery(events, d)
		case s := <-e.attaches:
			events = e.takeShard(ctx, events, s)
		case told := <-e.told:
			events = append(events, told)
		case r := <-e.reads:
			reads = append(reads, r)
		case <-timer.C:
			events = append(events, scheduler.Woken{})
		case <-seen.C:
			e.tellCell()
		}
		events, reads = e.drain(events, reads)
		if len(events) > 0 {
			wake := e.step(events)
			e.rearm(timer, wake)
		}
		e.look(reads)
	}
}

// drain takes what else is waiting, up to the bound of one Step, so that a Step costs once for many events.
func (e *Engine) drain(events []scheduler.Event, reads []*read) ([]scheduler.Event, []*read) {
	for len(events)+len(reads) < maxEvents {
		select {
		case c := <-e.calls:
			events = e.takeCall(events, c)
		case d := <-e.deliveries:
			events = takeDelivery(events, d)
		case told := <-e.told:
			events = append(events, told)
		case r := <-e.reads:
			reads = append(reads, r)
		default:
			return events, reads
		}
	}
	return events, reads
}

func (e *Engine) takeCall(events []scheduler.Event, c call) []scheduler.Event {
	e.tokens++
	c.event.Token = e.tokens
	e.waiting[e.tokens] = c.answer
	return append(events, c.event)
}

func takeDelivery(events []scheduler.Event, d delivery) []scheduler.Event {
	for _, r := range d.replies {
		events = append(events, scheduler.ShardReplied{Shard: d.id, Epoch: d.epoch, Reply: r})
	}
	return events
}

// step runs one Step and sends its output down the pipeline.
func (e *Engine) step(events []scheduler.Event) (wake int64) {
	began := time.Now()
	out := e.state.Step(e.clock.read(began), events)
	e.config.Trace.StepDone(telemetry.Step{
		Events: len(events), Groups: len(out.Groups), Effects: len(out.Internal) + len(out.External), Duration: time.Since(began),
	})
	for _, effect := range out.Internal {
		e.carryOut(effect)
	}
	if len(out.Groups) > 0 || len(out.External) > 0 {
		e.commits <- commit{groups: out.Groups, external: e.bindAnswers(out.External)}
	}
	return out.Wake
}

// bindAnswers gives replies the channels of their callers, which only the loop knows.
func (e *Engine) bindAnswers(effects []scheduler.Effect) []external {
	list := make([]external, len(effects))
	for n, effect := range effects {
		list[n].effect = effect
		if r, ok := effect.(scheduler.Reply); ok {
			list[n].answer = e.waiting[r.Answer.Token]
			delete(e.waiting, r.Answer.Token)
		}
	}
	return list
}

// look serves reads from the state as it is now; they return to their callers after the commits that are under way.
func (e *Engine) look(reads []*read) {
	if len(reads) == 0 {
		return
	}
	reader := e.state.Reader()
	c := commit{}
	for _, r := range reads {
		r.run(reader)
		if r.glance {
			close(r.done)
			continue
		}
		c.done = append(c.done, r.done)
	}
	if len(c.done) > 0 {
		e.commits <- c
	}
}

func (e *Engine) tellCell() {
	v := e.state.Reader().Cell()
	names := e.state.Reader().Names()
	c := telemetry.Cell{
		Revision: v.Sequence, Jobs: v.Jobs, Instances: v.Instances, Pending: v.Pending, LiveRuns: v.LiveRuns, Hosts: v.Hosts,
		ReadyHosts: v.Ready, Shards: len(v.Shards), Capacity: quantities(names, v.Capacity), Used: quantities(names, v.Used),
	}
	for _, s := range v.Shards {
		if s.Ready {
			c.Ready++
		}
	}
	for _, top := range e.state.Reader().WaitingByReason(maxMeasuredPools) {
		for kind := scheduler.PendingKind(1); int(kind) < len(top.Tasks); kind++ {
			c.Waiting = append(c.Waiting, telemetry.Waiting{Pool: top.Pool, Reason: kind.Label(), Instances: top.Tasks[kind]})
		}
	}
	e.config.Trace.CellSeen(c)
}

// rearm sets the timer to the wake time; 0 means that no wake is needed.
func (e *Engine) rearm(timer *time.Timer, wake int64) {
	timer.Stop()
	if wake != 0 {
		timer.Reset(e.clock.until(wake))
	}
}
