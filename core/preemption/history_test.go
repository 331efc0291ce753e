package preemption_test

import (
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestLooks wants that no host is passed over, or bounded, on less than the whole search would find.
func TestLooks(t *testing.T) {
	t.Parallel()
	judged := 0
	rapid.Check(t, func(rt *rapid.T) {
		odd := rapid.Bool().Draw(rt, "odd")
		s := drawScene(rt, odd, rapid.Bool().Draw(rt, "bounds"))
		r := preemption.Request{Class: drawWishes(rt, odd).class(jobID(99)), Count: 1, Victims: s.snap}
		if rapid.IntRange(0, 3).Draw(rt, "wait") == 0 {
			if r.Wait = true; rapid.Bool().Draw(rt, "anybody") {
				r.Victims = nil
			}
		}
		n, err := preemption.New(placement.NewNative()).CheckLooks(s.board(), &r)
		if err != nil {
			rt.Fatal(err)
		}
		judged += n
	})
	if judged < 10 {
		t.Errorf("%d hosts judged at a look: the scenes are too dull", judged)
	}
}

func (s *scene) board() preemption.Board {
	return preemption.Board{Table: s.table, Tenants: s, Now: now}
}

// TestSearchRemembers plays histories on one search and compares each answer with that of a new search, and answers to many requests at once with
// answers that share nothing.
func TestSearchRemembers(t *testing.T) {
	t.Parallel()
	taken := 0
	rapid.Check(t, func(rt *rapid.T) {
		odd := rapid.Bool().Draw(rt, "odd")
		s := drawScene(rt, odd, true)
		old := preemption.New(placement.NewNative())
		classes := []*placement.Class{drawWishes(rt, odd).class(jobID(98)), drawWishes(rt, odd).class(jobID(99))}
		for range rapid.IntRange(2, 6).Draw(rt, "calls") {
			var requests []preemption.Request
			other := s.redrawn(rt)
			for range rapid.IntRange(1, 5).Draw(rt, "requests") {
				r := preemption.Request{
					Class: rapid.SampledFrom(classes).Draw(rt, "class"), Count: rapid.IntRange(1, 3).Draw(rt, "count"), Gang: rapid.Bool().Draw(rt, "gang"),
					Victims: rapid.SampledFrom([]*preemption.Snapshot{s.snap, other}).Draw(rt, "snapshot"), DryRun: rapid.IntRange(0, 4).Draw(rt, "dry") == 0,
					Wait: rapid.IntRange(0, 4).Draw(rt, "waits") == 0,
				}
				requests = append(requests, r)
			}
			twin := s.copied()
			want := preemption.New(placement.NewNative()).ServeApart(twin.board(), requests)
			got := old.Serve(s.board(), requests)
			if !reflect.DeepEqual(got, want) {
				rt.Fatalf("%+v, and a new search that shares nothing %+v", got, want)
			}
			for i := range got {
				if !requests[i].DryRun {
					taken += s.kill(old, requests[i].Class, got[i].Assignments)
				}
			}
			s.change(rt, old)
		}
	})
	if taken < 10 {
		t.Errorf("%d victims in all: the scenes are too dull", taken)
	}
}

// TestCrowd has many classes ask in one call, of more hosts than a few, and compares with a search that looks at every host for each.
func TestCrowd(t *testing.T) {
	t.Parallel()
	taken := 0
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		r := rand.New(rand.NewPCG(seed, 0))
		s := crowd(rt, r)
		other := &preemption.Snapshot{Jobs: slices.Clone(s.snap.Jobs), Pools: s.snap.Pools}
		for i := range other.Jobs {
			other.Jobs[i].Rank = r.Int32N(3)
		}
		var requests []preemption.Request
		for n := range 2 + r.IntN(10) {
			requests = append(requests, preemption.Request{
				Class: wishes{cpu: 1 + r.Int64N(8), kind: workload.Batch}.class(jobID(90 + n)), Count: 1 + r.IntN(12), Gang: r.IntN(3) == 0,
				Victims: []*preemption.Snapshot{s.snap, s.snap, other}[r.IntN(3)], DryRun: n < 5 && r.IntN(3) > 0, Wait: r.IntN(10) == 0,
			})
		}
		want := preemption.New(placement.NewNative()).ServeApart(s.copied().board(), requests)
		got := preemption.New(placement.NewNative()).Serve(s.board(), requests)
		for i := range got {
			if !reflect.DeepEqual(got[i], want[i]) {
				rt.Fatalf("request %d, %+v:\n%+v, and a search that looks at every host\n%+v", i, requests[i], got[i], want[i])
			}
			for n := range got[i].Assignments {
				taken += len(got[i].Assignments[n].Victims)
			}
		}
	})
	if taken < 100 {
		t.Errorf("%d victims in all: the scenes are too dull", taken)
	}
}

// crowd is up to 40 full hosts with runs of jobs and gangs, some of which must not go. Nobody else is bound: where a bound keeps somebody from being
// taken, the search may find less that is to go than it found before, so what it finds depends on when it looks.
func crowd(t *rapid.T, r *rand.Rand) *scene {
	hosts := 4 + r.IntN(37)
	var stands []stand
	for row := range hosts {
		for left := int64(12); left > 0; {
			cpu := min(left, int64(1)<<r.IntN(4))
			left -= cpu
			stands = append(stands, stand{1 + r.IntN(20), row, cpu, r.Int64N(4)})
		}
	}
	var jobs []preemption.Job
	for j := range 18 {
		job := may(j+1, r.Int32N(3))
		if job.Revocable = r.IntN(6) == 0; r.IntN(8) == 0 {
			job.Gang = &preemption.Gang{}
		}
		jobs = append(jobs, job)
	}
	s := built(t, hosts, 12, stands, jobs...)
	for i := range jobs {
		if jobs[i].Gang != nil {
			s.count(&s.snap.Jobs[i])
		}
	}
	return s
}

// redrawn is another snapshot of the same jobs.
func (s *scene) redrawn(t *rapid.T) *preemption.Snapshot {
	snap := &preemption.Snapshot{Jobs: slices.Clone(s.snap.Jobs), Pools: s.snap.Pools}
	for i := range snap.Jobs {
		snap.Jobs[i].Rank = rapid.Int32Range(0, 2).Draw(t, "rank anew")
	}
	if len(snap.Jobs) > 1 && rapid.Bool().Draw(t, "in another order") {
		snap.Jobs[0], snap.Jobs[len(snap.Jobs)-1] = snap.Jobs[len(snap.Jobs)-1], snap.Jobs[0]
	}
	return snap
}

// copied is the scene on a table of its own. Rows and domains are numbered as in the original, which has never lost a host.
func (s *scene) copied() *scene {
	c := &scene{hosts: s.hosts, snap: s.snap, booked: slices.Clone(s.booked)}
	c.table = host.New(&resource.Names{}, 64)
	for row, h := range s.hosts {
		if _, err := c.table.Upsert(h); err != nil {
			panic(err)
		}
		c.runs = append(c.runs, slices.Clone(s.runs[row]))
		for _, r := range s.runs[row] {
			c.take(host.Row(row), r.Class, r.Devices, r.Ports)
		}
	}
	for _, b := range s.booked {
		c.take(b.row, b.class, b.devices, b.ports)
	}
	return c
}

// booked is room that nobody runs on yet.
type booked struct {
	row     host.Row
	class   *placement.Class
	devices placement.DeviceSet
	ports   []uint16
}

func (s *scene) take(row host.Row, class *placement.Class, devices placement.DeviceSet, ports []uint16) {
	if err := s.table.Take(row, class.Occupant(devices, ports)); err != nil {
		panic(err)
	}
}

// kill books the room that was found, has victims and their mates die, and tells the search.
func (s *scene) kill(search *preemption.Search, class *placement.Class, list []preemption.Assignment) (n int) {
	var victims []workload.RunID
	for i := range list {
		a := &list[i]
		s.booked = append(s.booked, booked{a.Row, class, a.Devices, a.Ports})
		victims = append(victims, a.Victims...)
	}
	gone := s.isGone(victims)
	for row, runs := range s.runs {
		for i := range runs {
			if !runs[i].Dying && gone(&runs[i]) {
				runs[i].Dying = true
				search.Moved(host.Row(row))
				n++
			}
		}
	}
	return n
}

// change lets a run end, begin or be spared, if one is drawn.
func (s *scene) change(t *rapid.T, search *preemption.Search) {
	row := rapid.IntRange(0, len(s.runs)-1).Draw(t, "row")
	if len(s.runs[row]) == 0 {
		return
	}
	at := rapid.IntRange(0, len(s.runs[row])-1).Draw(t, "run")
	r := &s.runs[row][at]
	switch rapid.IntRange(0, 3).Draw(t, "what") {
	case 0:
		if err := s.table.Release(host.Row(row), r.Class.Occupant(r.Devices, r.Ports)); err != nil {
			t.Fatal(err)
		}
		s.runs[row] = slices.Delete(s.runs[row], at, at+1) // of which the table has told
	case 1:
		r.Started = 3
		search.Moved(host.Row(row))
	case 2:
		r.Dying = !r.Dying
		search.Moved(host.Row(row))
	}
	for i := range s.snap.Jobs {
		if j := &s.snap.Jobs[i]; j.Gang != nil {
			s.count(j)
		}
	}
}

// count brings a gang up to date.
func (s *scene) count(j *preemption.Job) {
	g := &preemption.Gang{}
	j.Gang = g
	for _, runs := range s.runs {
		for _, r := range runs {
			if r.ID.Job == j.ID && !r.Dying {
				g.Runs++
				g.Use = g.Use.Add(r.Class.Needs)
				if r.Started != 0 {
					g.Work += now - r.Started
				}
			}
		}
	}
	g.Runs = max(g.Runs, 1)
}

// TestRankAgainstRules counts for each candidate what its rank is made of: the levels above its own, and the priorities below its own in its pool.
func TestRankAgainstRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		list := make([]preemption.Candidate, rapid.IntRange(0, 12).Draw(rt, "candidates"))
		levels := map[int]map[workload.PoolID]map[int32]bool{}
		for i := range list {
			c := preemption.Candidate{
				Pool: workload.PoolID{rapid.Byte().Draw(rt, "pool") % 3}, Priority: rapid.Int32Range(0, 3).Draw(rt, "priority"), Over: rapid.Int64Range(0, 9).Draw(rt, "over"),
			}
			level := bits.Len64(uint64(c.Over))
			if levels[level] == nil {
				levels[level] = map[workload.PoolID]map[int32]bool{}
			}
			if levels[level][c.Pool] == nil {
				levels[level][c.Pool] = map[int32]bool{}
			}
			levels[level][c.Pool][c.Priority] = true
			list[i] = c
		}
		for i, rank := range (preemption.ByOverage{}).Rank(list) {
			c, want := &list[i], 0
			for level, pools := range levels {
				most := 0
				for pool, priorities := range pools {
					most = max(most, len(priorities))
					for p := range priorities {
						if level == bits.Len64(uint64(c.Over)) && pool == c.Pool && p < c.Priority {
							want++
						}
					}
				}
				if level > bits.Len64(uint64(c.Over)) {
					want += most
				}
			}
			if int(rank) != want {
				rt.Fatalf("candidate %d of %+v has rank %d, not %d", i, list, rank, want)
			}
		}
	})
}
