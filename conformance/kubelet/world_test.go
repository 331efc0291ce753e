package kubelet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// patience bounds every wait.
const patience = 90 * time.Second

// world is a cluster with kubelets, real or emulated.
type world struct {
	api    *rest.Config
	client *typed.CoreV1Client
	nodes  []string
	clock  *hasty // nil: the machine's
	// down and up end a node's kubelet, as a crash does, and start it again.
	down, up func(t testing.TB, node string)
}

// hasty is a clock on which everything takes a tenth of the time.
type hasty struct{ began time.Time }

const haste = 10

// ever is longer on that clock than anything waits.
const ever = 2 * haste * patience

func (h *hasty) Now() time.Time { return h.began.Add(haste * time.Since(h.began)) }

func (h *hasty) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d/haste, f).Stop
}

func newWorld(t testing.TB, api *rest.Config, nodes []string) *world {
	t.Helper()
	api = rest.CopyConfig(api)
	api.QPS, api.Burst = -1, 1000
	connection, err := rest.HTTPClientFor(api)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(connection.Transport) })
	client, err := typed.NewForConfigAndClient(api, connection)
	if err != nil {
		t.Fatal(err)
	}
	return &world{api: api, client: client, nodes: nodes}
}

// realWorld starts two real kubelets with a control plane. They end with the process.
func realWorld(t *testing.T) *world {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Config{Kubelets: 2, Dir: *keep, Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range plane.Nodes() {
				t.Logf("the kubelet of %s said last:\n%s", name, plane.Said("kubelet-"+name))
			}
		}
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	})
	api, err := kubernetes.Connect(plane.Kubeconfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, api, plane.Nodes())
	w.down = func(t testing.TB, node string) {
		if err := plane.KillKubelet(node); err != nil {
			t.Error(err)
		}
	}
	w.up = func(t testing.TB, node string) {
		if err := plane.StartKubelet(context.WithoutCancel(t.Context()), node); err != nil {
			t.Error(err)
		}
	}
	return w
}

// emulatedWorld is an emulated cluster whose containers do as their words say, without a process.
func emulatedWorld(t *testing.T) *world {
	t.Helper()
	capacity, err := cluster.Quantities(map[string]string{"cpu": "2", "memory": "8Gi", "pods": "110"})
	if err != nil {
		t.Fatal(err)
	}
	clock := &hasty{began: time.Now()}
	e, err := emulator.New(emulator.Config{Clock: clock, Cluster: cluster.Config{
		Behave: behave, Nodes: []cluster.NodeConfig{{Name: "real-1", Capacity: capacity}, {Name: "real-2", Capacity: capacity}}, NodeGone: ever,
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	t.Cleanup(func() {
		e.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, &rest.Config{Host: "http://" + l.Addr().String()}, []string{"real-1", "real-2"})
	w.clock = clock
	set := func(up bool) func(testing.TB, string) {
		return func(t testing.TB, node string) {
			e.Do(func(c *cluster.Cluster) {
				if !c.SetNode(node, up) {
					t.Errorf("there is no node %s", node)
				}
			})
		}
	}
	w.down, w.up = set(false), set(true)
	return w
}

// behave is what the program task does, told to an emulator that runs no programs.
func behave(_ *corev1.Pod, c *corev1.Container) cluster.Behaviour {
	switch {
	case c.Image != controlplane.TaskImage && c.Image != controlplane.UserImage && c.ImagePullPolicy == corev1.PullNever:
		return cluster.Behaviour{Refused: "ErrImageNeverPull", Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image)}
	case c.Image != controlplane.TaskImage && c.Image != controlplane.UserImage:
		return cluster.Behaviour{Refused: "ErrImagePull", Message: "failed to pull and unpack image"}
	}
	words := slices.Concat(c.Command, c.Args)
	if len(words) > 0 && words[0] == controlplane.Task {
		words = words[1:]
	}
	b, said := cluster.Behaviour{Start: 20 * time.Millisecond, Ready: 20 * time.Millisecond}, ""
	for _, part := range strings.Split(strings.Join(words, "\x00"), "\x00then\x00") {
		part := strings.Split(part, "\x00")
		n := 0
		if len(part) > 1 {
			n, _ = strconv.Atoi(part[1])
		}
		switch part[0] {
		case "exit":
			b.Exit = int32(n)
		case "die":
			b.Exit = int32(128 + n)
		case "say", "complain":
			said += strings.Join(part[1:], "\n") + "\n"
		case "eat":
			if limit := c.Resources.Limits.Memory(); limit.Value() < int64(n)<<20 {
				b.Exit, b.Reason = 137, "OOMKilled"
			} else {
				b.Run = -1
			}
		case "polite":
			b.Run, b.Polite = -1, true
		case "sleep":
			b.Run = -1
		case "serve":
			b.Run, b.Polite = -1, true
			if len(part) > 2 {
				millis, _ := strconv.Atoi(part[2])
				b.Sick = time.Duration(millis) * time.Millisecond
			}
		case "deafen":
			b.Deaf = true
		case "deaf":
			b.Run, b.Deaf = -1, true
		}
	}
	if b.Exit != 0 {
		b.Message = said
	}
	return b
}

// stage is where one scenario plays: a namespace with a driver of its own.
type stage struct {
	testing.TB
	*world
	space  string
	node   string
	driver *kubernetes.Driver
	sink   *sink
	stop   func()
	seen   *pods
	count  uint32
}

// stages counts stages, so that each has a name of its own.
var stages struct {
	sync.Mutex
	n int
}

func newStage(t testing.TB, w *world, node string) *stage {
	t.Helper()
	stages.Lock()
	stages.n++
	s := &stage{TB: t, world: w, node: node, space: "stage-" + strconv.Itoa(stages.n)}
	stages.Unlock()
	if _, err := w.client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.space}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.seen = watchPods(t, w.client, s.space)
	s.connect()
	t.Cleanup(func() {
		s.disconnect()
		s.sweep()
	})
	return s
}

func (s *stage) config() kubernetes.Config {
	cfg := kubernetes.Config{
		API:       s.api,
		Pods:      manifest.Config{Owner: s.space, Epoch: 1, Namespace: s.space, HostPaths: true},
		Limits:    mirror.Config{StartGrace: 3 * time.Second},
		FirstWait: 10 * time.Millisecond, LongestWait: 200 * time.Millisecond,
	}
	if s.clock != nil {
		cfg.Now, cfg.AfterFunc = s.clock.Now, s.clock.AfterFunc
		cfg.Limits.KillMargin = ever // what a scenario does while a kubelet is down may take any time
	}
	return cfg
}

// connect starts a driver and waits for its inventory.
func (s *stage) connect() {
	s.Helper()
	d, err := kubernetes.New(s.config())
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	s.driver, s.sink = d, newSink()
	s.stop = func() { cancel(); d.Wait() }
	if err := d.Start(ctx, s.sink); err != nil {
		cancel()
		s.Fatal(err)
	}
	s.await("an inventory", func() bool { return s.sink.inventories() > 0 })
}

func (s *stage) disconnect() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// sweep removes what is left of the pods.
func (s *stage) sweep() {
	ctx := context.WithoutCancel(s.Context())
	second := int64(1)
	if err := s.client.Pods(s.space).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &second}, metav1.ListOptions{}); err != nil {
		s.Error(err)
	}
	s.await("the end of all pods", func() bool {
		list, err := s.client.Pods(s.space).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
}

// does are the words of a launch's command.
func does(words ...string) []string { return append([]string{controlplane.Task}, words...) }

// launch asks for a run of the image of tests.
func (s *stage) launch(change func(*driver.Launch)) workload.RunID {
	s.Helper()
	s.count++
	l := driver.Launch{
		Run:  workload.RunID{Job: workload.JobID{0: 'k', 15: 1}, Instance: s.count, Generation: 1, Run: 1},
		Host: s.node, Needs: map[string]int64{"cpu_milli": 10, "memory_mib": 32}, KillGrace: 10 * time.Second,
		Execution: &execution.Spec{Main: execution.Container{Image: controlplane.TaskImage}},
	}
	change(&l)
	if err := s.driver.Launch(s.Context(), []driver.Launch{l}); err != nil {
		s.Fatal(err)
	}
	return l.Run
}

func (s *stage) kill(run workload.RunID, grace time.Duration) {
	s.Helper()
	if err := s.driver.Kill(s.Context(), []driver.Kill{{Run: run, Grace: grace}}); err != nil {
		s.Fatal(err)
	}
}

// end waits for a run's end.
func (s *stage) end(run workload.RunID) driver.Status {
	s.Helper()
	s.await("the end of "+run.String(), func() bool { return s.sink.last(run).State.Traits().Terminal })
	return s.sink.last(run)
}

// healthy waits until a run was said to work, and its containers were seen by whoever watches the pods, who may be slower. It may have ended since, as some do by themselves: nobody
// knows when this is looked at.
func (s *stage) healthy(run workload.RunID) {
	s.Helper()
	s.await(run.String()+" healthy", func() bool {
		told := s.sink.history(run)
		if slices.ContainsFunc(told, func(one driver.Status) bool { return one.Healthy }) {
			return s.seen.begun(run.String())
		}
		if n := len(told); n > 0 && told[n-1].State.Traits().Terminal {
			s.Fatalf("it has ended: %+v", told[n-1])
		}
		return false
	})
}

// output is what a run has written, once it has ended if follow is set.
func (s *stage) output(run workload.RunID, follow bool) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	r, err := s.driver.ReadLog(ctx, run, driver.LogRequest{Follow: follow})
	if err != nil {
		s.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		s.Fatal(err)
	}
	_ = r.Close()
	return string(raw)
}

// await polls until something holds.
func (s *stage) await(what string, holds func() bool) {
	s.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("in vain waited for %s\nheard:\n%s\npods:\n%s", what, s.sink, s.seen)
		}
	}
}

// foreign creates a pod of somebody else's, on the stage's node, and waits until it runs.
func (s *stage) foreign(name, cpu string) {
	s.Helper()
	no := false
	second := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: s.node, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &second,
			Containers: []corev1.Container{{
				Name: "theirs", Image: controlplane.TaskImage, ImagePullPolicy: corev1.PullNever, Command: does("sleep"),
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
			}},
		},
	}
	if _, err := s.client.Pods(s.space).Create(s.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.await("a pod of somebody else", func() bool {
		p := s.seen.last(name)
		return p != nil && p.Status.Phase == corev1.PodRunning
	})
}

// cordon says whether the stage's node takes no more pods.
func (s *stage) cordon(yes bool) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, yes)
	if _, err := s.client.Nodes().Patch(s.Context(), s.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}
