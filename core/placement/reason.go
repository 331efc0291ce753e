package placement

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

var reasonNames = [NumReasons]string{
	"not_ready", "draining", "host_pool", "constraint", "cpu", "memory", "disk", "gpu", "gpu_model", "named_resource", "ports",
	"affinity", "spread", "exclusive", "gang",
}

func (r Reason) String() string {
	if r >= NumReasons {
		return "unknown"
	}
	return reasonNames[r]
}

// Reasons counts hosts by the reason for which they refused a class. The counts sum to Hosts.
type Reasons struct {
	Hosts  int // hosts looked at
	Counts [NumReasons]int
	// NeverFits says that no host would take the task even if it were empty.
	NeverFits bool
	// GangLargest is, for a refused gang, how many members would have found room.
	GangLargest int
}
