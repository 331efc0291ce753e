package cluster

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// NodeConfig is a node that has an emulated kubelet. Nodes that are created through the API have none.
type NodeConfig struct {
	Name     string
	Labels   map[string]string
	Taints   []corev1.Taint
	Capacity corev1.ResourceList
	// Allocatable is what pods may have. Default: Capacity.
	Allocatable corev1.ResourceList
	Address     string // default: 127.0.0.1
}

// The version that nodes and the server tell.
const Version = "v1.36.3"

// AddNode adds a node and starts its kubelet.
func (c *Cluster) AddNode(n NodeConfig) {
	setDefault(&n.Address, "127.0.0.1")
	if n.Allocatable == nil {
		n.Allocatable = n.Capacity
	}
	for name, count := range map[corev1.ResourceName]string{corev1.ResourcePods: "110", corev1.ResourceEphemeralStorage: "100Gi"} {
		for _, list := range []*corev1.ResourceList{&n.Capacity, &n.Allocatable} {
			if _, has := (*list)[name]; !has {
				*list = withQuantity(*list, name, resource.MustParse(count))
			}
		}
	}
	labels := map[string]string{
		corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
	}
	maps.Copy(labels, n.Labels)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: n.Taints},
		Status: corev1.NodeStatus{
			Capacity: n.Capacity, Allocatable: n.Allocatable,
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Address}, {Type: corev1.NodeHostName, Address: n.Name}},
			Conditions: c.conditions(corev1.ConditionTrue),
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: string(c.uid()), SystemUUID: string(c.uid()), BootID: string(c.uid()), KernelVersion: "6.1.0", OSImage: "emulated",
				ContainerRuntimeVersion: "emulated://1", KubeletVersion: Version, OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	c.kubelets[n.Name] = &kubelet{name: n.Name, address: n.Address, workers: map[Key]*worker{}}
	c.must(c.Create(Nodes, "", node, false))
}

// withQuantity is a list with one more entry, of its own.
func withQuantity(l corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) corev1.ResourceList {
	out := make(corev1.ResourceList, len(l)+1)
	maps.Copy(out, l)
	out[name] = q
	return out
}

// conditions are what a kubelet, or without one the controller of nodes, says of a node.
func (c *Cluster) conditions(ready corev1.ConditionStatus) []corev1.NodeCondition {
	pressure, reasons := corev1.ConditionFalse, [4]string{"KubeletHasSufficientMemory", "KubeletHasNoDiskPressure", "KubeletHasSufficientPID", "KubeletReady"}
	messages := [4]string{
		"kubelet has sufficient memory available", "kubelet has no disk pressure", "kubelet has sufficient PID available", "kubelet is posting ready status",
	}
	if ready == corev1.ConditionUnknown {
		const reason, message = "NodeStatusUnknown", "Kubelet stopped posting node status."
		pressure, reasons, messages = corev1.ConditionUnknown, [4]string{reason, reason, reason, reason}, [4]string{message, message, message, message}
	}
	var out []corev1.NodeCondition
	for i, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		status := pressure
		if t == corev1.NodeReady {
			status = ready
		}
		out = append(out, corev1.NodeCondition{
			Type: t, Status: status, Reason: reasons[i], Message: messages[i], LastHeartbeatTime: c.stamp(), LastTransitionTime: c.stamp(),
		})
	}
	return out
}

// SetNode says whether a node's kubelet works. One that does not is found unreachable by the controllers after Config.NodeGone: its node gets
// taints, its pods are no longer ready, and those that do not tolerate it are deleted after a while. False: there is no such kubelet.
func (c *Cluster) SetNode(name string, up bool) bool {
	k := c.kubelets[name]
	if k == nil || k.down == !up {
		return k != nil
	}
	k.down = !up
	c.stop(k.missed)
	if !up {
		k.missed = c.after(c.cfg.NodeGone, func() { c.unreachable(k) })
		return true
	}
	c.markNode(name, corev1.ConditionTrue)
	c.resync(k)
	return true
}

// LoseNode deletes a node whose kubelet goes on, as whoever manages machines does: its pods run until the controllers find, after
// Config.NodeGone, that they have no node, or a watcher ends them. A fault to inject. False: there is no such node with a kubelet.
func (c *Cluster) LoseNode(name string) bool {
	k := c.kubelets[name]
	n, ok := c.shelves[Nodes.GroupResource()].objects[Key{Name: name}].(*corev1.Node)
	if !ok || k == nil {
		return false
	}
	k.lost = n
	_, _, _ = c.Delete(Nodes, Key{Name: name}, Deletion{}) // it is there
	return true
}

// ReturnNode brings a node back that LoseNode took: its kubelet registers it as another one of its name. False: it was not taken, or somebody else
// made one of its name.
func (c *Cluster) ReturnNode(name string) bool {
	k := c.kubelets[name]
	if k == nil || k.lost == nil {
		return false
	}
	n := k.lost.DeepCopy()
	k.lost = nil
	n.ResourceVersion, n.Spec.Unschedulable = "", false
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
	n.Status.Conditions = c.conditions(corev1.ConditionTrue)
	_, err := c.Create(Nodes, "", n, false)
	return err == nil
}

func (c *Cluster) unreachable(k *kubelet) {
	c.markNode(k.name, corev1.ConditionUnknown)
	for _, p := range c.podsOn(k.name) {
		c.setPodReady(keyOf(p), corev1.ConditionFalse)
		c.after(tolerated(p), func() {
			if k.down {
				_, _, _ = c.Delete(Pods, keyOf(p), Deletion{UID: &p.UID}) // it may be gone
			}
		})
	}
}

// markNode writes what the controllers say of a node.
func (c *Cluster) markNode(name string, ready corev1.ConditionStatus) {
	key := Key{Name: name}
	_, err := c.Update(Nodes, key, "status", func(o Object) (Object, error) {
		if n, ok := o.(*corev1.Node); ok {
			n.Status.Conditions = c.conditions(ready)
		}
		return o, nil
	}, false)
	if err != nil {
		return // the node was deleted
	}
	_, _ = c.Update(Nodes, key, "", func(o Object) (Object, error) { // as above
		n, ok := o.(*corev1.Node)
		if !ok {
			return o, nil
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
		if ready != corev1.ConditionTrue {
			at := c.stamp()
			n.Spec.Taints = append(n.Spec.Taints,
				corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &at},
				corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &at})
		}
		return o, nil
	}, false)
}

func (c *Cluster) setPodReady(key Key, status corev1.ConditionStatus) {
	_, _ = c.Update(Pods, key, "status", func(o Object) (Object, error) { // the pod may be gone
		p, ok := o.(*corev1.Pod)
		if !ok || over(p) {
			return o, nil
		}
		setCondition(p, c.stamp(), corev1.PodCondition{Type: corev1.PodReady, Status: status})
		return p, nil
	}, false)
}

// nodeChanged lets those act whom a change of a node concerns.
func (c *Cluster) nodeChanged(change Change) {
	name := change.Object.GetName()
	switch change.Type {
	case watch.Deleted:
		c.after(c.cfg.NodeGone, func() { c.collect(name) })
	case watch.Added:
		if k := c.kubelets[name]; k != nil {
			c.resync(k)
		}
	default:
	}
}

// collect does what the garbage collector of pods does to those whose node is gone.
func (c *Cluster) collect(name string) {
	if c.shelves[Nodes.GroupResource()].objects[Key{Name: name}] != nil {
		return
	}
	for _, p := range c.podsOn(name) {
		_, _ = c.Update(Pods, keyOf(p), "status", func(o Object) (Object, error) { // the pod may be gone
			p, ok := o.(*corev1.Pod)
			if !ok || over(p) {
				return o, nil
			}
			p.Status.Phase = corev1.PodFailed
			setCondition(p, c.stamp(), corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
			})
			return p, nil
		}, false)
		_, _, _ = c.Delete(Pods, keyOf(p), Deletion{UID: &p.UID, GraceSeconds: pointer[int64](0)}) // as above
	}
}

func (c *Cluster) podsOn(node string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, o := range c.shelves[Pods.GroupResource()].objects {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName == node {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return compareKeys(keyOf(a), keyOf(b)) })
	return out
}

// usedOn is what the pods of a node need together, and how many they are.
func (c *Cluster) usedOn(node string) (used corev1.ResourceList, count int64) {
	used = corev1.ResourceList{}
	for _, p := range c.podsOn(node) {
		if !over(p) {
			addTo(used, podNeeds(p))
			count++
		}
	}
	return used, count
}

// schedule binds a pod to the first node that has room, as a scheduler would.
func (c *Cluster) schedule(key Key) {
	p, ok := c.shelves[Pods.GroupResource()].objects[key].(*corev1.Pod)
	if !ok || p.Spec.NodeName != "" || p.DeletionTimestamp != nil || len(p.Spec.SchedulingGates) > 0 {
		return
	}
	nodes, _ := c.List(Nodes, "", 0) // the present is always there
	needs, ports := podNeeds(p), len(nodePorts(p)) > 0
	for _, o := range nodes {
		n, ok := o.(*corev1.Node)
		if !ok || n.Spec.Unschedulable {
			continue
		}
		used, count := c.usedOn(n.Name)
		if ports && slices.ContainsFunc(c.podsOn(n.Name), func(o *corev1.Pod) bool { return !over(o) && portsClash(p, o) }) ||
			refusal(n, p, needs, used, count) != nil || !toleratesAll(p, n.Spec.Taints, corev1.TaintEffectNoSchedule) {
			continue
		}
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: n.Name}}
		if c.Bind(p.Namespace, binding, false) == nil {
			return
		}
	}
	_, _ = c.Update(Pods, key, "status", func(o Object) (Object, error) { // the pod may be gone
		if p, ok := o.(*corev1.Pod); ok {
			setCondition(p, c.stamp(), corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: fmt.Sprintf("0/%d nodes are available.", len(nodes)),
			})
		}
		return o, nil
	}, false)
	c.after(seconds(1), func() { c.schedule(key) })
}
