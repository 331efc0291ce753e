package scheduler

import (
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of preemption.
const (
	// holdOffPeriods is for how many entitlement periods work must have been refused before others have to make room: entitlements that are still
	// moving would else end work that they let start again a moment later.
	holdOffPeriods = 2
	// maxPledged bounds the tasks whose room is pledged or asked for.
	maxPledged = 1 << 14
	// maxAsked bounds the loners of one class for which room is asked at once; the rest is refused and comes again.
	maxAsked = 256
	// maxPleas bounds the questions in one message.
	maxPleas = 256
	// maxTasks and maxClasses bound their tasks and classes, so that a shard answers soon: each task has its victims, and for each class every
	// host is looked at. A gang of more is asked for alone.
	maxTasks   = 1024
	maxClasses = 32
	// After an answer in vain a class asks again after a delay that doubles between these.
	shortestAsk = time.Second
	longestAsk  = 30 * time.Second
	// pledgePatience is how long a pledge waits for its victims beyond the longest grace of any of them; a host out of contact ends nobody.
	pledgePatience = 2 * time.Minute

	millionths = 1_000_000 // of a run, in which the rate is counted
	// longestRefill bounds the time that is counted at once, so that the product with the highest rate stays within an int64.
	longestRefill = time.Hour
)

// pressure is what the cell knows of preemption in progress. None of it is stored: a restart finds the victims KILLING and the work PENDING.
type pressure struct {
	waiting []*plea // for a shard to ask
	asked   map[uint64]*question
	works   map[uint64]*pledgedWork
	pledges map[pledgeKey]*pledge
	tasks   int    // in all of these
	lapses  lapses // of the answer that is being judged

	tokens   int64 // what may be preempted at once, in millionths of a run
	tokensAt int64

	step    uint64 // for which the snapshots hold
	between *betweenPools
	claims  map[claim]*preemption.Snapshot
	ending  *preemption.Snapshot
	again   bool // pleas wait for the next Step's snapshots
	known   bool // any holds, for this Step too
	any     bool // between would have somebody

	kept      int             // works for which room is kept
	keptRoom  resource.Vector // what they need
	spreading *plea           // the one that collects room over several shards
}

// plea is work for which others may have to make room. It stays ADMITTED meanwhile, or PENDING if it is asked for ahead of its admission.
type plea struct {
	work  *placeWork
	claim claim
	tried []*shardState
	since int64 // ahead of admission: since when the job was short
	// spread is set of a plea for room that is kept in several shards.
	spread *spread
}

// overtaken reports whether a head got something since it began to ask: what is left of it has not been short for as long, and waits anew.
func (in *plea) overtaken() bool {
	return in.work.ahead && !in.work.wait && in.since != in.work.job.shortAt
}

// question is one Preempt message without its answer.
type question struct {
	shard   *shardState
	list    []*plea
	tasks   int
	classes map[placement.ClassID]bool
	plan    *planWork // it is asked for a plan alone: nobody has to go
}

// takes reports whether a plea still goes into a question.
func (q *question) takes(in *plea) bool {
	more := 0
	for n := range in.work.parts {
		if !q.classes[in.work.parts[n].class.class.ID] {
			more++
		}
	}
	return len(q.list) < maxPleas && q.tasks+in.work.tasks() <= maxTasks && len(q.classes)+more <= maxClasses
}

func (q *question) add(in *plea) {
	q.list = append(q.list, in)
	q.tasks += in.work.tasks()
	for n := range in.work.parts {
		q.classes[in.work.parts[n].class.class.ID] = true
	}
}

func (s *State) holdOff() int64 { return holdOffPeriods * int64(s.cfg.EntitlementPeriod) }

// effective is what a pool's ordinary work uses less what is on its way out by preemption. It is what a pool is judged by as a victim; admission
// waits until the dying have ended, so that no ledger passes a bound.
func (q *poolQueue) effective(usage resource.Vector) resource.Vector {
	return usage.Sub(q.dying)
}

// starve notes that every shard refused work of a class. Of work that comes out of a back-off, what was refused before that does not count: others
// have had its time.
func (s *State) starve(p *placePart, j *job) {
	c := p.class
	if c.starvedAt == 0 {
		c.starvedAt = s.now
	}
	waits := s.now
	for _, i := range p.instances {
		if waits = min(waits, j.tasks[i].notBefore); waits <= c.starvedAt {
			return
		}
	}
	c.starvedAt = waits
}

// fed notes that the class got hosts.
func (c *jobClass) fed() { c.delay, c.starvedAt, c.askDelay, c.askAt = 0, 0, 0, 0 }

// mayAsk reports whether it is time for a refused class to ask for others' room.
func (s *State) mayAsk(c *jobClass) bool {
	return c.starvedAt != 0 && s.now-c.starvedAt >= s.holdOff() && s.now >= c.askAt && !c.asking && !c.neverFits && !c.job.spec.Revocable
}

// askLater has a class wait after it asked in vain.
func (s *State) askLater(c *jobClass) {
	c.askDelay = min(max(2*c.askDelay, shortestAsk), longestAsk)
	c.askAt = s.now + int64(c.askDelay)
}

// ask takes work that every shard refused to those who may have to make room for it. It reports false when the work is to be refused.
func (s *State) ask(w *placeWork) bool {
	due := len(w.parts) > 0
	for n := range w.parts {
		p := &w.parts[n]
		s.starve(p, w.job)
		due = due && s.mayAsk(p.class) && !p.refusal.NeverFits
	}
	if !due {
		return false
	}
	if !s.mayPreempt() { // that is nobody's fault, and passes
		for n := range w.parts {
			w.parts[n].class.askAt = s.now + int64(shortestAsk)
		}
		return false
	}
	in := &plea{work: w, claim: s.claimTo(w)}
	if w.joinsDomain() || s.press.tasks+w.tasks() > maxPledged || !s.plead(in) {
		for n := range w.parts {
			s.askLater(w.parts[n].class)
		}
		return false
	}
	return true
}

// claimTo is what admitted work may claim: room of lower priorities of its pool, and of other pools while its own is within its entitlement.
func (s *State) claimTo(w *placeWork) claim {
	return claim{pool: w.job.spec.Pool, priority: w.job.spec.Priority, between: s.withinEntitlement(w)}
}

// claimOf is what a plea may claim now.
func (s *State) claimOf(in *plea) claim {
	if in.work.ahead {
		return in.claim
	}
	return s.claimTo(in.work)
}

// joinsDomain leaves out members that have to join a gang in its domain: nobody has to go for who is not needed.
func (w *placeWork) joinsDomain() bool {
	return !w.together && w.parts[0].class.joinsDomain(nil)
}

// joinsDomain reports whether members of the class that are not of a start have to join their gang in its domain.
func (c *jobClass) joinsDomain(start *gang) bool {
	return start == nil && c.gang != nil && c.job.spec.Gang.Topology.Required
}

// oneDomain is the topology attribute within one value of which a gang's start has to stay on a shard; "": it may go anywhere there.
func (w *placeWork) oneDomain() string {
	if t := w.topology(); w.together && t.Required && t.Key != workload.TopologyCluster {
		return t.Key
	}
	return ""
}

// withinEntitlement reports whether the pool with this work, which is charged already, keeps within its entitlement in all that the work asks
// for. It was admitted so, but entitlements move.
func (s *State) withinEntitlement(w *placeWork) bool {
	q := s.queueOf(w.job.spec)
	a, _ := s.pools.Account(w.job.spec.Pool)
	used := q.effective(a.Usage)
	for n := range w.parts {
		for k, need := range w.parts[n].class.class.Needs {
			if need > 0 && used[k] > a.Entitlement[k] {
				return false
			}
		}
	}
	return true
}

// plead lines a plea up for a shard that it has not tried. It reports false when there is none, or nobody who could make room.
func (s *State) plead(in *plea) bool {
	sh := s.whomToAsk(in)
	if sh == nil || !in.work.wait && !s.anyVictims(in.work.job, in.claim.between) {
		return false
	}
	if !in.work.together { // the rest of a large piece comes again
		if p := &in.work.parts[0]; len(p.instances) > maxAsked {
			s.unadmit(in.work.job, p.instances[maxAsked:])
			p.instances = p.instances[:maxAsked]
		}
	}
	for n := range in.work.parts {
		in.work.parts[n].class.asking = in.work.parts[n].class.asking || !in.work.wait
	}
	s.press.tasks += in.work.tasks()
	s.press.waiting = append(s.press.waiting, in)
	if in.spread != nil {
		s.press.spreading = in
	}
	return true
}

// whomToAsk picks a ready shard that has not been asked yet. Every shard has refused what is admitted; for what is not, the one with the most
// room comes first, where the fewest have to go.
func (s *State) whomToAsk(in *plea) (best *shardState) {
	most := int64(-1)
	for _, sh := range s.shards {
		if !sh.ready || slices.Contains(in.tried, sh) || !mayUse(in.work.parts[0].class, sh) || (in.work.host != nil && in.work.host.shard != sh) ||
			!in.spread.reaches(sh) {
			continue
		}
		if !in.work.ahead {
			return sh
		}
		if room := in.work.parts[0].class.class.Needs.Times(&sh.free, math.MaxInt64); room > most {
			best, most = sh, room
		}
	}
	return best
}

// sendPleas asks each shard that owes no answer.
func (s *State) sendPleas() {
	if len(s.press.waiting) == 0 {
		return
	}
	waiting := s.press.waiting
	s.press.waiting, s.press.again = nil, false
	ordered := s.ranksReady(waiting)
	load := map[*shardState]*question{}
	for _, in := range waiting {
		sh := s.whomToAsk(in)
		if in.overtaken() && !s.outlived(in.work) { // while a policy was asked, or another question was with the shard
			s.closePlea(in)
			s.headInVain(in.work)
			continue
		}
		if sh == nil || s.outlived(in.work) {
			s.closePlea(in)
			s.inVain(in)
			continue
		}
		q := load[sh]
		if sh.asked || q != nil && !q.takes(in) || !ordered && !in.work.wait {
			s.press.waiting = append(s.press.waiting, in)
			continue
		}
		if _, looked := s.victimsOf(in); !looked {
			s.press.again = true
			s.press.waiting = append(s.press.waiting, in)
			continue
		}
		if q == nil {
			q = &question{shard: sh, classes: map[placement.ClassID]bool{}}
			load[sh] = q
		}
		q.add(in)
	}
	for _, sh := range s.shards {
		if q := load[sh]; q != nil {
			s.sendQuestion(q)
		}
	}
}

func (s *State) sendQuestion(q *question) {
	id := s.nextBatch
	s.nextBatch++
	q.shard.asked = true
	s.press.asked[id] = q
	s.setTimer(timer{at: s.now + int64(batchTimeout), kind: timerQuestion, batch: id})
	m := shard.Preempt{Epoch: q.shard.epoch, Batch: id, Now: s.now}
	for at, in := range q.list {
		for n := range in.work.parts {
			p := &in.work.parts[n]
			victims, _ := s.victimsOf(in)
			r := preemption.Request{
				Class: p.class.class, Count: len(in.homeless(n)), Gang: in.work.together && in.spread == nil, Victims: victims, Unit: uint32(at) + 1,
				Within: in.work.oneDomain(), Wait: in.work.wait,
			}
			if in.work.host != nil {
				r.Host = in.work.host.ID
			}
			m.Requests = append(m.Requests, r)
		}
	}
	s.internal(ToShard{Shard: q.shard.id, Message: m})
}

// closePlea takes a plea off the books.
func (s *State) closePlea(in *plea) {
	for n := range in.work.parts {
		in.work.parts[n].class.asking = in.work.wait && in.work.parts[n].class.asking
	}
	s.press.tasks -= in.work.tasks()
	if s.press.spreading == in {
		s.press.spreading = nil
	}
}

// inVain settles work for which nobody makes room: it is refused.
func (s *State) inVain(in *plea) {
	w := in.work
	s.unbook(in)
	if s.outlived(w) {
		return
	}
	if w.wait {
		if !s.spreadOut(in) {
			w.parts[0].class.keepAt = s.now + int64(keepPatience)
		}
		return
	}
	for n := range w.parts {
		s.askLater(w.parts[n].class)
	}
	if w.ahead {
		s.headInVain(w)
		return
	}
	s.refuse(w)
}

// questionTimedOut takes the pleas back from a shard that does not answer.
func (s *State) questionTimedOut(id uint64) {
	q, ok := s.press.asked[id]
	if !ok {
		return
	}
	delete(s.press.asked, id)
	if q.plan != nil {
		s.planPledged(q.shard, q.plan, nil)
		return
	}
	q.shard.asked = false
	for _, in := range q.list {
		s.notHere(q.shard, in)
	}
}

// notHere goes on with the next shard.
func (s *State) notHere(sh *shardState, in *plea) {
	s.closePlea(in)
	in.tried = append(in.tried, sh)
	if !s.outlived(in.work) && s.goesOn(in) && s.plead(in) {
		return
	}
	s.inVain(in)
}

// abandonPreemption forgets what a shard was asked and what it has pledged: it has another epoch, or is out of contact.
func (s *State) abandonPreemption(sh *shardState, pledges bool) {
	for _, id := range sortedKeys(s.press.asked) {
		if s.press.asked[id].shard == sh {
			s.questionTimedOut(id)
		}
	}
	sh.asked = false
	if !pledges {
		return
	}
	for _, id := range sortedKeys(s.press.works) {
		w := s.press.works[id]
		lost := slices.DeleteFunc(slices.Clone(w.list), func(p *pledge) bool { return p.shard != sh })
		if len(lost) > 0 {
			s.dropPledges(w) // they are one shard's, or stand or fall together
		}
	}
}

func sortedKeys[V any](m map[uint64]V) []uint64 {
	keys := make([]uint64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// mayPreempt refills what may be preempted and reports whether there is anything of it.
func (s *State) mayPreempt() bool {
	rate := int64(s.cfg.PreemptionsPerSecond)
	passed := s.now - s.press.tokensAt
	refill := min(passed, int64(longestRefill)) / int64(time.Microsecond) * rate
	s.press.tokens = min(s.press.tokens+refill, rate*millionths) // a second's worth is the burst
	s.press.tokensAt = s.now - passed%int64(time.Microsecond)
	return s.press.tokens >= millionths
}

// affordable reports whether the victims of one more pledge may go now, after those that were heard before. What starts together is heard as one.
func (h *hearing) affordable() bool {
	if h.planned { // it comes to pass in time
		return true
	}
	if !h.state.mayPreempt() {
		return false
	}
	return h.in.work.together || h.state.press.tokens >= int64(h.count()+1)*millionths
}

// count is how many runs were heard and may go.
func (h *hearing) count() (runs int) {
	for _, d := range h.doomed {
		runs += d.runs
	}
	return runs
}

// spend notes runs that were preempted. One pledge, or the start of a gang, may take more than there is; then nobody else is preempted until
// that is made up for.
func (s *State) spend(runs int) { s.press.tokens -= int64(runs) * millionths }
