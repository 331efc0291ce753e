package preemption

import (
	"cmp"
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// tenancy is the runs on one host. It outlives calls until somebody comes, goes or changes there.
type tenancy struct {
	version uint64          // of the table's row when it was loaded; 0: it has to be loaded again
	runs    []Run           // by id
	dying   resource.Vector // of runs
	seats   []seat          // of those who are not dying, in the order of the ledger that looked last

	order []candidate // who may be taken, in order
	of    uint64      // the serial of the ledger for whom order was made
	known bool        // order holds
}

// seat is a run that is not dying. The order of one ledger differs little from that of the next, so seats are kept in it.
type seat struct {
	started int64
	owner   int32 // its job, by the number that the Search gave it
	needs   int32 // in Search.needs
	run     int32 // in tenancy.runs
}

// before is the order within a tier.
func (a *seat) before(b *seat) bool {
	return a.started > b.started || a.started == b.started && a.run < b.run
}

// candidate is a run that may be taken.
type candidate struct {
	tier    int64 // see tierOf
	started int64
	run     int32 // in tenancy.runs
	job     int32 // in Snapshot.Jobs; -1: waiting for it costs nobody anything
	needs   int32 // in Search.needs
	gang    bool
}

// Tiers of seats for which a job has no tier of its own.
const (
	notThese  = math.MaxInt64     // must not be taken
	notSimple = math.MaxInt64 - 1 // of a job with gangs
)

// tierOf is a candidate's place in the order but for the work that it would lose.
func tierOf(j *Job, running bool) int64 {
	tier := int64(j.Rank)
	if running {
		tier |= 1 << 32
	}
	if !j.Revocable {
		tier |= 1 << 33
	}
	return tier
}

// waiting is the serial of the order of those who are waited for.
const waiting = 0

// ledger is what requests under one snapshot have left to take.
type ledger struct {
	serial uint64
	jobs   []Job
	ranks  []ranked             // by a job's number
	left   []int32              // by entry
	over   []resource.Vector    // by pool
	gone   []bool               // by entry: a gang that was taken
	rows   map[int32][]host.Row // by gang: where it was met
	late   []taken              // mates of a gang that was gone when their host was looked at first
}

// ranked is what a ledger says of a job as a whole.
type ranked struct {
	tiers [2]int64 // of its runs before and after they began to run
	entry int32    // its first in jobs; -1: none
	pool  int32    // of the entry
}

func (s *Search) newLedger(snap *Snapshot) *ledger {
	s.serial++
	l := s.spareLedger
	if s.spareLedger = nil; l == nil {
		l = &ledger{}
	}
	l.serial, l.jobs = s.serial, snap.Jobs
	l.left, l.over, l.gone = make([]int32, len(snap.Jobs)), make([]resource.Vector, len(snap.Pools)), make([]bool, len(snap.Jobs))
	l.rows, l.late = map[int32][]host.Row{}, nil
	l.ranks = slices.Grow(l.ranks[:0], len(s.numbers))[:len(s.numbers)]
	for n := range l.ranks {
		l.ranks[n] = ranked{tiers: [2]int64{notThese, notThese}, entry: -1}
	}
	last := roll{s: s, now: s.uncalled[:0]}
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		l.left[i] = j.Allow
		if i > 0 && snap.Jobs[i-1].ID == j.ID {
			continue
		}
		n, here := last.number(j.ID)
		if !here {
			continue
		}
		l.ranks[n] = ranked{[2]int64{tierOf(j, false), tierOf(j, true)}, int32(i), j.Pool} //nolint:gosec // a snapshot has far fewer
		if j.Gang != nil {
			l.ranks[n].tiers = [2]int64{notSimple, notSimple}
		}
	}
	for i := range snap.Pools {
		l.over[i] = snap.Pools[i].Over
	}
	s.called, s.uncalled = last.now, s.called
	return l
}

// roll finds the numbers of a snapshot's jobs. It lists much the same as the one before in much the same order, so the next job mostly stands where
// the last one was followed by it.
type roll struct {
	s   *Search
	at  int
	now []numbered
}

// numbered is a job that a snapshot named and that was met.
type numbered struct {
	job    workload.JobID
	number int32
}

func (r *roll) number(id workload.JobID) (int32, bool) {
	before := r.s.called
	if r.at >= len(before) || before[r.at].job != id {
		n, met := r.s.numbers[id]
		if !met {
			return -1, false
		}
		if len(r.s.where) < len(r.s.numbers) {
			r.s.where = append(r.s.where, make([]int32, len(r.s.numbers)-len(r.s.where))...)
		}
		if r.at = int(r.s.where[n]); r.at >= len(before) || before[r.at].job != id { // it is new
			r.s.where[n] = int32(len(r.now)) //nolint:gosec // a snapshot has far fewer
			r.now = append(r.now, numbered{id, n})
			return n, true
		}
	}
	found := before[r.at]
	r.at++
	r.s.where[found.number] = int32(len(r.now)) //nolint:gosec // a snapshot has far fewer
	r.now = append(r.now, found)
	return found.number, true
}

// find returns the entry of a run of the job with a number.
func (l *ledger) find(owner int32, id *workload.RunID) (int32, bool) {
	at := l.ranks[owner].entry
	if at < 0 || l.jobs[at].members() == nil {
		return at, at >= 0
	}
	for ; int(at) < len(l.jobs) && l.jobs[at].ID == id.Job; at++ {
		if l.jobs[at].has(id.Instance) {
			return at, true
		}
	}
	return -1, false
}

func (j *Job) has(instance uint32) bool {
	members := j.members()
	for _, r := range members {
		if instance <= r.Last {
			return instance >= r.First
		}
	}
	return members == nil
}

// Bounds of what a Search remembers: after so many hosts were loaded, times the table's and some, it forgets all jobs that it has met. Many will
// have ended by then.
const (
	forgetAfterTables = 4
	forgetAfterHosts  = 1024
)

// refresh loads the hosts of which anything may have changed since the last call.
func (s *Search) refresh() {
	rows := s.table.Rows()
	if missing := rows - len(s.rows); missing > 0 {
		s.rows = append(s.rows, make([]tenancy, missing)...)
	}
	if s.loaded > forgetAfterTables*rows+forgetAfterHosts || s.last != s.table {
		s.Forget()
		s.last, s.loaded = s.table, 0
		s.numbers, s.needs, s.needIndex = map[workload.JobID]int32{}, nil, map[resource.Vector]int32{}
		s.classes = map[*placement.Class]int32{}
		s.called, s.where = s.called[:0], nil
	}
	if s.loaded == 0 {
		s.furnish()
	}
	for row := range host.Row(rows) {
		if t := &s.rows[row]; t.version != s.table.Version(row) {
			s.load(row, t)
		}
	}
}

// furnish takes the memory for what hosts have on them at once, where there is none yet.
func (s *Search) furnish() {
	short := func(row int) int {
		if n := s.table.Tasks(host.Row(row)); n > cap(s.rows[row].runs) { //nolint:gosec // a row of the table
			return n
		}
		return 0
	}
	all := 0
	for row := range s.rows {
		all += short(row)
	}
	runs, seats := make([]Run, all), make([]seat, all)
	for row := range s.rows {
		if n := short(row); n > 0 {
			s.rows[row].runs, s.rows[row].seats = runs[:0:n], seats[:0:n]
			runs, seats = runs[n:], seats[n:]
		}
	}
}

// load brings a host's runs in.
func (s *Search) load(row host.Row, t *tenancy) {
	s.loaded++
	t.version = s.table.Version(row)
	clear(t.runs)
	t.runs = t.runs[:0]
	if s.table.Has(row) {
		t.runs = s.tenants.Tenants(row, t.runs)
		sortRuns(t.runs)
	}
	s.weigh(t)
}

// sortRuns is by insertion: tenants are listed about as they came, and ids grow.
func sortRuns(runs []Run) {
	for i := 1; i < len(runs); i++ {
		at := i
		for at > 0 && compareRuns(&runs[i].ID, &runs[at-1].ID) < 0 {
			at--
		}
		if at < i {
			r := runs[i]
			copy(runs[at+1:i+1], runs[at:i])
			runs[at] = r
		}
	}
}

// weigh sums up what is dying, and seats who is not.
func (s *Search) weigh(t *tenancy) {
	t.dying, t.known = resource.Vector{}, false
	t.seats = t.seats[:0]
	var last workload.JobID
	owner := int32(-1)
	for i := range t.runs {
		r := &t.runs[i]
		if r.Dying {
			t.dying = t.dying.Add(r.Class.Needs)
			continue
		}
		if owner < 0 || last != r.ID.Job {
			last, owner = r.ID.Job, s.number(r.ID.Job)
		}
		t.seats = append(t.seats, seat{r.Started, owner, s.needsOf(r.Class), int32(i)}) //nolint:gosec // within what a host holds
	}
}

// number returns the number of a job, which it gets when it is met first.
func (s *Search) number(id workload.JobID) int32 {
	n, met := s.numbers[id]
	if !met {
		n = int32(len(s.numbers)) //nolint:gosec // bounded by refresh
		s.numbers[id] = n
	}
	return n
}

// needsOf returns the place of a class's needs among all that were met.
func (s *Search) needsOf(c *placement.Class) int32 {
	n, met := s.classes[c]
	if met {
		return n
	}
	if n, met = s.needIndex[c.Needs]; !met {
		n = int32(len(s.needs)) //nolint:gosec // bounded by refresh
		s.needs = append(s.needs, c.Needs)
		s.needIndex[c.Needs] = n
	}
	s.classes[c] = n
	return n
}

// candidates orders who may be taken on a host. A nil ledger stands for waiting.
func (s *Search) candidates(row host.Row, l *ledger) *tenancy {
	t := &s.rows[row]
	serial := uint64(waiting)
	if l != nil {
		serial = l.serial
	}
	if t.known && t.of == serial {
		return t
	}
	t.known, t.of = true, serial
	t.order = t.order[:0]
	alive := t.seats[:0]
	for _, at := range t.seats {
		c := candidate{tier: notThese, started: at.started, run: at.run, needs: at.needs, job: -1}
		r := &t.runs[at.run]
		if l == nil {
			if r.Class.Kind == workload.Batch {
				c.tier = 0
			}
		} else if entry, may := l.find(at.owner, &r.ID); may && !l.enter(t, row, entry, &c) {
			continue
		}
		alive = append(alive, at)
		if c.tier != notThese {
			t.order = append(t.order, c)
		}
	}
	t.seats = alive
	t.sort(l == nil)
	return t
}

// sort is by insertion: the order is nearly right.
func (t *tenancy) sort(waits bool) {
	for i := 1; i < len(t.order); i++ {
		c, at := t.order[i], i
		for ; at > 0 && c.before(&t.order[at-1], waits); at-- {
			t.order[at] = t.order[at-1]
		}
		t.order[at] = c
	}
}

func (a *candidate) before(b *candidate, waits bool) bool {
	switch {
	case a.tier != b.tier:
		return a.tier < b.tier
	case a.started != b.started:
		return (a.started > b.started) != waits // what has run longest is the likeliest to end
	}
	return a.run < b.run
}

// rank puts the seats of a host in a ledger's order and notes their tiers. Those that must not be
// taken are last, and left out. It reports false when there are gangs, whose order is not so easily told.
func (s *Search) rank(t *tenancy, l *ledger) ([]int64, bool) {
	tiers := s.tiers[:0]
	last := seat{}
	lastTier := int64(-1)
	sorted, may := true, len(t.seats)
	for i := range t.seats {
		at := &t.seats[i]
		running := 0
		if at.started != 0 {
			running = 1
		}
		tier := l.ranks[at.owner].tiers[running]
		if tier == notSimple {
			return nil, false
		}
		if tier == notThese {
			may--
		}
		sorted = sorted && (tier > lastTier || tier == lastTier && last.before(at))
		last, lastTier = *at, tier
		tiers = append(tiers, tier)
	}
	s.tiers = tiers
	if sorted {
		return tiers[:may], true
	}
	for i := 1; i < len(tiers); i++ {
		tier, seat, at := tiers[i], t.seats[i], i
		for ; at > 0 && (tier < tiers[at-1] || tier == tiers[at-1] && seat.before(&t.seats[at-1])); at-- {
			tiers[at], t.seats[at] = tiers[at-1], t.seats[at-1]
		}
		tiers[at], t.seats[at] = tier, seat
	}
	return tiers[:may], true
}

// enter gives a candidate its place. It reports false for one that is on its way out with its gang.
func (l *ledger) enter(t *tenancy, row host.Row, job int32, c *candidate) bool {
	j := &l.jobs[job]
	running := c.started != 0
	if j.isGang() {
		if l.gone[job] {
			r := &t.runs[c.run]
			r.Dying = true
			t.dying = t.dying.Add(r.Class.Needs)
			l.late = append(l.late, taken{row, c.run})
			return false
		}
		if rows := l.rows[job]; len(rows) == 0 || rows[len(rows)-1] != row {
			l.rows[job] = append(rows, row)
		}
		c.gang, running = true, j.Gang.Work > 0 // its mates may have begun
	}
	c.tier, c.job = tierOf(j, running), job
	return true
}

func compareRuns(a, b *workload.RunID) int {
	return cmp.Or(
		workload.ID(a.Job).Compare(workload.ID(b.Job)), cmp.Compare(a.Instance, b.Instance),
		cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Run, b.Run),
	)
}

func (r *Run) occupant() host.Occupant { return r.Class.Occupant(r.Devices, r.Ports) }
