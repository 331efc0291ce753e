package sim

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/record"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxLiveJobs bounds the jobs that are not ended: users who find the cell that full wait.
const maxLiveJobs = 30

// users call the cell and remember what it told them.
type users struct {
	w       *world
	token   uint64
	calls   map[uint64]scheduler.Command // without an answer
	jobs    map[workload.JobID]*submitted
	unsure  []*submitted // submitted with a key, and no answer came
	ids     uint64
	licence resource.Kind // 0: the cell does not know the name yet
}

// submitted is a job as its user knows it.
type submitted struct {
	command scheduler.SubmitJob
	known   bool // the cell said yes
	deleted bool // its end was asked for with its records
}

func newUsers(w *world) *users {
	return &users{w: w, calls: map[uint64]scheduler.Command{}, jobs: map[workload.JobID]*submitted{}}
}

func (u *users) spec(id workload.JobID) *workload.JobSpec {
	if s := u.jobs[id]; s != nil {
		return s.command.Spec
	}
	return nil
}

func (u *users) id() (id workload.ID) {
	u.ids++
	binary.BigEndian.PutUint64(id[:], u.ids)
	return id
}

// call sends a command to the cell, if it is there.
func (u *users) call(command scheduler.Command) {
	if u.w.cell.state == nil {
		return
	}
	if s, is := command.(scheduler.SubmitJob); is && u.jobs[s.ID] == nil {
		u.jobs[s.ID] = &submitted{command: s}
	}
	if !u.w.calm {
		u.w.record(event{what: callEvent, command: command})
	}
	u.token++
	u.calls[u.token] = command
	u.w.report.Calls++
	if u.w.opts.Trace != nil {
		u.w.trace("call %d: %s", u.token, traceCommand(command))
	}
	u.w.cell.deliver(scheduler.Call{Token: u.token, Caller: scheduler.Caller{Principal: "ann"}, Command: command})
}

// cut forgets the calls under way: nobody knows whether they were carried out. A careful user tries the same again under its key.
func (u *users) cut() {
	for token := uint64(1); token <= u.token && len(u.calls) > 0; token++ {
		if s, ok := u.calls[token].(scheduler.SubmitJob); ok && s.Idempotency != nil {
			u.unsure = append(u.unsure, u.jobs[s.ID])
		}
		delete(u.calls, token)
	}
}

// answered takes what the cell says.
func (u *users) answered(a scheduler.Answer) {
	u.w.judge.answering(&a)
	command, open := u.calls[a.Token]
	if !open {
		u.w.fail(CheckAnswers, "call %d is answered twice, or was never made", a.Token)
	}
	delete(u.calls, a.Token)
	if a.Err != nil {
		u.w.report.Refused++
		u.w.trace("call %d is refused: %v", a.Token, a.Err)
		return
	}
	u.w.trace("call %d is done", a.Token)
	switch command := command.(type) {
	case scheduler.SubmitJob:
		if a.Job.ID != command.ID && command.Idempotency != nil && !a.Existed {
			u.w.fail(CheckAnswers, "job %s was submitted and %s accepted", command.ID, a.Job.ID)
		}
		if job := u.jobs[a.Job.ID]; !job.known {
			job.known = true
			u.w.report.Jobs++
		}
	case scheduler.StopJob:
		u.jobs[command.Job].deleted = u.jobs[command.Job].deleted || command.Delete
	case scheduler.ApplyPool:
		if got, want := &a.Pool.Pool, &command.Pool; got.Reservation != want.Reservation || got.Limit != want.Limit || got.Share != want.Share || got.Kind != want.Kind {
			u.w.fail(CheckAnswers, "pool %s was to be %+v and is %+v", command.Path, *want, *got)
		}
		if a.Pool.Pool.Version > 1 && a.Pool.Jobs > 0 {
			u.w.fault("pool-edited-live", "%s", command.Path)
		}
	case scheduler.NameResources:
		if kind, known := u.w.cell.state.Reader().Names().Lookup(licence); known {
			u.licence = kind
		}
	}
}

// act is one thing that a user does.
func (u *users) act() {
	if u.w.cell.state == nil {
		return
	}
	r := u.w.random
	if len(u.unsure) > 0 {
		s := u.unsure[0]
		u.unsure = u.unsure[1:]
		u.call(s.command) // the very same
		return
	}
	switch n := r.IntN(100); {
	case n < 45:
		u.submit()
	case n < 60:
		u.onSomeJob(func(j scheduler.JobView) scheduler.Command {
			return scheduler.StopJob{Job: j.ID, Delete: r.IntN(3) == 0, ExpectedVersion: pick(r, 0, j.Version)}
		})
	case n < 68:
		u.onSomeJob(func(j scheduler.JobView) scheduler.Command {
			return scheduler.RestartJob{Job: j.ID, Batch: uint32(r.IntN(4)), Grace: pick(r, 0, 3*time.Second)}
		})
	case n < 72:
		u.onSomeJob(func(j scheduler.JobView) scheduler.Command { // again, the same or nearly
			spec := *j.Spec
			spec.Priority += int32(r.IntN(2))
			return u.submission(&spec, false)
		})
	case n < 82:
		u.call(u.pool())
	case n < 86:
		if path, n := u.poolPath(), mixed(u.ids); n%3 == 0 {
			u.call(scheduler.MovePool{Path: path, NewPath: poolPaths[n/3%uint32(len(poolPaths))] + [...]string{"", "/m"}[n/16%2]})
		} else {
			u.call(scheduler.DeletePool{Path: path})
		}
	case n < 92:
		hosts, _ := u.w.cell.state.Reader().Hosts("", "", 1000)
		if len(hosts) > 0 {
			u.call(scheduler.DrainHost{Host: hosts[r.IntN(len(hosts))].ID, Draining: r.IntN(2) == 0})
		}
	case n < 95:
		u.call(scheduler.PlanJob{Spec: u.draw()})
	case n < 97:
		u.call(scheduler.NameResources{Names: []string{licence}})
	default:
		u.onSomeJob(func(j scheduler.JobView) scheduler.Command {
			if e, ok := u.w.cell.state.Reader().Explain(j.ID); !ok || e.Job.ID != j.ID {
				u.w.fail(CheckAnswers, "job %s is there and cannot be explained", j.ID)
			}
			return nil
		})
	}
}

func (u *users) onSomeJob(command func(scheduler.JobView) scheduler.Command) {
	jobs, _ := u.w.cell.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	if len(jobs) == 0 {
		return
	}
	if c := command(jobs[u.w.random.IntN(len(jobs))]); c != nil {
		u.call(c)
	}
}

func (u *users) submit() {
	live := 0
	jobs, _ := u.w.cell.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		if !jobs[n].State.Terminal() {
			live++
		}
	}
	if live < maxLiveJobs {
		u.call(u.submission(u.draw(), u.w.random.IntN(2) == 0))
	}
}

func (u *users) submission(spec *workload.JobSpec, keyed bool) scheduler.SubmitJob {
	s := scheduler.SubmitJob{ID: workload.JobID(u.id()), Spec: spec, SpecBytes: record.SpecSize(spec)}
	if keyed {
		s.Idempotency = &scheduler.IdempotencyKey{Principal: "ann", Method: "CreateJob", Key: s.ID.String()}
		binary.BigEndian.PutUint64(s.RequestHash[:], u.ids)
	}
	return s
}

var poolPaths = []string{"/a", "/b", "/c", "/c/x", "/c/y"}

func (u *users) poolPath() string { return poolPaths[u.w.random.IntN(len(poolPaths))] }

// pool makes a pool, or changes it.
func (u *users) pool() scheduler.ApplyPool {
	r := u.w.random
	p := respool.Pool{Kind: pick(r, respool.Elastic, respool.Elastic, respool.Static), Share: int64(r.IntN(4))}
	p.Reservation[resource.CPU] = int64(r.IntN(8)) * 1000
	p.Reservation[resource.Memory] = int64(r.IntN(8)) * 2048
	if r.IntN(2) == 0 {
		p.Limit = p.Limit.With(resource.CPU, p.Reservation[resource.CPU]+int64(r.IntN(8))*1000)
	}
	id, path := workload.PoolID(u.id()), u.poolPath()
	u.bound(&p)
	return scheduler.ApplyPool{ID: id, Path: path, Pool: p}
}

// bound gives pools limits on owners, controllers and revocable work here and there, and queues of every order. It follows from the command's number alone, as gangs do.
func (u *users) bound(p *respool.Pool) {
	switch n := mixed(u.ids); n % 6 {
	case 0:
		p.UserLimit = p.UserLimit.With(resource.CPU, int64(1+n/6%8)*1000)
	case 1:
		p.ControllerPercent = uint8(10 + n/6%90)
	case 2:
		p.RevocablePercent = uint8(1 + n/6%100)
	}
	if n := mixed(u.ids + 1); n%2 == 0 {
		orders := uint32(respool.OrderExpress) + 1
		p.Queue = respool.QueuePolicy{
			Order: respool.Order(n / 2 % orders), Candidates: respool.Order(n / 16 % orders), Backfill: respool.Backfill(n / 128 % 2),
			Patience: time.Duration(1+n/256%60) * time.Second,
		}
	}
}

// share gives jobs owners and estimates, makes some revocable and some direct others. It follows from the job's number alone, as gangs do.
func (u *users) share(s *workload.JobSpec) {
	n := mixed(u.ids)
	s.Owner = [...]string{"ann", "bob", "cec"}[n%3]
	switch n / 3 % 8 {
	case 0:
		s.Revocable, s.Preemptible = true, true
	case 1:
		s.Controller = true
	}
	if n/24%2 == 0 {
		s.RunTime = time.Duration(1+n/48%120) * time.Second // a guess that has nothing to do with the truth
	}
}

// mixed spreads the numbers of commands (Knuth's multiplicative hash).
func mixed(n uint64) uint32 { return uint32(n) * 2654435761 >> 8 }

// leafPool is a pool that may hold jobs, most often the default one.
func (u *users) leafPool() workload.PoolID {
	pools := u.w.cell.state.Reader().Pools("/")
	var leaves []workload.PoolID
	for n := range pools {
		if p := &pools[n]; p.Path != "/" && leaf(pools, p.Path) {
			leaves = append(leaves, p.Pool.ID)
		}
	}
	if u.w.random.IntN(2) == 0 {
		return respool.DefaultID
	}
	return leaves[u.w.random.IntN(len(leaves))]
}

// draw makes a job of any kind.
func (u *users) draw() *workload.JobSpec {
	r := u.w.random
	s := &workload.JobSpec{
		Name: fmt.Sprintf("j%d", u.ids), Pool: u.leafPool(), Owner: "ann", Kind: workload.Batch, Priority: int32(r.IntN(3)),
		Labels: map[string]string{"team": pick(r, "red", "blue")}, Instances: 1 + uint32(r.IntN(10)), Preemptible: r.IntN(3) > 0,
		Retry: workload.RetryPolicy{MaxRetries: uint32(r.IntN(4)), Initial: r.between(100*time.Millisecond, 3*time.Second), Max: 10 * time.Second},
		Template: workload.TaskTemplate{
			Command: []string{"work"}, KillGrace: pick(r, time.Second, 5*time.Second),
			Needs:      resource.Vector{resource.CPU: int64(r.IntN(12)) * 125, resource.Memory: int64(r.IntN(8)) * 128},
			Simulation: workload.Simulation{Duration: r.between(time.Second, 90*time.Second), FailurePerMille: int32(pick(r, 0, 0, 100, 500))},
			Labels:     map[string]string{"app": pick(r, "web", "db")},
		},
	}
	switch r.IntN(8) {
	case 0, 1:
		s.Kind, s.Preemptible, s.MaxUnavailable = workload.Service, r.IntN(2) == 0, s.Instances
		if r.IntN(2) == 0 {
			s.Template.Simulation = workload.Simulation{} // until it is killed
		}
		if r.IntN(2) == 0 {
			s.Template.Health = &workload.HealthCheck{Exec: []string{"true"}, InitialDelay: r.between(0, 5*time.Second)}
		}
	case 2:
		s.Kind, s.Instances = workload.Daemon, 0
		s.Template.Needs = resource.Vector{resource.CPU: 50}
		s.Template.Simulation = workload.Simulation{}
	case 3, 4:
		s.Gang = u.gang(s.Instances)
	case 5:
		s.MaxRunning = 1 + uint32(r.IntN(3))
		s.Template.Simulation.Duration /= 4
	}
	if r.IntN(5) == 0 {
		s.Deadline = r.between(10*time.Second, 2*time.Minute)
	}
	u.decorate(s)
	u.share(s)
	return s
}

// gang makes whole jobs gangs and parts of them, rigid and elastic, here and there within one domain. It follows from the job's number alone, so
// that what else a seed draws does not hang on it.
func (u *users) gang(instances uint32) *workload.GangSpec {
	n := mixed(u.ids)
	g := &workload.GangSpec{}
	switch {
	case n%3 == 1:
		g.MinSize = 1 + n/3%instances
	case n%3 == 2 && instances >= 4:
		half := instances / 2 // and the last one is on its own
		g.Groups = []workload.GangGroup{
			{Name: "left", Instances: []workload.InstanceRange{{First: 0, Last: half - 1}}},
			{Name: "right", Instances: []workload.InstanceRange{{First: half, Last: instances - 2}}, MinSize: 1},
		}
	}
	switch n / 64 % 5 {
	case 1:
		g.Topology = workload.GangTopology{Key: "rack", Required: true}
	case 2:
		g.Topology = workload.GangTopology{Key: "zone"}
	case 3:
		g.Topology = workload.GangTopology{Key: workload.TopologyCluster, Required: true}
	}
	return g
}

// decorate adds needs and wishes to some.
func (u *users) decorate(s *workload.JobSpec) {
	r := u.w.random
	t, p := &s.Template, &s.Placement
	for n := range pick(r, 0, 0, 0, 1, 2) {
		t.Ports = append(t.Ports, workload.Port{Name: fmt.Sprintf("p%d", n)})
	}
	switch r.IntN(12) {
	case 0:
		t.Needs[resource.GPU] = pick(r, int64(250), 500, 1000, 2000)
	case 1:
		t.Needs[resource.GPU], t.GPUModels = 1000, []string{"T4"}
	case 2:
		p.Constraints = []workload.Constraint{{Key: "rack", Op: workload.OpIn, Values: []string{"r0", "r1"}}}
	case 3:
		p.Spreads = []workload.Spread{{Topology: pick(r, "rack", "zone"), MaxSkew: uint32(r.IntN(3))}}
	case 4:
		p.Affinities = []workload.Affinity{{
			Selector: map[string]string{"app": "web"}, Topology: pick(r, "rack", workload.TopologyHost),
			Anti:   s.Kind == workload.Batch && r.IntN(2) == 0,
			Weight: int32(pick(r, 0, 10)),
		}}
	case 5:
		p.Exclusive = s.Kind == workload.Batch // a host that is taken for good would keep others waiting for ever
	case 6:
		p.HostPool = "batch"
	case 7:
		p.Clusters = []string{pick(r, "c0", "c1")}
	case 8:
		if u.licence != 0 {
			t.Needs[u.licence] = 1
		}
	case 9:
		t.Ports = append(t.Ports, workload.Port{Name: "fixed", Number: 31001})
	}
	p.Strategy = pick(r, "", workload.StrategyPack, workload.StrategySpread)
	if s.Instances > 1 && r.IntN(6) == 0 {
		s.Overrides = []workload.Override{{Instance: uint32(r.IntN(int(s.Instances))), Needs: &resource.Vector{resource.CPU: 1500}}}
	}
}

// lift takes away what users put in the way of work.
func (u *users) lift() {
	hosts, _ := u.w.cell.state.Reader().Hosts("", "", 1000)
	for n := range hosts {
		if hosts[n].Draining {
			u.call(scheduler.DrainHost{Host: hosts[n].ID})
		}
	}
}

// stopAll ends every job.
func (u *users) stopAll() {
	jobs, _ := u.w.cell.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		if !jobs[n].State.Terminal() {
			u.call(scheduler.StopJob{Job: jobs[n].ID})
		}
	}
}

// waitsFor is the first work that should have come to its end or to life by now, and has not.
func (u *users) waitsFor() string {
	c := u.w.cell
	if c.state == nil {
		return "the core is down"
	}
	if len(c.pending) > 0 || len(c.events) > 0 {
		return "the core is busy"
	}
	if len(u.calls) > 0 {
		return fmt.Sprintf("%d calls have no answer", len(u.calls))
	}
	hosts, _ := c.state.Reader().Hosts("", "", 1000)
	for n := range hosts {
		if h := &hosts[n]; h.Draining || !h.Present || !h.Summary.Ready {
			return fmt.Sprintf("host %s/%s: draining %v, present %v, ready %v (%s)", h.Cluster, h.Name, h.Draining, h.Present, h.Summary.Ready, h.Summary.Message)
		}
	}
	if lost := u.lostJob(); lost != "" {
		u.w.fail(CheckRuns, "%s", lost)
	}
	jobs, _ := c.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		j := &jobs[n]
		up := j.Goal == scheduler.GoalRun && j.Spec.Kind != workload.Batch && (u.up(j) || j.Spec.Template.Simulation.Duration > 0)
		if !j.State.Terminal() && !up && !u.mayWait(j) {
			return u.w.describe(*j)
		}
	}
	return u.w.truth.disagrees()
}

func (u *users) up(j *scheduler.JobView) bool {
	return j.Healthy == j.Instances && j.Restart.Batch == 0
}

// mayWait excuses work whose pool has no more for it, and work that asks for what this cell may not have.
func (u *users) mayWait(j *scheduler.JobView) bool {
	if j.Goal != scheduler.GoalRun {
		return false
	}
	p := &j.Spec.Placement
	picky := p.HostPool != "" || len(p.Constraints)+len(p.Spreads)+len(p.Affinities)+len(p.Clusters) > 0 || p.Exclusive ||
		(j.Spec.Gang != nil && j.Spec.Gang.Topology.Required) ||
		j.Spec.Kind == workload.Daemon || j.Spec.Template.Needs[resource.GPU] > 0 || slices.ContainsFunc(j.Spec.Template.Ports, func(p workload.Port) bool { return p.Number != 0 })
	e, _ := u.w.cell.state.Reader().Explain(j.ID)
	for _, r := range e.Reasons {
		switch r.Kind {
		case scheduler.PendingReservation, scheduler.PendingEntitlement, scheduler.PendingQueue, scheduler.PendingUserLimit,
			scheduler.PendingControllerLimit, scheduler.PendingSlack:
			return true
		case scheduler.PendingNeverFits, scheduler.PendingPlacement, scheduler.PendingNoMatchingHost, scheduler.PendingNoShard:
			return picky
		case scheduler.PendingBackoff, scheduler.PendingWindow, scheduler.PendingBeingPlaced: // these pass
		}
	}
	return false
}

// lostJob is a job that the cell said yes to and no longer knows, though nobody asked for its end and its time is not over.
func (u *users) lostJob() string {
	reader := u.w.cell.state.Reader()
	var ids []workload.JobID
	for id, s := range u.jobs {
		if _, there := reader.Job(id); s.known && !s.deleted && !there {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b workload.JobID) int { return strings.Compare(a.String(), b.String()) })
	for _, id := range ids {
		if !u.w.judge.erased[id] {
			return fmt.Sprintf("job %s was accepted and is gone without a trace", id)
		}
	}
	return ""
}
