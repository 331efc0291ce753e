package api_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

var errEnough = errors.New("seen enough")

// collect watches until the events hold what is looked for, and returns them with the last cursor.
func (c *testCell) collect(cl *client.Client, request *pacelinev1.WatchEventsRequest, enough func([]*pacelinev1.Event) bool) ([]*pacelinev1.Event, string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	var events []*pacelinev1.Event
	var last string
	err := cl.Watch(ctx, request, func(r *pacelinev1.WatchEventsResponse) error {
		events = append(events, r.GetEvents()...)
		last = r.GetCursor()
		if enough(events) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		c.t.Errorf("watch %v ended with %v after %v", request, err, events)
	}
	return events, last
}

func describe(e *pacelinev1.Event) string {
	switch change := e.GetChange().(type) {
	case *pacelinev1.Event_Job:
		return fmt.Sprintf("job %s%s %v", change.Job.GetPool(), "/"+change.Job.GetJobName(), change.Job.GetState())
	case *pacelinev1.Event_Task:
		return fmt.Sprintf("task %d %v", change.Task.GetInstance(), change.Task.GetRunState())
	case *pacelinev1.Event_Pool:
		return fmt.Sprintf("pool %s deleted=%v", change.Pool.GetPool(), change.Pool.GetDeleted())
	case *pacelinev1.Event_Host:
		return "host " + change.Host.GetName()
	}
	return "?"
}

func has(events []*pacelinev1.Event, want string) bool {
	for _, e := range events {
		if describe(e) == want {
			return true
		}
	}
	return false
}

func TestWatchFromAList(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	list, err := root.Jobs.ListJobs(t.Context(), connect.NewRequest(&pacelinev1.ListJobsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.create(root, "name: a\ninstances: 2\nservice: {}\npreemptible: true\ntask: {command: [x]}"); err != nil {
		t.Fatal(err)
	}
	// The job was made before the watch begins: the cursor brings what happened since the list.
	request := &pacelinev1.WatchEventsRequest{Cursor: list.Msg.GetWatchCursor(), Pool: "/default"}
	events, last := c.collect(root, request, func(events []*pacelinev1.Event) bool {
		return has(events, "task 0 RUN_STATE_RUNNING") && has(events, "task 1 RUN_STATE_RUNNING") && has(events, "job /default/a JOB_STATE_RUNNING")
	})
	if len(events) == 0 {
		t.FailNow()
	}
	if describe(events[0]) != "job /default/a JOB_STATE_PENDING" || events[0].GetPrincipal() != "root" {
		t.Errorf("the first event is %v", events[0])
	}
	for i := 1; i < len(events); i++ {
		if events[i].GetRevision() < events[i-1].GetRevision() {
			t.Errorf("event %d is of an earlier revision than the one before", i)
		}
	}
	// Resumed, it tells only what comes after.
	request.Cursor = last
	if _, err := root.Jobs.StopJob(t.Context(), connect.NewRequest(&pacelinev1.StopJobRequest{Job: "a"})); err != nil {
		t.Fatal(err)
	}
	events, _ = c.collect(root, request, func(events []*pacelinev1.Event) bool { return has(events, "job /default/a JOB_STATE_STOPPED") })
	if has(events, "job /default/a JOB_STATE_PENDING") {
		t.Error("a resumed watch repeats what it told")
	}
	// With other filters the cursor is refused.
	request.Pool = ""
	err = root.Watch(t.Context(), request, func(*pacelinev1.WatchEventsResponse) error { return nil })
	c.want("another watch's cursor", err, connect.CodeInvalidArgument, "other filters")
	request.Cursor = "nonsense"
	err = root.Watch(t.Context(), request, func(*pacelinev1.WatchEventsResponse) error { return nil })
	c.want("a damaged cursor", err, connect.CodeInvalidArgument, "damaged")
}

// What happened since a time, up to now, ends by itself, with a cursor to go on from.
func TestWatchUntilNow(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	if _, err := c.create(root, "name: a\ninstances: 2\nservice: {}\ntask: {command: [x]}"); err != nil {
		t.Fatal(err)
	}
	read := func(request *pacelinev1.WatchEventsRequest) (events []*pacelinev1.Event, last string) {
		t.Helper()
		request.UntilNow = true
		err := root.Watch(t.Context(), request, func(r *pacelinev1.WatchEventsResponse) error {
			events, last = append(events, r.GetEvents()...), r.GetCursor()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return events, last
	}
	ever := &timestamppb.Timestamp{}
	events, cursor := read(&pacelinev1.WatchEventsRequest{Since: ever})
	if !has(events, "job /default/a JOB_STATE_PENDING") {
		t.Errorf("since ever: %v", events)
	}
	if events, _ := read(&pacelinev1.WatchEventsRequest{Since: ever, Kinds: []pacelinev1.EventKind{pacelinev1.EventKind_EVENT_KIND_CLUSTER}}); len(events) != 0 {
		t.Errorf("nothing happened to clusters, and yet %v", events)
	}
	if events, _ := read(&pacelinev1.WatchEventsRequest{}); has(events, "job /default/a JOB_STATE_PENDING") {
		t.Errorf("from now until now: %v", events)
	}
	if events, _ := read(&pacelinev1.WatchEventsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}); has(events, "job /default/a JOB_STATE_PENDING") {
		t.Errorf("since the future: %v", events)
	}
	if _, err := root.Jobs.StopJob(t.Context(), connect.NewRequest(&pacelinev1.StopJobRequest{Job: "a"})); err != nil {
		t.Fatal(err)
	}
	// The cursor is good without the bounds in time, too.
	events, _ = c.collect(root, &pacelinev1.WatchEventsRequest{Cursor: cursor}, func(events []*pacelinev1.Event) bool {
		return has(events, "job /default/a JOB_STATE_STOPPED")
	})
	if has(events, "job /default/a JOB_STATE_PENDING") {
		t.Error("what was told is told again")
	}
}

func TestWatchShowsOnlyWhatMayBeSeen(t *testing.T) {
	c := newTestCell(t, 4)
	root, ads := c.as(adminToken), c.as(adsToken)
	list, err := root.Pools.ListPools(t.Context(), connect.NewRequest(&pacelinev1.ListPoolsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, pool := range []string{`{path: /ads}`, `{path: /secret}`} {
		if _, err := c.apply(root, pool); err != nil {
			t.Fatal(err)
		}
	}
	for _, pool := range []string{"/secret", "/ads"} {
		if _, err := c.create(root, "name: a\npool: "+pool+"\nbatch: {}\ntask: {command: [x]}"); err != nil {
			t.Fatal(err)
		}
	}
	request := &pacelinev1.WatchEventsRequest{Cursor: list.Msg.GetWatchCursor()}
	events, _ := c.collect(ads, request, func(events []*pacelinev1.Event) bool { return has(events, "job /ads/a JOB_STATE_PENDING") })
	for _, e := range events {
		if pool := e.GetJob().GetPool() + e.GetTask().GetPool() + e.GetPool().GetPool(); pool != "/ads" && e.GetHost() == nil {
			t.Errorf("a submitter in /ads is told of %v", e)
		}
	}
	only := &pacelinev1.WatchEventsRequest{Cursor: list.Msg.GetWatchCursor(), Kinds: []pacelinev1.EventKind{pacelinev1.EventKind_EVENT_KIND_JOB}}
	events, _ = c.collect(root, only, func(events []*pacelinev1.Event) bool { return has(events, "job /ads/a JOB_STATE_PENDING") })
	for _, e := range events {
		if e.GetJob() == nil {
			t.Errorf("a watch of jobs is told of %s", describe(e))
		}
	}
	err = ads.Watch(t.Context(), &pacelinev1.WatchEventsRequest{Pool: "/secret"}, func(*pacelinev1.WatchEventsResponse) error { return nil })
	c.want("watching a pool out of sight", err, connect.CodeNotFound, "may not see it")
}

// TestWatchOfADeletedPool: the last event about a pool still says where it stood.
func TestWatchOfADeletedPool(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	if _, err := c.apply(root, `{path: /gone}`); err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{})
	done := make(chan struct{})
	var begun bool
	go func() {
		defer close(done)
		_, _ = c.collect(root, &pacelinev1.WatchEventsRequest{Pool: "/gone"}, func(events []*pacelinev1.Event) bool {
			if !begun {
				begun = true
				close(told)
			}
			return has(events, "pool /gone deleted=true")
		})
	}()
	<-told
	if _, err := c.apply(root, `{path: /gone, share: 2}`); err != nil {
		t.Fatal(err)
	}
	if _, err := root.Pools.DeletePool(t.Context(), connect.NewRequest(&pacelinev1.DeletePoolRequest{Pool: "/gone"})); err != nil {
		t.Fatal(err)
	}
	<-done
}

// TestRevokedTokenEndsWatches: a token that is taken from the file while a watch is open ends the watch.
func TestRevokedTokenEndsWatches(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	stream, err := c.as(adsToken).Events.WatchEvents(t.Context(), connect.NewRequest(&pacelinev1.WatchEventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	without, _, _ := strings.Cut(tokenFile, "  - {principal: ads")
	if err := os.WriteFile(c.tokens, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for stream.Receive() {
		}
		ended <- stream.Err()
	}()
	share := 1
	c.eventually("the watch has ended", func() bool {
		share++
		if _, err := c.apply(root, fmt.Sprintf("{path: /p, share: %d}", share)); err != nil { // an event now and then
			t.Error(err)
		}
		select {
		case err := <-ended:
			c.want("after the token was revoked", err, connect.CodeUnauthenticated, "no valid token")
			return true
		default:
			return false
		}
	})
}

// TestStopEndsWatches: a server that stops does not wait for watches, and tells their clients to come back.
func TestStopEndsWatches(t *testing.T) {
	c := newTestCell(t, 4)
	stream, err := c.as(adminToken).Events.WatchEvents(t.Context(), connect.NewRequest(&pacelinev1.WatchEventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	c.stop()
	for stream.Receive() {
	}
	c.want("after the stop", stream.Err(), connect.CodeUnavailable, "stopping")
}

// Events that are sent as bytes made once for all, and as JSON are the same events.
func TestWatchesOfAllFormsAgree(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	list, err := root.Jobs.ListJobs(t.Context(), connect.NewRequest(&pacelinev1.ListJobsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.apply(root, `{path: /ads}`); err != nil {
		t.Fatal(err)
	}
	if _, err := c.create(root, "name: a\npool: /ads\ninstances: 2\nservice: {}\npreemptible: true\ntask: {command: [x]}"); err != nil {
		t.Fatal(err)
	}
	cursor := list.Msg.GetWatchCursor()
	want, _ := c.collect(root, &pacelinev1.WatchEventsRequest{Cursor: cursor}, func(events []*pacelinev1.Event) bool {
		return has(events, "job /ads/a JOB_STATE_RUNNING") && has(events, "task 1 RUN_STATE_RUNNING") && has(events, "task 0 RUN_STATE_RUNNING")
	})
	for name, option := range map[string]connect.ClientOption{"JSON": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "Connect": connect.WithClientOptions()} {
		events := pacelinev1connect.NewEventServiceClient(c.http(), c.address, option)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		request := connect.NewRequest(&pacelinev1.WatchEventsRequest{Cursor: cursor})
		request.Header().Set("Authorization", "Bearer "+adminToken)
		stream, err := events.WatchEvents(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		var got []*pacelinev1.Event
		for len(got) < len(want) && stream.Receive() {
			got = append(got, stream.Msg().GetEvents()...)
		}
		if len(got) < len(want) {
			t.Fatalf("%s: %d events of %d, %v", name, len(got), len(want), stream.Err())
		}
		for n, e := range want {
			if !proto.Equal(got[n], e) || len(got[n].ProtoReflect().GetUnknown()) > 0 {
				t.Errorf("%s: event %d is %v, want %v", name, n, got[n], e)
			}
		}
		cancel()
		_ = stream.Close()
	}
}
