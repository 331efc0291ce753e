package scheduler

import (
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// placeWork is admitted work on its way to a shard: one part, or the parts of a gang that stand or fall together.
type placeWork struct {
	job      *job
	parts    []placePart
	together bool // all or none
	// gang is whose start this is, with together, or whose members join it; nil: loners. The work is of one generation.
	gang       *gang
	generation uint32
	host       *hostState    // a daemon's; else nil
	tried      []*shardState // that refused it
	plan       *planWork     // a dry run instead of a job's work
	admitted   uint64        // order of gang starts
	rooms      []shardRoom   // of the shards that refused a gang's start
	gather     *gather       // of which it asks the shard to for a part
	ahead      bool          // room is made for it before it is admitted
	wait       bool          // with ahead: room that comes free by itself is kept for it
	to         *shardState
	known      int // of a plan: that many of its parts would be placed in the shard that is asked already
}

type placePart struct {
	class     *jobClass
	instances []uint32
	refusal   placement.Reasons // of all shards that refused it, together
	of        int               // with gather: the part of the gang's work
	unit      *placeWork        // of a plan: what it goes together with; instances are a number only
	want      int               // of a plan: how many there are in the end, with those that join
	sure      []workload.HostID // of what is booked for a plan: the hosts of those that the pool would admit
}

func (w *placeWork) tasks() int {
	n := 0
	for _, p := range w.parts {
		n += len(p.instances)
	}
	return n
}

// batch is one Place message without its answer.
type batch struct {
	id    uint64
	shard *shardState
	work  []*placeWork
}

// batchTimeout is how long a shard may take to answer a batch. It is longer than any lease, so that a late answer holds nothing.
const batchTimeout = time.Minute

func (s *State) enqueue(w *placeWork) {
	s.outbox = append(s.outbox, w)
	s.outboxed += w.tasks()
}

// outlived reports whether the job of some work was erased, or its gang began another generation, while the work was with a shard, or on its
// way there.
func (s *State) outlived(w *placeWork) bool {
	return w.plan == nil && (s.jobs[w.job.ID] != w.job || (w.gang != nil && w.gang.generation() != w.generation))
}

// dispatch hands the outbox to the shards.
func (s *State) dispatch() {
	s.redispatch = false
	s.watchGather()
	for again := true; again; again = s.dispatchAgain { // a gathering gang asks every shard once
		s.dispatchAgain = false
		s.dispatchOutbox()
	}
}

// dispatchOutbox sends one Place message to each shard that may take one more.
func (s *State) dispatchOutbox() {
	type load struct {
		batch *batch
		tasks int
	}
	loads := map[*shardState]*load{}
	queue := s.outbox
	s.outbox, s.outboxed = nil, 0
	for _, w := range queue {
		if s.outlived(w) || (w.gather != nil && s.gathering != w.gather) {
			continue
		}
		sh, busy := s.route(w)
		switch {
		case sh == nil && !busy:
			s.refused(w)
			continue
		case sh == nil:
			s.enqueue(w)
			continue
		}
		l := loads[sh]
		if l == nil {
			l = &load{batch: &batch{shard: sh}}
			loads[sh] = l
		}
		if l.tasks > 0 && l.tasks+w.tasks() > shard.MaxBatch {
			s.enqueue(w)
			continue
		}
		l.tasks += w.tasks()
		l.batch.work = append(l.batch.work, w)
	}
	for _, sh := range s.shards {
		if l := loads[sh]; l != nil {
			s.sendBatch(l.batch)
		}
	}
}

// route picks the ready shard whose hosts have the most room for the work by the core's own estimate. busy says that one will be there
// later.
func (s *State) route(w *placeWork) (best *shardState, busy bool) {
	if w.host != nil {
		sh := w.host.shard
		switch {
		case sh == nil || !sh.ready || slices.Contains(w.tried, sh):
			return nil, false
		case sh.busy():
			return nil, true
		}
		return sh, false
	}
	if w.to != nil {
		return w.to.open()
	}
	class := w.parts[0].class
	home, bound := w.home()
	if home != nil && home.ready && !slices.Contains(w.tried, home) {
		return home.open()
	}
	most := int64(-1)
	for _, sh := range s.shards {
		if !sh.ready || slices.Contains(w.tried, sh) || !mayUse(class, sh) || (bound && !w.joinsIn(sh)) {
			continue
		}
		if sh.busy() {
			busy = true
			continue
		}
		if room := class.class.Needs.Times(&sh.free, int64(w.tasks())); room > most {
			best, most = sh, room
		}
	}
	return best, busy
}

// busy reports whether a shard has all the work it may have at once. A reply or a status of it, or the time-out of a launch, changes that.
func (sh *shardState) busy() bool {
	return sh.inFlight >= batchesPerShard || sh.unheard >= unheardPerShard
}

func mayUse(c *jobClass, sh *shardState) bool {
	allowed := c.class.Placement.Clusters
	return len(allowed) == 0 || slices.Contains(allowed, sh.cluster)
}

func (s *State) sendBatch(b *batch) {
	b.id = s.nextBatch
	s.nextBatch++
	s.batches[b.id] = b
	b.shard.inFlight++
	s.setTimer(timer{at: s.now + int64(batchTimeout), kind: timerBatch, batch: b.id})
	m := shard.Place{Epoch: b.shard.epoch, Batch: b.id}
	for n, w := range b.work {
		if w.plan != nil {
			m.Requests = s.trialRequests(m.Requests, n, b.shard, w)
			continue
		}
		for _, p := range w.parts {
			r := shard.PlaceRequest{
				Class: s.served(p.class), Count: len(p.instances), Gang: w.together, Seed: s.cfg.Seed, Within: w.within(), Want: w.want(p),
				Pool: s.pools.Path(p.class.job.spec.Pool), Priority: p.class.job.spec.Priority, Revocable: p.class.job.spec.Revocable,
			}
			if w.together {
				r.Unit = uint32(n) + 1
			}
			if w.host != nil {
				r.Host = w.host.ID
			}
			m.Requests = append(m.Requests, r)
		}
	}
	s.internal(ToShard{Shard: b.shard.id, Message: m})
}

// served is a class as shards see it: where its job chooses no policy, its pool may.
func (s *State) served(c *jobClass) *placement.Class {
	if c.class.Placement.Strategy != "" {
		return c.class
	}
	policy := workload.Strategy(s.pools.PlacementPolicy(c.job.spec.Pool))
	if policy == "" {
		return c.class
	}
	if c.under == nil || c.under.Placement.Strategy != policy {
		c.under = c.class.Under(policy)
	}
	return c.under
}

// placed takes the answer to one batch. Room that nobody wants any more is given back, and so is all of an answer that does not fit its
// question: the batch then waits for its time-out.
func (s *State) placed(sh *shardState, r *shard.Placed) {
	b, ok := s.batches[r.Batch]
	if !ok || b.shard != sh || len(r.Results) != b.parts() {
		for n := range r.Results {
			sh.giveBack(r.Results[n].Assignments)
		}
		return
	}
	delete(s.batches, r.Batch)
	sh.inFlight--
	at := 0
	for _, w := range b.work {
		results := r.Results[at : at+len(w.parts)]
		at += len(w.parts)
		switch {
		case s.outlived(w):
			for n := range results {
				sh.giveBack(results[n].Assignments)
			}
		case w.plan != nil:
			s.planned(sh, w, results)
		case w.gather != nil:
			s.gatherPlaced(sh, w, results)
		case w.together:
			s.gangPlaced(sh, w, results)
		default:
			s.workPlaced(sh, w, &results[0])
		}
	}
}

func (b *batch) parts() int {
	n := 0
	for _, w := range b.work {
		n += len(w.parts)
	}
	return n
}

// batchTimedOut takes the work of a batch back from a shard that does not answer, and to the next one.
func (s *State) batchTimedOut(id uint64) {
	b, ok := s.batches[id]
	if !ok {
		return
	}
	delete(s.batches, id)
	b.shard.inFlight--
	for _, w := range b.work {
		w.tried = append(w.tried, b.shard)
		s.enqueue(w)
	}
}

func (sh *shardState) giveBack(assignments []shard.Assignment) {
	for n := range assignments {
		sh.releases = append(sh.releases, assignments[n].Lease)
	}
}

func (s *State) workPlaced(sh *shardState, w *placeWork, r *shard.PlaceResult) {
	p := &w.parts[0]
	rest := p.instances
	sh.launches = slices.Grow(sh.launches, len(r.Assignments))
	for n := range r.Assignments {
		a := &r.Assignments[n]
		h := s.hosts[a.Host]
		for len(rest) > 0 && w.job.tasks[rest[0]].state != workload.InstanceAdmitted {
			rest = rest[1:] // stopped meanwhile
		}
		if len(rest) == 0 || h == nil || h.shard != sh || !w.allows(h) || (w.host != nil && w.host != w.job.tasks[rest[0]].host) {
			sh.releases = append(sh.releases, a.Lease)
			continue
		}
		s.startRun(w.job, rest[0], h, a)
		rest = rest[1:]
	}
	if len(r.Assignments) > 0 {
		p.class.fed()
	}
	if len(rest) > 0 {
		p.instances = rest
		p.noteRefusal(r)
		w.tried = append(w.tried, sh)
		s.enqueue(w)
	}
}

// gangPlaced starts all members or none.
func (s *State) gangPlaced(sh *shardState, w *placeWork, results []shard.PlaceResult) {
	whole, wanted := true, true
	for n := range results {
		whole = whole && results[n].Refused == 0 && len(results[n].Assignments) == len(w.parts[n].instances)
		for _, i := range w.parts[n].instances {
			wanted = wanted && w.job.tasks[i].state == workload.InstanceAdmitted
		}
		for m := range results[n].Assignments {
			h := s.hosts[results[n].Assignments[m].Host]
			whole = whole && h != nil && h.shard == sh
		}
	}
	whole = whole && s.stayTogether(w, results)
	if !whole || !wanted {
		for n := range results {
			sh.giveBack(results[n].Assignments)
			if results[n].Refused > 0 {
				w.parts[n].noteRefusal(&results[n])
			}
		}
		if !wanted {
			for _, p := range w.parts {
				s.unadmit(w.job, p.instances)
			}
			return
		}
		w.tried = append(w.tried, sh)
		w.noteRoom(sh, results)
		s.enqueue(w)
		return
	}
	for n := range results {
		w.parts[n].class.fed()
		for m, i := range w.parts[n].instances {
			a := &results[n].Assignments[m]
			s.bindRun(w.job, i, s.hosts[a.Host], a)
		}
	}
	for n := range results {
		for m, i := range w.parts[n].instances {
			s.launchRun(w.job, i, results[n].Assignments[m].Lease)
		}
	}
}

// noteRefusal adds one shard's reasons to those of the others; what never fits must never fit anywhere.
func (p *placePart) noteRefusal(r *shard.PlaceResult) {
	first := p.refusal == placement.Reasons{}
	p.refusal.NeverFits = r.Reasons.NeverFits && (first || p.refusal.NeverFits)
	p.refusal.Hosts += r.Reasons.Hosts
	for n, hosts := range r.Reasons.Counts {
		p.refusal.Counts[n] += hosts
	}
	if r.Reasons.GangSize == 0 { // tasks that join a gang
		p.refusal.GangDomain = r.Reasons.GangDomain
		return
	}
	if p.refusal.GangSize = max(p.refusal.GangSize, r.Reasons.GangSize); r.Reasons.GangLargest > p.refusal.GangLargest {
		p.refusal.GangLargest, p.refusal.GangDomain = r.Reasons.GangLargest, r.Reasons.GangDomain
	}
}

// refused settles work that no shard took: others make room for it, or it is PENDING again, eats no entitlement, and asks again when there is
// a chance.
func (s *State) refused(w *placeWork) {
	if w.plan != nil {
		s.planRefused(w)
		return
	}
	switch {
	case w.gather != nil: // the shard that it was to ask is gone
		s.scatter(w.gather)
	case s.yield(w):
		w.tried, w.rooms = nil, nil
		for n := range w.parts {
			w.parts[n].refusal = placement.Reasons{}
		}
		s.enqueue(w)
		s.redispatch = true
	case !s.mayGather(w) && !s.ask(w):
		s.refuse(w)
		s.keepRoom(w)
	}
}

// refuse makes work wait that found no host.
func (s *State) refuse(w *placeWork) {
	w.sumRooms()
	for n := range w.parts {
		p := &w.parts[n]
		s.unadmit(w.job, p.instances)
		p.class.refusal = p.refusal
		p.class.neverFits = p.refusal.NeverFits && s.triedAll(w)
		if !p.class.blocked { // many pieces of one class may be refused together
			p.class.delay = retryDelay(p.class.delay)
		}
		s.block(p.class, p.class.delay)
	}
}

// triedAll reports whether every shard that the work may use was asked. One that is out of contact may have hosts for it.
func (s *State) triedAll(w *placeWork) bool {
	if w.host != nil {
		return false // others of the daemon have hosts of their own
	}
	for _, sh := range s.shards {
		if mayUse(w.parts[0].class, sh) && !slices.Contains(w.tried, sh) {
			return false
		}
	}
	return len(w.tried) > 0
}

// Retries of refused classes.
const (
	shortestRetry      = 10 * time.Millisecond
	longestRetry       = 8 * time.Second
	unconditionalRetry = 30 * time.Second
)

// block keeps a class out of its queue until room was freed or a host came, but at least for delay.
func (s *State) block(c *jobClass, delay time.Duration) {
	if !c.blocked {
		c.blockedAt = s.now
	}
	c.blocked, c.held = true, false
	c.freedSeen, c.hostsSeen = s.freed, s.hostEpoch
	c.retryAt = s.now + int64(delay)
	s.setTimer(timer{at: c.retryAt, kind: timerRetry, class: c})
	s.touch(c.job)
}

// retryClass lets a class into its queue again when there is something new for it. What fits no host as the hosts are would, at the head
// of its queue, only hold room back from others: it waits for other hosts.
func (s *State) retryClass(c *jobClass) {
	if !c.blocked || c.retryAt > s.now || s.jobs[c.job.ID] != c.job {
		return
	}
	sameHosts := c.hostsSeen == s.hostEpoch
	nothingNew := sameHosts && c.freedSeen == s.freed && s.now-c.blockedAt < int64(unconditionalRetry)
	mayPress := s.mayAsk(c) && s.anyVictims(c.job, true) // others may have to make room
	if !c.held && (nothingNew && !mayPress || (c.neverFits && sameHosts)) {
		// The longer it has waited in vain, the more seldom it looks: a cell full of blocked classes must not be busy with looking.
		waited := time.Duration(s.now - c.blockedAt)
		c.retryAt = s.now + int64(min(max(c.delay, waited/2, retryDelay(0)), longestRetry))
		s.setTimer(timer{at: c.retryAt, kind: timerRetry, class: c})
		return
	}
	c.blocked, c.held, c.neverFits = false, false, false
	s.touch(c.job)
}

// abandonBatches forgets what a shard was asked: its answers will not come or will not count.
func (s *State) abandonBatches(sh *shardState) {
	var ids []uint64
	for id, b := range s.batches {
		if b.shard == sh {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		for _, w := range s.batches[id].work {
			s.enqueue(w)
		}
		delete(s.batches, id)
	}
	sh.inFlight = 0
}

// sendToShards turns what this Step collected for each shard into messages. Releases may go at once: nothing durable hangs on
// them.
func (s *State) sendToShards() {
	for _, sh := range s.shards {
		if sh.releases != nil {
			s.internal(ToShard{Shard: sh.id, Message: shard.Release{Epoch: sh.epoch, Leases: sh.releases}})
		}
		if sh.launches != nil {
			s.external(ToShard{Shard: sh.id, Message: shard.Launch{Epoch: sh.epoch, Launches: sh.launches}})
		}
		if sh.kills != nil {
			s.external(ToShard{Shard: sh.id, Message: shard.Kill{Epoch: sh.epoch, Kills: sh.kills}})
		}
		if sh.acks != nil {
			s.external(ToShard{Shard: sh.id, Message: shard.Acknowledge{Epoch: sh.epoch, Tokens: sh.acks}})
		}
		sh.releases, sh.launches, sh.kills, sh.acks = nil, nil, nil, nil
	}
}
