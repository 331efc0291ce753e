package builtin

import (
	"cmp"
	"errors"
	"math/bits"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

type leastWork struct{}

// LeastWorkLost ends those first whose end loses the least work: of a gang all that its runs have done, since they go together, else what one run has done on average.
func LeastWorkLost() *policy.Program {
	return program(policy.Info{Name: "least-work-lost"}, &leastWork{})
}

// Compare implements policy.Ranker.
func (*leastWork) Compare(a, b *policy.Candidate) int {
	lostA, runsA := loss(a)
	lostB, runsB := loss(b)
	return compareParts(lostA, runsA, lostB, runsB)
}

// loss is the work that ending one run of a candidate loses, as a fraction: milliseconds by runs.
func loss(c *policy.Candidate) (work, runs int64) {
	if c.Flags&policyabi.CandidateGang != 0 {
		return max(c.Work, 0), 1
	}
	return max(c.Work, 0), max(int64(c.Runs), 1)
}

// compareParts compares the fractions a/b and c/d; no term is negative, b and d are positive.
func compareParts(a, b, c, d int64) int { return compareProducts(a, d, c, b) }

// gangCost ends those first that lose the least for the room that they give back.
type gangCost struct {
	// CPU, Memory and GPU are what a thousandth of a core, a MiB and a thousandth of a GPU are worth.
	CPU    int64 `policy:"cpu"`
	Memory int64 `policy:"memory"`
	GPU    int64 `policy:"gpu"`
	// Member is what a gang costs on top for each of its members, in milliseconds of work: starting all of them anew is more than starting one.
	Member int64 `policy:"member"`
}

// GangCost ends those first that lose the least work for the room that they give back, where ending a gang costs a start of each member.
func GangCost() *policy.Program {
	return program(policy.Info{Name: "gang-cost"}, &gangCost{CPU: 4, Memory: 1, GPU: 64, Member: 60_000})
}

// Start implements policy.Starter.
func (p *gangCost) Start() error {
	const most = 1 << 16
	for _, worth := range []int64{p.CPU, p.Memory, p.GPU} {
		if worth < 0 || worth > most {
			return errors.New("cpu, memory and gpu are from 0 to 65536")
		}
	}
	if p.Member < 0 || p.Member > 1<<32 {
		return errors.New("member is from 0 to 4294967296 milliseconds")
	}
	if p.CPU+p.Memory+p.GPU == 0 {
		return errors.New("one of cpu, memory and gpu must be worth something")
	}
	return nil
}

// Compare implements policy.Ranker. What all runs lose by what all runs give back is the same for one of them.
func (p *gangCost) Compare(a, b *policy.Candidate) int {
	return cmp.Or(
		compareParts(p.cost(a), p.room(a), p.cost(b), p.room(b)),
		cmp.Compare(b.Runs, a.Runs),
	)
}

// maxWork keeps sums within int64.
const maxWork = 1 << 61

func (p *gangCost) cost(c *policy.Candidate) int64 {
	work := min(max(c.Work, 0), maxWork)
	if c.Flags&policyabi.CandidateGang != 0 {
		if hi, lo := bits.Mul64(uint64(max(c.Members, 0)), uint64(p.Member)); hi == 0 && lo < maxWork {
			work += int64(lo)
		}
	}
	return work
}

func (p *gangCost) room(c *policy.Candidate) int64 {
	use := func(k policy.Kind) int64 { return max(int64(c.Use[k]), 0) }
	return max(p.CPU*use(policy.CPU)+p.Memory*use(policy.Memory)+p.GPU*use(policy.GPU), 1)
}
