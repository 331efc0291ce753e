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
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
)

// Bounds of one estimate.
const (
	MaxAhead = 1000    // entries that are played before the one asked for
	MaxEnds  = 4096    // moments at which running work ends
	maxSteps = 1 << 20 // of a play
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
	// RunTime is of the work asked for; Fills says that its queue fills back.
	RunTime time.Duration
	Fills   bool
	Tasks   int64 // that go first
	Pace    *Pace // nil: nobody has counted
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
	return q.AtPace()
}

// AtPace makes the estimate without run times.
func (q *Question) AtPace() Start {
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

// play starts work in order until the one asked for has its room. Where the queue fills back, work may pass the first that does not fit if it
// ends before that one can start, or leaves it the room that it needs.
func (q *Question) play() (at int64, known bool) {
	if !q.Whole {
		return 0, false
	}
	p := play{now: q.Now, free: q.Free, ends: slices.Clone(q.Ends), fills: q.Fills, steps: maxSteps}
	heap.Init(&p.ends)
	waiting := make([]Unit, 0, len(q.Ahead)+1)
	waiting = append(append(waiting, q.Ahead...), Unit{q.Own, 1, q.RunTime})
	for {
		waiting = p.start(waiting)
		if len(waiting) == 0 || waiting[len(waiting)-1].Count == 0 {
			return p.now, true
		}
		if len(p.ends) == 0 || p.steps <= 0 {
			return 0, false
		}
		e, _ := heap.Pop(&p.ends).(End)
		p.now, p.free = max(p.now, e.At), p.free.Add(e.Holds)
		for len(p.ends) > 0 && p.ends[0].At <= p.now {
			e, _ = heap.Pop(&p.ends).(End)
			p.free = p.free.Add(e.Holds)
		}
	}
}

// play is a queue on its way forward.
type play struct {
	now   int64
	free  resource.Vector
	ends  endHeap
	fills bool
	steps int // that it may still take
}

// start lets go what may at this moment and returns the rest; the last stays in any case, with Count 0 when it went.
func (p *play) start(waiting []Unit) []Unit {
	rest := waiting[:0]
	shadow, spare := int64(0), resource.Vector{}
	for i, u := range waiting {
		p.steps--
		last := i == len(waiting)-1
		if len(rest) > 0 && !p.fills {
			return append(rest, waiting[i:]...)
		}
		room := p.free
		stays := len(rest) > 0 && (u.RunTime == 0 || p.now+int64(u.RunTime) > shadow) // beyond the start of the first in line
		if stays {
			room = room.Min(spare)
		}
		if n := u.Needs.Times(&room, u.Count); n > 0 {
			took := u.Needs.Scale(n)
			p.free = p.free.Sub(took)
			if stays {
				spare = spare.Sub(took)
			}
			u.Count -= n
			if u.RunTime > 0 {
				heap.Push(&p.ends, End{p.now + int64(u.RunTime), took})
			}
		}
		if u.Count == 0 && !last {
			continue
		}
		if rest = append(rest, u); len(rest) == 1 && p.fills && !last {
			shadow, spare = p.shadow(&u.Needs)
		}
	}
	return rest
}

// shadow is when there will be room for the first in line, and what is free beside it from then on. Zero: nobody knows, and nothing may pass.
func (p *play) shadow(needs *resource.Vector) (at int64, spare resource.Vector) {
	ahead, free := slices.Clone(p.ends), p.free
	for len(ahead) > 0 {
		p.steps--
		e, _ := heap.Pop(&ahead).(End)
		if free = free.Add(e.Holds); needs.FitsIn(&free) {
			return e.At, free.Sub(*needs)
		}
	}
	return 0, resource.Vector{}
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
