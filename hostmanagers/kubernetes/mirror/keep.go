package mirror

import (
	"container/heap"
	"strings"
	"time"
)

const (
	// minRemovals are the pods of ended runs that are deleted at once, however few wait for it: what else the API server takes is for launches and kills.
	minRemovals = 8
	// removalShare: of so many that wait one more is deleted at once, so that a long line gets shorter whatever is launched meanwhile.
	removalShare = 32
	// quotaOfObjects is the word of a quota that counts pods which have ended, too.
	quotaOfObjects = "count/pods"
)

// tidy sees to the pod of a run whose end was acknowledged: it stays for a while if there is an output to read, and then goes.
func (m *Machine) tidy(r *run) {
	if !m.keeps(r) {
		m.release(r)
		return
	}
	heap.Push(&m.kept, r)
	if len(m.kept) > m.cfg.KeepEndedPods {
		oldest := m.kept[0]
		m.unkeep(oldest)
		m.release(oldest)
	}
	m.expire()
}

// keeps reports whether a pod has an output that is worth being kept. One whose deletion somebody has asked for goes by itself.
func (m *Machine) keeps(r *run) bool {
	return m.cfg.KeepEnded > 0 && m.cfg.KeepEndedPods > 0 && phaseOver(r.facts.Phase) && r.facts.Main.Ended && r.facts.Deleted.IsZero()
}

// unkeep takes a run off those that are kept, if it is one.
func (m *Machine) unkeep(r *run) {
	if r.place > 0 {
		heap.Remove(&m.kept, r.place-1)
	}
}

// expire releases those that were kept for long enough, and arranges for the next.
func (m *Machine) expire() {
	for len(m.kept) > 0 {
		r := m.kept[0]
		at := r.over + int64(m.cfg.KeepEnded)
		if at > m.now {
			if m.keptUntil <= m.now || at < m.keptUntil {
				m.keptUntil = at
				m.after(time.Duration(at-m.now), m.expire)
			}
			return
		}
		m.unkeep(r)
		m.release(r)
	}
}

// release has a pod removed, once nobody can create another one by its name.
func (m *Machine) release(r *run) {
	if m.now < r.late {
		m.after(time.Duration(r.late-m.now), func() { m.release(r) })
		return
	}
	m.leaving = append(m.leaving, r)
	m.pace()
}

// pace has pods removed that are to go, not all at once: the deletions of a job that has ended would keep the next one from starting.
func (m *Machine) pace() {
	for len(m.leaving) > 0 && m.removals < max(minRemovals, len(m.leaving)/removalShare) {
		r := m.leaving[0]
		m.leaving[0] = nil
		m.leaving = m.leaving[1:]
		if m.runs[r.id] != r || !r.known || r.create != nil { // it has gone, or the answer to its creation says what there is to do
			continue
		}
		m.removals++
		m.call(&Call{Run: r.id, Namespace: r.namespace, UID: r.uid, run: r, paced: true})
	}
}

// makeRoom releases what is kept in a namespace whose quota counts it.
func (m *Machine) makeRoom(namespace string, a *Answer) {
	if a.Refused != RefusedByQuota || !strings.Contains(a.Message, quotaOfObjects) {
		return
	}
	var list []*run
	for _, r := range m.kept {
		if r.namespace == namespace {
			list = append(list, r)
		}
	}
	for _, r := range list {
		m.unkeep(r)
		m.release(r)
	}
}

// endedAt is since when a run's pod counts as kept. What had ended before this process looked goes by its own clock, so that restarts keep nothing for longer.
func (m *Machine) endedAt(r *run) int64 {
	if m.begun {
		return m.now
	}
	return min(m.now, r.last.At.UnixNano())
}

// keptRuns is a heap: the one that ended first comes first.
type keptRuns []*run

func (k keptRuns) Len() int { return len(k) }
func (k keptRuns) Less(i, j int) bool {
	return k[i].over < k[j].over || k[i].over == k[j].over && compareRuns(k[i], k[j]) < 0
}

func (k keptRuns) Swap(i, j int) {
	k[i], k[j] = k[j], k[i]
	k[i].place, k[j].place = i+1, j+1
}

func (k *keptRuns) Push(x any) {
	r, _ := x.(*run)
	*k = append(*k, r)
	r.place = len(*k)
}

func (k *keptRuns) Pop() any {
	last := len(*k) - 1
	r := (*k)[last]
	(*k)[last] = nil
	*k = (*k)[:last]
	r.place = 0
	return r
}
