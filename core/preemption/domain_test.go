package preemption_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// rack puts hosts in racks by what name says of their rows; "": in none.
func (s *scene) rack(t testing.TB, name func(row int) string) {
	for row := range s.hosts {
		if rack := name(row); rack != "" {
			s.hosts[row].Attributes = map[string]string{"rack": rack}
			if _, err := s.table.Upsert(s.hosts[row]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// inRack is a class that may stand in one rack only, by a constraint; "": in any.
func inRack(w wishes, job workload.JobID, rack string) *placement.Class {
	spec := &workload.JobSpec{Kind: w.kind}
	spec.Template.Needs = resource.Vector{resource.CPU: w.cpu, resource.Memory: w.mem}
	if rack != "" {
		spec.Placement.Constraints = []workload.Constraint{{Key: "rack", Op: workload.OpIn, Values: []string{rack}}}
	}
	return placement.NewClass(job, spec, nil)
}

// toll is what victims cost together: the worst place in the order, runs, work, with the mates of gangs.
type toll [3]int64

func (s *scene) toll(results []preemption.Result) toll {
	sum := toll{-1}
	gangs := map[workload.JobID]bool{}
	var victims []workload.RunID
	for _, result := range results {
		for i := range result.Assignments {
			victims = append(victims, result.Assignments[i].Victims...)
		}
	}
	for _, runs := range s.runs {
		for n := range runs {
			r := &runs[n]
			if !slices.Contains(victims, r.ID) || gangs[r.ID.Job] {
				continue
			}
			j := s.job(r.ID.Job)
			sum[0] = max(sum[0], int64(s.tier(r)))
			switch {
			case j.Gang != nil:
				gangs[r.ID.Job] = true
				sum[1], sum[2] = sum[1]+int64(j.Gang.Runs), sum[2]+j.Gang.Work
			case r.Started != 0:
				sum[1], sum[2] = sum[1]+1, sum[2]+now-r.Started
			default:
				sum[1]++
			}
		}
	}
	return sum
}

func refusedAny(results []preemption.Result) bool {
	return slices.ContainsFunc(results, func(r preemption.Result) bool { return r.Refused > 0 })
}

// TestDomainsAgainstOneByOne compares the domain that is chosen for a gang with what each domain would cost by itself: the same search, kept to the
// domain by a constraint of the class instead.
func TestDomainsAgainstOneByOne(t *testing.T) {
	t.Parallel()
	placed, forced, chosen := 0, int64(0), 0
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScene(rt, false, rapid.Bool().Draw(rt, "bounds"))
		s.rack(t, func(int) string { return rapid.SampledFrom([]string{"", "x", "y", "z", "z"}).Draw(rt, "rack") })
		wants := []wishes{drawWishes(rt, false), drawWishes(rt, false)}[:rapid.IntRange(1, 2).Draw(rt, "classes")]
		dry := rapid.Bool().Draw(rt, "dry")
		ask := func(rack string, dry bool) (list []preemption.Request) {
			for n, w := range wants {
				r := preemption.Request{Class: inRack(w, jobID(90+n), rack), Count: n + 1, Gang: true, Victims: s.snap, DryRun: dry}
				if rack == "" {
					r.Unit, r.Within = 7, "rack"
				}
				list = append(list, r)
			}
			return list
		}
		before := s.books()
		var best toll
		options := 0
		for _, rack := range []string{"x", "y", "z"} {
			results := serve(s, ask(rack, true)...)
			if refusedAny(results) {
				continue
			}
			if cost := s.toll(results); options == 0 || slices.Compare(cost[:], best[:]) < 0 {
				best = cost
			}
			options++
		}
		found := serve(s, ask("", dry)...)
		if whole := !refusedAny(found); whole != (options > 0) {
			rt.Fatalf("%d domains would do, and the gang is answered %+v", options, found)
		} else if after := s.books(); (dry || !whole) && after != before {
			rt.Fatalf("nothing was to be taken, and\n%s\nbecame\n%s", before, after)
		} else if !whole {
			return
		}
		if got := s.toll(found); got != best {
			rt.Fatalf("it costs %v, and another domain %v: %+v", got, best, found)
		}
		s.checkOneRack(rt, found)
		placed, chosen, forced = placed+1, chosen+options-1, forced+best[1]
	})
	if placed < 10 || forced < 10 || chosen < 3 {
		t.Errorf("%d gangs placed with %d runs ended, %d domains to choose from beside the first: the scenes are too dull", placed, forced, chosen)
	}
}

func (s *scene) checkOneRack(t rapid.TB, results []preemption.Result) {
	rack := ""
	for _, r := range results {
		for i := range r.Assignments {
			at := s.hosts[r.Assignments[i].Row].Attributes["rack"]
			if at == "" || (rack != "" && at != rack) {
				t.Fatalf("a gang stands in rack %q and in rack %q: %+v", rack, at, results)
			}
			rack = at
		}
	}
}

// TestDomainsGoWholeOrNotAtAll: where no rack is large enough nothing is taken, though all racks together would be.
func TestDomainsGoWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := built(t, 4, 4, []stand{{1, 0, 4, 1}, {1, 1, 4, 1}, {1, 2, 4, 1}, {1, 3, 4, 1}}, may(1, 0))
	s.rack(t, func(row int) string { return fmt.Sprint("r", row/2) })
	before := s.books()
	request := preemption.Request{Class: inRack(wishes{cpu: 4, kind: workload.Batch}, jobID(9), ""), Count: 3, Gang: true, Victims: s.snap, Unit: 1, Within: "rack"}
	if got := serve(s, request)[0]; got.Refused != 3 || len(got.Assignments) != 0 || s.books() != before {
		t.Errorf("three of four hosts in racks of two: %+v", got)
	}
	request.Count = 2
	if got := serve(s, request); refusedAny(got) {
		t.Errorf("two hosts of one rack: %+v", got)
	} else {
		s.checkOneRack(t, got)
	}
	request.Within = "zone" // which no host has
	if got := serve(s, request)[0]; got.Refused != 2 {
		t.Errorf("no host has a zone: %+v", got)
	}
}

// TestMatesDoNotOfferTheirHosts: a gang that goes clears hosts, of which only those count that the class may use.
func TestMatesDoNotOfferTheirHosts(t *testing.T) {
	t.Parallel()
	gang := may(1, 0)
	gang.Gang = &preemption.Gang{Runs: 2, Use: resource.Vector{resource.CPU: 8}, Work: 1}
	s := built(t, 2, 4, []stand{{1, 0, 4, 1}, {1, 1, 4, 1}}, gang)
	s.rack(t, func(row int) string { return fmt.Sprint("r", row) })
	request := preemption.Request{Class: inRack(wishes{cpu: 4, kind: workload.Batch}, jobID(9), "r0"), Count: 2, Victims: s.snap, DryRun: true}
	first := request // meets both hosts, and finds no room
	first.Class, first.Gang, first.Count = inRack(wishes{cpu: 4, kind: workload.Batch}, jobID(8), ""), true, 3
	if got := serve(s, first, request)[1]; len(got.Assignments) != 1 || got.Assignments[0].Row != 0 {
		t.Errorf("by a constraint: %+v", got)
	}
	request.Class = inRack(wishes{cpu: 4, kind: workload.Batch}, jobID(9), "")
	request.Host = s.hosts[0].ID
	if got := serve(s, first, request)[1]; len(got.Assignments) != 1 || got.Assignments[0].Row != 0 {
		t.Errorf("by name: %+v", got)
	}
}

// TestGangGoesOnce: a gang that goes for one request goes for no other, whatever was tried and undone between them; its mates' hosts, met later, are simply free.
func TestGangGoesOnce(t *testing.T) {
	t.Parallel()
	gang := may(1, 0)
	gang.Gang = &preemption.Gang{Runs: 2, Use: resource.Vector{resource.CPU: 8}, Work: 1}
	ask := func(s *scene, job, count int, host int) preemption.Request {
		r := preemption.Request{Class: inRack(wishes{cpu: 4, kind: workload.Batch}, jobID(job), ""), Count: count, Victims: s.snap, DryRun: true}
		if host >= 0 {
			r.Host = s.hosts[host].ID
		}
		return r
	}
	free := func(name string, r preemption.Result) {
		t.Helper()
		if len(r.Assignments) != 1 || r.Assignments[0].Row != 1 || len(r.Assignments[0].Victims) != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	s := built(t, 2, 4, []stand{{1, 0, 4, 1}, {1, 1, 4, 1}}, gang)
	free("on the mate's host, by name", serve(s, ask(s, 8, 1, 0), ask(s, 9, 1, 1))[1])

	s = built(t, 2, 4, []stand{{1, 0, 4, 1}, {1, 1, 4, 1}}, gang)
	tooMuch := ask(s, 9, 2, -1)
	tooMuch.Gang = true
	got := serve(s, ask(s, 8, 1, 0), tooMuch, ask(s, 10, 1, -1))
	if len(got[1].Assignments) != 0 {
		t.Fatalf("two found room on what one took: %+v", got[1])
	}
	free("after one that was undone", got[2])
}

// BenchmarkDomains asks for a gang of 16 on full hosts, within one rack and anywhere.
func BenchmarkDomains(b *testing.B) {
	const hosts, perHost = 8192, 4
	var stands []stand
	for row := range hosts {
		for range perHost {
			stands = append(stands, stand{job: 1 + row%3, row: row, cpu: 1, started: int64(1 + row%7)})
		}
	}
	for _, racks := range []int{0, 4, 64, 512} {
		b.Run(fmt.Sprint("racks=", racks), func(b *testing.B) {
			s := built(b, hosts, perHost, stands, may(1, 0), may(2, 1), may(3, 2))
			r := preemption.Request{Class: inRack(wishes{cpu: 2, kind: workload.Batch}, jobID(9), ""), Count: 16, Gang: true, Victims: s.snap, DryRun: true}
			if racks > 0 {
				s.rack(b, func(row int) string { return fmt.Sprint("r", row%racks) })
				r.Unit, r.Within = 1, "rack"
			}
			search := preemption.New(placement.NewNative())
			for b.Loop() {
				if got := search.Serve(preemption.Board{Table: s.table, Tenants: s, Now: now}, []preemption.Request{r}); refusedAny(got) {
					b.Fatal("no room")
				}
			}
		})
	}
}
