package cluster

import (
	"maps"
	"slices"

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

// Restore sets the cluster back to what it was at a revision, as when the storage of an API server is restored from a backup: what was written since is undone, and the
// same revisions are given away again. Kubelets see it as they see anything that happened while they did not look. Watches are told nothing: they are to be cut.
func (c *Cluster) Restore(revision int64) error {
	for _, s := range c.shelves {
		if revision < s.lost || revision > c.revision {
			return expired(revision, s.lost)
		}
	}
	for _, s := range c.shelves {
		s.objects, s.log, s.sorted = s.at(revision), slices.Clone(s.log[:s.after(revision)]), nil
	}
	c.revision = revision
	for _, name := range slices.Sorted(maps.Keys(c.kubelets)) {
		if k := c.kubelets[name]; !k.down {
			c.resync(k)
		}
	}
	return nil
}
