package registry

import (
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/rollout"
)

// A newcomer is a policy of placement with a version in shadow or as a canary, and none that is active. Nothing that chooses a policy chooses it yet, as a rule: so it is tried on
// the work that chooses none, and not only on that of its name.

// welcome finds the newcomers; r.edit is held.
func (r *Registry) welcome() {
	var list []*seat
	for _, s := range *r.seats.Load() {
		if p := s.plan.Load(); s.kind == rollout.Place && p.active == nil && p.candidate != nil {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *seat) int { return strings.Compare(a.name, b.name) })
	r.newcomers.Store(&list)
}

// chosen serves requests that chose nothing: as the default does, but for what newcomers decide.
func (s *Source) chosen(name string, t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	list := *s.registry.newcomers.Load()
	if len(list) == 0 {
		return s.named(name, t, requests, planning)
	}
	return stretches(requests, func(r *placement.Request) *seat {
		for _, n := range list {
			if n.name != name && n.plan.Load().tries(r) {
				return n
			}
		}
		return nil
	}, func(n *seat, part []placement.Request) []placement.Result {
		if n != nil {
			if c := s.chair(n.name); c != nil {
				return c.serve(t, part, planning)
			}
		}
		return s.watched(list, name, t, part, planning)
	})
}

// watched serves requests as the default does, and asks a newcomer in shadow, each in turn, when there is time.
func (s *Source) watched(list []*seat, name string, t *host.Table, requests []placement.Request, planning bool) []placement.Result {
	if planning || !s.budget.open(s.registry.config.Now()) {
		return s.named(name, t, requests, planning)
	}
	for range list {
		s.turn++
		n := list[s.turn%len(list)]
		v := n.plan.Load().candidate
		if n.name == name || v == nil || v.stage != rollout.Shadow {
			continue
		}
		c := s.chair(n.name)
		if c == nil {
			continue
		}
		c.sit(t)
		byDefault := side{ask: func(t *host.Table, requests []placement.Request, planning bool) []placement.Result {
			return s.named(name, t, requests, planning)
		}}
		return c.compare(t, requests, byDefault, c.through(c.candidate, v), v)
	}
	return s.named(name, t, requests, false)
}
