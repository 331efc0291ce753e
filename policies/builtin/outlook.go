package builtin

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/sdk/policy"
)

// outlookScale is the unit of weights: sums of integers do not depend on a machine's floating point.
const outlookScale = 1 << 20

// outlook is the expected work, in the form that hosts are held against. What stands in it follows from the class mix alone.
//
// A host is held against it in steps: hold its devices, weigh what else is free, settle, and ask for a measure, of the host as it is or with one device changed. Buckets stand in the order of
// what they take of a device, so that a device is of use to the first ones up to some place. Sums up to each place say what a change of a device does without a look at every bucket.
//
// Loops stand in functions of their own, and must stay there: a module of the Go toolchain pays fuel for a whole function each time round a loop.
type outlook struct {
	version    uint64 // of the mix that it was made of
	generation uint64
	groups     []group
	buckets    []bucket
	classes    []expected // that take GPUs, those of a bucket together
	weight     int64      // of all classes
	gpuWeight  int64      // of those that take GPUs
	needs      [3][]int32 // of CPU, memory and disk, ascending: what lies between two of them makes no difference to whether classes fit
	perCore    int64      // thousandths of GPU that the work asks for with each thousandth of a core, at most 1, times outlookScale

	// Of the host that is being looked at.

	sums []sums // of the buckets before each place
	used int64  // by tasks that come until the host is full, by weight
}

// group is the buckets that take devices of the same models.
type group struct {
	models   uint64 // bit by number
	from, to int    // of outlook.buckets
	// upTo is, for what is left of a device, the place behind the last bucket that it is of use to.
	upTo [policy.WholeDevice + 1]int32
}

// bucket is the expected classes that take the same of GPUs.
type bucket struct {
	share    int32 // of each device, above 0
	devices  int32
	models   uint64   // that will do, bit by number
	gpu      int64    // thousandths that a task takes of all its devices
	weight   int64    // of all of them, in parts of outlookScale
	top      [3]int32 // the most that a task needs of CPU, memory and disk
	from, to int      // of outlook.classes

	// Of the host that is being looked at.

	enough int32 // devices that can give a share
	shares int32 // that all of them give together
	usable int64 // thousandths that are free of them
	fits   int64 // the weight of classes for which CPU, memory and disk are enough
	least  int64 // of the caps of its classes
	most   int64
	full   int64 // the caps by weight
	used   int64 // by tasks that come until the host is full, by weight
	drops  drops
}

// drops is by how much used shrinks when a device gives so many shares less. Of a task of one size devices lose one of two numbers of shares.
type drops [2]struct {
	shares int32 // 0: nothing is known
	drop   int64
}

// sums are of some buckets: of those for which there are devices enough, and of those for which there are if one less can give a share.
type sums struct {
	fits, useful           int64 // the weights that fit, and times what is usable
	spareFits, spareUseful int64
}

// expected is one class: what a task takes, and its weight.
type expected struct {
	needs  [3]int32 // CPU, memory, disk
	weight int64

	most int64 // its cap: thousandths of GPU of a host that its tasks could use before CPU, memory or disk are gone
}

// learn takes the mix in and reports whether it is another than before.
func (o *outlook) learn(t *policy.Table) bool {
	mix, version := t.Mix()
	if version == o.version && t.Generation() == o.generation {
		return false
	}
	*o = outlook{version: version, generation: t.Generation(), groups: o.groups[:0], buckets: o.buckets[:0], classes: o.classes[:0]}
	gpu, cpu := int64(0), int64(0)
	for i := range mix {
		m := &mix[i]
		weight := int64(m.Weight * outlookScale)
		o.weight += weight
		gpu += weight * int64(m.Share) * int64(m.Devices)
		cpu += weight * int64(m.Needs[policy.CPU])
		if m.Share > 0 && m.Devices > 0 && !slices.ContainsFunc(o.buckets, func(b bucket) bool { return b.alike(m) }) {
			o.buckets = append(o.buckets, bucket{share: m.Share, devices: m.Devices, models: modelsOf(m), gpu: int64(m.Share) * int64(m.Devices)})
		}
	}
	if o.perCore = outlookScale / 16; gpu > 0 && cpu > 0 { // 16 cores a GPU where the work does not tell
		o.perCore = min(gpu/(cpu/outlookScale+1), outlookScale)
	}
	slices.SortFunc(o.buckets, func(a, b bucket) int {
		return cmp.Or(cmp.Compare(a.models, b.models), cmp.Compare(a.share, b.share), cmp.Compare(a.devices, b.devices))
	})
	for n := range o.buckets {
		o.gather(n, mix)
	}
	for i := range o.groups {
		o.groups[i].rank(o.buckets)
	}
	for k := range o.needs {
		for i := range o.classes {
			o.needs[k] = append(o.needs[k], o.classes[i].needs[k])
		}
		slices.Sort(o.needs[k])
		o.needs[k] = slices.Compact(o.needs[k])
	}
	o.sums = make([]sums, len(o.buckets)+1)
	return true
}

// rankOf is how many of the needs of a kind are met.
func (o *outlook) rankOf(k int, free int32) int32 {
	return countUpTo(o.needs[k], free)
}

//go:noinline
func countUpTo(sorted []int32, free int32) int32 {
	from, to := 0, len(sorted)
	if to == 0 || sorted[to-1] <= free {
		return int32(to) //nolint:gosec // at most policyabi.MaxMix
	}
	for from < to {
		if mid := (from + to) / 2; sorted[mid] <= free {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return int32(from) //nolint:gosec // at most policyabi.MaxMix
}

// alike reports whether a class takes the same of GPUs.
func (b *bucket) alike(m *policy.Class) bool {
	return b.share == m.Share && b.devices == m.Devices && b.models == modelsOf(m)
}

func modelsOf(m *policy.Class) uint64 {
	if m.Models == 0 {
		return ^uint64(0)
	}
	return m.Models
}

// gather puts the classes of bucket n together, and the bucket into its group.
func (o *outlook) gather(n int, mix []policy.Class) {
	b := &o.buckets[n]
	b.from = len(o.classes)
	for i := range mix {
		if m := &mix[i]; b.alike(m) {
			c := expected{needs: [3]int32(m.Needs[:3]), weight: int64(m.Weight * outlookScale)}
			o.classes = append(o.classes, c)
			b.weight += c.weight
			for k, need := range c.needs {
				b.top[k] = max(b.top[k], need)
			}
		}
	}
	b.to = len(o.classes)
	o.gpuWeight += b.weight
	if last := len(o.groups) - 1; last < 0 || o.groups[last].models != b.models {
		o.groups = append(o.groups, group{models: b.models, from: n})
	}
	o.groups[len(o.groups)-1].to = n + 1
}

// rank finds the places of the group.
func (g *group) rank(buckets []bucket) {
	at := g.from
	for milli := range g.upTo {
		for at < g.to && int(buckets[at].share) <= milli {
			at++
		}
		g.upTo[milli] = int32(at)
	}
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

func (x *room) look(h policy.Host) {
	x.all, x.n = 0, 0
	for k := range x.free {
		x.free[k] = int32(h.Free(policy.Kind(k)))
	}
	if free := h.DevicesFree(); free != nil {
		x.fill(free, h.DeviceModels())
	}
}

//go:noinline
func (x *room) fill(free, models *[policy.MaxDevices]int16) {
	for l, milli := range free {
		if milli > 0 {
			x.add(int32(milli), modelOf(models, l), 1<<l)
		}
	}
}

func modelOf(models *[policy.MaxDevices]int16, l int) uint64 {
	if models == nil {
		return ^uint64(0)
	}
	return 1 << uint(models[l]&63)
}

//go:noinline
func (x *room) add(milli int32, model uint64, device policy.Devices) {
	x.all += int64(milli)
	i := 0
	for i < x.n && (x.lanes[i].milli != milli || x.lanes[i].model != model) {
		i++
	}
	if i == x.n {
		x.lanes[i] = lane{milli: milli, model: model}
		x.n++
	}
	x.lanes[i].count++
	x.lanes[i].devices |= device
}

// take takes a share off each of some devices.
func (x *room) take(devices policy.Devices, share int32) {
	for i, n := 0, x.n; i < n; i++ {
		l := &x.lanes[i]
		k := int32((l.devices & devices).Len())
		if k == 0 {
			continue
		}
		x.all -= int64(k) * int64(share)
		if l.count -= k; l.count > 0 {
			x.lanes[x.n] = *l
			l = &x.lanes[x.n]
			x.n++
		}
		l.milli, l.count = l.milli-share, k
	}
}

// hold looks at the devices of a host. far says that residue is wanted.
func (o *outlook) hold(x *room, far bool) {
	o.release()
	for i := range x.lanes[:x.n] {
		o.holdLane(&x.lanes[i], far)
	}
	o.gatherUp()
}

//go:noinline
func (o *outlook) release() {
	for i := range o.buckets {
		b := &o.buckets[i]
		b.enough, b.shares, b.usable = 0, 0, 0
	}
}

// holdLane notes devices at the last bucket that they are of use to.
//
//go:noinline
func (o *outlook) holdLane(l *lane, far bool) {
	for i := range o.groups {
		g := &o.groups[i]
		end := int(g.upTo[l.milli])
		if l.model&g.models == 0 || end == g.from {
			continue
		}
		b := &o.buckets[end-1]
		b.enough += l.count
		b.usable += int64(l.count) * int64(l.milli)
		if far {
			share(o.buckets[g.from:end], l.milli, l.count)
		}
	}
}

//go:noinline
func share(buckets []bucket, milli, count int32) {
	for i := range buckets {
		buckets[i].shares += milli / buckets[i].share * count
	}
}

// gatherUp gives each bucket what is noted at those behind it in its group.
//
//go:noinline
func (o *outlook) gatherUp() {
	for i := len(o.buckets) - 1; i > 0; i-- {
		if b, before := &o.buckets[i], &o.buckets[i-1]; b.models == before.models {
			before.enough += b.enough
			before.usable += b.usable
		}
	}
}

// weigh looks at CPU, memory and disk of a host whose devices are held: what they allow each class is the same whichever devices a task takes. far says that residue is wanted.
func (o *outlook) weigh(free *[3]int32, far bool) {
	o.fit(free)
	if far {
		o.limit(int64(max(free[0], 0)), int64(max(free[1], 0)), int64(max(free[2], 0)))
	}
}

//go:noinline
func (o *outlook) fit(free *[3]int32) {
	for i := range o.buckets {
		b := &o.buckets[i]
		if b.fits = b.weight; b.top[0] > free[0] || b.top[1] > free[1] || b.top[2] > free[2] {
			b.fits = fitting(o.classes[b.from:b.to], free[0], free[1], free[2])
		}
	}
}

//go:noinline
func fitting(classes []expected, cpu, memory, disk int32) int64 {
	sum := int64(0)
	for i := range classes {
		if c := &classes[i]; c.needs[0] <= cpu && c.needs[1] <= memory && c.needs[2] <= disk {
			sum += c.weight
		}
	}
	return sum
}

// limit finds the caps of classes, where they are less than the devices give.
//
//go:noinline
func (o *outlook) limit(cpu, memory, disk int64) {
	for i := range o.buckets {
		b := &o.buckets[i]
		if cpu*b.gpu < b.usable*int64(b.top[0]) || memory*b.gpu < b.usable*int64(b.top[1]) || disk*b.gpu < b.usable*int64(b.top[2]) {
			b.limit(o.classes[b.from:b.to], cpu, memory, disk)
		} else {
			b.least, b.most = noCap, noCap
		}
	}
}

// noCap is more than all GPUs of a host.
const noCap = 1 << 20

// limit finds the caps of a bucket's classes: the least of what each kind allows, for which one division is enough.
//
//go:noinline
func (b *bucket) limit(classes []expected, cpu, memory, disk int64) {
	least, most, full := int64(noCap), int64(0), int64(0)
	for i := range classes {
		c := &classes[i]
		has, needs := int64(noCap), b.gpu
		if need := int64(c.needs[0]); cpu*needs < has*need {
			has, needs = cpu, need
		}
		if need := int64(c.needs[1]); memory*needs < has*need {
			has, needs = memory, need
		}
		if need := int64(c.needs[2]); disk*needs < has*need {
			has, needs = disk, need
		}
		c.most = has * b.gpu / max(needs, 1) // which it is
		least, most = min(least, c.most), max(most, c.most)
		full += c.most * c.weight
	}
	b.least, b.most, b.full = least, most, full
}

// settle makes the sums, after hold and weigh.
func (o *outlook) settle(far bool) {
	sumUp(o.buckets, o.sums)
	if far {
		o.fill()
	}
}

//go:noinline
func sumUp(buckets []bucket, all []sums) {
	var s sums
	for i := range buckets {
		b := &buckets[i]
		if useful := b.fits * b.usable; b.enough > b.devices {
			s.fits += b.fits
			s.useful += useful
			s.spareFits += b.fits
			s.spareUseful += useful
		} else if b.enough == b.devices {
			s.fits += b.fits
			s.useful += useful
		}
		all[i+1] = s
	}
}

// fill notes what tasks of each bucket would use.
//
//go:noinline
func (o *outlook) fill() {
	o.used = 0
	for i := range o.buckets {
		b := &o.buckets[i]
		b.drops = drops{}
		if most := int64(b.shares/b.devices) * b.gpu; most <= b.least {
			b.used = b.weight * most
		} else {
			b.used = o.usedOf(b, b.shares)
		}
		o.used += b.used
	}
}

// usedOf is what tasks of a bucket would use if devices could give so many shares.
//
//go:noinline
func (o *outlook) usedOf(b *bucket, shares int32) int64 {
	switch most := int64(shares/b.devices) * b.gpu; {
	case most >= b.most:
		return b.full
	case most <= b.least:
		return b.weight * most
	default:
		return used(o.classes[b.from:b.to], most)
	}
}

// change is a device that has less left: from and to in thousandths. Where they are the same, nothing changes.
type change struct {
	from, to int32
	model    uint64
}

// fragmentation is how many thousandths of free GPU one more expected task could not use, in expectation, times outlookScale. On a host that cannot take a task, all that is free is
// lost to it, so too when it asks for no GPU; on one that can, what is free of the devices that are too small for it or of another model. all is what is free after the change.
//
//go:noinline
func (o *outlook) fragmentation(all int64, d change) int64 {
	sum := o.weight*all - o.sums[len(o.buckets)].useful
	for i := range o.groups {
		if g := &o.groups[i]; d.from != d.to && d.model&g.models != 0 {
			sum += o.spoilt(g, d)
		}
	}
	return sum
}

// spoilt is how much less is useful to a group after a change: buckets that the device serves still have less of it, and those that it served lose it, and all the others if it was one of
// no more than enough.
func (o *outlook) spoilt(g *group, d change) int64 {
	first, kept, had := &o.sums[g.from], &o.sums[g.upTo[d.to]], &o.sums[g.upTo[d.from]]
	lost := had.useful - kept.useful - (had.spareUseful - kept.spareUseful) + int64(d.from)*(had.spareFits-kept.spareFits)
	return lost + int64(d.from-d.to)*(kept.fits-first.fits)
}

// residue is how many thousandths of free GPU would be left over if tasks of one expected class, drawn by weight, came until the host is full, in expectation, times outlookScale. CPU,
// memory and disk are taken to the last part of a task, devices are not. Classes that ask for no GPU do not count. all is what is free after the change.
//
//go:noinline
func (o *outlook) residue(all int64, d change) int64 {
	sum := o.gpuWeight*all - o.used
	for i := range o.groups {
		if g := &o.groups[i]; d.from != d.to && d.model&g.models != 0 {
			sum += o.unused(o.buckets[g.from:g.upTo[d.from]], d)
		}
	}
	return sum
}

// unused is how much less tasks of some buckets would use after a change.
//
//go:noinline
func (o *outlook) unused(buckets []bucket, d change) int64 {
	sum := int64(0)
	for i := range buckets {
		b := &buckets[i]
		fewer := d.from/b.share - d.to/b.share
		if fewer == 0 {
			continue
		}
		known := &b.drops[fewer&1]
		if known.shares != fewer {
			known.shares, known.drop = fewer, b.used-o.usedOf(b, b.shares-fewer)
		}
		sum += known.drop
	}
	return sum
}

//go:noinline
func used(classes []expected, most int64) int64 {
	sum := int64(0)
	for i := range classes {
		sum += classes[i].weight * min(classes[i].most, most)
	}
	return sum
}
