package kubefaults_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/paceline-sched/paceline/conformance/controlplane"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// gate is a way to an API server that can be shut.
type gate struct {
	next http.RoundTripper

	mu   sync.Mutex
	shut context.Context //nolint:containedctx // of all requests under way
	end  context.CancelFunc
}

func (g *gate) WrappedRoundTripper() http.RoundTripper { return g.next }

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut.Err() != nil {
		return nil, syscall.ECONNREFUSED
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(shut, cancel)
	context.AfterFunc(ctx, func() { stop() })
	response, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
	}
	return response, err //nolint:wrapcheck // it stands for the one inside
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.end = context.WithCancel(context.Background())
}

// silentSink wants to hear nothing.
type silentSink struct{}

func (silentSink) Inventory(driver.Inventory)           {}
func (silentSink) HostsChanged([]driver.Host, []string) {}
func (silentSink) Statuses([]driver.Status)             {}
func (silentSink) Disconnected(error)                   {}

// TestRestoredEtcd has a real etcd restored from a backup, and looked at only when its API server has come further than it was: what is there is known, and nothing else.
func TestRestoredEtcd(t *testing.T) { //nolint:paralleltest // see below
	if !*onReal { // and not beside TestReal, whose plane is under load
		t.Skip("wants a control plane of its own: make faults-kubernetes")
	}
	if !controlplane.Cached(controlplane.Etcd, controlplane.APIServer) {
		t.Skip("the programs of a control plane are not built: make conformance-kubernetes builds them")
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Config{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := &restored{t: t, plane: plane}
	for i := range 4 {
		r.create(fmt.Sprint("before-", i))
	}
	d, g := r.connect()
	r.await(d, 4)
	backup := filepath.Join(t.TempDir(), "backup")
	if err := plane.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r.create(fmt.Sprint("after-", i))
	}
	r.await(d, 7)
	r.ask(http.MethodDelete, "/api/v1/namespaces/default/pods/before-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, nil)
	r.await(d, 6)
	r.create("last")
	r.await(d, 7)
	was := r.version()

	g.end()
	if err := plane.Restore(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	if now := r.version(); now >= was {
		t.Fatalf("it was at %d, and is at %d once it was restored: a watch could not be misled", was, now)
	}
	r.create("anew")
	for i := 0; r.version() <= was; i++ {
		r.ask(http.MethodPost, "/api/v1/namespaces", corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("written-", i)}}, nil)
	}
	g.open()
	r.await(d, 5)
}

// restored is a plane that is asked as its administrator.
type restored struct {
	t     *testing.T
	plane *controlplane.Plane
}

func (r *restored) ask(method, path string, body, into any) {
	r.t.Helper()
	if err := r.plane.Ask(r.t.Context(), method, path, body, into); err != nil {
		r.t.Fatal(err)
	}
}

// create makes a pod of somebody's, which is on a node.
func (r *restored) create(name string) {
	r.t.Helper()
	r.ask(http.MethodPost, "/api/v1/namespaces/default/pods", corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, nil)
}

// version is how far the API server has come.
func (r *restored) version() int {
	r.t.Helper()
	var list metav1.PartialObjectMetadataList
	r.ask(http.MethodGet, "/api/v1/pods?limit=1", nil, &list)
	n, err := strconv.Atoi(list.ResourceVersion)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// connect starts a driver behind a gate that is open. It ends with the test.
func (r *restored) connect() (*kubernetes.Driver, *gate) {
	r.t.Helper()
	api, err := kubernetes.Connect(r.plane.Kubeconfig(), "")
	if err != nil {
		r.t.Fatal(err)
	}
	g := &gate{}
	g.open()
	api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		g.next = next
		return g
	})
	d, err := kubernetes.New(kubernetes.Config{API: api, Pods: manifest.Config{Owner: "us", Epoch: 1}, Drain: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(func() {
		cancel()
		d.Wait()
	})
	if err := d.Start(ctx, silentSink{}); err != nil {
		r.t.Fatal(err)
	}
	return d, g
}

// await waits until the driver knows of so many pods of others.
func (r *restored) await(d *kubernetes.Driver, others int) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); d.Stats().Foreign != others; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("it knows of %+v, want %d pods of others; it says %v", d.Stats(), others, d.Describe().Err)
		}
	}
}
