package kit

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// judge is the state of judging one version.
type judge struct {
	version *wasm.Version
	options Options
	report  *Report

	played    bool   // some scene ran to its end
	different string // where two fresh instances answered differently
	remembers string // where an instance answered differently when asked the same again
	placed    int    // tasks, by the policy
	native    int    // and by the scheduler's own placer, on the same tables
}

// player is an instance with a table of its own.
type player struct {
	table  *host.Table
	placer *wasm.Placer
	fault  *wasm.Fault
	trail  bytes.Buffer // the bytes of every result, and the fuel that each call used
}

// moment is what policies see as seed and time.
func moment() (uint64, time.Time) { return 42, time.UnixMilli(1_700_000_000_000) }

func newNames() *resource.Names {
	names, err := resource.NewNames([]string{licences})
	if err != nil {
		panic("one good name: " + err.Error())
	}
	return names
}

func newTable() *host.Table { return host.New(newNames(), policyabi.MaxRows) }

// newPlayer makes a table and a placer for it, which makes an instance with its first batch. onCall is told of every call.
func (j *judge) newPlayer(s *scene, onCall func(*player, *wasm.Call)) *player {
	p := &player{table: newTable()}
	slot := &wasm.Slot{}
	slot.Swap(j.version)
	work := s.work
	if work == 0 {
		work = 1 << 40
	}
	p.placer = wasm.NewPlacer(wasm.PlacerConfig{
		Slot: slot, Names: newNames(), CallWork: work, Moment: moment,
		OnFault: func(f *wasm.Fault) {
			if p.fault == nil {
				p.fault = f
			}
		},
		OnCall: func(c wasm.Call) { onCall(p, &c) },
	})
	return p
}

// record keeps what an instance wrote and what it used.
func record(p *player, c *wasm.Call) {
	p.trail.Write(c.Results)
	fmt.Fprintf(&p.trail, " fuel %d\n", c.Used)
}

// scene plays a scene and reports.
func (j *judge) scene(s *scene) {
	rounds := j.options.Rounds
	if s.once {
		rounds = 1
	}
	before, tasks := j.placed, 0
	for round := range rounds {
		n, why := j.round(s, round)
		if why != "" {
			j.report.add(s.name, Failed, "table %d of seed %d: %s", round, j.options.Seed, why)
			return
		}
		tasks += n
	}
	j.played = true
	j.report.add(s.name, Passed, "%d of %d tasks placed, on %s", j.placed-before, tasks, count(rounds, "table"))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// round plays one table of a scene and returns how many tasks were asked for and what is wrong.
func (j *judge) round(s *scene, round int) (int, string) {
	d := newDraw(j.options.Seed, uint64(slices.IndexFunc(scenes, func(o scene) bool { return o.name == s.name })), uint64(round))
	first, second := j.newPlayer(s, record), j.newPlayer(s, record)
	defer first.placer.Close()
	defer second.placer.Close()
	st := stage{scene: s, draw: d, books: newBooks(), tables: append(alike(first, second), newTable())}
	if why := st.raise(); why != "" {
		return 0, why
	}
	native := placement.NewNative()
	tasks := 0
	var known []asked
	for range s.batches {
		batch := st.batch(&known)
		requests := make([]placement.Request, len(batch))
		for i := range batch {
			requests[i] = batch[i].request
			tasks += requests[i].Count
		}
		got := first.placer.Place(first.table, requests)
		if first.fault != nil {
			return 0, first.fault.Error()
		}
		for i := range batch {
			if why := st.books.take(first.table, &batch[i], &got[i]); why != "" {
				return 0, why
			}
			j.placed += len(got[i].Assignments)
		}
		if why := st.books.compare(first.table); why != "" {
			return 0, why
		}
		second.placer.Place(second.table, requests)
		if why := j.same(s, first, second); why != "" {
			return 0, why
		}
		for _, r := range native.Place(st.tables[2], requests) {
			j.native += len(r.Assignments)
		}
		if s.change {
			st.change()
		}
	}
	j.again(s, first, known)
	return tasks, ""
}

// same compares the trails of two instances that were asked the same.
func (j *judge) same(s *scene, first, second *player) string {
	if second.fault != nil {
		return "a second instance: " + second.fault.Error()
	}
	if j.different == "" && !bytes.Equal(first.trail.Bytes(), second.trail.Bytes()) {
		j.different = s.name
	}
	return ""
}

// again asks an instance the same twice, on a table that stays as it is.
func (j *judge) again(s *scene, p *player, known []asked) {
	if len(known) == 0 || j.remembers != "" {
		return
	}
	requests := []placement.Request{{Class: known[0].class, Count: 7}}
	var answers [2][]placement.Result
	for i := range answers {
		answers[i] = p.placer.Plan(p.table, requests)
	}
	if p.fault == nil && !slices.EqualFunc(answers[0][0].Assignments, answers[1][0].Assignments, func(a, b placement.Assignment) bool { return a.Row == b.Row && a.Devices == b.Devices }) {
		j.remembers = s.name
	}
}

// conclude reports what all scenes say together.
func (j *judge) conclude() {
	switch {
	case !j.played:
		return
	case j.different != "":
		j.report.add("deterministic", Failed, "two fresh instances that were asked the same answered differently, or used different fuel, in the scene %q: let nothing follow from addresses, maps or uninitialised memory", j.different)
	default:
		j.report.add("deterministic", Passed, "two fresh instances wrote the same bytes and used the same fuel")
	}
	if j.remembers != "" {
		j.report.add("the same again", Warned, "asked the same twice on the same table it answered differently, in the scene %q: what it remembers is lost whenever an instance is made anew", j.remembers)
	} else {
		j.report.add("the same again", Passed, "asked twice, it answers the same")
	}
	if j.placed == 0 && j.native > 0 {
		j.report.add("places", Warned, "it placed nothing at all; the scheduler's own best fit placed %d tasks on these tables", j.native)
	} else {
		j.report.add("places", Passed, "%d tasks; the scheduler's own best fit %d", j.placed, j.native)
	}
}

// alike are the tables of players, to be filled alike.
func alike(players ...*player) []*host.Table {
	var tables []*host.Table
	for _, p := range players {
		tables = append(tables, p.table)
	}
	return tables
}

// stage is a scene's tables, alike, and the books.
type stage struct {
	scene  *scene
	draw   *draw
	books  *books
	tables []*host.Table
	hosts  int // that there ever were
}

// raise puts the hosts on the tables.
func (st *stage) raise() string {
	for range st.scene.hosts(st.draw) {
		if why := st.put(st.scene.newHost(st.draw, st.hosts)); why != "" {
			return why
		}
		st.hosts++
	}
	if st.scene.full {
		st.fill()
	}
	return ""
}

func (st *stage) put(h host.Host) string {
	st.books.put(h)
	for _, t := range st.tables {
		if _, err := t.Upsert(h); err != nil {
			return "the kit's own host: " + err.Error()
		}
	}
	return ""
}

// fill takes all that is free.
func (st *stage) fill() {
	for i := range st.hosts {
		a := st.books.hosts[hostID(i)]
		all := a.free
		spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: all}}
		class := placement.NewClass(workload.JobID{9}, spec, nil)
		for _, t := range st.tables {
			if row, ok := t.Lookup(a.host.ID); ok {
				if err := t.Take(row, class.Occupant(0, nil)); err != nil {
					panic("all that is free can be taken: " + err.Error())
				}
			}
		}
		a.free = a.free.Sub(all)
	}
}

// batch draws the requests of one batch.
func (st *stage) batch(known *[]asked) []asked {
	var list []asked
	for range st.draw.between(1, 6) {
		list = append(list, st.scene.newRequest(st.draw, known))
	}
	return list
}

// change lets something happen to a few hosts.
func (st *stage) change() {
	for range st.draw.between(1, 5) {
		if st.hosts == 0 {
			return
		}
		id := hostID(st.draw.IntN(st.hosts))
		a := st.books.hosts[id]
		switch what := st.draw.IntN(4); {
		case what == 0:
			st.hosts++
			st.put(st.scene.newHost(st.draw, st.hosts-1))
		case a == nil:
		case what == 1:
			delete(st.books.hosts, id)
			st.each(id, func(t *host.Table, row host.Row) { t.Remove(row) })
		case what == 2:
			a.draining = !a.draining
			st.each(id, func(t *host.Table, row host.Row) { t.SetDraining(row, a.draining) })
		default:
			h := a.host
			h.Capacity[resource.CPU] += 64000
			st.put(h)
		}
	}
}

func (st *stage) each(id workload.HostID, do func(*host.Table, host.Row)) {
	for _, t := range st.tables {
		if row, ok := t.Lookup(id); ok {
			do(t, row)
		}
	}
}
