package admission_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

const cpu, gpu = resource.CPU, resource.GPU

// needs returns a vector of CPUs and GPUs.
func needs(cpus, gpus int64) resource.Vector { return resource.Vector{cpu: cpus, gpu: gpus} }

// tasks is an entry of preemptible tasks, each by itself.
func tasks(count int, need resource.Vector) admission.Entry {
	return admission.Entry{Count: count, Needs: need}
}

func gang(count int, need resource.Vector) admission.Entry {
	return admission.Entry{Count: count, Gang: count, Needs: need}
}

func fixed(e admission.Entry) admission.Entry {
	e.NonPreemptible = true
	return e
}

func urgent(e admission.Entry) admission.Entry {
	e.Priority = 1
	return e
}

// queue puts entries in, in order of submission; job i is jobID(i).
func queue(t testing.TB, entries ...admission.Entry) *admission.Queue {
	t.Helper()
	var q admission.Queue
	for i, e := range entries {
		e.Job, e.Sequence = jobID(i), uint64(i)
		if err := q.Set(e); err != nil {
			t.Fatal(err)
		}
	}
	return &q
}

const noLimit = 1 << 30

func TestAdmit(t *testing.T) {
	whole := func(cpus, gpus, usedCPUs, usedGPUs int64) admission.Room {
		return admission.Room{
			Entitlement: needs(cpus, gpus), Usage: needs(usedCPUs, usedGPUs), Reservation: needs(cpus, gpus),
		}
	}
	tests := []struct {
		name    string
		room    admission.Room
		limit   int
		entries []admission.Entry
		want    []int // tasks granted to each entry
		stop    admission.Stop
		unseen  int
	}{
		{"first in, first out", whole(10, 0, 0, 0), noLimit, []admission.Entry{tasks(6, needs(1, 0)), tasks(6, needs(1, 0))}, []int{6, 4}, admission.StopDone, 0},
		{"priority goes first", whole(10, 0, 0, 0), noLimit, []admission.Entry{tasks(6, needs(1, 0)), urgent(tasks(6, needs(1, 0)))}, []int{4, 6}, admission.StopDone, 0},
		{"a head that is short is not passed by smaller ones", whole(10, 0, 4, 0), noLimit, []admission.Entry{tasks(1, needs(8, 0)), tasks(5, needs(1, 0))}, []int{0, 0}, admission.StopDone, 0},
		{"a gang is whole or nothing", whole(10, 0, 4, 0), noLimit, []admission.Entry{gang(7, needs(1, 0)), tasks(5, needs(1, 0))}, []int{0, 0}, admission.StopDone, 0},
		{"a gang that fits starts whole", whole(10, 0, 3, 0), noLimit, []admission.Entry{gang(7, needs(1, 0)), tasks(5, needs(1, 0))}, []int{7, 0}, admission.StopDone, 0},
		{"a gang may start with its least number", whole(10, 0, 4, 0), noLimit, []admission.Entry{{Count: 9, Gang: 5, Needs: needs(1, 0)}}, []int{6}, admission.StopDone, 0},
		{"behind a gang that has started, room is kept for one task", whole(20, 5, 0, 0), noLimit, []admission.Entry{{Count: 9, Gang: 4, Needs: needs(1, 1)}, tasks(99, needs(1, 0))}, []int{5, 14}, admission.StopDone, 0},
		{"work without GPUs passes jobs that wait for one", whole(10, 8, 0, 8), noLimit, []admission.Entry{tasks(100, needs(4, 1)), tasks(100, needs(4, 1)), tasks(9, needs(1, 0))}, []int{0, 0, 6}, admission.StopDone, 0},
		{"the first in line keeps CPUs for its unit only", whole(100, 8, 0, 7), noLimit, []admission.Entry{gang(4, needs(10, 2)), gang(2, needs(10, 1)), tasks(99, needs(1, 0))}, []int{0, 0, 60}, admission.StopDone, 0},
		{"out of reach: nothing is kept for it", whole(10, 0, 4, 0), noLimit, []admission.Entry{tasks(1, needs(11, 0)), tasks(9, needs(1, 0))}, []int{0, 6}, admission.StopDone, 0},
		{"a gang out of reach: nothing is kept for it", whole(10, 0, 4, 0), noLimit, []admission.Entry{gang(11, needs(1, 0)), tasks(9, needs(1, 0))}, []int{0, 6}, admission.StopDone, 0},
		{
			"what non-preemptible work uses is out of reach",
			admission.Room{Entitlement: needs(10, 0), Usage: needs(6, 0), Reservation: needs(10, 0), NonPreemptibleUsage: needs(6, 0)},
			noLimit,
			[]admission.Entry{tasks(1, needs(5, 0)), tasks(9, needs(1, 0))},
			[]int{0, 4},
			admission.StopDone, 0,
		},
		{
			"non-preemptible work stays within the reservation",
			admission.Room{Entitlement: needs(20, 0), Usage: needs(5, 0), Reservation: needs(10, 0), NonPreemptibleUsage: needs(5, 0)},
			noLimit,
			[]admission.Entry{fixed(tasks(9, needs(1, 0))), fixed(tasks(1, needs(1, 0))), tasks(99, needs(1, 0))},
			[]int{5, 0, 10},
			admission.StopDone, 0,
		},
		{
			"and within the entitlement",
			admission.Room{Entitlement: needs(10, 0), Usage: needs(8, 0), Reservation: needs(10, 0)},
			noLimit,
			[]admission.Entry{fixed(tasks(9, needs(1, 0)))},
			[]int{2},
			admission.StopDone, 0,
		},
		{
			"a scaled-down reservation stops non-preemptible work only",
			admission.Room{Entitlement: needs(10, 0), Usage: needs(6, 0), Reservation: needs(4, 0), NonPreemptibleUsage: needs(6, 0)},
			noLimit,
			[]admission.Entry{fixed(tasks(1, needs(1, 0))), tasks(9, needs(1, 0))},
			[]int{0, 4},
			admission.StopDone, 0,
		},
		{"usage above entitlement admits nothing", whole(10, 0, 30, 0), noLimit, []admission.Entry{tasks(1, needs(1, 0))}, []int{0}, admission.StopDone, 0},
		{"no entitlement at all", whole(0, 0, 0, 0), noLimit, []admission.Entry{tasks(1, needs(1, 0)), fixed(tasks(1, needs(1, 0)))}, []int{0, 0}, admission.StopDone, 0},
		{"an overdraft in one kind leaves the others alone", whole(10, 8, 0, 9), noLimit, []admission.Entry{tasks(1, needs(1, 1)), tasks(9, needs(1, 0))}, []int{0, 9}, admission.StopDone, 0},
		{"work that needs nothing always starts", whole(0, 0, 0, 0), noLimit, []admission.Entry{tasks(3, needs(0, 0))}, []int{3}, admission.StopDone, 0},
		{"the limit ends the walk", whole(10, 0, 0, 0), 4, []admission.Entry{tasks(3, needs(1, 0)), tasks(3, needs(1, 0)), tasks(3, needs(1, 0))}, []int{3, 1, 0}, admission.StopLimit, 1},
		{"a gang is not cut by the limit", whole(10, 0, 0, 0), 2, []admission.Entry{tasks(1, needs(1, 0)), gang(7, needs(1, 0)), tasks(1, needs(1, 0))}, []int{1, 7, 0}, admission.StopLimit, 1},
		{"a limit of nothing", whole(10, 0, 0, 0), 0, []admission.Entry{tasks(1, needs(1, 0))}, []int{0}, admission.StopLimit, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := queue(t, tt.entries...)
			grants, out := q.Admit(nil, &tt.room, tt.limit)
			got := make([]int, len(tt.entries))
			total := 0
			for _, g := range grants {
				for i := range tt.entries {
					if jobID(i) == g.Job {
						got[i] += g.Tasks
						total += g.Tasks
					}
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("granted %v, want %v", got, tt.want)
			}
			if out.Tasks != total || out.Stop != tt.stop || out.Unseen != tt.unseen {
				t.Errorf("outcome %+v, want %d tasks, stop %v, %d unseen", out, total, tt.stop, tt.unseen)
			}
		})
	}
}

func TestWalkBound(t *testing.T) {
	entries := make([]admission.Entry, admission.MaxVisits+3)
	for i := range entries {
		entries[i] = tasks(1, needs(11, 0)) // out of reach
	}
	entries[len(entries)-1] = tasks(1, needs(1, 0))
	q := queue(t, entries...)
	room := admission.Room{Entitlement: needs(10, 0)}
	_, out := q.Admit(nil, &room, noLimit)
	want := admission.Outcome{Visited: admission.MaxVisits, OutOfReach: admission.MaxVisits, Stop: admission.StopBound, Unseen: 3}
	if out != want {
		t.Errorf("outcome %+v, want %+v", out, want)
	}
	if s, _ := q.Explain(jobID(admission.MaxVisits+1), &room); s.Verdict != admission.OutOfReach || s.Ahead != admission.MaxVisits+1 {
		t.Errorf("standing %+v, want out of reach", s)
	}
	if s, _ := q.Explain(jobID(admission.MaxVisits+2), &room); s.Verdict != admission.NotReached || s.Ahead != admission.MaxVisits+2 {
		t.Errorf("standing %+v, want not reached", s)
	}
	blocked := admission.Room{Entitlement: needs(20, 0), Usage: needs(20, 0), NonPreemptibleUsage: needs(20, 0)}
	if _, out := q.Admit(nil, &blocked, noLimit); out != (admission.Outcome{}) {
		t.Errorf("outcome %+v behind non-preemptible work, want none", out)
	}
	// With nothing left that any of them could use, none is visited.
	if _, out := q.Admit(nil, &admission.Room{}, noLimit); out != (admission.Outcome{}) {
		t.Errorf("outcome %+v without entitlement, want none", out)
	}
}

func TestExplain(t *testing.T) {
	room := admission.Room{
		Entitlement: needs(40, 8), Usage: needs(10, 8), Reservation: needs(20, 0), NonPreemptibleUsage: needs(5, 0),
	}
	q := queue(t,
		tasks(4, needs(2, 0)),
		tasks(2, needs(4, 1)),
		tasks(1, needs(1, 2)),
		tasks(1, needs(36, 0)),
		fixed(gang(4, needs(4, 0))),
		fixed(tasks(1, needs(1, 0))),
		fixed(tasks(1, needs(21, 0))),
		tasks(30, needs(1, 0)),
		tasks(1, needs(1, 0)),
	)
	want := []admission.Standing{
		{Ahead: 0, Verdict: admission.Admissible, Tasks: 4},
		{Ahead: 1, Verdict: admission.First, Kind: gpu, Need: 1, Has: 0},
		{Ahead: 2, Verdict: admission.Behind, Kind: gpu},
		{Ahead: 3, Verdict: admission.OutOfReach, Kind: cpu, Need: 36, Has: 35},
		{Ahead: 4, Verdict: admission.First, Kind: cpu, Account: admission.OfReservation, Need: 16, Has: 15},
		{Ahead: 5, Verdict: admission.Behind, Kind: cpu, Account: admission.OfReservation},
		{Ahead: 6, Verdict: admission.OutOfReach, Kind: cpu, Account: admission.OfReservation, Need: 21, Has: 20},
		{Ahead: 7, Verdict: admission.First, Tasks: 18, Kind: cpu, Need: 1, Has: 0},
		{Ahead: 8, Verdict: admission.Behind, Kind: cpu},
	}
	for i, w := range want {
		if got, ok := q.Explain(jobID(i), &room); !ok || got != w {
			t.Errorf("job %d stands at %+v (%v), want %+v", i, got, got.Verdict, w)
		}
	}
}

// model admits by going through the whole list, with the rules spelled out kind by kind.
func model(list []admission.Entry, room admission.Room, limit int) []admission.Grant {
	const kinds = resource.MaxKinds
	var grants []admission.Grant
	var waitedFor, waitedForInReservation [kinds]bool
	free, freeReserved := room.Entitlement, room.Reservation
	bounds := modelBounds{room: room, waited: map[string]*[kinds]bool{}, bound: map[string]*admission.Bound{}}
	for k := range kinds {
		free[k] -= room.Usage[k]
		freeReserved[k] -= room.NonPreemptibleUsage[k]
	}
next:
	for _, e := range list {
		unit := int64(max(e.Gang, 1))
		fit, ok := bounds.fit(&e)
		if !ok {
			continue next
		}
		for k, need := range e.Needs {
			reach := room.Entitlement[k]
			if !e.NonPreemptible {
				reach -= room.NonPreemptibleUsage[k]
			}
			switch {
			case need == 0:
			case need*unit > reach, e.NonPreemptible && need*unit > room.Reservation[k]:
				continue next
			case waitedFor[k], e.NonPreemptible && waitedForInReservation[k]:
				continue next
			default:
				fit = min(fit, max(0, free[k])/need)
				if e.NonPreemptible {
					fit = min(fit, max(0, freeReserved[k])/need)
				}
			}
		}
		if limit <= 0 {
			return grants
		}
		if fit < unit {
			fit = 0
		}
		granted := min(fit, max(int64(limit), unit))
		if granted > 0 {
			grants = append(grants, admission.Grant{Job: e.Job, Tasks: int(granted)})
			limit -= int(granted)
			unit = 1
		}
		shortInReservation := false
		for k, need := range e.Needs {
			free[k] -= need * granted
			if e.NonPreemptible {
				freeReserved[k] -= need * granted
				shortInReservation = shortInReservation || need > 0 && need*unit > freeReserved[k]
			}
		}
		for _, b := range bounds.of(&e) {
			bounds.bound[b].Left = bounds.bound[b].Left.Sub(e.Needs.Scale(granted))
		}
		if granted == int64(e.Count) || granted < fit || bounds.keep(&e, unit) {
			continue
		}
		for k, need := range e.Needs {
			if need == 0 {
				continue
			}
			if e.NonPreemptible {
				waitedForInReservation[k] = waitedForInReservation[k] || need*unit > freeReserved[k]
				freeReserved[k] -= min(need*unit, max(0, freeReserved[k]))
			}
			if !shortInReservation {
				waitedFor[k] = waitedFor[k] || need*unit > free[k]
				free[k] -= min(need*unit, max(0, free[k]))
			}
		}
	}
	return grants
}

// modelBounds are the bounds beside the pool's, by name: that of controllers, and owners' in quotes.
type modelBounds struct {
	room   admission.Room
	bound  map[string]*admission.Bound
	waited map[string]*[resource.MaxKinds]bool
}

// of lists the bounds that hold for an entry, the narrowest first.
func (m *modelBounds) of(e *admission.Entry) (names []string) {
	add := func(name string, b admission.Bound) {
		if m.bound[name] == nil {
			m.bound[name], m.waited[name] = &b, &[resource.MaxKinds]bool{}
		}
		names = append(names, name)
	}
	if m.room.Owner != nil {
		if b, ok := m.room.Owner(e.Owner); ok {
			add(fmt.Sprintf("%q", e.Owner), b)
		}
	}
	if e.Controller && m.room.Controllers != nil {
		add("controllers", *m.room.Controllers)
	}
	return names
}

// fit is how many tasks the bounds leave room for; false: none will ever fit, or somebody waits before it.
func (m *modelBounds) fit(e *admission.Entry) (int64, bool) {
	fit := int64(e.Count)
	for _, name := range m.of(e) {
		b := m.bound[name]
		for k, need := range e.Needs {
			if need > 0 && (need*int64(max(e.Gang, 1)) > b.Limit[k] || m.waited[name][k]) {
				return 0, false
			}
			if need > 0 {
				fit = min(fit, max(0, b.Left[k])/need)
			}
		}
	}
	return fit, true
}

// keep holds room in the first bound that is short of a unit, if one is.
func (m *modelBounds) keep(e *admission.Entry, unit int64) bool {
	for _, name := range m.of(e) {
		b, short := m.bound[name], false
		for k, need := range e.Needs {
			if need > 0 && need*unit > b.Left[k] {
				m.waited[name][k], short = true, true
			}
			b.Left[k] -= min(need*unit, max(0, b.Left[k]))
		}
		if short {
			return true
		}
	}
	return false
}

func drawEntry(t *rapid.T, job int) admission.Entry {
	e := admission.Entry{
		Job: jobID(job), Priority: rapid.Int32Range(0, 2).Draw(t, "priority"), Sequence: uint64(job),
		Count: rapid.IntRange(1, 6).Draw(t, "count"), NonPreemptible: rapid.IntRange(0, 2).Draw(t, "non-preemptible") == 0,
	}
	e.Controller = rapid.IntRange(0, 3).Draw(t, "controller") == 0
	e.Owner = rapid.SampledFrom(owners).Draw(t, "owner")
	kinds := rapid.IntRange(0, 7).Draw(t, "kinds")
	for k := range 3 {
		if kinds&(1<<k) != 0 {
			e.Needs[k] = rapid.SampledFrom([]int64{1, 2, 5}).Draw(t, "need")
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "gang") == 0 {
		e.Gang = rapid.IntRange(1, e.Count).Draw(t, "gang size")
	}
	return e
}

var owners = []string{"", "ann", "bob", "cec", "free"}

func drawBound(t *rapid.T) (b admission.Bound) {
	for k := range b.Limit {
		b.Limit[k], b.Left[k] = math.MaxInt64, math.MaxInt64
		if k < 3 && rapid.Bool().Draw(t, "bounded") {
			b.Limit[k] = rapid.Int64Range(0, 20).Draw(t, "limit")
			b.Left[k] = b.Limit[k] - rapid.Int64Range(0, 22).Draw(t, "used")
		}
	}
	return b
}

func drawRoom(t *rapid.T) admission.Room {
	var room admission.Room
	if rapid.Bool().Draw(t, "controllers are bounded") {
		b := drawBound(t)
		room.Controllers = &b
	}
	if rapid.Bool().Draw(t, "owners are bounded") {
		bounds := map[string]admission.Bound{}
		for _, name := range owners[:len(owners)-1] {
			bounds[name] = drawBound(t)
		}
		room.Owner = func(name string) (admission.Bound, bool) {
			b, ok := bounds[name]
			return b, ok
		}
	}
	for k := range 3 {
		room.Entitlement[k] = rapid.Int64Range(0, 40).Draw(t, "entitlement")
		room.Reservation[k] = rapid.Int64Range(0, 40).Draw(t, "reservation")
		room.NonPreemptibleUsage[k] = rapid.Int64Range(0, 15).Draw(t, "non-preemptible usage")
		room.Usage[k] = room.NonPreemptibleUsage[k] + rapid.Int64Range(0, 15).Draw(t, "preemptible usage")
	}
	return room
}

func TestAdmitAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q admission.Queue
		entries := map[workload.JobID]admission.Entry{}
		put := func(e admission.Entry) {
			if err := q.Set(e); err != nil {
				t.Fatal(err)
			}
			entries[e.Job] = e
		}
		jobs := rapid.IntRange(1, 25).Draw(t, "jobs")
		for job := range jobs {
			put(drawEntry(t, job))
		}
		for range 8 {
			room := drawRoom(t)
			compareWithModel(t, &q, entries, room, rapid.SampledFrom([]int{0, 1, 5, 12}).Draw(t, "limit"))
			compareWithModel(t, &q, entries, room, noLimit)
			compareExplanations(t, &q, entries, room)
			changed := drawEntry(t, rapid.IntRange(0, jobs-1).Draw(t, "changed"))
			if rapid.Bool().Draw(t, "in place") {
				changed.Priority = entries[changed.Job].Priority
			}
			put(changed)
		}
	})
}

func compareWithModel(t *rapid.T, q *admission.Queue, entries map[workload.JobID]admission.Entry, room admission.Room, limit int) {
	grants, out := q.Admit(nil, &room, limit)
	if want := model(sorted(entries), room, limit); !slices.Equal(grants, want) {
		t.Fatalf("granted %v, model says %v", grants, want)
	}
	checkSafety(t, entries, room, grants)
	if limit == noLimit && (out.Stop != admission.StopDone || out.Unseen != 0) {
		t.Fatalf("outcome %+v without a limit", out)
	}
}

// compareExplanations holds every job's standing against what it is granted.
func compareExplanations(t *rapid.T, q *admission.Queue, entries map[workload.JobID]admission.Entry, room admission.Room) {
	granted := map[workload.JobID]int{}
	grants, _ := q.Admit(nil, &room, noLimit)
	for _, g := range grants {
		granted[g.Job] = g.Tasks
	}
	for i, e := range sorted(entries) {
		s, _ := q.Explain(e.Job, &room)
		if s.Ahead != i || s.Tasks != granted[e.Job] || (s.Verdict == admission.Admissible) != (s.Tasks == e.Count) {
			t.Fatalf("job %d stands at %+v, granted %d of %d", i, s, granted[e.Job], e.Count)
		}
		if (s.Verdict == admission.First || s.Verdict == admission.OutOfReach) && s.Need <= s.Has {
			t.Fatalf("job %d is %v, yet needs %d and has %d", i, s.Verdict, s.Need, s.Has)
		}
	}
}

func ptr[T any](v T) *T { return &v }

// checkSafety checks what must hold of any grants: whole gangs, and no account overdrawn.
func checkSafety(t *rapid.T, entries map[workload.JobID]admission.Entry, room admission.Room, grants []admission.Grant) {
	usage, fixedUsage := room.Usage, room.NonPreemptibleUsage
	bounds := modelBounds{room: room, waited: map[string]*[resource.MaxKinds]bool{}, bound: map[string]*admission.Bound{}}
	var touched, fixedTouched resource.Vector
	for _, g := range grants {
		e := entries[g.Job]
		if g.Tasks < max(1, e.Gang) || g.Tasks > e.Count {
			t.Fatalf("%d tasks granted to %+v", g.Tasks, e)
		}
		used := e.Needs.Scale(int64(g.Tasks))
		usage, touched = usage.Add(used), touched.Add(used)
		for _, name := range bounds.of(&e) {
			b := bounds.bound[name]
			if b.Left = b.Left.Sub(used); !used.IsZero() && !e.Needs.FitsIn(ptr(b.Left.Add(e.Needs))) {
				t.Fatalf("%s has %v left of %v after %d tasks of %+v", name, b.Left, b.Limit, g.Tasks, e)
			}
		}
		if e.NonPreemptible {
			fixedUsage, fixedTouched = fixedUsage.Add(used), fixedTouched.Add(used)
		}
	}
	for k := range usage {
		if touched[k] > 0 && usage[k] > room.Entitlement[k] {
			t.Fatalf("kind %d: usage %d over the entitlement of %d", k, usage[k], room.Entitlement[k])
		}
		if fixedTouched[k] > 0 && fixedUsage[k] > room.Reservation[k] {
			t.Fatalf("kind %d: non-preemptible usage %d over the reservation of %d", k, fixedUsage[k], room.Reservation[k])
		}
	}
}

// TestHeadNeverStarves lets small jobs stream in behind a large one for as long as work that was there before still runs. Once the
// last of that has ended, the large job must have started, whoever else runs by then.
func TestHeadNeverStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := admission.Room{Entitlement: resource.Vector{20, 20, 20}}
		var earlier []resource.Vector
		for range rapid.IntRange(0, 8).Draw(t, "running") {
			v := resource.Vector{rapid.Int64Range(0, 5).Draw(t, "a"), rapid.Int64Range(0, 5).Draw(t, "b"), rapid.Int64Range(0, 5).Draw(t, "c")}
			if after := room.Usage.Add(v); after.FitsIn(&room.Entitlement) {
				earlier, room.Usage = append(earlier, v), after
			}
		}
		var q admission.Queue
		entries := map[workload.JobID]admission.Entry{}
		put := func(e admission.Entry) {
			if err := q.Set(e); err != nil {
				t.Fatal(err)
			}
			entries[e.Job] = e
		}
		head := drawEntry(t, 0)
		head.Priority, head.NonPreemptible, head.Gang = 2, false, max(head.Gang, 1)
		if unit := head.Needs.Scale(int64(head.Gang)); !unit.FitsIn(&room.Entitlement) {
			t.Skip("the head is out of reach")
		}
		put(head)
		for job := 1; ; {
			for range rapid.IntRange(1, 4).Draw(t, "newcomers") {
				put(drawEntry(t, job))
				job++
			}
			grants, _ := q.Admit(nil, &room, noLimit)
			for _, g := range grants {
				if g.Job == head.Job {
					return
				}
				room.Usage = room.Usage.Add(entries[g.Job].Needs.Scale(int64(g.Tasks)))
				q.Remove(g.Job) // what remains of it is withdrawn
			}
			if len(earlier) == 0 {
				t.Fatalf("all work from before the head ended, yet it waits: %+v, usage %v", head, room.Usage)
			}
			room.Usage, earlier = room.Usage.Sub(earlier[0]), earlier[1:]
		}
	})
}

func crowd(tb testing.TB, entries int) *admission.Queue {
	var q admission.Queue
	for i := range entries {
		e := admission.Entry{
			Job: jobID(i), Priority: int32(i % 5), Sequence: uint64(i), Count: 1 + i%40,
			Needs: resource.Vector{int64(100 + i%7*100), int64(256 << (i % 4)), 0, int64(i%10/9) * 1000},
		}
		if err := q.Set(e); err != nil {
			tb.Fatal(err)
		}
	}
	return &q
}

func TestAdmitAllocatesNothing(t *testing.T) {
	q := crowd(t, 500)
	room := admission.Room{Entitlement: resource.Vector{1 << 20, 1 << 22, 0, 8000}}
	grants, _ := q.Admit(nil, &room, noLimit)
	if n := testing.AllocsPerRun(10, func() { grants, _ = q.Admit(grants[:0], &room, noLimit) }); n != 0 || len(grants) == 0 {
		t.Errorf("%v allocations per walk, want none", n)
	}
}

// BenchmarkQueue works on 100,000 waiting jobs.
func BenchmarkQueue(b *testing.B) {
	const waiting = 100_000
	q := crowd(b, waiting)
	room := func(cpus int64) *admission.Room {
		return &admission.Room{Entitlement: resource.Vector{1 << 40, 1 << 40, 0, 1 << 40}, Usage: resource.Vector{cpu: 1<<40 - cpus, gpu: 1 << 40}}
	}
	for _, cpus := range []int64{0, 50_000, 1 << 30} {
		b.Run(fmt.Sprintf("Admit/cpu_milli=%d", cpus), func(b *testing.B) {
			r := room(cpus)
			var grants []admission.Grant
			var out admission.Outcome
			b.ReportAllocs()
			for b.Loop() {
				grants, out = q.Admit(grants[:0], r, 4096)
			}
			b.ReportMetric(float64(out.Visited), "visited")
		})
	}
	b.Run("Set", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			e, _ := q.Get(jobID(i % waiting))
			e.Count = 1 + i%7
			e.Priority = int32(i % 5)
			if err := q.Set(e); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
	b.Run("Ahead", func(b *testing.B) {
		i := 0
		for b.Loop() {
			q.Ahead(jobID(i % waiting))
			i++
		}
	})
	b.Run("Explain", func(b *testing.B) {
		r := room(50_000)
		for b.Loop() {
			q.Explain(jobID(waiting/2), r)
		}
	})
}
