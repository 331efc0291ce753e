package scheduler

import (
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// Record is one durable object of a cell. Records are values: once returned by Step nobody changes them, so they may be
// encoded on another goroutine. core/store/record gives each its key and bytes.
type Record interface{ record() }

// Write puts one record, or deletes what its key names when Delete is set (only the key fields count then).
type Write struct {
	Record Record
	Delete bool
}

// Group is a set of writes that become durable together. Sequence grows by one with every group of a cell and is the revision
// that watchers see.
type Group struct {
	Sequence uint64
	Writes   []Write
}

// The records.
type (
	// CellRecord is written at every start, before anything else, and when the cell meets a new extended resource.
	CellRecord struct {
		Epoch uint64   // grows with every start of a core on this store
		Named []string // extended resources in kind order
		Now   int64    // the cell's clock at the write, so that time never runs backwards over a restart
	}

	// PoolRecord is one resource pool.
	PoolRecord struct{ Pool respool.Pool }

	// SpecRecord is one config version of a job. It is written once.
	SpecRecord struct {
		Job    workload.JobID
		Config uint32
		Spec   *workload.JobSpec
		Size   int // encoded, in bytes; set when it is read or accepted, never stored
	}

	// JobRecord is a job without its spec and instances.
	JobRecord struct {
		ID         workload.JobID
		Order      uint64 // submission order in the cell
		Version    uint64 // grows with every change that a user makes; expected_version compares with it
		Config     uint32 // config version of its spec
		Caller     Caller // who submitted it
		Goal       Goal
		GoalReason workload.Reason
		State      workload.JobState
		Reason     workload.Reason
		Generation uint32 // of the gang, or of the job; from 1
		Failures   uint32 // of the gang
		// Gangs are the lives of the spec's groups, in their order. It is replaced, never changed, as a record is a value.
		Gangs    []GangLife
		Restart  Restart
		Created  int64
		Started  int64 // first run RUNNING; 0: none yet
		Finished int64
		Asked    [32]byte // digest of the spec as its user wrote it; zero: not known
	}

	// GangLife is what lasts of one gang among several of a job.
	GangLife struct {
		Generation uint32 // from 1
		Failures   uint32
	}

	// TaskRecord is one instance with its present or last run. An instance without a record is PENDING and never ran.
	TaskRecord struct {
		Job        workload.JobID
		Instance   uint32
		Generation uint32
		Run        uint32 // number of the present or last run; 0: none yet
		State      workload.InstanceState
		RunState   workload.RunState
		Reason     workload.Reason
		Healthy    bool
		Config     uint32
		Failures   uint32 // that count against max_retries
		Restart    uint32 // the restart that the present run was started under
		Attempts   uint32 // failures in a row, for back-off
		Host       workload.HostID
		Devices    placement.DeviceSet
		Ports      []uint16
		ExitCode   int32
		Signal     int32
		Message    string
		Since      int64 // of State and RunState
		Placed     int64 // of the run
		Started    int64 // of the run; 0: not yet
		NotBefore  int64 // end of back-off
		HeldMillis int64 // how long its ended runs were bound to hosts, together
	}

	// RunRecord is a run that ended. Each instance keeps its last MaxRunsKept.
	RunRecord struct {
		ID       workload.RunID
		Host     workload.HostID
		State    workload.RunState
		Reason   workload.Reason
		ExitCode int32
		Signal   int32
		Message  string
		Placed   int64
		Started  int64
		Ended    int64
		Config   uint32
	}

	// HostRecord is a host as last seen.
	HostRecord struct {
		ID       workload.HostID
		Cluster  string
		Shard    string
		Name     string
		Summary  HostFacts
		Present  bool // in its cluster's inventory
		Draining bool
		Since    int64
	}

	// AccountRecord is what the runs of an owner held in a pool. It is in every group with the end of such a run.
	AccountRecord struct{ usage.Account }

	// BalanceRecord is how a pool fared, as of its last sample.
	BalanceRecord struct{ usage.Balance }

	// SampleRecord is one reading of a pool's counters. It is history: no part of an Image.
	SampleRecord struct{ usage.Sample }

	// IdempotencyRecord answers a repeated call. It is in the group of what the first call did.
	IdempotencyRecord struct {
		Key     IdempotencyKey
		Hash    [32]byte // of the request
		Job     workload.JobID
		Expires int64
	}

	// ChangesRecord is one group's part of the event log; its key is the group's sequence.
	ChangesRecord struct {
		Sequence uint64
		Changes  []Change
	}
)

func (CellRecord) record()        {}
func (PoolRecord) record()        {}
func (SpecRecord) record()        {}
func (JobRecord) record()         {}
func (TaskRecord) record()        {}
func (RunRecord) record()         {}
func (HostRecord) record()        {}
func (AccountRecord) record()     {}
func (BalanceRecord) record()     {}
func (SampleRecord) record()      {}
func (IdempotencyRecord) record() {}
func (ChangesRecord) record()     {}

// HostFacts are the parts of a host that come from its cluster.
type HostFacts struct {
	Attributes map[string]string
	HostPool   string
	Capacity   resource.Vector
	Foreign    resource.Vector
	Devices    []driver.Device
	Ready      bool
	Message    string
	ClusterID  string // the cluster's own name for it, such as an agent's id; "": it has none
}

// Goal is what a user wants of a job.
type Goal uint8

// The goals.
const (
	GoalRun    Goal = iota + 1
	GoalStop        // every run ends; the records stay
	GoalDelete      // as GoalStop, then the records go too
)

func (g Goal) String() string {
	return [...]string{"", "RUN", "STOP", "DELETE"}[min(g, GoalDelete)]
}

// Restart is a rolling restart in progress or done.
type Restart struct {
	Number uint32 // of restarts asked for so far; runs started under a lower one are to be replaced
	Batch  uint32 // gangs, or instances in none, down at once; 0: no restart is in progress
	Grace  time.Duration
	// Only has the instances that are restarted, ascending, with gaps in between; none: all. It is replaced, never changed.
	Only []workload.InstanceRange
}

// Caller says on whose behalf a command or record is.
type Caller struct {
	Principal string
	Tenant    string
}

// IdempotencyKey names one call of one principal.
type IdempotencyKey struct {
	Principal string
	Method    string
	Key       string
}

// ChangeKind says what a Change is about.
type ChangeKind uint8

// The kinds of change. Numbers are stored: never reuse one.
const (
	ChangeJob  ChangeKind = iota + 1 // accepted, or its goal, state or restart changed
	ChangeTask                       // an instance's or its run's state changed
	ChangePool                       // applied
	ChangePoolDeleted
	ChangeHost // appeared, changed or went away
	ChangeJobDeleted
	ChangeCluster // added, updated, or a shard of it came into contact or lost it
	ChangeClusterDeleted
	ChangeHostForgotten // it left a while ago, or with its cluster, and is known no more
)

// Change is one entry of the event log: what a watcher sees.
type Change struct {
	Kind      ChangeKind
	At        int64
	Principal string // who asked for it; empty when the cell did it
	Pool      workload.PoolID
	Job       workload.JobID
	JobState  workload.JobState
	Goal      Goal
	Version   uint64
	Run       workload.RunID // for ChangeTask
	State     workload.InstanceState
	RunState  workload.RunState
	Healthy   bool
	Reason    workload.Reason
	ExitCode  int32
	Host      workload.HostID
	Name      string // job, pool or host name, so that a deleted object can still be named
	Message   string
}
