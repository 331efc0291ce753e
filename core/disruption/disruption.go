// Package disruption is the one place that says whether an instance may be taken down by choice. Rolling restarts and preemption ask it, and
// whoever else is going to end healthy work on purpose has to.
//
// It owns the arithmetic of budgets and the reasons of refusals, never what is done about one: who asked tries again later, or chooses another
// instance. It is pure; every function may be called concurrently.
package disruption

import (
	"fmt"
	"math"

	"github.com/paceline-sched/paceline/core/workload"
)

// Job is what a budget follows from.
type Job struct {
	Kind           workload.Kind
	MaxUnavailable uint32
	// ByRun counts the job's instances that are wanted, by the state of their present or last run.
	ByRun *[workload.NumRunStates]uint32
	// Healthy counts those that are RUNNING and healthy. An instance that runs and cannot serve is down.
	Healthy uint32
}

// Refusal says why an instance must stay up.
type Refusal uint8

// The refusals.
const (
	Allowed Refusal = iota
	Never           // max_unavailable is 0
	UsedUp          // as many instances as it allows are down already, for whatever reason
)

func (r Refusal) String() string {
	return [...]string{"allowed", "max_unavailable is 0", "max_unavailable is used up", "unknown"}[min(r, UsedUp+1)]
}

// Budget is where a job stands.
type Budget struct {
	Unavailable uint32 // wanted instances that are down
	Limit       uint32 // of them; math.MaxUint32: none
}

// Limits reports whether jobs of a kind have a limit. Only services do: a batch run that ends is tried again, and a daemon is one to a host.
func Limits(kind workload.Kind) bool { return kind == workload.Service }

// BudgetOf counts.
func BudgetOf(j Job) Budget {
	b := Budget{Limit: math.MaxUint32}
	if Limits(j.Kind) {
		b.Limit = j.MaxUnavailable
	}
	for state, n := range j.ByRun {
		if workload.RunState(state).Traits().Unavailable {
			b.Unavailable += n
		}
	}
	if running := j.ByRun[workload.RunRunning]; running > j.Healthy {
		b.Unavailable += running - j.Healthy
	}
	return b
}

// Left is how many more instances may be taken down.
func (b Budget) Left() uint32 {
	switch {
	case b.Limit == math.MaxUint32:
		return b.Limit
	case b.Unavailable >= b.Limit:
		return 0
	}
	return b.Limit - b.Unavailable
}

// May answers for one instance. One that is down already may be ended: nothing becomes worse.
func (b Budget) May(run workload.RunState, healthy bool) Refusal {
	switch {
	case run.Traits().Unavailable || !healthy || b.Left() > 0:
		return Allowed
	case b.Limit == 0:
		return Never
	}
	return UsedUp
}

// MayAll answers for several instances that go down together, of which up are up. It is Never if the limit is below that.
func (b Budget) MayAll(up uint32) Refusal {
	switch {
	case up == 0 || up <= b.Left():
		return Allowed
	case up > b.Limit:
		return Never
	}
	return UsedUp
}

// Explain puts a refusal into words.
func (b Budget) Explain(r Refusal) string {
	if r == UsedUp {
		return fmt.Sprintf("%d of its instances are down, and max_unavailable is %d", b.Unavailable, b.Limit)
	}
	return r.String()
}
