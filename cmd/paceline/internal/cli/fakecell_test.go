package cli_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// fakeCell is a cell in memory that behaves as the API promises. A job comes one step further each time that somebody looks at it, so
// that tests need no clock: pending, running, ended or healthy. The label fate makes it fail or wait for ever.
type fakeCell struct {
	mu     sync.Mutex
	grown  chan struct{} // closed and replaced with every event
	jobs   []*fakeJob
	pools  []*pacelinev1.Pool
	events []*pacelinev1.Event
	served map[string]*pacelinev1.JobSummary // by idempotency key
}

type fakeJob struct {
	summary *pacelinev1.JobSummary
	spec    *pacelinev1.JobSpec
	looks   int
}

const fakeToken = "open-sesame"

// startFakeCell serves a new cell and returns its address.
func startFakeCell(cleanup func(func())) string {
	cell := &fakeCell{grown: make(chan struct{}), served: map[string]*pacelinev1.JobSummary{}}
	cell.pools = []*pacelinev1.Pool{
		{
			Id: "root", Spec: &pacelinev1.PoolSpec{Path: "/"}, Version: 1,
			Reservation: amounts(4000, 8192), Entitlement: amounts(4000, 8192), Usage: amounts(500, 1024), Demand: amounts(900, 2048),
		},
		{
			Id: "p0", ParentId: "root", Spec: &pacelinev1.PoolSpec{Path: "/default", ReserveRest: true}, Version: 1,
			Reservation: amounts(4000, 8192), Entitlement: amounts(4000, 8192), Usage: amounts(500, 1024), Demand: amounts(900, 2048),
		},
	}
	mux := http.NewServeMux()
	mux.Handle(pacelinev1connect.NewJobServiceHandler(&fakeJobs{cell}))
	mux.Handle(pacelinev1connect.NewTaskServiceHandler(&fakeTasks{cell}))
	mux.Handle(pacelinev1connect.NewPoolServiceHandler(&fakePools{cell}))
	mux.Handle(pacelinev1connect.NewHostServiceHandler(&fakeHosts{cell}))
	mux.Handle(pacelinev1connect.NewEventServiceHandler(&fakeEvents{cell}))
	mux.Handle(pacelinev1connect.NewAdminServiceHandler(&fakeAdmin{cell}))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func amounts(cpu, memory int64) *pacelinev1.Quantities {
	return &pacelinev1.Quantities{CpuMilli: proto.Int64(cpu), MemoryMib: proto.Int64(memory)}
}

// refuse makes an error as the API's edge does.
func refuse(code connect.Code, hint string, violations []*pacelinev1.FieldViolation, format string, args ...any) error {
	err := connect.NewError(code, fmt.Errorf(format, args...))
	detail, detailErr := connect.NewErrorDetail(&pacelinev1.ErrorDetail{Hint: hint, Violations: violations, RequestId: "r-1"})
	if detailErr != nil {
		return detailErr
	}
	err.AddDetail(detail)
	return err
}

// record appends an event; the caller holds the lock.
func (c *fakeCell) record(e *pacelinev1.Event) {
	e.Revision = uint64(len(c.events) + 1)
	e.Time = timestamppb.New(time.Date(2026, 1, 2, 3, 4, len(c.events)%60, 0, time.UTC))
	c.events = append(c.events, e)
	close(c.grown)
	c.grown = make(chan struct{})
}

func (c *fakeCell) recordJob(j *fakeJob, principal string, deleted bool) {
	s := j.summary
	c.record(&pacelinev1.Event{Principal: principal, Change: &pacelinev1.Event_Job{Job: &pacelinev1.JobChange{
		JobId: s.GetId(), JobName: s.GetName(), Pool: s.GetPool(), State: s.GetState(), Reason: s.GetReason(), Deleted: deleted,
	}}})
}

// find resolves an id or path; the caller holds the lock.
func (c *fakeCell) find(name string) (*fakeJob, error) {
	path := name
	if !strings.HasPrefix(name, "/") {
		path = "/default/" + name
	}
	for _, j := range slices.Backward(c.jobs) {
		if j.summary.GetId() == name || j.summary.GetPool()+"/"+j.summary.GetName() == path {
			return j, nil
		}
	}
	return nil, refuse(connect.CodeNotFound, "list jobs with 'paceline job list'", nil, "there is no job %s", path)
}

// step takes a live job further.
func (c *fakeCell) step(j *fakeJob) {
	s := j.summary
	j.looks++
	fate := s.GetLabels()["fate"]
	n := s.GetInstances()
	if s.GetState() < pacelinev1.JobState_JOB_STATE_SUCCEEDED && fate != "wait" {
		defer c.recordJob(j, "", false)
	}
	switch {
	case s.GetState() >= pacelinev1.JobState_JOB_STATE_SUCCEEDED:
	case s.GetState() == pacelinev1.JobState_JOB_STATE_STOPPING:
		s.State = pacelinev1.JobState_JOB_STATE_STOPPED
		s.InstanceCounts = &pacelinev1.InstanceCounts{Stopped: n}
	case fate == "wait" || j.looks < 2:
	case j.looks == 2:
		s.State = pacelinev1.JobState_JOB_STATE_RUNNING
		s.InstanceCounts = &pacelinev1.InstanceCounts{Active: n}
		s.RunCounts = &pacelinev1.RunCounts{Running: n}
	case s.GetKind() != pacelinev1.JobKind_JOB_KIND_BATCH:
		s.Healthy, s.Restarting = n, false
	case fate == "fail":
		s.State, s.Reason = pacelinev1.JobState_JOB_STATE_FAILED, pacelinev1.Reason_REASON_NO_RETRIES_LEFT
		s.InstanceCounts = &pacelinev1.InstanceCounts{Done: n - 1, Failed: 1}
	default:
		s.State = pacelinev1.JobState_JOB_STATE_SUCCEEDED
		s.InstanceCounts = &pacelinev1.InstanceCounts{Done: n}
	}
}

// change finds a job, checks its version, and lets act change it.
func (c *fakeCell) change(name string, version uint64, act func(*fakeJob) error) (*pacelinev1.JobSummary, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if version != 0 && version != j.summary.GetVersion() {
		return nil, refuse(connect.CodeAborted, "look at it again with 'paceline job get'", nil, "job %s is at version %d, not %d", name, j.summary.GetVersion(), version)
	}
	if err := act(j); err != nil {
		return nil, err
	}
	j.summary.Version++
	c.recordJob(j, "ann", false)
	return proto.CloneOf(j.summary), nil
}

type fakeJobs struct{ *fakeCell }

func (c *fakeJobs) CreateJob(_ context.Context, r *connect.Request[pacelinev1.CreateJobRequest]) (*connect.Response[pacelinev1.CreateJobResponse], error) {
	if got := r.Header().Get("Authorization"); got != "Bearer "+fakeToken {
		return nil, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("the token %q is not known", strings.TrimPrefix(got, "Bearer ")))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	spec := r.Msg.GetSpec()
	if spec.GetPool() == "" {
		spec.Pool = "/default"
	}
	if !slices.ContainsFunc(c.pools, func(p *pacelinev1.Pool) bool { return p.GetSpec().GetPath() == spec.GetPool() }) {
		text := fmt.Sprintf("there is no pool %s", spec.GetPool())
		return nil, refuse(connect.CodeFailedPrecondition, "make it with 'paceline pool apply'",
			[]*pacelinev1.FieldViolation{{Field: "spec.pool", Message: text}}, "%s", text)
	}
	if served, ok := c.served[r.Msg.GetIdempotencyKey()]; ok {
		return connect.NewResponse(&pacelinev1.CreateJobResponse{Job: proto.CloneOf(served)}), nil
	}
	if j, err := c.find(spec.GetPool() + "/" + spec.GetName()); err == nil && j.summary.GetState() < pacelinev1.JobState_JOB_STATE_SUCCEEDED {
		if proto.Equal(j.spec, spec) {
			return connect.NewResponse(&pacelinev1.CreateJobResponse{Job: proto.CloneOf(j.summary), Unchanged: true}), nil
		}
		return nil, refuse(connect.CodeFailedPrecondition, "stop it first", nil, "job %s/%s is live and differs", spec.GetPool(), spec.GetName())
	}
	kind := pacelinev1.JobKind_JOB_KIND_BATCH
	switch {
	case spec.GetService() != nil:
		kind = pacelinev1.JobKind_JOB_KIND_SERVICE
	case spec.GetDaemon() != nil:
		kind = pacelinev1.JobKind_JOB_KIND_DAEMON
	}
	n := max(1, spec.GetInstances())
	j := &fakeJob{spec: spec, summary: &pacelinev1.JobSummary{
		Id: fmt.Sprintf("job%d", len(c.jobs)+1), Name: spec.GetName(), Pool: spec.GetPool(), Kind: kind, Instances: n, Version: 1, Labels: spec.GetLabels(),
		State: pacelinev1.JobState_JOB_STATE_PENDING, Goal: pacelinev1.JobGoal_JOB_GOAL_RUN, InstanceCounts: &pacelinev1.InstanceCounts{Pending: n},
		Submitter: "ann", CreateTime: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}}
	c.jobs = append(c.jobs, j)
	c.served[r.Msg.GetIdempotencyKey()] = j.summary
	c.recordJob(j, "ann", false)
	return connect.NewResponse(&pacelinev1.CreateJobResponse{Job: proto.CloneOf(j.summary)}), nil
}

func (c *fakeJobs) PlanJob(_ context.Context, r *connect.Request[pacelinev1.PlanJobRequest]) (*connect.Response[pacelinev1.PlanJobResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	spec := r.Msg.GetSpec()
	if spec.GetPool() == "" {
		spec.Pool = "/default"
	}
	j, err := c.find(spec.GetPool() + "/" + spec.GetName())
	switch {
	case err != nil && spec.GetDaemon() != nil && spec.GetPlacement().GetHostPool() != "":
		return connect.NewResponse(&pacelinev1.PlanJobResponse{
			Change: pacelinev1.PlanChange_PLAN_CHANGE_CREATE, Pending: []*pacelinev1.Pending{{Message: "no host matches its constraints"}},
		}), nil
	case err != nil && spec.GetDaemon() != nil:
		return connect.NewResponse(&pacelinev1.PlanJobResponse{
			Change: pacelinev1.PlanChange_PLAN_CHANGE_CREATE, Hosts: map[string]uint32{"host-1": 1, "host-0": 2},
			Rehearsals: []*pacelinev1.PlanRehearsal{{Cluster: "kube-1", Instances: 3, Verdict: pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_ADMITTED}},
		}), nil
	case err != nil:
		return connect.NewResponse(&pacelinev1.PlanJobResponse{
			Change: pacelinev1.PlanChange_PLAN_CHANGE_CREATE, Checked: 3, Admitted: 3, Placeable: 2, Hosts: map[string]uint32{"host-1": 1, "host-0": 1},
			Pending: []*pacelinev1.Pending{noRoom(1)},
			Preemption: &pacelinev1.PlanPreemption{
				Instances: 1, Runs: 12, Message: "1 instance would start once 12 runs of others made room",
				Victims: []*pacelinev1.PlanVictim{{Job: "j1", Name: "lent", Pool: "/batch", Instance: 4, Host: "host-1", Why: "pool /batch would be 50 % over its entitlement"}},
			},
			Rehearsals: []*pacelinev1.PlanRehearsal{
				{Cluster: "kube-1", Instances: 2, Verdict: pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_ADMITTED, Warnings: []string{"old field"}},
				{Cluster: "kube-2", Verdict: pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_REFUSED, Message: "exceeded quota: small"},
				{Cluster: "kube-3", Verdict: pacelinev1.RehearsalVerdict_REHEARSAL_VERDICT_UNKNOWN, Message: "it did not answer within 5s"},
			},
		}), nil
	case proto.Equal(j.spec, spec):
		return connect.NewResponse(&pacelinev1.PlanJobResponse{Change: pacelinev1.PlanChange_PLAN_CHANGE_NONE}), nil
	}
	return connect.NewResponse(&pacelinev1.PlanJobResponse{
		Change: pacelinev1.PlanChange_PLAN_CHANGE_UPDATE,
		Fields: []*pacelinev1.FieldChange{{Field: "instances", Before: strconv.Itoa(int(j.spec.GetInstances())), After: strconv.Itoa(int(spec.GetInstances()))}},
	}), nil
}

func noRoom(instances uint32) *pacelinev1.Pending {
	return &pacelinev1.Pending{
		Reason: pacelinev1.PendingReason_PENDING_REASON_PLACEMENT, Instances: instances, Message: "4 hosts refused it, most for cpu", Hosts: 4,
		Refusals: []*pacelinev1.HostRefusal{{Reason: pacelinev1.RefusalReason_REFUSAL_REASON_CPU, Hosts: 3}, {Reason: pacelinev1.RefusalReason_REFUSAL_REASON_CONSTRAINT, Hosts: 1}},
	}
}

func (c *fakeJobs) GetJob(_ context.Context, r *connect.Request[pacelinev1.GetJobRequest]) (*connect.Response[pacelinev1.GetJobResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, err := c.find(r.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	c.step(j)
	job := &pacelinev1.Job{Summary: proto.CloneOf(j.summary), Spec: proto.CloneOf(j.spec)}
	if j.summary.GetLabels()["fate"] == "wait" {
		job.Pending = noRoom(j.summary.GetInstances())
	}
	return connect.NewResponse(&pacelinev1.GetJobResponse{Job: job}), nil
}

// fakePage is small so that lists have several.
const fakePage = 2

func (c *fakeJobs) ListJobs(_ context.Context, r *connect.Request[pacelinev1.ListJobsRequest]) (*connect.Response[pacelinev1.ListJobsResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*pacelinev1.JobSummary
	for _, j := range c.jobs {
		s := j.summary
		if strings.HasPrefix(s.GetPool()+"/", r.Msg.GetPool()) && (len(r.Msg.GetStates()) == 0 || slices.Contains(r.Msg.GetStates(), s.GetState())) {
			all = append(all, proto.CloneOf(s))
		}
	}
	from, next, err := window(len(all), r.Msg.GetPageToken(), r.Msg.GetPageSize())
	if err != nil {
		return nil, err
	}
	response := &pacelinev1.ListJobsResponse{Jobs: all[from:next]}
	if next < len(all) {
		response.NextPageToken = strconv.Itoa(next)
	}
	return connect.NewResponse(response), nil
}

func window(n int, token string, size int32) (from, next int, err error) {
	if token != "" {
		if from, err = strconv.Atoi(token); err != nil {
			return 0, 0, connect.NewError(connect.CodeInvalidArgument, err)
		}
	}
	return from, min(n, from+min(int(size), fakePage)), nil
}

func (c *fakeJobs) StopJob(_ context.Context, r *connect.Request[pacelinev1.StopJobRequest]) (*connect.Response[pacelinev1.StopJobResponse], error) {
	s, err := c.change(r.Msg.GetJob(), r.Msg.GetExpectedVersion(), func(j *fakeJob) error {
		j.summary.State, j.summary.Goal = pacelinev1.JobState_JOB_STATE_STOPPING, pacelinev1.JobGoal_JOB_GOAL_STOP
		return nil
	})
	return connect.NewResponse(&pacelinev1.StopJobResponse{Job: s}), err
}

func (c *fakeJobs) RestartJob(_ context.Context, r *connect.Request[pacelinev1.RestartJobRequest]) (*connect.Response[pacelinev1.RestartJobResponse], error) {
	s, err := c.change(r.Msg.GetJob(), r.Msg.GetExpectedVersion(), func(j *fakeJob) error {
		if len(r.Msg.GetGangs()) > 0 {
			return refuse(connect.CodeNotFound, "it has none: name instances instead", nil, "job %s has no gang %q", r.Msg.GetJob(), r.Msg.GetGangs()[0])
		}
		j.summary.Restarting, j.summary.Healthy = true, j.summary.GetInstances()-1
		j.summary.Restart = &pacelinev1.RestartProgress{Units: j.summary.GetInstances(), Down: 1}
		j.looks = 1 // so that it takes a while
		return nil
	})
	return connect.NewResponse(&pacelinev1.RestartJobResponse{Job: s}), err
}

func (c *fakeJobs) DeleteJob(_ context.Context, r *connect.Request[pacelinev1.DeleteJobRequest]) (*connect.Response[pacelinev1.DeleteJobResponse], error) {
	s, err := c.change(r.Msg.GetJob(), r.Msg.GetExpectedVersion(), func(j *fakeJob) error {
		if j.summary.GetState() < pacelinev1.JobState_JOB_STATE_SUCCEEDED && !r.Msg.GetForce() {
			return refuse(connect.CodeFailedPrecondition, "stop it first, or use --force", nil, "job %s is live", r.Msg.GetJob())
		}
		c.jobs = slices.DeleteFunc(c.jobs, func(o *fakeJob) bool { return o == j })
		return nil
	})
	return connect.NewResponse(&pacelinev1.DeleteJobResponse{Job: s}), err
}

func (c *fakeJobs) ExplainJob(_ context.Context, r *connect.Request[pacelinev1.ExplainJobRequest]) (*connect.Response[pacelinev1.ExplainJobResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, err := c.find(r.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	e := &pacelinev1.Explanation{Job: proto.CloneOf(j.summary)}
	if j.summary.GetLabels()["fate"] == "wait" {
		e.Dominant = pacelinev1.PendingReason_PENDING_REASON_PLACEMENT
		e.Reasons = []*pacelinev1.Pending{noRoom(j.summary.GetInstances())}
		e.QueuePosition, e.QueueLength = 2, 5
		e.PoolEntitlement, e.PoolUsage = amounts(4000, 8192), amounts(500, 1024)
		e.Remedies = []*pacelinev1.Remedy{
			{Kind: pacelinev1.RemedyKind_REMEDY_KIND_HOST_ROOM, Message: "cpu_milli=250 came free on host c/h1", Host: "c/h1", Hosts: 3},
			{Kind: pacelinev1.RemedyKind_REMEDY_KIND_RESTRICTION, Message: "constraint zone in b were not asked for", Restriction: "constraint zone in b"},
		}
		e.Estimate = &pacelinev1.StartEstimate{Basis: pacelinev1.EstimateBasis_ESTIMATE_BASIS_PACE, Message: "in 4m0s, at the pace of its pool"}
	}
	return connect.NewResponse(&pacelinev1.ExplainJobResponse{Explanation: e}), nil
}

type fakeTasks struct{ *fakeCell }

func (c *fakeTasks) task(j *fakeJob, instance uint32) *pacelinev1.Task {
	s := j.summary
	t := &pacelinev1.Task{JobId: s.GetId(), JobName: s.GetName(), Pool: s.GetPool(), Instance: instance, State: pacelinev1.InstanceState_INSTANCE_STATE_PENDING}
	if j.looks >= 2 {
		t.State = pacelinev1.InstanceState_INSTANCE_STATE_ACTIVE
		t.Run = &pacelinev1.Run{
			Id: fmt.Sprintf("%s-%d-1-1", s.GetId(), instance), Generation: 1, Run: 1, State: pacelinev1.RunState_RUN_STATE_RUNNING, Healthy: true,
			Cluster: "local", Host: "host-0", Ports: []*pacelinev1.AssignedPort{{Name: "http", Number: 31000 + instance}},
		}
	}
	return t
}

func (c *fakeTasks) ListTasks(_ context.Context, r *connect.Request[pacelinev1.ListTasksRequest]) (*connect.Response[pacelinev1.ListTasksResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, err := c.find(r.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	from, next, err := window(int(j.summary.GetInstances()), r.Msg.GetPageToken(), r.Msg.GetPageSize())
	if err != nil {
		return nil, err
	}
	response := &pacelinev1.ListTasksResponse{}
	for i := from; i < next; i++ {
		response.Tasks = append(response.Tasks, c.task(j, uint32(i)))
	}
	if next < int(j.summary.GetInstances()) {
		response.NextPageToken = strconv.Itoa(next)
	}
	return connect.NewResponse(response), nil
}

func (c *fakeTasks) GetTask(_ context.Context, r *connect.Request[pacelinev1.GetTaskRequest]) (*connect.Response[pacelinev1.GetTaskResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	j, err := c.find(r.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	if r.Msg.GetInstance() >= j.summary.GetInstances() {
		return nil, refuse(connect.CodeNotFound, "", nil, "job %s has instances 0 to %d", r.Msg.GetJob(), j.summary.GetInstances()-1)
	}
	t := c.task(j, r.Msg.GetInstance())
	return connect.NewResponse(&pacelinev1.GetTaskResponse{Task: t, Runs: []*pacelinev1.Run{t.GetRun()}}), nil
}

func (c *fakeTasks) ReadLogs(_ context.Context, r *connect.Request[pacelinev1.ReadLogsRequest], stream *connect.ServerStream[pacelinev1.ReadLogsResponse]) error {
	c.mu.Lock()
	_, err := c.find(r.Msg.GetJob())
	c.mu.Unlock()
	if err != nil {
		return err
	}
	name := "stdout"
	if r.Msg.GetStream() == pacelinev1.LogStream_LOG_STREAM_STDERR {
		name = "stderr"
	}
	text := fmt.Sprintf("%s of instance %d\n", name, r.Msg.GetInstance())
	from := r.Msg.GetOffset()
	if from < 0 {
		from = max(0, int64(len(text))+from)
	}
	return stream.Send(&pacelinev1.ReadLogsResponse{Data: []byte(text[min(from, int64(len(text))):])})
}

type fakePools struct{ *fakeCell }

func (c *fakePools) ApplyPool(_ context.Context, r *connect.Request[pacelinev1.ApplyPoolRequest]) (*connect.Response[pacelinev1.ApplyPoolResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	spec := r.Msg.GetSpec()
	above := spec.GetPath()[:strings.LastIndexByte(spec.GetPath(), '/')]
	if above == "" {
		above = "/"
	}
	parent := slices.IndexFunc(c.pools, func(p *pacelinev1.Pool) bool { return p.GetSpec().GetPath() == above })
	if parent < 0 {
		return nil, refuse(connect.CodeFailedPrecondition, "", []*pacelinev1.FieldViolation{{Field: "spec.path", Message: "there is no pool " + above}}, "bad pool")
	}
	for _, p := range c.pools {
		if p.GetSpec().GetPath() == spec.GetPath() {
			unchanged := proto.Equal(p.GetSpec(), spec)
			p.Spec = spec
			return connect.NewResponse(&pacelinev1.ApplyPoolResponse{Pool: proto.CloneOf(p), Unchanged: unchanged}), nil
		}
	}
	p := &pacelinev1.Pool{Id: fmt.Sprintf("p%d", len(c.pools)), ParentId: c.pools[parent].GetId(), Spec: spec, Version: 1, Reservation: spec.GetReservation()}
	c.pools = append(c.pools, p)
	c.record(&pacelinev1.Event{Principal: "ann", Change: &pacelinev1.Event_Pool{Pool: &pacelinev1.PoolChange{PoolId: p.GetId(), Pool: spec.GetPath(), Version: 1}}})
	return connect.NewResponse(&pacelinev1.ApplyPoolResponse{Pool: proto.CloneOf(p), Created: true}), nil
}

func (c *fakePools) GetPool(_ context.Context, r *connect.Request[pacelinev1.GetPoolRequest]) (*connect.Response[pacelinev1.GetPoolResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		if p.GetSpec().GetPath() == r.Msg.GetPool() {
			return connect.NewResponse(&pacelinev1.GetPoolResponse{Pool: proto.CloneOf(p)}), nil
		}
	}
	return nil, refuse(connect.CodeNotFound, "", nil, "there is no pool %s", r.Msg.GetPool())
}

// ListPools gives the tree's order: sorted by path, where '/' sorts before all that names may hold.
func (c *fakePools) ListPools(_ context.Context, r *connect.Request[pacelinev1.ListPoolsRequest]) (*connect.Response[pacelinev1.ListPoolsResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	response := &pacelinev1.ListPoolsResponse{}
	for _, p := range c.pools {
		if strings.HasPrefix(p.GetSpec().GetPath(), r.Msg.GetRoot()) {
			response.Pools = append(response.Pools, proto.CloneOf(p))
		}
	}
	slices.SortFunc(response.Pools, func(x, y *pacelinev1.Pool) int {
		return strings.Compare(strings.ReplaceAll(x.GetSpec().GetPath(), "/", "\x01"), strings.ReplaceAll(y.GetSpec().GetPath(), "/", "\x01"))
	})
	return connect.NewResponse(response), nil
}

func (c *fakePools) MovePool(_ context.Context, r *connect.Request[pacelinev1.MovePoolRequest]) (*connect.Response[pacelinev1.MovePoolResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		if p.GetSpec().GetPath() == r.Msg.GetPool() {
			p.Spec.Path = r.Msg.GetNewPath()
			return connect.NewResponse(&pacelinev1.MovePoolResponse{Pool: proto.CloneOf(p)}), nil
		}
	}
	return nil, refuse(connect.CodeNotFound, "", nil, "there is no pool %s", r.Msg.GetPool())
}

// PlanPool answers by the last edit: an apply takes from /default what it reserves, a deletion of a pool that is not there fails.
func (c *fakePools) PlanPool(_ context.Context, r *connect.Request[pacelinev1.PlanPoolRequest]) (*connect.Response[pacelinev1.PlanPoolResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	response := &pacelinev1.PlanPoolResponse{}
	for i, edit := range r.Msg.GetEdits() {
		switch edit := edit.GetEdit().(type) {
		case *pacelinev1.PoolEdit_Apply:
			if edit.Apply.GetShare() == 13 {
				return nil, refuse(connect.CodeFailedPrecondition, "", []*pacelinev1.FieldViolation{{Field: fmt.Sprintf("edits[%d].apply.share", i), Message: "brings bad luck"}}, "bad plan")
			}
			if slices.ContainsFunc(c.pools, func(p *pacelinev1.Pool) bool { return proto.Equal(p.GetSpec(), edit.Apply) }) {
				continue
			}
			response.Effects = append(response.Effects, &pacelinev1.PoolEffect{Path: edit.Apply.GetPath(), Changed: true, EntitlementAfter: edit.Apply.GetReservation()},
				&pacelinev1.PoolEffect{
					Id: "p1", Path: "/default", OldPath: "/default", EntitlementBefore: amounts(4000, 8192), EntitlementAfter: amounts(200, 8192), Usage: amounts(500, 1024),
					OverageAfter: amounts(300, 0), Exposed: []*pacelinev1.ExposedJob{{Job: "j1", Name: "batch", Owner: "ann", Priority: -1, Instances: 2, Going: 1, Usage: amounts(500, 1024)}},
					ExposedJobs: 3, ExposedRuns: 7,
				})
		case *pacelinev1.PoolEdit_Move:
			response.Effects = append(response.Effects, &pacelinev1.PoolEffect{Id: "p2", Path: edit.Move.GetNewPath(), OldPath: edit.Move.GetPool(), Changed: true})
		case *pacelinev1.PoolEdit_Delete:
			return nil, refuse(connect.CodeNotFound, "list the pools", nil, "there is no pool %s", edit.Delete.GetPool())
		}
	}
	return connect.NewResponse(response), nil
}

func (c *fakePools) ExplainPool(_ context.Context, r *connect.Request[pacelinev1.ExplainPoolRequest]) (*connect.Response[pacelinev1.ExplainPoolResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := r.Msg.GetPool()
	switch path {
	case "", "/", "/default":
	case "/idle":
		return connect.NewResponse(&pacelinev1.ExplainPoolResponse{Explanation: &pacelinev1.PoolExplanation{Pool: path}}), nil
	default:
		return nil, refuse(connect.CodeNotFound, "list the pools and choose one", nil, "pool %q does not exist, or you may not see it", path)
	}
	minutes := func(n int) *timestamppb.Timestamp { return timestamppb.New(now.Add(-time.Duration(n) * time.Minute)) }
	groups := []*pacelinev1.WaitingGroup{
		{
			Reason: pacelinev1.PendingReason_PENDING_REASON_QUEUE, Pool: "/default", Class: &pacelinev1.TaskClass{Needs: amounts(500, 1024)},
			Tasks: 90_000, Jobs: 300, ExampleJobId: "job1", ExampleJob: "crunch", SinceTime: minutes(125),
		},
		{
			Reason: pacelinev1.PendingReason_PENDING_REASON_PLACEMENT, Pool: "/default", Tasks: 16, Jobs: 1, ExampleJobId: "job2", ExampleJob: "train",
			Class: &pacelinev1.TaskClass{
				Needs: &pacelinev1.Quantities{GpuMilli: proto.Int64(2000)}, Restrictions: []string{"constraint zone in b"}, GangSize: 16, GangMinSize: 8, NonPreemptible: true,
			},
			SinceTime: minutes(3),
		},
	}
	e := &pacelinev1.PoolExplanation{
		Pool: cmp.Or(path, "/"), Tasks: 100_016, Jobs: 321, MoreGroups: 2, MoreTasks: 10_000,
		Reasons: []*pacelinev1.WaitingReason{
			{Reason: pacelinev1.PendingReason_PENDING_REASON_QUEUE, Tasks: 100_000, Jobs: 320, Groups: 3, SinceTime: minutes(125)},
			{Reason: pacelinev1.PendingReason_PENDING_REASON_PLACEMENT, Tasks: 16, Jobs: 1, Groups: 1, SinceTime: minutes(3)},
		},
		Groups: groups[:min(len(groups), int(r.Msg.GetMaxGroups()))],
		Heads: []*pacelinev1.QueueHead{{
			Pool: "/default", JobId: "job3", Job: "wide", QueueLength: 320, SinceTime: minutes(126),
			Pending: &pacelinev1.Pending{
				Reason: pacelinev1.PendingReason_PENDING_REASON_ENTITLEMENT, Instances: 4, Message: "needs 8 cores, and 2.5 is left of the entitlement of pool /default",
			},
		}},
		MoreHeads: 1,
	}
	for _, g := range e.GetGroups()[:min(len(e.GetGroups()), int(r.Msg.GetMaxRemedied()))] {
		g.Message = "1 job of pool /default is ahead of it"
		g.Remedies = []*pacelinev1.Remedy{{Kind: pacelinev1.RemedyKind_REMEDY_KIND_POOL_ROOM, Message: "6 cores of what pool /default uses came free"}}
		g.Estimate = &pacelinev1.StartEstimate{Basis: pacelinev1.EstimateBasis_ESTIMATE_BASIS_PACE, Message: "in 4m0s, at the pace of its pool"}
	}
	return connect.NewResponse(&pacelinev1.ExplainPoolResponse{Explanation: e}), nil
}

func (c *fakePools) DeletePool(_ context.Context, r *connect.Request[pacelinev1.DeletePoolRequest]) (*connect.Response[pacelinev1.DeletePoolResponse], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.pools {
		if strings.HasPrefix(p.GetSpec().GetPath(), r.Msg.GetPool()+"/") {
			return nil, refuse(connect.CodeFailedPrecondition, "delete "+p.GetSpec().GetPath()+" first", nil, "pool %s has pools below it", r.Msg.GetPool())
		}
		if p.GetSpec().GetPath() == r.Msg.GetPool() && !slices.ContainsFunc(c.pools[i+1:], func(o *pacelinev1.Pool) bool { return o.GetParentId() == p.GetId() }) {
			c.pools = slices.Delete(c.pools, i, i+1)
			return connect.NewResponse(&pacelinev1.DeletePoolResponse{}), nil
		}
	}
	return nil, refuse(connect.CodeNotFound, "", nil, "there is no pool %s", r.Msg.GetPool())
}

type fakeHosts struct{ *fakeCell }

func fakeHost() *pacelinev1.Host {
	return &pacelinev1.Host{
		Id: "h0", Cluster: "local", Name: "host-0", State: pacelinev1.HostState_HOST_STATE_READY, Runs: 2, Attributes: map[string]string{"rack": "r1", "arch": "amd64"},
		Capacity: &pacelinev1.Quantities{CpuMilli: proto.Int64(4000), MemoryMib: proto.Int64(8192), GpuMilli: proto.Int64(2000)}, Used: amounts(1500, 1024), Foreign: amounts(0, 512),
		Devices: []*pacelinev1.Device{{Model: "G1", Milli: 1000}, {Model: "G1", Milli: 1000}}, Message: "limits are not enforced",
	}
}

func (c *fakeHosts) ListHosts(context.Context, *connect.Request[pacelinev1.ListHostsRequest]) (*connect.Response[pacelinev1.ListHostsResponse], error) {
	return connect.NewResponse(&pacelinev1.ListHostsResponse{Hosts: []*pacelinev1.Host{fakeHost()}}), nil
}

func (c *fakeHosts) GetHost(_ context.Context, r *connect.Request[pacelinev1.GetHostRequest]) (*connect.Response[pacelinev1.GetHostResponse], error) {
	if r.Msg.GetHost() != "local/host-0" {
		return nil, refuse(connect.CodeNotFound, "", nil, "there is no host %s", r.Msg.GetHost())
	}
	return connect.NewResponse(&pacelinev1.GetHostResponse{Host: fakeHost()}), nil
}

func (c *fakeHosts) DrainHost(context.Context, *connect.Request[pacelinev1.DrainHostRequest]) (*connect.Response[pacelinev1.DrainHostResponse], error) {
	return connect.NewResponse(&pacelinev1.DrainHostResponse{Host: fakeHost()}), nil
}

func (c *fakeHosts) UndrainHost(context.Context, *connect.Request[pacelinev1.UndrainHostRequest]) (*connect.Response[pacelinev1.UndrainHostResponse], error) {
	return connect.NewResponse(&pacelinev1.UndrainHostResponse{Host: fakeHost()}), nil
}

type fakeEvents struct{ *fakeCell }

func (c *fakeEvents) WatchEvents(ctx context.Context, r *connect.Request[pacelinev1.WatchEventsRequest], stream *connect.ServerStream[pacelinev1.WatchEventsResponse]) error {
	c.mu.Lock()
	next := len(c.events)
	c.mu.Unlock()
	if cursor := r.Msg.GetCursor(); cursor != "" {
		var err error
		if next, err = strconv.Atoi(cursor); err != nil {
			return refuse(connect.CodeOutOfRange, "", nil, "the cursor is too old")
		}
	} else if since := r.Msg.GetSince(); since != nil {
		next = 0
		c.mu.Lock()
		for next < len(c.events) && c.events[next].GetTime().AsTime().Before(since.AsTime()) {
			next++
		}
		c.mu.Unlock()
	}
	for first := true; ; first = false {
		c.mu.Lock()
		grown, events := c.grown, c.events[next:]
		c.mu.Unlock()
		response := &pacelinev1.WatchEventsResponse{Cursor: strconv.Itoa(next + len(events))}
		for _, e := range events {
			name := e.GetJob().GetPool() + "/" + e.GetJob().GetJobName()
			if want := r.Msg.GetJob(); want == "" || want == e.GetJob().GetJobId() || strings.TrimPrefix(name, "/default/") == strings.TrimPrefix(want, "/default/") {
				response.Events = append(response.Events, e)
			}
		}
		next += len(events)
		if first || len(response.GetEvents()) > 0 {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		if r.Msg.GetUntilNow() {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type fakeAdmin struct{ *fakeCell }

func (c *fakeAdmin) GetInfo(context.Context, *connect.Request[pacelinev1.GetInfoRequest]) (*connect.Response[pacelinev1.GetInfoResponse], error) {
	return connect.NewResponse(&pacelinev1.GetInfoResponse{
		Version: "v9", Cell: "test", Principal: "ann", Bindings: []*pacelinev1.RoleBinding{{Role: pacelinev1.Role_ROLE_ADMIN, Pool: "/"}},
	}), nil
}

func (c *fakeAdmin) Backup(_ context.Context, _ *connect.Request[pacelinev1.BackupRequest], stream *connect.ServerStream[pacelinev1.BackupResponse]) error {
	for _, piece := range []string{"all ", "that ", "is\n"} {
		if err := stream.Send(&pacelinev1.BackupResponse{Data: []byte(piece)}); err != nil {
			return err
		}
	}
	return nil
}
