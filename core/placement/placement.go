// Package placement finds hosts for batches of tasks on a host.Table: feasibility, scoring, gangs, and the reasons where there
// is no room.
//
// It declares Placer, which placement policies implement, and owns Native, the built-in one. It never starts anything and never
// waits: what does not fit now is refused with counts, and the caller asks again. It is pure; a Placer has one owner and is not safe
// for concurrent use.
package placement

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/workload"
)

// Placer places batches.
type Placer interface {
	// Place serves the requests in order, each to the end, and takes the room it finds in the table. Result i answers request i.
	Place(t *host.Table, requests []Request) []Result
}

// PlacerSource knows placers by policy name. "" and the native strategies' names are always there.
type PlacerSource interface {
	Placer(policy string) (Placer, bool)
}

// Request asks for room for Count tasks of one class.
type Request struct {
	Class *Class
	Count int
	Gang  bool            // all or none
	Host  workload.HostID // the one host allowed; zero: any
	Seed  uint64          // for policies that draw; the native placer breaks ties by lowest row
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

// Native is the built-in Placer. The zero value is ready for use. It caches what it learnt of one table; given another one it starts
// afresh.
type Native struct{}

var _ Placer = (*Native)(nil)

// NewNative returns a placer with empty caches.
func NewNative() *Native { return &Native{} }

// Place implements Placer.
func (n *Native) Place(t *host.Table, requests []Request) []Result { return make([]Result, len(requests)) }

// Plan answers as Place would and leaves the table as it was.
func (n *Native) Plan(t *host.Table, requests []Request) []Result { return make([]Result, len(requests)) }

// Explain counts, host by host, why a task of the class would be refused now. A host that would take it is counted nowhere.
func (n *Native) Explain(t *host.Table, class *Class) Reasons { return Reasons{} }
