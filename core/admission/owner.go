package admission

import (
	"math/bits"

	"github.com/paceline-sched/paceline/core/resource"
)

// Bound is a ceiling that some entries of a queue share beside the pool's entitlement. A kind that it does not bound is math.MaxInt64 in
// both.
type Bound struct {
	Limit resource.Vector // what there is of it in all
	Left  resource.Vector // what is not used; negative when a limit was lowered below the usage
}

// Account is where an entry falls short.
type Account uint8

// The accounts.
const (
	OfEntitlement Account = iota
	OfReservation         // non-preemptible work's
	OfControllers         // what jobs that direct others may use of the pool
	OfOwner               // what one owner's jobs may use of the pool
)

// owner is one owner with entries in the queue. Each has one of ownerBits bits, which some share when there are more of them, so that a
// walk can step over whole subtrees in which everybody waits for his own limit.
type owner struct {
	name    string
	bit     uint8
	entries int

	// What the present walk knows.
	walk    uint64
	bounded bool
	bound   Bound
	given   resource.Vector // in the walk givenIn, where owners take turns
	givenIn uint64
	closed  mask // kinds for which an entry of the owner waits, or of which its limit lets it have nothing; as in the account inEntitlement
}

const ownerBits = 64

// ownerSet is the owners of a queue.
type ownerSet struct {
	byName map[string]*owner
	onBit  [ownerBits]int32
	closed [resource.MaxKinds][ownerBits]int32 // of those, in the present walk
}

// enter counts an entry of an owner. A new owner gets the bit that fewest have.
func (s *ownerSet) enter(name string) *owner {
	o := s.byName[name]
	if o == nil {
		o = &owner{name: name}
		for bit, n := range s.onBit {
			if n < s.onBit[o.bit] {
				o.bit = uint8(bit)
			}
		}
		s.onBit[o.bit]++
		if s.byName == nil {
			s.byName = map[string]*owner{}
		}
		s.byName[name] = o
	}
	o.entries++
	return o
}

// exit undoes enter.
func (s *ownerSet) exit(o *owner) {
	if o.entries--; o.entries == 0 {
		s.onBit[o.bit]--
		delete(s.byName, o.name)
	}
}

// meet asks for an owner's bound, once in a walk.
func (w *walk) meet(o *owner) {
	if w.ownerBound == nil || o.walk == w.number {
		return
	}
	o.walk, o.closed = w.number, 0
	o.bound, o.bounded = w.ownerBound(o.name)
	if !o.bounded {
		return
	}
	for k, limit := range o.bound.Limit {
		if limit <= 0 {
			w.closeOwner(o, k)
		}
	}
}

func (w *walk) closeOwner(o *owner, k int) {
	if o.closed&(1<<k) != 0 {
		return
	}
	o.closed |= 1 << k
	if w.owners.closed[k][o.bit]++; w.owners.closed[k][o.bit] == w.owners.onBit[o.bit] {
		w.ownersClosed[k] |= 1 << o.bit
		w.anyClosed |= 1 << k
	}
}

// stepsOver reports whether every entry of the subtree needs something closed, to all or to its owner, or could not be filled back.
func (w *walk) stepsOver(n *node) bool {
	if w.phase == backfilling && !w.mayFill(n) {
		return true
	}
	if n.common&w.closed != 0 {
		return true
	}
	for left := n.common & w.anyClosed; left != 0; left &= left - 1 {
		if n.owners&^w.ownersClosed[bits.TrailingZeros64(uint64(left))] == 0 {
			return true
		}
	}
	return false
}

// waitsFor returns what the entry needs of what its owner waits for already.
func (w *walk) waitsFor(it *item) mask {
	if w.ownerBound == nil {
		return 0
	}
	w.meet(it.owner)
	return it.needs & it.owner.closed
}
