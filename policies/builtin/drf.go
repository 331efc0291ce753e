package builtin

import "github.com/paceline-sched/paceline/sdk/policy"

// drf is dominant resource fairness (Ghodsi et al., NSDI 2011), at each pool for its children. Guarantees go first, as under max-min. Of the surplus each child gets the same part of
// everything that it still wants, so that the dominant shares of what children get, by weight, are the same: the part of the surplus' most contended kind for each. A child stops when it has
// all that it wants, or when a kind that it wants has run out; the others go on. What then is left of a kind goes to all by share, up to their limits.
type drf struct {
	tree
	children []drfChild
}

// drfChild is a child that wants more.
type drfChild struct {
	row    int32
	pace   float64 // how much of its wants it gets for a unit of dominant share
	got    float64 // part of its wants, 0 to 1
	frozen bool
}

// drfSteps is how closely a level is found: to the last bits of a float64.
const drfSteps = 60

// DRF is dominant resource fairness over the tree of pools.
func DRF() *policy.Program { return program(policy.Info{Name: "drf"}, &drf{}) }

// Entitle implements policy.Quota.
func (q *drf) Entitle(p *policy.Pools) error {
	q.read(p)
	for k := range policy.Kind(p.Kinds()) {
		if p.Has(k) {
			p.Entitlement(k)[0] = p.Capacity(k)
		}
	}
	for parent := range p.Rows() {
		if q.first[parent] >= 0 {
			q.divide(p, parent)
		}
	}
	return nil
}

// divide divides what a pool has among its children.
func (q *drf) divide(p *policy.Pools, parent int) {
	var left [16]int64
	for k := range policy.Kind(p.Kinds()) {
		if p.Has(k) {
			left[k] = q.guarantee(p, k, parent)
		}
	}
	q.list(p, parent, &left)
	for !q.done() {
		level := q.level(p, &left)
		q.freeze(p, level, &left)
	}
	for i := range q.children {
		c := &q.children[i]
		for k := range policy.Kind(p.Kinds()) {
			if p.Has(k) {
				grant := part(want(p, k, c.row), c.got)
				p.Entitlement(k)[c.row] += grant
				left[k] -= grant
			}
		}
	}
	for k := range policy.Kind(p.Kinds()) {
		if p.Has(k) {
			q.share(p, k, parent, left[k], p.Limit(k), nil)
		}
	}
}

// want is what a pool wants of a kind beyond its guarantee.
func want(p *policy.Pools, k policy.Kind, row int32) int64 {
	return max(0, min(p.Demand(k)[row], p.Limit(k)[row])-min(p.Demand(k)[row], p.Reservation(k)[row]))
}

// part is a part of a quantity, rounded down and never more than all of it.
func part(quantity int64, of float64) int64 {
	if of >= 1 {
		return quantity
	}
	return min(int64(float64(quantity)*of), quantity)
}

// list lists the children that want more. One that wants what there is nothing of gets nothing.
func (q *drf) list(p *policy.Pools, parent int, left *[16]int64) {
	q.children = q.children[:0]
	for row := q.first[parent]; row >= 0; row = q.next[row] {
		dominant, weight, barren := 0.0, int64(0), false
		for k := range policy.Kind(p.Kinds()) {
			if !p.Has(k) {
				continue
			}
			weight = max(weight, p.Share(k)[row])
			if w := want(p, k, row); w > 0 {
				if barren = barren || left[k] <= 0; !barren {
					dominant = max(dominant, float64(w)/float64(left[k]))
				}
			}
		}
		if dominant > 0 && weight > 0 && !barren {
			q.children = append(q.children, drfChild{row: row, pace: float64(weight) / dominant})
		}
	}
}

func (q *drf) done() bool {
	for i := range q.children {
		if !q.children[i].frozen {
			return false
		}
	}
	return true
}

// at is how much of its wants a child has at a level of dominant share.
func (c *drfChild) at(level float64) float64 {
	if c.frozen {
		return c.got
	}
	return min(1, level*c.pace)
}

// level finds the highest level, to the last bits, that all children can have.
func (q *drf) level(p *policy.Pools, left *[16]int64) float64 {
	high := 0.0
	for i := range q.children {
		if c := &q.children[i]; !c.frozen {
			high = max(high, 1/c.pace)
		}
	}
	if q.fits(p, high, left) {
		return high
	}
	low := 0.0
	for range drfSteps {
		middle := (low + high) / 2
		if q.fits(p, middle, left) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

func (q *drf) fits(p *policy.Pools, level float64, left *[16]int64) bool {
	for k := range policy.Kind(p.Kinds()) {
		if p.Has(k) && q.used(p, k, level) > left[k] {
			return false
		}
	}
	return true
}

// used is what children take of a kind at a level.
func (q *drf) used(p *policy.Pools, k policy.Kind, level float64) int64 {
	sum := int64(0)
	for i := range q.children {
		c := &q.children[i]
		if sum += part(want(p, k, c.row), c.at(level)); sum < 0 {
			return policy.NoLimit // more than there can be
		}
	}
	return sum
}

// freeze stops the children that have all, and those that want something that has run out: where a little more of the level does not fit. One stops at least.
func (q *drf) freeze(p *policy.Pools, level float64, left *[16]int64) {
	var out [16]bool
	for k := range policy.Kind(p.Kinds()) {
		if p.Has(k) {
			open := int64(0)
			for i := range q.children {
				if c := &q.children[i]; !c.frozen && want(p, k, c.row) > 0 {
					open++
				}
			}
			out[k] = left[k]-q.used(p, k, level) <= open // less than a unit for each is no more than rounding
		}
	}
	stopped := false
	for i := range q.children {
		c := &q.children[i]
		if c.frozen {
			continue
		}
		c.got = c.at(level)
		c.frozen = c.got >= 1
		for k := range policy.Kind(p.Kinds()) {
			c.frozen = c.frozen || out[k] && p.Has(k) && want(p, k, c.row) > 0
		}
		stopped = stopped || c.frozen
	}
	for i := 0; !stopped && i < len(q.children); i++ { // floating point had its way: nobody can have more, so this is where they end
		q.children[i].frozen = true
	}
}
