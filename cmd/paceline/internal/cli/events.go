package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"

	"github.com/paceline-sched/paceline/sdk/client"
)

func (a *app) eventsCommand() *cobra.Command {
	var pool, job, cursor, since string
	var kinds []string
	var limit int
	var still bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show and follow what happens in a cell",
		Long: `Follow what happens until interrupted: from now on, from a time in the past with --since, or from a cursor. A broken connection is taken up
again without a gap. With --no-follow it ends once it has shown what happened so far, since --since or as far back as events are kept, which is
some 65,000 changes of the cell's state.

With -o json each line is a batch of events with the cursor after it, from which --cursor goes on later.`,
		Example: `  paceline events
  paceline events --pool /prod --kind job,host
  paceline events --since 10m --no-follow
  paceline events -o json | jq .events`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := enums[pacelinev1.EventKind]("kind", kinds)
			if err != nil {
				return err
			}
			request := &pacelinev1.WatchEventsRequest{Pool: pool, Job: job, Kinds: wanted, Cursor: cursor, UntilNow: still}
			switch {
			case since != "" && cursor != "":
				return usage(cmd, errors.New("--since and --cursor both say where to begin: give one"))
			case since != "":
				from, err := moment(since, a.Now())
				if err != nil {
					return usage(cmd, fmt.Errorf("--since: %w", err))
				}
				request.Since = timestamppb.New(from)
			case still && cursor == "":
				request.Since = &timestamppb.Timestamp{} // all that is kept
			}
			return a.printEvents(cmd.Context(), request, limit, nil)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&pool, "pool", "", "events about this pool, those below and their jobs")
	flags.StringVar(&job, "job", "", "events about this job")
	flags.StringSliceVar(&kinds, "kind", nil, "events about these: "+enumHelp(pacelinev1.EventKind(0)))
	flags.StringVar(&cursor, "cursor", "", "begin after this cursor")
	flags.StringVar(&since, "since", "", "begin so long ago, as in 90m or 7d, or at a time as in 2026-11-21T08:00:00Z")
	flags.BoolVar(&still, "no-follow", false, "end with what happened so far instead of waiting for more")
	flags.IntVar(&limit, "limit", 0, "end after so many events (default: never)")
	must(cmd.RegisterFlagCompletionFunc("pool", a.completePools))
	must(cmd.RegisterFlagCompletionFunc("job", a.completeJobs(0)))
	must(cmd.RegisterFlagCompletionFunc("kind", completeEnum(pacelinev1.EventKind(0))))
	return cmd
}

func (a *app) jobWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch JOB",
		Short: "Follow what happens to a job until it has ended",
		Long: `Follow the events of a job and its instances until the job has ended. Exit code 1: it failed. To see a table that keeps itself up to
date instead, use 'paceline task list JOB --watch'.`,
		Example:           `  paceline job watch crunch`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.watchJob(cmd.Context(), names[0])
		},
	}
}

func (a *app) watchJob(ctx context.Context, name string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	// The look comes between taking the cursor and watching from it, so that no change falls in a gap.
	cursor, err := a.cursor(ctx, c, name)
	if err != nil {
		return err
	}
	answer, err := call(ctx, c.Jobs.GetJob, &pacelinev1.GetJobRequest{Job: name})
	if err != nil {
		return err
	}
	job := answer.GetJob().GetSummary()
	state := job.GetState()
	a.say("%s", outcome(job))
	if ended(state) {
		return a.jobExit(state)
	}
	err = a.printEvents(ctx, &pacelinev1.WatchEventsRequest{Job: name, Cursor: cursor}, 0, func(e *pacelinev1.Event) bool {
		if change := e.GetJob(); change != nil {
			state = change.GetState()
			return ended(state) || change.GetDeleted()
		}
		return false
	})
	if err != nil {
		return err
	}
	return a.jobExit(state)
}

// cursor returns the cell's present place in its history, for a watch of one job.
func (a *app) cursor(ctx context.Context, c *client.Client, job string) (string, error) {
	cursor := ""
	err := c.Watch(ctx, &pacelinev1.WatchEventsRequest{Job: job}, func(r *pacelinev1.WatchEventsResponse) error {
		cursor = r.GetCursor()
		return errEnough // the first response comes at once, with or without events
	})
	if errors.Is(err, errEnough) {
		return cursor, nil
	}
	return "", err
}

func (a *app) jobExit(state pacelinev1.JobState) error {
	if state == pacelinev1.JobState_JOB_STATE_FAILED {
		return silently()
	}
	return nil
}

// errEnough ends a watch that has shown what was asked for.
var errEnough = errors.New("enough events")

// printEvents follows events until limit of them were shown (0: no limit), until says so, or the user interrupts.
func (a *app) printEvents(ctx context.Context, request *pacelinev1.WatchEventsRequest, limit int, until func(*pacelinev1.Event) bool) error {
	p, err := a.printer()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	shown, whole := 0, !p.Format.ForPeople() && p.Format != output.Name
	var quiet *pacelinev1.WatchEventsResponse // the last answer, if it was not shown: it says from where to go on
	err = c.Watch(ctx, request, func(r *pacelinev1.WatchEventsResponse) error {
		if quiet = r; whole && len(r.GetEvents()) > 0 {
			quiet = nil
			if err := p.Line(r); err != nil {
				return err
			}
		}
		for _, e := range r.GetEvents() {
			if err := a.printEvent(p, e); err != nil {
				return err
			}
			if shown++; shown == limit || until != nil && until(e) {
				return errEnough
			}
		}
		return nil
	})
	switch {
	case err == nil && whole && quiet != nil:
		err = p.Line(quiet)
	case errors.Is(err, errEnough):
		return nil
	case errors.Is(err, context.Canceled):
		return nil // the user has seen enough
	case errors.Is(err, client.ErrCompacted):
		f := explain(err) // the server says which of its reasons it is
		if request.GetCursor() != "" {
			f.hint = "begin without --cursor, and list what you need; --since begins with what is still kept"
		}
		return f
	}
	return ignoreClosedPipe(err)
}

func (a *app) printEvent(p *output.Printer, e *pacelinev1.Event) error {
	switch {
	case p.Format == output.Name:
		_, object, _ := eventParts(e)
		_, err := fmt.Fprintln(p.Out, object)
		return err
	case !p.Format.ForPeople():
		return nil
	}
	kind, object, text := eventParts(e)
	if e.GetMessage() != "" {
		text += ": " + e.GetMessage()
	}
	if e.GetPrincipal() != "" {
		text += " (by " + e.GetPrincipal() + ")"
	}
	if p.Format == output.Wide {
		text += fmt.Sprintf(" [revision %d]", e.GetRevision())
	}
	_, err := fmt.Fprintf(p.Out, "%s  %-4s  %s  %s\n", output.Clock(a.Now(), e.GetTime()), kind, object, text)
	return err
}

// eventParts says what an event is about and what it tells.
func eventParts(e *pacelinev1.Event) (kind, object, text string) {
	switch change := e.GetChange().(type) {
	case *pacelinev1.Event_Job:
		job := change.Job
		text = output.Enum(job.GetState()) + inParentheses(job.GetReason())
		if job.GetDeleted() {
			text = "deleted"
		}
		return "job", jobPath(job.GetPool(), job.GetJobName()), text
	case *pacelinev1.Event_Task:
		return "task", fmt.Sprintf("%s/%d", jobPath(change.Task.GetPool(), change.Task.GetJobName()), change.Task.GetInstance()), taskText(change.Task)
	case *pacelinev1.Event_Pool:
		text = fmt.Sprintf("version %d", change.Pool.GetVersion())
		if change.Pool.GetDeleted() {
			text = "deleted"
		}
		return "pool", first(change.Pool.GetPool(), change.Pool.GetName()), text
	case *pacelinev1.Event_Cluster:
		text = "changed"
		if change.Cluster.GetDeleted() {
			text = "deleted"
		}
		return "cluster", change.Cluster.GetName(), text
	case *pacelinev1.Event_Host:
		text = "changed"
		if change.Host.GetForgotten() {
			text = "forgotten" // the message says what cluster it left
		}
		return "host", change.Host.GetName(), text
	}
	return "?", output.Dash, "an event of a kind that this version does not know"
}

func taskText(t *pacelinev1.TaskChange) string {
	parts := []string{output.Enum(t.GetState())}
	if t.GetRunState() != pacelinev1.RunState_RUN_STATE_UNSPECIFIED {
		parts = append(parts, "run "+output.Enum(t.GetRunState()))
	}
	if t.ExitCode != nil {
		parts = append(parts, fmt.Sprintf("exit code %d", t.GetExitCode()))
	}
	return strings.Join(parts, ", ") + inParentheses(t.GetReason())
}

func inParentheses(r pacelinev1.Reason) string {
	if r == pacelinev1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return " (" + output.Enum(r) + ")"
}
