// Package placement finds hosts for batches of tasks on a host.Table: feasibility, scoring, gangs, and the reasons where there
// is no room.
//
// It declares Placer, which placement policies implement, and owns Native, the built-in one. It never starts anything and never
// waits: what does not fit now is refused with counts, and the caller asks again. It is pure; a Placer has one owner and is not safe
// for concurrent use.
//
// # Scores
//
// Every feasible host has a cost; the lowest wins, the lowest row among equals. One point is a hundredth of host.ScoreSpan. The cost is
// that of the strategy, 0 to 100 points, plus what wishes add:
//
//   - best-fit (least leftover): host.Table.Leftover, the weighted mean over resource kinds of the host's free room as a share of
//     the largest host's, GPU weighing 64 times the others. As all tasks of a class take the same, comparing what is
//     free before a task is placed is comparing what is left over after it.
//   - pack (fullest host first): host.Table.FreeShare, the mean over the host's kinds of free / its own capacity.
//   - spread (emptiest host first): 100 points less FreeShare.
//   - a preference that the host meets takes its weight in points off; a soft affinity takes its weight off, and an anti-affinity
//     adds it, where the domain holds a match.
//   - a spread without max_skew adds 100 points for every instance of the job in the domain: evenness goes before the strategy.
//
// A share of a GPU goes to the device of an allowed model with the least free share that is enough (under the spread strategy,
// the most), whole devices in order.
//
// Affinity is one-sided: it is judged when a task is placed, and does not keep later tasks of other classes away. A hard affinity that the
// class's own labels satisfy is waived while no task of the table matches, so that the first may start. Hosts without the topology
// attribute fail hard affinities and max_skew, never meet soft ones, and together count as one domain of a soft spread.
//
// # Gangs
//
// The tasks of a gang find room together or not at all. One that is to stay within a domain, the hosts that share the value of an attribute, goes
// to the domain that has the least room beyond what it needs, so that roomy domains stay whole for larger ones; an elastic gang to one with room
// to grow first. Where a domain is only preferred and none is large enough, the roomiest are filled one after the other. A gang of several classes
// is several requests of one Unit. Members that join later name the domain.
//
// # Cost
//
// B tasks of a class on N hosts cost one scan, O(N), and O(log B) for each task: placing a task changes the cost of its own host only, so the B
// best hosts of the scan hold every choice. Classes whose tasks change the cost of other hosts (spread or affinity to their own
// kind over a domain wider than a host) keep a heap per domain instead: O(N + B (D + log N)) for D domains. A gang with a topology costs one scan
// more, which counts the room of every domain, or one for each domain that it is split over, at most maxGangDomains. Conditions on attributes are
// judged once per class and for changed hosts only. A class refused before is refused again in time
// proportional to the hosts changed since.
package placement

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/workload"
)

// Placer places batches.
type Placer interface {
	// Place serves the requests in order, each to the end, and takes the room it finds in the table. Result i answers request i. The results
	// may be kept: neither the placer nor its caller changes them afterwards.
	Place(t *host.Table, requests []Request) []Result
}

// PlacerSource knows placers by policy name. "" is whatever places work that chooses nothing; it and the native strategies' names are always there. A name that is
// not there is refused. A source has one owner, as its placers have.
type PlacerSource interface {
	Placer(policy string) (Placer, bool)
}

// Request asks for room for Count tasks of one class.
type Request struct {
	Class *Class
	Count int
	Gang  bool            // all or none
	Host  workload.HostID // the one host allowed; zero: any
	// Unit ties requests of a gang that follow each other together, when it is not 0: all of them are served, in one domain where Within wants
	// one, or none.
	Unit uint32
	// Within keeps the tasks of a gang together.
	Within Within
	// Want is how many tasks the gang would have with all that may join it later: domains with room for that many go first.
	Want int
	Seed uint64 // for policies that draw; the native placer breaks ties by lowest row
	// Of the tasks, for policies; the native placer looks at none of it.
	Pool      string // path of their pool; who chooses a placer looks at it, too
	Priority  int32  // of their job, within the pool
	Revocable bool   // they run on slack, and are the first to make room
}

// Within is a wish for hosts that share the value of an attribute.
type Within struct {
	Key      string // of the attribute; "": there is no such wish
	Domain   string // the value, for tasks that join others; "": the gang looks for one
	Required bool   // no host elsewhere will do
}

// Result is what became of one Request.
type Result struct {
	Assignments []Assignment
	Refused     int     // Count - len(Assignments)
	Reasons     Reasons // why, when Refused > 0
}

// Assignment is room taken for one task. Class.Occupant(Devices, Ports) is what the table holds for it.
type Assignment struct {
	Row     host.Row
	Devices DeviceSet
	Ports   []uint16 // in the order of Class.Ports
}
