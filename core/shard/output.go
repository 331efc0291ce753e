package shard

import (
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// Output is what Handle has to say. The caller keeps one and hands it in again: Replies and Calls are valid until then, while what they
// point to belongs to the receiver for good.
type Output struct {
	// Epoch is the one to stamp Replies with: the shard's, or that of the refused message which they answer.
	Epoch   Epoch
	Replies []Reply
	Calls   []Call
	// NextWake is when the machine wants a Wake, on the clock of Handle; 0: not before another message.
	NextWake int64
	// Demand is driver.Demander.Demand; nil: it is as it was.
	Demand *bool
}

func (o *Output) reset(epoch Epoch) {
	clear(o.Replies)
	clear(o.Calls)
	*o = Output{Epoch: epoch, Replies: o.Replies[:0], Calls: o.Calls[:0]}
}

func (o *Output) reply(r Reply) { o.Replies = append(o.Replies, r) }
func (o *Output) call(c Call)   { o.Calls = append(o.Calls, c) }

// Call is something that the driver has to do. Calls are made in order.
type Call interface{ shardCall() }

// The calls.
type (
	// LaunchCall is driver.Driver.Launch. Its failure comes back as LaunchFailed.
	LaunchCall struct{ Launches []driver.Launch }
	// KillCall is driver.Driver.Kill.
	KillCall struct{ Kills []driver.Kill }
	// AckCall is driver.Driver.Acknowledge.
	AckCall struct{ Tokens []driver.Token }
	// ReconcileCall is driver.Reconciler.Reconcile.
	ReconcileCall struct{ Runs []workload.RunID }
)

func (LaunchCall) shardCall()    {}
func (KillCall) shardCall()      {}
func (AckCall) shardCall()       {}
func (ReconcileCall) shardCall() {}

// Stats are what a machine holds, and counts since it was made.
type Stats struct {
	Hosts int // known, those with a fault included
	Held  int // leases
	// Pledged is how many of them are pledges.
	Pledged int
	Runs    int // runs that the cluster or the core knows, ended ones until they are acknowledged

	Placed             uint64 // tasks that got a lease
	Refused            uint64 // tasks that got none
	RefusedAssignments uint64 // placements that the check of a placer's output refused
	RefusedLaunches    uint64
	ExpiredLeases      uint64
	StaleMessages      uint64 // of the core, refused for their epoch
	IgnoredMessages    uint64 // out of turn, or repeated
	RefusedHosts       uint64 // without a usable name, or over MaxRows
	RefusedStatuses    uint64 // of a state that no driver may report
}
