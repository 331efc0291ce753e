package scheduler

import (
	"container/heap"

	"github.com/paceline-sched/paceline/core/workload"
)

type timerKind uint8

const (
	timerBackoff timerKind = iota + 1 // an instance may be tried again
	timerLaunch                       // a run without any word
	timerKill                         // a kill without any word
	timerDeadline
	timerExpiry // of an ended job
	timerErase  // of a job that has expired, in the Step after that
	timerIdempotency
	timerRetry // a refused class may ask again
	timerRenew // a rolling restart has more instances to look at
	timerBatch // a batch without its answer
	timerHost  // a host that left may be forgotten
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
}

type timerHeap []timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(a, b int) bool {
	return h[a].at < h[b].at || (h[a].at == h[b].at && h[a].order < h[b].order)
}
func (h timerHeap) Swap(a, b int) { h[a], h[b] = h[b], h[a] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(timer)) } //nolint:forcetypeassert // heap.Interface; only setTimer pushes
func (h *timerHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*h = old[:len(old)-1]
	return last
}

func (s *State) setTimer(t timer) {
	s.timerOrder++
	t.order = s.timerOrder
	heap.Push(&s.timers, t)
}

func (s *State) fireTimers() {
	for len(s.timers) > 0 && s.timers[0].at <= s.now {
		t := heap.Pop(&s.timers).(timer) //nolint:forcetypeassert // as above
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
		case timerHost:
			s.forgetHost(t.host)
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
	if t.state != workload.InstanceBackingOff || t.notBefore > s.now || j.gangFailed {
		return
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
		s.setTimer(timer{at: s.now + int64(s.cfg.LaunchTimeout), kind: timerLaunch, job: j, instance: i, run: run})
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
