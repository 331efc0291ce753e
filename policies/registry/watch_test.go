package registry

import "testing"

// Of four who may have to go, an order that is turned round differs in every pair, and one that has two alike in none of theirs.
func TestPairsThatDiffer(t *testing.T) {
	for _, c := range []struct {
		decided, other []int32
		elsewhere      int64
	}{
		{[]int32{0, 1, 2, 3}, []int32{0, 1, 2, 3}, 0},
		{[]int32{0, 1, 2, 3}, []int32{10, 11, 12, 500}, 0},
		{[]int32{0, 1, 2, 3}, []int32{3, 2, 1, 0}, 6},
		{[]int32{0, 1, 2, 3}, []int32{3, 0, 1, 2}, 3},
		{[]int32{0, 1, 2, 3}, []int32{7, 7, 7, 7}, 0},
		{[]int32{0, 0, 1, 1}, []int32{1, 1, 0, 0}, 4},
	} {
		d := &difference{}
		d.order(c.decided, c.other)
		if d.compared != 6 || d.elsewhere != c.elsewhere {
			t.Errorf("%v and %v: %d of %d pairs differ, not %d", c.decided, c.other, d.elsewhere, d.compared, c.elsewhere)
		}
	}
}
