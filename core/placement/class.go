package placement

import (
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// ClassID is the content hash of everything in a Class that bears on placement: equal ids mean interchangeable tasks.
type ClassID uint64

// Class is a set of tasks that placement cannot tell apart: same needs, constraints, preferences and strategy. Build one with
// NewClass; it is immutable afterwards.
type Class struct {
	ID        ClassID
	Kind      workload.Kind
	Needs     resource.Vector
	GPUModels []string
	Ports     []uint16 // one per port need; 0: any free port
	Labels    map[string]string
	Placement workload.Placement
	Job       workload.JobID // set when Spread or Exclusive make the class the job's own; zero otherwise
}

// DeviceSet is the GPUs that a task was given: a bit per device of the host.
type DeviceSet uint16

// MaxDevices bounds the GPUs of one host.
const MaxDevices = 16

// Reason is why a host cannot take a task. A host is counted under the first that applies, in this order.
type Reason uint8

// The reasons, in order of precedence.
const (
	ReasonNotReady Reason = iota
	ReasonDraining
	ReasonHostPool
	ReasonConstraint
	ReasonCPU
	ReasonMemory
	ReasonDisk
	ReasonGPU       // not enough free devices or share
	ReasonGPUModel  // no device of an allowed model
	ReasonNamed     // an extended resource
	ReasonPorts     // a fixed port is taken or the range is used up
	ReasonAffinity  // a required affinity finds no match, or an anti-affinity does
	ReasonSpread    // max_skew
	ReasonExclusive // other work is there, or exclusive work
	ReasonGang      // each member fits somewhere, the whole gang does not
	NumReasons
)

// Reasons counts hosts by the reason for which they refused a class.
type Reasons struct {
	Hosts  int // hosts looked at
	Counts [NumReasons]int
	// NeverFits says that no host would take the task even if it were empty.
	NeverFits bool
	// GangLargest is, for a refused gang, how many members would have found room.
	GangLargest int
}
