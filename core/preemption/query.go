package preemption

import (
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
)

// query is the state of serving one request.
type query struct {
	search  *Search
	request *Request
	rows    *placement.Rows
	ledger  *ledger // nil: waiting
	kinds   []int   // what the class needs
	heap    offers
	crowd   *crowd // whom the heap may lack; nil: nobody
	next    int    // in the crowd: the first at whom nobody has looked

	additive bool // see placement.Rows

	bound  bool    // somebody was left out of the last gather by a bound
	chosen []int32 // of the tenancy evaluated last: positions in its order
	spare  []int32 // scratch
	placed []Assignment
	total  offer        // what all of them cost together
	within *restriction // nil: all hosts
	taken  []taken
	late   int    // of ledger.late at the beginning
	drawn  []draw // on the ledger
}

// taken is a run that this request made a victim.
type taken struct {
	row host.Row
	run int32
}

// draw is what a ledger held before something was taken.
type draw struct {
	job, pool int32
	left      int32
	over      resource.Vector // of the pool, where there is one
}

func (s *Search) query(r *Request) *query {
	q := &query{search: s, request: r, rows: s.native.Rows(s.table, r.Class), total: offer{tier: -1}}
	if r.Victims != nil {
		if q.ledger = s.ledgers[r.Victims]; q.ledger == nil {
			q.ledger = s.newLedger(r.Victims)
			s.ledgers[r.Victims] = q.ledger
		}
		q.late = len(q.ledger.late)
	}
	q.additive = q.rows.Additive()
	for k, need := range r.Class.Needs {
		if need > 0 {
			q.kinds = append(q.kinds, k)
		}
	}
	return q
}

// place finds the cheapest host for one task after the other. What the heap says of a host is a bound until the host is on top: it is evaluated
// then, and taken if it stays there.
func (q *query) place() {
	if q.plain() {
		q.placePlain()
		return
	}
	q.stand()
	defer q.keep()
	for len(q.placed) < q.request.Count {
		best := q.best()
		if best == nil {
			return
		}
		now, ok := *best, true
		switch best.round {
		case q.search.round:
		case onlyBound:
			now, ok = q.evaluate(best.row)
		default:
			now, ok = q.look(best.row)
		}
		switch {
		case !ok:
			q.heap.pop()
		case now.round != q.search.round || best.before(&now):
			*best = now
			q.heap.down(0)
		case !q.commit(best.row):
			q.heap.pop()
		}
	}
}

// allows reports whether a host is the one asked for, if one was.
func (q *query) allows(row host.Row) bool {
	return q.within.allows(row) && ((q.request.Host == host.Host{}.ID) || q.search.table.ID(row) == q.request.Host)
}

// evaluate chooses the victims on a host and says what they cost.
func (q *query) evaluate(row host.Row) (offer, bool) {
	t := q.search.candidates(row, q.ledger)
	q.chosen = q.chosen[:0]
	sums := q.sums(row)
	lacks := q.lacks(row, t)
	if !q.enough(row, t, &lacks, sums) {
		if !q.gather(row, t, &lacks, sums) && !q.gatherFrom(row, t, &lacks, sums) {
			return offer{}, false
		}
		if !q.plain() {
			q.thin(row, t, &lacks, sums)
			q.single(row, t, sums)
		}
	}
	o := offer{tier: -1, row: row, round: q.search.round}
	q.units(t, func(c *candidate) {
		o.tier = max(o.tier, c.tier)
		runs, work := q.cost(c)
		o.runs, o.work = o.runs+runs, o.work+work
	})
	return o, true
}

// sums reports whether sums alone say if the class fits on a host.
func (q *query) sums(row host.Row) bool { return q.additive && !q.search.table.Exclusive().Has(row) }

// lacks is what one more task needs beyond what is free once the dying are gone.
func (q *query) lacks(row host.Row, t *tenancy) (v resource.Vector) {
	for _, k := range q.kinds {
		v[k] = q.request.Class.Needs[k] - t.dying[k]
		if free := q.search.table.FreeOf(resource.Kind(k)); free != nil {
			v[k] -= free[row]
		}
	}
	return v
}

// shift adds sign times what a run holds to what is lacking, in the kinds that matter.
func (q *query) shift(lacks, needs *resource.Vector, sign int64) {
	for _, k := range q.kinds {
		lacks[k] += sign * needs[k]
	}
}

// enough reports whether the class fits once the chosen and the dying are gone.
func (q *query) enough(row host.Row, t *tenancy, lacks *resource.Vector, sums bool) bool {
	if q.exceeded(lacks) {
		return false
	}
	if sums {
		return true
	}
	fits := false
	err := q.search.table.Without(row, q.leaving(t), func() { fits = q.rows.Fits(row) })
	return err == nil && fits
}

// leaving is what the table holds for the chosen and the dying.
func (q *query) leaving(t *tenancy) []host.Occupant {
	var list []host.Occupant
	for i := range t.runs {
		if t.runs[i].Dying {
			list = append(list, t.runs[i].occupant())
		}
	}
	for _, at := range q.chosen {
		list = append(list, t.runs[t.order[at].run].occupant())
	}
	return list
}

// gather adds candidates in order until the class fits.
func (q *query) gather(row host.Row, t *tenancy, lacks *resource.Vector, sums bool) bool {
	q.bound = false
	for at := range t.order {
		c := &t.order[at]
		if slices.Contains(q.chosen, int32(at)) || !q.helps(c, lacks, sums) {
			continue
		}
		if !q.may(t, c) {
			q.bound = true
			continue
		}
		q.choose(t, at, lacks)
		if q.enough(row, t, lacks, sums) {
			return true
		}
	}
	return false
}

// gatherFrom begins with each candidate in turn, when a bound cut gather short: small victims may have used up what one large one needed.
func (q *query) gatherFrom(row host.Row, t *tenancy, lacks *resource.Vector, sums bool) bool {
	if !q.bound {
		return false
	}
	for at := range t.order {
		q.chosen = q.chosen[:0]
		*lacks = q.lacks(row, t)
		if c := &t.order[at]; !q.helps(c, lacks, sums) || !q.may(t, c) {
			continue
		}
		q.choose(t, at, lacks)
		if q.enough(row, t, lacks, sums) || q.gather(row, t, lacks, sums) {
			return true
		}
	}
	return false
}

// helps leaves out who gives nothing of what is lacking, where sums say everything.
func (q *query) helps(c *candidate, lacks *resource.Vector, sums bool) bool {
	if !sums {
		return true
	}
	needs := q.use(c)
	for _, k := range q.kinds {
		if lacks[k] > 0 && needs[k] > 0 {
			return true
		}
	}
	return false
}

func (q *query) job(c *candidate) *Job {
	if c.job < 0 {
		return nil
	}
	return &q.ledger.jobs[c.job]
}

// may reports whether a candidate can be taken beside those chosen.
func (q *query) may(t *tenancy, c *candidate) bool {
	j := q.job(c)
	if j == nil {
		return true
	}
	left := q.ledger.left[c.job] - j.whole()
	if j.Pool < 0 && left >= int32(len(q.chosen)) { //nolint:gosec // within what a host holds
		return true
	}
	var over resource.Vector
	if j.Pool >= 0 {
		over = q.ledger.over[j.Pool]
	}
	q.units(t, func(o *candidate) {
		if o.job == c.job {
			left--
		}
		if q.ledger.jobs[o.job].Pool == j.Pool {
			over = over.Sub(*q.use(o))
		}
	})
	if left < 0 {
		return false
	}
	if j.Pool < 0 {
		return true
	}
	use := q.use(c)
	for _, k := range q.kinds {
		if over[k] > 0 && use[k] > 0 {
			return true
		}
	}
	return false
}

// use is what a pool gets back for a victim: a gang's whole use.
func (q *query) use(c *candidate) *resource.Vector {
	if c.gang {
		return &q.ledger.jobs[c.job].Gang.Use
	}
	return &q.search.needs[c.needs]
}

// units visits the chosen, of each gang one.
func (q *query) units(t *tenancy, visit func(*candidate)) {
	for n, at := range q.chosen {
		c := &t.order[at]
		if c.gang && slices.ContainsFunc(q.chosen[:n], func(o int32) bool { return t.order[o].job == c.job }) {
			continue
		}
		visit(c)
	}
}

// choose adds a candidate, with its mates on the host if it is of a gang.
func (q *query) choose(t *tenancy, at int, lacks *resource.Vector) {
	c := &t.order[at]
	if !c.gang {
		q.chosen = append(q.chosen, int32(at)) //nolint:gosec // within what a host holds
		q.shift(lacks, &q.search.needs[c.needs], -1)
		return
	}
	for n := range t.order {
		if t.order[n].job == c.job {
			q.chosen = append(q.chosen, int32(n))
			q.shift(lacks, &q.search.needs[t.order[n].needs], -1)
		}
	}
}

// thin lets off, last chosen first, who need not go.
func (q *query) thin(row host.Row, t *tenancy, lacks *resource.Vector, sums bool) {
	for n := len(q.chosen) - 1; n >= 0; n-- {
		if n >= len(q.chosen) {
			continue
		}
		c := &t.order[q.chosen[n]]
		needs := &q.search.needs[c.needs]
		if q.shift(lacks, needs, 1); q.exceeded(lacks) && (!c.gang || q.job(c).whole() == 1) {
			q.shift(lacks, needs, -1)
			continue // the commonest case: the sums alone say that it has to go
		}
		q.shift(lacks, needs, -1)
		q.letOff(row, t, n, lacks, sums)
	}
}

func (q *query) letOff(row host.Row, t *tenancy, n int, lacks *resource.Vector, sums bool) {
	all, lacked := slices.Clone(q.chosen), *lacks
	c := &t.order[all[n]]
	q.chosen = slices.DeleteFunc(q.chosen, func(at int32) bool {
		out := at == all[n] || c.gang && t.order[at].job == c.job
		if out {
			q.shift(lacks, &q.search.needs[t.order[at].needs], 1)
		}
		return out
	})
	if !q.enough(row, t, lacks, sums) {
		q.chosen, *lacks = all, lacked
	}
}

func (q *query) exceeded(lacks *resource.Vector) bool {
	for _, k := range q.kinds {
		if lacks[k] > 0 {
			return true
		}
	}
	return false
}

// single takes one victim instead of several, if one that does not stand behind the worst of them is enough.
func (q *query) single(row host.Row, t *tenancy, sums bool) {
	if len(q.chosen) < 2 {
		return
	}
	worst, base := int64(0), q.lacks(row, t)
	for _, at := range q.chosen {
		worst = max(worst, t.order[at].tier)
	}
	several := append(q.spare[:0], q.chosen...)
	q.spare = several
	for at := range t.order {
		c := &t.order[at]
		if c.tier > worst {
			break
		}
		lacks := base
		if q.shift(&lacks, &q.search.needs[c.needs], -1); q.exceeded(&lacks) {
			continue
		}
		q.chosen = q.chosen[:0]
		if c.gang && q.job(c).whole() > 1 || !q.may(t, c) {
			continue
		}
		q.chosen = append(q.chosen, int32(at)) //nolint:gosec // within what a host holds
		if q.enough(row, t, &lacks, sums) {
			return
		}
	}
	q.chosen = append(q.chosen[:0], several...)
}

// commit takes the room on a host, makes its victims dying, and offers the host again.
func (q *query) commit(row host.Row) bool {
	touched, ok := q.take(row)
	if !ok {
		return false
	}
	if o, ok := q.look(row); ok {
		q.heap[0] = o
		q.heap.down(0)
	} else {
		q.heap.pop()
	}
	for _, other := range touched {
		if !q.allows(other) || !q.rows.Eligible(other) {
			continue
		}
		if o, ok := q.look(other); ok {
			q.heap.push(o)
		}
	}
	return true
}

// take takes the room on a host and makes its victims dying. It returns the other hosts that this touches.
func (q *query) take(row host.Row) (touched []host.Row, ok bool) {
	cost, ok := q.evaluate(row)
	if !ok {
		return nil, false
	}
	t := &q.search.rows[row]
	var a Assignment
	took := false
	err := q.search.table.Without(row, q.leaving(t), func() {
		if took = q.rows.Fits(row); took {
			a.Assignment = q.rows.Take(row)
		}
	})
	if err != nil || !took {
		return nil, false
	}
	for _, at := range q.chosen {
		a.Victims = append(a.Victims, t.runs[t.order[at].run].ID)
	}
	q.placed = append(q.placed, a)
	q.total = offer{tier: max(q.total.tier, cost.tier), runs: q.total.runs + cost.runs, work: q.total.work + cost.work}
	q.search.moved = append(q.search.moved, row)
	q.search.round++ // the heap may have the host twice
	return q.consume(row, t), true
}

// consume draws the chosen on their ledger and returns the other hosts on which mates of theirs are dying now.
func (q *query) consume(row host.Row, t *tenancy) (touched []host.Row) {
	if len(q.chosen) == 0 {
		return nil
	}
	q.search.round++
	q.units(t, func(c *candidate) {
		j := q.job(c)
		if j == nil {
			return
		}
		d := draw{job: c.job, pool: j.Pool, left: q.ledger.left[c.job]}
		q.ledger.left[c.job] -= j.whole()
		if j.Pool >= 0 {
			d.over = q.ledger.over[j.Pool]
			q.ledger.over[j.Pool] = q.ledger.over[j.Pool].Sub(*q.use(c))
		}
		q.drawn = append(q.drawn, d)
		if j.isGang() {
			q.ledger.gone[c.job] = true
			touched = append(touched, q.ledger.rows[c.job]...)
		}
	})
	for _, at := range q.chosen {
		q.kill(row, t, t.order[at].run)
	}
	slices.Sort(touched)
	touched = slices.DeleteFunc(slices.Compact(touched), func(r host.Row) bool { return r == row })
	q.killMates(row)
	for _, other := range touched {
		q.killMates(other)
	}
	t.known = false
	return touched
}

func (q *query) kill(row host.Row, t *tenancy, run int32) {
	t.runs[run].Dying = true
	t.seats = slices.DeleteFunc(t.seats, func(s seat) bool { return s.run == run })
	t.dying = t.dying.Add(t.runs[run].Class.Needs)
	q.taken = append(q.taken, taken{row, run})
	q.search.moved = append(q.search.moved, row)
}

func (q *query) killMates(row host.Row) {
	if q.ledger == nil {
		return
	}
	t := &q.search.rows[row]
	for i := range t.runs {
		r := &t.runs[i]
		if at, may := q.ledger.find(q.search.numbers[r.ID.Job], &r.ID); may && q.ledger.gone[at] && !r.Dying {
			q.kill(row, t, int32(i))
		}
	}
	t.known = false
}

// undo gives everything back, as if the request had never been.
func (q *query) undo() {
	for i := len(q.placed) - 1; i >= 0; i-- {
		a := &q.placed[i]
		q.search.moved = append(q.search.moved, a.Row)
		if err := q.search.table.Release(a.Row, q.request.Class.Occupant(a.Devices, a.Ports)); err != nil {
			panic("preemption: room taken a moment ago is not in the books: " + err.Error())
		}
	}
	q.placed = nil
	if q.ledger != nil {
		q.taken = append(q.taken, q.ledger.late[q.late:]...)
		q.ledger.late = q.ledger.late[:q.late]
	}
	for _, v := range q.taken {
		t := &q.search.rows[v.row]
		t.runs[v.run].Dying = false
		q.search.weigh(t)
		q.search.moved = append(q.search.moved, v.row)
	}
	for i := len(q.drawn) - 1; i >= 0; i-- {
		d := &q.drawn[i]
		q.ledger.left[d.job] = d.left
		q.ledger.gone[d.job] = false // gangs that earlier requests took stay gone
		if d.pool >= 0 {
			q.ledger.over[d.pool] = d.over
		}
	}
	q.leave()
}
