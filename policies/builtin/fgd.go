package builtin

import (
	"sort"

	"github.com/paceline-sched/paceline/sdk/policy"
)

// fgd is fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC'23). A host's fragmentation is how many thousandths of its free GPUs a task drawn from
// the expected work could not use; a task goes where that grows least. The growth becomes a score of 0 to 100 by a logistic function.
//
// Many hosts have the same score. The paper leaves open which of them is taken; here it is the one where a device is used up furthest, and then the one with the least left over: its free
// GPUs, and its free cores as so much of a GPU as the expected work asks for with each.
type fgd struct{ lookahead }

// FGD is fragmentation gradient descent over the expected work.
func FGD() *policy.Program {
	return program(policy.Info{Name: "fgd", Remember: true}, &fgd{lookahead{level: fgdLevel, cost: fgdCost}})
}

// fgdLevel is what a growth of fragmentation lacks to a score of 100.
func fgdLevel(growth int64) int64 {
	return int64(len(fgdLevels) + 1 - sort.Search(len(fgdLevels), func(i int) bool { return growth > fgdLevels[i] }))
}

func fgdCost(level, rest, leftover int64) int64 {
	return level*policy.Point + rest*leftoverSteps + leftover
}
