package wasm_test

import (
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// BenchmarkKinds asks a guest about 1,000 pools, about as many candidates as one question has, and about three requests over four clusters.
func BenchmarkKinds(b *testing.B) {
	config, faults := asked(load(b, guest(b, "trio"), wasm.Config{}))
	defer func() {
		if len(*faults) > 0 {
			b.Fatal((*faults)[0])
		}
	}()
	b.Run("quota-1000", func(b *testing.B) {
		next := uint64(7)
		s := poolTree(b, 1000, func(most int) int64 {
			next = next*6364136223846793005 + 1442695040888963407
			return int64(next >> 33 % uint64(most+1))
		}).Snapshot()
		q := wasm.NewQuota(config)
		defer q.Close()
		for b.Loop() {
			if _, err := q.Entitle(s); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(s.Rows)), "pools")
	})
	b.Run("preempt-1024", func(b *testing.B) {
		list := make([]preemption.Contender, preemption.MaxContenders)
		for i := range list {
			list[i] = contender(i, time.Duration(i*7919%1000)*time.Second, 1000)
		}
		r := wasm.NewRanker(config)
		defer r.Close()
		for b.Loop() {
			if _, err := r.Rank(list); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("route-4", func(b *testing.B) {
		requests := []wasm.RouteRequest{routeRequest(3), routeRequest(4), routeRequest(9)}
		r := wasm.NewRouter(config, nil)
		defer r.Close()
		for b.Loop() {
			if _, err := r.Route(clusters(), requests); err != nil {
				b.Fatal(err)
			}
		}
	})
}
