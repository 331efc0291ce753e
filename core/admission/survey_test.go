package admission_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestSurveyAgreesWithExplain asks for everybody at once and one by one, under every policy. Who was not visited is asked for by what he needs
// alone; who then waits for the pool may be told another kind of resource, since Explain knows what was waited for before him.
func TestSurveyAgreesWithExplain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q admission.Queue
		q.SetPolicy(drawPolicy(t))
		room := drawRoom(t)
		room.Now = int64(time.Hour)
		var all []admission.Entry
		for job := range rapid.IntRange(1, 25).Draw(t, "jobs") {
			e := drawEntry(t, job)
			e.RunTime = rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "run time")
			e.Since = int64(time.Hour) - rapid.Int64Range(0, int64(time.Hour)).Draw(t, "waited")
			if err := q.Set(e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		visited := map[workload.JobID]admission.Standing{}
		survey := q.Survey(&room)
		for _, v := range survey.Visited {
			visited[v.Job] = v.Standing
		}
		rest := map[workload.JobID]admission.Standing{}
		for _, e := range all {
			rest[e.Job] = survey.Rest(&admission.Entry{
				Needs: e.Needs, Count: max(1, e.Gang), Gang: e.Gang, NonPreemptible: e.NonPreemptible, Controller: e.Controller, Owner: e.Owner,
			})
		}
		for _, e := range all {
			one, _ := q.Explain(e.Job, &room)
			one.Ahead = 0
			if all, ok := visited[e.Job]; ok {
				if all != one {
					t.Fatalf("job %v stands at %+v, in the survey at %+v", e, one, all)
				}
				continue
			}
			all := rest[e.Job]
			if waitsForPool(&one) && waitsForPool(&all) {
				one.Kind, one.Account = all.Kind, all.Account
			}
			if all != one {
				t.Fatalf("job %v stands at %+v, in the survey's rest at %+v", e, one, all)
			}
		}
	})
}

func waitsForPool(s *admission.Standing) bool {
	return s.Verdict == admission.Behind && s.Account != admission.OfOwner && s.Account != admission.OfControllers
}

// BenchmarkSurvey is of 100,000 jobs of 1,000 classes of which none can start.
func BenchmarkSurvey(b *testing.B) {
	q, room := classes(b, 100_000, respool.QueuePolicy{})
	e := admission.Entry{Needs: needs(1, 0), Count: 1}
	for b.Loop() {
		v := q.Survey(room)
		for range 1000 {
			v.Rest(&e)
		}
	}
}
