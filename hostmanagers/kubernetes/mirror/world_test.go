package mirror_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

var mirrorConfig = validated(mirror.Config{
	Owner: "us", StartGrace: time.Minute, UnreachableGrace: 30 * time.Second, KillMargin: 10 * time.Second, Tolerated: []string{"dedicated"},
	FirstPort: 100, LastPort: 109, Epoch: 5,
})

func validated(c mirror.Config) mirror.Config {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	return c
}

// world is a machine with a cluster that a test plays.
type world struct {
	t     testing.TB
	m     *mirror.Machine
	out   mirror.Output
	now   time.Duration
	uids  int
	calls []*mirror.Call

	statuses    map[uint32][]driver.Status
	inventories []*driver.Inventory
	hosts       map[string]driver.Host
	removed     []string
	lost        int
}

func run(i uint32) workload.RunID {
	return workload.RunID{Job: workload.JobID{1}, Instance: i, Generation: 1, Run: 1}
}

// newWorld is connected to a cluster of two nodes, a and b.
func newWorld(t testing.TB) *world { return newWorldOf(t, mirrorConfig) }

// atOnce is a configuration that keeps no pod of a run that has ended.
func atOnce() mirror.Config {
	c := mirrorConfig
	c.KeepEnded = -1
	return c
}

func newWorldOf(t testing.TB, c mirror.Config) *world {
	w := bareWorldOf(t, c)
	w.do(func(now int64) { w.m.Connected(now, &w.out) })
	w.nodes(aNode("a"), aNode("b"))
	w.pods()
	if len(w.inventories) != 1 || len(w.inventories[0].Hosts) != 2 {
		t.Fatalf("the inventories are %v", w.inventories)
	}
	return w
}

func bareWorld(t testing.TB) *world { return bareWorldOf(t, mirrorConfig) }

func bareWorldOf(t testing.TB, c mirror.Config) *world {
	m, err := mirror.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, m: m, statuses: map[uint32][]driver.Status{}, hosts: map[string]driver.Host{}, now: time.Hour}
}

// do gives an input and takes in what follows.
func (w *world) do(input func(now int64)) {
	w.t.Helper()
	input(int64(w.now))
	w.calls = append(w.calls, w.out.Calls...)
	for _, n := range w.out.News {
		if n.Inventory != nil {
			w.inventories = append(w.inventories, n.Inventory)
			clear(w.hosts)
			for _, h := range n.Inventory.Hosts {
				w.hosts[h.Name] = h
			}
			w.note(n.Inventory.Runs)
		}
		for _, h := range n.Changed {
			w.hosts[h.Name] = h
		}
		for _, name := range n.Removed {
			delete(w.hosts, name)
		}
		w.removed = append(w.removed, n.Removed...)
		if n.Disconnected != nil {
			w.lost++
		}
		w.note(n.Statuses)
	}
	w.out = mirror.Output{}
}

func (w *world) note(statuses []driver.Status) {
	for _, s := range statuses {
		w.statuses[s.Run.Instance] = append(w.statuses[s.Run.Instance], s)
	}
}

func (w *world) pass(d time.Duration) {
	w.t.Helper()
	until := w.now + d
	for next := w.m.Next(); next != 0 && time.Duration(next) <= until; next = w.m.Next() {
		w.now = max(w.now, time.Duration(next))
		w.do(func(now int64) { w.m.Wake(now, &w.out) })
	}
	w.now = until
}

func (w *world) nodes(nodes ...*corev1.Node) {
	w.t.Helper()
	var list []mirror.Node
	for _, n := range nodes {
		list = append(list, mirrorConfig.ReadNode(n))
	}
	w.do(func(now int64) { w.m.Nodes(now, list, &w.out) })
}

func (w *world) node(n *corev1.Node) {
	w.t.Helper()
	w.do(func(now int64) { w.m.NodeChanged(now, mirrorConfig.ReadNode(n), &w.out) })
}

func (w *world) pods(pods ...*corev1.Pod) {
	w.t.Helper()
	w.m.Listing()
	var list []mirror.Pod
	for _, p := range pods {
		list = append(list, mirrorConfig.ReadPod(p))
	}
	half := len(list) / 2 // a list may come in parts
	var rest []mirror.Pod
	w.do(func(now int64) { rest = w.m.Listed(now, list[:half:half], &w.out) })
	w.do(func(now int64) { w.m.Pods(now, append(rest, list[half:]...), &w.out) })
}

func (w *world) changed(p *corev1.Pod) {
	w.t.Helper()
	record := mirrorConfig.ReadPod(p)
	w.do(func(now int64) { w.m.PodChanged(now, &record, &w.out) })
}

func (w *world) gone(p *corev1.Pod) {
	w.t.Helper()
	record := mirrorConfig.ReadPod(p)
	w.do(func(now int64) { w.m.PodGone(now, &record, &w.out) })
}

func (w *world) launch(i uint32) {
	w.t.Helper()
	w.do(func(now int64) {
		l := []driver.Launch{{Run: run(i), Host: "a", Devices: []int{0}}}
		if err := w.m.Launch(now, l, func(*driver.Launch) string { return "space" }, &w.out); err != nil {
			w.t.Fatal(err)
		}
	})
}

func (w *world) kill(i uint32, grace time.Duration) {
	w.t.Helper()
	w.do(func(now int64) {
		if err := w.m.Kill(now, []driver.Kill{{Run: run(i), Grace: grace}}, &w.out); err != nil {
			w.t.Fatal(err)
		}
	})
}

func (w *world) acknowledge(i uint32) {
	w.t.Helper()
	token := w.last(i).Token
	w.do(func(now int64) { w.m.Acknowledge(now, []driver.Token{token}, &w.out) })
}

// take returns the one call that is there.
func (w *world) take() *mirror.Call {
	w.t.Helper()
	if len(w.calls) != 1 {
		w.t.Fatalf("there are %d calls", len(w.calls))
	}
	c := w.calls[0]
	w.calls = nil
	return c
}

func (w *world) none() {
	w.t.Helper()
	if len(w.calls) != 0 {
		w.t.Fatalf("there are %d calls, of them %+v", len(w.calls), w.calls[0])
	}
}

func (w *world) answer(c *mirror.Call, a mirror.Answer) {
	w.t.Helper()
	w.do(func(now int64) { w.m.Answer(now, c, a, &w.out) })
}

// pod is what the API server makes of a launch.
func (w *world) pod(c *mirror.Call) *corev1.Pod {
	w.uids++
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.Run.String(), Namespace: c.Namespace, UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", w.uids)),
			Labels: map[string]string{mirror.LabelOwner: "us"}, CreationTimestamp: metav1.NewTime(time.Unix(0, int64(w.now))),
		},
		Spec:   corev1.PodSpec{NodeName: c.Launch.Host, Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// created launches a run and lets the API server take it.
func (w *world) created(i uint32) *corev1.Pod {
	w.t.Helper()
	w.launch(i)
	c := w.take()
	p := w.pod(c)
	record := mirrorConfig.ReadPod(p)
	w.answer(c, mirror.Answer{Pod: &record})
	return p
}

// started has a run running.
func (w *world) started(i uint32) *corev1.Pod {
	w.t.Helper()
	p := w.created(i)
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(0, int64(w.now)))}},
	}}
	if p.Status.ContainerStatuses[0].Name != mirror.MainContainer {
		w.t.Fatal("the main container has another name")
	}
	return p
}

// exits ends a pod's container.
func (w *world) exits(p *corev1.Pod, code int32) {
	w.t.Helper()
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", FinishedAt: metav1.NewTime(time.Unix(0, int64(w.now)))},
	}}}
	w.changed(p)
}

func (w *world) last(i uint32) driver.Status {
	if n := len(w.statuses[i]); n > 0 {
		return w.statuses[i][n-1]
	}
	return driver.Status{}
}

func (w *world) expect(i uint32, state workload.RunState, reason workload.Reason) {
	w.t.Helper()
	if s := w.last(i); s.State != state || s.Reason != reason || s.Host == "" && s.Token != 0 || s.At.IsZero() {
		w.t.Fatalf("run %d is %s %s (%+v), want %s %s", i, s.State, s.Reason, s, state, reason)
	}
}

func aNode(name string) *corev1.Node {
	q := resource.MustParse
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{
			"topology.kubernetes.io/zone": "z1", mirror.LabelPool: "batch", "nvidia.com/gpu.product": "H100", "can/fly": "yes",
		}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				"cpu": q("3920m"), "memory": q("8Gi"), "ephemeral-storage": q("100Gi"), "pods": q("4"), "nvidia.com/gpu": q("2"),
				"example.com/widget": q("5"), "hugepages-2Mi": q("0"), "attachable-volumes-csi-x/y": q("9"),
			},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			},
		},
	}
}
