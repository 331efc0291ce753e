package policy

import (
	"math"
	"slices"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Cluster is one row of the clusters that a request may go to.
type Cluster struct {
	table *Table
	row   int
}

// Row is its row.
func (c Cluster) Row() int { return c.row }

// Identity is the same number for the same cluster in every call.
func (c Cluster) Identity() int64 {
	if ids := c.table.longs(policyabi.ColumnCluster); ids != nil {
		return ids[c.row]
	}
	return 0
}

func (c Cluster) at(column []int32) int64 { return Host(c).at(column) }

// Free is what is free of a kind on all hosts together.
func (c Cluster) Free(k Kind) int64 { return c.at(c.table.free[k]) }

// Total is what all hosts have together.
func (c Cluster) Total(k Kind) int64 { return c.at(c.table.total[k]) }

// Placeable is how many tasks of the first request's class find room now.
func (c Cluster) Placeable() int64 { return c.at(c.table.ints(policyabi.ColumnPlaceable)) }

// Waiting is how many tasks wait for the cluster.
func (c Cluster) Waiting() int64 { return c.at(c.table.ints(policyabi.ColumnWaiting)) }

// Price is what its room costs, comparable among clusters; 0 for unknown.
func (c Cluster) Price() float32 {
	prices := column[float32](c.table, policyabi.ColumnPrice, policyabi.Float32, 1)
	if prices == nil {
		return 0
	}
	return prices[c.row]
}

// room is how many tasks of a request may find room now.
func (c Cluster) room(r *Request) int {
	most := int64(math.MaxInt32)
	for k := range c.table.kinds {
		if need := int64(r.needs[k]); need > 0 && c.table.free[k] != nil {
			most = min(most, max(int64(c.table.free[k][c.row]), 0)/need)
		}
	}
	if r.index == 0 && c.table.ints(policyabi.ColumnPlaceable) != nil {
		most = min(most, c.Placeable())
	}
	return int(most)
}

// serveRoutes answers a call for routing: the tasks of a request go to the cheapest clusters that will do, as many to each as may find room; those that find none anywhere go
// to the cheapest, to wait there. A gang goes to the cheapest that has room for all of it, or else to the cheapest.
func (in *Instance) serveRoutes(h *policyabi.Header, n int) (int, error) {
	router, ok := in.policy.(Router)
	if !ok || n > int(h.RequestCount) {
		return 0, errUnsupported
	}
	if err := in.table.open(h); err != nil {
		return 0, err
	}
	c := &in.call
	for len(c.requests) < n {
		c.requests = append(c.requests, Request{})
	}
	c.results = in.arena[h.Results : h.Results+h.ResultCapacity*policyabi.ResultBytes]
	c.n, c.at = 0, 0
	for i := range n {
		r := &c.requests[i]
		r.decode(in.arena, h, i)
		c.route(router, r)
	}
	return c.n, nil
}

func (c *Call) route(router Router, r *Request) {
	s := &c.search
	s.heap = s.heap[:0]
	for row := range c.table.Rows() {
		if !r.Open(row) {
			continue
		}
		if cost, ok := router.Toll(r, Cluster{c.table, row}); ok {
			s.heap = append(s.heap, candidate{cost + r.Bias(row), int32(row)})
		}
	}
	slices.SortFunc(s.heap, func(a, b candidate) int {
		if a.less(b) {
			return -1
		}
		return 1
	})
	if len(s.heap) == 0 {
		c.Refuse(r, 0)
		return
	}
	if r.Gang() {
		for _, x := range s.heap {
			if (Cluster{c.table, int(x.row)}).room(r) >= r.count {
				c.send(r, x, r.count)
				return
			}
		}
		c.send(r, s.heap[0], r.count)
		return
	}
	left := r.count
	first := (Cluster{c.table, int(s.heap[0].row)}).room(r)
	for _, x := range s.heap[1:] {
		left -= (Cluster{c.table, int(x.row)}).room(r)
	}
	c.send(r, s.heap[0], min(max(left, first), r.count))
	left = r.count - min(max(left, first), r.count)
	for _, x := range s.heap[1:] {
		n := min(left, Cluster{c.table, int(x.row)}.room(r))
		c.send(r, x, n)
		left -= n
	}
}

// send sends n tasks to a cluster, at most as many as a result can count.
func (c *Call) send(r *Request, x candidate, n int) {
	if n = min(n, math.MaxUint16); n <= 0 || c.n >= len(c.results)/policyabi.ResultBytes {
		return
	}
	result := policyabi.Result{Request: uint16(r.index), Count: uint16(n), Host: uint32(x.row), Score: float32(x.cost)}
	result.Encode(c.results[c.n*policyabi.ResultBytes:])
	c.n++
}
