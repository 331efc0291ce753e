package simrun

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// entrance is the time between the tiers' standing tasks at the start, production first. A scheduler that has run for a while has given
// production its places by preemption; one that starts afresh must not let the others take them.
const entrance = time.Second

// burst is how far apart tasks of a trace job may come and still be one submission: the trace writes the tasks of one request
// microseconds apart. The job is submitted when its last task comes, so no task is ever placed before its time.
const burst = int64(10_000) // microseconds

// jobLabel carries the trace job, so that tasks keep apart from all others of it, also when these are in other Paceline jobs.
const jobLabel = "trace-job"

// job is one Paceline job of a simulation.
type job struct {
	id    workload.JobID
	spec  *workload.JobSpec
	tier  tier
	at    int64    // virtual nanoseconds
	tasks []uint32 // of the trace, by instance
}

// work is a trace turned into pools and jobs.
type work struct {
	pools []scheduler.ApplyPool // parents first
	jobs  []job                 // in the order of submission
	// flat says that users share the pool of their tier, as there are more of them than a cell has pools.
	flat  bool
	users [numTiers]int
	span  int64 // virtual nanoseconds from the start to the last word of the trace
}

// groupKey is what the tasks of one Paceline job have in common. Splitting a trace job by what its tasks ask for keeps every
// job at one class of tasks.
type groupKey struct {
	job          string
	user         string
	priority     int
	cpu, memory  int64
	apart, label bool
}

// newWork makes the pools and jobs of a trace.
func newWork(o *Options) *work {
	w := &work{}
	w.span = o.virtual(o.lastWord())
	w.makePools(o)
	labelled := map[string]bool{}
	for i := range o.Tasks {
		if o.Tasks[i].Different {
			labelled[o.Tasks[i].Job] = true
		}
	}
	order := make([]uint32, len(o.Tasks))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(o.arrival(a), o.arrival(b)) })
	open := map[groupKey]int{}
	for _, i := range order {
		t := &o.Tasks[i]
		key := groupKey{
			job: t.Job, user: t.User, priority: t.Priority, cpu: milli(t.CPU, simulated.DefaultScale.CPUMilli),
			memory: milli(t.Memory, simulated.DefaultScale.MemoryMiB), apart: t.Different, label: labelled[t.Job],
		}
		n, ok := open[key]
		if !ok || o.arrival(i)-o.arrival(w.jobs[n].tasks[0]) > burst || len(w.jobs[n].tasks) == workload.MaxInstances {
			n = len(w.jobs)
			open[key] = n
			w.jobs = append(w.jobs, w.newJob(o, &key))
		}
		w.jobs[n].tasks = append(w.jobs[n].tasks, i)
	}
	for n := range w.jobs {
		j := &w.jobs[n]
		j.spec.Instances = uint32(len(j.tasks))
		j.at = o.virtual(o.arrival(j.tasks[len(j.tasks)-1]))
	}
	slices.SortStableFunc(w.jobs, func(a, b job) int { return cmp.Compare(a.at, b.at) })
	w.span = max(w.span, w.jobs[len(w.jobs)-1].at)
	for n := range w.jobs {
		j := &w.jobs[n]
		j.spec.Name = fmt.Sprintf("%s-%d", o.Tasks[j.tasks[0]].Job, n)
		j.id = workload.JobID{0: 'j'}
		binary.BigEndian.PutUint32(j.id[12:], uint32(n)) // jobOf reads it
	}
	return w
}

// lastWord is the last time that the trace speaks of: there it ends.
func (o *Options) lastWord() int64 {
	last := o.startMicros()
	for i := range o.Tasks {
		last = max(last, o.Tasks[i].Submit, o.Tasks[i].End)
	}
	return last
}

func (o *Options) startMicros() int64 { return o.Start.Microseconds() }

// arrival is when a task comes: what was there before the trace comes at its start, tier after tier.
func (o *Options) arrival(i uint32) int64 {
	t := &o.Tasks[i]
	if t.Submit > o.startMicros() {
		return t.Submit
	}
	return o.startMicros() + int64(tierOf(t.Priority))*entrance.Microseconds()
}

// virtual turns a time of the trace into the cell's.
func (o *Options) virtual(micros int64) int64 {
	return int64(origin) + (micros-o.startMicros())*int64(time.Microsecond)
}

// duration is how long a task runs; 0: beyond the end of the trace. A task that the trace never saw running, but being taken back,
// runs as long as it was there.
func (o *Options) duration(t *Task) time.Duration {
	if t.End == never {
		return 0
	}
	from := max(t.Scheduled, t.Submit, o.startMicros()) // what stood there ends on its time, but for the second or two of its entrance
	return max(time.Duration(t.End-from)*time.Microsecond, time.Microsecond)
}

func (w *work) newJob(o *Options, key *groupKey) job {
	t := tierOf(key.priority)
	spec := &workload.JobSpec{
		Pool: w.poolID(t, key.user), Owner: key.user, Kind: workload.Batch, Priority: int32(key.priority),
		Preemptible: t != production, Revocable: t == free && o.FreeRevocable, Placement: workload.Placement{Strategy: o.Strategy},
	}
	spec.Template.Needs[resource.CPU], spec.Template.Needs[resource.Memory] = key.cpu, key.memory
	if key.label {
		spec.Template.Labels = map[string]string{jobLabel: key.job}
	}
	if key.apart {
		spec.Placement.Affinities = []workload.Affinity{{Selector: spec.Template.Labels, Topology: workload.TopologyHost, Anti: true}}
	}
	return job{spec: spec, tier: t}
}

// The weights of the tiers for what nobody has reserved. The trace's scheduler lets a higher priority go first without regard to
// the lower; a hundred to one comes close to that.
var tierShares = [numTiers]int64{production: 1, middle: 100, free: 1}

// makePools lays out the tree: a pool per tier, below it one per user. Only production is guaranteed anything: each of its users
// reserves the most that his tasks ask for at one time in the trace, as a quota that was bought would. What lies idle of it is lent.
func (w *work) makePools(o *Options) {
	members := [numTiers]map[string]resource.Vector{}
	for t := range members {
		members[t] = map[string]resource.Vector{}
	}
	for i := range o.Tasks {
		members[tierOf(o.Tasks[i].Priority)][o.Tasks[i].User] = resource.Vector{}
	}
	leaves := 0
	for t := range members {
		w.users[t] = len(members[t])
		leaves += len(members[t])
	}
	w.flat = leaves+int(numTiers)+1 > respool.MaxPools
	members[production] = w.quotas(o)
	for t, users := range members {
		var all resource.Vector
		for _, quota := range users {
			all = all.Add(quota)
		}
		w.addPool(tier(t), "", all, tierShares[t])
		if w.flat {
			continue
		}
		for _, user := range slices.Sorted(maps.Keys(users)) {
			w.addPool(tier(t), user, users[user], respool.DefaultShare)
		}
	}
}

func (w *work) addPool(t tier, user string, reserved resource.Vector, share int64) {
	path := "/" + t.String()
	if user != "" {
		path += "/" + user
	}
	w.pools = append(w.pools, scheduler.ApplyPool{
		ID: poolID(path), Path: path, Pool: respool.Pool{Kind: respool.Elastic, Reservation: reserved, Share: share},
	})
}

func (w *work) poolID(t tier, user string) workload.PoolID {
	if w.flat {
		user = ""
	}
	return poolID(strings.TrimSuffix("/"+t.String()+"/"+user, "/"))
}

// poolID makes the identity of a pool from its path, so that equal traces make equal cells.
func poolID(path string) workload.PoolID {
	sum := sha256.Sum256([]byte(path))
	return workload.PoolID(sum[:len(workload.PoolID{})])
}

// quotas returns the most that the production tasks of each user ask for at one time, by the times of the trace.
func (w *work) quotas(o *Options) map[string]resource.Vector {
	type turn struct {
		at    int64
		task  uint32
		leave bool
	}
	var turns []turn
	for i := range o.Tasks {
		if t := &o.Tasks[i]; tierOf(t.Priority) == production {
			turns = append(turns, turn{at: o.arrival(uint32(i)), task: uint32(i)})
			if t.End != never {
				turns = append(turns, turn{at: max(t.End, o.arrival(uint32(i))), task: uint32(i), leave: true})
			}
		}
	}
	// Who comes goes before who leaves at the same time, so that a quota covers both.
	slices.SortStableFunc(turns, func(a, b turn) int {
		if c := cmp.Compare(a.at, b.at); c != 0 || a.leave == b.leave {
			return c
		}
		if b.leave {
			return -1
		}
		return 1
	})
	now, most := map[string]resource.Vector{}, map[string]resource.Vector{}
	for _, x := range turns {
		t := &o.Tasks[x.task]
		var needs resource.Vector
		needs[resource.CPU], needs[resource.Memory] = milli(t.CPU, simulated.DefaultScale.CPUMilli), milli(t.Memory, simulated.DefaultScale.MemoryMiB)
		if x.leave {
			now[t.User] = now[t.User].Sub(needs)
			continue
		}
		now[t.User] = now[t.User].Add(needs)
		most[t.User] = most[t.User].Max(now[t.User])
	}
	return most
}
