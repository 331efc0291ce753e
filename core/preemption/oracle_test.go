package preemption_test

import (
	"fmt"
	"math"
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

// scene is a table with who is on it.
type scene struct {
	table  *host.Table
	hosts  []host.Host
	runs   [][]preemption.Run // by row
	snap   *preemption.Snapshot
	booked []booked // by requests, in order
}

func (s *scene) Tenants(row host.Row, into []preemption.Run) []preemption.Run {
	return append(into, s.runs[row]...)
}

const now = int64(1000)

// wishes is what makes a class: the fields vary what placement has to judge.
type wishes struct {
	cpu, mem, gpu int64
	ports         []uint16
	exclusive     bool
	avoid         bool // an anti-affinity to tasks labelled noisy on the host
	noisy         bool
	kind          workload.Kind
}

func (w wishes) class(job workload.JobID) *placement.Class {
	spec := &workload.JobSpec{Kind: w.kind}
	spec.Template.Needs = resource.Vector{resource.CPU: w.cpu, resource.Memory: w.mem, resource.GPU: w.gpu}
	for _, p := range w.ports {
		spec.Template.Ports = append(spec.Template.Ports, workload.Port{Name: "p", Number: p})
	}
	spec.Placement.Exclusive = w.exclusive
	if w.avoid {
		spec.Placement.Affinities = []workload.Affinity{{Selector: map[string]string{"noisy": "yes"}, Topology: workload.TopologyHost, Anti: true}}
	}
	if w.noisy {
		spec.Labels = map[string]string{"noisy": "yes"}
	}
	return placement.NewClass(job, spec, nil)
}

func drawWishes(t *rapid.T, odd bool) wishes {
	w := wishes{cpu: rapid.Int64Range(1, 4).Draw(t, "cpu"), mem: rapid.Int64Range(0, 3).Draw(t, "mem"), kind: workload.Batch}
	if odd {
		w.gpu = rapid.SampledFrom([]int64{0, 0, 500, 1000, 2000}).Draw(t, "gpu")
		w.ports = rapid.SampledFrom([][]uint16{nil, nil, {0}, {10}, {10, 0}}).Draw(t, "ports")
		w.exclusive = rapid.IntRange(0, 5).Draw(t, "exclusive") == 0
		w.avoid = rapid.IntRange(0, 3).Draw(t, "avoid") == 0
		w.noisy = rapid.IntRange(0, 3).Draw(t, "noisy") == 0
	}
	if rapid.IntRange(0, 4).Draw(t, "service") == 0 {
		w.kind = workload.Service
	}
	return w
}

func jobID(n int) workload.JobID { return workload.JobID{1, byte(n), byte(n >> 8)} }

// drawScene fills hosts as placement would, so that nothing in the beginning is overfull.
func drawScene(t *rapid.T, odd, bounds bool) *scene {
	s := &scene{table: host.New(&resource.Names{}, 8), snap: &preemption.Snapshot{}}
	for n := range rapid.IntRange(1, 3).Draw(t, "hosts") {
		h := host.Host{
			ID: workload.HostID{15: byte(n + 1)}, Name: fmt.Sprint("h", n), Ready: rapid.IntRange(0, 9).Draw(t, "ready") > 0,
			Capacity: resource.Vector{resource.CPU: rapid.Int64Range(2, 8).Draw(t, "cap"), resource.Memory: 6},
			Ports:    []host.PortRange{{First: 10, Last: 12}},
		}
		for range rapid.IntRange(0, 3).Draw(t, "devices") {
			h.Devices = append(h.Devices, host.Device{Model: "A", Milli: 1000})
		}
		if _, err := s.table.Upsert(h); err != nil {
			t.Fatal(err)
		}
		s.hosts, s.runs = append(s.hosts, h), append(s.runs, nil)
	}
	native := placement.NewNative()
	for j := range rapid.IntRange(1, 5).Draw(t, "jobs") {
		class := drawWishes(t, odd).class(jobID(j))
		found := native.Place(s.table, []placement.Request{{Class: class, Count: rapid.IntRange(1, 4).Draw(t, "runs")}})
		for i, a := range found[0].Assignments {
			s.runs[a.Row] = append(s.runs[a.Row], preemption.Run{
				ID: workload.RunID{Job: jobID(j), Instance: uint32(i)}, Class: class, Devices: a.Devices, Ports: a.Ports,
				Started: rapid.Int64Range(0, 3).Draw(t, "started"), Dying: rapid.IntRange(0, 7).Draw(t, "dying") == 0,
			})
		}
		if rapid.IntRange(0, 5).Draw(t, "not for taking") == 0 {
			continue
		}
		s.enter(t, j, bounds)
	}
	if bounds {
		for range 2 {
			s.snap.Pools = append(s.snap.Pools, preemption.Pool{Over: resource.Vector{
				resource.CPU: rapid.Int64Range(0, 5).Draw(t, "over"), resource.Memory: rapid.Int64Range(0, 2).Draw(t, "overMem"),
			}})
		}
	}
	return s
}

// enter makes a job a possible victim.
func (s *scene) enter(t *rapid.T, j int, bounds bool) {
	job := preemption.Job{
		ID: jobID(j), Rank: rapid.Int32Range(0, 2).Draw(t, "rank"), Revocable: rapid.IntRange(0, 4).Draw(t, "revocable") == 0, Allow: math.MaxInt32, Pool: -1,
	}
	if bounds {
		job.Allow = rapid.SampledFrom([]int32{1, 2, math.MaxInt32}).Draw(t, "allow")
		job.Pool = rapid.Int32Range(-1, 1).Draw(t, "pool")
	}
	if rapid.IntRange(0, 3).Draw(t, "gang") == 0 {
		for _, runs := range s.runs {
			for _, r := range runs {
				if r.ID.Job != job.ID {
					continue
				}
				if job.Gang == nil {
					job.Gang = &preemption.Gang{}
				}
				job.Gang.Runs++
				job.Gang.Use = job.Gang.Use.Add(r.Class.Needs)
				if r.Started != 0 {
					job.Gang.Work += now - r.Started
				}
			}
		}
	}
	s.snap.Jobs = append(s.snap.Jobs, job)
}

// together is how many runs go with one of a job.
func together(j *preemption.Job) int32 {
	if j.Gang == nil {
		return 1
	}
	return j.Gang.Runs
}

func (s *scene) job(id workload.JobID) *preemption.Job {
	for i := range s.snap.Jobs {
		if s.snap.Jobs[i].ID == id {
			return &s.snap.Jobs[i]
		}
	}
	return nil
}

// tier is the place of a run in the order, written down once more.
func (s *scene) tier(r *preemption.Run) int {
	j := s.job(r.ID.Job)
	tier := int(j.Rank)
	if r.Started != 0 && j.Gang == nil || j.Gang != nil && j.Gang.Work > 0 {
		tier += 10
	}
	if !j.Revocable {
		tier += 100
	}
	return tier
}

// without builds the table anew without some runs, the mates of their gangs, and the dying.
func (s *scene) without(gone func(*preemption.Run) bool) *host.Table {
	table := host.New(&resource.Names{}, 8)
	for row, h := range s.hosts {
		at, err := table.Upsert(h)
		if err != nil || int(at) != row {
			panic("a host has another row")
		}
		for i := range s.runs[row] {
			if r := &s.runs[row][i]; !r.Dying && !gone(r) {
				if err := table.Take(at, r.Class.Occupant(r.Devices, r.Ports)); err != nil {
					panic(err)
				}
			}
		}
	}
	return table
}

func fitsOn(t *host.Table, row host.Row, class *placement.Class) bool {
	found := placement.NewNative().Place(t, []placement.Request{{Class: class, Count: 1, Host: t.ID(row)}})
	return len(found[0].Assignments) == 1
}

// isGone returns who goes with the given victims.
func (s *scene) isGone(victims []workload.RunID) func(*preemption.Run) bool {
	return func(r *preemption.Run) bool {
		if j := s.job(r.ID.Job); j != nil && j.Gang != nil {
			return slices.ContainsFunc(victims, func(v workload.RunID) bool { return v.Job == r.ID.Job })
		}
		return slices.Contains(victims, r.ID)
	}
}

// TestSearchAgainstBruteForce compares one task's answer with all sets of victims on all hosts.
func TestSearchAgainstBruteForce(t *testing.T) {
	t.Parallel()
	found, forced := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		odd := rapid.Bool().Draw(rt, "odd")
		s := drawScene(rt, odd, false)
		class := drawWishes(rt, odd).class(jobID(99))
		before := s.table.Revision()
		request := preemption.Request{Class: class, Count: 1, Victims: s.snap, DryRun: rapid.Bool().Draw(rt, "dry")}
		result := serve(s, request)[0]
		best, fits := s.bruteForce(class)
		if fits != (len(result.Assignments) == 1) {
			rt.Fatalf("brute force finds room: %v; the search: %+v", fits, result)
		}
		if !fits {
			if s.table.Revision() != before {
				rt.Fatal("a refusal changed the table")
			}
			return
		}
		found++
		a := &result.Assignments[0]
		if got := s.worst(a.Victims); got != best {
			rt.Fatalf("its worst victim is at %d, brute force needs none beyond %d: %+v", got, best, a)
		}
		if len(a.Victims) > 0 {
			forced++
		}
		s.checkMinimal(rt, class, a)
		if !request.DryRun {
			s.checkBooked(rt, class, result.Assignments)
		}
	})
	if found < 10 || forced < 10 {
		t.Errorf("%d found, %d of them with victims: the scenes are too dull", found, forced)
	}
}

func serve(s *scene, requests ...preemption.Request) []preemption.Result {
	return preemption.New(placement.NewNative()).Serve(preemption.Board{Table: s.table, Tenants: s, Now: now}, requests)
}

func (s *scene) worst(victims []workload.RunID) int {
	worst := -1
	for _, runs := range s.runs {
		for i := range runs {
			if slices.Contains(victims, runs[i].ID) {
				worst = max(worst, s.tier(&runs[i]))
			}
		}
	}
	return worst
}

// bruteForce returns the least place in the order up to which victims have to go for a task to fit anywhere.
func (s *scene) bruteForce(class *placement.Class) (best int, fits bool) {
	for row := range host.Row(len(s.hosts)) {
		var may []workload.RunID
		for i := range s.runs[row] {
			if r := &s.runs[row][i]; !r.Dying && s.job(r.ID.Job) != nil {
				may = append(may, r.ID)
			}
		}
		for set := range 1 << len(may) {
			var victims []workload.RunID
			for n := range may {
				if set>>n&1 != 0 {
					victims = append(victims, may[n])
				}
			}
			if worst := s.worst(victims); fits && worst >= best {
				continue
			} else if fitsOn(s.without(s.isGone(victims)), row, class) {
				best, fits = worst, true
			}
		}
	}
	return best, fits
}

// checkMinimal lets each victim stay: the task must not fit then.
func (s *scene) checkMinimal(t *rapid.T, class *placement.Class, a *preemption.Assignment) {
	if !fitsOn(s.without(s.isGone(a.Victims)), a.Row, class) {
		t.Fatalf("it does not fit once they are gone: %+v", a)
	}
	for _, v := range a.Victims {
		others := slices.DeleteFunc(slices.Clone(a.Victims), func(o workload.RunID) bool {
			j := s.job(v.Job)
			return o == v || j.Gang != nil && o.Job == v.Job
		})
		if fitsOn(s.without(s.isGone(others)), a.Row, class) {
			t.Fatalf("%v need not go: %+v", v, a)
		}
	}
}

// checkBooked has the victims leave the table: what was taken there must be in nobody's way.
func (s *scene) checkBooked(t *rapid.T, class *placement.Class, list []preemption.Assignment) {
	var victims []workload.RunID
	for i := range list {
		victims = append(victims, list[i].Victims...)
	}
	gone := s.isGone(victims)
	for row := range s.runs {
		for _, r := range s.runs[row] {
			if r.Dying || gone(&r) {
				if err := s.table.Release(host.Row(row), r.Class.Occupant(r.Devices, r.Ports)); err != nil {
					t.Fatal(err)
				}
			}
		}
		free := s.table.Free(host.Row(row))
		lanes, _ := s.table.Lanes(host.Row(row))
		if free.HasNegative() || slices.Min(lanes[:]) < 0 {
			t.Fatalf("host %d is overfull when all victims are gone: %v %v", row, free, lanes)
		}
	}
	for i := range list { // each may be taken out and put back as placement would
		a := &list[i]
		if err := s.table.Release(a.Row, class.Occupant(a.Devices, a.Ports)); err != nil {
			t.Fatal(err)
		}
		if !fitsOn(s.table, a.Row, class) {
			t.Fatalf("assignment %+v stands where the class may not", a)
		}
	}
}

// TestDryRunsTakeFromEachOther: several dry runs find what the same requests would take in earnest, one after the other, and leave the table as it
// was.
func TestDryRunsTakeFromEachOther(t *testing.T) {
	t.Parallel()
	forced := 0
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScene(rt, rapid.Bool().Draw(rt, "odd"), true)
		var dry, earnest []preemption.Request
		for n := range rapid.IntRange(1, 3).Draw(rt, "requests") {
			r := preemption.Request{
				Class: drawWishes(rt, false).class(jobID(90 + n)), Count: rapid.IntRange(1, 3).Draw(rt, "count"), Gang: rapid.Bool().Draw(rt, "gang"), Victims: s.snap,
			}
			earnest = append(earnest, r)
			r.DryRun = true
			dry = append(dry, r)
		}
		before := s.books()
		foretold := serve(s, dry...)
		if after := s.books(); after != before {
			rt.Fatalf("dry runs made of\n%s\n%s", before, after)
		}
		found := serve(s, earnest...)
		if !reflect.DeepEqual(found, foretold) {
			rt.Fatalf("foretold were %+v\nand found %+v", foretold, found)
		}
		for i := range found {
			for n := range found[i].Assignments {
				forced += len(found[i].Assignments[n].Victims)
			}
		}
	})
	if forced < 10 {
		t.Errorf("%d victims in all: the scenes are too dull", forced)
	}
}

// books is what the table says of its hosts.
func (s *scene) books() (text string) {
	for row := range host.Row(len(s.hosts)) {
		lanes, whole := s.table.Lanes(row)
		text += fmt.Sprintln(s.table.Free(row), lanes, whole, s.table.Tasks(row), s.table.PortsFit(row, []uint16{10}), s.table.Exclusive().Has(row))
	}
	return text
}

// TestSearchKeepsBounds plays batches of requests under budgets and pools.
func TestSearchKeepsBounds(t *testing.T) {
	t.Parallel()
	taken := 0
	rapid.Check(t, func(rt *rapid.T) {
		odd := rapid.Bool().Draw(rt, "odd")
		s := drawScene(rt, odd, true)
		s.snap.Plain = rapid.IntRange(0, 3).Draw(rt, "plain") == 0
		class := drawWishes(rt, odd).class(jobID(99))
		gang := rapid.Bool().Draw(rt, "gang")
		count := rapid.IntRange(1, 4).Draw(rt, "count")
		before := s.without(func(*preemption.Run) bool { return false })
		result := serve(s, preemption.Request{Class: class, Count: count, Gang: gang, Victims: s.snap})[0]
		n := len(result.Assignments)
		if n+result.Refused != count || gang && n != 0 && n != count {
			rt.Fatalf("%d of %d placed, %d refused", n, count, result.Refused)
		}
		if n == 0 {
			if count == 1 {
				s.checkSingles(rt, class)
			}
			s.checkBooked(rt, class, nil)
			for row := range host.Row(len(s.hosts)) {
				if s.table.Free(row) != before.Free(row) {
					rt.Fatalf("a refusal left room taken on host %d", row)
				}
			}
			return
		}
		var victims []workload.RunID
		for i := range result.Assignments {
			victims = append(victims, result.Assignments[i].Victims...)
		}
		taken += len(victims)
		s.checkBounds(rt, class, victims)
		s.checkBooked(rt, class, result.Assignments)
	})
	if taken < 10 {
		t.Errorf("%d victims in all: the scenes are too dull", taken)
	}
}

// checkSingles wants that nobody who may go would have cleared a host by himself.
func (s *scene) checkSingles(t *rapid.T, class *placement.Class) {
	for row, runs := range s.runs {
		for i := range runs {
			j := s.job(runs[i].ID.Job)
			if runs[i].Dying || j == nil || j.Allow < together(j) {
				continue
			}
			use := runs[i].Class.Needs
			if j.Gang != nil {
				use = j.Gang.Use
			}
			may := j.Pool < 0
			for k := range use {
				may = may || class.Needs[k] > 0 && use[k] > 0 && s.snap.Pools[j.Pool].Over[k] > 0
			}
			if may && fitsOn(s.without(s.isGone([]workload.RunID{runs[i].ID})), host.Row(row), class) {
				t.Fatalf("%v alone would do", runs[i].ID)
			}
		}
	}
}

func (s *scene) checkBounds(t *rapid.T, class *placement.Class, victims []workload.RunID) {
	lost := map[workload.JobID]int32{}
	over := make([]resource.Vector, len(s.snap.Pools))
	last := make([]resource.Vector, len(s.snap.Pools)) // the largest single use taken of each pool
	gone := s.isGone(victims)
	gangs := map[workload.JobID]bool{}
	for _, runs := range s.runs {
		for i := range runs {
			r := &runs[i]
			if r.Dying || !gone(r) {
				if slices.Contains(victims, r.ID) {
					t.Fatalf("%v dies already and is a victim", r.ID)
				}
				continue
			}
			j := s.job(r.ID.Job)
			use := r.Class.Needs
			if j.Gang != nil {
				if use = j.Gang.Use; gangs[j.ID] {
					continue
				}
				gangs[j.ID] = true
			}
			lost[j.ID] += together(j)
			if j.Pool >= 0 {
				over[j.Pool] = over[j.Pool].Add(use)
				last[j.Pool] = last[j.Pool].Max(use)
			}
		}
	}
	for id, n := range lost {
		if j := s.job(id); n > j.Allow {
			t.Fatalf("job %v loses %d runs of %d that may go", id, n, j.Allow)
		}
	}
	for p, sum := range over {
		above := sum.IsZero()
		for k := range sum { // before the last one was taken, the pool was above in a kind that is asked for
			above = above || class.Needs[k] > 0 && sum[k]-last[p][k] < s.snap.Pools[p].Over[k]
		}
		if !above {
			t.Fatalf("pool %d gives %v and has %v too much", p, sum, s.snap.Pools[p].Over)
		}
	}
}
