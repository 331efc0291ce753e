package builtin_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/policytest"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"pgregory.net/rapid"
)

const gang = policyabi.CandidateGang

func TestLeastWorkLost(t *testing.T) {
	p := policytest.Of(t, builtin.LeastWorkLost())
	got := p.Rank(
		policy.Candidate{Work: 900, Runs: 10},                           // 90 a run
		policy.Candidate{Work: 100, Runs: 10, Members: 10, Flags: gang}, // 100, all of them
		policy.Candidate{Work: 180, Runs: 2},                            // 90
		policy.Candidate{Work: 89, Runs: 1},
	)
	if fmt.Sprint(got) != "[1 2 1 0]" {
		t.Error(got)
	}
}

func TestGangCost(t *testing.T) {
	p := policytest.Of(t, builtin.GangCost())
	got := p.Rank(
		policy.Candidate{Work: 100_000, Runs: 1, Use: [4]int32{1000}},                                         // 100 s for a core
		policy.Candidate{Work: 100_000, Runs: 2, Use: [4]int32{2000}},                                         // for two
		policy.Candidate{Work: 100_000, Runs: 2, Members: 2, Flags: gang, Use: [4]int32{2000}},                // and two starts
		policy.Candidate{Work: 100_000, Runs: 1, Use: [4]int32{1000, 0, 0, 1000}},                             // a GPU too
		policy.Candidate{Work: math.MaxInt64, Runs: 2, Members: math.MaxInt32, Flags: gang, Use: [4]int32{1}}, // as much as there can be
	)
	if fmt.Sprint(got) != "[2 1 3 0 4]" {
		t.Error(got)
	}
	p.Set("member", 0)
	got = p.Rank(policy.Candidate{Work: 10, Runs: 1, Use: [4]int32{10}}, policy.Candidate{Work: 10, Runs: 2, Members: 2, Flags: gang, Use: [4]int32{10}})
	if fmt.Sprint(got) != "[1 0]" { // more runs give back the same at once
		t.Error(got)
	}
}

// TestRankersOrder: whatever the candidates, rankers give an order that does not depend on how they stand.
func TestRankersOrder(t *testing.T) {
	for _, program := range []*policy.Program{builtin.LeastWorkLost(), builtin.GangCost()} {
		p := policytest.Of(t, program)
		rapid.Check(t, func(rt *rapid.T) {
			var list, turned []policy.Candidate
			for range rapid.IntRange(1, 12).Draw(rt, "candidates") {
				c := policy.Candidate{
					Work: rapid.Int64Range(0, 1<<40).Draw(rt, "work"), Runs: rapid.Int32Range(0, 5).Draw(rt, "runs"), Members: rapid.Int32Range(0, 3).Draw(rt, "members"),
					Flags: uint32(rapid.SampledFrom([]int{0, gang}).Draw(rt, "gang")),
				}
				for k := range c.Use {
					c.Use[k] = rapid.Int32Range(0, 100).Draw(rt, "use")
				}
				list = append(list, c)
				turned = append([]policy.Candidate{c}, turned...)
			}
			got, back := p.Rank(list...), p.Rank(turned...)
			for i := range got {
				if got[i] != back[len(back)-1-i] {
					rt.Fatalf("%+v\n%v\n%v", list, got, back)
				}
			}
		})
	}
}
