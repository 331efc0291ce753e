package record

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// decoder reads one record; the first thing wrong with it stays in err.
type decoder struct {
	keys store.Keyspace
	key  []byte
	raw  []byte
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *decoder) check(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) unmarshal(m proto.Message) { d.check(proto.Unmarshal(d.raw, m)) }

// id reads an id that may be absent.
func (d *decoder) id(raw []byte) (id [16]byte) {
	if len(raw) != 0 && len(raw) != len(id) {
		d.fail("an id of %d bytes", len(raw))
	}
	copy(id[:], raw)
	return id
}

// enum reads a number of an enumeration and refuses what this version does not know.
func enum[T ~uint8](d *decoder, v uint32, lowest, highest T, what string) T {
	if v < uint32(lowest) || v > uint32(highest) {
		d.fail("%s %d is not known to this version", what, v)
		return 0
	}
	return T(v)
}

func (d *decoder) small(v uint32, what string) uint16 {
	if v > math.MaxUint16 {
		d.fail("%s %d is out of range", what, v)
	}
	return uint16(v) //nolint:gosec // checked
}

func (d *decoder) vector(m *recordpb.Vector) (v resource.Vector) {
	if len(m.GetQuantities()) > len(v) {
		d.fail("%d kinds of resource are more than %d", len(m.GetQuantities()), len(v))
		return v
	}
	copy(v[:], m.GetQuantities())
	return v
}

// needs reads a vector that a task asks for.
func (d *decoder) needs(m *recordpb.Vector) resource.Vector {
	v := d.vector(m)
	for k, q := range v {
		if q < 0 || q > resource.MaxQuantity {
			d.fail("a need of %d of resource kind %d is out of range", q, k)
		}
	}
	return v
}

func (d *decoder) instance(n uint32) uint32 {
	if n >= workload.MaxInstances {
		d.fail("instance %d is out of range", n)
	}
	return n
}

func (d *decoder) cell() scheduler.Record {
	var m recordpb.Cell
	d.unmarshal(&m)
	if !bytes.Equal(d.key, d.keys.CellRecord(cellName)) {
		d.fail("no record of the cell has this name")
	}
	return scheduler.CellRecord{Epoch: m.GetEpoch(), Named: list(m.GetNamed()), Now: m.GetNow()}
}

func (d *decoder) pool() scheduler.Record {
	var m recordpb.Pool
	d.unmarshal(&m)
	id, err := d.keys.ParsePool(d.key)
	d.check(err)
	p := respool.Pool{
		ID: id, Parent: d.id(m.GetParent()), Name: m.GetName(), Kind: enum(d, m.GetKind(), respool.Elastic, respool.Static, "kind of pool"),
		Reservation: d.vector(m.GetReservation()), ReserveRest: m.GetReserveRest(), Share: m.GetShare(), Version: m.GetVersion(),
		Creator: m.GetCreator(), CreatedAt: m.GetCreatedAt(), UpdatedAt: m.GetUpdatedAt(),
		Limit: d.limits(m.GetLimits()), UserLimit: d.limits(m.GetUserLimits()),
		Queue: respool.QueuePolicy{
			Order:      enum(d, m.GetOrder(), respool.OrderPriorityFIFO, respool.OrderExpress, "order of a queue"),
			Backfill:   enum(d, m.GetBackfill(), respool.BackfillNone, respool.BackfillEASY, "way of back-fill"),
			Candidates: enum(d, m.GetCandidates(), respool.OrderPriorityFIFO, respool.OrderExpress, "order of candidates"),
			Patience:   time.Duration(m.GetPatience()), UsageHalfLife: time.Duration(m.GetUsageHalfLife()),
		},
		ControllerPercent: d.percent(m.GetControllerPercent()), RevocablePercent: d.percent(m.GetRevocablePercent()),
		PlacementPolicy: m.GetPlacementPolicy(),
	}
	return scheduler.PoolRecord{Pool: p}
}

func (d *decoder) limits(in []*recordpb.Limit) (out respool.Limits) {
	for _, l := range in {
		if l.GetKind() >= resource.MaxKinds {
			d.fail("kind of resource %d is out of range", l.GetKind())
			break
		}
		out = out.With(resource.Kind(l.GetKind()), l.GetQuantity())
	}
	return out
}

func (d *decoder) percent(n uint32) uint8 {
	if n > 100 {
		d.fail("%d %% are out of range", n)
		return 0
	}
	return uint8(n)
}

func (d *decoder) job() scheduler.Record {
	var m recordpb.Job
	d.unmarshal(&m)
	id, err := d.keys.ParseJob(d.key)
	d.check(err)
	r := scheduler.JobRecord{
		ID: id, Order: m.GetOrder(), Version: m.GetVersion(), Config: m.GetConfig(),
		Caller: scheduler.Caller{Principal: m.GetCaller().GetPrincipal(), Tenant: m.GetCaller().GetTenant()},
		Goal:   enum(d, m.GetGoal(), scheduler.GoalRun, scheduler.GoalDelete, "goal"), GoalReason: d.reason(m.GetGoalReason()),
		State: enum(d, m.GetState(), 0, workload.JobStopped, "job state"), Reason: d.reason(m.GetReason()),
		Generation: m.GetGeneration(), Failures: m.GetFailures(),
		Restart: scheduler.Restart{
			Number: m.GetRestartNumber(), Batch: m.GetRestartBatch(), Grace: time.Duration(m.GetRestartGrace()),
			Only: d.ranges(m.GetRestartOnly(), workload.MaxInstances),
		},
		Created: m.GetCreated(), Started: m.GetStarted(), Finished: m.GetFinished(), Asked: d.digest(m.GetAsked()),
	}
	for _, g := range m.GetGangs() {
		r.Gangs = append(r.Gangs, scheduler.GangLife{Generation: g.GetGeneration(), Failures: g.GetFailures()})
	}
	return r
}

func (d *decoder) reason(v uint32) workload.Reason {
	return enum(d, v, 0, workload.Reason(workload.NumReasons-1), "reason")
}

func (d *decoder) runState(v uint32) workload.RunState {
	return enum(d, v, 0, workload.RunState(workload.NumRunStates-1), "run state")
}

// instanceState refuses ADMITTED too: it passes with the core that was in it, and nothing would take an instance out of it again.
func (d *decoder) instanceState(v uint32) workload.InstanceState {
	state := enum(d, v, 0, workload.InstanceState(workload.NumInstanceStates-1), "instance state")
	if state == workload.InstanceAdmitted {
		d.fail("instance state %s is never stored", state)
	}
	return state
}

func (d *decoder) task() scheduler.Record {
	var m recordpb.Task
	d.unmarshal(&m)
	job, instance, err := d.keys.ParseTask(d.key)
	d.check(err)
	r := scheduler.TaskRecord{
		Job: job, Instance: d.instance(instance), Generation: m.GetGeneration(), Run: m.GetRun(),
		State: d.instanceState(m.GetState()), RunState: d.runState(m.GetRunState()), Reason: d.reason(m.GetReason()), Healthy: m.GetHealthy(), Config: m.GetConfig(),
		Failures: m.GetFailures(), Restart: m.GetRestart(), Attempts: m.GetAttempts(), Host: d.id(m.GetHost()),
		Devices: placement.DeviceSet(d.small(m.GetDevices(), "device set")), ExitCode: m.GetExitCode(), Signal: m.GetSignal(),
		Message: m.GetMessage(), Since: m.GetSince(), Placed: m.GetPlaced(), Started: m.GetStarted(), NotBefore: m.GetNotBefore(), HeldMillis: m.GetHeldMillis(),
	}
	for _, p := range m.GetPorts() {
		r.Ports = append(r.Ports, d.small(p, "port"))
	}
	if r.RunState.Live() && r.Host == (workload.HostID{}) {
		d.fail("a live run without a host")
	}
	return r
}

func (d *decoder) run() scheduler.Record {
	var m recordpb.Run
	d.unmarshal(&m)
	id, err := d.keys.ParseRun(d.key)
	d.check(err)
	id.Generation = m.GetGeneration()
	d.instance(id.Instance)
	return scheduler.RunRecord{
		ID: id, Host: d.id(m.GetHost()), State: d.runState(m.GetState()), Reason: d.reason(m.GetReason()), ExitCode: m.GetExitCode(),
		Signal: m.GetSignal(), Message: m.GetMessage(), Placed: m.GetPlaced(), Started: m.GetStarted(), Ended: m.GetEnded(), Config: m.GetConfig(),
	}
}

func (d *decoder) host() scheduler.Record {
	var m recordpb.Host
	d.unmarshal(&m)
	id, err := d.keys.ParseHost(d.key)
	d.check(err)
	r := scheduler.HostRecord{
		ID: id, Cluster: m.GetCluster(), Shard: m.GetShard(), Name: m.GetName(), Present: m.GetPresent(), Draining: m.GetDraining(),
		Since: m.GetSince(),
		Summary: scheduler.HostFacts{
			Attributes: table(m.GetAttributes()), HostPool: m.GetHostPool(), Capacity: d.vector(m.GetCapacity()), Foreign: d.vector(m.GetForeign()),
			Ready: m.GetReady(), Message: m.GetMessage(), ClusterID: m.GetClusterId(),
		},
	}
	for _, v := range m.GetDevices() {
		r.Summary.Devices = append(r.Summary.Devices, driver.Device{Model: v.GetModel(), Milli: v.GetMilli()})
	}
	return r
}

func (d *decoder) idempotency() scheduler.Record {
	var m recordpb.Idempotency
	d.unmarshal(&m)
	r := scheduler.IdempotencyRecord{
		Key: scheduler.IdempotencyKey{Principal: m.GetPrincipal(), Method: m.GetMethod(), Key: m.GetKey()},
		Job: d.id(m.GetJob()), Expires: m.GetExpires(),
	}
	if len(m.GetHash()) != len(r.Hash) {
		d.fail("a hash of %d bytes", len(m.GetHash()))
	}
	copy(r.Hash[:], m.GetHash())
	if !bytes.Equal(d.key, d.keys.Idempotency(idempotencyDigest(r.Key))) {
		d.fail("its key is not that of principal, method and key")
	}
	return r
}

func (d *decoder) changes() scheduler.Record {
	var m recordpb.Changes
	d.unmarshal(&m)
	sequence, err := d.keys.ParseEvent(d.key)
	d.check(err)
	r := scheduler.ChangesRecord{Sequence: sequence}
	for _, c := range m.GetChanges() {
		out := scheduler.Change{
			Kind: enum(d, c.GetKind(), scheduler.ChangeJob, scheduler.ChangeHostForgotten, "kind of change"), At: c.GetAt(), Principal: c.GetPrincipal(),
			Pool: d.id(c.GetPool()), Job: d.id(c.GetJob()), JobState: enum(d, c.GetJobState(), 0, workload.JobStopped, "job state"),
			Goal: enum(d, c.GetGoal(), 0, scheduler.GoalDelete, "goal"), Version: c.GetVersion(),
			State: d.instanceState(c.GetState()), RunState: d.runState(c.GetRunState()), Healthy: c.GetHealthy(), Reason: d.reason(c.GetReason()), ExitCode: c.GetExitCode(),
			Host: d.id(c.GetHost()), Name: c.GetName(), Message: c.GetMessage(),
		}
		if out.Kind == scheduler.ChangeTask {
			out.Run = workload.RunID{Job: out.Job, Instance: d.instance(c.GetInstance()), Generation: c.GetGeneration(), Run: c.GetRun()}
		}
		r.Changes = append(r.Changes, out)
	}
	return r
}

func (d *decoder) spec() scheduler.Record {
	var m recordpb.Spec
	d.unmarshal(&m)
	job, config, err := d.keys.ParseSpec(d.key)
	d.check(err)
	s := &workload.JobSpec{
		Name: m.GetName(), Pool: d.id(m.GetPool()), Owner: m.GetOwner(), Labels: table(m.GetLabels()),
		Kind: enum(d, m.GetKind(), workload.Batch, workload.Daemon, "kind of job"), Priority: m.GetPriority(), Instances: m.GetInstances(),
		Template: d.template(m.GetTemplate()), Gang: d.gang(&m), MaxRunning: m.GetMaxRunning(),
		Retry: workload.RetryPolicy{
			MaxRetries: m.GetMaxRetries(), Initial: time.Duration(m.GetInitialBackoff()), Max: time.Duration(m.GetMaxBackoff()),
		},
		Deadline: time.Duration(m.GetDeadline()), Preemptible: m.GetPreemptible(), Placement: d.placement(m.GetPlacement()),
		RunTime:        time.Duration(m.GetRunTime()),
		OnPreemption:   enum(d, m.GetOnPreemption(), workload.PreemptRestart, workload.PreemptKill, "action after preemption"),
		MaxUnavailable: maxUnavailable(&m), Revocable: m.GetRevocable(), Controller: m.GetController(),
	}
	if s.Instances > workload.MaxInstances {
		d.fail("%d instances are out of range", s.Instances)
	}
	last := int64(-1)
	for _, o := range m.GetOverrides() {
		if int64(o.GetInstance()) <= last || o.GetInstance() >= s.Instances {
			d.fail("override of instance %d is out of place", o.GetInstance())
			break
		}
		last = int64(o.GetInstance())
		out := workload.Override{Instance: o.GetInstance(), Command: list(o.GetCommand()), Env: table(o.GetEnv()), Labels: table(o.GetLabels())}
		if o.GetNeeds() != nil {
			v := d.needs(o.GetNeeds())
			out.Needs = &v
		}
		s.Overrides = append(s.Overrides, out)
	}
	return scheduler.SpecRecord{Job: job, Config: config, Spec: s, Size: len(d.raw)}
}

// gang reads specs of before gangs had settings, too.
func (d *decoder) gang(m *recordpb.Spec) *workload.GangSpec {
	if !m.GetGang() {
		return nil
	}
	p := m.GetGangs()
	g := &workload.GangSpec{
		MinSize: p.GetMinSize(), Topology: workload.GangTopology{Key: p.GetTopologyKey(), Required: p.GetTopologyRequired()},
	}
	for _, group := range p.GetGroups() {
		out := workload.GangGroup{Name: group.GetName(), MinSize: group.GetMinSize()}
		out.Instances = d.ranges(group.GetBounds(), m.GetInstances())
		if len(out.Instances) == 0 {
			d.fail("gang %q has no members", out.Name)
		}
		g.Groups = append(g.Groups, out)
	}
	return g
}

// ranges reads ascending ranges of instances below a number, with gaps in between.
func (d *decoder) ranges(bounds []uint32, below uint32) (list []workload.InstanceRange) {
	last := int64(-2)
	for n := 0; n < len(bounds); n += 2 {
		if n+1 == len(bounds) || int64(bounds[n]) <= last+1 || bounds[n+1] < bounds[n] || bounds[n+1] >= below {
			d.fail("ranges of instances are out of place")
			return nil
		}
		last = int64(bounds[n+1])
		list = append(list, workload.InstanceRange{First: bounds[n], Last: bounds[n+1]})
	}
	return list
}

// maxUnavailable reads specs of before there was a choice, too.
func maxUnavailable(m *recordpb.Spec) uint32 {
	switch n := m.GetMaxUnavailable(); {
	case n > 0:
		return n - 1
	case workload.Kind(m.GetKind()) == workload.Service: //nolint:gosec // compared only
		return 1
	}
	return 0
}

func (d *decoder) template(m *recordpb.Template) workload.TaskTemplate {
	t := workload.TaskTemplate{
		Command: list(m.GetCommand()), Env: table(m.GetEnv()), Needs: d.needs(m.GetNeeds()), GPUModels: list(m.GetGpuModels()),
		KillGrace: time.Duration(m.GetKillGrace()), Labels: table(m.GetLabels()),
		Simulation: workload.Simulation{
			Duration: time.Duration(m.GetSimulatedDuration()), ExitCode: m.GetSimulatedExitCode(), FailurePerMille: m.GetSimulatedFailurePerMille(),
		},
		Execution: d.execution(m.GetExecution()),
	}
	for _, p := range m.GetPorts() {
		t.Ports = append(t.Ports, workload.Port{Name: p.GetName(), Number: d.small(p.GetNumber(), "port")})
	}
	if h := m.GetHealth(); h != nil {
		t.Health = &workload.HealthCheck{
			Exec: list(h.GetExec()), InitialDelay: time.Duration(h.GetInitialDelay()), Interval: time.Duration(h.GetInterval()),
			Timeout: time.Duration(h.GetTimeout()), FailureThreshold: h.GetFailureThreshold(),
		}
		if h.HttpPort != nil {
			t.Health.HTTP = &workload.HTTPCheck{Port: h.GetHttpPort(), Path: h.GetHttpPath()}
		}
		if h.TcpPort != nil {
			t.Health.TCP = &workload.TCPCheck{Port: h.GetTcpPort()}
		}
	}
	return t
}

func (d *decoder) placement(m *recordpb.Placement) workload.Placement {
	p := workload.Placement{
		Strategy: workload.Strategy(m.GetStrategy()), Exclusive: m.GetExclusive(), HostPool: m.GetHostPool(), Clusters: list(m.GetClusters()),
	}
	for _, c := range m.GetConstraints() {
		p.Constraints = append(p.Constraints, d.constraint(c))
	}
	for _, v := range m.GetPreferences() {
		p.Preferences = append(p.Preferences, workload.Preference{Constraint: d.constraint(v.GetConstraint()), Weight: v.GetWeight()})
	}
	for _, v := range m.GetAffinities() {
		p.Affinities = append(p.Affinities, workload.Affinity{
			Selector: table(v.GetSelector()), Topology: v.GetTopology(), Anti: v.GetAnti(), Weight: v.GetWeight(),
		})
	}
	for _, v := range m.GetSpreads() {
		p.Spreads = append(p.Spreads, workload.Spread{Topology: v.GetTopology(), MaxSkew: v.GetMaxSkew()})
	}
	return p
}

func (d *decoder) constraint(m *recordpb.Constraint) workload.Constraint {
	return workload.Constraint{
		Key: m.GetKey(), Op: enum(d, m.GetOp(), workload.OpIn, workload.OpLt, "operator"), Values: list(m.GetValues()),
	}
}

// list and table make nil of what is empty.
func list(v []string) []string {
	if len(v) == 0 {
		return nil
	}
	return v
}

func table(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}

func (d *decoder) seconds(m *recordpb.Seconds) (s usage.Seconds) {
	if len(m.GetWhole()) > len(s.Whole) || len(m.GetMilli()) != len(m.GetWhole()) {
		d.fail("resource-seconds of %d kinds, with thousandths of %d", len(m.GetWhole()), len(m.GetMilli()))
		return s
	}
	copy(s.Whole[:], m.GetWhole())
	for k, milli := range m.GetMilli() {
		if milli >= 1000 || s.Whole[k] < 0 {
			d.fail("%d.%03d resource-seconds", s.Whole[k], milli)
			return s
		}
		s.Milli[k] = uint16(milli)
	}
	return s
}

func (d *decoder) account() scheduler.Record {
	var m recordpb.Account
	d.unmarshal(&m)
	pool, digest, err := d.keys.ParseAccount(d.key)
	d.check(err)
	if sha256.Sum256([]byte(m.GetOwner())) != digest {
		d.fail("the account of %.80q lies under another's key", m.GetOwner())
	}
	return scheduler.AccountRecord{Account: usage.Account{
		Key: usage.Key{Pool: pool, Owner: m.GetOwner()}, Since: m.GetSince(), Held: d.seconds(m.GetHeld()),
	}}
}

func (d *decoder) balance() scheduler.Record {
	var m recordpb.Balance
	d.unmarshal(&m)
	pool, err := d.keys.ParseBalance(d.key)
	d.check(err)
	return scheduler.BalanceRecord{Balance: usage.Balance{
		Pool: pool, Since: m.GetSince(), Entitled: d.seconds(m.GetEntitled()), Demanded: d.seconds(m.GetDemanded()),
		Deficit: d.seconds(m.GetDeficit()), Overage: d.seconds(m.GetOverage()), First: m.GetFirst(), Sampled: m.GetSampled(),
	}}
}

func (d *decoder) sample() scheduler.Record {
	var m recordpb.Sample
	d.unmarshal(&m)
	at, pool, err := d.keys.ParseSample(d.key)
	d.check(err)
	s := usage.Sample{
		At: at, Pool: pool, Path: m.GetPath(), Leaf: m.GetLeaf(), First: m.GetFirst(), Held: d.vector(m.GetHeld()),
		Entitled: d.vector(m.GetEntitled()), Demanded: d.vector(m.GetDemanded()), Deficit: d.vector(m.GetDeficit()), Overage: d.vector(m.GetOverage()),
	}
	for _, o := range m.GetOwners() {
		s.Owners = append(s.Owners, usage.OwnerReading{Owner: o.GetOwner(), Held: d.vector(o.GetHeld())})
	}
	return scheduler.SampleRecord{Sample: s}
}
