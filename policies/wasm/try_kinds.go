package wasm

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// What policies without a table of hosts are tried with: little, then much.
var (
	trialPools      = []int{2, 30} // below the root, and below each of those
	trialContenders = []int{1, 256}
	trialClusters   = []int{1, 128}
)

// tryKind tries a policy as one of a kind. What its calls cost is what those to come are measured by.
func (v *Version) tryKind(kind policyabi.Kind) error {
	slot := &Slot{}
	slot.Swap(v)
	config := AskConfig{Slot: slot}
	var ask func(size int) (*caller, error)
	switch kind {
	case policyabi.Quota:
		q := NewQuota(config)
		defer q.Close()
		ask = func(size int) (*caller, error) {
			_, err := q.Entitle(trialTree(trialPools[size]))
			return &q.caller, err
		}
	case policyabi.Preempt:
		r := NewRanker(config)
		defer r.Close()
		ask = func(size int) (*caller, error) {
			_, err := r.Rank(trialVictims(trialContenders[size]))
			return &r.caller, err
		}
	case policyabi.Route:
		r := NewRouter(config, nil)
		defer r.Close()
		ask = func(size int) (*caller, error) { return &r.caller, r.try(trialClusters[size]) }
	case policyabi.Place:
		return v.tryPlace()
	default:
		return fmt.Errorf("there is no trial for policies of kind %s", kind)
	}
	budget := &v.budgets[kind]
	for range 2 { // a second time for what the first one only set up
		for size := range 2 {
			before := v.counters.Fuel.Load()
			c, err := ask(size)
			if err != nil {
				return err
			}
			budget.used(c.work, int64(v.counters.Fuel.Load()-before))
		}
	}
	budget.seal()
	return nil
}

// trialTree is a snapshot of a tree of two levels with n pools in each place, whose work wants more than there is.
func trialTree(n int) *respool.Snapshot {
	var pools []respool.Pool
	add := func(parent workload.PoolID, i, depth int, reservation int64) workload.PoolID {
		id := workload.PoolID{0: 1, 1: byte(depth), 2: byte(len(pools) >> 8), 3: byte(len(pools))}
		p := respool.Pool{ID: id, Parent: parent, Name: fmt.Sprintf("trial-%d", i), Kind: respool.Elastic, Share: int64(1 + i%4)}
		p.Reservation[resource.CPU], p.Reservation[resource.Memory] = reservation, 4*reservation
		switch i % 7 {
		case 3:
			p.Limit = p.Limit.With(resource.CPU, 2*reservation)
		case 5:
			p.Kind = respool.Static
		}
		pools = append(pools, p)
		return id
	}
	for i := range n {
		above := add(respool.RootID, i, 1, int64(1000*n))
		for j := range n {
			add(above, j, 2, 500)
		}
	}
	names := &resource.Names{}
	t, err := respool.NewTree(names, pools)
	if err != nil {
		panic("the trial's own pools are within bounds: " + err.Error())
	}
	i := int64(0)
	for id := range t.IDs() {
		if i++; !t.IsLeaf(id) {
			continue
		}
		t.SetDemand(id, respool.Demand{
			Preemptible:    resource.Vector{resource.CPU: i * 7919 % 4000, resource.Memory: i * 104729 % 9000},
			NonPreemptible: resource.Vector{resource.CPU: i % 3 * 200},
		})
		t.Charge(id, resource.Vector{resource.CPU: i % 5 * 300}, respool.Work{})
	}
	total := int64(n) * int64(n) * 1200
	t.Entitle(resource.Vector{resource.CPU: total, resource.Memory: 4 * total, resource.Disk: 1 << 40})
	return t.Snapshot()
}

func trialVictims(n int) []preemption.Contender {
	list := make([]preemption.Contender, n)
	for i := range list {
		c := &list[i]
		c.Job, c.Pool = workload.JobID{0: byte(i), 1: byte(i >> 8), 15: 1}, workload.PoolID{0: byte(i % 9), 15: 1}
		c.Priority, c.Over, c.Revocable = int32(i%11-5), int64(i%9)*100_000, i%8 == 7
		c.Runs, c.Use = int32(1+i%20), resource.Vector{resource.CPU: int64(1+i%20) * 1000, resource.Memory: int64(1+i%20) * 2048}
		c.Work = int64(i*7919%100_000) * int64(time.Second)
		if i%6 == 0 {
			c.Gang = c.Runs
		}
	}
	return list
}

// try asks about some requests of different classes over n clusters.
func (r *Router) try(n int) error {
	clusters := make([]Cluster, n)
	for i := range clusters {
		total := resource.Vector{resource.CPU: int64(1000 * (8 + i%64)), resource.Memory: int64(1024 * (16 + i%128)), resource.GPU: int64(i%4) * 8000}
		clusters[i] = Cluster{Name: fmt.Sprintf("trial-%d", i), Total: total, Free: total, Placeable: int32(i % 50), Waiting: int32(i % 7), Price: float32(i % 5)}
		clusters[i].Free[resource.CPU] -= int64(i % 8 * 1000)
	}
	var requests []RouteRequest
	for _, class := range trialClasses() {
		q := RouteRequest{Class: class, Count: trialTasks, Open: make([]bool, n)}
		for row := range q.Open {
			q.Open[row] = row%5 != 4
		}
		requests = append(requests, q)
	}
	_, err := r.Route(clusters, requests)
	return err
}
