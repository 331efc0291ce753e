package engine_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/paceline-sched/paceline/core/engine"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/store/memstore"
	"github.com/paceline-sched/paceline/core/workload"
)

// quota is a policy that a test writes.
type quota func(s *respool.Snapshot) ([]resource.Vector, error)

func (q quota) Entitle(s *respool.Snapshot) ([]resource.Vector, error) { return q(s) }

// guarantees entitles pools to what they are guaranteed, and nobody to more.
func guarantees(s *respool.Snapshot) ([]resource.Vector, error) {
	values := make([]resource.Vector, len(s.Rows))
	for i := range s.Rows {
		for k := range s.Kinds {
			values[i][k] = s.Rows[i].Guarantee(resource.Kind(k))
		}
	}
	return values, nil
}

func (c *cell) pool(path string) (v scheduler.PoolView) {
	c.t.Helper()
	if err := c.Read(c.t.Context(), func(r scheduler.Reader) { v, _ = r.Pool(path) }); err != nil {
		c.t.Fatal(err)
	}
	return v
}

func (c *cell) advisers() (list []scheduler.AdviserView) {
	c.t.Helper()
	if err := c.Read(c.t.Context(), func(r scheduler.Reader) { list = r.Advisers() }); err != nil {
		c.t.Fatal(err)
	}
	return list
}

func TestAPolicyEntitlesPools(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil)
		if err := c.UseQuota("strict@1", quota(guarantees)); err != nil { // before it runs
			t.Fatal(err)
		}
		c.run()
		defer c.end()
		c.attach(newCluster(t, "c", 2, oneCore))
		c.do(batch(1, 5))
		settle()
		if p := c.pool("/default"); p.EntitledBy != "policy strict@1" || p.Entitlement[resource.CPU] != 500 {
			t.Fatalf("by %q it is entitled to %v", p.EntitledBy, p.Entitlement)
		}
		var calls atomic.Int64
		for _, bad := range []struct {
			name, want string
			policy     quota
		}{
			{"broken@1", "out of order", func(*respool.Snapshot) ([]resource.Vector, error) { return nil, errors.New("out of order") }},
			{"panics@1", "panicked: no", func(*respool.Snapshot) ([]resource.Vector, error) { panic("no") }},
			{"short@1", "0 entitlements for", func(*respool.Snapshot) ([]resource.Vector, error) { return nil, nil }},
			{"nobody@1", "no policy is in force", nil},
		} {
			policy := bad.policy
			var p respool.Quota
			if policy != nil {
				p = quota(func(s *respool.Snapshot) ([]resource.Vector, error) { calls.Add(1); return policy(s) })
			}
			if err := c.UseQuota(bad.name, p); err != nil {
				t.Fatal(err)
			}
			settle()
			if p := c.pool("/default"); !strings.Contains(p.EntitledBy, "max-min: policy "+bad.name) || !strings.Contains(p.EntitledBy, bad.want) {
				t.Errorf("%s: by %q it is entitled to %v", bad.name, p.EntitledBy, p.Entitlement)
			}
		}
		if err := c.UseQuota("", nil); err != nil {
			t.Fatal(err)
		}
		before := calls.Load()
		c.do(batch(2, 5))
		settle()
		if p := c.pool("/default"); p.EntitledBy != "" || calls.Load() != before {
			t.Errorf("by %q it is entitled to %v, a policy that is not in force was called", p.EntitledBy, p.Entitlement)
		}
	})
}

// adviser is a policy of victims that a test writes.
type adviser func(contenders []preemption.Contender) ([]int32, error)

func (a adviser) Rank(contenders []preemption.Contender) ([]int32, error) { return a(contenders) }

func TestAPolicyRanksVictims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		defer c.end()
		c.attach(newCluster(t, "c", 1, oneCore))
		low, other := batch(1, 5), batch(2, 5)
		c.do(low)
		settle()
		c.do(other) // built in: it would go, having started last
		settle()
		if err := c.UseRanks("first-job@1", adviser(func(contenders []preemption.Contender) ([]int32, error) {
			ranks := make([]int32, len(contenders))
			for n := range contenders {
				if ranks[n] = 7; contenders[n].Job == low.ID {
					ranks[n] = 3
				}
			}
			return ranks, nil
		})); err != nil {
			t.Fatal(err)
		}
		high := batch(3, 3)
		high.Spec.Priority = 5
		c.do(high)
		for range 3 {
			settle()
		}
		if v, _ := c.job(high.ID); v.ByRun[workload.RunRunning] != 3 {
			t.Fatalf("of 3 run %d", v.ByRun[workload.RunRunning])
		}
		if v, _ := c.job(low.ID); v.ByRun[workload.RunRunning] != 2 {
			t.Errorf("of the job that is to go first run %d", v.ByRun[workload.RunRunning])
		}
		for _, a := range c.advisers() {
			if a.Kind == scheduler.RankPolicy && (a.Answers == 0 || a.Failures != 0 || a.By != "first-job@1") {
				t.Errorf("%+v", a)
			}
		}
	})
}

func TestPoliciesAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := open(t, &memstore.Disk{}, nil).run()
		c.end()
		if err := c.UseQuota("late@1", quota(guarantees)); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("quota: %v", err)
		}
		if err := c.UseRanks("", nil); !errors.Is(err, engine.ErrStopped) {
			t.Errorf("ranks: %v", err)
		}
	})
}
