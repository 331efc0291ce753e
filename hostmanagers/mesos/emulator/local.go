package emulator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/emulator/cluster"
)

// basePath is where a task finds its programs, unless it brings a PATH.
const basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// shortOfForce is a grace that the master's own, which ends in a second signal, is always shorter than.
const shortOfForce = 24 * time.Hour

// Local runs the tasks of an emulator as processes of this machine, through a runner. Container images, artefacts and resource isolation
// are not emulated: a task's command runs as it is.
type Local struct {
	root   string
	runner *runner.Runner

	mu       sync.Mutex
	emulator *Emulator
	orders   []any // cluster.Start and cluster.Signal, oldest first
	news     chan struct{}
	closed   bool
	work     sync.WaitGroup
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
}

// NewLocal opens a runner below a directory that must be empty or another Local's; what runs there from before is ended.
func NewLocal(root string) (*Local, error) {
	l := &Local{root: root, news: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	r, err := runner.Open(runner.Config{Root: root, Observe: l.observe})
	if err != nil {
		l.cancel()
		return nil, fmt.Errorf("mesos emulator: run tasks on this machine: %w", err)
	}
	l.runner = r
	for _, old := range r.Runs() {
		l.forget(old)
	}
	l.work.Add(1)
	go func() {
		defer l.work.Done()
		l.obey()
	}()
	return l, nil
}

// Root is the directory below which tasks write.
func (l *Local) Root() string { return l.root }

// Serve says whose tasks they are. It is called once, before the first task.
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
		return fmt.Errorf("mesos emulator: close the runner: %w", err)
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
	if len(starts) == 0 {
		return
	}
	specs := make([]runner.Spec, len(starts))
	for i, s := range starts {
		specs[i] = l.spec(s)
	}
	if _, err := l.runner.Launch(l.ctx, specs); err == nil || errors.Is(err, context.Canceled) {
		return
	}
	for i, spec := range specs { // one that cannot run must not take the others with it
		if _, err := l.runner.Launch(l.ctx, []runner.Spec{spec}); err != nil {
			l.tell(func(c *cluster.Cluster) { c.Ended(starts[i].Container, cluster.ExitStatus{Code: 127}) })
		}
	}
}

// spec translates a task's command into a process.
func (l *Local) spec(s cluster.Start) runner.Spec {
	command := s.Task.Command
	if command == nil {
		command = s.Task.GetExecutor().GetCommand()
	}
	spec := runner.Spec{ID: s.Container, Command: argv(command)}
	env := map[string]string{"PATH": basePath, "MESOS_TASK_ID": s.Task.TaskID.Value, "MESOS_SANDBOX": l.runner.Sandbox(s.Container)}
	order := []string{"PATH", "MESOS_TASK_ID", "MESOS_SANDBOX"}
	for _, v := range command.GetEnvironment().GetVariables() {
		if _, known := env[v.Name]; !known {
			order = append(order, v.Name)
		}
		env[v.Name] = v.GetValue()
	}
	for _, name := range order {
		spec.Env = append(spec.Env, name+"="+env[name])
	}
	return spec
}

// argv is what a command runs: its value through a shell, or as the program, with arguments of which the first is its name.
func argv(command *mesos.CommandInfo) []string {
	if command == nil {
		return []string{"/bin/true"}
	}
	if command.GetShell() {
		return []string{"/bin/sh", "-c", command.GetValue()}
	}
	words := []string{command.GetValue()}
	if len(command.Arguments) > 1 {
		words = append(words, command.Arguments[1:]...)
	}
	return words
}

func (l *Local) signal(s cluster.Signal) {
	grace := shortOfForce
	if s.Kill {
		grace = 0
	}
	// A run that the runner does not know, or that ended, needs no signal.
	_, _ = l.runner.Kill(s.Container, grace, "killed by the emulated master")
}

// observe hears of the runner's phases.
func (l *Local) observe(run runner.Run) {
	id := run.Spec.ID
	switch run.Phase {
	case runner.Started:
		if run.Start != nil {
			pid := uint32(run.Start.Task.PID) //nolint:gosec // a process id
			l.tell(func(c *cluster.Cluster) { c.Started(id, pid) })
		}
	case runner.Accepted:
	case runner.Ended:
		status := cluster.ExitStatus{Code: 1}
		if run.Exit != nil {
			status = cluster.ExitStatus{Code: run.Exit.Code, Signal: run.Exit.Signal}
		}
		l.tell(func(c *cluster.Cluster) { c.Ended(id, status) })
		_ = l.runner.Acknowledge(id) // kept for its output alone
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
