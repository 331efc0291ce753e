package cluster

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The bounds of how a Kubernetes cluster is used.
const (
	// MaxTolerated bounds the taints that pods tolerate.
	MaxTolerated = 32
	// MaxGPUResources bounds the resources that are GPUs.
	MaxGPUResources = 8

	// MaxKeepEnded bounds the time that pods stay after their end.
	MaxKeepEnded = 7 * 24 * time.Hour
	// MaxKeepEndedPods bounds how many stay. A control plane deletes ended pods by itself when there are more than 12,500, unless it is told otherwise.
	MaxKeepEndedPods = 10_000

	// MinGrace and MaxGrace bound what is waited for before a run is given up.
	MinGrace = time.Second
	MaxGrace = 24 * time.Hour

	// PoolMark stands in NamespacePerPool for what is made of a pool's path.
	PoolMark = "{pool}"
	// maxAroundMark bounds what stands beside it.
	maxAroundMark = 30

	maxImage  = 1024
	maxLabel  = 63  // of a namespace, and of the last part of a label's key
	maxDomain = 253 // of the part before
)

// Kubernetes is how to reach an API server of Kubernetes, and how to use its cluster.
type Kubernetes struct {
	// Kubeconfig names the file that says where the API server is and who the cell is there. It counts below the server's directory of secrets, and so
	// does every file that it names. Exactly one of it and InCluster is set.
	Kubeconfig string
	// Context is one of those in the file. Default: its current one.
	Context string
	// InCluster: the server is a pod of that cluster, and its service account is who it is there.
	InCluster bool
	// Namespace has the pods of jobs that name none. Default: default.
	Namespace string
	// NamespacePerPool gives each pool a namespace of its own instead, which no job leaves: it has PoolMark once, for what is made of the pool's path.
	NamespacePerPool string
	// CreateNamespaces has a namespace that is missing made when a pod needs it. Default: its run fails.
	CreateNamespaces bool
	// DefaultImage runs the commands of tasks without an image. Default: there is none, and such a task goes elsewhere.
	DefaultImage string
	// PoolLabel is the label of nodes that names their host pool. Default: paceline.io/host-pool.
	PoolLabel string
	// Tolerated are the keys of taints that do not keep pods away.
	Tolerated []string
	// GPUs are the resources of device plug-ins that are GPUs. Default: NVIDIA's, AMD's and Intel's.
	GPUs []string
	// HostPaths and Privileged allow tasks what gives them the node that they run on. Default: neither.
	HostPaths, Privileged bool
	// FirstPort and LastPort bound the ports of nodes that tasks are given. 0 and 0: 20000 to 29999.
	FirstPort, LastPort uint16
	// KeepEnded is how long the pods of runs that have ended stay, so that their output can be read; 0: not at all. nil: 10 minutes.
	KeepEnded *time.Duration
	// KeepEndedPods is how many such pods stay, those that ended last; 0: none. nil: 1,000.
	KeepEndedPods *int
	// StartGrace is how long what keeps a container from starting may mend itself, such as an image that cannot be pulled; then its run has failed. 0: 2 minutes.
	StartGrace time.Duration
	// UnreachableGrace is how long runs on a node that is out of contact are waited for; then they are lost. 0: 1 minute.
	UnreachableGrace time.Duration
}

func (k *Kubernetes) equal(o *Kubernetes) bool {
	return k.Kubeconfig == o.Kubeconfig && k.Context == o.Context && k.InCluster == o.InCluster && k.Namespace == o.Namespace &&
		k.NamespacePerPool == o.NamespacePerPool && k.CreateNamespaces == o.CreateNamespaces && k.DefaultImage == o.DefaultImage && k.PoolLabel == o.PoolLabel && slices.Equal(k.Tolerated, o.Tolerated) && slices.Equal(k.GPUs, o.GPUs) &&
		k.HostPaths == o.HostPaths && k.Privileged == o.Privileged && k.FirstPort == o.FirstPort && k.LastPort == o.LastPort &&
		same(k.KeepEnded, o.KeepEnded) && same(k.KeepEndedPods, o.KeepEndedPods) &&
		k.StartGrace == o.StartGrace && k.UnreachableGrace == o.UnreachableGrace
}

// same compares what may be left to its default.
func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

var (
	namespacePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	domainPattern    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	keyPattern       = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
)

func (k *Kubernetes) validate() error {
	if err := k.checkConnection(); err != nil {
		return err
	}
	switch {
	case k.Namespace != "" && (len(k.Namespace) > maxLabel || !namespacePattern.MatchString(k.Namespace)):
		return wrong("kubernetes.namespace", "use 1 to 63 lower-case letters, digits and dashes, with no dash at an end", "%.80q is no name for a namespace", k.Namespace)
	case k.Namespace != "" && k.NamespacePerPool != "":
		return wrong("kubernetes.namespace_per_pool", "drop one of them", "there cannot be one namespace for all and one for each pool")
	case k.NamespacePerPool != "" && !isPattern(k.NamespacePerPool):
		return wrong("kubernetes.namespace_per_pool", fmt.Sprintf("use %s once, and beside it up to %d lower-case letters, digits and dashes, with no dash at an end, such as batch-%s", PoolMark, maxAroundMark, PoolMark),
			"%.80q makes no names of namespaces", k.NamespacePerPool)
	case len(k.DefaultImage) > maxImage || hasControl(k.DefaultImage) || strings.Contains(k.DefaultImage, " "):
		return wrong("kubernetes.default_image", "name one as a task would, such as registry.example.com/base:1", "%.80q is no name of an image", k.DefaultImage)
	case k.PoolLabel != "" && !isKey(k.PoolLabel):
		return wrong("kubernetes.pool_label", "use the key of a label of nodes, such as example.com/pool", "%.80q is no key of a label", k.PoolLabel)
	case len(k.Tolerated) > MaxTolerated:
		return wrong("kubernetes.tolerated_taints", "drop some", "%d taints are more than %d", len(k.Tolerated), MaxTolerated)
	case len(k.GPUs) > MaxGPUResources:
		return wrong("kubernetes.gpu_resources", "drop some", "%d resources are more than %d", len(k.GPUs), MaxGPUResources)
	case (k.FirstPort == 0) != (k.LastPort == 0) || k.FirstPort > k.LastPort:
		return wrong("kubernetes.first_port", "use two of 1 to 65535, the first not above the last; or neither, for 20000 to 29999",
			"ports from %d to %d are no range", k.FirstPort, k.LastPort)
	}
	if t := k.KeepEnded; t != nil && (*t < 0 || *t > MaxKeepEnded) {
		return wrong("kubernetes.keep_ended", fmt.Sprintf("use up to %v; 0 keeps none", MaxKeepEnded), "ended pods cannot be kept for %v", *t)
	}
	if n := k.KeepEndedPods; n != nil && (*n < 0 || *n > MaxKeepEndedPods) {
		return wrong("kubernetes.keep_ended_pods", fmt.Sprintf("use up to %d; 0 keeps none", MaxKeepEndedPods), "%d ended pods cannot be kept", *n)
	}
	for _, grace := range []struct {
		field, name string
		is          time.Duration
	}{{"kubernetes.start_grace", "start", k.StartGrace}, {"kubernetes.unreachable_grace", "unreachable", k.UnreachableGrace}} {
		if grace.is != 0 && (grace.is < MinGrace || grace.is > MaxGrace) {
			return wrong(grace.field, fmt.Sprintf("use from %v to %v; 0 is the default", MinGrace, MaxGrace), "the %s grace cannot be %v", grace.name, grace.is)
		}
	}
	for n, key := range k.Tolerated {
		if !isKey(key) || slices.Contains(k.Tolerated[:n], key) {
			return wrong("kubernetes.tolerated_taints", "name the key of each taint once, such as example.com/gpu, without its value and effect", "%.80q cannot be tolerated", key)
		}
	}
	for n, name := range k.GPUs {
		if !isKey(name) || !strings.Contains(name, "/") || slices.Contains(k.GPUs[:n], name) {
			return wrong("kubernetes.gpu_resources", "name each resource of a device plug-in once, such as nvidia.com/gpu", "%.80q is no resource of GPUs", name)
		}
	}
	return nil
}

func (k *Kubernetes) checkConnection() error {
	switch {
	case k.Kubeconfig == "" && !k.InCluster:
		return wrong("kubernetes.kubeconfig", "name a kubeconfig below the server's directory of secrets; or say in_cluster, if the server is a pod of it", "nothing says where the API server is")
	case k.Kubeconfig != "" && k.InCluster:
		return wrong("kubernetes.in_cluster", "drop one of them", "the cluster cannot be both that of a kubeconfig and the one that the server is a pod of")
	case k.InCluster && k.Context != "":
		return wrong("kubernetes.context", "drop it, or name a kubeconfig instead of in_cluster", "there are no contexts without a kubeconfig")
	case len(k.Kubeconfig) > maxPath || hasControl(k.Kubeconfig):
		return wrong("kubernetes.kubeconfig", "name a file below the server's directory of secrets", "%.80q is no path", k.Kubeconfig)
	case k.Kubeconfig != "" && filepath.Clean(k.Kubeconfig) == ".":
		return wrong("kubernetes.kubeconfig", "name a file below the server's directory of secrets", "%.80q is a directory", k.Kubeconfig)
	case len(k.Context) > maxText || hasControl(k.Context):
		return wrong("kubernetes.context", fmt.Sprintf("use up to %d printable characters", maxText), "%.80q is no name of a context", k.Context)
	}
	return nil
}

// isPattern tells whether what a namespace is called after its pool can be made of it.
func isPattern(pattern string) bool {
	before, after, marked := strings.Cut(pattern, PoolMark)
	return marked && len(before)+len(after) <= maxAroundMark && namespacePattern.MatchString(before+"x"+after)
}

// isKey follows Kubernetes: a name, with or without a domain before it.
func isKey(key string) bool {
	name := key
	if domain, rest, ok := strings.Cut(key, "/"); ok {
		if len(domain) > maxDomain || !domainPattern.MatchString(domain) {
			return false
		}
		name = rest
	}
	return len(name) <= maxLabel && keyPattern.MatchString(name)
}
