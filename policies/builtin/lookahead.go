package builtin

import (
	"github.com/paceline-sched/paceline/sdk/policy"
)

const (
	// lookaheadMemory bounds the costs that are remembered, over all classes: 8 MiB.
	lookaheadMemory = 1 << 19
	// leftoverSteps is how finely leftovers are told apart, and leftoverUnit the thousandths of GPU of a step.
	leftoverSteps = 1 << 13
	leftoverUnit  = 8
)

// lookahead is a policy that places tasks where they spoil the least for the expected work. What spoils is a measure of a host's free room; a task costs by how much that grows.
//
// What a task of a class costs on a host is remembered until the host, or the expected work, changes: of some thousand hosts a decision looks at those few that changed since the
// class was last asked for.
type lookahead struct {
	outlook outlook
	far     int64                    // percent of the measure that is residue; the rest is fragmentation
	level   func(growth int64) int64 // the cost of a growth, in steps; one that is larger is none that is smaller
	cost    func(level, rest, leftover int64) int64

	before []value // by row: the measure as it is
	costs  []*classCosts
	now    *classCosts // of the request that is being served; nil: not remembered
	asked  uint64
	twins  []twin
}

// value is a number that holds while a row has the stamp.
type value struct {
	stamp uint64
	n     int64
}

// classCosts is what the tasks of one class cost, by row.
type classCosts struct {
	id    uint64
	asked uint64
	rows  []value
}

// twins is how many hosts are remembered by what is free on them, so that a fleet of hosts that are alike is looked at fast the first time. It is a power of two.
const twins = 256

// twin is what a task of a class costs on every host with this room.
type twin struct {
	class  uint64 // 0: none
	free   [3]int32
	lanes  [policy.MaxDevices]int16
	models [policy.MaxDevices]int16
	cost   int64
}

// slot is where a twin is kept.
func (w *twin) slot() uint64 {
	const prime = 1099511628211
	h := w.class
	for _, free := range w.free {
		h = (h ^ uint64(uint32(free))) * prime
	}
	for _, milli := range w.lanes {
		h = (h ^ uint64(uint16(milli))) * prime
	}
	return (h >> 32) % twins
}

// Prepare finds what is remembered for the class of a request.
func (p *lookahead) Prepare(t *policy.Table, r *policy.Request) {
	if len(p.before) < t.Rows() {
		p.before = make([]value, t.Rows())
	}
	if p.outlook.learn(t) {
		clear(p.before)
		p.twins = make([]twin, twins)
		for _, c := range p.costs {
			clear(c.rows)
		}
	}
	p.now = nil
	if r.Class() == 0 || t.Rows() == 0 || t.Rows() > lookaheadMemory {
		return
	}
	p.asked++
	for _, c := range p.costs {
		if c.id == r.Class() {
			p.now = c
		}
	}
	if p.now == nil {
		p.now = p.room(t.Rows())
		p.now.id = r.Class()
		clear(p.now.rows)
	}
	if p.now.asked = p.asked; len(p.now.rows) < t.Rows() {
		p.now.rows = make([]value, t.Rows())
	}
}

// room is a place for one more class, that of the one least lately asked for where memory is short.
func (p *lookahead) room(rows int) *classCosts {
	if (len(p.costs)+1)*rows <= lookaheadMemory {
		c := &classCosts{}
		p.costs = append(p.costs, c)
		return c
	}
	oldest := p.costs[0]
	for _, c := range p.costs {
		if c.asked < oldest.asked {
			oldest = c
		}
	}
	return oldest
}

// Costs implements policy.BlockScorer.
func (p *lookahead) Costs(t *policy.Table, r *policy.Request, rows []int32, costs []int64) {
	if p.now == nil {
		for i, row := range rows {
			costs[i], _ = p.price(r, t.Host(int(row)))
		}
		return
	}
	for i, row := range rows {
		known := &p.now.rows[row]
		if stamp := t.Stamp(int(row)); known.stamp != stamp {
			known.n, known.stamp = p.costOf(r, t.Host(int(row))), stamp
		}
		costs[i] = known.n
	}
}

// costOf is the cost of a task on a host, or on one with the same room.
func (p *lookahead) costOf(r *policy.Request, h policy.Host) int64 {
	w := twin{class: r.Class(), free: [3]int32{int32(h.Free(policy.CPU)), int32(h.Free(policy.Memory)), int32(h.Free(policy.Disk))}}
	if free := h.DevicesFree(); free != nil {
		w.lanes = *free
	}
	if models := h.DeviceModels(); models != nil {
		w.models = *models
	}
	known := &p.twins[w.slot()]
	if w.cost = known.cost; w != *known {
		w.cost, _ = p.price(r, h)
		*known = w
	}
	return w.cost
}

// Devices implements policy.DeviceChooser.
func (p *lookahead) Devices(r *policy.Request, h policy.Host, _ policy.Devices) policy.Devices {
	_, devices := p.price(r, h)
	return devices
}

// price is the lowest cost of a task on a host and the devices that give it. Of two devices with the same level the one with less left is taken, then the lower.
func (p *lookahead) price(r *policy.Request, h policy.Host) (cost int64, devices policy.Devices) {
	x := look(h)
	leftover := min((x.all+int64(x.free[policy.CPU])*p.outlook.perCore/outlookScale)/leftoverUnit, leftoverSteps-1)
	before := p.measureNow(h, &x)
	for k := range x.free {
		x.free[k] -= int32(r.Need(policy.Kind(k)))
	}
	n, share := r.Devices()
	open := h.OpenDevices(r)
	p.outlook.weigh(&x.free, p.far > 0)
	if n != 1 || share >= policy.WholeDevice {
		devices = policy.InOrder(r, open)
		x.take(devices, int32(share))
		return p.cost(p.level(p.measure(&x)-before), policy.WholeDevice, max(leftover, 0)), devices
	}
	level, rest := int64(0), int32(-1)
	for i := range x.lanes[:x.n] {
		its := x.lanes[i].devices & open
		if its == 0 {
			continue
		}
		was := x.share(i, int32(share))
		at := p.level(p.measure(&x) - before)
		x.unshare(i, was, int32(share))
		if left := was.milli - int32(share); rest < 0 || at < level || at == level && left < rest {
			level, rest, devices = at, left, 1<<its.Lowest()
		}
	}
	return p.cost(level, int64(rest), max(leftover, 0)), devices
}

// measureNow is the measure of a host as it is, x.
func (p *lookahead) measureNow(h policy.Host, x *room) int64 {
	known := &p.before[h.Row()]
	if stamp := h.Table().Stamp(h.Row()); known.stamp != stamp {
		p.outlook.weigh(&x.free, p.far > 0)
		*known = value{stamp, p.measure(x)}
	}
	return known.n
}

// measure is that of what is free on a host, in thousandths of a GPU times outlookScale.
func (p *lookahead) measure(x *room) int64 {
	if x.all == 0 {
		return 0
	}
	if p.far == 0 {
		return p.outlook.fragmentation(x)
	}
	return ((100-p.far)*p.outlook.fragmentation(x) + p.far*p.outlook.residue(x)) / 100
}
