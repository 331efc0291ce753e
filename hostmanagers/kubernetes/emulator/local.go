package emulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/health"
)

// shortOfForce is a grace that the kubelet's own, which ends in a second signal, is always shorter than.
const shortOfForce = 365 * 24 * time.Hour

// maxProbes bounds the probes under way at once.
const maxProbes = 16

// Local runs the containers of an emulator as processes of this machine, through a runner. Images and volumes are not emulated: a
// container's command runs as it is, in an empty directory, and a container without a command cannot start.
type Local struct {
	runner *runner.Runner
	gate   health.Gate

	mu       sync.Mutex
	emulator *Emulator
	orders   []any // cluster.Start and cluster.Signal, oldest first
	starts   map[string]cluster.Start
	probes   map[string]context.CancelFunc
	news     chan struct{}
	closed   bool
	work     sync.WaitGroup
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
}

// NewLocal opens a runner below a directory that must be empty or another Local's; what runs there from before is ended.
func NewLocal(root string) (*Local, error) {
	l := &Local{
		gate: health.NewGate(maxProbes), starts: map[string]cluster.Start{}, probes: map[string]context.CancelFunc{}, news: make(chan struct{}, 1),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	r, err := runner.Open(runner.Config{Root: root, Observe: l.observe})
	if err != nil {
		l.cancel()
		return nil, fmt.Errorf("kubernetes emulator: run containers on this machine: %w", err)
	}
	l.runner = r
	for _, old := range r.Runs() {
		l.forget(old)
	}
	l.work.Add(1)
	go func() { // ends with Close
		defer l.work.Done()
		l.obey()
	}()
	return l, nil
}

// Serve says whose containers they are. It is called once, before the first container.
func (l *Local) Serve(e *Emulator) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.emulator = e
}

// Close stops taking orders, ends what runs, and waits for its own goroutines, after the emulator was closed.
func (l *Local) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.work.Wait()
	for _, run := range l.runner.Runs() {
		l.forget(run)
	}
	if err := l.runner.Close(); err != nil {
		return fmt.Errorf("kubernetes emulator: close the runner: %w", err)
	}
	return nil
}

// forget ends a run that nobody wants to hear of.
func (l *Local) forget(run runner.Run) {
	_, _ = l.runner.Kill(run.Spec.ID, 0, "its cluster is gone") // a disk that takes nothing more is reported by the runner
	_ = l.runner.Acknowledge(run.Spec.ID)                       // kept for its output alone
}

// Start takes the order to start a process.
func (l *Local) Start(s cluster.Start) { l.order(s) }

// Signal takes the order to end a process.
func (l *Local) Signal(s cluster.Signal) { l.order(s) }

func (l *Local) order(order any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders = append(l.orders, order)
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// obey carries orders out, one after another, starts that stand together in one go.
func (l *Local) obey() {
	for {
		l.mu.Lock()
		orders := l.orders
		l.orders = nil
		l.mu.Unlock()
		var starts []cluster.Start
		for _, order := range orders {
			switch order := order.(type) {
			case cluster.Start:
				starts = append(starts, order)
			case cluster.Signal:
				l.launch(starts)
				starts = nil
				l.signal(order)
			}
		}
		l.launch(starts)
		select {
		case <-l.news:
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *Local) launch(starts []cluster.Start) {
	specs := make([]runner.Spec, 0, len(starts))
	for _, s := range starts {
		spec, err := l.spec(s)
		if err != nil {
			l.refuse(s.Process, err)
			continue
		}
		l.mu.Lock()
		l.starts[s.Process] = s
		l.mu.Unlock()
		specs = append(specs, spec)
	}
	if len(specs) == 0 {
		return
	}
	if _, err := l.runner.Launch(l.ctx, specs); err == nil || errors.Is(err, context.Canceled) {
		return
	}
	for _, spec := range specs { // one that cannot run must not take the others with it
		if _, err := l.runner.Launch(l.ctx, []runner.Spec{spec}); err != nil {
			l.refuse(spec.ID, err)
		}
	}
}

func (l *Local) refuse(process string, err error) {
	l.mu.Lock()
	delete(l.starts, process)
	l.mu.Unlock()
	l.tell(func(c *cluster.Cluster) { c.Ended(process, cluster.Exit{NotStarted: true, Message: err.Error()}) })
}

// spec translates a container into a process.
func (l *Local) spec(s cluster.Start) (runner.Spec, error) {
	environment, err := newEnvironment(s)
	if err != nil {
		return runner.Spec{}, err
	}
	command := environment.expandAll(s.Container.Command)
	command = append(command, environment.expandAll(s.Container.Args)...)
	if len(s.Container.Command) == 0 {
		return runner.Spec{}, fmt.Errorf("image %s is not run, the emulator has none: give container %s a command", s.Container.Image, s.Container.Name)
	}
	if dir := s.Container.WorkingDir; dir != "" {
		command = append([]string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, dir}, command...)
	}
	limits := s.Container.Resources.Limits
	return runner.Spec{
		ID: s.Process, Command: command, Env: environment.list(),
		Limits: runner.Limits{MemoryBytes: limits.Memory().Value(), CPUMilli: limits.Cpu().MilliValue()},
	}, nil
}

func (l *Local) signal(s cluster.Signal) {
	grace := shortOfForce
	if s.Kill {
		grace = 0
	}
	// A run that the runner does not know, or that ended, needs no signal.
	_, _ = l.runner.Kill(s.Process, grace, "stopped by the emulated kubelet")
}

// observe hears of the runner's phases.
func (l *Local) observe(run runner.Run) {
	id := run.Spec.ID
	switch run.Phase {
	case runner.Started:
		l.tell(func(c *cluster.Cluster) { c.Started(id) })
		l.probe(id)
	case runner.Ended:
		l.mu.Lock()
		if stop := l.probes[id]; stop != nil {
			stop()
			delete(l.probes, id)
		}
		delete(l.starts, id)
		l.mu.Unlock()
		exit := cluster.Exit{Code: 1, Message: "the emulator lost its process"}
		if x := run.Exit; x != nil {
			exit = cluster.Exit{Code: int32(x.Code), OOM: x.OutOfMem, Message: x.Message, NotStarted: x.Started.IsZero()} //nolint:gosec // an exit code
		}
		l.tell(func(c *cluster.Cluster) { c.Ended(id, exit) })
		_ = l.runner.Acknowledge(id) // kept for its output alone
	default:
	}
}

func (l *Local) tell(f func(*cluster.Cluster)) {
	l.mu.Lock()
	e, closed := l.emulator, l.closed
	l.mu.Unlock()
	if e != nil && !closed {
		e.Do(f)
	}
}

// Log reads what a process wrote: its output, and then what it wrote to its error stream; with follow, both as they come.
func (l *Local) Log(ctx context.Context, process string, follow bool) (io.ReadCloser, error) {
	streams := make([]io.ReadCloser, 0, 2)
	for _, stream := range []string{runner.Stdout, runner.Stderr} {
		in, err := l.runner.Output(ctx, process, stream, 0, follow)
		if err != nil {
			for _, s := range streams {
				_ = s.Close() // nothing was read
			}
			return nil, fmt.Errorf("read the output of %s: %w", process, err)
		}
		streams = append(streams, in)
	}
	if !follow {
		return &both{Reader: io.MultiReader(streams[0], streams[1]), streams: streams}, nil
	}
	out, in := io.Pipe()
	b := &both{Reader: out, streams: streams, pipe: out}
	var copies sync.WaitGroup
	for _, s := range streams {
		copies.Add(1)
		b.work.Add(1)
		go func() { // ends with its stream, or when nobody reads
			defer b.work.Done()
			defer copies.Done()
			_, _ = io.Copy(in, s) // a reader that went away ends it
		}()
	}
	b.work.Add(1)
	go func() { // ends with the copies
		defer b.work.Done()
		copies.Wait()
		_ = in.Close() // tells the reader that all was read
	}()
	return b, nil
}

// both reads two streams as one.
type both struct {
	io.Reader
	streams []io.ReadCloser
	pipe    *io.PipeReader
	work    sync.WaitGroup
}

// Close must be called after the context of Log ended, or all was read.
func (b *both) Close() error {
	if b.pipe != nil {
		_ = b.pipe.Close() // ends the copies
	}
	b.work.Wait()
	var errs []error
	for _, s := range b.streams {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
