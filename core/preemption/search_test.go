package preemption_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// stand is one run to be put on a host.
type stand struct {
	job     int
	row     int
	cpu     int64
	started int64
}

// built makes hosts of so many CPUs, the runs on them, and a snapshot of jobs that may all go.
func built(t rapid.TB, hosts int, cpus int64, stands []stand, jobs ...preemption.Job) *scene {
	s := &scene{table: host.New(&resource.Names{}, 16384), snap: &preemption.Snapshot{Jobs: jobs}}
	for n := range hosts {
		h := host.Host{ID: workload.HostID{14: byte(n >> 8), 15: byte(n), 0: 1}, Name: fmt.Sprint("h", n), Ready: true, Capacity: resource.Vector{resource.CPU: cpus}}
		if _, err := s.table.Upsert(h); err != nil {
			t.Fatal(err)
		}
		s.hosts, s.runs = append(s.hosts, h), append(s.runs, nil)
	}
	classes := map[[2]int64]*placement.Class{}
	for i, x := range stands {
		key := [2]int64{int64(x.job), x.cpu}
		if classes[key] == nil {
			classes[key] = wishes{cpu: x.cpu, kind: workload.Batch}.class(jobID(x.job))
		}
		r := preemption.Run{ID: workload.RunID{Job: jobID(x.job), Instance: uint32(i)}, Class: classes[key], Started: x.started}
		s.runs[x.row] = append(s.runs[x.row], r)
		if err := s.table.Take(host.Row(x.row), r.Class.Occupant(0, nil)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func may(n int, rank int32) preemption.Job {
	return preemption.Job{ID: jobID(n), Rank: rank, Allow: math.MaxInt32, Pool: -1}
}

// victims spells the answers as "row:instances".
func victims(results []preemption.Result) (list []string) {
	for _, r := range results {
		for i := range r.Assignments {
			a := &r.Assignments[i]
			var who []uint32
			for _, v := range a.Victims {
				who = append(who, v.Instance)
			}
			slices.Sort(who)
			list = append(list, fmt.Sprint(a.Row, ":", who))
		}
	}
	return list
}

// pick is a scene and what the search makes of it.
type pick struct {
	name   string
	hosts  int
	stands []stand
	jobs   []preemption.Job
	over   int64 // of pool 0
	cpu    int64
	count  int
	want   []string
}

func pooled(n int, rank int32, pool int32) preemption.Job {
	j := may(n, rank)
	j.Pool = pool
	return j
}

func gang(n int, rank int32, size int32, cpu int64) preemption.Job {
	j := may(n, rank)
	j.Gang = &preemption.Gang{Runs: size, Use: resource.Vector{resource.CPU: cpu}, Work: 5}
	return j
}

var picks = []pick{
	{
		"the lowest rank goes", 2,
		[]stand{{1, 0, 4, 10}, {2, 1, 4, 10}},
		[]preemption.Job{may(1, 1), may(2, 0)},
		0, 2, 1,
		[]string{"1:[1]"},
	},
	{
		"what does not run yet goes before any rank", 2,
		[]stand{{1, 0, 4, 10}, {2, 1, 4, 0}},
		[]preemption.Job{may(1, 0), may(2, 5)},
		0, 2, 1,
		[]string{"1:[1]"},
	},
	{
		"revocable work goes before all", 2,
		[]stand{{1, 0, 4, 0}, {2, 1, 4, 10}},
		[]preemption.Job{may(1, 0), {ID: jobID(2), Rank: 9, Revocable: true, Allow: 1, Pool: -1}},
		0, 2, 1,
		[]string{"1:[1]"},
	},
	{
		"what was started last goes", 1,
		[]stand{{1, 0, 2, 10}, {1, 0, 2, 20}},
		[]preemption.Job{may(1, 0)},
		0, 2, 1,
		[]string{"0:[1]"},
	},
	{
		"one large victim rather than two small ones before it", 1,
		[]stand{{1, 0, 1, 30}, {1, 0, 1, 20}, {1, 0, 2, 10}},
		[]preemption.Job{may(1, 0)},
		0, 2, 1,
		[]string{"0:[2]"},
	},
	{
		"the host where fewer go", 2,
		[]stand{{1, 0, 2, 10}, {1, 0, 2, 10}, {1, 1, 4, 10}},
		[]preemption.Job{may(1, 0)},
		0, 4, 1,
		[]string{"1:[2]"},
	},
	{
		"the mates of a gang count wherever they are", 3,
		[]stand{{1, 0, 4, 10}, {1, 1, 4, 10}, {2, 2, 2, 10}, {2, 2, 2, 10}},
		[]preemption.Job{gang(1, 0, 3, 12), may(2, 0)},
		0, 4, 1,
		[]string{"2:[2 3]"},
	},
	{
		"one victim makes room for two", 1,
		[]stand{{1, 0, 4, 10}},
		[]preemption.Job{may(1, 0)},
		0, 2, 2,
		[]string{"0:[0]", "0:[]"},
	},
	{
		"a gang that goes makes room on all its hosts", 2,
		[]stand{{1, 0, 4, 10}, {1, 1, 4, 10}},
		[]preemption.Job{gang(1, 0, 2, 8)},
		0, 4, 2,
		[]string{"0:[0]", "1:[]"},
	},
	{
		"a pool gives no more once it is not above its entitlement", 2,
		[]stand{{1, 0, 4, 10}, {1, 1, 4, 10}},
		[]preemption.Job{pooled(1, 0, 0)},
		3, 4, 2,
		[]string{"0:[0]"},
	},
	{
		"a small victim does not use up what a large one needs", 1,
		[]stand{{1, 0, 1, 20}, {1, 0, 3, 10}},
		[]preemption.Job{pooled(1, 0, 0)},
		1, 3, 1,
		[]string{"0:[1]"},
	},
}

func TestSearchPicks(t *testing.T) {
	t.Parallel()
	for _, c := range picks {
		s := built(t, c.hosts, 4, c.stands, c.jobs...)
		s.snap.Pools = []preemption.Pool{{Over: resource.Vector{resource.CPU: c.over}}}
		got := victims(serve(s, preemption.Request{
			Class: wishes{cpu: c.cpu, kind: workload.Batch}.class(jobID(99)), Count: c.count, Victims: s.snap,
		}))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSearchAfterGang has a host with a mate of a gang that an earlier request took, beside work that must not go.
func TestSearchAfterGang(t *testing.T) {
	s := built(t, 2, 6, []stand{{9, 0, 2, 5}, {9, 1, 2, 5}, {1, 0, 4, 10}, {1, 1, 2, 10}, {2, 1, 2, 10}},
		gang(1, 0, 2, 6), preemption.Job{ID: jobID(2), Rank: 1, Allow: 1, Pool: -1})
	ask := func(cpu int64) preemption.Request {
		return preemption.Request{Class: wishes{cpu: cpu, kind: workload.Batch}.class(jobID(8)), Count: 1, Victims: s.snap}
	}
	first := ask(3)
	first.Host = s.hosts[0].ID // the other host is not looked at before the gang is gone
	got := victims(serve(s, first, ask(4)))
	if want := []string{"0:[2]", "1:[4]"}; !slices.Equal(got, want) {
		t.Errorf("%v; want %v", got, want)
	}
}

// TestSearchWaits asks for room that comes free by itself: nobody has to be ended, and a service never ends.
func TestSearchWaits(t *testing.T) {
	t.Parallel()
	s := built(t, 3, 4, []stand{{1, 0, 4, 10}, {1, 1, 4, 20}, {2, 2, 4, 1}})
	s.runs[2][0].Class = wishes{cpu: 4, kind: workload.Service}.class(jobID(2))
	class := wishes{cpu: 4, kind: workload.Batch}.class(jobID(99))
	got := serve(s, preemption.Request{Class: class, Count: 3, Wait: true})
	if want := []string{"0:[0]", "1:[1]"}; !slices.Equal(victims(got), want) || got[0].Refused != 1 {
		t.Errorf("%v, want %v and one refused", victims(got), want)
	}
}

// TestSearchWaitsForWhoEndsSoon is told who is expected to end: the soonest are waited for, and whoever is not named is not.
func TestSearchWaitsForWhoEndsSoon(t *testing.T) {
	t.Parallel()
	s := built(t, 3, 4, []stand{{1, 0, 4, 10}, {2, 1, 4, 20}, {3, 2, 4, 1}}, may(1, 600), may(2, 60))
	class := wishes{cpu: 4, kind: workload.Batch}.class(jobID(99))
	got := serve(s, preemption.Request{Class: class, Count: 3, Wait: true, Victims: s.snap})
	if want := []string{"1:[1]", "0:[0]"}; !slices.Equal(victims(got), want) || got[0].Refused != 1 {
		t.Errorf("%v, want %v and one refused", victims(got), want)
	}
}

func TestRank(t *testing.T) {
	t.Parallel()
	const most = math.MaxInt64
	pool := func(n byte) workload.PoolID { return workload.PoolID{n} }
	for _, c := range []struct {
		name       string
		candidates []preemption.Candidate
		want       []int32
	}{
		{"the pool that is further over first, then by priority", []preemption.Candidate{
			{Pool: pool(1), Priority: 5, Over: 10}, {Pool: pool(2), Priority: 9, Over: 20}, {Pool: pool(1), Priority: 1, Over: 10}, {Pool: pool(2), Priority: 9, Over: 20},
		}, []int32{2, 0, 1, 0}},
		{"pools about as far over are alike, and priorities count within each", []preemption.Candidate{
			{Pool: pool(1), Priority: 5, Over: 300_000},
			{Pool: pool(2), Priority: 9, Over: 500_000},
			{Pool: pool(1), Priority: 1, Over: 300_000},
			{Pool: pool(3), Priority: 0, Over: 200_000},
		}, []int32{1, 0, 0, 2}},
		{"revocable work is alike but for priorities", []preemption.Candidate{
			{Pool: pool(2), Priority: 3, Over: most}, {Pool: pool(1), Priority: 7, Over: most}, {Pool: pool(1), Priority: 8, Over: most}, {Pool: pool(3), Over: 1},
		}, []int32{0, 0, 1, 2}},
		{"nobody", nil, []int32{}},
	} {
		if got := (preemption.ByOverage{}).Rank(c.candidates); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for _, c := range []struct{ used, entitled, want int64 }{
		{100, 100, 0}, {140, 100, 400_000}, {1, 0, 1_000_000}, {math.MaxInt64, 0, math.MaxInt64}, {50, 100, 0}, {1 << 50, 1, math.MaxInt64},
	} {
		if got := preemption.Overage(resource.Vector{c.used}, resource.Vector{c.entitled}); got != c.want {
			t.Errorf("%d of %d: %d, want %d", c.used, c.entitled, got, c.want)
		}
	}
}

// TestLonersOfAJobWithGangs has a single instance go whose job has a gang elsewhere, beside work that must not.
func TestLonersOfAJobWithGangs(t *testing.T) {
	t.Parallel()
	parts := func(first uint32) []workload.InstanceRange {
		return []workload.InstanceRange{{First: first, Last: first}}
	}
	loner, other := may(3, 0), gang(3, 1, 1, 4)
	loner.Gang, other.Gang.Members = &preemption.Gang{Members: parts(1)}, parts(2)
	s := built(t, 2, 4, []stand{{2, 0, 2, 10}, {3, 0, 2, 10}, {3, 1, 4, 10}}, other, loner)
	got := victims(serve(s, preemption.Request{Class: wishes{cpu: 2, kind: workload.Batch}.class(jobID(99)), Count: 1, Victims: s.snap}))
	if want := []string{"0:[1]"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// BenchmarkSearch makes room on 5,000 full hosts with 10 runs each, of jobs in ten ranks. The classes of the requests take turns; each call is
// one request, and after each everything is as before. So many jobs are victims.
func BenchmarkSearch(b *testing.B) {
	const hosts = 5000
	sizes := []int64{1, 1, 2, 2, 4, 1, 1, 2, 1, 1} // of the runs of a host, together its CPUs
	for _, jobs := range []int{200, 16_000} {
		for _, count := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("jobs=%d/tasks=%d", jobs, count), func(b *testing.B) {
				var stands []stand
				var victims []preemption.Job
				for n := range hosts * len(sizes) {
					stands = append(stands, stand{job: n * 31 % jobs, row: n / len(sizes), cpu: sizes[n%len(sizes)], started: int64(n*7919%997 + 1)})
				}
				for j := range jobs {
					victims = append(victims, may(j, int32(j%10)))
				}
				s := built(b, hosts, 16, stands, victims...)
				var classes []*placement.Class
				for cpu := range int64(8) {
					classes = append(classes, wishes{cpu: cpu + 1, kind: workload.Batch}.class(workload.JobID{2}))
				}
				search := preemption.New(placement.NewNative())
				b.ResetTimer()
				for n := 0; b.Loop(); n++ {
					got := search.Serve(preemption.Board{Table: s.table, Tenants: s, Now: now}, []preemption.Request{
						{Class: classes[n%len(classes)], Count: count, Victims: s.snap, DryRun: true},
					})
					if got[0].Refused > 0 {
						b.Fatal("not all found room")
					}
				}
				b.ReportMetric(float64(b.N*count)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
	}
}

// BenchmarkFirst is the first search of a shard, which looks at who is on each of its 10,000 hosts.
func BenchmarkFirst(b *testing.B) {
	const hosts, runs, jobs = 10_000, 9, 400
	var stands []stand
	var victims []preemption.Job
	for n := range hosts * runs {
		stands = append(stands, stand{job: n * 31 % jobs, row: n / runs, cpu: int64(n%4 + 1), started: int64(n*7919%997 + 1)})
	}
	for j := range jobs {
		victims = append(victims, may(j, int32(j%10)))
	}
	s := built(b, hosts, 24, stands, victims...)
	class := wishes{cpu: 8, kind: workload.Batch}.class(workload.JobID{2})
	for b.Loop() {
		preemption.New(placement.NewNative()).Serve(s.board(), []preemption.Request{{Class: class, Count: 1, Victims: s.snap, DryRun: true}})
	}
}
