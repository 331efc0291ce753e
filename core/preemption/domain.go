package preemption

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/core/host"
)

// maxDomains bounds the domains that one gang is tried in, those with the most free room first.
const maxDomains = 64

// restriction keeps a query to the hosts of one domain.
type restriction struct {
	domains host.Domains
	domain  uint32
}

func (r *restriction) allows(row host.Row) bool { return r == nil || r.domains.Of(row) == r.domain }

// unitOf is how many of the first requests are one gang that has to stay in one domain; 0: the first is of none.
func unitOf(requests []Request) int {
	if requests[0].Unit == 0 || requests[0].Within == "" {
		return 0
	}
	n := 1
	for n < len(requests) && requests[n].Unit == requests[0].Unit && requests[n].DryRun == requests[0].DryRun {
		n++
	}
	return n
}

// serveUnit finds the domain in which the fewest have to go for a gang, by the measure by which a host is found for a task: the worst victim's
// place in the order, runs lost, work lost; then the domain that the table knows longest. Every domain is tried by itself, as if there were no
// other, and given back. It costs a scan that counts room, and for each domain that is tried a look at its hosts and what its tasks cost, at most
// maxDomains times; the one that wins costs the same once more.
func (s *Search) serveUnit(unit []Request) ([]Result, []*query) {
	domains := s.table.Domains(unit[0].Within)
	best, found := offer{}, false
	for _, d := range s.roomiest(unit, domains) {
		served, cost, ok := s.tryDomain(unit, restriction{domains, d})
		undoAll(served)
		if cost.row = host.Row(d); ok && (!found || cost.before(&best)) { //nolint:gosec // fewer than hosts
			best, found = cost, true
		}
	}
	results := make([]Result, len(unit))
	if found {
		served, _, whole := s.tryDomain(unit, restriction{domains, uint32(best.row)}) //nolint:gosec // a domain
		if whole {
			for i, q := range served {
				results[i].Assignments = q.placed
			}
			return results, served
		}
		undoAll(served)
	}
	for i := range unit {
		results[i].Refused = max(unit[i].Count, 0)
	}
	return results, nil
}

// tryDomain takes room for a whole gang in one domain, and says what that costs. What it has taken so far when it fails is returned too.
func (s *Search) tryDomain(unit []Request, within restriction) (served []*query, cost offer, whole bool) {
	cost.tier = -1
	for i := range unit {
		q := s.query(&unit[i])
		q.within = &within
		q.place()
		served = append(served, q)
		if len(q.placed) < unit[i].Count {
			return served, cost, false
		}
		cost.tier = max(cost.tier, q.total.tier)
		cost.runs, cost.work = cost.runs+q.total.runs, cost.work+q.total.work
	}
	return served, cost, true
}

// roomiest lists the domains whose hosts would hold the gang if they were empty, class by class, those with the most free room first.
func (s *Search) roomiest(unit []Request, domains host.Domains) []uint32 {
	empty := make([][]int, len(unit))
	free := make([]int, domains.Len())
	for i := range unit {
		empty[i] = make([]int, domains.Len())
		r := &unit[i]
		if r.Class == nil || r.Count <= 0 {
			return nil
		}
		for row := range s.native.Rows(s.table, r.Class).All() {
			d := domains.Of(row)
			has, left := s.table.Host(row).Capacity, s.table.Free(row)
			empty[i][d] += int(r.Class.Needs.Times(&has, int64(r.Count)))
			free[d] += int(r.Class.Needs.Times(&left, int64(r.Count)))
		}
	}
	var list []uint32
	for d := uint32(1); int(d) < domains.Len(); d++ {
		enough := true
		for i := range unit {
			enough = enough && empty[i][d] >= unit[i].Count
		}
		if enough {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b uint32) int { return cmp.Or(-cmp.Compare(free[a], free[b]), cmp.Compare(a, b)) })
	return list[:min(len(list), maxDomains)]
}
