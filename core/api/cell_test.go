package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"buf.build/go/protoyaml"

	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// oneHost is a shard with one host that has room for so many tasks, whatever they need, starts what it is told to and keeps a line of
// output of every run.
type oneHost struct {
	engine *engine.Engine
	room   int

	epoch shard.Epoch // of the engine's sender, as is all below
	token driver.Token
	lease shard.Lease
}

const hostName = "node-1"

func (h *oneHost) ID() shard.ID { return "test/0" }

func (h *oneHost) Send(_ context.Context, m shard.Message) error {
	hostID := shard.HostID("test", hostName)
	switch m := m.(type) {
	case shard.Assign:
		h.epoch = m.Epoch
	case shard.Replay:
		if m.Done {
			h.tell(shard.Hosts{Complete: true, Changed: []shard.HostSummary{{
				ID: hostID, Name: hostName, Ready: true, HostPool: "fast", Attributes: map[string]string{"zone": "a"},
				Capacity: resource.Vector{resource.CPU: 10_000, resource.Memory: 10_000},
			}}}, shard.Ready{})
		}
	case shard.Place:
		placed := shard.Placed{Batch: m.Batch}
		for _, request := range m.Requests {
			placed.Results = append(placed.Results, h.place(request, hostID))
		}
		h.tell(placed)
	case shard.Launch:
		for _, l := range m.Launches {
			h.status(l.Launch.Run, workload.RunRunning)
		}
	case shard.Kill:
		for _, k := range m.Kills {
			h.room++
			h.status(k.Run, workload.RunKilled)
		}
	}
	return nil
}

func (h *oneHost) place(request shard.PlaceRequest, host workload.HostID) shard.PlaceResult {
	n := min(h.room, request.Count)
	result := shard.PlaceResult{Refused: request.Count - n}
	for range n {
		h.lease++
		result.Assignments = append(result.Assignments, shard.Assignment{Lease: h.lease, Host: host, Ports: make([]uint16, len(request.Class.Ports))})
	}
	if !request.DryRun {
		h.room -= n
	}
	if result.Refused > 0 {
		result.Reasons.Hosts = 1
		result.Reasons.Counts[placement.ReasonCPU] = 1
	}
	return result
}

func (h *oneHost) status(run workload.RunID, state workload.RunState) {
	h.token++
	h.tell(shard.RunStatus{Status: driver.Status{Run: run, Token: h.token, State: state, Healthy: true, At: time.Now(), Host: hostName}})
}

func (h *oneHost) tell(replies ...shard.Reply) { h.engine.Deliver(h.ID(), h.epoch, replies) }

// Rehearse goes by a label of the job.
func (h *oneHost) Rehearse(_ context.Context, l *driver.Launch) (driver.Rehearsal, error) {
	switch l.Labels["rehearse"] {
	case "refuse":
		return driver.Rehearsal{Refused: "no " + l.Host + " for " + l.Pool}, nil
	case "warn":
		return driver.Rehearsal{Warnings: []string{"odd"}}, nil
	case "late":
		return driver.Rehearsal{}, fmt.Errorf("ask it: %w", context.DeadlineExceeded)
	}
	return driver.Rehearsal{}, driver.ErrNoRehearsal
}

func (h *oneHost) ReadLog(_ context.Context, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error) {
	if request.Stream == driver.Stderr {
		return nil, driver.ErrUnknownRun
	}
	return io.NopCloser(strings.NewReader(strings.Repeat("x", 100_000) + "end of " + run.String())), nil
}

// testCell is a whole cell behind its API.
type testCell struct {
	t       *testing.T
	address string
	store   store.Store
	tokens  string // path of the token file
	stop    func() // ends the server and waits for it
}

const (
	adminToken = "admin-admin-admin-admin-admin"
	adsToken   = "ads-ads-ads-ads-ads-ads-ads"
	eastToken  = "ads-ads-ads-ads-ads-adseast"
)

const tokenFile = `tokens:
  - {principal: root, token: ` + adminToken + `, roles: [admin]}
  - {principal: ads, tenant: adverts, token: ` + adsToken + `, roles: [submitter@/ads]}
  - {principal: east, token: ` + eastToken + `, roles: [operator@/east]}
`

func newTestCell(t *testing.T, room int) *testCell {
	t.Helper()
	keys, err := store.NewKeyspace("default")
	if err != nil {
		t.Fatal(err)
	}
	backend, err := memstore.Open(t.Context(), &memstore.Disk{}, memstore.Config{Cell: "default"})
	if err != nil {
		t.Fatal(err)
	}
	metrics := telemetry.NewMetrics("test")
	e, err := engine.Open(t.Context(), engine.Config{
		Cell: scheduler.Config{EntitlementPeriod: 10 * time.Millisecond}, Store: backend, Keys: keys, Trace: metrics.Trace(),
	})
	if err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(tokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := api.NewServer(api.Config{Address: "127.0.0.1:0", TokenFile: tokens, Build: api.Build{Version: "v0", Commit: "c"}, Roles: []string{"core"}},
		api.Parts{Engine: e, Judge: &wordJudge{}, Metrics: metrics, Trace: metrics.Trace()})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := server.Listen()
	if err != nil {
		t.Fatal(err)
	}
	serving, endServing := context.WithCancel(context.WithoutCancel(t.Context()))
	running, endRunning := context.WithCancel(context.WithoutCancel(t.Context()))
	var served, ran sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(serving, listener); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	ran.Go(func() {
		if err := e.Run(running); err != nil {
			t.Errorf("run the engine: %v", err)
		}
	})
	c := &testCell{t: t, address: "http://" + listener.Addr().String(), store: backend, tokens: tokens, stop: func() { endServing(); served.Wait() }}
	t.Cleanup(func() {
		c.stop()
		endRunning()
		ran.Wait()
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	if room >= 0 {
		if err := e.Attach(t.Context(), &oneHost{engine: e, room: room}); err != nil {
			t.Fatal(err)
		}
		c.eventually("the host is ready", func() bool {
			info, err := c.as(adminToken).Admin.GetInfo(t.Context(), connect.NewRequest(&pacelinev1.GetInfoRequest{}))
			return err == nil && info.Msg.GetReadyHosts() == 1
		})
	}
	return c
}

func (c *testCell) as(token string, options ...client.Option) *client.Client {
	c.t.Helper()
	cl, err := client.New(c.address, append([]client.Option{client.WithToken(token), client.WithAttempts(1)}, options...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.Close)
	return cl
}

// eventually polls: the engine works on goroutines of its own.
func (c *testCell) eventually(what string, holds func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			c.t.Fatalf("did not come about: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func parseYAML[M interface {
	*T
	protoMessage
}, T any](t *testing.T, text string) M {
	t.Helper()
	m := M(new(T))
	if err := protoyaml.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (c *testCell) apply(cl *client.Client, yaml string) (*pacelinev1.ApplyPoolResponse, error) {
	c.t.Helper()
	answer, err := cl.Pools.ApplyPool(c.t.Context(), connect.NewRequest(&pacelinev1.ApplyPoolRequest{Spec: parseYAML[*pacelinev1.PoolSpec](c.t, yaml)}))
	if err != nil {
		return nil, err
	}
	return answer.Msg, nil
}

func (c *testCell) create(cl *client.Client, yaml string) (*pacelinev1.JobSummary, error) {
	c.t.Helper()
	answer, err := cl.Jobs.CreateJob(c.t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](c.t, yaml)}))
	if err != nil {
		return nil, err
	}
	return answer.Msg.GetJob(), nil
}

func (c *testCell) get(cl *client.Client, job string) (*pacelinev1.Job, error) {
	answer, err := cl.Jobs.GetJob(c.t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{Job: job}))
	if err != nil {
		return nil, err
	}
	return answer.Msg.GetJob(), nil
}

func (c *testCell) want(what string, err error, code connect.Code, says string) {
	c.t.Helper()
	if connect.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), says) {
		c.t.Errorf("%s: got %v, want %v with %q", what, err, code, says)
	}
}

// http is a client of HTTP/2 in plain text, which all three protocols can use.
func (c *testCell) http() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch gets a plain HTTP path with a token.
func (c *testCell) fetch(path, token string) (int, string) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.address+path, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(response.Body); err != nil {
		c.t.Fatal(err)
	}
	return response.StatusCode, b.String()
}
