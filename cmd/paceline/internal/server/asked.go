package server

import (
	"context"
	"hash/maphash"
	"log/slog"
	"reflect"
	"time"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
	"github.com/paceline-sched/paceline/policies/registry"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// sampleEvery is how often what the built-in policies of quota and preemption decide is recorded, where no policy is in force that is asked.
const sampleEvery = 5 * time.Second

// The names of the built-in policies in the log.
const (
	builtInQuota = "max-min"
	builtInRanks = "by-overage"
)

// newSampler returns one of a cell.
func newSampler(cell *engine.Engine, policies *registry.Registry, asked *decision.Asked) *sampler {
	return &sampler{cell: cell, policies: policies, asked: asked, seed: maphash.MakeSeed()}
}

// asked begins to record what policies are asked; nil: it is not recorded.
func (h *host) asked() *decision.Asked {
	if h.decisions == nil {
		return nil
	}
	asked, err := h.decisions.RecordAsked()
	if err != nil {
		h.log.Error("what policies of quota and preemption are asked is not recorded", slog.Any(telemetry.KeyError, err))
		return nil
	}
	return asked
}

// sampler records what policies would be asked while the built-in ones decide, so that a first policy can be tried on it. It belongs to run.
type sampler struct {
	cell     *engine.Engine
	policies *registry.Registry
	asked    *decision.Asked
	snapshot *respool.Snapshot          // recorded last
	turn     int                        // of the pool that comes next, among the snapshot's rows; 0: all that are above their entitlement
	lists    map[workload.PoolID]uint64 // what was recorded last of each pool, as a sum by seed
	seed     maphash.Seed
}

// sampledPools bounds the pools that are looked at before one has work of which some may have to go.
const sampledPools = 4

func (s *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.look(ctx)
		}
	}
}

func (s *sampler) look(ctx context.Context) {
	wantQuota := s.policies.Slot(policyabi.Quota.String(), "").Current() == nil
	wantRanks := s.policies.Slot(policyabi.Preempt.String(), "").Current() == nil
	if !wantQuota && !wantRanks {
		return
	}
	var snapshot *respool.Snapshot
	var decided []resource.Vector
	var list []preemption.Contender
	err := s.cell.Read(ctx, func(look scheduler.Reader) { snapshot, decided = look.QuotaQuestion() })
	if err == nil && wantRanks {
		list, err = s.candidates(ctx, snapshot.Rows)
	}
	if err != nil {
		return // the cell ends
	}
	now := time.Now().UnixNano()
	if wantQuota && len(snapshot.Rows) > 1 && !reflect.DeepEqual(snapshot, s.snapshot) {
		s.snapshot = snapshot
		s.asked.Record(&decision.Question{At: now, By: builtInQuota, Snapshot: snapshot, Entitlements: decided})
	}
	if len(list) > 0 {
		s.asked.Record(&decision.Question{At: now, By: builtInRanks, Contenders: list, Ranks: preemption.BuiltIn(list)})
	}
}

// candidates lists who would have to make room for work of others, or for more urgent work of the next pool in turn that has two such jobs at least and others than when it was
// looked at last. It returns nil where there are none. Each pool is a turn of its own on the cell's loop: thousands of jobs take a millisecond.
func (s *sampler) candidates(ctx context.Context, pools []respool.Row) ([]preemption.Contender, error) {
	known := make(map[workload.PoolID]uint64, len(pools)) // those that are gone are forgotten
	for i := range pools {
		pool := pools[i].ID
		if i == 0 {
			pool = workload.PoolID{} // the root has no work of its own
		}
		if sum, found := s.lists[pool]; found {
			known[pool] = sum
		}
	}
	s.lists = known
	for range min(sampledPools, len(pools)) {
		s.turn %= len(pools)
		pool := workload.PoolID{}
		if s.turn > 0 {
			pool = pools[s.turn].ID
		}
		s.turn++
		var list []preemption.Contender
		if err := s.cell.Read(ctx, func(look scheduler.Reader) { list = look.RanksQuestion(pool) }); err != nil {
			return nil, err
		}
		list = list[:min(len(list), preemption.MaxContenders)]
		if sum := s.sumOf(list); len(list) > 1 && sum != s.lists[pool] {
			s.lists[pool] = sum
			return list, nil
		}
	}
	return nil, nil
}

// sumOf tells lists apart by all but the work that was done, which grows by itself.
func (s *sampler) sumOf(list []preemption.Contender) (sum uint64) {
	for _, c := range list {
		c.Work = 0
		sum = sum*31 + maphash.Comparable(s.seed, c)
	}
	return sum
}
