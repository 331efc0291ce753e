package registry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/rollout"
)

// warnFor is how long a rollback by a gate is warned of.
const warnFor = 7 * 24 * time.Hour

// Report tells everything: what is known, how what is in force fares, and what should be looked at.
func (r *Registry) Report() rollout.Report {
	out := rollout.Report{Book: r.Book()}
	for i := range out.Book.Policies {
		p := &out.Book.Policies[i]
		out.Warnings = append(out.Warnings, r.warnings(p)...)
		s := r.seat(p.Name)
		if s == nil {
			continue
		}
		plan := s.plan.Load()
		for _, v := range []*running{plan.active, plan.candidate} {
			if v == nil {
				continue
			}
			fare := rollout.Fare{Policy: p.Name, Digest: v.digest, Tally: v.seen(), Tasks: int64(v.counts.Tasks.Load()), Calls: int64(v.counts.Calls.Load()), Nanos: int64(v.counts.Nanos.Load())} //nolint:gosec // counts of a process's life
			out.Fares = append(out.Fares, fare)
			if n := fare.Tally.Failed; n > 0 {
				out.Warnings = append(out.Warnings, fmt.Sprintf("policy %s: version %s (%s) failed %d times, the last time: %s", p.Name, v.digest.Short(), v.stage, n, fare.Tally.Faults[len(fare.Tally.Faults)-1].Text))
			}
		}
	}
	for _, s := range r.sortedSources() {
		for _, serving := range *s.effective.Load() {
			out.Seats = append(out.Seats, serving)
		}
	}
	slices.SortStableFunc(out.Seats, func(a, b rollout.Serving) int {
		return strings.Compare(a.Shard+"\x00"+a.Policy, b.Shard+"\x00"+b.Policy)
	})
	return out
}

// warnings are about versions that a gate rolled back lately, and about a policy that has nothing in force though it is somebody's default.
func (r *Registry) warnings(p *rollout.Policy) []string {
	var list []string
	for i := range p.Versions {
		v := &p.Versions[i]
		if v.Stage == rollout.RolledBack && v.By == "" && r.now()-v.Since < int64(warnFor) {
			list = append(list, fmt.Sprintf("policy %s: version %s was rolled back by a gate: %s", p.Name, v.Digest.Short(), v.Why))
		}
	}
	book := r.Book()
	for _, kind := range rollout.JobKinds {
		if book.Default(kind) == p.Name && p.Active() == nil {
			list = append(list, fmt.Sprintf("policy %s is the default for %s jobs and has no active version: %s places them", p.Name, kind, rollout.BestFit))
		}
	}
	return list
}
