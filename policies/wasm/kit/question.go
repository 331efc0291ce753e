package kit

import (
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// question is what a policy of another kind than placement is asked.
type question struct {
	kind  policyabi.Kind
	noun  string
	sizes []int // that are asked about, in turns
	// open makes an instance's asker; ask draws a question of a size and returns the answer as text, and what is wrong with it by the kit's own reckoning.
	open func(c wasm.AskConfig) (ask func(d *draw, size int) (answer, wrong string, err error), shut func())
}

var questions = []question{
	{kind: policyabi.Preempt, noun: "candidate", sizes: []int{1, 2, 40, preemption.MaxContenders}, open: openRanker},
	{kind: policyabi.Quota, noun: "pool", sizes: []int{0, 1, 30, 300}, open: openQuota},
	{kind: policyabi.Route, noun: "cluster", sizes: []int{1, 2, 40, 500}, open: openRouter},
}

// question asks two fresh instances the same and reports; then it watches one's memory.
func (r *Report) question(v *wasm.Version, q *question, o Options) {
	name := q.kind.String()
	var size, calls int
	slot := &wasm.Slot{}
	slot.Swap(v)
	config := wasm.AskConfig{Slot: slot, Moment: moment, OnCall: func(c wasm.Call) { size, calls = c.Memory, calls+1 }}
	var asks [2]func(*draw, int) (string, string, error)
	for i := range asks {
		var shut func()
		asks[i], shut = q.open(config)
		defer shut() //nolint:revive // both live until the end
	}
	for round := range o.Rounds * len(q.sizes) {
		var answers [2]string
		for i, ask := range asks {
			answer, wrong, err := ask(newDraw(o.Seed, 1<<16+uint64(q.kind), uint64(round)), q.sizes[round%len(q.sizes)])
			if err != nil {
				wrong = err.Error()
			}
			if wrong != "" {
				r.add(name, Failed, "question %d of seed %d: %s", round, o.Seed, wrong)
				return
			}
			answers[i] = answer
		}
		if answers[0] != answers[1] {
			r.add(name, Failed, "question %d of seed %d: two fresh instances that were asked the same answered differently", round, o.Seed)
			return
		}
	}
	r.add(name, Passed, "%d questions about up to %s, answered alike by two instances", o.Rounds*len(q.sizes), count(q.sizes[len(q.sizes)-1], q.noun))
	few := newDraw(o.Seed, 1<<17, 0)
	r.rest(name+" memory", o, func() (int, int, error) {
		_, wrong, err := asks[0](few, q.sizes[1])
		if err == nil && wrong != "" {
			err = fmt.Errorf("%s", wrong)
		}
		return size, calls, err
	})
}

func openRanker(c wasm.AskConfig) (func(*draw, int) (string, string, error), func()) {
	r := wasm.NewRanker(c)
	return func(d *draw, n int) (string, string, error) {
		list := make([]preemption.Contender, n)
		for i := range list {
			c := &list[i]
			c.Job, c.Pool = workload.JobID{byte(i), byte(i >> 8), 1}, workload.PoolID{byte(d.IntN(9))}
			c.Priority, c.Over, c.Runs = int32(d.between(-2, 9)), int64(d.IntN(1_000_000)), int32(d.IntN(50))
			c.Use = resource.Vector{resource.CPU: int64(d.IntN(1 << 20)), resource.GPU: int64(d.IntN(16)) * 1000}
			c.Work = int64(time.Duration(d.IntN(1<<30)) * time.Millisecond)
			if c.Revocable = d.oneIn(4); d.oneIn(3) {
				c.Gang = int32(d.between(1, 64))
			}
		}
		ranks, err := r.Rank(list)
		if err != nil {
			return "", "", err
		}
		return fmt.Sprint(ranks), "", preemption.CheckRanks(n, ranks)
	}, r.Close
}

func openQuota(c wasm.AskConfig) (func(*draw, int) (string, string, error), func()) {
	q := wasm.NewQuota(c)
	return func(d *draw, n int) (string, string, error) {
		s := drawTree(d, n).Snapshot()
		given, err := q.Entitle(s)
		if err != nil {
			return "", "", err
		}
		return fmt.Sprint(given), overspent(s, given), nil
	}, q.Close
}

// drawTree draws a tree with about n pools below the root, whose work wants about twice of what there is.
func drawTree(d *draw, n int) *respool.Tree {
	tree, err := respool.NewTree(newNames(), nil)
	if err != nil {
		panic("no pools are a tree: " + err.Error())
	}
	tops := []workload.PoolID{}
	for i := range n {
		p := respool.Pool{
			ID: workload.PoolID{0: 7, 1: byte(i >> 8), 2: byte(i)}, Parent: respool.RootID, Name: fmt.Sprintf("p%05d", i), Kind: respool.Elastic, Share: int64(d.IntN(10)),
		}
		switch {
		case len(tops) > 0 && d.oneIn(3):
			p.Parent = pick(d, tops...)
		default:
			p.Reservation = resource.Vector{resource.CPU: int64(d.IntN(100)), resource.Memory: int64(d.IntN(100))}
		}
		switch d.IntN(9) {
		case 0:
			p.Kind = respool.Static
		case 1:
			p.Limit = p.Limit.With(resource.CPU, p.Reservation[resource.CPU]+int64(d.IntN(50)))
		}
		if tree.Add(p) == nil && p.Parent == respool.RootID { // one that its parent has no room for is left out
			tops = append(tops, p.ID)
		}
	}
	for id := range tree.IDs() {
		if tree.IsLeaf(id) {
			tree.SetDemand(id, respool.Demand{Preemptible: resource.Vector{resource.CPU: int64(d.IntN(300)), resource.Memory: int64(d.IntN(90)), resource.FirstNamed: int64(d.IntN(3))}})
		}
	}
	tree.Entitle(resource.Vector{resource.CPU: int64(75 * n), resource.Memory: int64(20 * n), resource.FirstNamed: int64(n)})
	return tree
}

// overspent says where more is handed out than there is, "" for nowhere.
func overspent(s *respool.Snapshot, given []resource.Vector) string {
	if len(given) != len(s.Rows) {
		return fmt.Sprintf("%d pools are entitled, there are %d", len(given), len(s.Rows))
	}
	handed := make([]resource.Vector, len(given))
	for i := range s.Rows {
		if parent := s.Rows[i].Parent; parent >= 0 {
			handed[parent] = handed[parent].Add(given[i])
		}
	}
	for i := range handed {
		for k := range handed[i] {
			if handed[i][k] > given[i][k] || given[i][k] < 0 {
				return fmt.Sprintf("pool %s is entitled to %d of resource %d and its children to %d together", s.Rows[i].Path, given[i][k], k, handed[i][k])
			}
		}
	}
	return ""
}

func openRouter(c wasm.AskConfig) (func(*draw, int) (string, string, error), func()) {
	r := wasm.NewRouter(c, newNames())
	return func(d *draw, n int) (string, string, error) {
		clusters := make([]wasm.Cluster, n)
		for i := range clusters {
			total := resource.Vector{resource.CPU: int64(d.IntN(1 << 24)), resource.Memory: int64(d.IntN(1 << 24)), resource.FirstNamed: int64(d.IntN(9))}
			clusters[i] = wasm.Cluster{Name: fmt.Sprintf("c%d", i), Free: total, Total: total, Placeable: int32(d.IntN(200)), Waiting: int32(d.IntN(50)), Price: float32(d.IntN(9)) / 4}
		}
		requests := make([]wasm.RouteRequest, d.between(1, 4))
		for i := range requests {
			spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: int64(d.IntN(4000)), resource.FirstNamed: int64(d.IntN(2))}}}
			requests[i] = wasm.RouteRequest{Class: placement.NewClass(workload.JobID{byte(i + 1)}, spec, nil), Count: d.between(1, 100), Gang: d.oneIn(4), Pool: "/a"}
			for range clusters {
				requests[i].Open = append(requests[i].Open, !d.oneIn(3))
			}
		}
		routes, err := r.Route(clusters, requests)
		if err != nil {
			return "", "", err
		}
		return fmt.Sprint(routes), misled(requests, routes), nil
	}, r.Close
}

// misled says which tasks are sent where they may not go, "" for none.
func misled(requests []wasm.RouteRequest, routes []wasm.Route) string {
	sent := make([]int, len(requests))
	for _, x := range routes {
		if !requests[x.Request].Open[x.Cluster] {
			return fmt.Sprintf("tasks of request %d go to cluster %d, which is not open to them", x.Request, x.Cluster)
		}
		if sent[x.Request] += x.Count; sent[x.Request] > requests[x.Request].Count {
			return fmt.Sprintf("%d tasks of request %d are sent, it has %d", sent[x.Request], x.Request, requests[x.Request].Count)
		}
	}
	return ""
}
