package sim

import (
	"math"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// tolerance is how many units a naive entitlement may be off: the cell rounds on each level and in each round of sharing.
const tolerance = 8

// checkEntitlements computes every pool's reservation and entitlement once more, from the hosts and pools on record and what the leaves
// demand, by pouring water in real numbers.
func (c *cell) checkEntitlements(pools []scheduler.PoolView) {
	capacity := c.capacity()
	policed := slices.ContainsFunc(pools, func(p scheduler.PoolView) bool { return strings.HasPrefix(p.EntitledBy, "policy ") })
	for k := range resource.FirstNamed + 1 { // the scenarios name one more
		tree := map[string]*naivePool{"": {path: "", reservation: float64(capacity[k]), entitlement: float64(capacity[k])}}
		for n := range pools { // parents come before their children
			p := &pools[n]
			if p.Path == "/" {
				continue
			}
			np := &naivePool{
				path: p.Path, static: p.Pool.Kind == respool.Static, share: float64(p.Pool.Share), limit: math.Inf(1),
				configured: float64(p.Pool.Reservation[k]), rest: p.Pool.ReserveRest, asked: float64(p.Demand[k]),
			}
			if l := p.Pool.Limit.Of(k); l != respool.Unlimited {
				np.limit = float64(l)
			}
			tree[p.Path] = np
			parent := tree[p.Path[:strings.LastIndexByte(p.Path, '/')]]
			parent.children = append(parent.children, np)
		}
		root := tree[""]
		root.nominal = root.reservation
		root.reserve()
		root.want()
		root.pour()
		for n := range pools {
			p := &pools[n]
			np := tree[p.Path]
			if np == nil {
				continue
			}
			c.checkRules(p, k)
			if off := float64(p.Entitlement[k]) - np.entitlement; math.Abs(off) > tolerance && !policed {
				c.w.fail(CheckEntitlement, "pool %s is entitled to %d of kind %d; poured out it is %.1f", p.Path, p.Entitlement[k], k, np.entitlement)
			}
			if off := float64(p.Reservation[k]) - np.reservation; math.Abs(off) > tolerance {
				c.w.fail(CheckEntitlement, "pool %s has %d of kind %d guaranteed; by proportion it is %.1f", p.Path, p.Reservation[k], k, np.reservation)
			}
		}
	}
}

// capacity is what the hosts on record bring to the cell.
func (c *cell) capacity() (sum resource.Vector) {
	for id := range c.followed.Hosts {
		h := c.followed.Hosts[id]
		if h.Present && h.Summary.Ready && !h.Draining {
			sum = sum.Add(h.Summary.Capacity.Sub(h.Summary.Foreign).Max(resource.Vector{}))
		}
	}
	return sum
}

// naivePool is one pool and one kind of resource.
type naivePool struct {
	path                                      string
	static, rest                              bool
	share, limit, configured, asked           float64
	nominal, reservation, demand, entitlement float64
	children                                  []*naivePool
}

// reserve scales the children's reservations down to what there is.
func (p *naivePool) reserve() {
	configured := 0.0
	for _, c := range p.children {
		configured += c.configured
	}
	nominal := 0.0
	for _, c := range p.children {
		c.nominal = c.configured
		if c.rest {
			c.nominal = min(max(p.nominal-configured, 0), c.limit)
		}
		nominal += c.nominal
	}
	for _, c := range p.children {
		c.reservation = c.nominal
		if nominal > p.reservation {
			c.reservation *= p.reservation / nominal
		}
		c.reserve()
	}
}

// want is what could be given to the pool.
func (p *naivePool) want() float64 {
	p.demand = p.asked
	if len(p.children) > 0 {
		p.demand = 0
		for _, c := range p.children {
			p.demand += c.want()
		}
	}
	switch p.demand = min(p.demand, p.limit); {
	case p.static:
		p.demand = p.reservation
	case p.share == 0:
		p.demand = min(p.demand, p.reservation)
	}
	return p.demand
}

// pour gives every child what is guaranteed to it and the rest by shares: first as far as it is wanted, then as far as the limits go.
func (p *naivePool) pour() {
	left := p.entitlement
	for _, c := range p.children {
		c.entitlement = c.reservation
		if !c.static {
			c.entitlement = min(c.reservation, c.demand)
		}
		left -= c.entitlement
	}
	left = p.level(left, func(c *naivePool) float64 { return c.demand })
	p.level(left, func(c *naivePool) float64 { return c.limit })
	for _, c := range p.children {
		c.pour()
	}
}

// level raises the children together, each by its share, until each is full or nothing is left.
func (p *naivePool) level(left float64, full func(*naivePool) float64) float64 {
	const dust = 1e-6
	for left > dust {
		shares, step := 0.0, math.Inf(1)
		for _, c := range p.children {
			if room := full(c) - c.entitlement; !c.static && c.share > 0 && room > dust {
				shares += c.share
				step = min(step, room/c.share)
			}
		}
		if shares == 0 {
			break
		}
		step = min(step, left/shares)
		for _, c := range p.children {
			if room := full(c) - c.entitlement; !c.static && c.share > 0 && room > dust {
				c.entitlement += step * c.share
				left -= step * c.share
			}
		}
	}
	return left
}

// charges is what a job holds of its pool, before and after a Step.
type charges map[workload.JobID]resource.Vector

// checkQueues wants nobody to have been admitted to a pool, in the Step that is over, by what somebody waits for who is first in line. Only
// whether a job stands in the queue at all is asked of the cell; who is short of what follows from the pool's figures.
func (c *cell) checkQueues(pools []scheduler.PoolView, jobs []scheduler.JobView, before, now charges) {
	gained := map[workload.PoolID]bool{}
	for n := range jobs {
		if j := &jobs[n]; grew(now[j.ID], before[j.ID]) {
			gained[j.Spec.Pool] = true
		}
	}
	for n := range pools {
		p := &pools[n]
		if p.Waiting == 0 || !gained[p.Pool.ID] || p.Pool.Queue.Order != respool.OrderPriorityFIFO || p.Pool.Queue.Backfill != respool.BackfillNone {
			continue
		}
		if w := firstWaiting(p, jobs); w != nil {
			var behind resource.Vector // what others got who go after it
			for b := range jobs {
				if g := &jobs[b]; g.Spec.Pool == p.Pool.ID && goesBefore(w, g) {
					behind = behind.Add(now[g.ID].Sub(before[g.ID]).Max(resource.Vector{}))
				}
			}
			waited, of := c.waitsFor(p, w, behind)
			if waited == (resource.Vector{}) { // it could have had it but for them
				waited, of = c.waitsFor(p, w, resource.Vector{})
			}
			if waited == (resource.Vector{}) {
				continue
			}
			for b := range jobs {
				g := &jobs[b]
				if g.Spec.Pool != p.Pool.ID || !goesBefore(w, g) || (of == guarantee && g.Spec.Preemptible) {
					continue
				}
				for k := range waited {
					if waited[k] > 0 && now[g.ID][k] > before[g.ID][k] {
						c.w.fail(CheckQueues, "job %s is given %d more of kind %d of pool %s, for which %s waits, who is before it:\n%s", g.Spec.Name,
							now[g.ID][k]-before[g.ID][k], k, p.Path, w.Spec.Name, c.w.describe(*w))
					}
				}
			}
		}
	}
}

// firstWaiting is the job of a pool that goes before all others of which something waits, even if that waits elsewhere than in the queue:
// one that was refused by the shards in this very Step may have stood first while others were admitted.
func firstWaiting(p *scheduler.PoolView, jobs []scheduler.JobView) (first *scheduler.JobView) {
	for n := range jobs {
		j := &jobs[n]
		waits := j.Spec.Pool == p.Pool.ID && !j.Spec.Revocable && j.ByState[workload.InstancePending] > 0
		if waits && (first == nil || goesBefore(j, first)) {
			first = j
		}
	}
	return first
}

func grew(now, before resource.Vector) bool { return !now.FitsIn(&before) }

func goesBefore(a, b *scheduler.JobView) bool {
	if a.Spec.Priority != b.Spec.Priority {
		return a.Spec.Priority > b.Spec.Priority
	}
	return a.Order < b.Order
}

// account is of what a job is short.
type account uint8

const (
	entitled  account = iota + 1 // of what its pool may use
	guarantee                    // of what its pool may use for work that stays
)

// waitsFor is what the next unit of a job takes of the kinds in which it is short, if it is first in line for them and could ever have them, when spare
// is left beside what is.
func (c *cell) waitsFor(p *scheduler.PoolView, j *scheduler.JobView, spare resource.Vector) (short resource.Vector, of account) {
	unit := j.Spec.Template.Needs
	switch {
	case wholeGang(j.Spec):
		unit = gangNeeds(j.Spec)
	case len(j.Spec.Overrides) > 0 || j.Spec.Gang != nil:
		return short, 0 // which of its classes is next is its own affair
	}
	e, _ := c.state.Reader().Explain(j.ID)
	first := false
	for _, r := range e.Reasons {
		first = first || r.Kind == scheduler.PendingEntitlement || r.Kind == scheduler.PendingReservation
	}
	if !first {
		return short, 0
	}
	reach := p.Entitlement.Sub(p.NonPreemptible)
	if !j.Spec.Preemptible {
		reach = p.Entitlement.Min(p.Reservation)
		left := p.Reservation.Sub(p.NonPreemptible) // what others got may be no part of it
		short, of = lacks(&unit, &left), guarantee
	}
	if !unit.FitsIn(&reach) {
		return resource.Vector{}, 0
	}
	if short == (resource.Vector{}) {
		left := p.Entitlement.Sub(p.Usage).Add(spare)
		short, of = lacks(&unit, &left), entitled
	}
	return short, of
}

func lacks(need, left *resource.Vector) (short resource.Vector) {
	for k := range need {
		if need[k] > 0 && need[k] > left[k] {
			short[k] = need[k]
		}
	}
	return short
}

// wholeGang is a job that is one gang, of which every member is needed.
func wholeGang(s *workload.JobSpec) bool {
	gangs := s.Gangs()
	return len(gangs) == 1 && gangs[0].Min == s.Instances
}

func gangNeeds(s *workload.JobSpec) (sum resource.Vector) {
	for i := range s.Instances {
		sum = sum.Add(needsOf(s, i))
	}
	return sum
}
