package emulator_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/encoding/codecs"
	"github.com/mesos/mesos-go/api/v1/lib/httpcli"
	"github.com/mesos/mesos-go/api/v1/lib/httpcli/httpsched"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler/calls"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// TestAClientOfMesosGoRunsProcesses subscribes with mesos-go over a real socket, launches commands that run as processes of this machine,
// and hears how they end.
func TestAClientOfMesosGoRunsProcesses(t *testing.T) {
	local, err := emulator.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e, err := emulator.New(emulator.Config{Processes: local})
	if err != nil {
		t.Fatal(err)
	}
	local.Serve(e)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	t.Cleanup(func() {
		e.Close()
		if err := errors.Join(<-served, local.Close()); err != nil {
			t.Error(err)
		}
	})
	e.Do(func(c *cluster.Cluster) { c.AddAgent(cluster.Agent{Hostname: "agent", Resources: plainAgent()}) })

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := newClient(t, "http://"+l.Addr().String()+"/api/v1/scheduler")
	got := f.run(ctx, t, map[string]string{"good": "test -d \"$MESOS_SANDBOX\"", "bad": "exit 3", "killed": "sleep 600"})
	want := map[string]mesos.TaskState{"good": mesos.TASK_FINISHED, "bad": mesos.TASK_FAILED, "killed": mesos.TASK_KILLED}
	for id, state := range want {
		if got[id] != state {
			t.Errorf("task %s ended %s, want %s", id, got[id], state)
		}
	}
}

// client is a framework on mesos-go.
type client struct {
	caller calls.Caller
	id     string
}

func newClient(t *testing.T, url string) *client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{caller: httpsched.NewCaller(httpcli.New(
		httpcli.Endpoint(url), httpcli.Codec(codecs.ByMediaType[codecs.MediaTypeProtobuf]), httpcli.Do(httpcli.With(httpcli.RoundTripper(transport))),
	))}
}

// run launches commands on the first offer, kills the task "killed" once it runs, and returns the states in which all ended.
func (f *client) run(ctx context.Context, t *testing.T, commands map[string]string) map[string]mesos.TaskState {
	t.Helper()
	info := &mesos.FrameworkInfo{
		User: "nobody", Name: "test", Roles: []string{"test"},
		Capabilities: []mesos.FrameworkInfo_Capability{
			{Type: mesos.FrameworkInfo_Capability_MULTI_ROLE}, {Type: mesos.FrameworkInfo_Capability_RESERVATION_REFINEMENT},
		},
	}
	response, err := f.caller.Call(ctx, calls.Subscribe(info))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Close()
	ended := map[string]mesos.TaskState{}
	for len(ended) < len(commands) {
		event := new(scheduler.Event)
		if err := response.Decode(event); err != nil {
			if errors.Is(err, io.EOF) {
				t.Fatal("the master ended the subscription")
			}
			t.Fatal(err)
		}
		switch event.Type {
		case scheduler.Event_SUBSCRIBED:
			f.id = event.Subscribed.FrameworkID.Value
		case scheduler.Event_OFFERS:
			f.launch(ctx, t, &event.Offers.Offers[0], commands)
			commands = keepKeys(commands)
		case scheduler.Event_UPDATE:
			f.updated(ctx, t, &event.Update.Status, ended)
		default:
		}
	}
	f.call(ctx, t, &scheduler.Call{Type: scheduler.Call_TEARDOWN})
	return ended
}

// keepKeys forgets what was launched, but not how much.
func keepKeys(commands map[string]string) map[string]string {
	left := map[string]string{}
	for id := range commands {
		left[id] = ""
	}
	return left
}

func (f *client) call(ctx context.Context, t *testing.T, call *scheduler.Call) {
	t.Helper()
	call.FrameworkID = &mesos.FrameworkID{Value: f.id}
	if err := calls.CallNoData(ctx, f.caller, call); err != nil {
		t.Fatalf("%s: %v", call.Type, err)
	}
}

func (f *client) launch(ctx context.Context, t *testing.T, offer *mesos.Offer, commands map[string]string) {
	t.Helper()
	var tasks []mesos.TaskInfo
	for id, command := range commands {
		if command == "" {
			continue
		}
		resources := plainAgent()[:2]
		resources[0].Scalar.Value, resources[1].Scalar.Value = 1, 64
		tasks = append(tasks, mesos.TaskInfo{
			Name: id, TaskID: mesos.TaskID{Value: id}, AgentID: offer.AgentID, Resources: resources, Command: &mesos.CommandInfo{Value: &command},
		})
	}
	f.call(ctx, t, calls.Accept(calls.OfferOperations{calls.OpLaunch(tasks...)}.WithOffers(offer.ID)))
}

func (f *client) updated(ctx context.Context, t *testing.T, status *mesos.TaskStatus, ended map[string]mesos.TaskState) {
	t.Helper()
	id := status.TaskID.Value
	if len(status.UUID) > 0 {
		f.call(ctx, t, calls.Acknowledge(status.AgentID.Value, id, status.UUID))
	}
	switch status.GetState() {
	case mesos.TASK_RUNNING:
		if id == "killed" {
			f.call(ctx, t, calls.Kill(id, status.AgentID.Value))
		}
	case mesos.TASK_FINISHED, mesos.TASK_FAILED, mesos.TASK_KILLED, mesos.TASK_LOST, mesos.TASK_ERROR:
		ended[id] = status.GetState()
	default:
	}
}
