package master_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"
	"go.uber.org/goleak"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is some machines that reach one another by name, in memory, so that time may be virtual.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	dialled   int
	// fault is asked for every connection that is opened: what it returns is used instead.
	fault func(net.Conn) net.Conn
}

func newNetwork() *network { return &network{listeners: map[string]*listener{}} }

// dial connects to who listens at an address.
func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.dialled++
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("%s: connection refused", address)
	}
	here, there := net.Pipe()
	select {
	case l.calls <- there:
		if n.fault != nil {
			return n.fault(here), nil
		}
		return here, nil
	case <-l.closed:
		return nil, fmt.Errorf("%s: connection refused", address)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) listen(address string) *listener {
	l := &listener{calls: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = l
	return l
}

// dials says how many connections were tried.
func (n *network) dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialled
}

// short is a connection that breaks after so many bytes were read.
type short struct {
	net.Conn
	left int
}

func (s *short) Read(to []byte) (int, error) {
	if s.left <= 0 {
		_ = s.Close()
		return 0, errors.New("connection reset by peer")
	}
	n, err := s.Conn.Read(to[:min(len(to), s.left)])
	s.left -= n
	return n, err
}

// deaf is a connection of which nothing arrives any more once its network says so, not even its end.
type deaf struct {
	net.Conn
	mute   *atomic.Bool
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	deadline time.Time
}

func newDeaf(conn net.Conn, mute *atomic.Bool) *deaf {
	return &deaf{Conn: conn, mute: mute, closed: make(chan struct{})}
}

func (d *deaf) Read(to []byte) (int, error) {
	n, err := d.Conn.Read(to)
	if !d.mute.Load() {
		return n, err
	}
	d.mu.Lock()
	late := time.NewTimer(time.Until(d.deadline))
	d.mu.Unlock()
	defer late.Stop()
	select {
	case <-late.C:
		return 0, os.ErrDeadlineExceeded
	case <-d.closed:
		return 0, net.ErrClosed
	}
}

func (d *deaf) SetReadDeadline(at time.Time) error {
	d.mu.Lock()
	d.deadline = at
	d.mu.Unlock()
	return d.Conn.SetReadDeadline(at)
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

type listener struct {
	calls  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.calls:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (*listener) Addr() net.Addr { return &net.TCPAddr{} }

// serve starts an emulated master at a listener; what it returns stops it and may be called twice.
func serve(t *testing.T, cfg emulator.Config, l net.Listener) (*emulator.Emulator, func()) {
	t.Helper()
	if cfg.Cluster.Behave == nil {
		cfg.Cluster.Behave = cluster.Lasting(0)
	}
	e, err := emulator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	stop := sync.OnceFunc(func() {
		_ = l.Close() // ends Serve, also when it has not begun
		e.Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return e, stop
}

// framework hears what a connection says, and keeps the framework's id.
type framework struct {
	*master.Connection
	ended chan error // Run's

	mu      sync.Mutex
	id      string
	saves   int
	failing error
	ids     []string // of each subscription
	events  []*scheduler.Event
	lost    []error
	on      func(*scheduler.Event)
	forget  bool // the events
	cancel  context.CancelFunc
}

func (f *framework) Load() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.id, nil
}

func (f *framework) Save(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing != nil {
		return f.failing
	}
	f.id, f.saves = id, f.saves+1
	return nil
}

func (f *framework) Subscribed(id mesos.FrameworkID, _ mesos.MasterInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = append(f.ids, id.Value)
}

func (f *framework) Event(e *scheduler.Event) {
	f.mu.Lock()
	if !f.forget {
		f.events = append(f.events, e)
	}
	on := f.on
	f.mu.Unlock()
	if on != nil {
		on(e)
	}
}

func (f *framework) Lost(reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, reason)
}

// subscriptions says how many there were, and how many of them have ended.
func (f *framework) subscriptions() (begun, over int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ids), len(f.lost)
}

// lastLost is why the newest subscription that ended did so.
func (f *framework) lastLost() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lost) == 0 {
		return nil
	}
	return f.lost[len(f.lost)-1]
}

// heard counts events of a type.
func (f *framework) heard(kind scheduler.Event_Type) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := 0
	for _, e := range f.events {
		if e.Type == kind {
			count++
		}
	}
	return count
}

// info describes the frameworks of tests.
func info() *mesos.FrameworkInfo {
	patience := 60.0
	checkpoint := true
	return &mesos.FrameworkInfo{
		User: "nobody", Name: "test", Roles: []string{"test"}, FailoverTimeout: &patience, Checkpoint: &checkpoint,
		Capabilities: []mesos.FrameworkInfo_Capability{
			{Type: mesos.FrameworkInfo_Capability_MULTI_ROLE},
			{Type: mesos.FrameworkInfo_Capability_RESERVATION_REFINEMENT},
			{Type: mesos.FrameworkInfo_Capability_PARTITION_AWARE},
			{Type: mesos.FrameworkInfo_Capability_TASK_KILLING_STATE},
		},
	}
}

// start makes a framework and runs its connection.
func start(t testing.TB, cfg master.Config) *framework {
	t.Helper()
	f := &framework{}
	f.start(t, cfg)
	return f
}

func (f *framework) start(t testing.TB, cfg master.Config) {
	t.Helper()
	if cfg.Framework == nil {
		cfg.Framework = info()
	}
	cfg.Identity = f
	var err error
	if f.Connection, err = master.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	f.ended, f.cancel = ended, cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- f.Run(ctx, f)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// revive is a call that a master takes at any time.
func revive() *scheduler.Call { return &scheduler.Call{Type: scheduler.Call_REVIVE} }
