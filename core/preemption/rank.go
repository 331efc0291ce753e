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

// ByOverage is the built-in Ranker: pools by largest overage, within a pool by lowest priority.
type ByOverage struct{}

// Rank implements Ranker.
func (ByOverage) Rank(candidates []Candidate) []int32 {
	order := make([]int, len(candidates))
	for i := range order {
		order[i] = i
	}
	compare := func(a, b *Candidate) int {
		return cmp.Or(cmp.Compare(b.Over, a.Over), workload.ID(a.Pool).Compare(workload.ID(b.Pool)), cmp.Compare(a.Priority, b.Priority))
	}
	slices.SortFunc(order, func(a, b int) int { return compare(&candidates[a], &candidates[b]) })
	ranks := make([]int32, len(candidates))
	rank := int32(0)
	for n, i := range order {
		if n > 0 && compare(&candidates[order[n-1]], &candidates[i]) != 0 {
			rank++
		}
		ranks[i] = rank
	}
	return ranks
}

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
