package mirror

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	paceline "github.com/paceline-sched/paceline/core/resource"
)

// The built-in resources by their names.
const (
	nameCPU    = "cpu_milli"
	nameMemory = "memory_mib"
	nameDisk   = "disk_mib"
	nameGPU    = "gpu_milli"
)

const mebibyte = 1 << 20

// Demand is what a pod takes of its node: an entry for each resource, rounded up.
type Demand struct {
	CPU, Memory, Disk int64 // millicores, MiB, MiB
	more              *extra
}

// extra is what few pods have.
type extra struct {
	devices map[string]int64 // by the cluster's name of the resource
	ports   []uint16         // of the host
}

// ceilMiB turns bytes into MiB, up.
func ceilMiB(q *resource.Quantity) int64 {
	bytes := clamp(q.Value())
	return bytes/mebibyte + min(1, bytes%mebibyte)
}

func clamp(v int64) int64 { return min(max(v, 0), paceline.MaxQuantity*mebibyte) }

// plain reports whether a resource is counted: not what is built in, and not what belongs to one container alone.
func plain(name corev1.ResourceName) bool {
	s := string(name)
	return strings.Contains(s, "/") && !strings.HasPrefix(s, "attachable-volumes-")
}

// list adds up the requests of containers.
type list map[corev1.ResourceName]int64

func (l list) read(r *corev1.ResourceRequirements) {
	for name, q := range r.Requests {
		switch {
		case name == corev1.ResourceCPU:
			l[name] = clamp(q.MilliValue())
		case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage:
			l[name] = clamp(q.Value())
		case plain(name):
			l[name] = clamp(q.Value())
		}
	}
}

func (l list) add(o list) {
	for name, v := range o {
		l[name] += v
	}
}

func (l list) most(o list) {
	for name, v := range o {
		l[name] = max(l[name], v)
	}
}

// demandOf is what the scheduler of the cluster and the kubelet count for a pod: the sum of its containers, or what is needed while it is
// prepared if that is more. Init containers that stay count for all that come after them.
func demandOf(spec *corev1.PodSpec) Demand {
	if d, ok := simple(spec); ok {
		return d
	}
	total, staying, peak := list{}, list{}, list{}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		own := list{}
		own.read(&c.Resources)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			staying.add(own)
			peak.most(staying)
			continue
		}
		own.add(staying)
		peak.most(own)
	}
	for i := range spec.Containers {
		own := list{}
		own.read(&spec.Containers[i].Resources)
		total.add(own)
	}
	total.add(staying)
	total.most(peak)
	if spec.Resources != nil { // a request for the pod as a whole
		own := list{}
		own.read(spec.Resources)
		maps.Copy(total, own)
	}
	overhead := list{}
	overhead.read(&corev1.ResourceRequirements{Requests: spec.Overhead})
	total.add(overhead)
	return total.demand(spec)
}

// simple is demandOf for a pod of one container that asks for nothing special, as most are, without a map.
func simple(spec *corev1.PodSpec) (Demand, bool) {
	if len(spec.Containers) != 1 || len(spec.InitContainers) > 0 || spec.Resources != nil || len(spec.Overhead) > 0 || len(spec.Containers[0].Ports) > 0 {
		return Demand{}, false
	}
	var d Demand
	for name, q := range spec.Containers[0].Resources.Requests {
		switch name {
		case corev1.ResourceCPU:
			d.CPU = clamp(q.MilliValue())
		case corev1.ResourceMemory:
			d.Memory = ceilMiB(&q)
		case corev1.ResourceEphemeralStorage:
			d.Disk = ceilMiB(&q)
		default:
			return Demand{}, false
		}
	}
	return d, true
}

func (l list) demand(spec *corev1.PodSpec) Demand {
	mib := func(name corev1.ResourceName) int64 { return l[name]/mebibyte + min(1, l[name]%mebibyte) }
	d := Demand{CPU: l[corev1.ResourceCPU], Memory: mib(corev1.ResourceMemory), Disk: mib(corev1.ResourceEphemeralStorage)}
	more := extra{ports: hostPorts(spec)}
	for name, v := range l {
		if v > 0 && plain(name) {
			if more.devices == nil {
				more.devices = map[string]int64{}
			}
			more.devices[string(name)] = v
		}
	}
	if more.devices != nil || more.ports != nil {
		d.more = &more
	}
	return d
}

func hostPorts(spec *corev1.PodSpec) []uint16 {
	var ports []uint16
	for i := range spec.Containers {
		for _, p := range spec.Containers[i].Ports {
			if p.HostPort > 0 && p.HostPort <= 1<<16-1 {
				ports = append(ports, uint16(p.HostPort))
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
