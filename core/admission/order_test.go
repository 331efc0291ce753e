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

// takes says how long an entry's tasks run.
func takes(d time.Duration, e admission.Entry) admission.Entry {
	e.RunTime = d
	return e
}

// under puts entries into a queue of a policy.
func under(t testing.TB, p respool.QueuePolicy, entries ...admission.Entry) *admission.Queue {
	t.Helper()
	q := queue(t, entries...)
	q.SetPolicy(p)
	return q
}

// numbers turns entries back into the numbers that queue gave them.
func numbers(q *admission.Queue) (list []int) {
	for e := range q.All() {
		list = append(list, int(e.Sequence))
	}
	return list
}

func TestOrders(t *testing.T) {
	entries := []admission.Entry{
		0: tasks(1, needs(1000, 0)),
		1: takes(time.Hour, tasks(9, needs(1000, 0))),                // one unit: 1 processor for an hour
		2: takes(10*time.Minute, gang(8, needs(1000, 0))),            // 8 for ten minutes
		3: takes(2*time.Hour, tasks(1, needs(64_000, 250))),          // a quarter of a GPU, whatever its CPUs
		4: takes(time.Minute, urgent(tasks(1, needs(100_000, 0)))),   // priority first
		5: urgent(tasks(1, needs(1, 0))),                             // nobody knows how long
		6: takes(10*time.Minute, tasks(1, needs(1000, 0))),           // 1 for ten minutes
		7: takes(10*time.Minute, tasks(1, needs(1000, 0))),           // the same, later
		8: takes(time.Second, tasks(1, resource.Vector{1: 1 << 20})), // neither CPU nor GPU
	}
	tests := map[respool.Order][]int{
		respool.OrderPriorityFIFO:  {4, 5, 0, 1, 2, 3, 6, 7, 8},
		respool.OrderSmallestFirst: {4, 5, 8, 6, 7, 3, 1, 2, 0},
		respool.OrderShortestFirst: {4, 5, 8, 2, 6, 7, 1, 3, 0},
		respool.OrderExpress:       {4, 5, 8, 6, 7, 3, 1, 2, 0},
	}
	q := queue(t, entries...)
	for order, want := range tests { // from any order to any other
		q.SetPolicy(respool.QueuePolicy{Order: order})
		if got := numbers(q); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", order, got, want)
		}
	}
}

// TestEqualSizesGoBySubmission has two sizes that are one and the same, though hundredths of a processor cannot be told exactly in binary.
func TestEqualSizesGoBySubmission(t *testing.T) {
	q := under(t, respool.QueuePolicy{Order: respool.OrderSmallestFirst},
		takes(3*time.Minute, tasks(1, needs(5, 0))), takes(time.Minute, gang(3, needs(5, 0))))
	if got, want := numbers(q), []int{0, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestPatience lets entries wait until they go before all of younger age, whatever their size.
func TestPatience(t *testing.T) {
	since := func(at time.Duration, e admission.Entry) admission.Entry {
		e.Since = int64(at)
		return e
	}
	q := under(t, respool.QueuePolicy{Order: respool.OrderShortestFirst, Patience: time.Hour},
		since(0, tasks(1, needs(9, 0))),                                     // no estimate
		since(2*time.Minute, takes(time.Hour, tasks(1, needs(9, 0)))),       //
		since(time.Minute, takes(time.Minute, tasks(1, needs(9, 0)))),       //
		since(90*time.Minute, takes(time.Second, tasks(1, needs(9, 0)))),    //
		since(time.Hour, urgent(takes(time.Second, tasks(1, needs(9, 0))))), //
	)
	room := admission.Room{Entitlement: needs(9, 0), Usage: needs(9, 0)}
	for _, tt := range []struct {
		now   time.Duration
		order []int
		again time.Duration
	}{
		{0, []int{4, 3, 2, 1, 0}, time.Hour},
		{time.Hour - 1, []int{4, 3, 2, 1, 0}, time.Hour},
		{time.Hour, []int{4, 0, 3, 2, 1}, 61 * time.Minute},
		{2 * time.Hour, []int{4, 0, 2, 1, 3}, 150 * time.Minute},
		{3 * time.Hour, []int{4, 0, 2, 1, 3}, 0},
	} {
		room.Now = int64(tt.now)
		_, out := q.Admit(nil, &room, noLimit)
		if got := numbers(q); !slices.Equal(got, tt.order) || out.Again != int64(tt.again) {
			t.Errorf("at %v: %v, again at %v, want %v and %v", tt.now, got, time.Duration(out.Again), tt.order, tt.again)
		}
		if head, waits := q.Head(); !waits || head != out.Head || head.Job != jobID(4) || head.Since != int64(time.Hour) {
			t.Errorf("at %v: the head is %+v", tt.now, head)
		}
	}
	// Who gets something begins to wait anew; who loses patience may change meanwhile.
	for _, i := range []int{0, 2} {
		e, _ := q.Get(jobID(i))
		e.Count, e.Since = 2, int64(time.Duration(i)*time.Hour)
		if err := q.Set(e); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := numbers(q), []int{4, 0, 1, 3, 2}; !slices.Equal(got, want) {
		t.Errorf("after changes: %v, want %v", got, want)
	}
	q.SetPolicy(respool.QueuePolicy{Order: respool.OrderShortestFirst, Patience: time.Minute})
	if got, want := numbers(q), []int{4, 3, 2, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("patience begins anew with another: %v, want %v", got, want)
	}
}

// TestExpressKeepsRoomForShortWork has 64 processors, of which 8 are for work of ten minutes and less.
func TestExpressKeepsRoomForShortWork(t *testing.T) {
	entries := []admission.Entry{
		takes(time.Hour, tasks(60, needs(1000, 0))),       // 56 of them
		takes(10*time.Minute, tasks(5, needs(1000, 0))),   // go first, as they are smaller
		takes(10*time.Minute, tasks(5, needs(1000, 0))),   //
		takes(48*time.Hour, gang(64, needs(1000, 0))),     // may have everything
		fixed(takes(time.Hour, tasks(1, needs(1000, 0)))), // no reservation
	}
	policy := respool.QueuePolicy{Order: respool.OrderExpress, Backfill: respool.BackfillEASY}
	room := admission.Room{Entitlement: needs(64_000, 0)}
	q := under(t, policy, entries...)
	grants, _ := q.Admit(nil, &room, noLimit)
	want := []admission.Grant{{Job: jobID(1), Tasks: 5}, {Job: jobID(2), Tasks: 5}, {Job: jobID(0), Tasks: 46}}
	if !slices.Equal(grants, want) {
		t.Errorf("granted %v, want %v", grants, want)
	}
	q = under(t, policy, entries[0])
	if grants, _ := q.Admit(nil, &room, noLimit); len(grants) != 1 || grants[0].Tasks != 56 {
		t.Errorf("granted %v of long work alone, want 56", grants)
	}
	q = under(t, policy, entries[3])
	if grants, _ := q.Admit(nil, &room, noLimit); len(grants) != 1 || grants[0].Tasks != 64 {
		t.Errorf("granted %v to a gang of the pool's size, want all of it", grants)
	}
}

// TestOwnersTakeTurns divides 60 processors between owners with one-processor tasks.
func TestOwnersTakeTurns(t *testing.T) {
	now := int64(10 * time.Hour)
	room := admission.Room{Entitlement: needs(60, 6), Now: now, Shares: admission.NewUsage(24*time.Hour, now)}
	room.Shares.SetCapacity(now, needs(60, 6))
	q := under(t, respool.QueuePolicy{Order: respool.OrderFairUser},
		of("ann", tasks(50, needs(1, 0))),
		of("ann", tasks(50, needs(1, 0))),
		of("bob", tasks(50, needs(1, 0))),
		of("cec", tasks(2, needs(5, 0))), // wants no more
		of("cec", tasks(1, needs(0, 1))), // one of six GPUs: a larger share than her CPUs
		of("dan", urgent(tasks(3, needs(1, 0)))),
		of("ann", urgent(tasks(3, needs(1, 0)))),
	)
	check := func(what string, want map[int]int) {
		t.Helper()
		grants, _ := q.Admit(nil, &room, noLimit)
		got := map[int]int{}
		for _, g := range grants {
			e, _ := q.Get(g.Job)
			got[int(e.Sequence)] += g.Tasks
			s, _ := q.Explain(g.Job, &room)
			if s.Tasks != g.Tasks {
				t.Errorf("%s: job %d is told that it gets %d, and gets %d", what, e.Sequence, s.Tasks, g.Tasks)
			}
		}
		if len(got) != len(want) || len(grants) != len(want) {
			t.Errorf("%s: granted %v, want %v", what, grants, want)
		}
		for job, n := range want {
			if got[job] != n {
				t.Errorf("%s: job %d got %d, want %d", what, job, got[job], n)
			}
		}
	}
	// Of 54 CPUs left by urgent work ann gets 3 fewer, as she had those; cec has her 10 CPUs and her GPU.
	check("at first", map[int]int{0: 21, 2: 23, 3: 2, 4: 1, 5: 3, 6: 3})
	// Bob held everything for an hour, a day ago, ann half of it for the last hour: both used the same, and ann less than all of it.
	room.Shares.Past("bob", needs(60, 0), now-int64(25*time.Hour), now-int64(24*time.Hour))
	room.Shares.Past("ann", needs(30, 0), now-int64(time.Hour), now)
	if ann, bob := room.Shares.Of(now, "ann"), room.Shares.Of(now, "bob"); math.Abs(ann/bob-1) > 0.02 || math.Abs(bob-1800) > 40 {
		t.Errorf("ann has used %v share-seconds, bob %v; want about 1800 each", ann, bob)
	}
	room.Shares.Past("ann", needs(60, 0), now-int64(time.Hour), now)
	check("ann used more", map[int]int{2: 44, 3: 2, 4: 1, 5: 3, 6: 3})
	if got, want := numbers(q), []int{5, 6, 3, 4, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if ahead, _ := q.Ahead(jobID(2)); ahead != 4 {
		t.Errorf("%d go before bob, want 4", ahead)
	}
}

// TestUsageDecays compares the ledger with sums over small slices of time, across several origins.
func TestUsageDecays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const halfLife = time.Minute
		start := int64(1_700_000_000) * int64(time.Second)
		u := admission.NewUsage(halfLife, start)
		u.SetCapacity(start, needs(100, 10))
		type hold struct {
			from, to int64
			share    float64
		}
		var holds []hold
		now := start
		for range rapid.IntRange(1, 12).Draw(t, "holds") {
			v := needs(rapid.Int64Range(0, 100).Draw(t, "cpus"), rapid.Int64Range(0, 10).Draw(t, "gpus"))
			h := hold{from: now, share: max(float64(v[cpu])/100, float64(v[gpu])/10)}
			u.Charge(now, "ann", v)
			now += int64(rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Minute, 20 * time.Hour}).Draw(t, "length"))
			u.Refund(now, "ann", v)
			h.to = now
			holds = append(holds, h)
			now += int64(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 9 * time.Hour}).Draw(t, "pause"))
		}
		want := 0.0
		for _, h := range holds {
			decayed := func(at int64) float64 { return math.Exp2(-float64(now-at) / float64(halfLife)) }
			want += h.share * (decayed(h.to) - decayed(h.from)) * halfLife.Seconds() / math.Ln2
		}
		if got := u.Of(now, "ann"); math.Abs(got-want) > 1e-6*max(1, want) {
			t.Fatalf("used %v, want %v", got, want)
		}
	})
}

func TestUsageForgets(t *testing.T) {
	u := admission.NewUsage(time.Minute, 0)
	u.SetCapacity(0, needs(1, 0))
	for i := range 5000 {
		u.Charge(int64(i)*int64(time.Second), fmt.Sprint(i), needs(1, 0))
		u.Refund(int64(i+1)*int64(time.Second), fmt.Sprint(i), needs(1, 0))
	}
	if n := u.Len(); n > 2300 { // half an hour of owners is remembered
		t.Errorf("%d owners are remembered", n)
	}
}

// drawPolicy draws any way of waiting.
func drawPolicy(t *rapid.T) respool.QueuePolicy {
	orders := []respool.Order{
		respool.OrderPriorityFIFO, respool.OrderFairUser, respool.OrderSmallestFirst, respool.OrderShortestFirst, respool.OrderExpress,
	}
	return respool.QueuePolicy{
		Order: rapid.SampledFrom(orders).Draw(t, "order"), Candidates: rapid.SampledFrom(orders).Draw(t, "candidates"),
		Backfill: rapid.SampledFrom([]respool.Backfill{respool.BackfillNone, respool.BackfillEASY}).Draw(t, "back-fill"),
		Patience: rapid.SampledFrom([]time.Duration{time.Minute, time.Hour, respool.MaxQueueTime}).Draw(t, "patience"),
	}
}

// TestOrderAgreesWithSorting holds queues of every policy against sorted lists, through changes of entries and policies.
func TestOrderAgreesWithSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q admission.Queue
		entries := map[workload.JobID]admission.Entry{}
		var p respool.QueuePolicy
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			e := drawEntry(t, rapid.IntRange(0, 20).Draw(t, "job"))
			e.RunTime = time.Duration(rapid.IntRange(0, 3).Draw(t, "run time")) * time.Minute
			switch rapid.IntRange(0, 5).Draw(t, "verb") {
			case 0:
				q.Remove(e.Job)
				delete(entries, e.Job)
			case 1:
				p = drawPolicy(t)
				q.SetPolicy(p)
			default:
				if err := q.Set(e); err != nil {
					t.Fatal(err)
				}
				entries[e.Job] = e
			}
		}
		want := sorted(entries)
		slices.SortStableFunc(want, func(a, b admission.Entry) int { return naiveOrder(p.Order, &a, &b) })
		if got := slices.Collect(q.All()); !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", p.Order, got, want)
		}
		for i, e := range want {
			if ahead, ok := q.Ahead(e.Job); !ok || ahead != i {
				t.Fatalf("%v: job %v stands at %d, want %d", p.Order, e.Job, ahead, i)
			}
		}
	})
}

// naiveOrder is 0 where submission decides. Nobody has used anything.
func naiveOrder(order respool.Order, a, b *admission.Entry) int {
	if a.Priority != b.Priority {
		return 0 // sorted by it already
	}
	size := func(e *admission.Entry) float64 {
		switch {
		case e.RunTime == 0:
			return math.Inf(1)
		case order == respool.OrderShortestFirst:
			return float64(e.RunTime)
		}
		n := e.Needs[gpu]
		if n == 0 {
			n = e.Needs[cpu]
		}
		return float64(n) * float64(max(e.Gang, 1)) * float64(e.RunTime)
	}
	if order == respool.OrderPriorityFIFO {
		return 0
	}
	if order == respool.OrderFairUser {
		return cmp.Compare(a.Owner, b.Owner)
	}
	return cmp.Compare(size(a), size(b))
}
