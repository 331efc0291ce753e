package respool

import (
	"fmt"
	"time"
)

// Order is how a pool's work waits among equals in priority.
type Order uint8

// The orders.
const (
	OrderPriorityFIFO  Order = iota // by submission
	OrderFairUser                   // the owner who used least of late first, by submission within an owner
	OrderSmallestFirst              // by processors times run time
	OrderShortestFirst              // by run time
	OrderExpress                    // as OrderSmallestFirst, with an eighth kept free for short work
	numOrders
)

var orderNames = [numOrders]string{"priority-fifo", "fair-user", "smallest-first", "shortest-first", "express"}

func (o Order) String() string {
	if o >= numOrders {
		return "unknown"
	}
	return orderNames[o]
}

// ParseOrder reads the name of an order.
func ParseOrder(name string) (Order, bool) {
	for o, n := range orderNames {
		if n == name {
			return Order(o), true
		}
	}
	return 0, false
}

// Backfill says what later work may do with what the first in line waits for.
type Backfill uint8

// The ways of back-fill.
const (
	BackfillNone Backfill = iota // it is kept for the first in line
	BackfillEASY                 // work that by its run time does not delay the first in line may use it
	numBackfills
)

func (b Backfill) String() string {
	if b >= numBackfills {
		return "unknown"
	}
	return [...]string{"none", "easy"}[b]
}

// ParseBackfill reads the name of a way of back-fill.
func ParseBackfill(name string) (Backfill, bool) {
	for b := range numBackfills {
		if b.String() == name {
			return b, true
		}
	}
	return 0, false
}

// QueuePolicy is how the work of a pool waits. The zero value is strict order by priority and submission. A zero Patience or
// UsageHalfLife stands for its default.
type QueuePolicy struct {
	Order    Order
	Backfill Backfill
	// Candidates is the order in which work is tried for back-fill.
	Candidates Order
	// Patience is how long work may be passed by others before the queue waits for it.
	Patience time.Duration
	// UsageHalfLife is the time after which an owner's use counts half.
	UsageHalfLife time.Duration
}

// The defaults and bounds of queues.
const (
	DefaultPatience      = 10 * time.Minute
	DefaultUsageHalfLife = 24 * time.Hour
	MinUsageHalfLife     = time.Minute
	MaxQueueTime         = 365 * 24 * time.Hour // of Patience and UsageHalfLife
)

// WithDefaults fills zero times.
func (q QueuePolicy) WithDefaults() QueuePolicy {
	if q.Patience == 0 {
		q.Patience = DefaultPatience
	}
	if q.UsageHalfLife == 0 {
		q.UsageHalfLife = DefaultUsageHalfLife
	}
	return q
}

func (q *QueuePolicy) check() error {
	switch {
	case q.Order >= numOrders || q.Candidates >= numOrders:
		return fmt.Errorf("order %d or %d of its queue is unknown: use one of %v", q.Order, q.Candidates, orderNames)
	case q.Backfill >= numBackfills:
		return fmt.Errorf("back-fill %d is unknown: use none or easy", q.Backfill)
	case q.Patience < 0 || q.Patience > MaxQueueTime:
		return fmt.Errorf("patience %v must be between 0 and %v", q.Patience, MaxQueueTime)
	case q.UsageHalfLife != 0 && (q.UsageHalfLife < MinUsageHalfLife || q.UsageHalfLife > MaxQueueTime):
		return fmt.Errorf("half-life %v of usage must be between %v and %v", q.UsageHalfLife, MinUsageHalfLife, MaxQueueTime)
	}
	return nil
}
