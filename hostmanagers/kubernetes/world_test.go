package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/manifest"
)

// world is an emulated cluster with a driver on it, in a bubble of virtual time. They are joined by pipes.
type world struct {
	t        *testing.T
	emulator *emulator.Emulator
	served   sync.WaitGroup

	mu       sync.Mutex
	down     bool // connections are refused
	listener *pipes
	conns    []net.Conn
	requests map[string]int // by method and kind of path, such as "POST pods"
	fault    func(r *http.Request, kind string) emulator.Fault

	driver *kubernetes.Driver
	stop   context.CancelFunc
	sink   *recorder
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, requests: map[string]int{}}
		w.emulator = w.newEmulator("")
		w.serve()
		defer func() {
			w.end()
			w.emulator.Close()
			w.cut()
			w.served.Wait()
		}()
		test(t, w)
	})
}

func (w *world) newEmulator(uid string) *emulator.Emulator {
	capacity, err := cluster.Quantities(map[string]string{"cpu": "400", "memory": "8Gi", "pods": "5000"})
	if err != nil {
		w.t.Fatal(err)
	}
	e, err := emulator.New(emulator.Config{
		Cluster: cluster.Config{UID: uid, Behave: behave, QuietKubelets: true, Nodes: []cluster.NodeConfig{{Name: "a", Capacity: capacity}, {Name: "b", Capacity: capacity}}},
		Faults:  w.faults,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// kindOf names a request by its method and what it is about.
func kindOf(r *http.Request) string {
	kind := "nodes"
	switch {
	case strings.Contains(r.URL.Path, "/pods"):
		kind = "pods"
	case strings.HasSuffix(r.URL.Path, "/namespaces"):
		kind = "namespaces"
	}
	verb := r.Method
	switch {
	case r.URL.Query().Has("sendInitialEvents"):
		verb = "LIST" // by the watch that follows on it
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		verb = "WATCH"
	case r.URL.Query().Get("limit") == "1":
		verb = "LOOK"
	case verb == http.MethodGet && (strings.HasSuffix(r.URL.Path, "/pods") || strings.HasSuffix(r.URL.Path, "/nodes")):
		verb = "LIST"
	}
	return verb + " " + kind
}

func (w *world) faults(r *http.Request) emulator.Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := kindOf(r)
	w.requests[kind]++
	if w.fault == nil {
		return emulator.Fault{}
	}
	return w.fault(r, kind)
}

// breaks has requests go wrong from now on; nil: they do not.
func (w *world) breaks(fault func(r *http.Request, kind string) emulator.Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = fault
}

// takeCounts returns how many requests there were since the last call.
func (w *world) takeCounts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.requests
	w.requests = map[string]int{}
	return out
}

// pipes is a listener for connections that are made in this process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (w *world) serve() {
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	w.mu.Lock()
	w.listener = l
	w.mu.Unlock()
	w.served.Go(func() {
		if err := w.emulator.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
			w.t.Error(err)
		}
	})
}

func (w *world) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	w.mu.Lock()
	down, l := w.down, w.listener
	w.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	mine, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, mine)
	return mine, nil
}

// cut breaks all connections.
func (w *world) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close() // some have been closed before
	}
	w.conns = nil
}

func (w *world) config(change func(*kubernetes.Config)) kubernetes.Config {
	cfg := kubernetes.Config{
		API:  &rest.Config{Host: "http://emulated", Dial: w.dial},
		Pods: manifest.Config{Owner: "us", Epoch: 1, Namespace: "default", DefaultImage: "none"},
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// start connects a driver and returns the first inventory.
func (w *world) start(change func(*kubernetes.Config)) driver.Inventory {
	w.t.Helper()
	d, err := kubernetes.New(w.config(change))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	w.driver, w.stop, w.sink = d, cancel, &recorder{ack: d, last: map[workload.RunID]driver.Status{}, ends: map[workload.RunID]int{}}
	if err := d.Start(ctx, w.sink); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	return w.sink.inventory()
}

// end stops the driver.
func (w *world) end() {
	if w.driver != nil {
		w.stop()
		w.driver.Wait()
		w.driver = nil
	}
}

func id(i int) workload.RunID {
	return workload.RunID{Job: workload.JobID{7}, Instance: uint32(i), Generation: 1, Run: 1}
}

// launch launches runs by their numbers.
func (w *world) launch(from, to int, change func(*driver.Launch)) {
	w.t.Helper()
	var list []driver.Launch
	for i := from; i < to; i++ {
		l := driver.Launch{Run: id(i), Host: "a", Pool: "/eng", Command: []string{"sleep"}, Needs: map[string]int64{"cpu_milli": 10}, KillGrace: time.Second}
		if change != nil {
			change(&l)
		}
		list = append(list, l)
	}
	if err := w.driver.Launch(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time go by, and what happens in it come to rest.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pods are those of the cluster, by namespace and name.
func (w *world) pods() map[string]*corev1.Pod {
	out := map[string]*corev1.Pod{}
	w.emulator.Do(func(c *cluster.Cluster) {
		list, err := c.List(cluster.Pods, "", 0)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, o := range list {
			if p, ok := o.(*corev1.Pod); ok {
				out[p.Namespace+"/"+p.Name] = p
			}
		}
	})
	return out
}

func (w *world) expect(i int, state workload.RunState, reason workload.Reason) driver.Status {
	w.t.Helper()
	s := w.sink.status(id(i))
	if s.State != state || s.Reason != reason {
		w.t.Fatalf("run %d is %s %s (%+v), want %s %s", i, s.State, s.Reason, s, state, reason)
	}
	return s
}

// recorder is a sink that acknowledges what it is told, as a cell does, unless it is deaf.
type recorder struct {
	ack driver.Driver

	mu          sync.Mutex
	deaf        bool
	inventories []driver.Inventory
	lost        []error
	last        map[workload.RunID]driver.Status
	ends        map[workload.RunID]int // ends under different tokens
}

func (r *recorder) Inventory(i driver.Inventory) {
	r.mu.Lock()
	r.inventories = append(r.inventories, i)
	r.mu.Unlock()
	r.Statuses(i.Runs)
}

func (r *recorder) HostsChanged([]driver.Host, []string) {}

func (r *recorder) Disconnected(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = append(r.lost, reason)
}

func (r *recorder) Statuses(list []driver.Status) {
	r.mu.Lock()
	var tokens []driver.Token
	for _, s := range list {
		if old := r.last[s.Run]; s.State.Traits().Terminal && s.Token != old.Token {
			r.ends[s.Run]++
		}
		r.last[s.Run] = s
		tokens = append(tokens, s.Token)
	}
	deaf := r.deaf
	r.mu.Unlock()
	if !deaf && len(tokens) > 0 {
		_ = r.ack.Acknowledge(context.Background(), tokens) // fails once the driver has ended
	}
}

func (r *recorder) inventory() driver.Inventory {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inventories[len(r.inventories)-1]
}

func (r *recorder) status(run workload.RunID) driver.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[run]
}

// count counts the runs of numbers that are in a state.
func (r *recorder) count(from, to int, state workload.RunState) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := from; i < to; i++ {
		if r.last[id(i)].State == state {
			n++
		}
	}
	return n
}

func (w *world) createNamespace(name string) (err error) {
	w.emulator.Do(func(c *cluster.Cluster) {
		_, err = c.Create(cluster.Namespaces, "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
	})
	return err
}

// away has the API server away or there.
func (w *world) away(down bool) {
	w.mu.Lock()
	w.down = down
	w.mu.Unlock()
	if down {
		w.cut()
	}
}

func (r *recorder) setDeaf(deaf bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaf = deaf
}

func (r *recorder) told() (inventories, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inventories), len(r.lost)
}

// twice lists runs that ended more than once.
func (r *recorder) twice() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for run, n := range r.ends {
		if n > 1 {
			list = append(list, fmt.Sprintf("%s ended %d times", run, n))
		}
	}
	return list
}
