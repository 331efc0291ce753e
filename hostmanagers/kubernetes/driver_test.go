package kubernetes_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clienttransport "k8s.io/client-go/transport"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// patience bounds every wait.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	clienttransport.CertCallbackRefreshDuration = 50 * time.Millisecond // after which a certificate that was renewed is noticed
	goleak.VerifyTestMain(m)
}

func says(words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) { l.Command = words }
}

func checked(check string, words ...string) func(*driver.Launch) {
	return func(l *driver.Launch) {
		l.Command = words
		l.Health = &workload.HealthCheck{Exec: []string{"sh", "-c", check}, Interval: time.Second, Timeout: time.Minute, FailureThreshold: 2}
	}
}

// patiently gives a task that is not well at once its time to become so.
func patiently(work func(*driver.Launch)) func(*driver.Launch) {
	return func(l *driver.Launch) {
		work(l)
		l.Health.FailureThreshold = 1000
	}
}

// patched has a pod changed before it is created.
func patched(l *driver.Launch, patch string) {
	l.Execution = &execution.Spec{Kubernetes: &execution.Kubernetes{Patch: []byte(patch)}}
}

func bad(l *driver.Launch) {
	l.Command, l.Needs = []string{"true"}, map[string]int64{"cpu_milli": 10, "gpu_milli": 500}
}

func config(api *rest.Config, n *drivertest.Network, owner, namespace string) kubernetes.Config {
	api = rest.CopyConfig(api)
	api.Dial = n.Dial
	return kubernetes.Config{
		API: api, Pods: manifest.Config{Owner: owner, Epoch: 1, Namespace: namespace, DefaultImage: "none"},
		FirstWait: 10 * time.Millisecond, LongestWait: 200 * time.Millisecond,
		Drain: patience, // what was acknowledged is forgotten, however slow the machine is
	}
}

// emulated is an emulated cluster of two nodes.
func emulated(t testing.TB, cfg emulator.Config) (*emulator.Emulator, *rest.Config) {
	t.Helper()
	capacity, err := cluster.Quantities(map[string]string{"cpu": "4", "memory": "8Gi", "pods": "110"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Cluster.Nodes = []cluster.NodeConfig{{Name: "a", Capacity: capacity}, {Name: "b", Capacity: capacity}}
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
	t.Cleanup(func() {
		e.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return e, &rest.Config{Host: "http://" + l.Addr().String()}
}

// atOnce has the pods of runs that have ended deleted as soon as their end was acknowledged.
func atOnce(c *kubernetes.Config) { c.Limits.KeepEnded = -1 }

// kit is what the kit of drivers needs of an emulated cluster.
func kit(t testing.TB, e *emulator.Emulator, api *rest.Config, keeps bool, work drivertest.Work) drivertest.Cluster {
	n := &drivertest.Network{}
	cfg := config(api, n, "kit", "default")
	if !keeps {
		atOnce(&cfg)
	}
	return drivertest.Cluster{
		Connect: func() (driver.Driver, error) { return kubernetes.New(cfg) },
		Cut:     n.Cut, Mend: n.Mend, Patience: patience, Work: work, Keeps: keeps,
		RemoveHost: func(name string) {
			e.Do(func(c *cluster.Cluster) {
				if _, _, err := c.Delete(cluster.Nodes, cluster.Key{Name: name}, cluster.Deletion{}); err != nil {
					t.Error(err)
				}
			})
		},
	}
}

// behave is what containers do that are no processes: their command says it.
func behave(_ *corev1.Pod, c *corev1.Container) cluster.Behaviour {
	b := cluster.Behaviour{Run: -1}
	switch c.Command[0] {
	case "exit":
		code, _ := strconv.Atoi(c.Command[1])
		b.Run, b.Exit = 0, int32(code)
	case "deaf":
		b.Deaf = true
	case "sick":
		b.Ready, b.Sick = time.Hour, time.Millisecond
	}
	return b
}

// TestDriver runs the kit of all drivers on an emulated cluster, on which nothing is kept of runs that have ended.
func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
		e, api := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
		return kit(t, e, api, false, drivertest.Work{
			Exit:    func(l *driver.Launch, code int32) { says("exit", strconv.Itoa(int(code)))(l) },
			Forever: says("sleep"), Bad: bad, Deaf: checked("true", "deaf"), Healthy: checked("true", "well"), Sick: checked("false", "sick"),
		})
	})
}

// TestProcesses runs the kit on one whose containers are processes of this machine. What they write can be read after their end.
func TestProcesses(t *testing.T) {
	t.Parallel()
	for _, check := range drivertest.Checks() {
		t.Run(check.Name, func(t *testing.T) {
			t.Parallel()
			if check.Name == "AfterTheEndNothingIsTaken" {
				t.Skip("it counts goroutines, and those that watch over the run that goes on are the emulator's, in this process")
			}
			local, err := emulator.NewLocal(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			e, api := emulated(t, emulator.Config{Processes: local})
			local.Serve(e)
			t.Cleanup(func() {
				e.Close() // first: it may be closed twice
				if err := local.Close(); err != nil {
					t.Error(err)
				}
			})
			deaf := filepath.Join(t.TempDir(), "deaf") // is there once nothing is heard any more
			check.Run(t, kit(t, e, api, true, drivertest.Work{
				Exit:    func(l *driver.Launch, code int32) { says("sh", "-c", "exit "+strconv.Itoa(int(code)))(l) },
				Forever: says("sleep", "1000"), Bad: bad,
				Healthy: checked("true", "sleep", "1000"), Sick: checked("false", "sleep", "1000"),
				Deaf:  patiently(checked("test -e "+deaf, "sh", "-c", "trap '' TERM; touch "+deaf+"; while :; do sleep 1; done")),
				Print: func(l *driver.Launch, text string) { says("printf", "%s", text)(l) },
			}))
		})
	}
}

// TestRealServer runs the kit on a real API server, whose kubelets are kwok's: pods run and end, and there are no processes.
func TestRealServer(t *testing.T) {
	t.Parallel()
	path := os.Getenv("PACELINE_KUBECONFIG")
	if path == "" || os.Getenv("PACELINE_CONTROLPLANE") == "" {
		t.Skip("needs a control plane of its own: make conformance-kubernetes")
	}
	api, err := kubernetes.Connect(path, "")
	if err != nil {
		t.Fatal(err)
	}
	connection, err := rest.HTTPClientFor(api)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(connection.Transport) })
	client, err := typed.NewForConfigAndClient(api, connection)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
		count++
		space := fmt.Sprintf("driver-kit-%d", count)
		prepare(t, client, space)
		n := &drivertest.Network{}
		cfg := config(api, n, space, space)
		return drivertest.Cluster{
			Connect: func() (driver.Driver, error) { return kubernetes.New(cfg) },
			Cut:     n.Cut, Mend: n.Mend, Patience: patience, Keeps: true,
			RemoveHost: func(name string) {
				if err := client.Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			},
			Work: drivertest.Work{
				Exit: func(l *driver.Launch, code int32) {
					l.Command = []string{"true"}
					patched(l, fmt.Sprintf(`{"metadata": {"annotations": {"test.run-for": "10ms", "test.exit-code": "%d"}}}`, code))
				},
				Forever: says("sleep", "1000"), Bad: bad,
			},
		}
	})
}

// prepare makes a namespace and a node of its own, and waits for the node's kubelet.
func prepare(t testing.TB, client *typed.CoreV1Client, space string) {
	t.Helper()
	ctx := t.Context()
	if _, err := client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	capacity := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: space, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	if _, err := client.Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Nodes().Delete(context.WithoutCancel(ctx), space, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	until(t, "a ready node", func() bool {
		n, err := client.Nodes().Get(ctx, space, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	})
}

// until polls until something holds.
func until(t testing.TB, what string, holds func() bool) {
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

func TestConfigs(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]kubernetes.Config{
		"no API":              {},
		"no owner":            {API: &rest.Config{}},
		"a wrong owner":       {API: &rest.Config{}, Pods: manifest.Config{Owner: "a b"}},
		"too many requests":   {API: &rest.Config{}, Pods: manifest.Config{Owner: "a"}, Requests: 5000},
		"waits that run back": {API: &rest.Config{}, Pods: manifest.Config{Owner: "a"}, FirstWait: time.Minute},
	} {
		if _, err := kubernetes.New(cfg); err == nil || !strings.HasPrefix(err.Error(), "kubernetes: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := kubernetes.Connect("/nowhere/at/all", ""); err == nil || !strings.Contains(err.Error(), "/nowhere/at/all") {
		t.Errorf("a kubeconfig that is not there: %v", err)
	}
}
