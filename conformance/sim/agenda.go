package sim

import "container/heap"

// appointment is something that happens at a time.
type appointment struct {
	at    int64
	order uint64 // of making: equal times keep it
	do    func()
}

// agenda is what is still to happen, the next first.
type agenda struct {
	heap  appointments
	order uint64
}

func (a *agenda) add(at int64, do func()) {
	a.order++
	heap.Push(&a.heap, appointment{at, a.order, do})
}

func (a *agenda) next() (int64, bool) {
	if len(a.heap) == 0 {
		return 0, false
	}
	return a.heap[0].at, true
}

func (a *agenda) pop() appointment {
	return heap.Pop(&a.heap).(appointment) //nolint:errcheck,forcetypeassert // heap.Interface; only add pushes
}

type appointments []appointment

func (h appointments) Len() int      { return len(h) }
func (h appointments) Swap(a, b int) { h[a], h[b] = h[b], h[a] }
func (h *appointments) Push(x any)   { *h = append(*h, x.(appointment)) } //nolint:errcheck,forcetypeassert // as above
func (h appointments) Less(a, b int) bool {
	return h[a].at < h[b].at || (h[a].at == h[b].at && h[a].order < h[b].order)
}

func (h *appointments) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = appointment{}
	*h = old[:len(old)-1]
	return last
}
