package spec_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"buf.build/go/protoyaml"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func names(t interface{ Fatal(...any) }) *resource.Names {
	n, err := resource.NewNames([]string{"nvidia.com/nic", "licence"})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func scope(t interface{ Fatal(...any) }) spec.Scope {
	return spec.Scope{Field: "spec", Pool: workload.PoolID{15: 2}, Owner: "alice", Names: names(t)}
}

func parseJob(t *testing.T, yaml string) *pacelinev1.JobSpec {
	t.Helper()
	in := &pacelinev1.JobSpec{}
	if err := protoyaml.Unmarshal([]byte(yaml), in); err != nil {
		t.Fatal(err)
	}
	return in
}

func TestDefaults(t *testing.T) {
	got, err := spec.ToJob(parseJob(t, `
name: a
batch: {}
task: {command: [x], resources: {ports: [{name: web}]}, health_check: {http: {port: web}}}
placement: {affinities: [{selector: {app: db}}]}
`), scope(t))
	if err != nil {
		t.Fatal(err)
	}
	want := &workload.JobSpec{
		Name: "a", Pool: workload.PoolID{15: 2}, Owner: "alice", Kind: workload.Batch, Instances: 1, Preemptible: true,
		Retry: workload.RetryPolicy{MaxRetries: 3, Initial: time.Second, Max: 5 * time.Minute},
		Template: workload.TaskTemplate{
			Command: []string{"x"}, Ports: []workload.Port{{Name: "web"}}, KillGrace: 10 * time.Second,
			Health: &workload.HealthCheck{
				HTTP: &workload.HTTPCheck{Port: "web", Path: "/"}, Interval: 10 * time.Second, Timeout: time.Second, FailureThreshold: 3,
			},
		},
		Placement: workload.Placement{
			Affinities: []workload.Affinity{{Selector: map[string]string{"app": "db"}, Topology: "host"}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOverrides(t *testing.T) {
	job, err := spec.ToJob(parseJob(t, `
name: a
instances: 10
batch: {}
task: {command: [x], resources: {cpu_milli: 100, memory_mib: 50}}
overrides:
  - {instances: "7,0-2", command: [y], resources: {memory_mib: 60}}
  - {instances: "4", env: {A: b}}
`), scope(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range job.Overrides {
		needs := "template"
		if o.Needs != nil {
			needs = names(t).Format(*o.Needs)
		}
		got = append(got, fmt.Sprintf("%d %v %v %s", o.Instance, o.Command, o.Env, needs))
	}
	want := []string{
		"0 [y] map[] cpu_milli=100 memory_mib=60", "1 [y] map[] cpu_milli=100 memory_mib=60", "2 [y] map[] cpu_milli=100 memory_mib=60",
		"4 [] map[A:b] template", "7 [y] map[] cpu_milli=100 memory_mib=60",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	back := spec.FromJob(job, "/default", names(t)).GetOverrides()
	if len(back) != 2 || back[0].GetInstances() != "0-2,7" || back[0].GetResources().GetMemoryMib() != 60 || back[0].GetResources().CpuMilli != nil {
		t.Errorf("written back as %v", back)
	}
}

const contained = `
name: a
batch: {}
task:
  container: {image: "registry.example.com/app:1", pull: always, read_only: true, work_dir: /srv, mounts: [{volume: data, path: /data, sub_path: a/b, read_only: true}]}
  inits: [{name: fetch, image: tools, command: [fetch], env: {A: b}, resources: {memory_mib: 64}}]
  sidecars: [{name: proxy, image: proxy, privileged: true, resources: {cpu_milli: 50}}]
  resources: {cpu_milli: 100, memory_mib: 64}
  artifacts: [{uri: "https://example.com/m.tgz", path: m, extract: true, cache: true}]
  volumes: [{name: data, claim: store}, {name: tmp, scratch: {}}, {name: etc, host_path: /etc}, {name: conf, config_map: c}, {name: key, secret: s}]
  mesos: {containerizer: docker}
  kubernetes: {namespace: prod, service_account: robot, pull_secrets: [r], run_as_user: 7, run_as_non_root: true, pod_patch: {spec: {dnsPolicy: None, priority_: [1, 2.5, null]}}}
`

// TestExecution: what a task runs in is read whole, and written back as it was said.
func TestExecution(t *testing.T) {
	in := parseJob(t, contained)
	if err := protovalidate.Validate(in); err != nil {
		t.Fatal(err)
	}
	job, err := spec.ToJob(in, scope(t))
	if err != nil {
		t.Fatal(err)
	}
	user := int64(7)
	want := &execution.Spec{
		Main: execution.Container{
			Image: "registry.example.com/app:1", Pull: execution.PullAlways, WorkDir: "/srv", ReadOnly: true,
			Mounts: []execution.Mount{{Volume: "data", Path: "/data", SubPath: "a/b", ReadOnly: true}},
		},
		Inits: []execution.Container{{
			Name: "fetch", Image: "tools", Command: []string{"fetch"}, Env: map[string]string{"A": "b"}, Needs: map[string]int64{"memory_mib": 64},
		}},
		Sidecars:  []execution.Container{{Name: "proxy", Image: "proxy", Privileged: true, Needs: map[string]int64{"cpu_milli": 50}}},
		Artifacts: []execution.Artifact{{URI: "https://example.com/m.tgz", Path: "m", Extract: true, Cache: true}},
		Volumes: []execution.Volume{
			{Name: "data", Claim: "store"}, {Name: "tmp", Scratch: true}, {Name: "etc", HostPath: "/etc"}, {Name: "conf", ConfigMap: "c"}, {Name: "key", Secret: "s"},
		},
		Mesos: &execution.Mesos{Docker: true},
		Kubernetes: &execution.Kubernetes{
			Namespace: "prod", ServiceAccount: "robot", PullSecrets: []string{"r"}, RunAsUser: &user, RunAsNonRoot: true,
			Patch: []byte(`{"spec":{"dnsPolicy":"None","priority_":[1,2.5,null]}}`),
		},
	}
	if !reflect.DeepEqual(job.Template.Execution, want) {
		t.Errorf("got  %+v\nwant %+v", job.Template.Execution, want)
	}
	checkRoundTrip(t, job)
	again, err := spec.ToJob(spec.FromJob(job, "/default", names(t)), scope(t))
	if err != nil || !reflect.DeepEqual(again, job) {
		t.Errorf("written back, it is read as %+v, %v", again, err)
	}
	if bare, err := spec.ToJob(parseJob(t, "name: a\nbatch: {}\ntask: {command: [x], container: {}}"), scope(t)); err != nil || bare.Template.Execution != nil {
		t.Errorf("a container of nothing is %+v, %v", bare, err)
	}
}

// sides is a list of so many containers.
func sides(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("{name: s%d, image: x}", i))
	}
	return strings.Join(list, ", ")
}

// TestBadJobs is the table of what the conversion refuses beyond the rules in the protos.
func TestBadJobs(t *testing.T) {
	job := func(rest string) string { return "name: a\nbatch: {}\ninstances: 10\ntask: {command: [x]}\n" + rest }
	task := func(rest string) string {
		return "name: a\nbatch: {}\ninstances: 10\ntask: {command: [x], " + rest + "}\n"
	}
	cases := []struct{ name, yaml, field, says string }{
		{"long command", "name: a\nbatch: {}\ntask: {command: [sh, '" + strings.Repeat("x", 128<<10) + "']}", "spec.task.command", "put long input in a file"},
		{"very long command", "name: a\nbatch: {}\ntask: {command: [sh, '" + strings.Repeat("x", 2<<20) + "']}", "spec", "at most 524288"},
		{"empty program", "name: a\nbatch: {}\ntask: {command: ['', b]}", "spec.task.command[0]", "name a program"},
		{"NUL", "name: a\nbatch: {}\ntask: {command: [\"a\\0b\"]}", "spec.task.command[0]", "NUL"},
		{"NUL in env", "name: a\nbatch: {}\ntask: {command: [a], env: {X: \"a\\0b\"}}", `spec.task.env["X"]`, "NUL"},
		{"unknown resource", "name: a\nbatch: {}\ntask: {command: [a], resources: {extended: {tpu: 1}}}", `spec.task.resources.extended["tpu"]`, "no host of this cell"},
		{"built-in as extended", "name: a\nbatch: {}\ntask: {command: [a], resources: {extended: {cpu_milli: 1}}}", `spec.task.resources.extended["cpu_milli"]`, "one level up"},
		{"negative", "name: a\nbatch: {}\ntask: {command: [a], resources: {disk_mib: -1}}", "spec.task.resources.disk_mib", "between 0 and"},
		{"overflow", "name: a\nbatch: {}\ntask: {command: [a], resources: {memory_mib: 9223372036854775807}}", "spec.task.resources.memory_mib", "between 0 and"},
		{"port number twice", "name: a\nbatch: {}\ntask: {command: [a], resources: {ports: [{name: a, number: 1}, {name: b, number: 1}]}}", "spec.task.resources.ports[1].number", "another port's"},
		{"health port", "name: a\nservice: {}\ntask: {command: [a], health_check: {tcp: {port: web}}}", "spec.task.health_check.tcp.port", "not among the ports"},
		{"health path", "name: a\nservice: {}\ntask: {command: [a], resources: {ports: [{name: web}]}, health_check: {http: {port: web, path: \"/a b\"}}}", "spec.task.health_check.http.path", "%20"},
		{"delays crossed", job("backoff: {initial_delay: 10s, max_delay: 5s}"), "spec.backoff.max_delay", "not be below"},
		{"override beyond", job("overrides: [{instances: '3-10'}]"), "spec.overrides[0].instances", "from 0 to 9"},
		{"override backwards", job("overrides: [{instances: '5-3'}]"), "spec.overrides[0].instances", "write 3-5"},
		{"override words", job("overrides: [{instances: 'all'}]"), "spec.overrides[0].instances", "not an instance number"},
		{"override twice", job("overrides: [{instances: '3'}, {instances: '1-4'}]"), "spec.overrides[1].instances", "in overrides[0] already"},
		{"override half gpu", job("overrides: [{instances: '3', resources: {gpu_milli: 1500}}]"), "spec.overrides[0].resources.gpu_milli", "multiple of 1000"},
		{"too many overridden", "name: a\nbatch: {}\ninstances: 1000000\ntask: {command: [x]}\noverrides: [{instances: '0-10000'}]", "spec.overrides[0].instances", "more than 10000"},
		{"group beyond", job("gang: {groups: [{name: a, instances: '3-10'}]}"), "spec.gang.groups[0].instances", "from 0 to 9"},
		{"group words", job("gang: {groups: [{name: a, instances: all}]}"), "spec.gang.groups[0].instances", "not an instance number"},
		{
			"member twice", job("gang: {groups: [{name: a, instances: '0-3'}, {name: b, instances: '5,2'}]}"), "spec.gang.groups[1].instances",
			"instance 2 is in group a and in group b",
		},
		{"groups of one name", job("gang: {groups: [{name: a, instances: '0'}, {name: a, instances: '1'}]}"), "spec.gang.groups[1].name", "another group's"},
		{"group too small", job("gang: {groups: [{name: a, instances: '0-1', min_size: 3}]}"), "spec.gang.groups[0].min_size", "more than the 2"},
		{"gang too small", job("gang: {min_size: 11}"), "spec.gang.min_size", "more than the 10"},
		{"two sizes", job("gang: {min_size: 1, groups: [{name: a, instances: '0-1'}]}"), "spec.gang.min_size", "each of the groups"},
		{"topology of nothing", job("gang: {topology: {required: true}}"), "spec.gang.topology.key", "for example rack"},
		{
			"narrow window", "name: a\nbatch: {max_running: 2}\ninstances: 10\ntask: {command: [x]}\ngang: {groups: [{name: a, instances: '0-3', min_size: 3}]}",
			"spec.batch.max_running", "the 3 members that gang a",
		},
		{"mount of nothing", task("container: {image: a, mounts: [{volume: v, path: /v}]}"), "spec.task.container.mounts[0].volume", `"v" is not among the volumes`},
		{"volume of nothing", task("volumes: [{name: v}]"), "spec.task.volumes[0]", "for example scratch: {}"},
		{"volume twice", task("volumes: [{name: v, scratch: {}}, {name: v, claim: c}]"), "spec.task.volumes[1].name", "another volume's"},
		{"side of a name", task("inits: [{name: a, image: x}], sidecars: [{name: a, image: x}]"), "spec.task.sidecars[0].name", "is the name of spec.task.inits[0] too"},
		{"main twice", task("inits: [{name: main, image: x}]"), "spec.task.inits[0].name", "the container of the task's command"},
		{"side of nothing", task("sidecars: [{name: a}]"), "spec.task.sidecars[0].command", "entry point"},
		{"pull of nothing", task("container: {pull: always}"), "spec.task.container", "need an image"},
		{"pull sometimes", task("container: {image: a, pull: sometimes}"), "spec.task.container.pull", "missing, always or never"},
		{"greedy sidecars", task("resources: {cpu_milli: 9}, sidecars: [{name: a, image: x, resources: {cpu_milli: 5}}, {name: b, image: x, resources: {cpu_milli: 5}}]"), "spec.task.resources", "10 of cpu_milli, more than the 9"},
		{"greedy init", task("sidecars: [], inits: [{name: a, image: x, resources: {memory_mib: 5}}]"), "spec.task.resources", "the init a has 5 of memory_mib"},
		{"sidecar with devices", task("resources: {gpu_milli: 1000}, sidecars: [{name: a, image: x, resources: {gpu_milli: 1000}}]"), "spec.task.sidecars[0].resources", "gpu_milli goes to the task's command"},
		{"too many sidecars", task("sidecars: [" + sides(17) + "]"), "spec.task.sidecars", "at most 16"},
		{"containerizer", task("mesos: {containerizer: rkt}"), "spec.task.mesos.containerizer", "mesos or docker"},
		{"pod without image", task("kubernetes: {}"), "spec.task.container.image", "run images only"},
		{"pod of a user", task("kubernetes: {}, user: ada, container: {image: a}"), "spec.task.user", "run_as_user"},
		{"root and not", task("container: {image: a}, kubernetes: {run_as_user: 0, run_as_non_root: true}"), "spec.task.kubernetes.run_as_user", "forbids"},
		{"patched node", task("container: {image: a}, kubernetes: {pod_patch: {spec: {nodeName: n}}}"), "spec.task.kubernetes.pod_patch.spec.nodeName", "leave it out"},
		{"patched status", task("container: {image: a}, kubernetes: {pod_patch: {status: {}}}"), "spec.task.kubernetes.pod_patch", "metadata and spec"},
		{"patch that deletes", task("container: {image: a}, kubernetes: {pod_patch: {spec: null}}"), "spec.task.kubernetes.pod_patch.spec", "must be an object"},
		{"patch of no object", task("container: {image: a}, kubernetes: {pod_patch: {metadata: [1]}}"), "spec.task.kubernetes.pod_patch.metadata", "must be an object"},
		{"patch that replaces", task("container: {image: a}, kubernetes: {pod_patch: {spec: {$patch: replace}}}"), "spec.task.kubernetes.pod_patch.spec.$patch", "patch single fields"},
		{"large patch", task("container: {image: a}, kubernetes: {pod_patch: {spec: {x: " + strings.Repeat("y", 64<<10) + "}}}"), "spec.task.kubernetes.pod_patch", "at most 65536"},
		{"image with a line", task(`container: {image: "a\nb"}`), "spec.task.container.image", "control characters"},
		{"feature by hand", job("placement: {constraints: [{key: can/image, exists: true}]}"), "spec.placement.constraints[0].key", "follows from what the task is made of"},
		{
			"greedy sidecar of an override", task("resources: {cpu_milli: 9}, sidecars: [{name: a, image: x, resources: {cpu_milli: 9}}]") + "overrides: [{instances: '3', resources: {cpu_milli: 8}}]",
			"spec.overrides[0].resources", "more than the 8",
		},
		{"no such instances", job("overrides: [{instances: '99999999999999999999'}]"), "spec.overrides[0].instances", "out of range"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := spec.ToJob(parseJob(t, c.yaml), scope(t))
			var invalid *spec.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Violations) != 1 {
				t.Fatalf("got %v, want one violation", err)
			}
			v := invalid.Violations[0]
			if v.Field != c.field || !strings.Contains(v.Message, c.says) {
				t.Errorf("got %s: %s", v.Field, v.Message)
			}
		})
	}
}

func TestMillionInstances(t *testing.T) {
	in := parseJob(t, "name: a\nbatch: {}\ninstances: 1000000\ntask: {command: [x]}")
	for i := range 10_000 {
		in.Overrides = append(in.Overrides, &pacelinev1.Override{Instances: fmt.Sprint(i * 100), Labels: map[string]string{"n": fmt.Sprint(i)}})
	}
	if err := protovalidate.Validate(in); err != nil {
		t.Fatal(err)
	}
	job, err := spec.ToJob(in, scope(t))
	if err != nil {
		t.Fatal(err)
	}
	if job.Instances != 1_000_000 || len(job.Overrides) != 10_000 || job.Overrides[9999].Instance != 999_900 {
		t.Errorf("%d instances, %d overrides", job.Instances, len(job.Overrides))
	}
}

// TestBytes: a spec whose overrides name one instance each is as large as its encoding, but for what each override is allowed.
func TestBytes(t *testing.T) {
	in := parseJob(t, "name: a\ninstances: 10\nbatch: {}\ntask: {command: [x]}")
	if got, want := spec.Bytes(in), proto.Size(in); got != want {
		t.Errorf("without overrides: %d, encoded %d", got, want)
	}
	base := proto.Size(in)
	in.Overrides = []*pacelinev1.Override{{Instances: "0-8", Command: []string{"0123456789"}}}
	if got := spec.Bytes(in) - base; got < 9*12 || got > 9*24 {
		t.Errorf("nine instances with 10 bytes each take %d", got)
	}
}

func TestViolationsAreBounded(t *testing.T) {
	in := parseJob(t, "name: a\nbatch: {}\ntask: {command: [x]}")
	for range 1000 {
		in.Overrides = append(in.Overrides, &pacelinev1.Override{Instances: strings.Repeat("x", 500)})
	}
	_, err := spec.ToJob(in, scope(t))
	if err == nil || len(err.Error()) > 16<<10 || !strings.HasSuffix(err.Error(), "and 968 more") {
		t.Errorf("message of %d bytes", len(err.Error()))
	}
}

func drawLabels(t *rapid.T, label string) map[string]string {
	return rapid.MapOfN(rapid.StringMatching(`[a-zA-Z][a-zA-Z0-9]{0,5}`), rapid.StringMatching(`[ -~é]{0,10}`), 0, 3).Draw(t, label)
}

func drawDuration(t *rapid.T, label string) *durationpb.Duration {
	return durationpb.New(time.Duration(rapid.Int64Range(int64(100*time.Millisecond), int64(30*time.Minute)).Draw(t, label)))
}

func drawCommand(t *rapid.T, label string, least int) []string {
	return rapid.SliceOfN(rapid.StringMatching(`[a-z][ -~]{0,8}`), least, 4).Draw(t, label)
}

func drawTask(t *rapid.T) *pacelinev1.TaskSpec {
	quantity := rapid.Int64Range(0, 1<<40)
	task := &pacelinev1.TaskSpec{
		Command: drawCommand(t, "command", 1), Env: drawLabels(t, "env"), Labels: drawLabels(t, "labels"),
		Resources: &pacelinev1.TaskResources{
			CpuMilli: quantity.Draw(t, "cpu"), MemoryMib: quantity.Draw(t, "memory"), DiskMib: quantity.Draw(t, "disk"),
			GpuMilli: rapid.OneOf(rapid.Int64Range(0, 999), rapid.Custom(func(t *rapid.T) int64 {
				return 1000 * rapid.Int64Range(1, 16).Draw(t, "gpus")
			})).Draw(t, "gpu"),
		},
	}
	if rapid.Bool().Draw(t, "nic") {
		task.Resources.Extended = map[string]int64{"nvidia.com/nic": quantity.Draw(t, "nics")}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "ports") {
		task.Resources.Ports = append(task.Resources.Ports, &pacelinev1.Port{Name: fmt.Sprintf("p-%d", i), Number: uint32(i * 80)})
	}
	if len(task.GetResources().GetPorts()) > 0 && rapid.Bool().Draw(t, "health") {
		task.HealthCheck = &pacelinev1.HealthCheck{
			Check:    &pacelinev1.HealthCheck_Tcp{Tcp: &pacelinev1.TcpCheck{Port: "p-0"}},
			Interval: drawDuration(t, "interval"), FailureThreshold: rapid.Uint32Range(0, 9).Draw(t, "threshold"),
		}
	}
	if rapid.Bool().Draw(t, "grace") {
		task.KillGrace = drawDuration(t, "kill_grace")
	}
	return task
}

func drawPlacement(t *rapid.T) *pacelinev1.PlacementSpec {
	yes, number := true, rapid.Int64().Draw(t, "number")
	conditions := []*pacelinev1.Constraint{
		{Key: "zone", AnyOf: []string{"a", "b"}},
		{Key: "zone", NoneOf: []string{""}},
		{Key: "ssd", Exists: &yes},
		{Key: "ssd", Exists: new(bool)},
		{Key: "gen", GreaterThan: &number},
		{Key: "gen", LessThan: &number},
	}
	p := &pacelinev1.PlacementSpec{
		Strategy:    rapid.SampledFrom([]string{"", "pack", "spread", "best-fit"}).Draw(t, "strategy"),
		Constraints: rapid.SliceOfN(rapid.SampledFrom(conditions), 0, 4).Draw(t, "constraints"),
		Exclusive:   rapid.Bool().Draw(t, "exclusive"),
	}
	if rapid.Bool().Draw(t, "soft") {
		p.Preferences = []*pacelinev1.Preference{{Constraint: rapid.SampledFrom(conditions).Draw(t, "preferred"), Weight: 7}}
		p.Affinities = []*pacelinev1.Affinity{{Selector: map[string]string{"a": "b"}, Anti: true}}
		p.Spreads = []*pacelinev1.Spread{{Topology: "rack", MaxSkew: 1}}
	}
	return p
}

func drawJob(t *rapid.T) *pacelinev1.JobSpec {
	instances := rapid.Uint32Range(1, 300).Draw(t, "instances")
	job := &pacelinev1.JobSpec{
		Name: rapid.StringMatching(`[a-z]([a-z0-9-]{0,10}[a-z0-9])?`).Draw(t, "name"), Labels: drawLabels(t, "job labels"),
		Priority: rapid.Int32Range(-100, 100).Draw(t, "priority"), Task: drawTask(t), Placement: drawPlacement(t),
	}
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		job.Kind = &pacelinev1.JobSpec_Batch{Batch: &pacelinev1.BatchSpec{MaxRunning: instances, Deadline: drawDuration(t, "deadline")}}
	case 1:
		job.Kind = &pacelinev1.JobSpec_Service{Service: &pacelinev1.ServiceSpec{MaxUnavailable: rapid.SampledFrom([]*uint32{nil, new(uint32), &instances}).Draw(t, "max_unavailable")}}
	case 2:
		job.Kind = &pacelinev1.JobSpec_Daemon{Daemon: &pacelinev1.DaemonSpec{}}
		return job
	}
	job.Instances = &instances
	job.RunTime = drawDuration(t, "run_time")
	job.OnPreemption = rapid.SampledFrom([]string{"", "restart", "kill"}).Draw(t, "on_preemption")
	job.Controller = rapid.Bool().Draw(t, "controller")
	job.Revocable = job.GetBatch() != nil && rapid.Bool().Draw(t, "revocable")
	if rapid.Bool().Draw(t, "gang") {
		job.Gang = drawGang(t, instances)
	}
	for i := range instances {
		if i%3 == 0 && rapid.IntRange(0, 9).Draw(t, "overridden") == 0 {
			gpu := int64(1000)
			job.Overrides = append(job.Overrides, &pacelinev1.Override{
				Instances: fmt.Sprint(i), Command: rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}}).Draw(t, "other command"),
				Resources: rapid.SampledFrom([]*pacelinev1.Quantities{nil, {}, {GpuMilli: &gpu}, {Extended: map[string]int64{"licence": 0}}}).Draw(t, "other needs"),
			})
		}
	}
	return job
}

func drawGang(t *rapid.T, instances uint32) *pacelinev1.GangSpec {
	g := &pacelinev1.GangSpec{}
	if rapid.Bool().Draw(t, "topology") {
		g.Topology = &pacelinev1.GangTopology{Key: "rack", Required: rapid.Bool().Draw(t, "required")}
	}
	if instances < 5 || rapid.Bool().Draw(t, "whole") {
		g.MinSize = rapid.Uint32Range(0, instances).Draw(t, "min_size")
		return g
	}
	g.Groups = []*pacelinev1.GangGroup{
		{Name: "left", Instances: rapid.SampledFrom([]string{"0", "2,0-1", "0-1,1-2"}).Draw(t, "left")},
		{Name: "right", Instances: "3-4", MinSize: rapid.Uint32Range(0, 2).Draw(t, "right's min_size")},
	}
	return g
}

// TestJobRoundTrip: what is accepted is written back as a spec that the rules accept, that means the same, and that is written
// the same the next time.
func TestJobRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawJob(t)
		if err := protovalidate.Validate(in); err != nil {
			t.Fatalf("the test draws specs that the rules refuse: %v", err)
		}
		first, err := spec.ToJob(in, scope(t))
		if err != nil {
			t.Fatal(err)
		}
		checkRoundTrip(t, first)
	})
}

func checkRoundTrip(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, first *workload.JobSpec,
) {
	written := spec.FromJob(first, "/default", names(t))
	if err := protovalidate.Validate(written); err != nil {
		t.Fatalf("the rules refuse what is written: %v\n%s", err, prototext.Format(written))
	}
	second, err := spec.ToJob(written, scope(t))
	if err != nil {
		t.Fatalf("what is written is refused: %v", err)
	}
	again := spec.FromJob(second, "/default", names(t))
	if !proto.Equal(written, again) {
		t.Fatalf("written differently the second time:\n%s\n%s", prototext.Format(written), prototext.Format(again))
	}
	if len(first.Overrides) != len(second.Overrides) || first.Template.Needs != second.Template.Needs {
		t.Fatalf("means something else:\n%+v\n%+v", first, second)
	}
}

func TestInstancesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SliceOfDistinct(rapid.Uint32Range(0, 200), rapid.ID).Draw(t, "instances")
		slices.Sort(set)
		if len(set) == 0 {
			return
		}
		ranges, err := spec.ParseInstances(spec.FormatInstances(set))
		if err != nil {
			t.Fatal(err)
		}
		var back []uint32
		for i, r := range ranges {
			if i > 0 && r.First <= ranges[i-1].Last+1 {
				t.Fatalf("%v could be shorter", ranges)
			}
			for n := r.First; n <= r.Last; n++ {
				back = append(back, n)
			}
		}
		if !slices.Equal(set, back) {
			t.Fatalf("%v came back as %v", set, back)
		}
	})
}

func TestPools(t *testing.T) {
	parse := func(yaml string) (respool.Pool, error) {
		in := &pacelinev1.PoolSpec{}
		if err := protoyaml.Unmarshal([]byte(yaml), in); err != nil {
			t.Fatal(err)
		}
		if err := protovalidate.Validate(in); err != nil {
			t.Fatal(err)
		}
		return spec.ToPool(in, "spec", names(t))
	}
	pool, err := parse(`{path: /prod/ads, kind: static, reservation: {cpu_milli: 5}, limit: {cpu_milli: 9, extended: {licence: 0}}, share: 0,
		queue: {order: fair-user, backfill: easy, candidates: shortest-first, patience: 60s, usage_half_life: 3600s},
		user_limit: {memory_mib: 7}, controller_percent: 20, revocable_percent: 100}`)
	if err != nil {
		t.Fatal(err)
	}
	queue := respool.QueuePolicy{
		Order: respool.OrderFairUser, Backfill: respool.BackfillEASY, Candidates: respool.OrderShortestFirst,
		Patience: time.Minute, UsageHalfLife: time.Hour,
	}
	if pool.Queue != queue || pool.UserLimit.Of(resource.Memory) != 7 || pool.ControllerPercent != 20 || pool.RevocablePercent != 100 {
		t.Errorf("got %+v", pool)
	}
	if pool.Name != "ads" || pool.Kind != respool.Static || pool.Share != 0 || pool.Limit.Of(resource.CPU) != 9 ||
		pool.Limit.Of(resource.FirstNamed+1) != 0 || pool.Limit.Of(resource.Memory) != respool.Unlimited {
		t.Errorf("got %+v", pool)
	}
	again, err := spec.ToPool(spec.FromPool(&pool, "/prod/ads", names(t)), "spec", names(t))
	if err != nil || again != pool {
		t.Errorf("written and read again: %+v, %v", again, err)
	}
	if pool, err = parse(`{path: /a}`); err != nil || pool.Share != 1 || pool.Kind != respool.Elastic || pool.Queue != (respool.QueuePolicy{}).WithDefaults() {
		t.Errorf("defaults: %+v, %v", pool, err)
	}
	if _, err = parse(`{path: /a, reservation: {cpu_milli: 5}, limit: {cpu_milli: 4}}`); err == nil || !strings.Contains(err.Error(), "over the limit of 4") {
		t.Errorf("reservation over limit: %v", err)
	}
	if got := spec.ParentPath("/a/b/c") + spec.ParentPath("/a"); got != "/a/b/" {
		t.Errorf("parents: %s", got)
	}
}

// FuzzJobYAML: no job file makes the conversion panic, and what it accepts it can write back.
func FuzzJobYAML(f *testing.F) {
	f.Add("name: a\nbatch: {}\ntask: {command: [x]}")
	f.Add("name: a\nservice: {}\ninstances: 9\ntask: {command: [x], resources: {ports: [{name: w}]}, health_check: {http: {port: w}}}\noverrides: [{instances: '0-3,7', env: {A: b}}]")
	f.Add("name: a\ndaemon:\ntask: {simulation: {}}\nplacement: {constraints: [{key: a, less_than: -1}], affinities: [{selector: {a: b}}]}")
	f.Add(contained)
	f.Add("name: a\nbatch: {deadline: 1s}\nbackoff: {initial_delay: -1s}\ntask: {}\noverrides: [{}, {instances: '4194303-0'}]")
	f.Fuzz(func(t *testing.T, yaml string) {
		in := &pacelinev1.JobSpec{}
		// protoyaml counts only \n as a line's end and panics where YAML sees more lines; what reads files has to see to that.
		if strings.ContainsAny(yaml, "\r\u0085\u2028\u2029") || protoyaml.Unmarshal([]byte(yaml), in) != nil {
			return
		}
		job, err := spec.ToJob(in, scope(t))
		if err != nil || protovalidate.Validate(in) != nil {
			return
		}
		checkRoundTrip(t, job)
	})
}

// FuzzJobMessage does the same with messages of any content.
func FuzzJobMessage(f *testing.F) {
	for _, in := range []*pacelinev1.JobSpec{
		{},
		{Name: "a", Kind: &pacelinev1.JobSpec_Batch{}, Task: &pacelinev1.TaskSpec{Command: []string{"x"}}},
		{Kind: &pacelinev1.JobSpec_Service{}, Task: &pacelinev1.TaskSpec{HealthCheck: &pacelinev1.HealthCheck{Check: &pacelinev1.HealthCheck_Exec{}}}},
		{Placement: &pacelinev1.PlacementSpec{Preferences: []*pacelinev1.Preference{{}}, Spreads: []*pacelinev1.Spread{{}}}},
	} {
		raw, err := proto.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := &pacelinev1.JobSpec{}
		if proto.Unmarshal(raw, in) != nil {
			return
		}
		if job, err := spec.ToJob(in, scope(t)); err == nil && protovalidate.Validate(in) == nil {
			checkRoundTrip(t, job)
		}
	})
}
