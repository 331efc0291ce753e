package wasm

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/sdk/policy"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// leastTasks is what one request may ask for in one call, however slow the policy is.
const leastTasks = 64

// call is what one call asks.
type call struct {
	asked   []int         // tasks, by request
	bitmaps []host.Bitmap // by request, as they were sent; reused
	tasks   int
	biases  int
	work    int64
	used    uint32 // end of what is sent
	extra   []byte
}

func (c *call) open(i int) host.Bitmap { return c.bitmaps[i] }

// compose puts the first items into one call and returns how many these are. An item ends the call when not all of it fits, so that order is kept. One that bears on more than
// room stands first, where its bitmap is exact.
func (p *Placer) compose(t *host.Table, items []item) int {
	m, c := p.image, &p.call
	c.asked, c.tasks, c.biases, c.work, c.extra = c.asked[:0], 0, 0, 0, c.extra[:0]
	c.used = m.layout.Bitmaps
	n := 0
	for n < len(items) && n < maxCallRequests {
		it := &items[n]
		if n > 0 && !it.rows.Plain() {
			break
		}
		asked := p.share(t, it, n)
		if asked == 0 || !p.write(t, it, n, asked) {
			break
		}
		n++
		if asked < it.left {
			break
		}
	}
	copy(m.b[m.header.Extension:], c.extra)
	h := &m.header
	h.RequestCount, h.ExtensionBytes = uint32(n), uint32(len(c.extra))
	seed, now := p.calling(n)
	h.Seed, h.Time = seed, now.UnixMilli()
	p.instance.clock = max(p.instance.clock, uint64(max(now.UnixNano(), 0)))
	h.MixCount = p.mix.encode(m, m.b[h.Mix:])
	return n
}

// share is how many tasks of an item a call takes: none when it is full.
func (p *Placer) share(t *host.Table, it *item, n int) int {
	c := &p.call
	asked := min(it.left, maxCallTasks-c.tasks)
	if !it.rows.Local() {
		asked = 1
	}
	if next := p.next(); next != nil {
		if n >= next.Requests || c.tasks >= next.Tasks {
			return 0
		}
		asked = min(asked, next.Tasks-c.tasks)
		c.work += work(t.Rows(), 1, asked)
		c.tasks += asked
		return asked
	}
	room := p.config.CallWork
	if room <= 0 {
		room = p.version.budget.room()
	}
	more := work(t.Rows(), 1, asked)
	switch {
	case c.work+more <= room:
	case n > 0:
		return 0
	default:
		asked = min(asked, max(leastTasks, int((room-int64(t.Rows()))/taskWork)))
		more = work(t.Rows(), 1, asked)
	}
	c.work += more
	c.tasks += asked
	return asked
}

// write encodes one request with all that it points at. It reports false when there is no room left.
func (p *Placer) write(t *host.Table, it *item, n, asked int) bool {
	m, c, class := p.image, &p.call, it.request.Class
	r := policyabi.Request{
		Class: uint64(class.ID), Count: int32(asked), Flags: p.flags(it), Priority: it.request.Priority, Pool: policy.PoolNumber(it.request.Pool),
		Share: int32(class.DeviceMilli()), Devices: int32(class.Devices()), Bitmap: m.layout.Bitmaps + uint32(n)*m.layout.BitmapBytes,
	}
	if x := m.extension(class); len(x) > 0 {
		if len(c.extra)+len(x) > extensionBytes {
			return false
		}
		r.Extension = m.header.Extension + uint32(len(c.extra))
		c.extra = append(c.extra, x...)
	}
	if it.rows.Biased() {
		if c.biases == maxCallBiases {
			return false
		}
		r.Bias = m.layout.Biases + uint32(c.biases)*m.layout.BiasBytes
		c.biases++
	}
	for k := range r.Needs {
		r.Needs[k] = m.units(resource.Kind(k), class.Needs[k])
	}
	r.Spread = m.spread(class)
	p.writeRows(t, it, n, &r)
	r.Encode(m.b[int(m.header.Requests)+n*policyabi.RequestBytes:])
	c.asked = append(c.asked, asked)
	return true
}

func (p *Placer) flags(it *item) uint32 {
	r := it.request
	f := uint32(0)
	if r.Gang {
		f |= policyabi.RequestGang
	}
	if r.Class.Placement.Exclusive {
		f |= policyabi.RequestExclusive
	}
	if (r.Host != workload.HostID{}) {
		f |= policyabi.RequestOneHost
	}
	if r.Revocable {
		f |= policyabi.RequestRevocable
	}
	if it.rows.OneEach() {
		f |= policyabi.RequestOneEach
	}
	if p.planning {
		f |= policyabi.RequestDryRun
	}
	return f
}

// spread is the column of the topology that a class is to be spread over, 0 when there is none among the columns.
func (m *image) spread(class *placement.Class) uint32 {
	for _, s := range class.Placement.Spreads {
		for i := range m.layout.Entries {
			e := &m.layout.Entries[i]
			if e.ID >= policyabi.ColumnTopology && e.ID < policyabi.ColumnTopology+policyabi.MaxTopologies && e.Key == policyabi.Hash(s.Topology) {
				return uint32(e.ID)
			}
		}
	}
	return 0
}

// extension encodes what does not fit into a request, nothing when all does.
func (m *image) extension(class *placement.Class) []byte {
	var x policyabi.Extension
	for k := resource.FirstNamed; k < resource.MaxKinds; k++ {
		if need := class.Needs[k]; need > 0 {
			x.Named = append(x.Named, policyabi.NamedNeed{Kind: uint32(k), Amount: m.units(k, need)})
		}
	}
	for _, name := range class.GPUModels {
		if n, known := m.models[name]; known {
			x.Models = append(x.Models, n)
		}
	}
	if len(x.Named) == 0 && len(x.Models) == 0 {
		return nil
	}
	return x.Append(nil)
}

// writeRows writes the bitmap and the bias of a request.
func (p *Placer) writeRows(t *host.Table, it *item, n int, r *policyabi.Request) {
	m, c := p.image, &p.call
	words := int(m.header.Capacity) / 64
	for len(c.bitmaps) <= n {
		c.bitmaps = append(c.bitmaps, nil)
	}
	if len(c.bitmaps[n]) != words {
		c.bitmaps[n] = make(host.Bitmap, words)
	}
	set := c.bitmaps[n]
	it.rows.Open(set)
	p.restrict(t, it.request, set)
	for i, w := range set {
		le.PutUint64(m.b[int(r.Bitmap)+8*i:], w)
	}
	c.used = max(c.used, r.Bitmap+m.layout.BitmapBytes)
	if r.Bias == 0 {
		return
	}
	for row := range host.Row(m.header.Rows) {
		bias := int64(0)
		if set.Has(row) {
			bias = min(max(it.rows.Bias(row), -policyabi.ScoreSpan), policyabi.ScoreSpan)
		}
		le.PutUint32(m.b[int(r.Bias)+4*int(row):], uint32(int32(bias)))
	}
	c.used = r.Bias + m.layout.BiasBytes
}

// restrict takes out of set the rows that the request leaves out, and those without room of a kind that the policy has no column of.
func (p *Placer) restrict(t *host.Table, r *placement.Request, set host.Bitmap) {
	keep := func(ok func(host.Row) bool) {
		set.Rows(func(row host.Row) bool {
			if !ok(row) {
				set.Set(row, false)
			}
			return true
		})
	}
	if (r.Host != workload.HostID{}) {
		only, known := t.Lookup(r.Host)
		keep(func(row host.Row) bool { return known && row == only })
	}
	if r.Within.Domain != "" {
		domains := t.Domains(r.Within.Key)
		domain := domains.Lookup(r.Within.Domain)
		keep(func(row host.Row) bool { return domain != 0 && domains.Of(row) == domain })
	}
	for k, need := range r.Class.Needs {
		if need <= 0 || p.image.covered(resource.Kind(k)) {
			continue
		}
		free := t.FreeOf(resource.Kind(k))
		keep(func(row host.Row) bool { return free != nil && free[row] >= need })
	}
	if r.Class.Needs[resource.GPU] > 0 && !p.image.seesDevices() {
		rows := p.native.Rows(t, r.Class)
		keep(rows.Fits)
	}
}

// seesDevices reports whether the policy sees more of GPUs than their sum.
func (m *image) seesDevices() bool {
	has := func(id policyabi.ColumnID) bool { return policyabi.Find(m.layout.Entries, id, 0) != nil }
	return has(policyabi.ColumnDeviceFree) || has(policyabi.ColumnDeviceWhole) && has(policyabi.ColumnDeviceLargest)
}
