// Package estimate tells when waiting work will start, and on what that rests.
//
// There are two bases. Where the estimates of run times are enough, the queue is played forward: work starts in order as soon as its pool has
// room, and gives its room back when its run time is over. What nobody said a run time of never ends there, so the play either ends with a
// time or with nothing. Otherwise the pace at which the pool started tasks lately is carried on. Neither knows of work that will come later,
// of preemption, or of hosts: both are for orientation, and their errors are measured by paceline sim run.
//
// The package is pure. A Pace has one owner and is not safe for concurrent use; the rest are functions of their arguments.
package estimate

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
)

// Bounds of one estimate.
const (
	MaxAhead = 1000 // entries that are played before the one asked for
	MaxEnds  = 4096 // moments at which running work ends
	maxPlays = 16 << 10
)

// Basis is what an estimate rests on.
type Basis uint8

// The bases.
const (
	Unknown  Basis = iota // no run times to go by, and nothing started lately
	RunTimes              // the expected ends of what runs and waits
	AtPace                // how fast the pool started tasks lately
)

func (b Basis) String() string { return [...]string{"unknown", "run times", "pace"}[min(b, AtPace)] }

// End is room that comes free at a time.
type End struct {
	At    int64
	Holds resource.Vector
}

// Unit is work that starts at once: Count times Needs, each by itself.
type Unit struct {
	Needs   resource.Vector
	Count   int64
	RunTime time.Duration // 0: nobody said
}

// Describe puts the answer into words that complete "it starts".
func (s Start) Describe(now int64) string {
	in := time.Duration(s.At - now).Round(time.Second)
	switch s.Basis {
	case RunTimes:
		return fmt.Sprintf("in %v, by the run times of what runs and what goes first", in)
	case AtPace:
		return fmt.Sprintf("in %v, at the pace of its pool (%d started in the last %v) and its place in the queue", in, s.Started,
			s.Over.Round(time.Second))
	case Unknown:
	}
	return "at a time that neither run times nor the latest starts of its pool tell"
}

// Question is one estimate to be made. Times are nanoseconds.
type Question struct {
	Now   int64
	Free  resource.Vector // what the pool has left; negative where it is over
	Ends  []End           // of what runs, at most MaxEnds
	Ahead []Unit          // in order, at most MaxAhead
	Whole bool            // Ahead is all that goes first
	Own   resource.Vector // what the next start of the work asked for takes
	Tasks int64           // that go first
	Pace  *Pace           // nil: nobody has counted
}

// Start is an answer.
type Start struct {
	At    int64 // 0 with Unknown
	Basis Basis
	// With AtPace: that many tasks started in Over.
	Started int64
	Over    time.Duration
}

// Answer makes the estimate.
func (q *Question) Answer() Start {
	if at, known := q.play(); known {
		return Start{At: at, Basis: RunTimes}
	}
	if q.Pace == nil {
		return Start{}
	}
	started, over := q.Pace.Lately(q.Now)
	if started == 0 {
		return Start{}
	}
	wait := float64(q.Tasks+1) * float64(over) / float64(started)
	const most = float64(100 * 365 * 24 * time.Hour)
	return Start{At: q.Now + int64(min(wait, most)), Basis: AtPace, Started: started, Over: over}
}

// play starts work in order until the one asked for has its room.
func (q *Question) play() (at int64, known bool) {
	if !q.Whole {
		return 0, false
	}
	ends := make(endHeap, len(q.Ends))
	copy(ends, q.Ends)
	heap.Init(&ends)
	now, free := q.Now, q.Free
	plays := 0
	await := func() bool {
		if plays++; len(ends) == 0 || plays > maxPlays {
			return false
		}
		e, _ := heap.Pop(&ends).(End)
		now, free = max(now, e.At), free.Add(e.Holds)
		return true
	}
	for _, u := range q.Ahead {
		for left := u.Count; left > 0; {
			n := u.Needs.Times(&free, left)
			if n <= 0 {
				if !await() {
					return 0, false
				}
				continue
			}
			took := u.Needs.Scale(n)
			free, left = free.Sub(took), left-n
			if u.RunTime > 0 {
				heap.Push(&ends, End{now + int64(u.RunTime), took})
			}
		}
	}
	for !q.Own.FitsIn(&free) {
		if !await() {
			return 0, false
		}
	}
	return now, true
}

type endHeap []End

func (h endHeap) Len() int           { return len(h) }
func (h endHeap) Less(i, j int) bool { return h[i].At < h[j].At }
func (h endHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

func (h *endHeap) Push(x any) {
	e, _ := x.(End)
	*h = append(*h, e)
}

func (h *endHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Window is how far back a Pace looks, at most.
const Window = 15 * time.Minute

const slots = 15

// Pace counts the tasks that a pool started in each of the last minutes. The zero value has counted nothing. It lives in memory alone: after a
// restart it counts anew.
type Pace struct {
	started [slots]int64
	slot    int64 // the newest, in minutes since the epoch
	since   int64 // when counting began; 0: not yet
}

func slotOf(now int64) int64 { return now / int64(time.Minute) }

// Note counts tasks that start now.
func (p *Pace) Note(now, tasks int64) {
	if p.since == 0 {
		p.since = now
	}
	p.turn(now)
	p.started[p.slot%slots] += tasks
}

func (p *Pace) turn(now int64) {
	for n := min(slotOf(now)-p.slot, slots); n > 0; n-- {
		p.started[(slotOf(now)-n+1)%slots] = 0
	}
	p.slot = max(p.slot, slotOf(now))
}

// Lately is how many tasks started in the last minutes, and how long that is.
func (p *Pace) Lately(now int64) (tasks int64, over time.Duration) {
	p.turn(now)
	for _, n := range p.started {
		tasks += n
	}
	oldest := max(p.since, (p.slot-slots+1)*int64(time.Minute))
	return tasks, max(time.Duration(now-oldest), time.Minute)
}
