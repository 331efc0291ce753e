package api

import (
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"buf.build/go/protoyaml"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// TestRulesCompile proves that every rule in the protos is well formed: validating any message compiles the rules of its type, and a
// broken rule is an error other than *ValidationError.
func TestRulesCompile(t *testing.T) {
	files := []protoreflect.FileDescriptor{
		pacelinev1.File_paceline_v1_admin_service_proto, pacelinev1.File_paceline_v1_error_proto, pacelinev1.File_paceline_v1_event_service_proto,
		pacelinev1.File_paceline_v1_host_service_proto, pacelinev1.File_paceline_v1_job_proto, pacelinev1.File_paceline_v1_job_service_proto,
		pacelinev1.File_paceline_v1_job_spec_proto, pacelinev1.File_paceline_v1_placement_spec_proto, pacelinev1.File_paceline_v1_pool_service_proto,
		pacelinev1.File_paceline_v1_resource_proto, pacelinev1.File_paceline_v1_state_proto, pacelinev1.File_paceline_v1_task_service_proto,
	}
	for _, file := range files {
		for i := range file.Messages().Len() {
			message := dynamicpb.NewMessage(file.Messages().Get(i))
			err := protovalidate.Validate(message)
			if invalid := (*protovalidate.ValidationError)(nil); err != nil && !asValidation(err, &invalid) {
				t.Errorf("%s: %v", message.Descriptor().FullName(), err)
			}
		}
	}
}

func asValidation(err error, target **protovalidate.ValidationError) bool {
	v, ok := err.(*protovalidate.ValidationError) //nolint:errorlint // Validate documents the unwrapped type
	*target = v
	return ok
}

const fullJob = `
name: web
pool: /prod/ads
owner: ads
labels: {team: ads}
priority: 5
instances: 10
preemptible: false
batch: {max_retries: 0, max_running: 10, deadline: 600s}
gang: {groups: [{name: left, instances: "0-3,8", min_size: 2}, {name: right, instances: "4-7"}], topology: {key: rack, required: true}}
backoff: {initial_delay: 2s, max_delay: 60s}
task:
  command: [sleep, "5"]
  env: {A: b}
  resources:
    cpu_milli: 500
    memory_mib: 64
    diskMib: 10
    gpu_milli: 2000
    gpu_models: [A100]
    ports: [{name: http, number: 8080}, {name: admin}]
    extended: {nvidia.com/nic: 1}
  health_check: {http: {port: http, path: /healthz}, interval: 5s}
  kill_grace: 3s
  labels: {app: web}
  simulation: {duration: 5s}
overrides:
  - {instances: "0-3,7", command: ["true"], resources: {memory_mib: 128}}
placement:
  strategy: pack
  constraints: [{key: zone, any_of: [a, b]}, {key: gen, greater_than: 3}, {key: ssd, exists: true}]
  preferences: [{constraint: {key: rack, none_of: [r1]}, weight: 10}]
  affinities: [{selector: {app: db}, topology: zone, anti: true}]
  spreads: [{topology: rack, max_skew: 1}]
  exclusive: true
  host_pool: fast
  clusters: [east]
`

func TestRulesAcceptFullJob(t *testing.T) {
	spec := &pacelinev1.JobSpec{}
	if err := protoyaml.Unmarshal([]byte(fullJob), spec); err != nil {
		t.Fatal(err)
	}
	if err := protovalidate.Validate(spec); err != nil {
		t.Fatal(err)
	}
}

func TestRulesRefuse(t *testing.T) {
	cases := []struct {
		name, yaml, rule string
		message          proto.Message
	}{
		{"no kind", `{name: a, task: {command: [x]}}`, "required", &pacelinev1.JobSpec{}},
		{"no task", `{name: a, batch: {}}`, "required", &pacelinev1.JobSpec{}},
		{"no command", `{name: a, batch: {}, task: {}}`, "task_spec.command", &pacelinev1.JobSpec{}},
		{"capital name", `{name: A, batch: {}, task: {command: [x]}}`, "dns_label", &pacelinev1.JobSpec{}},
		{"no instances", `{name: a, instances: 0, batch: {}, task: {command: [x]}}`, "uint32.gte_lte", &pacelinev1.JobSpec{}},
		{"daemon instances", `{name: a, instances: 2, daemon: {}, task: {command: [x]}}`, "job_spec.daemon_instances", &pacelinev1.JobSpec{}},
		{"gang window", `{name: a, instances: 2, gang: {}, batch: {max_running: 1}, task: {command: [x]}}`, "job_spec.gang_window", &pacelinev1.JobSpec{}},
		{"gang min size", `{name: a, instances: 2, gang: {min_size: 3}, batch: {}, task: {command: [x]}}`, "job_spec.gang_min_size", &pacelinev1.JobSpec{}},
		{"gang of no size", `{name: a, gang: {min_size: 1, groups: [{name: a, instances: "0"}]}, batch: {}, task: {command: [x]}}`, "gang_spec.min_size", &pacelinev1.JobSpec{}},
		{"groups of one name", `{name: a, gang: {groups: [{name: a, instances: "0"}, {name: a, instances: "0"}]}, batch: {}, task: {command: [x]}}`, "gang_spec.groups_unique", &pacelinev1.JobSpec{}},
		{"negative cpu", `{name: a, batch: {}, task: {command: [x], resources: {cpu_milli: -1}}}`, "int64.gte_lte", &pacelinev1.JobSpec{}},
		{"gpu and a half", `{name: a, batch: {}, task: {command: [x], resources: {gpu_milli: 1500}}}`, "task_resources.gpu_milli", &pacelinev1.JobSpec{}},
		{"ports twice", `{name: a, batch: {}, task: {command: [x], resources: {ports: [{name: a}, {name: a}]}}}`, "task_resources.ports_unique", &pacelinev1.JobSpec{}},
		{"reserved env", `{name: a, batch: {}, task: {command: [x], env: {PACELINE_X: y}}}`, "env.reserved", &pacelinev1.JobSpec{}},
		{"override gpu", `{name: a, batch: {}, task: {command: [x]}, overrides: [{instances: "0", resources: {gpu_milli: 17000}}]}`, "override.gpu_milli", &pacelinev1.JobSpec{}},
		{"two conditions", `{name: a, batch: {}, task: {command: [x]}, placement: {constraints: [{key: a, exists: true, less_than: 4}]}}`, "constraint.one_condition", &pacelinev1.JobSpec{}},
		{"strategy", `{name: a, batch: {}, task: {command: [x]}, placement: {strategy: The_best}}`, "policy_name", &pacelinev1.JobSpec{}},
		{"spread twice", `{name: a, batch: {}, task: {command: [x]}, placement: {spreads: [{topology: a}, {topology: a}]}}`, "placement_spec.spreads_unique", &pacelinev1.JobSpec{}},
		{"mount at nothing", `{name: a, batch: {}, task: {container: {image: a, mounts: [{volume: v, path: x}]}}}`, "mount_spec.path", &pacelinev1.JobSpec{}},
		{"mounts of one path", `{name: a, batch: {}, task: {container: {image: a, mounts: [{volume: v, path: /x}, {volume: w, path: /x}]}}}`, "container_spec.mounts_unique", &pacelinev1.JobSpec{}},
		{"mount above", `{name: a, batch: {}, task: {container: {image: a, mounts: [{volume: v, path: /x, sub_path: a/../..}]}}}`, "mount_spec.sub_path", &pacelinev1.JobSpec{}},
		{"image of two words", `{name: a, batch: {}, task: {container: {image: a b}}}`, "container_spec.image_form", &pacelinev1.JobSpec{}},
		{"pull of nothing", `{name: a, batch: {}, task: {command: [x], container: {pull: always}}}`, "container_spec.image", &pacelinev1.JobSpec{}},
		{"sidecar main", `{name: a, batch: {}, task: {command: [x], sidecars: [{name: main, image: x}]}}`, "side_container_spec.name", &pacelinev1.JobSpec{}},
		{"sidecar of nothing", `{name: a, batch: {}, task: {command: [x], sidecars: [{name: s}]}}`, "side_container_spec.command", &pacelinev1.JobSpec{}},
		{"volume of nothing", `{name: a, batch: {}, task: {command: [x], volumes: [{name: v}]}}`, "required", &pacelinev1.JobSpec{}},
		{"volumes of one name", `{name: a, batch: {}, task: {command: [x], volumes: [{name: v, scratch: {}}, {name: v, scratch: {}}]}}`, "task_spec.volumes_unique", &pacelinev1.JobSpec{}},
		{"host path above", `{name: a, batch: {}, task: {command: [x], volumes: [{name: v, host_path: /a/../etc}]}}`, "volume_spec.host_path", &pacelinev1.JobSpec{}},
		{"artifact elsewhere", `{name: a, batch: {}, task: {command: [x], artifacts: [{uri: "https://x", path: ../x}]}}`, "artifact_spec.path", &pacelinev1.JobSpec{}},
		{"user of two words", `{name: a, batch: {}, task: {command: [x], user: a b}}`, "task_spec.user", &pacelinev1.JobSpec{}},
		{"rest and reservation", `{path: /a, reserve_rest: true, reservation: {cpu_milli: 1}}`, "pool_spec.reserve_rest", &pacelinev1.PoolSpec{}},
		{"pool path", `{path: a}`, "pool_path", &pacelinev1.PoolSpec{}},
		{"pool kind", `{path: /a, kind: rubber}`, "string.in", &pacelinev1.PoolSpec{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := protoyaml.Unmarshal([]byte(c.yaml), c.message); err != nil {
				t.Fatal(err)
			}
			var invalid *protovalidate.ValidationError
			if !asValidation(protovalidate.Validate(c.message), &invalid) {
				t.Fatal("accepted")
			}
			var rules []string
			for _, v := range invalid.Violations {
				rules = append(rules, v.Proto.GetRuleId())
			}
			if len(rules) != 1 || rules[0] != c.rule {
				t.Errorf("rules %s broken, want %s", strings.Join(rules, " "), c.rule)
			}
		})
	}
}
