// Package shard is the pure machine that owns a part of one cluster's hosts: their table, the leases on it, and the placement
// of batches of work.
//
// It is driven by Machine.Handle with one message at a time and the time; it answers with replies for the core and with calls
// for the driver. It never blocks, sleeps, draws randomness or starts goroutines; hostmanagers/shard gives it a clock, a queue and a
// driver. A Machine has one owner and is not safe for concurrent use.
package shard

import (
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// ID names a shard in its cell: "<cluster>/<number>".
type ID string

// Epoch fences a shard's owner and the core's leader at once: a message under a lower epoch than the highest seen is refused.
type Epoch struct {
	Cell  uint64 // grows with every start or take-over of the core
	Shard uint64 // grows with every assignment of the shard
}

// Less orders epochs by cell, then by shard.
func (e Epoch) Less(o Epoch) bool {
	return e.Cell < o.Cell || (e.Cell == o.Cell && e.Shard < o.Shard)
}

// Lease names room taken on a host. Leases are unique in a shard's life under one epoch.
type Lease uint64

// Message is what a Machine handles.
type Message interface{ shardMessage() }

// The messages from the core. Every one carries the epoch under which it was sent.
type (
	// Assign makes the receiver the shard's owner under Epoch and forgets every held lease. The shard answers no placement until the core's bound runs
	// were replayed and the driver's inventory has arrived. Named are the core's extended resources in kind order: the shard reads every
	// vector of the core by them. Watches and draining marks of a former core are forgotten: state them again before Replay's Done.
	Assign struct {
		Epoch Epoch
		Named []string
	}
	// Names extends the extended resources of Assign. The core sends it before the first class or host mark that speaks of a new one; hosts
	// whose capacity had unnamed resources are reported again.
	Names struct {
		Epoch Epoch
		Named []string
	}
	// Replay gives the shard the runs that the core has bound to its hosts. Done closes the list.
	Replay struct {
		Epoch Epoch
		Bound []BoundRun
		Done  bool
	}
	// Adopt gives the shard the runs on hosts that it has now and another shard of the cluster had before.
	Adopt struct {
		Epoch Epoch
		Bound []BoundRun
	}
	// Place asks for hosts for a batch of classes. Requests are served in order, each to the end.
	Place struct {
		Epoch    Epoch
		Batch    uint64
		Requests []PlaceRequest
	}
	// Preempt asks for room that others have to leave first. What is found is pledged: a lease whose room is booked at once, so that nobody else
	// gets it, and that can be launched on when it is free. The shard ends nobody; that is for the core to do, or to release the pledge.
	// PledgeReady says when a pledge is free. A pledge ends by Launch, Release, Assign or after PledgeTTL.
	Preempt struct {
		Epoch    Epoch
		Batch    uint64
		Now      int64 // the core's time, by which Started of runs is measured
		Requests []preemption.Request
	}
	// Launch starts runs whose records are durable, each on the room that its lease holds. A launch whose lease has run out is answered
	// with LaunchRefused. It turns the lease into one bound to the run.
	Launch struct {
		Epoch    Epoch
		Launches []LaunchRun
	}
	// Kill ends runs.
	Kill struct {
		Epoch Epoch
		Kills []driver.Kill
	}
	// Release gives back leases that nobody will launch on.
	Release struct {
		Epoch  Epoch
		Leases []Lease
	}
	// Acknowledge passes on that statuses are durable.
	Acknowledge struct {
		Epoch  Epoch
		Tokens []driver.Token
	}
	// Watch states the daemon selectors whose matching hosts the core wants to hear of; it replaces the former list. A selector that is new,
	// or came with another class, is answered with its whole list; the others go on as before.
	Watch struct {
		Epoch     Epoch
		Selectors []Selector
	}
	// SetDraining marks hosts on which nothing new may be placed, or lifts the mark. A mark may come before its host does.
	SetDraining struct {
		Epoch    Epoch
		Hosts    []workload.HostID
		Draining bool
	}
)

// The messages from the driver and the runtime.
type (
	// InventoryArrived is driver.Sink.Inventory.
	InventoryArrived struct{ Inventory driver.Inventory }
	// HostsUpdated is driver.Sink.HostsChanged.
	HostsUpdated struct {
		Changed []driver.Host
		Removed []string
	}
	// HostsMoved says that hosts belong to another shard of the cluster now. The core learns it from that one, which is given their runs.
	HostsMoved struct{ Hosts []string }
	// StatusesArrived is driver.Sink.Statuses.
	StatusesArrived struct{ Statuses []driver.Status }
	// DriverLost is driver.Sink.Disconnected.
	DriverLost struct{ Reason string }
	// LaunchFailed says that the driver's Launch returned an error: nothing was started.
	LaunchFailed struct {
		Runs   []workload.RunID
		Reason string
	}
	// Wake lets the machine expire leases; the runtime sends it at the time that Handle returned.
	Wake struct{}
)

func (Assign) shardMessage()           {}
func (Names) shardMessage()            {}
func (Replay) shardMessage()           {}
func (Adopt) shardMessage()            {}
func (HostsMoved) shardMessage()       {}
func (Place) shardMessage()            {}
func (Preempt) shardMessage()          {}
func (Launch) shardMessage()           {}
func (Kill) shardMessage()             {}
func (Release) shardMessage()          {}
func (Acknowledge) shardMessage()      {}
func (Watch) shardMessage()            {}
func (SetDraining) shardMessage()      {}
func (InventoryArrived) shardMessage() {}
func (HostsUpdated) shardMessage()     {}
func (StatusesArrived) shardMessage()  {}
func (DriverLost) shardMessage()       {}
func (LaunchFailed) shardMessage()     {}
func (Wake) shardMessage()             {}

// BoundRun is a run with the room it holds, as the core's records have it.
type BoundRun struct {
	Run     workload.RunID
	Host    workload.HostID
	Class   *placement.Class
	Devices placement.DeviceSet
	Ports   []uint16
	Started int64             // UTC nanoseconds; 0: it was not known to run
	State   workload.RunState // RunPlaced: never sent, so the cluster's ignorance of it proves that it never ran
}

// PlaceRequest asks for Count hosts for tasks of one class.
type PlaceRequest struct {
	Class *placement.Class
	Count int
	Gang  bool            // all or none
	Host  workload.HostID // a daemon's host; zero: any
	Seed  uint64
	// Unit, Within and Want are of gangs, see placement.Request.
	Unit   uint32
	Within placement.Within
	Want   int
	// DryRun asks where the tasks would go (placement.Native.Plan): the assignments carry no lease and the table stays as it was. The dry runs of
	// one Trial take room from one another, those of different ones do not. Of a gang there are up to Want assignments.
	DryRun bool
	Trial  uint32
	// Pool, Priority and Revocable are of the tasks, see placement.Request.
	Pool      string
	Priority  int32
	Revocable bool
}

// LaunchRun is one launch on a lease.
type LaunchRun struct {
	Lease  Lease
	HostID workload.HostID
	Launch driver.Launch // its Host is filled in by the shard
}

// Selector is what a daemon's hosts must match. Its class's constraints decide; its needs do not.
type Selector struct {
	Job   workload.JobID
	Class *placement.Class
}

// Reply is what a Machine tells the core. The runtime stamps it with the shard's id and epoch.
type Reply interface{ shardReply() }

// The replies.
type (
	// Ready says that the shard may be asked to place.
	Ready struct{}
	// NotReady says that it may not: its driver is out of contact.
	NotReady struct{ Reason string }
	// Hosts reports hosts that appeared or changed and hosts that went. Complete marks the whole list of the shard, after an inventory.
	Hosts struct {
		Changed  []HostSummary
		Removed  []workload.HostID
		Complete bool
	}
	// Placed answers one batch: per request, in order, what was found.
	Placed struct {
		Batch   uint64
		Results []PlaceResult
	}
	// Pledged answers one Preempt: per request, in order, what was found. Of a dry run nothing is pledged and leases are zero.
	Pledged struct {
		Batch   uint64
		Results []PledgeResult
	}
	// PledgeReady names pledges whose room is free.
	PledgeReady struct{ Leases []Lease }
	// RunStatus is one status of a bound run. The shard makes one of its own, with Token 0, for a run whose host left the cluster.
	RunStatus struct{ Status driver.Status }
	// RunsMissing names bound runs that a complete inventory does not know, though their hosts are there and ready, or of which the cluster said nothing
	// within answerWithin. The core decides by their state what that means.
	RunsMissing struct{ Runs []workload.RunID }
	// Foreign names runs that the cluster has and the core does not: left over from a lost record or another owner. The core has the live ones killed and
	// acknowledges the ended ones. RunLaunching is the shard's own word: it was sent under a former core and has not been heard of.
	Foreign struct{ Statuses []driver.Status }
	// LaunchRefused says that runs were not started and never will be under that launch.
	LaunchRefused struct {
		Runs    []workload.RunID
		Reason  workload.Reason
		Message string
	}
	// Matches reports changes of the hosts that match a daemon's selector. Complete marks the whole list.
	Matches struct {
		Job      workload.JobID
		Added    []workload.HostID
		Removed  []workload.HostID
		Complete bool
	}
)

func (Ready) shardReply()         {}
func (NotReady) shardReply()      {}
func (Hosts) shardReply()         {}
func (Placed) shardReply()        {}
func (Pledged) shardReply()       {}
func (PledgeReady) shardReply()   {}
func (RunStatus) shardReply()     {}
func (RunsMissing) shardReply()   {}
func (Foreign) shardReply()       {}
func (LaunchRefused) shardReply() {}
func (Matches) shardReply()       {}

// HostSummary is what the core knows of a host.
type HostSummary struct {
	ID         workload.HostID
	Name       string
	Attributes map[string]string
	HostPool   string
	Capacity   resource.Vector
	Unnamed    map[string]int64 // capacity of resources that neither Assign nor Names has named yet
	Foreign    resource.Vector
	Devices    []driver.Device
	Ready      bool
	Draining   bool
	Message    string
	ClusterID  string            // driver.Host.ID
	Details    map[string]string // driver.Host.Details
}

// PlaceResult is what became of one PlaceRequest.
type PlaceResult struct {
	Assignments []Assignment      // at most Count; of a gang's dry run at most Want
	Refused     int               // Count - len(Assignments)
	Reasons     placement.Reasons // why, when there are fewer than were asked for
	Nearest     Nearest           // of a dry run, when Refused > 0
}

// Assignment is room for one task, held until Expires on the shard's clock.
type Assignment struct {
	Lease   Lease
	Host    workload.HostID
	Devices placement.DeviceSet
	Ports   []uint16 // in the order of the class's port needs
}

// PledgeResult is what became of one preemption.Request.
type PledgeResult struct {
	Pledges []Pledge
	Refused int // Count - len(Pledges)
}

// Pledge is room for one task once its victims are gone, of a gang those on this host.
type Pledge struct {
	Assignment
	Victims []workload.RunID
}

// The bounds of a shard.
const (
	// PledgeTTL is how long a pledge lasts at most: the core gives it up earlier if those who have to go do not.
	PledgeTTL = time.Hour
	// MaxPledges bounds the pledges of a shard.
	MaxPledges = 4 * MaxBatch
	// LeaseTTL is how long a held lease lasts: long against a commit, short against a user's patience.
	LeaseTTL = 30 * time.Second
	// demandLinger is how long after it was last asked for hosts a shard tells its driver that work waits: longer than a core lets work
	// wait before it asks again, which is up to 38 s where nothing has changed.
	demandLinger = 45 * time.Second
	// MaxRows bounds the hosts of one shard; score exactness is per shard.
	MaxRows = 16384
	// MaxBatch bounds the tasks of one Place message.
	MaxBatch = 4096
)
