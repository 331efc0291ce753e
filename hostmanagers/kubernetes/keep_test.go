package kubernetes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
)

// kept counts the pods of ended runs by their numbers.
func (w *world) kept(from, to int) (n int) {
	pods := w.pods()
	for i := from; i < to; i++ {
		if p := pods["default/"+id(i).String()]; p != nil && p.Status.Phase == corev1.PodSucceeded {
			n++
		}
	}
	return n
}

// Unless told otherwise a driver keeps the pods of the newest thousand ended runs for ten minutes, over its own restarts. A run's output can be read as long
// as its pod is there.
func TestEndedPodsAreKept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.launch(0, 10, exits)
		w.pass(5 * time.Minute)
		if n := w.kept(0, 10); n != 10 || w.sink.count(0, 10, workload.RunSucceeded) != 10 {
			t.Fatalf("of 10 runs %d are kept", n)
		}
		read := func(i int) error {
			r, err := w.driver.ReadLog(t.Context(), id(i), driver.LogRequest{Follow: true})
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				_ = r.Close() // it was only read
			}
			return err
		}
		if err := read(3); err != nil {
			t.Errorf("the output of a kept run: %v", err)
		}
		w.end()
		inventory := w.start(func(c *kubernetes.Config) { c.Pods.Epoch = 2 })
		w.launch(10, 20, exits)
		w.pass(4 * time.Minute)
		if d := w.driver.Describe(); d.Details["pods kept for their output"] != "20" || len(inventory.Runs) != 10 {
			t.Errorf("after a restart it is described as %v; the inventory had %d runs", d.Details, len(inventory.Runs))
		}
		if err := read(3); err != nil {
			t.Errorf("the output of a kept run after a restart: %v", err)
		}
		w.pass(2 * time.Minute)
		if a, b := w.kept(0, 10), w.kept(10, 20); a != 0 || b != 10 {
			t.Errorf("after 11 minutes %d are kept, and after 6 %d", a, b)
		}
		if err := read(3); !errors.Is(err, driver.ErrUnknownRun) {
			t.Errorf("the output of a run that is not kept any more: %v", err)
		}
		w.launch(20, 1020, exits)
		w.pass(time.Minute)
		if a, b := w.kept(10, 20), w.kept(20, 1020); a != 0 || b != 1000 {
			t.Errorf("of the newest thousand %d are kept, and %d older ones", b, a)
		}
		w.pass(10 * time.Minute)
		if n := len(w.pods()); n != 0 {
			t.Errorf("%d pods are left", n)
		}
		if s := w.driver.Stats(); s.Runs != 0 || s.Kept != 0 || s.Calls != 0 {
			t.Errorf("the driver still has %+v", s)
		}
	})
}

// Launches do not wait behind the deletions of what has ended before.
func TestDeletionsLeaveRoomForLaunches(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const old, fresh = 200, 100
		w.start(func(c *kubernetes.Config) { atOnce(c); c.Requests = 4 })
		w.sink.setDeaf(true)
		w.launch(0, old, exits)
		w.pass(time.Minute)
		w.breaks(func(_ *http.Request, kind string) emulator.Fault {
			if kind == "POST pods" || kind == "DELETE pods" {
				return emulator.Fault{Delay: time.Second}
			}
			return emulator.Fault{}
		})
		var ends []driver.Token
		for i := range old {
			ends = append(ends, w.sink.status(id(i)).Token)
		}
		if err := w.driver.Acknowledge(t.Context(), ends); err != nil {
			t.Fatal(err)
		}
		w.launch(old, old+fresh, nil)
		w.pass(time.Minute) // in which 240 requests are made
		if n := w.sink.count(old, old+fresh, workload.RunRunning); n != fresh {
			t.Errorf("of %d runs %d have begun", fresh, n)
		}
		w.pass(time.Minute)
		if n := w.kept(0, old); n != 0 {
			t.Errorf("%d ended pods are left", n)
		}
	})
}

// A namespace whose quota counts objects takes new pods though it is full of kept ones.
func TestKeptPodsMakeRoomInAQuota(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(nil)
		w.emulator.Do(func(c *cluster.Cluster) {
			quota := &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Name: "objects"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/pods": resource.MustParse("5")}},
			}
			quotas := cluster.Resources[slices.IndexFunc(cluster.Resources, func(r *cluster.Resource) bool { return r.Resource == "resourcequotas" })]
			if _, err := c.Create(quotas, "default", quota, false); err != nil {
				t.Fatal(err)
			}
		})
		w.launch(0, 5, exits)
		w.pass(time.Minute)
		w.launch(5, 6, nil)
		w.pass(time.Second)
		if s := w.expect(5, workload.RunLost, workload.ReasonLaunchRefused); w.kept(0, 5) != 0 {
			t.Errorf("%d are kept, and a run was refused: %s", w.kept(0, 5), s.Message)
		}
		w.launch(6, 7, nil) // as its cell tries again
		w.pass(time.Second)
		w.expect(6, workload.RunRunning, 0)
	})
}

// A real API server keeps what is to be kept, over a restart of the driver, and no more.
func TestRealServerKeepsEndedPods(t *testing.T) {
	t.Parallel()
	path := os.Getenv("PACELINE_KUBECONFIG")
	if path == "" || os.Getenv("PACELINE_CONTROLPLANE") == "" {
		t.Skip("needs a control plane of its own: make conformance-kubernetes")
	}
	api, err := kubernetes.Connect(path, "")
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, api)
	const space, runs, most = "driver-keeps", 12, 5
	prepare(t, client, space)
	begin := func(limits mirror.Config) (*kubernetes.Driver, *recorder, func()) {
		t.Helper()
		cfg := config(api, &drivertest.Network{}, space, space)
		cfg.Limits = limits
		d, err := kubernetes.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		sink := &recorder{ack: d, last: map[workload.RunID]driver.Status{}, ends: map[workload.RunID]int{}}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		stop := sync.OnceFunc(func() { cancel(); d.Wait() })
		t.Cleanup(stop)
		if err := d.Start(ctx, sink); err != nil {
			t.Fatal(err)
		}
		return d, sink, stop
	}
	pods := func() int {
		list, err := client.Pods(space).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	d, sink, stop := begin(mirror.Config{})
	for i := range runs {
		l := driver.Launch{Run: id(i), Host: space, Command: []string{"true"}, Needs: map[string]int64{"cpu_milli": 10}}
		patched(&l, `{"metadata": {"annotations": {"test.run-for": "10ms"}}}`)
		if err := d.Launch(t.Context(), []driver.Launch{l}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the ends of all runs", func() bool { return sink.count(0, runs, workload.RunSucceeded) == runs && d.Stats().Kept == runs })
	if n := pods(); n != runs {
		t.Errorf("of %d pods %d are kept", runs, n)
	}
	stop()
	d, sink, stop = begin(mirror.Config{KeepEndedPods: most})
	until(t, "the end of the oldest", func() bool { return d.Stats().Kept == most && d.Stats().Runs == most && pods() == most })
	if n := sink.count(0, runs, workload.RunSucceeded); n != runs {
		t.Errorf("of %d ends %d are told again", runs, n)
	}
	stop()
	d, _, _ = begin(mirror.Config{KeepEnded: time.Second})
	until(t, "the end of all that was kept", func() bool { return d.Stats().Runs == 0 && pods() == 0 })
}
