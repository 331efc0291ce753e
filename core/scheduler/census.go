package scheduler

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/workload"
)

// The census keeps count of what waits, by class and by what of the reason a job knows by itself, so that the reasons of a million tasks are told
// at the cost of their classes. What depends on others is asked for when somebody wants to know: whether clusters are ready, once a class, and
// where jobs stand in their queue, by one survey of the queue.

const (
	// maxWaitGroups bounds the classes that are told apart in a cell. Jobs of further ones are counted together, a group for each queue; of
	// their tasks in the queue all count as behind others that a survey does not visit.
	maxWaitGroups = 1 << 14
	// maxUncounted bounds the jobs that wait to be counted: a Step that leaves more counts them at its end.
	maxUncounted = 4096
	// maxSearched bounds the jobs of a group that are looked at for the one that has waited longest for one of several reasons. They are the
	// first of a heap, so the five that have waited longest are among them.
	maxSearched = 64
)

// waitState is what a job knows of why tasks of it wait.
type waitState uint8

const (
	waitsPromised waitState = iota // others make room for it before it is admitted
	waitsHeld                      // its gang failed
	waitsRefused                   // by hosts
	waitsNever                     // likewise, and would be if they were empty
	waitsFinished                  // its gang is finishing
	waitsSiblings                  // other instances of the job go first
	waitsOffered                   // it stands in the queue
	waitsStarting                  // the start of its gang does
	waitsWindow                    // max_running
	waitsBackoff
	waitsAdmitted
	waitsNoHost // a daemon that no host matches: no task waits, and yet the job does
	numWaitStates
)

// needsCluster reports states that mean nothing while no cluster is ready.
func (w waitState) needsCluster() bool { return w <= waitsStarting }

// inQueue reports states of which the queue tells the reason.
func (w waitState) inQueue() bool { return w == waitsOffered || w == waitsStarting }

// kind is the reason that the state stands for, unless no cluster is ready; 0 for those in the queue.
func (w waitState) kind() PendingKind {
	return [numWaitStates]PendingKind{
		waitsPromised: PendingBeingPlaced, waitsHeld: PendingBackoff, waitsRefused: PendingPlacement, waitsNever: PendingNeverFits, waitsFinished: PendingQueue,
		waitsSiblings: PendingQueue, waitsWindow: PendingWindow, waitsBackoff: PendingBackoff, waitsAdmitted: PendingBeingPlaced,
		waitsNoHost: PendingNoMatchingHost,
	}[w]
}

// state is what holds up those tasks of the class that max_running lets start.
func (c *jobClass) state() waitState {
	switch {
	case c.promised > 0:
		return waitsPromised
	case c.held:
		return waitsHeld
	case c.blocked && c.neverFits && c.refusal.Hosts > 0:
		return waitsNever
	case c.blocked:
		return waitsRefused
	case c.gang != nil && c.gang.finishing():
		return waitsFinished
	case !c.job.offers(c):
		return waitsSiblings
	case c.job.starting != nil:
		return waitsStarting
	}
	return waitsOffered
}

// withinWindow is how many of the class's waiting tasks max_running lets start.
func (c *jobClass) withinWindow() uint32 {
	window, bounded := c.job.window()
	if !bounded {
		return c.waiting
	}
	free := uint32(min(max(window, 0), int64(c.waiting)))
	if g := c.gang; g != nil && !g.growing() { // it starts whole or not at all
		if window >= int64(g.Min) {
			return c.waiting
		}
		return 0
	}
	return free
}

// waitKey tells groups apart: jobs of one queue with the same key have the same standing in it when it does not visit them.
type waitKey struct {
	waitSort
	owner string
}

// waitSort is a waitKey without the owner.
type waitSort struct {
	shape   [16]byte // a hash of what a task may run on, and of its gang
	pinned  bool     // not preemptible
	directs bool     // a controller
	rest    bool     // one of too many classes: nothing else is set
}

// waitGroup is the jobs of one queue whose tasks nothing tells apart.
type waitGroup struct {
	key     waitKey
	queue   *poolQueue
	slot    int      // in poolQueue.waits
	members waitHeap // by since
	tasks   [numWaitStates]int64
	jobs    [numWaitStates]int
}

// waitMember is what of one job is in one group.
type waitMember struct {
	group *waitGroup // nil: it has left
	class *jobClass  // the first of the job's that is in the group
	since int64      // since when the job waits without getting a host
	slot  int        // in waitGroup.members
	tasks [numWaitStates]uint32
}

// census is what a State keeps for it; the groups are in their queues.
type census struct {
	uncounted []*job
	groups    int
}

// miscounted notes that what a job waits for may have changed.
func (s *State) miscounted(j *job) {
	if !j.uncounted {
		j.uncounted = true
		s.census.uncounted = append(s.census.uncounted, j)
	}
}

// countWaiting brings the census up to date.
func (s *State) countWaiting() {
	for n, j := range s.census.uncounted {
		j.uncounted = false
		s.countJob(j)
		s.census.uncounted[n] = nil
	}
	s.census.uncounted = s.census.uncounted[:0]
}

// countJob replaces what the census has of a job. It costs the job's classes, whatever its instances, but for a daemon that has no host: then it costs those that it had.
func (s *State) countJob(j *job) {
	before := len(j.waits)
	for _, m := range j.waits {
		m.group.add(m, -1)
		m.tasks = [numWaitStates]uint32{}
	}
	if s.jobs[j.ID] == j && j.runnable() {
		s.countClasses(j)
	}
	since := j.waitingSince()
	kept := j.waits[:0]
	for _, m := range j.waits {
		if m.tasks == [numWaitStates]uint32{} {
			s.leaveGroup(m)
			continue
		}
		if m.group.add(m, 1); m.since != since {
			m.since = since
			heap.Fix(&m.group.members, m.slot)
		}
		kept = append(kept, m)
	}
	clear(j.waits[len(kept):])
	switch j.waits = kept; {
	case len(kept) == 0:
		j.waits = nil
		if before > 0 {
			s.queueOfJob(j).waitingJobs--
		}
	case before == 0:
		s.queueOfJob(j).waitingJobs++
	}
}

func (s *State) countClasses(j *job) {
	for _, c := range j.classes {
		if c.waiting+c.admitted+c.backingOff == 0 {
			continue
		}
		m, within := s.memberOf(c), c.withinWindow()
		m.tasks[c.state()] += within
		m.tasks[waitsWindow] += c.waiting - within
		m.tasks[waitsBackoff] += c.backingOff
		m.tasks[waitsAdmitted] += c.admitted
	}
	if j.homeless() {
		s.memberOf(j.classes[0]).tasks[waitsNoHost] = 1 // no task, but its job
	}
}

// memberOf finds a class's place in the census, or makes one.
func (s *State) memberOf(c *jobClass) *waitMember {
	if c.member != nil && c.member.group != nil {
		return c.member
	}
	j := c.job
	g := s.groupOf(c)
	for _, m := range j.waits {
		if m.group == g {
			c.member = m
			return m
		}
	}
	m := &waitMember{group: g, class: c, since: j.Created}
	heap.Push(&g.members, m)
	j.waits, c.member = append(j.waits, m), m
	return m
}

// groupOf finds the group of a class, or makes one.
func (s *State) groupOf(c *jobClass) *waitGroup {
	q := s.queueOfJob(c.job)
	key := c.waitKey()
	g := q.waits[key]
	if g == nil && s.census.groups >= maxWaitGroups {
		key = waitKey{waitSort: waitSort{rest: true}}
		g = q.waits[key]
	}
	if g == nil {
		if q.waits == nil {
			q.waits = map[waitKey]*waitGroup{}
		}
		g = &waitGroup{key: key, queue: q, slot: len(q.waitList)}
		q.waits[key], q.waitList = g, append(q.waitList, g)
		s.census.groups++
	}
	return g
}

func (c *jobClass) waitKey() waitKey {
	spec := c.job.spec
	sort := waitSort{shape: c.class.Shape(), pinned: !spec.Preemptible, directs: spec.Controller}
	if g := c.gang; g != nil {
		b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(sort.shape[:], g.Size), g.Min)
		for _, q := range g.starts {
			b = binary.BigEndian.AppendUint64(b, uint64(q))
		}
		sum := sha256.Sum256(b)
		copy(sort.shape[:], sum[:])
	}
	return waitKey{sort, spec.Owner}
}

// leaveGroup takes a member out, and its group with it once nobody is left.
func (s *State) leaveGroup(m *waitMember) {
	g := m.group
	heap.Remove(&g.members, m.slot)
	m.group = nil
	if len(g.members) > 0 {
		return
	}
	q := g.queue
	last := q.waitList[len(q.waitList)-1]
	q.waitList[g.slot], last.slot = last, g.slot
	q.waitList = q.waitList[:len(q.waitList)-1]
	delete(q.waits, g.key)
	s.census.groups--
}

func (g *waitGroup) add(m *waitMember, sign int) {
	for w, n := range m.tasks {
		if n == 0 {
			continue
		}
		g.jobs[w] += sign
		if waitState(w) != waitsNoHost {
			g.tasks[w] += int64(sign) * int64(n)
		}
	}
}

// waitHeap has the member at 0 that has waited longest.
type waitHeap []*waitMember

func (h waitHeap) Len() int { return len(h) }
func (h waitHeap) Less(a, b int) bool {
	if h[a].since != h[b].since {
		return h[a].since < h[b].since
	}
	return h[a].class.job.Order < h[b].class.job.Order
}

func (h waitHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].slot, h[b].slot = a, b
}

func (h *waitHeap) Push(x any) {
	m, _ := x.(*waitMember)
	m.slot = len(*h)
	*h = append(*h, m)
}

func (h *waitHeap) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}

// standingKind is the reason that a standing in a queue stands for.
func (s *State) standingKind(spec *workload.JobSpec, st *admission.Standing) PendingKind {
	kind, _ := accountOf(spec, st.Account)
	switch st.Verdict {
	case admission.First:
		return kind
	case admission.OutOfReach:
		if s.capacity[st.Kind] < st.Need {
			return PendingNeverFits
		}
		return kind
	case admission.Behind:
		if st.Account == admission.OfOwner || st.Account == admission.OfControllers {
			return kind
		}
	case admission.Admissible:
		return PendingBeingPlaced
	case admission.NotReached:
	}
	return PendingQueue
}
