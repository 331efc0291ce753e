package sim

import (
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// party is whose work is counted together in one pool and all below it: an owner's ordinary work, or everybody's revocable work.
type party struct {
	path, owner string
	revocable   bool
}

// checkLedgers holds the ledgers beside the pools' own against the instances: what each owner's work and what revocable work holds. Neither
// may grow beyond its bound; what was bounded anew under running work may stay.
func (c *cell) checkLedgers(reader scheduler.Reader, jobs []scheduler.JobView, held []resource.Vector, pools []scheduler.PoolView) {
	now := countParties(jobs, held)
	was := c.partiesNow(pools)
	for n := range pools {
		p := &pools[n]
		if p.Path == "/" {
			continue
		}
		slack := party{path: p.Path, revocable: true}
		if p.Revocable.Usage != now[slack] {
			c.w.fail(CheckPools, "pool %s says that revocable work uses %v; its instances hold %v", p.Path, p.Revocable.Usage, now[slack])
		}
		for k, used := range now[slack] {
			if leaf(pools, p.Path) && used > was[slack][k] && used > p.Revocable.Entitlement[k] {
				c.w.fail(CheckPools, "revocable work of pool %s grew to %d of kind %d, over its %d of the slack", p.Path, used, k, p.Revocable.Entitlement[k])
			}
		}
		for _, u := range reader.PoolOwners(p.Pool.ID) {
			who := party{path: p.Path, owner: u.Owner}
			if u.Usage != now[who] {
				c.w.fail(CheckPools, "pool %s says that %s uses %v; his instances hold %v", p.Path, u.Owner, u.Usage, now[who])
			}
			for k, used := range now[who] {
				if limit := p.Pool.UserLimit.Of(resource.Kind(k)); used > was[who][k] && limit != respool.Unlimited && used > limit {
					c.w.fail(CheckPools, "%s grew to %d of kind %d in pool %s, over his limit of %d", u.Owner, used, k, p.Path, limit)
				}
			}
		}
	}
	c.parties = ofLeaves(pools, now)
}

func countParties(jobs []scheduler.JobView, held []resource.Vector) map[party]resource.Vector {
	sums := map[party]resource.Vector{}
	for n := range jobs {
		j := &jobs[n]
		if j.ByState[workload.InstanceAdmitted]+j.ByState[workload.InstanceActive] == 0 {
			continue
		}
		who := party{owner: j.Spec.Owner}
		if j.Spec.Revocable {
			who = party{revocable: true}
		}
		for path := j.PoolPath; path != ""; path = path[:strings.LastIndexByte(path, '/')] {
			who.path = path
			sums[who] = sums[who].Add(held[n])
		}
	}
	return sums
}

// partyOf is a party in a leaf, wherever that stands.
type partyOf struct {
	pool      workload.PoolID
	owner     string
	revocable bool
}

func ofLeaves(pools []scheduler.PoolView, sums map[party]resource.Vector) map[partyOf]resource.Vector {
	out := map[partyOf]resource.Vector{}
	ids := map[string]workload.PoolID{}
	for n := range pools {
		if leaf(pools, pools[n].Path) {
			ids[pools[n].Path] = pools[n].Pool.ID
		}
	}
	for who, sum := range sums {
		if id, ok := ids[who.path]; ok {
			out[partyOf{id, who.owner, who.revocable}] = sum
		}
	}
	return out
}

// partiesNow sums what parties held up along the tree of now: work that moved with its pool is no growth.
func (c *cell) partiesNow(pools []scheduler.PoolView) map[party]resource.Vector {
	paths := map[workload.PoolID]string{}
	for n := range pools {
		paths[pools[n].Pool.ID] = pools[n].Path
	}
	sums := map[party]resource.Vector{}
	for who, held := range c.parties {
		for path := paths[who.pool]; path != "" && path != "/"; path = path[:strings.LastIndexByte(path, '/')] {
			key := party{path: path, owner: who.owner, revocable: who.revocable}
			sums[key] = sums[key].Add(held)
		}
	}
	return sums
}
