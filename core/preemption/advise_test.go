package preemption_test

import (
	"math"
	"slices"
	"testing"

	"github.com/paceline-sched/paceline/core/preemption"
)

func TestAdvised(t *testing.T) {
	for _, test := range []struct {
		name           string
		ranks, builtIn []int32
		want           []int32
	}{
		{"nobody", nil, nil, []int32{}},
		{"ranks are brought close together", []int32{900, math.MaxInt32, 0, 900}, []int32{0, 1, 2, 3}, []int32{1, 2, 0, 1}},
		{"the unranked stand behind, in the built-in order", []int32{-1, 7, -1}, []int32{1, 2, 0}, []int32{2, 0, 1}},
		{"nobody is ranked", []int32{-1, -1}, []int32{5, 3}, []int32{5, 3}},
		{"a built-in rank at the end of the range", []int32{4, -1}, []int32{0, math.MaxInt32}, []int32{0, math.MaxInt32}},
	} {
		if got := preemption.Advised(test.ranks, test.builtIn); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestBuiltIn(t *testing.T) {
	contender := func(priority int32) preemption.Contender {
		return preemption.Contender{Candidate: preemption.Candidate{Priority: priority}, Work: int64(priority)}
	}
	got := preemption.BuiltIn([]preemption.Contender{contender(5), contender(0), contender(5)})
	if want := []int32{1, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestCheckRanks(t *testing.T) {
	for _, test := range []struct {
		n     int
		ranks []int32
		good  bool
	}{
		{2, []int32{0, math.MaxInt32}, true},
		{2, []int32{3, preemption.Unranked}, true},
		{2, []int32{0}, false},
		{1, []int32{0, 1}, false},
		{1, []int32{-2}, false},
		{0, nil, true},
	} {
		if err := preemption.CheckRanks(test.n, test.ranks); (err == nil) != test.good {
			t.Errorf("%v of %d: %v", test.ranks, test.n, err)
		}
	}
}
