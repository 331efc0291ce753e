package record

import (
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record/recordpb"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

func vectorToProto(v *resource.Vector) *recordpb.Vector {
	n := len(v)
	for n > 0 && v[n-1] == 0 {
		n--
	}
	if n == 0 {
		return nil
	}
	return &recordpb.Vector{Quantities: append([]int64(nil), v[:n]...)}
}

// idBytes leaves an id that was never set out. The result aliases it.
func idBytes(id *[16]byte) []byte {
	if *id == ([16]byte{}) {
		return nil
	}
	return id[:]
}

// idInto is idBytes into the room of a message that is reused.
func idInto(room []byte, id [16]byte) []byte {
	if id == ([16]byte{}) {
		return room[:0]
	}
	return append(room[:0], id[:]...)
}

func poolToProto(p *respool.Pool) *recordpb.Pool {
	m := &recordpb.Pool{
		Parent: p.Parent[:], Name: p.Name, Kind: uint32(p.Kind), Reservation: vectorToProto(&p.Reservation),
		ReserveRest: p.ReserveRest, Limits: limitsToProto(&p.Limit), Share: p.Share, Version: p.Version, Creator: p.Creator,
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, Order: uint32(p.Queue.Order), Backfill: uint32(p.Queue.Backfill),
		Candidates: uint32(p.Queue.Candidates), Patience: int64(p.Queue.Patience), UsageHalfLife: int64(p.Queue.UsageHalfLife),
		UserLimits: limitsToProto(&p.UserLimit), ControllerPercent: uint32(p.ControllerPercent), RevocablePercent: uint32(p.RevocablePercent),
		PlacementPolicy: p.PlacementPolicy,
	}
	return m
}

func limitsToProto(l *respool.Limits) []*recordpb.Limit {
	var out []*recordpb.Limit
	for k := range resource.Kind(resource.MaxKinds) {
		if q := l.Of(k); q != respool.Unlimited {
			out = append(out, &recordpb.Limit{Kind: uint32(k), Quantity: q})
		}
	}
	return out
}

func jobToProto(r *scheduler.JobRecord) *recordpb.Job {
	m := &recordpb.Job{
		Order: r.Order, Version: r.Version, Config: r.Config, Caller: &recordpb.Caller{Principal: r.Caller.Principal, Tenant: r.Caller.Tenant},
		Goal: uint32(r.Goal), GoalReason: uint32(r.GoalReason), State: uint32(r.State), Reason: uint32(r.Reason), Generation: r.Generation,
		Failures: r.Failures, RestartNumber: r.Restart.Number, RestartBatch: r.Restart.Batch, RestartGrace: int64(r.Restart.Grace),
		Created: r.Created, Started: r.Started, Finished: r.Finished, Asked: digestBytes(&r.Asked),
	}
	for _, only := range r.Restart.Only {
		m.RestartOnly = append(m.RestartOnly, only.First, only.Last)
	}
	for _, g := range r.Gangs {
		m.Gangs = append(m.Gangs, &recordpb.GangLife{Generation: g.Generation, Failures: g.Failures})
	}
	return m
}

// taskToProto overwrites every field of m, which is reused.
func taskToProto(r *scheduler.TaskRecord, m *recordpb.Task) {
	m.Generation, m.Run, m.State, m.RunState, m.Reason = r.Generation, r.Run, uint32(r.State), uint32(r.RunState), uint32(r.Reason)
	m.Healthy, m.Config, m.Failures, m.Restart, m.Attempts = r.Healthy, r.Config, r.Failures, r.Restart, r.Attempts
	m.Host, m.Devices, m.ExitCode, m.Signal, m.Message = idInto(m.Host, r.Host), uint32(r.Devices), r.ExitCode, r.Signal, r.Message
	m.Since, m.Placed, m.Started, m.NotBefore = r.Since, r.Placed, r.Started, r.NotBefore
	m.HeldMillis = r.HeldMillis
	m.Ports = m.Ports[:0]
	for _, p := range r.Ports {
		m.Ports = append(m.Ports, uint32(p))
	}
}

// runToProto overwrites every field of m, which is reused.
func runToProto(r *scheduler.RunRecord, m *recordpb.Run) {
	m.Generation, m.Host, m.State, m.Reason = r.ID.Generation, idInto(m.Host, r.Host), uint32(r.State), uint32(r.Reason)
	m.ExitCode, m.Signal, m.Message = r.ExitCode, r.Signal, r.Message
	m.Placed, m.Started, m.Ended, m.Config = r.Placed, r.Started, r.Ended, r.Config
}

func hostToProto(r *scheduler.HostRecord) *recordpb.Host {
	f := &r.Summary
	m := &recordpb.Host{
		Cluster: r.Cluster, Shard: r.Shard, Name: r.Name, Attributes: f.Attributes, HostPool: f.HostPool, Capacity: vectorToProto(&f.Capacity),
		Foreign: vectorToProto(&f.Foreign), Ready: f.Ready, Message: f.Message, Present: r.Present, Draining: r.Draining, Since: r.Since,
		ClusterId: f.ClusterID,
	}
	for _, d := range f.Devices {
		m.Devices = append(m.Devices, &recordpb.Device{Model: d.Model, Milli: d.Milli})
	}
	return m
}

// changesToProto overwrites every field of m and its parts, which are reused.
func changesToProto(r *scheduler.ChangesRecord, m *recordpb.Changes) {
	m.Changes = slices.Grow(m.Changes[:0], len(r.Changes))[:len(r.Changes)]
	for n := range r.Changes {
		if m.Changes[n] == nil {
			m.Changes[n] = &recordpb.Change{}
		}
		c, p := &r.Changes[n], m.Changes[n]
		p.Kind, p.At, p.Principal, p.Pool, p.Job = uint32(c.Kind), c.At, c.Principal, idBytes((*[16]byte)(&c.Pool)), idBytes((*[16]byte)(&c.Job))
		p.JobState, p.Goal, p.Version, p.Instance = uint32(c.JobState), uint32(c.Goal), c.Version, c.Run.Instance
		p.Generation, p.Run, p.State, p.RunState = c.Run.Generation, c.Run.Run, uint32(c.State), uint32(c.RunState)
		p.Healthy, p.Reason, p.ExitCode, p.Host = c.Healthy, uint32(c.Reason), c.ExitCode, idBytes((*[16]byte)(&c.Host))
		p.Name, p.Message = c.Name, c.Message
	}
}

func specToProto(s *workload.JobSpec) *recordpb.Spec {
	m := &recordpb.Spec{
		Name: s.Name, Pool: s.Pool[:], Owner: s.Owner, Labels: s.Labels, Kind: uint32(s.Kind), Priority: s.Priority, Instances: s.Instances,
		Template: templateToProto(&s.Template), Gang: s.Gang != nil, Gangs: gangToProto(s.Gang), MaxRunning: s.MaxRunning, MaxRetries: s.Retry.MaxRetries,
		InitialBackoff: int64(s.Retry.Initial), MaxBackoff: int64(s.Retry.Max), Deadline: int64(s.Deadline), Preemptible: s.Preemptible,
		Placement: placementToProto(&s.Placement), RunTime: int64(s.RunTime), OnPreemption: uint32(s.OnPreemption),
		MaxUnavailable: s.MaxUnavailable + 1, Revocable: s.Revocable, Controller: s.Controller,
	}
	for n := range s.Overrides {
		o := &s.Overrides[n]
		p := &recordpb.Override{Instance: o.Instance, Command: o.Command, Env: o.Env, Labels: o.Labels}
		if o.Needs != nil {
			if p.Needs = vectorToProto(o.Needs); p.Needs == nil {
				p.Needs = &recordpb.Vector{}
			}
		}
		m.Overrides = append(m.Overrides, p)
	}
	return m
}

// gangToProto says nothing of a whole job that is one rigid gang, as before there were others.
func gangToProto(g *workload.GangSpec) *recordpb.Gang {
	if g == nil || (len(g.Groups) == 0 && g.MinSize == 0 && g.Topology == workload.GangTopology{}) {
		return nil
	}
	m := &recordpb.Gang{MinSize: g.MinSize, TopologyKey: g.Topology.Key, TopologyRequired: g.Topology.Required}
	for n := range g.Groups {
		p := &recordpb.GangGroup{Name: g.Groups[n].Name, MinSize: g.Groups[n].MinSize}
		for _, r := range g.Groups[n].Instances {
			p.Bounds = append(p.Bounds, r.First, r.Last)
		}
		m.Groups = append(m.Groups, p)
	}
	return m
}

func templateToProto(t *workload.TaskTemplate) *recordpb.Template {
	m := &recordpb.Template{
		Command: t.Command, Env: t.Env, Needs: vectorToProto(&t.Needs), GpuModels: t.GPUModels, KillGrace: int64(t.KillGrace), Labels: t.Labels,
		SimulatedDuration: int64(t.Simulation.Duration), SimulatedExitCode: t.Simulation.ExitCode, SimulatedFailurePerMille: t.Simulation.FailurePerMille,
		Execution: executionToProto(t.Execution),
	}
	for _, p := range t.Ports {
		m.Ports = append(m.Ports, &recordpb.Port{Name: p.Name, Number: uint32(p.Number)})
	}
	if h := t.Health; h != nil {
		m.Health = &recordpb.HealthCheck{
			Exec: h.Exec, InitialDelay: int64(h.InitialDelay), Interval: int64(h.Interval), Timeout: int64(h.Timeout),
			FailureThreshold: h.FailureThreshold,
		}
		if h.HTTP != nil {
			m.Health.HttpPort, m.Health.HttpPath = &h.HTTP.Port, h.HTTP.Path
		}
		if h.TCP != nil {
			m.Health.TcpPort = &h.TCP.Port
		}
	}
	return m
}

func placementToProto(p *workload.Placement) *recordpb.Placement {
	m := &recordpb.Placement{Strategy: string(p.Strategy), Exclusive: p.Exclusive, HostPool: p.HostPool, Clusters: p.Clusters}
	for n := range p.Constraints {
		m.Constraints = append(m.Constraints, constraintToProto(&p.Constraints[n]))
	}
	for n := range p.Preferences {
		m.Preferences = append(m.Preferences, &recordpb.Preference{
			Constraint: constraintToProto(&p.Preferences[n].Constraint), Weight: p.Preferences[n].Weight,
		})
	}
	for _, a := range p.Affinities {
		m.Affinities = append(m.Affinities, &recordpb.Affinity{Selector: a.Selector, Topology: a.Topology, Anti: a.Anti, Weight: a.Weight})
	}
	for _, s := range p.Spreads {
		m.Spreads = append(m.Spreads, &recordpb.Spread{Topology: s.Topology, MaxSkew: s.MaxSkew})
	}
	return m
}

func constraintToProto(c *workload.Constraint) *recordpb.Constraint {
	return &recordpb.Constraint{Key: c.Key, Op: uint32(c.Op), Values: c.Values}
}

func secondsToProto(s *usage.Seconds) *recordpb.Seconds {
	n := len(s.Whole)
	for n > 0 && s.Whole[n-1] == 0 && s.Milli[n-1] == 0 {
		n--
	}
	if n == 0 {
		return nil
	}
	m := &recordpb.Seconds{Whole: append([]int64(nil), s.Whole[:n]...)}
	for _, milli := range s.Milli[:n] {
		m.Milli = append(m.Milli, uint32(milli))
	}
	return m
}

func balanceToProto(b *usage.Balance) *recordpb.Balance {
	return &recordpb.Balance{
		Since: b.Since, Entitled: secondsToProto(&b.Entitled), Demanded: secondsToProto(&b.Demanded), Deficit: secondsToProto(&b.Deficit),
		Overage: secondsToProto(&b.Overage), First: b.First, Sampled: b.Sampled,
	}
}

func sampleToProto(s *usage.Sample) *recordpb.Sample {
	m := &recordpb.Sample{
		Path: s.Path, Leaf: s.Leaf, First: s.First, Held: vectorToProto(&s.Held), Entitled: vectorToProto(&s.Entitled),
		Demanded: vectorToProto(&s.Demanded), Deficit: vectorToProto(&s.Deficit), Overage: vectorToProto(&s.Overage),
	}
	for n := range s.Owners {
		m.Owners = append(m.Owners, &recordpb.OwnerReading{Owner: s.Owners[n].Owner, Held: vectorToProto(&s.Owners[n].Held)})
	}
	return m
}
