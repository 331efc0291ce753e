package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
)

// unit is the requests of one gang that stand or fall together, each with its search.
type unit struct {
	table    *host.Table
	requests []Request
	searches []*search
	within   Within
	domains  host.Domains
	rooms    [][]int // by request and domain: for how many tasks the hosts have room, each class taken by itself
}

// placeUnit serves the requests of one gang:
//  1. for every request the room in every domain is counted, in one scan;
//  2. domains with room for all of it are tried, the tightest first; an elastic gang's with room to grow before those;
//  3. a gang that only prefers one domain takes the roomiest domains one after the other, and then any host;
//  4. what found no room altogether gives everything back, and says how far the best domain would have gone.
//
// Where a class is counted exactly, as it is without affinities and spreads, the first try succeeds; so a gang costs one scan for each of its
// requests, and one more to place it.
func (n *Native) placeUnit(t *host.Table, requests []Request) []Result {
	u := n.unit(t, requests)
	for _, d := range u.candidates() {
		if placed, ok := u.placeIn(d); ok {
			return resultsOf(placed)
		}
	}
	if u.within.Required {
		return u.refuse()
	}
	placed, left := u.placeAcross()
	if left == 0 {
		return resultsOf(placed)
	}
	u.undo(placed)
	results := make([]Result, len(requests))
	for i, s := range u.searches {
		results[i] = s.refuseGang(&requests[i], len(placed[i]), "")
	}
	return results
}

// placePart places as much of a gang as there is room for, in as few domains as going by their room gives: the rest may find room in other tables.
func (n *Native) placePart(t *host.Table, r *Request) Result {
	u := n.unit(t, []Request{*r})
	placed, left := u.placeAcross()
	result := Result{Assignments: placed[0], Refused: left}
	if left > 0 {
		result.Reasons = u.searches[0].explain()
	}
	return result
}

func (n *Native) unit(t *host.Table, requests []Request) *unit {
	u := &unit{table: t, requests: requests, within: requests[0].Within, domains: t.Domains(requests[0].Within.Key)}
	for i := range requests {
		u.searches = append(u.searches, n.search(t, requests[i].Class, requests[i].Count))
	}
	u.count()
	return u
}

func resultsOf(placed [][]Assignment) []Result {
	results := make([]Result, len(placed))
	for i := range placed {
		results[i].Assignments = placed[i]
	}
	return results
}

// count finds out how much room the domains have. Without a topology everything is one domain.
func (u *unit) count() {
	for _, s := range u.searches {
		room := make([]int, u.domains.Len())
		if !s.refusedAgain() {
			s.scan(func(c candidate) int64 {
				room[u.domains.Of(c.row)] += s.times(c.row, math.MaxInt32)
				return anyCost
			})
		}
		u.rooms = append(u.rooms, room)
	}
}

// enough reports whether a domain may have room for the whole gang.
func (u *unit) enough(d uint32) bool {
	for i := range u.requests {
		if u.rooms[i][d] < u.requests[i].Count {
			return false
		}
	}
	return true
}

// candidates lists the domains with room for the gang in the order in which they are tried.
func (u *unit) candidates() []uint32 {
	if u.within.Key == "" {
		return nil
	}
	var list []uint32
	for d := uint32(1); int(d) < u.domains.Len(); d++ {
		if u.enough(d) {
			list = append(list, d)
		}
	}
	grown := func(d uint32) (n int) {
		for i := range u.requests {
			n += min(u.rooms[i][d], max(u.requests[i].Want, u.requests[i].Count))
		}
		return n
	}
	slices.SortFunc(list, func(a, b uint32) int {
		return cmp.Or(-cmp.Compare(grown(a), grown(b)), cmp.Compare(u.rooms[0][a], u.rooms[0][b]), cmp.Compare(a, b))
	})
	return list[:min(len(list), maxGangDomains)]
}

// placeIn places the whole gang within one domain, or nothing.
func (u *unit) placeIn(d uint32) ([][]Assignment, bool) {
	placed := make([][]Assignment, len(u.requests))
	for i, s := range u.searches {
		s.domains, s.domain = u.domains, d
		found := s.placeAll(&Request{Class: s.class, Count: u.requests[i].Count, Gang: true})
		s.domain = 0
		if len(found) < u.requests[i].Count { // and gave it back
			u.undo(placed)
			return nil, false
		}
		placed[i] = found
	}
	return placed, true
}

func (u *unit) undo(placed [][]Assignment) {
	for i := len(placed) - 1; i >= 0; i-- {
		undo(u.table, u.requests[i].Class, placed[i])
	}
}

// placeAcross places what it can of a gang that may be split, in as few domains as going by their room gives.
func (u *unit) placeAcross() (placed [][]Assignment, left int) {
	placed = make([][]Assignment, len(u.requests))
	for i := range u.requests {
		left += u.requests[i].Count
	}
	for _, d := range append(u.roomiest(), 0) {
		for i, s := range u.searches {
			if rest := u.requests[i].Count - len(placed[i]); rest > 0 {
				s.domains, s.domain = u.domains, d
				found := s.placeAll(&Request{Class: s.class, Count: rest})
				s.domain = 0
				placed[i] = append(placed[i], found...)
				left -= len(found)
			}
		}
		if left == 0 {
			break
		}
	}
	return placed, left
}

// roomiest lists the domains in which a gang is begun that is split.
func (u *unit) roomiest() []uint32 {
	if u.within.Key == "" {
		return nil
	}
	var list []uint32
	for d := uint32(1); int(d) < u.domains.Len(); d++ {
		if u.members(d) > 0 {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b uint32) int { return cmp.Or(-cmp.Compare(u.members(a), u.members(b)), cmp.Compare(a, b)) })
	return list[:min(len(list), maxGangDomains)]
}

// members is for how many of the gang a domain may have room.
func (u *unit) members(d uint32) (n int) {
	for i := range u.requests {
		n += min(u.rooms[i][d], u.requests[i].Count)
	}
	return n
}

// refuse says how much of the gang the best domain would take.
func (u *unit) refuse() []Result {
	best := uint32(0)
	for d := uint32(1); int(d) < u.domains.Len(); d++ {
		if best == 0 || u.members(d) > u.members(best) {
			best = d
		}
	}
	results := make([]Result, len(u.requests))
	for i, s := range u.searches {
		largest, name := 0, ""
		if best != 0 {
			largest, name = min(u.rooms[i][best], u.requests[i].Count), u.domains.Name(best)
		}
		results[i] = s.refuseGang(&u.requests[i], largest, name)
	}
	return results
}

// placeInDomain serves tasks that join others in the domain where these are.
func (s *search) placeInDomain(r *Request) Result {
	domains := s.table.Domains(r.Within.Key)
	var placed []Assignment
	if d := domains.Lookup(r.Within.Domain); d != 0 {
		s.domains, s.domain = domains, d
		placed = s.placeAll(&Request{Class: s.class, Count: r.Count})
		s.domain = 0
	}
	if rest := r.Count - len(placed); rest > 0 && !r.Within.Required {
		placed = append(placed, s.placeAll(&Request{Class: s.class, Count: rest})...)
	}
	if len(placed) == r.Count {
		return Result{Assignments: placed}
	}
	domain := ""
	if r.Within.Required {
		domain = r.Within.Domain
	}
	result := s.refuseGang(r, len(placed), domain)
	result.Assignments, result.Refused = placed, r.Count-len(placed)
	return result
}
