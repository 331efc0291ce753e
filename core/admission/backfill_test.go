package admission_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

var easy = respool.QueuePolicy{Backfill: respool.BackfillEASY}

// toy is a cluster without hosts: what runs, and when it is expected to end and ends.
type toy struct {
	room     admission.Room
	ends     admission.Ends
	queue    admission.Queue
	running  []toyRun
	starting []toyRun // by naiveEASY
	entries  map[workload.JobID]admission.Entry
}

type toyRun struct {
	expected, end int64 // expected 0: nobody knows
	needs         resource.Vector
	fixed         bool
}

func newToy(p respool.QueuePolicy, size resource.Vector) *toy {
	c := &toy{entries: map[workload.JobID]admission.Entry{}}
	c.room = admission.Room{Entitlement: size, Reservation: size, Ends: &c.ends, Shares: admission.NewUsage(time.Hour, 0)}
	c.room.Shares.SetCapacity(0, size)
	c.queue.SetPolicy(p)
	return c
}

func (c *toy) put(t *rapid.T, e admission.Entry) {
	if err := c.queue.Set(e); err != nil {
		t.Fatal(err)
	}
	c.entries[e.Job] = e
}

// start runs n tasks of a job; they really take run.
func (c *toy) start(e *admission.Entry, n int, run time.Duration) {
	for range n {
		r := toyRun{end: c.room.Now + int64(run), needs: e.Needs, fixed: e.NonPreemptible}
		if e.RunTime > 0 {
			r.expected = c.room.Now + int64(e.RunTime)
			c.ends.Add(r.expected, &r.needs, r.fixed)
		}
		c.running = append(c.running, r)
		c.room.Usage = c.room.Usage.Add(r.needs)
		if r.fixed {
			c.room.NonPreemptibleUsage = c.room.NonPreemptibleUsage.Add(r.needs)
		}
		c.room.Shares.Charge(c.room.Now, e.Owner, e.Needs)
	}
	if e.Count -= n; e.Count == 0 {
		c.queue.Remove(e.Job)
		delete(c.entries, e.Job)
		return
	}
	e.Gang = 0
	e.Since = c.room.Now
	if err := c.queue.Set(*e); err != nil {
		panic(err)
	}
	c.entries[e.Job] = *e
}

// next is when the next run ends; math.MaxInt64: nothing runs.
func (c *toy) next() int64 {
	at := int64(math.MaxInt64)
	for _, r := range c.running {
		at = min(at, r.end)
	}
	return at
}

func (c *toy) advance(to int64) {
	c.room.Now = to
	c.running = slices.DeleteFunc(c.running, func(r toyRun) bool {
		if r.end > to {
			return false
		}
		c.room.Usage = c.room.Usage.Sub(r.needs)
		if r.fixed {
			c.room.NonPreemptibleUsage = c.room.NonPreemptibleUsage.Sub(r.needs)
		}
		if r.expected != 0 {
			c.ends.Remove(r.expected, &r.needs, r.fixed)
		}
		return true
	})
}

// naiveStart is when need will be free, by trying every moment at which something ends.
func (c *toy) naiveStart(need resource.Vector, fixed bool) (at int64, then, reserved resource.Vector, known bool) {
	var moments []int64
	ends := func(r toyRun) int64 {
		if r.expected < c.room.Now {
			return c.room.Now + int64(admission.Overrun)
		}
		return r.expected
	}
	for _, r := range append(c.running, c.starting...) {
		if r.expected != 0 {
			moments = append(moments, ends(r))
		}
	}
	slices.Sort(moments)
	for _, at := range moments {
		free, reserved := c.room.Entitlement.Sub(c.room.Usage), c.room.Reservation.Sub(c.room.NonPreemptibleUsage)
		for _, r := range append(c.running, c.starting...) {
			if r.expected != 0 && ends(r) <= at {
				free = free.Add(r.needs)
				if r.fixed {
					reserved = reserved.Add(r.needs)
				}
			}
		}
		if need.FitsIn(&free) && (!fixed || need.FitsIn(&reserved)) {
			return at, free, reserved, true
		}
	}
	return 0, then, reserved, false
}

// naiveEASY spells back-fill out over sorted lists, without bounds of owners and controllers.
func (c *toy) naiveEASY(order, candidates respool.Order) (map[workload.JobID]int, admission.Head) {
	granted := map[workload.JobID]int{}
	free, reserved := c.room.Entitlement.Sub(c.room.Usage), c.room.Reservation.Sub(c.room.NonPreemptibleUsage)
	take := func(e *admission.Entry, n int) {
		granted[e.Job] += n
		free = free.Sub(e.Needs.Scale(int64(n)))
		if e.NonPreemptible {
			reserved = reserved.Sub(e.Needs.Scale(int64(n)))
		}
	}
	fits := func(e *admission.Entry, free, reserved resource.Vector) int {
		n := e.Needs.Times(&free, int64(e.Count))
		if e.NonPreemptible {
			n = e.Needs.Times(&reserved, n)
		}
		if int(n) < max(e.Gang, 1) {
			return 0
		}
		return int(n)
	}
	room := c.room
	outOfReach := func(e *admission.Entry) bool {
		unit, reach := e.Needs.Scale(int64(max(e.Gang, 1))), room.Entitlement.Sub(room.NonPreemptibleUsage)
		if e.NonPreemptible {
			reach = room.Entitlement.Min(room.Reservation)
		}
		return !unit.FitsIn(&reach)
	}
	var head admission.Head
	var start int64
	var extra, extraReserved resource.Vector
	var known bool
	for _, e := range c.sorted(order) {
		unit := e.Needs.Scale(int64(max(e.Gang, 1)))
		if outOfReach(&e) {
			continue
		}
		n := fits(&e, free, reserved)
		take(&e, n)
		if e.RunTime > 0 && n > 0 {
			c.starting = append(c.starting, toyRun{expected: c.room.Now + int64(e.RunTime), needs: e.Needs.Scale(int64(n)), fixed: e.NonPreemptible})
		}
		if n == e.Count {
			continue
		}
		if n > 0 {
			unit = e.Needs
		}
		c.room.Usage, c.room.NonPreemptibleUsage = c.room.Entitlement.Sub(free), c.room.Reservation.Sub(reserved)
		start, extra, extraReserved, known = c.naiveStart(unit, e.NonPreemptible)
		extra = extra.Sub(unit)
		if e.NonPreemptible {
			extraReserved = extraReserved.Sub(unit)
		}
		head = admission.Head{Job: e.Job, Since: e.Since, Start: start}
		break
	}
	for _, e := range c.sorted(candidates) {
		if granted[e.Job] > 0 || e.Job == head.Job || head == (admission.Head{}) || outOfReach(&e) {
			continue
		}
		if !known || e.RunTime > 0 && c.room.Now+int64(e.RunTime) <= start {
			take(&e, fits(&e, free, reserved))
			continue
		}
		n := fits(&e, free.Min(extra), reserved.Min(extraReserved))
		take(&e, n)
		extra = extra.Sub(e.Needs.Scale(int64(n)))
		if e.NonPreemptible {
			extraReserved = extraReserved.Sub(e.Needs.Scale(int64(n)))
		}
	}
	return granted, head
}

func (c *toy) sorted(order respool.Order) []admission.Entry {
	list := sorted(c.entries)
	slices.SortStableFunc(list, func(a, b admission.Entry) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), naiveOrder(order, &a, &b))
	})
	return list
}

// TestBackfillAgreesWithModel holds single walks against naive lists, with non-preemptible work, gangs, work that nobody knows the length
// of, and runs that have outlived their estimates.
func TestBackfillAgreesWithModel(t *testing.T) {
	orders := []respool.Order{respool.OrderPriorityFIFO, respool.OrderSmallestFirst, respool.OrderShortestFirst}
	rapid.Check(t, func(t *rapid.T) {
		p := easy
		p.Order, p.Candidates = rapid.SampledFrom(orders).Draw(t, "order"), rapid.SampledFrom(orders).Draw(t, "candidates")
		c := newToy(p, resource.Vector{20, 20, 20})
		c.room.Reservation = resource.Vector{12, 20, 9}
		c.room.Now = int64(10 * time.Minute)
		minutes := func(most int, what string) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, what)) * time.Minute
		}
		for range rapid.IntRange(0, 8).Draw(t, "running") {
			e := drawEntry(t, 100)
			free, reserved := c.room.Entitlement.Sub(c.room.Usage), c.room.Reservation.Sub(c.room.NonPreemptibleUsage)
			if !e.Needs.FitsIn(&free) || e.NonPreemptible && !e.Needs.FitsIn(&reserved) {
				continue
			}
			e.RunTime, e.Count = minutes(20, "estimate"), 1
			now := c.room.Now
			c.room.Now = int64(minutes(10, "started"))
			c.start(&e, 1, time.Hour)
			c.room.Now = now
		}
		for job := range rapid.IntRange(1, 15).Draw(t, "jobs") {
			e := drawEntry(t, job)
			e.RunTime, e.Since, e.Controller = minutes(12, "run time"), int64(9*time.Minute), false
			c.put(t, e)
		}
		room := c.room
		grants, out := c.queue.Admit(nil, &room, noLimit)
		got := map[workload.JobID]int{}
		for _, g := range grants {
			got[g.Job] = g.Tasks
		}
		want, head := c.naiveEASY(p.Order, p.Candidates)
		for _, e := range c.entries {
			if got[e.Job] != want[e.Job] {
				t.Fatalf("granted %d of %+v, want %d; head %+v, want %+v", got[e.Job], e, want[e.Job], out.Head, head)
			}
			s, _ := c.queue.Explain(e.Job, &room)
			if s.Tasks != want[e.Job] || (s.Verdict == admission.Admissible) != (want[e.Job] == e.Count) ||
				(s.Verdict == admission.First) != (e.Job == head.Job) && want[e.Job] == 0 || (e.Job == head.Job && s.Start != head.Start) {
				t.Fatalf("%+v is told %+v, but gets %d and the head is %+v", e, s, want[e.Job], head)
			}
		}
		if out.Head != head {
			t.Fatalf("head %+v, want %+v", out.Head, head)
		}
	})
}

// someOutOfReach reports whether work waits that would not fit if all preemptible work ended.
func (c *toy) someOutOfReach() bool {
	reach := c.room.Entitlement.Sub(c.room.NonPreemptibleUsage)
	for _, e := range c.entries {
		if need := e.Needs.Scale(int64(max(1, e.Gang))); !e.NonPreemptible && !need.FitsIn(&reach) {
			return true
		}
	}
	return false
}

// TestHeadStartsAsPromised runs a toy cluster in which everything takes as long as it said, and holds every first in line to the first
// promise that it was given, for as long as nobody of a better rank comes.
func TestHeadStartsAsPromised(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.Backfill, p.Patience = respool.BackfillEASY, respool.MaxQueueTime
		if p.Order == respool.OrderFairUser { // who comes first changes as time passes
			p.Order = respool.OrderPriorityFIFO
		}
		c := newToy(p, resource.Vector{20, 20, 0, 8})
		c.room.Reservation = resource.Vector{10, 20, 0, 4}
		var promise admission.Head
		kept := 0
		for job := range 60 {
			for range rapid.IntRange(0, 2).Draw(t, "newcomers") {
				e := drawEntry(t, len(c.entries)+100*job)
				e.Needs = needs(e.Needs[0], e.Needs[1])
				e.RunTime = time.Duration(rapid.IntRange(1, 30).Draw(t, "run time")) * time.Minute
				e.Since, e.Priority, e.Controller = c.room.Now, 0, false
				c.put(t, e)
				if p.Order != respool.OrderPriorityFIFO { // it may go first, and the promise is made anew
					promise = admission.Head{}
				}
			}
			anew := p.Order != respool.OrderPriorityFIFO && c.someOutOfReach() // once it is in reach it may go first
			grants, out := c.queue.Admit(nil, &c.room, noLimit)
			if out.Head != (admission.Head{}) && out.Head.Start == 0 {
				t.Fatalf("every run has an end, yet nobody knows when %+v starts", out.Head)
			}
			for _, g := range grants {
				e := c.entries[g.Job]
				if e.Sequence < c.entries[promise.Job].Sequence { // it was out of reach before
					promise = admission.Head{}
				}
				if g.Job == promise.Job && promise.Start != 0 {
					kept++
					if promise.Start < c.room.Now {
						t.Fatalf("%+v was promised a start at %v and starts at %v", e, time.Duration(promise.Start), time.Duration(c.room.Now))
					}
					promise = admission.Head{}
				}
				anew = anew || g.Tasks < e.Count && p.Order != respool.OrderPriorityFIFO // the rest of it is smaller, and may go first
				c.start(&e, g.Tasks, e.RunTime)
			}
			if out.Head.Job != promise.Job { // started, or somebody better came
				promise = out.Head
			}
			if anew {
				promise = admission.Head{}
			}
			at := c.room.Now + int64(rapid.IntRange(0, 10).Draw(t, "pause"))*int64(time.Minute)
			c.advance(min(at, c.next()))
		}
	})
}

// TestHeadStartsInTheEnd lets smaller work stream in without end behind a job that needs the whole pool, under every policy and however
// much the estimates lie. Once work from before has ended and patience is over, it must start.
func TestHeadStartsInTheEnd(t *testing.T) {
	const longest = 40 * time.Minute
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.Patience = time.Duration(rapid.IntRange(1, 60).Draw(t, "patience")) * time.Minute
		c := newToy(p, needs(20, 8))
		drawSmall := func(job int) admission.Entry {
			e := tasks(rapid.IntRange(1, 6).Draw(t, "count"), needs(int64(rapid.IntRange(1, 5).Draw(t, "cpus")), int64(rapid.IntRange(0, 2).Draw(t, "gpus"))))
			e.Job, e.Sequence, e.Since, e.Owner = jobID(job), uint64(job), c.room.Now, rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "owner")
			e.RunTime = time.Duration(rapid.IntRange(0, 5).Draw(t, "estimate")) * time.Minute
			return e
		}
		step := func() (started bool) {
			grants, _ := c.queue.Admit(nil, &c.room, noLimit)
			for _, g := range grants {
				e := c.entries[g.Job]
				started = started || e.Sequence == 1000
				c.start(&e, g.Tasks, time.Duration(rapid.IntRange(1, int(longest.Minutes())).Draw(t, "really"))*time.Minute)
			}
			return started
		}
		for job := range 5 {
			c.put(t, drawSmall(job))
		}
		step()
		big := takes(time.Duration(rapid.IntRange(0, 600).Draw(t, "minutes"))*time.Minute, tasks(1, needs(20, 8)))
		big.Job, big.Sequence, big.Since, big.Owner = jobID(1000), 1000, c.room.Now, "ann"
		c.put(t, big)
		ends := 10 * longest
		if p.Order == respool.OrderFairUser {
			ends *= 3 // before it is its owner's turn, the other may use as much as he has
		}
		bound := c.room.Now + int64(3*p.Patience+ends)
		for job := 1001; !step(); job++ {
			if len(c.entries) < 12 {
				c.put(t, drawSmall(job))
			}
			if c.room.Now > bound {
				t.Fatalf("%+v: a job that needs everything waits for %v", p, time.Duration(c.room.Now-big.Since))
			}
			c.advance(min(c.next(), c.room.Now+int64(5*time.Minute)))
		}
	})
}

// TestBackfillExplained spells out one queue behind a gang that is promised a time.
func TestBackfillExplained(t *testing.T) {
	var ends admission.Ends
	add := func(minutes int, cpus int64) {
		v := needs(cpus, 0)
		ends.Add(int64(time.Duration(minutes)*time.Minute), &v, false)
	}
	add(10, 4)
	add(20, 8)
	q := under(t, easy,
		takes(time.Hour, gang(10, needs(1, 0))),      // starts in 20 minutes, when 2+4+8 are free
		takes(20*time.Minute, tasks(1, needs(1, 0))), // gone by then
		takes(time.Hour, tasks(2, needs(3, 0))),      // neither gone nor beside it
		tasks(1, needs(1, 0)),                        // one of the four beside it
		takes(time.Hour, tasks(1, needs(1, 0))),      // nothing is free now
	)
	room := admission.Room{Entitlement: needs(20, 0), Usage: needs(18, 0), Ends: &ends}
	want := []admission.Standing{
		{Verdict: admission.First, Kind: cpu, Need: 10, Has: 2, Start: int64(20 * time.Minute)},
		{Ahead: 1, Verdict: admission.Admissible, Tasks: 1},
		{Ahead: 2, Verdict: admission.Behind, Kind: cpu},
		{Ahead: 3, Verdict: admission.Admissible, Tasks: 1},
		{Ahead: 4, Verdict: admission.Behind, Kind: cpu},
	}
	for i, w := range want {
		if got, _ := q.Explain(jobID(i), &room); got != w {
			t.Errorf("job %d stands at %+v, want %+v", i, got, w)
		}
	}
	// Runs that nobody can foresee: everybody passes until the head has waited ten minutes.
	room.Ends, room.Now = nil, int64(respool.DefaultPatience)-1
	grants, out := q.Admit(nil, &room, noLimit)
	if len(grants) != 2 || out.Again != int64(respool.DefaultPatience) || out.Head.Start != 0 {
		t.Errorf("granted %v, %+v", grants, out)
	}
	room.Now++
	if grants, out := q.Admit(nil, &room, noLimit); len(grants) != 0 || out.Head.Job != jobID(0) {
		t.Errorf("granted %v past a head without patience, %+v", grants, out)
	}
}

// classes waits in 1,000 classes for more CPUs than are free.
func classes(tb testing.TB, entries int, p respool.QueuePolicy) (*admission.Queue, *admission.Room) {
	var q admission.Queue
	q.SetPolicy(p)
	for i := range entries {
		class := i % 1000
		e := admission.Entry{
			Job: jobID(i), Sequence: uint64(i), Count: 1 + i%40, Owner: fmt.Sprint(i % 100), RunTime: time.Duration(class) * time.Minute,
			Needs: resource.Vector{int64(1000 + class*10), int64(256 << (class % 4)), 0, int64(class%10/9) * 1000},
		}
		if err := q.Set(e); err != nil {
			tb.Fatal(err)
		}
	}
	room := &admission.Room{
		Entitlement: resource.Vector{1 << 20, 1 << 40, 0, 1 << 20}, Usage: resource.Vector{1<<20 - 999}, Ends: &admission.Ends{},
		Shares: admission.NewUsage(time.Hour, 0),
	}
	v := resource.Vector{1 << 19}
	room.Ends.Add(int64(time.Hour), &v, false)
	return &q, room
}

func TestNothingCanStart(t *testing.T) {
	for _, candidates := range []respool.Order{respool.OrderPriorityFIFO, respool.OrderShortestFirst, respool.OrderFairUser} {
		for _, way := range []respool.Backfill{respool.BackfillNone, respool.BackfillEASY} {
			p := respool.QueuePolicy{Order: respool.OrderSmallestFirst, Backfill: way, Candidates: candidates}
			q, room := classes(t, 10_000, p)
			if grants, out := q.Admit(nil, room, noLimit); len(grants) != 0 || out.Visited > 1 || out.Stop != admission.StopDone {
				t.Errorf("%+v: granted %v, %+v", p, grants, out)
			}
		}
	}
}

// TestBackfillIsBounded looks for candidates among many that each lack something else.
func TestBackfillIsBounded(t *testing.T) {
	entries := []admission.Entry{tasks(1, needs(10, 0))}
	for i := range 3 * admission.MaxCandidates {
		entries = append(entries, tasks(1, needs(int64(1+i%2*5), int64(1-i%2)))) // a CPU and a GPU, or six CPUs
	}
	q := under(t, easy, entries...)
	room := admission.Room{Entitlement: needs(10, 1), Usage: needs(5, 1)}
	if grants, out := q.Admit(nil, &room, noLimit); len(grants) != 0 || out.Stop != admission.StopBound || out.Unseen == 0 {
		t.Errorf("granted %v, %+v", grants, out)
	}
	if s, _ := q.Explain(jobID(3*admission.MaxCandidates), &room); s.Verdict != admission.NotReached {
		t.Errorf("the last one is told %+v", s)
	}
}

func BenchmarkBackfill(b *testing.B) {
	for _, order := range []respool.Order{respool.OrderPriorityFIFO, respool.OrderSmallestFirst, respool.OrderFairUser} {
		q, room := classes(b, 100_000, respool.QueuePolicy{Order: order, Backfill: respool.BackfillEASY, Candidates: order})
		for _, free := range []int64{999, 5000, 100_000} {
			b.Run(fmt.Sprintf("%v/cpu_milli=%d", order, free), func(b *testing.B) {
				room.Usage[cpu] = room.Entitlement[cpu] - free
				var grants []admission.Grant
				var out admission.Outcome
				b.ReportAllocs()
				for b.Loop() {
					grants, out = q.Admit(grants[:0], room, 4096)
				}
				b.ReportMetric(float64(out.Visited), "visited")
				b.ReportMetric(float64(out.Tasks), "granted")
			})
		}
	}
	b.Run("Ends", func(b *testing.B) {
		var ends admission.Ends
		v := needs(1000, 0)
		for i := range 100_000 {
			ends.Add(int64(i)*1_000_003, &v, false)
		}
		b.ReportAllocs()
		i := int64(0)
		for b.Loop() {
			at := i % 100_000 * 1_000_003
			ends.Remove(at, &v, false)
			ends.Add(at, &v, false)
			i += 7919
		}
	})
}
