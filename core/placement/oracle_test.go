package placement_test

import (
	"math"
	"slices"
	"strconv"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// oracle is placement as its documentation describes it, with nothing remembered: for every task it looks at every host, and at
// every task on every host.
type oracle struct {
	hosts []*oracleHost // by row; nil: none
}

type oracleHost struct {
	host.Host
	draining bool
	tasks    []oracleTask
}

type oracleTask struct {
	class   *placement.Class
	devices placement.DeviceSet
	ports   []uint16
}

func (h *oracleHost) free() resource.Vector {
	v := h.Capacity.Sub(h.Foreign)
	for _, t := range h.tasks {
		v = v.Sub(t.class.Needs)
	}
	return v
}

// lanes returns what is free of each device, and the same if the host were empty.
func (h *oracleHost) lanes() (free, all []int64) {
	for i, d := range h.Devices {
		left := d.Milli
		for _, t := range h.tasks {
			if t.devices>>i&1 != 0 {
				left -= min(t.class.Needs[resource.GPU], 1000)
			}
		}
		free, all = append(free, left), append(all, d.Milli)
	}
	return free, all
}

func (h *oracleHost) openPorts(empty bool) map[uint16]bool {
	open := map[uint16]bool{}
	for _, r := range h.Ports {
		for p := int(r.First); p <= int(r.Last); p++ {
			open[uint16(p)] = true
		}
	}
	for _, t := range h.tasks {
		for _, p := range t.ports {
			if !empty {
				delete(open, p)
			}
		}
	}
	return open
}

func portsFit(open map[uint16]bool, want []uint16) bool {
	for _, p := range want {
		if p != 0 && !open[p] {
			return false
		}
	}
	return len(want) <= len(open)
}

// fitting returns the devices that could serve one task.
func (h *oracleHost) fitting(c *placement.Class, lanes []int64, anyModel bool) []int {
	var list []int
	for i, l := range lanes {
		if l >= min(c.Needs[resource.GPU], 1000) && (anyModel || len(c.GPUModels) == 0 || slices.Contains(c.GPUModels, h.Devices[i].Model)) {
			list = append(list, i)
		}
	}
	return list
}

func devicesWanted(c *placement.Class) int {
	if gpu := c.Needs[resource.GPU]; gpu <= 1000 {
		return 1
	} else if gpu%1000 != 0 {
		return math.MaxInt
	}
	return int(c.Needs[resource.GPU] / 1000)
}

func meets(h *oracleHost, c workload.Constraint) bool {
	text, present := h.Attributes[c.Key]
	if c.Key == workload.TopologyHost {
		text, present = h.Name, true
	}
	number, err := strconv.ParseInt(text, 10, 64)
	bound, boundErr := int64(0), error(nil)
	if len(c.Values) > 0 {
		bound, boundErr = strconv.ParseInt(c.Values[0], 10, 64)
	}
	switch c.Op {
	case workload.OpIn:
		return present && slices.Contains(c.Values, text)
	case workload.OpNotIn:
		return !present || !slices.Contains(c.Values, text)
	case workload.OpExists:
		return present
	case workload.OpNotExists:
		return !present
	case workload.OpGt:
		return present && err == nil && boundErr == nil && number > bound
	case workload.OpLt:
		return present && err == nil && boundErr == nil && number < bound
	}
	return false
}

func (h *oracleHost) matches(c *placement.Class) bool {
	for _, k := range c.Placement.Constraints {
		if !meets(h, k) {
			return false
		}
	}
	if !slices.ContainsFunc(c.Placement.Constraints, func(k workload.Constraint) bool { return k.Key == "can/image" || k.Key == "can/command" }) &&
		h.Attributes["can/command"] == "no" {
		return false
	}
	return c.Placement.HostPool == "" || c.Placement.HostPool == h.Pool
}

func (h *oracleHost) hasModel(c *placement.Class) bool {
	return c.Needs[resource.GPU] == 0 || len(c.GPUModels) == 0 ||
		slices.ContainsFunc(h.Devices, func(d host.Device) bool { return slices.Contains(c.GPUModels, d.Model) })
}

// everFits asks whether the empty host would do.
func (h *oracleHost) everFits(c *placement.Class) bool {
	_, all := h.lanes()
	return h.matches(c) && h.hasModel(c) && c.Needs.FitsIn(&h.Capacity) && portsFit(h.openPorts(true), c.Ports) &&
		(c.Needs[resource.GPU] == 0 || len(h.fitting(c, all, false)) >= devicesWanted(c))
}

func covers(labels, selector map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func domain(h *oracleHost, topology string) string {
	if topology == workload.TopologyHost {
		return h.Name
	}
	return h.Attributes[topology]
}

// count counts the tasks in a domain, or everywhere when all is set.
func (o *oracle) count(topology, of string, all bool, which func(*placement.Class) bool) int {
	n := 0
	for _, h := range o.hosts {
		if h == nil || !all && domain(h, topology) != of {
			continue
		}
		for _, t := range h.tasks {
			if which(t.class) {
				n++
			}
		}
	}
	return n
}

// refusal returns the first reason against a task on a host, NumReasons when there is none.
func (o *oracle) refusal(c *placement.Class, h *oracleHost) placement.Reason {
	free := h.free()
	lanes, _ := h.lanes()
	lack := func(k resource.Kind) bool { return c.Needs[k] > 0 && free[k] < c.Needs[k] }
	poolOff := c.Placement.HostPool != "" && c.Placement.HostPool != h.Pool
	switch {
	case !h.Ready:
		return placement.ReasonNotReady
	case h.draining:
		return placement.ReasonDraining
	case poolOff:
		return placement.ReasonHostPool
	case !h.matches(c):
		return placement.ReasonConstraint
	case lack(resource.CPU):
		return placement.ReasonCPU
	case lack(resource.Memory):
		return placement.ReasonMemory
	case lack(resource.Disk):
		return placement.ReasonDisk
	case c.Needs[resource.GPU] > 0 && (lack(resource.GPU) || len(h.fitting(c, lanes, true)) < devicesWanted(c)):
		return placement.ReasonGPU
	case !h.hasModel(c):
		return placement.ReasonGPUModel
	case c.Needs[resource.GPU] > 0 && len(h.fitting(c, lanes, false)) < devicesWanted(c):
		return placement.ReasonGPU
	case lack(resource.FirstNamed):
		return placement.ReasonNamed
	case !portsFit(h.openPorts(false), c.Ports):
		return placement.ReasonPorts
	}
	return o.refusalByOthers(c, h)
}

func (o *oracle) refusalByOthers(c *placement.Class, h *oracleHost) placement.Reason {
	for _, a := range c.Placement.Affinities {
		d := domain(h, a.Topology)
		matching := func(other *placement.Class) bool { return covers(other.Labels, a.Selector) }
		there := d != "" && o.count(a.Topology, d, false, matching) > 0
		first := covers(c.Labels, a.Selector) && o.count("", "", true, matching) == 0
		if a.Weight == 0 && (a.Anti && there || !a.Anti && !there && (d == "" || !first)) {
			return placement.ReasonAffinity
		}
	}
	for _, s := range c.Placement.Spreads {
		if s.MaxSkew > 0 && !o.evenEnough(c, h, s) {
			return placement.ReasonSpread
		}
	}
	for _, t := range h.tasks {
		alone := c.Placement.Exclusive || t.class.Placement.Exclusive
		ours := c.Placement.Exclusive && t.class.Job == c.Job
		if alone && !ours {
			return placement.ReasonExclusive
		}
	}
	return placement.NumReasons
}

func (o *oracle) evenEnough(c *placement.Class, h *oracleHost, s workload.Spread) bool {
	mine := func(other *placement.Class) bool { return other.Job == c.Job }
	least := math.MaxInt
	for _, other := range o.hosts {
		if other != nil && other.Ready && !other.draining && other.matches(c) && other.hasModel(c) && domain(other, s.Topology) != "" {
			least = min(least, o.count(s.Topology, domain(other, s.Topology), false, mine))
		}
	}
	d := domain(h, s.Topology)
	return d != "" && o.count(s.Topology, d, false, mine)+1-least <= int(s.MaxSkew)
}

const span = int64(1) << 30

func (o *oracle) cost(c *placement.Class, h *oracleHost) int64 {
	var cost int64
	switch c.Placement.Strategy {
	case workload.StrategyPack:
		cost = o.freeShare(h)
	case workload.StrategySpread:
		cost = -o.freeShare(h)
	default:
		cost = o.leftover(h)
	}
	for _, p := range c.Placement.Preferences {
		if meets(h, p.Constraint) {
			cost -= int64(p.Weight) * (span / 100)
		}
	}
	for _, a := range c.Placement.Affinities {
		d := domain(h, a.Topology)
		if d == "" || o.count(a.Topology, d, false, func(other *placement.Class) bool { return covers(other.Labels, a.Selector) }) == 0 {
			continue
		}
		if a.Anti {
			cost += int64(a.Weight) * (span / 100)
		} else {
			cost -= int64(a.Weight) * (span / 100)
		}
	}
	for _, s := range c.Placement.Spreads {
		if s.MaxSkew == 0 {
			n := o.count(s.Topology, domain(h, s.Topology), false, func(other *placement.Class) bool { return other.Job == c.Job })
			cost += int64(n) * span
		}
	}
	return cost
}

func (o *oracle) leftover(h *oracleHost) int64 {
	free := h.free()
	var sum, weights int64
	for k := range free {
		largest, power, weight := int64(0), int64(1), int64(1)
		for _, other := range o.hosts {
			if other != nil {
				largest = max(largest, other.Capacity[k])
			}
		}
		for power < largest {
			power *= 2
		}
		if resource.Kind(k) == resource.GPU {
			weight = 64
		}
		if largest > 0 {
			weights += weight
			sum += weight * (min(max(free[k], 0), h.Capacity[k]) << 22 / power)
		}
	}
	return sum << 8 / max(weights, 1)
}

func (o *oracle) freeShare(h *oracleHost) int64 {
	free := h.free()
	var sum, kinds int64
	for k, room := range h.Capacity {
		if room > 0 {
			sum += min(max(free[k], 0), room) << 22 / room
			kinds++
		}
	}
	return sum << 8 / max(kinds, 1)
}

// place places one task and returns its row, -1 when there is no room.
func (o *oracle) place(c *placement.Class, only workload.HostID) int {
	best, bestCost := -1, int64(0)
	for row, h := range o.hosts {
		if h == nil || only != (workload.HostID{}) && h.ID != only || o.refusal(c, h) != placement.NumReasons {
			continue
		}
		if cost := o.cost(c, h); best < 0 || cost < bestCost {
			best, bestCost = row, cost
		}
	}
	if best >= 0 {
		o.take(c, best)
	}
	return best
}

func (o *oracle) take(c *placement.Class, row int) {
	h := o.hosts[row]
	t := oracleTask{class: c}
	if gpu := c.Needs[resource.GPU]; gpu > 0 {
		lanes, _ := h.lanes()
		list := h.fitting(c, lanes, false)
		if gpu < 1000 {
			slices.SortStableFunc(list, func(a, b int) int {
				if c.Placement.Strategy == workload.StrategySpread {
					return int(lanes[b] - lanes[a])
				}
				return int(lanes[a] - lanes[b])
			})
		}
		for _, i := range list[:devicesWanted(c)] {
			t.devices |= 1 << i
		}
	}
	open := h.openPorts(false)
	for _, p := range c.Ports {
		delete(open, p)
	}
	for _, p := range c.Ports {
		for lowest := uint16(1); p == 0; lowest++ {
			if open[lowest] {
				p = lowest
				delete(open, p)
			}
		}
		t.ports = append(t.ports, p)
	}
	h.tasks = append(h.tasks, t)
}

// reasons explains a refusal; a gang's hosts with room for one member count as ReasonGang.
func (o *oracle) reasons(c *placement.Class, only workload.HostID) placement.Reasons {
	r := placement.Reasons{NeverFits: true}
	for _, h := range o.hosts {
		if h == nil || only != (workload.HostID{}) && h.ID != only {
			continue
		}
		r.Hosts++
		if h.everFits(c) {
			r.NeverFits = false
		}
		reason := o.refusal(c, h)
		if reason == placement.NumReasons {
			reason = placement.ReasonGang
		}
		r.Counts[reason]++
	}
	return r
}
