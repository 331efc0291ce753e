package preemption

import (
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
)

// MaxContenders bounds those that an Adviser is asked to rank at once. Who is beyond it, in the built-in order, stands behind them in that order.
const MaxContenders = 1024

// Unranked is the rank of a contender that an Adviser says nothing about: it goes after all that it ranks, in the built-in order.
const Unranked = int32(-1)

// Adviser is a Ranker that may be slow and may be wrong: it is asked off the loop, ahead of a search, and nothing of an answer counts that CheckRanks
// refuses. Whatever it says, only those who may be victims are, within their bounds.
type Adviser interface {
	// Rank returns a rank for each contender, at most MaxContenders, as Ranker does, or Unranked.
	Rank(contenders []Contender) ([]int32, error)
}

// Contender is what an Adviser sees of a job with live runs that may have to go, or of one gang of it.
type Contender struct {
	Candidate
	Revocable bool
	Gang      int32           // its members; 0: these are the job's instances in no gang
	Runs      int32           // live
	Use       resource.Vector // by them together
	Work      int64           // nanoseconds that they have run, together
}

// BuiltIn returns the ranks of contenders in the built-in order, where those that it cannot tell apart have the same.
func BuiltIn(contenders []Contender) []int32 {
	candidates := make([]Candidate, len(contenders))
	for i := range contenders {
		candidates[i] = contenders[i].Candidate
	}
	return ByOverage{}.Rank(candidates)
}

// CheckRanks reports what is wrong with an Adviser's answer about so many contenders.
func CheckRanks(contenders int, ranks []int32) error {
	if len(ranks) != contenders {
		return fmt.Errorf("it gave %d ranks for %d candidates: give each one", len(ranks), contenders)
	}
	for i, rank := range ranks {
		if rank < Unranked {
			return fmt.Errorf("it gave candidate %d the rank %d: ranks are from 0 on, or %d for none", i, rank, Unranked)
		}
	}
	return nil
}

// Advised joins an Adviser's ranks to those of the built-in order, of the same candidates: the ranked come first, by rank, the others behind them in the
// built-in order.
func Advised(ranks, builtIn []int32) []int32 {
	out := make([]int32, len(builtIn))
	known := slices.DeleteFunc(slices.Clone(ranks), func(rank int32) bool { return rank < 0 })
	slices.Sort(known)
	known = slices.Compact(known)
	for i, rank := range ranks {
		if at, found := slices.BinarySearch(known, rank); found {
			out[i] = int32(at) //nolint:gosec // at most one a candidate
		} else {
			out[i] = int32(min(int64(builtIn[i])+int64(len(known)), 1<<31-1)) //nolint:gosec // within int32
		}
	}
	return out
}
