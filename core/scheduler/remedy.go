package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxRemedies bounds the remedies that an explanation lists.
const maxRemedies = 3

// RemedyKind is what a remedy changes.
type RemedyKind uint8

// The kinds, the one that asks less of others first.
const (
	RemedyOrder       RemedyKind = iota + 1 // it goes before the others of its pool's queue
	RemedyHostRoom                          // room comes free on a host
	RemedyPoolRoom                          // work of its pool ends
	RemedyReturn                            // a pool gives back what it uses beyond its entitlement
	RemedyRestriction                       // one restriction of the job is dropped
	RemedyLimit                             // a limit of a pool is raised
	RemedyReservation                       // a reservation of a pool is raised
	RemedyShare                             // a pool's share is raised
)

// Remedy is one change that, made alone, would let the next waiting instance start (of a gang, the fewest that start together).
type Remedy struct {
	Kind        RemedyKind
	Message     string          // completes "it would start if ..."
	Amount      resource.Vector // of a quantity that changes: by so much
	Pool        string          // path of the pool that changes
	Host        string          // with RemedyHostRoom: the host at which least is missing
	Hosts       int             // with RemedyHostRoom: hosts at which nothing but room is missing
	Restriction string          // with RemedyRestriction
	// size orders remedies: what changes of quantities as a part of what one start needs, at its largest; 1 for what has no quantity.
	size float64
}

// smallest sorts remedies and keeps the first.
func smallest(list []Remedy) []Remedy {
	slices.SortStableFunc(list, func(a, b Remedy) int {
		return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Message, b.Message))
	})
	return list[:min(len(list), maxRemedies)]
}

// part is the largest part of needs that an amount is.
func part(amount, needs *resource.Vector) float64 {
	most := 0.0
	for k, n := range amount {
		if n > 0 {
			most = max(most, float64(n)/float64(max(needs[k], 1)))
		}
	}
	return most
}

// amounts writes the kinds of which there is something, "cpu_milli=500 and memory_mib=64".
func (s *State) amounts(v *resource.Vector) string {
	var parts []string
	for k, n := range v {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", s.names.Name(resource.Kind(k)), n))
		}
	}
	return strings.Join(parts, " and ")
}

// shortOf is what is missing of each kind.
func shortOf(need, left *resource.Vector) (lack resource.Vector) {
	for k, n := range need {
		if n > 0 {
			lack[k] = max(n-left[k], 0)
		}
	}
	return lack
}

// poolRemedies finds what would let a job's offered work out of its queue. own is what it takes, all what it takes together with everything
// that goes first.
func (s *State) poolRemedies(j *job, own, all resource.Vector, ahead int) (list []Remedy) {
	path := s.poolPath(j.spec.Pool)
	var lacks resource.Vector
	fits := true
	for _, b := range s.bars(j.spec) {
		lacks = lacks.Max(shortOf(&all, &b.left))
		fits = fits && own.FitsIn(&b.left)
	}
	if fits && ahead > 0 {
		list = append(list, Remedy{
			Kind: RemedyOrder, Pool: path, size: 1, Message: fmt.Sprintf("it went before the %s ahead of it, for instance by a higher priority", plural(ahead, "job")),
		})
	}
	if lacks.IsZero() {
		return list
	}
	if r, ok := s.endingWork(j, path, lacks, ahead); ok {
		r.size = part(&lacks, &own)
		list = append(list, r)
	}
	for _, r := range s.raises(j, all, lacks) {
		r.size = part(&r.Amount, &own)
		list = append(list, r)
	}
	return list
}

// endingWork is the remedy that work of the pool ends, if there is enough of it.
func (s *State) endingWork(j *job, path string, lacks resource.Vector, ahead int) (Remedy, bool) {
	a, _ := s.pools.Account(j.spec.Pool)
	usage, whose := a.Usage, "pool "+path
	if j.spec.Revocable {
		usage, whose = a.RevocableUsage, "the revocable work of pool "+path
	}
	for _, b := range s.bars(j.spec) {
		switch {
		case b.kind == PendingReservation:
			usage, whose = usage.Min(a.NonPreemptibleUsage), "the work of pool "+path+" that may not be preempted"
		case b.kind == PendingUserLimit && !b.roomy(&lacks):
			usage, whose = usage.Min(s.pools.OwnerUsage(j.spec.Pool, j.spec.Owner)), j.spec.Owner+" in pool "+path
		case b.kind == PendingControllerLimit && !b.roomy(&lacks):
			usage, whose = usage.Min(a.ControllerUsage), "the controllers of pool "+path
		}
	}
	r := Remedy{Kind: RemedyPoolRoom, Pool: path, Amount: lacks}
	r.Message = fmt.Sprintf("%s of what %s uses came free", s.amounts(&lacks), whose)
	if ahead > 0 {
		r.Message += fmt.Sprintf(", which is enough for the %s ahead of it too", plural(ahead, "job"))
	}
	return r, lacks.FitsIn(&usage)
}

// roomy reports whether a bar leaves something of every kind asked for, so that it is not what is short.
func (b *bar) roomy(lacks *resource.Vector) bool {
	for k, n := range lacks {
		if n > 0 && b.left[k] <= 0 {
			return false
		}
	}
	return true
}

// most times a share is doubled in search of one that is enough.
const maxShareDoublings = 3

// raises finds edits of one pool that would be enough. Each is tried out on a copy of the tree, with today's capacity and demands, so what is
// told holds; at most one pool's limits, the leaf's reservation and a few shares are tried.
func (s *State) raises(j *job, need, lacks resource.Vector) (list []Remedy) {
	leaf, ok := s.pools.Pool(j.spec.Pool)
	if !ok {
		return nil
	}
	for p, at := leaf, true; at && p.ID != respool.RootID; p, at = s.pools.Pool(p.Parent) {
		edited, bound := p, false
		for k, n := range lacks {
			kind := resource.Kind(k)
			a, _ := s.pools.Account(p.ID)
			if limit := p.Limit.Of(kind); n > 0 && limit != respool.Unlimited && limit-a.Usage[k] < need[k] {
				edited.Limit, bound = edited.Limit.With(kind, limit+n), true
			}
			if limit := p.UserLimit.Of(kind); n > 0 && limit != respool.Unlimited && !j.spec.Revocable {
				if u := s.pools.OwnerUsage(p.ID, j.spec.Owner); limit-u[k] < need[k] {
					edited.UserLimit, bound = edited.UserLimit.With(kind, limit+n), true
				}
			}
		}
		if bound && s.suffices(edited, j.spec, &need) {
			what := "limit"
			if edited.Limit == p.Limit {
				what = "limit for one owner"
			}
			list = append(list, Remedy{
				Kind: RemedyLimit, Pool: s.poolPath(p.ID), Amount: lacks,
				Message: fmt.Sprintf("the %s of pool %s were higher by %s", what, s.poolPath(p.ID), s.amounts(&lacks)),
			})
			break
		}
	}
	if j.spec.Revocable {
		return list
	}
	path := s.poolPath(leaf.ID)
	if more := leaf; !leaf.ReserveRest {
		a, _ := s.pools.Account(leaf.ID)
		add := shortOf(&need, ptr(a.Reservation.Sub(a.Usage)))
		if !j.spec.Preemptible {
			add = add.Max(lacks)
		}
		if more.Reservation = leaf.Reservation.Add(add); s.suffices(more, j.spec, &need) {
			list = append(list, Remedy{
				Kind: RemedyReservation, Pool: path, Amount: add,
				Message: fmt.Sprintf("the reservation of pool %s were higher by %s", path, s.amounts(&add)),
			})
		}
	}
	for n, more := 0, leaf; n < maxShareDoublings && leaf.Share > 0; n++ {
		if more.Share *= 2; s.suffices(more, j.spec, &need) {
			list = append(list, Remedy{
				Kind: RemedyShare, Pool: path, Amount: lacks,
				Message: fmt.Sprintf("the share of pool %s were %d instead of %d", path, more.Share, leaf.Share),
			})
			break
		}
	}
	return list
}

func ptr(v resource.Vector) *resource.Vector { return &v }

// suffices reports whether the work would be let go if the pool were as edited.
func (s *State) suffices(edited respool.Pool, spec *workload.JobSpec, need *resource.Vector) bool {
	t := s.pools.Clone()
	if t.Update(edited) != nil {
		return false
	}
	t.Entitle(s.capacity)
	for _, b := range barsIn(t, spec) {
		if !need.FitsIn(&b.left) {
			return false
		}
	}
	return true
}

// returns finds the pool that holds most beyond its entitlement of what is missing at a host, if that is enough.
func (s *State) returns(j *job, lacks, own resource.Vector) (list []Remedy) {
	var best resource.Vector
	from := ""
	for p := range s.pools.All() {
		if p.ID == j.spec.Pool || !s.pools.IsLeaf(p.ID) {
			continue
		}
		a, _ := s.pools.Account(p.ID)
		over := shortOf(&a.Usage, &a.Entitlement)
		if lacks.FitsIn(&over) && (from == "" || part(&over, &own) > part(&best, &own)) {
			best, from = over, s.poolPath(p.ID)
		}
	}
	if from == "" {
		return nil
	}
	for k := range best {
		if lacks[k] == 0 {
			best[k] = 0
		}
	}
	return []Remedy{{
		Kind: RemedyReturn, Pool: from, Amount: lacks, size: part(&lacks, &own),
		Message: fmt.Sprintf("pool %s, which uses %s beyond its entitlement, gave back %s on one host", from, s.amounts(&best), s.amounts(&lacks)),
	}}
}
