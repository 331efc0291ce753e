package decision

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Contender is a policy that recorded work is given to.
type Contender struct {
	Name   string
	Digest string // of a policy in a sandbox
	// New makes a placer for the table of one shard, whose resources have the given names. One that has a Close is closed.
	New func(names *resource.Names) (placement.Placer, error)
}

// Builtin is the built-in placer. strategy is one of its strategies for all tasks, "" for each the one under which it was placed when it was recorded; tasks that somebody's policy
// placed are placed by their own.
func Builtin(name string, strategy workload.Strategy) Contender {
	return Contender{Name: name, New: func(*resource.Names) (placement.Placer, error) {
		return newStrategist(strategy), nil
	}}
}

func newStrategist(strategy workload.Strategy) *strategist {
	return &strategist{native: placement.NewNative(), strategy: strategy, classes: map[underKey]*placement.Class{}}
}

// strategist is the built-in placer under strategies that the tasks did not choose.
type strategist struct {
	native   *placement.Native
	strategy workload.Strategy
	recorded placement.Served
	classes  map[underKey]*placement.Class
}

type underKey struct {
	class    placement.ClassID
	strategy workload.Strategy
}

// Follow implements placement.Follower.
func (s *strategist) Follow(recorded placement.Served) { s.recorded = recorded }

// Place implements placement.Placer.
func (s *strategist) Place(t *host.Table, requests []placement.Request) []placement.Result {
	strategy := s.strategy
	if strategy == "" && s.recorded.Digest == "" {
		strategy = workload.Strategy(s.recorded.By)
	}
	s.recorded = placement.Served{}
	if strategy == "" {
		return s.native.Place(t, requests)
	}
	asked := make([]placement.Request, len(requests))
	for i, r := range requests {
		r.Class = s.under(r.Class, strategy)
		asked[i] = r
	}
	return s.native.Place(t, asked)
}

func (s *strategist) under(class *placement.Class, strategy workload.Strategy) *placement.Class {
	key := underKey{class.ID, strategy}
	if s.classes[key] == nil {
		s.classes[key] = class.Under(strategy)
	}
	return s.classes[key]
}
