package policy

import (
	"math"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// NoLimit is a limit that is none.
const NoLimit = math.MaxInt64

// Pools is the tree of pools, column by column, parents before their children, the root at row 0. A kind that the cell does not have has no columns: they are nil.
type Pools struct {
	table      *Table
	rows       int
	kinds      int
	parents    []int32
	identities []int64

	reservation, limit, share, demand, usage, entitlement, capacity [policyabi.MaxKinds][]int64
}

// serveQuota answers a call for entitlements.
func (in *Instance) serveQuota(h *policyabi.Header) (int, error) {
	quota, ok := in.policy.(Quota)
	if !ok {
		return 0, errUnsupported
	}
	if err := in.table.open(h); err != nil {
		return 0, err
	}
	t := &in.table
	p := Pools{table: t, rows: t.Rows(), parents: t.ints(policyabi.ColumnParent), identities: t.longs(policyabi.ColumnPool)}
	for k := range policyabi.ColumnID(policyabi.MaxKinds) {
		p.reservation[k], p.limit[k] = t.longs(policyabi.ColumnReservation+k), t.longs(policyabi.ColumnLimit+k)
		p.share[k], p.demand[k] = t.longs(policyabi.ColumnShare+k), t.longs(policyabi.ColumnDemand+k)
		p.usage[k], p.entitlement[k] = t.longs(policyabi.ColumnPoolUsage+k), t.longs(policyabi.ColumnEntitlement+k)
		p.capacity[k] = t.longs(policyabi.ColumnCapacity + k)
		if p.entitlement[k] != nil {
			p.kinds = int(k) + 1
		}
	}
	if err := quota.Entitle(&p); err != nil {
		return 0, err
	}
	return p.rows, nil
}

// Rows is the number of pools.
func (p *Pools) Rows() int { return p.rows }

// Kinds is a number above all kinds that the cell has.
func (p *Pools) Kinds() int { return p.kinds }

// Has reports whether there is anything to say of a kind.
func (p *Pools) Has(k Kind) bool { return p.entitlement[k] != nil }

// Parent is the row of each pool's parent, -1 for the root.
func (p *Pools) Parent() []int32 { return p.parents }

// Identity is the same number for the same pool in every call.
func (p *Pools) Identity() []int64 { return p.identities }

// Reservation is what each pool is guaranteed.
func (p *Pools) Reservation(k Kind) []int64 { return p.reservation[k] }

// Limit is the most that each pool may be entitled to, NoLimit for no limit.
func (p *Pools) Limit(k Kind) []int64 { return p.limit[k] }

// Share is the weight of each pool among its siblings.
func (p *Pools) Share(k Kind) []int64 { return p.share[k] }

// Demand is what each pool uses and waits for, together.
func (p *Pools) Demand(k Kind) []int64 { return p.demand[k] }

// Usage is what each pool uses.
func (p *Pools) Usage(k Kind) []int64 { return p.usage[k] }

// Capacity is what there is to hand out.
func (p *Pools) Capacity(k Kind) int64 {
	if len(p.capacity[k]) == 0 {
		return 0
	}
	return p.capacity[k][0]
}

// Entitlement is for the policy to write.
func (p *Pools) Entitlement(k Kind) []int64 { return p.entitlement[k] }

// Log is Table's.
func (p *Pools) Log(level int, text string) { p.table.Log(level, text) }

// Seed is the call's own randomness.
func (p *Pools) Seed() uint64 { return p.table.Seed() }
