package respool

import (
	"fmt"
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bound is a ceiling within a pool beside its entitlement. A kind that nothing bounds is Unlimited in both.
type Bound struct {
	Limit resource.Vector // what there is of it in all
	Left  resource.Vector // what is not used; negative when the limit fell below the usage
}

var unbounded = func() (b Bound) {
	for k := range b.Limit {
		b.Limit[k], b.Left[k] = Unlimited, Unlimited
	}
	return b
}()

// narrow takes the limit of one pool and what is used of it into account.
func (b *Bound) narrow(k int, limit, used int64) {
	b.Limit[k], b.Left[k] = min(b.Limit[k], limit), min(b.Left[k], limit-used)
}

// OwnerBound returns what UserLimit of the leaf and of all above it leaves to one owner; false when none of them bounds owners.
func (t *Tree) OwnerBound(id workload.PoolID, owner string) (Bound, bool) {
	b, bounded := unbounded, false
	for n := t.nodes[id]; n != nil; n = n.parent {
		if n.pool.UserLimit == (Limits{}) {
			continue
		}
		bounded = true
		used := n.owned(owner)
		for k := range used {
			if n.pool.UserLimit.set[k] {
				b.narrow(k, n.pool.UserLimit.quantity[k], used[k])
			}
		}
	}
	return b, bounded
}

// LimitsOwners reports whether the pool or one above it has a UserLimit.
func (t *Tree) LimitsOwners(id workload.PoolID) bool {
	for n := t.nodes[id]; n != nil; n = n.parent {
		if n.pool.UserLimit != (Limits{}) {
			return true
		}
	}
	return false
}

// CheckOwnerLimit reports work that no owner could ever run in the pool, because the least that must start together is over the limit of
// one owner.
func (t *Tree) CheckOwnerLimit(id workload.PoolID, unit resource.Vector) error {
	for n := t.nodes[id]; n != nil; n = n.parent {
		for k := range resource.Kind(t.names.Len()) {
			if limit := n.pool.UserLimit.Of(k); unit[k] > limit {
				return fmt.Errorf("pool %s lets one owner use %s=%d, and this needs %d at once: raise the pool's user_limit, make it smaller, or choose another pool",
					n.path(), t.names.Name(k), limit, unit[k])
			}
		}
	}
	return nil
}

// entitleControllers finds what pools would be entitled to if they asked for as much as their controllers stand for, and reports whether
// there is any of that. Jobs that direct others use their pool in order to run those others, who ask for nothing yet while their
// controllers wait. On a busy cell a pool is entitled to what it asks for, so a part of that would never let a first controller in. A part
// of what the pool could have does, and as nobody is entitled to anything by this, it takes nothing from others.
func (t *Tree) entitleControllers(order []*node) bool {
	some := false
	for _, n := range order {
		some = some || n.percent > 0 && !n.asked.Controllers.IsZero()
	}
	if !some {
		return false
	}
	t.fillTree(order, func(n *node, k resource.Kind) int64 {
		wanted := n.wanted(k)
		if n.percent > 0 {
			wanted = max(wanted, wholeOf(min(n.asked.Controllers[k], wanted), n.percent))
		}
		return wanted
	})
	for _, n := range order {
		n.foreseen = n.entitlement
	}
	return true
}

// wholeOf is the least of which part is no more than percent.
func wholeOf(part int64, percent uint8) int64 {
	if part > (Unlimited-int64(percent))/100 {
		return Unlimited
	}
	return (part*100 + int64(percent) - 1) / int64(percent)
}

// ControllerBound returns what ControllerPercent of the leaf and of all above it leaves to work that directs other work; false when none
// of them bounds it. The percentage, rounded down, is of what the last Entitle found: of the pool's entitlement, or of what it would be
// if the pool asked for as much as its controllers stand for, which is the larger.
func (t *Tree) ControllerBound(id workload.PoolID) (Bound, bool) {
	b, bounded := unbounded, false
	for n := t.nodes[id]; n != nil; n = n.parent {
		if n.pool.ControllerPercent == 0 {
			continue
		}
		bounded = true
		for k := range n.entitlement {
			b.narrow(k, percentOf(n.foreseen[k], n.pool.ControllerPercent), n.controllers[k])
		}
	}
	return b, bounded
}

// inheritPercent finds the narrowest bound on controllers that holds for n.
func (n *node) inheritPercent() {
	n.percent = n.pool.ControllerPercent
	if n.parent != nil && n.parent.percent > 0 && (n.percent == 0 || n.parent.percent < n.percent) {
		n.percent = n.parent.percent
	}
}

// OwnerUsage returns what the ordinary work of one owner uses of a pool.
func (t *Tree) OwnerUsage(id workload.PoolID, owner string) resource.Vector {
	if n := t.nodes[id]; n != nil {
		return n.owned(owner)
	}
	return resource.Vector{}
}

// OwnerUsage is what the ordinary work of one owner uses of a pool.
type OwnerUsage struct {
	Owner string
	Usage resource.Vector
}

// Owners lists those whose ordinary work uses something of the pool, by name.
func (t *Tree) Owners(id workload.PoolID) []OwnerUsage {
	n := t.nodes[id]
	if n == nil {
		return nil
	}
	list := make([]OwnerUsage, 0, len(n.owners))
	for _, owner := range slices.Sorted(maps.Keys(n.owners)) {
		list = append(list, OwnerUsage{owner, *n.owners[owner]})
	}
	return list
}
