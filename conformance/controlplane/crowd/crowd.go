// Package crowd fills a Kubernetes cluster with nodes and pods by the thousand, and counts what becomes of them.
//
// It owns what such nodes and pods look like, how they are created at the pace that an API server allows, and the watch that counts how many
// are bound, run and have ended. It starts no cluster, and empties none: who measures takes a new one.
//
// Concurrency: the methods of *Crowd and *Count may be called from any goroutine. A Count's goroutine ends with its context.
package crowd

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// What nodes have and pods ask for.
const (
	Namespace     = "default"
	Image         = "registry.k8s.io/pause:3.10"
	CPUMilli      = 100
	MemoryMiB     = 128
	nodeCPUs      = "32"
	nodeMemory    = "64Gi"
	nodePods      = "110"
	workers       = 32
	podKilled     = 30 // seconds, the default
	playedBy      = "kwok.x-k8s.io/node"
	namespaceWait = 50 * time.Millisecond
)

// Crowd is a way to a cluster.
type Crowd struct {
	api    *typed.CoreV1Client
	client *http.Client
	cfg    *rest.Config
}

// Dial reads how to reach a cluster from a kubeconfig.
func Dial(kubeconfig string) (*Crowd, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	cfg.QPS, cfg.Burst = -1, math.MaxInt32
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	api, err := typed.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return &Crowd{api: api, client: client, cfg: cfg}, nil
}

// Close gives connections back.
func (c *Crowd) Close() { c.client.CloseIdleConnections() }

// NodeName is the name of a node.
func NodeName(n int) string { return fmt.Sprintf("node-%05d", n) }

// Nodes creates nodes that are ready. kwok plays the kubelets of played ones.
func (c *Crowd) Nodes(ctx context.Context, n int, played bool) error {
	return c.each(n, func(i int) error {
		_, err := c.api.Nodes().Create(ctx, node(i, played), metav1.CreateOptions{})
		return err //nolint:wrapcheck // each says what it is of
	})
}

func node(i int, played bool) *corev1.Node {
	has := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(nodeCPUs), corev1.ResourceMemory: resource.MustParse(nodeMemory), corev1.ResourcePods: resource.MustParse(nodePods),
	}
	name := NodeName(i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity: has, Allocatable: has,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now()}},
		},
	}
	if played {
		n.Annotations = map[string]string{playedBy: "fake"}
	}
	return n
}

// Probe creates one more pod for a scheduler to bind, which shows whether there is one at work.
func (c *Crowd) Probe(ctx context.Context) error {
	if err := c.awaitNamespace(ctx); err != nil {
		return err
	}
	p, err := pod(0, 0)
	if err != nil {
		return err
	}
	p.Name = "probe"
	if _, err := c.api.Pods(Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	return nil
}

// awaitNamespace waits for the pods' namespace: a new API server makes it a moment after it is ready.
func (c *Crowd) awaitNamespace(ctx context.Context) error {
	for {
		_, err := c.api.Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("look for the namespace of the pods: %w", err)
		}
		time.Sleep(namespaceWait)
	}
}

// Pods creates pods: bound to so many nodes in turn, or, with none, for a scheduler to bind.
func (c *Crowd) Pods(ctx context.Context, n, nodes int) error {
	if err := c.awaitNamespace(ctx); err != nil {
		return err
	}
	return c.each(n, func(i int) error {
		p, err := pod(i, nodes)
		if err == nil {
			_, err = c.api.Pods(Namespace).Create(ctx, p, metav1.CreateOptions{})
		}
		return err //nolint:wrapcheck // each says what it is of
	})
}

// launched makes pods as a cell's driver does, so that others are measured with the same ones.
var launched = manifest.Config{Owner: "crowd", Epoch: 1, Namespace: Namespace}

// pod is one of a job's; without nodes it is nobody's yet.
func pod(i, nodes int) (*corev1.Pod, error) {
	run := workload.RunID{Job: workload.JobID{1}, Instance: uint32(i), Generation: 1, Run: 1} //nolint:gosec // a small number
	p, err := launched.Pod(&driver.Launch{
		Run: run, Host: NodeName(i % max(nodes, 1)), KillGrace: podKilled * time.Second,
		Needs:     map[string]int64{"cpu_milli": CPUMilli, "memory_mib": MemoryMiB},
		Execution: &execution.Spec{Main: execution.Container{Image: Image}},
		Env: map[string]string{
			"PACELINE_JOB": "crowd", "PACELINE_JOB_ID": run.Job.String(), "PACELINE_POOL": "/default", "PACELINE_INSTANCE": strconv.Itoa(i),
			"PACELINE_INSTANCES": "10000",
		},
	}, "")
	if err != nil {
		return nil, fmt.Errorf("make a pod: %w", err)
	}
	if nodes == 0 {
		p.Spec.NodeName = ""
	}
	return p, nil
}

// Label is what the first pod of all says under a label.
func (c *Crowd) Label(ctx context.Context, label string) (string, error) {
	pods, err := c.api.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("look at a pod: %w", err)
	}
	if len(pods.Items) == 0 || pods.Items[0].Labels[label] == "" {
		return "", fmt.Errorf("no pod has the label %s", label)
	}
	return pods.Items[0].Labels[label], nil
}

// each does something so many times, by several workers, until one fails.
func (c *Crowd) each(n int, do func(i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	var once sync.Once
	var failed error
	for range workers {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := do(int(i)); err != nil {
					next.Store(int64(n))
					once.Do(func() { failed = fmt.Errorf("create the %dth of %d objects: %w", i+1, n, err) })
				}
			}
		})
	}
	group.Wait()
	return failed
}
