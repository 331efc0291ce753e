package mirror

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
	paceline "github.com/paceline-sched/paceline/core/resource"
)

// Bounds of what is taken in of a node.
const (
	maxAttributes = 128
	maxShown      = 256 // bytes of a detail
	maxGPUs       = 16  // what a host table has lanes for
)

// Node is what counts of a node.
type Node struct {
	Name, UID  string
	Attributes map[string]string
	Pool       string
	Capacity   map[string]int64 // what pods may have; without GPUs
	GPUName    string           // the resource of its GPUs; "": it has none
	GPUs       int64
	Model      string
	MaxPods    int64
	Contact    bool   // its kubelet is heard of
	Why        string // why it takes nothing new; "": it does
	Details    map[string]string
}

// Same reports whether two records say the same.
func (n *Node) Same(o *Node) bool { return reflect.DeepEqual(n, o) }

// ReadNode takes in what counts of a node.
func (c *Config) ReadNode(n *corev1.Node) Node {
	out := Node{
		Name: n.Name, UID: string(n.UID), Pool: n.Labels[c.PoolLabel], Attributes: make(map[string]string, len(n.Labels)+len(c.Features)),
		Capacity: make(map[string]int64, 4), Details: map[string]string{}, Contact: true,
	}
	c.readLabels(n, &out)
	c.readCapacity(n, &out)
	var whys []string
	for _, condition := range n.Status.Conditions {
		switch {
		case condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
			out.Contact = condition.Status != corev1.ConditionUnknown
			whys = append(whys, "not ready: "+shown(say(condition.Reason, condition.Message)))
		case condition.Type == corev1.NodeNetworkUnavailable && condition.Status == corev1.ConditionTrue:
			whys = append(whys, "its network is unavailable")
		case condition.Type != corev1.NodeReady && condition.Status == corev1.ConditionTrue:
			out.Details["condition "+string(condition.Type)] = shown(condition.Reason)
		}
	}
	if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		whys = append(whys, "not ready: its kubelet has said nothing yet")
	}
	if n.Spec.Unschedulable {
		whys = append(whys, "cordoned")
	}
	if why := c.readTaints(n, &out); why != "" {
		whys = append(whys, why)
	}
	if n.DeletionTimestamp != nil {
		whys = append(whys, "it is being deleted")
	}
	out.Why = strings.Join(whys, "; ")
	if v := n.Status.NodeInfo.KubeletVersion; v != "" {
		out.Details["kubelet"] = shown(v)
	}
	return out
}

func (c *Config) readLabels(n *corev1.Node, out *Node) {
	names := make([]string, 0, len(n.Labels))
	for name := range n.Labels {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names[:min(len(names), maxAttributes)] {
		if !strings.HasPrefix(name, "can/") { // features are this package's to say
			out.Attributes[name] = n.Labels[name]
		}
	}
	for name, value := range c.Features {
		out.Attributes[name] = value
	}
}

func (c *Config) readCapacity(n *corev1.Node, out *Node) {
	for name, q := range n.Status.Allocatable {
		switch {
		case name == corev1.ResourceCPU:
			out.Capacity[nameCPU] = clamp(q.MilliValue())
		case name == corev1.ResourceMemory:
			out.Capacity[nameMemory] = clamp(q.Value()) / mebibyte
		case name == corev1.ResourceEphemeralStorage:
			out.Capacity[nameDisk] = clamp(q.Value()) / mebibyte
		case name == corev1.ResourcePods:
			out.MaxPods = clamp(q.Value())
		case plain(name) && !slices.Contains(c.GPUs, string(name)) && paceline.CheckName(string(name)) == nil:
			out.Capacity[string(name)] = clamp(q.Value())
		}
	}
	for _, name := range c.GPUs {
		if q, ok := n.Status.Allocatable[corev1.ResourceName(name)]; ok && q.Value() > 0 {
			out.GPUName, out.GPUs = name, min(q.Value(), maxGPUs)
			out.Model = model(n.Labels, name)
			break
		}
	}
}

// model is what GPUs of a node are: by the label that the feature discovery of their maker sets, else by the plug-in.
func model(labels map[string]string, plugin string) string {
	for _, label := range []string{"nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product"} {
		if v := labels[label]; v != "" {
			return v
		}
	}
	return plugin
}

// readTaints takes in taints, and says which of them repels.
func (c *Config) readTaints(n *corev1.Node, out *Node) string {
	var all, repel []string
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		all = append(all, t.ToString())
		switch {
		case slices.Contains(c.Tolerated, t.Key):
			out.Attributes["taint/"+t.Key] = t.Value
		case t.Effect == corev1.TaintEffectPreferNoSchedule, t.Key == corev1.TaintNodeUnschedulable, t.Key == corev1.TaintNodeNotReady,
			t.Key == corev1.TaintNodeUnreachable: // the last three repeat a condition or the cordon
		default:
			repel = append(repel, t.ToString())
		}
	}
	if len(all) > 0 {
		out.Details["taints"] = shown(strings.Join(all, ", "))
	}
	if len(repel) == 0 {
		return ""
	}
	return "tainted " + shown(strings.Join(repel, ", "))
}

func shown(s string) string {
	if len(s) > maxShown {
		return strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return s
}

// node is a node with what stands on it.
type node struct {
	Node
	known   bool // it is in the cluster, not only named by pods
	dirty   bool
	lostAt  int64  // since when its kubelet is out of contact; 0: it is not
	foreign int    // pods of others
	load    Demand // what these take; its more is not used
	special map[Key]*extra
	runs    map[*run]struct{} // whose pods are there, or on their way
}

// host is a node as a shard sees it.
func (m *Machine) host(n *node) driver.Host {
	h := driver.Host{
		Name: n.Name, ID: n.UID, Attributes: n.Attributes, Pool: n.Pool, Capacity: make(map[string]int64, len(n.Capacity)+1),
		Details: make(map[string]string, len(n.Details)+2), Message: n.Why, Ready: n.Why == "",
	}
	for name, v := range n.Capacity {
		h.Capacity[name] = v
	}
	for name, v := range n.Details {
		if len(h.Details) < driver.MaxDetails-2 {
			h.Details[name] = v
		}
	}
	gpus := n.GPUs
	var ports []uint16
	h.Foreign[paceline.CPU], h.Foreign[paceline.Memory], h.Foreign[paceline.Disk] = n.load.CPU, n.load.Memory, n.load.Disk
	for _, more := range n.special {
		ports = append(ports, more.ports...)
		for name, v := range more.devices {
			if name == n.GPUName {
				gpus -= v
			} else if old, ok := h.Capacity[name]; ok {
				h.Capacity[name] = max(0, old-v)
			}
		}
	}
	m.devices(n, &h, gpus)
	h.Ports = m.freePorts(ports)
	m.crowd(n, &h, n.GPUs-gpus)
	return h
}

// crowd tells of pods, and keeps a node that has as many as it may from taking more. gpus are those that others have.
func (m *Machine) crowd(n *node, h *driver.Host, gpus int64) {
	pods := int64(n.foreign + len(n.runs))
	h.Details["pods"] = strconv.FormatInt(pods, 10) + " of " + strconv.FormatInt(n.MaxPods, 10)
	if n.foreign > 0 {
		load := fmt.Sprintf("%d pods, %d millicores, %d MiB", n.foreign, h.Foreign[paceline.CPU], h.Foreign[paceline.Memory])
		if gpus > 0 {
			load += fmt.Sprintf(", %d GPUs", gpus)
		}
		h.Details["foreign load"] = load
	}
	if h.Ready && n.MaxPods > 0 && pods >= n.MaxPods {
		h.Ready, h.Message = false, fmt.Sprintf("it has as many pods as its kubelet takes (%d)", n.MaxPods)
	}
}

// devices gives a host its GPUs. Which one a foreign pod has only its kubelet knows, so those that no run was placed on are taken off.
func (m *Machine) devices(n *node, h *driver.Host, free int64) {
	if n.GPUs == 0 {
		return
	}
	used := map[int]bool{}
	for r := range n.runs {
		for _, d := range r.devices {
			used[d] = true
		}
	}
	h.Devices = make([]driver.Device, n.GPUs)
	for i := range h.Devices {
		h.Devices[i] = driver.Device{Model: n.Model, Milli: 1000}
	}
	taken := n.GPUs - max(free, 0)
	for i := len(h.Devices) - 1; i >= 0 && taken > 0; i-- {
		if !used[i] {
			h.Devices[i].Milli = 0
			taken--
		}
	}
	for _, d := range h.Devices {
		h.Capacity[nameGPU] += d.Milli
	}
}

// freePorts are the ports of a host without those that foreign pods have.
func (m *Machine) freePorts(taken []uint16) []driver.PortRange {
	slices.Sort(taken)
	var free []driver.PortRange
	first, last := m.cfg.FirstPort, m.cfg.LastPort
	for _, p := range taken {
		switch {
		case p < first || p > last:
			continue
		case p > first:
			free = append(free, driver.PortRange{First: first, Last: p - 1})
		}
		if p == last {
			return free
		}
		first = p + 1
	}
	return append(free, driver.PortRange{First: first, Last: last})
}
