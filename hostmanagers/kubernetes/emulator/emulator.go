package emulator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
)

// Clock is where an emulator's time comes from.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own, unless stop comes before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

func (wallClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// Processes runs what containers ask for. Start and Signal must not block and must not call the emulator back from within.
type Processes interface {
	// Start begins a process; the emulator is told by Emulator.Do with the cluster's Started and Ended.
	Start(cluster.Start)
	Signal(cluster.Signal)
	// Log reads the output of a process, and with follow waits for more until its end.
	Log(ctx context.Context, process string, follow bool) (io.ReadCloser, error)
}

// Config says what an emulator serves.
type Config struct {
	Cluster cluster.Config
	// Clock is the time. Default: this machine's.
	Clock Clock
	// Processes runs containers. It must be set if Cluster.Behave is not, and only then.
	Processes Processes
	// Faults is asked of every request before anything is done. It may be called from many goroutines. Default: none.
	Faults func(*http.Request) Fault
}

// Fault is what goes wrong with a request. Zero: nothing.
type Fault struct {
	Delay time.Duration // before anything is done
	// Code answers with an error of the API: 409, 410, 429, 500, 503 or 504. Late does the request first, so that its outcome is unknown to who asked.
	Code       int
	Late       bool
	RetryAfter int  // seconds, with 429 and 503
	Drop       bool // cuts the connection instead of answering; with Late, after the request was done
}

// Emulator is one emulated API server with its cluster.
type Emulator struct {
	clock     Clock
	processes Processes
	faults    func(*http.Request) Fault
	server    *http.Server
	gate      *gate

	mu      sync.Mutex
	cluster *cluster.Cluster
	bells   map[*cluster.Resource]*bell
	cut     chan struct{} // closed to cut all watches
	wake    func() bool   // stops the wake-up that is arranged
	wakeAt  time.Time
	closed  bool

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// bell tells watches of a resource that there is something new.
type bell struct {
	revision int64
	rung     chan struct{}
}

// New starts an emulator that serves nobody yet.
func New(cfg Config) (*Emulator, error) {
	if (cfg.Cluster.Behave == nil) == (cfg.Processes == nil) {
		return nil, errors.New("kubernetes emulator: set either Cluster.Behave, for containers in virtual time, or Processes, for real ones")
	}
	if cfg.Clock == nil {
		cfg.Clock = wallClock{}
	}
	e := &Emulator{
		clock: cfg.Clock, processes: cfg.Processes, faults: cfg.Faults, cluster: cluster.New(cfg.Cluster, cfg.Clock.Now()),
		bells: map[*cluster.Resource]*bell{}, cut: make(chan struct{}), gate: &gate{open: map[*gated]struct{}{}},
	}
	for _, r := range cluster.Resources {
		e.bells[r] = &bell{rung: make(chan struct{})}
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return e.ctx }}
	e.Do(func(*cluster.Cluster) {})
	return e, nil
}

// Do calls f with the cluster, at the present time, and carries out what comes of it. F must not keep the cluster.
func (e *Emulator) Do(f func(*cluster.Cluster)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.do(f)
}

func (e *Emulator) do(f func(*cluster.Cluster)) {
	now := e.clock.Now()
	e.cluster.Advance(now)
	f(e.cluster)
	e.cluster.Advance(now) // what follows at once
	for _, effect := range e.cluster.TakeEffects() {
		switch effect := effect.(type) {
		case cluster.Start:
			e.processes.Start(effect)
		case cluster.Signal:
			e.processes.Signal(effect)
		}
	}
	for r, b := range e.bells {
		if revision := e.cluster.ResourceRevision(r); revision != b.revision {
			b.revision = revision
			close(b.rung)
			b.rung = make(chan struct{})
		}
	}
	e.arrange()
}

// arrange sees to it that the cluster hears of the time when it has something to do.
func (e *Emulator) arrange() {
	next, ok := e.cluster.Next()
	if !ok || e.closed || next.Equal(e.wakeAt) {
		return
	}
	if e.wake != nil {
		e.wake()
	}
	e.wakeAt = next
	e.wake = e.clock.AfterFunc(next.Sub(e.clock.Now()), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.closed {
			return
		}
		if e.wakeAt.Equal(next) {
			e.wakeAt = time.Time{}
		}
		e.do(func(*cluster.Cluster) {})
	})
}

// SetFaults changes what goes wrong from now on.
func (e *Emulator) SetFaults(faults func(*http.Request) Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = faults
}

// CutWatches breaks the connection of every watch in the middle, as a network does. A fault to inject.
func (e *Emulator) CutWatches() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.cut)
	e.cut = make(chan struct{})
}

// SetDown says whether the API server is gone: every connection is cut, and new ones end at once, until it is back with all that it knew. Nodes
// and their kubelets go on, and what they have to say is done as if they had waited. A fault to inject.
func (e *Emulator) SetDown(down bool) { e.gate.set(down) }

// Serve takes connections until the listener or the emulator is closed.
func (e *Emulator) Serve(l net.Listener) error {
	if err := e.server.Serve(&gatedListener{Listener: l, gate: e.gate}); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("kubernetes emulator: %w", err)
	}
	return nil
}

// ServeHTTP answers one request.
func (e *Emulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.work.Add(1)
	faults := e.faults
	e.mu.Unlock()
	defer e.work.Done()
	if faults != nil {
		if fault := faults(r); fault != (Fault{}) {
			e.fail(w, r, fault)
			return
		}
	}
	e.route(w, r)
}

// fail answers a request as a fault says.
func (e *Emulator) fail(w http.ResponseWriter, r *http.Request, fault Fault) {
	if fault.Delay > 0 {
		// net/http notices that who asked is gone only once the body was read; what nobody waits for any more is not done. A body that is too large stays
		// too large, and is refused in its turn.
		raw, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		if err != nil || !e.sleep(r.Context(), fault.Delay) {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(raw))
	}
	if fault.Code == 0 && !fault.Drop {
		e.route(w, r)
		return
	}
	if fault.Late {
		e.route(&discard{header: http.Header{}}, r)
	}
	if fault.Drop {
		panic(http.ErrAbortHandler) // net/http's way to cut a connection
	}
	if fault.RetryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(fault.RetryAfter))
	}
	e.refuse(w, r, faultStatus(fault))
}

func (e *Emulator) sleep(ctx context.Context, d time.Duration) bool {
	due := make(chan struct{})
	stop := e.clock.AfterFunc(d, func() { close(due) })
	select {
	case <-due:
		return true
	case <-ctx.Done():
		stop()
		return false
	}
}

// discard is where an answer goes that nobody gets.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// Close cuts all connections and waits for their goroutines. Processes that run are the caller's.
func (e *Emulator) Close() {
	e.mu.Lock()
	e.closed = true
	if e.wake != nil {
		e.wake()
	}
	e.mu.Unlock()
	e.cancel()
	_ = e.server.Close() // listeners may have been closed already
	e.work.Wait()
}

// Kubeconfig is what kubectl needs to reach the emulator at an address (host:port).
func Kubeconfig(address string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: emulated, cluster: {server: "http://%s"}}]
users: [{name: anybody, user: {}}]
contexts: [{name: emulated, context: {cluster: emulated, user: anybody, namespace: default}}]
current-context: emulated
`, address)
}

// process is the newest process of a container, or the one before.
func (e *Emulator) process(uid types.UID, p *corev1.Pod, container string, previous bool) string {
	var process string
	e.Do(func(c *cluster.Cluster) {
		process = c.Process(uid, cluster.Key{Namespace: p.Namespace, Name: p.Name}, container, previous)
	})
	return process
}
