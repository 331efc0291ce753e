package spec

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// FromJob writes a spec as a user would, with every default spelled out. The result shares maps and slices with the spec and must
// not be changed.
func FromJob(job *workload.JobSpec, pool string, names *resource.Names) *pacelinev1.JobSpec {
	out := &pacelinev1.JobSpec{
		Name: job.Name, Pool: pool, Owner: job.Owner, Labels: job.Labels, Priority: job.Priority, Preemptible: &job.Preemptible,
		Task: fromTask(&job.Template, names), Overrides: fromOverrides(job, names), Gang: fromGang(job.Gang), Placement: fromPlacement(&job.Placement),
		RunTime: fromDuration(job.RunTime), OnPreemption: job.OnPreemption.String(), Revocable: job.Revocable, Controller: job.Controller,
		Backoff: &pacelinev1.BackoffSpec{InitialDelay: durationpb.New(job.Retry.Initial), MaxDelay: durationpb.New(job.Retry.Max)},
	}
	switch job.Kind {
	case workload.Batch:
		out.Instances = &job.Instances
		out.Kind = &pacelinev1.JobSpec_Batch{Batch: &pacelinev1.BatchSpec{
			MaxRetries: &job.Retry.MaxRetries, MaxRunning: job.MaxRunning, Deadline: fromDuration(job.Deadline),
		}}
	case workload.Service:
		out.Instances = &job.Instances
		out.Kind = &pacelinev1.JobSpec_Service{Service: &pacelinev1.ServiceSpec{MaxUnavailable: &job.MaxUnavailable}}
	case workload.Daemon:
		out.Kind = &pacelinev1.JobSpec_Daemon{Daemon: &pacelinev1.DaemonSpec{}}
	}
	return out
}

func fromTask(t *workload.TaskTemplate, names *resource.Names) *pacelinev1.TaskSpec {
	q := FromVector(t.Needs, names)
	out := &pacelinev1.TaskSpec{
		Command: t.Command, Env: t.Env, Labels: t.Labels, KillGrace: durationpb.New(t.KillGrace),
		Resources: &pacelinev1.TaskResources{
			CpuMilli: q.GetCpuMilli(), MemoryMib: q.GetMemoryMib(), DiskMib: q.GetDiskMib(), GpuMilli: q.GetGpuMilli(), Extended: q.GetExtended(),
			GpuModels: t.GPUModels,
		},
	}
	for _, p := range t.Ports {
		out.Resources.Ports = append(out.Resources.Ports, &pacelinev1.Port{Name: p.Name, Number: uint32(p.Number)})
	}
	if h := t.Health; h != nil {
		out.HealthCheck = fromHealth(h)
	}
	fromExecution(t.Execution, out, names)
	if t.Simulation != (workload.Simulation{}) || (len(t.Command) == 0 && !t.Execution.HasImage()) {
		out.Simulation = &pacelinev1.Simulation{
			Duration: fromDuration(t.Simulation.Duration), ExitCode: t.Simulation.ExitCode, FailurePerMille: t.Simulation.FailurePerMille,
		}
	}
	return out
}

func fromHealth(h *workload.HealthCheck) *pacelinev1.HealthCheck {
	out := &pacelinev1.HealthCheck{
		InitialDelay: fromDuration(h.InitialDelay), Interval: durationpb.New(h.Interval), Timeout: durationpb.New(h.Timeout),
		FailureThreshold: h.FailureThreshold,
	}
	switch {
	case h.HTTP != nil:
		out.Check = &pacelinev1.HealthCheck_Http{Http: &pacelinev1.HttpCheck{Port: h.HTTP.Port, Path: h.HTTP.Path}}
	case h.TCP != nil:
		out.Check = &pacelinev1.HealthCheck_Tcp{Tcp: &pacelinev1.TcpCheck{Port: h.TCP.Port}}
	default:
		out.Check = &pacelinev1.HealthCheck_Exec{Exec: &pacelinev1.ExecCheck{Command: h.Exec}}
	}
	return out
}

// fromDuration leaves out zero, which stands for none.
func fromDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
