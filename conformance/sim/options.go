package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Options are one run. Draw fills them from a seed.
type Options struct {
	Seed uint64
	// Safety is how long things go wrong, in virtual time; Mend is how long the cell then has to come to rest.
	Safety, Mend time.Duration
	// Clusters and Hosts (of each cluster) are the size of the cell; JobEvery is the mean time between two calls of users.
	Clusters, Hosts int
	CallEvery       time.Duration
	// FullEvery is how many Steps pass between two comparisons of the whole state with its records. 1 compares after each.
	FullEvery int
	Faults    Faults
	// Lending has pools that lend to one another, so that much is preempted; PreemptionsPerSecond is then the cell's bound. 0: its default.
	Lending              bool
	PreemptionsPerSecond int
	// Policies has policies of quota and of preemption in force that wish the cell ill.
	Policies bool
	// Interpose is a fault of the program. Nil: none.
	Interpose *Interposer `json:"-"`
	// Trace gets a line for everything that happens. Nil: nobody looks.
	Trace io.Writer `json:"-"`
}

// Faults is what goes wrong. Times are means between two events, chances are in thousandths; zero means never.
type Faults struct {
	CoreCrashEvery   time.Duration // the core's process dies
	CommitCrash      int           // ... in the place of any write of a commit
	CommitFailure    int           // a commit fails as a whole, and the core stops
	SlowCommit       int           // a commit takes seconds, at times longer than a lease lasts
	ShardCrashEvery  time.Duration // a shard's process dies and is attached anew
	ReattachEvery    time.Duration // a live shard is attached anew, old messages still under way
	CutEvery         time.Duration // a cluster's connection breaks for a while
	HostEvery        time.Duration // a host goes out of contact, leaves, returns with its runs or without
	CallFailure      int           // a driver's call fails
	SlowCall         int           // a driver's call takes seconds
	SlowMessage      int           // a message takes seconds
	ClockEvery       time.Duration // the core's wall clock jumps
	WatchEvery       time.Duration // a watcher stops reading for a while
	ReorderStatus    int           // statuses of different runs change places
	LoseStatus       int
	DuplicateStatus  int
	DelayStatus      int
	LaunchFailure    int
	LoseClusterEvery time.Duration // all hosts of a cluster go out of contact, and return
	StubbornKill     int           // what is to be killed goes on for up to minutes
	SlowAnswer       int           // an answer about room takes seconds
	WrongVictims     int           // an answer about room names runs that have nothing to do with it
}

// Draw returns the options of a seed. Each kind of fault is left out of every third run or so: a fault that always comes hides what needs
// its absence (Groce et al., "Swarm Testing", ISSTA 2012).
func Draw(seed uint64) Options {
	r := rand.New(rand.NewPCG(seed, 0x51a7))
	every := func(low, high time.Duration) time.Duration {
		if r.IntN(3) == 0 {
			return 0
		}
		return low + time.Duration(r.Int64N(int64(high-low)))
	}
	chance := func(most int) int {
		if r.IntN(3) == 0 {
			return 0
		}
		return 1 + r.IntN(most)
	}
	o := Options{
		Seed: seed, Safety: 8 * time.Minute, Mend: 40 * time.Minute, FullEvery: 1,
		Clusters: 1 + r.IntN(3), Hosts: 3 + r.IntN(6), CallEvery: time.Second/2 + time.Duration(r.Int64N(int64(3*time.Second))),
		Faults: Faults{
			CoreCrashEvery: every(20*time.Second, 4*time.Minute), CommitCrash: chance(30), CommitFailure: chance(10), SlowCommit: chance(20),
			ShardCrashEvery: every(30*time.Second, 5*time.Minute), ReattachEvery: every(20*time.Second, 3*time.Minute),
			CutEvery: every(30*time.Second, 4*time.Minute), HostEvery: every(5*time.Second, 40*time.Second), CallFailure: chance(100),
			SlowMessage: chance(30), ClockEvery: every(30*time.Second, 4*time.Minute), LoseStatus: chance(100), DuplicateStatus: chance(200),
			DelayStatus: chance(300), LaunchFailure: chance(100), SlowCall: chance(40),
			WatchEvery: every(30*time.Second, 4*time.Minute), ReorderStatus: chance(300),
		},
	}
	if lends(seed) {
		o.lend()
	}
	o.Policies = seed%policedEvery == policedAt
	return o
}

func (o *Options) String() string {
	return fmt.Sprintf("seed %d: %d clusters of %d hosts, a call every %v, %v of faults %+v", o.Seed, o.Clusters, o.Hosts, o.CallEvery, o.Safety, o.Faults)
}

// Report is what a run came to.
type Report struct {
	Steps, Events, Groups, Commits, Messages int
	Calls, Refused, Jobs, Runs               int
	Starts                                   int // of the core
	Virtual                                  time.Duration
	Faults                                   map[string]int
	Rooms                                    map[string]int // what happened when room was made
	Policies                                 map[string]int // how they answered
	Digest                                   uint64         // of every group, in order: two runs of a seed have the same
}

// Add sums reports.
func (r *Report) Add(o Report) {
	r.Steps += o.Steps
	r.Events += o.Events
	r.Groups += o.Groups
	r.Commits += o.Commits
	r.Messages += o.Messages
	r.Calls += o.Calls
	r.Refused += o.Refused
	r.Jobs += o.Jobs
	r.Runs += o.Runs
	r.Starts += o.Starts
	r.Virtual += o.Virtual
	if r.Faults == nil {
		r.Faults = map[string]int{}
	}
	for kind, n := range o.Faults {
		r.Faults[kind] += n
	}
	if r.Rooms == nil {
		r.Rooms = map[string]int{}
	}
	for kind, n := range o.Rooms {
		r.Rooms[kind] += n
	}
	if r.Policies == nil {
		r.Policies = map[string]int{}
	}
	for how, n := range o.Policies {
		r.Policies[how] += n
	}
}

func (r Report) String() string {
	text := fmt.Sprintf("%v of virtual time, %d steps with %d events, %d groups in %d commits, %d messages, %d calls (%d refused), %d jobs, %d runs, %d starts of the core; faults:",
		r.Virtual.Round(time.Second), r.Steps, r.Events, r.Groups, r.Commits, r.Messages, r.Calls, r.Refused, r.Jobs, r.Runs, r.Starts)
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		text += fmt.Sprintf(" %s %d,", kind, r.Faults[kind])
	}
	text = strings.TrimSuffix(text, ",") + "; rooms:"
	for _, kind := range slices.Sorted(maps.Keys(r.Rooms)) {
		text += fmt.Sprintf(" %s %d,", kind, r.Rooms[kind])
	}
	text = strings.TrimSuffix(text, ",") + "; policies:"
	for _, how := range slices.Sorted(maps.Keys(r.Policies)) {
		text += fmt.Sprintf(" %s %d,", how, r.Policies[how])
	}
	return strings.TrimSuffix(text, ",")
}

// random is a source of chance: the generators of a run share one, and each place has one for its latencies.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 0xce11))} }

// newJitter is the chance of one place of the world: what is drawn elsewhere does not change it.
func newJitter(seed uint64, place string) random {
	h := fnv.New64a()
	_, _ = io.WriteString(h, place)
	return random{rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// happens is a yes with a chance in thousandths.
func (r random) happens(chance int) bool { return chance > 0 && r.IntN(1000) < chance }

// between is a time from low up to high.
func (r random) between(low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}

// around is a time from a half to one and a half of mean.
func (r random) around(mean time.Duration) time.Duration { return r.between(mean/2, mean+mean/2) }

func pick[T any](r random, from ...T) T { return from[r.IntN(len(from))] }
