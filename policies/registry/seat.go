package registry

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// seat is what is in force under the name of a policy.
type seat struct {
	registry          *Registry
	name, kind        string
	active, candidate wasm.Slot
	plan              atomic.Pointer[plan] // never nil

	loaded map[rollout.Digest]*wasm.Version // under Registry.edit
}

// plan is who decides and who is tried. It is replaced as a whole.
type plan struct {
	active, candidate *running // nil: none
}

// running is a version in force, at one stage.
type running struct {
	digest rollout.Digest
	stage  rollout.Stage
	since  int64
	scope  rollout.Scope
	gates  rollout.Gates // with defaults
	counts *wasm.Counters

	mu    sync.Mutex
	tally rollout.Tally
}

func (v *running) seen() rollout.Tally {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.tally
	t.Faults = append([]rollout.Fault(nil), t.Faults...)
	return t
}

func (v *running) broken(now int64) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.gates.Broken(now, &v.tally)
}

// of finds the version with a digest in a plan; nil: it is in force no more.
func (p *plan) of(digest wasm.Digest) *running {
	for _, v := range []*running{p.active, p.candidate} {
		if v != nil && v.digest == rollout.Digest(digest) {
			return v
		}
	}
	return nil
}

// faulted takes in a fault of either version.
func (s *seat) faulted(f *wasm.Fault) {
	r := s.registry
	r.trace.PolicyFaulted(telemetry.PolicyFault{Policy: s.name, Fault: f.Kind.String()})
	v := s.plan.Load().of(f.Digest)
	if v == nil {
		return
	}
	now := r.now()
	v.mu.Lock()
	v.tally.Strike(rollout.Fault{At: now, Kind: f.Kind.String(), Text: f.Error()})
	broken := v.gates.Broken(now, &v.tally) != ""
	v.mu.Unlock()
	r.log.Warn("policy failed; the built-in one served instead", slog.String(telemetry.KeyPolicy, s.name), slog.Any(telemetry.KeyError, f))
	if broken {
		r.ring()
	}
}

// called takes in a call of either version.
func (s *seat) called(c wasm.Call) {
	v := s.plan.Load().of(c.Digest)
	if v == nil {
		return
	}
	s.registry.trace.PolicyCalled(telemetry.PolicyCall{Policy: s.name, Stage: string(v.stage), Tasks: c.Tasks, Placed: c.Placed, Duration: c.Took})
	v.mu.Lock()
	v.tally.Calls++
	if c.Took > v.gates.SlowCall && (c.Computed == 0 || c.Computed > v.gates.SlowCall) {
		v.tally.Slow++
	}
	v.mu.Unlock()
}

// compared takes in how a version differs from the reference.
func (s *seat) compared(v *running, d *difference) {
	s.registry.trace.PolicyCompared(telemetry.PolicyComparison{Policy: s.name, Stage: string(v.stage), Tasks: int(d.compared), Elsewhere: int(d.elsewhere)})
	v.mu.Lock()
	defer v.mu.Unlock()
	t := &v.tally
	t.Compared += d.compared
	t.Elsewhere += d.elsewhere
	t.Placed += d.placed
	t.Reference += d.reference
	t.Cost += d.cost
}

// prepare loads the version that an event brings into force, before anybody is told of it.
func (r *Registry) prepare(ctx context.Context, next *rollout.Book, event rollout.Event) error {
	move, ok := event.(rollout.Move)
	if !ok {
		return nil
	}
	p := next.Find(move.Policy)
	s := r.sit(p)
	if err := r.load(ctx, s, p.Version(move.Digest)); err != nil {
		return refuse(scheduler.FailedPrecondition, "digest", "push a version that can be used", "version %s of policy %s cannot be brought into force: %v", move.Digest.Short(), p.Name, err)
	}
	return nil
}

// sit returns the seat of a policy, a new one where there is none.
func (r *Registry) sit(p *rollout.Policy) *seat {
	if s := r.seat(p.Name); s != nil && s.kind == p.Kind {
		return s
	}
	s := &seat{registry: r, name: p.Name, kind: p.Kind, loaded: map[rollout.Digest]*wasm.Version{}}
	s.plan.Store(&plan{})
	seats := maps.Clone(*r.seats.Load())
	seats[p.Name] = s
	r.seats.Store(&seats)
	return s
}

// load makes sure that a version is loaded.
func (r *Registry) load(ctx context.Context, s *seat, v *rollout.Version) error {
	if s.loaded[v.Digest] != nil {
		return nil
	}
	var binary []byte
	for _, part := range v.Archives {
		b, err := r.config.Store.Archive(part)
		switch {
		case err != nil:
			return err
		case b == nil:
			return fmt.Errorf("a part of the module is not in the store")
		}
		binary = append(binary, b...)
	}
	if _, err := r.signer(v.ModuleDigest(), v.Signature); err != nil { // the trusted keys may be others than when it was pushed
		return err
	}
	module, err := wasm.Check(binary, r.config.Wasm.Limits)
	if err != nil {
		return err
	}
	if rollout.Digest(module.Digest) != v.ModuleDigest() {
		return fmt.Errorf("the module in the store has digest %s", module.Digest.Short())
	}
	config := r.config.Wasm
	config.Name = s.name
	config.Log = func(_ int, text string) {
		r.log.Debug("policy says", slog.String(telemetry.KeyPolicy, s.name), slog.String(telemetry.KeyText, text))
	}
	if config.Values, err = module.Values(v.Config); err != nil {
		return err
	}
	version, err := wasm.Load(ctx, module, config)
	if err != nil {
		return err
	}
	if rollout.Digest(version.Digest()) != v.Digest {
		version.Release()
		return fmt.Errorf("with its configuration the module has digest %s", version.Digest().Short())
	}
	s.loaded[v.Digest] = version
	return nil
}

// install brings what the book says into force. A version that cannot be loaded is rolled back, which may bring another one into force, until all are loaded.
func (r *Registry) install(ctx context.Context) {
	for {
		failed, why := r.loadAll(ctx)
		if failed == nil || ctx.Err() != nil {
			break
		}
		why = fmt.Errorf("it cannot be loaded: %w", why)
		next, moves, err := rollout.Step(r.Book(), r.now(), "", rollout.Rollback{Policy: failed.Policy, Digest: failed.Digest, Why: why.Error()})
		if err != nil {
			r.log.Error("a policy cannot be loaded", slog.String(telemetry.KeyPolicy, failed.Policy), slog.Any(telemetry.KeyError, why))
			break
		}
		if err := r.save(ctx, "", &next, nil); err != nil {
			r.unsaved = true
			r.log.Error("a policy was rolled back, which could not be written down; it is tried again", slog.String(telemetry.KeyPolicy, failed.Policy), slog.Any(telemetry.KeyError, err))
		}
		r.book.Store(&next)
		r.tell(moves)
	}
	r.swap()
}

// loadAll loads what is in force, and returns the first version that cannot be.
func (r *Registry) loadAll(ctx context.Context) (*rollout.Rollback, error) {
	book := r.Book()
	for i := range book.Policies {
		p := &book.Policies[i]
		for _, v := range []*rollout.Version{p.Active(), p.Candidate()} {
			if v == nil {
				continue
			}
			if err := r.load(ctx, r.sit(p), v); err != nil {
				return &rollout.Rollback{Policy: p.Name, Digest: v.Digest}, err
			}
		}
	}
	return nil, nil
}

// swap makes slots and plans those of the book, and lets go of what is in force no more.
func (r *Registry) swap() {
	book := r.Book()
	sitting := map[string]*wasm.Version{}
	for name, s := range *r.seats.Load() {
		p := book.Find(name)
		next := &plan{}
		if p != nil && p.Kind == s.kind {
			was := s.plan.Load()
			next.active, next.candidate = s.run(p.Active(), was), s.run(p.Candidate(), was)
		}
		s.active.Swap(s.version(next.active))
		s.candidate.Swap(s.version(next.candidate))
		s.plan.Store(next)
		if v := s.version(next.active); v != nil && s.kind != rollout.Place {
			sitting[s.kind] = v
		}
	}
	for kind, slot := range r.slots {
		slot.Swap(sitting[kind])
	}
	r.discardUnwanted(&book)
	r.welcome()
	r.changes.Add(1)
	r.tellForce(&book)
}

// run is a version as it runs: the one that ran before, when it is at the same stage still.
func (s *seat) run(v *rollout.Version, was *plan) *running {
	if v == nil || s.loaded[v.Digest] == nil {
		return nil
	}
	for _, old := range []*running{was.active, was.candidate} {
		if old != nil && old.digest == v.Digest && old.stage == v.Stage && old.since == v.Since {
			return old
		}
	}
	return &running{
		digest: v.Digest, stage: v.Stage, since: v.Since, scope: v.Scope, gates: v.Gates.WithDefaults(), counts: s.loaded[v.Digest].Counters(),
	}
}

func (s *seat) version(v *running) *wasm.Version {
	if v == nil {
		return nil
	}
	return s.loaded[v.digest]
}

// discardUnwanted lets go of versions that a book has not in force. They are in no slot any more.
func (r *Registry) discardUnwanted(book *rollout.Book) {
	seats := maps.Clone(*r.seats.Load())
	for name, s := range seats {
		p := book.Find(name)
		for digest, version := range s.loaded {
			if p != nil {
				if v := p.Version(digest); v != nil && (v.Stage == rollout.Active || v.Stage.Candidate()) {
					continue
				}
			}
			delete(s.loaded, digest)
			version.Release()
		}
		if len(s.loaded) == 0 {
			delete(seats, name)
		}
	}
	r.seats.Store(&seats)
}

// withdraw takes versions out of force that are to be rolled back, at once.
func (r *Registry) withdraw(moves []rollout.Moved) {
	for _, m := range moves {
		s := r.seat(m.Policy)
		if s == nil || m.To != rollout.RolledBack {
			continue
		}
		was := s.plan.Load()
		next := &plan{active: was.active, candidate: was.candidate}
		if m.From == rollout.Active {
			next.active = nil
			s.active.Swap(nil)
			if slot, ok := r.slots[s.kind]; ok {
				slot.Swap(nil)
			}
		} else {
			next.candidate = nil
			s.candidate.Swap(nil)
		}
		s.plan.Store(next)
	}
	r.welcome()
	r.changes.Add(1)
}

// clear lets go of everything.
func (s *seat) clear() {
	s.active.Swap(nil)
	s.candidate.Swap(nil)
	s.plan.Store(&plan{})
	for digest, v := range s.loaded {
		delete(s.loaded, digest)
		v.Release()
	}
}

// tellForce counts what is in force.
func (r *Registry) tellForce(book *rollout.Book) {
	var list []telemetry.PolicyInForce
	for i := range book.Policies {
		p := &book.Policies[i]
		for _, v := range []*rollout.Version{p.Active(), p.Candidate()} {
			if v != nil {
				list = append(list, telemetry.PolicyInForce{Policy: p.Name, Kind: p.Kind, Digest: v.Digest.Short(), Stage: string(v.Stage)})
			}
		}
	}
	r.trace.PoliciesInForce(list)
}
