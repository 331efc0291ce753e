package respool_test

import (
	"bytes"
	"math/big"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// outcome is what the oracle finds for one pool and one kind.
type outcome struct{ effective, demand, entitlement int64 }

// oracle computes one kind's entitlements the slow way: rational numbers, one satisfied claim per pass, recursion from the
// definition.
type oracle struct {
	kind     resource.Kind
	children map[workload.PoolID][]respool.Pool
	asked    map[workload.PoolID]respool.Demand
	found    map[workload.PoolID]outcome
}

func entitlements(pools []respool.Pool, asked map[workload.PoolID]respool.Demand, capacity int64, k resource.Kind) map[workload.PoolID]outcome {
	o := oracle{k, map[workload.PoolID][]respool.Pool{}, asked, map[workload.PoolID]outcome{}}
	for _, p := range pools {
		o.children[p.Parent] = append(o.children[p.Parent], p)
	}
	for _, siblings := range o.children {
		slices.SortFunc(siblings, func(a, b respool.Pool) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	}
	root := respool.Pool{ID: respool.RootID, Kind: respool.Elastic, Share: 1}
	o.reserve(root, capacity, capacity)
	o.demand(root)
	o.split(root, capacity)
	return o.found
}

func (o *oracle) reserve(p respool.Pool, nominal, effective int64) {
	o.found[p.ID] = outcome{effective: effective}
	siblings := o.children[p.ID]
	nominals := make([]int64, len(siblings))
	sum := int64(0)
	for i, c := range siblings {
		nominals[i] = c.Reservation[o.kind]
		sum += nominals[i]
	}
	for i, c := range siblings {
		if c.ReserveRest {
			nominals[i] = min(max(nominal-sum, 0), c.Limit.Of(o.kind))
			sum += nominals[i]
		}
	}
	effectives := nominals
	if sum > effective {
		parts := make([]*big.Rat, len(siblings))
		for i, n := range nominals {
			parts[i] = new(big.Rat).Mul(big.NewRat(n, sum), new(big.Rat).SetInt64(effective))
		}
		effectives = roundParts(parts)
	}
	for i, c := range siblings {
		o.reserve(c, nominals[i], effectives[i])
	}
}

func (o *oracle) demand(p respool.Pool) int64 {
	out := o.found[p.ID]
	d := o.asked[p.ID]
	out.demand = d.Preemptible[o.kind] + min(d.NonPreemptible[o.kind], out.effective)
	if siblings := o.children[p.ID]; len(siblings) > 0 {
		out.demand = 0
		for _, c := range siblings {
			out.demand += o.demand(c)
		}
	}
	if p.Kind == respool.Static {
		out.demand = out.effective
	}
	if p.Share == 0 {
		out.demand = min(out.demand, out.effective)
	}
	out.demand = min(out.demand, p.Limit.Of(o.kind))
	o.found[p.ID] = out
	return out.demand
}

func (o *oracle) split(p respool.Pool, amount int64) {
	out := o.found[p.ID]
	out.entitlement = amount
	o.found[p.ID] = out
	siblings := o.children[p.ID]
	got := make([]int64, len(siblings))
	for i, c := range siblings {
		got[i] = o.found[c.ID].effective
		if c.Kind == respool.Elastic {
			got[i] = min(got[i], o.found[c.ID].demand)
		}
		amount -= got[i]
	}
	for _, upTo := range []func(respool.Pool) int64{
		func(c respool.Pool) int64 { return o.found[c.ID].demand },
		func(c respool.Pool) int64 { return c.Limit.Of(o.kind) },
	} {
		wants, weights := make([]int64, len(siblings)), make([]int64, len(siblings))
		for i, c := range siblings {
			if c.Kind == respool.Elastic && c.Share > 0 {
				wants[i], weights[i] = max(0, upTo(c)-got[i]), c.Share
			}
		}
		for i, part := range roundParts(levels(amount, wants, weights)) {
			got[i] += part
			amount -= part
		}
	}
	for i, c := range siblings {
		o.split(c, got[i])
	}
}

// levels is weighted max-min fairness over the rationals: satisfy whoever needs the lowest level, while the level reaches it.
func levels(amount int64, wants, weights []int64) []*big.Rat {
	parts := make([]*big.Rat, len(wants))
	for i := range parts {
		parts[i] = new(big.Rat)
	}
	left := new(big.Rat).SetInt64(amount)
	open := map[int]bool{}
	for i, want := range wants {
		if want > 0 {
			open[i] = true
		}
	}
	for len(open) > 0 {
		weight, lowest, who := int64(0), (*big.Rat)(nil), -1
		for i := range open {
			weight += weights[i]
			if need := big.NewRat(wants[i], weights[i]); lowest == nil || need.Cmp(lowest) < 0 {
				lowest, who = need, i
			}
		}
		level := new(big.Rat).Quo(left, new(big.Rat).SetInt64(weight))
		if level.Cmp(lowest) < 0 {
			for i := range open {
				parts[i].Mul(level, new(big.Rat).SetInt64(weights[i]))
			}
			break
		}
		parts[who].SetInt64(wants[who])
		left.Sub(left, parts[who])
		delete(open, who)
	}
	return parts
}

// roundParts rounds by largest remainder; the parts stand in the order of their ids and add up to an integer.
func roundParts(parts []*big.Rat) []int64 {
	rounded := make([]int64, len(parts))
	remainders := make([]*big.Rat, len(parts))
	order := make([]int, len(parts))
	missing := new(big.Rat)
	for i, part := range parts {
		floor := new(big.Int).Quo(part.Num(), part.Denom())
		rounded[i] = floor.Int64()
		remainders[i] = new(big.Rat).Sub(part, new(big.Rat).SetInt(floor))
		missing.Add(missing, remainders[i])
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return remainders[b].Cmp(remainders[a]) })
	for _, i := range order[:missing.Num().Int64()] {
		rounded[i]++
	}
	return rounded
}
