package kit

import (
	"fmt"
	"math/rand/v2"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// scene is a kind of table with requests of a kind.
type scene struct {
	name    string
	once    bool // it draws nothing: one round says all
	hosts   func(d *draw) int
	host    func(d *draw, h *host.Host) // on top of what every host has
	task    func(d *draw, s *workload.JobSpec)
	request func(d *draw, r *placement.Request)
	batches int
	full    bool  // every host is full
	change  bool  // hosts come, go, drain and grow between batches
	work    int64 // of a call; 0: as much as a call may hold
}

// draw is a stream of choices.
type draw struct{ *rand.Rand }

func newDraw(seed, scene, round uint64) *draw {
	return &draw{rand.New(rand.NewPCG(seed, scene<<32|round))} //nolint:gosec // it must be the same every time
}

func (d *draw) between(low, high int) int { return low + d.IntN(high-low+1) }

func (d *draw) oneIn(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d *draw, list ...T) T { return list[d.IntN(len(list))] }

const (
	rackKey  = "rack"
	racks    = 5
	licences = "licences"
	fewTasks = 40
)

func few(d *draw) int { return d.between(1, 90) }

func fixed(n int) func(*draw) int { return func(*draw) int { return n } }

// scenes are what every policy of placement has to get through.
var scenes = []scene{
	{name: "no hosts", once: true, hosts: fixed(0), batches: 2},
	{name: "one host", hosts: fixed(1), batches: 3},
	{name: "full table", hosts: few, full: true, batches: 2},
	{name: "random tables", hosts: few, batches: 4, change: true},
	{name: "one request a call", hosts: few, batches: 3, change: true, work: 1},
	{name: "gangs", hosts: few, batches: 3, request: func(d *draw, r *placement.Request) { r.Gang = d.oneIn(2) }},
	{name: "hosts that a bitmap leaves out", hosts: few, batches: 3, change: true, task: constrained, request: pinned},
	{name: "preferences", hosts: few, batches: 3, task: preferring},
	{name: "GPUs", hosts: few, batches: 4, host: withDevices, task: wantsDevices, change: true},
	{name: "named resources", hosts: few, batches: 3, host: withLicences, task: wantsLicences},
	{name: "large quantities", hosts: few, batches: 2, host: large},
	{name: "a full-sized table", once: true, hosts: fixed(policyabi.MaxRows), batches: 2, work: 1}, // as many rows as a call may have to look at
}

func hostID(i int) workload.HostID {
	return workload.HostID{0: byte(i), 1: byte(i >> 8), 2: byte(i >> 16), 15: 1}
}

// newHost draws a host. Which one it is follows from i.
func (s *scene) newHost(d *draw, i int) host.Host {
	h := host.Host{
		ID: hostID(i), Name: fmt.Sprintf("h%d", i), Ready: !d.oneIn(12),
		Attributes: map[string]string{rackKey: fmt.Sprint(d.IntN(racks))},
		Capacity:   resource.Vector{resource.CPU: int64(d.between(0, 16)) * 1000, resource.Memory: int64(d.between(0, 32)) * 1024, resource.Disk: int64(d.between(0, 8)) * 4096},
	}
	if s.host != nil {
		s.host(d, &h)
	}
	return h
}

func withDevices(d *draw, h *host.Host) {
	if d.oneIn(3) {
		return
	}
	for range d.between(1, pick(d, 2, 8, host.MaxDevices)) {
		h.Devices = append(h.Devices, host.Device{Model: pick(d, "a", "b"), Milli: host.DeviceMilli})
	}
}

func withLicences(d *draw, h *host.Host) { h.Capacity[resource.FirstNamed] = int64(d.IntN(4)) }

// large makes the unit of a kind move: quantities beyond 32 bits.
func large(d *draw, h *host.Host) {
	h.Capacity[resource.Memory] = int64(d.between(1, 64)) << 28
	h.Capacity[resource.Disk] = int64(d.between(1, 64)) << 33
}

// newRequest draws a request for tasks of a class of its own or of one that was asked for before.
func (s *scene) newRequest(d *draw, known *[]asked) asked {
	var a asked
	if len(*known) > 0 && d.oneIn(3) {
		a = pick(d, *known...)
	} else {
		spec := &workload.JobSpec{Kind: workload.Batch}
		needs := &spec.Template.Needs
		needs[resource.CPU] = int64(d.IntN(5)) * 500
		needs[resource.Memory] = int64(d.IntN(5)) * 512
		needs[resource.Disk] = pick(d, int64(0), 0, 1000)
		if s.task != nil {
			s.task(d, spec)
		}
		a = asked{spec: spec, class: placement.NewClass(workload.JobID{byte(d.between(1, 3))}, spec, nil)}
		*known = append(*known, a)
	}
	a.request = placement.Request{Class: a.class, Count: d.between(1, fewTasks)}
	if s.request != nil {
		s.request(d, &a.request)
	}
	return a
}

// asked is a request with what it was made of.
type asked struct {
	spec    *workload.JobSpec
	class   *placement.Class
	request placement.Request
}

func constrained(d *draw, s *workload.JobSpec) {
	if !d.oneIn(4) {
		s.Placement.Constraints = []workload.Constraint{{Key: rackKey, Op: workload.OpIn, Values: []string{fmt.Sprint(d.IntN(racks)), fmt.Sprint(d.IntN(racks))}}}
	}
}

func pinned(d *draw, r *placement.Request) {
	if d.oneIn(4) {
		r.Host = hostID(d.IntN(90))
	}
}

func preferring(d *draw, s *workload.JobSpec) {
	s.Placement.Preferences = []workload.Preference{{
		Constraint: workload.Constraint{Key: rackKey, Op: workload.OpIn, Values: []string{fmt.Sprint(d.IntN(racks))}}, Weight: int32(d.between(-100, 100)),
	}}
}

func wantsDevices(d *draw, s *workload.JobSpec) {
	s.Template.Needs[resource.GPU] = pick(d, int64(0), 100, 300, 500, 1000, 2000, 4000)
	if s.Template.Needs[resource.GPU] > 0 && d.oneIn(3) {
		s.Template.GPUModels = []string{pick(d, "a", "b", "unheard of")}
	}
}

func wantsLicences(d *draw, s *workload.JobSpec) {
	s.Template.Needs[resource.FirstNamed] = int64(d.IntN(3))
}
