package preemption

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Candidate is a job as a Ranker sees it.
type Candidate struct {
	Job      workload.JobID
	Pool     workload.PoolID
	Priority int32 // comparable within one pool only
	// Over is how far the job's pool is above its entitlement; see Overage. 0 where all candidates are of the pool that asks.
	Over int64
}

// Ranker is the policy that orders the jobs whose work may make room for other work.
type Ranker interface {
	// Rank returns a rank from 0 to math.MaxInt32 for each candidate: lower goes first, and equal ranks by least work lost. That revocable work
	// and work that does not run yet go before all others is not for it to say.
	Rank(candidates []Candidate) []int32
}

// ByOverage is the built-in Ranker: pools by largest overage, within a pool by lowest priority. Pools whose overages have the same number of
// binary digits, so that none is twice as far over as another, are alike: fewer runs lost outweigh a nicer order of pools. So is all revocable work
// but for priorities.
type ByOverage struct{}

// Rank implements Ranker. Candidates that it cannot tell apart are of few kinds, so kinds are sorted, and not candidates.
func (ByOverage) Rank(candidates []Candidate) []int32 {
	kindOf := make([]int32, len(candidates))
	met := map[Candidate]int32{}
	var kinds []Candidate
	for i := range candidates {
		kind := Candidate{Over: int64(candidates[i].level()), Pool: candidates[i].Pool, Priority: candidates[i].Priority}
		if i > 0 && kinds[kindOf[i-1]] == kind {
			kindOf[i] = kindOf[i-1]
			continue
		}
		at, known := met[kind]
		if !known {
			at = int32(len(kinds)) //nolint:gosec // at most one a candidate
			met[kind] = at
			kinds = append(kinds, kind)
		}
		kindOf[i] = at
	}
	places := rankKinds(kinds)
	for i, kind := range kindOf {
		kindOf[i] = places[kind]
	}
	return kindOf
}

// rankKinds ranks candidates that differ; Over is their level.
func rankKinds(kinds []Candidate) []int32 {
	order := make([]int, len(kinds))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		a1, b1 := &kinds[a], &kinds[b]
		return cmp.Or(cmp.Compare(b1.Over, a1.Over), workload.ID(a1.Pool).Compare(workload.ID(b1.Pool)), cmp.Compare(a1.Priority, b1.Priority))
	})
	ranks := make([]int32, len(kinds))
	base, step, most := int32(0), int32(0), int32(0) // of the level, above it, and the highest of it
	for n, i := range order {
		if n > 0 {
			switch last, c := &kinds[order[n-1]], &kinds[i]; {
			case c.Over != last.Over:
				base, step = most+1, 0
			case c.Pool != last.Pool:
				step = 0
			default:
				step++
			}
		}
		ranks[i] = base + step
		most = max(most, ranks[i])
	}
	return ranks
}

// level is equal for pools that are about as far over.
func (c *Candidate) level() int { return bits.Len64(uint64(max(c.Over, 0))) }

// Overage is how far usage is above entitlement, in millionths of the entitlement, of the kind where that is most.
func Overage(usage, entitlement resource.Vector) int64 {
	most := int64(0)
	for k, used := range usage {
		if over := used - max(entitlement[k], 0); over > 0 {
			most = max(most, millionths(uint64(over), uint64(max(entitlement[k], 0))))
		}
	}
	return most
}

func millionths(part, whole uint64) int64 {
	hi, lo := bits.Mul64(part, 1_000_000)
	if hi >= max(whole, 1) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(hi, lo, max(whole, 1))
	return int64(min(quotient, math.MaxInt64))
}
