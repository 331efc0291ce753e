package cluster

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is anything that is stored.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource is one kind of stored objects.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Singular   string
	Short      []string
	Categories []string
	Namespaced bool
	// Status says that it has a status of its own, written by itself.
	Status bool
	// Returned says that a deletion answers with the object, not with a status.
	Returned bool
	New      func() Object
	// prepare fills in what the API server does for a new object or, with old, for a changed one.
	prepare func(c *Cluster, o, old Object)
	// check finds what is wrong with an object.
	check func(o, old Object) fieldErrors
}

// GroupKind is the resource's kind with its group.
func (r *Resource) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Kind}
}

// GroupVersionKind is the resource's kind with its group and version.
func (r *Resource) GroupVersionKind() schema.GroupVersionKind {
	return r.GroupVersion().WithKind(r.Kind)
}

var (
	core         = corev1.SchemeGroupVersion
	coordination = coordinationv1.SchemeGroupVersion
	policy       = policyv1.SchemeGroupVersion
	scheduling   = schedulingv1.SchemeGroupVersion
)

// The resources that have behaviour of their own.
var (
	Pods = &Resource{
		GroupVersionResource: core.WithResource("pods"), Kind: "Pod", Singular: "pod", Short: []string{"po"}, Categories: []string{"all"},
		Namespaced: true, Status: true, Returned: true, New: func() Object { return &corev1.Pod{} }, prepare: preparePod, check: checkPod,
	}
	Nodes = &Resource{
		GroupVersionResource: core.WithResource("nodes"), Kind: "Node", Singular: "node", Short: []string{"no"},
		Status: true, New: func() Object { return &corev1.Node{} }, prepare: prepareNode, check: checkNode,
	}
	Namespaces = &Resource{
		GroupVersionResource: core.WithResource("namespaces"), Kind: "Namespace", Singular: "namespace", Short: []string{"ns"},
		Status: true, Returned: true, New: func() Object { return &corev1.Namespace{} }, prepare: prepareNamespace, check: checkNamespace,
	}
	Events = &Resource{
		GroupVersionResource: core.WithResource("events"), Kind: "Event", Singular: "event", Short: []string{"ev"},
		Namespaced: true, New: func() Object { return &corev1.Event{} }, check: checkEvent,
	}
	budgets = &Resource{
		GroupVersionResource: policy.WithResource("poddisruptionbudgets"), Kind: "PodDisruptionBudget", Singular: "poddisruptionbudget",
		Short: []string{"pdb"}, Namespaced: true, Status: true, New: func() Object { return &policyv1.PodDisruptionBudget{} }, prepare: prepareBudget,
	}
	priorities = &Resource{
		GroupVersionResource: scheduling.WithResource("priorityclasses"), Kind: "PriorityClass", Singular: "priorityclass", Short: []string{"pc"},
		New: func() Object { return &schedulingv1.PriorityClass{} }, prepare: preparePriority,
	}
	quotas = &Resource{
		GroupVersionResource: core.WithResource("resourcequotas"), Kind: "ResourceQuota", Singular: "resourcequota", Short: []string{"quota"},
		Namespaced: true, Status: true, Returned: true, New: func() Object { return &corev1.ResourceQuota{} }, prepare: prepareQuota,
	}
)

// Resources lists all that is stored, in the order of discovery.
var Resources = []*Resource{
	{
		GroupVersionResource: core.WithResource("configmaps"), Kind: "ConfigMap", Singular: "configmap", Short: []string{"cm"},
		Namespaced: true, New: func() Object { return &corev1.ConfigMap{} },
	},
	Events, Namespaces, Nodes,
	{
		GroupVersionResource: core.WithResource("persistentvolumeclaims"), Kind: "PersistentVolumeClaim", Singular: "persistentvolumeclaim",
		Short: []string{"pvc"}, Namespaced: true, Status: true, Returned: true, New: func() Object { return &corev1.PersistentVolumeClaim{} },
		prepare: prepareClaim,
	},
	Pods, quotas,
	{
		GroupVersionResource: core.WithResource("secrets"), Kind: "Secret", Singular: "secret",
		Namespaced: true, New: func() Object { return &corev1.Secret{} }, prepare: prepareSecret,
	},
	{
		GroupVersionResource: core.WithResource("serviceaccounts"), Kind: "ServiceAccount", Singular: "serviceaccount", Short: []string{"sa"},
		Namespaced: true, Returned: true, New: func() Object { return &corev1.ServiceAccount{} },
	},
	{
		GroupVersionResource: coordination.WithResource("leases"), Kind: "Lease", Singular: "lease",
		Namespaced: true, New: func() Object { return &coordinationv1.Lease{} },
	},
	budgets, priorities,
}
