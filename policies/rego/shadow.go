package rego

import (
	"context"
	"log/slog"
	"time"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/telemetry"
)

// shadowed is a job that shadow bundles are still to see.
type shadowed struct {
	set     *set
	request *admit.Request
}

// lookPeriod is between two looks at the directory.
const lookPeriod = 2 * time.Second

// Run evaluates shadow bundles and watches the directory until ctx ends.
func (j *Judge) Run(ctx context.Context) {
	ticker := time.NewTicker(lookPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-j.shadow:
			j.watch(s)
		case <-ticker.C:
			j.Look()
		}
	}
}

// watch asks each shadow bundle by itself what it would say, as if it were the only one.
func (j *Judge) watch(s shadowed) {
	input := inputOf(s.request, s.set.watch)
	for _, u := range s.set.shadows {
		began := time.Now()
		a := u.eval(input, j.config.Limit)
		u.tally.add(&a)
		v := verdictOf([]*unit{u}, []answer{a}, nil, nil, nil)
		if v.Failure == nil && len(v.Denials) == 0 {
			var fail *admit.Failure
			if _, v.Changes, fail = mutate([]*unit{u}, []answer{a}, s.request); fail != nil {
				v.Failure = fail
			}
		}
		hideSecrets(s.request, v)
		j.decided(s.request, v, decision{at: began, took: time.Since(began), shadow: u.name})
	}
}

// Report tells what is in force, how it fares, and the newest decisions.
func (j *Judge) Report(decisions int) (uint64, []admit.Status, []admit.Decision) {
	j.mu.Lock()
	revision, s := j.revision, j.force.Load()
	var out []admit.Status
	for _, list := range [][]*unit{s.active, s.shadows} {
		for _, u := range list {
			out = append(out, j.status(u))
		}
	}
	out = append(out, s.idle...)
	j.mu.Unlock()
	var log []admit.Decision
	for _, d := range j.log.newest(min(decisions, maxDecisions)) {
		log = append(log, d.withInput())
	}
	return revision, out, log
}

func (j *Judge) status(u *unit) admit.Status {
	st := admit.Status{
		Name: u.name, Source: u.source, Digest: u.digest, Shadow: u.shadow, Since: u.since, Error: j.directory.illness(u),
		Evaluated: u.tally.evaluated.Load(), Denied: u.tally.denied.Load(), Warned: u.tally.warned.Load(),
		Mutated: u.tally.mutated.Load(), Failed: u.tally.failed.Load(),
	}
	if u.prog != nil {
		st.Info = u.prog.info
	}
	if u.ill != nil {
		st.Error = u.ill.Error()
	}
	return st
}

func (j *Judge) complain(name string, err error) {
	j.config.Log.Error("a bundle of rules cannot be used; the former version, if there is one, stays in force",
		slog.String(telemetry.KeyBundle, name), slog.Any(telemetry.KeyError, err))
}
