package builtin

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/sdk/policy"
)

// tree is what dividing what pools have among their children works with.
type tree struct {
	first, next []int32 // the first child of a pool and its next sibling, -1 for none
	claims      []claim
}

// claim is one pool's part in a distribution of one kind. Weight and want are positive.
type claim struct {
	row       int32
	weight    int64
	want      int64
	grant     int64  // the result
	remainder uint64 // what rounding down took from it
}

// read finds the children of every pool, in the order of rows.
func (t *tree) read(p *policy.Pools) {
	if len(t.first) < p.Rows() {
		t.first, t.next = make([]int32, p.Rows()), make([]int32, p.Rows())
	}
	for row := range p.Rows() {
		t.first[row], t.next[row] = -1, -1
	}
	for row := p.Rows() - 1; row > 0; row-- {
		parent := p.Parent()[row]
		t.first[parent], t.next[row] = int32(row), t.first[parent]
	}
}

// guarantee entitles the children of a pool to what they are guaranteed, their reservation up to their demand, and returns what is left.
func (t *tree) guarantee(p *policy.Pools, k policy.Kind, parent int) int64 {
	given, left := p.Entitlement(k), p.Entitlement(k)[parent]
	for c := t.first[parent]; c >= 0; c = t.next[c] {
		given[c] = min(p.Demand(k)[c], p.Reservation(k)[c])
		left -= given[c]
	}
	return left
}

// share raises the children of a pool by amount, in proportion to their shares, each up to its ceiling, and returns what found no taker. Only children that takes accepts take part; nil: all.
func (t *tree) share(p *policy.Pools, k policy.Kind, parent int, amount int64, ceiling []int64, takes func(row int32) bool) int64 {
	if amount <= 0 {
		return 0
	}
	given := p.Entitlement(k)
	t.claims = t.claims[:0]
	for c := t.first[parent]; c >= 0; c = t.next[c] {
		want := min(ceiling[c], p.Limit(k)[c]) - given[c]
		if weight := p.Share(k)[c]; weight > 0 && want > 0 && (takes == nil || takes(c)) {
			t.claims = append(t.claims, claim{row: c, weight: weight, want: min(want, amount)})
		}
	}
	left := fill(amount, t.claims)
	for i := range t.claims {
		given[t.claims[i].row] += t.claims[i].grant
	}
	return left
}

// fill grants amount by weighted max-min fairness, in integers, and returns what is left: water-filling in the order of want by weight.
func fill(amount int64, claims []claim) int64 {
	slices.SortStableFunc(claims, func(a, b claim) int { return compareProducts(a.want, b.weight, b.want, a.weight) })
	weight := int64(0)
	for i := range claims {
		weight += claims[i].weight
	}
	for len(claims) > 0 {
		c := &claims[0]
		if compareProducts(c.want, weight, amount, c.weight) > 0 {
			apportion(amount, weight, claims)
			return 0
		}
		c.grant = c.want
		amount, weight, claims = amount-c.want, weight-c.weight, claims[1:]
	}
	return amount
}

// apportion grants amount in proportion to weight, which is total altogether, rounded by largest remainder, ties by row. No grant passes an integer bound on its exact part.
func apportion(amount, total int64, claims []claim) {
	left := amount
	for i := range claims {
		c := &claims[i]
		hi, lo := bits.Mul64(uint64(c.weight), uint64(amount))
		quotient, remainder := bits.Div64(hi, lo, uint64(total)) // hi < total, as weight <= total and amount < 2^63
		c.grant, c.remainder = int64(quotient), remainder
		left -= c.grant
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(b.remainder, a.remainder), cmp.Compare(a.row, b.row))
	})
	for i := range left {
		claims[i].grant++
	}
}

// compareProducts compares a*b with c*d; no factor is negative.
func compareProducts(a, b, c, d int64) int {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	otherHi, otherLo := bits.Mul64(uint64(c), uint64(d))
	return cmp.Or(cmp.Compare(hi, otherHi), cmp.Compare(lo, otherLo))
}

// divide goes through the tree from the root, which has everything, and lets by divide each pool's part of a kind among its children.
func (t *tree) divide(p *policy.Pools, by func(k policy.Kind, parent int)) {
	t.read(p)
	for k := range policy.Kind(p.Kinds()) {
		if !p.Has(k) {
			continue
		}
		p.Entitlement(k)[0] = p.Capacity(k)
		for parent := range p.Rows() {
			if t.first[parent] >= 0 {
				by(k, parent)
			}
		}
	}
}

type maxMin struct{ tree }

// MaxMin is hierarchical weighted max-min fairness for each kind by itself: guarantees, then the surplus by share up to demands, then what nobody wants up to limits. It is what the
// scheduler does without a policy.
func MaxMin() *policy.Program { return program(policy.Info{Name: "max-min"}, &maxMin{}) }

// Entitle implements policy.Quota.
func (q *maxMin) Entitle(p *policy.Pools) error {
	q.divide(p, func(k policy.Kind, parent int) {
		left := q.guarantee(p, k, parent)
		left = q.share(p, k, parent, left, p.Demand(k), nil)
		q.share(p, k, parent, left, p.Limit(k), nil)
	})
	return nil
}

type static struct{}

// Static entitles each pool to its reservation, no more and no less, whatever anybody wants: what a pool does not use stays idle.
func Static() *policy.Program { return program(policy.Info{Name: "static"}, &static{}) }

// Entitle implements policy.Quota.
func (*static) Entitle(p *policy.Pools) error {
	for k := range policy.Kind(p.Kinds()) {
		if p.Has(k) {
			copy(p.Entitlement(k), p.Reservation(k))
		}
	}
	return nil
}

type bands struct{ tree }

// Bands serves pools in bands of priority, as Borg does its quotas: a pool's share is its band. Beyond what is guaranteed, the surplus goes to the children of the highest band up to
// their demand, as much to each, then to the next. What nobody wants goes to all up to their limits, in proportion to their bands.
func Bands() *policy.Program { return program(policy.Info{Name: "bands"}, &bands{}) }

// Entitle implements policy.Quota.
func (q *bands) Entitle(p *policy.Pools) error {
	q.divide(p, func(k policy.Kind, parent int) {
		left := q.guarantee(p, k, parent)
		for band := q.below(p, k, parent, math.MaxInt64); band > 0 && left > 0; band = q.below(p, k, parent, band) {
			left = q.share(p, k, parent, left, p.Demand(k), func(row int32) bool { return p.Share(k)[row] == band })
		}
		q.share(p, k, parent, left, p.Limit(k), nil)
	})
	return nil
}

// below is the highest band of a pool's children under another, 0 for none.
func (q *bands) below(p *policy.Pools, k policy.Kind, parent int, band int64) int64 {
	highest := int64(0)
	for c := q.first[parent]; c >= 0; c = q.next[c] {
		if s := p.Share(k)[c]; s < band {
			highest = max(highest, s)
		}
	}
	return highest
}
