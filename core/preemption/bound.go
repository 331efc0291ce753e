package preemption

import (
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// look says what a host offers, or bounds it where that takes long to find out. It reports false for a host that certainly cannot be cleared.
func (q *query) look(row host.Row) (offer, bool) {
	s := q.search
	t := &s.rows[row]
	o := offer{tier: -1, row: row}
	lacks, sums := q.lacks(row, t), q.sums(row)
	if !q.exceeded(&lacks) {
		if sums {
			o.round = s.round
		}
		return o, true
	}
	seats, tiers, gangs := q.seats(row, t)
	if gangs { // mates of one that is gone may have been found dying just now
		if lacks = q.lacks(row, t); !q.exceeded(&lacks) {
			return o, true
		}
	}
	if sums && !gangs && q.ledger != nil && q.simple(&o, seats[:len(tiers)], tiers, lacks) {
		o.round = s.round
		return o, o.runs > 0
	}
	return q.least(o, t, seats, tiers, gangs, &lacks)
}

// simple is evaluate for the commonest hosts: sums are all that counts, there are no gangs, and no bound keeps anybody from being taken in his turn. It
// reports false when one does. An offer of no runs is none.
func (q *query) simple(o *offer, seats []seat, tiers []int64, lacks resource.Vector) bool {
	s, base := q.search, lacks
	q.chosen = q.chosen[:0]
	for i := 0; i < len(seats) && q.exceeded(&lacks); i++ {
		needs := &s.needs[seats[i].needs]
		if !q.eases(needs, &lacks) {
			continue
		}
		if !q.mayTake(seats, i) {
			return false
		}
		q.chosen = append(q.chosen, int32(i)) //nolint:gosec // within what a host holds
		q.shift(&lacks, needs, -1)
	}
	if q.exceeded(&lacks) {
		return true
	}
	o.tier = tiers[q.chosen[len(q.chosen)-1]] // it was the last that was lacking, so it is not let off
	for n := len(q.chosen) - 2; n >= 0; n-- {
		needs := &s.needs[seats[q.chosen[n]].needs]
		if q.shift(&lacks, needs, 1); q.exceeded(&lacks) {
			q.shift(&lacks, needs, -1)
		} else {
			q.chosen = slices.Delete(q.chosen, n, n+1)
		}
	}
	if len(q.chosen) > 1 {
		q.simpleSingle(o.tier, seats, tiers, &base)
	}
	for _, at := range q.chosen {
		o.runs, o.work = o.runs+1, o.work+q.work(seats[at].started)
	}
	return true
}

// simpleSingle is single for simple.
func (q *query) simpleSingle(worst int64, seats []seat, tiers []int64, lacks *resource.Vector) {
	several := append(q.spare[:0], q.chosen...)
	q.spare, q.chosen = several, q.chosen[:0]
	for i := 0; i < len(seats) && tiers[i] <= worst; i++ {
		if q.covers(&q.search.needs[seats[i].needs], lacks) && q.mayTake(seats, i) {
			q.chosen = append(q.chosen, int32(i)) //nolint:gosec // within what a host holds
			return
		}
	}
	q.chosen = append(q.chosen, several...)
}

// mayTake is may for simple.
func (q *query) mayTake(seats []seat, at int) bool {
	r := &q.ledger.ranks[seats[at].owner]
	left := q.ledger.left[r.entry] - 1
	for _, n := range q.chosen {
		if seats[n].owner == seats[at].owner {
			left--
		}
	}
	if left < 0 || r.pool < 0 {
		return left >= 0
	}
	needs := q.search.needs
	for _, k := range q.kinds {
		over := q.ledger.over[r.pool][k]
		if over <= 0 || needs[seats[at].needs][k] <= 0 {
			continue
		}
		for _, n := range q.chosen {
			if q.ledger.ranks[seats[n].owner].pool == r.pool {
				over -= needs[seats[n].needs][k]
			}
		}
		if over > 0 {
			return true
		}
	}
	return false
}

// eases reports whether giving needs back makes less lacking.
func (q *query) eases(needs, lacks *resource.Vector) bool {
	for _, k := range q.kinds {
		if lacks[k] > 0 && needs[k] > 0 {
			return true
		}
	}
	return false
}

// least is an offer that the host cannot better, judged by sums and without any bound on who may go.
//
// With the least place in the order up to which candidates add up to what is lacking, and
//   - gangs among them: one gang or run goes at least;
//   - one of them enough by itself: that one goes alone, or one that loses more;
//   - none enough: as many go at least as the largest of them would take, and those lose at least what the most recent lose.
func (q *query) least(o offer, t *tenancy, seats []seat, tiers []int64, gangs bool, lacks *resource.Vector) (offer, bool) {
	needs := q.search.needs
	rest, reach := *lacks, 0
	for ; reach < len(tiers) && q.exceeded(&rest); reach++ {
		q.shift(&rest, &needs[seats[reach].needs], -1)
	}
	if q.exceeded(&rest) {
		return o, false
	}
	o.tier = tiers[reach-1]
	for reach < len(tiers) && tiers[reach] == o.tier {
		reach++
	}
	if gangs {
		o.runs, o.work = q.cheapest(t.order[:reach])
		return o, true
	}
	seats = seats[:reach]
	for i := reach; i > 0 && tiers[i-1] == o.tier; i-- {
		if work := q.work(seats[i-1].started); q.covers(&needs[seats[i-1].needs], lacks) && (o.runs == 0 || work < o.work) {
			o.runs, o.work = 1, work
		}
	}
	if o.runs == 0 {
		o.runs, o.work = q.several(seats, lacks)
	}
	return o, true
}

// seats lists who may be taken on a host, in order, with their tiers, and says whether there are gangs on it, be it one that is gone. Without gangs
// the seats have their owners. It holds until the next call.
func (q *query) seats(row host.Row, t *tenancy) (seats []seat, tiers []int64, gangs bool) {
	s := q.search
	if q.ledger != nil {
		if tiers, simple := s.rank(t, q.ledger); simple {
			return t.seats, tiers, false
		}
	}
	s.candidates(row, q.ledger)
	seats, tiers, gangs = s.scratch[:0], s.tiers[:0], q.ledger != nil // the loners of a job with gangs are not told by their owner alone
	for i := range t.order {
		c := &t.order[i]
		seats, tiers = append(seats, seat{started: c.started, needs: c.needs, run: c.run}), append(tiers, c.tier)
	}
	s.scratch, s.tiers = seats, tiers
	return seats, tiers, gangs
}

// cheapest bounds what one of the candidates costs.
func (q *query) cheapest(order []candidate) (runs, work int64) {
	runs, work = math.MaxInt64, math.MaxInt64
	for i := range order {
		r, w := q.cost(&order[i])
		runs, work = min(runs, r), min(work, w)
	}
	return runs, work
}

// cost is how many runs go with a candidate, and the work that they lose.
func (q *query) cost(c *candidate) (runs, work int64) {
	if c.gang {
		j := &q.ledger.jobs[c.job]
		return int64(j.Gang.Runs), j.Gang.Work
	}
	return 1, q.work(c.started)
}

// work is what a run has done, or less than nothing where it is waited for: the longer it has run, the sooner it may end.
func (q *query) work(started int64) int64 {
	work := int64(0)
	if started != 0 {
		work = max(q.search.now-started, 0)
	}
	if q.request.Wait {
		return -work
	}
	return work
}

func (q *query) covers(needs, lacks *resource.Vector) bool {
	for _, k := range q.kinds {
		if lacks[k] > needs[k] {
			return false
		}
	}
	return true
}

// several bounds how many of the candidates have to go, and what they lose together.
func (q *query) several(seats []seat, lacks *resource.Vector) (runs, work int64) {
	runs = 2
	for _, k := range q.kinds {
		if lacks[k] <= 0 {
			continue
		}
		largest := int64(1)
		for i := range seats {
			largest = max(largest, q.search.needs[seats[i].needs][k])
		}
		runs = max(runs, (lacks[k]+largest-1)/largest)
	}
	works := q.search.works[:0]
	for i := range seats {
		works = append(works, q.work(seats[i].started))
	}
	q.search.works = works
	slices.Sort(works)
	for _, w := range works[:min(int(runs), len(works))] {
		work += w
	}
	if q.request.Wait { // more may have to go, and each makes the sum less
		for _, w := range works[min(int(runs), len(works)):] {
			work += w
		}
	}
	return runs, work
}
