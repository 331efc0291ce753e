package mesos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	mesosapi "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/framework"
	"github.com/paceline-sched/paceline/hostmanagers/mesos/master"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

var (
	_ driver.Driver     = (*Driver)(nil)
	_ driver.Capable    = (*Driver)(nil)
	_ driver.Reconciler = (*Driver)(nil)
	_ driver.Demander   = (*Driver)(nil)
)

// Driver is one framework at work.
type Driver struct {
	cfg        Config
	connection *master.Connection
	news       *news.Queue
	ctx        context.Context // of Start
	restarted  bool            // the framework is older than this process, and may have tasks of an earlier one
	subscribed chan struct{}   // closed by the first subscription
	done       chan struct{}   // closed once everything has ended
	failed     chan struct{}   // closed when the connection has ended for good
	failure    error           // why; set before failed is closed

	mu       sync.Mutex
	machine  *framework.Machine
	out      framework.Output
	calls    []framework.Call
	sending  bool // calls that were taken out are under way
	question framework.Question
	waiters  map[string]chan framework.Feedback // by operation
	wakeAt   int64
	unwake   func() bool // takes back the wake-up that is arranged
	version  string      // of the master
	left     func()      // ends all work, once the master has forgotten the framework
	ended    bool        // no wake-up is arranged any more

	haveCalls, haveQuestion, idle chan struct{} // each holds one
}

// New returns a driver that has not started.
func New(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	connection, err := master.New(cfg.connection())
	if err != nil {
		return nil, fmt.Errorf("mesos: %w", err)
	}
	machine, err := framework.New(cfg.Limits)
	if err != nil {
		return nil, fmt.Errorf("mesos: %w", err)
	}
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	return &Driver{
		cfg: cfg, connection: connection, machine: machine, waiters: map[string]chan framework.Feedback{},
		subscribed: make(chan struct{}), done: make(chan struct{}), failed: make(chan struct{}),
		news: news.NewQueue(), haveCalls: signal(), haveQuestion: signal(), idle: signal(),
	}, nil
}

// Start subscribes and begins to work. It returns with the first subscription, or once it is certain that there will be none: a master that
// is not there is waited for.
func (d *Driver) Start(ctx context.Context, sink driver.Sink) error {
	d.ctx = ctx
	id, err := d.cfg.Identity.Load()
	d.restarted = err != nil || id != "" // the connection says what is wrong with it
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.mu.Lock()
	if d.restarted {
		d.machine.Inherit()
	}
	d.left = cancel
	d.mu.Unlock()
	var group sync.WaitGroup
	group.Go(func() { d.connect(work) })
	group.Go(func() { d.send(work) })
	group.Go(func() { d.ask(work) })
	group.Go(func() { d.news.Deliver(work, sink) })
	go func() {
		defer close(d.done)
		select {
		case <-ctx.Done():
			d.drain()
		case <-d.failed:
			<-ctx.Done()
		}
		cancel()
		group.Wait()
		d.mu.Lock()
		d.ended = true
		if d.unwake != nil {
			d.unwake()
		}
		d.mu.Unlock()
	}()
	select {
	case <-d.subscribed:
		return nil
	case <-d.failed:
		return fmt.Errorf("start the Mesos cluster: %w", d.failure)
	case <-ctx.Done():
		return fmt.Errorf("start the Mesos cluster: %w", errors.Join(context.Cause(ctx), d.connection.Status().Err))
	}
}

// Wait blocks until everything has ended. It must not be called before Start.
func (d *Driver) Wait() { <-d.done }

// Status tells how the connection to the master stands.
func (d *Driver) Status() master.Status { return d.connection.Status() }

// Stats returns counts of what the driver holds.
func (d *Driver) Stats() framework.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Stats()
}

// Capabilities says what the cluster can do.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{HealthChecks: true, Notes: []string{"limits of CPU and memory are enforced as the agents' isolators do"}}
}

// connect keeps the subscription up.
func (d *Driver) connect(ctx context.Context) {
	err := d.connection.Run(ctx, (*handler)(d))
	if ctx.Err() != nil {
		return
	}
	d.cfg.Logger.Error("the Mesos framework is over", slog.Any(telemetry.KeyError, err))
	d.failure = err
	close(d.failed)
}

// handler hears the connection.
type handler Driver

func (h *handler) Subscribed(_ mesosapi.FrameworkID, info mesosapi.MasterInfo) {
	d := (*Driver)(h)
	d.input(func(now int64, out *framework.Output) {
		d.version = info.GetVersion()
		d.machine.Subscribed(now, info.ID, out)
	})
	select {
	case <-d.subscribed:
	default:
		close(d.subscribed)
	}
}

func (h *handler) Event(e *scheduler.Event) {
	d := (*Driver)(h)
	d.input(func(now int64, out *framework.Output) { d.machine.Event(now, e, out) })
}

func (h *handler) Lost(reason error) {
	d := (*Driver)(h)
	d.input(func(now int64, out *framework.Output) { d.machine.Lost(now, reason, out) })
	d.mu.Lock()
	stale := d.calls // made for this subscription, and nonsense in the next one
	d.calls = nil
	d.mu.Unlock()
	for i := range stale {
		d.callFailed(&stale[i], master.ErrNotSubscribed)
	}
}

// input gives the machine one input and queues what follows from it.
func (d *Driver) input(f func(now int64, out *framework.Output)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d.cfg.Now().UnixNano(), &d.out)
	d.absorb()
}

// absorb queues what the machine put out, and arranges for its next wake-up. d.mu is held.
func (d *Driver) absorb() {
	if len(d.out.Calls) > 0 {
		d.calls = append(d.calls, d.out.Calls...)
		signal(d.haveCalls)
	}
	d.news.Add(d.out.News)
	for _, f := range d.out.Feedback {
		if waiter := d.waiters[f.ID]; waiter != nil {
			delete(d.waiters, f.ID)
			waiter <- f // holds one
		}
	}
	if d.out.Census > d.question {
		d.question = d.out.Census
		signal(d.haveQuestion)
	}
	next := d.machine.Next()
	if next == d.wakeAt || d.ended {
		return
	}
	if d.unwake != nil {
		d.unwake()
		d.unwake = nil
	}
	if d.wakeAt = next; next > 0 {
		d.unwake = d.cfg.AfterFunc(time.Duration(next-d.cfg.Now().UnixNano()), func() { d.wake(next) })
	}
}

// wake is the wake-up that was arranged for a time.
func (d *Driver) wake(at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wakeAt != at || d.ended {
		return
	}
	d.wakeAt, d.unwake = 0, nil
	d.machine.Wake(max(at, d.cfg.Now().UnixNano()), &d.out)
	d.absorb()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// send makes the machine's calls, in order.
func (d *Driver) send(ctx context.Context) {
	var batch []*scheduler.Call
	for {
		select {
		case <-d.haveCalls:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		calls := d.calls
		d.calls, d.sending = nil, len(calls) > 0
		d.mu.Unlock()
		batch = batch[:0]
		for i := range calls {
			batch = append(batch, calls[i].Call)
		}
		for i, err := range d.connection.Send(ctx, batch...) {
			if err != nil {
				d.callFailed(&calls[i], err)
			}
		}
		d.mu.Lock()
		d.sending = false
		d.mu.Unlock()
		signal(d.idle)
	}
}

func (d *Driver) callFailed(call *framework.Call, err error) {
	outcome := framework.NotTaken
	if errors.Is(err, master.ErrUnanswered) {
		outcome = framework.Unanswered
	}
	if !errors.Is(err, master.ErrNotSubscribed) && d.ctx.Err() == nil {
		d.cfg.Logger.Warn("a call of the Mesos master failed", slog.String(telemetry.KeyMethod, call.Type.String()), slog.Any(telemetry.KeyError, err))
	}
	d.input(func(now int64, out *framework.Output) { d.machine.Failed(now, call, outcome, err, out) })
}

// ask asks the operator API.
func (d *Driver) ask(ctx context.Context) {
	for {
		select {
		case <-d.haveQuestion:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		question := d.question
		d.question = framework.AskNothing
		d.mu.Unlock()
		census := d.census(ctx, question)
		if census.Err != nil && ctx.Err() == nil {
			d.cfg.Logger.Warn("the operator API of the Mesos master does not list agents; hosts are known by offers alone", slog.Any(telemetry.KeyError, census.Err))
		}
		d.input(func(now int64, out *framework.Output) { d.machine.Learn(now, census, out) })
	}
}

func (d *Driver) census(ctx context.Context, question framework.Question) *framework.Census {
	agents, err := d.connection.Agents(ctx)
	if err != nil {
		return &framework.Census{Err: err}
	}
	census := &framework.Census{Agents: make([]framework.Agent, len(agents))}
	for i := range agents {
		a := &agents[i]
		census.Agents[i] = framework.Agent{
			ID: a.AgentInfo.GetID().GetValue(), Hostname: a.AgentInfo.Hostname, Port: a.AgentInfo.GetPort(), Attributes: a.AgentInfo.Attributes,
			Domain: a.AgentInfo.Domain, Total: a.TotalResources, Allocated: a.AllocatedResources, Inactive: a.GetDeactivated(),
		}
	}
	if question < framework.AskAgentsAndTasks || !d.restarted {
		return census
	}
	tasks, err := d.connection.Tasks(ctx)
	if err != nil {
		d.cfg.Logger.Warn("the operator API of the Mesos master does not list tasks; hosts look fuller than they are until the ones of before end", slog.Any(telemetry.KeyError, err))
		return census
	}
	mine := d.connection.Status().Framework
	for i := range tasks {
		if t := &tasks[i]; t.FrameworkID.Value == mine {
			census.Tasks = append(census.Tasks, framework.Task{ID: t.TaskID.Value, Resources: t.Resources})
		}
	}
	return census
}

// working reports whether calls are taken.
func (d *Driver) working() error {
	select {
	case <-d.subscribed:
		return d.ctx.Err()
	default:
		return errors.New("the Mesos cluster has not started")
	}
}

// Launch sends runs to the master, or has them wait for offers a moment; the answer to that, too, is a status.
func (d *Driver) Launch(_ context.Context, launches []driver.Launch) error {
	return d.demand(func(now int64, out *framework.Output) error { return d.machine.Launch(now, launches, out) })
}

// Kill asks for the end of runs.
func (d *Driver) Kill(_ context.Context, kills []driver.Kill) error {
	return d.demand(func(now int64, out *framework.Output) error { return d.machine.Kill(now, kills, out) })
}

// Reconcile asks for the state of runs; none: of all.
func (d *Driver) Reconcile(_ context.Context, runs []workload.RunID) error {
	return d.demand(func(now int64, out *framework.Output) error { return d.machine.Reconcile(now, runs, out) })
}

// Acknowledge lets the master and its agents forget statuses.
func (d *Driver) Acknowledge(_ context.Context, tokens []driver.Token) error {
	return d.demand(func(now int64, out *framework.Output) error {
		d.machine.Acknowledge(now, tokens, out)
		return nil
	})
}

// Demand says whether work waits, for which offers are to be held.
func (d *Driver) Demand(waiting bool) {
	d.input(func(now int64, out *framework.Output) { d.machine.Demand(now, waiting, out) })
}

// demand is input for callers: it fails once the driver has ended.
func (d *Driver) demand(f func(now int64, out *framework.Output) error) error {
	if err := d.working(); err != nil {
		return err
	}
	var err error
	d.input(func(now int64, out *framework.Output) { err = f(now, out) })
	return err
}

// drain waits until what was accepted is with the master, for some time.
func (d *Driver) drain() {
	over := make(chan struct{})
	stop := d.cfg.AfterFunc(d.cfg.Drain, func() { close(over) })
	defer stop()
	for {
		d.mu.Lock()
		busy := len(d.calls) > 0 || d.sending || d.machine.Stats().Waiting > 0
		d.mu.Unlock()
		if !busy || !d.connection.Status().Subscribed {
			return
		}
		select {
		case <-d.idle:
		case <-over:
			return
		case <-d.failed:
			return
		}
	}
}
