package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/api"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/sdk/client"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
	"github.com/paceline-sched/paceline/sdk/gen/paceline/v1/pacelinev1connect"
)

type protoMessage = proto.Message

func TestProtocols(t *testing.T) {
	c := newTestCell(t, 4)
	for name, option := range map[string]connect.ClientOption{
		"connect": connect.WithProtoJSON(), "grpc": connect.WithGRPC(), "grpc-web": connect.WithGRPCWeb(),
	} {
		t.Run(name, func(t *testing.T) {
			plain := pacelinev1connect.NewAdminServiceClient(c.http(), c.address, option)
			request := connect.NewRequest(&pacelinev1.GetInfoRequest{})
			request.Header().Set("Authorization", "Bearer "+adminToken)
			info, err := plain.GetInfo(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			m := info.Msg
			if m.GetPrincipal() != "root" || m.GetVersion() != "v0" || m.GetCapacity().GetCpuMilli() != 10_000 || len(m.GetClusters()) != 1 ||
				!m.GetClusters()[0].GetReady() || m.GetBindings()[0].GetRole() != pacelinev1.Role_ROLE_ADMIN {
				t.Errorf("got %v", m)
			}
			_, err = plain.GetInfo(t.Context(), connect.NewRequest(&pacelinev1.GetInfoRequest{}))
			if connect.CodeOf(err) != connect.CodeUnauthenticated || client.Detail(err).GetHint() == "" {
				t.Errorf("without a token: %v", err)
			}
		})
	}
}

func TestPlainPaths(t *testing.T) {
	c := newTestCell(t, 4)
	if status, _ := c.fetch("/metrics", ""); status != 401 {
		t.Errorf("metrics without a token: %d", status)
	}
	if status, body := c.fetch("/metrics", adsToken); status != 200 || !strings.Contains(body, `paceline_api_calls_total{code="ok",method="paceline.v1.AdminService/GetInfo"}`) {
		t.Errorf("metrics: %d, %d bytes", status, len(body))
	}
	if status, body := c.fetch("/healthz", ""); status != 200 || body != "ok\n" {
		t.Errorf("a probe without a token: %d, %q", status, body)
	}
	check := connect.NewClient[healthRequest, healthResponse](c.http(), c.address+"/"+grpchealth.HealthV1ServiceName+"/Check", connect.WithCodec(rawCodec{}))
	answer, err := check.CallUnary(t.Context(), connect.NewRequest(&healthRequest{}))
	if err != nil || !bytes.Equal(answer.Msg.raw, []byte{8, 1}) { // status = SERVING
		t.Errorf("health without a token: %v, %v", answer, err)
	}
}

// The health messages stand in no package that the project depends on; a check for the whole server is empty, and its answer one enum.
type (
	healthRequest  struct{}
	healthResponse struct{ raw []byte }
	rawCodec       struct{}
)

func (rawCodec) Name() string                { return "proto" }
func (rawCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (rawCodec) Unmarshal(raw []byte, m any) error {
	if r, ok := m.(*healthResponse); ok {
		r.raw = bytes.Clone(raw)
		return nil
	}
	return errors.New("not a health answer")
}

const webJob = `
name: web
pool: /ads
instances: 3
labels: {team: ads}
service: {}
preemptible: true
task: {command: [serve], resources: {cpu_milli: 100, ports: [{name: http}]}}
`

func TestJobLife(t *testing.T) {
	c := newTestCell(t, 4)
	root, ads := c.as(adminToken), c.as(adsToken)
	if _, err := c.apply(root, `{path: /ads, reservation: {cpu_milli: 1000}}`); err != nil {
		t.Fatal(err)
	}
	job, err := c.create(ads, webJob)
	if err != nil {
		t.Fatal(err)
	}
	if job.GetOwner() != "ads" || job.GetSubmitter() != "ads" || job.GetPool() != "/ads" || job.GetInstances() != 3 || job.GetVersion() != 1 {
		t.Errorf("accepted as %v", job)
	}
	c.eventually("three instances run", func() bool {
		j, err := c.get(ads, "/ads/web")
		return err == nil && j.GetSummary().GetRunCounts().GetRunning() == 3 && j.GetSummary().GetState() == pacelinev1.JobState_JOB_STATE_RUNNING
	})
	again, err := ads.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, webJob)}))
	if err != nil || !again.Msg.GetUnchanged() || again.Msg.GetJob().GetId() != job.GetId() {
		t.Errorf("the same spec again: %v, %v", again, err)
	}
	_, err = c.create(ads, strings.Replace(webJob, "instances: 3", "instances: 4", 1))
	c.want("another spec", err, connect.CodeFailedPrecondition, "instances")

	full, err := c.get(ads, job.GetId())
	if err != nil || full.GetSpec().GetTask().GetKillGrace().GetSeconds() != 10 || full.GetSpec().GetOwner() != "ads" {
		t.Errorf("by id, with defaults: %v, %v", full, err)
	}
	c.checkTasks(ads, job.GetId())
	c.checkLogs(ads)

	_, err = ads.Jobs.StopJob(t.Context(), connect.NewRequest(&pacelinev1.StopJobRequest{Job: "/ads/web", ExpectedVersion: 99}))
	c.want("a stale version", err, connect.CodeAborted, "version")
	_, err = ads.Jobs.DeleteJob(t.Context(), connect.NewRequest(&pacelinev1.DeleteJobRequest{Job: "/ads/web"}))
	c.want("deleting a live job", err, connect.CodeFailedPrecondition, "RUNNING")
	if _, err := ads.Jobs.StopJob(t.Context(), connect.NewRequest(&pacelinev1.StopJobRequest{Job: "/ads/web"})); err != nil {
		t.Fatal(err)
	}
	c.eventually("it has stopped", func() bool {
		j, err := c.get(ads, "/ads/web")
		return err == nil && j.GetSummary().GetState() == pacelinev1.JobState_JOB_STATE_STOPPED
	})
	if _, err := ads.Jobs.DeleteJob(t.Context(), connect.NewRequest(&pacelinev1.DeleteJobRequest{Job: "/ads/web"})); err != nil {
		t.Fatal(err)
	}
	c.eventually("it is forgotten", func() bool {
		_, err := c.get(ads, job.GetId())
		return connect.CodeOf(err) == connect.CodeNotFound
	})
}

func (c *testCell) checkTasks(cl *client.Client, job string) {
	c.t.Helper()
	var seen []uint32
	request := &pacelinev1.ListTasksRequest{Job: job, PageSize: 2, RunStates: []pacelinev1.RunState{pacelinev1.RunState_RUN_STATE_RUNNING}}
	for {
		page, err := cl.Tasks.ListTasks(c.t.Context(), connect.NewRequest(request))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, task := range page.Msg.GetTasks() {
			seen = append(seen, task.GetInstance())
			if r := task.GetRun(); r.GetHost() != hostName || r.GetCluster() != "test" || len(r.GetPorts()) != 1 || r.GetPorts()[0].GetName() != "http" {
				c.t.Errorf("run %v", r)
			}
		}
		if request.PageToken = page.Msg.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
	}
	if !slices.Equal(seen, []uint32{0, 1, 2}) {
		c.t.Errorf("tasks %v over pages of 2", seen)
	}
	task, err := cl.Tasks.GetTask(c.t.Context(), connect.NewRequest(&pacelinev1.GetTaskRequest{Job: job, Instance: 1}))
	if err != nil || len(task.Msg.GetRuns()) != 1 || task.Msg.GetTask().GetNeeds().GetCpuMilli() != 100 {
		c.t.Errorf("task: %v, %v", task, err)
	}
	_, err = cl.Tasks.GetTask(c.t.Context(), connect.NewRequest(&pacelinev1.GetTaskRequest{Job: job, Instance: 9}))
	c.want("an instance that does not exist", err, connect.CodeNotFound, "it has 3")
}

func (c *testCell) checkLogs(cl *client.Client) {
	c.t.Helper()
	read := func(request *pacelinev1.ReadLogsRequest) (string, error) {
		stream, err := cl.Tasks.ReadLogs(c.t.Context(), connect.NewRequest(request))
		if err != nil {
			return "", err
		}
		defer stream.Close()
		var b strings.Builder
		for stream.Receive() {
			b.Write(stream.Msg().GetData())
		}
		return b.String(), stream.Err()
	}
	text, err := read(&pacelinev1.ReadLogsRequest{Job: "/ads/web", Instance: 2})
	if err != nil || len(text) < 100_000 || !strings.Contains(text[100_000:], "end of ") {
		c.t.Errorf("log of %d bytes, %v", len(text), err)
	}
	_, err = read(&pacelinev1.ReadLogsRequest{Job: "/ads/web", Stream: pacelinev1.LogStream_LOG_STREAM_STDERR})
	c.want("a log that is not kept", err, connect.CodeNotFound, "keeps nothing")
	_, err = read(&pacelinev1.ReadLogsRequest{Job: "/ads/web", RunId: "nonsense"})
	c.want("a run that is not known", err, connect.CodeNotFound, "nonsense")
}

func TestIdempotencyKeys(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	create := func(name, key string) (*pacelinev1.CreateJobResponse, error) {
		spec := parseYAML[*pacelinev1.JobSpec](t, "name: "+name+"\nbatch: {}\ntask: {command: [x]}")
		answer, err := root.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: spec, IdempotencyKey: key}))
		if err != nil {
			return nil, err
		}
		return answer.Msg, nil
	}
	first, err := create("a", "k")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := create("a", "k"); err != nil || again.GetJob().GetId() != first.GetJob().GetId() {
		t.Errorf("the same key: %v, %v", again, err)
	}
	_, err = create("b", "k")
	c.want("the same key for another job", err, connect.CodeInvalidArgument, "another request")
}

func TestRolesOverTheWire(t *testing.T) {
	c := newTestCell(t, 4)
	root, ads := c.as(adminToken), c.as(adsToken)
	for _, pool := range []string{`{path: /ads}`, `{path: /secret}`} {
		if _, err := c.apply(root, pool); err != nil {
			t.Fatal(err)
		}
	}
	hidden, err := c.create(root, "name: hidden\npool: /secret\nbatch: {}\ntask: {command: [x]}")
	if err != nil {
		t.Fatal(err)
	}
	own, err := c.create(ads, "name: own\npool: /ads\nbatch: {}\ntask: {command: [x]}")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.get(ads, hidden.GetId())
	c.want("a job out of sight", err, connect.CodeNotFound, "does not exist, or you may not see it")
	_, err = c.create(ads, "name: a\npool: /secret\nbatch: {}\ntask: {command: [x]}")
	c.want("a pool out of sight", err, connect.CodeNotFound, "/secret")
	_, err = c.create(ads, "name: a\nbatch: {}\ntask: {command: [x]}")
	c.want("the default pool", err, connect.CodeNotFound, "/default")
	_, err = c.apply(ads, `{path: /ads, share: 100}`)
	c.want("raising one's own share", err, connect.CodePermissionDenied, "does not have the role operator")
	_, err = ads.Hosts.DrainHost(t.Context(), connect.NewRequest(&pacelinev1.DrainHostRequest{Host: "test/node-1"}))
	c.want("draining", err, connect.CodePermissionDenied, "operator")
	_, err = ads.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/secret"}))
	c.want("getting a pool", err, connect.CodeNotFound, "may not see it")
	_, err = ads.Pools.DeletePool(t.Context(), connect.NewRequest(&pacelinev1.DeletePoolRequest{Pool: "/secret"}))
	c.want("deleting a pool", err, connect.CodePermissionDenied, "operator")

	list := func(cl *client.Client, pool string) []string {
		answer, err := cl.Jobs.ListJobs(t.Context(), connect.NewRequest(&pacelinev1.ListJobsRequest{Pool: pool}))
		if err != nil {
			return []string{connect.CodeOf(err).String()}
		}
		var names []string
		for _, j := range answer.Msg.GetJobs() {
			names = append(names, j.GetName())
		}
		return names
	}
	for _, c := range []struct {
		cl   *client.Client
		pool string
		want []string
	}{
		{root, "", []string{"hidden", "own"}},
		{root, "/secret", []string{"hidden"}},
		{ads, "", []string{"own"}},
		{ads, "/", []string{"own"}},
		{ads, "/ads", []string{"own"}},
		{ads, "/secret", []string{"not_found"}},
		{root, "/nowhere", []string{"not_found"}},
	} {
		if got := list(c.cl, c.pool); !slices.Equal(got, c.want) {
			t.Errorf("jobs in %q: %v, want %v", c.pool, got, c.want)
		}
	}
	pools, err := ads.Pools.ListPools(t.Context(), connect.NewRequest(&pacelinev1.ListPoolsRequest{}))
	if err != nil || len(pools.Msg.GetPools()) != 1 || pools.Msg.GetPools()[0].GetSpec().GetPath() != "/ads" {
		t.Errorf("pools: %v, %v", pools, err)
	}
	if job, err := c.get(root, own.GetId()); err != nil || job.GetSummary().GetSubmitter() != "ads" {
		t.Errorf("an admin sees %v, %v", job, err)
	}
	c.want("backup", backup(t.Context(), ads, &bytes.Buffer{}), connect.CodePermissionDenied, "admin")
}

func TestListsOverPages(t *testing.T) {
	c := newTestCell(t, 0)
	root := c.as(adminToken)
	for i := range 7 {
		if _, err := c.create(root, fmt.Sprintf("name: j%d\nlabels: {n: '%d'}\nbatch: {}\ntask: {command: [x]}", i, i%2)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.apply(root, fmt.Sprintf("{path: /p%d}", i)); err != nil {
			t.Fatal(err)
		}
	}
	var jobs []string
	request := &pacelinev1.ListJobsRequest{PageSize: 2, Labels: map[string]string{"n": "0"}, Kinds: []pacelinev1.JobKind{pacelinev1.JobKind_JOB_KIND_BATCH}}
	for {
		page, err := root.Jobs.ListJobs(t.Context(), connect.NewRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Msg.GetJobs() {
			jobs = append(jobs, j.GetName())
		}
		if request.PageToken = page.Msg.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
	}
	if want := []string{"j0", "j2", "j4", "j6"}; !slices.Equal(jobs, want) {
		t.Errorf("jobs %v, want %v", jobs, want)
	}
	var pools []string
	poolRequest := &pacelinev1.ListPoolsRequest{PageSize: 3}
	for {
		page, err := root.Pools.ListPools(t.Context(), connect.NewRequest(poolRequest))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Msg.GetPools() {
			pools = append(pools, p.GetSpec().GetPath())
		}
		if poolRequest.PageToken = page.Msg.GetNextPageToken(); poolRequest.GetPageToken() == "" {
			break
		}
	}
	if want := "/ /default /p0 /p1 /p2 /p3 /p4 /p5 /p6"; strings.Join(pools, " ") != want {
		t.Errorf("pools %v, want %v", pools, want)
	}
	poolRequest.PageToken = "nonsense"
	_, err := root.Pools.ListPools(t.Context(), connect.NewRequest(poolRequest))
	c.want("a damaged page token", err, connect.CodeInvalidArgument, "page token")
}

func TestPools(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	made, err := c.apply(root, `{path: /a, kind: static, reservation: {cpu_milli: 100}, limit: {cpu_milli: 200}, share: 3}`)
	if err != nil || !made.GetCreated() || made.GetPool().GetVersion() != 1 || made.GetPool().GetSpec().GetShare() != 3 {
		t.Fatalf("made %v, %v", made, err)
	}
	same, err := c.apply(root, `{path: /a, kind: static, reservation: {cpu_milli: 100}, limit: {cpu_milli: 200}, share: 3}`)
	if err != nil || !same.GetUnchanged() || same.GetCreated() || same.GetPool().GetVersion() != 1 {
		t.Errorf("the same again: %v, %v", same, err)
	}
	changed, err := c.apply(root, `{path: /a}`)
	if err != nil || changed.GetUnchanged() || changed.GetCreated() || changed.GetPool().GetVersion() != 2 || changed.GetPool().GetSpec().GetShare() != 1 {
		t.Errorf("changed: %v, %v", changed, err)
	}
	_, err = root.Pools.ApplyPool(t.Context(), connect.NewRequest(&pacelinev1.ApplyPoolRequest{Spec: &pacelinev1.PoolSpec{Path: "/a"}, ExpectedVersion: 1}))
	c.want("a stale version", err, connect.CodeAborted, "version 2")
	_, err = c.apply(root, `{path: /x/y}`)
	c.want("no parent", err, connect.CodeFailedPrecondition, "parent")
	_, err = c.apply(root, `{path: /a, reserve_rest: true}`)
	c.want("a second rest", err, connect.CodeFailedPrecondition, "both reserve the rest")
	_, err = root.Pools.ApplyPool(t.Context(), connect.NewRequest(&pacelinev1.ApplyPoolRequest{Spec: &pacelinev1.PoolSpec{Path: "/"}}))
	c.want("the root", err, connect.CodeInvalidArgument, "path")
	whole, err := root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/"}))
	if err != nil || whole.Msg.GetPool().GetEntitlement().GetCpuMilli() != 10_000 {
		t.Errorf("the root: %v, %v", whole, err)
	}
	byID, err := root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: made.GetPool().GetId()}))
	if err != nil || byID.Msg.GetPool().GetSpec().GetPath() != "/a" {
		t.Errorf("by id: %v, %v", byID, err)
	}
	if _, err := root.Pools.DeletePool(t.Context(), connect.NewRequest(&pacelinev1.DeletePoolRequest{Pool: "/a"})); err != nil {
		t.Error(err)
	}
	_, err = root.Pools.GetPool(t.Context(), connect.NewRequest(&pacelinev1.GetPoolRequest{Pool: "/a"}))
	c.want("after the delete", err, connect.CodeNotFound, "/a")
}

func TestHosts(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	for _, request := range []*pacelinev1.ListHostsRequest{
		{}, {Cluster: "test"}, {HostPool: "fast"}, {Attributes: map[string]string{"zone": "a"}}, {States: []pacelinev1.HostState{pacelinev1.HostState_HOST_STATE_READY}},
	} {
		list, err := root.Hosts.ListHosts(t.Context(), connect.NewRequest(request))
		if err != nil || len(list.Msg.GetHosts()) != 1 || list.Msg.GetHosts()[0].GetName() != hostName {
			t.Errorf("%v: %v, %v", request, list, err)
		}
	}
	for _, request := range []*pacelinev1.ListHostsRequest{
		{Cluster: "other"}, {HostPool: "slow"}, {Attributes: map[string]string{"zone": "b"}}, {States: []pacelinev1.HostState{pacelinev1.HostState_HOST_STATE_DRAINING}},
	} {
		if list, err := root.Hosts.ListHosts(t.Context(), connect.NewRequest(request)); err != nil || len(list.Msg.GetHosts()) != 0 {
			t.Errorf("%v: %v, %v", request, list, err)
		}
	}
	drained, err := root.Hosts.DrainHost(t.Context(), connect.NewRequest(&pacelinev1.DrainHostRequest{Host: "test/" + hostName}))
	if err != nil || drained.Msg.GetHost().GetState() != pacelinev1.HostState_HOST_STATE_DRAINING {
		t.Errorf("drained: %v, %v", drained, err)
	}
	back, err := root.Hosts.UndrainHost(t.Context(), connect.NewRequest(&pacelinev1.UndrainHostRequest{Host: drained.Msg.GetHost().GetId()}))
	if err != nil || back.Msg.GetHost().GetState() != pacelinev1.HostState_HOST_STATE_READY {
		t.Errorf("back: %v, %v", back, err)
	}
	_, err = root.Hosts.GetHost(t.Context(), connect.NewRequest(&pacelinev1.GetHostRequest{Host: "test/node-2"}))
	c.want("a host that is not there", err, connect.CodeNotFound, "node-2")
}

func TestPlanAndExplain(t *testing.T) {
	c := newTestCell(t, 2)
	root := c.as(adminToken)
	const yaml = "name: a\ninstances: 5\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 100}}"
	plan := func(yaml string) *pacelinev1.PlanJobResponse {
		t.Helper()
		answer, err := root.Jobs.PlanJob(t.Context(), connect.NewRequest(&pacelinev1.PlanJobRequest{Spec: parseYAML[*pacelinev1.JobSpec](t, yaml)}))
		if err != nil {
			t.Fatal(err)
		}
		return answer.Msg
	}
	first := plan(yaml)
	if first.GetChange() != pacelinev1.PlanChange_PLAN_CHANGE_CREATE || first.GetChecked() != 5 || first.GetPlaceable() != 2 || first.GetHosts()[hostName] != 2 {
		t.Errorf("a new job: %v", first)
	}
	if len(first.GetPending()) == 0 || first.GetPending()[0].GetRefusals()[0].GetReason() != pacelinev1.RefusalReason_REFUSAL_REASON_CPU {
		t.Errorf("why the rest waits: %v", first.GetPending())
	}
	if _, err := c.create(root, yaml); err != nil {
		t.Fatal(err)
	}
	if same := plan(yaml); same.GetChange() != pacelinev1.PlanChange_PLAN_CHANGE_NONE || len(same.GetFields()) != 0 {
		t.Errorf("the same job: %v", same)
	}
	other := plan(strings.Replace(yaml, "instances: 5", "instances: 6", 1))
	if other.GetChange() != pacelinev1.PlanChange_PLAN_CHANGE_UPDATE || len(other.GetFields()) != 1 || other.GetFields()[0].GetField() != "instances" {
		t.Errorf("another spec: %v", other)
	}
	c.eventually("the hosts' refusal is told", func() bool {
		answer, err := root.Jobs.ExplainJob(t.Context(), connect.NewRequest(&pacelinev1.ExplainJobRequest{Job: "a"}))
		if err != nil {
			t.Fatal(err)
		}
		e := answer.Msg.GetExplanation()
		return e.GetDominant() == pacelinev1.PendingReason_PENDING_REASON_PLACEMENT && e.GetReasons()[0].GetInstances() == 3 &&
			e.GetReasons()[0].GetHosts() == 1 && e.GetReasons()[0].GetMessage() != ""
	})
	if job, err := c.get(root, "a"); err != nil || job.GetPending().GetReason() != pacelinev1.PendingReason_PENDING_REASON_PLACEMENT {
		t.Errorf("what get says of it: %v, %v", job.GetPending(), err)
	}
}

func TestBadInputOverTheWire(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	base := func() *pacelinev1.JobSpec {
		return parseYAML[*pacelinev1.JobSpec](t, "name: a\nbatch: {}\ntask: {command: [x]}")
	}
	cases := []struct {
		name  string
		edit  func(*pacelinev1.JobSpec)
		code  connect.Code
		field string
	}{
		{"no name", func(s *pacelinev1.JobSpec) { s.Name = "" }, connect.CodeInvalidArgument, "spec.name"},
		{"negative CPU", func(s *pacelinev1.JobSpec) { s.Task.Resources = &pacelinev1.TaskResources{CpuMilli: -1} }, connect.CodeInvalidArgument, "spec.task.resources.cpu_milli"},
		{"overflowing memory", func(s *pacelinev1.JobSpec) { s.Task.Resources = &pacelinev1.TaskResources{MemoryMib: 1 << 62} }, connect.CodeInvalidArgument, "spec.task.resources.memory_mib"},
		{"2 MiB argument", func(s *pacelinev1.JobSpec) { s.Task.Command = []string{strings.Repeat("x", 2<<20)} }, connect.CodeInvalidArgument, "spec.task.command[0]"},
		{"2 MiB of arguments", func(s *pacelinev1.JobSpec) {
			s.Task.Command = slices.Repeat([]string{strings.Repeat("x", 1<<10)}, 2048)
		}, connect.CodeInvalidArgument, "spec"},
		{"8 MiB message", func(s *pacelinev1.JobSpec) { s.Task.Command = []string{strings.Repeat("x", 8<<20)} }, connect.CodeResourceExhausted, ""},
		{"unknown resource", func(s *pacelinev1.JobSpec) {
			s.Task.Resources = &pacelinev1.TaskResources{Extended: map[string]int64{"tpu": 1}}
		}, connect.CodeInvalidArgument, `spec.task.resources.extended["tpu"]`},
		{"override out of range", func(s *pacelinev1.JobSpec) { s.Overrides = []*pacelinev1.Override{{Instances: "1"}} }, connect.CodeInvalidArgument, "spec.overrides[0].instances"},
		{"unknown pool", func(s *pacelinev1.JobSpec) { s.Pool = "/nowhere" }, connect.CodeNotFound, "spec.pool"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := base()
			tc.edit(spec)
			_, err := root.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: spec}))
			if connect.CodeOf(err) != tc.code || len(err.Error()) > 8<<10 {
				t.Fatalf("got %v", err)
			}
			violations := client.Detail(err).GetViolations()
			if tc.field != "" && (len(violations) != 1 || violations[0].GetField() != tc.field) {
				t.Errorf("violations %v, want one of %s", violations, tc.field)
			}
		})
	}
	if list, err := root.Jobs.ListJobs(t.Context(), connect.NewRequest(&pacelinev1.ListJobsRequest{})); err != nil || len(list.Msg.GetJobs()) != 0 {
		t.Errorf("jobs after nothing but refusals: %v, %v", list, err)
	}
}

// TestLargestJob: the largest spec that the API lets in, in the form that takes most room in the store, is accepted and comes back.
func TestLargestJob(t *testing.T) {
	c := newTestCell(t, 0)
	root := c.as(adminToken)
	job := parseYAML[*pacelinev1.JobSpec](t, "name: large\ninstances: 1000000\nbatch: {}\ntask: {command: [x], resources: {cpu_milli: 1, memory_mib: 1, disk_mib: 1}}")
	number := int64(1<<40 - 1)
	source := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 8)
	for i := range 10_000 {
		if _, err := source.Read(noise); err != nil {
			t.Fatal(err)
		}
		override := &pacelinev1.Override{Instances: fmt.Sprint(100 * i)}
		if i < 5000 {
			override.Labels = map[string]string{"a": fmt.Sprintf("%x", noise)}
		} else {
			override.Resources = &pacelinev1.Quantities{CpuMilli: &number, MemoryMib: &number}
		}
		job.Overrides = append(job.Overrides, override)
	}
	if _, err := root.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: job})); err != nil {
		t.Fatal(err)
	}
	back, err := c.get(root, "large")
	if err != nil {
		t.Fatal(err)
	}
	if got := back.GetSpec(); got.GetInstances() != 1_000_000 || len(got.GetOverrides()) < 5001 {
		t.Errorf("came back with %d instances and %d overrides", got.GetInstances(), len(got.GetOverrides()))
	}
	job.Name = "larger"
	for _, o := range job.GetOverrides() {
		o.Env = map[string]string{"A": strings.Repeat("x", 50)}
	}
	_, err = root.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: job}))
	c.want("a larger one", err, connect.CodeInvalidArgument, "524288")
	job.Overrides = []*pacelinev1.Override{{Instances: "0-9999", Env: map[string]string{"A": strings.Repeat("x", 500)}}}
	_, err = root.Jobs.CreateJob(t.Context(), connect.NewRequest(&pacelinev1.CreateJobRequest{Spec: job}))
	c.want("one that is large once its overrides are spread", err, connect.CodeInvalidArgument, "once each instance has its own overrides")
}

func backup(ctx context.Context, cl *client.Client, into *bytes.Buffer) error {
	stream, err := cl.Admin.Backup(ctx, connect.NewRequest(&pacelinev1.BackupRequest{}))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		into.Write(stream.Msg().GetData())
	}
	return stream.Err()
}

func TestBackup(t *testing.T) {
	c := newTestCell(t, 4)
	root := c.as(adminToken)
	if _, err := c.apply(root, `{path: /kept}`); err != nil {
		t.Fatal(err)
	}
	var raw bytes.Buffer
	if err := backup(t.Context(), root, &raw); err != nil {
		t.Fatal(err)
	}
	other := &memstore.Disk{}
	if err := memstore.Restore(t.Context(), other, nil, &raw); err != nil {
		t.Fatal(err)
	}
	restored, err := memstore.Open(t.Context(), other, memstore.Config{Cell: "default"})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if there, here := size(t, restored), size(t, c.store); there < 3 || there > here {
		t.Errorf("%d keys were restored of %d", there, here)
	}
}

// size counts the keys of a store.
func size(t *testing.T, s store.Store) int {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	keys := 0
	if err := snap.Scan([]byte("/"), nil, func(_, _ []byte) (bool, error) { keys++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestFirstStartMakesAToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if _, err := api.NewServer(api.Config{TokenFile: path}, api.Parts{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: %v, %v", info, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := api.NewServer(api.Config{TokenFile: path}, api.Parts{}); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("a token file that others can read: %v", err)
	}
}
