package cluster

import (
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
)

// Effect is something that the caller has to do, in the order of TakeEffects.
type Effect interface{ effect() }

// Deliver is an event for a subscriber.
type Deliver struct {
	Stream string
	Event  *scheduler.Event
}

// Close ends a subscription, after everything that was delivered before.
type Close struct {
	Stream string
	Broken bool // without a proper end
}

// Start asks for a process; Started and Ended report on it. Only without Config.Behave.
type Start struct {
	Container string
	Task      *mesos.TaskInfo
}

// Signal asks to end a process: politely, or at once. Only without Config.Behave.
type Signal struct {
	Container string
	Kill      bool
}

func (Deliver) effect() {}
func (Close) effect()   {}
func (Start) effect()   {}
func (Signal) effect()  {}

// Refusal is why a call is not accepted. The code is HTTP's, the text the answer's body.
type Refusal struct {
	Code int
	Text string
}

func (r *Refusal) Error() string { return r.Text }

func badRequest(text string) *Refusal { return &Refusal{Code: 400, Text: text} }

// timer is something that will happen, unless it was stopped.
type timer struct {
	at   time.Time
	seq  uint64
	do   func()
	slot int // in the heap; -1: not there
}

// timers is a heap by time, then by age.
type timers []*timer

func (t timers) Len() int { return len(t) }

func (t timers) Less(i, j int) bool {
	if !t[i].at.Equal(t[j].at) {
		return t[i].at.Before(t[j].at)
	}
	return t[i].seq < t[j].seq
}

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].slot, t[j].slot = i, j
}

// Push is heap.Interface's.
func (t *timers) Push(x any) {
	added := x.(*timer) //nolint:errcheck // container/heap passes on what this package pushes
	added.slot = len(*t)
	*t = append(*t, added)
}

// Pop is heap.Interface's.
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	last.slot = -1
	return last
}
