package usage

import (
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Standing is where a pool stands at a moment.
type Standing struct {
	Entitlement, Demand, Usage resource.Vector
}

// Balance is how a pool fared since its account began: resource-seconds of what it was entitled to, of what it demanded, of what it lacked
// and of what it had too much. All are taken at the moments at which entitlements are worked out, at most a second apart, as if nothing
// changed in between.
type Balance struct {
	Pool     workload.PoolID
	Since    int64 // UTC milliseconds up to which it is counted
	Entitled Seconds
	Demanded Seconds
	// Deficit is what the pool was entitled to, demanded and did not have.
	Deficit Seconds
	// Overage is what it had beyond its entitlement.
	Overage Seconds
	// Sampled is when it was last read, in UTC nanoseconds; First is when it was first.
	First, Sampled int64
}

// Advance counts the time since the last Advance with a pool's standing over it.
func (b *Balance) Advance(at int64, s *Standing) {
	elapsed := Milliseconds(at) - b.Since
	if elapsed <= 0 {
		return
	}
	b.Since = Milliseconds(at)
	b.Entitled.Add(&s.Entitlement, elapsed)
	b.Demanded.Add(&s.Demand, elapsed)
	var lacks, extra resource.Vector
	for k := range lacks {
		lacks[k] = min(s.Entitlement[k], s.Demand[k]) - s.Usage[k]
		extra[k] = s.Usage[k] - s.Entitlement[k]
	}
	b.Deficit.Add(&lacks, elapsed) // what is negative counts as nothing
	b.Overage.Add(&extra, elapsed)
}
