package scheduler

import (
	"github.com/paceline-sched/paceline/core/estimate"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// Views are copies for readers: nothing in them is changed by a later Step.
type (
	// JobView is a job with its counts.
	JobView struct {
		JobRecord
		Spec      *workload.JobSpec
		PoolPath  string
		Instances uint32 // for a daemon: the hosts it has an instance for
		ByState   [workload.NumInstanceStates]uint32
		ByRun     [workload.NumRunStates]uint32
		Healthy   uint32          // RUNNING and healthy
		Held      resource.Vector // resource-seconds of all its runs so far
		// Of a restart in progress: how many gangs, or instances in none, it is of, and how many of them it has passed, or are down for it.
		RestartUnits, RestartDone, RestartDown uint32
	}

	// TaskView is an instance. HostName is empty when it has no host.
	TaskView struct {
		TaskRecord
		HostName string
		Cluster  string
		Needs    resource.Vector
		Gang     *GangView // nil: it is in none
		Rank     uint32    // in the gang
	}

	// GangView is one gang.
	GangView struct {
		workload.Gang
		GangLife
		Present uint32 // members that run and are not being ended, or have succeeded
		Ending  bool   // this generation is being ended
	}

	// PoolView is a pool with its ledgers.
	PoolView struct {
		Pool           respool.Pool
		Path           string
		Parent         string
		Reservation    resource.Vector // effective: scaled to today's capacity, the rest worked out
		Entitlement    resource.Vector
		EntitledBy     string // who decided that, or why a policy did not; "": max-min, as no policy is in force
		Usage          resource.Vector
		NonPreemptible resource.Vector // part of Usage
		Demand         resource.Vector
		Controllers    resource.Vector // part of Usage
		Revocable      RevocableView
		Jobs           int // not ended
		Waiting        int // entries in its queues
	}

	// RevocableView is a pool's ledger of revocable work. None of it is in the other figures.
	RevocableView struct{ Entitlement, Demand, Usage resource.Vector }

	// HostView is a host with what runs on it.
	HostView struct {
		HostRecord
		Used    resource.Vector
		Tasks   int
		Details map[string]string // what its cluster says of it, for people; nothing until it is in contact
		// Past says that it left a while ago, nothing holds it, and only what ended there still names it.
		Past bool
	}

	// CellView is the cell as a whole.
	CellView struct {
		Epoch     uint64
		Sequence  uint64
		Named     []string
		Capacity  resource.Vector
		Used      resource.Vector
		Hosts     int
		Ready     int // hosts that may take work
		Jobs      int
		LiveRuns  int
		Pending   int
		Shards    []ShardView
		Instances int
	}

	// ShardView is one shard as the core sees it.
	ShardView struct {
		ID      string
		Cluster string
		Ready   bool
		Message string
		Hosts   int
		Since   int64 // of Ready
	}
)

// PendingKind is why instances of a job wait. The numbers are the API's; they are in order of their coming, not of precedence.
type PendingKind uint8

// The kinds. When several hold a job up, the dominant one is the first of this order:
//
//  1. NoShard: nothing can be known without a cluster
//  2. NeverFits: no waiting helps
//  3. NoMatchingHost: the same for a daemon
//  4. Backoff: time alone helps, and a look at why it failed
//  5. UserLimit: the narrowest ledger first: the owner's own work ends
//  6. ControllerLimit
//  7. Reservation
//  8. Slack: revocable work has this ledger alone
//  9. Entitlement: the pool's work ends, or its entitlement grows
//
// 10. Queue: others of the pool go first
// 11. Placement: the pool has room and the hosts do not: among them gangs that find no domain
// 12. Window: the job's own max_running
// 13. BeingPlaced: nothing holds it up
const (
	PendingNoShard         PendingKind = iota + 1 // no cluster that the job may use is connected
	PendingNeverFits                              // no host could take one even if it were empty
	PendingBackoff                                // its last run failed; it waits until NotBefore
	PendingReservation                            // non-preemptible work over the pool's reservation
	PendingEntitlement                            // the pool's entitlement is used up
	PendingQueue                                  // others of the same pool go first
	PendingPlacement                              // hosts refused it, see Hosts
	PendingWindow                                 // max_running instances run already
	PendingBeingPlaced                            // a shard is working on it
	PendingNoMatchingHost                         // a daemon that no host matches
	PendingUserLimit                              // its owner uses as much of the pool as one owner may
	PendingControllerLimit                        // jobs that direct others use as much of the pool as they may together
	PendingSlack                                  // revocable work, and its pool's part of the slack is used up
	numPendingKinds
)

// rank orders the kinds by precedence.
func (k PendingKind) rank() int { return int(pendingRanks[k]) }

// pendingRanks gives each kind its place in the order above.
var pendingRanks = [numPendingKinds]uint8{
	PendingNoShard: 1, PendingNeverFits: 2, PendingNoMatchingHost: 3, PendingBackoff: 4, PendingUserLimit: 5, PendingControllerLimit: 6,
	PendingReservation: 7, PendingSlack: 8, PendingEntitlement: 9, PendingQueue: 10, PendingPlacement: 11, PendingWindow: 12,
	PendingBeingPlaced: 13,
}

func (k PendingKind) String() string {
	names := [...]string{
		"", "NO_CLUSTER_READY", "NEVER_FITS", "BACKING_OFF", "OVER_RESERVATION", "OVER_ENTITLEMENT", "BEHIND_OTHERS",
		"NO_HOST_FITS", "MAX_RUNNING", "BEING_PLACED", "NO_HOST_MATCHES", "OVER_USER_LIMIT", "OVER_CONTROLLER_LIMIT", "NO_SLACK",
	}
	if int(k) >= len(names) {
		return "UNKNOWN"
	}
	return names[k]
}

// Label names a kind for metrics, as the command line does.
func (k PendingKind) Label() string {
	return [numPendingKinds]string{
		"", "no-cluster", "never-fits", "backing-off", "reservation", "entitlement", "queue", "placement", "window", "being-placed", "no-matching-host",
		"user-limit", "controller-limit", "slack",
	}[k]
}

// PendingReason says why Instances of a job wait.
type PendingReason struct {
	Kind      PendingKind
	Instances int
	Message   string // one sentence with the figures that matter
	// Resource and the two quantities are set for PendingEntitlement and the limits: the scarcest kind.
	Resource  string
	Needed    int64
	Available int64
	Hosts     placement.Reasons // for PendingPlacement and PendingNeverFits
	Position  int               // for PendingQueue: entries ahead, itself not counted
	NotBefore int64             // for PendingBackoff: the earliest
	StartBy   int64             // of the first in line, with back-fill: when it starts at the latest if run times are right; 0: nobody knows
}

// Explanation answers why a job is where it is.
type Explanation struct {
	Job      JobView
	Pool     PoolView
	Dominant PendingKind // 0: nothing waits
	Reasons  []PendingReason
	Gangs    []GangView
	Position int // in its pool's queue, from 1; 0: not queued
	Queued   int // entries in the queue
	// Remedies are single changes of which each may let it start, the smallest first, at most maxRemedies. ExplainJob alone looks for them
	// and makes the estimate.
	Remedies []Remedy
	Start    estimate.Start // of the next of its instances that waits for its pool
	At       int64          // when Start was estimated; 0: it was not, or nothing waits
	Notes    []string       // what was not looked at, and why: sentences for people
}

// JobFilter selects jobs. Zero fields select all.
type JobFilter struct {
	Pools  []workload.PoolID // any of these; a subtree is given as all its pools
	States []workload.JobState
	Kinds  []workload.Kind
	Owner  string
	Name   string
	Labels map[string]string
}

// TaskFilter selects instances of one job.
type TaskFilter struct {
	States    []workload.InstanceState
	RunStates []workload.RunState
	Host      workload.HostID
}

// Reader answers questions about one consistent state. It is valid only inside the function it was given to.
type Reader struct{ s *State }

// Reader returns a reader of the state as it is.
func (s *State) Reader() Reader { return Reader{s} }
