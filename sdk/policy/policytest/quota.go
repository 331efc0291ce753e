package policytest

import (
	"math"
	"slices"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Pool is one pool of a tree. Its parent stands before it; "" is the root, which is not among them.
type Pool struct {
	Name, Parent               string
	Reservation, Demand, Usage Amounts
	Limit                      *Amounts // nil: none
	Share                      int64
}

func (a *Amounts) of(k int) int64 { return [...]int64{a.CPU, a.Memory, a.Disk}[k] }

// quotaKinds are the kinds of Amounts.
const quotaKinds = 3

// Entitle asks what pools are entitled to of a capacity, and returns it by name. It fails the test where a pool gets less than it is guaranteed, its reservation up to its demand, or
// more than its limit, or children together more than their parent.
func (p *Policy) Entitle(capacity Amounts, pools ...Pool) map[string]Amounts {
	p.t.Helper()
	unlimited := Amounts{math.MaxInt64, math.MaxInt64, math.MaxInt64}
	rows := append([]Pool{{Name: "", Reservation: capacity, Limit: &unlimited}}, pools...)
	var columns []policyabi.Column
	for _, w := range p.program.Capability().Columns {
		n := policyabi.ColumnID(1)
		if w.Every {
			n = quotaKinds
		}
		for k := range n {
			columns = append(columns, policyabi.Column{ID: w.Column + k})
		}
	}
	arena, layout, count, err := p.call(&scene{
		shape:  policyabi.Shape{Kind: policyabi.Quota, Rows: len(rows), Columns: columns},
		n:      len(rows),
		encode: func(arena []byte, layout *policyabi.Layout) { encodePools(arena, layout, rows) },
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if count != len(rows) {
		p.t.Fatalf("%d of %d pools were entitled", count, len(rows))
	}
	got := make([][quotaKinds]int64, len(rows))
	left := make([][quotaKinds]int64, len(rows))
	result := map[string]Amounts{}
	for k := range quotaKinds {
		e := policyabi.Find(layout.Entries, policyabi.ColumnEntitlement+policyabi.ColumnID(k), 0)
		left[0][k] = capacity.of(k)
		for row := 1; row < len(rows); row++ {
			x, parent := &rows[row], parentOf(rows, row)
			v := int64(le.Uint64(arena[int(e.Offset)+row*int(e.Stride):]))
			least := min(x.Reservation.of(k), x.Demand.of(k))
			if left[parent][k] -= v; v < least || x.Limit != nil && v > x.Limit.of(k) || left[parent][k] < 0 {
				p.t.Fatalf("pool %s gets %d %s: it is guaranteed %d, and its parent has %d without it", x.Name, v, policyabi.KindNames[k], least, left[parent][k]+v)
			}
			got[row][k], left[row][k] = v, v
		}
	}
	for row := range rows {
		result[rows[row].Name] = Amounts{got[row][0], got[row][1], got[row][2]}
	}
	delete(result, "")
	return result
}

func parentOf(rows []Pool, row int) int {
	return slices.IndexFunc(rows, func(x Pool) bool { return x.Name == rows[row].Parent })
}

func encodePools(arena []byte, layout *policyabi.Layout, rows []Pool) {
	for i := range layout.Entries {
		e := &layout.Entries[i]
		for row := range rows {
			x, cell := &rows[row], arena[int(e.Offset)+row*int(e.Stride):]
			k := int(e.ID) % policyabi.MaxKinds
			v := int64(0)
			switch e.ID - policyabi.ColumnID(k) {
			case policyabi.ColumnReservation:
				v = x.Reservation.of(k)
			case policyabi.ColumnLimit:
				if v = math.MaxInt64; x.Limit != nil {
					v = x.Limit.of(k)
				}
			case policyabi.ColumnShare:
				v = x.Share
			case policyabi.ColumnDemand:
				v = x.Demand.of(k)
			case policyabi.ColumnPoolUsage:
				v = x.Usage.of(k)
			case policyabi.ColumnCapacity:
				if row == 0 {
					v = x.Reservation.of(k)
				}
			default:
				v = int64(row + 1) // an identity
			}
			if e.ID == policyabi.ColumnParent {
				parent := -1
				if row > 0 {
					parent = parentOf(rows, row)
				}
				le.PutUint32(cell, uint32(int32(parent)))
			} else {
				le.PutUint64(cell, uint64(v))
			}
		}
	}
}

// Cluster is one cluster to send tasks to.
type Cluster struct {
	Name               string
	Free, Total        Amounts // of its hosts together
	Placeable, Waiting int32
	Price              float32
}

// Sent is so many tasks of a request that go to a cluster.
type Sent struct {
	Request int
	Cluster string
	Count   int
}

// Route asks where the tasks of requests go. GPUs, models and preferences of requests count for nothing here.
func (p *Policy) Route(clusters []Cluster, requests ...Request) []Sent {
	p.t.Helper()
	b := &books{}
	for i := range clusters {
		c := &clusters[i]
		b.hosts = append(b.hosts, Host{Name: c.Name, Total: c.Total, Used: Amounts{c.Total.CPU - c.Free.CPU, c.Total.Memory - c.Free.Memory, c.Total.Disk - c.Free.Disk}})
	}
	b = newBooks(b.hosts)
	for i := range requests {
		requests[i].Count = max(requests[i].Count, 1)
	}
	capability := p.program.Capability()
	arena, layout, count, err := p.call(&scene{
		shape: policyabi.Shape{
			Kind: policyabi.Route, Rows: len(clusters), Columns: b.columns(capability.Columns), Requests: len(requests), Results: len(requests) * (len(clusters) + 1),
			Bitmaps: len(requests), Biases: len(requests), Extension: 4096,
		},
		n: len(requests),
		encode: func(arena []byte, layout *policyabi.Layout) {
			b.fill(arena, layout, capability.Columns)
			encodeClusters(arena, layout, clusters)
			b.request(arena, layout, requests)
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var list []Sent
	sent := make([]int, len(requests))
	for i, r := range p.results(arena, layout, count) {
		if r.Host == policyabi.NoRow {
			continue
		}
		if int(r.Request) >= len(requests) || int(r.Host) >= len(clusters) {
			p.t.Fatalf("result %d: %+v is none", i, r)
		}
		if sent[r.Request] += int(r.Count); sent[r.Request] > requests[r.Request].Count {
			p.t.Fatalf("result %d: more tasks of request %d than it asked for", i, r.Request)
		}
		list = append(list, Sent{int(r.Request), clusters[r.Host].Name, int(r.Count)})
	}
	return list
}

func encodeClusters(arena []byte, layout *policyabi.Layout, clusters []Cluster) {
	for i := range layout.Entries {
		e := &layout.Entries[i]
		for row := range clusters {
			cell := arena[int(e.Offset)+row*int(e.Stride):]
			switch e.ID {
			case policyabi.ColumnPlaceable:
				le.PutUint32(cell, uint32(clusters[row].Placeable))
			case policyabi.ColumnWaiting:
				le.PutUint32(cell, uint32(clusters[row].Waiting))
			case policyabi.ColumnPrice:
				le.PutUint32(cell, math.Float32bits(clusters[row].Price))
			default: // as of hosts
			}
		}
	}
}
