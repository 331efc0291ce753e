package scheduler

import (
	"fmt"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// PolicyKind names the policies that the cell asks off the loop: it emits a question with a snapshot and goes on; the answer is an event, which is
// checked as if an enemy had sent it. The built-in policy decides until a good answer is there, and whenever none is.
type PolicyKind uint8

// The kinds.
const (
	QuotaPolicy PolicyKind = iota + 1 // what pools are entitled to; built in: max-min
	RankPolicy                        // whose work makes room first; built in: by overage
)

func (k PolicyKind) String() string {
	switch k {
	case QuotaPolicy:
		return "quota"
	case RankPolicy:
		return "preempt"
	}
	return "unknown"
}

// The questions, which are internal effects, and their answers. There is at most one question of a kind without its answer. Query
// numbers it; an answer to another than the last is passed over.
type (
	// AskQuota asks what pools are entitled to.
	AskQuota struct {
		Query    uint64
		Snapshot *respool.Snapshot
	}
	// AskRanks asks in which order work makes room: for each list by itself, at most preemption.MaxContenders long.
	AskRanks struct {
		Query uint64
		Lists [][]preemption.Contender
	}
	// PolicyInForce says that a policy of a kind is in force from now on, by its name and version; "": the built-in one.
	PolicyInForce struct {
		Kind PolicyKind
		Name string
	}
	// Entitlements answers AskQuota: one for each row of the snapshot, or why there are none.
	Entitlements struct {
		Query  uint64
		Values []resource.Vector
		Err    string
	}
	// VictimsRanked answers AskRanks: for each list the ranks of its contenders, or why there are none.
	VictimsRanked struct {
		Query uint64
		Ranks [][]int32
		Err   string
	}
)

func (AskQuota) effect()     {}
func (AskRanks) effect()     {}
func (PolicyInForce) event() {}
func (Entitlements) event()  {}
func (VictimsRanked) event() {}

const (
	// quotaPatience and rankPatience bound the wait for an answer. Entitlements of the last answer serve meanwhile; work that asks for others' room waits.
	quotaPatience = 5 * time.Second
	rankPatience  = 250 * time.Millisecond
	// rankPeriod is how long an order of victims serves those who ask for room after it was asked for.
	rankPeriod = 500 * time.Millisecond
	// After a failure a policy is asked again after a delay that doubles between these.
	shortestPolicyDelay = time.Second
	longestPolicyDelay  = 30 * time.Second

	maxTrouble = 300 // bytes that are kept of why a policy failed: a part of it is the policy's own words
)

// adviser is what the cell knows of a policy that it asks off the loop. None of it is stored: a core that starts has none until it is told.
type adviser struct {
	kind     PolicyKind
	name     string // of the one in force; "": the built-in
	query    uint64 // without its answer; 0: none
	askedAt  int64
	askAt    int64         // it is not asked before
	delay    time.Duration // the last one after a failure
	trouble  string        // why the built-in decides though a policy is in force; "": it does not
	by       string        // whose the answer in use is; "": there is none
	asOf     int64         // when that was asked for
	answers  uint64
	failures uint64
}

// ask numbers a question.
func (a *adviser) ask(s *State) uint64 {
	s.queries++
	a.query, a.askedAt = s.queries, s.now
	return a.query
}

// overdue reports whether a question has waited too long, which is a failure.
func (a *adviser) overdue(now int64, patience time.Duration) bool {
	if a.query == 0 || now-a.askedAt < int64(patience) {
		return false
	}
	a.fail(now, fmt.Sprintf("has given no answer for %v", patience))
	return true
}

func (a *adviser) fail(now int64, why string) {
	if why = strings.ToValidUTF8(why, "?"); len(why) > maxTrouble {
		why = strings.ToValidUTF8(why[:maxTrouble], "") + "..."
	}
	a.failures++
	a.delay = min(max(2*a.delay, shortestPolicyDelay), longestPolicyDelay)
	a.query, a.askAt, a.trouble, a.by, a.asOf = 0, now+int64(a.delay), fmt.Sprintf("policy %s %s", a.name, why), "", 0
}

// answered takes a good answer in.
func (a *adviser) answered() {
	a.answers++
	a.query, a.delay, a.trouble, a.by, a.asOf = 0, 0, "", a.name, a.askedAt
}

// enforce puts another policy in force. What the last one said may be of use until the new one has answered.
func (a *adviser) enforce(name string, now int64) {
	*a = adviser{kind: a.kind, name: name, askAt: now, by: a.by, asOf: a.asOf}
	if name == "" {
		a.by, a.asOf = "", 0
	}
}

// quotaAdvice is the policy of entitlements.
type quotaAdvice struct {
	adviser
	snapshot *respool.Snapshot // of the question
	changed  bool              // demands, tree or capacity differ from what was asked about last
	arrived  bool              // another answer, or none, is to be followed from now on
}

// rankAdvice is the policy of victims.
type rankAdvice struct {
	adviser
	asked  []rankList
	orders map[workload.PoolID]map[rankKey]int32 // by who lists them, see rankList; nil: there is no answer
}

// inForce changes the policy of a kind.
func (s *State) inForce(e PolicyInForce) {
	switch e.Kind {
	case QuotaPolicy:
		s.quota.enforce(e.Name, s.now)
		s.quota.snapshot, s.quota.changed = nil, e.Name != ""
		if e.Name == "" {
			s.unfollow()
		}
	case RankPolicy:
		s.ranks.enforce(e.Name, s.now)
		s.ranks.asked, s.ranks.orders, s.ranks.by = nil, nil, ""
	}
}

// unfollow goes back to max-min.
func (s *State) unfollow() {
	s.pools.Follow(nil)
	s.quota.arrived = true
}

// entitlements takes in what the policy of entitlements answered. It is about the tree as it was when it was asked; respool.Tree.Follow says how it is
// merged with the tree of the day.
func (s *State) entitlements(e Entitlements) {
	q := &s.quota
	if q.query == 0 || e.Query != q.query {
		return
	}
	snapshot := q.snapshot
	q.snapshot = nil
	if e.Err != "" {
		s.quotaFailed("failed: " + e.Err)
		return
	}
	proposal, err := snapshot.Propose(e.Values)
	if err != nil {
		s.quotaFailed("was not heeded: " + err.Error())
		return
	}
	q.answered()
	q.arrived = true
	s.pools.Follow(proposal)
}

func (s *State) quotaFailed(why string) {
	s.quota.fail(s.now, why)
	s.quota.changed = true
	s.unfollow()
}

// checkQuota gives up on an answer that does not come.
func (s *State) checkQuota() {
	if q := &s.quota; q.overdue(s.now, quotaPatience) {
		q.snapshot, q.changed = nil, true
		s.unfollow()
	}
}

// askQuota asks the policy of entitlements when something that it goes by has changed, at most once in a period.
func (s *State) askQuota() {
	q := &s.quota
	if q.name == "" || q.query != 0 || !q.changed || s.now < q.askAt {
		return
	}
	q.snapshot, q.changed = s.pools.Snapshot(), false
	q.askAt = s.now + int64(s.cfg.EntitlementPeriod)
	s.internal(AskQuota{Query: q.ask(s), Snapshot: q.snapshot})
}

// adviceDue is when something about a policy happens by itself; 0: nothing does.
func (s *State) adviceDue() (wake int64) {
	q, r := &s.quota, &s.ranks
	switch {
	case q.arrived:
		return s.now
	case q.query != 0:
		wake = q.askedAt + int64(quotaPatience)
	case q.name != "" && q.changed:
		wake = q.askAt
	}
	if r.query != 0 {
		wake = earlier(wake, r.askedAt+int64(rankPatience))
	}
	return wake
}

// entitledBy says who decided what a pool is entitled to; "": max-min, as no policy is in force.
func (s *State) entitledBy(id workload.PoolID) string {
	q := &s.quota
	switch {
	case id != respool.RootID && s.pools.Follows(id):
		return "policy " + q.by
	case q.name == "" || id == respool.RootID:
		return ""
	case q.trouble != "":
		return "max-min: " + q.trouble
	}
	return fmt.Sprintf("max-min: policy %s has not been asked about this pool yet", q.name)
}

// entitlementOf names a pool's entitlement in a sentence.
func (s *State) entitlementOf(id workload.PoolID) string {
	if by := s.entitledBy(id); by != "" {
		return "entitlement (by " + by + ")"
	}
	return "entitlement"
}

// AdviserView is a policy that the cell asks off the loop.
type AdviserView struct {
	Kind PolicyKind
	Name string // "": the built-in one is in force
	// By is whose answer is in use, asked for at AsOf (UTC nanoseconds); "": none is, and the built-in policy decides.
	By   string
	AsOf int64
	// Trouble is why there is none though a policy is in force; it is not asked again before AskAt. 0: when there is a question.
	Trouble           string
	AskAt             int64
	Answers, Failures uint64 // since it is in force
}

// Advisers shows the policies that are asked off the loop, one of each kind.
func (r Reader) Advisers() []AdviserView {
	var list []AdviserView
	for _, a := range [...]*adviser{&r.s.quota.adviser, &r.s.ranks.adviser} {
		v := AdviserView{Kind: a.kind, Name: a.name, By: a.by, AsOf: a.asOf, Trouble: a.trouble, Answers: a.answers, Failures: a.failures}
		if a.trouble != "" && a.askAt > r.s.now {
			v.AskAt = a.askAt
		}
		list = append(list, v)
	}
	return list
}
