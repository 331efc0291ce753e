package decision

import (
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
)

// Header begins a segment.
type Header struct {
	Shard    string `json:"shard"`
	Number   uint64 `json:"number"`   // of the segment; it grows by one
	Began    int64  `json:"began"`    // UTC nanoseconds
	Sequence uint64 `json:"sequence"` // of the decision that comes first
	// Fresh says that the table is not the one of the segment before: the shard was started.
	Fresh bool `json:"fresh,omitempty"`
	// Gap says that something is missing between the segment before and this one, among it so many decisions.
	Gap     bool   `json:"gap,omitempty"`
	Dropped uint64 `json:"dropped,omitempty"`
}

// ChangeKind says what happened to a table.
type ChangeKind uint8

// The kinds of changes, see host.Journal.
const (
	Upserted ChangeKind = iota + 1
	Removed
	Drained
	Undrained
	Took
	Released
)

// Change is something that happened to a table outside of decisions.
type Change struct {
	Kind     ChangeKind
	At       int64 // UTC nanoseconds; to within some changes
	Row      host.Row
	Host     *host.Host    // Upserted
	Occupant host.Occupant // Took, Released
}

// Decision is one batch and its answer.
type Decision struct {
	Sequence uint64 // of the shard, in the order of decisions; it grows by one
	At       int64  // UTC nanoseconds, when it was asked
	Took     time.Duration
	Revision uint64             // of the table that was seen, on the recorded shard
	Strategy string             // that was asked for: a policy's name, "" for the default
	Served   []placement.Served // empty: by the placer of the name itself
	Requests []placement.Request
	Results  []placement.Result
}

// Fuel is what all policies together used.
func (d *Decision) Fuel() (fuel int64) {
	for i := range d.Served {
		fuel += d.Served[i].Fuel
	}
	return fuel
}

// Tasks is how many tasks were asked for and how many of them were placed.
func (d *Decision) Tasks() (asked, placed int) {
	for i := range d.Requests {
		asked += d.Requests[i].Count
	}
	for i := range d.Results {
		placed += len(d.Results[i].Assignments)
	}
	return asked, placed
}

// Event is one entry of a segment: exactly one of its fields is set.
type Event struct {
	Header   *Header
	State    *host.State
	Change   *Change
	Decision *Decision
	Question *Question
}
