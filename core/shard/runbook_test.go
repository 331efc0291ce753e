package shard

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/workload"
)

// TestRunBookIsAMap compares the book with a map over histories that fill and empty it, with runs that want the same slots.
func TestRunBookIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		jobs := rapid.SliceOfN(rapid.Uint64(), 1, 4).Draw(t, "jobs")
		var book runBook
		want := map[workload.RunID]*tenant{}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 299), 1, 600).Draw(t, "steps") {
			id := workload.RunID{Instance: uint32(n / 3), Generation: 1, Run: uint32(n % 3)}
			binary.LittleEndian.PutUint64(id.Job[8:], jobs[n%len(jobs)])
			if want[id] == nil {
				want[id] = &tenant{run: id}
				book.put(want[id])
			} else {
				delete(want, id)
				book.remove(id)
				book.remove(id) // again: nothing is there
			}
			if book.len() != len(want) || book.find(id) != want[id] {
				t.Fatalf("the book has %d runs and %v of %v, want %d and %v", book.len(), book.find(id), id, len(want), want[id])
			}
		}
		seen := 0
		for tenant := range book.all() {
			seen++
			if want[tenant.run] != tenant || book.find(tenant.run) != tenant {
				t.Fatalf("run %v is not where it should be", tenant.run)
			}
		}
		if seen != len(want) {
			t.Fatalf("%d runs are listed, want %d", seen, len(want))
		}
	})
}
