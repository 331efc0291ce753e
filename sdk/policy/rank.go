package policy

import (
	"slices"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// ranking is what ordering candidates works with.
type ranking struct {
	candidates []Candidate
	order      []int32
}

// serveRanks answers a call for preemption: candidates that compare as alike get the same rank.
func (in *Instance) serveRanks(h *policyabi.Header, n int) (int, error) {
	ranker, ok := in.policy.(Ranker)
	if !ok || n > int(h.RequestCount) || n > int(h.ResultCapacity) {
		return 0, errUnsupported
	}
	k := &in.rank
	k.candidates, k.order = k.candidates[:0], k.order[:0]
	for i := range n {
		c, err := policyabi.DecodeCandidate(in.arena, h, i)
		if err != nil {
			return 0, err
		}
		k.candidates = append(k.candidates, c)
		k.order = append(k.order, int32(i))
	}
	slices.SortStableFunc(k.order, func(a, b int32) int { return ranker.Compare(&k.candidates[a], &k.candidates[b]) })
	rank := uint32(0)
	for at, i := range k.order {
		if at > 0 && ranker.Compare(&k.candidates[k.order[at-1]], &k.candidates[i]) != 0 {
			rank++
		}
		r := policyabi.Result{Request: uint16(i), Host: rank}
		r.Encode(in.arena[int(h.Results)+int(i)*policyabi.ResultBytes:])
	}
	return n, nil
}
