package kit

import (
	"context"
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/policies/wasm"
)

// Compare plays the scenes with two versions and says where the second first places otherwise than the first, "" for nowhere. Each call has one request, so that how a policy
// keeps account of earlier requests of its call makes no difference.
func Compare(ctx context.Context, a, b *wasm.Version, o Options) (string, error) {
	o = o.orDefault()
	for i := range scenes {
		if len(o.Scenes) > 0 && !slices.Contains(o.Scenes, scenes[i].name) {
			continue
		}
		s := scenes[i]
		s.work = 1
		rounds := o.Rounds
		if s.once {
			rounds = 1
		}
		for round := range rounds {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			if why := compareRound(a, b, &s, newDraw(o.Seed, uint64(i), uint64(round)), o); why != "" {
				return fmt.Sprintf("%s, table %d of seed %d: %s", s.name, round, o.Seed, why), nil
			}
		}
	}
	return "", nil
}

func compareRound(a, b *wasm.Version, s *scene, d *draw, o Options) string {
	first, second := (&judge{version: a, options: o}).newPlayer(s, record), (&judge{version: b, options: o}).newPlayer(s, record)
	defer first.placer.Close()
	defer second.placer.Close()
	st := stage{scene: s, draw: d, books: newBooks(), tables: alike(first, second)}
	if why := st.raise(); why != "" {
		return why
	}
	var known []asked
	for batch := range s.batches {
		list := st.batch(&known)
		requests := make([]placement.Request, len(list))
		for i := range list {
			requests[i] = list[i].request
		}
		got, want := second.placer.Place(second.table, requests), first.placer.Place(first.table, requests)
		for _, p := range []*player{first, second} {
			if p.fault != nil {
				return p.fault.Error()
			}
		}
		for i := range list {
			if why := difference(&want[i], &got[i]); why != "" {
				return fmt.Sprintf("batch %d, request %d: %s", batch, i, why)
			}
			if why := st.books.take(first.table, &list[i], &want[i]); why != "" {
				return why
			}
		}
		if s.change {
			st.change()
		}
	}
	return ""
}

// difference says how two answers differ, "" for not at all.
func difference(want, got *placement.Result) string {
	if len(want.Assignments) != len(got.Assignments) {
		return fmt.Sprintf("the first places %d tasks, the second %d", len(want.Assignments), len(got.Assignments))
	}
	for i := range want.Assignments {
		w, g := &want.Assignments[i], &got.Assignments[i]
		if w.Row != g.Row || w.Devices != g.Devices {
			return fmt.Sprintf("task %d goes to row %d (devices %b) with the first, to row %d (devices %b) with the second", i, w.Row, w.Devices, g.Row, g.Devices)
		}
	}
	return ""
}
