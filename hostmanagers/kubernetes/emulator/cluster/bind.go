package cluster

import (
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bind gives a pod its node. The node need not exist, and nobody asks whether the pod fits: that is the API.
func (c *Cluster) Bind(namespace string, b *corev1.Binding, dry bool) error {
	var errs fieldErrors
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(field.NewPath("target", "name"), ""))
	}
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	pods := core.WithResource("pods/binding").GroupResource()
	_, err := c.Update(Pods, Key{namespace, b.Name}, binding, func(o Object) (Object, error) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return o, nil
		}
		if err := Expect(Pods, p, b.UID, b.ResourceVersion); err != nil {
			return nil, err
		}
		switch {
		case p.DeletionTimestamp != nil:
			return nil, apierrors.NewConflict(pods, b.Name, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name))
		case p.Spec.NodeName != "":
			return nil, apierrors.NewConflict(pods, b.Name, fmt.Errorf("pod %s is already assigned to node %q", p.Name, p.Spec.NodeName))
		case len(p.Spec.SchedulingGates) > 0:
			return nil, apierrors.NewConflict(pods, b.Name, fmt.Errorf("pod %s has non-empty .spec.schedulingGates", p.Name))
		}
		c.bound(p, b)
		return p, nil
	}, dry)
	return err
}

func (c *Cluster) bound(p *corev1.Pod, b *corev1.Binding) {
	p.Spec.NodeName = b.Target.Name
	if len(b.Annotations) > 0 {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		maps.Copy(p.Annotations, b.Annotations)
	}
	if len(b.Labels) > 0 {
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		maps.Copy(p.Labels, b.Labels)
	}
	setCondition(p, c.stamp(), corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
}

// retryEviction is how long who may not evict is told to wait.
const retryEviction = 10

// Evict deletes a pod if its disruption budget allows it.
func (c *Cluster) Evict(namespace string, e *policyv1.Eviction, d Deletion) error {
	s := c.shelves[Pods.GroupResource()]
	key := Key{namespace, e.Name}
	p, ok := s.objects[key].(*corev1.Pod)
	if !ok {
		return apierrors.NewNotFound(Pods.GroupResource(), e.Name)
	}
	if over(p) || p.Status.Phase == corev1.PodPending || p.DeletionTimestamp != nil {
		_, _, err := c.Delete(Pods, key, d)
		return err
	}
	if err := c.spend(p, d.Dry); err != nil {
		return err
	}
	if d.Dry {
		return nil
	}
	_, err := c.Update(Pods, key, "status", func(o Object) (Object, error) {
		if p, ok := o.(*corev1.Pod); ok {
			setCondition(p, c.stamp(), corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			})
		}
		return o, nil
	}, false)
	if err != nil {
		return err
	}
	_, _, err = c.Delete(Pods, key, d)
	return err
}

// spend takes one disruption from the budget that covers a pod.
func (c *Cluster) spend(p *corev1.Pod, dry bool) error {
	var covering []*policyv1.PodDisruptionBudget
	for _, o := range c.inNamespace(budgets, p.Namespace) {
		if b, ok := o.(*policyv1.PodDisruptionBudget); ok && selects(b.Spec.Selector, p.Labels) {
			covering = append(covering, b)
		}
	}
	switch len(covering) {
	case 0:
		return nil
	case 1:
	default:
		return apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")) //nolint:staticcheck,revive // the API's words
	}
	b := covering[0]
	if b.Status.ObservedGeneration < b.Generation {
		return refuseEviction(fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name), retryEviction)
	}
	if b.Status.DisruptionsAllowed <= 0 {
		return refuseEviction(fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy), 0)
	}
	_, err := c.Update(budgets, keyOf(b), "status", func(o Object) (Object, error) {
		if b, ok := o.(*policyv1.PodDisruptionBudget); ok {
			if b.Status.DisruptionsAllowed--; b.Status.DisruptionsAllowed == 0 {
				meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
					Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
					ObservedGeneration: b.Status.ObservedGeneration, LastTransitionTime: c.stamp(),
				})
			}
			if b.Status.DisruptedPods == nil {
				b.Status.DisruptedPods = map[string]metav1.Time{}
			}
			b.Status.DisruptedPods[p.Name] = c.stamp()
		}
		return o, nil
	}, dry)
	return err
}

func refuseEviction(why string, retry int32) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.RetryAfterSeconds = retry
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: why})
	return err
}
