package simrun

import (
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// tally is what a run has counted so far.
type tally struct {
	arrived  []int64           // by task: when its job was submitted; 0: not yet
	placedAt []int64           // by task: when it was first launched; 0: not yet
	runSince []int64           // by task: when it was last launched
	wasted   [numTiers]float64 // CPU-seconds of runs that were ended to make room
	waiting  [numTiers]int
	ended    [numTiers]int
	lost     [numTiers]int // runs that ended with their host
	evicted  [numTiers]int // runs that were ended to make room

	hostEvents      int
	refusedLaunches int
	samples         []sample
}

// sample is the cell at one moment.
type sample struct {
	at           int64           // virtual nanoseconds
	used         resource.Vector // by live runs
	capacity     resource.Vector // of the hosts, over-committed
	waiting      [numTiers]int
	usage        [numTiers]resource.Vector
	entitlement  [numTiers]resource.Vector
	reservations [numTiers]resource.Vector
}

func newTally(o *Options, w *work) tally {
	count := (w.span-int64(origin))/int64(o.Sample) + 2
	return tally{
		arrived: make([]int64, len(o.Tasks)), placedAt: make([]int64, len(o.Tasks)), runSince: make([]int64, len(o.Tasks)),
		samples: make([]sample, 0, count),
	}
}

func (t *tally) count(j *job, now int64) {
	for _, task := range j.tasks {
		t.arrived[task] = now
	}
	t.waiting[j.tier] += len(j.tasks)
}

// launched notes a run on its way to its cluster and tells the cluster how the trace says that it goes. Durations are set here, task by
// task, as a job has one template.
func (c *cell) launched(l *driver.Launch) {
	j := c.jobOf(l.Run.Job)
	task := j.tasks[l.Run.Instance]
	if c.placedAt[task] == 0 {
		c.placedAt[task] = c.now
	}
	c.runSince[task] = c.now
	c.waiting[j.tier]--
	t := &c.options.Tasks[task]
	l.Simulation = workload.Simulation{Duration: c.options.duration(t)}
	if t.Failed {
		l.Simulation.ExitCode = 1
	}
}

// cpuMilli is one CPU.
const cpuMilli = 1000

// heard notes what a shard tells the core.
func (c *cell) heard(r shard.Reply) {
	switch r := r.(type) {
	case shard.RunStatus:
		if !r.Status.State.Traits().Terminal {
			return
		}
		j := c.jobOf(r.Status.Run.Job)
		tier := j.tier
		if r.Status.State == workload.RunSucceeded || r.Status.State == workload.RunFailed {
			c.ended[tier]++
			return
		}
		if r.Status.State == workload.RunKilled { // nobody else kills here
			c.evicted[tier]++
			ran := time.Duration(c.now - c.runSince[j.tasks[r.Status.Run.Instance]])
			c.wasted[tier] += ran.Seconds() * float64(j.spec.Template.Needs[resource.CPU]) / cpuMilli
		} else {
			c.lost[tier]++
		}
		c.waiting[tier]++ // it will be tried again
	case shard.LaunchRefused:
		c.refusedLaunches += len(r.Runs)
	}
}

// sample records the cell as it is.
func (c *cell) sample() {
	r := c.state.Reader()
	view := r.Cell()
	s := sample{at: c.now, used: view.Used, capacity: view.Capacity, waiting: c.waiting}
	for t := range numTiers {
		if p, ok := r.PoolByID(poolID("/" + t.String())); ok {
			s.usage[t], s.entitlement[t], s.reservations[t] = p.Usage, p.Entitlement, p.Reservation
		}
	}
	c.samples = append(c.samples, s)
}

// percentOf gives a quantity of a sample in percent of what the hosts really have.
func (s *sample) percentOf(q int64, k resource.Kind, overcommit float64) float64 {
	if s.capacity[k] == 0 {
		return 0
	}
	return 100 * float64(q) * overcommit / float64(s.capacity[k])
}

// waits sums up the waits of tasks until they were placed. A task that never was counts with the time until the end: at least so long did
// it wait.
type waits struct {
	tasks, placed int
	all           []int64
}

func (w *waits) add(arrived, placed, end int64) {
	w.tasks++
	if placed != 0 {
		w.placed++
		end = placed
	}
	w.all = append(w.all, end-arrived)
}

func (w *waits) summary() Wait {
	s := Wait{Tasks: w.tasks, Placed: w.placed}
	if len(w.all) == 0 {
		return s
	}
	slices.Sort(w.all)
	at := func(percent int) float64 { // nearest rank
		return round(time.Duration(w.all[max(0, (len(w.all)*percent+99)/100-1)]).Seconds())
	}
	s.P50, s.P90, s.P99, s.Max = at(50), at(90), at(99), at(100)
	return s
}
