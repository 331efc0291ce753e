package wasm

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Cluster is a cluster as a policy of routes sees it.
type Cluster struct {
	Name        string
	Free, Total resource.Vector // of its hosts together
	Placeable   int32           // tasks of the first request's class that find room now
	Waiting     int32           // tasks that wait for it
	Price       float32         // of its room, comparable among clusters; 0: unknown
}

// RouteRequest asks where tasks of a class are to go.
type RouteRequest struct {
	Class    *placement.Class
	Count    int // of tasks, from 1
	Gang     bool
	Priority int32
	Pool     string // its path
	Open     []bool // by cluster: it may be used; nil: all
}

// Route sends so many tasks of a request to a cluster.
type Route struct {
	Request, Cluster int // their places among what was asked
	Count            int
	Score            float32 // the policy's own, a finite number
}

// Router chooses clusters with the policy in a slot.
type Router struct {
	caller caller
	names  *resource.Names
}

// NewRouter returns a Router without an instance; the first question makes one. names are the cell's resources, nil: only those that every cell has.
func NewRouter(config AskConfig, names *resource.Names) *Router {
	if names == nil {
		names = &resource.Names{}
	}
	return &Router{caller{config: config, kind: policyabi.Route}, names}
}

// Close lets go of the version that it works with.
func (r *Router) Close() { r.caller.close() }

// maxRoutes is how many results there is room for.
const maxRoutes = 4096

// Route says where tasks of each request go, in the order of the requests, none twice: never to a cluster that is not open, and no more than were asked
// for. What it does not name waits. At most policyabi.MaxRows clusters and maxCallRequests requests may be asked about at once. The error is
// ErrNoPolicy, a *Fault, or says what is wrong with the question.
func (r *Router) Route(clusters []Cluster, requests []RouteRequest) ([]Route, error) {
	if len(clusters) > policyabi.MaxRows || len(requests) > maxCallRequests {
		return nil, fmt.Errorf("%d clusters and %d requests are too many for one call: at most %d and %d", len(clusters), len(requests), policyabi.MaxRows, maxCallRequests)
	}
	if err := r.caller.enter(); err != nil {
		return nil, err
	}
	if len(requests) == 0 || len(clusters) == 0 {
		return nil, nil
	}
	t := routing{clusters: clusters, requests: requests, kinds: make([]string, r.names.Len())}
	for k := range t.kinds {
		t.kinds[k] = r.names.Name(resource.Kind(k))
	}
	t.measure()
	ask := question{
		shape: policyabi.Shape{
			Rows: len(clusters), Columns: t.columns(r.caller.wants()), Requests: maxCallRequests, Results: maxRoutes, Bitmaps: maxCallRequests,
			Extension: extensionBytes,
		},
		records: len(requests), rows: t.rows(), work: work(len(clusters), len(requests), len(requests)*len(clusters)),
		fill: t.fill, read: t.read,
	}
	for i := range requests {
		ask.tasks += requests[i].Count
	}
	if err := r.caller.ask(&ask); err != nil {
		return nil, err
	}
	return t.routes, nil
}

// routing is one question.
type routing struct {
	clusters []Cluster
	requests []RouteRequest
	kinds    []string
	shifts   [resource.MaxKinds]uint8
	routes   []Route
}

// measure finds the units in which quantities fit.
func (t *routing) measure() {
	for k := range t.kinds {
		most := int64(0)
		for i := range t.clusters {
			most = max(most, t.clusters[i].Total[k], t.clusters[i].Free[k])
		}
		t.shifts[k] = uint8(max(bits.Len64(uint64(most))-bits.Len64(policyabi.MaxQuantity), 0))
	}
}

func (t *routing) rows() uint64 {
	h := uint64(0)
	for i := range t.clusters {
		h = (h ^ policyabi.Hash(t.clusters[i].Name)) * 0x100000001b3
	}
	return max(h, 1)
}

func (t *routing) columns(wants []policyabi.Want) []policyabi.Column {
	var list []policyabi.Column
	for _, id := range []policyabi.ColumnID{policyabi.ColumnCluster, policyabi.ColumnPlaceable, policyabi.ColumnWaiting, policyabi.ColumnPrice} {
		if wantsColumn(wants, id) {
			list = append(list, policyabi.Column{ID: id})
		}
	}
	for _, first := range []policyabi.ColumnID{policyabi.ColumnFree, policyabi.ColumnTotal} {
		from := len(list)
		list = kindColumns(list, wants, first, t.kinds)
		for i := from; i < len(list); i++ {
			list[i].Shift = t.shifts[list[i].ID-first]
		}
	}
	return list
}

func (t *routing) fill(l *policyabi.Layout, h *policyabi.Header, b []byte) {
	for i := range l.Entries {
		e := &l.Entries[i]
		for row := range t.clusters {
			t.put(e, &t.clusters[row], b[at(e, row):])
		}
	}
	used := uint32(0) // of the extensions
	for i := range t.requests {
		q := &t.requests[i]
		r := policyabi.Request{
			Class: uint64(q.Class.ID), Count: clampInt32(int64(q.Count)), Share: int32(q.Class.DeviceMilli()), Devices: int32(q.Class.Devices()),
			Priority: q.Priority, Pool: policy.PoolNumber(q.Pool), Bitmap: l.Bitmaps + uint32(i)*l.BitmapBytes,
		}
		if q.Gang {
			r.Flags |= policyabi.RequestGang
		}
		for k := range r.Needs {
			r.Needs[k] = t.units(resource.Kind(k), q.Class.Needs[k])
		}
		if x := t.extension(q.Class); len(x) > 0 && int(used)+len(x) <= extensionBytes {
			r.Extension = h.Extension + used
			copy(b[r.Extension:], x)
			used += uint32(len(x))
		}
		for row := range t.clusters {
			if t.open(i, row) {
				b[int(r.Bitmap)+row/8] |= 1 << (row % 8)
			}
		}
		r.Encode(b[int(h.Requests)+i*policyabi.RequestBytes:])
	}
	h.ExtensionBytes = used
}

func (t *routing) open(request, row int) bool {
	q := &t.requests[request]
	return q.Open == nil || row < len(q.Open) && q.Open[row]
}

func (t *routing) put(e *policyabi.Entry, c *Cluster, cell []byte) {
	switch id := e.ID; {
	case id == policyabi.ColumnCluster:
		le.PutUint64(cell, policyabi.Hash(c.Name))
	case id == policyabi.ColumnPlaceable:
		le.PutUint32(cell, uint32(c.Placeable))
	case id == policyabi.ColumnWaiting:
		le.PutUint32(cell, uint32(c.Waiting))
	case id == policyabi.ColumnPrice:
		le.PutUint32(cell, math.Float32bits(c.Price))
	case firstOf(id) == policyabi.ColumnFree:
		le.PutUint32(cell, uint32(clampInt32(c.Free[id-policyabi.ColumnFree]>>e.Shift)))
	default: // policyabi.ColumnTotal
		le.PutUint32(cell, uint32(clampInt32(c.Total[id-policyabi.ColumnTotal]>>e.Shift)))
	}
}

// units rounds a need up to the unit of its column.
func (t *routing) units(k resource.Kind, need int64) int32 {
	shift := t.shifts[k]
	return int32(min((max(need, 0)+1<<shift-1)>>shift, policyabi.MaxNeed))
}

// extension encodes needs of named resources.
func (t *routing) extension(class *placement.Class) []byte {
	var x policyabi.Extension
	for k := resource.FirstNamed; int(k) < len(t.kinds); k++ {
		if class.Needs[k] > 0 {
			x.Named = append(x.Named, policyabi.NamedNeed{Kind: uint32(k), Amount: t.units(k, class.Needs[k])})
		}
	}
	if len(x.Named) == 0 {
		return nil
	}
	return x.Append(nil)
}

// read reads the routes.
func (t *routing) read(l *policyabi.Layout, arena []byte, count int) *wrong {
	if count > maxRoutes {
		return &wrong{FaultResult, fmt.Sprintf("it returned %d results, there is room for %d", count, maxRoutes)}
	}
	raw, request, left := arena[l.Header.Results:], 0, t.requests[0].Count
	for i := range count {
		r, err := policyabi.DecodeResult(raw[i*policyabi.ResultBytes:])
		switch {
		case err != nil:
			return &wrong{FaultResult, fmt.Sprintf("result %d: %v", i, err)}
		case int(r.Request) >= len(t.requests) || int(r.Request) < request:
			return &wrong{FaultResult, fmt.Sprintf("result %d: it is for request %d of %d, after one for request %d", i, r.Request, len(t.requests), request)}
		}
		if int(r.Request) > request {
			request = int(r.Request)
			left = t.requests[request].Count
		}
		switch {
		case r.Host == policyabi.NoRow:
			continue
		case int64(r.Host) >= int64(len(t.clusters)):
			return misfit("result %d: there is no cluster at row %d", i, r.Host)
		case !t.open(request, int(r.Host)):
			return misfit("result %d: request %d may not use cluster %s at row %d", i, request, t.clusters[r.Host].Name, r.Host)
		case r.Count == 0 || int(r.Count) > left:
			return misfit("result %d: %d tasks to cluster %s, request %d has %d left", i, r.Count, t.clusters[r.Host].Name, request, left)
		}
		left -= int(r.Count)
		t.routes = append(t.routes, Route{Request: request, Cluster: int(r.Host), Count: int(r.Count), Score: r.Score})
	}
	return nil
}
