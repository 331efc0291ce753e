package admission

import (
	"math"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
)

const (
	// usageAhead is how long everything that an owner holds counts as if it had run already. So owners take turns within one walk, too:
	// who has just been given something has used more.
	usageAhead = time.Minute
	// rebaseAfter is the number of half-lives after which sums are scaled down, before they leave float64.
	rebaseAfter = 512
	// leastUsage is what an owner who holds nothing must have used to be remembered, in share-seconds.
	leastUsage = 1e-6
)

// Usage is what the owners of a pool's work used of it, each moment counting half of what it did a half-life later.
//
// It measures in share-seconds: the largest share, over the kinds, that an owner's tasks held of the cell's capacity. All sums decay by
// the same factor, so they are kept as of one origin and never need to be brought down one by one: who uses nothing keeps his place.
//
// The zero value is not ready: use NewUsage. It has one owner and is not safe for concurrent use.
type Usage struct {
	halfLife float64 // nanoseconds
	origin   int64   // sums count what is used at origin in full
	capacity resource.Vector
	accounts map[string]*account
	pruneAt  int // number of accounts
}

type account struct {
	held resource.Vector
	sum  float64 // until at, as of the origin
	at   int64
}

// NewUsage returns an empty ledger.
func NewUsage(halfLife time.Duration, now int64) *Usage {
	return &Usage{halfLife: float64(halfLife), origin: now, accounts: map[string]*account{}}
}

// SetCapacity sets what shares are shares of. What was used before is not measured anew.
func (u *Usage) SetCapacity(now int64, capacity resource.Vector) {
	if capacity == u.capacity {
		return
	}
	u.rebase(now)
	for _, a := range u.accounts {
		u.settle(a, now)
	}
	u.capacity = capacity
}

// Charge notes that an owner holds v from now on. It costs O(1), amortised.
func (u *Usage) Charge(now int64, owner string, v resource.Vector) {
	u.rebase(now)
	a := u.accounts[owner]
	if a == nil {
		u.prune(now)
		a = &account{at: now}
		u.accounts[owner] = a
	}
	u.settle(a, now)
	a.held = a.held.Add(v)
}

// Refund takes back what Charge added.
func (u *Usage) Refund(now int64, owner string, v resource.Vector) {
	u.rebase(now)
	a := u.accounts[owner]
	if a == nil {
		panic("admission: an owner gives back what he was never charged: " + owner)
	}
	u.settle(a, now)
	if a.held = a.held.Sub(v); a.held.HasNegative() {
		panic("admission: an owner gives back more than he was charged: " + owner)
	}
}

// Past adds that an owner held v from one time to another, both before now: for who rebuilds a ledger.
func (u *Usage) Past(owner string, v resource.Vector, from, to int64) {
	if from >= to {
		return
	}
	a := u.accounts[owner]
	if a == nil {
		a = &account{at: u.origin}
		u.accounts[owner] = a
	}
	a.sum += u.share(&v) * u.integral(from, to)
}

// Len returns how many owners are remembered.
func (u *Usage) Len() int { return len(u.accounts) }

// Of returns what an owner has used, decayed until now, in share-seconds.
func (u *Usage) Of(now int64, owner string) float64 {
	a := u.accounts[owner]
	if a == nil {
		return 0
	}
	since := u.share(&a.held) * u.seconds() * (1 - math.Exp2(float64(min(a.at-now, 0))/u.halfLife))
	return a.sum/u.scale(now) + since // a scale beyond float64 is infinite, and what was used before it nothing
}

// with is what decides between owners: Of, and for usageAhead what he holds, with more of it.
func (u *Usage) with(now int64, owner string, more resource.Vector) float64 {
	if u == nil {
		return 0
	}
	if a := u.accounts[owner]; a != nil {
		more = more.Add(a.held)
	}
	return u.Of(now, owner) + u.ahead(&more)
}

// ahead is what holding v counts for before any time has passed.
func (u *Usage) ahead(v *resource.Vector) float64 {
	if u == nil {
		return 0
	}
	return u.share(v) * usageAhead.Seconds()
}

// share is the largest part of the capacity over the kinds.
func (u *Usage) share(v *resource.Vector) float64 {
	most := 0.0
	for k, q := range v {
		if q > 0 && u.capacity[k] > 0 {
			most = max(most, float64(q)/float64(u.capacity[k]))
		}
	}
	return most
}

// scale is how much more use at a time counts than at the origin.
func (u *Usage) scale(at int64) float64 { return math.Exp2(float64(at-u.origin) / u.halfLife) }

// integral is the time from one moment to another, each weighed by its scale, in seconds.
func (u *Usage) integral(from, to int64) float64 {
	if from >= to {
		return 0
	}
	return (u.scale(to) - u.scale(from)) * u.seconds()
}

// seconds is the integral from the beginning of time to the origin.
func (u *Usage) seconds() float64 { return u.halfLife / math.Ln2 / float64(time.Second) }

func (u *Usage) settle(a *account, now int64) {
	a.sum += u.share(&a.held) * u.integral(a.at, now)
	a.at = max(a.at, now)
}

// rebase moves the origin to now, which changes no order. All accounts are scaled at once, which is seldom.
func (u *Usage) rebase(now int64) {
	if float64(now-u.origin) < rebaseAfter*u.halfLife {
		return
	}
	for owner, a := range u.accounts {
		a.sum, a.at = u.Of(now, owner), now
	}
	u.origin = now
}

// prune forgets who holds nothing and has used next to nothing, whenever the accounts have doubled.
func (u *Usage) prune(now int64) {
	const fewest = 1024
	if len(u.accounts) < max(u.pruneAt, fewest) {
		return
	}
	for owner, a := range u.accounts {
		if a.held.IsZero() && u.Of(now, owner) < leastUsage {
			delete(u.accounts, owner)
		}
	}
	u.pruneAt = 2 * len(u.accounts)
}
