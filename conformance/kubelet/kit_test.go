package kubelet_test

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
)

// kit is what the kit of all drivers needs of a cluster with kubelets. Each check has a namespace of its own.
func kit(t testing.TB, w *world, space string) drivertest.Cluster {
	t.Helper()
	if _, err := w.client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n := &drivertest.Network{}
	t.Cleanup(n.Cut) // also what was being dialled when the last driver ended
	cfg := (&stage{world: w, space: space}).config()
	cfg.API = rest.CopyConfig(cfg.API)
	cfg.API.Dial = n.Dial
	in := func(l *driver.Launch, words ...string) {
		l.Command, l.Execution = does(words...), &execution.Spec{Main: execution.Container{Image: controlplane.TaskImage}}
	}
	health := func(l *driver.Launch, file string) {
		l.Health = &workload.HealthCheck{Exec: does("exists", file), Interval: time.Second, Timeout: 10 * time.Second, FailureThreshold: 2}
	}
	return drivertest.Cluster{
		Connect: func() (driver.Driver, error) { return kubernetes.New(cfg) },
		Cut:     n.Cut, Mend: n.Mend, Patience: patience, Firm: true, Keeps: true,
		Work: drivertest.Work{
			Exit:    func(l *driver.Launch, code int32) { in(l, "exit", strconv.Itoa(int(code))) },
			Forever: func(l *driver.Launch) { in(l, "sleep") },
			Deaf: func(l *driver.Launch) {
				in(l, "deafen", "then", "write", "/tmp/deaf", "", "then", "deaf")
				health(l, "/tmp/deaf")
			},
			Bad: func(l *driver.Launch) {
				in(l, "sleep")
				l.Execution.Main.Image, l.Execution.Main.Pull = "paceline.test/missing:1", execution.PullNever
			},
			Healthy: func(l *driver.Launch) { in(l, "write", "/tmp/well", "", "then", "sleep"); health(l, "/tmp/well") },
			Sick:    func(l *driver.Launch) { in(l, "sleep"); health(l, "/tmp/well") },
			Print:   func(l *driver.Launch, text string) { in(l, "print", text) },
		},
	}
}
