// Package lifecycle decides what becomes of an instance: given what its job wants and where it stands, the one action that
// brings it closer. The whole decision is two tables, so that it can be read, printed and tested row by row.
//
// It owns goal state and back-off arithmetic. It never keeps state and never acts: the scheduler applies its answers. Every function
// is pure and may be called concurrently.
package lifecycle

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
)

// Goal is what is wanted of one instance.
type Goal uint8

// The goals of an instance.
const (
	Run   Goal = iota // batch: to completion; service and daemon: for ever
	Renew             // replace the live run by a new one
	Stop              // no live run
	numGoal
)

func (g Goal) String() string { return [...]string{"run", "renew", "stop", "?"}[min(g, numGoal)] }

// Action is one step towards a goal. Every action is idempotent.
type Action uint8

// The actions.
const (
	None    Action = iota
	Enqueue        // make it PENDING in its pool's queue
	Kill           // end its live run
	Halt           // mark it STOPPED: it has no live run
)

func (a Action) String() string { return [...]string{"none", "enqueue", "kill", "halt"}[min(a, Halt)] }

// Next is the goal table: what to do about an instance in this state. killing says that its live run is being killed already.
//
//	goal   PENDING  ADMITTED  ACTIVE  killing  BACKING_OFF  DONE  FAILED  STOPPED
//	run    enqueue  none      none    none     none         none  none    none
//	renew  enqueue  none      kill    none     none         none  none    none
//	stop   halt     halt      kill    none     halt         none  none    none
//
// BACKING_OFF under run becomes PENDING by its timer, not by this table.
func Next(goal Goal, state workload.InstanceState, killing bool) Action {
	if state == workload.InstanceActive && killing {
		return None
	}
	switch {
	case state.Terminal():
		return None
	case state == workload.InstanceActive && goal != Run:
		return Kill
	case state != workload.InstanceActive && goal == Stop:
		return Halt
	case state == workload.InstancePending:
		return Enqueue
	}
	return None
}

// Ending is how a run ended, seen by the instance it belonged to.
type Ending struct {
	Kind       workload.Kind
	State      workload.RunState // terminal
	Reason     workload.Reason
	Failures   uint32 // counted so far, this one not included
	MaxRetries uint32
	Attempts   uint32 // endings in a row that it was tried again after, this one not included
	// OnPreemption says what becomes of an instance whose run made room for others.
	OnPreemption workload.PreemptionAction
}

// Verdict is what an ended run makes of its instance.
type Verdict struct {
	State workload.InstanceState
	// Counts says that the ending is a failure of the task itself and uses up a retry.
	Counts bool
	Reason workload.Reason
}

// After is the table of endings: what an instance becomes whose goal is Run. (Under Stop it always becomes STOPPED, except that a
// batch run which succeeded stays DONE.)
//
//	ending                    batch                       service, daemon
//	SUCCEEDED                 DONE                        BACKING_OFF
//	FAILED                    BACKING_OFF while retries   BACKING_OFF
//	                          are left, else FAILED
//	KILLED for a restart      PENDING                     PENDING
//	LOST, launch refused,     PENDING                     PENDING
//	  for the first time
//	PREEMPTED, on_preemption  FAILED                      FAILED
//	  is kill
//	KILLED, LOST, PREEMPTED   BACKING_OFF, not counted    BACKING_OFF, not counted
//	  by anything else
func After(e Ending) Verdict {
	batch, failed := e.Kind == workload.Batch, e.State == workload.RunFailed
	switch {
	case batch && e.State == workload.RunSucceeded:
		return Verdict{State: workload.InstanceDone}
	case batch && failed && e.Failures >= e.MaxRetries:
		return Verdict{State: workload.InstanceFailed, Counts: true, Reason: workload.ReasonNoRetriesLeft}
	case e.State == workload.RunPreempted && e.OnPreemption == workload.PreemptKill:
		return Verdict{State: workload.InstanceFailed, Reason: e.Reason}
	case e.Reason == workload.ReasonRestartRequested && !failed && e.State != workload.RunSucceeded:
		return Verdict{State: workload.InstancePending, Reason: e.Reason}
	case e.State == workload.RunLost && e.Reason == workload.ReasonLaunchRefused && e.Attempts == 0:
		return Verdict{State: workload.InstancePending, Reason: e.Reason} // it never ran, and there may be room elsewhere
	}
	return Verdict{State: workload.InstanceBackingOff, Counts: failed, Reason: e.Reason}
}

// StableAfter is how long a run must have been RUNNING for its instance's next failure to back off from the start again.
const StableAfter = 10 * time.Minute

// The defaults of a retry policy.
const (
	DefaultInitialBackoff = time.Second
	DefaultMaxBackoff     = 5 * time.Minute
)

// Backoff is the delay before the run that follows the given number of failures in a row (from 1): exponential from
// policy.Initial, capped by policy.Max, spread by up to a quarter either way. The spread is a hash of seed and run, so a replay
// sees the same delay.
func Backoff(policy workload.RetryPolicy, attempt uint32, seed uint64, run workload.RunID) time.Duration {
	first, ceiling := policy.Initial, policy.Max
	if first <= 0 {
		first = DefaultInitialBackoff
	}
	if ceiling <= 0 {
		ceiling = DefaultMaxBackoff
	}
	delay := min(first, ceiling)
	for n := uint32(1); n < attempt && delay < ceiling; n++ {
		if delay > ceiling/2 { // the double might leave int64
			delay = ceiling
			break
		}
		delay *= 2
	}
	h := fnv.New64a()
	var key [64]byte
	b := binary.BigEndian.AppendUint64(key[:0], seed)
	b = binary.BigEndian.AppendUint32(run.AppendKey(b), attempt)
	_, _ = h.Write(b) // a hash never fails
	spread := int64(delay) / 2
	if spread == 0 {
		return delay
	}
	return delay - time.Duration(spread/2) + time.Duration(h.Sum64()%uint64(spread))
}
