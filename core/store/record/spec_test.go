package record_test

import (
	"bytes"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/api/spec"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// apiSpecs are job specs as clients send them, from the barest on.
var apiSpecs = map[string]string{
	"bare": `{"name": "a", "batch": {}, "task": {"command": ["x"]}}`,
	"empty lists": `{
		"name": "a",
		"labels": {},
		"batch": {},
		"task": {"command": ["x"], "env": {}, "resources": {"ports": []}},
		"placement": {"constraints": [], "affinities": []}
	}`,
	"bare service": `{"name": "a", "instances": 3, "service": {}, "task": {"command": ["x"]}}`,
	"daemon":       `{"name": "a", "daemon": {}, "task": {"command": ["x"], "resources": {"cpu_milli": 10}}}`,
	"extended":     `{"name": "a", "batch": {"max_running": 3}, "task": {"command": ["x"], "resources": {"extended": {"nvidia.com/nic": 2}}}}`,
	"gang":         `{"name": "a", "instances": 4, "gang": {}, "batch": {"max_retries": 0}, "task": {"command": ["x"]}}`,
	"gangs": `{"name": "a", "instances": 12, "batch": {}, "task": {"command": ["x"]}, "gang": {
		"groups": [{"name": "left", "instances": "8,0-2,3", "min_size": 2}, {"name": "right", "instances": "4-7"}], "topology": {"key": "rack"}
	}}`,
	"empty command": `{"name": "a", "instances": 2, "batch": {}, "task": {"command": ["x", ""], "env": {"A": ""}}}`,
	"overrides": `{
		"name": "a",
		"instances": 10,
		"batch": {},
		"task": {"command": ["x"], "resources": {"cpu_milli": 100, "memory_mib": 50}},
		"overrides": [{"instances": "1", "env": {"A": "b"}}, {"instances": "3-5", "command": ["y"], "resources": {"cpu_milli": 7}}]
	}`,
	"image":          `{"name": "a", "batch": {}, "task": {"container": {"image": "app:1"}}}`,
	"empty parts":    `{"name": "a", "batch": {}, "task": {"command": ["x"], "container": {}, "inits": [], "volumes": [], "user": ""}}`,
	"empty sections": `{"name": "a", "batch": {}, "task": {"command": ["x"], "mesos": {}, "kubernetes": {"pull_secrets": [], "pod_patch": {}}}}`,
	"containers": `{"name": "a", "batch": {}, "task": {
		"command": ["x"], "container": {"image": "app:1", "pull": "always", "mounts": [{"volume": "v", "path": "/v"}]}, "volumes": [{"name": "v", "scratch": {}}],
		"inits": [{"name": "i", "command": ["y"], "env": {}, "resources": {"cpu_milli": 0}}],
		"sidecars": [{"name": "s", "image": "proxy", "resources": {"cpu_milli": 10}}], "resources": {"cpu_milli": 100},
		"artifacts": [{"uri": "https://example.com/a"}], "mesos": {"containerizer": "docker"},
		"kubernetes": {"run_as_user": 0, "pod_patch": {"spec": {"b": [1, 1.5, null, true, "<x>"], "a": {}}}}
	}}`,
	"full": `{
		"name": "a",
		"labels": {"app": "web", "tier": ""},
		"priority": -3,
		"instances": 5,
		"preemptible": false,
		"service": {},
		"task": {"command": ["x", "y"], "env": {"A": "b"}, "labels": {"l": "m"}, "resources": {"cpu_milli": 100, "memory_mib": 50, "disk_mib": 1, "gpu_milli": 2000, "gpu_models": ["A100"], "ports": [{"name": "web"}, {"name": "raw", "number": 80}]}, "health_check": {"http": {"port": "web", "path": "/up"}, "initial_delay": "3s"}, "kill_grace": "4s"},
		"placement": {"constraints": [{"key": "zone", "any_of": ["a", "b"]}], "affinities": [{"selector": {"app": "db"}, "anti": true}], "spreads": [{"topology": "rack", "max_skew": 2}]}
	}`,
}

// TestSpecsOfTheAPISurvive: after a restart a re-submission of the same spec must still be known as the same, and the scheduler
// compares with reflect.DeepEqual.
func TestSpecsOfTheAPISurvive(t *testing.T) {
	names, err := resource.NewNames([]string{"nvidia.com/nic"})
	if err != nil {
		t.Fatal(err)
	}
	c := record.NewCodec(keyspace(t))
	for name, text := range apiSpecs {
		in := &pacelinev1.JobSpec{}
		if err := protojson.Unmarshal([]byte(text), in); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		accepted, err := spec.ToJob(in, spec.Scope{Field: "spec", Pool: workload.PoolID{15: 2}, Owner: "alice", Names: names})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		op := encode(t, c, scheduler.Write{Record: scheduler.SpecRecord{Job: workload.JobID{1}, Config: 1, Spec: accepted}})[0]
		w, err := c.Decode(op.Key, op.Value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if read, ok := w.Record.(scheduler.SpecRecord); !ok || !reflect.DeepEqual(read.Spec, accepted) {
			t.Errorf("%s: accepted %+v\nread %+v", name, accepted, read.Spec)
		}
	}
}

// identity is what names a record among its kind.
func identity(r scheduler.Record) any {
	switch r := r.(type) {
	case scheduler.CellRecord:
		return "cell"
	case scheduler.PoolRecord:
		return r.Pool.ID
	case scheduler.SpecRecord:
		return [2]any{r.Job, r.Config}
	case scheduler.JobRecord:
		return r.ID
	case scheduler.TaskRecord:
		return [2]any{r.Job, r.Instance}
	case scheduler.RunRecord:
		return [3]any{r.ID.Job, r.ID.Instance, r.ID.Run}
	case scheduler.HostRecord:
		return r.ID
	case scheduler.IdempotencyRecord:
		return r.Key
	case scheduler.ChangesRecord:
		return r.Sequence
	case scheduler.AccountRecord:
		return r.Key
	case scheduler.BalanceRecord:
		return r.Pool
	case scheduler.SampleRecord:
		return [2]any{r.At, r.Pool}
	case scheduler.RulesRecord:
		return r.Name
	case scheduler.ArchiveRecord:
		return r.Digest
	case scheduler.PoliciesRecord:
		return "policies"
	case scheduler.ClusterRecord:
		return r.Spec.Name
	}
	return nil
}

// TestKeysAreDisjoint: two records share a key exactly when they are the same object, and no key is the beginning of another, so that
// a scan of one kind or job never meets another's.
func TestKeysAreDisjoint(t *testing.T) {
	keys := keyspace(t)
	rapid.Check(t, func(r *rapid.T) {
		s, c := source{r}, record.NewCodec(keys)
		a, b := s.record(), s.record()
		ops := encode(r, c, scheduler.Write{Record: a, Delete: true}, scheduler.Write{Record: b, Delete: true})
		same := reflect.TypeOf(a) == reflect.TypeOf(b) && identity(a) == identity(b)
		if got := bytes.Equal(ops[0].Key, ops[1].Key); got != same {
			r.Fatalf("%T %v has key %q, %T %v has %q", a, identity(a), ops[0].Key, b, identity(b), ops[1].Key)
		}
		if !same && (bytes.HasPrefix(ops[0].Key, ops[1].Key) || bytes.HasPrefix(ops[1].Key, ops[0].Key)) {
			r.Fatalf("of %q and %q one is the beginning of the other", ops[0].Key, ops[1].Key)
		}
		if sequence := keys.Meta("sequence"); bytes.Equal(ops[0].Key, sequence) {
			r.Fatalf("%T has the key of the revision", a)
		}
	})
}
