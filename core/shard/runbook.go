package shard

import (
	"encoding/binary"
	"iter"
	"math/bits"

	"github.com/paceline-sched/paceline/core/workload"
)

// runBook finds tenants by their run. It is a hash table with linear probing that holds nothing but pointers: 8 to 22 bytes a run, where a map
// with the 28 bytes of a run's id for its key takes 80. It does not shrink, as a map does not.
type runBook struct {
	slots []*tenant // a power of two of them, at most three quarters in use; nil: free
	used  int
}

// leastSlots is how many a book begins with.
const leastSlots = 64

func (b *runBook) len() int { return b.used }

// home is where a run stands unless others were there before it.
func (b *runBook) home(id workload.RunID) int {
	const odd = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	low, high := binary.LittleEndian.Uint64(id.Job[:8]), binary.LittleEndian.Uint64(id.Job[8:])
	h := (low ^ bits.RotateLeft64(high, 32)) * odd
	h = (h ^ h>>32 ^ uint64(id.Run)<<32 ^ uint64(id.Generation)<<48 ^ uint64(id.Instance)) * odd
	return int(h>>32) & (len(b.slots) - 1) //nolint:gosec // 32 bits
}

// at returns where a run stands, or the free slot where it would.
func (b *runBook) at(id workload.RunID) int {
	n := b.home(id)
	for b.slots[n] != nil && b.slots[n].run != id {
		n = (n + 1) & (len(b.slots) - 1)
	}
	return n
}

func (b *runBook) find(id workload.RunID) *tenant {
	if b.used == 0 {
		return nil
	}
	return b.slots[b.at(id)]
}

// put enters a tenant whose run is not there yet.
func (b *runBook) put(t *tenant) {
	if 4*(b.used+1) > 3*len(b.slots) {
		old := b.slots
		b.slots = make([]*tenant, max(2*len(old), leastSlots))
		for _, o := range old {
			if o != nil {
				b.slots[b.at(o.run)] = o
			}
		}
	}
	b.slots[b.at(t.run)] = t
	b.used++
}

// remove closes the gap that a run leaves: what stands behind it and could stand in it moves up.
func (b *runBook) remove(id workload.RunID) {
	gap := -1
	if b.used > 0 {
		gap = b.at(id)
	}
	if gap < 0 || b.slots[gap] == nil {
		return
	}
	b.used--
	last := len(b.slots) - 1
	for n := (gap + 1) & last; b.slots[n] != nil; n = (n + 1) & last {
		if home := b.home(b.slots[n].run); (n-home)&last >= (n-gap)&last {
			b.slots[gap], gap = b.slots[n], n
		}
	}
	b.slots[gap] = nil
}

// all yields every tenant, in no order that means anything. The book must not change meanwhile.
func (b *runBook) all() iter.Seq[*tenant] {
	return func(yield func(*tenant) bool) {
		for _, t := range b.slots {
			if t != nil && !yield(t) {
				return
			}
		}
	}
}
