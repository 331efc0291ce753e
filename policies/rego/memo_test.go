package rego_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/policies/rego"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// looks are rules that each look at one part of the input and say what they see.
var looks = []string{
	"input.operation", "input.principal.name", "input.principal.tenant", "input.principal.roles", "input.pool.path", "input.pool.name", "input.pool.parent",
	"input.pool.usage.gpu_milli", "input.pool", "input.cell.name", "input.cell.hosts", "input.cell.clusters", "input.job.name", "input.job.pool", "input.job.owner",
	"input.job.labels.team", "input.job.labels", "input.job.priority", "input.job.preemptible", "input.job.revocable", "input.job.controller", "input.job.run_time",
	"input.job.on_preemption", "input.job.instances", "input.job.batch.deadline", "input.job.batch", "input.job.service", "input.job.daemon",
	"input.job.task.command", "input.job.task.command[0]", "input.job.task.env.A", "input.job.task.labels", "input.job.task.resources.gpu_milli",
	"input.job.task.resources.ports", "input.job.task.container.image", "input.job.task.sidecars", "input.job.task.volumes", "input.job.task.user",
	"input.job.task.kubernetes.pod_patch", "input.job.task.kill_grace", "input.job.placement", "input.job.backoff", "input.job.gang", "input.job.overrides", "input.job",
	"input.job[[\"name\", \"priority\"][_]]", "input.now", "input",
}

func drawRequest(t *rapid.T, tb testing.TB) *admit.Request {
	word := func(label string) string { return rapid.SampledFrom([]string{"a", "b"}).Draw(t, label) }
	small := func(label string) int { return rapid.IntRange(0, 1).Draw(t, label) }
	yes := func(label string) bool { return rapid.Bool().Draw(t, label) }
	in := &pacelinev1.JobSpec{
		Name: word("name"), Labels: map[string]string{"team": word("team")}, Priority: int32(small("priority")), Controller: yes("controller"),
		Task: &pacelinev1.TaskSpec{
			Command: []string{word("program"), word("argument")}, Env: map[string]string{"A": word("env")}, Labels: map[string]string{"x": word("label")},
			KillGrace: durationpb.New(time.Duration(1+small("grace")) * time.Second),
			Resources: &pacelinev1.TaskResources{GpuMilli: int64(1000 * small("gpu")), Ports: []*pacelinev1.Port{{Name: word("port")}}},
		},
		Placement: &pacelinev1.PlacementSpec{HostPool: word("hosts")}, RunTime: durationpb.New(time.Duration(1+small("run")) * time.Hour),
		Backoff: &pacelinev1.BackoffSpec{InitialDelay: durationpb.New(time.Duration(1+small("delay")) * time.Second)},
	}
	if yes("image") {
		in.Task.Container = &pacelinev1.ContainerSpec{Image: word("image"), Privileged: yes("privileged")}
		in.Task.Volumes = []*pacelinev1.VolumeSpec{{Name: "v", Source: &pacelinev1.VolumeSpec_HostPath{HostPath: "/" + word("path")}}}
		in.Task.Sidecars = []*pacelinev1.SideContainerSpec{{Name: "s", Image: word("sidecar")}}
		in.Task.Kubernetes = &pacelinev1.KubernetesSpec{PodPatch: &structpb.Struct{Fields: map[string]*structpb.Value{
			"spec": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewStringValue(word("patch"))}}),
		}}}
	} else if yes("user") {
		in.Task.User = word("user")
	}
	if yes("owned") {
		in.Owner = word("owner")
	}
	if yes("batch") {
		in.Kind = &pacelinev1.JobSpec_Batch{Batch: &pacelinev1.BatchSpec{Deadline: durationpb.New(time.Duration(1+small("deadline")) * time.Hour)}}
		preemptible := yes("preemptible")
		in.Preemptible, in.Revocable = &preemptible, preemptible && yes("revocable")
	} else {
		in.Kind = &pacelinev1.JobSpec_Service{Service: &pacelinev1.ServiceSpec{}}
	}
	n := uint32(2 + small("instances"))
	in.Instances = &n
	if yes("gang") {
		in.Gang = &pacelinev1.GangSpec{MinSize: uint32(small("least"))}
	} else if yes("overrides") {
		in.Overrides = []*pacelinev1.Override{{Instances: "0", Labels: map[string]string{"o": word("override")}}}
	}
	r := requestFor(tb, in)
	r.Operation = []admit.Operation{admit.Create, admit.Plan}[small("operation")]
	r.Principal = &auth.Principal{Name: r.Principal.Name, Tenant: word("tenant"), Bindings: []auth.Binding{{Role: auth.Admin, Pool: "/" + word("binding")}}}
	r.Pool.Path = "/ads/" + word("pool")
	r.Pool.Usage = resource.Vector{resource.GPU: int64(small("usage"))}
	r.State = &scheduler.CellView{Hosts: small("cell"), Shards: []scheduler.ShardView{{Cluster: word("cluster"), Ready: yes("ready")}}}
	r.Now = int64(small("now"))
	return r
}

// A judge that remembers says the same as one that asks each time, whatever its rules look at.
func TestMemoSaysTheSame(t *testing.T) {
	type pair struct{ remembers, asks *rego.Judge }
	pairs := map[string]pair{}
	for _, look := range looks {
		b := stored(t, "a", rules(fmt.Sprintf("warn contains sprintf(\"%%v\", [%s])\n\nmutate contains {\"priority_cap\": 0} if %s == 1", look, look)))
		p := pair{newJudge(t, b), newJudge(t, b)}
		p.asks.Forget()
		pairs[look] = p
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := drawRequest(rt, t)
		for range 6 {
			look := rapid.SampledFrom(looks).Draw(rt, "look")
			for range 2 {
				if got, want := said(judge(t, pairs[look].remembers, r)), said(judge(t, pairs[look].asks, r)); got != want {
					rt.Fatalf("%s: remembered %q, the rules say %q", look, got, want)
				}
			}
		}
	})
	for look, p := range pairs {
		_, _, log := p.remembers.Report(1000)
		used := slices.ContainsFunc(log, func(d admit.Decision) bool { return d.Memo })
		if timed := look == "input" || look == "input.now"; used == timed && len(log) > 0 {
			t.Errorf("%s: an answer was remembered: %v", look, used)
		}
	}
}

// What a task runs in is written once into the key, by which an answer is remembered, however many parts of it rules look at.
func TestMemoOfSeveralPartsOfAnExecution(t *testing.T) {
	j := newJudge(t, stored(t, "a", rules(`deny contains "x" if {
	input.job.task.container.image == "never"
	input.job.task.sidecars[_].image == "never"
	input.job.task.user == "never"
}`)))
	r := request(t, plainJob)
	r.Job.Template.Execution = &execution.Spec{Main: execution.Container{Image: strings.Repeat("x", 2500)}}
	if judge(t, j, r); j.MemoAnswers() != 1 {
		t.Fatalf("%d answers are remembered", j.MemoAnswers())
	}
}

func TestMemoIsBounded(t *testing.T) {
	j := newJudge(t, stored(t, "a", rules(`deny contains "x" if input.job.name == "never"`)))
	for n := range 2*rego.MaxMemo + 10 {
		r := request(t, plainJob)
		r.Job.Name = fmt.Sprint("job-", n)
		judge(t, j, r)
	}
	if n := j.MemoAnswers(); n > rego.MaxMemo {
		t.Fatalf("%d answers are remembered, more than %d", n, rego.MaxMemo)
	}
	long := request(t, plainJob)
	long.Job.Name = strings.Repeat("x", 64<<10)
	before := j.MemoAnswers()
	judge(t, j, long)
	if j.MemoAnswers() != before {
		t.Fatal("an answer is remembered by a key of 64 KiB")
	}
}
