package simulated

import "github.com/paceline-sched/paceline/core/driver"

// timerKind is what happens at a timer's time.
type timerKind uint8

const (
	runStarts timerKind = iota
	runHealthy
	runEnds
	runKilled
	statusArrives
	hostFails
	hostReturns
	linkCut
	linkMended
)

// timer is one thing to come. Timers of a run are void once its epoch has moved on; delayed statuses, once the link's has.
type timer struct {
	at    int64
	seq   uint64 // orders equal times
	kind  timerKind
	epoch uint32
	run   *run
	host  *host
	late  *driver.Status // of statusArrives
}

// timers is a binary heap by (at, seq). It is bounded by the runs and faults that feed it: at most a few per run.
type timers struct {
	heap []timer
	seq  uint64
}

func (t *timers) before(i, j int) bool {
	a, b := &t.heap[i], &t.heap[j]
	return a.at < b.at || (a.at == b.at && a.seq < b.seq)
}

func (t *timers) push(next timer) {
	t.seq++
	next.seq = t.seq
	t.heap = append(t.heap, next)
	for i := len(t.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !t.before(i, parent) {
			break
		}
		t.heap[i], t.heap[parent] = t.heap[parent], t.heap[i]
		i = parent
	}
}

// pop removes the next timer if it is due.
func (t *timers) pop(now int64) (timer, bool) {
	if len(t.heap) == 0 || t.heap[0].at > now {
		return timer{}, false
	}
	top, last := t.heap[0], len(t.heap)-1
	t.heap[0] = t.heap[last]
	t.heap[last] = timer{}
	t.heap = t.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && t.before(child+1, child) {
			child++
		}
		if !t.before(child, i) {
			break
		}
		t.heap[i], t.heap[child] = t.heap[child], t.heap[i]
		i = child
	}
	return top, true
}

// next returns the time of the next timer.
func (t *timers) next() (int64, bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].at, true
}
