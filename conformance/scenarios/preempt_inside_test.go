package scenarios

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// family plays pools with limits, owners with limits and work of many priorities inside each pool, most of which goes on for ever. Calm: nothing
// is stopped, lost or started anew.
func family(rt *rapid.T, w *world, calm bool) {
	pick := func(what string, of ...string) string { return rapid.SampledFrom(of).Draw(rt, what) }
	w.block("cluster c a=1000 b=1000 d=1000")
	w.block("cluster e x=1000 y=500")
	pools := []string{"/a", "/b"}
	for _, p := range pools {
		w.block(fmt.Sprintf("pool %s cpu=%d limit=%d user=%s controllers=%d%s", p, 250*rapid.IntRange(0, 4).Draw(rt, "reservation"),
			250*rapid.IntRange(4, 12).Draw(rt, "limit"), pick("user", "500", "1000", "9000"), rapid.IntRange(0, 1).Draw(rt, "controllers")*40,
			pick("queue", "", "", " easy", " order=fair-user", " order=express")))
	}
	jobs := 0
	for range rapid.IntRange(3, 12).Draw(rt, "moves") {
		switch move := rapid.IntRange(0, 11).Draw(rt, "move"); {
		case move < 8 || calm:
			refused := w.block(fmt.Sprintf("run j%d pool=%s owner=%s n=%d cpu=%s priority=%d%s", jobs, pick("pool", pools...), pick("owner", "ann", "bob"),
				rapid.IntRange(1, 6).Draw(rt, "n"), pick("cpu", "100", "250", "400", "500"), rapid.IntRange(0, 4).Draw(rt, "priority"),
				pick("kind", "", "", "", " gang", " gang min=1", " pinned", " kind=service preemptible unavailable=1", " controller", " time=2m",
					" kind=daemon preemptible", " revocable")))
			if refused == "" {
				jobs++
			}
		case move == 8 && jobs > 0:
			w.block(fmt.Sprintf("stop j%d", rapid.IntRange(0, jobs-1).Draw(rt, "which")))
		case move == 9:
			w.block(pick("mood", "stubborn c", "mortal c", "stubborn e", "mortal e", "reattach c", "disconnect e", "reconnect e"))
		case move == 10:
			w.block(pick("host", "lose-host c a", "host c a=1000", "lose-host e x", "host e x=1000", "drain c/b", "undrain c/b"))
		default:
			w.block("crash")
		}
		w.block("advance " + pick("pause", "0s", "100ms", "500ms", "3s", "40s"))
	}
	if !calm {
		w.block("mortal c\nmortal e\nreconnect e")
	}
}

// checkBounds wants that nothing is ever charged beyond a limit of a pool or of an owner.
func (w *world) checkBounds() {
	reader := w.state.Reader()
	for _, p := range reader.Pools("/") {
		if limit := p.Pool.Limit.Of(resource.CPU); limit != respool.Unlimited && p.Usage[resource.CPU] > limit {
			w.fatal(fmt.Sprintf("pool %s uses %d of %d", p.Path, p.Usage[resource.CPU], limit))
		}
		for _, u := range reader.PoolOwners(p.Pool.ID) {
			if u.Bounded && u.Usage[resource.CPU] > u.Bound.Limit[resource.CPU] {
				w.fatal(fmt.Sprintf("%s uses %d of %d in pool %s", u.Owner, u.Usage[resource.CPU], u.Bound.Limit[resource.CPU], p.Path))
			}
		}
	}
}

// eviction is one run that made room.
type eviction struct {
	at     int // among the changes
	victim scheduler.JobView
	of     scheduler.JobView // for whom
}

// evictions reads the history and checks that each run that made room might.
func (w *world) evictions(rt *rapid.T) (list []eviction) {
	seen := map[workload.RunID]bool{}
	for at, c := range w.changes {
		if c.Kind != scheduler.ChangeTask || c.Reason != workload.ReasonPreempted || c.Message == "" || seen[c.Run] {
			continue
		}
		seen[c.Run] = true
		e := eviction{at: at, victim: w.job(c.Name)}
		var of, pool string
		if _, err := fmt.Sscanf(strings.ReplaceAll(c.Message, ":", " "), "preempted for job %s of pool %s", &of, &pool); err != nil {
			rt.Fatalf("%q: %v", c.Message, err)
		}
		e.of = w.job(of)
		v, o := e.victim.Spec, e.of.Spec
		inside := v.Pool == o.Pool && !v.Revocable
		switch {
		case !v.Preemptible:
			rt.Fatalf("job %s may not be preempted, and was: %s", c.Name, c.Message)
		case inside != strings.Contains(c.Message, "its priority"):
			rt.Fatalf("job %s of pool %s: %s", c.Name, e.victim.PoolPath, c.Message)
		case inside && v.Priority >= o.Priority:
			rt.Fatalf("job %s has priority %d: %s", c.Name, v.Priority, c.Message)
		}
		list = append(list, e)
	}
	return list
}

// checkHelped wants that after each eviction somebody started for whom it was: the work that is named, or other work of its pool that goes before
// it, which took the room.
func (w *world) checkHelped(rt *rapid.T, list []eviction) {
	for _, e := range list {
		helped := false
		for _, c := range w.changes[e.at:] {
			if c.Kind == scheduler.ChangeTask && c.RunState == workload.RunPlaced {
				j := w.job(c.Name)
				helped = helped || j.Spec.Name == e.of.Spec.Name || j.Spec.Pool == e.of.Spec.Pool && j.Spec.Priority >= e.of.Spec.Priority
			}
		}
		if !helped {
			rt.Fatalf("job %s made room for job %s in vain:\n%s\n%s", e.victim.Spec.Name, e.of.Spec.Name, w.showJobs(), w.showPools())
		}
	}
}

// TestPreemptionInsidePools plays pools whose own work contends for them. Whatever happens: who makes room has lower priority, nothing goes past
// a limit, and a cell to which nothing happens any more comes to rest. Where nothing fails, everybody who made room helped somebody.
func TestPreemptionInsidePools(t *testing.T) {
	inside, calms := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.fatal = func(m string) { rt.Fatal(m) }
		w.cfg.JobRetention = 24 * time.Hour // the history names jobs that were stopped
		w.block("crash")
		w.after = w.checkBounds
		calm := rapid.Bool().Draw(rt, "calm")
		family(rt, w, calm)
		w.block("advance 15m")
		list := w.evictions(rt)
		w.block("advance 70m") // nothing that runs is young any more, so no room is kept for it to end
		if more := w.evictions(rt); len(more) != len(list) {
			rt.Fatalf("%d runs made room, and %d more in an hour in which nothing was asked for; the first for %s of %s:\n%s\n%s", len(list),
				len(more)-len(list), more[len(list)].of.Spec.Name, more[len(list)].victim.Spec.Name, w.showJobs(), w.showPools())
		}
		for _, name := range w.clusterNames() {
			if held := w.clusters[name].machine.Stats().Held; held != 0 {
				rt.Fatalf("cluster %s keeps room for %d tasks on hosts that nobody leaves:\n%s\n%s", name, held, w.showJobs(), w.showPools())
			}
		}
		if calm {
			w.checkHelped(rt, list)
			calms++
		}
		for _, e := range list {
			if e.victim.Spec.Pool == e.of.Spec.Pool {
				inside++
			}
		}
		checkNobodyWaitsBelow(rt, w)
	})
	if inside < 20 || calms == 0 {
		t.Errorf("%d runs made room inside a pool: the pools are too peaceful", inside)
	}
}

// checkNobodyWaitsBelow is a weak oracle: a job of single alike tasks without any bound of its own does not wait while one task of lower priority
// in its pool, as large as one of its own and without a budget, runs.
func checkNobodyWaitsBelow(rt *rapid.T, w *world) {
	jobs, _ := w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	plain := func(j *scheduler.JobView) bool {
		s := j.Spec
		return s.Kind == workload.Batch && s.Gang == nil && !s.Controller && !s.Revocable && s.Preemptible && j.Goal == scheduler.GoalRun
	}
	first := map[workload.PoolID]int32{} // highest priority that waits
	for n := range jobs {
		if j := &jobs[n]; j.ByState[workload.InstancePending] > 0 {
			if p, some := first[j.Spec.Pool]; !some || p < j.Spec.Priority {
				first[j.Spec.Pool] = j.Spec.Priority
			}
		}
	}
	for n := range jobs {
		j := &jobs[n]
		if !plain(j) || j.ByState[workload.InstancePending] == 0 || j.Spec.Priority < first[j.Spec.Pool] {
			continue
		}
		if p, _ := w.state.Reader().PoolByID(j.Spec.Pool); p.Pool.Queue.Order == respool.OrderExpress {
			continue // short work may use what it may not
		}
		for m := range jobs {
			o := &jobs[m]
			if !plain(o) || o.Spec.Pool != j.Spec.Pool || o.Spec.Owner != j.Spec.Owner || o.Spec.Priority >= j.Spec.Priority || o.ByState[workload.InstanceActive] == 0 {
				continue
			}
			if o.Spec.Template.Needs[resource.CPU] >= j.Spec.Template.Needs[resource.CPU] && first[j.Spec.Pool] < math.MaxInt32 && alone(jobs, j) {
				rt.Fatalf("job %s waits and lower job %s of its owner and pool runs:\n%s\n%s", j.Spec.Name, o.Spec.Name, w.showJobs(), w.showPools())
			}
		}
	}
}

// alone reports whether no other job of its pool and priority waits.
func alone(jobs []scheduler.JobView, j *scheduler.JobView) bool {
	for n := range jobs {
		o := &jobs[n]
		if o.ID != j.ID && o.Spec.Pool == j.Spec.Pool && o.Spec.Priority >= j.Spec.Priority && o.ByState[workload.InstancePending] > 0 {
			return false
		}
	}
	return true
}
