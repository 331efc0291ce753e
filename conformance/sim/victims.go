package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// checkEvictions judges everybody who was told to end in a Step so that there is room.
func (r *rooms) checkEvictions(decided []*room) {
	if len(r.news) == 0 {
		return
	}
	if r.sight == nil {
		r.w.fail(CheckVictims, "run %s is ended for others, and no shard has pledged anything: %s", r.news[0].run, r.news[0].message)
	}
	named := map[workload.JobID]map[int]bool{} // by for whom, the answers that name who has to go
	for n := range r.news {
		e := &r.news[n]
		r.name(e)
		if at := r.naming(e, decided); at >= 0 {
			if named[e.by] == nil {
				named[e.by] = map[int]bool{}
			}
			named[e.by][decided[at].answer] = true
		}
	}
	for n := range r.news {
		r.attribute(&r.news[n], decided, named)
	}
	for _, p := range decided {
		r.checkPledge(p)
	}
	pools := map[workload.PoolID][]*eviction{}
	units := map[string]bool{}
	for n := range r.news {
		e := &r.news[n]
		r.checkVictim(e)
		pool := r.sight.jobs[e.run.Job].Spec.Pool
		if unit := unitOf(r.sight.jobs[e.run.Job].Spec, e.run); !units[unit] {
			units[unit] = true
			pools[pool] = append(pools[pool], e)
		}
	}
	for id, list := range pools {
		r.checkOverage(r.sight.pools[id], list)
	}
	r.checkRate()
	r.circles.add(r)
}

// unitOf names what goes together: a gang, or a run.
func unitOf(spec *workload.JobSpec, run workload.RunID) string {
	if g := gangOf(spec, run.Instance); g != nil {
		return run.Job.String() + " " + g.Name
	}
	return run.String()
}

// name finds for whom a run makes room: its record says so.
func (r *rooms) name(e *eviction) {
	if r.sight.jobs[e.run.Job] == nil {
		r.w.fail(CheckVictims, "run %s is ended for others, of a job that nobody knows", e.run)
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(e.message, "preempted for job "), " of pool ")
	path, _, _ := strings.Cut(rest, ": ")
	id, known := r.sight.paths[path]
	for _, j := range r.sight.jobs {
		if known && j.Spec.Name == name && j.Spec.Pool == id && !j.State.Terminal() {
			e.by = j.ID
		}
	}
	if e.by == (workload.JobID{}) {
		r.w.fail(CheckVictims, "run %s is ended for nobody: %q", e.run, e.message)
	}
}

// naming finds the pledge that names a run, or its gang; -1: there is none.
func (r *rooms) naming(e *eviction, decided []*room) int {
	victim := r.sight.jobs[e.run.Job]
	unit := unitOf(victim.Spec, e.run)
	return slices.IndexFunc(decided, func(p *room) bool {
		return slices.ContainsFunc(p.victims, func(v workload.RunID) bool { return v.Job == e.run.Job && unitOf(victim.Spec, v) == unit })
	})
}

// attribute finds the pledge for which a run makes room, and notes whose that is.
func (r *rooms) attribute(e *eviction, decided []*room, named map[workload.JobID]map[int]bool) {
	at := r.naming(e, decided)
	others := false // the answer that names it is another's, who is named in no other one
	if at >= 0 && len(named[e.by]) > 1 {
		for job, answers := range named {
			others = others || job != e.by && len(answers) == 1 && answers[decided[at].answer]
		}
	}
	within := r.sight.jobs[e.by].Spec.Pool == r.sight.jobs[e.run.Job].Spec.Pool
	elsewhere := slices.IndexFunc(decided, func(p *room) bool {
		return !p.back && (p.job == e.by || p.job == (workload.JobID{})) && (!others || p.answer != decided[at].answer)
	})
	switch {
	case within && elsewhere >= 0 && (at < 0 || decided[at].back || others || r.w.opts.Policies && elsewhere != at):
		// It makes room in the pool alone, for work that hosts have room for, and may stand in the way of another's room, too: one that comes after it in
		// the same Step, or any under an order that makes no sense.
		r.count("evicted-elsewhere")
		p := decided[elsewhere]
		e.room = &room{leaseOf: leaseOf{p.shard, 0}, batch: p.batch, asked: p.asked}
		return
	case within && at < 0 && len(decided) > 0: // what was pledged with it is given back in the same breath
		r.count("given-back-at-once")
		e.room = &room{leaseOf: leaseOf{decided[0].shard, 0}, batch: decided[0].batch, asked: decided[0].asked}
		return
	case at < 0:
		r.w.fail(CheckVictims, "run %s is ended for others, and nothing that was pledged names it: %s", e.run, e.message)
	}
	e.room = decided[at]
	if of := e.room.job; of != (workload.JobID{}) && of != e.by {
		r.w.fail(CheckVictims, "runs are ended for jobs %s and %s, for one and the same room", of, e.by)
	}
	e.room.job = e.by
	e.room.claim = r.sight.pools[r.sight.jobs[e.by].Spec.Pool].Entitlement
	if j, there := r.w.cell.state.Reader().Job(e.by); there {
		e.room.gang = generationOf(r.w.cell.state.Reader(), &j)
	}
}

// checkPledge wants none of those to live on who have to leave the room that is kept.
func (r *rooms) checkPledge(p *room) {
	if p.job == (workload.JobID{}) {
		return
	}
	reader := r.w.cell.state.Reader()
	for _, v := range p.victims {
		t, ok := reader.Task(v.Job, v.Instance)
		if ok && t.Run == v.Run && t.Generation == v.Generation && t.RunState.Live() && t.RunState != workload.RunKilling {
			r.w.fail(CheckRooms, "room on host %s is made for job %s, and run %s, which is in the way, is %s", p.host, p.job, v, t.RunState)
		}
	}
}

// checkVictim judges one run that has to go.
func (r *rooms) checkVictim(e *eviction) {
	victim, by := r.sight.jobs[e.run.Job], r.sight.jobs[e.by]
	says := func(format string, args ...any) {
		r.w.fail(CheckVictims, "run %s of job %s (pool %s, priority %d) is ended for job %s (pool %s, priority %d): %s", e.run, victim.Spec.Name,
			victim.PoolPath, victim.Spec.Priority, by.Spec.Name, by.PoolPath, by.Spec.Priority, fmt.Sprintf(format, args...))
	}
	switch {
	case !victim.Spec.Preemptible:
		says("it may not be preempted")
	case by.Spec.Revocable:
		says("that is revocable")
	case victim == by:
		says("that is its own")
	case victim.Spec.Revocable:
		r.count("evicted-revocable")
	case victim.Spec.Pool == by.Spec.Pool && victim.Spec.Priority >= by.Spec.Priority:
		says("that is of no higher priority")
	case victim.Spec.Pool == by.Spec.Pool:
		r.count("evicted-inside")
	default:
		r.count("evicted-between")
		r.checkClaim(e, says)
	}
	if waited := e.room.asked - r.waitsSince(by); waited < int64(holdOff) {
		says("it has waited for %v", time.Duration(waited))
	}
	switch victim.Spec.Kind {
	case workload.Service:
		r.count("evicted-service")
	case workload.Batch, workload.Daemon:
	}
	if gang := gangOf(victim.Spec, e.run.Instance); gang != nil {
		r.count("evicted-gang")
		r.checkGang(gang, e.run, says)
	}
}

// waitsSince is since when a job can have waited at the most: since the longest of its instances that wait now has.
func (r *rooms) waitsSince(j *jobSight) int64 {
	since := int64(math.MaxInt64)
	for n := range j.tasks {
		if t := &j.tasks[n]; t.State == workload.InstanceAdmitted || t.State == workload.InstancePending {
			since = min(since, max(t.Since, t.NotBefore))
		}
	}
	return max(since, r.began, j.Created)
}

// checkGang wants a gang to go whole.
func (r *rooms) checkGang(gang *workload.Gang, run workload.RunID, says func(string, ...any)) {
	tasks, _ := r.w.cell.state.Reader().Tasks(run.Job, 0, 1<<20, scheduler.TaskFilter{})
	for n := range tasks {
		t := &tasks[n]
		if _, member := gang.Rank(t.Instance); !member || t.Generation != run.Generation {
			continue
		}
		if t.RunState.Live() && t.RunState != workload.RunKilling {
			says("member %d of its gang goes on", t.Instance)
		}
	}
}

// checkClaim wants the pool of those for whom others' work ends to keep within its entitlement, with that work, in all kinds that it asks for.
// What the pool held at the moment of the decision is known for certain of the instances that it held before the Step and after it; those that
// are being killed, for whatever reason, do not count.
func (r *rooms) checkClaim(e *eviction, says func(string, ...any)) {
	if !r.sight.exact {
		return
	}
	by := r.sight.jobs[e.by]
	pool := r.sight.pools[by.Spec.Pool]
	reader := r.w.cell.state.Reader()
	var held resource.Vector
	for _, j := range r.sight.jobs {
		if j.Spec.Pool != by.Spec.Pool || j.Spec.Revocable {
			continue
		}
		for n := range j.tasks {
			t := &j.tasks[n]
			now, there := reader.Task(j.ID, t.Instance)
			if there && charged(t) && charged(&now) && t.RunState != workload.RunKilling && now.RunState != workload.RunKilling && now.Run == t.Run {
				held = held.Add(needsOf(j.Spec, t.Instance))
			}
		}
	}
	for k, need := range kindsOf(by.Spec) {
		if need > 0 && !slices.ContainsFunc(by.Spec.Overrides, func(o workload.Override) bool { return o.Needs != nil && o.Needs[k] == 0 }) &&
			by.Spec.Template.Needs[k] > 0 && held[k] > pool.Entitlement[k] {
			says("its pool holds %d of kind %d with it, and is entitled to %d", held[k], k, pool.Entitlement[k])
		}
	}
}

// kindsOf adds up what the instances of a job need, to tell which kinds it asks for.
func kindsOf(spec *workload.JobSpec) resource.Vector {
	sum := spec.Template.Needs
	for n := range spec.Overrides {
		if needs := spec.Overrides[n].Needs; needs != nil {
			sum = sum.Add(*needs)
		}
	}
	return sum
}

// maxOrdered bounds the evictions of one pool in one Step for which every order is tried.
const maxOrdered = 12

// checkOverage wants some order in which each of a pool's victims went while the pool was still above its entitlement, in a kind that it used
// and that was asked for. What a pool holds only falls before a Step's evictions, so that what it held before the Step is the most.
func (r *rooms) checkOverage(pool *poolSight, list []*eviction) {
	type unit struct {
		use  resource.Vector
		asks resource.Vector
		free bool // it needs no overage: revocable, or for work of the same pool
	}
	units := make([]unit, len(list))
	for n, e := range list {
		victim, by := r.sight.jobs[e.run.Job], r.sight.jobs[e.by]
		units[n] = unit{r.useOf(e), kindsOf(by.Spec), victim.Spec.Revocable || victim.Spec.Pool == by.Spec.Pool}
		if victim.Spec.Revocable {
			units[n].use = resource.Vector{} // of the pool's ordinary ledger
		}
	}
	may := func(u *unit, left *resource.Vector) bool {
		for k := range left {
			if u.asks[k] > 0 && u.use[k] > 0 && left[k] > pool.Entitlement[k] {
				return true
			}
		}
		return u.free
	}
	dead := map[uint]bool{} // sets of those gone from which there is no way on
	var ordered func(gone uint, left resource.Vector) bool
	ordered = func(gone uint, left resource.Vector) bool {
		if gone == 1<<len(units)-1 {
			return true
		}
		if dead[gone] {
			return false
		}
		for n := range units {
			if gone&(1<<n) == 0 && may(&units[n], &left) && ordered(gone|1<<n, left.Sub(units[n].use)) {
				return true
			}
		}
		dead[gone] = true
		return false
	}
	if len(units) > maxOrdered { // in the order in which they were told
		left := pool.effective
		for n := range units {
			if !may(&units[n], &left) {
				r.failOverage(pool, list)
			}
			left = left.Sub(units[n].use)
		}
		return
	}
	if !ordered(0, pool.effective) {
		r.failOverage(pool, list)
	}
}

func (r *rooms) failOverage(pool *poolSight, list []*eviction) {
	var text strings.Builder
	for _, e := range list {
		fmt.Fprintf(&text, "\n%s: %s uses %v", e.message, e.run, r.useOf(e))
	}
	r.w.fail(CheckVictims, "pool %s uses %v besides what is ending, is entitled to %v, and makes room beyond what it is above that:%s", pool.Path,
		pool.effective, pool.Entitlement, text.String())
}

// useOf is what a victim gives back, with its gang.
func (r *rooms) useOf(e *eviction) (sum resource.Vector) {
	j := r.sight.jobs[e.run.Job]
	gang := gangOf(j.Spec, e.run.Instance)
	if gang == nil {
		return needsOf(j.Spec, e.run.Instance)
	}
	for n := range r.news {
		if o := &r.news[n]; o.run.Job == e.run.Job {
			if _, member := gang.Rank(o.run.Instance); member {
				sum = sum.Add(needsOf(j.Spec, o.run.Instance))
			}
		}
	}
	return sum
}

// checkBudgets wants no service to lose more by choice than may be down. Instances that were down before, for whatever reason, and still are
// count; those that break down in the same Step do not. A restart looks at what the Step's news have left, so that it is judged only where there are none.
func (r *rooms) checkBudgets(events []scheduler.Event) {
	restarts := !slices.ContainsFunc(events, func(e scheduler.Event) bool { _, is := e.(scheduler.ShardReplied); return is })
	reader := r.w.cell.state.Reader()
	for id, before := range r.downs {
		j, there := reader.Job(id)
		if !there || j.Goal != scheduler.GoalRun {
			continue
		}
		tasks, _ := reader.Tasks(id, 0, 1<<20, scheduler.TaskFilter{})
		down, chosen := uint32(0), uint32(0)
		for n := range tasks {
			t := &tasks[n]
			serving := false
			if int(t.Instance) < len(before) {
				serving = before[t.Instance].RunState == workload.RunRunning && before[t.Instance].Healthy
			}
			byChoice := t.Reason == workload.ReasonPreempted || (restarts && t.Reason == workload.ReasonRestartRequested)
			switch still := t.RunState == workload.RunRunning && t.Healthy; {
			case serving && !still && byChoice && t.Run == before[t.Instance].Run:
				chosen++
			case !serving && !still:
				down++
			}
		}
		if chosen > 0 && down+chosen > j.Spec.MaxUnavailable {
			r.w.fail(CheckVictims, "%d instances of service %s are taken down while %d are down; no more than %d may be:\n%s", chosen, j.Spec.Name, down,
				j.Spec.MaxUnavailable, r.w.describe(j))
		}
	}
}

// checkRate wants no more runs to go than may in a second, in a burst of a second at the most. Only the last piece of a Step may go beyond:
// what makes room for one task, or for the start of a gang, is not divided.
func (r *rooms) checkRate() {
	rate := r.rate()
	r.tokens = min(r.tokens+float64(r.clock-r.tokensAt)/float64(time.Second)*rate, rate)
	r.tokensAt = r.clock
	sizes := map[string]float64{}
	largest := 0.0
	for n := range r.news {
		e := &r.news[n]
		piece := fmt.Sprint(e.room.leaseOf)
		elsewhere := slices.ContainsFunc(r.news, func(o eviction) bool { return o.by == e.by && o.room.lease == 0 })
		if r.sight.jobs[e.by].Spec.Gang != nil || elsewhere { // what goes elsewhere goes for all of them
			piece = fmt.Sprint(e.room.batch, e.by)
		}
		sizes[piece]++
		largest = max(largest, sizes[piece])
	}
	if all := float64(len(r.news)); all-largest >= r.tokens+1 {
		r.w.fail(CheckVictims, "%d runs are ended for others in one Step, %v of them in one piece; by the rate of %v a second it may be %.1f now",
			len(r.news), largest, rate, r.tokens)
	}
	r.tokens -= float64(len(r.news))
}
