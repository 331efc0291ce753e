// Package master speaks to a Mesos master as one framework, and keeps the subscription up.
//
// It owns connections and nothing else: which master leads (several addresses, redirects, ZooKeeper), the event stream and its heartbeats, the
// stream id that every call carries, authentication and TLS, and the waits between attempts. What events mean and which calls to make is the
// caller's. It speaks protobuf only, because the JSON codec of mesos-go refuses what a current master says.
//
// Concurrency: Run is called once and owns the stream; it calls the Handler from its own goroutine, one call at a time. Call may be called
// from any goroutine, also from a Handler.
package master

import (
	"errors"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// ErrNotSubscribed is returned by calls while there is no subscription, and by those that the master refuses because theirs is no more. The
// call was not taken.
var ErrNotSubscribed = errors.New("the framework is not subscribed to a Mesos master")

// ErrRemoved ends Run: the master has removed the framework, and its id is of no use any more.
var ErrRemoved = errors.New("the Mesos master has removed the framework")

// Handler is told what a master says.
type Handler interface {
	// Subscribed begins a subscription, the first or another: offers of the one before are void.
	Subscribed(id mesos.FrameworkID, master mesos.MasterInfo)
	// Event is anything but SUBSCRIBED and HEARTBEAT, in the order of the stream. The event is the handler's to keep.
	Event(*scheduler.Event)
	// Lost ends a subscription; the next one is being tried for.
	Lost(reason error)
}

// Identity keeps a framework's id, so that a restarted process is the same framework.
type Identity interface {
	// Load returns the id, or "" if there is none yet.
	Load() (string, error)
	// Save makes an id durable. It is called before the first Subscribed of that id.
	Save(id string) error
}
