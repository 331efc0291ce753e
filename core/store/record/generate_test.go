package record_test

import (
	"crypto/sha256"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// source draws the parts of records. Ids come from a small set, so that records of one image meet.
type source struct{ t *rapid.T }

func (s source) bool() bool { return rapid.Bool().Draw(s.t, "bool") }

func (s source) number() uint32 { return rapid.Uint32().Draw(s.t, "number") }

func (s source) signed() int32 { return rapid.Int32().Draw(s.t, "signed") }

func (s source) time() int64 { return rapid.Int64().Draw(s.t, "time") }

func (s source) span() time.Duration { return time.Duration(s.time()) }

func (s source) instance() uint32 {
	return rapid.Uint32Range(0, workload.MaxInstances-1).Draw(s.t, "instance")
}

// text is what a cluster or process may say: any bytes.
func (s source) text() string {
	return rapid.OneOf(rapid.StringN(0, 8, 32), rapid.SampledFrom([]string{"", "\xff\xfe", "cut in a r\xc3", "nul\x00"})).Draw(s.t, "text")
}

func (s source) texts() []string {
	var out []string
	for range rapid.IntRange(0, 3).Draw(s.t, "texts") {
		out = append(out, s.text())
	}
	return out
}

func (s source) labels() map[string]string {
	n := rapid.IntRange(0, 3).Draw(s.t, "labels")
	if n == 0 {
		return nil
	}
	out := map[string]string{s.text(): s.text()}
	for len(out) < n {
		out[rapid.StringN(1, 12, 48).Draw(s.t, "label")] = s.text()
	}
	return out
}

// between draws a number of an enumeration.
func between[T ~uint8](s source, first, last T) T {
	return T(rapid.Uint8Range(uint8(first), uint8(last)).Draw(s.t, "enum"))
}

func (s source) id() (id [16]byte) {
	id[0] = between[uint8](s, 0, 3)
	if id[0] > 0 {
		id[15] = '/'
	}
	return id
}

func (s source) job() workload.JobID {
	return workload.JobID{between[uint8](s, 1, 3), 15: 0xff}
}

func (s source) vector(least int64) (v resource.Vector) {
	for k := range rapid.IntRange(0, resource.MaxKinds).Draw(s.t, "kinds") {
		v[k] = rapid.Int64Range(least, resource.MaxQuantity).Draw(s.t, "quantity")
	}
	return v
}

func (s source) reason() workload.Reason {
	return between(s, 0, workload.Reason(workload.NumReasons-1))
}

func (s source) runState() workload.RunState {
	return between(s, 0, workload.RunState(workload.NumRunStates-1))
}

func (s source) instanceState() workload.InstanceState {
	state := between(s, 0, workload.InstanceStopped)
	if state == workload.InstanceAdmitted {
		return workload.InstancePending
	}
	return state
}

func (s source) cell() scheduler.CellRecord {
	return scheduler.CellRecord{Epoch: rapid.Uint64().Draw(s.t, "epoch"), Named: s.texts(), Now: s.time()}
}

func (s source) pool() scheduler.PoolRecord {
	p := respool.Pool{
		ID: s.id(), Parent: s.id(), Name: s.text(), Kind: between(s, respool.Elastic, respool.Static), Reservation: s.vector(0),
		ReserveRest: s.bool(), Share: s.time(), Version: rapid.Uint64().Draw(s.t, "version"), Creator: s.text(), CreatedAt: s.time(), UpdatedAt: s.time(),
		Limit: s.limits(), UserLimit: s.limits(), Queue: respool.QueuePolicy{
			Order: between(s, 0, respool.OrderExpress), Backfill: between(s, 0, respool.BackfillEASY),
			Candidates: between(s, 0, respool.OrderExpress), Patience: s.span(), UsageHalfLife: s.span(),
		},
		ControllerPercent: between[uint8](s, 0, 100), RevocablePercent: between[uint8](s, 0, 100), PlacementPolicy: s.text(),
	}
	return scheduler.PoolRecord{Pool: p}
}

func (s source) limits() (l respool.Limits) {
	for k := range resource.Kind(resource.MaxKinds) {
		if s.bool() {
			l = l.With(k, rapid.Int64Range(0, respool.MaxQuantity).Draw(s.t, "limit"))
		}
	}
	return l
}

func (s source) spec() scheduler.SpecRecord {
	spec := &workload.JobSpec{
		Name: s.text(), Pool: s.id(), Owner: s.text(), Labels: s.labels(), Kind: between(s, workload.Batch, workload.Daemon), Priority: s.signed(),
		Instances: rapid.Uint32Range(0, workload.MaxInstances).Draw(s.t, "instances"), Template: s.template(), MaxRunning: s.number(),
		Retry:    workload.RetryPolicy{MaxRetries: s.number(), Initial: s.span(), Max: s.span()},
		Deadline: s.span(), Preemptible: s.bool(), Placement: s.placement(),
		RunTime: s.span(), OnPreemption: between(s, 0, workload.PreemptKill), MaxUnavailable: s.instance(), Revocable: s.bool(), Controller: s.bool(),
	}
	spec.Gang = s.gang(spec.Instances)
	for n := range min(spec.Instances, rapid.Uint32Range(0, 3).Draw(s.t, "overrides")) {
		o := workload.Override{Instance: n, Command: s.texts(), Env: s.labels(), Labels: s.labels()}
		if s.bool() {
			needs := s.vector(0)
			o.Needs = &needs
		}
		spec.Overrides = append(spec.Overrides, o)
	}
	return scheduler.SpecRecord{Job: s.job(), Config: s.number(), Spec: spec}
}

func (s source) gang(instances uint32) *workload.GangSpec {
	if s.bool() {
		return nil
	}
	g := &workload.GangSpec{MinSize: s.number()}
	if s.bool() {
		g.Topology = workload.GangTopology{Key: s.text(), Required: s.bool()}
	}
	if instances > 10 && s.bool() {
		g.Groups = []workload.GangGroup{
			{Name: s.text(), Instances: []workload.InstanceRange{{First: 1, Last: 1}, {First: 3, Last: 5}}, MinSize: s.number()},
			{Name: s.text(), Instances: []workload.InstanceRange{{First: 7, Last: 9}}},
		}
	}
	return g
}

func (s source) template() workload.TaskTemplate {
	out := workload.TaskTemplate{
		Command: s.texts(), Env: s.labels(), Needs: s.vector(0), GPUModels: s.texts(), KillGrace: s.span(), Labels: s.labels(),
		Simulation: workload.Simulation{Duration: s.span(), ExitCode: s.signed(), FailurePerMille: s.signed()},
	}
	for range rapid.IntRange(0, 2).Draw(s.t, "ports") {
		out.Ports = append(out.Ports, workload.Port{Name: s.text(), Number: rapid.Uint16().Draw(s.t, "port")})
	}
	if s.bool() {
		out.Execution = s.execution()
	}
	if !s.bool() {
		return out
	}
	out.Health = &workload.HealthCheck{InitialDelay: s.span(), Interval: s.span(), Timeout: s.span(), FailureThreshold: s.number()}
	switch rapid.IntRange(0, 2).Draw(s.t, "check") {
	case 0:
		out.Health.Exec = s.texts()
	case 1:
		out.Health.HTTP = &workload.HTTPCheck{Port: s.text(), Path: s.text()}
	case 2:
		out.Health.TCP = &workload.TCPCheck{Port: s.text()}
	}
	return out
}

func (s source) execution() *execution.Spec {
	e := &execution.Spec{Main: s.container(), User: s.text()}
	for range rapid.IntRange(0, 2).Draw(s.t, "parts") {
		e.Inits, e.Sidecars = append(e.Inits, s.container()), append(e.Sidecars, s.container())
		e.Artifacts = append(e.Artifacts, execution.Artifact{URI: s.text(), Path: s.text(), Extract: s.bool(), Executable: s.bool(), Cache: s.bool()})
		e.Volumes = append(e.Volumes, execution.Volume{
			Name: s.text(), HostPath: s.text(), Claim: s.text(), ConfigMap: s.text(), Secret: s.text(), Scratch: s.bool(),
		})
	}
	if s.bool() {
		e.Mesos = &execution.Mesos{Docker: s.bool()}
	}
	if s.bool() {
		e.Kubernetes = &execution.Kubernetes{Namespace: s.text(), ServiceAccount: s.text(), PullSecrets: s.texts(), RunAsNonRoot: s.bool()}
		if s.bool() {
			user := s.time()
			e.Kubernetes.RunAsUser, e.Kubernetes.Patch = &user, []byte("x"+s.text())
		}
	}
	return e
}

func (s source) container() execution.Container {
	c := execution.Container{
		Name: s.text(), Image: s.text(), Pull: between(s, execution.PullIfMissing, execution.PullNever), Command: s.texts(), Env: s.labels(),
		WorkDir: s.text(), Privileged: s.bool(), ReadOnly: s.bool(),
	}
	if s.bool() {
		c.Needs = map[string]int64{"": 0, s.text(): rapid.Int64Range(0, resource.MaxQuantity).Draw(s.t, "need")}
		c.Mounts = []execution.Mount{{Volume: s.text(), Path: s.text(), SubPath: s.text(), ReadOnly: s.bool()}}
	}
	return c
}

func (s source) constraint() workload.Constraint {
	return workload.Constraint{Key: s.text(), Op: between(s, workload.OpIn, workload.OpLt), Values: s.texts()}
}

func (s source) placement() workload.Placement {
	p := workload.Placement{Strategy: workload.Strategy(s.text()), Exclusive: s.bool(), HostPool: s.text(), Clusters: s.texts()}
	for range rapid.IntRange(0, 2).Draw(s.t, "terms") {
		p.Constraints = append(p.Constraints, s.constraint())
		p.Preferences = append(p.Preferences, workload.Preference{Constraint: s.constraint(), Weight: s.signed()})
		p.Affinities = append(p.Affinities, workload.Affinity{Selector: s.labels(), Topology: s.text(), Anti: s.bool(), Weight: s.signed()})
		p.Spreads = append(p.Spreads, workload.Spread{Topology: s.text(), MaxSkew: s.number()})
	}
	return p
}

func (s source) jobRecord() scheduler.JobRecord {
	return scheduler.JobRecord{
		ID: s.job(), Order: rapid.Uint64().Draw(s.t, "order"), Version: rapid.Uint64().Draw(s.t, "version"), Config: s.number(),
		Caller: scheduler.Caller{Principal: s.text(), Tenant: s.text()}, Goal: between(s, scheduler.GoalRun, scheduler.GoalDelete),
		GoalReason: s.reason(), State: between(s, 0, workload.JobStopped), Reason: s.reason(), Generation: s.number(), Failures: s.number(),
		Restart: scheduler.Restart{Number: s.number(), Batch: s.number(), Grace: s.span(), Only: s.ranges()}, Created: s.time(), Started: s.time(), Finished: s.time(), Asked: s.digest(),
	}
}

func (s source) ranges() []workload.InstanceRange {
	return [][]workload.InstanceRange{nil, {{First: 0, Last: 0}}, {{First: 1, Last: 4}, {First: 6, Last: workload.MaxInstances - 1}}}[rapid.IntRange(0, 2).Draw(s.t, "ranges")]
}

func (s source) task() scheduler.TaskRecord {
	r := scheduler.TaskRecord{
		Job: s.job(), Instance: s.instance(), Generation: s.number(), Run: s.number(), State: s.instanceState(), RunState: s.runState(),
		Reason: s.reason(), Healthy: s.bool(), Config: s.number(), Failures: s.number(), Restart: s.number(), Attempts: s.number(), Host: s.id(),
		Devices: placement.DeviceSet(rapid.Uint16().Draw(s.t, "devices")), ExitCode: s.signed(), Signal: s.signed(), Message: s.text(),
		Since: s.time(), Placed: s.time(), Started: s.time(), NotBefore: s.time(), HeldMillis: s.time(),
	}
	for range rapid.IntRange(0, 2).Draw(s.t, "ports") {
		r.Ports = append(r.Ports, rapid.Uint16().Draw(s.t, "port"))
	}
	if r.RunState.Live() && r.Host == (workload.HostID{}) {
		r.Host[0] = 9
	}
	return r
}

func (s source) run() scheduler.RunRecord {
	return scheduler.RunRecord{
		ID:   workload.RunID{Job: s.job(), Instance: s.instance(), Generation: s.number(), Run: s.number()},
		Host: s.id(), State: s.runState(), Reason: s.reason(), ExitCode: s.signed(), Signal: s.signed(), Message: s.text(), Placed: s.time(),
		Started: s.time(), Ended: s.time(), Config: s.number(),
	}
}

func (s source) host() scheduler.HostRecord {
	h := scheduler.HostRecord{
		ID: s.id(), Cluster: s.text(), Shard: s.text(), Name: s.text(), Present: s.bool(), Draining: s.bool(), Since: s.time(),
		Summary: scheduler.HostFacts{
			Attributes: s.labels(), HostPool: s.text(), Capacity: s.vector(-resource.MaxQuantity), Foreign: s.vector(-resource.MaxQuantity),
			Ready: s.bool(), Message: s.text(),
		},
	}
	for range rapid.IntRange(0, 3).Draw(s.t, "devices") {
		h.Summary.Devices = append(h.Summary.Devices, driver.Device{Model: s.text(), Milli: s.time()})
	}
	return h
}

func (s source) idempotency() scheduler.IdempotencyRecord {
	r := scheduler.IdempotencyRecord{
		Key: scheduler.IdempotencyKey{Principal: s.text(), Method: s.text(), Key: s.text()}, Job: workload.JobID(s.id()), Expires: s.time(),
	}
	copy(r.Hash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(s.t, "hash"))
	return r
}

func (s source) change() scheduler.Change {
	c := scheduler.Change{
		Kind: between(s, scheduler.ChangeJob, scheduler.ChangeHostForgotten), At: s.time(), Principal: s.text(), Pool: s.id(), Job: workload.JobID(s.id()),
		JobState: between(s, 0, workload.JobStopped), Goal: between(s, 0, scheduler.GoalDelete), Version: rapid.Uint64().Draw(s.t, "version"),
		State: s.instanceState(), RunState: s.runState(), Healthy: s.bool(), Reason: s.reason(), ExitCode: s.signed(), Host: s.id(), Name: s.text(),
		Message: s.text(),
	}
	if c.Kind == scheduler.ChangeTask {
		c.Run = workload.RunID{Job: c.Job, Instance: s.instance(), Generation: s.number(), Run: s.number()}
	}
	return c
}

func (s source) changes() scheduler.ChangesRecord {
	r := scheduler.ChangesRecord{Sequence: rapid.Uint64().Draw(s.t, "sequence")}
	for range rapid.IntRange(0, 4).Draw(s.t, "changes") {
		r.Changes = append(r.Changes, s.change())
	}
	return r
}

// draws has one generator for every kind of record.
func (s source) draws() []func() scheduler.Record {
	return []func() scheduler.Record{
		func() scheduler.Record { return s.cell() },
		func() scheduler.Record { return s.pool() },
		func() scheduler.Record { return s.spec() },
		func() scheduler.Record { return s.jobRecord() },
		func() scheduler.Record { return s.task() },
		func() scheduler.Record { return s.run() },
		func() scheduler.Record { return s.host() },
		func() scheduler.Record { return s.idempotency() },
		func() scheduler.Record { return s.changes() },
		func() scheduler.Record { return s.account() },
		func() scheduler.Record { return s.balance() },
		func() scheduler.Record { return s.sample() },
		func() scheduler.Record { return s.rules() },
		func() scheduler.Record { return s.archive() },
		func() scheduler.Record { return s.policies() },
		func() scheduler.Record { return s.cluster() },
	}
}

func (s source) record() scheduler.Record {
	draws := s.draws()
	return draws[rapid.IntRange(0, len(draws)-1).Draw(s.t, "kind of record")]()
}

func (s source) seconds() (out usage.Seconds) {
	for k := range rapid.IntRange(0, resource.MaxKinds).Draw(s.t, "kinds") {
		out.Whole[k] = rapid.Int64Range(0, 1<<62).Draw(s.t, "seconds")
		out.Milli[k] = rapid.Uint16Range(0, 999).Draw(s.t, "milli")
	}
	return out
}

func (s source) account() scheduler.AccountRecord {
	return scheduler.AccountRecord{Account: usage.Account{Key: usage.Key{Pool: s.id(), Owner: s.text()}, Since: s.time(), Held: s.seconds()}}
}

func (s source) balance() scheduler.BalanceRecord {
	return scheduler.BalanceRecord{Balance: usage.Balance{
		Pool: s.id(), Since: s.time(), Entitled: s.seconds(), Demanded: s.seconds(), Deficit: s.seconds(), Overage: s.seconds(),
		First: s.time(), Sampled: s.time(),
	}}
}

func (s source) sample() scheduler.SampleRecord {
	out := usage.Sample{
		At: rapid.Int64Min(0).Draw(s.t, "at"), Pool: s.id(), Path: s.text(), Leaf: s.bool(), First: s.time(), Held: s.vector(0),
		Entitled: s.vector(0), Demanded: s.vector(0), Deficit: s.vector(0), Overage: s.vector(0),
	}
	for range rapid.IntRange(0, 3).Draw(s.t, "owners") {
		out.Owners = append(out.Owners, usage.OwnerReading{Owner: s.text(), Held: s.vector(0)})
	}
	return scheduler.SampleRecord{Sample: out}
}

func (s source) digest() (out [32]byte) {
	if s.bool() {
		out = sha256.Sum256([]byte(s.text()))
	}
	return out
}

func (s source) rules() scheduler.RulesRecord {
	out := scheduler.RulesRecord{
		Name: rapid.SampledFrom([]string{"labels", "quota", "a-b"}).Draw(s.t, "name"), Version: uint64(s.number()), Active: s.digest(), Shadow: s.digest(),
		Updated: s.time(), By: s.text(),
	}
	for range rapid.IntRange(0, scheduler.MaxRulesKept).Draw(s.t, "versions") {
		out.Kept = append(out.Kept, scheduler.RulesVersion{
			Digest: s.digest(), Size: rapid.IntRange(0, scheduler.MaxArchiveBytes).Draw(s.t, "size"), Pushed: s.time(), By: s.text(),
		})
	}
	return out
}

func (s source) archive() scheduler.ArchiveRecord {
	raw := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(s.t, "archive")
	return scheduler.ArchiveRecord{Digest: sha256.Sum256(raw), Archive: raw}
}

func (s source) policies() scheduler.PoliciesRecord {
	out := scheduler.PoliciesRecord{Version: uint64(s.number()), Updated: s.time(), By: s.text()}
	if state := s.text(); state != "" {
		out.State = []byte(state)
	}
	for n := range rapid.IntRange(0, 5).Draw(s.t, "archives") {
		out.Archives = append(out.Archives, [32]byte{byte(n), 1})
	}
	return out
}

func (s source) cluster() scheduler.ClusterRecord {
	out := scheduler.ClusterRecord{
		Version: uint64(s.number()), Created: s.time(), Updated: s.time(), By: s.text(), Identity: s.text(), UID: s.text(),
		Spec: cluster.Spec{Name: s.text(), Labels: s.labels(), Shards: rapid.IntRange(0, cluster.MaxShards).Draw(s.t, "shards")},
	}
	if s.bool() {
		out.Spec.Kubernetes = &cluster.Kubernetes{
			Kubeconfig: s.text(), Context: s.text(), InCluster: s.bool(), Namespace: s.text(), DefaultImage: s.text(), PoolLabel: s.text(), Tolerated: s.texts(),
			GPUs: s.texts(), HostPaths: s.bool(), Privileged: s.bool(), FirstPort: uint16(s.number()), LastPort: uint16(s.number()), NamespacePerPool: s.text(), CreateNamespaces: s.bool(),
		}
		if s.bool() {
			out.Spec.Kubernetes.StartGrace, out.Spec.Kubernetes.UnreachableGrace = s.span(), s.span()
			keep, pods := s.span(), rapid.IntRange(0, cluster.MaxKeepEndedPods).Draw(s.t, "kept")
			out.Spec.Kubernetes.KeepEnded, out.Spec.Kubernetes.KeepEndedPods = &keep, &pods
		}
	}
	if s.bool() {
		out.Spec.Mesos = &cluster.Mesos{
			Masters: s.texts(), Roles: s.texts(), Principal: s.text(), Secret: cluster.Secret{File: s.text(), Env: s.text()}, CAFile: s.text(),
			Failover: s.span(), User: s.text(), Framework: s.text(),
		}
	}
	return out
}
