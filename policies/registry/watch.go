package registry

import (
	"context"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/rollout"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// watcher asks versions of quota and of preemption in shadow what they would say to the cell as it is, once a second, and counts how that differs from what is decided. It belongs to Run.
type watcher struct {
	registry *Registry
	quota    map[*seat]*wasm.Quota
	ranks    map[*seat]*wasm.Ranker
	active   *wasm.Ranker // of the policy of preemption in force
	turn     int          // of pools whose work is ranked
}

func newWatcher(r *Registry) *watcher {
	return &watcher{
		registry: r, quota: map[*seat]*wasm.Quota{}, ranks: map[*seat]*wasm.Ranker{},
		active: wasm.NewRanker(wasm.AskConfig{Slot: r.slots[policyabi.Preempt.String()], Moment: r.moment}),
	}
}

func (r *Registry) moment() (uint64, time.Time) { return 0, r.config.Now() }

// close lets go of all versions.
func (w *watcher) close() {
	for s := range w.quota {
		w.leave(s)
	}
	for s := range w.ranks {
		w.leave(s)
	}
	w.active.Close()
}

func (w *watcher) leave(s *seat) {
	if q := w.quota[s]; q != nil {
		q.Close()
		delete(w.quota, s)
	}
	if q := w.ranks[s]; q != nil {
		q.Close()
		delete(w.ranks, s)
	}
}

// look asks each version in shadow once.
func (w *watcher) look(ctx context.Context) {
	shadows := map[*seat]*running{}
	for _, s := range *w.registry.seats.Load() {
		if v := s.plan.Load().candidate; v != nil && v.stage == rollout.Shadow && s.kind != rollout.Place {
			shadows[s] = v
		}
	}
	for s := range w.quota {
		if shadows[s] == nil {
			w.leave(s)
		}
	}
	for s := range w.ranks {
		if shadows[s] == nil {
			w.leave(s)
		}
	}
	if len(w.ranks) == 0 {
		w.active.Close() // it holds no version that it has no use for
	}
	for s, v := range shadows {
		var d *difference
		switch s.kind {
		case policyabi.Quota.String():
			d = w.lookQuota(ctx, s)
		case policyabi.Preempt.String():
			d = w.lookRanks(ctx, s)
		}
		if d == nil {
			continue
		}
		s.compared(v, d)
		if v.broken(w.registry.now()) != "" {
			w.registry.ring()
		}
	}
}

// asked is how a version in shadow is asked.
func (s *seat) asked() wasm.AskConfig {
	return wasm.AskConfig{Slot: &s.candidate, OnFault: s.faulted, OnCall: s.called, Moment: s.registry.moment}
}

// lookQuota compares entitlements. It returns nil where there is nothing to compare.
func (w *watcher) lookQuota(ctx context.Context, s *seat) *difference {
	var snapshot *respool.Snapshot
	var decided []resource.Vector
	if w.registry.config.Store.Read(ctx, func(look scheduler.Reader) { snapshot, decided = look.QuotaQuestion() }) != nil {
		return nil // the cell ends
	}
	if w.quota[s] == nil {
		w.quota[s] = wasm.NewQuota(s.asked())
	}
	given, err := w.quota[s].Entitle(snapshot)
	if err != nil {
		return nil // the seat was told
	}
	d := &difference{}
	for row := 1; row < len(snapshot.Rows); row++ {
		for k := range snapshot.Kinds {
			if snapshot.Rows[row].Demand[k] == 0 && decided[row][k] == given[row][k] {
				continue // nobody cares
			}
			d.compared++
			if decided[row][k] != given[row][k] {
				d.elsewhere++
			}
		}
	}
	return d
}

// lookRanks compares the order in which work would make room: of pools above their entitlement, and of one pool, each in turn.
func (w *watcher) lookRanks(ctx context.Context, s *seat) *difference {
	var lists [][]preemption.Contender
	err := w.registry.config.Store.Read(ctx, func(look scheduler.Reader) {
		pools := []workload.PoolID{{}}
		if snapshot, _ := look.QuotaQuestion(); len(snapshot.Rows) > 1 {
			w.turn = w.turn%(len(snapshot.Rows)-1) + 1
			pools = append(pools, snapshot.Rows[w.turn].ID)
		}
		for _, pool := range pools {
			if list := look.RanksQuestion(pool); len(list) > 1 {
				lists = append(lists, list)
			}
		}
	})
	if err != nil {
		return nil // the cell ends
	}
	if w.ranks[s] == nil {
		w.ranks[s] = wasm.NewRanker(s.asked())
	}
	d := &difference{}
	for _, list := range lists {
		builtIn := preemption.BuiltIn(list)
		decided := builtIn
		if ranks, err := w.active.Rank(list); err == nil {
			decided = preemption.Advised(ranks, builtIn)
		}
		ranks, err := w.ranks[s].Rank(list)
		if err != nil {
			return nil // the seat was told
		}
		d.order(decided, preemption.Advised(ranks, builtIn))
	}
	return d
}

// order counts pairs, and those of which the other goes first.
func (d *difference) order(decided, other []int32) {
	for i := range decided {
		for j := range i {
			d.compared++
			if decided[i] < decided[j] && other[i] > other[j] || decided[i] > decided[j] && other[i] < other[j] {
				d.elsewhere++
			}
		}
	}
}
