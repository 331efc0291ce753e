package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/output"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

const taskHelp = `Tasks are the instances of jobs, numbered from 0, with the history of their runs.`

func (a *app) taskCommand() *cobra.Command {
	return noun("task", "Show instances of jobs, their runs and output", taskHelp, a.taskList(), a.taskGet(), a.taskLogs())
}

func (a *app) taskList() *cobra.Command {
	var host string
	var states, runStates []string
	var limit int
	var watch bool
	cmd := &cobra.Command{
		Use:     "list JOB",
		Aliases: []string{"ls"},
		Short:   "List a job's instances",
		Example: `  paceline task list crunch --state failed,backing-off
  paceline task list web -o wide --watch`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			wanted, err := enums[pacelinev1.InstanceState]("state", states)
			if err != nil {
				return err
			}
			wantedRuns, err := enums[pacelinev1.RunState]("run-state", runStates)
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			defer c.Close()
			l := listing[*pacelinev1.Task]{
				layout:   taskColumns(a.Now()),
				envelope: func(tasks []*pacelinev1.Task) proto.Message { return &pacelinev1.ListTasksResponse{Tasks: tasks} },
				key:      func(t *pacelinev1.Task) string { return number(t.GetInstance()) },
				read: func(ctx context.Context) ([]*pacelinev1.Task, bool, error) {
					return collect(limit, func(size int32, token string) ([]*pacelinev1.Task, string, error) {
						answer, err := call(ctx, c.Tasks.ListTasks, &pacelinev1.ListTasksRequest{
							Job: names[0], Host: host, States: wanted, RunStates: wantedRuns, PageSize: size, PageToken: token,
						})
						return answer.GetTasks(), answer.GetNextPageToken(), err
					})
				},
				interest: &pacelinev1.WatchEventsRequest{Job: names[0], Kinds: workKinds},
			}
			if watch {
				return showAndWatch(cmd.Context(), a, c, l)
			}
			return show(cmd.Context(), a, l)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&host, "host", "", "instances whose latest run is on this host")
	flags.StringSliceVar(&states, "state", nil, "instances in these states: "+enumHelp(pacelinev1.InstanceState(0)))
	flags.StringSliceVar(&runStates, "run-state", nil, "instances whose latest run is in these states: "+enumHelp(pacelinev1.RunState(0)))
	flags.IntVar(&limit, "limit", defaultLimit, "show at most so many")
	flags.BoolVar(&watch, "watch", false, "keep the list up to date")
	must(cmd.RegisterFlagCompletionFunc("host", a.completeHosts))
	must(cmd.RegisterFlagCompletionFunc("state", completeEnum(pacelinev1.InstanceState(0))))
	must(cmd.RegisterFlagCompletionFunc("run-state", completeEnum(pacelinev1.RunState(0))))
	return cmd
}

func (a *app) taskGet() *cobra.Command {
	return &cobra.Command{
		Use:               "get JOB INSTANCE",
		Short:             "Show one instance and its runs",
		Example:           `  paceline task get crunch 17`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			instance, err := parseInstance(names[1])
			if err != nil {
				return err
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
			answer, err := call(cmd.Context(), c.Tasks.GetTask, &pacelinev1.GetTaskRequest{Job: names[0], Instance: instance})
			switch {
			case err != nil:
				return err
			case p.Format == output.Name:
				return output.One(p, answer.GetTask(), taskColumns(a.Now()))
			case p.Format.ForPeople():
				return a.describeTask(p, answer)
			}
			return p.Message(answer)
		},
	}
}

func parseInstance(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, &failure{code: ExitUsage, err: fmt.Errorf("instance %q is not a number from 0 on", s)}
	}
	return uint32(n), nil
}

func (a *app) describeTask(p *output.Printer, answer *pacelinev1.GetTaskResponse) error {
	t := answer.GetTask()
	var f facts
	f.add("Task", "%s, instance %d", jobPath(t.GetPool(), t.GetJobName()), t.GetInstance())
	f.add("State", "%s, for %s", output.Enum(t.GetState()), output.Age(a.Now(), t.GetStateTime()))
	f.add("Reason", "%s", first(t.GetMessage(), taskReason(t)))
	f.add("Failures", "%d", t.GetFailures())
	if t.GetRetryTime() != nil {
		f.add("Next try", "%s", output.Clock(a.Now(), t.GetRetryTime()))
	}
	f.add("Needs", "%s", quantities(t.GetNeeds()))
	if g := t.GetGang(); g != nil {
		f.add("Gang", "%s, rank %d of %d, %d present", g.GetGang().GetName(), g.GetRank(), g.GetGang().GetSize(), g.GetGang().GetPresent())
	}
	if r := t.GetRun(); r != nil {
		f.add("Run", "%s, %s", r.GetId(), output.Enum(r.GetState()))
		f.add("Host", "%s", hostPath(r.GetCluster(), r.GetHost()))
		f.add("Healthy", "%s", health(r))
		f.add("Ports", "%s", ports(r))
		f.add("Devices", "%s", devices(r))
	}
	if err := f.write(p); err != nil {
		return err
	}
	return table(p, "Runs, latest first:", output.Cells(p, answer.GetRuns(), runColumns(a.Now())))
}

// logs selects a part of a run's output.
type logs struct {
	run    string
	stderr bool
	follow bool
	offset int64
	tail   int64
}

func (l *logs) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVarP(&l.follow, "follow", "f", false, "wait for more until the run ends")
	flags.BoolVar(&l.stderr, "stderr", false, "standard error instead of standard output")
	flags.StringVar(&l.run, "run", "", "id of the run (default: the latest)")
	flags.Int64Var(&l.offset, "offset", 0, "begin at this byte")
	flags.Int64Var(&l.tail, "tail", 0, "begin so many bytes before the end")
	cmd.MarkFlagsMutuallyExclusive("offset", "tail")
}

func (a *app) taskLogs() *cobra.Command {
	var l logs
	cmd := &cobra.Command{
		Use:   "logs JOB INSTANCE",
		Short: "Print what an instance wrote",
		Example: `  paceline task logs crunch 17
  paceline task logs web 0 -f --stderr`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			instance, err := parseInstance(names[1])
			if err != nil {
				return err
			}
			return a.printLogs(cmd.Context(), names[0], instance, l)
		},
	}
	l.register(cmd)
	return cmd
}

func (a *app) jobLogs() *cobra.Command {
	var l logs
	var instance uint32
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print what one instance of a job wrote",
		Example: `  paceline job logs web -f
  paceline job logs crunch --instance 17 --tail 4096`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeJobs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return a.printLogs(cmd.Context(), names[0], instance, l)
		},
	}
	cmd.Flags().Uint32VarP(&instance, "instance", "i", 0, "which instance")
	l.register(cmd)
	return cmd
}

// printLogs copies a run's output as it is, whatever -o says.
func (a *app) printLogs(ctx context.Context, job string, instance uint32, l logs) error {
	if l.offset < 0 || l.tail < 0 {
		return &failure{code: ExitUsage, err: errors.New("--offset and --tail must not be negative")}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	request := &pacelinev1.ReadLogsRequest{Job: job, Instance: instance, RunId: l.run, Offset: l.offset - l.tail, Follow: l.follow}
	if l.stderr {
		request.Stream = pacelinev1.LogStream_LOG_STREAM_STDERR
	}
	stream, err := c.Tasks.ReadLogs(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // the stream's own error says more
	position := request.GetOffset()
	for stream.Receive() {
		data := stream.Msg().GetData()
		if _, err := a.Out.Write(data); err != nil {
			return ignoreClosedPipe(err)
		}
		position += int64(len(data))
	}
	err = stream.Err()
	if err != nil && l.tail == 0 && position > request.GetOffset() && connect.CodeOf(err) == connect.CodeUnavailable {
		f := explain(err)
		return &failure{code: f.code, err: f.err, hint: fmt.Sprintf("go on where it broke off with --offset %d", position)}
	}
	return err
}

// ignoreClosedPipe takes the end of a reader such as head for what it is: enough.
func ignoreClosedPipe(err error) error {
	if errors.Is(err, io.ErrClosedPipe) || isBrokenPipe(err) {
		return nil
	}
	return err
}
