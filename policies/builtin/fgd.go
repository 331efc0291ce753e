package builtin

import (
	"slices"
	"sort"

	"github.com/paceline-sched/paceline/sdk/policy"
)

const (
	// fgdScale is the unit of weights: sums of integers do not depend on a machine's floating point.
	fgdScale = 1 << 20
	// fgdMemory bounds the costs that are remembered, over all classes: 8 MiB.
	fgdMemory = 1 << 19
)

// fgd is fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC'23). A host's fragmentation is how many thousandths of its free GPUs a task drawn from
// the expected work could not use; a task goes where that grows least. The growth becomes a score of 0 to 100 by a logistic function; ties go to the host with the least free GPU.
//
// What a task of a class costs on a host is remembered until the host, or the expected work, changes.
type fgd struct {
	mix        uint64 // the version of the expected work that groups are of
	generation uint64
	groups     []fgdGroup

	before []fgdValue // by row: fragmentation as it is
	costs  []*fgdClass
	now    *fgdClass // of the request that is being served; nil: not remembered
	asked  uint64
}

// FGD is fragmentation gradient descent over the expected work.
func FGD() *policy.Program { return program(policy.Info{Name: "fgd"}, &fgd{}) }

// fgdGroup is the expected classes that see a host's devices alike.
type fgdGroup struct {
	share   int32
	models  uint64 // 0: all
	classes []fgdTask
}

// fgdTask is one expected class: what it takes and its weight, in parts of fgdScale.
type fgdTask struct {
	needs   [3]int32 // CPU, memory, disk
	devices int32
	weight  int64
}

// fgdValue is a number that holds while a row has the stamp.
type fgdValue struct {
	stamp uint64
	value int64
}

// fgdClass is what the tasks of one class cost, by row.
type fgdClass struct {
	id    uint64
	asked uint64
	rows  []fgdValue
}

// fgdHost is what counts of a host: free room, and what is free of each device.
type fgdHost struct {
	free   [3]int32
	lanes  [policy.MaxDevices]int16
	models *[policy.MaxDevices]int16
	n      int // lanes in use are below it
}

// Prepare finds what is remembered for the class of a request.
func (p *fgd) Prepare(t *policy.Table, r *policy.Request) {
	p.learn(t)
	p.now = nil
	if r.Class() == 0 || t.Rows() == 0 || t.Rows() > fgdMemory {
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
		p.now.rows = make([]fgdValue, t.Rows())
	}
}

// room is a place for one more class, that of the one least lately asked for where memory is short.
func (p *fgd) room(rows int) *fgdClass {
	if (len(p.costs)+1)*rows <= fgdMemory {
		c := &fgdClass{}
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

// learn takes in the expected work. When it changed nothing that was remembered holds.
func (p *fgd) learn(t *policy.Table) {
	if len(p.before) < t.Rows() {
		p.before = make([]fgdValue, t.Rows())
	}
	mix, version := t.Mix()
	if version == p.mix && t.Generation() == p.generation {
		return
	}
	p.mix, p.generation = version, t.Generation()
	clear(p.before)
	for _, c := range p.costs {
		clear(c.rows)
	}
	p.groups = p.groups[:0]
	for i := range mix {
		m := &mix[i]
		task := fgdTask{needs: [3]int32(m.Needs[:3]), devices: m.Devices, weight: int64(m.Weight * fgdScale)}
		at := slices.IndexFunc(p.groups, func(g fgdGroup) bool { return g.share == m.Share && g.models == m.Models })
		if at < 0 {
			at = len(p.groups)
			p.groups = append(p.groups, fgdGroup{share: m.Share, models: m.Models})
		}
		p.groups[at].classes = append(p.groups[at].classes, task)
	}
}

// Costs implements policy.BlockScorer.
func (p *fgd) Costs(t *policy.Table, r *policy.Request, rows []int32, costs []int64) {
	for i, row := range rows {
		stamp := t.Stamp(int(row))
		if p.now != nil && p.now.rows[row].stamp == stamp {
			costs[i] = p.now.rows[row].value
			continue
		}
		h := t.Host(int(row))
		score, _ := p.best(r, h, h.OpenDevices(r))
		costs[i] = int64(100-score)*policy.Point + h.Free(policy.GPU)
		if p.now != nil {
			p.now.rows[row] = fgdValue{stamp, costs[i]}
		}
	}
}

// Devices implements policy.DeviceChooser.
func (p *fgd) Devices(r *policy.Request, h policy.Host, open policy.Devices) policy.Devices {
	_, devices := p.best(r, h, open)
	return devices
}

// best returns the best score of a task on a host and the devices that give it. Devices with the same free share and model are alike, and of two with the same score the one with less
// free is taken, then the lower.
func (p *fgd) best(r *policy.Request, at policy.Host, open policy.Devices) (score int, devices policy.Devices) {
	h := look(at)
	before := p.fragmentationNow(at, &h)
	for k := range h.free {
		h.free[k] -= int32(r.Need(policy.Kind(k)))
	}
	n, share := r.Devices()
	if n != 1 || share >= policy.WholeDevice {
		devices = policy.InOrder(r, open)
		for rest := devices; rest != 0; rest &= rest - 1 {
			h.lanes[rest.Lowest()] -= int16(share)
		}
		return fgdScore(p.fragmentation(&h) - before), devices
	}
	score = -1
	for rest := open; rest != 0; rest &= rest - 1 {
		l := rest.Lowest()
		if h.known(open, l) {
			continue
		}
		h.lanes[l] -= int16(share)
		s := fgdScore(p.fragmentation(&h) - before)
		h.lanes[l] += int16(share)
		if s > score || s == score && h.lanes[l] < h.lanes[devices.Lowest()] {
			score, devices = s, 1<<l
		}
	}
	return score, devices
}

// known reports whether an open device before l is like it.
func (h *fgdHost) known(open policy.Devices, l int) bool {
	for e := range l {
		if open>>e&1 != 0 && h.lanes[e] == h.lanes[l] && (h.models == nil || h.models[e] == h.models[l]) {
			return true
		}
	}
	return false
}

// fgdScore is the score of a growth of fragmentation.
func fgdScore(growth int64) int {
	return sort.Search(len(fgdLevels), func(i int) bool { return growth > fgdLevels[i] })
}

func look(at policy.Host) fgdHost {
	var h fgdHost
	for k := range h.free {
		h.free[k] = int32(at.Free(policy.Kind(k)))
	}
	if lanes := at.DevicesFree(); lanes != nil {
		h.lanes = *lanes
	}
	h.models = at.DeviceModels()
	for l, free := range h.lanes {
		if free > 0 {
			h.n = l + 1
		}
	}
	return h
}

func (p *fgd) fragmentationNow(at policy.Host, h *fgdHost) int64 {
	v := &p.before[at.Row()]
	if stamp := at.Table().Stamp(at.Row()); v.stamp != stamp {
		*v = fgdValue{stamp, p.fragmentation(h)}
	}
	return v.value
}

// fragmentation is how many thousandths of GPU the expected tasks could not use, in expectation, times fgdScale. On a host that cannot take a task, all that is free is lost to it, so
// too when it asks for no GPU; on one that can, what is free of the devices that are too small for it or of another model.
func (p *fgd) fragmentation(h *fgdHost) int64 {
	all := int64(0)
	for _, free := range h.lanes[:h.n] {
		all += int64(max(free, 0))
	}
	if all == 0 {
		return 0
	}
	sum := int64(0)
	for i := range p.groups {
		g := &p.groups[i]
		enough, lost := int32(0), all
		if g.share > 0 {
			enough, lost = h.usable(g)
		}
		for j := range g.classes {
			c := &g.classes[j]
			if c.devices == 0 || c.devices > enough || c.needs[0] > h.free[0] || c.needs[1] > h.free[1] || c.needs[2] > h.free[2] {
				sum += c.weight * all
			} else {
				sum += c.weight * lost
			}
		}
	}
	return sum
}

// usable counts the devices that can give a task of the group its share, and sums what is free of the others.
func (h *fgdHost) usable(g *fgdGroup) (enough int32, lost int64) {
	for l, free := range h.lanes[:h.n] {
		switch {
		case free <= 0:
		case int32(free) >= g.share && (g.models == 0 || h.models == nil || g.models>>uint(h.models[l]&63)&1 != 0):
			enough++
		default:
			lost += int64(free)
		}
	}
	return enough, lost
}
