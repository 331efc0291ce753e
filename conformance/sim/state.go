package sim

import (
	"fmt"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// books is what the instances of a pool's subtree come to, counted one by one.
type books struct{ usage, firm resource.Vector }

// checkPools adds up what every pool's instances hold and holds it against the pool's own books and bounds. A bound that was lowered under
// running work may be passed by what runs already, never by more.
func (c *cell) checkPools() {
	reader, pools, jobs := c.state.Reader(), c.pools, c.jobs
	held := heldBy(reader, jobs)
	now, charged := c.addUp(jobs, held)
	was := c.whereNow(pools)
	shared := map[string]resource.Vector{} // entitlements of children, by parent
	for n := range pools {
		p := &pools[n]
		if p.Path == "/" {
			continue
		}
		b, before := now[p.Path], was[p.Path]
		if p.Usage != b.usage {
			c.w.fail(CheckPools, "pool %s says that it uses %v; its instances hold %v", p.Path, p.Usage, b.usage)
		}
		if p.NonPreemptible != b.firm {
			c.w.fail(CheckPools, "pool %s says that %v of its usage stays; by its instances it is %v", p.Path, p.NonPreemptible, b.firm)
		}
		for k := range b.usage {
			limit := p.Pool.Limit.Of(resource.Kind(k))
			switch {
			case p.Entitlement[k] > limit:
				c.w.fail(CheckEntitlement, "pool %s is entitled to %d of kind %d, over its limit of %d", p.Path, p.Entitlement[k], k, limit)
			case b.usage[k] <= before.usage[k]:
			case b.usage[k] > limit:
				c.w.fail(CheckPools, "pool %s grew to %d of kind %d, over its limit of %d", p.Path, b.usage[k], k, limit)
			case b.usage[k] > p.Entitlement[k] && leaf(pools, p.Path):
				c.w.fail(CheckPools, "pool %s grew to %d of kind %d, over its entitlement of %d", p.Path, b.usage[k], k, p.Entitlement[k])
			}
			if leaf(pools, p.Path) && b.firm[k] > before.firm[k] && b.firm[k] > p.Reservation[k] {
				c.w.fail(CheckPools, "pool %s holds %d of kind %d that may not be preempted, over its reservation of %d", p.Path, b.firm[k], k, p.Reservation[k])
			}
		}
		shared[p.Parent] = shared[p.Parent].Add(p.Entitlement)
	}
	for n := range pools {
		p := &pools[n]
		if sum := shared[p.Path]; !sum.FitsIn(&p.Entitlement) {
			c.w.fail(CheckEntitlement, "the children of pool %s are entitled to %v, more than its %v", p.Path, sum, p.Entitlement)
		}
	}
	c.checkLedgers(reader, jobs, held, pools)
	c.checkEntitlements(pools)
	c.checkQueues(pools, jobs, c.charged, charged)
	c.before, c.charged = byPool(pools, now), charged
}

// byPool gives the books of leaves to the pools that stand there: a pool may be elsewhere after the next Step.
func byPool(pools []scheduler.PoolView, sums map[string]books) map[workload.PoolID]books {
	out := make(map[workload.PoolID]books, len(pools))
	for n := range pools {
		if leaf(pools, pools[n].Path) {
			out[pools[n].Pool.ID] = sums[pools[n].Path]
		}
	}
	return out
}

// whereNow sums the books of before up along the tree of now: work that moved with its pool is no growth.
func (c *cell) whereNow(pools []scheduler.PoolView) map[string]books {
	sums := map[string]books{}
	for n := range pools {
		b := c.before[pools[n].Pool.ID]
		for path := pools[n].Path; path != "" && path != "/"; path = path[:strings.LastIndexByte(path, '/')] {
			s := sums[path]
			sums[path] = books{s.usage.Add(b.usage), s.firm.Add(b.firm)}
		}
	}
	return sums
}

func leaf(pools []scheduler.PoolView, path string) bool {
	for n := range pools {
		if pools[n].Parent == path {
			return false
		}
	}
	return true
}

// heldBy counts, instance by instance, what each job is to be charged for.
func heldBy(reader scheduler.Reader, jobs []scheduler.JobView) []resource.Vector {
	held := make([]resource.Vector, len(jobs))
	for n := range jobs {
		j := &jobs[n]
		if j.ByState[workload.InstanceAdmitted]+j.ByState[workload.InstanceActive] == 0 {
			continue
		}
		tasks, _ := reader.Tasks(j.ID, 0, 1<<20, scheduler.TaskFilter{
			States: []workload.InstanceState{workload.InstanceAdmitted, workload.InstanceActive},
		})
		for i := range tasks {
			if t := &tasks[i]; t.State == workload.InstanceAdmitted || t.RunState.Live() {
				held[n] = held[n].Add(needsOf(j.Spec, t.Instance))
			}
		}
	}
	return held
}

// addUp sums what is charged to each pool and those above it, and for each job.
func (c *cell) addUp(jobs []scheduler.JobView, held []resource.Vector) (map[string]books, charges) {
	sums, charged := map[string]books{}, charges{}
	for n := range jobs {
		j := &jobs[n]
		admitted := j.ByState[workload.InstanceAdmitted]
		if j.Spec.Revocable || admitted+j.ByState[workload.InstanceActive] == 0 {
			continue // revocable work counts in a ledger of its own
		}
		if wholeGang(j.Spec) && admitted != 0 && admitted != j.Spec.Instances {
			c.w.fail(CheckGangs, "%d of the %d members of gang %s are admitted", admitted, j.Spec.Instances, j.Spec.Name)
		}
		b := books{usage: held[n]}
		if charged[j.ID] = b.usage; !j.Spec.Preemptible {
			b.firm = b.usage
		}
		for path := j.PoolPath; path != ""; path = path[:strings.LastIndexByte(path, '/')] {
			s := sums[path]
			sums[path] = books{s.usage.Add(b.usage), s.firm.Add(b.firm)}
		}
	}
	return sums, charged
}

// describe tells all about a job that is not where it should be.
func (w *world) describe(j scheduler.JobView) string {
	var out strings.Builder
	fmt.Fprintf(&out, "job %s (%s) in %s is %s, goal %s, generation %d, restart %+v, %v %v\n", j.Spec.Name, j.ID, j.PoolPath, j.State, j.Goal,
		j.Generation, j.Restart, j.ByState, j.ByRun)
	e, _ := w.cell.state.Reader().Explain(j.ID)
	for _, r := range e.Reasons {
		fmt.Fprintf(&out, "  %s %d: %s %+v\n", r.Kind, r.Instances, r.Message, r.Hosts)
	}
	tasks, _ := w.cell.state.Reader().Tasks(j.ID, 0, 8, scheduler.TaskFilter{})
	for _, t := range tasks {
		fmt.Fprintf(&out, "  %d: %s %s %s, run %d of generation %d on %s/%s since %d\n", t.Instance, t.State, t.RunState, t.Reason, t.Run,
			t.Generation, t.Cluster, t.HostName, t.Since)
	}
	fmt.Fprintf(&out, "  spec %+v", *j.Spec)
	return out.String()
}
