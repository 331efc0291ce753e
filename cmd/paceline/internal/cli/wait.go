package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"

	"github.com/paceline-sched/paceline/sdk/client"
)

// ended reports whether a job's state is final.
func ended(s pacelinev1.JobState) bool {
	return s == pacelinev1.JobState_JOB_STATE_SUCCEEDED || s == pacelinev1.JobState_JOB_STATE_FAILED || s == pacelinev1.JobState_JOB_STATE_STOPPED
}

// settled reports whether what 'job run' asked for has come about: batch work has ended, other work is healthy as a whole.
func settled(s *pacelinev1.JobSummary) bool {
	if ended(s.GetState()) {
		return true
	}
	return s.GetKind() != pacelinev1.JobKind_JOB_KIND_BATCH && !s.GetRestarting() &&
		s.GetState() == pacelinev1.JobState_JOB_STATE_RUNNING && s.GetHealthy() >= s.GetInstances()
}

// quiet reports whether a job has ended, and with it its last run.
func quiet(s *pacelinev1.JobSummary) bool { return ended(s.GetState()) }

// waitForJobs waits until each job has settled, and fails if one of them did.
func (a *app) waitForJobs(ctx context.Context, c *client.Client, jobs []*pacelinev1.JobSummary, w waiting) error {
	return a.await(ctx, c, jobs, w, settled)
}

// waitForEnd waits until no job has a live run.
func (a *app) waitForEnd(ctx context.Context, c *client.Client, jobs []*pacelinev1.JobSummary, w waiting) error {
	return a.await(ctx, c, jobs, w, quiet)
}

func (a *app) await(ctx context.Context, c *client.Client, jobs []*pacelinev1.JobSummary, w waiting, until func(*pacelinev1.JobSummary) bool) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	ctx, cancel := w.bound(ctx)
	defer cancel()
	bad := false
	last := make([]*pacelinev1.JobSummary, 0, len(jobs))
	for _, job := range jobs {
		done, err := a.awaitOne(ctx, c, job, until)
		if err != nil {
			return err
		}
		last = append(last, done)
		bad = bad || done.GetState() == pacelinev1.JobState_JOB_STATE_FAILED
		if p.Format.ForPeople() {
			a.say("%s", outcome(done))
		}
	}
	if !p.Format.ForPeople() {
		if err := printSummaries(p, last); err != nil {
			return err
		}
	}
	if bad {
		return silently()
	}
	return nil
}

func (a *app) awaitOne(ctx context.Context, c *client.Client, job *pacelinev1.JobSummary, until func(*pacelinev1.JobSummary) bool) (*pacelinev1.JobSummary, error) {
	shown := a.progress()
	defer shown.done()
	interest := &pacelinev1.WatchEventsRequest{Job: job.GetId(), Kinds: workKinds}
	err := follow(ctx, c, interest, func(ctx context.Context) (bool, error) {
		answer, err := call(ctx, c.Jobs.GetJob, &pacelinev1.GetJobRequest{Job: job.GetId()})
		if err != nil {
			return false, a.waitError(ctx, job, err)
		}
		job = answer.GetJob().GetSummary()
		if until(job) {
			return true, nil
		}
		shown.show(progressLine(job, answer.GetJob().GetPending()))
		return false, nil
	})
	return job, a.waitError(ctx, job, err)
}

// waitError says how the job stands when a wait ends early; the job itself goes on.
func (a *app) waitError(ctx context.Context, job *pacelinev1.JobSummary, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	var f *failure
	if errors.As(err, &f) {
		return err
	}
	goesOn := fmt.Sprintf("the job goes on; see 'paceline job explain %s'", summaryPath(job))
	if errors.Is(context.Cause(ctx), errWaitedEnough) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &failure{code: ExitTimeout, err: fmt.Errorf("job %s is still %s: %w", summaryPath(job), counts(job), errWaitedEnough), hint: goesOn}
	}
	return &failure{code: ExitInterrupted, err: errors.New("interrupted"), hint: goesOn}
}

// progressLine is one line on where a job stands.
func progressLine(s *pacelinev1.JobSummary, pending *pacelinev1.Pending) string {
	line := fmt.Sprintf("%s  %s", s.GetName(), counts(s))
	if s.GetKind() == pacelinev1.JobKind_JOB_KIND_BATCH {
		line = fmt.Sprintf("%s  %s  %s", s.GetName(), bar(uint64(s.GetInstanceCounts().GetDone()), uint64(s.GetInstances())), counts(s))
	}
	if s.GetRestarting() {
		line += ", " + restarting(s)
	}
	if why := pending.GetMessage(); why != "" {
		line += "; " + why
	}
	return line
}

// restarting says how far a restart has come.
func restarting(s *pacelinev1.JobSummary) string {
	r := s.GetRestart()
	if r.GetUnits() == 0 {
		return "restarting"
	}
	return fmt.Sprintf("restarting: %d of %d done, %d down", r.GetDone(), r.GetUnits(), r.GetDown())
}

// counts is a job's state and its instances, without what is zero.
func counts(s *pacelinev1.JobSummary) string {
	n := s.GetInstanceCounts()
	parts := []string{output.Enum(s.GetState())}
	say := func(count uint32, word string) {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count, word))
		}
	}
	if s.GetKind() == pacelinev1.JobKind_JOB_KIND_BATCH {
		parts = append(parts, fmt.Sprintf("%d/%d done", n.GetDone(), s.GetInstances()))
		say(n.GetActive(), "active")
	} else {
		parts = append(parts, fmt.Sprintf("%d/%d healthy", s.GetHealthy(), s.GetInstances()))
	}
	say(n.GetPending()+n.GetAdmitted(), "pending")
	say(n.GetBackingOff(), "backing off")
	say(n.GetFailed(), "failed")
	return strings.Join(parts, ", ")
}

// outcome is what became of a job that was waited for.
func outcome(s *pacelinev1.JobSummary) string {
	text := fmt.Sprintf("job %s %s", summaryPath(s), counts(s))
	if s.GetReason() != pacelinev1.Reason_REASON_UNSPECIFIED {
		return text + " (" + output.Enum(s.GetReason()) + ")"
	}
	return text
}
