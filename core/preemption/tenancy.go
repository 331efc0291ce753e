package preemption

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// tenancy is the runs on one host as the present call sees them.
type tenancy struct {
	served uint64 // the call for which it was loaded
	runs   []Run
	dying  resource.Vector // of runs
	order  []candidate
	of     *ledger // for whom order was made; nil: for waiting
	known  bool    // order holds
}

// candidate is a run that may be taken.
type candidate struct {
	tier    int64 // see tierOf
	started int64
	run     int32 // in tenancy.runs
	job     int32 // in Snapshot.Jobs; -1: waiting for it costs nobody anything
}

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

// ledger is what requests under one snapshot have left to take.
type ledger struct {
	jobs  []Job
	index map[workload.JobID]int32
	left  []int32              // by job
	over  []resource.Vector    // by pool
	gone  []bool               // by job: a gang that was taken
	rows  map[int32][]host.Row // by gang: where it was met
	late  []taken              // mates of a gang that was gone when their host was looked at first
}

func newLedger(s *Snapshot) *ledger {
	l := &ledger{
		jobs: s.Jobs, index: make(map[workload.JobID]int32, len(s.Jobs)), left: make([]int32, len(s.Jobs)), over: make([]resource.Vector, len(s.Pools)),
		gone: make([]bool, len(s.Jobs)), rows: map[int32][]host.Row{},
	}
	for i := range s.Jobs {
		if i == 0 || s.Jobs[i-1].ID != s.Jobs[i].ID {
			l.index[s.Jobs[i].ID] = int32(i) //nolint:gosec // a snapshot has far fewer
		}
		l.left[i] = s.Jobs[i].Allow
	}
	for i := range s.Pools {
		l.over[i] = s.Pools[i].Over
	}
	return l
}

// find returns the entry of a run.
func (l *ledger) find(id *workload.RunID) (int32, bool) {
	at, there := l.index[id.Job]
	for ; there && int(at) < len(l.jobs) && l.jobs[at].ID == id.Job; at++ {
		if l.jobs[at].has(id.Instance) {
			return at, true
		}
	}
	return -1, false
}

func (j *Job) has(instance uint32) bool {
	if j.Members == nil {
		return true
	}
	for _, r := range j.Members {
		if instance <= r.Last {
			return instance >= r.First
		}
	}
	return false
}

// load brings a host's runs in.
func (s *Search) load(row host.Row) *tenancy {
	t := &s.rows[row]
	if t.served != s.served {
		t.served, t.known = s.served, false
		t.runs = s.tenants.Tenants(row, t.runs[:0])
		t.weigh()
	}
	return t
}

// weigh sums up what is dying.
func (t *tenancy) weigh() {
	t.dying = resource.Vector{}
	for i := range t.runs {
		if t.runs[i].Dying {
			t.dying = t.dying.Add(t.runs[i].Class.Needs)
		}
	}
}

// candidates loads a host and orders who may be taken there.
func (s *Search) candidates(row host.Row, l *ledger) *tenancy {
	t := s.load(row)
	if t.known && t.of == l {
		return t
	}
	t.known, t.of = true, l
	t.order = t.order[:0]
	for i := range t.runs {
		r := &t.runs[i]
		switch {
		case r.Dying:
		case l == nil:
			if r.Class.Kind == workload.Batch {
				t.order = append(t.order, candidate{started: r.Started, run: int32(i), job: -1})
			}
		default:
			if at, may := l.find(&r.ID); may {
				l.enter(t, row, at, int32(i))
			}
		}
	}
	slices.SortFunc(t.order, func(a, b candidate) int {
		switch {
		case a.tier != b.tier:
			return cmp.Compare(a.tier, b.tier)
		case a.started != b.started && l == nil: // what has run longest is the likeliest to end
			return cmp.Compare(a.started, b.started)
		case a.started != b.started:
			return cmp.Compare(b.started, a.started)
		}
		return compareRuns(&t.runs[a.run].ID, &t.runs[b.run].ID)
	})
	return t
}

func (l *ledger) enter(t *tenancy, row host.Row, job, run int32) {
	j, r := &l.jobs[job], &t.runs[run]
	if j.Gang > 0 {
		if l.gone[job] {
			r.Dying = true
			t.dying = t.dying.Add(r.Class.Needs)
			l.late = append(l.late, taken{row, run, job})
			return
		}
		if rows := l.rows[job]; len(rows) == 0 || rows[len(rows)-1] != row {
			l.rows[job] = append(rows, row)
		}
	}
	running := r.Started != 0
	if j.Gang > 0 { // its mates may have begun
		running = j.Work > 0
	}
	t.order = append(t.order, candidate{tier: tierOf(j, running), started: r.Started, run: run, job: job})
}

func compareRuns(a, b *workload.RunID) int {
	return cmp.Or(
		workload.ID(a.Job).Compare(workload.ID(b.Job)), cmp.Compare(a.Instance, b.Instance),
		cmp.Compare(a.Generation, b.Generation), cmp.Compare(a.Run, b.Run),
	)
}

func (r *Run) occupant() host.Occupant { return r.Class.Occupant(r.Devices, r.Ports) }
