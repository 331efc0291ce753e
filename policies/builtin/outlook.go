package builtin

import (
	"slices"

	"github.com/paceline-sched/paceline/sdk/policy"
)

// outlookScale is the unit of weights: sums of integers do not depend on a machine's floating point.
const outlookScale = 1 << 20

// outlook is the expected work, in the form that hosts are held against. What stands in it follows from the class mix alone.
//
// Loops stand in functions of their own, and must stay there: a module of the Go toolchain pays fuel for a whole function each time round.
type outlook struct {
	version    uint64 // of the mix that it was made of
	generation uint64
	buckets    []bucket
	classes    []expected
	perCore    int64 // thousandths of GPU that the work asks for with each thousandth of a core, at most 1, times outlookScale

	// Of the host that is being looked at.

	fits []int64 // by bucket: the weight of its classes for which CPU, memory and disk are enough
	caps []int64 // by class: thousandths of GPU that its tasks could use before CPU, memory or disk are gone
}

// bucket is the expected classes that take the same of GPUs.
type bucket struct {
	share    int32 // 0: they take none
	devices  int32
	models   uint64 // that will do, bit by number; 0: all
	weight   int64  // of all of them, in parts of outlookScale
	from, to int    // of outlook.classes
}

// expected is one class: what a task takes, and its weight.
type expected struct {
	needs  [3]int32 // CPU, memory, disk
	gpu    int64
	weight int64
}

// learn takes the mix in and reports whether it is another than before.
func (o *outlook) learn(t *policy.Table) bool {
	mix, version := t.Mix()
	if version == o.version && t.Generation() == o.generation {
		return false
	}
	o.version, o.generation = version, t.Generation()
	o.buckets, o.classes = o.buckets[:0], o.classes[:0]
	alike := func(m *policy.Class) func(bucket) bool {
		return func(b bucket) bool { return b.share == m.Share && b.devices == m.Devices && b.models == m.Models }
	}
	for i := range mix {
		if m := &mix[i]; !slices.ContainsFunc(o.buckets, alike(m)) {
			o.buckets = append(o.buckets, bucket{share: m.Share, devices: m.Devices, models: m.Models})
		}
	}
	gpu, cpu := int64(0), int64(0)
	for n := range o.buckets {
		b := &o.buckets[n]
		b.from = len(o.classes)
		for i := range mix {
			m := &mix[i]
			if b.share != m.Share || b.devices != m.Devices || b.models != m.Models {
				continue
			}
			c := expected{needs: [3]int32(m.Needs[:3]), gpu: int64(m.Share) * int64(m.Devices), weight: int64(m.Weight * outlookScale)}
			o.classes = append(o.classes, c)
			b.weight += c.weight
			gpu += c.weight * c.gpu
			cpu += c.weight * int64(c.needs[policy.CPU])
		}
		b.to = len(o.classes)
	}
	if o.perCore = outlookScale / 16; gpu > 0 && cpu > 0 { // 16 cores a GPU where the work does not tell
		o.perCore = min(gpu/(cpu/outlookScale+1), outlookScale)
	}
	o.fits, o.caps = make([]int64, len(o.buckets)), make([]int64, len(o.classes))
	return true
}

// room is what is free on a host.
type room struct {
	free  [3]int32 // CPU, memory, disk
	all   int64    // thousandths of all GPUs together
	lanes [policy.MaxDevices + 1]lane
	n     int // of lanes
}

// lane is the devices of a host that have the same model and as much left: one stands for all of them.
type lane struct {
	milli   int32
	count   int32
	model   uint64 // its bit; all bits where models are not known
	devices policy.Devices
}

func look(h policy.Host) room {
	var x room
	for k := range x.free {
		x.free[k] = int32(h.Free(policy.Kind(k)))
	}
	free, models := h.DevicesFree(), h.DeviceModels()
	if free == nil {
		return x
	}
	for l, milli := range free {
		if milli <= 0 {
			continue
		}
		model := ^uint64(0)
		if models != nil {
			model = 1 << uint(models[l]&63)
		}
		x.add(lane{int32(milli), 1, model, 1 << l})
	}
	return x
}

//go:noinline
func (x *room) add(a lane) {
	x.all += int64(a.milli)
	for i := range x.lanes[:x.n] {
		if l := &x.lanes[i]; l.milli == a.milli && l.model == a.model {
			l.count++
			l.devices |= a.devices
			return
		}
	}
	x.lanes[x.n] = a
	x.n++
}

// share takes a share off one device of lane i and returns what undoes that.
func (x *room) share(i int, share int32) (was lane) {
	was = x.lanes[i]
	x.lanes[i].count--
	x.lanes[x.n] = lane{milli: was.milli - share, count: 1, model: was.model}
	x.n++
	x.all -= int64(share)
	return was
}

func (x *room) unshare(i int, was lane, share int32) {
	x.lanes[i] = was
	x.n--
	x.all += int64(share)
}

// take takes a share off each of some devices.
func (x *room) take(devices policy.Devices, share int32) {
	for i, n := 0, x.n; i < n; i++ {
		l := &x.lanes[i]
		k := int32((l.devices & devices).Len())
		if k == 0 {
			continue
		}
		l.count -= k
		x.all -= int64(k) * int64(share)
		x.lanes[x.n] = lane{milli: l.milli - share, count: k, model: l.model}
		if l.count == 0 {
			*l = x.lanes[x.n]
		} else {
			x.n++
		}
	}
}

// tally counts the devices that can give a share, how many shares all of them give together, and sums what is free of the others.
//
//go:noinline
func (x *room) tally(share int32, models uint64) (enough, shares int32, lost int64) {
	for i := range x.lanes[:x.n] {
		l := &x.lanes[i]
		if l.milli >= share && (models == 0 || models&l.model != 0) {
			enough += l.count
			shares += l.count * (l.milli / share)
		} else {
			lost += int64(l.count) * int64(l.milli)
		}
	}
	return enough, shares, lost
}

// weigh looks at CPU, memory and disk of a host: what they allow each class is the same whichever devices a task takes. far says that caps are wanted.
func (o *outlook) weigh(free *[3]int32, far bool) {
	for i := range o.buckets {
		b := &o.buckets[i]
		o.fits[i] = fitting(o.classes[b.from:b.to], free)
		if far && b.share > 0 {
			limit(o.classes[b.from:b.to], free, o.caps[b.from:b.to])
		}
	}
}

// fitting sums the weights of the classes that find enough CPU, memory and disk for a task.
//
//go:noinline
func fitting(classes []expected, free *[3]int32) int64 {
	sum := int64(0)
	for i := range classes {
		c := &classes[i]
		if c.needs[0] <= free[0] && c.needs[1] <= free[1] && c.needs[2] <= free[2] {
			sum += c.weight
		}
	}
	return sum
}

// noCap is more than all GPUs of a host.
const noCap = 1 << 20

//go:noinline
func limit(classes []expected, free *[3]int32, caps []int64) {
	for i := range caps {
		c := &classes[i]
		caps[i] = min(c.limit(free, 0), c.limit(free, 1), c.limit(free, 2))
	}
}

func (c *expected) limit(free *[3]int32, k int) int64 {
	if c.needs[k] <= 0 {
		return noCap
	}
	return int64(max(free[k], 0)) * c.gpu / int64(c.needs[k])
}

// fragmentation is how many thousandths of free GPU one more expected task could not use, in expectation, times outlookScale. On a host that cannot take a task, all that is free is
// lost to it, so too when it asks for no GPU; on one that can, what is free of the devices that are too small for it or of another model.
func (o *outlook) fragmentation(x *room) int64 {
	sum := int64(0)
	for i := range o.buckets {
		b := &o.buckets[i]
		fits := o.fits[i]
		if fits > 0 && b.share > 0 {
			if enough, _, lost := x.tally(b.share, b.models); enough >= b.devices {
				sum += fits * (lost - x.all)
			}
		}
		sum += b.weight * x.all
	}
	return sum
}

// residue is how many thousandths of free GPU would be left over if tasks of one expected class, drawn by weight, came until the host is full, in expectation, times outlookScale. CPU,
// memory and disk are taken to the last part of a task, devices are not. Classes that ask for no GPU do not count.
func (o *outlook) residue(x *room) int64 {
	sum := int64(0)
	for i := range o.buckets {
		b := &o.buckets[i]
		if b.share == 0 {
			continue
		}
		_, shares, _ := x.tally(b.share, b.models)
		most := int64(shares/b.devices) * int64(b.share) * int64(b.devices)
		sum += b.weight*x.all - used(o.classes[b.from:b.to], o.caps[b.from:b.to], most)
	}
	return sum
}

//go:noinline
func used(classes []expected, caps []int64, most int64) int64 {
	sum := int64(0)
	for i := range caps {
		sum += classes[i].weight * min(caps[i], most)
	}
	return sum
}
