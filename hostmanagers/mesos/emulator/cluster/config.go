package cluster

import (
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
)

// Config says what cluster is emulated. Zero fields take the defaults of a real master.
type Config struct {
	// MasterID is the prefix of all ids; a UUID. Default: one made from Seed.
	MasterID string
	// Hostname, IP and Port are what the master says of itself. Defaults: "master.local", "127.0.0.1", 5050.
	Hostname, IP string
	Port         int
	// Version is the version string. Default: "1.12.0", the one recorded.
	Version string
	// Domain is the master's fault domain, if it has one.
	Domain *mesos.DomainInfo
	// Seed decides the ids that a real master draws.
	Seed uint64

	// AllocationInterval is the pause between two runs of the allocator, AllocationTime what a run takes. Defaults: 1 s, 1.7 ms.
	AllocationInterval, AllocationTime time.Duration
	// FirstAllocation is when the allocator first runs by itself, after the start. Default: AllocationInterval.
	FirstAllocation time.Duration
	// Heartbeat is the interval of heartbeats on a subscription. Default: 15 s.
	Heartbeat time.Duration
	// OfferTimeout is after what offers are rescinded. Default: never.
	OfferTimeout time.Duration
	// PingTimeout and MaxPings say when an agent that is gone counts as unreachable. Defaults: 15 s, 5.
	PingTimeout time.Duration
	MaxPings    int
	// FirstFramework and FirstOffer are the numbers of the first ones.
	FirstFramework, FirstOffer int

	// Order is called with the agents' hostnames before the allocator goes through them, and may change their order; a real master shuffles.
	// Default: in the order in which they registered.
	Order func(hostnames []string)
	// Behave says how a task's process behaves. Default: nil, which leaves processes to the caller, see Start.
	Behave func(*mesos.TaskInfo) Behaviour
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) setDefaults() {
	setDefault(&c.Hostname, "master.local")
	setDefault(&c.IP, "127.0.0.1")
	setDefault(&c.Port, 5050)
	setDefault(&c.Version, "1.12.0")
	setDefault(&c.AllocationInterval, time.Second)
	setDefault(&c.AllocationTime, 1700*time.Microsecond)
	setDefault(&c.FirstAllocation, c.AllocationInterval)
	setDefault(&c.Heartbeat, 15*time.Second)
	setDefault(&c.PingTimeout, 15*time.Second)
	setDefault(&c.MaxPings, 5)
}

// Forever is a Behaviour.For of a process that ends when it is killed.
const Forever = time.Duration(-1)

// Behaviour is what a process does in virtual time.
type Behaviour struct {
	// Start is from the launch to TASK_STARTING, Run from there to TASK_RUNNING, For from there to its own end, or Forever.
	Start, Run, For time.Duration
	// Status is how it ends.
	Status ExitStatus
	// Term is from a signal to the process's end; IgnoresTerm means that only SIGKILL ends it.
	Term        time.Duration
	IgnoresTerm bool
	// EndSignal is the signal by which it ends when it is sent SIGTERM or SIGKILL. Default: that one.
	EndSignal int
	// FetchFails means that its artefacts cannot be fetched.
	FetchFails bool
	// Checks are the results of its health check or check, in order.
	Checks []CheckResult
}

// CheckResult is one result of a health check or check.
type CheckResult struct {
	After    time.Duration // since TASK_RUNNING
	ExitCode int           // 0 is healthy
}

// ExitStatus is how a process ended: by itself with a code, or by a signal.
type ExitStatus struct {
	Code   int
	Signal int // 0: none
}

// Agent is what an agent says of itself when it registers.
type Agent struct {
	// ID is the id that it was given before; "": it is given the next one.
	ID         string
	Hostname   string
	IP         string // default: 127.0.0.1
	Port       int    // default: 5051
	Resources  []mesos.Resource
	Attributes []mesos.Attribute
	Domain     *mesos.DomainInfo
	// HTTPExecutor means that command tasks heed the kill policy of a KILL call (the agent's flag --http_command_executor).
	HTTPExecutor bool
	// Tasks are those that it runs for a master that no longer exists.
	Tasks []Survivor
}

// Survivor is a running task that an agent brings along.
type Survivor struct {
	FrameworkID, Role string
	Info              *mesos.TaskInfo
}
