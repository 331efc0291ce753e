package api

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// pieceBytes is how much of a log or backup goes into one message.
const pieceBytes = 64 << 10

type taskService struct{ cell *cell }

var _ pacelinev1connect.TaskServiceHandler = (*taskService)(nil)

func (s *taskService) ListTasks(ctx context.Context, request *connect.Request[pacelinev1.ListTasksRequest]) (*connect.Response[pacelinev1.ListTasksResponse], error) {
	in := request.Msg
	filters := filterHash(in, "page_size", "page_token")
	position, err := decodePage(in.GetPageToken(), filters)
	if err != nil {
		return nil, err
	}
	from, err := decodeNumber(position)
	if err != nil {
		return nil, err
	}
	var filter scheduler.TaskFilter
	for _, state := range in.GetStates() {
		if state != pacelinev1.InstanceState_INSTANCE_STATE_UNSPECIFIED {
			filter.States = append(filter.States, workload.InstanceState(state-1))
		}
	}
	for _, state := range in.GetRunStates() {
		if state != pacelinev1.RunState_RUN_STATE_UNSPECIFIED {
			filter.RunStates = append(filter.RunStates, workload.RunState(state))
		}
	}
	revision := s.cell.engine.Revision()
	var page []scheduler.TaskView
	next := int64(-1)
	var refused error
	job, err := s.cell.job(ctx, in.GetJob(), func(r scheduler.Reader, v scheduler.JobView) {
		if in.GetHost() != "" {
			host, ok := findHost(r, in.GetHost())
			if !ok {
				refused = missingHost(in.GetHost())
				return
			}
			filter.Host = host.ID
		}
		page, next = r.Tasks(v.ID, uint32(min(from, workload.MaxInstances)), pageSize(in.GetPageSize(), defaultPageSize), filter)
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	out := &pacelinev1.ListTasksResponse{WatchCursor: s.cell.cursor(revision).String()}
	for i := range page {
		out.Tasks = append(out.Tasks, taskToWire(&job.view, &page[i], job.names))
	}
	if next >= 0 {
		out.NextPageToken = encodePage(filters, encodeNumber(uint64(next)))
	}
	return connect.NewResponse(out), nil
}

// seenTask is an instance with its ended runs, newest first, and the hosts of all its runs that are still known.
type seenTask struct {
	job   scheduler.JobView
	task  scheduler.TaskView
	names *resource.Names
	runs  []scheduler.RunRecord
	hosts map[workload.HostID]scheduler.HostView
}

func (s *taskService) find(ctx context.Context, ref string, instance uint32) (*seenTask, error) {
	t := &seenTask{hosts: map[workload.HostID]scheduler.HostView{}}
	var found bool
	job, err := s.cell.job(ctx, ref, func(r scheduler.Reader, v scheduler.JobView) { t.task, found = r.Task(v.ID, instance) })
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, refuse(connect.CodeNotFound, "list the tasks of the job", "job %s has no instance %d: it has %d", job.view.Spec.Name, instance, job.view.Instances)
	}
	t.job, t.names = job.view, job.names
	if t.runs, err = s.cell.engine.Runs(job.view.ID, instance); err != nil {
		return nil, err
	}
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		for _, id := range append(hostsOf(t.runs), t.task.Host) {
			if host, ok := r.Host(id); ok {
				t.hosts[id] = host
			}
		}
	})
	return t, err
}

func hostsOf(runs []scheduler.RunRecord) []workload.HostID {
	var ids []workload.HostID
	for i := range runs {
		ids = append(ids, runs[i].Host)
	}
	return ids
}

func (s *taskService) GetTask(ctx context.Context, request *connect.Request[pacelinev1.GetTaskRequest]) (*connect.Response[pacelinev1.GetTaskResponse], error) {
	t, err := s.find(ctx, request.Msg.GetJob(), request.Msg.GetInstance())
	if err != nil {
		return nil, err
	}
	out := &pacelinev1.GetTaskResponse{Task: taskToWire(&t.job, &t.task, t.names)}
	if t.task.RunState.Live() {
		out.Runs = append(out.Runs, out.Task.GetRun())
	}
	for i := range t.runs {
		var host *scheduler.HostView
		if known, ok := t.hosts[t.runs[i].Host]; ok {
			host = &known
		}
		out.Runs = append(out.Runs, runToWire(&t.runs[i], host))
	}
	return connect.NewResponse(out), nil
}

func (s *taskService) ReadLogs(ctx context.Context, request *connect.Request[pacelinev1.ReadLogsRequest], stream *connect.ServerStream[pacelinev1.ReadLogsResponse]) error {
	in := request.Msg
	t, err := s.find(ctx, in.GetJob(), in.GetInstance())
	if err != nil {
		return err
	}
	run, at, err := t.chooseRun(in.GetRunId())
	if err != nil {
		return err
	}
	host, ok := t.hosts[at]
	if !ok {
		return refuse(connect.CodeNotFound, "ask its cluster for it", "the host of run %s is no longer known, so its output cannot be read", run)
	}
	which := driver.Stdout
	if in.GetStream() == pacelinev1.LogStream_LOG_STREAM_STDERR {
		which = driver.Stderr
	}
	log, err := s.cell.engine.ReadLog(ctx, shard.ID(host.Shard), run, driver.LogRequest{Stream: which, Offset: in.GetOffset(), Follow: in.GetFollow()})
	if err != nil {
		return logError(ctx, run, err)
	}
	defer log.Close() //nolint:errcheck // it was only read
	if err := stream.Send(&pacelinev1.ReadLogsResponse{RunId: run.String()}); err != nil {
		return err
	}
	piece := make([]byte, pieceBytes)
	for {
		n, err := log.Read(piece)
		if n > 0 {
			if err := stream.Send(&pacelinev1.ReadLogsResponse{Data: piece[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return logError(ctx, run, err)
		}
	}
}

// chooseRun finds the run that is meant, and its host.
func (t *seenTask) chooseRun(ref string) (workload.RunID, workload.HostID, error) {
	latest := runOf(&t.task.TaskRecord)
	if t.task.Run != 0 && (ref == "" || ref == latest.String()) {
		return latest, t.task.Host, nil
	}
	if ref == "" {
		return workload.RunID{}, workload.HostID{}, refuse(connect.CodeFailedPrecondition, "wait until it runs; explain the job to see what keeps it",
			"instance %d of job %s has not run yet", t.task.Instance, t.job.Spec.Name)
	}
	for i := range t.runs {
		if t.runs[i].ID.String() == ref {
			return t.runs[i].ID, t.runs[i].Host, nil
		}
	}
	return workload.RunID{}, workload.HostID{}, refuse(connect.CodeNotFound, "get the task to see the runs that are kept",
		"run %q is not known of instance %d of job %s", clip(ref, 80), t.task.Instance, t.job.Spec.Name)
}

// logError tells a run without output from a cluster that cannot be asked.
func logError(ctx context.Context, run workload.RunID, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, driver.ErrUnknownRun) {
		return err
	}
	return refuse(connect.CodeUnavailable, "try again when its cluster is in contact", "the output of run %s cannot be read: %v", run, err)
}
