package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// beat is the longest that a watch is silent.
const beat = 15 * time.Second

type eventService struct{ cell *cell }

var _ pacelinev1connect.EventServiceHandler = (*eventService)(nil)

func (s *eventService) WatchEvents(ctx context.Context, request *connect.Request[pacelinev1.WatchEventsRequest], stream *connect.ServerStream[pacelinev1.WatchEventsResponse]) error {
	w, err := s.newWatch(ctx, request.Msg)
	if err != nil {
		return err
	}
	at := s.cell.cursor(s.cell.engine.Revision())
	at.filters = filterHash(request.Msg, "cursor")
	if request.Msg.GetCursor() != "" {
		if at.revision, err = at.resume(request.Msg.GetCursor()); err != nil {
			return err
		}
	}
	subscription, err := s.cell.engine.Watch(at.revision, w.match)
	if err != nil {
		return err
	}
	defer subscription.Close()
	for {
		if err := stream.Send(&pacelinev1.WatchEventsResponse{Cursor: at.String(), Events: w.events}); err != nil {
			return err
		}
		if err := w.next(ctx, subscription); err != nil {
			return err
		}
		at.revision = w.revision
	}
}

// watch is one open watch. Its memory is one page of events and the paths of the pools that it met, of which a cell has at most
// respool.MaxPools.
type watch struct {
	cell   *cell
	access *access
	kinds  []pacelinev1.EventKind
	job    workload.JobID // zero: any
	top    string         // path of the subtree; "": any

	paths map[workload.PoolID]string
	stale bool // a pool changed, so paths may have

	events   []*pacelinev1.Event
	revision uint64
}

func (s *eventService) newWatch(ctx context.Context, in *pacelinev1.WatchEventsRequest) (*watch, error) {
	w := &watch{cell: s.cell, access: accessOf(ctx), kinds: in.GetKinds(), paths: map[workload.PoolID]string{}}
	if in.GetJob() != "" {
		job, err := s.cell.job(ctx, in.GetJob(), nil)
		if err != nil {
			return nil, err
		}
		w.job = job.view.ID
	}
	var missing error
	err := s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		for _, pool := range r.Pools(auth.Root) { // so that the last word about a pool finds its path when it is gone
			w.paths[pool.Pool.ID] = pool.Path
		}
		if in.GetPool() == "" || in.GetPool() == auth.Root {
			return
		}
		pool, ok := findPool(r, in.GetPool())
		if !ok || !w.access.principal.Allows(auth.Viewer, pool.Path) {
			missing = missingPool(in.GetPool())
		}
		w.top = pool.Path
	})
	return w, errors.Join(err, missing)
}

var eventKinds = map[scheduler.ChangeKind]pacelinev1.EventKind{
	scheduler.ChangeJob: pacelinev1.EventKind_EVENT_KIND_JOB, scheduler.ChangeJobDeleted: pacelinev1.EventKind_EVENT_KIND_JOB,
	scheduler.ChangeTask: pacelinev1.EventKind_EVENT_KIND_TASK, scheduler.ChangePool: pacelinev1.EventKind_EVENT_KIND_POOL,
	scheduler.ChangePoolDeleted: pacelinev1.EventKind_EVENT_KIND_POOL, scheduler.ChangeHost: pacelinev1.EventKind_EVENT_KIND_HOST,
}

// match is what can be told without the path of a pool. It sees every change, in order.
func (w *watch) match(c *scheduler.Change) bool {
	kind, known := eventKinds[c.Kind]
	if kind == pacelinev1.EventKind_EVENT_KIND_POOL {
		w.stale = true
	}
	switch {
	case !known, len(w.kinds) > 0 && !slices.Contains(w.kinds, kind), w.job != workload.JobID{} && c.Job != w.job,
		w.top != "" && kind == pacelinev1.EventKind_EVENT_KIND_HOST:
		return false
	}
	return true
}

// next waits for events, at most for a beat.
func (w *watch) next(ctx context.Context, subscription *engine.Subscription) error {
	bounded, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	page, err := subscription.Next(bounded)
	if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	if err := w.access.renew(); err != nil { // a watch may outlive the rights of its caller
		return err
	}
	if err := w.findPaths(ctx, page.Changes); err != nil {
		return err
	}
	w.revision, w.events = page.Revision, w.events[:0]
	for i := range page.Changes {
		c := &page.Changes[i]
		if w.admits(&c.Change) {
			w.events = append(w.events, eventToWire(c, w.paths[c.Pool]))
		}
	}
	return nil
}

// findPaths learns where the pools of changes stand now. The path of a pool that is gone stays the last one known.
func (w *watch) findPaths(ctx context.Context, changes []engine.Event) error {
	ask := map[workload.PoolID]bool{}
	for i := range changes {
		if id := changes[i].Pool; id != (workload.PoolID{}) {
			if _, known := w.paths[id]; !known || w.stale {
				ask[id] = true
			}
		}
	}
	if len(ask) == 0 {
		return nil
	}
	if w.stale {
		for id := range w.paths {
			ask[id] = true
		}
	}
	err := w.cell.engine.Read(ctx, func(r scheduler.Reader) {
		for id := range ask {
			if pool, ok := r.PoolByID(id); ok {
				w.paths[id] = pool.Path
			}
		}
	})
	w.stale = err != nil
	return err
}

// admits reports whether the caller may see and asked for a change. What belongs to a pool of which not even a former path is known
// is for those who see everything.
func (w *watch) admits(c *scheduler.Change) bool {
	if c.Kind == scheduler.ChangeHost {
		return true
	}
	path := w.paths[c.Pool]
	return w.access.principal.Allows(auth.Viewer, path) && (w.top == "" || path == w.top || strings.HasPrefix(path, w.top+"/"))
}

func eventToWire(e *engine.Event, pool string) *pacelinev1.Event {
	out := &pacelinev1.Event{Revision: e.Revision, Time: timeToWire(e.At), Principal: e.Principal, Message: e.Message}
	switch e.Kind {
	case scheduler.ChangeJob, scheduler.ChangeJobDeleted:
		out.Change = &pacelinev1.Event_Job{Job: &pacelinev1.JobChange{
			JobId: e.Job.String(), JobName: e.Name, PoolId: e.Pool.String(), Pool: pool, State: jobStateToWire(e.JobState),
			Goal: goalToWire(e.Goal), Reason: reasonToWire(e.Reason), Version: e.Version, Deleted: e.Kind == scheduler.ChangeJobDeleted,
		}}
	case scheduler.ChangeTask:
		change := &pacelinev1.TaskChange{
			JobId: e.Job.String(), JobName: e.Name, PoolId: e.Pool.String(), Pool: pool, Instance: e.Run.Instance,
			State: instanceStateToWire(e.State), RunState: runStateToWire(e.RunState), Healthy: e.Healthy, Reason: reasonToWire(e.Reason),
		}
		if e.Run.Run != 0 {
			change.RunId, change.ExitCode = e.Run.String(), exitCode(e.RunState, e.ExitCode)
		}
		if e.Host != (workload.HostID{}) {
			change.HostId = e.Host.String()
		}
		out.Change = &pacelinev1.Event_Task{Task: change}
	case scheduler.ChangePool, scheduler.ChangePoolDeleted:
		out.Change = &pacelinev1.Event_Pool{Pool: &pacelinev1.PoolChange{
			PoolId: e.Pool.String(), Name: e.Name, Pool: pool, Version: e.Version, Deleted: e.Kind == scheduler.ChangePoolDeleted,
		}}
	case scheduler.ChangeHost:
		out.Change = &pacelinev1.Event_Host{Host: &pacelinev1.HostChange{HostId: e.Host.String(), Name: e.Name}}
	}
	return out
}
