package shard

import (
	"time"

	"github.com/paceline-sched/paceline/core/shard"
)

// Hooks are told what a runtime does. Any may be nil. They are called from the runtime's goroutines and must return quickly.
type Hooks struct {
	// Handled follows every message, on the loop's goroutine.
	Handled func(HandledInfo)
	// Called follows every call of the driver, on the caller's goroutine.
	Called func(CallInfo)
	// GaveUp says that a call's retries are used up, on the loop's goroutine.
	GaveUp func(CallInfo)
}

// HandledInfo describes one step of the machine.
type HandledInfo struct {
	Message string // kind of the message, from a fixed set
	Took    time.Duration
	Replies int
	Calls   int
	// What waits now.
	QueuedMessages int
	QueuedReplies  int
	QueuedCalls    int
	Stats          shard.Stats
}

// CallInfo describes one call of the driver.
type CallInfo struct {
	Call    string // launch, kill, acknowledge or reconcile
	Items   int    // runs or tokens in it
	Attempt int    // from 1
	Took    time.Duration
	Err     error
}

// kind names the kind of a message, for metrics.
func kind(m shard.Message) string {
	switch m.(type) {
	case shard.Assign:
		return "assign"
	case shard.Names:
		return "names"
	case shard.Replay:
		return "replay"
	case shard.Adopt:
		return "adopt"
	case shard.HostsMoved:
		return "hosts_moved"
	case shard.Place:
		return "place"
	case shard.Launch:
		return "launch"
	case shard.Kill:
		return "kill"
	case shard.Release:
		return "release"
	case shard.Acknowledge:
		return "acknowledge"
	case shard.Watch:
		return "watch"
	case shard.SetDraining:
		return "set_draining"
	case shard.InventoryArrived:
		return "inventory"
	case shard.HostsUpdated:
		return "hosts"
	case shard.StatusesArrived:
		return "statuses"
	case shard.DriverLost:
		return "driver_lost"
	case shard.LaunchFailed:
		return "launch_failed"
	case shard.Wake:
		return "wake"
	}
	return "unknown"
}
