package emulator

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// maxQueued bounds the events that wait for a slow subscriber; then its connection is cut, as TCP would in the end.
const maxQueued = 1 << 18

// Clock is where an emulator's time comes from.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own, unless stop comes before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

func (wallClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// Processes runs what tasks ask for. Its methods must not block and must not call the emulator back from within.
type Processes interface {
	// Start begins a process; the emulator is told by Emulator.Do with cluster.Started and cluster.Ended.
	Start(cluster.Start)
	Signal(cluster.Signal)
}

// Config says what an emulator serves.
type Config struct {
	Cluster cluster.Config
	// Clock is the time. Default: this machine's.
	Clock Clock
	// Processes runs tasks. It must be set if Cluster.Behave is not, and only then.
	Processes Processes
	Faults    Faults
}

// Faults are what goes wrong on the way to subscribers, besides Emulator.Cut and what cluster.Cluster can do to agents.
type Faults struct {
	// Duplicate is asked of every update of a task: true sends it twice. It must be fast and is called under a lock.
	Duplicate func() bool
	// Repeat is asked of every update of a task: true sends an update of a while ago once more, after it. As Duplicate.
	Repeat func() bool
	// Refuse is asked of every ACKNOWLEDGE call: true answers 503, and nothing comes of it. As Duplicate.
	Refuse func() bool
	// Delay is how long events are held back. Default: not at all.
	Delay time.Duration
}

// Emulator is one emulated master with its cluster.
type Emulator struct {
	clock     Clock
	processes Processes
	advertise string // host:port
	faults    Faults

	mu      sync.Mutex
	cluster *cluster.Cluster
	streams map[string]*stream
	lead    leadership
	wake    func() bool // stops the wake-up that is arranged
	wakeAt  time.Time
	closed  bool
	open    map[net.Conn]bool
	nets    []net.Listener

	work sync.WaitGroup
}

// leadership is who leads, as this master knows it.
type leadership struct {
	other string // host:port; "": this one
	none  bool
}

// New starts an emulator that serves nobody yet.
func New(cfg Config) (*Emulator, error) {
	if (cfg.Cluster.Behave == nil) == (cfg.Processes == nil) {
		return nil, errors.New("mesos emulator: set either Cluster.Behave, for tasks in virtual time, or Processes, for real ones")
	}
	if cfg.Clock == nil {
		cfg.Clock = wallClock{}
	}
	e := &Emulator{
		clock: cfg.Clock, processes: cfg.Processes, cluster: cluster.New(cfg.Cluster, cfg.Clock.Now()),
		streams: map[string]*stream{}, open: map[net.Conn]bool{}, faults: cfg.Faults,
	}
	address := e.cluster.MasterInfo().Address
	e.advertise = net.JoinHostPort(address.GetHostname(), strconv.Itoa(int(address.GetPort())))
	e.Do(func(*cluster.Cluster) {})
	return e, nil
}

// Do calls f with the cluster, at the present time, and sends what comes of it. F must not keep the cluster.
func (e *Emulator) Do(f func(*cluster.Cluster)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.do(f)
}

func (e *Emulator) do(f func(*cluster.Cluster)) {
	if e.closed {
		return
	}
	e.cluster.Advance(e.clock.Now())
	f(e.cluster)
	for _, effect := range e.cluster.TakeEffects() {
		e.carryOut(effect)
	}
	e.arrange()
}

func (e *Emulator) carryOut(effect cluster.Effect) {
	switch effect := effect.(type) {
	case cluster.Deliver:
		if s := e.streams[effect.Stream]; s != nil {
			s.send(effect.Event)
			e.spoil(s, effect.Event)
		}
	case cluster.Close:
		if s := e.streams[effect.Stream]; s != nil {
			delete(e.streams, effect.Stream)
			how := ended
			if effect.Broken {
				how = cut
			}
			s.end(how)
		}
	case cluster.Start:
		e.processes.Start(effect)
	case cluster.Signal:
		e.processes.Signal(effect)
	}
}

// repeats is how many updates back Faults.Repeat goes.
const repeats = 32

// spoil sends what nobody needs, as Faults says.
func (e *Emulator) spoil(s *stream, event *scheduler.Event) {
	if event.Update == nil {
		return
	}
	if e.faults.Duplicate != nil && e.faults.Duplicate() {
		s.send(event)
	}
	if e.faults.Repeat == nil {
		return
	}
	if len(s.sent) == repeats && e.faults.Repeat() {
		s.send(s.sent[0])
	}
	if s.sent = append(s.sent, event); len(s.sent) > repeats {
		s.sent = s.sent[1:]
	}
}

// arrange sees to it that the cluster hears of the time when it has something to do.
func (e *Emulator) arrange() {
	next, ok := e.cluster.Next()
	if !ok || next.Equal(e.wakeAt) {
		return
	}
	if e.wake != nil {
		e.wake()
	}
	e.wakeAt = next
	e.wake = e.clock.AfterFunc(next.Sub(e.clock.Now()), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.wakeAt.Equal(next) {
			e.wakeAt = time.Time{}
		}
		e.do(func(*cluster.Cluster) {})
	})
}

// Follow says that another master leads, at host:port; "": none does.
func (e *Emulator) Follow(leader string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lead = leadership{other: leader, none: leader == ""}
}

// Lead says that this master leads, which is how it starts.
func (e *Emulator) Lead() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lead = leadership{}
}

// Cut breaks the connection of every subscription in the middle, as a network does. A fault to inject.
func (e *Emulator) Cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.streams {
		s.end(cut)
	}
}

// Serve takes connections until the listener or the emulator is closed.
func (e *Emulator) Serve(l net.Listener) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return errors.New("mesos emulator: it is closed")
	}
	e.nets = append(e.nets, l)
	e.mu.Unlock()
	for {
		conn, err := l.Accept()
		if err != nil {
			if e.isClosed() {
				return nil
			}
			return fmt.Errorf("mesos emulator: accept connections: %w", err)
		}
		if !e.register(conn) {
			_ = conn.Close() // nobody serves it
			return nil
		}
		go func() {
			defer e.work.Done()
			e.converse(conn)
		}()
	}
}

func (e *Emulator) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *Emulator) register(conn net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.open[conn] = true
	e.work.Add(1)
	return true
}

func (e *Emulator) unregister(conn net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, conn)
	_ = conn.Close() // whoever is at the other end sees it
}

// Close cuts all connections and waits for their goroutines. Processes that run are the caller's.
func (e *Emulator) Close() {
	e.mu.Lock()
	e.closed = true
	if e.wake != nil {
		e.wake()
	}
	for _, l := range e.nets {
		_ = l.Close() // it may have been closed already
	}
	for conn := range e.open {
		_ = conn.Close() // ends its goroutine
	}
	for _, s := range e.streams {
		s.end(cut)
	}
	e.mu.Unlock()
	e.work.Wait()
}
