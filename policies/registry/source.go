package registry

import (
	"sync/atomic"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// maxUnder bounds the classes that a Source keeps under another strategy than their own.
const maxUnder = 4096

// Source is one shard's placers. It implements placement.PlacerSource: a policy that is not there, or not in force, is served by the default, so that nothing waits for it.
type Source struct {
	registry *Registry
	shard    string
	native   *placement.Native
	fallback placer // work that chooses nothing
	chairs   map[string]*chair
	budget   budget
	under    map[underKey]*placement.Class
	drawn    uint64
	served   []placement.Served // of the batch at hand
	settled  uint64             // the registry's changes when chairs were last looked at
	turn     int                // whose among the newcomers in shadow it is to be compared

	effective atomic.Pointer[map[string]rollout.Serving] // by policy; for reports
}

type underKey struct {
	class    placement.ClassID
	strategy workload.Strategy
}

var _ placement.PlacerSource = (*Source)(nil)

// Source returns the placers of a shard, which are closed with it.
func (r *Registry) Source(shard string) *Source {
	s := &Source{
		registry: r, shard: shard, native: placement.NewNative(), chairs: map[string]*chair{}, under: map[underKey]*placement.Class{},
		budget: budget{share: r.config.CompareShare},
	}
	s.fallback = placer{of: s, place: s.placeDefault, plan: s.planDefault}
	s.effective.Store(&map[string]rollout.Serving{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[s] = struct{}{}
	return s
}

// Close lets go of the versions that the source works with.
func (s *Source) Close() {
	s.registry.mu.Lock()
	delete(s.registry.sources, s)
	s.registry.mu.Unlock()
	for name, c := range s.chairs {
		c.close()
		delete(s.chairs, name)
	}
}

// placer is a pair of functions.
type placer struct {
	of          *Source
	place, plan func(*host.Table, []placement.Request) []placement.Result
}

// Place implements placement.Placer.
func (p *placer) Place(t *host.Table, requests []placement.Request) []placement.Result {
	p.of.served = nil
	return p.place(t, requests)
}

// Served implements placement.Witness.
func (p *placer) Served() []placement.Served { return p.of.served }

// Plan answers as Place would and leaves the table as it was.
func (p *placer) Plan(t *host.Table, requests []placement.Request) []placement.Result {
	return p.plan(t, requests)
}

// Placer implements placement.PlacerSource.
func (s *Source) Placer(policy string) (placement.Placer, bool) {
	s.settle()
	if rollout.BuiltIn(policy) {
		return s.native, true
	}
	if c := s.chair(policy); c != nil {
		return &c.placer, true
	}
	return &s.fallback, true
}

// settle lets go of versions that are in force no more, whoever's name is asked next.
func (s *Source) settle() {
	now := s.registry.changes.Load()
	if now == s.settled {
		return
	}
	s.settled = now
	for name, c := range s.chairs {
		if c.seat != s.registry.seat(name) {
			c.close()
			delete(s.chairs, name)
		} else if c.active != nil {
			c.active.Settle()
			c.candidate.Settle()
		}
	}
}

// chair is who serves a policy of placement that is in force; nil: it is not.
func (s *Source) chair(policy string) *chair {
	seat := s.registry.seat(policy)
	c := s.chairs[policy]
	if c != nil && c.seat != seat {
		c.close()
		delete(s.chairs, policy)
		c = nil
	}
	if seat == nil || seat.kind != rollout.Place {
		return nil
	}
	if c == nil {
		c = newChair(s, seat)
		s.chairs[policy] = c
	}
	return c
}

func (s *Source) placeDefault(t *host.Table, requests []placement.Request) []placement.Result {
	return s.byKind(requests, func(name string, part []placement.Request) []placement.Result { return s.chosen(name, t, part, false) })
}

func (s *Source) planDefault(t *host.Table, requests []placement.Request) []placement.Result {
	return s.byKind(requests, func(name string, part []placement.Request) []placement.Result { return s.chosen(name, t, part, true) })
}

// byKind serves stretches of requests whose jobs' kinds have the same default.
func (s *Source) byKind(requests []placement.Request, serve func(string, []placement.Request) []placement.Result) []placement.Result {
	book := s.registry.book.Load()
	return stretches(requests, func(r *placement.Request) string {
		if r.Class == nil {
			return rollout.BestFit
		}
		return book.Default(r.Class.Kind.String())
	}, serve)
}

// stretches serves requests in order, those together that follow each other and have the same key. What is of one unit is served together, by the first one's.
func stretches[K comparable](requests []placement.Request, key func(*placement.Request) K, serve func(K, []placement.Request) []placement.Result) []placement.Result {
	if len(requests) == 0 {
		return nil
	}
	results := make([]placement.Result, len(requests))
	from, is := 0, key(&requests[0])
	for to := 1; to <= len(requests); to++ {
		if to < len(requests) {
			if u := requests[to].Unit; u != 0 && u == requests[to-1].Unit {
				continue
			}
			next := key(&requests[to])
			if next == is {
				continue
			}
			copy(results[from:to], serve(is, requests[from:to]))
			from, is = to, next
			continue
		}
		copy(results[from:], serve(is, requests[from:]))
	}
	return results
}

// named serves requests under a name that they did not choose.
func (s *Source) named(name string, t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	if c := s.chair(name); c != nil && !rollout.BuiltIn(name) {
		return c.serve(t, requests, planning)
	}
	if !rollout.BuiltIn(name) {
		name = rollout.BestFit
	}
	return s.builtIn(workload.Strategy(name), t, requests, planning)
}

// builtIn has the built-in placer serve requests under one of its strategies.
func (s *Source) builtIn(strategy workload.Strategy, t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	asked := requests
	if strategy != workload.StrategyBestFit { // which names that it does not know stand for
		asked = make([]placement.Request, len(requests))
		copy(asked, requests)
		for i := range asked {
			if asked[i].Class != nil {
				asked[i].Class = s.classUnder(asked[i].Class, strategy)
			}
		}
	}
	if planning {
		return s.native.Plan(t, asked)
	}
	s.served = append(s.served, placement.Served{Requests: len(requests), By: string(strategy)})
	return s.native.Place(t, asked)
}

func (s *Source) classUnder(class *placement.Class, strategy workload.Strategy) *placement.Class {
	key := underKey{class.ID, strategy}
	if known := s.under[key]; known != nil {
		return known
	}
	if len(s.under) >= maxUnder {
		clear(s.under)
	}
	s.under[key] = class.Under(strategy)
	return s.under[key]
}

// moment is what a batch may draw from and look at.
func (s *Source) moment() (uint64, time.Time) {
	s.drawn++
	seed := s.drawn
	for _, c := range s.shard {
		seed = seed*31 + uint64(c) //nolint:gosec // a rune is not negative
	}
	return seed, s.registry.config.Now()
}

// chair is a policy as one shard works with it.
type chair struct {
	placer
	source            *Source
	seat              *seat
	active, candidate *wasm.Placer
}

func newChair(s *Source, seat *seat) *chair {
	c := &chair{source: s, seat: seat}
	c.of = s
	c.place = func(t *host.Table, requests []placement.Request) []placement.Result {
		return c.serve(t, requests, false)
	}
	c.plan = func(t *host.Table, requests []placement.Request) []placement.Result {
		return c.serve(t, requests, true)
	}
	return c
}

// sit makes the placers, of which the names of resources are the table's.
func (c *chair) sit(t *host.Table) {
	if c.active != nil {
		return
	}
	config := wasm.PlacerConfig{Names: t.Names(), OnFault: c.seat.faulted, OnCall: c.seat.called, Moment: c.source.moment, Fallback: c.source.native}
	config.Slot = &c.seat.active
	c.active = wasm.NewPlacer(config)
	config.Slot = &c.seat.candidate
	c.candidate = wasm.NewPlacer(config)
}

func (c *chair) close() {
	if c.active != nil {
		c.active.Close()
		c.candidate.Close()
	}
}

// serve has each part of a batch placed by whom the plan names for it, and asks another, when there is time, what it would do.
func (c *chair) serve(t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	c.sit(t)
	plan := c.seat.plan.Load()
	return stretches(requests, plan.tries, func(tried bool, part []placement.Request) []placement.Result {
		server := c.server(plan, tried)
		if !planning {
			c.note(server.version)
		}
		reference, of := c.reference(plan, tried)
		if planning || of == nil || !c.source.budget.open(c.source.registry.config.Now()) {
			return server.ask(t, part, planning)
		}
		return c.compare(t, part, server, reference, of)
	})
}

// tries reports whether a candidate decides for a request.
func (p *plan) tries(r *placement.Request) bool {
	v := p.candidate
	return v != nil && v.stage == rollout.Canary && r.Class != nil && v.scope.Holds(r.Pool, uint64(r.Class.ID))
}

// side is one of two whose answers are compared.
type side struct {
	ask     func(t *host.Table, requests []placement.Request, planning bool) []placement.Result
	version *running // nil: another policy, or the built-in placer
}

func (c *chair) through(p *wasm.Placer, version *running) side {
	return side{func(t *host.Table, requests []placement.Request, planning bool) []placement.Result {
		if planning {
			return p.Plan(t, requests)
		}
		results := p.Place(t, requests)
		for _, served := range p.Served() {
			if served.Digest != "" {
				served.By = c.seat.name
			}
			c.source.served = append(c.source.served, served)
		}
		return results
	}, version}
}

// server is who decides. Where nothing is active under the name, the default does.
func (c *chair) server(p *plan, tried bool) side {
	switch {
	case tried:
		return c.through(c.candidate, p.candidate)
	case p.active != nil:
		return c.through(c.active, p.active)
	}
	return side{ask: c.otherwise}
}

// otherwise is the default, unless that is this policy.
func (c *chair) otherwise(t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	s := c.source
	return s.byKind(requests, func(name string, part []placement.Request) []placement.Result {
		if seat := s.registry.seat(name); !rollout.BuiltIn(name) && (name == c.seat.name || seat == nil || seat.plan.Load().active == nil) {
			name = rollout.BestFit
		}
		return s.named(name, t, part, planning)
	})
}

// reference is who is asked besides, and whose merit that tells: what is in shadow is asked itself, and for one that is tried or active whoever would decide without it.
func (c *chair) reference(p *plan, tried bool) (reference side, of *running) {
	switch {
	case tried && p.active != nil:
		return c.through(c.active, p.active), p.candidate
	case tried:
		return side{ask: c.otherwise}, p.candidate
	case p.candidate != nil && p.candidate.stage == rollout.Shadow:
		return c.through(c.candidate, p.candidate), p.candidate
	case p.active != nil:
		return side{ask: c.bestFit}, p.active
	}
	return side{}, nil
}

func (c *chair) bestFit(t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	return c.source.builtIn(workload.StrategyBestFit, t, requests, planning)
}

// note keeps what places under the name, for reports.
func (c *chair) note(v *running) {
	digest := rollout.Digest{}
	if v != nil {
		digest = v.digest
	}
	was := c.source.effective.Load()
	now := c.source.registry.now()
	if s, ok := (*was)[c.seat.name]; ok && s.Digest == digest && now-s.At < int64(time.Second) {
		return
	}
	next := make(map[string]rollout.Serving, len(*was)+1)
	for name, s := range *was {
		next[name] = s
	}
	next[c.seat.name] = rollout.Serving{Shard: c.source.shard, Policy: c.seat.name, Digest: digest, At: now}
	c.source.effective.Store(&next)
}
