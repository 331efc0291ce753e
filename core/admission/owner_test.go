package admission_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

func of(owner string, e admission.Entry) admission.Entry {
	e.Owner = owner
	return e
}

func directing(e admission.Entry) admission.Entry {
	e.Controller = true
	return e
}

// bound limits CPUs and leaves other kinds open.
func bound(limit, left int64) admission.Bound {
	b := admission.Bound{}
	for k := range b.Limit {
		b.Limit[k], b.Left[k] = math.MaxInt64, math.MaxInt64
	}
	b.Limit[cpu], b.Left[cpu] = limit, left
	return b
}

func bounds(all map[string]admission.Bound) func(string) (admission.Bound, bool) {
	return func(name string) (admission.Bound, bool) {
		b, ok := all[name]
		return b, ok
	}
}

func TestBoundsBesideThePool(t *testing.T) {
	controllers := bound(6, 3)
	room := admission.Room{
		Entitlement: needs(40, 4), Usage: needs(10, 0), Controllers: &controllers,
		Owner: bounds(map[string]admission.Bound{"ann": bound(20, 8)}),
	}
	q := queue(t,
		of("ann", tasks(3, needs(4, 0))),            // two of them, then she is at her limit
		of("ann", tasks(1, needs(1, 0))),            // hers too
		of("ann", tasks(1, needs(0, 1))),            // not bounded in GPUs
		of("bob", tasks(2, needs(5, 0))),            // nobody waits for her
		of("ann", gang(2, needs(11, 0))),            // never
		directing(of("bob", tasks(2, needs(2, 0)))), // one
		directing(of("bob", tasks(1, needs(1, 0)))),
		directing(of("bob", tasks(1, needs(7, 0)))),
		of("bob", tasks(20, needs(1, 0))),
	)
	want := []admission.Standing{
		{Ahead: 0, Verdict: admission.First, Tasks: 2, Account: admission.OfOwner, Kind: cpu, Need: 4, Has: 0},
		{Ahead: 1, Verdict: admission.Behind, Account: admission.OfOwner, Kind: cpu},
		{Ahead: 2, Verdict: admission.Admissible, Tasks: 1},
		{Ahead: 3, Verdict: admission.Admissible, Tasks: 2},
		{Ahead: 4, Verdict: admission.OutOfReach, Account: admission.OfOwner, Kind: cpu, Need: 22, Has: 20},
		{Ahead: 5, Verdict: admission.First, Tasks: 1, Account: admission.OfControllers, Kind: cpu, Need: 2, Has: 1},
		{Ahead: 6, Verdict: admission.Behind, Account: admission.OfControllers, Kind: cpu},
		{Ahead: 7, Verdict: admission.OutOfReach, Account: admission.OfControllers, Kind: cpu, Need: 7, Has: 6},
		{Ahead: 8, Verdict: admission.First, Tasks: 10, Kind: cpu, Need: 1, Has: 0},
	}
	for i, w := range want {
		if got, ok := q.Explain(jobID(i), &room); !ok || got != w {
			t.Errorf("job %d stands at %+v (%v), want %+v", i, got, got.Verdict, w)
		}
	}
}

// TestOwnersAtTheirLimits has more owners than bits at times, with entries one among another, all but a few of them at their limits.
func TestOwnersAtTheirLimits(t *testing.T) {
	for _, owners := range []int{1, 40, 62, 63, 64, 200} {
		var q admission.Queue
		all, list := map[string]admission.Bound{}, []admission.Entry{}
		for i := range 5000 {
			name := fmt.Sprint("owner ", i%owners)
			all[name] = bound(100, 0)
			e := of(name, tasks(1, needs(1, 0)))
			if i%1000 == 999 {
				e = of("modest", tasks(1, needs(1, 0)))
			}
			e.Job, e.Sequence = jobID(i), uint64(i)
			if err := q.Set(e); err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
		room := admission.Room{Entitlement: needs(1000, 0), Owner: bounds(all)}
		grants, out := q.Admit(nil, &room, noLimit)
		if want := model(list, room, noLimit); len(grants) != 5 || !slices.Equal(grants, want) || out.Stop != admission.StopDone {
			t.Errorf("%d owners: granted %v, %+v; want %v", owners, grants, out, want)
		}
		if out.Visited > owners+5 {
			t.Errorf("%d owners: %d entries were looked at, want each owner's first", owners, out.Visited)
		}
	}
}

// TestOwnersComeAndGo moves entries between owners until every bit was given away and taken back.
func TestOwnersComeAndGo(t *testing.T) {
	var q admission.Queue
	full := bounds(map[string]admission.Bound{"full": bound(9, 0)})
	for i := range 300 {
		e := of(fmt.Sprint(i), tasks(1, needs(1, 0)))
		e.Job = workload.JobID{15: 1}
		if err := q.Set(e); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			q.Remove(e.Job)
		}
	}
	e := of("full", tasks(1, needs(1, 0)))
	e.Job = workload.JobID{15: 1}
	if err := q.Set(e); err != nil {
		t.Fatal(err)
	}
	room := admission.Room{Entitlement: needs(9, 0), Owner: full}
	if grants, _ := q.Admit(nil, &room, noLimit); len(grants) != 0 {
		t.Errorf("granted %v over the owner's limit", grants)
	}
	room.Owner = nil
	if grants, _ := q.Admit(nil, &room, noLimit); len(grants) != 1 {
		t.Errorf("granted %v without a limit", grants)
	}
}

// BenchmarkOwnersAtTheirLimits walks a queue of 100,000 jobs that all wait for their owners' limits.
func BenchmarkOwnersAtTheirLimits(b *testing.B) {
	for _, owners := range []int{50, 1000} {
		b.Run(fmt.Sprintf("owners=%d", owners), func(b *testing.B) {
			var q admission.Queue
			for i := range 100_000 {
				e := of(fmt.Sprint(i%owners), tasks(1, needs(1, 0)))
				e.Job, e.Sequence = jobID(i), uint64(i)
				if err := q.Set(e); err != nil {
					b.Fatal(err)
				}
			}
			full := bound(100, 0)
			room := admission.Room{
				Entitlement: resource.Vector{cpu: 1 << 40}, Owner: func(string) (admission.Bound, bool) { return full, true },
			}
			var out admission.Outcome
			for b.Loop() {
				_, out = q.Admit(nil, &room, 4096)
			}
			b.ReportMetric(float64(out.Visited), "visited")
		})
	}
}
