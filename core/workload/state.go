package workload

// RunState is where one run of an instance stands.
type RunState uint8

// The run states. A run begins at RunPlaced and ends in one of the terminal states, once.
const (
	RunNone        RunState = iota // the instance has no run
	RunPlaced                      // bound to a host by a durable record; not yet sent
	RunLaunching                   // sent to the cluster; no word back
	RunStarting                    // the cluster has it and is preparing it
	RunRunning                     // its process lives
	RunKilling                     // a kill was sent; no word of its end
	RunUnreachable                 // its host is out of contact; it may still live
	RunSucceeded                   // ended with exit code 0
	RunFailed                      // ended otherwise, or could not be started
	RunKilled                      // ended because Paceline killed it
	RunPreempted                   // ended because it made room for other work
	RunLost                        // its host or cluster declared it gone
	numRunStates
)

// RunTraits says what a run state means to the ledgers. It is the one table that every package asks.
type RunTraits struct {
	Name        string
	Holds       bool // holds its resources on the host
	Charges     bool // counts as usage of its pool
	Unavailable bool // a service instance in it counts against max_unavailable
	Terminal    bool // the run ended; no later status may change it
}

var runTraits = [numRunStates]RunTraits{
	RunNone:        {Name: "NONE", Unavailable: true},
	RunPlaced:      {Name: "PLACED", Holds: true, Charges: true, Unavailable: true},
	RunLaunching:   {Name: "LAUNCHING", Holds: true, Charges: true, Unavailable: true},
	RunStarting:    {Name: "STARTING", Holds: true, Charges: true, Unavailable: true},
	RunRunning:     {Name: "RUNNING", Holds: true, Charges: true},
	RunKilling:     {Name: "KILLING", Holds: true, Charges: true, Unavailable: true},
	RunUnreachable: {Name: "UNREACHABLE", Holds: true, Charges: true, Unavailable: true},
	RunSucceeded:   {Name: "SUCCEEDED", Unavailable: true, Terminal: true},
	RunFailed:      {Name: "FAILED", Unavailable: true, Terminal: true},
	RunKilled:      {Name: "KILLED", Unavailable: true, Terminal: true},
	RunPreempted:   {Name: "PREEMPTED", Unavailable: true, Terminal: true},
	RunLost:        {Name: "LOST", Unavailable: true, Terminal: true},
}

// Traits returns the row of the table for s. A state outside the enum has the traits of RunNone.
func (s RunState) Traits() RunTraits {
	if s >= numRunStates {
		return runTraits[RunNone]
	}
	return runTraits[s]
}

func (s RunState) String() string { return s.Traits().Name }

// Live reports whether a run in s exists in a cluster or may exist there.
func (s RunState) Live() bool { return s.Traits().Holds }

// InstanceState is where one instance stands, apart from its runs.
type InstanceState uint8

// The instance states.
const (
	InstancePending    InstanceState = iota // waits for admission or placement
	InstanceAdmitted                        // inside its pool's entitlement; a shard is asked for a host (never stored: a restart finds it PENDING)
	InstanceActive                          // has a live run
	InstanceBackingOff                      // its run failed; waits before it becomes PENDING again
	InstanceDone                            // reached its goal
	InstanceFailed                          // gave up: retries exhausted, or the gang failed
	InstanceStopped                         // stopped on request
	numInstanceStates
)

var instanceStateNames = [numInstanceStates]string{"PENDING", "ADMITTED", "ACTIVE", "BACKING_OFF", "DONE", "FAILED", "STOPPED"}

func (s InstanceState) String() string {
	if s >= numInstanceStates {
		return "UNKNOWN"
	}
	return instanceStateNames[s]
}

// Terminal reports whether an instance in s stays there unless somebody asks for more.
func (s InstanceState) Terminal() bool { return s >= InstanceDone }

// NumInstanceStates sizes arrays of counts by instance state.
const NumInstanceStates = int(numInstanceStates)

// NumRunStates sizes arrays of counts by run state.
const NumRunStates = int(numRunStates)

// JobState is where a job stands as a whole.
type JobState uint8

// The job states.
const (
	JobPending   JobState = iota // nothing of it has run yet
	JobRunning                   // some instance has or had a run
	JobStopping                  // its goal is stopped; live runs are being killed
	JobSucceeded                 // every instance is DONE
	JobFailed                    // ended with at least one instance FAILED, or past its deadline
	JobStopped                   // stopped on request
	numJobStates
)

var jobStateNames = [numJobStates]string{"PENDING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "STOPPED"}

func (s JobState) String() string {
	if s >= numJobStates {
		return "UNKNOWN"
	}
	return jobStateNames[s]
}

// Terminal reports whether the job has ended.
func (s JobState) Terminal() bool { return s >= JobSucceeded }

// Reason says why a run or instance came to be where it is. Reasons are data: their text is for people, their number is for
// records, so numbers are never reused.
type Reason uint8

// The reasons.
const (
	ReasonNone              Reason = iota
	ReasonExited                   // the process ended by itself
	ReasonSignalled                // a signal that Paceline did not send ended the process
	ReasonUnhealthy                // its health check failed too often
	ReasonLaunchFailed             // the cluster could not start it
	ReasonLaunchRefused            // the lease had run out or the shard's epoch was stale; tried again
	ReasonLaunchTimeout            // no word of it within the launch time-out
	ReasonStopRequested            // a user stopped the job
	ReasonRestartRequested         // a user restarted it
	ReasonDeadline                 // the job's deadline passed
	ReasonGangFailed               // another member of its gang failed
	ReasonHostLost                 // its host left the cluster
	ReasonHostUnreachable          // its host is out of contact
	ReasonNotFound                 // the cluster does not know it
	ReasonMemoryExceeded           // killed for using more memory than it asked for
	ReasonHostNoMatch              // a daemon's host no longer matches
	ReasonPreempted                // made room for other work
	ReasonNoRetriesLeft            // failed more often than max_retries
	ReasonHostReturnedEmpty        // its host restarted and came back without it
	ReasonDuplicate                // the cluster already knew a run of that id
	ReasonPortTaken                // a port it was given was in use by a foreign process
	numReasons
)

// NumReasons is one more than the highest reason.
const NumReasons = uint8(numReasons)

var reasonNames = [numReasons]string{
	"", "EXITED", "SIGNALLED", "UNHEALTHY", "LAUNCH_FAILED", "LAUNCH_REFUSED", "LAUNCH_TIMEOUT", "STOP_REQUESTED",
	"RESTART_REQUESTED", "DEADLINE", "GANG_FAILED", "HOST_LOST", "HOST_UNREACHABLE", "NOT_FOUND", "MEMORY_EXCEEDED",
	"HOST_NO_MATCH", "PREEMPTED", "NO_RETRIES_LEFT", "HOST_RETURNED_EMPTY", "DUPLICATE", "PORT_TAKEN",
}

func (r Reason) String() string {
	if r >= numReasons {
		return "UNKNOWN"
	}
	return reasonNames[r]
}
