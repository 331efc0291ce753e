package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// commit is one Step's output, or a batch of reads, on its way to durability.
type commit struct {
	groups   []scheduler.Group
	encoded  []store.Group // the same, once the encoder had them
	external []external
	done     []chan struct{}
}

type external struct {
	effect scheduler.Effect
	answer chan scheduler.Answer // of a Reply
}

// encodeLoop turns groups into bytes while those before them are on their way to the disk.
func (e *Engine) encodeLoop(cancel context.CancelCauseFunc) {
	defer close(e.encoded)
	for c := range e.commits {
		var err error
		if c.encoded, err = e.encode(c.groups); err != nil {
			e.fail(err)
			cancel(err)
			for range e.commits { // the loop may be waiting to hand over
			}
			return
		}
		e.encoded <- c
	}
}

func (e *Engine) encode(groups []scheduler.Group) ([]store.Group, error) {
	encoded := make([]store.Group, 0, len(groups))
	for _, g := range groups {
		raw, err := e.codec.EncodeGroup(g)
		if err != nil {
			return nil, fmt.Errorf("encode revision %d: %w", g.Sequence, err)
		}
		encoded = append(encoded, raw)
	}
	return encoded, nil
}

// commitLoop makes groups durable in order and releases what hangs on them. What has queued up while one commit ran goes into the next one
// together.
func (e *Engine) commitLoop(ctx context.Context, cancel context.CancelCauseFunc) {
	var batch []commit
	for first := range e.encoded {
		batch = append(batch[:0], first)
		groups := len(first.groups)
		for groups < maxGroupsAtOnce {
			next, ok := poll(e.encoded)
			if !ok {
				break
			}
			batch = append(batch, next)
			groups += len(next.groups)
		}
		all, encoded := make([]scheduler.Group, 0, groups), make([]store.Group, 0, groups)
		for _, c := range batch {
			all, encoded = append(all, c.groups...), append(encoded, c.encoded...)
		}
		if err := e.commitGroups(ctx, all, encoded); err != nil {
			e.fail(fmt.Errorf("commit %d groups up to revision %d: %w", len(all), all[len(all)-1].Sequence, err))
			cancel(err)
			for range e.encoded { // the encoder may be waiting to hand over
			}
			return
		}
		e.release(batch)
		clear(batch)
	}
}

func poll(c <-chan commit) (commit, bool) {
	select {
	case v, ok := <-c:
		return v, ok
	default:
		return commit{}, false
	}
}

// commitGroups writes groups and shows them to the watchers. It finishes what it began even when ctx ends: a stop is no reason to leave a
// Step half committed.
func (e *Engine) commitGroups(ctx context.Context, groups []scheduler.Group, encoded []store.Group) error {
	if len(groups) == 0 {
		return nil
	}
	began := time.Now()
	e.hub.announce(groups[len(groups)-1].Sequence)
	err := e.config.Store.Commit(context.WithoutCancel(ctx), encoded)
	e.config.Trace.CommitDone(telemetry.Commit{Groups: len(groups), Duration: time.Since(began), Err: err})
	if err != nil {
		return err
	}
	e.hub.publish(groups)
	return nil
}

func (e *Engine) release(batch []commit) {
	for _, c := range batch {
		for _, x := range c.external {
			if r, ok := x.effect.(scheduler.Reply); ok {
				if x.answer != nil {
					x.answer <- r.Answer // has room for the one answer
				}
				continue
			}
			e.carryOut(x.effect)
		}
		for _, done := range c.done {
			close(done)
		}
	}
}

// carryOut hands a message to its shard's sender, or a question to who asks a policy. It never blocks: the loop and the committer both come here.
func (e *Engine) carryOut(effect scheduler.Effect) {
	switch effect := effect.(type) {
	case scheduler.ToShard:
		e.send(effect)
	case scheduler.AskQuota:
		e.quota.ask(effect)
	case scheduler.AskRanks:
		e.ranks.ask(effect)
	}
}

func (e *Engine) send(to scheduler.ToShard) {
	e.mu.RLock()
	s := e.shards[to.Shard]
	e.mu.RUnlock()
	if s != nil {
		s.send(to.Message)
	}
}

// clusterOf reads the cluster off a shard's name, "<cluster>/<number>".
func clusterOf(id shard.ID) string {
	cluster, _, _ := strings.Cut(string(id), "/")
	return cluster
}

func quantities(names *resource.Names, v resource.Vector) map[string]int64 {
	q := make(map[string]int64, names.Len())
	for k := range names.Len() {
		q[names.Name(resource.Kind(k))] = v[k]
	}
	return q
}
