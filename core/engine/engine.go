// Package engine is the shell around a cell's decision core: it gives it the time and its inputs, makes its groups durable, and
// carries out its effects.
//
// It owns the goroutines, the queues and the order between them, and decides nothing about work. One loop alone touches the
// scheduler.State. What a Step returns goes down a pipeline: internal effects leave at once; groups are turned into bytes by one
// encoder and written by one committer, many Steps in one commit when the disk is slower than the loop; external effects, answers
// and reads leave after the commit they depend on. So Step N+1 runs while the groups of Step N are written, and nobody outside sees what is not durable.
//
// A commit that fails stops the engine: the store's state is then unknown, and a restart finds it out. Nothing is rolled back in
// memory.
//
// Concurrency: Run is called once; Do, Read, Watch, Deliver and the rest may be called from any goroutine while it runs.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// The bounds of an engine.
const (
	maxCalls         = 1024        // commands that wait for the loop; one more is refused
	maxReads         = 1024        // reads that wait for the loop
	maxDeliveries    = 256         // deliveries of shards that wait for the loop; one more makes its shard wait
	maxEvents        = 8192        // events of one Step
	maxUnencoded     = 8           // Steps that wait to be encoded; one more makes the loop wait
	maxUncommitted   = 64          // Steps whose commit is pending; one more makes the encoder wait
	maxGroupsAtOnce  = 1024        // groups of one commit
	maxShardMessages = 16384       // messages that wait for a shard; one more and it is assigned anew
	maxAttaches      = 16          // shards that wait to be attached; one more makes its caller wait
	maxTold          = 16          // answers and changes of policies that wait for the loop; one more makes its caller wait
	retryAfter       = time.Second // advice to callers that found a queue full
	cellPeriod       = 5 * time.Second
	maxMeasuredPools = 50 // top pools that have series of their own; others count together
)

// Errors that callers branch on.
var (
	ErrStopped    = errors.New("the engine has stopped")
	ErrOverloaded = errors.New("the cell has more calls waiting than it takes")
)

// RetryAfter is when a call that met ErrOverloaded may be tried again.
const RetryAfter = retryAfter

// Shard is a shard that the engine sends messages to.
type Shard interface {
	ID() shard.ID
	// Send may block while the shard's queue is full, until ctx ends. Another error than ctx's says that the shard takes nothing any more
	// until it is attached again.
	Send(ctx context.Context, m shard.Message) error
	ReadLog(ctx context.Context, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error)
	Rehearse(ctx context.Context, launch *driver.Launch) (driver.Rehearsal, error)
}

// Config is what an Engine is made of.
type Config struct {
	Cell  scheduler.Config
	Store store.Store
	Keys  store.Keyspace
	Log   *slog.Logger     // default: nothing is logged
	Trace *telemetry.Trace // default: nobody looks
}

// Engine runs one cell.
type Engine struct {
	config      Config
	state       *scheduler.State // the loop's alone once Run has begun
	codec       *record.Codec    // the encoder's alone once Run has begun
	incarnation store.Incarnation
	epoch       uint64

	calls      chan call
	reads      chan *read
	deliveries chan delivery
	attaches   chan attach
	told       chan scheduler.Event
	commits    chan commit                      // always taken until it is closed: a Step whose groups were dropped would leave a hole
	encoded    chan commit                      // likewise
	clock      cellClock                        // the loop's
	tokens     uint64                           // the loop's
	waiting    map[uint64]chan scheduler.Answer // the loop's: calls whose answer has not come out of a Step

	quota  *asker[respool.Quota]
	ranks  *asker[preemption.Adviser]
	askers sync.WaitGroup

	hub     *hub
	senders sync.WaitGroup
	ended   chan struct{} // closed when the loop has ended: nothing is taken any more
	stopped chan struct{} // closed when Run has ended: nothing is answered any more
	running atomic.Bool

	mu     sync.RWMutex
	shards map[shard.ID]*sender
	failed error
}

// Open recovers the cell from the store and makes the new epoch durable. Nothing runs before Run.
func Open(ctx context.Context, config Config) (*Engine, error) {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	config.Trace = config.Trace.Complete()
	config.Cell = config.Cell.WithDefaults()
	e := &Engine{
		config: config, codec: record.NewCodec(config.Keys), calls: make(chan call, maxCalls), reads: make(chan *read, maxReads),
		deliveries: make(chan delivery, maxDeliveries), attaches: make(chan attach, maxAttaches), commits: make(chan commit, maxUnencoded), encoded: make(chan commit, maxUncommitted),
		told: make(chan scheduler.Event, maxTold), quota: newAsker[respool.Quota](), ranks: newAsker[preemption.Adviser](),
		waiting: map[uint64]chan scheduler.Answer{}, ended: make(chan struct{}), stopped: make(chan struct{}), shards: map[shard.ID]*sender{},
	}
	began := time.Now()
	image, err := e.recoverImage(ctx)
	if err != nil {
		return nil, fmt.Errorf("recover the cell from its store: %w", err)
	}
	e.epoch = image.Cell.Epoch + 1
	e.clock = cellClock{now: image.Cell.Now, at: began}
	state, groups, err := scheduler.Start(config.Cell, image, e.epoch, e.clock.read(began))
	if err != nil {
		return nil, fmt.Errorf("start the cell: %w", err)
	}
	e.state = state
	e.hub = newHub(image.Sequence, config.Trace)
	encoded, err := e.encode(groups)
	if err != nil {
		return nil, err
	}
	if err := e.commitGroups(ctx, groups, encoded); err != nil {
		return nil, fmt.Errorf("make the new epoch durable: %w", err)
	}
	config.Log.Info("cell recovered", telemetry.KeyEpoch, e.epoch, telemetry.KeyCount, len(image.Jobs),
		telemetry.KeyRevision, image.Sequence, telemetry.KeyDuration, time.Since(began))
	return e, nil
}

func (e *Engine) recoverImage(ctx context.Context) (*scheduler.Image, error) {
	snap, err := e.config.Store.Snapshot()
	if err != nil {
		return nil, err
	}
	defer snap.Close()
	if e.incarnation, err = store.ReadIncarnation(snap, e.config.Keys); err != nil {
		return nil, err
	}
	return e.codec.LoadImage(ctx, snap)
}

// Epoch is the cell's epoch: it grows with every start.
func (e *Engine) Epoch() uint64 { return e.epoch }

// Incarnation names the history of the store; a restore makes a new one.
func (e *Engine) Incarnation() store.Incarnation { return e.incarnation }

// Run works until ctx ends (nil) or a commit fails (its error). When it returns, every goroutine of the engine is gone and every
// call has been answered or met ErrStopped.
func (e *Engine) Run(ctx context.Context) error {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("the engine runs already")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var committer sync.WaitGroup
	committer.Go(func() { e.encodeLoop(cancel) })
	committer.Go(func() { e.commitLoop(ctx, cancel) })
	e.askers.Go(func() { e.quota.run(ctx, e, answerQuota) })
	e.askers.Go(func() { e.ranks.run(ctx, e, answerRanks) })
	e.loop(ctx)
	close(e.ended)
	close(e.commits)
	committer.Wait()
	cancel(nil)
	e.senders.Wait()
	e.askers.Wait()
	close(e.stopped)
	e.hub.close()
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.failed
}

// Attach makes a shard known: it gets an assignment under the cell's epoch and is sent work once it is ready. It may be attached again after it
// was lost.
func (e *Engine) Attach(ctx context.Context, s Shard) error { return e.attach(ctx, attach{shard: s}) }

// attach is a shard that is to be attached.
type attach struct {
	shard  Shard
	behind *sender // a new one is to take its place, if nobody has taken that since; nil: of whichever there is
}

func (e *Engine) attach(ctx context.Context, s attach) error {
	select {
	case <-e.ended: // first: the queue may have room
		return ErrStopped
	default:
	}
	select {
	case e.attaches <- s:
		return nil
	case <-e.ended:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Detach forgets shards that have ended, before their cluster is removed: one that fell behind would attach itself again after that.
func (e *Engine) Detach(ids ...shard.ID) {
	for _, id := range ids {
		e.dropShard(id)
	}
}

// Part is implemented by shards that know into how many their cluster is cut. Shards that the cluster had beyond these are forgotten.
type Part interface{ Parts() int }

// Deliver takes the replies of a shard; it implements the shard runtime's Core.
func (e *Engine) Deliver(id shard.ID, epoch shard.Epoch, replies []shard.Reply) {
	select {
	case e.deliveries <- delivery{id: id, epoch: epoch, replies: replies}:
	case <-e.ended:
	}
}

// Do carries out a command and returns when its outcome is durable. An error means that the outcome is unknown: the engine stopped, the
// context ended, or, for ErrOverloaded, that nothing was done. A refusal by the cell is in the Answer.
func (e *Engine) Do(ctx context.Context, caller scheduler.Caller, command scheduler.Command) (scheduler.Answer, error) {
	c := call{event: scheduler.Call{Caller: caller, Command: command}, answer: make(chan scheduler.Answer, 1)}
	select {
	case e.calls <- c:
	case <-e.stopped:
		return scheduler.Answer{}, ErrStopped
	default:
		return scheduler.Answer{}, ErrOverloaded
	}
	select {
	case a := <-c.answer:
		return a, nil
	case <-e.stopped:
		select {
		case a := <-c.answer: // it came with the last commit
			return a, nil
		default:
			return scheduler.Answer{}, ErrStopped
		}
	case <-ctx.Done():
		return scheduler.Answer{}, ctx.Err()
	}
}

// Read calls look with a reader of the cell's state on the loop, so look must be quick, and returns once everything that it saw is
// durable. After an error what look wrote down is not to be used: it may not be durable. look is not called after Read returned.
func (e *Engine) Read(ctx context.Context, look func(scheduler.Reader)) error {
	return e.await(ctx, &read{look: look, done: make(chan struct{})})
}

// Glance is Read without the wait for durability. What look saw is only good to make a command of, which is judged by the state that it meets:
// no caller may be told of it.
func (e *Engine) Glance(ctx context.Context, look func(scheduler.Reader)) error {
	return e.await(ctx, &read{look: look, glance: true, done: make(chan struct{})})
}

func (e *Engine) await(ctx context.Context, r *read) error {
	select {
	case e.reads <- r:
	case <-e.stopped:
		return ErrStopped
	default:
		return ErrOverloaded
	}
	select {
	case <-r.done:
		return nil
	case <-e.stopped:
		select {
		case <-r.done:
			return nil
		default:
			return ErrStopped
		}
	case <-ctx.Done():
		r.giveUp()
		return ctx.Err()
	}
}

// Runs returns the ended runs of an instance that are kept, newest first.
func (e *Engine) Runs(job workload.JobID, instance uint32) ([]scheduler.RunRecord, error) {
	snap, err := e.config.Store.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read run history: %w", err)
	}
	defer snap.Close()
	return record.NewCodec(e.config.Keys).Runs(snap, job, instance)
}

// Samples visits the readings of usage from a time on, in UTC nanoseconds, by time and pool, until visit returns false.
func (e *Engine) Samples(from int64, visit func(*usage.Sample) bool) error {
	snap, err := e.config.Store.Snapshot()
	if err != nil {
		return fmt.Errorf("read the samples of usage: %w", err)
	}
	defer snap.Close()
	return record.NewCodec(e.config.Keys).Samples(snap, from, visit)
}

// Archive returns the bytes of a version of a bundle of rules; nil: it is not kept.
func (e *Engine) Archive(digest [32]byte) ([]byte, error) {
	snap, err := e.config.Store.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read a bundle of rules: %w", err)
	}
	defer snap.Close()
	return record.NewCodec(e.config.Keys).Archive(snap, digest)
}

// ReadLog reads the output of a run from the shard that has or had it.
func (e *Engine) ReadLog(ctx context.Context, from shard.ID, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error) {
	e.mu.RLock()
	s := e.shards[from]
	e.mu.RUnlock()
	if s == nil {
		return nil, fmt.Errorf("shard %s is not connected", from)
	}
	return s.shard.ReadLog(ctx, run, request)
}

// Rehearsed is what the cluster of a plan's rehearsal said.
type Rehearsed struct {
	driver.Rehearsal
	Err error // it did not say; driver.ErrNoRehearsal: it cannot be asked
}

// Rehearse asks the clusters of a plan about its launches, all at once, and returns their answers in the same order. Who has not answered when ctx
// ends has said nothing.
func (e *Engine) Rehearse(ctx context.Context, list []scheduler.Rehearsal) []Rehearsed {
	out := make([]Rehearsed, len(list))
	var group sync.WaitGroup
	for n := range list {
		e.mu.RLock()
		s := e.shards[list[n].Shard]
		e.mu.RUnlock()
		if s == nil {
			out[n].Err = fmt.Errorf("shard %s is not connected", list[n].Shard)
			continue
		}
		group.Go(func() { out[n].Rehearsal, out[n].Err = s.shard.Rehearse(ctx, &list[n].Launch) })
	}
	group.Wait()
	return out
}

// Backup writes a consistent cut of the store.
func (e *Engine) Backup(ctx context.Context, w io.Writer) error { return e.config.Store.Backup(ctx, w) }

func (e *Engine) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.failed = err
	}
}
