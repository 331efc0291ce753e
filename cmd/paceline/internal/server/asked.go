package server

import (
	"context"
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
	snapshot *respool.Snapshot // recorded last
	list     []preemption.Contender
}

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
	if s.cell.Read(ctx, func(look scheduler.Reader) {
		if wantQuota {
			snapshot, decided = look.QuotaQuestion()
		}
		if wantRanks {
			list = look.RanksQuestion(workload.PoolID{})
		}
	}) != nil {
		return // the cell ends
	}
	now := time.Now().UnixNano()
	if snapshot != nil && len(snapshot.Rows) > 1 && !reflect.DeepEqual(snapshot, s.snapshot) {
		s.snapshot = snapshot
		s.asked.Record(&decision.Question{At: now, By: builtInQuota, Snapshot: snapshot, Entitlements: decided})
	}
	list = list[:min(len(list), preemption.MaxContenders)]
	if len(list) > 1 && !reflect.DeepEqual(list, s.list) {
		s.list = list
		ranks := make([]int32, len(list))
		for i := range ranks {
			ranks[i] = int32(i) //nolint:gosec // at most preemption.MaxContenders
		}
		s.asked.Record(&decision.Question{At: now, By: builtInRanks, Contenders: list, Ranks: ranks})
	}
}
