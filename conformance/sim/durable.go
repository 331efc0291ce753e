package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// judge knows what is durable, by counting the groups that the disk took, and holds against it everything that leaves the core.
type judge struct {
	w       *world
	image   *scheduler.Image
	waiting []scheduler.Group // returned by Steps, not known to be durable

	// What ever was durable. Nothing is ever taken out: a message may arrive long after the records that allowed it are gone.
	runs   map[workload.RunID]workload.HostID
	gangs  map[generation]map[uint32]uint32 // members that were bound, with their run
	jobs   map[workload.JobID]uint64        // highest version
	pools  map[workload.PoolID]uint64
	log    []scheduler.ChangesRecord // the event log
	tokens map[tokenOf]driver.Status // what the clusters said
	erased map[workload.JobID]bool   // jobs whose records were deleted
	bills  map[usage.Key]*bill
}

type generation struct {
	job    workload.JobID
	gang   string
	number uint32
}

type tokenOf struct {
	cluster string
	token   driver.Token
}

func newJudge(w *world) *judge {
	return &judge{
		w: w, image: scheduler.NewImage(), runs: map[workload.RunID]workload.HostID{}, gangs: map[generation]map[uint32]uint32{},
		jobs: map[workload.JobID]uint64{}, pools: map[workload.PoolID]uint64{}, tokens: map[tokenOf]driver.Status{},
		erased: map[workload.JobID]bool{}, bills: map[usage.Key]*bill{},
	}
}

// recovered holds what a starting core reads from its disk against what was made durable.
func (j *judge) recovered(im *scheduler.Image) {
	if diff := ImageDifference(im, j.image); diff != "" {
		j.w.fail(CheckRecords, "the disk does not hold what was made durable:\n%s", diff)
	}
	j.checkAccounts()
}

// await notes a group that a Step returned.
func (j *judge) await(g scheduler.Group) { j.waiting = append(j.waiting, g) }

func (j *judge) forgetUndurable() { j.waiting = nil }

// durable notes that the disk took the next groups.
func (j *judge) durable(n int) {
	if n > len(j.waiting) {
		j.w.fail(CheckDurability, "%d groups became durable, but the core has asked for %d", n, len(j.waiting))
	}
	for _, g := range j.waiting[:n] {
		j.image.ApplyGroup(g)
		for _, w := range g.Writes {
			if !w.Delete {
				j.note(w.Record)
			} else if r, ok := w.Record.(scheduler.JobRecord); ok {
				j.erase(r.ID)
			}
		}
	}
	j.waiting = j.waiting[n:]
}

// erase allows the end of a job's records only after the end of its work.
func (j *judge) erase(id workload.JobID) {
	j.erased[id] = true
	for _, living := range j.w.truth.living {
		for _, l := range living {
			if l.Run.Job == id && j.runs[l.Run] != (workload.HostID{}) {
				j.w.fail(CheckDurability, "job %s is erased while its run %s lives", id, l.Run)
			}
		}
	}
}

func (j *judge) note(r scheduler.Record) {
	switch r := r.(type) {
	case scheduler.JobRecord:
		j.jobs[r.ID] = max(j.jobs[r.ID], r.Version)
	case scheduler.PoolRecord:
		j.pools[r.Pool.ID] = max(j.pools[r.Pool.ID], r.Pool.Version)
	case scheduler.ChangesRecord:
		j.log = append(j.log, r)
	case scheduler.RunRecord:
		j.billFor(&r)
	case scheduler.TaskRecord:
		if r.Run == 0 || !r.RunState.Live() {
			return
		}
		id := workload.RunID{Job: r.Job, Instance: r.Instance, Generation: r.Generation, Run: r.Run}
		if host, known := j.runs[id]; known && host != r.Host {
			j.w.fail(CheckRuns, "run %s moved from host %s to %s", id, host, r.Host)
		}
		j.runs[id] = r.Host
		spec := j.w.users.spec(r.Job)
		if spec == nil {
			return
		}
		gang := gangOf(spec, r.Instance)
		if gang == nil {
			return
		}
		g := generation{r.Job, gang.Name, r.Generation}
		if j.gangs[g] == nil {
			j.gangs[g] = map[uint32]uint32{}
		}
		if other, twice := j.gangs[g][r.Instance]; twice && other != r.Run && gang.Min == gang.Size { // others replace members
			j.w.fail(CheckGangs, "member %d of gang %s has runs %d and %d in generation %d", r.Instance, gang.Name, other, r.Run, r.Generation)
		}
		j.gangs[g][r.Instance] = r.Run
	}
}

// task is the durable record of an instance.
func (j *judge) task(id workload.RunID) (r scheduler.TaskRecord, ok bool) {
	job := j.image.Jobs[id.Job]
	if job == nil || int(id.Instance) >= len(job.Tasks) {
		return r, false
	}
	r = job.Tasks[id.Instance]
	return r, r.Job == id.Job && r.Run == id.Run && r.Generation == id.Generation
}

// heard notes what a cluster says under which token.
func (j *judge) heard(c *cluster, statuses []driver.Status) {
	for _, s := range statuses {
		if s.Token != 0 {
			j.tokens[tokenOf{c.name, s.Token}] = s
		}
	}
}

// launching wants every launch that reaches a cluster to have a durable record first, and those of all its gang.
func (j *judge) launching(c *cluster, launches []driver.Launch) {
	for n := range launches {
		l := &launches[n]
		host, durable := j.runs[l.Run]
		if !durable {
			j.w.fail(CheckDurability, "run %s reaches %s before its record is durable", l.Run, c.name)
		}
		if want := shard.HostID(c.name, l.Host); host != want {
			j.w.fail(CheckRuns, "run %s is bound to host %s, but launched on %s (%s)", l.Run, host, want, l.Host)
		}
		spec := j.w.users.spec(l.Run.Job)
		if spec == nil {
			j.w.fail(CheckRuns, "run %s is of a job that nobody submitted", l.Run)
		}
		j.asAsked(c, l, spec)
		if gang := gangOf(spec, l.Run.Instance); gang != nil {
			if bound := len(j.gangs[generation{l.Run.Job, gang.Name, l.Run.Generation}]); bound < int(gang.Min) {
				j.w.fail(CheckGangs, "run %s is launched while %d of the %d members that start gang %s are bound", l.Run, bound, gang.Min, gang.Name)
			}
		}
	}
}

// asAsked wants a launch to ask its cluster for what the user asked for: otherwise the sums over a host prove nothing.
func (j *judge) asAsked(c *cluster, l *driver.Launch, spec *workload.JobSpec) {
	if !strings.HasPrefix(l.Pool, "/") {
		j.w.fail(CheckRuns, "run %s is launched for pool %q", l.Run, l.Pool)
	}
	needs := needsOf(spec, l.Run.Instance)
	host := &c.hosts[slices.IndexFunc(c.hosts, func(h driver.Host) bool { return h.Name == l.Host })]
	for name, kind := range map[string]resource.Kind{
		"cpu_milli": resource.CPU, "memory_mib": resource.Memory, "gpu_milli": resource.GPU, licence: j.w.users.licence,
	} {
		if kind == resource.CPU && name == licence {
			continue // nobody has named it
		}
		if l.Needs[name] != needs[kind] {
			j.w.fail(CheckRuns, "run %s is launched with %d %s; its user asked for %d", l.Run, l.Needs[name], name, needs[kind])
		}
	}
	if got := int64(len(l.Devices)) * l.DeviceMilli; got != needs[resource.GPU] {
		j.w.fail(CheckRuns, "run %s gets %d thousandths of devices; its user asked for %d", l.Run, got, needs[resource.GPU])
	}
	for _, d := range l.Devices {
		if models := spec.Template.GPUModels; len(models) > 0 && (d >= len(host.Devices) || !slices.Contains(models, host.Devices[d].Model)) {
			j.w.fail(CheckRuns, "run %s gets device %d of %s, which is none of %v", l.Run, d, host.Name, models)
		}
	}
	if len(l.Ports) != len(spec.Template.Ports) {
		j.w.fail(CheckRuns, "run %s gets %d ports; its user asked for %d", l.Run, len(l.Ports), len(spec.Template.Ports))
	}
	for n, p := range spec.Template.Ports {
		if p.Number != 0 && l.Ports[n].Number != p.Number {
			j.w.fail(CheckRuns, "run %s gets port %d; its user asked for %d", l.Run, l.Ports[n].Number, p.Number)
		}
	}
}

// launchedLate counts the launches that happen although the core has given them up.
func (j *judge) launchedLate(launches []driver.Launch) {
	for n := range launches {
		if r, present := j.task(launches[n].Run); !present || r.RunState == workload.RunKilling || !r.RunState.Live() {
			j.w.fault("launch-after-its-time", "%s is by its record %s", launches[n].Run, r.RunState)
		}
	}
}

// killing wants a kill of a run that lives by its record to be durable first.
func (j *judge) killing(kills []driver.Kill) {
	for _, k := range kills {
		if r, present := j.task(k.Run); present && r.RunState.Live() && r.RunState != workload.RunKilling {
			j.w.fail(CheckDurability, "a kill of run %s, which is %s, leaves before it is durable", k.Run, r.RunState)
		}
	}
}

// acknowledging wants the end of a run to be durable before its cluster may forget it.
func (j *judge) acknowledging(c *cluster, tokens []driver.Token) {
	for _, token := range tokens {
		s, known := j.tokens[tokenOf{c.name, token}]
		if !known {
			j.w.fail(CheckDurability, "token %d is acknowledged, but %s has never used it", token, c.name)
		}
		if !s.State.Traits().Terminal {
			continue
		}
		if r, present := j.task(s.Run); present && r.RunState.Live() {
			j.w.fail(CheckDurability, "the end of run %s (%s) is acknowledged while its record says %s", s.Run, s.State, r.RunState)
		}
	}
}

// answering wants what a user is told to be durable.
func (j *judge) answering(a *scheduler.Answer) {
	if a.Err != nil {
		return
	}
	if id := a.Job.ID; id != (workload.JobID{}) && j.jobs[id] < a.Job.Version && !j.erased[id] {
		j.w.fail(CheckDurability, "the answer speaks of job %s at version %d; durable is %d", id, a.Job.Version, j.jobs[id])
	}
	if id := a.Pool.Pool.ID; id != (workload.PoolID{}) && j.pools[id] < a.Pool.Pool.Version {
		j.w.fail(CheckDurability, "the answer speaks of pool %s at version %d; durable is %d", id, a.Pool.Pool.Version, j.pools[id])
	}
}

// compareStore reads the whole disk and holds it against what was made durable.
func (c *cell) compareStore() {
	c.w.judge.recovered(c.load())
}

// mostIdle bounds the Steps after each other in which the cell heard and said nothing and no pool or instance changed, and whose books nobody looks at.
const mostIdle = 8

// compare holds the state against what its groups amount to: wholly now and then, and the pools' books after every Step that was not idle.
func (c *cell) compare(idle, wrote bool) {
	pools := c.state.Reader().Pools("/")
	jobs, _ := c.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	same := slices.EqualFunc(pools, c.pools, sameBooks) && slices.EqualFunc(jobs, c.jobs, sameStates)
	if c.idle++; !idle || !same || c.idle == mostIdle {
		c.idle, c.pools, c.jobs = 0, pools, jobs
		c.checkPools()
	}
	c.stale = c.stale || wrote
	if c.sinceFull++; c.stale && c.sinceFull >= c.w.opts.FullEvery {
		c.compareNow()
	}
}

// sameBooks reports whether nothing was charged to a pool or given back, and what it may use is what it was.
func sameBooks(a, b scheduler.PoolView) bool {
	return a.Path == b.Path && a.Pool == b.Pool && a.Usage == b.Usage && a.NonPreemptible == b.NonPreemptible && a.Entitlement == b.Entitlement &&
		a.Reservation == b.Reservation && a.Revocable == b.Revocable && a.Waiting == b.Waiting
}

func sameStates(a, b scheduler.JobView) bool {
	return a.ID == b.ID && a.ByState == b.ByState && a.ByRun == b.ByRun
}

func (c *cell) compareNow() {
	c.sinceFull, c.stale = 0, false
	if diff := ImageDifference(c.state.Image(), c.followed); diff != "" {
		c.w.fail(CheckRecords, "the groups do not give the state:\n%s", diff)
	}
}

// ImageDifference is the first difference between two images, but for the clock in the cell's record, which only a write of that record
// moves, and the rests of erased jobs.
func ImageDifference(a, b *scheduler.Image) string {
	switch {
	case a.Sequence != b.Sequence:
		return fmt.Sprintf("sequence %d and %d", a.Sequence, b.Sequence)
	case a.Cell.Epoch != b.Cell.Epoch || !slices.Equal(a.Cell.Named, b.Cell.Named):
		return fmt.Sprintf("cell %+v\nand  %+v", a.Cell, b.Cell)
	}
	if d := mapDifference("pool", a.Pools, b.Pools, func(x, y scheduler.PoolRecord) bool { return x == y }); d != "" {
		return d
	}
	if d := mapDifference("host", a.Hosts, b.Hosts, sameHost); d != "" {
		return d
	}
	if d := mapDifference("key", a.Idempotency, b.Idempotency, func(x, y scheduler.IdempotencyRecord) bool { return x == y }); d != "" {
		return d
	}
	if d := mapDifference("account", a.Accounts, b.Accounts, func(x, y scheduler.AccountRecord) bool { return x == y }); d != "" {
		return d
	}
	if d := mapDifference("balance", a.Balances, b.Balances, func(x, y scheduler.BalanceRecord) bool { return x == y }); d != "" {
		return d
	}
	if d := mapDifference("bundle", a.Rules, b.Rules, func(x, y scheduler.RulesRecord) bool { return reflect.DeepEqual(x, y) }); d != "" {
		return d
	}
	if d := mapDifference("cluster", a.Clusters, b.Clusters, func(x, y scheduler.ClusterRecord) bool { return reflect.DeepEqual(x, y) }); d != "" {
		return d
	}
	if !reflect.DeepEqual(a.Policies, b.Policies) {
		return fmt.Sprintf("policies: %+v and %+v", a.Policies, b.Policies)
	}
	for id, ja := range a.Jobs {
		jb := b.Jobs[id]
		if jb == nil {
			jb = &scheduler.JobImage{}
		}
		if d := jobDifference(ja, jb); d != "" {
			return d
		}
	}
	for id, jb := range b.Jobs {
		if a.Jobs[id] == nil {
			if d := jobDifference(&scheduler.JobImage{}, jb); d != "" {
				return d
			}
		}
	}
	return ""
}

func mapDifference[K comparable, V any](what string, a, b map[K]V, same func(V, V) bool) string {
	for k, x := range a {
		if y, ok := b[k]; !ok || !same(x, y) {
			return fmt.Sprintf("%s %+v\nand  %+v (there: %v)", what, x, y, ok)
		}
	}
	for k, y := range b {
		if _, ok := a[k]; !ok {
			return fmt.Sprintf("%s %+v on one side only", what, y)
		}
	}
	return ""
}

func sameHost(x, y scheduler.HostRecord) bool {
	a, b := &x.Summary, &y.Summary
	if !sameAttributes(a.Attributes, b.Attributes) || !slices.Equal(a.Devices, b.Devices) {
		return false
	}
	return x.ID == y.ID && x.Cluster == y.Cluster && x.Shard == y.Shard && x.Name == y.Name && x.Present == y.Present &&
		x.Draining == y.Draining && x.Since == y.Since && a.HostPool == b.HostPool && a.Capacity == b.Capacity && a.Foreign == b.Foreign &&
		a.Ready == b.Ready && a.Message == b.Message && a.ClusterID == b.ClusterID
}

func sameAttributes(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

func jobDifference(a, b *scheduler.JobImage) string {
	if !sameJob(&a.Job, &b.Job) {
		return fmt.Sprintf("job %+v\nand %+v", a.Job, b.Job)
	}
	for i := range max(len(a.Tasks), len(b.Tasks)) {
		var x, y scheduler.TaskRecord
		if i < len(a.Tasks) {
			x = a.Tasks[i]
		}
		if i < len(b.Tasks) {
			y = b.Tasks[i]
		}
		if !sameTask(&x, &y) {
			return fmt.Sprintf("task %+v\nand  %+v", x, y)
		}
	}
	return ""
}

// sameJob compares all fields. An empty list is as good as none.
func sameJob(x, y *scheduler.JobRecord) bool {
	return slices.Equal(x.Gangs, y.Gangs) && slices.Equal(x.Restart.Only, y.Restart.Only) && x.Restart.Number == y.Restart.Number &&
		x.Restart.Batch == y.Restart.Batch && x.Restart.Grace == y.Restart.Grace &&
		x.ID == y.ID && x.Order == y.Order && x.Version == y.Version && x.Config == y.Config && x.Caller == y.Caller && x.Goal == y.Goal &&
		x.GoalReason == y.GoalReason && x.State == y.State && x.Reason == y.Reason && x.Generation == y.Generation && x.Failures == y.Failures &&
		x.Created == y.Created && x.Started == y.Started && x.Finished == y.Finished && x.Asked == y.Asked
}

// sameTask compares all fields; a field that is added to the record and forgotten here makes the compiler's struct comparison of the rest
// impossible only if it is a slice, so the test of this function sets every field by reflection.
func sameTask(x, y *scheduler.TaskRecord) bool {
	return slices.Equal(x.Ports, y.Ports) &&
		x.Job == y.Job && x.Instance == y.Instance && x.Generation == y.Generation && x.Run == y.Run && x.State == y.State &&
		x.RunState == y.RunState && x.Reason == y.Reason && x.Healthy == y.Healthy && x.Config == y.Config && x.Failures == y.Failures &&
		x.Restart == y.Restart && x.Attempts == y.Attempts && x.Host == y.Host && x.Devices == y.Devices && x.ExitCode == y.ExitCode &&
		x.Signal == y.Signal && x.Message == y.Message && x.Since == y.Since && x.Placed == y.Placed && x.Started == y.Started &&
		x.NotBefore == y.NotBefore && x.HeldMillis == y.HeldMillis
}
