package rego

import (
	"errors"
	"fmt"

	"buf.build/go/protovalidate"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/spec"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// mutate joins the changes that all bundles want. No spec: they want none.
func mutate(units []*unit, answers []answer, r *admit.Request) (*pacelinev1.JobSpec, []admit.Change, *admit.Failure) {
	var w wishes
	wanted := false
	for i := range answers {
		for n := range answers[i].mutate {
			wanted = true
			if err := w.add(units[i].name, &answers[i].mutate[n]); err != nil {
				return nil, nil, &admit.Failure{
					Bundle: units[i].name, Reason: "the rules contradict one another: " + err.Error(), Hint: "change one of the bundles, or put one of them in shadow",
				}
			}
		}
	}
	if !wanted {
		return nil, nil, nil
	}
	out, changes := w.apply(r.Spec, r.Job)
	return out, changes, nil
}

// rewritten is the request for a changed job, if what the rules made of it is a job.
func rewritten(r *admit.Request, changed *pacelinev1.JobSpec, changes []admit.Change) (*admit.Request, *admit.Failure) {
	out := *r
	out.Spec = changed
	err := protovalidate.Validate(changed)
	if err == nil {
		out.Job, err = spec.ToJob(changed, spec.Scope{Field: "spec", Pool: r.Job.Pool, Owner: r.Job.Owner, Names: r.Names})
	}
	if err != nil {
		return nil, &admit.Failure{
			Bundle: changes[0].Bundle, Reason: "what the rules make of the job is no valid job: " + plain(err).Error(),
			Hint: "have the rules change only jobs that stay valid with it",
		}
	}
	return &out, nil
}

// verdictOf joins what the bundles say. A denial counts for more than a failure: the user can do something about it.
func verdictOf(units []*unit, answers []answer, changed *pacelinev1.JobSpec, changes []admit.Change, fail *admit.Failure) *admit.Verdict {
	v := &admit.Verdict{Spec: changed, Changes: changes, Failure: fail}
	for i, u := range units {
		a := &answers[i]
		for _, text := range a.deny {
			v.Denials = append(v.Denials, admit.Message{Bundle: u.name, Text: text})
		}
		for _, text := range a.warn {
			v.Warnings = append(v.Warnings, admit.Message{Bundle: u.name, Text: text})
		}
		switch {
		case a.err == nil:
		case u.prog != nil && u.prog.info.FailOpen:
			v.Warnings = append(v.Warnings, admit.Message{Bundle: u.name, Text: fmt.Sprintf("it could not judge the job, which passes as the bundle wants it then: %v", a.err)})
		case v.Failure == nil:
			v.Failure = &admit.Failure{
				Bundle: u.name, Reason: a.err.Error(), Passing: errors.Is(a.err, errTooLong),
				Hint: "whoever looks after the rules can see why with 'paceline admission list', and put another version in force",
			}
		}
	}
	if len(v.Denials) > 0 {
		v.Failure = nil
	}
	if len(v.Denials) > 0 || v.Failure != nil {
		v.Spec, v.Changes = nil, nil
	}
	return v
}
