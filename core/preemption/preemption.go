// Package preemption finds whose work makes room for other work on one host table, and declares Ranker, the policy of who goes first.
//
// It is told who may be a victim: a Snapshot that core/scheduler makes of the pools above their entitlement, or of the lower priorities of
// one pool. It finds hosts on which the waiting tasks fit once the victims there are gone, and takes the room for them at once, so that a
// row's free room may be negative until then. It never ends anything and never judges whether it was right to ask.
//
// # Who goes
//
// On one host candidates go in this order: revocable work, then what is not running yet, then by rank, then what was started last; a gang goes
// whole, wherever its members are. They are added until the class fits with what is free, and then, backwards, everyone who turns out to be
// needless is let off: a victim of an assignment that could stay is none. One victim that is enough by itself is taken
// instead of several, if it does not stand behind the worst of them. (A class with a required affinity to its victims' labels aside: there
// less gone may mean less room.) Among hosts the lexicographically least of (worst victim's place in the order, runs lost with the mates of
// gangs, work lost) wins, then the lowest row.
//
// No job loses more runs than it may, and no pool gives up more than it has above its entitlement in a kind that the waiting work asks for:
// each victim that is taken lowers what its pool is above it. Within these bounds the search is greedy: a host that only a cleverer choice would
// clear may be passed over, but never one that a single victim clears, nor, where no bound is met, one that can be cleared at all.
//
// What is dying already counts as free and costs nothing.
//
// A gang that has to stay in one domain takes the one in which the least is lost, by the measure by which hosts are compared. Of more than
// maxDomains those with the most free room are tried.
//
// Policy and Snapshot.Plain turn all of this off but for the order, to have something to compare with.
//
// # Cost
//
// What is known of hosts stays from call to call; a call loads those that changed, some microseconds each, and reads the snapshot once, in O(jobs). For
// each snapshot it puts the runs of every host in order and bounds what a host can offer to anybody, in O(N T) for N hosts with T runs, some ten
// nanoseconds a run. Each class then asks every host whether its room is free, some nanoseconds, and looks at the others in the order of these bounds until
// nothing that it has not seen can be better. Where sums say everything and no bound bites, the look is the answer; else it bounds what the host can offer,
// and hosts are judged in the order of their bounds: a microsecond or more each. Later requests of the class in the same call look at hosts that
// changed since. Each task costs O(T + log N) and some microseconds for the table. Devices, ports, exclusive hosts and affinities are judged by placement
// itself on the table without the victims; classes that need none of these are judged by sums alone.
//
// A gang that has to stay in one domain is tried in one after the other, at most maxDomains, and given back: for each the look at the domain's hosts and
// the cost of its tasks, and a pass over the table that only asks each host for its domain.
//
// A run takes 112 bytes of memory once somebody has asked for room.
//
// The package is pure. A Search has one owner and is not safe for concurrent use.
package preemption

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Snapshot is who may be a victim. It is immutable and may be shared by many requests; those served together draw on it together.
type Snapshot struct {
	Jobs  []Job
	Pools []Pool
	Plain bool // see Policy
}

// Job is a job with live runs that may have to go, or a part of one: each gang of a job that has several is one, and so are the instances in
// none. The parts of a job stand one after another.
type Job struct {
	ID        workload.JobID
	Rank      int32 // lower goes first
	Allow     int32 // how many of its runs may go
	Pool      int32 // in Snapshot.Pools; negative: taking from its pool has no bound
	Revocable bool
	Gang      *Gang // nil: no gang
}

// Gang is a gang of a job: one run goes with all. A snapshot may list a great many jobs, and few are gangs.
type Gang struct {
	Members []workload.InstanceRange // ascending; nil: all instances
	Runs    int32                    // that live; 0: they go one by one
	Use     resource.Vector          // of these, together
	Work    int64                    // how long they have run, together
}

// whole is how many runs go with one of a job.
func (j *Job) whole() int32 {
	if j.Gang == nil {
		return 1
	}
	return max(j.Gang.Runs, 1)
}

// isGang reports whether one run goes with others.
func (j *Job) isGang() bool { return j.Gang != nil && j.Gang.Runs > 0 }

// members lists the instances of a part of a job; nil: all of the job's.
func (j *Job) members() []workload.InstanceRange {
	if j.Gang == nil {
		return nil
	}
	return j.Gang.Members
}

// Pool bounds what may be taken from one pool.
type Pool struct {
	Over resource.Vector // its usage less its entitlement, where that is positive
}

// Run is one run on a host.
type Run struct {
	ID      workload.RunID
	Class   *placement.Class
	Devices placement.DeviceSet
	Ports   []uint16
	Started int64 // when it began to run; 0: not yet
	Dying   bool  // it is on its way out
}

// Tenants knows the runs on hosts.
type Tenants interface {
	// Tenants appends the live runs that the table holds on the host at row, in any order.
	Tenants(row host.Row, into []Run) []Run
}

// Request asks for room for Count tasks of one class.
type Request struct {
	Class   *placement.Class
	Count   int
	Gang    bool            // all or none
	Host    workload.HostID // the one host allowed; zero: any
	Victims *Snapshot
	// Unit ties requests of one gang that follow each other together, when it is not 0, and Within names the topology attribute within one value
	// of which all of it has to find room: all of them are served, or none. Without Within, Unit means nothing.
	Unit   uint32
	Within string
	// Wait asks for room that comes free by itself, and nobody has to be ended: Victims are those who are expected to end, the soonest with the lowest
	// rank; nil: batch runs of anybody.
	Wait bool
	// DryRun leaves the table as it was. Dry runs that follow each other take from one another, as requests in earnest do.
	DryRun bool
}

// Result is what became of one Request.
type Result struct {
	Assignments []Assignment
	Refused     int
}

// Assignment is room taken for one task, with those who have to go first. A gang is named by its runs on this host.
type Assignment struct {
	placement.Assignment
	Victims []workload.RunID
}

// Search serves requests. Make it with New. From call to call it keeps what it knows of hosts: whoever changes the runs on one, other than by
// booking them in the table, says so with Moved.
type Search struct {
	native *placement.Native
	last   *host.Table // what follows is of this one
	rows   []tenancy
	loaded int // hosts, since numbers began

	numbers   map[workload.JobID]int32 // of jobs that were met
	needs     []resource.Vector        // distinct ones
	needIndex map[resource.Vector]int32
	classes   map[*placement.Class]int32 // the same, by whose needs they are
	called    []numbered                 // by the newest snapshot
	where     []int32                    // by a job's number: its place in called, if it is there
	serial    uint64                     // of the newest ledger

	// Memory for the next call.
	works, tiers []int64
	scratch      []seat
	uncalled     []numbered
	spareLedger  *ledger
	spareHeaps   []offers // at most maxSpareHeaps
	spareCrowd   *crowd

	// Of the call being served.
	table   *host.Table
	tenants Tenants
	now     int64
	ledgers map[*Snapshot]*ledger
	round   uint64     // from 1 on; grows when offers may have become worse
	moved   []host.Row // those on which room was taken or given back, or somebody is dying or is not any more, in order
	stands  []stand    // at most maxStands
	crowds  []*crowd   // one for each ledger and way of waiting
	apart   bool       // requests share nothing, to compare with
}

// New returns a search that asks native what fits.
func New(native *placement.Native) *Search { return &Search{native: native, round: 1} }

// Board is a table with who is on it.
type Board struct {
	Table   *host.Table
	Tenants Tenants
	Now     int64
}

// Moved has the search look anew at who is on a host: a run there was launched, began to run, is dying or is not any more. What the table was told
// of since the last call need not be said again.
func (s *Search) Moved(row host.Row) {
	if row >= 0 && int(row) < len(s.rows) {
		s.rows[row].version = 0
	}
}

// Remembered returns the runs on a host as the search has them, by id, or false where it will look anew. It is for those who check that they have
// not missed a Moved.
func (s *Search) Remembered(t *host.Table, row host.Row) ([]Run, bool) {
	if s.last != t || int(row) >= len(s.rows) || s.rows[row].version != t.Version(row) {
		return nil, false
	}
	return s.rows[row].runs, true
}

// Forget is Moved for all hosts.
func (s *Search) Forget() {
	for row := range s.rows {
		s.rows[row].version = 0
	}
}

// Serve answers requests in order, each to the end. What one takes, the next does not find.
func (s *Search) Serve(b Board, requests []Request) []Result {
	s.begin(b)
	results := make([]Result, 0, len(requests))
	var dry []*query // what they took is still in the table, so that those which follow do not find it
	for len(requests) > len(results) {
		rest := requests[len(results):]
		var found []Result
		found, dry = s.serveNext(rest[:max(unitOf(rest), 1)], dry)
		results = append(results, found...)
	}
	undoAll(dry)
	s.end()
	return results
}

// serveNext answers one request, or those of a gang that stays in one domain, behind dry runs, and returns those which the next one is behind.
func (s *Search) serveNext(list []Request, dry []*query) ([]Result, []*query) {
	if !list[0].DryRun {
		undoAll(dry)
		dry = nil
	}
	var results []Result
	var served []*query
	if unitOf(list) > 0 {
		results, served = s.serveUnit(list)
	} else {
		result, q := s.serve(&list[0])
		results = []Result{result}
		if q != nil {
			served = append(served, q)
		}
	}
	if list[0].DryRun {
		dry = append(dry, served...)
	}
	return results, dry
}

// undoAll gives everything back in the reverse order of its taking.
func undoAll(list []*query) {
	for i := len(list) - 1; i >= 0; i-- {
		list[i].undo()
	}
}

func (s *Search) begin(b Board) {
	s.table, s.tenants, s.now = b.Table, b.Tenants, b.Now
	s.ledgers = map[*Snapshot]*ledger{}
	s.refresh()
}

// end forgets the call. What was taken, or is dying, is as the tenants will tell by the next one.
func (s *Search) end() {
	for _, l := range s.ledgers {
		for _, v := range l.late {
			s.Moved(v.row)
		}
		l.jobs, s.spareLedger = nil, l
	}
	for _, row := range s.moved {
		s.Moved(row)
	}
	s.moved = s.moved[:0]
	s.forgetStands()
	s.table, s.tenants, s.ledgers = nil, nil, nil
}

// serve answers one request. The query has taken what was found; nil: nothing.
func (s *Search) serve(r *Request) (Result, *query) {
	if r.Class == nil || r.Count <= 0 || (r.Victims == nil && !r.Wait) {
		return Result{Refused: max(r.Count, 0)}, nil
	}
	q := s.query(r)
	q.place()
	if r.Gang && len(q.placed) < r.Count {
		q.undo()
		return Result{Refused: r.Count}, nil
	}
	return Result{Assignments: q.placed, Refused: r.Count - len(q.placed)}, q
}
