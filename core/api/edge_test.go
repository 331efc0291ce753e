package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/gate"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

// TestEveryMethodHasARule holds the table of roles and the protos together.
func TestEveryMethodHasARule(t *testing.T) {
	methods := map[string]bool{}
	protoregistry.GlobalFiles.RangeFilesByPackage("paceline.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				procedure := fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(j).Name())
				methods[procedure] = true
				r, ok := rules[procedure]
				if !ok || r.role == auth.None || r.scope == 0 {
					t.Errorf("%s has no rule of access", procedure)
				}
			}
		}
		return true
	})
	for procedure := range rules {
		if !methods[procedure] && !strings.HasPrefix(procedure, "/grpc.reflection.") {
			t.Errorf("the rule for %s is for no method", procedure)
		}
	}
	if len(methods) < 20 {
		t.Errorf("only %d methods found", len(methods))
	}
}

// TestEnumsMirrorTheDomain compares names, so that a state added on one side, or in another place, is noticed.
func TestEnumsMirrorTheDomain(t *testing.T) {
	check := func(what, prefix string, domain fmt.Stringer, wire interface {
		fmt.Stringer
		Descriptor() protoreflect.EnumDescriptor
		Number() protoreflect.EnumNumber
	},
	) {
		t.Helper()
		if got, want := wire.String(), prefix+strings.ToUpper(domain.String()); got != want {
			t.Errorf("%s %v is %s on the wire, want %s", what, domain, got, want)
		}
	}
	for k := workload.Batch; k <= workload.Daemon; k++ {
		check("kind", "JOB_KIND_", k, kindToWire(k))
	}
	for s := range workload.JobStopped + 1 {
		check("job state", "JOB_STATE_", s, jobStateToWire(s))
	}
	for s := range workload.InstanceState(workload.NumInstanceStates) {
		check("instance state", "INSTANCE_STATE_", s, instanceStateToWire(s))
	}
	for s := workload.RunPlaced; int(s) < workload.NumRunStates; s++ {
		check("run state", "RUN_STATE_", s, runStateToWire(s))
	}
	for r := workload.ReasonExited; r.String() != "UNKNOWN"; r++ {
		check("reason", "REASON_", r, reasonToWire(r))
	}
	for g := scheduler.GoalRun; g <= scheduler.GoalDelete; g++ {
		check("goal", "JOB_GOAL_", g, goalToWire(g))
	}
	for r := auth.Viewer; r <= auth.Admin; r++ {
		check("role", "ROLE_", r, roleToWire(r))
	}
	for r := range placement.NumReasons {
		if r == placement.ReasonNamed {
			continue // named for users: EXTENDED_RESOURCE
		}
		check("refusal", "REFUSAL_REASON_", r, refusalToWire(r))
	}
	for k := scheduler.PendingNoShard; k <= scheduler.PendingSlack; k++ {
		if _, ok := pacelinev1.PendingReason_name[int32(pendingToWire(k))]; !ok {
			t.Errorf("pending reason %v has no number on the wire", k)
		}
	}
	if got := pendingToWire(scheduler.PendingSlack); got != pacelinev1.PendingReason_PENDING_REASON_SLACK {
		t.Errorf("the last pending reason is %v on the wire", got)
	}
	if n := len(pacelinev1.PendingReason_name); n != int(scheduler.PendingSlack)+1 {
		t.Errorf("the wire has %d pending reasons", n)
	}
}

func TestFaultsBecomeCodes(t *testing.T) {
	cases := []struct {
		err    error
		code   connect.Code
		says   string
		hint   string
		fields string
	}{
		{&scheduler.Error{Kind: scheduler.Aborted, Field: "expected_version", Message: "at version 3", Hint: "read again"}, connect.CodeAborted, "at version 3", "read again", "expected_version"},
		{&scheduler.Error{Kind: scheduler.ResourceExhausted, Message: "full", RetryAfter: time.Second}, connect.CodeResourceExhausted, "full", "", ""},
		{&scheduler.Error{Kind: 99, Message: "odd"}, connect.CodeUnknown, "odd", "", ""},
		{&spec.InvalidError{Violations: []spec.Violation{{Field: "spec.a", Message: "x"}, {Field: "spec.b", Message: "y"}}}, connect.CodeInvalidArgument, "spec.a: x; spec.b: y", "", "spec.a spec.b"},
		{fmt.Errorf("read: %w", refuseField("cursor", "h", "damaged")), connect.CodeInvalidArgument, "damaged", "h", "cursor"},
		{engine.ErrStopped, connect.CodeUnavailable, "stopping", "try again: the server is restarting, or another one answers at this address", ""},
		{engine.ErrOverloaded, connect.CodeResourceExhausted, "more calls", overloadHint, ""},
		{fmt.Errorf("enter: %w", gate.ErrCalls), connect.CodeResourceExhausted, "as many calls", overloadHint, ""},
		{engine.ErrCompacted, connect.CodeOutOfRange, "list again", "", ""},
		{engine.ErrFuture, connect.CodeOutOfRange, "list again", "", ""},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded, "may still happen", "", ""},
		{connect.NewError(connect.CodeInvalidArgument, errors.New("unmarshal")), connect.CodeInvalidArgument, "unmarshal", "", ""},
		{errors.New("secret: /var/lib/x is broken"), connect.CodeInternal, "request id r1", "", ""},
	}
	for _, c := range cases {
		got, internal := toConnect(c.err, "r1")
		detail := client.Detail(got)
		var fields []string
		for _, v := range detail.GetViolations() {
			fields = append(fields, v.GetField())
		}
		if got.Code() != c.code || !strings.Contains(got.Message(), c.says) || detail.GetHint() != c.hint || strings.Join(fields, " ") != c.fields ||
			detail.GetRequestId() != "r1" || internal != (c.code == connect.CodeInternal) {
			t.Errorf("%v became %v %v", c.err, got, detail)
		}
		if strings.Contains(got.Message(), "secret") {
			t.Errorf("an internal error leaks: %v", got)
		}
	}
	for kind := scheduler.InvalidArgument; kind.String() != "unknown"; kind++ {
		if got := codeOf(kind).String(); got != strings.ReplaceAll(kind.String(), " ", "_") {
			t.Errorf("kind %v has code %v", kind, got)
		}
	}
	long, _ := toConnect(refuse(connect.CodeNotFound, strings.Repeat("h", 1<<20), "%s", strings.Repeat("m", 1<<20)), "r1")
	if len(long.Message()) > maxMessageBytes || len(client.Detail(long).GetHint()) > maxMessageBytes {
		t.Error("an error of any length leaves the server")
	}
}

// testEdge is an edge with two tokens: an admin's, and one of a submitter in /prod/ads.
func testEdge(t *testing.T, log *slog.Logger, trace *telemetry.Trace) *edge {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	content := `tokens:
  - {principal: root, token: root-root-root-root-root, roles: [admin]}
  - {principal: ads, token: ads-ads-ads-ads-ads-ads, roles: [submitter@/prod/ads]}
`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.Open(path, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &edge{tokens: tokens, log: log, trace: trace.Complete(), stopping: t.Context()}
}

// oddJobs is a job service whose methods misbehave.
type oddJobs struct {
	pacelinev1connect.UnimplementedJobServiceHandler
}

func (oddJobs) GetJob(context.Context, *connect.Request[pacelinev1.GetJobRequest]) (*connect.Response[pacelinev1.GetJobResponse], error) {
	return connect.NewResponse(&pacelinev1.GetJobResponse{Job: &pacelinev1.Job{}}), nil // forgets to ask
}

func (oddJobs) StopJob(ctx context.Context, request *connect.Request[pacelinev1.StopJobRequest]) (*connect.Response[pacelinev1.StopJobResponse], error) {
	if err := permit(ctx, request.Msg.GetJob(), refuse(connect.CodeNotFound, "", "no such job")); err != nil {
		return nil, err
	}
	return connect.NewResponse(&pacelinev1.StopJobResponse{}), nil
}

func (oddJobs) ExplainJob(context.Context, *connect.Request[pacelinev1.ExplainJobRequest]) (*connect.Response[pacelinev1.ExplainJobResponse], error) {
	panic("secret state")
}

func serveOdd(t *testing.T, e *edge, token string) *client.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(pacelinev1connect.NewJobServiceHandler(oddJobs{}, connect.WithInterceptors(e), connect.WithCodec(strictJSON{})))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c, err := client.New(server.URL, client.WithToken(token), client.WithHTTPClient(server.Client()), client.WithAttempts(1))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEdge(t *testing.T) {
	var logged strings.Builder
	var calls []telemetry.Call
	panics := 0
	e := testEdge(t, slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})), &telemetry.Trace{
		CallDone: func(c telemetry.Call) { calls = append(calls, c) }, Panicked: func(string) { panics++ },
	})
	root := serveOdd(t, e, "root-root-root-root-root")
	ads := serveOdd(t, e, "ads-ads-ads-ads-ads-ads")
	nobody := serveOdd(t, e, "nobody-nobody-nobody-nobody")
	get := func(c *client.Client) error {
		_, err := c.Jobs.GetJob(t.Context(), connect.NewRequest(&pacelinev1.GetJobRequest{Job: "x"}))
		return err
	}
	stop := func(c *client.Client, pool string) error {
		_, err := c.Jobs.StopJob(t.Context(), connect.NewRequest(&pacelinev1.StopJobRequest{Job: pool}))
		return err
	}
	expect := func(what string, err error, code connect.Code, says string) {
		t.Helper()
		if connect.CodeOf(err) != code || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	expect("no valid token", get(nobody), connect.CodeUnauthenticated, "no valid token")
	expect("handler that does not ask", get(root), connect.CodeInternal, "request id")
	expect("a pool out of sight", stop(ads, "/prod/web"), connect.CodeNotFound, "no such job")
	if err := stop(ads, "/prod/ads/eu"); err != nil {
		t.Errorf("own pool: %v", err)
	}
	expect("unimplemented", func() error {
		_, err := root.Jobs.DeleteJob(t.Context(), connect.NewRequest(&pacelinev1.DeleteJobRequest{Job: "x"}))
		return err
	}(), connect.CodeUnimplemented, "")
	_, err := root.Jobs.ExplainJob(t.Context(), connect.NewRequest(&pacelinev1.ExplainJobRequest{Job: "x"}))
	expect("panic", err, connect.CodeInternal, "request id")
	if strings.Contains(err.Error(), "secret") || panics != 1 || !strings.Contains(logged.String(), "secret state") {
		t.Errorf("a panic is told as %v, counted %d times", err, panics)
	}
	expect("rules of the protos", stop(root, ""), connect.CodeInvalidArgument, "job: must be at least 1 character")
	if v := client.Detail(stop(root, "")).GetViolations(); len(v) != 1 || v[0].GetField() != "job" || v[0].GetRule() != "string.min_len" {
		t.Errorf("violations: %v", v)
	}
	if len(calls) != 8 || calls[0].Code != "unauthenticated" || calls[0].Method != "paceline.v1.JobService/GetJob" {
		t.Errorf("told of %v", calls)
	}
	if strings.Contains(logged.String(), "ads-ads-ads") || !strings.Contains(logged.String(), "principal=ads") {
		t.Error("the log shows tokens, or does not name who called")
	}
}

func TestRequestIDs(t *testing.T) {
	root := serveOdd(t, testEdge(t, nil, nil), "root-root-root-root-root")
	for sent, want := range map[string]string{"abc-1": "abc-1", "": "", "a b": "", strings.Repeat("x", 65): ""} {
		request := connect.NewRequest(&pacelinev1.StopJobRequest{Job: "/prod"})
		if sent != "" {
			request.Header().Set(requestIDHeader, sent)
		}
		response, err := root.Jobs.StopJob(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		got := response.Header().Get(requestIDHeader)
		if (want != "" && got != want) || !requestIDPattern.MatchString(got) {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
}

func TestStrictJSON(t *testing.T) {
	server := httptest.NewServer(func() http.Handler {
		mux := http.NewServeMux()
		mux.Handle(pacelinev1connect.NewJobServiceHandler(oddJobs{}, connect.WithInterceptors(testEdge(t, nil, nil)), connect.WithCodec(strictJSON{})))
		return mux
	}())
	defer server.Close()
	post := func(body string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+pacelinev1connect.JobServiceStopJobProcedure, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer root-root-root-root-root")
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		raw, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(raw)
	}
	if status, body := post(`{"job": "/prod", "expectedVersion": 0, "expected_version": 0}`); status != http.StatusBadRequest {
		t.Errorf("a field given twice: %d %s", status, body)
	}
	if status, body := post(`{"job": "/prod", "forse": true}`); status != http.StatusBadRequest || !strings.Contains(body, "forse") {
		t.Errorf("an unknown field: %d %s", status, body)
	}
	if status, body := post(`{"job": "/prod"}`); status != http.StatusOK {
		t.Errorf("a good request: %d %s", status, body)
	}
	if status, body := post(``); status != http.StatusBadRequest {
		t.Errorf("an empty request: %d %s", status, body)
	}
}

func TestPageTokens(t *testing.T) {
	request := &pacelinev1.ListJobsRequest{Pool: "/a", Labels: map[string]string{"x": "1", "y": "2", "z": "3"}, PageSize: 5}
	hash := filterHash(request, "page_size", "page_token")
	token := encodePage(hash, encodeNumber(1<<40))
	request.PageToken, request.PageSize = token, 7
	if again := filterHash(request, "page_size", "page_token"); again != hash {
		t.Error("the page token or size changes the filters")
	}
	position, err := decodePage(token, hash)
	if n, err2 := decodeNumber(position); err != nil || err2 != nil || n != 1<<40 {
		t.Errorf("read back %d, %v, %v", n, err, err2)
	}
	request.Pool = "/b"
	if _, err := decodePage(token, filterHash(request, "page_size", "page_token")); err == nil {
		t.Error("a token of another request is accepted")
	}
	for _, bad := range []string{"x", "!!", token[:8], base64.RawURLEncoding.EncodeToString([]byte("2345678901"))} {
		if _, err := decodePage(bad, hash); connect.CodeOf(mapped(err)) != connect.CodeInvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func mapped(err error) error {
	if err == nil {
		return nil
	}
	out, _ := toConnect(err, "r")
	return out
}

func TestCursors(t *testing.T) {
	here := cursor{cell: cellHash("here"), incarnation: [16]byte{1}, revision: 7, filters: 5}
	if revision, err := here.resume(here.String()); err != nil || revision != 7 {
		t.Errorf("own cursor: %d, %v", revision, err)
	}
	change := func(edit func(*cursor)) error {
		other := here
		edit(&other)
		_, err := here.resume(other.String())
		return mapped(err)
	}
	cases := []struct {
		what string
		err  error
		code connect.Code
	}{
		{"another cell's", change(func(c *cursor) { c.cell++ }), connect.CodeInvalidArgument},
		{"another watch's", change(func(c *cursor) { c.filters++ }), connect.CodeInvalidArgument},
		{"one from before a restore", change(func(c *cursor) { c.incarnation[3]++ }), connect.CodeOutOfRange},
	}
	for _, c := range cases {
		if connect.CodeOf(c.err) != c.code {
			t.Errorf("%s cursor: %v", c.what, c.err)
		}
	}
	if err := change(func(c *cursor) { c.filters = 0 }); err != nil {
		t.Errorf("a list's cursor: %v", err)
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(cursor{cell: 1, revision: 2, filters: 3}.String())
	f.Add("AX0000000000000000000000000000000\r0000000000000000000000")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCursor(text)
		if err == nil && c.String() != text {
			t.Fatalf("%q is read as %+v, which is written %q", text, c, c.String())
		}
	})
}

func FuzzPageToken(f *testing.F) {
	f.Add(encodePage(1, encodeNumber(300)), uint64(1))
	f.Add("AQAAAAAAAAAA\r", uint64(0))
	f.Fuzz(func(t *testing.T, text string, filters uint64) {
		position, err := decodePage(text, filters)
		if err != nil || text == "" {
			return
		}
		if encodePage(filters, position) != text {
			t.Fatalf("%q is read as %x", text, position)
		}
		if _, err := decodeNumber(position); err != nil && connect.CodeOf(mapped(err)) != connect.CodeInvalidArgument {
			t.Fatal(err)
		}
	})
}

func TestComparePaths(t *testing.T) {
	inOrder := []string{"/a", "/a/b", "/a/b/c", "/a/b-c", "/a-b", "/a.b", "/ab", "/b"}
	for i, a := range inOrder {
		for j, b := range inOrder {
			if got := comparePaths(a, b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s against %s: %d", a, b, got)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	good := Config{TokenFile: "/t"}.WithDefaults()
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	cases := []struct {
		edit func(*Config)
		says string
	}{
		{func(c *Config) { c.Address = "0.0.0.0:7450" }, "without TLS"},
		{func(c *Config) { c.Address = ":7450" }, "without TLS"},
		{func(c *Config) { c.Address = "cell.example:7450" }, "without TLS"},
		{func(c *Config) { c.Address = "7450" }, "must be host:port"},
		{func(c *Config) { c.TLSCert = "c.pem" }, "needs its key"},
		{func(c *Config) { c.TokenFile = "" }, "token file is required"},
		{func(c *Config) { c.Grace = -1 }, "negative"},
	}
	for _, c := range cases {
		config := good
		c.edit(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", config, err)
		}
	}
	remote := Config{Address: "0.0.0.0:7450", TLSCert: "c", TLSKey: "k", TokenFile: "/t"}.WithDefaults()
	if err := remote.Validate(); err != nil {
		t.Error(err)
	}
}

func TestGuard(t *testing.T) {
	s := &Server{}
	handler := s.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	cases := []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:7450", "", 200},
		{"localhost:7450", "http://localhost:7450", 200},
		{"[::1]:7450", "", 200},
		{"evil.example:7450", "", 403},
		{"127.0.0.1:7450", "http://evil.example", 403},
		{"127.0.0.1:7450", "http://127.0.0.1:9999", 403},
		{"127.0.0.1:7450", "null", 403},
	}
	for _, c := range cases {
		request := httptest.NewRequest(http.MethodPost, "/", nil)
		request.Host = c.host
		if c.origin != "" {
			request.Header.Set("Origin", c.origin)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		if answer.Code != c.want {
			t.Errorf("host %s, origin %q: %d", c.host, c.origin, answer.Code)
		}
	}
}

// TestViewsFillEveryField fails when a field was added to a summary and is left empty by the view.
func TestViewsFillEveryField(t *testing.T) {
	view := scheduler.JobView{
		JobRecord: scheduler.JobRecord{
			ID: workload.JobID{1}, Version: 2, Config: 3, Caller: scheduler.Caller{Principal: "p"}, Goal: scheduler.GoalRun, State: workload.JobRunning,
			Reason: workload.ReasonExited, Restart: scheduler.Restart{Batch: 1}, Created: 1, Started: 2, Finished: 3,
		},
		Spec: &workload.JobSpec{
			Name: "n", Pool: workload.PoolID{1}, Owner: "o", Labels: map[string]string{"a": "b"}, Kind: workload.Batch, Priority: 1, Deadline: time.Hour,
		},
		PoolPath: "/p", Instances: 4, Healthy: 1, RestartUnits: 3, RestartDone: 1, RestartDown: 1,
	}
	for i := range view.ByState {
		view.ByState[i] = uint32(i + 1)
	}
	for i := range view.ByRun {
		view.ByRun[i] = uint32(i + 1)
	}
	checkFilled(t, summaryToWire(&view).ProtoReflect())
}

func checkFilled(t *testing.T, m protoreflect.Message) {
	t.Helper()
	for i := range m.Descriptor().Fields().Len() {
		field := m.Descriptor().Fields().Get(i)
		if !m.Has(field) {
			t.Errorf("%s is not filled in", field.FullName())
			continue
		}
		if field.Message() != nil && !field.IsMap() && !field.IsList() && field.Message().ParentFile().Package() == "paceline.v1" {
			checkFilled(t, m.Get(field).Message())
		}
	}
}

func TestWatchThatFellBehind(t *testing.T) {
	got, _ := toConnect((&watch{revision: 7}).explain(fmt.Errorf("watch: %w", engine.ErrCompacted)), "r")
	if got.Code() != connect.CodeOutOfRange || !strings.Contains(got.Message(), "fell behind: the events after revision 7 are") {
		t.Errorf("got %v", got)
	}
	if err := (&watch{}).explain(engine.ErrStopped); !errors.Is(err, engine.ErrStopped) {
		t.Errorf("got %v", err)
	}
}

// TestPlansNameOnlyWhatMayBeSeen: of victims in other pools the caller learns the number.
func TestPlansNameOnlyWhatMayBeSeen(t *testing.T) {
	plan := &scheduler.PlanPreemption{Instances: 2, Runs: 12, Wait: 400 * time.Millisecond, Victims: []scheduler.PlanVictim{
		{Name: "hidden", Pool: "/b/x"}, {Name: "seen", Pool: "/a/x", Instance: 3, Host: "h", Why: "because"},
	}}
	caller := &auth.Principal{Bindings: []auth.Binding{{Role: auth.Viewer, Pool: "/a"}}}
	got := preemptionToWire(plan, caller)
	if len(got.GetVictims()) != 1 || got.GetVictims()[0].GetName() != "seen" || got.GetRuns() != 12 || got.GetWait().AsDuration() != plan.Wait {
		t.Errorf("it is told %v", got)
	}
	const words = "2 instances would start once 12 runs of others made room, after two entitlement periods (400ms) at the earliest"
	if !strings.HasPrefix(got.GetMessage(), words) {
		t.Errorf("in words: %q", got.GetMessage())
	}
	if preemptionToWire(nil, caller) != nil {
		t.Error("a plan without victims speaks of some")
	}
}
