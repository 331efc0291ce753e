package simrun

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// phillySample is the default time between two samples of a run that takes months.
const phillySample = 10 * time.Minute

// PhillyOptions say what to run of a trace of GPU jobs.
type PhillyOptions struct {
	Jobs  []PhillyJob
	Pools []PhillyPool
	Kind  respool.Kind // of every pool
	Queue respool.QueuePolicy
	// Estimates has every job say truly how long it runs; otherwise none says anything.
	Estimates bool
	// HostPercent is how many of its hosts each virtual cluster keeps, rounded up. Default: 100. Less makes a light trace heavier.
	HostPercent int
	Until       time.Duration // jobs that arrive later are left out; 0: none
	Limit       int           // of jobs; 0: none
	Sample      time.Duration // default: 10 min
	Seed        uint64
	// Victims names who makes room for others: default, youngest-first or nobody. Default: default.
	Victims string
}

// LeftOut counts jobs of the trace that are not run.
type LeftOut struct {
	NoPool   int `json:"without_virtual_cluster"`
	NoHosts  int `json:"of_virtual_clusters_without_hosts"`
	TooLarge int `json:"larger_than_their_virtual_cluster"`
	Later    int `json:"beyond_until_or_limit"`
}

// selected is what of the trace is run.
func (o *PhillyOptions) selected() (jobs []PhillyJob, left LeftOut) {
	gpus := map[string]int{}
	for i := range o.Pools {
		gpus[o.Pools[i].Name] = o.Pools[i].gpus()
	}
	for i := range o.Jobs {
		j := &o.Jobs[i]
		count, each := j.tasks(o.Pools[0].GPUs)
		switch {
		case j.Pool == "":
			left.NoPool++
		case gpus[j.Pool] == 0:
			left.NoHosts++
		case count*each > gpus[j.Pool]:
			left.TooLarge++
		case o.Limit > 0 && len(jobs) == o.Limit, o.Until > 0 && j.Arrival > o.Until:
			left.Later++
		default:
			jobs = append(jobs, *j)
		}
	}
	return jobs, left
}

// phillyCell is one run.
type phillyCell struct {
	virtual
	options *PhillyOptions
	perHost int
	jobs    []phillyProgress
	pools   map[string]*phillyTally
	next    int // job to be submitted
	ended   int

	nextSample int64
	samples    []phillyLevel
}

// phillyProgress is what has become of a job.
type phillyProgress struct {
	*PhillyJob
	pool       *phillyTally
	tasks      int
	gpus       int // of each task
	generation uint32
	since      []int64 // by task: start of its live run; 0: none
	first      int64   // when it first started
	told       foretold
	done       int // tasks that succeeded in this generation
	ended      int64
}

// phillyTally is what a virtual cluster has counted so far.
type phillyTally struct {
	pool        *PhillyPool
	id          workload.PoolID
	preemptions int
	wasted      time.Duration // GPU-time of runs that were cut short
	running     int           // GPUs of live runs
	wanted      int           // GPUs of jobs that have come and not ended
	level       phillyPoolLevel
	waits       phillyWaiting
}

// phillyWaiting is GPU-time for which work waited, by what it waited for.
type phillyWaiting struct {
	beyond time.Duration // more than the pool's reservation
	within time.Duration // the pool's own reservation, and the pool did not let it go
	host   time.Duration // hosts: its pool let it go
}

// phillyPoolLevel is a pool at one moment, in GPUs.
type phillyPoolLevel struct{ running, usage, wanted, entitlement float64 }

// phillyLevel is the cell at one moment.
type phillyLevel struct {
	at    int64
	used  float64
	pools []phillyPoolLevel // as PhillyOptions.Pools
}

// RunPhilly runs a trace of GPU jobs until all of them have ended.
func RunPhilly(ctx context.Context, o PhillyOptions) (*PhillyReport, error) {
	if o.Sample == 0 {
		o.Sample = phillySample
	}
	if o.HostPercent == 0 {
		o.HostPercent = 100
	}
	if len(o.Pools) == 0 {
		return nil, errors.New("there is no virtual cluster: give one at least")
	}
	if o.HostPercent < 1 || o.HostPercent > 100 {
		return nil, fmt.Errorf("%d %% of the hosts: it must be from 1 to 100", o.HostPercent)
	}
	o.Pools = slices.Clone(o.Pools)
	for i := range o.Pools {
		o.Pools[i].Hosts = (o.Pools[i].Hosts*o.HostPercent + 99) / 100
	}
	jobs, left := o.selected()
	if len(jobs) == 0 {
		return nil, fmt.Errorf("of %d jobs none is left to run: %+v", len(o.Jobs), left)
	}
	if o.Sample < minSample || (jobs[len(jobs)-1].Arrival-jobs[0].Arrival)/o.Sample >= maxSamples {
		return nil, fmt.Errorf("a sample every %v is too many: take one every %v at most, and %d in all", o.Sample, minSample, maxSamples)
	}
	c := &phillyCell{options: &o, perHost: o.Pools[0].GPUs, pools: map[string]*phillyTally{}, nextSample: int64(origin)}
	if err := c.prepare(ctx, jobs); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, fmt.Errorf("at %v of the trace: %w", time.Duration(c.now)-origin, err)
	}
	return c.report(left), nil
}

func (c *phillyCell) prepare(ctx context.Context, jobs []PhillyJob) error {
	o := c.options
	victims, err := victimPolicy(cmp.Or(o.Victims, victimsDefault))
	if err != nil {
		return err
	}
	if err := c.start(c, scheduler.Config{Seed: o.Seed, Victims: victims}, nil); err != nil {
		return err
	}
	if _, err := c.addShard(ctx, 0, phillyHosts(o.Pools)); err != nil {
		return err
	}
	for i := range o.Pools {
		p := &o.Pools[i]
		c.ask(scheduler.ApplyPool{ID: poolID(p.path()), Path: p.path(), Pool: p.pool(o.Kind, o.Queue)})
		c.pools[p.Name] = &phillyTally{pool: p, id: poolID(p.path())}
	}
	for i := range jobs {
		count, gpus := jobs[i].tasks(c.perHost)
		c.jobs = append(c.jobs, phillyProgress{PhillyJob: &jobs[i], pool: c.pools[jobs[i].Pool], tasks: count, gpus: gpus})
	}
	return c.settle()
}

func (c *phillyCell) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err //nolint:wrapcheck // the caller's own
		}
		came := c.next
		for ; c.next < len(c.jobs) && c.arrival(c.next) <= c.now; c.next++ {
			id := phillyJobID(c.next)
			c.jobs[c.next].pool.wanted += c.jobs[c.next].tasks * c.jobs[c.next].gpus
			c.ask(scheduler.SubmitJob{ID: id, Spec: c.jobs[c.next].spec(fmt.Sprintf("job-%d", c.next), c.perHost, c.options.Estimates)})
		}
		if err := c.settle(); err != nil {
			return err
		}
		for ; came < c.next; came++ {
			if j := &c.jobs[came]; j.first == 0 { // who has started is not asked about
				j.told.best, j.told.pace = c.state.Reader().EstimateStart(phillyJobID(came))
			}
		}
		if c.now >= c.nextSample {
			c.sample()
			c.nextSample += int64(c.options.Sample)
		}
		if c.ended == len(c.jobs) {
			c.sample()
			return nil
		}
		at := c.virtual.next()
		if c.next < len(c.jobs) {
			at = min(at, c.arrival(c.next))
		}
		if at == math.MaxInt64 {
			return fmt.Errorf("%d jobs of %d wait for ever: this is a fault of the scheduler", len(c.jobs)-c.ended, len(c.jobs))
		}
		c.now = max(c.now, min(at, c.nextSample))
	}
}

func phillyJobID(job int) workload.JobID {
	id := workload.JobID{0: 'j'}
	binary.BigEndian.PutUint32(id[12:], uint32(job)) //nolint:gosec // a line of a file
	return id
}

// arrival is when a job comes, in the cell's time.
func (c *phillyCell) arrival(job int) int64 {
	return int64(origin + c.jobs[job].Arrival - c.jobs[0].Arrival)
}

func (c *phillyCell) jobOf(run workload.RunID) *phillyProgress {
	return &c.jobs[binary.BigEndian.Uint32(run.Job[12:])]
}

func (c *phillyCell) launched(l *driver.Launch) {
	j := c.jobOf(l.Run)
	if j.first == 0 {
		j.first = c.now
	}
	if j.since == nil {
		j.since = make([]int64, j.tasks)
	}
	if l.Run.Generation != j.generation {
		j.generation, j.done = l.Run.Generation, 0
	}
	j.since[l.Run.Instance] = c.now
	j.pool.running += j.gpus
}

func (c *phillyCell) heard(r shard.Reply) {
	st, ok := r.(shard.RunStatus)
	if !ok || !st.Status.State.Traits().Terminal {
		return
	}
	j := c.jobOf(st.Status.Run)
	since := &j.since[st.Status.Run.Instance]
	if *since == 0 {
		return
	}
	ran := time.Duration(c.now - *since)
	*since = 0
	j.pool.running -= j.gpus
	switch st.Status.State {
	case workload.RunSucceeded:
		if j.done++; j.done == j.tasks {
			j.ended = c.now
			j.since = nil
			j.pool.wanted -= j.tasks * j.gpus
			c.ended++
		}
	case workload.RunKilled: // nobody else kills here: it made room
		j.pool.wasted += ran * time.Duration(j.gpus)
		if !slices.ContainsFunc(j.since, func(at int64) bool { return at != 0 }) {
			j.pool.preemptions++ // with its last member
		}
	default:
		c.fail(fmt.Errorf("run %s ended as %v: hosts and tasks do not fail here", st.Status.Run, st.Status.State))
	}
}

// sample records the cell as it is, and to whom the time since the last sample goes.
func (c *phillyCell) sample() {
	reader := c.state.Reader()
	s := phillyLevel{at: c.now}
	span := time.Duration(0)
	if n := len(c.samples); n > 0 {
		span = time.Duration(c.now - c.samples[n-1].at)
	}
	for i := range c.options.Pools {
		t := c.pools[c.options.Pools[i].Name]
		view, _ := reader.PoolByID(t.id)
		t.wait(span)
		gpus := func(v resource.Vector) float64 { return float64(v[resource.GPU]) / gpuMilli }
		t.level = phillyPoolLevel{
			running: float64(t.running), usage: gpus(view.Usage), wanted: float64(t.wanted), entitlement: gpus(view.Entitlement),
		}
		s.used += t.level.running
		s.pools = append(s.pools, t.level)
	}
	c.samples = append(c.samples, s)
}

// wait counts who waited for what since the last sample: what was true then is taken to have stayed so.
func (t *phillyTally) wait(span time.Duration) {
	l, reserved := t.level, float64(t.pool.gpus())
	add := func(to *time.Duration, gpus float64) { *to += time.Duration(max(0, gpus) * float64(span)) }
	add(&t.waits.beyond, l.wanted-max(l.usage, reserved))
	add(&t.waits.within, min(l.wanted, reserved)-l.usage)
	add(&t.waits.host, l.usage-l.running)
}
