package kubelet_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

const (
	// liveImage has a shell; PACELINE_IMAGE names another one, for clusters that get none from there.
	liveImage = "busybox:1.37"
	// livePatience bounds the waits on a cluster whose nodes may have to pull it first.
	livePatience = 5 * time.Minute
)

// TestLive runs the kit of all drivers on a cluster that somebody uses: in namespaces of its own, which are gone when it ends, and on the cluster's own nodes, which stay as they are.
func TestLive(t *testing.T) {
	path := os.Getenv("PACELINE_KUBECONFIG")
	if path == "" || os.Getenv("PACELINE_CONTROLPLANE") != "" {
		t.Skip("needs a live cluster: make conformance-kubernetes KUBECONFIG=...")
	}
	api, err := kubernetes.Connect(path, "")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, api, nil)
	own := strings.ToLower(rand.Text()[:6])
	for i, check := range drivertest.Checks() {
		t.Run(check.Name, func(t *testing.T) {
			if check.Name != "AfterTheEndNothingIsTaken" { // which counts goroutines
				t.Parallel()
			}
			check.Run(t, liveKit(t, w, fmt.Sprintf("paceline-conformance-%s-%d", own, i)))
		})
	}
}

// liveKit is what the kit needs of a live cluster, whose containers speak to a shell.
func liveKit(t testing.TB, w *world, space string) drivertest.Cluster {
	t.Helper()
	if _, err := w.client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeNamespace(t, w, space) })
	n := &drivertest.Network{}
	t.Cleanup(n.Cut) // also what was being dialled when the last driver ended
	cfg := kubernetes.Config{
		API: rest.CopyConfig(w.api), Pods: manifest.Config{Owner: space, Epoch: 1, Namespace: space},
		Limits: mirror.Config{StartGrace: 10 * time.Second}, FirstWait: 10 * time.Millisecond, LongestWait: 200 * time.Millisecond, Drain: livePatience,
	}
	cfg.API.Dial = n.Dial
	says := func(l *driver.Launch, script string) {
		image := cmp.Or(os.Getenv("PACELINE_IMAGE"), liveImage)
		l.Command, l.Execution = []string{"sh", "-c", script}, &execution.Spec{Main: execution.Container{Image: image}}
	}
	checked := func(l *driver.Launch, file string) {
		l.Health = &workload.HealthCheck{Exec: []string{"sh", "-c", "test -e " + file}, Interval: time.Second, Timeout: 10 * time.Second, FailureThreshold: 2}
	}
	const forever = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
	return drivertest.Cluster{
		Connect: func() (driver.Driver, error) { return kubernetes.New(cfg) },
		Cut:     n.Cut, Mend: n.Mend, Patience: livePatience, Firm: true, Keeps: true,
		Work: drivertest.Work{
			Exit:    func(l *driver.Launch, code int32) { says(l, fmt.Sprintf("exit %d", code)) },
			Forever: func(l *driver.Launch) { says(l, forever) },
			Deaf: func(l *driver.Launch) {
				says(l, "trap '' TERM; : > /deaf; while :; do sleep 1; done")
				checked(l, "/deaf")
			},
			Bad: func(l *driver.Launch) {
				says(l, forever)
				l.Execution.Main.Image, l.Execution.Main.Pull = "paceline.test/missing:1", execution.PullNever
			},
			Healthy: func(l *driver.Launch) { says(l, ": > /well; "+forever); checked(l, "/well") },
			// One that ended with 0 when its kubelet asks it to would count as done.
			Sick:  func(l *driver.Launch) { says(l, "while :; do sleep 0.1; done"); checked(l, "/well") },
			Print: func(l *driver.Launch, text string) { says(l, "printf '%s' '"+text+"'") },
		},
	}
}

// removeNamespace removes a namespace and waits until it is gone, with all that was in it.
func removeNamespace(t testing.TB, w *world, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), livePatience)
	defer cancel()
	if err := w.client.Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("namespace %s stays: %v", name, err)
		return
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := w.client.Namespaces().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Errorf("namespace %s was deleted, and is not gone after %s", name, livePatience)
			return
		}
	}
}
