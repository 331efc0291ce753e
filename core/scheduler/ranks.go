package scheduler

import (
	"cmp"
	"math"
	"slices"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxRankLists bounds the lists of one question; work of pools beyond it makes room in the built-in order.
const maxRankLists = maxSnapshots + 1

// rankList is who may have to make room and is ranked among themselves: of one pool for its own work, or, with a zero pool, of pools above their
// entitlement and all revocable work.
type rankList struct {
	pool workload.PoolID
	keys []rankKey
}

// rankKey names what is ranked: a gang by its first member, or the instances of a job in no gang.
type rankKey struct {
	job   workload.JobID
	first uint32
}

const noGang = math.MaxUint32

func rankKeyOf(e *preemption.Job) rankKey {
	if e.Gang != nil {
		return rankKey{e.ID, e.Gang.Members[0].First}
	}
	return rankKey{e.ID, noGang}
}

// ranksReady reports whether those who ask for others' room may be heard: an order that covers them is there, none is to be had, or there is nobody to
// order. Else the policy is asked, and they wait for its answer, at most rankPatience.
func (s *State) ranksReady(waiting []*plea) bool {
	r := &s.ranks
	if r.name == "" {
		return true
	}
	if r.overdue(s.now, rankPatience) {
		r.asked, r.orders = nil, nil
	}
	switch {
	case r.query != 0:
		return false
	case s.now < r.askAt || s.ordered(waiting):
		return true
	}
	return !s.askRanks(waiting)
}

// lists names the lists of those who may make room for a plea: of its own pool, and that between pools if it may claim from others.
func (in *plea) lists() []workload.PoolID {
	if in.claim.between {
		return []workload.PoolID{in.claim.pool, {}}
	}
	return []workload.PoolID{in.claim.pool}
}

// ordered reports whether there is an order of all who may make room for some pleas that is not too old.
func (s *State) ordered(waiting []*plea) bool {
	if s.ranks.orders == nil || s.now-s.ranks.asOf >= int64(rankPeriod) {
		return false
	}
	for _, in := range waiting {
		for _, list := range in.lists() {
			if _, known := s.ranks.orders[list]; !known && !in.work.wait {
				return false
			}
		}
	}
	return true
}

// askRanks asks the policy about all who may make room for some pleas. It reports false when that is nobody.
func (s *State) askRanks(waiting []*plea) bool {
	r := &s.ranks
	r.asked = nil
	var lists [][]preemption.Contender
	seen := map[workload.PoolID]bool{}
	for _, in := range waiting {
		if in.work.wait {
			continue
		}
		for _, pool := range in.lists() {
			if seen[pool] {
				continue
			}
			seen[pool] = true
			list := rankList{pool: pool}
			if len(lists) < maxRankLists {
				var contenders []preemption.Contender
				if list.keys, contenders = s.contenders(pool); len(contenders) > 0 {
					lists = append(lists, contenders)
				}
			}
			r.asked = append(r.asked, list)
		}
	}
	if len(lists) == 0 {
		return false
	}
	s.internal(AskRanks{Query: r.ask(s), Lists: lists})
	return true
}

// contenders lists who is ranked, the first of the built-in order.
func (s *State) contenders(pool workload.PoolID) ([]rankKey, []preemption.Contender) {
	if s.cfg.Victims.Nobody {
		return nil, nil
	}
	var snap *preemption.Snapshot
	var candidates []preemption.Candidate
	if pool == (workload.PoolID{}) {
		snap, _, candidates = s.listAbove()
	} else {
		snap, candidates = s.listBelow(pool, math.MaxInt32)
	}
	ranks := s.cfg.Victims.Ranker.Rank(candidates)
	order := make([]int, len(snap.Jobs))
	for n := range order {
		order[n] = n
	}
	if len(ranks) == len(order) {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ranks[a], ranks[b]) })
	}
	order = order[:min(len(order), preemption.MaxContenders)]
	keys, list := make([]rankKey, 0, len(order)), make([]preemption.Contender, 0, len(order))
	for _, n := range order {
		keys = append(keys, rankKeyOf(&snap.Jobs[n]))
		list = append(list, s.contender(&snap.Jobs[n], candidates[n]))
	}
	return keys, list
}

// contender fills in what a policy is told beyond what the built-in Ranker is.
func (s *State) contender(e *preemption.Job, c preemption.Candidate) preemption.Contender {
	out := preemption.Contender{Candidate: c, Revocable: e.Revocable}
	j := s.jobs[e.ID]
	if e.Gang != nil {
		g := j.gangOf(e.Gang.Members[0].First)
		out.Gang, out.Runs = int32(g.Size), int32(g.live-g.killing) //nolint:gosec // at most MaxGang
		out.Use, out.Work = e.Gang.Use, e.Gang.Work
		return out
	}
	for _, c := range j.loners {
		out.Runs += int32(c.liveRuns) //nolint:gosec // at most MaxInstancesInCell
		out.Use = out.Use.Add(c.class.Needs.Scale(c.liveRuns))
		out.Work += c.heldLive(s.now)
	}
	return out
}

// victimsRanked takes in what the policy of victims answered. Jobs that came since are in no order, and so behind all that are.
func (s *State) victimsRanked(e VictimsRanked) {
	r := &s.ranks
	if r.query == 0 || e.Query != r.query {
		return
	}
	asked := r.asked
	r.asked, r.orders = nil, nil
	if e.Err != "" {
		r.fail(s.now, "failed: "+e.Err)
		return
	}
	orders := map[workload.PoolID]map[rankKey]int32{}
	answers := e.Ranks
	for _, list := range asked {
		orders[list.pool] = map[rankKey]int32{}
		if len(list.keys) == 0 {
			continue // it was not asked about
		}
		var ranks []int32
		if len(answers) > 0 {
			ranks, answers = answers[0], answers[1:]
		}
		if err := preemption.CheckRanks(len(list.keys), ranks); err != nil {
			r.fail(s.now, "was not heeded: "+err.Error())
			return
		}
		for n, rank := range ranks {
			orders[list.pool][list.keys[n]] = rank
		}
	}
	r.answered()
	r.orders = orders
}

// advised brings jobs that a Ranker has ordered into the order of the policy in force, as far as it has told one.
func (s *State) advised(list workload.PoolID, jobs []preemption.Job, builtIn []int32) []int32 {
	order := s.ranks.orders[list]
	if len(order) == 0 || len(builtIn) != len(jobs) {
		return builtIn
	}
	ranks := make([]int32, len(jobs))
	for n := range jobs {
		ranks[n] = preemption.Unranked
		if rank, known := order[rankKeyOf(&jobs[n])]; known {
			ranks[n] = rank
		}
	}
	return preemption.Advised(ranks, builtIn)
}

// orderedBy ends a sentence about a victim with whose order it was.
func (s *State) orderedBy() string {
	switch r := &s.ranks; {
	case r.name == "":
		return ""
	case r.trouble != "":
		return "; the order is the built-in one: " + r.trouble
	case r.by == "":
		return ""
	}
	return "; the order is that of policy " + s.ranks.by
}
