package scheduler

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of a cell.
const (
	MaxJobs            = 1_000_000
	MaxInstancesInCell = 8 << 20
	MaxSpecBytes       = 512 << 10
	MaxIdempotencyKeys = 1 << 18
	// MaxRestartBatch bounds the instances that a rolling restart takes down at once; a larger batch is cut to it.
	MaxRestartBatch = 4096
	// MaxRunsKept bounds the run history of one instance.
	MaxRunsKept = 10
	// MaxPlanHosts bounds the hosts that a plan lists.
	MaxPlanHosts = 100
	// MaxPlanVictims bounds the runs that a plan names of those that would make room, and MaxExposed the jobs that a plan of pools lists of one pool.
	MaxPlanVictims = 10
	MaxExposed     = 10
	// PlanTimeout is how long a plan or an explanation may wait for shards before its caller gives up on it.
	PlanTimeout = 10 * time.Second
	// MaxPoolOwners bounds the owners that PoolOwners lists.
	MaxPoolOwners = 1000
	// MaxWaitRows bounds the groups that an explanation of pools lists, and MaxWaitHeads the queues whose heads it lists.
	MaxWaitRows  = 100
	MaxWaitHeads = 10
	// MaxGang bounds the members of one gang: they are placed in one request.
	MaxGang = shard.MaxBatch
	// maxRehearsals bounds the launches of a plan that clusters are asked about.
	maxRehearsals = 16
	// ChangesKept is how many groups the event log holds; a watcher further behind has to list again.
	ChangesKept = 1 << 16

	sweepBudget     = 4096 // instances that the sweeps of one Step look at
	replayChunk     = 4096 // bound runs in one shard.Replay
	outboxBound     = 4 * shard.MaxBatch
	batchesPerShard = 2 // Place messages a shard may have unanswered
	// unheardPerShard is how many runs of a shard may wait for their first status before it is given no more to place. It holds placement
	// back to the pace of commits and launches: leases that pile up ahead of them are refused, and in the end run out.
	unheardPerShard  = 4 * shard.MaxBatch
	maxOpsPerGroup   = 96
	maxBytesPerGroup = 900 << 10
)

// Config are the settings of a cell. Zero fields take the defaults.
type Config struct {
	Cell string
	// Seed feeds every jitter: hash(seed, run, attempt).
	Seed uint64
	// EntitlementPeriod is the longest that entitlements lag behind demand. Default 200 ms; range 10 ms to 1 s. Shorter costs a
	// recomputation more often.
	EntitlementPeriod time.Duration
	// LaunchTimeout is how long a launched run may stay without any word before it is killed and tried again. Default 2 min.
	LaunchTimeout time.Duration
	// KillResend is how long after its grace period an unanswered kill is sent again. Default 15 s.
	KillResend time.Duration
	// JobRetention is how long an ended job can be looked at. Default 24 h; at least 1 s.
	JobRetention time.Duration
	// HostRetention is how long a host that left its cluster is kept which no instance's last run names. One that an operator drained is kept as
	// JobRetention says, in case it comes back from its maintenance. Default 10 min, or JobRetention if that is shorter; at least 1 s.
	HostRetention time.Duration
	// IdempotencyWindow is how long a repeated call finds its first answer. Default 24 h.
	IdempotencyWindow time.Duration
	// PreemptionsPerSecond bounds the runs that make room for others, with bursts of a second's worth. Default 500; range 1 to 100,000. More lets
	// a cell follow a shift of demand faster, and lose more work to one that does not last.
	PreemptionsPerSecond int
	// Victims chooses who makes room for others. Default: pools furthest above their entitlement first, and as few runs as free what is needed.
	Victims preemption.Policy
}

// WithDefaults fills zero fields.
func (c Config) WithDefaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.EntitlementPeriod, 200*time.Millisecond)
	set(&c.LaunchTimeout, 2*time.Minute)
	set(&c.KillResend, 15*time.Second)
	set(&c.JobRetention, 24*time.Hour)
	set(&c.HostRetention, min(10*time.Minute, c.JobRetention))
	set(&c.IdempotencyWindow, 24*time.Hour)
	if c.PreemptionsPerSecond == 0 {
		c.PreemptionsPerSecond = 500
	}
	if c.Cell == "" {
		c.Cell = "default"
	}
	c.Victims = c.Victims.WithDefaults()
	return c
}

// Validate reports the first setting out of its range.
func (c Config) Validate() error {
	switch {
	case c.EntitlementPeriod < 10*time.Millisecond || c.EntitlementPeriod > time.Second:
		return fmt.Errorf("entitlement period %v is out of range: use 10ms to 1s", c.EntitlementPeriod)
	case c.PreemptionsPerSecond < 1 || c.PreemptionsPerSecond > 100_000:
		return fmt.Errorf("%d preemptions a second are out of range: use 1 to 100000", c.PreemptionsPerSecond)
	case c.JobRetention < time.Second:
		return fmt.Errorf("job retention %v is too short: use at least 1s", c.JobRetention)
	case c.HostRetention < time.Second:
		return fmt.Errorf("host retention %v is too short: use at least 1s", c.HostRetention)
	case c.LaunchTimeout < time.Second || c.KillResend < time.Second || c.IdempotencyWindow < time.Second:
		return fmt.Errorf("launch time-out %v, kill resend %v and idempotency window %v must be at least 1s each",
			c.LaunchTimeout, c.KillResend, c.IdempotencyWindow)
	}
	return nil
}

// State is one cell. New makes an empty one, Apply fills it from records, Start makes it run.
type State struct {
	cfg      Config
	now      int64 // never falls
	epoch    uint64
	sequence uint64 // of the last group returned or applied
	names    *resource.Names

	pools      *respool.Tree
	poolsDirty bool // entitlement must be recomputed now, not at the next period
	demandOff  bool // demand changed since the last recomputation
	entitledAt int64
	queues     map[queueKey]*poolQueue
	grants     []admission.Grant // scratch
	stirred    []*poolQueue      // pools whose queue may have become admissible

	jobs      map[workload.JobID]*job
	order     []*job // by Order; nil where a job was removed
	removed   int    // nils in order
	nextOrder uint64
	byName    map[jobName]*job // the newest of each name
	daemons   []*job           // by Order
	instances int
	pending   int // instances of all open jobs that are PENDING or ADMITTED, as of the last cycle
	live      int // runs
	plans     int // without their answer
	trials    int // copies of the pools made to try edits, in the Step trialsIn
	trialsIn  uint64

	hosts     map[workload.HostID]*hostState
	hostNames []*hostState // by cluster, then name
	capacity  resource.Vector
	clusters  map[string]resource.Vector // capacity of each
	used      resource.Vector            // by live runs

	shards []*shardState // by id
	// formerEpoch is the highest of shards that were forgotten. One that comes back counts on from it: what was said under its old assignments is void.
	formerEpoch uint64
	batches     map[uint64]*batch
	nextBatch   uint64
	outbox      []*placeWork
	gathering   *gather      // the one gang that is gathering; nil: none
	gathers     []*placeWork // gangs that wait for their turn, in the order of admission
	started     uint64       // starts of gangs admitted so far
	// dispatchAgain asks for another walk over the outbox: a gang began to gather during the last.
	dispatchAgain bool
	redispatch    bool // work in the outbox may have found room in the next Step
	outboxed      int  // tasks in outbox

	accounts accounting
	press    pressure
	quota    quotaAdvice
	ranks    rankAdvice
	queries  uint64 // asked of policies

	idempotency map[IdempotencyKey]*IdempotencyRecord
	rules       cellRules
	policies    PoliciesRecord
	added       map[string]ClusterRecord // clusters, by name
	steps       uint64
	timers      timerHeap
	launching   []launchWait // by time

	launchingBound int // length of launching at which it is looked through
	timerOrder     uint64

	sweeping []*job // jobs with a sweep to go on with
	moved    []*job // jobs whose waiting work changed in this Step
	census   census

	// What a refused class compares with what it saw: is there anything new for it?
	freed     uint64 // grows when a run ends
	hostEpoch uint64 // grows when a host appears, changes or becomes ready

	dirty      []dirtyEntry
	dirtyHosts map[workload.HostID]int // index+1 into dirty
	dirtyPools map[workload.PoolID]int
	out        Output
}

type jobName struct {
	pool workload.PoolID
	name string
}

// job is a job in memory.
type job struct {
	JobRecord
	spec      *workload.JobSpec
	specBytes int
	tasks     []task
	classes   []*jobClass
	loners    []*jobClass // of the instances in no gang; classes has those of the gangs too
	gangs     []*gang
	spans     []gangSpan // by instance
	offered   *jobClass  // the one that stands in the pool's queue; nil: none
	starting  *gang      // offered is the start of this one; nil: single instances
	byState   [workload.NumInstanceStates]uint32
	byRun     [workload.NumRunStates]uint32
	healthy   uint32
	live      uint32 // runs that hold resources
	slot      int    // in poolQueue.running, while live
	pledged   []*pledgedWork
	counted   int    // what it added to State.pending
	dirty     uint32 // index+1 into State.dirty
	isMoved   bool
	needsSpec bool // its SpecRecord is not yet in a group

	// demand is what the job added to its pool's demand last.
	demand resource.Vector
	part   *partKey        // of the demand
	queue  *poolQueue      // of its pool; nil until something of it was charged
	usage  resource.Vector // of its charged instances
	meter  *usage.Meter    // of its owner in its pool; nil until it had a run

	calmUntil  int64                      // nobody of lower priority ran when it was looked last
	shortAt    int64                      // since when it is first in line for something and short of it; 0: it is not
	waiting    int64                      // since when it waits without getting a host; 0: it does not, or was not offered yet
	sweep      int64                      // next instance to sweep; -1: no sweep
	renewing   []uint32                   // instances down for a rolling restart, at most Restart.Batch
	renewNext  uint32                     // next instance to look at for the restart
	daemonHome map[workload.HostID]uint32 // a daemon's instance for each host that matched and is not forgotten
	spare      []uint32                   // a daemon's instances whose hosts were forgotten
	expiring   bool
	spelled    spelled
	planned    bool // made for a plan alone: it has classes and no instances

	waits     []*waitMember // one for each group of the census that it is in
	uncounted bool          // in census.uncounted

	older, newer *job // of the same name
}

// spelled holds what the environment of every run of a job repeats.
type spelled struct {
	step                uint64 // for which it holds: a pool's path may change
	id, pool, instances string
}

// jobClass is the part of a job whose instances placement cannot tell apart. Class 0 is the template's; each distinct set of
// overridden needs or labels has one more.
type jobClass struct {
	job     *job
	gang    *gang // nil: of loners
	index   int   // in its gang, or among the loners
	class   *placement.Class
	under   *placement.Class // the same under the pool's policy; nil: it was not asked for
	members []uint32         // of classes above 0, sorted
	// waiting loners are fresh.. (class 0: every instance from fresh on that no other class owns) and returned, in order of return. A gang's
	// members are looked for by rank.
	fresh                uint32
	returned             []uint32
	waiting              uint32      // PENDING instances of the class
	admitted, backingOff uint32      // likewise
	member               *waitMember // of the census; nil: of none so far
	// What its runs hold in time: of ended ones, how many live, and the live ones' beginnings after the job's creation, together.
	heldMillis, liveRuns, begunMillis int64
	named                             map[string]int64 // its needs by name, once launched

	// After a refusal by every shard the class waits for room.
	blocked   bool
	blockedAt int64
	retryAt   int64
	delay     time.Duration
	freedSeen uint64
	hostsSeen uint64
	refusal   placement.Reasons // of all shards together
	neverFits bool
	// What it has to do with preemption.
	starvedAt int64 // since when every shard refuses it; 0: they do not
	askAt     int64 // when it may ask for others' room again
	askDelay  time.Duration
	asking    bool  // room is asked for or pledged
	keepAt    int64 // when room may be kept for it again
	promised  int   // pledges made ahead of admission
	turn      int   // of a daemon's hosts: the one for which room is asked next
	held      bool  // blocked because its gang failed: the timer alone decides
}

// task is one instance in memory; a million of them are kept, so its size counts.
type task struct {
	since      int64
	placed     int64
	started    int64
	notBefore  int64
	heldMillis int64
	due        int64 // when its charge is expected to end, by its job's estimate; 0: nobody knows or asks
	host       *hostState
	extra      *taskExtra
	generation uint32
	run        uint32
	failures   uint32
	attempts   uint32
	config     uint32
	restart    uint32
	exitCode   int32
	dirty      uint32 // index+1 into State.dirty
	devices    placement.DeviceSet
	state      workload.InstanceState
	runState   workload.RunState
	reason     workload.Reason
	healthy    bool
	touched    bool // has a record
	matched    bool // a daemon's: its host matches
}

// taskExtra holds what few instances have.
type taskExtra struct {
	ports   []uint16
	message string
	signal  int32
}

type hostState struct {
	HostRecord
	used       resource.Vector
	tasks      int // live
	unheard    int // runs in PLACED: bound to it, and no word of them yet
	homes      int // instances whose present or last run is bound here
	shard      *shardState
	forgetting bool // a timerHost is set
	// details are what its cluster says of it to people. They change with every offer of a Mesos agent, so they are no part of its record.
	details map[string]string
}

type shardState struct {
	id       shard.ID
	cluster  string
	epoch    shard.Epoch
	ready    bool
	message  string
	since    int64           // of ready
	hosts    int             // present
	free     resource.Vector // capacity of its ready hosts less what its live runs hold: an estimate for routing
	asked    bool            // a Preempt message is unanswered
	inFlight int             // Place messages unanswered
	unheard  int             // of its hosts together

	launches []shard.LaunchRun
	kills    []killCall
	acks     []ackToken
	releases []shard.Lease
}

// newState returns an empty cell with its root and default pools still to be made by Start.
func newState(cfg Config) *State {
	cfg = cfg.WithDefaults()
	return &State{
		cfg:         cfg,
		names:       &resource.Names{},
		queues:      map[queueKey]*poolQueue{},
		jobs:        map[workload.JobID]*job{},
		byName:      map[jobName]*job{},
		hosts:       map[workload.HostID]*hostState{},
		clusters:    map[string]resource.Vector{},
		batches:     map[uint64]*batch{},
		quota:       quotaAdvice{adviser: adviser{kind: QuotaPolicy}},
		ranks:       rankAdvice{adviser: adviser{kind: RankPolicy}},
		press:       pressure{asked: map[uint64]*question{}, works: map[uint64]*pledgedWork{}, pledges: map[pledgeKey]*pledge{}},
		accounts:    newAccounting(),
		idempotency: map[IdempotencyKey]*IdempotencyRecord{}, rules: cellRules{byName: map[string]*RulesRecord{}},
		added:      map[string]ClusterRecord{},
		dirtyHosts: map[workload.HostID]int{},
		dirtyPools: map[workload.PoolID]int{},
		nextOrder:  1,
		nextBatch:  1,
	}
}

// Output is what one Step wants done.
type Output struct {
	Groups []Group
	// Internal effects may be carried out at once.
	Internal []Effect
	// External effects wait until all Groups are durable. They are in order.
	External []Effect
	// Wake is when Step wants to be called with Woken at the latest; 0: no need.
	Wake int64
}

// Effect is something for the engine to do.
type Effect interface{ effect() }

// The effects.
type (
	// ToShard sends a message to a shard.
	ToShard struct {
		Shard   shard.ID
		Message shard.Message
	}
	// Reply gives the answer to a Call.
	Reply struct{ Answer Answer }
)

func (ToShard) effect() {}
func (Reply) effect()   {}

// Step advances the cell. now is the wall clock in nanoseconds; a clock that jumps back stands still for the cell.
func (s *State) Step(now int64, events []Event) Output {
	s.now = max(s.now, now)
	s.out = Output{}
	s.steps++
	s.account()
	s.fireTimers()
	for _, e := range events {
		switch e := e.(type) {
		case Call:
			s.call(e)
		case ShardAttached:
			s.attachShard(e)
		case ShardReplied:
			s.reply(e)
		case PolicyInForce:
			s.inForce(e)
		case Entitlements:
			s.entitlements(e)
		case VictimsRanked:
			s.victimsRanked(e)
		case Woken:
		}
	}
	s.sweepJobs()
	s.cycle()
	s.sendToShards()
	s.flush()
	s.out.Wake = s.nextWake()
	out := s.out
	s.out = Output{}
	return out
}

func (s *State) internal(e Effect) { s.out.Internal = append(s.out.Internal, e) }
func (s *State) external(e Effect) { s.out.External = append(s.out.External, e) }

// nextWake is the earliest timer, or at once while there is work left over that waits for nobody: slices of sweeps, and what the refusals
// of this Step set free for others.
func (s *State) nextWake() int64 {
	if len(s.sweeping) > 0 || len(s.moved) > 0 || s.press.again || s.redispatch || (len(s.stirred) > 0 && s.outboxed < outboxBound) {
		return s.now
	}
	wake := int64(0)
	if len(s.timers) > 0 {
		wake = s.timers[0].at
	}
	if len(s.launching) > 0 && (wake == 0 || s.launching[0].at < wake) {
		wake = s.launching[0].at
	}
	if s.demandOff {
		wake = earlier(wake, s.entitledAt+int64(s.cfg.EntitlementPeriod))
	}
	return earlier(earlier(wake, s.adviceDue()), s.usageDue())
}

// earlier is the first of two times, of which 0 stands for never.
func earlier(a, b int64) int64 {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}
