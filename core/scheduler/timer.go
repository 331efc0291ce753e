package scheduler

import (
	"github.com/paceline-sched/paceline/core/workload"
)

type timerKind uint8

const (
	timerBackoff timerKind = iota + 1 // an instance may be tried again
	timerLaunch                       // a run without any word, launched before the restart
	timerKill                         // a kill without any word
	timerDeadline
	timerExpiry // of an ended job
	timerErase  // of a job that has expired, in the Step after that
	timerIdempotency
	timerRetry    // a refused class may ask again
	timerRenew    // a rolling restart has more instances to look at
	timerBatch    // a batch without its answer
	timerQuestion // a shard was asked for others' room
	timerPledge   // room was pledged, and those who were to leave it may be in no state to
	timerHost     // a host that left may be forgotten
	timerQueue    // somebody in a queue loses patience
	timerGather
)

// timer is a reminder. It is never cancelled: when it fires, its handler looks whether it still means anything.
type timer struct {
	at       int64
	order    uint64 // of setting: the heap has no ties
	kind     timerKind
	instance uint32
	run      uint32
	batch    uint64
	job      *job
	class    *jobClass
	host     *hostState
	key      *IdempotencyRecord
	queue    *poolQueue
	gather   *gather
}

func (t *timer) before(o *timer) bool { return t.at < o.at || (t.at == o.at && t.order < o.order) }

// timerHeap is a binary heap with the earliest timer at 0. It is typed, unlike container/heap, which makes garbage of every timer.
type timerHeap []timer

func (h *timerHeap) push(t timer) {
	*h = append(*h, t)
	all := *h
	at := len(all) - 1
	for at > 0 && t.before(&all[(at-1)/2]) {
		all[at] = all[(at-1)/2]
		at = (at - 1) / 2
	}
	all[at] = t
}

func (h *timerHeap) pop() timer {
	all := *h
	first, last := all[0], all[len(all)-1]
	all[len(all)-1] = timer{}
	all = all[:len(all)-1]
	*h = all
	at := 0
	for child := 1; child < len(all); child = 2*at + 1 {
		if child+1 < len(all) && all[child+1].before(&all[child]) {
			child++
		}
		if !all[child].before(&last) {
			break
		}
		all[at] = all[child]
		at = child
	}
	if len(all) > 0 {
		all[at] = last
	}
	return first
}

func (s *State) setTimer(t timer) {
	s.timerOrder++
	t.order = s.timerOrder
	s.timers.push(t)
}

// launchWait is the reminder of a launch. There is one for every run, and all wait equally long, so they stand in a queue and not among
// the timers.
type launchWait struct {
	at       int64
	job      *job
	instance uint32
	run      uint32
}

// leastLaunchWaits is how long the queue may grow before it is looked through for runs that were heard of.
const leastLaunchWaits = 1 << 14

// awaitLaunch reminds of a run that was launched now. The queue is looked through whenever it has doubled since the last time, so it holds at
// most twice the runs that are waited for, and a little more.
func (s *State) awaitLaunch(j *job, i, run uint32) {
	if len(s.launching) >= max(s.launchingBound, leastLaunchWaits) {
		kept := make([]launchWait, 0, leastLaunchWaits)
		for n := range s.launching {
			if s.launching[n].open() {
				kept = append(kept, s.launching[n])
			}
		}
		s.launching, s.launchingBound = kept, 2*len(kept)
	}
	s.launching = append(s.launching, launchWait{at: s.now + int64(s.cfg.LaunchTimeout), job: j, instance: i, run: run})
}

// open reports whether the run was not heard of yet.
func (w *launchWait) open() bool {
	if int(w.instance) >= len(w.job.tasks) {
		return false // erased
	}
	t := &w.job.tasks[w.instance]
	return t.run == w.run && (t.runState == workload.RunPlaced || t.runState == workload.RunLaunching)
}

// fireLaunches takes from the front of the queue what is due or means nothing any more.
func (s *State) fireLaunches() {
	for len(s.launching) > 0 {
		w := s.launching[0]
		if w.open() && w.at > s.now {
			return
		}
		s.launching[0] = launchWait{}
		s.launching = s.launching[1:]
		s.launchTimedOut(w.job, w.instance, w.run)
	}
	s.launching = nil
}

func (s *State) fireTimers() {
	s.fireLaunches()
	for len(s.timers) > 0 && s.timers[0].at <= s.now {
		t := s.timers.pop()
		switch t.kind {
		case timerBackoff:
			s.backoffEnded(t.job, t.instance)
		case timerLaunch:
			s.launchTimedOut(t.job, t.instance, t.run)
		case timerKill:
			s.killTimedOut(t.job, t.instance, t.run)
		case timerDeadline:
			s.deadlinePassed(t.job)
		case timerExpiry:
			s.expire(t.job)
		case timerErase:
			if s.jobs[t.job.ID] == t.job {
				s.startSweep(t.job)
			}
		case timerRenew:
			s.touch(t.job)
		case timerIdempotency:
			s.forgetIdempotency(t.key)
		case timerRetry:
			s.retryClass(t.class)
		case timerBatch:
			s.batchTimedOut(t.batch)
		case timerGather:
			s.gatherTimedOut(t.gather)
		case timerQuestion:
			s.questionTimedOut(t.batch)
		case timerPledge:
			s.pledgeTimedOut(t.batch)
		case timerHost:
			s.forgetHost(t.host)
		case timerQueue:
			s.patienceEnds(t.queue)
		}
	}
}

func (s *State) forgetIdempotency(rec *IdempotencyRecord) {
	delete(s.idempotency, rec.Key)
	s.writeAlone(Write{Record: *rec, Delete: true})
}

func (s *State) backoffEnded(j *job, i uint32) {
	if int(i) >= len(j.tasks) {
		return
	}
	t := &j.tasks[i]
	if t.state != workload.InstanceBackingOff || t.notBefore > s.now {
		return
	}
	if g := j.gangOf(i); g != nil && g.ending {
		return // it waits for the others
	}
	s.set(j, i, workload.InstancePending, t.runState, t.reason)
}

// launchTimedOut gives up on a run of which nothing was heard. While its shard is out of contact nothing could be: the run gets its time anew.
func (s *State) launchTimedOut(j *job, i, run uint32) {
	if int(i) >= len(j.tasks) {
		return // erased
	}
	t := &j.tasks[i]
	switch {
	case t.run != run || (t.runState != workload.RunPlaced && t.runState != workload.RunLaunching):
	case t.host.shard == nil || !t.host.shard.ready:
		s.awaitLaunch(j, i, run)
	default:
		s.kill(j, i, workload.ReasonLaunchTimeout)
	}
}

func (s *State) killTimedOut(j *job, i, run uint32) {
	if int(i) >= len(j.tasks) {
		return // erased
	}
	if t := &j.tasks[i]; t.run == run && t.runState == workload.RunKilling {
		s.sendKill(j, i)
		s.remindOfKill(j, i)
	}
}
