package scheduler

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/admission"
	"github.com/paceline-sched/paceline/core/estimate"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// queueKey names one of a pool's two queues. Revocable work has a ledger of its own, so ordinary work and it never wait for one another.
type queueKey struct {
	pool      workload.PoolID
	revocable bool
}

// poolQueue is the waiting work of one pool in one of the two ledgers, and the demand of all its jobs there.
type poolQueue struct {
	queueKey
	queue   admission.Queue
	stirred bool
	demand  respool.Demand
	parts   map[partKey]*respool.Demand // of demand
	changed bool                        // demand differs from what the tree was told
	spared  bool                        // room was given back unused for work of higher priority: what every shard refuses next looks again
	running []*job                      // those with live runs, in no order
	dying   resource.Vector             // of the usage: by runs that make room for others and have not ended yet
	ending  resource.Vector             // of the usage: by all runs that are being killed, those among them
	keeping bool                        // room is kept on hosts for one of its jobs
	// The lowest priority of running work that may be preempted, as of a Step.
	lowestIn uint64
	lowestIs int32
	anyLower bool
	// onClusters is what its live runs hold in each cluster, by name.
	onClusters map[string]resource.Vector

	ends     admission.Ends   // of charged instances
	pace     estimate.Pace    // of its starts
	shares   *admission.Usage // where owners take turns
	halfLife time.Duration    // of shares
	wakes    int64            // when its next timer fires; 0: none does

	waits       map[waitKey]*waitGroup
	waitList    []*waitGroup // the same, in no order that means anything
	waitingJobs int          // that are in any of them
}

// partKey says whose demand is bounded together: an owner's, and that of work which may use the same clusters only.
type partKey struct {
	owner    string
	clusters string // sorted, joined by '\n'; empty: all
}

func (s *State) queueOf(spec *workload.JobSpec) *poolQueue {
	key := queueKey{spec.Pool, spec.Revocable}
	q := s.queues[key]
	if q == nil {
		q = &poolQueue{queueKey: key, parts: map[partKey]*respool.Demand{}, onClusters: map[string]resource.Vector{}}
		s.queues[key] = q
		s.followPolicy(q, true)
	}
	return q
}

// queueOfJob is queueOf for what is done for every run. A pool, and with it its queue, outlives whatever of it is charged.
func (s *State) queueOfJob(j *job) *poolQueue {
	if j.queue == nil {
		j.queue = s.queueOf(j.spec)
	}
	return j.queue
}

// queuesOf visits the queues that a pool has.
func (s *State) queuesOf(id workload.PoolID) []*poolQueue {
	both := make([]*poolQueue, 0, 2)
	for _, revocable := range []bool{false, true} {
		if q := s.queues[queueKey{id, revocable}]; q != nil {
			both = append(both, q)
		}
	}
	return both
}

// work says in which ledgers the job counts.
func (j *job) work() respool.Work {
	return respool.Work{
		Owner: j.spec.Owner, NonPreemptible: !j.spec.Preemptible, Controller: j.spec.Controller, Revocable: j.spec.Revocable,
	}
}

// charge keeps the pool ledger of one instance.
func (s *State) charge(j *job, needs *resource.Vector, on bool) {
	s.accounts.moved = true
	q := s.queueOfJob(j)
	if on {
		j.usage = j.usage.Add(*needs)
		s.pools.Charge(j.spec.Pool, *needs, j.work())
		if q.shares != nil {
			q.shares.Charge(s.now, j.spec.Owner, *needs)
		}
		return
	}
	j.usage = j.usage.Sub(*needs)
	s.pools.Refund(j.spec.Pool, *needs, j.work())
	if q.shares != nil {
		q.shares.Refund(s.now, j.spec.Owner, *needs)
	}
	if q.queue.Len() > 0 {
		s.stir(q)
	}
}

// hold keeps count of what a pool's live runs hold in a cluster.
func (q *poolQueue) hold(cluster string, needs *resource.Vector, on bool) {
	held := q.onClusters[cluster]
	if on {
		q.onClusters[cluster] = held.Add(*needs)
		return
	}
	if held = held.Sub(*needs); held.IsZero() {
		delete(q.onClusters, cluster)
		return
	}
	q.onClusters[cluster] = held
}

// demands replaces what a job demands of its pool.
func (s *State) demands(j *job, demand resource.Vector) {
	q := s.queueOf(j.spec)
	if j.part == nil {
		j.part = &partKey{j.spec.Owner, strings.Join(slices.Sorted(slices.Values(j.spec.Placement.Clusters)), "\n")}
	}
	part := q.parts[*j.part]
	if part == nil {
		part = &respool.Demand{}
		q.parts[*j.part] = part
	}
	for _, d := range [...]*respool.Demand{&q.demand, part} {
		for _, v := range j.countsIn(d) {
			*v = v.Sub(j.demand).Add(demand)
		}
	}
	if *part == (respool.Demand{}) {
		delete(q.parts, *j.part)
	}
	j.demand = demand
	q.changed = true
	s.demandOff = true
}

// countsIn lists the figures of a demand that the job is part of.
func (j *job) countsIn(d *respool.Demand) []*resource.Vector {
	figures := make([]*resource.Vector, 0, 2)
	switch {
	case j.spec.Revocable:
		return append(figures, &d.Revocable)
	case j.spec.Preemptible:
		figures = append(figures, &d.Preemptible)
	default:
		figures = append(figures, &d.NonPreemptible)
	}
	if j.spec.Controller {
		figures = append(figures, &d.Controllers)
	}
	return figures
}

// tellDemands gives the tree the demand of the pools in which it may have changed.
func (s *State) tellDemands() {
	for id := range s.pools.IDs() {
		queues := s.queuesOf(id)
		changed := false
		for _, q := range queues {
			changed = changed || q.changed || (s.poolsDirty && len(q.parts) > 0)
			q.changed = false
		}
		if !changed || !s.pools.IsLeaf(id) {
			continue
		}
		s.tellDemand(s.pools, id, queues)
	}
}

// tellDemand gives a tree, the cell's or a copy, the demand of one pool.
func (s *State) tellDemand(t *respool.Tree, id workload.PoolID, queues []*poolQueue) {
	var total respool.Demand
	for _, q := range queues {
		d := s.countable(t, q)
		q.withExpressRoom(t, &d)
		if q.revocable {
			total.Revocable = d.Revocable
		} else {
			total.Preemptible, total.NonPreemptible, total.Controllers = d.Preemptible, d.NonPreemptible, d.Controllers
		}
	}
	t.SetDemand(id, total)
}

// countable is the demand of a queue without what could not be used even if the pool were entitled to it: what goes beyond an owner's
// limit, and beyond the capacity of the clusters that some of the work is bound to. Both bounds count; what is in use counts in any case.
func (s *State) countable(t *respool.Tree, q *poolQueue) respool.Demand {
	limited := !q.revocable && t.LimitsOwners(q.pool)
	owners, sets := map[string]resource.Vector{}, map[string]resource.Vector{}
	restricted := false
	for key, part := range q.parts {
		all := part.Preemptible.Add(part.NonPreemptible).Add(part.Revocable)
		owners[key.owner], sets[key.clusters] = owners[key.owner].Add(all), sets[key.clusters].Add(all)
		restricted = restricted || key.clusters != ""
	}
	if !limited && !restricted {
		return q.demand
	}
	byOwner, bySet := resource.Vector{}, resource.Vector{}
	for owner, demand := range owners {
		if limited {
			bound, _ := t.OwnerBound(q.pool, owner)
			demand = demand.Min(bound.Limit.Max(t.OwnerUsage(q.pool, owner)))
		}
		byOwner = byOwner.Add(demand)
	}
	for set, demand := range sets {
		if set != "" {
			room, held := resource.Vector{}, resource.Vector{}
			for name := range strings.SplitSeq(set, "\n") {
				room, held = room.Add(s.clusters[name]), held.Add(q.onClusters[name])
			}
			demand = demand.Min(room.Max(held))
		}
		bySet = bySet.Add(demand)
	}
	return clip(&q.demand, byOwner.Min(bySet))
}

// clip cuts a demand to a total; what may be preempted goes first.
func clip(d *respool.Demand, total resource.Vector) respool.Demand {
	out := respool.Demand{NonPreemptible: d.NonPreemptible.Min(total)}
	out.Preemptible = d.Preemptible.Min(total.Sub(out.NonPreemptible))
	out.Controllers = d.Controllers.Min(total)
	out.Revocable = d.Revocable.Min(total)
	return out
}

// room is what a queue's ledger leaves.
func (s *State) room(q *poolQueue) (admission.Room, bool) {
	a, ok := s.pools.Account(q.pool)
	if q.revocable {
		return admission.Room{
			Entitlement: a.RevocableEntitlement, Usage: a.RevocableUsage, Now: s.now, Ends: &q.ends, Shares: q.shares,
		}, ok
	}
	r := admission.Room{
		Entitlement: a.Entitlement, Usage: a.Usage, Reservation: a.Reservation, NonPreemptibleUsage: a.NonPreemptibleUsage,
		Now: s.now, Ends: &q.ends, Shares: q.shares,
	}
	if b, bounded := s.pools.ControllerBound(q.pool); bounded {
		r.Controllers = &admission.Bound{Limit: b.Limit, Left: b.Left}
	}
	if s.pools.LimitsOwners(q.pool) {
		r.Owner = func(owner string) (admission.Bound, bool) {
			b, bounded := s.pools.OwnerBound(q.pool, owner)
			return admission.Bound{Limit: b.Limit, Left: b.Left}, bounded
		}
	}
	return r, ok
}

// bar is one thing that a pool measures work by.
type bar struct {
	kind PendingKind
	what string // in a sentence: "is left of the ... of pool /a"
	left resource.Vector
}

// bars lists what a job's work must stay under, the narrowest first.
func (s *State) bars(spec *workload.JobSpec) []bar { return barsIn(s.pools, spec) }

func barsIn(t *respool.Tree, spec *workload.JobSpec) []bar {
	a, _ := t.Account(spec.Pool)
	if spec.Revocable {
		return []bar{{PendingSlack, "slack for revocable work", a.RevocableEntitlement.Sub(a.RevocableUsage)}}
	}
	var list []bar
	if b, bounded := t.OwnerBound(spec.Pool, spec.Owner); bounded {
		list = append(list, bar{PendingUserLimit, "limit of owner " + spec.Owner, b.Left})
	}
	if b, bounded := t.ControllerBound(spec.Pool); bounded && spec.Controller {
		list = append(list, bar{PendingControllerLimit, "part for controllers", b.Left})
	}
	if !spec.Preemptible {
		list = append(list, bar{PendingReservation, "reservation (its work may not be preempted)", a.Reservation.Sub(a.NonPreemptibleUsage)})
	}
	return append(list, bar{PendingEntitlement, "entitlement", a.Entitlement.Sub(a.Usage)})
}

// ClusterPart is a pool's part in one cluster.
type ClusterPart struct {
	Cluster  string
	Capacity resource.Vector // of the cluster's hosts that may take work
	// Entitlement is the pool's, split over the clusters in proportion to their capacities. It is for orientation: a pool may use its
	// entitlement in any cluster, so Usage may well exceed it.
	Entitlement resource.Vector
	Usage       resource.Vector // of ordinary runs; what is admitted and has no host yet is in no cluster
	Revocable   resource.Vector // of revocable runs
}

// PoolClusters splits a pool's figures over the clusters, by name.
func (r Reader) PoolClusters(id workload.PoolID) []ClusterPart {
	s := r.s
	parts := map[string]*ClusterPart{}
	at := func(name string) *ClusterPart {
		if parts[name] == nil {
			parts[name] = &ClusterPart{Cluster: name, Capacity: s.clusters[name]}
		}
		return parts[name]
	}
	for name := range s.clusters {
		at(name)
	}
	for key, q := range s.queues {
		if !s.pools.Within(key.pool, id) {
			continue
		}
		for name, held := range q.onClusters {
			if p := at(name); key.revocable {
				p.Revocable = p.Revocable.Add(held)
			} else {
				p.Usage = p.Usage.Add(held)
			}
		}
	}
	list := make([]ClusterPart, 0, len(parts))
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		list = append(list, *parts[name])
	}
	a, _ := s.pools.Account(id)
	capacities := make([]int64, len(list))
	for k := range a.Entitlement {
		for n := range list {
			capacities[n] = list[n].Capacity[k]
		}
		for n, part := range respool.Apportion(a.Entitlement[k], capacities) {
			list[n].Entitlement[k] = part
		}
	}
	return list
}

// OwnerUsage is what the ordinary work of one owner uses of a pool, and what the pool lets him use.
type OwnerUsage struct {
	respool.OwnerUsage
	Bounded bool
	Bound   respool.Bound // when Bounded
}

// PoolOwners lists those whose ordinary work uses something of a pool, by name.
func (r Reader) PoolOwners(id workload.PoolID) []OwnerUsage {
	all := r.s.pools.Owners(id)
	list := make([]OwnerUsage, 0, min(len(all), MaxPoolOwners))
	for _, u := range all[:cap(list)] {
		o := OwnerUsage{OwnerUsage: u}
		o.Bound, o.Bounded = r.s.pools.OwnerBound(id, u.Owner)
		list = append(list, o)
	}
	return list
}
