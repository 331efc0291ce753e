package builtin

import (
	"errors"

	"github.com/paceline-sched/paceline/sdk/policy"
)

// leastResidue places where the least GPU will be left over in the end.
//
// Fragmentation, as in fgd, says what one more task could not use of a host; it does not see that a host with many GPUs and few cores will run out of cores some tasks later. Residue does: it is what would be
// left over if tasks of one class came until the host is full. The policy weighs the two, and takes the growth as it is: what rounding hides from fgd tells hosts apart.
// Among equals the host goes first that has the least left over.
type leastResidue struct {
	lookahead
	// Far is how much of the measure is residue, in percent; the rest is fragmentation.
	Far int64 `policy:"far"`
}

// LeastResidue places where the least GPU will be left over for the expected work, soon and in the end.
func LeastResidue() *policy.Program {
	return program(policy.Info{Name: "least-residue", Remember: true}, &leastResidue{lookahead{level: residueLevel, cost: residueCost}, 10})
}

// Start implements policy.Starter.
func (p *leastResidue) Start() error {
	if p.Far < 0 || p.Far > 100 {
		return errors.New("far is a percent, from 0 to 100")
	}
	p.far = p.Far
	return nil
}

// residueLevel makes steps of a quarter of a thousandth of a GPU: less is chance.
func residueLevel(growth int64) int64 { return growth >> 18 }

// residueCost puts no growth at the middle of the scale; a GPU weighs three points.
func residueCost(level, _, leftover int64) int64 {
	return policy.Span/2 + level*leftoverSteps + leftover
}
