package emulator

import (
	"fmt"
	"sync"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/orders"
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
	orders *orders.Queue

	mu       sync.Mutex
	emulator *Emulator
}

// NewLocal opens a runner below a directory that must be empty or another Local's; what runs there from before is ended.
func NewLocal(root string) (*Local, error) {
	l := &Local{root: root}
	var err error
	if l.orders, err = orders.Open(root, l.observe); err != nil {
		return nil, fmt.Errorf("mesos emulator: %w", err)
	}
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
	if err := l.orders.Close(); err != nil {
		return fmt.Errorf("mesos emulator: %w", err)
	}
	return nil
}

// Start takes the order to start a process.
func (l *Local) Start(s cluster.Start) {
	l.orders.Start(orders.Start{
		Spec:    func() (runner.Spec, error) { return l.spec(s), nil },
		Refused: func(error) { l.tell(func(c *cluster.Cluster) { c.Ended(s.Container, cluster.ExitStatus{Code: 127}) }) },
	})
}

// spec translates a task's command into a process.
func (l *Local) spec(s cluster.Start) runner.Spec {
	command := s.Task.Command
	if command == nil {
		command = s.Task.GetExecutor().GetCommand()
	}
	spec := runner.Spec{ID: s.Container, Command: argv(command)}
	env := map[string]string{"PATH": basePath, "MESOS_TASK_ID": s.Task.TaskID.Value, "MESOS_SANDBOX": l.orders.Runner().Sandbox(s.Container)}
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

// Signal takes the order to end a process.
func (l *Local) Signal(s cluster.Signal) {
	grace := shortOfForce
	if s.Kill {
		grace = 0
	}
	l.orders.Signal(s.Container, grace, "killed by the emulated master")
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
	}
}

func (l *Local) tell(f func(*cluster.Cluster)) {
	l.mu.Lock()
	e := l.emulator
	l.mu.Unlock()
	if e != nil && l.orders.Context().Err() == nil {
		e.Do(f)
	}
}
