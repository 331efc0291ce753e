package api

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// The enums of the API mirror the domain's, one number up where the domain's begin at 0: 0 is UNSPECIFIED on the wire. A test holds
// the two sides together by name.

func kindToWire(k workload.Kind) pacelinev1.JobKind { return pacelinev1.JobKind(k) }

func jobStateToWire(s workload.JobState) pacelinev1.JobState { return pacelinev1.JobState(s) + 1 }

func instanceStateToWire(s workload.InstanceState) pacelinev1.InstanceState {
	return pacelinev1.InstanceState(s) + 1
}

func runStateToWire(s workload.RunState) pacelinev1.RunState { return pacelinev1.RunState(s) }

func reasonToWire(r workload.Reason) pacelinev1.Reason { return pacelinev1.Reason(r) }

func goalToWire(g scheduler.Goal) pacelinev1.JobGoal { return pacelinev1.JobGoal(g) }

func pendingToWire(k scheduler.PendingKind) pacelinev1.PendingReason {
	return pacelinev1.PendingReason(k)
}

func refusalToWire(r placement.Reason) pacelinev1.RefusalReason {
	return pacelinev1.RefusalReason(r) + 1
}

func roleToWire(r auth.Role) pacelinev1.Role { return pacelinev1.Role(r) }

// timeToWire leaves out what has not happened yet.
func timeToWire(nanos int64) *timestamppb.Timestamp {
	if nanos == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, nanos))
}

func summaryToWire(v *scheduler.JobView) *pacelinev1.JobSummary {
	s := &pacelinev1.JobSummary{
		Id: v.ID.String(), Name: v.Spec.Name, Pool: v.PoolPath, PoolId: v.Spec.Pool.String(), Owner: v.Spec.Owner, Labels: v.Spec.Labels,
		Kind: kindToWire(v.Spec.Kind), Priority: v.Spec.Priority, Instances: v.Instances, State: jobStateToWire(v.State),
		Goal: goalToWire(v.Goal), Reason: reasonToWire(v.Reason), Version: v.Version, ConfigVersion: uint64(v.Config), Healthy: v.Healthy,
		Submitter: v.Caller.Principal, CreateTime: timeToWire(v.Created), StartTime: timeToWire(v.Started), EndTime: timeToWire(v.Finished),
		Restarting: v.Restart.Batch > 0,
		InstanceCounts: &pacelinev1.InstanceCounts{
			Pending: v.ByState[workload.InstancePending], Admitted: v.ByState[workload.InstanceAdmitted],
			Active: v.ByState[workload.InstanceActive], BackingOff: v.ByState[workload.InstanceBackingOff],
			Done: v.ByState[workload.InstanceDone], Failed: v.ByState[workload.InstanceFailed], Stopped: v.ByState[workload.InstanceStopped],
		},
		RunCounts: &pacelinev1.RunCounts{
			Placed: v.ByRun[workload.RunPlaced], Launching: v.ByRun[workload.RunLaunching], Starting: v.ByRun[workload.RunStarting],
			Running: v.ByRun[workload.RunRunning], Killing: v.ByRun[workload.RunKilling], Unreachable: v.ByRun[workload.RunUnreachable],
			Succeeded: v.ByRun[workload.RunSucceeded], Failed: v.ByRun[workload.RunFailed], Killed: v.ByRun[workload.RunKilled],
			Preempted: v.ByRun[workload.RunPreempted], Lost: v.ByRun[workload.RunLost],
		},
	}
	if v.Restart.Batch > 0 {
		s.Restart = &pacelinev1.RestartProgress{Units: v.RestartUnits, Done: v.RestartDone, Down: v.RestartDown}
	}
	if v.Spec.Deadline > 0 {
		s.Deadline = timeToWire(v.Created + int64(v.Spec.Deadline))
	}
	return s
}

// taskToWire writes an instance of a job with its present or last run.
func taskToWire(job *scheduler.JobView, t *scheduler.TaskView, names *resource.Names) *pacelinev1.Task {
	out := &pacelinev1.Task{
		JobId: job.ID.String(), JobName: job.Spec.Name, Pool: job.PoolPath, Instance: t.Instance, State: instanceStateToWire(t.State),
		Reason: reasonToWire(t.Reason), Message: t.Message, ConfigVersion: uint64(t.Config), Failures: t.Failures, StateTime: timeToWire(t.Since),
		Needs: spec.FromVector(t.Needs, names),
	}
	if t.Gang != nil {
		out.Gang = &pacelinev1.GangMember{Gang: gangToWire(t.Gang), Rank: t.Rank}
	}
	if t.Run == 0 {
		out.ConfigVersion = uint64(job.Config)
		return out
	}
	if t.State == workload.InstanceBackingOff {
		out.RetryTime = timeToWire(t.NotBefore)
	}
	out.Run = &pacelinev1.Run{
		Id: runOf(&t.TaskRecord).String(), Generation: t.Generation, Run: t.Run, State: runStateToWire(t.RunState), Reason: reasonToWire(t.Reason),
		Message: t.Message, ExitCode: exitCode(t.RunState, t.ExitCode), Signal: t.Signal, Healthy: t.Healthy, Cluster: t.Cluster, Host: t.HostName,
		ConfigVersion: uint64(t.Config), PlaceTime: timeToWire(t.Placed), StartTime: timeToWire(t.Started),
	}
	if t.Host != (workload.HostID{}) {
		out.Run.HostId = t.Host.String()
	}
	for i, number := range t.Ports {
		if i < len(job.Spec.Template.Ports) {
			out.Run.Ports = append(out.Run.Ports, &pacelinev1.AssignedPort{Name: job.Spec.Template.Ports[i].Name, Number: uint32(number)})
		}
	}
	for set := uint(t.Devices); set != 0; set &= set - 1 {
		out.Run.Devices = append(out.Run.Devices, uint32(bits.TrailingZeros(set)))
	}
	return out
}

func gangToWire(g *scheduler.GangView) *pacelinev1.Gang {
	return &pacelinev1.Gang{
		Name: g.Name, Generation: g.Generation, Failures: g.Failures, Present: g.Present, MinSize: g.Min, Size: g.Size, Ending: g.Ending,
	}
}

// runOf is the id of a task's present or last run.
func runOf(t *scheduler.TaskRecord) workload.RunID {
	return workload.RunID{Job: t.Job, Instance: t.Instance, Generation: t.Generation, Run: t.Run}
}

// runToWire writes a run of the history. host is nil when it is no longer known.
func runToWire(r *scheduler.RunRecord, host *scheduler.HostView) *pacelinev1.Run {
	out := &pacelinev1.Run{
		Id: r.ID.String(), Generation: r.ID.Generation, Run: r.ID.Run, State: runStateToWire(r.State), Reason: reasonToWire(r.Reason),
		Message: r.Message, ExitCode: exitCode(r.State, r.ExitCode), Signal: r.Signal, HostId: r.Host.String(), ConfigVersion: uint64(r.Config),
		PlaceTime: timeToWire(r.Placed), StartTime: timeToWire(r.Started), EndTime: timeToWire(r.Ended),
	}
	if host != nil {
		out.Cluster, out.Host = host.Cluster, host.Name
	}
	return out
}

// exitCode is there only for runs whose process ended by itself.
func exitCode(s workload.RunState, code int32) *int32 {
	if s != workload.RunSucceeded && s != workload.RunFailed {
		return nil
	}
	return &code
}

func pendingReasonToWire(r *scheduler.PendingReason) *pacelinev1.Pending {
	out := &pacelinev1.Pending{
		Reason: pendingToWire(r.Kind), Instances: count(r.Instances), Message: r.Message, Resource: r.Resource, Needed: r.Needed,
		Available: r.Available, Hosts: count(r.Hosts.Hosts), GangLargest: count(r.Hosts.GangLargest), QueueAhead: count(r.Position),
		RetryTime: timeToWire(r.NotBefore), GangSize: count(r.Hosts.GangSize), GangDomain: r.Hosts.GangDomain,
	}
	for reason, hosts := range r.Hosts.Counts {
		if hosts > 0 {
			out.Refusals = append(out.Refusals, &pacelinev1.HostRefusal{Reason: refusalToWire(placement.Reason(reason)), Hosts: count(hosts)})
		}
	}
	slices.SortStableFunc(out.Refusals, func(a, b *pacelinev1.HostRefusal) int { return cmp.Compare(b.GetHosts(), a.GetHosts()) })
	return out
}

func explanationToWire(e *scheduler.Explanation, names *resource.Names) *pacelinev1.Explanation {
	out := &pacelinev1.Explanation{
		Job: summaryToWire(&e.Job), Dominant: pendingToWire(e.Dominant), QueuePosition: count(e.Position), QueueLength: count(e.Queued),
		PoolEntitlement: spec.FromVector(e.Pool.Entitlement, names), PoolUsage: spec.FromVector(e.Pool.Usage, names), Notes: e.Notes,
	}
	for i := range e.Gangs {
		out.Gangs = append(out.Gangs, gangToWire(&e.Gangs[i]))
	}
	for i := range e.Reasons {
		out.Reasons = append(out.Reasons, pendingReasonToWire(&e.Reasons[i]))
	}
	for i := range e.Remedies {
		r := &e.Remedies[i]
		out.Remedies = append(out.Remedies, &pacelinev1.Remedy{
			Kind: pacelinev1.RemedyKind(r.Kind), Message: r.Message, Amount: spec.FromVector(r.Amount, names), Pool: r.Pool, Host: r.Host,
			Hosts: count(r.Hosts), Restriction: r.Restriction,
		})
	}
	if e.At != 0 {
		out.Estimate = &pacelinev1.StartEstimate{
			Basis: pacelinev1.EstimateBasis(e.Start.Basis), Time: timeToWire(e.Start.At), Message: e.Start.Describe(e.At),
		}
		if e.Start.Started > 0 {
			out.Estimate.Started, out.Estimate.Window = uint64(e.Start.Started), durationpb.New(e.Start.Over)
		}
	}
	return out
}

func poolToWire(v *scheduler.PoolView, names *resource.Names) *pacelinev1.Pool {
	return &pacelinev1.Pool{
		Id: v.Pool.ID.String(), ParentId: v.Pool.Parent.String(), Spec: spec.FromPool(&v.Pool, v.Path, names), Version: v.Pool.Version,
		Reservation: spec.FromVector(v.Reservation, names), Entitlement: spec.FromVector(v.Entitlement, names),
		Usage: spec.FromVector(v.Usage, names), Demand: spec.FromVector(v.Demand, names),
		EntitledBy:          v.EntitledBy,
		NonPreemptibleUsage: spec.FromVector(v.NonPreemptible, names), Jobs: count(v.Jobs), Waiting: count(v.Waiting),
		CreateTime: timeToWire(v.Pool.CreatedAt), UpdateTime: timeToWire(v.Pool.UpdatedAt),
		ControllerUsage: spec.FromVector(v.Controllers, names), RevocableUsage: spec.FromVector(v.Revocable.Usage, names),
		RevocableEntitlement: spec.FromVector(v.Revocable.Entitlement, names), RevocableDemand: spec.FromVector(v.Revocable.Demand, names),
	}
}

// hostState tells why a host takes no work by what weighs most.
func hostState(v *scheduler.HostView) pacelinev1.HostState {
	switch {
	case !v.Present:
		return pacelinev1.HostState_HOST_STATE_UNREACHABLE
	case v.Draining:
		return pacelinev1.HostState_HOST_STATE_DRAINING
	case !v.Summary.Ready:
		return pacelinev1.HostState_HOST_STATE_NOT_READY
	}
	return pacelinev1.HostState_HOST_STATE_READY
}

func hostToWire(v *scheduler.HostView, names *resource.Names) *pacelinev1.Host {
	out := &pacelinev1.Host{
		Id: v.ID.String(), Cluster: v.Cluster, Name: v.Name, HostPool: v.Summary.HostPool, State: hostState(v), Message: v.Summary.Message,
		Attributes: v.Summary.Attributes, Capacity: spec.FromVector(v.Summary.Capacity, names), Foreign: spec.FromVector(v.Summary.Foreign, names),
		Used: spec.FromVector(v.Used, names), Runs: count(v.Tasks), ChangeTime: timeToWire(v.Since),
		ClusterId: v.Summary.ClusterID, Details: v.Details,
	}
	for _, d := range v.Summary.Devices {
		out.Devices = append(out.Devices, &pacelinev1.Device{Model: d.Model, Milli: d.Milli})
	}
	return out
}

// count narrows a number of things, none of which reach uint32's bound.
func count(n int) uint32 { return uint32(max(n, 0)) }
