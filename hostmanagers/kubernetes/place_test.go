package kubernetes_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
)

// place remembers which cluster it is, as a cell does, and may fail to.
type place struct {
	mu     sync.Mutex
	known  string
	broken error
}

func (p *place) Known() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known, p.broken
}

func (p *place) Recognize(uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = uid
	return p.broken
}

func (p *place) breaks(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = err
}

// put has another emulator serve at the address of this one, which is returned.
func (w *world) put(next *emulator.Emulator) (was *emulator.Emulator) {
	w.away(true)
	w.mu.Lock()
	_ = w.listener.Close() // it ends no emulator
	w.mu.Unlock()
	was, w.emulator = w.emulator, next
	w.serve()
	w.away(false)
	return was
}

// Another cluster in a cluster's place is not taken for it: nothing of it is believed, nothing is started there, and nothing counts as lost. With the right one
// back all goes on.
func TestAnotherCluster(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		where := &place{}
		change := func(c *kubernetes.Config) { c.Place = where }
		w.start(change)
		if where.known == "" || w.driver.Describe().Details["UID of kube-system"] != where.known {
			t.Errorf("the cluster is known as %q, and described as %v", where.known, w.driver.Describe())
		}
		w.launch(0, 3, nil)
		w.pass(time.Second)
		theirs := w.newEmulator("theirs")
		ours := w.put(theirs)
		w.takeCounts()
		w.pass(time.Minute)
		told := func(err error) {
			t.Helper()
			if !errors.Is(err, kubernetes.ErrOtherCluster) || !strings.Contains(err.Error(), "UID theirs") || !strings.Contains(err.Error(), where.known) {
				t.Errorf("of another cluster it is told: %v", err)
			}
		}
		told(w.driver.Describe().Err)
		told(w.driver.Leave(t.Context()))
		if n := w.takeCounts(); n["LIST pods"]+n["LIST nodes"]+n["POST pods"]+n["DELETE pods"] > 0 {
			t.Errorf("the other cluster was asked %v", n)
		}
		if n := w.sink.count(0, 3, workload.RunRunning); n != 3 {
			t.Errorf("%d of 3 runs count as running", n)
		}
		w.end()

		ctx, cancel := context.WithCancel(t.Context()) // a new connection, as after an update of the settings
		d, err := kubernetes.New(w.config(change))
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- d.Start(ctx, &recorder{ack: d}) }()
		w.pass(time.Minute)
		told(d.Describe().Err)
		cancel()
		told(<-started)
		d.Wait()

		theirs = w.put(ours)
		theirs.Close()
		if inventory := w.start(change); len(inventory.Runs) != 3 {
			t.Errorf("with the right cluster back there are %d runs", len(inventory.Runs))
		}
	})
}

// Where nobody may ask which cluster it is, or what it was cannot be kept, that is told; the first goes on without.
func TestAClusterThatCannotBeRecognized(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		where := &place{}
		change := func(c *kubernetes.Config) { c.Place = where }
		w.breaks(func(r *http.Request, _ string) emulator.Fault {
			if strings.HasSuffix(r.URL.Path, "/namespaces/kube-system") {
				return emulator.Fault{Code: http.StatusForbidden}
			}
			return emulator.Fault{}
		})
		if inventory := w.start(change); len(inventory.Hosts) != 2 {
			t.Errorf("without the right to ask there are %d hosts", len(inventory.Hosts))
		}
		if said := w.driver.Describe().Details["UID of kube-system"]; !strings.Contains(said, "not known") || where.known != "" {
			t.Errorf("it is described as %q", said)
		}
		w.end()
		w.breaks(nil)

		where.breaks(errors.New("the disk is full"))
		ctx, cancel := context.WithCancel(t.Context())
		d, err := kubernetes.New(w.config(change))
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- d.Start(ctx, &recorder{ack: d}) }()
		w.pass(time.Minute)
		if err := d.Describe().Err; err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("what is not kept is told as %v", err)
		}
		where.breaks(nil)
		w.pass(time.Minute)
		synctest.Wait()
		if err := <-started; err != nil {
			t.Error(err)
		}
		cancel()
		d.Wait()
	})
}

// One bad answer to the question which cluster it is does not keep a cell from deleting its pods.
func TestLeaveAsksAgainWhichClusterItIs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(func(c *kubernetes.Config) { c.Place = &place{} })
		w.launch(0, 2, nil)
		w.pass(time.Second)
		asked := 0
		w.breaks(func(r *http.Request, _ string) emulator.Fault {
			if !strings.HasSuffix(r.URL.Path, "/namespaces/kube-system") {
				return emulator.Fault{}
			}
			if asked++; asked <= 2 {
				return emulator.Fault{Code: http.StatusInternalServerError}
			}
			return emulator.Fault{}
		})
		if err := w.driver.Leave(t.Context()); err != nil || asked < 3 {
			t.Errorf("leaving, after it asked %d times: %v", asked, err)
		}
		if n := len(w.pods()); n != 0 {
			t.Errorf("%d pods are left", n)
		}
	})
}
