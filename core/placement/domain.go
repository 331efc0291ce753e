package placement

import (
	"slices"

	"github.com/paceline-sched/paceline/core/host"
)

// maxGangDomains bounds the domains that one gang with an affinity to itself is tried in.
const maxGangDomains = 64

// region is the candidates that share their domain in every term that is not still: the cost of those terms is one for all
// of them, so the region's cheapest host is the top of its heap.
type region struct {
	domains []uint32 // by term, in the order of search.moving
	heap    []candidate
}

// restriction keeps a gang out of domains in which it is known not to fit.
type restriction struct {
	anchor *term
	out    map[uint32]bool
}

// moving returns the terms that are not still.
func (s *search) moving() []*term {
	var list []*term
	for i := range s.terms {
		if !s.terms[i].still {
			list = append(list, &s.terms[i])
		}
	}
	return list
}

// regions scans the table into regions, in the order of their first hosts.
func (s *search) regions(moving []*term) []region {
	var list []region
	index := map[[2]uint32]uint32{} // (number so far, next domain) -> number, level by level
	var at []uint32                 // number -> position in list + 1
	s.scan(func(c candidate) int64 {
		if s.only != nil && s.only.out[s.only.anchor.counter.Domain(c.row)] {
			return anyCost
		}
		number := moving[0].counter.Domain(c.row)
		for _, x := range moving[1:] {
			number = intern(index, [2]uint32{number, x.counter.Domain(c.row)})
		}
		if int(number) >= len(at) {
			at = append(at, make([]uint32, max(int(number)+1-len(at), len(at)))...)
		}
		if at[number] == 0 {
			list = append(list, region{domains: domainsAt(moving, c.row)})
			at[number] = uint32(len(list))
		}
		r := &list[at[number]-1]
		r.heap = append(r.heap, c)
		return anyCost
	})
	for i := range list {
		heapify(list[i].heap, candidate.less)
	}
	return list
}

func domainsAt(moving []*term, row host.Row) []uint32 {
	domains := make([]uint32, len(moving))
	for i, x := range moving {
		domains[i] = x.counter.Domain(row)
	}
	return domains
}

// placeByDomain serves classes whose tasks change the cost of other hosts. A gang that has to stay within one domain is tried in
// one after another.
func (s *search) placeByDomain(r *Request) []Assignment {
	var anchor *term
	for _, x := range s.moving() {
		if r.Gang && anchor == nil && x.waived() {
			anchor = x
		}
	}
	if anchor != nil {
		s.only = &restriction{anchor: anchor, out: s.tooSmall(anchor, r.Count)}
		defer func() { s.only = nil }()
	}
	var best []Assignment
	for range maxGangDomains {
		placed := s.placeInRegions(r.Count)
		if len(placed) == r.Count || !r.Gang {
			return placed
		}
		undo(s.table, s.class, placed)
		if len(placed) > len(best) {
			best = placed
		}
		if anchor == nil || len(placed) == 0 {
			break
		}
		s.only.out[anchor.counter.Domain(placed[0].Row)] = true
	}
	if len(best) == 0 && anchor != nil { // every domain was too small to try: say how far the gang would have come
		s.only = nil
		best = s.placeInRegions(r.Count)
		undo(s.table, s.class, best)
	}
	return best
}

// tooSmall returns the domains whose hosts together have room for fewer than count tasks.
func (s *search) tooSmall(anchor *term, count int) map[uint32]bool {
	room := map[uint32]int{}
	s.scan(func(c candidate) int64 {
		d := anchor.counter.Domain(c.row)
		room[d] = min(room[d]+s.times(c.row, count), count)
		return anyCost
	})
	out := map[uint32]bool{}
	for d, n := range room {
		if n < count {
			out[d] = true
		}
	}
	return out
}

func (s *search) placeInRegions(count int) []Assignment {
	moving := s.moving()
	regions := s.regions(moving)
	var placed []Assignment
	for len(placed) < count {
		s.measure()
		i := cheapest(regions, moving)
		if i < 0 {
			break
		}
		r := &regions[i]
		row := r.heap[0].row
		placed = append(placed, s.take(row))
		if s.closedNow(row) || !s.fits(row) {
			r.heap[0] = r.heap[len(r.heap)-1]
			r.heap = r.heap[:len(r.heap)-1]
		} else {
			r.heap[0].cost = s.cost(row)
		}
		siftDown(r.heap, 0, candidate.less)
	}
	return placed
}

// cheapest returns the region whose best host is the best of all, -1 when none admits a task.
func cheapest(regions []region, moving []*term) int {
	at := -1
	var best candidate
	for i := range regions {
		r := &regions[i]
		if len(r.heap) == 0 {
			continue
		}
		c := r.heap[0]
		admitted := true
		for n, x := range moving {
			if admitted = x.allows(r.domains[n]); !admitted {
				break
			}
			c.cost += x.cost(r.domains[n])
		}
		if admitted && (at < 0 || c.less(best)) {
			at, best = i, c
		}
	}
	return at
}

// countable reports whether roomFor is exact.
func (s *search) countable() bool { return s.local }

// roomFor returns for how many tasks there is room, at most limit. Nothing is taken.
func (s *search) roomFor(limit int) int {
	total := 0
	s.scan(func(c candidate) int64 {
		if total = min(total+s.times(c.row, limit), limit); total == limit {
			return noCost
		}
		return anyCost
	})
	return total
}

// times returns how many tasks a host that fits one takes by itself, at most limit.
func (s *search) times(row host.Row, limit int) int {
	n := int64(limit)
	for _, list := range [][]need{s.needs, s.more} {
		for _, x := range list {
			if x.amount > 0 && !x.devices {
				n = min(n, x.column[row]/x.amount)
			}
		}
	}
	n = min(n, s.timesDevices(row))
	if slices.ContainsFunc(s.class.Ports, func(p uint16) bool { return p != 0 }) {
		n = min(n, 1)
	}
	for i := range s.terms {
		if x := &s.terms[i]; x.still && x.self && x.anti && x.weight == 0 {
			n = min(n, 1)
		}
	}
	return int(n)
}

// intern gives every pair a small number of its own.
func intern(index map[[2]uint32]uint32, pair [2]uint32) uint32 {
	n, ok := index[pair]
	if !ok {
		n = uint32(len(index))
		index[pair] = n
	}
	return n
}
