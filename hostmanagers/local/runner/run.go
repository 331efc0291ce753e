package runner

import (
	"encoding/json"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// Phase is how far a run has come.
type Phase uint8

// The phases.
const (
	preparing Phase = iota // being written; nobody has heard of it
	Accepted               // durable; certain to be started
	Started                // its process lives
	Ended                  // nothing of it lives
)

// Run is a snapshot of one run.
type Run struct {
	Spec  *shim.Spec // shared; not to be changed
	Phase Phase
	Start *shim.Start // from Started on, unless it never came so far
	Exit  *shim.Exit  // with Ended
	// Marked is what Mark left.
	Marked       bool
	Acknowledged bool
}

// Spec says what to run, in the terms of a runner's owner.
type Spec struct {
	ID      string // also a directory name, see shim.CheckID
	Command []string
	Env     []string // complete; "NAME=value"
	Limits  Limits
	Owner   json.RawMessage // found again in Run.Spec.Owner
}

// Limits are enforced through cgroups where Runner.Limits says so. Zero: none.
type Limits = shim.Limits

// run is what the runner keeps of a run. Runner.mu guards it, but for spec and dir, which never change.
type run struct {
	dir  string
	spec *shim.Spec

	written bool // its directory was made; only Launch looks

	phase  Phase
	told   Phase // the last phase that the observer heard of
	queued bool  // in Runner.news
	start  *shim.Start
	exit   *shim.Exit
	kill   *shim.Kill
	pidfd  *pidfd // of the living shim, once known
	marked bool
	acked  bool
}

func (r *run) snapshot(phase Phase) Run {
	s := Run{Spec: r.spec, Phase: phase, Marked: r.marked, Acknowledged: r.acked}
	if phase >= Started {
		s.Start = r.start
	}
	if phase >= Ended {
		s.Exit = r.exit
	}
	return s
}

// killGrace turns a duration into the record's unit, within the record's bounds.
func killGrace(grace time.Duration) int64 { return min(max(0, grace), MaxGrace).Milliseconds() }
