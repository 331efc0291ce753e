package engine_test

import (
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
		const atOnce, queue = 1000, 16384
		host := shard.HostID("a", "a-00000")
		ready := true
		for sent := 0; ready && sent <= 4*queue; sent += atOnce { // every other of them, or so, tells the shard something
			var all sync.WaitGroup
			for n := range atOnce {
				all.Go(func() { c.do(scheduler.DrainHost{Host: host, Draining: n%2 == 0}) })
			}
			all.Wait()
			synctest.Wait()
			ready, _ = message(c.view(), stuck.id)
		}
		if ready {
			t.Error("a shard that is a queue behind is ready")
		}
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
