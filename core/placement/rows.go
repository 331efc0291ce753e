package placement

import (
	"iter"
	"math/bits"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
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

// OneEach reports whether a host takes one task of the class at most: they keep away from one another, or want the same port.
func (r *Rows) OneEach() bool {
	for _, port := range r.s.class.Ports {
		if port != 0 {
			return true
		}
	}
	for i := range r.s.terms {
		if x := &r.s.terms[i]; x.anti && x.self && x.weight == 0 && x.topology == workload.TopologyHost {
			return true
		}
	}
	return false
}

// Fits reports whether one more task may go to an eligible host.
func (r *Rows) Fits(row host.Row) bool {
	return !r.s.closedNow(row) && r.s.fits(row) && r.s.joinable(row)
}

// Take books one task on a host that fits.
func (r *Rows) Take(row host.Row) Assignment { return r.s.take(row) }

// TakeOn is Take with given devices. It reports false, having booked nothing, when these are not what a task of the class takes, or are not free.
func (r *Rows) TakeOn(row host.Row, devices DeviceSet) (Assignment, bool) {
	if size(devices) != r.s.class.deviceCount() || devices&^r.s.openDevices(row) != 0 {
		return Assignment{}, false
	}
	return r.s.takeOn(row, devices), true
}

// Undo gives back what Take booked, the last first.
func (r *Rows) Undo(placed []Assignment) { undo(r.s.table, r.s.class, placed) }

// Plain reports whether columns tell which of the hosts of Open take a task, however many the same call placed there before: the class asks for
// room alone, on any device, and has no wishes that other tasks bear on.
func (r *Rows) Plain() bool { return !r.complex() && len(r.s.class.GPUModels) == 0 }

// Local reports whether placing a task changes nothing for other hosts.
func (r *Rows) Local() bool { return r.s.local }

func (r *Rows) complex() bool {
	s := r.s
	return s.ports || s.models || s.class.Placement.Exclusive || len(s.terms) > 0 || s.oddDevices()
}

// Open makes set the hosts that may take a task as far as columns do not tell: all that is asked beyond needs and numbers of devices. Where that
// depends on more than the host's shape it is the hosts that take a task now.
func (r *Rows) Open(set host.Bitmap) {
	s := r.s
	complicated := r.complex()
	for w := range set {
		m := uint64(0)
		if w < len(s.know.eligible) {
			m = s.mask(w)
		}
		if complicated {
			for rest := m; rest != 0; rest &= rest - 1 {
				if bit := rest & -rest; !r.Fits(host.Row(w*64 + bits.TrailingZeros64(rest))) {
					m &^= bit
				}
			}
		}
		set[w] = m
	}
}

// Biased reports whether preferences or affinities move the cost of hosts.
func (r *Rows) Biased() bool { return r.s.know.bonus != nil || len(r.s.terms) > 0 }

// Bias is what they put on the cost of a host now, in host.ScoreSpan / 100 for a point.
func (r *Rows) Bias(row host.Row) int64 {
	bias := int64(0)
	if r.s.know.bonus != nil {
		bias -= r.s.know.bonus[row]
	}
	for i := range r.s.terms {
		x := &r.s.terms[i]
		bias += x.cost(x.counter.Domain(row))
	}
	return bias
}
