package sim

import (
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
)

// Interposer puts a fault of the program between its parts, so that a test can see whether the checkers notice. Nil fields change
// nothing.
type Interposer struct {
	// Early lets an external effect leave before the groups of its Step are durable.
	Early func(scheduler.Effect) bool
	// Commit changes what is written in the place of some groups.
	Commit func([]scheduler.Group) []scheduler.Group
	// Recover changes what a starting core learns from its disk.
	Recover func(*scheduler.Image)
	// Send changes a message to a shard.
	Send func(shard.Message) shard.Message
	// Reply changes a reply of a shard; current is the epoch that the core has assigned last.
	Reply func(r *scheduler.ShardReplied, current shard.Epoch)
	// Call changes a call of a driver; nil: it is not made.
	Call func(p *process, call shard.Call) shard.Call
	// Log changes what a watcher reads.
	Log func([]scheduler.ChangesRecord) []scheduler.ChangesRecord
}
