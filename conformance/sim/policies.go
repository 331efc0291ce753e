package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// policedEvery is how many seeds there are for one whose cell has policies of quota and of preemption in force, and policedAt which of them it is.
const (
	policedEvery = 4
	policedAt    = 3
)

// policies are those that the cell asks off the loop, and they wish it ill: they answer late, twice, or not at all, with nonsense, with what breaks every rule, and now and
// then with something lawful that makes no sense. That of quota goes when faults stop, as what it does is a change of the load; that of preemption stays: who goes
// first is all that it may say, so nothing that must come true may depend on it.
type policies struct {
	w        *world
	r        random
	on       bool
	versions int
	inForce  map[scheduler.PolicyKind]string
}

func newPolicies(w *world) *policies {
	return &policies{w: w, r: newJitter(w.opts.Seed, "policies"), on: w.opts.Policies, inForce: map[scheduler.PolicyKind]string{}}
}

// generate has other versions come into force every so often.
func (p *policies) generate() {
	if !p.on {
		return
	}
	p.enforce(scheduler.QuotaPolicy)
	p.enforce(scheduler.RankPolicy)
	p.change()
}

func (p *policies) change() {
	p.w.after(p.r.between(5*time.Second, 50*time.Second), func() {
		if !p.w.calm {
			p.enforce(pick(p.r, scheduler.QuotaPolicy, scheduler.RankPolicy))
			p.change()
		}
	})
}

// enforce puts another version in force, or none.
func (p *policies) enforce(kind scheduler.PolicyKind) {
	p.versions++
	p.inForce[kind] = fmt.Sprintf("ill@%d", p.versions)
	if p.r.IntN(6) == 0 {
		p.inForce[kind] = ""
	}
	p.tell(kind)
}

func (p *policies) tell(kind scheduler.PolicyKind) {
	p.w.trace("policy %s: %q is in force", kind, p.inForce[kind])
	p.w.cell.deliver(scheduler.PolicyInForce{Kind: kind, Name: p.inForce[kind]})
}

// started tells a core what is in force.
func (p *policies) started() {
	for _, kind := range []scheduler.PolicyKind{scheduler.QuotaPolicy, scheduler.RankPolicy} {
		if p.inForce[kind] != "" {
			p.tell(kind)
		}
	}
}

// mend takes the policy of quota out of force.
func (p *policies) mend() {
	if p.on {
		p.inForce[scheduler.QuotaPolicy] = ""
		p.tell(scheduler.QuotaPolicy)
	}
}

// asked answers a question in its own way and time.
func (p *policies) asked(answer scheduler.Event, how string) {
	p.w.report.Policies[how]++
	if how == "silent" {
		return
	}
	d := p.r.between(10*time.Microsecond, 5*time.Millisecond)
	if how == "late" {
		d = p.r.between(50*time.Millisecond, 20*time.Second)
	}
	cell := p.w.cell
	cell.during(d, func() { cell.deliver(answer) })
	if p.r.IntN(10) == 0 {
		cell.during(d+p.r.between(0, time.Second), func() { cell.deliver(answer) })
	}
}

// how draws what becomes of a question.
func (p *policies) how() string {
	return pick(p.r, "silent", "late", "fails", "short", "lawless", "lawless", "lawful", "lawful", "lawful", "lawful")
}

func (p *policies) quota(q scheduler.AskQuota) {
	how := p.how()
	e := scheduler.Entitlements{Query: q.Query, Values: make([]resource.Vector, len(q.Snapshot.Rows))}
	switch how {
	case "fails":
		e.Values, e.Err = nil, "it has its moods"
	case "short":
		e.Values = e.Values[:p.r.IntN(len(e.Values))]
	case "lawless":
		for i := range e.Values {
			for k := range e.Values[i] {
				e.Values[i][k] = pick(p.r, 0, -1, math.MaxInt64, math.MinInt64, p.r.Int64N(1000), q.Snapshot.Rows[0].Reservation[k])
			}
		}
	default:
		p.share(q.Snapshot, e.Values)
	}
	p.asked(e, how)
}

// share gives every pool its guarantee, and a part of what is left that is drawn.
func (p *policies) share(s *respool.Snapshot, given []resource.Vector) {
	for k := range s.Kinds {
		left := make([]int64, len(s.Rows))
		left[0] = s.Rows[0].Reservation[k]
		for i := 1; i < len(s.Rows); i++ {
			given[i][k] = s.Rows[i].Guarantee(resource.Kind(k))
			left[s.Rows[i].Parent] -= given[i][k]
		}
		for i := 1; i < len(s.Rows); i++ {
			r := &s.Rows[i]
			if most := min(r.Ceiling[k]-given[i][k], left[r.Parent]); most > 0 && p.r.IntN(3) > 0 {
				more := p.r.Int64N(most + 1)
				given[i][k] += more
				left[r.Parent] -= more
			}
			left[i] += given[i][k]
		}
	}
}

func (p *policies) ranks(q scheduler.AskRanks) {
	how := p.how()
	e := scheduler.VictimsRanked{Query: q.Query}
	for _, list := range q.Lists {
		ranks := make([]int32, len(list))
		for n := range ranks {
			ranks[n] = pick(p.r, preemption.Unranked, 0, math.MaxInt32, p.r.Int32N(10))
		}
		switch how {
		case "short":
			ranks = ranks[:p.r.IntN(len(ranks))]
		case "lawless":
			ranks[p.r.IntN(len(ranks))] = pick[int32](p.r, -2, math.MinInt32)
		}
		e.Ranks = append(e.Ranks, ranks)
	}
	if how == "fails" {
		e.Ranks, e.Err = nil, "it has its moods"
	}
	p.asked(e, how)
}

// checkRules holds entitlements against what no policy may change.
func (c *cell) checkRules(p *scheduler.PoolView, k resource.Kind) {
	guarantee, most := min(p.Reservation[k], p.Demand[k]), p.Pool.Limit.Of(k)
	if p.Pool.Kind == respool.Static || p.Pool.Share == 0 {
		most = p.Reservation[k]
	}
	if p.Entitlement[k] < guarantee || p.Entitlement[k] > most {
		c.w.fail(CheckEntitlement, "pool %s is entitled to %d of kind %d by %s: its reservation is %d, its demand %d, and the most is %d", p.Path, p.Entitlement[k], k,
			p.EntitledBy, p.Reservation[k], p.Demand[k], most)
	}
}
