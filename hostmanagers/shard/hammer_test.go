package shard_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	runtime "github.com/paceline-sched/paceline/hostmanagers/shard"
)

// hammerCore places, launches, kills and acknowledges without end, reacting to replies as they come.
type hammerCore struct {
	t     *testing.T
	queue chan shard.Message // to the shard

	mu     sync.Mutex
	placed int
	sent   map[workload.RunID]bool // launched; false once it has ended
	ended  int
	closed bool
}

// hammerLimit bounds the messages on their way, as an engine's bounded queues do.
const hammerLimit = 1 << 16

// put runs under h.mu.
func (h *hammerCore) put(m shard.Message) {
	if h.closed {
		return
	}
	select {
	case h.queue <- m:
	default:
		h.t.Error("the shard lags without bound")
	}
}

// Deliver implements runtime.Core.
func (h *hammerCore) Deliver(_ shard.ID, _ shard.Epoch, replies []shard.Reply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, reply := range replies {
		switch r := reply.(type) {
		case shard.Ready:
			h.put(shard.Place{Epoch: epoch, Requests: []shard.PlaceRequest{{Class: oneCPU(), Count: 16}}})
		case shard.Placed:
			m := shard.Launch{Epoch: epoch}
			for _, a := range r.Results[0].Assignments {
				h.placed++
				h.sent[runID(h.placed)] = true
				m.Launches = append(m.Launches, shard.LaunchRun{Lease: a.Lease, HostID: a.Host, Launch: driver.Launch{Run: runID(h.placed)}})
			}
			h.put(m)
		case shard.RunStatus:
			h.status(r.Status)
		case shard.Foreign:
			for _, s := range r.Statuses {
				h.status(s)
			}
		case shard.LaunchRefused:
			h.end(r.Runs...)
		case shard.RunsMissing:
			h.end(r.Runs...)
		}
	}
}

func (h *hammerCore) status(s driver.Status) {
	if s.Token != 0 {
		h.put(shard.Acknowledge{Epoch: epoch, Tokens: []driver.Token{s.Token}})
	}
	if s.State.Traits().Terminal {
		h.end(s.Run)
		return
	}
	h.put(shard.Kill{Epoch: epoch, Kills: []driver.Kill{{Run: s.Run}}})
}

func (h *hammerCore) end(runs ...workload.RunID) {
	for _, id := range runs {
		if h.sent[id] {
			h.sent[id] = false
			h.ended++
			if h.ended%16 == 0 {
				h.put(shard.Place{Epoch: epoch, Requests: []shard.PlaceRequest{{Class: oneCPU(), Count: 16}}})
			}
		}
	}
}

// TestHammer runs a core that asks for more all the time over a cluster whose calls fail and which comes and goes. Afterwards every run
// has come to an end, and none was started twice.
func TestHammer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster("a", "b", "c")
		h := &hammerCore{t: t, queue: make(chan shard.Message, hammerLimit), sent: map[workload.RunID]bool{}}
		b := newBench(t, c, func(config *runtime.Config) { config.Core = h })
		b.send(shard.Assign{Epoch: epoch})
		b.send(shard.Replay{Epoch: epoch, Done: true})
		var sender sync.WaitGroup
		sender.Go(func() {
			for m := range h.queue {
				b.send(m)
				time.Sleep(100 * time.Microsecond) // lets the cluster's troubles fall between any two messages
			}
		})
		for round := range 40 {
			c.set(func(c *cluster) {
				c.fail["launch"], c.fail["kill"], c.fail["acknowledge"], c.fail["reconcile"] = round%3, round%5, round%4, round%2
			})
			time.Sleep(37 * time.Millisecond)
			c.cut()
			time.Sleep(5 * time.Millisecond)
			c.connect()
		}
		h.mu.Lock()
		h.closed = true
		close(h.queue)
		h.mu.Unlock()
		sender.Wait()
		time.Sleep(time.Hour) // retries and leases
		synctest.Wait()
		h.check(c)
		b.finish()
	})
}

func (h *hammerCore) check(c *cluster) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.ended < 200 {
		h.t.Errorf("only %d runs ended", h.ended)
	}
	for id, r := range c.runs {
		if r.launches > 1 {
			h.t.Errorf("run %v was launched %d times", id, r.launches)
		}
		if ended := r.last.State.Traits().Terminal; ended && h.sent[id] {
			h.t.Errorf("run %v has ended and the core was not told", id)
		}
	}
}
