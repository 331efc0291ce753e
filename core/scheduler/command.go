package scheduler

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// Event is one input of Step.
type Event interface{ event() }

type (
	// Call is a command from the API with the token under which its Answer is given.
	Call struct {
		Token   uint64
		Caller  Caller
		Command Command
	}
	// ShardAttached says that a shard is reachable under a fresh assignment.
	ShardAttached struct {
		Shard   shard.ID
		Cluster string
		// Parts is into how many shards the cluster is cut; 0: that is not known.
		Parts int
	}
	// ShardReplied is one reply of a shard under the epoch of its assignment.
	ShardReplied struct {
		Shard shard.ID
		Epoch shard.Epoch
		Reply shard.Reply
	}
	// Woken says that the wake time which Step returned has come.
	Woken struct{}
)

func (Call) event()          {}
func (ShardAttached) event() {}
func (ShardReplied) event()  {}
func (Woken) event()         {}

// Command is a change that a user asks for.
type Command interface{ command() }

type (
	// SubmitJob creates a job under ID, or finds that the same spec is there already.
	SubmitJob struct {
		ID          workload.JobID
		Spec        *workload.JobSpec
		SpecBytes   int // encoded size of Spec, at most MaxSpecBytes
		Idempotency *IdempotencyKey
		RequestHash [32]byte
		// Asked is a digest of the spec as its user wrote it, before rules changed it. A live job of the same name and digest is the same.
		Asked [32]byte
		// Denied is why rules refuse the job. It only counts for one that is not there yet.
		Denied *Error
	}
	// PlanJob tells what SubmitJob would do and where its instances would go, changing nothing.
	PlanJob struct {
		Spec   *workload.JobSpec
		Asked  [32]byte // as for SubmitJob
		Denied *Error   // likewise
	}
	// ExplainJob answers as Reader.Explain, and asks the shards which restriction keeps refused work out.
	ExplainJob struct{ Job workload.JobID }
	// StopJob ends a job's runs.
	StopJob struct {
		Job             workload.JobID
		ExpectedVersion uint64 // 0: any
		Delete          bool   // and remove its records once it has stopped
	}
	// RestartJob replaces the live runs of a job by new ones, Batch units at a time: a gang is one, which is restarted as a whole, and so is an
	// instance in none.
	RestartJob struct {
		Job             workload.JobID
		ExpectedVersion uint64
		Batch           uint32 // 0: 1
		Grace           time.Duration
		Only            []workload.InstanceRange // these, of a gang all or none
		Gangs           []string                 // and the members of these; neither: all
	}
	// ApplyPool creates the pool or changes it. With ID zero the pool is found by parent and name.
	ApplyPool struct {
		ID              workload.PoolID // used when the pool is new
		Path            string
		Pool            respool.Pool // everything but ID, Parent, Name, Version and times
		ExpectedVersion uint64
	}
	// MovePool puts a pool with all below it under another parent, or gives it another name.
	MovePool struct {
		Path            string
		NewPath         string
		ExpectedVersion uint64
	}
	// DeletePool removes a pool without children and jobs.
	DeletePool struct {
		Path            string
		ExpectedVersion uint64
	}
	// NameResources gives extended resources their kinds, so that specs can speak of them.
	NameResources struct{ Names []string }
	// DrainHost stops placing on a host, or allows it again.
	DrainHost struct {
		Host     workload.HostID
		Draining bool
	}
)

func (SubmitJob) command()     {}
func (PlanJob) command()       {}
func (ExplainJob) command()    {}
func (StopJob) command()       {}
func (RestartJob) command()    {}
func (ApplyPool) command()     {}
func (MovePool) command()      {}
func (DeletePool) command()    {}
func (DrainHost) command()     {}
func (NameResources) command() {}

// Answer is what a Call comes to. Exactly one of Err and the result that belongs to the command is set.
type Answer struct {
	Token uint64
	Err   *Error
	// Job is set for the job commands: the job as it is after the command.
	Job JobView
	// Existed says that what was asked for was there already.
	Existed bool
	Cluster ClusterRecord
	Lost    int // runs that RemoveCluster declared lost
	Plan    *Plan
	Why     *Explanation
	Pool    PoolView
	Host    HostView
	// Warnings are for the user: the command was done.
	Warnings []string
}

// Plan is the answer to PlanJob.
type Plan struct {
	Exists    bool // a live job of that name is there
	Changes   []FieldChange
	Checked   int             // instances whose placement was tried, bounded by shard.MaxBatch
	Placeable int             // of Checked
	Hosts     map[string]int  // by host name, at most MaxPlanHosts; of a daemon those that it belongs on, with or without room
	Pending   []PendingReason // why the rest would wait
	Admitted  int             // of Checked that the pool's entitlement would cover, once the job's demand counts
	// Preemption is set when more instances than Placeable would start because others make room.
	Preemption *PlanPreemption
	// Rehearsals are launches that the clusters may be asked about: one of each class in each cluster that it would go to, and if not all of it
	// found room in those that have hosts for it; of a daemon one in each cluster with hosts that it belongs on. At most 16; nobody has been asked.
	Rehearsals []Rehearsal
}

// Rehearsal is a launch that a cluster may be asked about, without making it.
type Rehearsal struct {
	Shard     shard.ID
	Cluster   string
	Instances int // of its class that would be placed in the cluster, or belong there
	// Launch is that of the first instance of the class, whose run is of no job. Without room it names no host.
	Launch driver.Launch
}

// FieldChange is one difference between the spec that is there and the one planned, by field path.
type FieldChange struct{ Field, Old, New string }

// ErrorKind classes an Error. core/api turns it into an RPC code, in one place.
type ErrorKind uint8

// The kinds.
const (
	InvalidArgument ErrorKind = iota + 1
	NotFound
	AlreadyExists
	FailedPrecondition
	Aborted // the version is not the expected one
	ResourceExhausted
	Unavailable
)

func (k ErrorKind) String() string {
	switch k {
	case InvalidArgument:
		return "invalid argument"
	case NotFound:
		return "not found"
	case AlreadyExists:
		return "already exists"
	case FailedPrecondition:
		return "failed precondition"
	case Aborted:
		return "aborted"
	case ResourceExhausted:
		return "resource exhausted"
	case Unavailable:
		return "unavailable"
	}
	return "unknown"
}

// Error is a command that was refused: nothing changed.
type Error struct {
	Kind       ErrorKind
	Field      string // path in the request, when one field is to blame
	Message    string // what is wrong and where
	Hint       string // how to mend it
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + "; " + e.Hint
}

func refuse(kind ErrorKind, field, hint, format string, args ...any) *Error {
	return &Error{Kind: kind, Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)}
}
