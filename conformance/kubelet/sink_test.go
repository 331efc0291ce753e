package kubelet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// sink remembers what a driver says.
type sink struct {
	mu    sync.Mutex
	began int
	hosts map[string]driver.Host
	said  map[workload.RunID][]driver.Status
}

func newSink() *sink {
	return &sink{hosts: map[string]driver.Host{}, said: map[workload.RunID][]driver.Status{}}
}

func (s *sink) Inventory(i driver.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began++
	clear(s.hosts)
	for _, h := range i.Hosts {
		s.hosts[h.Name] = h
	}
	for _, r := range i.Runs {
		s.said[r.Run] = append(s.said[r.Run], r)
	}
}

func (s *sink) HostsChanged(changed []driver.Host, removed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range changed {
		s.hosts[h.Name] = h
	}
	for _, name := range removed {
		delete(s.hosts, name)
	}
}

func (s *sink) Statuses(list []driver.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range list {
		s.said[one.Run] = append(s.said[one.Run], one)
	}
}

func (s *sink) Disconnected(error) {}

func (s *sink) inventories() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

func (s *sink) host(name string) (driver.Host, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hosts[name]
	return h, ok
}

func (s *sink) last(run workload.RunID) driver.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if list := s.said[run]; len(list) > 0 {
		return list[len(list)-1]
	}
	return driver.Status{}
}

func (s *sink) history(run workload.RunID) []driver.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.said[run])
}

// String is all that was said, for a failed test.
func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for run, list := range s.said {
		for _, one := range list {
			fmt.Fprintf(&out, "%s %s %s healthy %t exit %d signal %d: %s\n", run, one.State, one.Reason, one.Healthy, one.ExitCode, one.Signal, one.Message)
		}
	}
	return out.String()
}

// pods remembers the pods of a namespace, also those that are gone.
type pods struct {
	mu   sync.Mutex
	seen map[string]*corev1.Pod
	gone map[string]bool
	log  []string
}

// watchPods watches a namespace until the test ends.
func watchPods(t testing.TB, client *typed.CoreV1Client, space string) *pods {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w, err := client.Pods(space).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	p := &pods{seen: map[string]*corev1.Pod{}, gone: map[string]bool{}}
	var group sync.WaitGroup
	group.Go(func() {
		for e := range w.ResultChan() {
			p.take(e)
		}
	})
	t.Cleanup(func() { w.Stop(); cancel(); group.Wait() })
	return p
}

func (p *pods) take(e watch.Event) {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[pod.Name], p.gone[pod.Name] = pod, e.Type == watch.Deleted
	p.log = append(p.log, fmt.Sprintf("%s %s %s %s deleted %v %+v", e.Type, pod.Name, pod.Status.Phase, pod.Status.Reason, pod.DeletionTimestamp, pod.Status.ContainerStatuses))
}

// last is the newest that was seen of a pod, also of one that is gone. nil: there was none.
func (p *pods) last(name string) *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[name]
}

// begun says that the containers of a pod have been started.
func (p *pods) begun(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.seen[name]
	return pod != nil && len(pod.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.ContainerID == "" })
}

// settled says that a pod is gone, or has ended with all that its containers share, and is not being deleted.
func (p *pods) settled(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.seen[name]
	if pod == nil || p.gone[name] {
		return p.gone[name]
	}
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	shared := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
	return over && !shared && pod.DeletionTimestamp == nil
}

// String is all that was seen, for a failed test.
func (p *pods) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}
