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
type outcome struct {
	effective, demand, entitlement int64
	revocableDemand, revocable     int64 // the second ledger's
	wanted                         int64 // by ordinary work; the tree does not show it
}

// oracle computes one kind's entitlements the slow way: rational numbers, one satisfied claim per pass, recursion from the
// definition.
type oracle struct {
	kind     resource.Kind
	children map[workload.PoolID][]respool.Pool
	asked    map[workload.PoolID]respool.Demand
	used     map[workload.PoolID]resource.Vector
	percents map[workload.PoolID]int64 // the narrowest ControllerPercent here and above; 0: none
	foresee  bool                      // controllers' demand counts for the whole of which it is that part
	found    map[workload.PoolID]outcome
}

func entitlements(f *forest, k resource.Kind, foresee bool) map[workload.PoolID]outcome {
	o := oracle{
		kind: k, children: map[workload.PoolID][]respool.Pool{}, asked: f.asked, used: f.used, percents: map[workload.PoolID]int64{},
		foresee: foresee, found: map[workload.PoolID]outcome{},
	}
	for _, p := range f.pools {
		o.children[p.Parent] = append(o.children[p.Parent], p)
	}
	for _, siblings := range o.children {
		slices.SortFunc(siblings, func(a, b respool.Pool) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	}
	root := respool.Pool{ID: respool.RootID, Kind: respool.Elastic, Share: 1}
	o.inherit(root, 0)
	o.reserve(root, f.capacity[k], f.capacity[k])
	o.demand(root)
	o.split(root, f.capacity[k])
	slack := max(0, f.capacity[k]-o.busy(root))
	o.revocableDemand(root, slack)
	o.splitRevocable(root, min(slack, o.found[root.ID].revocableDemand))
	return o.found
}

func (o *oracle) inherit(p respool.Pool, percent int64) {
	if own := int64(p.ControllerPercent); own > 0 && (percent == 0 || own < percent) {
		percent = own
	}
	o.percents[p.ID] = percent
	for _, c := range o.children[p.ID] {
		o.inherit(c, percent)
	}
}

// busy is what ordinary work uses or may start using.
func (o *oracle) busy(p respool.Pool) (sum int64) {
	siblings := o.children[p.ID]
	if len(siblings) == 0 && p.ID != respool.RootID {
		used := o.used[p.ID]
		return max(used[o.kind], min(o.found[p.ID].wanted, o.found[p.ID].entitlement))
	}
	for _, c := range siblings {
		sum += o.busy(c)
	}
	return sum
}

func (o *oracle) revocableDemand(p respool.Pool, slack int64) int64 {
	out := o.found[p.ID]
	d := o.asked[p.ID]
	out.revocableDemand = d.Revocable[o.kind]
	if siblings := o.children[p.ID]; len(siblings) > 0 || p.ID == respool.RootID {
		out.revocableDemand = 0
		for _, c := range siblings {
			out.revocableDemand += o.revocableDemand(c, slack)
		}
	}
	out.revocableDemand = min(out.revocableDemand, slack)
	if p.RevocablePercent > 0 {
		part := new(big.Int).Mul(big.NewInt(slack), big.NewInt(int64(p.RevocablePercent)))
		out.revocableDemand = min(out.revocableDemand, part.Quo(part, big.NewInt(100)).Int64())
	}
	if p.Share == 0 {
		out.revocableDemand = 0
	}
	o.found[p.ID] = out
	return out.revocableDemand
}

func (o *oracle) splitRevocable(p respool.Pool, amount int64) {
	out := o.found[p.ID]
	out.revocable = amount
	o.found[p.ID] = out
	siblings := o.children[p.ID]
	wants, weights := make([]int64, len(siblings)), make([]int64, len(siblings))
	for i, c := range siblings {
		if c.Share > 0 {
			wants[i], weights[i] = o.found[c.ID].revocableDemand, c.Share
		}
	}
	for i, part := range roundParts(levels(amount, wants, weights)) {
		o.splitRevocable(siblings[i], part)
	}
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
	out.wanted = out.demand
	if percent := o.percents[p.ID]; o.foresee && percent > 0 {
		whole := big.NewRat(min(d.Controllers[o.kind], out.demand)*100, percent)
		ceil := new(big.Int).Quo(new(big.Int).Add(whole.Num(), new(big.Int).Sub(whole.Denom(), big.NewInt(1))), whole.Denom())
		out.demand = max(out.demand, ceil.Int64())
	}
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
