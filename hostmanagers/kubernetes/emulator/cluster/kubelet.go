package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// kubelet looks after the pods of one node.
type kubelet struct {
	name, address string
	down          bool
	missed        *timer       // until the controllers miss it
	lost          *corev1.Node // its node, while LoseNode has it
	workers       map[Key]*worker
}

// worker looks after one pod.
type worker struct {
	kubelet *kubelet
	key     Key
	uid     types.UID
	pod     *corev1.Pod // as the API server has it
	inits   []*box
	mains   []*box
	ending  bool
	refused bool
	reason  string // of a failure that the kubelet decided
	message string
	flush   *timer
	force   *timer
	forceAt time.Time
	begun   time.Time
	needs   corev1.ResourceList // since then
}

// podChanged lets those act whom a change of a pod concerns.
func (c *Cluster) podChanged(change Change) {
	p, ok := change.Object.(*corev1.Pod)
	if !ok {
		return
	}
	key := keyOf(p)
	if p.Spec.NodeName == "" {
		if c.cfg.Scheduler && change.Type == watch.Added && p.Spec.SchedulerName == corev1.DefaultSchedulerName {
			c.after(0, func() { c.schedule(key) })
		}
		return
	}
	k := c.kubelets[p.Spec.NodeName]
	if k == nil || k.down {
		return
	}
	if change.Type == watch.Deleted {
		c.drop(k.workers[key], p.UID)
		return
	}
	c.heed(k, p)
}

// heed is what a kubelet does when it sees a pod.
func (c *Cluster) heed(k *kubelet, p *corev1.Pod) {
	key := keyOf(p)
	w := k.workers[key]
	if w != nil && w.uid != p.UID {
		c.drop(w, w.uid)
		w = nil
	}
	switch {
	case w != nil:
		w.pod = p
		if p.DeletionTimestamp != nil {
			c.after(0, func() { c.end(w, w.graceLeft(c.now)) })
		}
	case p.DeletionTimestamp != nil:
		c.after(0, func() { c.letGo(key, p.UID) })
	case !over(p):
		w = &worker{kubelet: k, key: key, uid: p.UID, pod: p}
		k.workers[key] = w
		c.after(0, func() { c.begin(w) })
	}
}

// resync is what a kubelet does when it is back.
func (c *Cluster) resync(k *kubelet) {
	for _, w := range k.all() {
		p, ok := c.shelves[Pods.GroupResource()].objects[w.key].(*corev1.Pod)
		if !ok || p.UID != w.uid {
			c.drop(w, w.uid)
			continue
		}
		c.heed(k, p)
		c.touch(w)
	}
	for _, p := range c.podsOn(k.name) {
		if k.workers[keyOf(p)] == nil {
			c.heed(k, p)
		}
	}
}

func (k *kubelet) all() []*worker {
	out := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *worker) int { return compareKeys(a.key, b.key) })
	return out
}

// drop ends a pod that the API server no longer has.
func (c *Cluster) drop(w *worker, uid types.UID) {
	if w == nil || w.uid != uid {
		return
	}
	delete(w.kubelet.workers, w.key)
	w.ending = true
	c.stop(w.force)
	c.stop(w.flush)
	for _, b := range w.boxes() {
		c.signal(b, true)
	}
}

func (w *worker) boxes() []*box { return slices.Concat(w.inits, w.mains) }

// live says that a worker has not been dropped.
func (w *worker) live() bool { return w.kubelet.workers[w.key] == w }

// begin admits a pod and starts its first containers.
func (c *Cluster) begin(w *worker) {
	if !w.live() || w.ending || !w.begun.IsZero() {
		return
	}
	w.begun, w.needs = c.now, podNeeds(w.pod)
	if why := c.inadmissible(w); why != nil {
		w.refused, w.reason, w.message = true, why.reason, "Pod was rejected: "+why.message
		c.note(w.pod, corev1.EventTypeWarning, why.reason, why.message)
		c.touch(w)
		return
	}
	for i := range w.pod.Spec.InitContainers {
		w.inits = append(w.inits, newBox(w, &w.pod.Spec.InitContainers[i], true))
	}
	for i := range w.pod.Spec.Containers {
		w.mains = append(w.mains, newBox(w, &w.pod.Spec.Containers[i], false))
	}
	if d := w.pod.Spec.ActiveDeadlineSeconds; d != nil {
		c.after(seconds(*d), func() {
			c.fail(w, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline", seconds(podGrace(w.pod, nil)))
		})
	}
	c.proceed(w)
	c.touch(w)
}

// refused is why a kubelet does not take a pod.
type refused struct{ reason, message string }

func (c *Cluster) inadmissible(w *worker) *refused {
	if c.Reject != nil {
		if reason, message := c.Reject(w.pod); reason != "" {
			return &refused{reason, message}
		}
	}
	n, ok := c.shelves[Nodes.GroupResource()].objects[Key{Name: w.kubelet.name}].(*corev1.Node)
	if !ok {
		return nil
	}
	used, count := corev1.ResourceList{}, int64(0)
	for _, o := range w.kubelet.workers {
		if o != w && !o.begun.IsZero() && !o.refused && !over(o.pod) {
			addTo(used, o.needs)
			count++
			if portsClash(w.pod, o.pod) {
				return &refused{"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}
			}
		}
	}
	return refusal(n, w.pod, w.needs, used, count)
}

// refusal says why a node cannot take one more pod that needs something, where count others use some of it.
func refusal(n *corev1.Node, p *corev1.Pod, needs, used corev1.ResourceList, count int64) *refused {
	for key, want := range p.Spec.NodeSelector {
		if n.Labels[key] != want {
			return &refused{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}
		}
	}
	if most, limited := n.Status.Allocatable[corev1.ResourcePods]; limited && count+1 > most.Value() {
		return &refused{"OutOfpods", fmt.Sprintf("Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", count, most.Value())}
	}
	for _, name := range sortedNames(needs) {
		need, have, capacity := needs[name], used[name], n.Status.Allocatable[name]
		if need.IsZero() {
			continue
		}
		sum := need.DeepCopy()
		sum.Add(have)
		if sum.Cmp(capacity) <= 0 {
			continue
		}
		if extended(name) {
			left := capacity.Value() - have.Value()
			return &refused{"UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to requested number of devices unavailable for %s. Requested: %d, Available: %d, which is unexpected",
				name, need.Value(), left)}
		}
		value := func(q corev1.ResourceList) int64 {
			one := q[name]
			if name == corev1.ResourceCPU {
				return one.MilliValue()
			}
			return one.Value()
		}
		return &refused{"OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			name, value(needs), value(used), value(n.Status.Allocatable))}
	}
	return nil
}

// portsClash says whether two pods want the same port of their node. Addresses are not looked at.
func portsClash(a, b *corev1.Pod) bool {
	wanted := nodePorts(a)
	return len(wanted) > 0 && slices.ContainsFunc(nodePorts(b), func(p corev1.ContainerPort) bool { return slices.Contains(wanted, p) })
}

// nodePorts are the ports of its node that a pod takes: number and protocol.
func nodePorts(p *corev1.Pod) (list []corev1.ContainerPort) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				list = append(list, corev1.ContainerPort{HostPort: port.HostPort, Protocol: port.Protocol})
			}
		}
	}
	return list
}

// proceed starts what may start now: init containers one after the other, then the rest together.
func (c *Cluster) proceed(w *worker) {
	if w.ending || w.refused {
		return
	}
	for _, b := range w.inits {
		switch {
		case b.complete():
			continue
		case !b.begun:
			c.run(b)
		}
		if !b.passes() {
			return
		}
	}
	for _, b := range w.mains {
		if !b.begun {
			c.run(b)
		}
	}
}

// fail ends a pod because its kubelet says so.
func (c *Cluster) fail(w *worker, reason, message string, grace time.Duration) {
	if !w.live() || w.ending || w.phase() == corev1.PodSucceeded || w.phase() == corev1.PodFailed {
		return
	}
	w.reason, w.message = reason, message
	c.note(w.pod, corev1.EventTypeWarning, reason, message)
	c.end(w, grace)
	c.touch(w)
}

// evictionGrace is what a kubelet gives the pods that it evicts at once.
const evictionGrace = time.Second

// Pressure makes a kubelet evict a pod as if its node were short of something. A fault to inject. False: no kubelet has that pod.
func (c *Cluster) Pressure(key Key, message string) bool {
	p, ok := c.shelves[Pods.GroupResource()].objects[key].(*corev1.Pod)
	if !ok {
		return false
	}
	k := c.kubelets[p.Spec.NodeName]
	if k == nil || k.workers[key] == nil {
		return false
	}
	c.fail(k.workers[key], "Evicted", message, evictionGrace)
	return true
}

// graceLeft is how long a deleted pod may still take.
func (w *worker) graceLeft(now time.Time) time.Duration {
	left := time.Duration(0)
	if g := w.pod.DeletionGracePeriodSeconds; g != nil {
		left = seconds(*g)
	}
	if at := w.pod.DeletionTimestamp; at != nil {
		left = min(left, max(0, at.Add(time.Second).Sub(now)))
	}
	return left
}

// end stops a pod's containers: politely, and for good after a grace.
func (c *Cluster) end(w *worker, grace time.Duration) {
	if !w.live() {
		return
	}
	due := c.now.Add(grace)
	if !w.ending {
		w.ending = true
		for _, b := range w.boxes() {
			b.cancel(c)
			if b.process != "" {
				c.note(w.pod, corev1.EventTypeNormal, "Killing", "Stopping container "+b.spec.Name)
				c.signal(b, grace <= 0)
			}
		}
	} else if w.force != nil && !due.Before(w.forceAt) {
		c.settle(w)
		return
	}
	c.stop(w.force)
	w.forceAt = due
	w.force = c.after(grace, func() {
		for _, b := range w.boxes() {
			c.signal(b, true)
		}
	})
	c.settle(w)
}

// settle writes what is known of a pod once nothing of it runs any more.
func (c *Cluster) settle(w *worker) {
	if !w.live() {
		return
	}
	c.touch(w)
	if slices.ContainsFunc(w.boxes(), func(b *box) bool { return b.process != "" }) {
		return
	}
	c.stop(w.force)
}

// touch has a pod's status written soon; what happens at one time is one write.
func (c *Cluster) touch(w *worker) {
	if w.flush != nil && w.flush.slot >= 0 {
		return
	}
	w.flush = c.after(0, func() { c.report(w) })
}

// report writes a pod's status, and lets go of a pod that is over and deleted.
func (c *Cluster) report(w *worker) {
	if !w.live() || w.kubelet.down {
		return
	}
	_, err := c.Update(Pods, w.key, "status", func(o Object) (Object, error) {
		if p, ok := o.(*corev1.Pod); ok && p.UID == w.uid {
			c.describe(w, p)
		}
		return o, nil
	}, false)
	if err != nil {
		return // it is gone
	}
	if w.ending && w.pod.DeletionTimestamp != nil && !slices.ContainsFunc(w.boxes(), func(b *box) bool { return b.process != "" }) {
		c.letGo(w.key, w.uid)
	}
}

// letGo tells the API server that nothing of a deleted pod is left.
func (c *Cluster) letGo(key Key, uid types.UID) {
	_, _, _ = c.Delete(Pods, key, Deletion{GraceSeconds: pointer[int64](0), UID: &uid}) // it may be gone already
}

// note writes an event, as kubelets do.
func (c *Cluster) note(p *corev1.Pod, kind, reason, message string) {
	if c.cfg.QuietKubelets {
		return
	}
	for len(c.noted) > 0 {
		e, ok := c.shelves[Events.GroupResource()].objects[c.noted[0]].(*corev1.Event)
		if ok && len(c.noted) < maxKubeletEvent && c.now.Sub(e.LastTimestamp.Time) < eventTTL {
			break
		}
		_, _, _ = c.Delete(Events, c.noted[0], Deletion{}) // it may be gone
		c.noted = c.noted[1:]
	}
	c.minted++
	at := c.stamp()
	name := p.Name
	e := &corev1.Event{
		Reason: reason, Message: message, Type: kind, Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: corev1.EventSource{Component: "kubelet", Host: p.Spec.NodeName}, ReportingController: "kubelet", ReportingInstance: p.Spec.NodeName,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID, APIVersion: "v1", ResourceVersion: p.ResourceVersion},
	}
	e.Name = fmt.Sprintf("%s.%x", name[:min(len(name), 200)], c.now.UnixNano()+c.minted)
	if _, err := c.Create(Events, p.Namespace, e, false); err == nil {
		c.noted = append(c.noted, Key{p.Namespace, e.Name})
	}
}

// tolerated is how long a pod endures that its node is unreachable.
func tolerated(p *corev1.Pod) time.Duration {
	for _, t := range p.Spec.Tolerations {
		if tolerates(&t, &corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}) {
			if t.TolerationSeconds == nil {
				return 1 << 62
			}
			return seconds(max(0, *t.TolerationSeconds))
		}
	}
	return 0
}

func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	if t.Operator == corev1.TolerationOpExists {
		return true
	}
	return t.Key != "" && t.Value == taint.Value
}

func toleratesAll(p *corev1.Pod, taints []corev1.Taint, effects ...corev1.TaintEffect) bool {
	for _, taint := range taints {
		if slices.Contains(effects, taint.Effect) &&
			!slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(&t, &taint) }) {
			return false
		}
	}
	return true
}

// describe fills in a pod's status as its kubelet sees it.
func (c *Cluster) describe(w *worker, p *corev1.Pod) {
	s := &p.Status
	s.ObservedGeneration = p.Generation
	setPointer(&s.StartTime, at(w.begun, c.now))
	if w.refused {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, w.reason, w.message
		return
	}
	s.HostIP, s.HostIPs = w.kubelet.address, []corev1.HostIP{{IP: w.kubelet.address}}
	if s.PodIP == "" && slices.ContainsFunc(w.boxes(), func(b *box) bool { return b.attempt > 0 }) {
		s.PodIP = c.address()
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	s.Phase = w.phase()
	if w.reason != "" {
		s.Reason, s.Message = w.reason, w.message
	}
	s.InitContainerStatuses, s.ContainerStatuses = statuses(w.inits), statuses(w.mains)
	c.conclude(w, p)
	if over(p) && w.initialized() {
		unlocated(s.ContainerStatuses)
	}
}

// unlocated is what a kubelet writes of containers that never ran, once their pod has ended.
func unlocated(list []corev1.ContainerStatus) {
	for i := range list {
		if list[i].State.Waiting != nil {
			list[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: exitKill, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated",
			}}
		}
	}
}

// initialized says that a pod's init containers have done their work.
func (w *worker) initialized() bool {
	return slices.ContainsFunc(w.mains, func(b *box) bool { return b.begun }) || !slices.ContainsFunc(w.inits, func(b *box) bool { return !b.passes() })
}

// sandboxed says whether a pod has what its containers share: from its admission until the last of them has ended.
func (w *worker) sandboxed() bool {
	if slices.ContainsFunc(w.boxes(), func(b *box) bool { return b.process != "" }) {
		return true
	}
	phase := w.phase()
	return !w.refused && !w.ending && phase != corev1.PodSucceeded && phase != corev1.PodFailed
}

// conclude writes a pod's conditions.
func (c *Cluster) conclude(w *worker, p *corev1.Pod) {
	s, stamp := &p.Status, c.stamp()
	set := func(t corev1.PodConditionType, yes bool, reason, message string) {
		one := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: p.Generation}
		if yes {
			one.Status, one.Reason, one.Message = corev1.ConditionTrue, "", ""
		}
		setCondition(p, stamp, one)
	}
	set(corev1.PodReadyToStartContainers, w.sandboxed(), "", "")
	var waiting, unready []string
	for _, b := range w.inits {
		if !w.initialized() && !b.passes() {
			waiting = append(waiting, b.spec.Name)
		}
	}
	for _, b := range w.mains {
		if !b.ready {
			unready = append(unready, b.spec.Name)
		}
	}
	initialized := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, ObservedGeneration: p.Generation}
	switch {
	case len(waiting) > 0:
		initialized.Status, initialized.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
		initialized.Message = fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(waiting, " "))
	case s.Phase == corev1.PodSucceeded:
		initialized.Reason = "PodCompleted"
	}
	setCondition(p, stamp, initialized)
	reason, message := "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	switch s.Phase {
	case corev1.PodSucceeded:
		reason, message = "PodCompleted", ""
	case corev1.PodFailed:
		if slices.ContainsFunc(w.boxes(), func(b *box) bool { return b.attempt > 0 }) { // else it has nothing new to say
			reason, message = "PodFailed", ""
		}
	default:
	}
	ready := len(unready) == 0 && s.Phase == corev1.PodRunning
	set(corev1.PodReady, ready, reason, message)
	set(corev1.ContainersReady, ready, reason, message)
	set(corev1.PodScheduled, true, "", "")
	if w.reason == "Evicted" {
		setCondition(p, stamp, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet", Message: w.message})
	}
}
