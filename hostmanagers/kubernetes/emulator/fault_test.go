package emulator_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// While the API server is gone watches end and nobody is answered; afterwards everything is as it was, and what kubelets did meanwhile.
func TestOutage(t *testing.T) {
	t.Parallel()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	create(t, client, pod("p", "a"))
	p := await(t, client, "p", "its start", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	watcher, err := client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: p.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	e.SetDown(true)
	if event, more := <-watcher.ResultChan(); more && event.Type != watch.Error {
		t.Errorf("a watch goes on without a server: %v", event)
	}
	if _, err := client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err == nil {
		t.Error("a server that is gone answers")
	}
	e.Do(func(c *cluster.Cluster) { c.Pressure(cluster.Key{Namespace: "default", Name: "p"}, "no memory") })
	e.SetDown(false)
	await(t, client, "p", "the truth", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" })
}

// A client that is refused for a while is told how long, and client-go waits so long by itself.
func TestStorm(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	e.SetFaults(func(*http.Request) emulator.Fault {
		asked.Add(1)
		return emulator.Fault{Code: http.StatusTooManyRequests, RetryAfter: 3600}
	})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		_, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		over <- err
	}()
	until(t, "the first request", func() bool { return asked.Load() > 0 })
	cancel()
	<-over // it waited
	if n := asked.Load(); n != 1 {
		t.Errorf("a client that is to come again in an hour asked %d times", n)
	}
	err := client.CoreV1().RESTClient().Get().Resource("nodes").MaxRetries(0).Do(t.Context()).Error()
	if seconds, told := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !told || seconds != 3600 {
		t.Errorf("the refusal is %v, to come again in %d s (%t)", err, seconds, told)
	}
}

// What is older than the history is gone: for who goes on with a list, and for who watches from then.
func TestForgotten(t *testing.T) {
	t.Parallel()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a"), node(t, "b"), node(t, "c")}, Behave: forever}})
	first, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil || first.Continue == "" {
		t.Fatalf("the first page goes on with %q: %v", first.Continue, err)
	}
	create(t, client, pod("p", "a"))
	e.Do(func(c *cluster.Cluster) { c.Compact() })
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{Limit: 1, Continue: first.Continue}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a list that is too old goes on: %v", err)
	}
	watcher, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	event := <-watcher.ResultChan()
	if err := apierrors.FromObject(event.Object); event.Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch that is too old begins with %v, %v", event.Type, err)
	}
	watcher.Stop()
}

// slowly is a clock by which nothing becomes due until it is let go.
type slowly struct{ due chan func() }

func (s slowly) Now() time.Time { return time.Now() }

func (s slowly) AfterFunc(d time.Duration, f func()) func() bool {
	if d >= time.Hour {
		s.due <- f
		return func() bool { return true }
	}
	return time.AfterFunc(d, f).Stop
}

// A slow answer comes late, and is right.
func TestSlow(t *testing.T) {
	t.Parallel()
	clock := slowly{due: make(chan func(), 8)}
	e, client := serve(t, emulator.Config{Clock: clock, Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	e.SetFaults(func(*http.Request) emulator.Fault { return emulator.Fault{Delay: time.Hour} })
	got := make(chan int, 1)
	go func() {
		list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		got <- len(list.Items)
	}()
	release := <-clock.due
	select {
	case <-got:
		t.Error("an answer that was to be slow is there at once")
	default:
	}
	release()
	if n := <-got; n != 1 {
		t.Errorf("the slow answer has %d nodes", n)
	}
}

// Pods end because of others: their kubelet refuses them or needs their memory, an operator evicts them, somebody deletes them.
func TestOthersEndPods(t *testing.T) {
	t.Parallel()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	pods := client.CoreV1().Pods("default")
	e.Do(func(c *cluster.Cluster) {
		c.Reject = func(p *corev1.Pod) (string, string) {
			if p.Name == "refused" {
				return "OutOfcpu", "Node didn't have enough resource: cpu"
			}
			return "", ""
		}
	})
	for _, name := range []string{"refused", "squeezed", "evicted", "deleted"} {
		create(t, client, pod(name, "a"))
	}
	await(t, client, "refused", "its refusal", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOfcpu" })
	for _, name := range []string{"squeezed", "evicted", "deleted"} {
		await(t, client, name, "its start", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	}
	e.Do(func(c *cluster.Cluster) { c.Pressure(cluster.Key{Namespace: "default", Name: "squeezed"}, "no memory") })
	await(t, client, "squeezed", "its end", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" })
	version := await(t, client, "evicted", "itself", func(*corev1.Pod) bool { return true }).ResourceVersion
	watcher, err := pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version, FieldSelector: "metadata.name=evicted"})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if err := pods.EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted"}}); err != nil {
		t.Fatal(err)
	}
	disrupted := false
	for event := range watcher.ResultChan() {
		p, _ := event.Object.(*corev1.Pod)
		for _, c := range p.Status.Conditions {
			disrupted = disrupted || c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI"
		}
		if event.Type == watch.Deleted {
			break
		}
	}
	if !disrupted {
		t.Error("an evicted pod ended and never said why")
	}
	if err := pods.Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of a deleted pod", func() bool {
		_, err := pods.Get(t.Context(), "deleted", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// still is a clock on which nothing is ever due. It tells what is waited for, and what no longer is.
type still struct{ begun, over chan struct{} }

func (still) Now() time.Time { return time.Unix(1e9, 0) }

func (s still) AfterFunc(d time.Duration, _ func()) func() bool {
	if d != time.Hour {
		return func() bool { return true }
	}
	close(s.begun)
	return func() bool { close(s.over); return true }
}

// A request that is held up is not done once nobody waits for its answer.
func TestADelayNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	clock := still{make(chan struct{}), make(chan struct{})}
	e, client := serve(t, emulator.Config{
		Clock: clock, Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever},
		Faults: func(r *http.Request) emulator.Fault {
			if r.Method == http.MethodPost {
				return emulator.Fault{Delay: time.Hour}
			}
			return emulator.Fault{}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := client.CoreV1().Pods("default").Create(ctx, pod("late", "a"), metav1.CreateOptions{})
		ended <- err
	}()
	<-clock.begun
	cancel()
	if err := <-ended; err == nil {
		t.Error("a request that was given up succeeded")
	}
	select {
	case <-clock.over:
	case <-time.After(patience):
		t.Error("what nobody waits for is still to be done")
	}
	e.Do(func(c *cluster.Cluster) {
		if pods, _ := c.List(cluster.Pods, "", 0); len(pods) != 0 { // the present is always there
			t.Errorf("there are %d pods", len(pods))
		}
	})
}

// A body that is too large is refused as such, held up or not.
func TestADelayOfTooMuch(t *testing.T) {
	t.Parallel()
	e, _ := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	for _, delay := range []time.Duration{0, time.Nanosecond} {
		e.SetFaults(func(*http.Request) emulator.Fault { return emulator.Fault{Delay: delay} })
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/namespaces/default/pods", bytes.NewReader(make([]byte, 4<<20)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("after %v: status %d: %s", delay, w.Code, w.Body)
		}
	}
}
