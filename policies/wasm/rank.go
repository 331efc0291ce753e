package wasm

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Ranker ranks those who may have to make room with the policy in a slot. It implements preemption.Adviser.
type Ranker struct{ caller caller }

var _ preemption.Adviser = (*Ranker)(nil)

// NewRanker returns a Ranker without an instance; the first question makes one.
func NewRanker(config AskConfig) *Ranker {
	return &Ranker{caller{config: config, kind: policyabi.Preempt}}
}

// Close lets go of the version that it works with.
func (r *Ranker) Close() { r.caller.close() }

// Rank implements preemption.Adviser. Of more than preemption.MaxContenders the rest has no rank. The error is ErrNoPolicy or a *Fault.
func (r *Ranker) Rank(contenders []preemption.Contender) ([]int32, error) {
	if err := r.caller.enter(); err != nil {
		return nil, err
	}
	ranks := make([]int32, len(contenders))
	for i := range ranks {
		ranks[i] = preemption.Unranked
	}
	asked := contenders[:min(len(contenders), preemption.MaxContenders)]
	if len(asked) == 0 {
		return ranks, nil
	}
	ask := question{
		shape: policyabi.Shape{Requests: preemption.MaxContenders, Results: preemption.MaxContenders}, records: len(asked), rows: 1,
		work: taskWork * int64(len(asked)), tasks: len(asked),
		fill: func(_ *policyabi.Layout, h *policyabi.Header, b []byte) {
			for i := range asked {
				c := candidateOf(&asked[i])
				c.Encode(b[int(h.Requests)+i*policyabi.CandidateBytes:])
			}
		},
		read: func(l *policyabi.Layout, arena []byte, count int) *wrong {
			return readRanks(arena[l.Header.Results:], count, ranks[:len(asked)])
		},
	}
	if err := r.caller.ask(&ask); err != nil {
		return nil, err
	}
	return ranks, nil
}

func candidateOf(c *preemption.Contender) policyabi.Candidate {
	out := policyabi.Candidate{
		Job: identity(c.Job), Pool: identity(c.Pool), Over: c.Over, Work: c.Work / int64(time.Millisecond), Priority: c.Priority,
		Runs: c.Runs, Members: c.Gang,
	}
	if c.Revocable {
		out.Flags |= policyabi.CandidateRevocable
	}
	if c.Gang > 0 {
		out.Flags |= policyabi.CandidateGang
	}
	for k := range out.Use {
		out.Use[k] = int32(min(c.Use[resource.Kind(k)], policyabi.MaxQuantity))
	}
	return out
}

// readRanks reads results into ranks, which hold preemption.Unranked.
func readRanks(raw []byte, count int, ranks []int32) *wrong {
	if count > len(ranks) {
		return &wrong{FaultResult, fmt.Sprintf("it returned %d ranks for %d candidates", count, len(ranks))}
	}
	for i := range count {
		r, err := policyabi.DecodeResult(raw[i*policyabi.ResultBytes:])
		switch {
		case err != nil:
			return &wrong{FaultResult, fmt.Sprintf("result %d: %v", i, err)}
		case int(r.Request) >= len(ranks):
			return misfit("result %d: there is no candidate %d, there are %d", i, r.Request, len(ranks))
		case ranks[r.Request] != preemption.Unranked:
			return misfit("result %d: candidate %d has a rank already", i, r.Request)
		case r.Host > 1<<31-1:
			return misfit("result %d: rank %d is over %d", i, r.Host, 1<<31-1)
		}
		ranks[r.Request] = int32(r.Host)
	}
	return nil
}
