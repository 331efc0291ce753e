package admission

import (
	"math"
	"math/bits"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Verdict is what Explain and Survey say of a job.
type Verdict uint8

// The verdicts.
const (
	Admissible Verdict = iota // all its tasks would start now
	First                     // first in line for a kind of which too little is free
	Behind                    // needs a kind for which an earlier job waits, or would delay the first in line
	OutOfReach                // needs more than the pool could give with all its preemptible work gone
	NotReached                // too many jobs before it: MaxVisits
)

func (v Verdict) String() string {
	return [...]string{"admissible", "first in line", "behind", "out of reach", "not reached"}[min(v, NotReached)]
}

// Standing explains where a job stands in its queue.
type Standing struct {
	Ahead   int // jobs before it
	Verdict Verdict
	Tasks   int // that would start now
	// The kind that decides, with First, Behind and OutOfReach, and where it is short.
	Kind    resource.Kind
	Account Account
	// Need is what the next unit takes of Kind; Has is what there is, free with First and in all with OutOfReach.
	Need, Has int64
	// Spare is the part of Need that stays free for short work, with First in the express order.
	Spare int64
	// Start is when the first in line starts at the latest if all run times are right, with First and back-fill. 0: nobody knows.
	Start int64
}

// Explain says what Admit would do for one job, without limit. It costs as much as Admit.
func (q *Queue) Explain(job workload.JobID, room *Room) (Standing, bool) {
	it := q.byJob[job]
	if it == nil {
		return Standing{}, false
	}
	v := q.survey(room, it)
	s := v.walk.rest(&it.entry, it.owner, v.closed)
	switch {
	case len(v.Visited) > 0:
		s = v.Visited[0].Standing
	case v.walk.out.Stop == StopBound && !v.passed && s.Verdict == Behind && s.Account != OfOwner && s.Account != OfControllers:
		s = Standing{Verdict: NotReached}
	}
	s.Ahead = q.main.ahead(it, room.Shares, room.Now)
	return s, true
}

// Survey says of all jobs of a queue where they stand. It holds until the queue changes or is walked again.
type Survey struct {
	// Visited are those that a walk looks at one by one, in its order; their Ahead is not told. All others wait behind one of them or could
	// never start, and what they need alone tells which: see Rest.
	Visited []Visited

	only *item // to note alone; nil: all
	at   map[*item]int
	walk walk
	// closed is what was closed when the walk passed only: an order has no later entries among those that are waited for.
	closed mask
	passed bool
}

// Visited is one job with its standing.
type Visited struct {
	Job workload.JobID
	Standing
}

// Survey says for all jobs what Explain says for one. It costs as much as Admit, however many wait, and Rest for each sort of jobs that there
// are.
func (q *Queue) Survey(room *Room) *Survey { return q.survey(room, nil) }

func (q *Queue) survey(room *Room, only *item) *Survey {
	v := &Survey{only: only, at: map[*item]int{}, walk: q.newWalk(room, math.MaxInt)}
	v.walk.survey = v
	if q.walk(&v.walk); !v.passed {
		v.closed = v.walk.closed
	}
	return v
}

// pass notes what is closed before the walk goes on with a node.
func (v *Survey) pass(n *node, in *view) {
	if v.only != nil && !v.passed && in.slot == 0 && !n.before(v.only.nodes[0]) {
		v.passed, v.closed = true, v.walk.closed
	}
}

// note keeps the latest standing of an entry, with the tasks of all its turns.
func (v *Survey) note(it *item, s *Standing) {
	if v.only != nil && v.only != it {
		return
	}
	n, known := v.at[it]
	if !known {
		n = len(v.Visited)
		v.at[it], v.Visited = n, append(v.Visited, Visited{Job: it.entry.Job})
	}
	before := v.Visited[n].Tasks
	v.Visited[n].Standing = *s
	v.Visited[n].Tasks += before
}

// Rest is the standing of entries that were not visited, of which one is given: of what they need, whose they are, and how they go together.
// Other entries of the queue that agree with it in that have the same verdict and account. Of several things that it waits for the narrowest is
// told, by what the whole walk found: a bound of its own before the pool's.
func (v *Survey) Rest(e *Entry) Standing {
	o := v.walk.owners.byName[e.Owner]
	if o == nil {
		o = &owner{name: e.Owner}
	}
	return v.walk.rest(e, o, v.closed)
}

// rest is told what of the pool was closed before it. Bounds of its own count by what the whole walk found.
func (w *walk) rest(e *Entry, o *owner, closed mask) Standing {
	w.meet(o)
	if s, out := w.outOfReach(e, o); out {
		return s
	}
	needs, unit := needsOf(e), e.Needs.Scale(int64(e.unit()))
	if w.bounds(o) {
		if k, short := firstShort(&unit, &o.bound.Left, needs&o.closed); short {
			return Standing{Verdict: Behind, Kind: k, Account: OfOwner}
		}
	}
	if e.Controller {
		if k, short := firstShort(&unit, &w.controllers.Left, needs&w.closed>>inControllers); short {
			return Standing{Verdict: Behind, Kind: k, Account: OfControllers}
		}
	}
	if behind := needs & closed; behind != 0 {
		bit := bits.TrailingZeros64(uint64(behind))
		return Standing{Verdict: Behind, Kind: resource.Kind(bit % resource.MaxKinds), Account: accountOf(bit)}
	}
	return w.behindHead(e, &unit)
}

// firstShort is the first kind of which too little is left, or somebody waits.
func firstShort(unit, left *resource.Vector, closed mask) (resource.Kind, bool) {
	for k, need := range unit {
		if need > 0 && (need > left[k] || closed&(1<<k) != 0) {
			return resource.Kind(k), true
		}
	}
	return 0, false
}
