package policy

import (
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Kind is a kind of resource. Named resources come after the four that every cell has; Table.Named finds them.
type Kind int

// The kinds that every cell has, in the units of Table.Shift.
const (
	CPU    Kind = iota // thousandths of a core
	Memory             // MiB
	Disk               // MiB
	GPU                // thousandths of a GPU
)

const (
	// Span is the cost of the whole scale: Leftover and FreeShare of an empty host, and a hundred points of a preference's weight.
	Span = policyabi.ScoreSpan
	// Point is a hundredth of it.
	Point = Span / 100
)

// ByColumn is a policy whose cost is a column of the table: the fastest there is, because a host that is too dear is passed over without a look at its room.
type ByColumn interface {
	// Order names the column, which must be one of int32, and says whether the largest value is the cheapest: then it costs Span less the value. It is asked
	// of the registered policy, so configuration does not move it.
	Order() (column string, descending bool)
}

// Scorer prices one host at a time.
type Scorer interface {
	// Cost is what a task of the request costs on a host that has room for it. The lowest goes first, the lowest row among equals. A scale of 0 to Span
	// lets preferences, in Points, weigh as users mean them. It must depend on that host alone, and on what does not change while a request is
	// served.
	Cost(r *Request, h Host) int64
}

// BlockScorer is a Scorer for many hosts at once, with the columns at hand.
type BlockScorer interface {
	// Costs sets costs[i] to what a task costs on row rows[i], as Scorer's Cost would.
	Costs(t *Table, r *Request, rows []int32, costs []int64)
}

// Filter refuses hosts that have room. Without a scorer beside it the cheapest is the host with the least left over.
type Filter interface {
	Allow(r *Request, h Host) bool
}

// Preparer is told of each request before its hosts are looked at.
type Preparer interface {
	Prepare(t *Table, r *Request)
}

// DeviceChooser chooses among the GPUs of a host.
type DeviceChooser interface {
	// Devices returns which of the open ones, r.Devices of them, a task gets. Without it shares go to the device with the least free that is
	// enough, and whole devices in order.
	Devices(r *Request, h Host, open Devices) Devices
}

// Placer places a whole batch in its own way.
type Placer interface {
	// Place serves the requests of the call in order. An error refuses the whole call; see Refusal.
	Place(c *Call) error
}

// Ranker orders jobs whose work may have to make room. That revocable work goes before all other is not for it to say.
type Ranker interface {
	// Compare is negative when a goes before b, positive when b does, and 0 when they are alike. It must be an order.
	Compare(a, b *Candidate) int
}

// Quota says what pools are entitled to.
type Quota interface {
	// Entitle fills every Entitlement column. An error refuses the call; see Refusal.
	Entitle(p *Pools) error
}

// Router says which clusters the tasks of a request go to.
type Router interface {
	// Toll is what a cluster costs, the lowest goes first, and whether it will do at all.
	Toll(r *Request, c Cluster) (cost int64, ok bool)
}

// Starter is told once that its configuration is in place.
type Starter interface {
	// Start checks the configuration and makes what the policy works with. An error keeps the policy from being used.
	Start() error
}

// Refusal is an error by which a policy refuses a call for a reason of its own: a number that people find in its documentation.
type Refusal uint16

func (r Refusal) Error() string { return "refused for reason " + itoa(int64(r)) }

// Candidate is a job that may have to make room.
type Candidate = policyabi.Candidate
