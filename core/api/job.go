package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

const defaultPageSize = 100

type jobService struct{ cell *cell }

var _ pacelinev1connect.JobServiceHandler = (*jobService)(nil)

func (s *jobService) CreateJob(ctx context.Context, request *connect.Request[pacelinev1.CreateJobRequest]) (*connect.Response[pacelinev1.CreateJobResponse], error) {
	in := request.Msg
	considered, err := s.consider(ctx, admit.Create, in.GetSpec())
	if err != nil {
		return nil, err
	}
	command := scheduler.SubmitJob{
		ID: workload.JobID(newID()), Spec: considered.job, SpecBytes: spec.Bytes(considered.spec), Asked: considered.asked, Denied: considered.denied,
	}
	if key := in.GetIdempotencyKey(); key != "" {
		command.Idempotency = &scheduler.IdempotencyKey{Principal: accessOf(ctx).principal.Name, Method: request.Spec().Procedure, Key: key}
		if command.RequestHash, err = hashSpec(in.GetSpec()); err != nil {
			return nil, err
		}
	}
	answer, err := s.cell.do(ctx, command)
	if err != nil {
		return nil, considered.outcome(err)
	}
	out := &pacelinev1.CreateJobResponse{Job: summaryToWire(&answer.Job), Unchanged: answer.Existed, Warnings: answer.Warnings}
	if !answer.Existed { // else rules had no say
		out.Warnings, out.RuleChanges = append(out.Warnings, considered.warnings...), considered.changes
	}
	return connect.NewResponse(out), nil
}

// read asks for permission in a spec's pool and turns the spec into the scheduler's form.
func (s *jobService) read(ctx context.Context, in *pacelinev1.JobSpec) (*surroundings, *workload.JobSpec, error) {
	path := in.GetPool()
	if path == "" {
		path = spec.DefaultPool
	}
	missing := refuseField("spec.pool", "list the pools and choose one", "pool %s does not exist, or you may not see it", clip(path, 128))
	missing.code = connect.CodeNotFound
	if err := permit(ctx, path, missing); err != nil {
		return nil, nil, err
	}
	around := &surroundings{}
	wantState := s.cell.bench.judge != nil && s.cell.bench.judge.WantsState()
	look := func(r scheduler.Reader) { around.look(r, path, wantState) }
	err := s.cell.engine.Glance(ctx, look) // the job that comes of it is judged anew, and a commit later is half of a call's time
	if err == nil && !around.found {
		err = s.cell.engine.Read(ctx, look) // that it is missing is told
	}
	switch {
	case err != nil:
		return nil, nil, err
	case !around.found:
		return nil, nil, missing
	}
	job, err := spec.ToJob(in, spec.Scope{Field: "spec", Pool: around.pool.Pool.ID, Owner: accessOf(ctx).principal.Name, Names: around.names})
	return around, job, err
}

func newID() workload.ID {
	var id workload.ID
	rand.Read(id[:]) // never fails: it ends the process instead
	return id
}

// hashSpec tells whether two requests under one idempotency key ask for the same.
func hashSpec(in *pacelinev1.JobSpec) ([32]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(in)
	return sha256.Sum256(raw), err
}

func (s *jobService) PlanJob(ctx context.Context, request *connect.Request[pacelinev1.PlanJobRequest]) (*connect.Response[pacelinev1.PlanJobResponse], error) {
	considered, err := s.consider(ctx, admit.Plan, request.Msg.GetSpec())
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, scheduler.PlanTimeout)
	defer cancel()
	answer, err := s.cell.do(bounded, scheduler.PlanJob{Spec: considered.job, Asked: considered.asked, Denied: considered.denied})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, refuse(connect.CodeUnavailable, "try again; if it stays so, look at the clusters' state with host list",
			"no answer came from the clusters within %v", scheduler.PlanTimeout)
	}
	if err != nil {
		return nil, considered.outcome(err)
	}
	plan := answer.Plan
	out := &pacelinev1.PlanJobResponse{
		Change: pacelinev1.PlanChange_PLAN_CHANGE_CREATE, Checked: count(plan.Checked), Admitted: count(plan.Admitted),
		Placeable: count(plan.Placeable), Hosts: map[string]uint32{}, Warnings: answer.Warnings,
	}
	switch {
	case plan.Exists && len(plan.Changes) == 0:
		out.Change = pacelinev1.PlanChange_PLAN_CHANGE_NONE
	case plan.Exists:
		out.Change = pacelinev1.PlanChange_PLAN_CHANGE_UPDATE
	}
	if out.Change != pacelinev1.PlanChange_PLAN_CHANGE_NONE { // of what is there already rules have no say
		out.Warnings, out.RuleChanges = append(out.Warnings, considered.warnings...), considered.changes
	}
	for _, c := range plan.Changes {
		out.Fields = append(out.Fields, &pacelinev1.FieldChange{Field: c.Field, Before: c.Old, After: c.New})
	}
	for host, n := range plan.Hosts {
		out.Hosts[host] = count(n)
	}
	for i := range plan.Pending {
		out.Pending = append(out.Pending, pendingReasonToWire(&plan.Pending[i]))
	}
	out.Preemption = preemptionToWire(plan.Preemption, accessOf(ctx).principal)
	out.Rehearsals = s.rehearse(ctx, plan.Rehearsals)
	return connect.NewResponse(out), nil
}

// preemptionToWire names no work of pools that the caller may not see.
func preemptionToWire(p *scheduler.PlanPreemption, caller *auth.Principal) *pacelinev1.PlanPreemption {
	if p == nil {
		return nil
	}
	out := &pacelinev1.PlanPreemption{
		Instances: count(p.Instances), Runs: count(p.Runs), Wait: durationpb.New(p.Wait), Message: p.Describe(),
	}
	for i := range p.Victims {
		v := &p.Victims[i]
		if caller.Allows(auth.Viewer, v.Pool) {
			out.Victims = append(out.Victims, &pacelinev1.PlanVictim{
				Job: v.Job.String(), Name: v.Name, Pool: v.Pool, Instance: v.Instance, Host: v.Host, Why: v.Why,
			})
		}
	}
	return out
}

func (s *jobService) GetJob(ctx context.Context, request *connect.Request[pacelinev1.GetJobRequest]) (*connect.Response[pacelinev1.GetJobResponse], error) {
	var why scheduler.Explanation
	job, err := s.cell.job(ctx, request.Msg.GetJob(), func(r scheduler.Reader, v scheduler.JobView) {
		why, _ = r.Explain(v.ID)
	})
	if err != nil {
		return nil, err
	}
	out := &pacelinev1.Job{Summary: summaryToWire(&job.view), Spec: spec.FromJob(job.view.Spec, job.view.PoolPath, job.names)}
	if len(why.Reasons) > 0 {
		out.Pending = pendingReasonToWire(&why.Reasons[0])
	}
	return connect.NewResponse(&pacelinev1.GetJobResponse{Job: out}), nil
}

func (s *jobService) ListJobs(ctx context.Context, request *connect.Request[pacelinev1.ListJobsRequest]) (*connect.Response[pacelinev1.ListJobsResponse], error) {
	in := request.Msg
	filters := filterHash(in, "page_size", "page_token")
	position, err := decodePage(in.GetPageToken(), filters)
	if err != nil {
		return nil, err
	}
	after, err := decodeNumber(position)
	if err != nil {
		return nil, err
	}
	filter := scheduler.JobFilter{Owner: in.GetOwner(), Name: in.GetName(), Labels: in.GetLabels()}
	for _, state := range in.GetStates() {
		if state != pacelinev1.JobState_JOB_STATE_UNSPECIFIED {
			filter.States = append(filter.States, workload.JobState(state-1))
		}
	}
	for _, kind := range in.GetKinds() {
		if kind != pacelinev1.JobKind_JOB_KIND_UNSPECIFIED {
			filter.Kinds = append(filter.Kinds, workload.Kind(kind))
		}
	}
	revision := s.cell.engine.Revision() // before the read: a watch from here may repeat what the page shows, and misses nothing
	var page []scheduler.JobView
	var next uint64
	var refused error
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		var seen visible
		if seen, refused = visiblePools(accessOf(ctx), r, in.GetPool()); refused != nil || (!seen.all && len(seen.pools) == 0) {
			return
		}
		filter.Pools = seen.pools
		page, next = r.Jobs(after, pageSize(in.GetPageSize(), defaultPageSize), filter)
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	out := &pacelinev1.ListJobsResponse{WatchCursor: s.cell.cursor(revision).String()}
	for i := range page {
		out.Jobs = append(out.Jobs, summaryToWire(&page[i]))
	}
	if next != 0 {
		out.NextPageToken = encodePage(filters, encodeNumber(next))
	}
	return connect.NewResponse(out), nil
}

func pageSize(asked int32, otherwise int) int {
	if asked <= 0 {
		return otherwise
	}
	return int(asked)
}

func (s *jobService) StopJob(ctx context.Context, request *connect.Request[pacelinev1.StopJobRequest]) (*connect.Response[pacelinev1.StopJobResponse], error) {
	job, err := s.cell.job(ctx, request.Msg.GetJob(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := s.cell.do(ctx, scheduler.StopJob{Job: job.view.ID, ExpectedVersion: request.Msg.GetExpectedVersion()})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.StopJobResponse{Job: summaryToWire(&answer.Job)}), nil
}

func (s *jobService) RestartJob(ctx context.Context, request *connect.Request[pacelinev1.RestartJobRequest]) (*connect.Response[pacelinev1.RestartJobResponse], error) {
	in := request.Msg
	job, err := s.cell.job(ctx, in.GetJob(), nil)
	if err != nil {
		return nil, err
	}
	var only []workload.InstanceRange
	if in.GetInstances() != "" {
		if only, err = spec.ParseInstances(in.GetInstances()); err != nil {
			return nil, refuseField("instances", "", "%v", err)
		}
	}
	answer, err := s.cell.do(ctx, scheduler.RestartJob{
		Job: job.view.ID, ExpectedVersion: in.GetExpectedVersion(), Batch: in.GetBatch(), Grace: in.GetKillGrace().AsDuration(), Only: only,
		Gangs: in.GetGangs(),
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.RestartJobResponse{Job: summaryToWire(&answer.Job)}), nil
}

func (s *jobService) DeleteJob(ctx context.Context, request *connect.Request[pacelinev1.DeleteJobRequest]) (*connect.Response[pacelinev1.DeleteJobResponse], error) {
	in := request.Msg
	job, err := s.cell.job(ctx, in.GetJob(), nil)
	if err != nil {
		return nil, err
	}
	expected := in.GetExpectedVersion()
	if !in.GetForce() {
		if !job.view.State.Terminal() {
			return nil, refuse(connect.CodeFailedPrecondition, "stop it first, or delete it with force",
				"job %s is %s", job.view.Spec.Name, job.view.State)
		}
		if expected == 0 {
			expected = job.view.Version // so that a job which somebody starts in this moment is not deleted unasked
		}
	}
	answer, err := s.cell.do(ctx, scheduler.StopJob{Job: job.view.ID, ExpectedVersion: expected, Delete: true})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.DeleteJobResponse{Job: summaryToWire(&answer.Job)}), nil
}

func (s *jobService) ExplainJob(ctx context.Context, request *connect.Request[pacelinev1.ExplainJobRequest]) (*connect.Response[pacelinev1.ExplainJobResponse], error) {
	var why scheduler.Explanation
	policy := ""
	job, err := s.cell.job(ctx, request.Msg.GetJob(), func(r scheduler.Reader, v scheduler.JobView) {
		why, _ = r.Explain(v.ID)
		policy = r.PlacementPolicy(&v)
	})
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, scheduler.PlanTimeout)
	defer cancel()
	answer, err := s.cell.do(bounded, scheduler.ExplainJob{Job: job.view.ID})
	switch {
	case err == nil:
		why = *answer.Why
	case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return nil, err
	default:
		why.Notes = append(why.Notes, fmt.Sprintf("a cluster did not answer within %v, so what would let it start is not told", scheduler.PlanTimeout))
	}
	if note := s.cell.defaultServes(policy); note != "" {
		why.Notes = append(why.Notes, note)
	}
	return connect.NewResponse(&pacelinev1.ExplainJobResponse{Explanation: explanationToWire(&why, job.names)}), nil
}
