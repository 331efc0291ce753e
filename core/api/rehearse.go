package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// rehearseTimeout bounds how long a plan waits for what clusters say of its launches.
const rehearseTimeout = 5 * time.Second

// rehearse asks the clusters of a plan. Those that cannot be asked are left out.
func (s *jobService) rehearse(ctx context.Context, list []scheduler.Rehearsal) (out []*pacelinev1.PlanRehearsal) {
	ctx, cancel := context.WithTimeout(ctx, rehearseTimeout)
	defer cancel()
	for n, answer := range s.cell.engine.Rehearse(ctx, list) {
		if errors.Is(answer.Err, driver.ErrNoRehearsal) {
			continue
		}
		r := &pacelinev1.PlanRehearsal{
			Cluster: list[n].Cluster, Instance: list[n].Launch.Run.Instance, Instances: count(list[n].Instances),
			Verdict: pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_ADMITTED, Message: clip(answer.Refused, maxWords),
		}
		for _, w := range answer.Warnings[:min(len(answer.Warnings), maxWarnings)] {
			r.Warnings = append(r.Warnings, clip(w, maxWords))
		}
		switch {
		case errors.Is(answer.Err, context.DeadlineExceeded):
			r.Verdict = pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_UNKNOWN
			r.Message = fmt.Sprintf("it did not answer within %v", rehearseTimeout)
		case answer.Err != nil:
			r.Verdict, r.Message = pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_UNKNOWN, clip(answer.Err.Error(), maxWords)
		case answer.Refused != "":
			r.Verdict = pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_REFUSED
		}
		out = append(out, r)
	}
	return out
}

// Bounds of what is passed on of a cluster's words.
const (
	maxWords    = 1024 // bytes
	maxWarnings = 16
)
