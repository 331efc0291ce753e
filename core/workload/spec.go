// Package workload holds the vocabulary of work: jobs, instances, runs, their ids and states, and the one table that says what
// each run state holds, charges and counts as.
//
// It owns definitions and the arithmetic on them, never decisions: what to do about a state is lifecycle's. Everything here is
// plain data and pure functions. A *JobSpec is immutable once a job was accepted and may be shared by any number of readers.
package workload

import (
	"time"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
)

// Kind is what a job promises about its instances.
type Kind uint8

// The kinds of work.
const (
	Batch   Kind = iota + 1 // instances run to completion
	Service                 // instances run until stopped
	Daemon                  // one instance on every matching host
)

func (k Kind) String() string {
	switch k {
	case Batch:
		return "batch"
	case Service:
		return "service"
	case Daemon:
		return "daemon"
	}
	return "unknown"
}

// JobSpec is what a user asks for. It is immutable: a change makes a new spec under the next config version.
type JobSpec struct {
	Name     string
	Pool     PoolID
	Owner    string
	Labels   map[string]string
	Kind     Kind
	Priority int32 // relative to the job's pool only; higher goes first

	Instances   uint32 // 0..N-1; 0 for a daemon, whose instances follow its hosts
	Template    TaskTemplate
	Overrides   []Override // sorted by Instance, one each
	Gang        *GangSpec  // which instances go together; nil: none
	MaxRunning  uint32     // never more live instances than this at once; 0: no window
	Retry       RetryPolicy
	Deadline    time.Duration // from acceptance; 0: none
	Preemptible bool
	Placement   Placement

	// RunTime is about how long one run takes, by its user's word: believed, never enforced. 0: nobody said.
	RunTime      time.Duration
	OnPreemption PreemptionAction
	// MaxUnavailable bounds the instances of a service that may be down at once because of Paceline. Instances that are down for another
	// reason count. 0: none may be taken down.
	MaxUnavailable uint32
	Revocable      bool // runs on slack, counts against no entitlement, and is the first to be ended
	Controller     bool // directs other work; its pool may bound what such jobs use
}

// PreemptionAction is what becomes of an instance that made room for other work.
type PreemptionAction uint8

// The actions after a preemption.
const (
	PreemptRestart PreemptionAction = iota // it waits for room again; nothing counts against its retries
	PreemptKill                            // it is not tried again
)

func (a PreemptionAction) String() string { return [...]string{"restart", "kill"}[min(a, PreemptKill)] }

// ParsePreemptionAction reads the name of an action; the empty one is restart.
func ParsePreemptionAction(name string) (PreemptionAction, bool) {
	switch name {
	case "", PreemptRestart.String():
		return PreemptRestart, true
	case PreemptKill.String():
		return PreemptKill, true
	}
	return 0, false
}

// RetryPolicy bounds and spaces the runs of an instance that fails. The delay before retry n is
// min(Max, Initial * 2^(n-1)), spread by a deterministic jitter of up to a quarter in either direction.
type RetryPolicy struct {
	MaxRetries uint32        // batch: failures forgiven per instance (per gang for a gang); services and daemons restart for ever
	Initial    time.Duration // default 1 s
	Max        time.Duration // default 5 min
}

// TaskTemplate is what one instance runs and needs.
type TaskTemplate struct {
	Command []string          // argv; never a shell line
	Env     map[string]string // over PACELINE_* variables, which the host manager adds
	Needs   resource.Vector
	// GPUModels limits which devices serve the GPU need; empty: any. A need under 1000 is a share of a single device, a larger
	// one is a multiple of 1000, whole devices.
	GPUModels  []string
	Ports      []Port
	Health     *HealthCheck
	KillGrace  time.Duration // between the polite and the final kill; default 10 s
	Labels     map[string]string
	Simulation Simulation
	Execution  *execution.Spec // nil: the command is all
}

// Port is one port need. A Number of 0 asks for any free port of the host.
type Port struct {
	Name   string // exported as PACELINE_PORT_<NAME>
	Number uint16
}

// Simulation tells a simulated cluster how a run behaves. Real clusters ignore it.
type Simulation struct {
	Duration        time.Duration // 0: runs until killed
	ExitCode        int32
	FailurePerMille int32 // chance, in thousandths, that the run ends with exit code 1 at a random moment instead
}

// HealthCheck decides whether a running instance is healthy. Exactly one of Exec, HTTP and TCP is set.
type HealthCheck struct {
	Exec             []string
	HTTP             *HTTPCheck
	TCP              *TCPCheck
	InitialDelay     time.Duration
	Interval         time.Duration // default 10 s
	Timeout          time.Duration // default 1 s
	FailureThreshold uint32        // consecutive failures that make it unhealthy; default 3
}

// HTTPCheck is healthy on a status from 200 to 399.
type HTTPCheck struct {
	Port string // name of one of the task's ports
	Path string
}

// TCPCheck is healthy when the port accepts a connection.
type TCPCheck struct {
	Port string // name of one of the task's ports
}

// Override changes the template for one instance. A nil field leaves the template's.
type Override struct {
	Instance uint32
	Command  []string
	Env      map[string]string // merged over the template's
	Needs    *resource.Vector
	Labels   map[string]string // merged over the template's
}

// Placement is where a job's instances may and should run.
type Placement struct {
	Strategy    Strategy
	Constraints []Constraint // every one must hold
	Preferences []Preference
	Affinities  []Affinity
	Spreads     []Spread
	Exclusive   bool   // no task of another job on the same host
	HostPool    string // "": any
	Clusters    []string
}

// Strategy names the policy of placement: one that is built in, or one that somebody wrote. Empty is that of the pool, or the cell's default for the kind of job.
type Strategy string

// The native strategies.
const (
	StrategyBestFit Strategy = "best-fit" // least leftover
	StrategyPack    Strategy = "pack"     // fullest host first
	StrategySpread  Strategy = "spread"   // emptiest host first
)

// Operator compares a host's attribute with a constraint's values.
type Operator uint8

// The operators. Gt and Lt compare integers; an attribute that is no integer fails them.
const (
	OpIn Operator = iota + 1
	OpNotIn
	OpExists
	OpNotExists
	OpGt
	OpLt
)

// Constraint is a condition on one attribute of a host. A host without the attribute fails every operator but OpNotIn and
// OpNotExists.
type Constraint struct {
	Key    string
	Op     Operator
	Values []string
}

// Preference adds Weight (1 to 100) to the score of hosts that meet Constraint.
type Preference struct {
	Constraint Constraint
	Weight     int32
}

// Affinity draws instances to, or keeps them from, topology domains that hold tasks with matching labels.
type Affinity struct {
	Selector map[string]string // every pair must be among the other task's labels
	Topology string            // attribute whose value is the domain; "host" is the host itself
	Anti     bool
	Weight   int32 // 0: must hold; 1 to 100: adds to or takes from the score
}

// Spread keeps the instances of the job even over the values of a topology attribute. With MaxSkew > 0 no domain may hold more
// than MaxSkew instances above the least loaded eligible one; with 0 evenness only adds to the score.
type Spread struct {
	Topology string
	MaxSkew  uint32
}

// TopologyHost is the topology key that stands for the host itself.
const TopologyHost = "host"
