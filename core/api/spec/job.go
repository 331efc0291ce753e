package spec

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// The defaults of a job spec.
const (
	DefaultPool             = "/default"
	DefaultInstances        = 1
	DefaultMaxRetries       = 3
	DefaultInitialDelay     = time.Second
	DefaultMaxDelay         = 5 * time.Minute
	DefaultKillGrace        = 10 * time.Second
	DefaultHealthInterval   = 10 * time.Second
	DefaultHealthTimeout    = time.Second
	DefaultFailureThreshold = 3
	DefaultHealthPath       = "/"
	DefaultMaxUnavailable   = 1
)

// Scope is what a job spec is read in.
type Scope struct {
	Field string // path of the spec in its message, for violations
	Pool  workload.PoolID
	Owner string // who submits, the owner by default
	Names *resource.Names
}

// ToJob turns a spec into the scheduler's form with every default filled in, or returns an *InvalidError.
func ToJob(in *pacelinev1.JobSpec, scope Scope) (*workload.JobSpec, error) {
	c := &checker{}
	if size := proto.Size(in); size > MaxBytes {
		c.refuse(scope.Field, "is %d bytes long, at most %d are accepted: shorten commands, environments or overrides, or fetch what is large at run time", size, MaxBytes)
		return nil, c.err()
	}
	out := &workload.JobSpec{
		Name: in.GetName(), Pool: scope.Pool, Owner: in.GetOwner(), Labels: table(in.GetLabels()), Priority: in.GetPriority(),
		Instances: DefaultInstances,
	}
	if out.Owner == "" {
		out.Owner = scope.Owner
	}
	if in.Instances != nil {
		out.Instances = in.GetInstances()
	}
	toKind(c, in, out, scope.Field)
	if in.Preemptible != nil {
		out.Preemptible = in.GetPreemptible()
	}
	if out.Kind != workload.Daemon && (out.Instances == 0 || out.Instances > workload.MaxInstances) {
		c.refuse(scope.Field+".instances", "must be between 1 and %d", workload.MaxInstances)
	}
	toSharing(c, in, out, scope.Field)
	if out.Kind != workload.Daemon {
		out.Gang = toGang(c, in.GetGang(), out, scope.Field+".gang")
		checkGangWindow(c, out, scope.Field)
	}
	out.Retry.Initial, out.Retry.Max = toBackoff(c, in.GetBackoff(), scope.Field+".backoff")
	out.Template = toTask(c, in.GetTask(), scope)
	out.Placement = toPlacement(c, in.GetPlacement(), scope.Field+".placement")
	if out.Kind != workload.Daemon {
		out.Overrides = toOverrides(c, in.GetOverrides(), out, scope, MaxBytes-baseBytes(in))
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// toSharing fills in how the job gets along with others in its pool.
func toSharing(c *checker, in *pacelinev1.JobSpec, out *workload.JobSpec, field string) {
	out.RunTime = toDuration(c, field+".run_time", in.GetRunTime(), 0)
	action, known := workload.ParsePreemptionAction(in.GetOnPreemption())
	if !known {
		c.refuse(field+".on_preemption", "%q is unknown: use restart or kill", clip(in.GetOnPreemption()))
	}
	out.OnPreemption, out.Revocable, out.Controller = action, in.GetRevocable(), in.GetController()
	if out.Revocable && !out.Preemptible {
		c.refuse(field+".revocable", "revocable work may be ended at any time: set preemptible to true, or leave revocable out")
	}
}

func toKind(c *checker, in *pacelinev1.JobSpec, out *workload.JobSpec, field string) {
	switch kind := in.GetKind().(type) {
	case *pacelinev1.JobSpec_Batch:
		out.Kind, out.Preemptible = workload.Batch, true
		out.Retry.MaxRetries = DefaultMaxRetries
		if kind.Batch != nil && kind.Batch.MaxRetries != nil {
			out.Retry.MaxRetries = kind.Batch.GetMaxRetries()
		}
		out.MaxRunning = kind.Batch.GetMaxRunning()
		out.Deadline = toDuration(c, field+".batch.deadline", kind.Batch.GetDeadline(), 0)
	case *pacelinev1.JobSpec_Service:
		out.Kind, out.MaxUnavailable = workload.Service, DefaultMaxUnavailable
		if kind.Service != nil && kind.Service.MaxUnavailable != nil {
			out.MaxUnavailable = kind.Service.GetMaxUnavailable()
		}
	case *pacelinev1.JobSpec_Daemon:
		out.Kind = workload.Daemon
		if in.Instances != nil || in.GetGang() != nil || len(in.GetOverrides()) > 0 {
			c.refuse(field, "a daemon has one instance on every matching host: leave out instances, overrides and gang")
		}
		out.Instances = 0
	default:
		c.refuse(field, "one of batch, service and daemon must be set, for example batch: {}")
	}
}

func toBackoff(c *checker, in *pacelinev1.BackoffSpec, field string) (initial, longest time.Duration) {
	initial = toDuration(c, field+".initial_delay", in.GetInitialDelay(), DefaultInitialDelay)
	longest = toDuration(c, field+".max_delay", in.GetMaxDelay(), max(DefaultMaxDelay, initial))
	if longest < initial {
		c.refuse(field+".max_delay", "must not be below initial_delay, which is %v", initial)
	}
	return initial, longest
}

func toTask(c *checker, in *pacelinev1.TaskSpec, scope Scope) workload.TaskTemplate {
	field := scope.Field + ".task"
	checkCommand(c, field+".command", in.GetCommand())
	checkEnv(c, field+".env", in.GetEnv())
	out := workload.TaskTemplate{
		Command: list(in.GetCommand()), Env: table(in.GetEnv()), Labels: table(in.GetLabels()),
		GPUModels: list(in.GetResources().GetGpuModels()),
		KillGrace: toDuration(c, field+".kill_grace", in.GetKillGrace(), DefaultKillGrace),
	}
	amountsOfTask(in.GetResources()).each(c, field+".resources", scope.Names, func(k resource.Kind, q int64) { out.Needs[k] = q })
	checkGPU(c, field+".resources.gpu_milli", out.Needs)
	out.Ports = toPorts(c, in.GetResources().GetPorts(), field+".resources.ports")
	out.Health = toHealth(c, in.GetHealthCheck(), out.Ports, field+".health_check")
	out.Execution = toExecution(c, in, scope)
	checkParts(c, out.Execution, out.Needs, field+".resources", scope.Names)
	if s := in.GetSimulation(); s != nil {
		out.Simulation = workload.Simulation{
			Duration: toDuration(c, field+".simulation.duration", s.GetDuration(), 0),
			ExitCode: s.GetExitCode(), FailurePerMille: s.GetFailurePerMille(),
		}
	}
	return out
}

// checkCommand bounds a command as a whole. A NUL byte would end an argument early in every operating system.
func checkCommand(c *checker, field string, command []string) {
	size := 0
	for i, arg := range command {
		size += len(arg) + 1
		if strings.ContainsRune(arg, 0) {
			c.refuse(index(field, i), "must not contain a NUL byte")
		}
	}
	if size > MaxCommandBytes {
		c.refuse(field, "is %d bytes long with its arguments, at most %d are accepted: put long input in a file", size, MaxCommandBytes)
	}
	if len(command) > 0 && command[0] == "" {
		c.refuse(index(field, 0), "must name a program")
	}
}

func checkEnv(c *checker, field string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsRune(env[name], 0) {
			c.refuse(field+"[\""+clip(name)+"\"]", "must not contain a NUL byte")
		}
	}
}

func checkGPU(c *checker, field string, needs resource.Vector) {
	if q := needs[resource.GPU]; q > 1000 && (q%1000 != 0 || q > maxGPUMilli) {
		c.refuse(field, "must be below 1000 (a share of one device) or a multiple of 1000 up to %d (whole devices)", maxGPUMilli)
	}
}

// maxGPUMilli is all devices of the largest host.
const maxGPUMilli = 16_000

func toPorts(c *checker, in []*pacelinev1.Port, field string) []workload.Port {
	var out []workload.Port
	names, numbers := map[string]bool{}, map[uint32]bool{}
	for i, p := range in {
		switch {
		case names[p.GetName()]:
			c.refuse(index(field, i)+".name", "%q is another port's name too", clip(p.GetName()))
		case p.GetNumber() > 65535:
			c.refuse(index(field, i)+".number", "must be at most 65535")
		case p.GetNumber() != 0 && numbers[p.GetNumber()]:
			c.refuse(index(field, i)+".number", "%d is another port's number too", p.GetNumber())
		}
		names[p.GetName()], numbers[p.GetNumber()] = true, true
		out = append(out, workload.Port{Name: p.GetName(), Number: uint16(p.GetNumber())})
	}
	return out
}

func toHealth(c *checker, in *pacelinev1.HealthCheck, ports []workload.Port, field string) *workload.HealthCheck {
	if in == nil {
		return nil
	}
	out := &workload.HealthCheck{
		InitialDelay:     toDuration(c, field+".initial_delay", in.GetInitialDelay(), 0),
		Interval:         toDuration(c, field+".interval", in.GetInterval(), DefaultHealthInterval),
		Timeout:          toDuration(c, field+".timeout", in.GetTimeout(), DefaultHealthTimeout),
		FailureThreshold: in.GetFailureThreshold(),
	}
	if out.FailureThreshold == 0 {
		out.FailureThreshold = DefaultFailureThreshold
	}
	checkPort := func(field, name string) {
		if !slices.ContainsFunc(ports, func(p workload.Port) bool { return p.Name == name }) {
			c.refuse(field, "%q is not among the ports in task.resources.ports", clip(name))
		}
	}
	switch check := in.GetCheck().(type) {
	case *pacelinev1.HealthCheck_Exec:
		checkCommand(c, field+".exec.command", check.Exec.GetCommand())
		if len(check.Exec.GetCommand()) == 0 {
			c.refuse(field+".exec.command", "must name a program")
		}
		out.Exec = list(check.Exec.GetCommand())
	case *pacelinev1.HealthCheck_Http:
		checkPort(field+".http.port", check.Http.GetPort())
		out.HTTP = &workload.HTTPCheck{Port: check.Http.GetPort(), Path: check.Http.GetPath()}
		if out.HTTP.Path == "" {
			out.HTTP.Path = DefaultHealthPath
		}
		if strings.ContainsFunc(out.HTTP.Path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			c.refuse(field+".http.path", "must not contain spaces or control characters: write %%20 for a space")
		}
	case *pacelinev1.HealthCheck_Tcp:
		checkPort(field+".tcp.port", check.Tcp.GetPort())
		out.TCP = &workload.TCPCheck{Port: check.Tcp.GetPort()}
	default:
		c.refuse(field, "one of exec, http and tcp must be set")
	}
	return out
}

// toDuration reads a duration that must not be negative; absent means the default.
func toDuration(c *checker, field string, in *durationpb.Duration, fallback time.Duration) time.Duration {
	if in == nil {
		return fallback
	}
	if err := in.CheckValid(); err != nil || in.GetSeconds() > maxSeconds || in.AsDuration() < 0 {
		c.refuse(field, "must be a duration from 0s to %ds, for example 10s", maxSeconds)
		return fallback
	}
	return in.AsDuration()
}

// maxSeconds is a hundred years: longer than any bound of a field, far inside int64 nanoseconds.
const maxSeconds = 100 * 365 * 24 * 3600
