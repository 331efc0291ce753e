package registry

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/signature"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
)

// Store keeps what is known of policies. An engine.Engine is one.
type Store interface {
	Do(ctx context.Context, caller scheduler.Caller, command scheduler.Command) (scheduler.Answer, error)
	Read(ctx context.Context, look func(scheduler.Reader)) error
	Archive(digest [32]byte) ([]byte, error)
}

// Config is how a Registry works. Store must be set.
type Config struct {
	Store Store
	// Keys are who may sign modules. Default none: modules need no signature.
	Keys signature.Keys
	// Wasm is how modules are loaded.
	Wasm wasm.Config
	// Kit is how modules are judged before they are kept. Its Config is Wasm.
	Kit kit.Options
	// CompareShare is the part of the time that may go into asking a second policy what it would have done, for comparison. Default 0.05.
	CompareShare float64
	Log          *slog.Logger     // default: nothing is logged
	Trace        *telemetry.Trace // default: nobody looks
	Now          func() time.Time // default: the wall clock
}

const (
	defaultCompareShare = 0.05
	// judgeEvery is how often gates are looked at that nobody rang for.
	judgeEvery = time.Second
	// caller names the registry in what the cell writes down.
	caller = "policy registry"
)

// Registry keeps policies and what is in force. Make one with New, then Open it.
type Registry struct {
	config Config
	log    *slog.Logger
	trace  *telemetry.Trace
	rung   chan struct{} // something may have broken a gate

	edit    sync.Mutex // held by whoever changes the book
	version uint64     // of the book's record; under edit
	unsaved bool       // the book is ahead of its record; under edit

	book      atomic.Pointer[rollout.Book]
	seats     atomic.Pointer[map[string]*seat] // by policy; replaced as a whole, under edit
	newcomers atomic.Pointer[[]*seat]          // by name; replaced as a whole, under edit
	changes   atomic.Uint64                    // of what is in force, so that shards let go of what is not
	slots     map[string]*wasm.Slot            // of kinds of which the cell has one policy

	mu      sync.Mutex
	sources map[*Source]struct{}
}

// New returns a Registry that knows of no policies yet.
func New(config Config) *Registry {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.CompareShare <= 0 {
		config.CompareShare = defaultCompareShare
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	config.Kit.Config = config.Wasm
	r := &Registry{
		config: config, log: config.Log, trace: config.Trace.Complete(), rung: make(chan struct{}, 1), slots: map[string]*wasm.Slot{}, sources: map[*Source]struct{}{},
	}
	for _, kind := range rollout.Kinds[1:] {
		r.slots[kind] = &wasm.Slot{}
	}
	r.book.Store(&rollout.Book{})
	r.seats.Store(&map[string]*seat{})
	r.newcomers.Store(&[]*seat{})
	return r
}

func (r *Registry) now() int64 { return r.config.Now().UnixNano() }

// Book tells which policies there are. It must not be changed.
func (r *Registry) Book() rollout.Book { return *r.book.Load() }

func (r *Registry) seat(name string) *seat { return (*r.seats.Load())[name] }

// Slot holds the version in force: of a policy of placement, by its name; of the other kinds the cell's one, whatever its name is. It is nil where there is no such policy.
func (r *Registry) Slot(kind, name string) *wasm.Slot {
	if slot, ok := r.slots[kind]; ok {
		return slot
	}
	if s := r.seat(name); s != nil {
		return &s.active
	}
	return nil
}

// Faulted and Called take in what a version did that does not place: the hosts of other kinds tell it.
func (r *Registry) Faulted(kind string, f *wasm.Fault) {
	if s := r.sitting(kind); s != nil {
		s.faulted(f)
	}
}

// Called is told of a call that succeeded.
func (r *Registry) Called(kind string, c wasm.Call) {
	if s := r.sitting(kind); s != nil {
		s.called(c)
	}
}

// sitting is the policy of a kind of which the cell has one; nil: none is in force.
func (r *Registry) sitting(kind string) *seat {
	for _, s := range *r.seats.Load() {
		if s.kind == kind && s.kind != rollout.Place && s.plan.Load().active != nil {
			return s
		}
	}
	return nil
}

// Open takes up what the store knows. A version that cannot be loaded any more is rolled back, and that is logged: a cell starts without its policies rather than not at all.
func (r *Registry) Open(ctx context.Context) error {
	r.edit.Lock()
	defer r.edit.Unlock()
	var record scheduler.PoliciesRecord
	if err := r.config.Store.Read(ctx, func(look scheduler.Reader) { record = look.Policies() }); err != nil {
		return fmt.Errorf("read what is known of policies: %w", err)
	}
	book, err := rollout.Decode(record.State)
	if err != nil {
		return err
	}
	r.version = record.Version
	r.book.Store(&book)
	r.install(ctx)
	return ctx.Err()
}

// Run judges what versions did, and asks those of quota and preemption in shadow, until ctx ends.
func (r *Registry) Run(ctx context.Context) {
	ticker := time.NewTicker(judgeEvery)
	defer ticker.Stop()
	w := newWatcher(r)
	defer w.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.rung:
		case <-ticker.C:
			w.look(ctx)
		}
		r.judge(ctx)
	}
}

// ring has Run look at the gates soon.
func (r *Registry) ring() {
	select {
	case r.rung <- struct{}{}:
	default:
	}
}

// judge rolls back what broke a gate.
func (r *Registry) judge(ctx context.Context) {
	r.saveAgain(ctx)
	for _, s := range *r.seats.Load() {
		plan := s.plan.Load()
		for _, v := range []*running{plan.active, plan.candidate} {
			if v == nil || v.broken(r.now()) == "" {
				continue
			}
			event := rollout.Observe{Policy: s.name, Digest: v.digest, Tally: v.seen()}
			if _, err := r.change(ctx, "", event, nil); err != nil && ctx.Err() == nil {
				r.log.Error("a policy broke a gate and is out of force; that could not be written down and is tried again", slog.String(telemetry.KeyPolicy, s.name), slog.Any(telemetry.KeyError, err))
			}
		}
	}
}

// saveAgain writes down what could not be.
func (r *Registry) saveAgain(ctx context.Context) {
	r.edit.Lock()
	defer r.edit.Unlock()
	if !r.unsaved {
		return
	}
	book := r.Book()
	r.unsaved = r.save(ctx, "", &book, nil) != nil
}

// Close lets go of all versions. Sources must be closed before.
func (r *Registry) Close() {
	r.edit.Lock()
	defer r.edit.Unlock()
	for _, s := range *r.seats.Load() {
		s.clear()
	}
	r.welcome()
	for _, slot := range r.slots {
		slot.Swap(nil)
	}
}

// sortedSources are the shards' views, by name.
func (r *Registry) sortedSources() []*Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Collect(maps.Keys(r.sources))
	slices.SortFunc(list, func(a, b *Source) int {
		switch {
		case a.shard < b.shard:
			return -1
		case a.shard > b.shard:
			return 1
		}
		return 0
	})
	return list
}
