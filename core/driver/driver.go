// Package driver declares what a host manager must provide: the narrow contract between a shard and one cluster.
//
// A driver knows its cluster's hosts and runs, starts and ends runs, and reports what becomes of them. It decides nothing: no
// placement, no retry of a run, no bookkeeping of resources. The conformance kit in conformance/drivertest states the contract
// as tests; every driver, emulated or real, passes it.
//
// Concurrency: Start is called once. The other methods may be called from any goroutine after Start returned and must not block on
// the Sink. A driver calls its Sink from one goroutine at a time.
package driver

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Driver is one cluster connection.
//
// Delivery: Launch and Kill return once the request is with the cluster or is certain to be tried; their outcome arrives as statuses. An error
// means that nothing of the call happened and nothing will. Launch of a run id that the cluster knows starts nothing; the
// driver reports that run's present status instead. Kill of an unknown run is answered with a RunLost status of ReasonNotFound.
//
// Statuses: each carries a Token that grows per driver; one that was not acknowledged is delivered again after a reconnect or
// restart, and by Reconcile. Statuses of one run arrive in order; the last one is terminal and is kept by the cluster until acknowledged. A
// cluster may hold a run's next status back until the one before is acknowledged.
type Driver interface {
	// Start connects and begins to call sink. It returns when the connection is set up or has definitely failed; the driver
	// then works until ctx ends, reconnecting by itself, and Wait returns once its goroutines are gone.
	Start(ctx context.Context, sink Sink) error
	Launch(ctx context.Context, launches []Launch) error
	Kill(ctx context.Context, kills []Kill) error
	// Acknowledge lets the cluster forget statuses: they are durable here.
	Acknowledge(ctx context.Context, tokens []Token) error
	// Wait blocks until the driver has released everything; call it after the context of Start ended.
	Wait()
}

// Capable is implemented by drivers to say what their cluster can do. One that does not implement it has no capability.
type Capable interface{ Capabilities() Capabilities }

// Capabilities are a cluster's abilities and limits, shown to users.
type Capabilities struct {
	HealthChecks bool // runs a task's health checks beside the task
	Logs         bool // implements LogReader
	Isolation    bool // enforces CPU and memory limits
	VirtualTime  bool // its clock is not the wall clock
	Notes        []string
}

// Reconciler is implemented by drivers that can be asked for the state of runs. The answer to each run is a status; a run the cluster does
// not know is answered with RunLost and ReasonNotFound, once it is certain that none of its hosts can have it. No runs asks for all that the cluster
// knows. An answer may be late or lost: who needs it asks again.
type Reconciler interface {
	Reconcile(ctx context.Context, runs []workload.RunID) error
}

// LogReader is implemented by drivers that keep the output of their runs.
type LogReader interface {
	// ReadLog returns a stream's bytes from offset on; a negative offset counts from the end. With follow the reader blocks for more until
	// the run ends or ctx does. The caller closes it. ErrUnknownRun: the cluster keeps no output of that run.
	ReadLog(ctx context.Context, run workload.RunID, request LogRequest) (io.ReadCloser, error)
}

// Rehearser is implemented by drivers of clusters that can be asked whether they would take a launch, without taking it.
type Rehearser interface {
	// Rehearse asks the cluster about one launch, which may name no host. It may be called at any time, and waits until the cluster has answered or ctx
	// ends. An error means that the cluster did not say.
	Rehearse(ctx context.Context, launch *Launch) (Rehearsal, error)
}

// Rehearsal is what a cluster says of a launch that it was asked about.
type Rehearsal struct {
	Refused  string   // why, in the cluster's words; "": it would take it
	Warnings []string // what it has to say of it all the same
}

// ErrNoRehearsal is returned for a cluster that cannot be asked whether it would take a launch.
var ErrNoRehearsal = errors.New("this cluster cannot be asked whether it would take a launch")

// Demander is implemented by drivers of clusters that share their hosts with other schedulers by offers, and hold what they were offered only
// while somebody wants it.
type Demander interface {
	// Demand says whether work waits that this cluster might take. It must not block. A driver that was never told holds nothing that a launch
	// does not need.
	Demand(waiting bool)
}

// ErrUnknownRun is returned for a run that the cluster has no trace of.
var ErrUnknownRun = errors.New("the cluster keeps nothing of this run")

// ErrNoLogs is returned for the output of a run on a cluster that keeps none.
var ErrNoLogs = errors.New("this cluster keeps no output of its runs")

// LogRequest selects a part of a run's output.
type LogRequest struct {
	Stream Stream
	Offset int64
	Follow bool
}

// Stream is one of a run's output streams.
type Stream uint8

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Sink receives what a driver has to say. Calls return quickly: the receiver queues.
type Sink interface {
	// Inventory replaces what is known of the cluster: all its hosts, and all runs that it knows live or unacknowledged. A driver calls it once
	// connected, before anything else, and again after every reconnect. The first one of a driver whose cluster keeps ended runs for their output has these,
	// too, as it does not know which were acknowledged to the driver before; who has their ends acknowledges them again.
	Inventory(Inventory)
	// HostsChanged adds or replaces hosts and removes others.
	HostsChanged(changed []Host, removed []string)
	Statuses([]Status)
	// Disconnected says that the driver lost its cluster; it keeps trying, and the next call will be Inventory.
	Disconnected(reason error)
}

// Mover is implemented by sinks that are told when hosts go to another shard of the same cluster: their runs go with them, and none is lost.
type Mover interface {
	HostsMoved(names []string)
}

// Inventory is a cluster's whole truth at one moment.
type Inventory struct {
	Hosts []Host
	Runs  []Status // the last status of each run that the cluster knows
	// Elsewhere names hosts of the cluster that other shards have, and whose runs are told to these. Only what cuts a cluster into shards fills it.
	Elsewhere []string
}

// Leaver is implemented by drivers of clusters that keep a place for the cell while nobody speaks for it, such as a framework's.
type Leaver interface {
	// Leave has the cluster end all runs of the cell and forget it. Nothing can be asked of the driver afterwards. An error means that the cluster may
	// not have heard it.
	Leave(ctx context.Context) error
}

// Describer is implemented by drivers that can tell people how their connection fares. It may be called at any time and must not block.
type Describer interface{ Describe() Description }

// Description is what people want to see of a connection.
type Description struct {
	Details  map[string]string // of the cluster as a whole, such as who leads it; at most MaxDetails
	Err      error             // why there is no contact; nil: there is, or the first attempt is under way
	ErrAt    time.Time
	Attempts int       // that failed since the last contact
	Next     time.Time // when the next begins; zero: one is under way, or none is needed
}

// Host is one machine of a cluster as the driver sees it.
type Host struct {
	Name       string            // unique in the cluster, at most 253 characters
	Attributes map[string]string // for constraints and topology
	Pool       string            // host pool; "" is the default one
	Capacity   map[string]int64  // by resource name, in the unit of its kind; GPU is the sum of Devices
	Devices    []Device
	Ports      []PortRange // what tasks may be given
	Foreign    resource.Vector
	Ready      bool   // may take new runs
	Message    string // why it is not ready, or what a user should know of it

	// ID is the cluster's own name for the host at this time, such as an agent's id or a node's uid. "": it has none. At most
	// MaxHostID bytes.
	ID string
	// Details are for people: what the cluster says of the host that placement does not look at, such as offers held or taints. At most
	// MaxDetails of them, of MaxDetailName and MaxDetailValue.
	Details map[string]string
}

// Bounds of what is shown of a host. A shard cuts what is longer.
const (
	MaxDetails     = 32  // details of a host
	MaxDetailName  = 253 // bytes of a detail's name; one with a longer name is left out
	MaxDetailValue = 512 // bytes of its value
	MaxHostID      = 512 // bytes of Host.ID
)

// Device is one GPU.
type Device struct {
	Model string
	Milli int64 // 1000 unless the device is partly reserved
}

// PortRange is inclusive at both ends.
type PortRange struct{ First, Last uint16 }

// Launch asks for one run on one host. Every string is final: the driver interprets nothing but the PACELINE_* variables it
// adds.
type Launch struct {
	Run     workload.RunID
	Host    string
	Pool    string // the path of the pool that the run is charged to, at the time of the launch
	Command []string
	Env     map[string]string
	Needs   map[string]int64 // by resource name
	Devices []int            // indexes into Host.Devices
	// DeviceMilli is the share of the single device, or 1000 for whole ones.
	DeviceMilli int64
	Ports       []AssignedPort
	Health      *workload.HealthCheck
	KillGrace   time.Duration
	Labels      map[string]string
	Simulation  workload.Simulation
	// Execution is what the run needs beyond its command. nil: nothing.
	Execution *execution.Spec
	// Revocable runs may take what the cluster may take back at any time.
	Revocable bool
}

// AssignedPort is a port that placement picked for a run.
type AssignedPort struct {
	Name   string
	Number uint16
}

// Kill asks for the end of one run: politely first, finally after Grace.
type Kill struct {
	Run   workload.RunID
	Grace time.Duration // 0: at once
}

// Token orders a driver's statuses for acknowledgement. Zero: nothing to acknowledge.
type Token uint64

// Status says where a run stands.
type Status struct {
	Run      workload.RunID
	Token    Token
	State    workload.RunState // RunStarting or later
	Reason   workload.Reason
	Healthy  bool // with RunRunning: its health check passes, or it has none
	ExitCode int32
	Signal   int32
	Message  string // for people, at most MaxMessage bytes
	At       time.Time
	Host     string
}

// MaxMessage bounds Status.Message in bytes; drivers cut longer ones.
const MaxMessage = 512
