package record_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	sampleJob  = workload.JobID{0: 1, 15: 0xff}
	samplePool = workload.PoolID{0: 2, 7: '/'}
	sampleHost = workload.HostID{0: 3, 15: 1}
	sampleRun  = workload.RunID{Job: sampleJob, Instance: 258, Generation: 2, Run: 7}
)

const sampleTime = 1_790_000_000_123_456_789

// sample is one record and the message that it is stored as.
type sample struct {
	name    string
	record  scheduler.Record
	message proto.Message
}

// samples has every field of every record set at least once.
func samples() []sample {
	limit := respool.Limits{}.With(resource.CPU, 0).With(resource.FirstNamed, respool.MaxQuantity)
	return []sample{
		{"cell", scheduler.CellRecord{Epoch: 3, Named: []string{"fpga", "licence/x"}, Now: sampleTime}, &recordpb.Cell{}},
		{"pool", scheduler.PoolRecord{Pool: respool.Pool{
			ID: samplePool, Parent: respool.RootID, Name: "research", Kind: respool.Static, Reservation: resource.Vector{4000, 0, 0, 8000},
			ReserveRest: true, Limit: limit, Share: 5, Version: 6, Creator: "ada", CreatedAt: sampleTime, UpdatedAt: sampleTime + 1,
			Queue: respool.QueuePolicy{
				Order: respool.OrderSmallestFirst, Backfill: respool.BackfillEASY, Candidates: respool.OrderShortestFirst,
				Patience: time.Minute, UsageHalfLife: time.Hour,
			},
			UserLimit: limit, ControllerPercent: 25, RevocablePercent: 50, PlacementPolicy: "pack",
		}}, &recordpb.Pool{}},
		{"spec", scheduler.SpecRecord{Job: sampleJob, Config: 2, Spec: sampleSpec()}, &recordpb.Spec{}},
		{"spec-http", scheduler.SpecRecord{Job: sampleJob, Config: 3, Spec: &workload.JobSpec{
			Kind: workload.Daemon, Template: workload.TaskTemplate{Health: &workload.HealthCheck{HTTP: &workload.HTTPCheck{Port: "web", Path: "/ok"}}},
		}}, &recordpb.Spec{}},
		{"spec-tcp", scheduler.SpecRecord{Job: sampleJob, Config: 4, Spec: &workload.JobSpec{
			Kind: workload.Service, Template: workload.TaskTemplate{Health: &workload.HealthCheck{TCP: &workload.TCPCheck{Port: "web"}}},
		}}, &recordpb.Spec{}},
		{"spec-gang", scheduler.SpecRecord{Job: sampleJob, Config: 5, Spec: &workload.JobSpec{ // as written before gangs had settings
			Kind: workload.Batch, Instances: 4, Gang: &workload.GangSpec{},
		}}, &recordpb.Spec{}},
		{"job", scheduler.JobRecord{
			ID: sampleJob, Order: 9, Version: 8, Config: 2, Caller: scheduler.Caller{Principal: "ada", Tenant: "lab"}, Goal: scheduler.GoalStop,
			GoalReason: workload.ReasonStopRequested, State: workload.JobStopping, Reason: workload.ReasonDeadline, Generation: 2, Failures: 1, Gangs: []scheduler.GangLife{{Generation: 4, Failures: 3}},
			Restart: scheduler.Restart{Number: 3, Batch: 4, Grace: time.Second, Only: []workload.InstanceRange{{First: 2, Last: 5}, {First: 9, Last: 9}}}, Created: sampleTime, Started: sampleTime + 1, Finished: sampleTime + 2, Asked: [32]byte{7, 31: 1},
		}, &recordpb.Job{}},
		{"task", sampleTask(), &recordpb.Task{}},
		{"run", scheduler.RunRecord{
			ID: sampleRun, Host: sampleHost, State: workload.RunFailed, Reason: workload.ReasonExited, ExitCode: -3, Signal: 9, Message: "exit\xff",
			Placed: sampleTime, Started: sampleTime + 1, Ended: sampleTime + 2, Config: 2,
		}, &recordpb.Run{}},
		{"host", scheduler.HostRecord{
			ID: sampleHost, Cluster: "local", Shard: "local/0", Name: "rack1-07", Present: true, Draining: true, Since: sampleTime,
			Summary: scheduler.HostFacts{
				Attributes: map[string]string{"zone": "b", "arch": "arm64"}, HostPool: "gpu", Capacity: resource.Vector{64000, 1 << 20},
				Foreign: resource.Vector{-5, 1}, Devices: []driver.Device{{Model: "T4", Milli: 1000}}, Ready: true, Message: "cordoned", ClusterID: "agent-S1",
			},
		}, &recordpb.Host{}},
		{"idempotency", scheduler.IdempotencyRecord{
			Key:  scheduler.IdempotencyKey{Principal: "ada", Method: "SubmitJob", Key: "k1"},
			Hash: [32]byte{1, 31: 2}, Job: sampleJob, Expires: sampleTime,
		}, &recordpb.Idempotency{}},
		{"changes", scheduler.ChangesRecord{Sequence: 258, Changes: []scheduler.Change{sampleChange(), {
			Kind: scheduler.ChangePool, At: sampleTime, Pool: samplePool, Version: 6, Name: "research",
		}}}, &recordpb.Changes{}},
		{"account", scheduler.AccountRecord{Account: usage.Account{
			Key: usage.Key{Pool: samplePool, Owner: "ada"}, Since: sampleTime / 1_000_000, Held: sampleSeconds,
		}}, &recordpb.Account{}},
		{"balance", scheduler.BalanceRecord{Balance: usage.Balance{
			Pool: samplePool, Since: sampleTime / 1_000_000, Entitled: sampleSeconds, Demanded: sampleSeconds, Deficit: sampleSeconds,
			Overage: sampleSeconds, First: sampleTime, Sampled: sampleTime + 1,
		}}, &recordpb.Balance{}},
		{"sample", scheduler.SampleRecord{Sample: usage.Sample{
			At: sampleTime, Pool: samplePool, Path: "/research", Leaf: true, First: sampleTime - 1, Held: resource.Vector{1}, Entitled: resource.Vector{2},
			Demanded: resource.Vector{3}, Deficit: resource.Vector{4}, Overage: resource.Vector{0, 5},
			Owners: []usage.OwnerReading{{Owner: "ada", Held: resource.Vector{1}}},
		}}, &recordpb.Sample{}},
		{"rules", scheduler.RulesRecord{
			Name: "quota", Version: 3, Active: [32]byte{1}, Shadow: [32]byte{2}, Updated: sampleTime, By: "ada",
			Kept: []scheduler.RulesVersion{{Digest: [32]byte{1}, Size: 7, Pushed: sampleTime - 1, By: "ada"}},
		}, &recordpb.Rules{}},
		{"archive", scheduler.ArchiveRecord{Digest: sha256.Sum256([]byte("rules")), Archive: []byte("rules")}, &recordpb.Archive{}},
		{"policies", scheduler.PoliciesRecord{
			Version: 4, State: []byte("{}"), Archives: [][32]byte{{1}, {2}}, Updated: sampleTime, By: "ada",
		}, &recordpb.Policies{}},
		{"cluster", scheduler.ClusterRecord{
			Version: 2, Created: sampleTime - 1, Updated: sampleTime, By: "ada", Identity: "b2f1-0000",
			Spec: cluster.Spec{Name: "east", Labels: map[string]string{"region": "eu", "cost": "low"}, Shards: 3, Mesos: &cluster.Mesos{
				Masters: []string{"http://m1:5050", "http://m2:5050"}, Roles: []string{"batch"}, Principal: "paceline",
				Secret: cluster.Secret{File: "east", Env: "PACELINE_SECRET_EAST"}, CAFile: "/etc/ca.pem", Failover: time.Hour, User: "nobody", Framework: "cell",
			}},
		}, &recordpb.Cluster{}},
		{"kubernetes-cluster", scheduler.ClusterRecord{
			Version: 1, Created: sampleTime, Updated: sampleTime, By: "ada", Identity: "cell-b2f1", UID: "0b1c-22",
			Spec: cluster.Spec{Name: "west", Kubernetes: &cluster.Kubernetes{
				Kubeconfig: "west.yaml", Context: "prod", InCluster: true, Namespace: "batch", DefaultImage: "base:1", PoolLabel: "example.com/pool",
				Tolerated: []string{"example.com/gpu"}, GPUs: []string{"nvidia.com/gpu"}, HostPaths: true, Privileged: true, FirstPort: 20000, LastPort: 29999,
				NamespacePerPool: "batch-{pool}", CreateNamespaces: true, KeepEnded: new(time.Hour), KeepEndedPods: new(0), StartGrace: time.Minute, UnreachableGrace: time.Hour,
			}},
		}, &recordpb.Cluster{}},
	}
}

var sampleSeconds = usage.Seconds{Whole: resource.Vector{4000, 1}, Milli: [resource.MaxKinds]uint16{999, 1}}

func sampleSpec() *workload.JobSpec {
	constraint := workload.Constraint{Key: "arch", Op: workload.OpIn, Values: []string{"arm64", "x86"}}
	return &workload.JobSpec{
		Name: "train", Pool: samplePool, Owner: "ada", Labels: map[string]string{"team": "lab", "app": "x"}, Kind: workload.Batch, Priority: -4,
		Instances: 300, MaxRunning: 20,
		Gang: &workload.GangSpec{
			MinSize: 2, Groups: []workload.GangGroup{{Name: "left", Instances: []workload.InstanceRange{{First: 0, Last: 3}, {First: 8, Last: 8}}, MinSize: 3}},
			Topology: workload.GangTopology{Key: "rack", Required: true},
		},
		Retry:    workload.RetryPolicy{MaxRetries: 3, Initial: time.Second, Max: time.Minute},
		Deadline: time.Hour, Preemptible: true, RunTime: time.Minute, OnPreemption: workload.PreemptKill, MaxUnavailable: 3, Revocable: true,
		Controller: true,
		Template: workload.TaskTemplate{
			Command: []string{"sh", "-c", "true"}, Env: map[string]string{"B": "2", "A": "1"}, Needs: resource.Vector{500, 64, 0, 1000, 1},
			GPUModels: []string{"T4"}, Ports: []workload.Port{{Name: "web", Number: 8080}},
			Health: &workload.HealthCheck{
				Exec: []string{"probe"}, InitialDelay: 1, Interval: 2, Timeout: 3, FailureThreshold: 4,
			},
			KillGrace: 10 * time.Second, Labels: map[string]string{"tier": "1"},
			Simulation: workload.Simulation{Duration: time.Minute, ExitCode: 3, FailurePerMille: 50},
			Execution:  sampleExecution(),
		},
		Overrides: []workload.Override{
			{Instance: 1, Command: []string{"lead"}, Env: map[string]string{"A": "0"}, Needs: &resource.Vector{1000}, Labels: map[string]string{"role": "lead"}},
			{Instance: 299, Needs: &resource.Vector{}},
		},
		Placement: workload.Placement{
			Strategy: workload.StrategySpread, Constraints: []workload.Constraint{constraint},
			Preferences: []workload.Preference{{Constraint: constraint, Weight: 50}},
			Affinities:  []workload.Affinity{{Selector: map[string]string{"app": "x"}, Topology: "zone", Anti: true, Weight: 7}},
			Spreads:     []workload.Spread{{Topology: "rack", MaxSkew: 2}},
			Exclusive:   true, HostPool: "gpu", Clusters: []string{"local"},
		},
	}
}

func sampleExecution() *execution.Spec {
	user := int64(0)
	return &execution.Spec{
		Main: execution.Container{
			Image: "example.com/app:1", Pull: execution.PullAlways, WorkDir: "/srv", Privileged: true, ReadOnly: true,
			Mounts: []execution.Mount{{Volume: "host", Path: "/host", SubPath: "a/b", ReadOnly: true}},
		},
		Inits: []execution.Container{{Name: "fetch", Command: []string{"sh"}, Env: map[string]string{"A": "1"}}},
		Sidecars: []execution.Container{{
			Name: "proxy", Image: "proxy", Pull: execution.PullNever, Needs: map[string]int64{"cpu_milli": 100, "memory_mib": 0},
		}},
		Artifacts: []execution.Artifact{{URI: "https://example.com/a.tgz", Path: "a", Extract: true, Executable: true, Cache: true}},
		Volumes: []execution.Volume{
			{Name: "host", HostPath: "/data"},
			{Name: "claim", Claim: "c"},
			{Name: "map", ConfigMap: "m"},
			{Name: "secret", Secret: "s"},
			{Name: "scratch", Scratch: true},
		},
		User: "ada", Mesos: &execution.Mesos{Docker: true}, Kubernetes: &execution.Kubernetes{
			Namespace: "prod", ServiceAccount: "robot", PullSecrets: []string{"registry"}, RunAsUser: &user, RunAsNonRoot: true,
			Patch: []byte(`{"spec":{}}`),
		},
	}
}

func sampleTask() scheduler.TaskRecord {
	return scheduler.TaskRecord{
		Job: sampleJob, Instance: 258, Generation: 2, Run: 7, State: workload.InstanceActive, RunState: workload.RunRunning,
		Reason: workload.ReasonHostLost, Healthy: true, Config: 2, Failures: 1, Restart: 3, Attempts: 1, Host: sampleHost, Devices: 0x8001,
		Ports: []uint16{80, 65535}, ExitCode: -1, Signal: 15, Message: "a message", Since: sampleTime, Placed: sampleTime + 1, Started: sampleTime + 2,
		NotBefore: sampleTime + 3, HeldMillis: 4,
	}
}

func sampleChange() scheduler.Change {
	return scheduler.Change{
		Kind: scheduler.ChangeTask, At: sampleTime, Principal: "ada", Pool: samplePool, Job: sampleJob, JobState: workload.JobRunning,
		Goal: scheduler.GoalRun, Version: 1, Run: sampleRun, State: workload.InstanceActive, RunState: workload.RunRunning, Healthy: true,
		Reason: workload.ReasonPreempted, ExitCode: 1, Host: sampleHost, Name: "train", Message: "a message",
	}
}

// TestGoldenBytes holds the format to what stores already contain: key and message of one record of each kind. The frame is store's.
func TestGoldenBytes(t *testing.T) {
	c := record.NewCodec(keyspace(t))
	var now strings.Builder
	for _, s := range samples() {
		op := encode(t, c, scheduler.Write{Record: s.record})[0]
		fmt.Fprintf(&now, "%s %s %s\n", s.name, hex.EncodeToString(op.Key), hex.EncodeToString(open(t, op.Value)))
	}
	stored := golden(t, "records.golden", now.String())
	if stored != now.String() {
		t.Errorf("records are written otherwise than stores have them; if they are still read alike, run the test with -update\ngot:\n%s", now.String())
	}
	for n, line := range strings.Split(strings.TrimSpace(stored), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 3 || n >= len(samples()) {
			t.Fatalf("line %d of the golden file is %.80q", n+1, line)
		}
		frame, err := store.AppendFrame(nil, unhex(t, fields[2]))
		if err != nil {
			t.Fatal(err)
		}
		want := samples()[n]
		got, err := c.Decode(unhex(t, fields[1]), frame)
		if err != nil || !reflect.DeepEqual(unsized(got.Record), want.record) {
			t.Errorf("%s of an older store is read as %+v, %v", fields[0], got.Record, err)
		}
	}
}

// TestSamplesUseEveryField makes sure that the golden file speaks of the whole format.
func TestSamplesUseEveryField(t *testing.T) {
	used := map[protoreflect.FullName]bool{}
	c := record.NewCodec(keyspace(t))
	for _, s := range samples() {
		op := encode(t, c, scheduler.Write{Record: s.record})[0]
		if err := proto.Unmarshal(open(t, op.Value), s.message); err != nil {
			t.Fatal(err)
		}
		mark(s.message.ProtoReflect(), used)
	}
	for _, f := range allFields() {
		if !used[f.FullName()] && !f.ContainingMessage().IsMapEntry() {
			t.Errorf("no sample sets %s", f.FullName())
		}
	}
}

func mark(m protoreflect.Message, used map[protoreflect.FullName]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		used[f.FullName()] = true
		switch {
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for n := range v.List().Len() {
				mark(v.List().Get(n).Message(), used)
			}
		default:
			mark(v.Message(), used)
		}
		return true
	})
}

func allFields() []protoreflect.FieldDescriptor {
	var all []protoreflect.FieldDescriptor
	var walk func(protoreflect.MessageDescriptors)
	walk = func(ms protoreflect.MessageDescriptors) {
		for n := range ms.Len() {
			m := ms.Get(n)
			for k := range m.Fields().Len() {
				all = append(all, m.Fields().Get(k))
			}
			walk(m.Messages())
		}
	}
	walk(recordpb.File_paceline_record_v1_record_proto.Messages())
	return all
}

// TestNumbersAreNeverReused holds the numbers of fields and enumerations to those that stores were written with. A line may be
// added (with -update); one that is there may go only when its field's number is reserved.
func TestNumbersAreNeverReused(t *testing.T) {
	now := schema()
	stored := golden(t, "schema.golden", strings.Join(now, "\n")+"\n")
	for _, line := range strings.Split(strings.TrimSpace(stored), "\n") {
		if !slices.Contains(now, line) && !reserved(line) {
			t.Errorf("stores have %q, and neither is it there any more nor is its number reserved", line)
		}
	}
	for _, line := range now {
		if !strings.Contains(stored, line+"\n") {
			t.Errorf("%q is new: run the test with -update", line)
		}
	}
}

// schema lists every field and every number that a record can hold, with its meaning.
func schema() []string {
	var lines []string
	for _, f := range allFields() {
		lines = append(lines, fmt.Sprintf("%s %d %s %s %s", f.Parent().FullName(), f.Number(), f.Cardinality(), f.Kind(), f.Name()))
	}
	add := func(what string, number int, name fmt.Stringer) {
		lines = append(lines, fmt.Sprintf("%s %d %v", what, number, name))
	}
	for n := range workload.NumRunStates {
		add("workload.RunState", n, workload.RunState(n))
	}
	for n := range workload.NumInstanceStates {
		add("workload.InstanceState", n, workload.InstanceState(n))
	}
	for n := range workload.NumReasons {
		add("workload.Reason", int(n), workload.Reason(n))
	}
	for s := range workload.JobStopped + 1 {
		add("workload.JobState", int(s), s)
	}
	for k := workload.Batch; k <= workload.Daemon; k++ {
		add("workload.Kind", int(k), k)
	}
	for k := respool.Elastic; k <= respool.Static; k++ {
		add("respool.Kind", int(k), k)
	}
	for g := scheduler.GoalRun; g <= scheduler.GoalDelete; g++ {
		add("scheduler.Goal", int(g), g)
	}
	for n, op := range []workload.Operator{workload.OpIn, workload.OpNotIn, workload.OpExists, workload.OpNotExists, workload.OpGt, workload.OpLt} {
		lines = append(lines, fmt.Sprintf("workload.Operator %d %d", op, n))
	}
	for n, kind := range []scheduler.ChangeKind{
		scheduler.ChangeJob, scheduler.ChangeTask, scheduler.ChangePool, scheduler.ChangePoolDeleted, scheduler.ChangeHost, scheduler.ChangeJobDeleted,
		scheduler.ChangeCluster, scheduler.ChangeClusterDeleted, scheduler.ChangeHostForgotten,
	} {
		lines = append(lines, fmt.Sprintf("scheduler.ChangeKind %d %d", kind, n))
	}
	return lines
}

// reserved reports whether a line of the schema is a field whose message reserves its number.
func reserved(line string) bool {
	var message string
	var number protoreflect.FieldNumber
	if n, _ := fmt.Sscan(line, &message, &number); n != 2 {
		return false
	}
	name := protoreflect.FullName(message)
	if name.Parent() != recordpb.File_paceline_record_v1_record_proto.Package() {
		return false
	}
	m := recordpb.File_paceline_record_v1_record_proto.Messages().ByName(name.Name())
	return m != nil && m.ReservedRanges().Has(number)
}

// golden returns what a golden file holds, after writing it when asked to.
func golden(t *testing.T, name, now string) string {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func open(t fataler, frame []byte) []byte {
	t.Helper()
	raw, err := store.OpenFrame(frame)
	if err != nil {
		t.Fatalf("open a frame: %v", err)
	}
	return bytes.Clone(raw)
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
