// Package master speaks to a Mesos master as one framework, and keeps the subscription up.
//
// It owns connections and nothing else: which master leads (several addresses, redirects, ZooKeeper), the event stream and its heartbeats, the
// stream id that every call carries, authentication and TLS, and the waits between attempts. What events mean and which calls to make is the
// caller's. It speaks protobuf only, because the JSON codec of mesos-go refuses what a current master says.
//
// Concurrency: Run is called once and owns the stream; it calls the Handler from its own goroutine, one call at a time. All other methods may
// be called from any goroutine, also from a Handler.
package master

import (
	"errors"
	"fmt"
	"net/http"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// ErrNotSubscribed is returned by calls while there is no subscription, and by those that the master refuses because theirs is no more. The
// call was not taken.
var ErrNotSubscribed = errors.New("the framework is not subscribed to a Mesos master")

// ErrUnanswered is returned by a call that was sent and whose answer did not come: the master may have taken it or not. Events, or a
// reconciliation, will tell. Every other error of a call says that it was not taken.
var ErrUnanswered = errors.New("the Mesos master did not answer; it may have taken the call")

// ErrRemoved ends Run: the master has removed the framework, and its id is of no use any more.
var ErrRemoved = errors.New("the Mesos master has removed the framework")

// ErrReplaced ends Run: another process has subscribed with this framework's id.
var ErrReplaced = errors.New("another process has subscribed to the Mesos master with this framework's id")

// RefusedError is a master's refusal, in its own words.
type RefusedError struct {
	// Code is the HTTP status, or 0 for an ERROR event in answer to a subscription.
	Code int
	// Text is what the master says.
	Text string
}

func (e *RefusedError) Error() string {
	switch {
	case e.Code == 0:
		return "the Mesos master refuses the framework: " + e.Text
	case e.Code == http.StatusUnauthorized:
		return fmt.Sprintf("the Mesos master answers %d: it does not know the principal with this secret; check both", e.Code)
	case e.Code == http.StatusNotFound:
		return fmt.Sprintf("the answer is %d %s: no Mesos master is there; check the address", e.Code, http.StatusText(e.Code))
	case e.Text == "":
		return fmt.Sprintf("the Mesos master answers %d %s", e.Code, http.StatusText(e.Code))
	default:
		return fmt.Sprintf("the Mesos master answers %d: %s", e.Code, e.Text)
	}
}

// Handler is told what a master says.
type Handler interface {
	// Subscribed begins a subscription, the first or another: offers of the one before are void.
	Subscribed(id mesos.FrameworkID, master mesos.MasterInfo)
	// Event is anything but SUBSCRIBED and HEARTBEAT, in the order of the stream. The event is the handler's to keep.
	Event(*scheduler.Event)
	// Lost ends a subscription; the next one is being tried for, unless Run returns.
	Lost(reason error)
}

// Identity keeps a framework's id, so that a restarted process is the same framework.
type Identity interface {
	// Load returns the id, or "" if there is none yet.
	Load() (string, error)
	// Save makes an id durable. It is called before the first Subscribed of that id.
	Save(id string) error
}
