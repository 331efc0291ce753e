package placement

import (
	"math/bits"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/workload"
)

// term is one affinity or spread wish, tied to the table's counter for it.
type term struct {
	counter  *host.Counter
	topology string
	spread   bool
	anti     bool
	weight   int64 // affinity: 0 means that it must hold
	maxSkew  int32 // spread: 0 means that evenness only costs
	self     bool  // the class's own tasks count
	// still: placing tasks of the class changes the term for the host that they go to at most, so it is part of that host's
	// own fit and cost.
	still   bool
	domains []uint32 // max_skew: the domains among which skew is measured
	least   int32    // max_skew: the lowest count among them
}

func (s *search) compileTerms() {
	s.local = true
	for i, a := range s.class.Placement.Affinities {
		selector := s.class.selectors[i]
		x := term{
			counter: s.table.Counter(host.Selector{Labels: selector}, a.Topology), topology: a.Topology,
			anti: a.Anti, weight: int64(a.Weight), self: s.class.labels.Covers(selector),
		}
		x.still = !x.self || a.Topology == workload.TopologyHost && (a.Anti || a.Weight != 0)
		s.addTerm(x)
	}
	for _, w := range s.class.Placement.Spreads {
		x := term{
			counter: s.table.Counter(host.Selector{Job: s.class.Job}, w.Topology), topology: w.Topology,
			spread: true, maxSkew: int32(min(w.MaxSkew, workload.MaxInstances)), self: true,
		}
		x.still = w.Topology == workload.TopologyHost && w.MaxSkew == 0
		if x.maxSkew > 0 {
			x.domains = s.domainsOf(x.counter)
		}
		s.addTerm(x)
	}
	s.measure()
}

// byHost reports whether what a host says to the class depends on nothing but that host: every term, if there is any, looks at the host
// alone, and none is waived by what the table holds elsewhere.
func (s *search) byHost() bool {
	for i := range s.terms {
		if x := &s.terms[i]; !x.still || x.topology != workload.TopologyHost {
			return false
		}
	}
	return true
}

func (s *search) addTerm(x term) {
	s.local = s.local && x.still
	s.terms = append(s.terms, x)
}

// domainsOf returns the domains that have a host which the class could be sent to now, full or not.
func (s *search) domainsOf(c *host.Counter) []uint32 {
	var domains []uint32
	seen := []bool{true} // by domain; 0 is none
	for w := range s.know.eligible {
		for m := s.know.eligible[w] & s.table.Usable()[w]; m != 0; m &= m - 1 {
			d := c.Domain(host.Row(w*64 + bits.TrailingZeros64(m)))
			if int(d) >= len(seen) {
				seen = append(seen, make([]bool, max(int(d)+1-len(seen), len(seen)))...)
			}
			if !seen[d] {
				seen[d] = true
				domains = append(domains, d)
			}
		}
	}
	return domains
}

// measure brings the lowest counts up to date; it is due after every task that was placed.
func (s *search) measure() {
	for i := range s.terms {
		x := &s.terms[i]
		for n, d := range x.domains {
			if count := x.counter.In(d); n == 0 || count < x.least {
				x.least = count
			}
		}
	}
}

// allows reports whether the term admits one more task to a domain.
func (x *term) allows(domain uint32) bool {
	switch {
	case x.spread:
		return x.maxSkew == 0 || domain != 0 && x.counter.In(domain)+1-x.least <= x.maxSkew
	case x.weight != 0:
		return true
	case x.anti:
		return domain == 0 || x.counter.In(domain) == 0
	}
	return domain != 0 && (x.counter.In(domain) > 0 || x.waived())
}

// waived reports whether a hard affinity lets the first of its kind start.
func (x *term) waived() bool {
	return !x.spread && !x.anti && x.weight == 0 && x.self && x.counter.Total() == 0
}

// cost returns what the term adds to the cost of the hosts of a domain.
func (x *term) cost(domain uint32) int64 {
	switch {
	case x.spread:
		if x.maxSkew > 0 {
			return 0
		}
		return int64(x.counter.In(domain)) * host.ScoreSpan
	case x.weight == 0 || domain == 0 || x.counter.In(domain) == 0:
		return 0
	case x.anti:
		return x.weight * point
	}
	return -x.weight * point
}

// joinable reports whether the terms that other tasks of the class move admit one more at row.
func (s *search) joinable(row host.Row) bool {
	s.measure()
	for i := range s.terms {
		if x := &s.terms[i]; !x.still && !x.allows(x.counter.Domain(row)) {
			return false
		}
	}
	return true
}
