package placement

import (
	"iter"
	"math/bits"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// Rows judges single hosts for one class. It is for who asks what would fit if some of the tasks on a host went: the table may lose and gain
// occupants while it is used (see host.Table.Without), but no host.
type Rows struct{ s *search }

// Rows prepares the judgement of a class.
func (n *Native) Rows(t *host.Table, class *Class) *Rows { return &Rows{n.search(t, class, 1)} }

// Eligible reports whether tasks of the class may be sent to a host now, full or not.
func (r *Rows) Eligible(row host.Row) bool {
	return r.s.know.eligible.Has(row) && r.s.table.Usable().Has(row)
}

// All yields the eligible hosts in ascending order.
func (r *Rows) All() iter.Seq[host.Row] {
	return func(yield func(host.Row) bool) {
		for w := range r.s.know.eligible {
			for m := r.s.know.eligible[w] & r.s.table.Usable()[w]; m != 0; m &= m - 1 {
				if !yield(host.Row(w*64 + bits.TrailingZeros64(m))) {
					return
				}
			}
		}
	}
}

// Additive reports whether room is all that the class asks of an eligible host that no exclusive work stands on: its needs fit what is free,
// kind by kind.
func (r *Rows) Additive() bool {
	c := r.s.class
	return c.Needs[resource.GPU] == 0 && len(c.Ports) == 0 && !c.Placement.Exclusive && len(r.s.terms) == 0
}

// ByHost reports whether all that the class asks of a host is about that host alone.
func (r *Rows) ByHost() bool { return r.s.byHost() }

// Fits reports whether one more task may go to an eligible host.
func (r *Rows) Fits(row host.Row) bool {
	return !r.s.closedNow(row) && r.s.fits(row) && r.s.joinable(row)
}

// Take books one task on a host that fits.
func (r *Rows) Take(row host.Row) Assignment { return r.s.take(row) }
