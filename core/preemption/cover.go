package preemption

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// cover takes more victims, in order and wherever they run, until what they give up covers what the waiting work lacks in its pool. They are
// named with the first assignment. It reports false when there are not enough.
func (q *query) cover() bool {
	short := q.request.Cover.Sub(q.freed())
	if !anyAbove(&short) {
		return true
	}
	if q.ledger == nil {
		return false
	}
	extra := q.gatherAnywhere(&short)
	if anyAbove(&short) {
		return false
	}
	for n := len(extra) - 1; n >= 0; n-- {
		if back := short.Add(extra[n].use); !anyAbove(&back) {
			short, extra = back, slices.Delete(extra, n, n+1)
		}
	}
	for _, e := range extra {
		t := q.search.candidates(e.row, q.ledger)
		at := slices.IndexFunc(t.order, func(c candidate) bool { return c.run == e.run })
		if at < 0 {
			continue // gone with a mate
		}
		q.chosen = q.chosen[:0]
		var none resource.Vector
		q.choose(t, at, &none)
		for _, c := range q.chosen {
			q.placed[0].Victims = append(q.placed[0].Victims, t.runs[t.order[c].run].ID)
		}
		q.consume(e.row, t)
	}
	return true
}

// freed is what the victims of this request give back to their pools.
func (q *query) freed() (sum resource.Vector) {
	var gangs []int32
	for _, v := range q.taken {
		switch {
		case v.job >= 0 && q.ledger.jobs[v.job].Gang > 0:
			if !slices.Contains(gangs, v.job) {
				gangs = append(gangs, v.job)
				sum = sum.Add(q.ledger.jobs[v.job].Use)
			}
		default:
			sum = sum.Add(q.search.rows[v.row].runs[v.run].Class.Needs)
		}
	}
	return sum
}

// extra is a victim that is taken for what it uses of its pool, not for its host.
type extra struct {
	candidate
	row host.Row
	use resource.Vector
}

func (q *query) gatherAnywhere(short *resource.Vector) []extra {
	var all []extra
	for row := range host.Row(q.search.table.Rows()) {
		if !q.search.table.Has(row) {
			continue
		}
		t := q.search.candidates(row, q.ledger)
		for _, c := range t.order {
			all = append(all, extra{c, row, *q.use(&c)})
		}
	}
	slices.SortFunc(all, func(a, b extra) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(b.started, a.started), cmp.Compare(a.row, b.row), cmp.Compare(a.run, b.run))
	})
	left := slices.Clone(q.ledger.left)
	var picked []extra
	for _, e := range all {
		j := q.job(&e.candidate)
		n := max(j.Gang, 1)
		if left[e.job] < n || j.Gang > 0 && slices.ContainsFunc(picked, func(p extra) bool { return p.job == e.job }) || !helpsCover(short, &e.use) {
			continue
		}
		left[e.job] -= n
		*short = short.Sub(e.use)
		if picked = append(picked, e); !anyAbove(short) {
			break
		}
	}
	return picked
}

func helpsCover(short, use *resource.Vector) bool {
	for k := range short {
		if short[k] > 0 && use[k] > 0 {
			return true
		}
	}
	return false
}

func anyAbove(v *resource.Vector) bool {
	for _, q := range v {
		if q > 0 {
			return true
		}
	}
	return false
}
