package admission_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestLeftIsWhatLacks gives everybody who waits first in line what he lacks by LeftFor: then Admit lets one unit more of his go.
func TestLeftIsWhatLacks(t *testing.T) {
	helped := 0
	rapid.Check(t, func(t *rapid.T) {
		var q admission.Queue
		entries := map[workload.JobID]admission.Entry{}
		for job := range rapid.IntRange(1, 8).Draw(t, "entries") {
			e := drawEntry(t, job)
			entries[e.Job] = e
			if err := q.Set(e); err != nil {
				t.Fatal(err)
			}
		}
		room := drawRoom(t)
		before, _ := q.Admit(nil, &room, 1000)
		for _, job := range slices.Clone(q.Waits()) {
			left, first := q.LeftFor(job, &room)
			if !first {
				t.Fatalf("job %v waits first in line, and is not: %v", job, entries)
			}
			e := entries[job]
			had := granted(before, job)
			unit := max(1, e.Gang)
			if had > 0 {
				unit = 1
			}
			more, able := with(&room, &e, &left, e.Needs.Scale(int64(had+unit)))
			if !able {
				continue
			}
			after, _ := q.Admit(nil, &more, 1000)
			if granted(after, job) != had+unit && had+unit <= e.Count {
				t.Fatalf("job %v got %d, and %d with what it lacked for %d: left %v of %+v\n%v", job, had, granted(after, job), had+unit, left, room, entries)
			}
			helped++
		}
	})
	if helped < 20 {
		t.Errorf("%d waited: the rooms are too large", helped)
	}
}

func granted(grants []admission.Grant, job workload.JobID) (tasks int) {
	for _, g := range grants {
		if g.Job == job {
			tasks += g.Tasks
		}
	}
	return tasks
}

// with is a room in which what an entry lacks of its needs has come free; false: work that may be preempted does not use that much.
func with(room *admission.Room, e *admission.Entry, left *admission.Left, needs resource.Vector) (admission.Room, bool) {
	lack := func(of *resource.Vector) (v resource.Vector) {
		for k, need := range needs {
			if need > 0 {
				v[k] = max(0, need-of[k])
			}
		}
		return v
	}
	more := *room
	more.Usage = room.Usage.Sub(lack(&left.Entitlement))
	able := room.NonPreemptibleUsage.FitsIn(&more.Usage) && needs.FitsIn(&left.Reservation)
	if e.Controller && room.Controllers != nil {
		more.Controllers = &admission.Bound{Limit: room.Controllers.Limit, Left: room.Controllers.Left.Add(lack(&left.Controllers))}
	}
	if room.Owner != nil {
		more.Owner = func(name string) (admission.Bound, bool) {
			b, bounded := room.Owner(name)
			if name == e.Owner {
				b.Left = b.Left.Add(lack(&left.Owner))
			}
			return b, bounded
		}
	}
	return more, able
}

// TestKeptIsNotPassed has others make room for the first in line: nobody is filled back before it, though nobody knows when it will start.
func TestKeptIsNotPassed(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		first, small := tasks(1, needs(4, 0)), takes(time.Minute, tasks(1, needs(1, 0)))
		first.Kept = kept
		q := under(t, respool.QueuePolicy{Backfill: respool.BackfillEASY}, first, small)
		grants, out := q.Admit(nil, &admission.Room{Entitlement: needs(8, 0), Usage: needs(6, 0)}, 10)
		if passed := len(grants) > 0; passed == kept || out.Head.Job != jobID(0) {
			t.Errorf("kept %v: %v is let go, the first in line is %v", kept, grants, out.Head.Job)
		}
	}
}

// TestLeftOfExpress counts what the order has long work leave free for short work.
func TestLeftOfExpress(t *testing.T) {
	t.Parallel()
	q := under(t, respool.QueuePolicy{Order: respool.OrderExpress}, takes(time.Hour, tasks(1, needs(8, 0))))
	left, first := q.LeftFor(jobID(0), &admission.Room{Entitlement: needs(16, 0), Usage: needs(8, 0)})
	if !first || left.Entitlement[cpu] != 6 {
		t.Errorf("%v is left, %v", left.Entitlement[cpu], first)
	}
	if _, first = q.LeftFor(jobID(1), &admission.Room{}); first {
		t.Error("a job that does not wait is first in line")
	}
}
