package emulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/emulator/cluster"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/health"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/orders"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/shim"
)

// maxProbes bounds the probes under way at once.
const maxProbes = 16

// Local runs the containers of an emulator as processes of this machine, through a runner. Images and volumes are not emulated: a
// container's command runs as it is, in an empty directory, and a container without a command cannot start.
type Local struct {
	orders  *orders.Queue
	gate    health.Gate
	probing sync.WaitGroup // new ones come from phases of processes only

	mu       sync.Mutex
	emulator *Emulator
	starts   map[string]cluster.Start
	probes   map[string]context.CancelFunc
}

// NewLocal opens a runner below a directory that must be empty or another Local's; what runs there from before is ended.
func NewLocal(root string) (*Local, error) {
	l := &Local{
		gate: health.NewGate(maxProbes), starts: map[string]cluster.Start{}, probes: map[string]context.CancelFunc{},
	}
	var err error
	if l.orders, err = orders.Open(root, l.observe); err != nil {
		return nil, fmt.Errorf("kubernetes emulator: %w", err)
	}
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
	err := l.orders.Close()
	l.probing.Wait()
	if err != nil {
		return fmt.Errorf("kubernetes emulator: %w", err)
	}
	return nil
}

// Start takes the order to start a process.
func (l *Local) Start(s cluster.Start) {
	l.orders.Start(orders.Start{
		Spec: func() (runner.Spec, error) {
			spec, err := spec(s)
			if err == nil {
				l.mu.Lock()
				l.starts[s.Process] = s
				l.mu.Unlock()
			}
			return spec, err
		},
		Refused: func(err error) {
			l.mu.Lock()
			delete(l.starts, s.Process)
			l.mu.Unlock()
			l.tell(func(c *cluster.Cluster) { c.Ended(s.Process, cluster.Exit{NotStarted: true, Message: err.Error()}) })
		},
	})
}

// spec translates a container into a process.
func spec(s cluster.Start) (runner.Spec, error) {
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

// Signal takes the order to end a process.
func (l *Local) Signal(s cluster.Signal) {
	grace := runner.MaxGrace // the kubelet's own ends in a second signal
	if s.Kill {
		grace = 0
	}
	l.orders.Signal(s.Process, grace, "stopped by the emulated kubelet")
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
		exit := exitOf(run.Exit)
		l.tell(func(c *cluster.Cluster) { c.Ended(id, exit) })
	default:
	}
}

// exitOf is what a kubelet tells of a process's end. One that was killed while it was being started has started, as far as anybody can tell, and of one that was lost
// nobody knows that it ended well.
func exitOf(x *shim.Exit) cluster.Exit {
	switch {
	case x == nil || x.Verdict == shim.ShimDied || x.Verdict == shim.Rebooted:
		return cluster.Exit{Code: 1, Message: "the emulator lost its process"}
	case x.Verdict == shim.Killed && x.Started.IsZero():
		return cluster.Exit{Signal: int32(syscall.SIGKILL)}
	}
	return cluster.Exit{Code: int32(x.Code), OOM: x.OutOfMem, Message: x.Message, NotStarted: x.Started.IsZero()} //nolint:gosec // an exit code
}

func (l *Local) tell(f func(*cluster.Cluster)) {
	l.mu.Lock()
	e := l.emulator
	l.mu.Unlock()
	if e != nil && l.orders.Context().Err() == nil {
		e.Do(f)
	}
}

// Log reads what a process wrote: its output, and then what it wrote to its error stream; with follow, both as they come.
func (l *Local) Log(ctx context.Context, process string, follow bool) (io.ReadCloser, error) {
	streams := make([]io.ReadCloser, 0, 2)
	for _, stream := range []string{runner.Stdout, runner.Stderr} {
		in, err := l.orders.Runner().Output(ctx, process, stream, 0, follow)
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
