package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// Why a sender ends before the engine does.
var (
	errReplaced = errors.New("the shard was attached again")
	errDetached = errors.New("the shard was detached")
	errBehind   = fmt.Errorf("the shard is %d messages behind", maxShardMessages)
)

// sender hands a shard its messages in order on a goroutine of its own, so that a slow shard holds up nobody. One that falls behind by
// a whole queue gets no more under its assignment: what it knows is stale, and it begins anew under the next.
type sender struct {
	engine *Engine
	shard  Shard
	queue  chan shard.Message
	ctx    context.Context // ends with the engine, or with this sender
	end    context.CancelCauseFunc
	former *sender       // the shard's last one; it says nothing any more once this one begins
	gone   chan struct{} // closed when run has returned
}

// send may be called from any goroutine.
func (s *sender) send(m shard.Message) {
	if s.ctx.Err() != nil {
		return
	}
	select {
	case s.queue <- m:
	default:
		s.end(errBehind)
	}
}

// run ends with the sender's context, or when the shard takes nothing any more.
func (s *sender) run() {
	defer close(s.gone)
	if s.former != nil {
		<-s.former.gone
		s.former = nil
	}
	var epoch shard.Epoch
	for {
		select {
		case <-s.ctx.Done():
			s.ended(epoch, nil)
			return
		case m := <-s.queue:
			if a, ok := m.(shard.Assign); ok {
				epoch = a.Epoch
			}
			if err := s.shard.Send(s.ctx, m); err != nil {
				s.ended(epoch, err)
				return
			}
		}
	}
}

// ended tells the cell that it has lost the shard, unless it knows.
func (s *sender) ended(epoch shard.Epoch, err error) {
	cause := context.Cause(s.ctx)
	s.end(err)
	id := s.shard.ID()
	switch {
	case errors.Is(cause, errBehind):
		s.engine.config.Log.Warn("shard begins anew", telemetry.KeyShard, string(id), telemetry.KeyError, cause)
		_ = s.engine.attach(context.WithoutCancel(s.ctx), attach{shard: s.shard, behind: s}) // fails only when the engine stops
	case cause == nil:
		s.engine.config.Log.Error("shard takes no messages", telemetry.KeyShard, string(id), telemetry.KeyError, err)
		s.engine.Deliver(id, epoch, []shard.Reply{shard.NotReady{Reason: fmt.Sprintf("it takes no messages: %v", err)}})
	}
}

// dropShard ends a shard's sender. The shard is told nothing more.
func (e *Engine) dropShard(id shard.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.shards[id]; s != nil {
		s.end(errDetached)
		delete(e.shards, id)
	}
}

// takeShard gives a shard a sender in place of the one it had. One that fell behind and was detached or replaced since has no place to give.
func (e *Engine) takeShard(ctx context.Context, events []scheduler.Event, a attach) []scheduler.Event {
	s := a.shard
	out := &sender{engine: e, shard: s, queue: make(chan shard.Message, maxShardMessages), gone: make(chan struct{})}
	e.mu.Lock()
	out.former = e.shards[s.ID()]
	if a.behind != nil && a.behind != out.former {
		e.mu.Unlock()
		return events
	}
	out.ctx, out.end = context.WithCancelCause(ctx)
	e.shards[s.ID()] = out
	e.mu.Unlock()
	if out.former != nil {
		out.former.end(errReplaced)
	}
	e.senders.Go(out.run)
	attached := scheduler.ShardAttached{Shard: s.ID(), Cluster: clusterOf(s.ID())}
	if p, ok := s.(Part); ok {
		attached.Parts = p.Parts()
	}
	return append(events, attached)
}
