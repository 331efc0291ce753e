package emulator_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// patience bounds every wait for something that is certain to come.
const patience = 2 * time.Minute

// node is one with room for a few pods.
func node(t *testing.T, name string) cluster.NodeConfig {
	t.Helper()
	capacity, err := cluster.Quantities(map[string]string{"cpu": "4", "memory": "8Gi"})
	if err != nil {
		t.Fatal(err)
	}
	return cluster.NodeConfig{Name: name, Capacity: capacity}
}

// forever is how containers behave that run until they are told to end.
func forever(*corev1.Pod, *corev1.Container) cluster.Behaviour { return cluster.Behaviour{Run: -1} }

// serve starts an emulator and returns it with a client.
func serve(t *testing.T, cfg emulator.Config) (*emulator.Emulator, *kubernetes.Clientset) {
	t.Helper()
	e, err := emulator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://" + l.Addr().String(), QPS: -1, ContentConfig: rest.ContentConfig{
		ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
	}}, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		e.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return e, client
}

func pod(name, node string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: "none", Command: command}},
		},
	}
}

func create(t *testing.T, c kubernetes.Interface, p *corev1.Pod) {
	t.Helper()
	if _, err := c.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// until polls until something holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("in vain waited for %s", what)
		}
	}
}

// await polls until a pod is as it should be.
func await(t *testing.T, c kubernetes.Interface, name, what string, good func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	until(t, what, func() bool {
		var err error
		if p, err = c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatalf("wait for %s: %v", what, err)
		}
		return good(p)
	})
	return p
}

// Informers see the truth whatever becomes of their watches.
func TestInformersUnderFaults(t *testing.T) {
	t.Parallel()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a"), node(t, "b")}, Behave: forever}})
	var count atomic.Int64
	e.SetFaults(func(r *http.Request) emulator.Fault {
		switch n := count.Add(1); {
		case r.Method == http.MethodGet && n%5 == 0:
			return emulator.Fault{Code: http.StatusTooManyRequests, RetryAfter: 0}
		case r.Method == http.MethodGet && n%7 == 0:
			return emulator.Fault{Code: http.StatusInternalServerError}
		case r.Method == http.MethodGet && n%11 == 0:
			return emulator.Fault{Drop: true}
		}
		return emulator.Fault{}
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	lister := factory.Core().V1().Pods().Lister()
	informer := factory.Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	const pods = 120
	for i := range pods {
		create(t, client, pod(fmt.Sprintf("p%d", i), "a"))
		switch {
		case i%20 == 5:
			e.CutWatches()
		case i%40 == 12:
			e.Do(func(c *cluster.Cluster) { c.Compact() })
			e.CutWatches()
		case i%3 == 0:
			now := int64(0)
			if err := client.CoreV1().Pods("default").Delete(ctx, fmt.Sprintf("p%d", i), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.SetFaults(nil)
	list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, p := range list.Items {
		want[p.Name] = p.ResourceVersion
	}
	until(t, "the informer to have what the cluster has", func() bool {
		have, _ := lister.List(labels.Everything())
		same := informer.HasSynced() && len(have) == len(want)
		for _, p := range have {
			same = same && want[p.Name] == p.ResourceVersion
		}
		return same
	})
}

// A fault is what a client makes of it, and a late one comes after the deed.
func TestFaults(t *testing.T) {
	t.Parallel()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	pods := client.CoreV1().Pods("default")
	for code, is := range map[int]func(error) bool{
		http.StatusConflict: apierrors.IsConflict, http.StatusInternalServerError: apierrors.IsInternalError, http.StatusGone: apierrors.IsResourceExpired,
		http.StatusGatewayTimeout: apierrors.IsTimeout, http.StatusForbidden: apierrors.IsForbidden,
	} {
		e.SetFaults(func(*http.Request) emulator.Fault { return emulator.Fault{Code: code} })
		if _, err := pods.Create(t.Context(), pod("x", "a"), metav1.CreateOptions{}); !is(err) {
			t.Errorf("fault %d is seen as %v", code, err)
		}
	}
	e.SetFaults(func(r *http.Request) emulator.Fault {
		return emulator.Fault{Drop: true, Late: r.Method == http.MethodPost}
	})
	if _, err := pods.Create(t.Context(), pod("x", "a"), metav1.CreateOptions{}); err == nil {
		t.Error("an answer came over a connection that was cut")
	}
	e.SetFaults(nil)
	if _, err := pods.Create(t.Context(), pod("x", "a"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("what was done before the cut is unknown: %v", err)
	}
}

// Containers are processes: they have an environment, exit codes, output and probes, and end when they are told to.
func TestProcesses(t *testing.T) {
	t.Parallel()
	local, err := emulator.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	}()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}}, Processes: local})
	defer e.Close()
	local.Serve(e)
	ctx := t.Context()
	if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"who": "world"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	talks := pod("talks", "a", "sh", "-c", "echo hello $(WHO) on $(WHERE); exit 3")
	talks.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "WHO", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}, Key: "who"}}},
		{Name: "WHERE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
	}
	create(t, client, talks)
	p := await(t, client, "talks", "its failure", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 || end.Reason != "Error" {
		t.Errorf("it ended as %+v", end)
	}
	if got := text(t, stream(t, client, "talks", false)); got != "hello world on a\n" {
		t.Errorf("it printed %q", got)
	}
	bad := pod("bad", "a", "/no/such/program")
	create(t, client, bad)
	p = await(t, client, "bad", "its failure", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "StartError" || end.Message == "" {
		t.Errorf("what cannot start ended as %+v", end)
	}
	up := filepath.Join(t.TempDir(), "up") // is there once it would hear that it is to end
	lives := pod("lives", "a", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; touch "+up+"; while :; do sleep 0.01; done")
	lives.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", up}}}}
	create(t, client, lives)
	await(t, client, "lives", "its readiness", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready
	})
	in := stream(t, client, "lives", true)
	if err := client.CoreV1().Pods("default").Delete(ctx, "lives", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := text(t, in); !strings.HasPrefix(got, "up\n") {
		t.Errorf("followed, it printed %q", got)
	}
	until(t, "the end of a pod that was deleted and ended", func() bool {
		_, err := client.CoreV1().Pods("default").Get(ctx, "lives", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// The end of an output is what was asked for, followed or not.
func TestTails(t *testing.T) {
	t.Parallel()
	local, err := emulator.NewLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	}()
	e, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}}, Processes: local})
	defer e.Close()
	local.Serve(e)
	gate := filepath.Join(t.TempDir(), "gate")
	create(t, client, pod("p", "a", "sh", "-c", `printf 'one\ntwo\nthree\n'; while ! test -e "$0"; do sleep 0.01; done; printf 'four\nfive'`, gate))
	await(t, client, "p", "its start", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	ask := func(o corev1.PodLogOptions) io.ReadCloser {
		in, err := client.CoreV1().Pods("default").GetLogs("p", &o).Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	two, none, many, few := int64(2), int64(0), int64(100), int64(6)
	until(t, "its first lines", func() bool { return text(t, ask(corev1.PodLogOptions{})) == "one\ntwo\nthree\n" })
	followed := ask(corev1.PodLogOptions{Follow: true, TailLines: &two})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := text(t, followed); got != "two\nthree\nfour\nfive" {
		t.Errorf("the last two lines and what follows are %q", got)
	}
	for want, o := range map[string]corev1.PodLogOptions{
		"four\nfive": {TailLines: &two}, "": {TailLines: &none}, "one\ntwo\nthree\nfour\nfive": {TailLines: &many}, "one\ntw": {LimitBytes: &few},
	} {
		if got := text(t, ask(o)); got != want {
			t.Errorf("%q was asked for and %q came", want, got)
		}
	}
}

// stream opens a pod's output.
func stream(t *testing.T, c kubernetes.Interface, name string, follow bool) io.ReadCloser {
	t.Helper()
	in, err := c.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{Follow: follow}).Stream(t.Context())
	if err != nil {
		t.Fatalf("the output of %s: %v", name, err)
	}
	return in
}

// text reads a stream to its end.
func text(t *testing.T, in io.ReadCloser) string {
	t.Helper()
	defer func() { _ = in.Close() }()
	raw, err := io.ReadAll(in)
	if err != nil {
		t.Errorf("read a pod's output: %v", err)
	}
	return string(raw)
}

// Pages together are the list, whatever the namespaces are called and whatever happens in between.
func TestPages(t *testing.T) {
	t.Parallel()
	_, client := serve(t, emulator.Config{Cluster: cluster.Config{Nodes: []cluster.NodeConfig{node(t, "a")}, Behave: forever}})
	var want []string
	for _, space := range []string{"a", "a-b", "a0"} {
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"x", "y"} {
			if _, err := client.CoreV1().Pods(space).Create(t.Context(), pod(name, ""), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			want = append(want, space+"/"+name)
		}
	}
	slices.Sort(want)
	var got []string
	for next := ""; ; {
		list, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{Limit: 1, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			got = append(got, p.Namespace+"/"+p.Name)
		}
		if left := list.RemainingItemCount; left != nil && int(*left) != len(want)-len(got) {
			t.Errorf("after %v %d are said to be left", got, *left)
		}
		create(t, client, pod(fmt.Sprintf("later-%d", len(got)), ""))
		if next = list.Continue; next == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages are %v, want %v", got, want)
	}
}
