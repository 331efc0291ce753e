package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/workload"
)

// message returns what the cell knows of a shard.
func message(v scheduler.CellView, id shard.ID) (ready bool, text string) {
	for _, s := range v.Shards {
		if s.ID == string(id) {
			return s.Ready, s.Message
		}
	}
	return false, "unknown"
}

func TestADeadShardLosesItsWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		dead, live := newCluster(t, "a", 50, oneCore), newCluster(t, "b", 5, oneCore)
		c.attach(dead)
		c.attach(live)
		settle()
		dead.set(func(c *cluster) { c.refuses = errors.New("the process has gone") })
		job := c.do(batch(1, 10)).Job // goes to the larger cluster first
		settle()
		if ready, text := message(c.view(), dead.id); ready || !strings.Contains(text, "the process has gone") {
			t.Errorf("the dead shard is ready %v: %s", ready, text)
		}
		if v, _ := c.job(job.ID); v.ByRun[workload.RunRunning] != 10 || len(live.started) != 10 {
			t.Errorf("beside the dead shard run %d of 10", v.ByRun[workload.RunRunning])
		}
		dead.set(func(c *cluster) { c.refuses = nil })
		c.attach(dead)
		settle()
		if ready, text := message(c.view(), dead.id); !ready {
			t.Errorf("attached again, it is not ready: %s", text)
		}
		c.do(batch(2, 45))
		settle()
		if v := c.view(); v.LiveRuns != 55 {
			t.Errorf("%d of 55 runs live", v.LiveRuns)
		}
	})
}

// A shard that takes nothing and says nothing holds up nobody. Once it is a whole queue behind it is assigned anew.
func TestAStuckShard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		stuck, live := newCluster(t, "a", 1, oneCore), newCluster(t, "b", 5, oneCore)
		c.attach(stuck)
		c.attach(live)
		settle()
		end := make(chan struct{})
		stuck.set(func(c *cluster) { c.stuck = end })
		host := shard.HostID("a", "a-00000")
		c.overrun(host, func() bool {
			ready, _ := message(c.view(), stuck.id)
			return !ready
		})
		job := c.do(batch(1, 10)).Job
		settle()
		if v, _ := c.job(job.ID); v.ByRun[workload.RunRunning] != 10 {
			t.Errorf("beside the stuck shard run %d of 10", v.ByRun[workload.RunRunning])
		}
		stuck.set(func(c *cluster) { c.stuck = nil })
		close(end)
		c.do(scheduler.DrainHost{Host: host})
		settle()
		if ready, text := message(c.view(), stuck.id); !ready {
			t.Errorf("it works again, but is not ready: %s", text)
		}
		if n := len(stuck.epochs); n != 2 {
			t.Errorf("it was assigned %d times, not twice", n)
		}
	})
}

// deaf is a shard that does not mind being given up on: once it is told to, it waits for an end of its own.
type deaf struct {
	*cluster

	mu     sync.Mutex
	behind chan struct{} // closed once the cell gave up on it; nil: it listens
	end    chan struct{}
}

func (d *deaf) Send(ctx context.Context, m shard.Message) error {
	d.mu.Lock()
	behind, end := d.behind, d.end
	d.mu.Unlock()
	if behind == nil {
		return d.cluster.Send(ctx, m)
	}
	<-ctx.Done()
	close(behind)
	<-end
	return ctx.Err()
}

// A shard that was detached when it was a queue behind does not come back by itself.
func TestAShardThatIsBehindIsDetached(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		d := &deaf{cluster: newCluster(t, "a", 1, oneCore)}
		d.engine = c.Engine
		if err := c.Attach(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		settle()
		behind, end := make(chan struct{}), make(chan struct{})
		d.mu.Lock()
		d.behind, d.end = behind, end
		d.mu.Unlock()
		c.overrun(shard.HostID("a", "a-00000"), func() bool {
			select {
			case <-behind:
				return true
			default:
				return false
			}
		})
		c.Detach(d.ID())
		c.do(scheduler.RemoveCluster{Name: "a", Force: true})
		d.mu.Lock()
		d.behind = nil
		d.mu.Unlock()
		close(end)
		settle()
		if v := c.view(); len(v.Shards) != 0 {
			t.Errorf("after it was detached the cell has the shards %+v", v.Shards)
		}
	})
}

// overrun has a cell tell a host's shard more and more, until it is too much.
func (c *cell) overrun(host workload.HostID, tooMuch func() bool) {
	c.t.Helper()
	const atOnce, queue = 1000, 16384
	for sent := 0; !tooMuch(); sent += atOnce { // every other of them, or so, tells the shard something
		if sent > 4*queue {
			c.t.Fatal("a shard that takes nothing is never a queue behind")
		}
		var all sync.WaitGroup
		for n := range atOnce {
			all.Go(func() { c.do(scheduler.DrainHost{Host: host, Draining: n%2 == 0}) })
		}
		all.Wait()
		synctest.Wait()
	}
}

// A cell stops although its shards wait for it to take their replies.
func TestStopWhileShardsDeliver(t *testing.T) {
	for range 20 { // what the loop takes last is a matter of luck
		bubble(t, stopWhileShardsDeliver)
	}
}

func stopWhileShardsDeliver(t *testing.T) {
	steps := &stepper{}
	c := open(t, &memstore.Disk{}, steps.trace()).run()
	hosts := newCluster(t, "c", 10, oneCore)
	c.attach(hosts)
	settle()
	asked := make(chan struct{})
	hosts.set(func(c *cluster) { c.stuck = asked })
	c.do(batch(1, 5)) // the cluster will have an answer to give
	settle()
	steps.hold()
	var all sync.WaitGroup
	for range 300 { // more than the cell keeps waiting
		all.Go(func() { c.Deliver("other/0", shard.Epoch{}, []shard.Reply{shard.Ready{}}) })
	}
	synctest.Wait()
	close(asked)
	synctest.Wait()
	all.Go(func() { _ = c.stop() })
	synctest.Wait()
	steps.release()
	all.Wait()
	c.end()
}
