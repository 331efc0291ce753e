package sim

import (
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// What the cell promises of preemption, in figures.
const (
	// holdOff is for how long work has waited at least before others have to make room for it.
	holdOff = 400 * time.Millisecond
	// patience is for how long room is kept at least whose victims do not end.
	patience = 2 * time.Minute
	// defaultPreemptions is how many runs make room in a second at most where nothing is configured.
	defaultPreemptions = 500
)

// rooms follows all room that is made by preemption: who was asked to leave for whom, what was pledged, and what came of it. It reads the
// messages between core and shards and the records, and never asks the core what it believes about pledges.
type rooms struct {
	w         *world
	questions map[uint64]asked // of shards, without an answer
	kept      map[leaseOf]*room
	sight     *sight     // of the cell before a Step that may decide
	news      []eviction // of the Step
	downs     map[workload.JobID][]scheduler.TaskRecord
	began     int64 // when this life of the core began, on its clock
	clock     int64 // of the core, which never goes back
	tokens    float64
	tokensAt  int64

	quiet   bool
	circles circles
}

// asked is a question to a shard.
type asked struct {
	shard shard.ID
	at    int64 // on the core's clock
}

type leaseOf struct {
	shard shard.ID
	lease shard.Lease
}

// room is a pledge that the core keeps.
type room struct {
	leaseOf
	batch   uint64
	answer  int // among those of the Step: what one answer pledges is for one class
	asked   int64
	back    bool           // in the Step that might have taken it
	job     workload.JobID // zero: nobody had to go for it, so nobody said whose it is
	host    workload.HostID
	victims []workload.RunID
	gang    uint32          // generation of the job's first gang when it was pledged
	claim   resource.Vector // what the job's pool was entitled to
	at      int64
}

// eviction is a run that was told to end so that there is room.
type eviction struct {
	run     workload.RunID
	message string
	room    *room // for which it went
	by      workload.JobID
}

func newRooms(w *world) *rooms {
	return &rooms{
		w: w, questions: map[uint64]asked{}, kept: map[leaseOf]*room{}, circles: newCircles(),
	}
}

func (r *rooms) count(kind string) { r.w.report.Rooms[kind]++ }

// forget begins another life of the core, which knows nothing of pledges.
func (r *rooms) forget() {
	if len(r.kept) > 0 {
		r.count("core-crash-under-pledge")
	}
	if len(r.questions) > 0 {
		r.count("core-crash-under-question")
	}
	clear(r.questions)
	clear(r.kept)
	r.sight, r.news, r.downs = nil, nil, nil
	r.clock = r.w.cell.clock()
	r.began, r.tokensAt, r.tokens = r.clock, r.clock, r.rate()
}

func (r *rooms) rate() float64 {
	if n := r.w.opts.PreemptionsPerSecond; n > 0 {
		return float64(n)
	}
	return defaultPreemptions
}

// firstPledge is where the first answer about room stands among events; -1: nowhere.
func firstPledge(events []scheduler.Event) int {
	return slices.IndexFunc(events, func(e scheduler.Event) bool {
		reply, is := e.(scheduler.ShardReplied)
		if !is {
			return false
		}
		_, is = reply.Reply.(shard.Pledged)
		return is
	})
}

// before looks at the cell as it is before a Step in which room may be made.
func (r *rooms) before(events []scheduler.Event) {
	r.clock = max(r.clock, r.w.cell.clock())
	r.sight = nil
	if at := firstPledge(events); at >= 0 {
		r.sight = look(r.w.cell.state.Reader(), at == 0)
	}
}

// scan finds in the groups of a Step who is told to end, before they are applied.
func (r *rooms) scan(groups []scheduler.Group) {
	r.news, r.downs = r.news[:0], nil
	for _, g := range groups {
		for _, w := range g.Writes {
			t, is := w.Record.(scheduler.TaskRecord)
			if !is || w.Delete || t.Run == 0 {
				continue
			}
			preempted := t.RunState == workload.RunPreempted || (t.RunState == workload.RunKilling && t.Reason == workload.ReasonPreempted)
			restarted := t.RunState == workload.RunKilling && t.Reason == workload.ReasonRestartRequested
			if !preempted && !restarted {
				continue
			}
			was, alive := r.was(&t)
			if !alive || was.RunState == workload.RunKilling {
				continue
			}
			r.noteDown(t.Job)
			if preempted {
				id := workload.RunID{Job: t.Job, Instance: t.Instance, Generation: t.Generation, Run: t.Run}
				r.news = append(r.news, eviction{run: id, message: t.Message})
			}
		}
	}
}

// was is a run's record before the Step; false: it had none, or was over.
func (r *rooms) was(t *scheduler.TaskRecord) (scheduler.TaskRecord, bool) {
	j := r.w.cell.followed.Jobs[t.Job]
	if j == nil || int(t.Instance) >= len(j.Tasks) {
		return scheduler.TaskRecord{}, false
	}
	was := j.Tasks[t.Instance]
	return was, was.Run == t.Run && was.Generation == t.Generation && was.RunState.Live()
}

// noteDown keeps the instances of a service as they were before one of them is taken down.
func (r *rooms) noteDown(id workload.JobID) {
	j := r.w.cell.followed.Jobs[id]
	if _, noted := r.downs[id]; noted || j.Spec == nil || j.Spec.Kind != workload.Service {
		return
	}
	if r.downs == nil {
		r.downs = map[workload.JobID][]scheduler.TaskRecord{}
	}
	r.downs[id] = slices.Clone(j.Tasks)
}

// after follows what a Step did about room, and judges it.
func (r *rooms) after(events []scheduler.Event, out *scheduler.Output) {
	r.checkBudgets(events)
	decided := r.decided(events)
	// What was taken first, then what was pledged and is given back at once.
	slices.SortStableFunc(decided, func(a, b *room) int { return given(out, a) - given(out, b) })
	r.checkEvictions(decided)
	for _, p := range decided {
		r.kept[p.leaseOf] = p
	}
	for _, e := range out.Internal {
		if to, is := e.(scheduler.ToShard); is {
			r.told(to.Shard, to.Message)
		}
	}
	for _, e := range out.External {
		if to, is := e.(scheduler.ToShard); is {
			if m, is := to.Message.(shard.Launch); is {
				r.launched(to.Shard, m.Launches)
			}
		}
	}
	r.checkWanted()
}

// given is 1 for what a Step gives back at once, and 0 for what it takes.
func given(out *scheduler.Output, p *room) int {
	back := slices.ContainsFunc(out.Internal, func(e scheduler.Effect) bool {
		to, _ := e.(scheduler.ToShard)
		m, is := to.Message.(shard.Release)
		return is && to.Shard == p.shard && slices.Contains(m.Leases, p.lease)
	})
	if back {
		p.back = true
		return 1
	}
	return 0
}

// decided is what shards pledged in answer to questions, whether the core takes it or gives it back.
func (r *rooms) decided(events []scheduler.Event) (list []*room) {
	answers := 0
	for _, e := range events {
		reply, is := e.(scheduler.ShardReplied)
		if !is {
			continue
		}
		p, is := reply.Reply.(shard.Pledged)
		q := r.questions[p.Batch]
		if !is || q.shard != reply.Shard || reply.Epoch != r.w.cell.epochOf(reply.Shard) {
			continue
		}
		delete(r.questions, p.Batch)
		for _, result := range p.Results {
			answers++
			for n := range result.Pledges {
				pledge := &result.Pledges[n]
				list = append(list, &room{
					leaseOf: leaseOf{reply.Shard, pledge.Lease}, batch: p.Batch, answer: answers, asked: q.at, host: pledge.Host, victims: pledge.Victims,
					at: r.clock,
				})
			}
		}
	}
	return list
}

// told follows a message to a shard.
func (r *rooms) told(id shard.ID, m shard.Message) {
	switch m := m.(type) {
	case shard.Assign:
		for key := range r.kept {
			if key.shard == id {
				delete(r.kept, key)
				r.count("shard-lost-under-pledge")
			}
		}
		for batch, q := range r.questions {
			if q.shard == id {
				delete(r.questions, batch)
				r.count("shard-lost-under-question")
			}
		}
	case shard.Preempt:
		if m.Requests[0].DryRun || m.Requests[0].Wait {
			return
		}
		r.questions[m.Batch] = asked{id, m.Now}
		r.count("asked")
	case shard.Release:
		r.released(id, m.Leases)
	}
}

// launched ends pledges by what they were made for.
func (r *rooms) launched(id shard.ID, launches []shard.LaunchRun) {
	for n := range launches {
		l := &launches[n]
		p := r.kept[leaseOf{id, l.Lease}]
		if p == nil {
			continue
		}
		if p.job != (workload.JobID{}) && p.job != l.Launch.Run.Job {
			r.w.fail(CheckRooms, "room that was made for job %s is used by run %s", p.job, l.Launch.Run)
		}
		if l.HostID != p.host {
			r.w.fail(CheckRooms, "run %s is launched on a pledge of host %s, but on host %s", l.Launch.Run, p.host, l.HostID)
		}
		delete(r.kept, p.leaseOf)
		r.count("used")
	}
}

// released ends pledges that nobody wants, or of which nothing came. Those who had to go for one must not have gone for nothing.
func (r *rooms) released(id shard.ID, leases []shard.Lease) {
	type work struct {
		batch uint64
		job   workload.JobID
	}
	var given []*room
	excused := map[work]string{}
	for _, lease := range leases {
		p := r.kept[leaseOf{id, lease}]
		if p == nil {
			continue
		}
		delete(r.kept, p.leaseOf)
		given = append(given, p)
		if why := r.excuse(p); why != "" {
			excused[work{p.batch, p.job}] = why
		}
	}
	for _, p := range given {
		switch why := excused[work{p.batch, p.job}]; {
		case p.job == (workload.JobID{}): // nobody had to go, or nobody did
		case why != "":
			r.count(why)
		default:
			job, _ := r.w.cell.state.Reader().Job(p.job)
			r.w.fail(CheckRooms, "room on host %s that was made %v ago is given back, for no reason that shows; victims %v, for\n%s", p.host,
				time.Duration(r.clock-p.at), p.victims, r.w.describe(job))
		}
	}
}

// excuse is why room may be given back; empty: there is no reason.
func (r *rooms) excuse(p *room) string {
	reader := r.w.cell.state.Reader()
	j, there := reader.Job(p.job)
	host, known := reader.Host(p.host)
	switch {
	case !there || j.Goal != scheduler.GoalRun || j.State.Terminal():
		return "beneficiary-went-away"
	case !known || !host.Present:
		return "host-left-under-pledge"
	case p.gang != generationOf(reader, &j):
		return "gang-began-anew"
	case r.givesWay(&j):
		return "gave-way"
	}
	pool, _ := reader.PoolByID(j.Spec.Pool)
	for k, need := range kindsOf(j.Spec) {
		if need > 0 && pool.Entitlement[k] < p.claim[k] {
			return "claim-lost"
		}
	}
	if r.clock-p.at >= int64(patience) {
		for _, v := range p.victims {
			if t, ok := reader.Task(v.Job, v.Instance); ok && t.Run == v.Run && t.Generation == v.Generation && t.RunState.Live() {
				return "victims-do-not-end"
			}
		}
		if j.ByState[workload.InstanceAdmitted] == 0 {
			return "never-admitted" // it was made ahead of admission, and the pool had nothing left when its time was over
		}
	}
	return ""
}

// givesWay reports whether work of higher priority waits in a job's pool, to which it may have had to leave its room.
func (r *rooms) givesWay(j *scheduler.JobView) bool {
	jobs, _ := r.w.cell.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	return slices.ContainsFunc(jobs, func(o scheduler.JobView) bool {
		waits := o.ByState[workload.InstanceAdmitted]+o.ByState[workload.InstancePending] > 0
		return o.Spec.Pool == j.Spec.Pool && o.Spec.Priority > j.Spec.Priority && waits && !o.State.Terminal()
	})
}

// generationOf sums the lives of a job's gangs: it changes when one of them begins anew.
func generationOf(reader scheduler.Reader, j *scheduler.JobView) (sum uint32) {
	if j.Spec.Gang == nil {
		return 0
	}
	sum = j.Generation
	for n := range j.Gangs {
		sum += j.Gangs[n].Generation
	}
	e, _ := reader.Explain(j.ID)
	for n := range e.Gangs {
		if e.Gangs[n].Ending {
			sum++ // it will
		}
	}
	return sum
}

// checkWanted wants room to be kept for work that waits, and for nobody else.
func (r *rooms) checkWanted() {
	if len(r.kept) == 0 {
		return
	}
	jobs := map[workload.JobID]uint32{}
	for _, p := range r.kept {
		jobs[p.job]++
	}
	reader := r.w.cell.state.Reader()
	for id, n := range jobs {
		if id == (workload.JobID{}) {
			continue
		}
		j, there := reader.Job(id)
		if waiting := j.ByState[workload.InstanceAdmitted] + j.ByState[workload.InstancePending]; !there || waiting < n {
			r.w.fail(CheckRooms, "%d rooms are kept for job %s, of which %d instances wait for one (there: %v)", n, id, waiting, there)
		}
	}
}

// sight is the cell as a reader saw it.
type sight struct {
	exact bool // what is decided in the Step that follows is decided on this
	pools map[workload.PoolID]*poolSight
	paths map[string]workload.PoolID
	jobs  map[workload.JobID]*jobSight
}

type poolSight struct {
	scheduler.PoolView
	effective resource.Vector // what its ordinary work holds and nobody has told to end for others
}

type jobSight struct {
	scheduler.JobView
	tasks []scheduler.TaskView
}

func look(reader scheduler.Reader, exact bool) *sight {
	s := &sight{
		exact: exact, pools: map[workload.PoolID]*poolSight{}, paths: map[string]workload.PoolID{}, jobs: map[workload.JobID]*jobSight{},
	}
	pools := reader.Pools("/")
	for n := range pools {
		s.pools[pools[n].Pool.ID] = &poolSight{PoolView: pools[n]}
		s.paths[pools[n].Path] = pools[n].Pool.ID
	}
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for n := range jobs {
		j := &jobSight{JobView: jobs[n]}
		j.tasks, _ = reader.Tasks(j.ID, 0, 1<<20, scheduler.TaskFilter{})
		s.jobs[j.ID] = j
		for i := range j.tasks {
			if t := &j.tasks[i]; !j.Spec.Revocable && charged(t) && !dying(t) {
				p := s.pools[j.Spec.Pool]
				p.effective = p.effective.Add(needsOf(j.Spec, t.Instance))
			}
		}
	}
	return s
}

// charged reports whether an instance counts as usage of its pool.
func charged(t *scheduler.TaskView) bool {
	return t.State == workload.InstanceAdmitted || t.RunState.Live()
}

// dying reports whether an instance was told to make room and has not ended yet.
func dying(t *scheduler.TaskView) bool {
	return t.RunState == workload.RunKilling && t.Reason == workload.ReasonPreempted
}
