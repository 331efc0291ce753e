package builtin

import (
	"github.com/paceline-sched/paceline/sdk/policy"
)

const (
	// leftoverSteps is how finely leftovers are told apart, and leftoverUnit the thousandths of GPU of a step.
	leftoverSteps = 1 << 13
	leftoverUnit  = 8
	// twins is how many hosts are remembered by what is free on them, for all classes together. It is a power of two.
	twins = 1 << 12
)

// lookahead is a policy that places tasks where they spoil the least for the expected work. What spoils is a measure of a host's free room; a task costs by how much that grows.
//
// The package that it is written against remembers what a task of a class costs on a host until the host, or the expected work, changes: of some thousand hosts a decision looks at those few
// that changed since the class was last asked for. Hosts that have the same room are looked at once.
type lookahead struct {
	outlook outlook
	far     int64                    // percent of the measure that is residue; the rest is fragmentation
	level   func(growth int64) int64 // the cost of a growth, in steps; one that is larger is none that is smaller
	cost    func(level, rest, leftover int64) int64

	before []value // by row: the measure as it is
	twins  []twin
	now    twin // the host that is being looked at
	room   room // of it
}

// value is a number that holds while a row has the stamp.
type value struct {
	stamp uint64
	n     int64
}

// twin is what a task of a class costs on every host with this room.
type twin struct {
	class  uint64 // 0: none
	before [3]int32
	after  [3]int32                   // the task; of free CPU, memory and disk it is enough to know what the measure tells apart
	lanes  [policy.MaxDevices]laneKey // ascending among neighbours of one model: which of them has what left does not matter

	level, rest int64
}

// laneKey is what is left of a device, and its model in the upper half; 0 is none.
type laneKey uint32

// describe says what tells a host apart for a task.
func (w *twin) describe(o *outlook, far bool, r *policy.Request, h policy.Host) {
	*w = twin{class: r.Class()}
	for k := range w.before {
		free := int32(h.Free(policy.Kind(k)))
		w.before[k] = free
		if !far {
			w.before[k], w.after[k] = o.rankOf(k, free), o.rankOf(k, free-int32(r.Need(policy.Kind(k))))
		}
	}
	if free := h.DevicesFree(); free != nil {
		w.sort(free, h.DeviceModels())
	}
}

// sort puts devices with something left in order, those of one model that follow each other: of several models the first whole device would be another.
//
//go:noinline
func (w *twin) sort(free, models *[policy.MaxDevices]int16) {
	n := uint(0)
	for l, milli := range free {
		if milli > 0 {
			w.insert(n, keyOf(milli, models, l))
			n++
		}
	}
}

func keyOf(milli int16, models *[policy.MaxDevices]int16, l int) laneKey {
	if models == nil {
		return laneKey(milli)
	}
	return laneKey(milli) | laneKey(uint16(models[l]))<<16
}

// insert puts a device in its place among n.
//
//go:noinline
func (w *twin) insert(n uint, l laneKey) {
	for ; n > 0; n-- {
		before := w.lanes[(n-1)%policy.MaxDevices] // the remainders spare a check
		if before <= l || before>>16 != l>>16 {
			break
		}
		w.lanes[n%policy.MaxDevices] = before
	}
	w.lanes[n%policy.MaxDevices] = l
}

// slot is where a twin is kept.
func (w *twin) slot() uint64 {
	h := w.class
	for k := range w.before {
		h = (h^uint64(uint32(w.before[k])))*hashPrime ^ uint64(uint32(w.after[k]))
	}
	return hashLanes(h, &w.lanes) >> 32 % twins
}

const hashPrime = 1099511628211

//go:noinline
func hashLanes(h uint64, lanes *[policy.MaxDevices]laneKey) uint64 {
	for i := 0; i < len(lanes) && lanes[i] != 0; i++ {
		h = (h ^ uint64(lanes[i])) * hashPrime
	}
	return h * hashPrime
}

// alike reports whether two hosts cost the same.
func (w *twin) alike(v *twin) bool {
	return w.class == v.class && w.before == v.before && w.after == v.after && w.lanes == v.lanes
}

// Prepare takes in the expected work.
func (p *lookahead) Prepare(t *policy.Table, _ *policy.Request) {
	if len(p.before) < t.Rows() {
		p.before = make([]value, t.Rows())
	}
	if p.twins == nil {
		p.twins = make([]twin, twins)
	}
	if p.outlook.learn(t) {
		clear(p.before)
		clear(p.twins)
	}
}

// Costs implements policy.BlockScorer.
func (p *lookahead) Costs(t *policy.Table, r *policy.Request, rows []int32, costs []int64) {
	for i, row := range rows {
		costs[i] = p.costOf(r, t.Host(int(row)))
	}
}

// costOf is the cost of a task on a host, or on one with the same room.
func (p *lookahead) costOf(r *policy.Request, h policy.Host) int64 {
	if r.Class() == 0 {
		p.price(r, h)
		return p.cost(p.now.level, p.now.rest, p.leftover(h))
	}
	p.now.describe(&p.outlook, p.far > 0, r, h)
	known := &p.twins[p.now.slot()]
	if !known.alike(&p.now) {
		p.price(r, h)
		*known = p.now
	}
	return p.cost(known.level, known.rest, p.leftover(h))
}

// leftover is what is left over on a host, as so much of a GPU, in steps.
func (p *lookahead) leftover(h policy.Host) int64 {
	all := int64(0)
	if free := h.DevicesFree(); free != nil {
		all = sum(free)
	}
	return max(min((all+h.Free(policy.CPU)*p.outlook.perCore/outlookScale)/leftoverUnit, leftoverSteps-1), 0)
}

//go:noinline
func sum(free *[policy.MaxDevices]int16) int64 {
	all := int64(0)
	for _, milli := range free {
		all += int64(max(milli, 0))
	}
	return all
}

// Devices implements policy.DeviceChooser.
func (p *lookahead) Devices(r *policy.Request, h policy.Host, _ policy.Devices) policy.Devices {
	return p.price(r, h)
}

// price finds the devices of a host on which a task costs the least, and notes what is known of that cost. Of two devices with the same level the one with less left is taken, then the lower.
func (p *lookahead) price(r *policy.Request, h policy.Host) (devices policy.Devices) {
	x, o, far := &p.room, &p.outlook, p.far > 0
	x.look(h)
	o.hold(x, far)
	before := p.measureNow(h, x)
	for k := range x.free {
		x.free[k] -= int32(r.Need(policy.Kind(k)))
	}
	n, share := r.Devices()
	open := h.OpenDevices(r)
	o.weigh(&x.free, far)
	o.settle(far)
	if n == 1 && share < policy.WholeDevice {
		return p.choose(x, open, int32(share), before)
	}
	if devices = policy.InOrder(r, open); devices != 0 {
		x.take(devices, int32(share))
		o.hold(x, far)
		o.settle(far)
	}
	p.now.level, p.now.rest = p.level(p.measure(x.all, change{})-before), policy.WholeDevice
	return devices
}

// choose is the open device of which a share costs the least.
//
//go:noinline
func (p *lookahead) choose(x *room, open policy.Devices, share int32, before int64) (devices policy.Devices) {
	w, all := &p.now, x.all-int64(share)
	w.level, w.rest = 0, -1
	for i := range x.lanes[:x.n] {
		l := &x.lanes[i]
		its := l.devices & open
		if its == 0 {
			continue
		}
		left := l.milli - share
		at := p.level(p.measure(all, change{l.milli, left, l.model}) - before)
		if w.rest < 0 || at < w.level || at == w.level && int64(left) < w.rest {
			w.level, w.rest, devices = at, int64(left), 1<<its.Lowest()
		}
	}
	return devices
}

// measureNow is the measure of a host as it is, x, whose devices are held.
func (p *lookahead) measureNow(h policy.Host, x *room) int64 {
	known := &p.before[h.Row()]
	if stamp := h.Table().Stamp(h.Row()); known.stamp != stamp {
		p.outlook.weigh(&x.free, p.far > 0)
		p.outlook.settle(p.far > 0)
		*known = value{stamp, p.measure(x.all, change{})}
	}
	return known.n
}

// measure is that of what is free on the host that is being looked at, after a change, in thousandths of a GPU times outlookScale. all is what is free then of all devices.
func (p *lookahead) measure(all int64, d change) int64 {
	switch {
	case all == 0:
		return 0
	case p.far == 0:
		return p.outlook.fragmentation(all, d)
	}
	return ((100-p.far)*p.outlook.fragmentation(all, d) + p.far*p.outlook.residue(all, d)) / 100
}
