package kubernetes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// listener keeps what a driver tells of one run, and acknowledges every end.
type listener struct {
	driver *kubernetes.Driver

	mu   sync.Mutex
	last driver.Status
	ends int
}

func (l *listener) Inventory(i driver.Inventory)         { l.Statuses(i.Runs) }
func (l *listener) HostsChanged([]driver.Host, []string) {}
func (l *listener) Disconnected(error)                   {}

func (l *listener) Statuses(statuses []driver.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range statuses {
		if l.last = s; s.State.Traits().Terminal {
			l.ends++
			go l.acknowledge(s.Token) // ends at once
		}
	}
}

func (l *listener) acknowledge(token driver.Token) {
	_ = l.driver.Acknowledge(context.Background(), []driver.Token{token}) // it may have ended
}

func (l *listener) state() (workload.RunState, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.State, l.ends
}

// transport is a way to the API server on which a test can do things.
type transport struct {
	http.RoundTripper
	around func(r *http.Request, next http.RoundTripper) (*http.Response, error)
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.around(r, t.RoundTripper)
}

// WrappedRoundTripper lets idle connections be closed.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// connect starts a driver whose requests pass through a function, and launches a run.
func connect(t *testing.T, api *rest.Config, around func(*http.Request, http.RoundTripper) (*http.Response, error), command ...string) *listener {
	t.Helper()
	cfg := config(api, &drivertest.Network{}, "us", "default")
	cfg.Limits.LateCreation = 50 * time.Millisecond
	atOnce(&cfg)
	cfg.API.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{next, around} })
	d, err := kubernetes.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{driver: d}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		d.Wait()
	})
	if err := d.Start(ctx, l); err != nil {
		t.Fatal(err)
	}
	launch := driver.Launch{
		Run: workload.RunID{Job: workload.JobID{1}, Generation: 1, Run: 1}, Host: "a", Command: command, Needs: map[string]int64{"cpu_milli": 10},
	}
	if err := d.Launch(ctx, []driver.Launch{launch}); err != nil {
		t.Fatal(err)
	}
	return l
}

func creates(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods")
}

var errCut = errors.New("the connection was cut")

// lose does a request and loses its answer.
func lose(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	response, err := next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, response.Body) // nobody hears it
	_ = response.Body.Close()
	return nil, errCut
}

// A pod whose creation was not answered, and that has had its whole life until that is clear, is not created again. It stays until it is: its name keeps
// another attempt from having its effect late.
func TestACreationThatIsAnsweredAfterTheEnd(t *testing.T) {
	t.Parallel()
	e, api := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	var mu sync.Mutex
	created, over := 0, make(chan struct{})
	l := connect(t, api, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !creates(r) {
			return next.RoundTrip(r)
		}
		mu.Lock()
		created++
		mu.Unlock()
		response, err := lose(r, next)
		<-over
		return response, err
	}, "exit", "0")
	until(t, "the end of the pod", func() bool { _, ends := l.state(); return ends > 0 })
	e.Do(func(c *cluster.Cluster) {
		if pods, err := c.List(cluster.Pods, "", 0); err != nil || len(pods) != 1 {
			t.Errorf("there are %d pods, %v", len(pods), err)
		}
	})
	close(over)
	until(t, "the end of the run", func() bool { return l.driver.Stats().Runs == 0 && l.driver.Stats().Calls == 0 })
	if state, ends := l.state(); state != workload.RunSucceeded || ends != 1 {
		t.Errorf("the run ended %d times, at last as %s", ends, state)
	}
	mu.Lock()
	defer mu.Unlock()
	if created != 1 {
		t.Errorf("the pod was created %d times", created)
	}
}

// A refusal after an attempt that was not answered may be because of the pod that this attempt made.
func TestARefusalBecauseOfTheFirstAttempt(t *testing.T) {
	t.Parallel()
	_, api := emulated(t, emulator.Config{Cluster: cluster.Config{Behave: behave}})
	client, err := typed.NewForConfig(api)
	if err != nil {
		t.Fatal(err)
	}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}
	if _, err := client.ResourceQuotas("default").Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var events []io.Closer // of watches
	attempts, resolved := 0, false
	l := connect(t, api, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case creates(r):
			if attempts++; attempts > 1 {
				break
			}
			for _, w := range events { // the watch must not be faster
				_ = w.Close() // nobody reads on
			}
			return lose(r, next)
		case r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, "s"): // one pod
			resolved = true
		case r.Method == http.MethodGet && attempts > 0 && !resolved: // nor a list
			return nil, errCut
		case r.URL.Query().Get("watch") != "":
			response, err := next.RoundTrip(r)
			if err == nil {
				events = append(events, response.Body)
			}
			return response, err
		}
		return next.RoundTrip(r)
	}, "sleep")
	until(t, "news of the run", func() bool { state, _ := l.state(); return state >= workload.RunRunning })
	if state, _ := l.state(); state != workload.RunRunning {
		t.Errorf("the run is %s", state)
	}
	mu.Lock()
	defer mu.Unlock()
	if attempts < 2 || !resolved {
		t.Errorf("there were %d attempts, and the pod was looked up: %v", attempts, resolved)
	}
}
