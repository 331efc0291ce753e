package main

import (
	"context"
	"errors"
	"time"

	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// watched counts the runs of the batch job from its events.
type watched struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	live   map[string]bool
	ended  int
	most   int
}

// watch begins to count; it returns once the watch is open, so that nothing is missed.
func watch(ctx context.Context, c *client.Client) *watched {
	ctx, cancel := context.WithCancel(ctx)
	w := &watched{cancel: cancel, done: make(chan struct{}), live: map[string]bool{}}
	open := make(chan struct{})
	go func() {
		defer close(w.done)
		first := true
		w.err = c.Watch(ctx, &pacelinev1.WatchEventsRequest{Kinds: []pacelinev1.EventKind{pacelinev1.EventKind_EVENT_KIND_TASK}},
			func(r *pacelinev1.WatchEventsResponse) error {
				if first {
					first = false
					close(open)
				}
				for _, e := range r.GetEvents() {
					w.count(e.GetTask())
				}
				if w.ended == 500 {
					cancel()
				}
				return nil
			})
	}()
	select {
	case <-open:
	case <-w.done:
	case <-time.After(2 * time.Second): // servers that say nothing first have opened it by now
	}
	return w
}

func (w *watched) count(t *pacelinev1.TaskChange) {
	if t.GetJobName() != "squares" {
		return
	}
	switch t.GetRunState() {
	case pacelinev1.RunState_RUN_STATE_PLACED, pacelinev1.RunState_RUN_STATE_LAUNCHING, pacelinev1.RunState_RUN_STATE_STARTING,
		pacelinev1.RunState_RUN_STATE_RUNNING:
		w.live[t.GetRunId()] = true
		w.most = max(w.most, len(w.live))
	default:
		if w.live[t.GetRunId()] {
			delete(w.live, t.GetRunId())
			w.ended++
		}
	}
}

// close waits for the last event and returns what was counted.
func (w *watched) close() (ended, most int, err error) {
	select {
	case <-w.done:
	case <-time.After(patience):
		w.cancel()
		<-w.done
	}
	w.cancel()
	if w.err != nil && !errors.Is(w.err, context.Canceled) {
		err = w.err
	}
	return w.ended, w.most, err
}
