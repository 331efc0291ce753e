package rego_test

import (
	"crypto/sha256"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/paceline-sched/paceline/core/api/admit"
	"github.com/paceline-sched/paceline/core/api/auth"
	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/policies/rego"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files are the files of a bundle, by name.
type files map[string]string

func (f files) fs() fs.FS {
	out := fstest.MapFS{}
	for name, text := range f {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

// rules is a bundle with one module.
func rules(body string) files {
	return files{"rules.rego": "package paceline.admission\n\n" + body}
}

func pack(t testing.TB, f files) []byte {
	t.Helper()
	archive, err := rego.Pack(f.fs())
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

func stored(t testing.TB, name string, f files) admit.Bundle {
	t.Helper()
	archive := pack(t, f)
	return admit.Bundle{Name: name, Digest: sha256.Sum256(archive), Archive: archive}
}

func newJudge(t testing.TB, bundles ...admit.Bundle) *rego.Judge {
	t.Helper()
	return limitedJudge(t, patience, bundles...)
}

// patience is more than any machine needs for rules that end.
const patience = 2 * time.Minute

func limitedJudge(t testing.TB, limit time.Duration, bundles ...admit.Bundle) *rego.Judge {
	t.Helper()
	j, err := rego.New(rego.Config{Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Load(1, bundles); err != nil {
		t.Fatal(err)
	}
	return j
}

// request is what is asked about a job file.
func request(t testing.TB, job string) *admit.Request {
	t.Helper()
	in := &pacelinev1.JobSpec{}
	if err := protojson.Unmarshal([]byte(job), in); err != nil {
		t.Fatal(err)
	}
	return requestFor(t, in)
}

func requestFor(t testing.TB, in *pacelinev1.JobSpec) *admit.Request {
	t.Helper()
	names, err := resource.NewNames(nil)
	if err != nil {
		t.Fatal(err)
	}
	job, err := spec.ToJob(in, spec.Scope{Field: "spec", Owner: "ann", Names: names})
	if err != nil {
		t.Fatal(err)
	}
	return &admit.Request{
		Operation: admit.Create, Spec: in, Job: job, Names: names, Cell: "berlin", Now: 1_700_000_000_000_000_000,
		Principal: &auth.Principal{Name: "ann", Tenant: "ads", Bindings: []auth.Binding{{Role: auth.Submitter, Pool: "/ads"}}},
		Pool: scheduler.PoolView{
			Path: "/ads/web", Parent: "/ads", Pool: respool.Pool{Name: "web"}, Usage: resource.Vector{resource.GPU: 3000},
			Reservation: resource.Vector{resource.GPU: 8000}, Jobs: 2,
		},
		State: &scheduler.CellView{Hosts: 3, Ready: 2, Shards: []scheduler.ShardView{{ID: "b/0", Cluster: "b", Ready: true, Hosts: 1}, {ID: "a/0", Cluster: "a", Hosts: 2}}},
	}
}

const plainJob = `{"name": "crunch", "pool": "/ads/web", "batch": {}, "labels": {"team": "ads"},
	"task": {"command": ["/bin/true"], "resources": {"cpu_milli": 500, "gpu_milli": 2000}, "env": {"PASSWORD": "tr0ub4dor"}}}`

func judge(t testing.TB, j *rego.Judge, r *admit.Request) *admit.Verdict {
	t.Helper()
	v, err := j.Judge(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// said is a verdict in one line.
func said(v *admit.Verdict) string {
	var parts []string
	for _, m := range v.Denials {
		parts = append(parts, "deny "+m.Bundle+": "+m.Text)
	}
	if f := v.Failure; f != nil {
		parts = append(parts, "fail "+f.Bundle+": "+f.Reason)
	}
	for _, m := range v.Warnings {
		parts = append(parts, "warn "+m.Bundle+": "+m.Text)
	}
	for _, c := range v.Changes {
		parts = append(parts, "change "+c.Bundle+": "+c.Field+" "+c.Before+" -> "+c.After)
	}
	return strings.Join(parts, " | ")
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name    string
		bundles map[string]string
		job     string
		want    string
	}{
		{"nothing to say", map[string]string{"a": `deny contains "no" if input.job.priority > 5`}, plainJob, ""},
		{"denied by two, in order", map[string]string{
			"b": `deny contains "late"`, "a": `deny contains msg if { some k in ["x", "team"]; not input.job.labels[k]; msg := sprintf("label %s is missing", [k]) }`,
		}, plainJob, "deny a: label x is missing | deny b: late"},
		{"warned", map[string]string{"a": `warn contains "careful" if input.principal.tenant == "ads"`}, plainJob, "warn a: careful"},
		{"defaults are there", map[string]string{
			"a": `deny contains sprintf("%v %v %v %v %v", [input.job.instances, input.job.priority, input.job.preemptible, input.job.batch.max_retries, input.job.task.kill_grace])`,
		}, plainJob, "deny a: 1 0 true 3 10s"},
		{"the pool and the cell", map[string]string{
			"a": `deny contains sprintf("%s %d %d %s %d %v", [input.pool.path, input.pool.usage.gpu_milli, input.pool.reservation.gpu_milli, input.cell.name, input.cell.ready_hosts, input.cell.clusters])`,
		}, plainJob, `deny a: /ads/web 3000 8000 berlin 2 [{"hosts": 2, "name": "a", "ready": false}, {"hosts": 1, "name": "b", "ready": true}]`},
		{"the time and who asks", map[string]string{
			"a": `deny contains sprintf("%d %s %s %v", [input.now, input.operation, input.principal.name, input.principal.roles])`,
		}, plainJob, `deny a: 1700000000000000000 create ann [{"pool": "/ads", "role": "submitter"}]`},
		{
			"changed",
			map[string]string{
				"a": `mutate contains {"labels": {"tier": "gold", "team": "ads"}, "priority_cap": 10, "preemptible": false, "deadline_cap": "2h"}`,
				"b": `mutate contains {"priority_cap": 20, "deadline_cap": "90m", "constraints": [{"key": "zone", "any_of": ["a"]}, {"key": "arch", "exists": true}]}`,
			},
			`{"name": "x", "batch": {}, "priority": 50, "labels": {"team": "ads"}, "task": {"command": ["a"]}, "placement": {"constraints": [{"key": "zone", "any_of": ["b"]}]}}`,
			`change a: labels.tier  -> "gold" | change a: priority 50 -> 10 | change a: preemptible true -> false | change b: batch.deadline  -> "5400s" | change b: placement.constraints.arch  -> {"exists":true,"key":"arch"}`,
		},
		{"a cap that is not reached", map[string]string{"a": `mutate contains {"priority_cap": 10}`}, plainJob, ""},
		{"what is changed is judged again", map[string]string{
			"a": `mutate contains {"labels": {"team": "x"}}`, "b": `deny contains sprintf("team %s", [input.job.labels.team])`,
		}, plainJob, "deny b: team x"},
		{"what is mended is not denied", map[string]string{
			"a": `mutate contains {"labels": {"cost": "1"}}`, "b": `deny contains "no cost" if not input.job.labels.cost`,
		}, plainJob, `change a: labels.cost  -> "1"`},
		{"two that contradict", map[string]string{
			"a": `mutate contains {"labels": {"team": "x"}}`, "b": `mutate contains {"labels": {"team": "y"}}`,
		}, plainJob, `fail b: the rules contradict one another: bundle a wants labels.team to be "x", bundle b wants it to be "y"`},
		{
			"one that contradicts itself",
			map[string]string{"a": "mutate contains {\"preemptible\": true}\nmutate contains {\"preemptible\": false}"},
			plainJob,
			"fail a: the rules contradict one another: bundle a wants preemptible to be false, bundle a wants it to be true",
		},
		{
			"no end of changes",
			map[string]string{"a": `mutate contains {"labels": {"n": concat("", [object.get(input.job.labels, "n", ""), "1"])}}`},
			plainJob,
			"fail a: its rules do not settle: after they changed the job they want labels.n changed again",
		},
		{"a change that breaks the job", map[string]string{"a": `mutate contains {"labels": {"": "x"}}`}, plainJob, "fail a: what the rules make of the job is no valid job: "},
		{
			"a field that rules may not touch",
			map[string]string{"a": `mutate contains {"owner": "me"}`},
			plainJob,
			`fail a: mutate: {"owner":"me"}: json: unknown field "owner"; the fields are labels, priority_cap, preemptible, deadline_cap and constraints`,
		},
		{"a constraint that follows from the task", map[string]string{"a": `mutate contains {"constraints": [{"key": "can/privileged", "none_of": ["yes"]}]}`}, plainJob, `fail a: mutate: {"constraints":[{"key":"can/privileged","none_of":["yes"]}]}: a constraint on "can/privileged" is not for rules to add: what a host has`},
		{"a text where a set belongs", map[string]string{"a": `deny := "no"`}, plainJob, "fail a: deny must be a set of texts, as in 'deny contains msg if { ... }', not a text"},
		{"a number among texts", map[string]string{"a": `deny contains 7`}, plainJob, "fail a: deny must hold texts only, not a number"},
		{"a built-in that fails", map[string]string{"a": `deny contains "no" if to_number(input.job.name) > 1`}, plainJob, "fail a: /rules.rego:3: eval_builtin_error: to_number: "},
		{"a denial counts for more than a failure", map[string]string{"a": `deny contains 7`, "b": `deny contains "no"`}, plainJob, "deny b: no"},
		{"an empty reason", map[string]string{"a": `deny contains ""`}, plainJob, "deny a: (no reason was given)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bundles []admit.Bundle
			for name, body := range c.bundles {
				bundles = append(bundles, stored(t, name, rules(body)))
			}
			j := newJudge(t, bundles...)
			for range 2 { // the second time from the memo
				got := said(judge(t, j, request(t, c.job)))
				if !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
					t.Fatalf("got  %s\nwant %s", got, c.want)
				}
			}
		})
	}
}
