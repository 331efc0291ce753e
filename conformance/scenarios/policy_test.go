package scenarios

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// policies are those in force off the loop, by kind. How one answers is named in the stories.
type policies struct {
	quota, preempt policy
}

type policy struct{ name, how string }

// policy reads "policy quota NAME HOW" or "policy preempt NAME HOW"; without a name the built-in one is in force again.
func (w *world) policy(a arguments) string {
	kind, at := scheduler.QuotaPolicy, &w.policies.quota
	if a.word(w, 0) == "preempt" {
		kind, at = scheduler.RankPolicy, &w.policies.preempt
	}
	*at = policy{}
	if len(a.words) > 1 {
		*at = policy{a.word(w, 1), a.word(w, 2)}
	}
	w.events = append(w.events, scheduler.PolicyInForce{Kind: kind, Name: at.name})
	w.settle()
	return ""
}

// tellPolicies tells a core that starts what is in force.
func (w *world) tellPolicies() {
	for kind, p := range map[scheduler.PolicyKind]policy{scheduler.QuotaPolicy: w.policies.quota, scheduler.RankPolicy: w.policies.preempt} {
		if p.name != "" {
			w.events = append(w.events, scheduler.PolicyInForce{Kind: kind, Name: p.name})
		}
	}
}

// answerQuota has the policy of entitlements answer at once, or not at all.
func (w *world) answerQuota(q scheduler.AskQuota) {
	w.asked++
	e := scheduler.Entitlements{Query: q.Query, Values: make([]resource.Vector, len(q.Snapshot.Rows))}
	switch w.policies.quota.how {
	case "silent":
		return
	case "traps":
		e = scheduler.Entitlements{Query: q.Query, Err: "paceline_quota: trap: unreachable"}
	case "greedy":
		for i := range e.Values {
			e.Values[i] = q.Snapshot.Rows[0].Reservation
		}
	case "static":
		for i := range e.Values {
			e.Values[i] = q.Snapshot.Rows[i].Reservation
		}
	case "bands":
		bands(q.Snapshot, e.Values)
	default:
		w.fatal(fmt.Sprintf("policy %q", w.policies.quota.how))
	}
	w.events = append(w.events, e)
}

// bands entitles pools of a larger share to all that they demand before those of a smaller one get anything beyond their reservations.
func bands(s *respool.Snapshot, given []resource.Vector) {
	for k := range s.Kinds {
		given[0][k] = s.Rows[0].Reservation[k]
		left := make([]int64, len(s.Rows))
		left[0] = given[0][k]
		for i := 1; i < len(s.Rows); i++ {
			given[i][k] = s.Rows[i].Guarantee(resource.Kind(k))
			left[s.Rows[i].Parent] -= given[i][k]
		}
		order := make([]int, len(s.Rows)-1)
		for i := range order {
			order[i] = i + 1
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Rows[b].Share, s.Rows[a].Share) })
		for _, i := range order { // only trees of one level are told of
			r := &s.Rows[i]
			more := max(min(r.Demand[k]-given[i][k], left[r.Parent], r.Ceiling[k]-given[i][k]), 0)
			given[i][k] += more
			left[r.Parent] -= more
		}
	}
}

// answerRanks has the policy of victims answer at once, or not at all.
func (w *world) answerRanks(q scheduler.AskRanks) {
	w.asked++
	e := scheduler.VictimsRanked{Query: q.Query}
	rank := map[string]func(c *preemption.Contender) int32{
		"least-work": func(c *preemption.Contender) int32 { return int32(min(c.Work/int64(time.Millisecond), math.MaxInt32)) },
		"largest":    func(c *preemption.Contender) int32 { return int32(math.MaxInt32 - c.Use[resource.CPU]) },
		"says-less":  func(*preemption.Contender) int32 { return preemption.Unranked },
		"negative":   func(*preemption.Contender) int32 { return -7 },
	}[w.policies.preempt.how]
	switch {
	case w.policies.preempt.how == "silent":
		return
	case w.policies.preempt.how == "traps":
		e.Err = "paceline_preempt: trap: unreachable"
	case rank == nil:
		w.fatal(fmt.Sprintf("policy %q", w.policies.preempt.how))
	default:
		for _, list := range q.Lists {
			ranks := make([]int32, len(list))
			for n := range list {
				ranks[n] = rank(&list[n])
			}
			e.Ranks = append(e.Ranks, ranks)
		}
	}
	w.events = append(w.events, e)
}

// showPolicies prints what the cell says of its policies, and how often they were asked.
func (w *world) showPolicies() string {
	var out strings.Builder
	for _, p := range w.state.Reader().Advisers() {
		fmt.Fprintf(&out, "%s %s", p.Kind, cmp.Or(p.Name, "built-in"))
		if p.By != "" {
			fmt.Fprintf(&out, ", answer of %s, %v old", p.By, time.Duration(w.now-p.AsOf).Round(10*time.Millisecond))
		}
		if p.Trouble != "" {
			fmt.Fprintf(&out, ", %s", p.Trouble)
		}
		if p.AskAt != 0 {
			fmt.Fprintf(&out, ", asked again in %v", time.Duration(p.AskAt-w.now).Round(10*time.Millisecond))
		}
		fmt.Fprintf(&out, ", %d answers, %d failures\n", p.Answers, p.Failures)
	}
	return out.String()
}

// showEntitled prints who decided what pools are entitled to.
func (w *world) showEntitled() string {
	var out strings.Builder
	for _, p := range w.state.Reader().Pools("/") {
		fmt.Fprintf(&out, "%s entitled %d demand %d by %s\n", p.Path, p.Entitlement[resource.CPU], p.Demand[resource.CPU], cmp.Or(p.EntitledBy, "max-min"))
	}
	return out.String()
}
