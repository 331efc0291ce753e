package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// How failed calls are tried again. A launch is never: its failure is the machine's to answer. While the driver is out of contact the others
// wait for it, and start afresh when it is back.
const (
	callTimeout  = 30 * time.Second
	maxAttempts  = 8
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
	maxRetrying  = 1024 // calls that wait to be tried again; one more is given up at once
)

// job is a call on its way to the driver.
type job struct {
	call    shard.Call
	attempt int   // those made so far
	due     int64 // when to try again
}

// result is what became of a job.
type result struct {
	job job
	err error
}

// makeCalls makes the driver's calls in order until ctx ends.
func (r *Runtime) makeCalls(ctx context.Context) {
	for {
		var j job
		select {
		case j = <-r.jobs:
		case <-ctx.Done():
			return
		}
		j.attempt++
		begun := r.config.Clock.Now()
		err := r.makeCall(ctx, j.call)
		if r.config.Hooks.Called != nil {
			r.config.Hooks.Called(j.info(time.Duration(r.config.Clock.Now()-begun), err))
		}
		select {
		case r.results <- result{j, err}:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Runtime) makeCall(ctx context.Context, call shard.Call) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch c := call.(type) {
	case shard.LaunchCall:
		return r.config.Driver.Launch(ctx, c.Launches)
	case shard.KillCall:
		return r.config.Driver.Kill(ctx, c.Kills)
	case shard.AckCall:
		return r.config.Driver.Acknowledge(ctx, c.Tokens)
	case shard.ReconcileCall:
		if reconciler, ok := r.config.Driver.(driver.Reconciler); ok {
			return reconciler.Reconcile(ctx, c.Runs)
		}
	}
	return fmt.Errorf("the driver cannot %T", call)
}

func (j job) info(took time.Duration, err error) CallInfo {
	info := CallInfo{Attempt: j.attempt, Took: took, Err: err}
	switch c := j.call.(type) {
	case shard.LaunchCall:
		info.Call, info.Items = "launch", len(c.Launches)
	case shard.KillCall:
		info.Call, info.Items = "kill", len(c.Kills)
	case shard.AckCall:
		info.Call, info.Items = "acknowledge", len(c.Tokens)
	case shard.ReconcileCall:
		info.Call, info.Items = "reconcile", len(c.Runs)
	}
	return info
}

// backoff is the wait after so many attempts.
func backoff(attempts int) time.Duration {
	return min(firstBackoff<<min(attempts-1, 16), maxBackoff)
}

// launchFailed is the message for a launch that the driver refused.
func launchFailed(c shard.LaunchCall, err error) shard.Message {
	runs := make([]workload.RunID, len(c.Launches))
	for i := range c.Launches {
		runs[i] = c.Launches[i].Run
	}
	return shard.LaunchFailed{Runs: runs, Reason: clip(err.Error())}
}
