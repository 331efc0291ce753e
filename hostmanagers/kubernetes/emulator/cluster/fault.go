package cluster

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RejectIf makes kubelets refuse pods, as if others had taken their processors, whenever it is so. A fault to inject.
func (c *Cluster) RejectIf(so func() bool) {
	c.Reject = func(*corev1.Pod) (reason, message string) {
		if so() {
			return "OutOfcpu", "Node didn't have enough resource: cpu, by an emulated fault"
		}
		return "", ""
	}
}

// EvictPod evicts a pod as an operator does who drains its node. It fails if a budget is in the way.
func (c *Cluster) EvictPod(key Key) error {
	return c.Evict(key.Namespace, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}}, Deletion{})
}
