package policytest

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policy/internal/score"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

var le = binary.LittleEndian

// Amounts are quantities of the kinds that every cell has, GPUs aside: thousandths of a core, MiB, MiB.
type Amounts struct{ CPU, Memory, Disk int64 }

// GPU is one GPU of a host.
type GPU struct {
	Model string
	Used  int64 // thousandths
}

// Host is one host of a table.
type Host struct {
	Name     string
	Total    Amounts
	Used     Amounts           // by tasks
	Usage    Amounts           // as measured
	GPUs     []GPU             // at most policy.MaxDevices
	Tasks    int               // there already
	Topology map[string]string // value by attribute
	Columns  map[string]int32  // other int32 columns by their name, such as "ports"
}

// Request asks for room. GPU is thousandths: below 1,000 a share of one, else whole ones.
type Request struct {
	Count                  int // 0 means 1
	CPU, Memory, Disk, GPU int64
	Models                 []string // of GPUs that will do; none: all
	Gang                   bool
	Priority               int32
	Pool                   uint32
	Only                   []string       // hosts that will do; none: all
	Prefer                 map[string]int // points that a host is worth more
	Class                  uint64         // 0: one of its own
}

// Placement is where one task went.
type Placement struct {
	Request int
	Host    string
	Devices policy.Devices // that the policy named
	Score   float32
}

func (r *Request) devices() (n, share int64) {
	return (r.GPU + policyabi.DeviceMilli - 1) / policyabi.DeviceMilli, min(r.GPU, policyabi.DeviceMilli)
}

// Place asks for placement in one call, in the order of the requests. A gang that finds no room for all has no placements.
func (p *Policy) Place(hosts []Host, requests ...Request) []Placement {
	p.t.Helper()
	placed, err := p.TryPlace(hosts, requests...)
	if err != nil {
		p.t.Fatal(err)
	}
	return placed
}

// TryPlace is Place for calls that may be refused: the error is a *Refused.
func (p *Policy) TryPlace(hosts []Host, requests ...Request) ([]Placement, error) {
	p.t.Helper()
	b := newBooks(hosts)
	tasks := 0
	for i := range requests {
		requests[i].Count = max(requests[i].Count, 1)
		tasks += requests[i].Count
	}
	capability := p.program.Capability()
	columns := b.columns(capability.Columns)
	arena, layout, count, err := p.call(&scene{
		shape: policyabi.Shape{
			Kind: policyabi.Place, Rows: len(hosts), Columns: columns, Requests: len(requests), Results: min(tasks+len(requests), policyabi.MaxResults),
			Bitmaps: len(requests), Biases: len(requests), Extension: 4096,
		},
		n: len(requests),
		encode: func(arena []byte, layout *policyabi.Layout) {
			b.fill(arena, layout, capability.Columns)
			b.request(arena, layout, requests)
		},
	})
	if err != nil {
		return nil, err
	}
	return p.check(b, requests, p.results(arena, layout, count)), nil
}

// check replays what the policy answered, and leaves out gangs that are not complete.
func (p *Policy) check(b *books, requests []Request, results []policyabi.Result) []Placement {
	p.t.Helper()
	var placed []Placement
	at, begun := 0, 0
	var taken []policy.Devices // beside placed
	finish := func() {
		if r := &requests[at]; r.Gang && len(placed)-begun < r.Count {
			for i, x := range placed[begun:] {
				b.take(r, b.find(x.Host), taken[begun+i], -1)
			}
			placed, taken = placed[:begun], taken[:begun]
		}
		at++
		begun = len(placed)
	}
	for i, r := range results {
		if int(r.Request) < at || int(r.Request) >= len(requests) {
			p.t.Fatalf("result %d is for request %d, after one for request %d of %d", i, r.Request, at, len(requests))
		}
		for at < int(r.Request) {
			finish()
		}
		if r.Host == policyabi.NoRow {
			continue
		}
		if int(r.Host) >= len(b.hosts) || r.Count == 0 || r.Devices != 0 && r.Count != 1 {
			p.t.Fatalf("result %d: %+v is none", i, r)
		}
		for range r.Count {
			devices := policy.Devices(r.Devices)
			if why := b.refuses(&requests[at], int(r.Host), devices); why != "" {
				p.t.Fatalf("result %d puts a task of request %d on %s: %s", i, at, b.hosts[r.Host].Name, why)
			}
			took := devices
			if took == 0 {
				took = b.usual(&requests[at], int(r.Host))
			}
			b.take(&requests[at], int(r.Host), took, 1)
			taken = append(taken, took)
			placed = append(placed, Placement{at, b.hosts[r.Host].Name, devices, r.Score})
		}
		if len(placed)-begun > requests[at].Count {
			p.t.Fatalf("%d tasks of request %d, it asked for %d", len(placed)-begun, at, requests[at].Count)
		}
	}
	for at < len(requests) {
		finish()
	}
	return placed
}

// books is what the hosts of a table have left.
type books struct {
	hosts  []Host
	lanes  [][]int64 // free of each GPU
	free   score.Columns
	total  score.Columns
	models map[string]uint16
}

func newBooks(hosts []Host) *books {
	b := &books{hosts: hosts, models: map[string]uint16{}}
	for k := range policyabi.KindNames {
		b.free[k], b.total[k] = make([]int32, len(hosts)), make([]int32, len(hosts))
	}
	for row := range hosts {
		h := &hosts[row]
		for k, q := range [...][2]int64{{h.Total.CPU, h.Used.CPU}, {h.Total.Memory, h.Used.Memory}, {h.Total.Disk, h.Used.Disk}} {
			b.total[k][row], b.free[k][row] = int32(q[0]), int32(q[0]-q[1])
		}
		var lanes []int64
		for _, g := range h.GPUs {
			lanes = append(lanes, policyabi.DeviceMilli-g.Used)
			b.total[policy.GPU][row] += policyabi.DeviceMilli
			b.free[policy.GPU][row] += int32(policyabi.DeviceMilli - g.Used)
			if b.models[g.Model] == 0 {
				b.models[g.Model] = uint16(len(b.models) + 1)
			}
		}
		b.lanes = append(b.lanes, lanes)
	}
	return b
}

func (b *books) find(name string) int {
	return slices.IndexFunc(b.hosts, func(h Host) bool { return h.Name == name })
}

func (r *Request) needs() [4]int64 { return [4]int64{r.CPU, r.Memory, r.Disk, r.GPU} }

// refuses says why a host cannot take a task, "" when it can.
func (b *books) refuses(r *Request, row int, devices policy.Devices) string {
	h := &b.hosts[row]
	if len(r.Only) > 0 && !slices.Contains(r.Only, h.Name) {
		return "its bitmap does not allow that host"
	}
	for k, need := range r.needs() {
		if need > 0 && need > int64(b.free[k][row]) {
			return "there is too little " + policyabi.KindNames[k]
		}
	}
	n, share := r.devices()
	if devices != 0 && int64(devices.Len()) != n {
		return "it wants another number of devices"
	}
	open := int64(0)
	for l, free := range b.lanes[row] {
		will := free >= share && (len(r.Models) == 0 || slices.Contains(r.Models, h.GPUs[l].Model))
		if will {
			open++
		} else if devices>>l&1 != 0 {
			return "a device that it names is taken, or of another model"
		}
	}
	if open < n || devices != 0 && 16-bits.LeadingZeros16(uint16(devices)) > len(b.lanes[row]) {
		return "there are too few devices"
	}
	return ""
}

// usual is the devices of a task whose policy names none: of those that will do, the ones with the least free.
func (b *books) usual(r *Request, row int) policy.Devices {
	n, share := r.devices()
	var open []int
	for l, free := range b.lanes[row] {
		if free >= share && (len(r.Models) == 0 || slices.Contains(r.Models, b.hosts[row].GPUs[l].Model)) {
			open = append(open, l)
		}
	}
	slices.SortStableFunc(open, func(x, y int) int { return cmp.Compare(b.lanes[row][x], b.lanes[row][y]) })
	var picked policy.Devices
	for _, l := range open[:n] { // refuses found that there are as many
		picked |= 1 << l
	}
	return picked
}

// take takes room, or with a sign of -1 gives it back.
func (b *books) take(r *Request, row int, devices policy.Devices, sign int64) {
	for k, need := range r.needs() {
		b.free[k][row] -= int32(sign * need)
	}
	_, share := r.devices()
	for l := range b.lanes[row] {
		if devices>>l&1 != 0 {
			b.lanes[row][l] -= sign * share
		}
	}
}

// request encodes the requests.
func (b *books) request(arena []byte, layout *policyabi.Layout, requests []Request) {
	var extra []byte
	for i := range requests {
		r := &requests[i]
		n, share := r.devices()
		e := policyabi.Request{
			Class: r.Class, Count: int32(r.Count), Bitmap: layout.Bitmaps + uint32(i)*layout.BitmapBytes, Bias: layout.Biases + uint32(i)*layout.BiasBytes,
			Devices: int32(n), Share: int32(share), Priority: r.Priority, Pool: r.Pool,
		}
		if e.Class == 0 {
			e.Class = math.MaxUint64 - uint64(i)
		}
		if r.Gang {
			e.Flags |= policyabi.RequestGang
		}
		for k, need := range r.needs() {
			e.Needs[k] = int32(need)
		}
		var x policyabi.Extension
		for _, m := range r.Models {
			x.Models = append(x.Models, b.models[m])
		}
		if len(x.Models) > 0 {
			e.Extension = layout.Header.Extension + uint32(len(extra))
			extra = x.Append(extra)
		}
		for row := range b.hosts {
			name := b.hosts[row].Name
			if len(r.Only) == 0 || slices.Contains(r.Only, name) {
				arena[int(e.Bitmap)+row/8] |= 1 << (row % 8)
			}
			le.PutUint32(arena[int(e.Bias)+4*row:], uint32(int32(-r.Prefer[name]*policy.Point)))
		}
		e.Encode(arena[int(layout.Header.Requests)+i*policyabi.RequestBytes:])
	}
	copy(arena[layout.Header.Extension:], extra)
}
