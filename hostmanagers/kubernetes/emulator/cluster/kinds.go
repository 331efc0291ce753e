package cluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// keepParts undoes changes of what a request does not speak of: a status request changes the status alone, any other all but the status.
func keepParts(o, old Object, part string) {
	status := part == "status"
	switch o := o.(type) {
	case *corev1.Pod:
		old, ok := old.(*corev1.Pod)
		keep(ok && status, &o.Spec, func() corev1.PodSpec { return old.Spec })
		keep(ok && !status, &o.Status, func() corev1.PodStatus { return old.Status })
	case *corev1.Node:
		old, ok := old.(*corev1.Node)
		keep(ok && status, &o.Spec, func() corev1.NodeSpec { return old.Spec })
		keep(ok && !status, &o.Status, func() corev1.NodeStatus { return old.Status })
	case *corev1.Namespace:
		old, ok := old.(*corev1.Namespace)
		keep(ok && part != "finalize", &o.Spec, func() corev1.NamespaceSpec { return old.Spec })
		keep(ok && !status, &o.Status, func() corev1.NamespaceStatus { return old.Status })
	case *corev1.ResourceQuota:
		old, ok := old.(*corev1.ResourceQuota)
		keep(ok && status, &o.Spec, func() corev1.ResourceQuotaSpec { return old.Spec })
		keep(ok && !status, &o.Status, func() corev1.ResourceQuotaStatus { return old.Status })
	case *corev1.PersistentVolumeClaim:
		old, ok := old.(*corev1.PersistentVolumeClaim)
		keep(ok && status, &o.Spec, func() corev1.PersistentVolumeClaimSpec { return old.Spec })
		keep(ok && !status, &o.Status, func() corev1.PersistentVolumeClaimStatus { return old.Status })
	case *policyv1.PodDisruptionBudget:
		old, ok := old.(*policyv1.PodDisruptionBudget)
		keep(ok && status, &o.Spec, func() policyv1.PodDisruptionBudgetSpec { return old.Spec })
		keep(ok && !status, &o.Status, func() policyv1.PodDisruptionBudgetStatus { return old.Status })
	}
}

func keep[T any](yes bool, field *T, old func() T) {
	if yes {
		*field = old()
	}
}

func prepareNode(_ *Cluster, o, _ Object) {
	if n, ok := o.(*corev1.Node); ok && n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
}

func checkNode(o, old Object) fieldErrors {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	errs := checkTaints(n.Spec.Taints)
	was, ok := old.(*corev1.Node)
	if !ok || was == nil {
		return errs
	}
	errs = append(errs, checkTaints(n.Spec.Taints)...) // an API server looks twice
	if was.Spec.ProviderID != "" && was.Spec.ProviderID != n.Spec.ProviderID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	return errs
}

func checkTaints(taints []corev1.Taint) fieldErrors {
	var errs fieldErrors
	seen := map[corev1.Taint]bool{}
	for i, t := range taints {
		at := field.NewPath("metadata", "taints").Index(i)
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
		if !slices.Contains(effects, t.Effect) {
			errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, effects))
		}
		if one := (corev1.Taint{Key: t.Key, Effect: t.Effect}); seen[one] {
			twice := field.Duplicate(at, plainTaint{t.Key, t.Value, string(t.Effect), t.TimeAdded})
			twice.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, twice)
		} else {
			seen[one] = true
		}
	}
	return errs
}

// plainTaint is how an API server quotes a taint.
type plainTaint struct {
	Key, Value, Effect string
	TimeAdded          *metav1.Time
}

func prepareNamespace(_ *Cluster, o, old Object) {
	ns, ok := o.(*corev1.Namespace)
	if !ok {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	if old == nil {
		ns.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
		ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

func checkNamespace(Object, Object) fieldErrors { return nil }

func checkEvent(o, _ Object) fieldErrors {
	e, ok := o.(*corev1.Event)
	if !ok {
		return nil
	}
	at := e.InvolvedObject.Namespace
	if at == "" {
		at = metav1.NamespaceDefault
	}
	if at != e.Namespace {
		return fieldErrors{field.Invalid(field.NewPath("involvedObject", "namespace"), e.InvolvedObject.Namespace, "does not match event.namespace")}
	}
	return nil
}

func prepareBudget(_ *Cluster, o, old Object) {
	b, ok := o.(*policyv1.PodDisruptionBudget)
	if !ok {
		return
	}
	if old == nil {
		b.Generation = 1
		b.Status = policyv1.PodDisruptionBudgetStatus{}
		return
	}
	if was, ok := old.(*policyv1.PodDisruptionBudget); ok && !equality.Semantic.DeepEqual(b.Spec, was.Spec) {
		b.Generation = was.Generation + 1
	}
}

func preparePriority(_ *Cluster, o, old Object) {
	p, ok := o.(*schedulingv1.PriorityClass)
	if !ok {
		return
	}
	setPointer(&p.PreemptionPolicy, corev1.PreemptLowerPriority)
	if old == nil {
		p.Generation = 1
	}
}

func systemPriorities() []*schedulingv1.PriorityClass {
	class := func(name string, value int32, what string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: what}
	}
	return []*schedulingv1.PriorityClass{
		class("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
		class("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
	}
}

func prepareQuota(_ *Cluster, o, old Object) {
	if q, ok := o.(*corev1.ResourceQuota); ok && old == nil {
		// Without its controller a quota counts from nothing; the emulator counts when it is asked.
		q.Status = corev1.ResourceQuotaStatus{}
	}
}

func prepareClaim(_ *Cluster, o, old Object) {
	p, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || old != nil {
		return
	}
	mode := corev1.PersistentVolumeFilesystem
	setPointer(&p.Spec.VolumeMode, mode)
	p.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	if !slices.Contains(p.Finalizers, "kubernetes.io/pvc-protection") {
		p.Finalizers = append(p.Finalizers, "kubernetes.io/pvc-protection")
	}
}

func prepareSecret(_ *Cluster, o, _ Object) {
	s, ok := o.(*corev1.Secret)
	if !ok {
		return
	}
	setDefault(&s.Type, corev1.SecretTypeOpaque)
	for key, value := range s.StringData {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

// admit does what admission plug-ins do to a new object: a pod gets its priority.
func (c *Cluster) admit(r *Resource, o Object) error {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	value, preempts := int32(0), corev1.PreemptLowerPriority
	if name := p.Spec.PriorityClassName; name != "" {
		class, ok := c.shelves[priorities.GroupResource()].objects[Key{Name: name}].(*schedulingv1.PriorityClass)
		if !ok {
			return apierrors.NewForbidden(r.GroupResource(), p.Name, fmt.Errorf("no PriorityClass with name %s was found", name))
		}
		value = class.Value
		if class.PreemptionPolicy != nil {
			preempts = *class.PreemptionPolicy
		}
	}
	if p.Spec.Priority != nil && *p.Spec.Priority != value {
		return apierrors.NewForbidden(r.GroupResource(), p.Name,
			fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *p.Spec.Priority, value))
	}
	p.Spec.Priority = &value
	setPointer(&p.Spec.PreemptionPolicy, preempts)
	return nil
}

// checkQuota refuses a pod that its namespace has no quota left for.
func (c *Cluster) checkQuota(r *Resource, o Object) error {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	for _, q := range c.inNamespace(quotas, p.Namespace) {
		quota, ok := q.(*corev1.ResourceQuota)
		if !ok {
			continue
		}
		if err := c.exceeds(r, quota, p); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) exceeds(r *Resource, quota *corev1.ResourceQuota, p *corev1.Pod) error {
	asked, used := quotaNeeds(p), corev1.ResourceList{}
	for _, other := range c.inNamespace(Pods, p.Namespace) {
		switch other, ok := other.(*corev1.Pod); {
		case ok && over(other): // it counts as an object alone
			addTo(used, corev1.ResourceList{countPods: *resource.NewQuantity(1, resource.DecimalSI)})
		case ok:
			addTo(used, quotaNeeds(other))
		}
	}
	var missing, wanted, have, most []string
	for _, name := range sortedNames(quota.Spec.Hard) {
		hard, need := quota.Spec.Hard[name], asked[name]
		if _, counts := asked[name]; !counts {
			if name == "requests.cpu" || name == "requests.memory" || name == "limits.cpu" || name == "limits.memory" || name == "cpu" || name == "memory" {
				missing = append(missing, string(name)+" for: "+strings.Join(containersWithout(p, name), ","))
			}
			continue
		}
		sum := used[name].DeepCopy()
		now := sum.String()
		sum.Add(need)
		if sum.Cmp(hard) > 0 {
			wanted = append(wanted, fmt.Sprintf("%s=%s", name, need.String()))
			have = append(have, fmt.Sprintf("%s=%s", name, now))
			most = append(most, fmt.Sprintf("%s=%s", name, hard.String()))
		}
	}
	switch {
	case len(missing) > 0:
		return apierrors.NewForbidden(r.GroupResource(), p.Name, fmt.Errorf("failed quota: %s: must specify %s", quota.Name, strings.Join(missing, "; ")))
	case len(wanted) > 0:
		return apierrors.NewForbidden(r.GroupResource(), p.Name, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
			quota.Name, strings.Join(wanted, ","), strings.Join(have, ","), strings.Join(most, ",")))
	}
	return nil
}

func containersWithout(p *corev1.Pod, name corev1.ResourceName) []string {
	var out []string
	limits, plain := strings.HasPrefix(string(name), "limits."), corev1.ResourceName(strings.TrimPrefix(strings.TrimPrefix(string(name), "limits."), "requests."))
	for _, c := range p.Spec.Containers {
		list := c.Resources.Requests
		if limits {
			list = c.Resources.Limits
		}
		if _, has := list[plain]; !has {
			out = append(out, c.Name)
		}
	}
	return out
}

// countPods is the resource of quotas that are of objects.
const countPods corev1.ResourceName = "count/pods"

// quotaNeeds is what a pod counts as, by the names that quotas use.
func quotaNeeds(p *corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{
		corev1.ResourcePods: *resource.NewQuantity(1, resource.DecimalSI), countPods: *resource.NewQuantity(1, resource.DecimalSI),
	}
	for name, q := range podNeeds(p) {
		out["requests."+name] = q
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			out[name] = q
		}
	}
	for _, c := range p.Spec.Containers {
		for name, q := range c.Resources.Limits {
			addTo(out, corev1.ResourceList{"limits." + name: q})
		}
	}
	return out
}

func addTo(sum, more corev1.ResourceList) {
	for name, q := range more {
		have := sum[name].DeepCopy()
		have.Add(q)
		sum[name] = have
	}
}

func (c *Cluster) inNamespace(r *Resource, namespace string) []Object {
	objects, _ := c.List(r, namespace, 0) // the present is always there
	return objects
}

// podNeeds is what a pod requests: its containers together, or its greediest init container.
func podNeeds(p *corev1.Pod) corev1.ResourceList {
	sum, sidecars := corev1.ResourceList{}, corev1.ResourceList{}
	for _, c := range p.Spec.Containers {
		addTo(sum, c.Resources.Requests)
	}
	peak := corev1.ResourceList{}
	for _, c := range p.Spec.InitContainers {
		one := sidecars.DeepCopy()
		if one == nil {
			one = corev1.ResourceList{}
		}
		addTo(one, c.Resources.Requests)
		if restarts(&c) {
			addTo(sidecars, c.Resources.Requests)
		}
		for name, q := range one {
			if have := peak[name]; q.Cmp(have) > 0 {
				peak[name] = q
			}
		}
	}
	addTo(sum, sidecars)
	for name, q := range peak {
		if have := sum[name]; q.Cmp(have) > 0 {
			sum[name] = q
		}
	}
	addTo(sum, p.Spec.Overhead)
	return sum
}

// restarts says that an init container runs beside the others.
func restarts(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// selects says whether a selector of an object matches labels.
func selects(s *metav1.LabelSelector, l map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(l))
}
