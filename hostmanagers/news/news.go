// Package news is what a driver tells its shard, and its way there: in order, and off the driver's lock.
//
// It owns what one call of a sink says and the queue in front of the sink; what there is to tell is the driver's. A Queue may be used by many
// goroutines at once; Deliver works in its caller's, and has one.
package news

import (
	"context"
	"sync"

	"github.com/paceline-sched/paceline/core/driver"
)

// maxBatch is the number of statuses from which on a call of the sink takes in no more.
const maxBatch = 4096

// Item is one call of driver.Sink: exactly one of its fields is set, but for Changed and Removed, which go together.
type Item struct {
	Inventory    *driver.Inventory
	Changed      []driver.Host
	Removed      []string
	Statuses     []driver.Status
	Disconnected error
}

// Queue holds what a sink has yet to hear.
type Queue struct {
	begun chan struct{} // closed by the first inventory
	have  chan struct{} // holds one

	mu    sync.Mutex
	items []Item
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{begun: make(chan struct{}), have: make(chan struct{}, 1)} }

// Begun is closed once the sink has taken the first inventory.
func (q *Queue) Begun() <-chan struct{} { return q.begun }

// Add puts items at the end, and joins statuses that follow each other. It keeps what the items hold, but not the slice of items.
func (q *Queue) Add(items []Item) {
	if len(items) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range items {
		last := len(q.items) - 1
		if last >= 0 && len(items[i].Statuses) > 0 && len(q.items[last].Statuses) > 0 && len(q.items[last].Statuses) < maxBatch {
			q.items[last].Statuses = append(q.items[last].Statuses, items[i].Statuses...)
		} else {
			q.items = append(q.items, items[i])
		}
	}
	select {
	case q.have <- struct{}{}:
	default:
	}
}

// Deliver calls the sink with what is queued until the context ends. It is called once.
func (q *Queue) Deliver(ctx context.Context, sink driver.Sink) {
	begun := false
	for {
		select {
		case <-q.have:
		case <-ctx.Done():
			return
		}
		q.mu.Lock()
		items := q.items
		q.items = nil
		q.mu.Unlock()
		for i := range items {
			if ctx.Err() != nil {
				return
			}
			items[i].tell(sink)
			if items[i].Inventory != nil && !begun {
				begun = true
				close(q.begun)
			}
		}
	}
}

func (n *Item) tell(sink driver.Sink) {
	switch {
	case n.Inventory != nil:
		sink.Inventory(*n.Inventory)
	case n.Disconnected != nil:
		sink.Disconnected(n.Disconnected)
	case len(n.Statuses) > 0:
		sink.Statuses(n.Statuses)
	default:
		sink.HostsChanged(n.Changed, n.Removed)
	}
}
