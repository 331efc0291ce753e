package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

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
	now := s.cell.engine.Revision()
	at := s.cell.cursor(now)
	at.filters = filterHash(request.Msg, "cursor", "since", "until_now")
	switch {
	case request.Msg.GetCursor() != "":
		at.revision, err = at.resume(request.Msg.GetCursor())
	case request.Msg.GetSince() != nil:
		at.revision, err = s.cell.engine.RevisionAt(request.Msg.GetSince().AsTime())
	}
	if err != nil {
		return err
	}
	w.still = request.Msg.GetUntilNow()
	subscription, err := s.cell.engine.Watch(at.revision, w.match)
	if err != nil {
		return err
	}
	defer subscription.Close()
	w.revision, w.binary = at.revision, !strings.HasSuffix(stream.Conn().RequestHeader().Get("Content-Type"), "json")
	for {
		at.revision = w.revision
		if err := stream.Send(w.response(at.String())); err != nil {
			return err
		}
		if w.still && w.revision >= now {
			return nil
		}
		if err := w.next(ctx, subscription); err != nil {
			return w.explain(err)
		}
	}
}

// watch is one open watch. Its memory is one page of events.
type watch struct {
	cell   *cell
	access *access
	kinds  []pacelinev1.EventKind
	job    workload.JobID // zero: any
	top    string         // path of the subtree; "": any
	binary bool           // the stream's messages are no JSON
	still  bool           // it does not wait

	paths *poolPaths
	needs uint64 // paths have to be of this revision or later
	stale bool   // a pool changed, so paths may have

	page     []engine.Event // of it, what the caller may see and asked for
	revision uint64
}

// response is the page as a message. Events that are sent in binary are encoded once for all watches, and a message that has them as bytes is
// one with a field that it does not know: Marshal copies it.
func (w *watch) response(cursor string) *pacelinev1.WatchEventsResponse {
	out := &pacelinev1.WatchEventsResponse{Cursor: cursor}
	var raw []byte
	for i := range w.page {
		e := &w.page[i]
		path := w.paths.of[e.Pool]
		if !w.binary {
			out.Events = append(out.Events, eventToWire(e, path))
			continue
		}
		raw = append(raw, e.Encoded(path, func() []byte { return encodeEvent(e, path) })...)
	}
	if len(raw) > 0 {
		out.ProtoReflect().SetUnknown(raw)
	}
	return out
}

// encodeEvent returns an event as it stands in the bytes of a WatchEventsResponse. An event that cannot be encoded is a defect.
func encodeEvent(e *engine.Event, path string) []byte {
	raw, err := proto.Marshal(&pacelinev1.WatchEventsResponse{Events: []*pacelinev1.Event{eventToWire(e, path)}})
	if err != nil {
		panic(fmt.Sprintf("api: encode the event of revision %d: %v", e.Revision, err))
	}
	return raw
}

// explain tells a watch that lost its place while it was open from one that asked for too old a place.
func (w *watch) explain(err error) error {
	if !errors.Is(err, engine.ErrCompacted) {
		return err
	}
	return refuse(connect.CodeOutOfRange, "list again and watch from the list's cursor; watch less, or read faster",
		"the watch fell behind: the events after revision %d are no longer kept", w.revision)
}

func (s *eventService) newWatch(ctx context.Context, in *pacelinev1.WatchEventsRequest) (*watch, error) {
	w := &watch{cell: s.cell, access: accessOf(ctx), kinds: in.GetKinds()}
	if in.GetJob() != "" {
		job, err := s.cell.job(ctx, in.GetJob(), nil)
		if err != nil {
			return nil, err
		}
		w.job = job.view.ID
	}
	w.needs = s.cell.engine.Revision() // what changed before the watch begins, it is not told
	err := w.findPaths(ctx)
	if err != nil || in.GetPool() == "" || in.GetPool() == auth.Root {
		return w, err
	}
	var missing error
	err = s.cell.engine.Read(ctx, func(r scheduler.Reader) {
		pool, ok := findPool(r, in.GetPool())
		if !ok || !w.access.principal.Allows(auth.Viewer, pool.Path) {
			missing = missingPool(in.GetPool())
		}
		w.top = pool.Path
	})
	return w, errors.Join(err, missing)
}

var eventKinds = [...]pacelinev1.EventKind{
	scheduler.ChangeJob: pacelinev1.EventKind_EVENT_KIND_JOB, scheduler.ChangeJobDeleted: pacelinev1.EventKind_EVENT_KIND_JOB,
	scheduler.ChangeTask: pacelinev1.EventKind_EVENT_KIND_TASK, scheduler.ChangePool: pacelinev1.EventKind_EVENT_KIND_POOL,
	scheduler.ChangePoolDeleted: pacelinev1.EventKind_EVENT_KIND_POOL, scheduler.ChangeHost: pacelinev1.EventKind_EVENT_KIND_HOST, scheduler.ChangeHostForgotten: pacelinev1.EventKind_EVENT_KIND_HOST,
	scheduler.ChangeCluster: pacelinev1.EventKind_EVENT_KIND_CLUSTER, scheduler.ChangeClusterDeleted: pacelinev1.EventKind_EVENT_KIND_CLUSTER,
}

// ofCell reports whether objects of a kind belong to no pool: whoever may see anything sees them.
func ofCell(kind pacelinev1.EventKind) bool {
	return kind == pacelinev1.EventKind_EVENT_KIND_HOST || kind == pacelinev1.EventKind_EVENT_KIND_CLUSTER
}

// match is what can be told without the path of a pool. It sees every change, in order.
func (w *watch) match(c *scheduler.Change) bool {
	if int(c.Kind) >= len(eventKinds) {
		return false
	}
	kind := eventKinds[c.Kind]
	if kind == pacelinev1.EventKind_EVENT_KIND_POOL {
		w.stale = true
	}
	switch {
	case kind == pacelinev1.EventKind_EVENT_KIND_UNSPECIFIED, w.job != workload.JobID{} && c.Job != w.job,
		w.top != "" && ofCell(kind), len(w.kinds) > 0 && !slices.Contains(w.kinds, kind):
		return false
	}
	return true
}

// next waits for events, at most for a beat.
func (w *watch) next(ctx context.Context, subscription *engine.Subscription) error {
	bounded, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	wait := subscription.Next
	if w.still {
		wait = subscription.Poll
	}
	page, err := wait(bounded)
	if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	if err := w.access.renew(); err != nil { // a watch may outlive the rights of its caller
		return err
	}
	if w.stale {
		w.needs, w.stale = page.Revision, false
	}
	if err := w.findPaths(ctx); err != nil {
		return err
	}
	w.revision = page.Revision
	w.page = slices.DeleteFunc(page.Changes, func(e engine.Event) bool { return !w.admits(e.Change) })
	return nil
}

// findPaths learns where pools stand, when that may have changed.
func (w *watch) findPaths(ctx context.Context) (err error) {
	if w.paths == nil || w.paths.revision < w.needs {
		w.paths, err = w.cell.paths.get(ctx, w.cell.engine, w.needs)
	}
	return err
}

// admits reports whether the caller may see and asked for a change. What belongs to a pool of which not even a former path is known
// is for those who see everything.
func (w *watch) admits(c *scheduler.Change) bool {
	if ofCell(eventKinds[c.Kind]) {
		return true
	}
	path := w.paths.of[c.Pool]
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
	case scheduler.ChangeCluster, scheduler.ChangeClusterDeleted:
		out.Change = &pacelinev1.Event_Cluster{Cluster: &pacelinev1.ClusterChange{
			Name: e.Name, Version: e.Version, Deleted: e.Kind == scheduler.ChangeClusterDeleted,
		}}
	case scheduler.ChangeHost, scheduler.ChangeHostForgotten:
		out.Change = &pacelinev1.Event_Host{Host: &pacelinev1.HostChange{
			HostId: e.Host.String(), Name: e.Name, Forgotten: e.Kind == scheduler.ChangeHostForgotten,
		}}
	}
	return out
}
