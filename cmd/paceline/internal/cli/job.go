package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"

	"github.com/paceline-sched/paceline/sdk/client"
)

const jobHelp = `Jobs are batch work, services and daemons: a number of instances of one task.

A job is named by its id, by pool path and name as in /prod/ads/web, or, in the pool /default, by its name alone.`

func (a *app) jobCommand() *cobra.Command {
	return noun("job", "Run, show and end jobs", jobHelp,
		a.jobRun(), a.jobPlan(), a.jobList(), a.jobGet(), a.jobWatch(), a.jobExplain(), a.jobLogs(),
		a.jobStop(), a.jobRestart(), a.jobDelete())
}

func newJobSpec() *pacelinev1.JobSpec { return &pacelinev1.JobSpec{} }

// jobPath is how people name a job.
func jobPath(pool, name string) string {
	if pool == "/" || pool == "" {
		return "/" + name
	}
	return pool + "/" + name
}

func summaryPath(s *pacelinev1.JobSummary) string { return jobPath(s.GetPool(), s.GetName()) }

// waiting are the flags of commands that can wait for their effect.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) register(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&w.wait, "wait", "w", false, "wait until "+what+", and show progress")
	cmd.Flags().DurationVar(&w.timeout, "wait-timeout", 0, "give up waiting after this; the work goes on (default: never)")
}

// bound returns a context for the wait.
func (w *waiting) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.timeout > 0 {
		return context.WithTimeoutCause(ctx, w.timeout, errWaitedEnough)
	}
	return context.WithCancel(ctx)
}

var errWaitedEnough = errors.New("--wait-timeout has passed")

func (a *app) jobRun() *cobra.Command {
	var w waiting
	var pool, key string
	cmd := &cobra.Command{
		Use:   "run FILE...",
		Short: "Submit the jobs of YAML files",
		Long: `Submit every job of the files, in order; a file may hold several documents, and - is standard input.

The command returns once the jobs are durable. Submitting a job again changes nothing.`,
		Example: `  paceline job run crunch.yaml
  paceline job run web.yaml --wait --wait-timeout 2m
  sed s/VERSION/42/ web.yaml | paceline job run -`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error { return a.runJobs(cmd.Context(), files, pool, key, w) },
	}
	cmd.Flags().StringVar(&pool, "pool", "", "pool of jobs whose file names none")
	cmd.Flags().StringVar(&key, "idempotency-key", "", "submit at most once under this key; for a single job")
	w.register(cmd, "batch jobs have ended, services and daemons are healthy")
	must(cmd.RegisterFlagCompletionFunc("pool", a.completePools))
	return cmd
}

func (a *app) runJobs(ctx context.Context, files []string, pool, key string, w waiting) error {
	documents, err := readFiles(a, files, newJobSpec)
	if err != nil {
		return err
	}
	err = distinct(documents, "name", func(j *pacelinev1.JobSpec) string {
		return "job " + first(j.GetPool(), pool, "/default") + "/" + j.GetName()
	})
	if err != nil {
		return err
	}
	if key != "" && len(documents) > 1 {
		return &failure{code: ExitUsage, err: fmt.Errorf("--idempotency-key is for one job; the files hold %d", len(documents))}
	}
	p, err := a.printer()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var created []*pacelinev1.JobSummary
	for i := range documents {
		spec := documents[i].Message
		if spec.GetPool() == "" {
			spec.Pool = pool
		}
		answer, err := call(ctx, c.Jobs.CreateJob, &pacelinev1.CreateJobRequest{Spec: spec, IdempotencyKey: key})
		if err != nil {
			return partly(locate(&documents[i], err), i, len(documents))
		}
		for _, warning := range answer.GetWarnings() {
			fmt.Fprintf(a.Err, "Warning: %s: %s\n", summaryPath(answer.GetJob()), warning)
		}
		if p.Format.ForPeople() {
			word := "accepted"
			if answer.GetUnchanged() {
				word = "unchanged"
			}
			a.say("job %s %s (%s)", summaryPath(answer.GetJob()), word, answer.GetJob().GetId())
			a.sayRuleChanges("changed", answer.GetRuleChanges())
		}
		created = append(created, answer.GetJob())
	}
	if w.wait {
		return a.waitForJobs(ctx, c, created, w)
	}
	if !p.Format.ForPeople() {
		return printSummaries(p, created)
	}
	return nil
}

// partly says how far a command came before its error.
func partly(err error, done, of int) error {
	if done == 0 {
		return err
	}
	f := explain(err)
	return &failure{code: f.code, err: f.err, hint: fmt.Sprintf("%d of %d were done before this. %s", done, of, f.hint)}
}

// printSummaries writes one summary as itself and several as a list.
func printSummaries(p *output.Printer, jobs []*pacelinev1.JobSummary) error {
	if len(jobs) == 1 {
		return output.One(p, jobs[0], jobColumns(time.Time{}))
	}
	return output.List(p, jobs, jobColumns(time.Time{}), jobsEnvelope)
}

func jobsEnvelope(jobs []*pacelinev1.JobSummary) proto.Message {
	return &pacelinev1.ListJobsResponse{Jobs: jobs}
}

func (a *app) jobPlan() *cobra.Command {
	var pool string
	cmd := &cobra.Command{
		Use:   "plan FILE...",
		Short: "Say what submitting files would do",
		Long: `Say what 'job run' would change and where the instances would run, without changing anything. Gangs are tried as a whole. Where room is
short, the plan names whose work would make room by preemption.

Exit code 0: nothing would change. 1: there are changes. 255: the plan could not be made.`,
		Example: `  paceline job plan web.yaml && echo nothing to do`,
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			changes, err := a.planJobs(cmd.Context(), files, pool)
			if err != nil {
				f := explain(err)
				return &failure{code: ExitPlanError, err: f.err, hint: f.hint}
			}
			if changes {
				return silently()
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "pool of jobs whose file names none")
	must(cmd.RegisterFlagCompletionFunc("pool", a.completePools))
	return cmd
}

func (a *app) planJobs(ctx context.Context, files []string, pool string) (changes bool, err error) {
	documents, err := readFiles(a, files, newJobSpec)
	if err != nil {
		return false, err
	}
	p, err := a.printer()
	if err != nil {
		return false, err
	}
	c, err := a.connect()
	if err != nil {
		return false, err
	}
	defer c.Close()
	for i := range documents {
		spec := documents[i].Message
		if spec.GetPool() == "" {
			spec.Pool = pool
		}
		plan, err := call(ctx, c.Jobs.PlanJob, &pacelinev1.PlanJobRequest{Spec: spec})
		if err != nil {
			return false, locate(&documents[i], err)
		}
		changes = changes || plan.GetChange() != pacelinev1.PlanChange_PLAN_CHANGE_NONE
		switch {
		case p.Format.ForPeople():
			a.describePlan(spec, plan)
		case len(documents) == 1:
			err = p.Message(plan)
		default:
			err = p.Line(plan)
		}
		if err != nil {
			return false, err
		}
	}
	return changes, nil
}

type jobFilter struct {
	pool, owner, name string
	states, kinds     []string
	labels            map[string]string
	limit             int
	watch             bool
}

func (a *app) jobList() *cobra.Command {
	var f jobFilter
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List jobs",
		Example: `  paceline job list
  paceline job list --pool /prod --state running,pending -o wide
  paceline job list --label team=ads --watch
  paceline job list --state failed -o name | xargs paceline job delete`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.listJobs(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pool, "pool", "", "jobs of this pool and those below")
	flags.StringSliceVar(&f.states, "state", nil, "jobs in these states: "+enumHelp(pacelinev1.JobState(0)))
	flags.StringSliceVar(&f.kinds, "kind", nil, "jobs of these kinds: "+enumHelp(pacelinev1.JobKind(0)))
	flags.StringToStringVarP(&f.labels, "label", "l", nil, "jobs with these labels, as key=value")
	flags.StringVar(&f.owner, "owner", "", "jobs of this owner")
	flags.StringVar(&f.name, "name", "", "jobs of this name, ended ones included")
	flags.IntVar(&f.limit, "limit", defaultLimit, "show at most so many")
	flags.BoolVar(&f.watch, "watch", false, "keep the list up to date")
	must(cmd.RegisterFlagCompletionFunc("pool", a.completePools))
	must(cmd.RegisterFlagCompletionFunc("state", completeEnum(pacelinev1.JobState(0))))
	must(cmd.RegisterFlagCompletionFunc("kind", completeEnum(pacelinev1.JobKind(0))))
	return cmd
}

func (a *app) listJobs(ctx context.Context, f jobFilter) error {
	if err := checkLimit(f.limit); err != nil {
		return err
	}
	states, err := enums[pacelinev1.JobState]("state", f.states)
	if err != nil {
		return err
	}
	kinds, err := enums[pacelinev1.JobKind]("kind", f.kinds)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	l := listing[*pacelinev1.JobSummary]{
		layout: jobColumns(a.Now()), envelope: jobsEnvelope, key: (*pacelinev1.JobSummary).GetId,
		read: func(ctx context.Context) ([]*pacelinev1.JobSummary, bool, error) {
			return collect(f.limit, func(size int32, token string) ([]*pacelinev1.JobSummary, string, error) {
				answer, err := call(ctx, c.Jobs.ListJobs, &pacelinev1.ListJobsRequest{
					Pool: f.pool, States: states, Kinds: kinds, Labels: f.labels, Owner: f.owner, Name: f.name, PageSize: size, PageToken: token,
				})
				return answer.GetJobs(), answer.GetNextPageToken(), err
			})
		},
		interest: &pacelinev1.WatchEventsRequest{Pool: f.pool, Kinds: workKinds},
	}
	if f.watch {
		return showAndWatch(ctx, a, c, l)
	}
	return show(ctx, a, l)
}

// workKinds are the events that change what is said of jobs.
var workKinds = []pacelinev1.EventKind{pacelinev1.EventKind_EVENT_KIND_JOB, pacelinev1.EventKind_EVENT_KIND_TASK}

func (a *app) jobGet() *cobra.Command {
	var spec bool
	cmd := &cobra.Command{
		Use:   "get JOB",
		Short: "Show one job",
		Example: `  paceline job get web
  paceline job get /prod/ads/web -o json
  paceline job get web --spec > web.yaml`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			p, err := a.printer()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			answer, err := call(cmd.Context(), c.Jobs.GetJob, &pacelinev1.GetJobRequest{Job: names[0]})
			switch {
			case err != nil:
				return err
			case spec:
				return p.Message(answer.GetJob().GetSpec())
			case p.Format.ForPeople():
				return a.describeJob(p, answer.GetJob())
			case p.Format == output.Name:
				return output.One(p, answer.GetJob().GetSummary(), jobColumns(a.Now()))
			}
			return p.Message(answer.GetJob())
		},
	}
	cmd.Flags().BoolVar(&spec, "spec", false, "only its spec, as a file that 'job run' reads")
	return cmd
}

// endJobs is the frame of verbs that act on several jobs at once.
func (a *app) endJobs(cmd *cobra.Command, names []string, act func(context.Context, *client.Client, string) (*pacelinev1.JobSummary, string, error)) ([]*pacelinev1.JobSummary, *client.Client, error) {
	p, err := a.printer()
	if err != nil {
		return nil, nil, err
	}
	c, err := a.connect()
	if err != nil {
		return nil, nil, err
	}
	var jobs []*pacelinev1.JobSummary
	for i, name := range names {
		job, word, err := act(cmd.Context(), c, name)
		if err != nil {
			c.Close()
			return nil, nil, partly(err, i, len(names))
		}
		if p.Format.ForPeople() {
			a.say("job %s %s", summaryPath(job), word)
		}
		jobs = append(jobs, job)
	}
	if !p.Format.ForPeople() {
		err = printSummaries(p, jobs)
	}
	return jobs, c, err
}

const versionFlagHelp = "act only if this is the job's version (0: whatever it is)"

func (a *app) jobStop() *cobra.Command {
	var w waiting
	var version uint64
	cmd := &cobra.Command{
		Use:   "stop JOB...",
		Short: "End a job's runs and keep the job",
		Example: `  paceline job stop web
  paceline job stop crunch --wait`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeJobs(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			jobs, c, err := a.endJobs(cmd, names, func(ctx context.Context, c *client.Client, name string) (*pacelinev1.JobSummary, string, error) {
				answer, err := call(ctx, c.Jobs.StopJob, &pacelinev1.StopJobRequest{Job: name, ExpectedVersion: version})
				return answer.GetJob(), output.Enum(answer.GetJob().GetState()), err
			})
			if c != nil {
				defer c.Close()
			}
			if err != nil || !w.wait {
				return err
			}
			return a.waitForEnd(cmd.Context(), c, jobs, w)
		},
	}
	cmd.Flags().Uint64Var(&version, "expected-version", 0, versionFlagHelp)
	w.register(cmd, "all its runs have ended")
	return cmd
}

func (a *app) jobRestart() *cobra.Command {
	var w waiting
	var version uint64
	var batch uint32
	var grace time.Duration
	var instances string
	var gangs []string
	cmd := &cobra.Command{
		Use:   "restart JOB...",
		Short: "Replace a job's live runs by new ones, some at a time",
		Long: `Replace the live runs of jobs by new ones, within each job's max_unavailable. The next goes when the one before is up again.

A gang is restarted as a whole: all its members are ended, and start together again. It counts as one in --batch.`,
		Example: `  paceline job restart web --batch 2 --wait
  paceline job restart web --kill-grace 1m
  paceline job restart web --instances 0-3,7
  paceline job restart train --gang left --gang right`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeJobs(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) > 1 && (instances != "" || len(gangs) > 0) {
				return &failure{code: ExitUsage, err: fmt.Errorf("--instances and --gang are for one job; %d are named", len(names))}
			}
			request := &pacelinev1.RestartJobRequest{ExpectedVersion: version, Batch: batch, Instances: instances, Gangs: gangs}
			if grace != 0 {
				request.KillGrace = durationpb.New(grace)
			}
			jobs, c, err := a.endJobs(cmd, names, func(ctx context.Context, c *client.Client, name string) (*pacelinev1.JobSummary, string, error) {
				request.Job = name
				answer, err := call(ctx, c.Jobs.RestartJob, request)
				return answer.GetJob(), "restarting", err
			})
			if c != nil {
				defer c.Close()
			}
			if err != nil || !w.wait {
				return err
			}
			return a.waitForJobs(cmd.Context(), c, jobs, w)
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&version, "expected-version", 0, versionFlagHelp)
	flags.Uint32Var(&batch, "batch", 0, "instances, or whole gangs, that are down for it at once (default 1)")
	flags.StringVar(&instances, "instances", "", "only these, as in 0-3,7; of a gang all or none")
	flags.StringArrayVar(&gangs, "gang", nil, "only this gang; may be given several times")
	flags.DurationVar(&grace, "kill-grace", 0, "time between the polite and the final kill (default: the task's)")
	w.register(cmd, "the new runs are healthy")
	return cmd
}

func (a *app) jobDelete() *cobra.Command {
	var force bool
	var version uint64
	cmd := &cobra.Command{
		Use:     "delete JOB...",
		Aliases: []string{"rm"},
		Short:   "Forget jobs that have ended",
		Example: `  paceline job delete crunch
  paceline job delete web --force`,
		Args:              args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeJobs(0),
		RunE: func(cmd *cobra.Command, names []string) error {
			_, c, err := a.endJobs(cmd, names, func(ctx context.Context, c *client.Client, name string) (*pacelinev1.JobSummary, string, error) {
				answer, err := call(ctx, c.Jobs.DeleteJob, &pacelinev1.DeleteJobRequest{Job: name, Force: force, ExpectedVersion: version})
				word := "deleted"
				if s := answer.GetJob().GetState(); s == pacelinev1.JobState_JOB_STATE_STOPPING {
					word = "is deleted once its runs have ended"
				}
				return answer.GetJob(), word, err
			})
			if c != nil {
				c.Close()
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "stop a live job first")
	cmd.Flags().Uint64Var(&version, "expected-version", 0, versionFlagHelp)
	return cmd
}

func (a *app) jobExplain() *cobra.Command {
	return &cobra.Command{
		Use:   "explain JOB",
		Short: "Say why a job's instances wait",
		Long: `Say why instances of a job do not run: the reasons with counts, the smallest single changes of which each would let the next
instance start, when it will start by itself and on what that rests, the hosts that refused and for what, the place in the queue and what
the pool has left.`,
		Example:           `  paceline job explain crunch`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			p, err := a.printer()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			answer, err := call(cmd.Context(), c.Jobs.ExplainJob, &pacelinev1.ExplainJobRequest{Job: names[0]})
			if err != nil {
				return err
			}
			if p.Format.ForPeople() {
				return a.describeExplanation(p, answer.GetExplanation())
			}
			return p.Message(answer.GetExplanation())
		},
	}
}
