package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/telemetry"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner"
	"github.com/paceline-sched/paceline/hostmanagers/local/runner/health"
)

const (
	// maxBatch bounds the statuses of one call of the sink.
	maxBatch = 4096
	// maxAnswers bounds the undelivered answers to Kill and Reconcile; beyond, these fail. Statuses of runs are bounded by the runs.
	maxAnswers = 4 * runner.MaxRuns
	// generationShift is where a token's generation begins: the number of the start of the driver under which it was given.
	// Tokens so grow across restarts, and one from before a restart acknowledges nothing.
	generationShift = 40
	generationFile  = "generation"
)

var (
	_ driver.Driver     = (*Driver)(nil)
	_ driver.Capable    = (*Driver)(nil)
	_ driver.Reconciler = (*Driver)(nil)
	_ driver.LogReader  = (*Driver)(nil)
)

// Driver runs work on this machine.
type Driver struct {
	cfg       Config
	hosts     []driver.Host
	hostIndex map[string]int
	gate      health.Gate
	runner    *runner.Runner
	seeded    chan struct{} // closed once the recovered runs are known
	done      chan struct{} // closed once everything has ended
	watches   sync.WaitGroup
	ctx       context.Context // of Start; health checks end with it

	mu      sync.Mutex
	token   driver.Token
	runs    map[workload.RunID]*tracked
	byToken map[driver.Token]*tracked // by the last token of each run
	outbox  []driver.Status
	answers int // in outbox
	wake    chan struct{}
}

// tracked is a run that lives or whose end was not acknowledged.
type tracked struct {
	phase   runner.Phase
	last    driver.Status
	unwatch context.CancelFunc // ends its health check, if it has one
}

// New returns a driver that has not started.
func New(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Driver{
		cfg: cfg, gate: health.NewGate(MaxProbes), hostIndex: map[string]int{},
		seeded: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
		runs: map[workload.RunID]*tracked{}, byToken: map[driver.Token]*tracked{},
	}, nil
}

// Start recovers the runs under the root and begins to work.
func (d *Driver) Start(ctx context.Context, sink driver.Sink) (err error) {
	for i := range d.cfg.Hosts {
		d.hostIndex[d.cfg.NamePrefix+strconv.Itoa(i)] = i
	}
	d.ctx = ctx
	r, err := runner.Open(runner.Config{
		Root: d.cfg.Root, Executable: d.cfg.Executable, Starts: d.cfg.Starts, Logs: d.cfg.Logs,
		KeepRuns: d.cfg.KeepRuns, KeepBytes: d.cfg.KeepBytes, Cgroup: d.cfg.Cgroup,
		Admit: d.admit, Observe: d.observe, Problem: d.problem, Now: d.cfg.Now,
	})
	if err != nil {
		close(d.done)
		return fmt.Errorf("start the local cluster: %w", err)
	}
	d.runner = r
	if err := d.prepare(); err != nil {
		close(d.seeded)
		_ = r.Close() // the error that counts is reported
		close(d.done)
		return fmt.Errorf("start the local cluster: %w", err)
	}
	for _, run := range r.Runs() {
		if !run.Acknowledged {
			d.take(run)
		}
	}
	inventory := d.inventory()
	close(d.seeded)
	go d.deliver(ctx, sink, inventory)
	return nil
}

// problem logs what the runner went on without.
func (d *Driver) problem(p runner.Problem) {
	d.cfg.Logger.Error("a run's files or processes are not as they should be", slog.String(telemetry.KeyRun, p.Run), slog.Any(telemetry.KeyError, p.Err))
}

// prepare sets up what needs the runner.
func (d *Driver) prepare() (err error) {
	_, why := d.runner.Limits()
	if d.hosts, err = d.cfg.hosts(why); err != nil {
		return err
	}
	generation, err := nextGeneration(filepath.Join(d.cfg.Root, generationFile))
	d.token = driver.Token(generation << generationShift)
	return err
}

// nextGeneration counts the starts of the driver. Only one process at a time gets here, because the runner holds the root.
func nextGeneration(path string) (uint64, error) {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	var last uint64
	if len(raw) > 0 {
		if last, err = strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64-generationShift); err != nil {
			return 0, fmt.Errorf("%s is damaged: write a number into it that is higher than ever before: %w", path, err)
		}
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(strconv.FormatUint(last+1, 10)+"\n"), 0o600); err != nil {
		return 0, err
	}
	return last + 1, os.Rename(temporary, path)
}

// inventory is what the sink hears first. Everything that follows goes through the outbox.
func (d *Driver) inventory() driver.Inventory {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outbox, d.answers = nil, 0 // the inventory says it all
	return driver.Inventory{Hosts: slices.Clone(d.hosts), Runs: d.lastStatuses()}
}

// lastStatuses returns the last status of every tracked run, in the order in which they were given. d.mu is held.
func (d *Driver) lastStatuses() []driver.Status {
	all := make([]driver.Status, 0, len(d.runs))
	for _, token := range slices.Sorted(maps.Keys(d.byToken)) {
		all = append(all, d.byToken[token].last)
	}
	return all
}

// deliver calls the sink until ctx ends, and then closes everything.
func (d *Driver) deliver(ctx context.Context, sink driver.Sink, inventory driver.Inventory) {
	defer close(d.done)
	sink.Inventory(inventory)
	for {
		select {
		case <-d.wake:
		case <-ctx.Done():
			if err := d.runner.Close(); err != nil {
				d.cfg.Logger.Error("the runner did not close cleanly", slog.Any(telemetry.KeyError, err))
			}
			d.watches.Wait()
			return
		}
		d.mu.Lock()
		pending := d.outbox
		d.outbox, d.answers = nil, 0
		d.mu.Unlock()
		for batch := range slices.Chunk(pending, maxBatch) {
			sink.Statuses(batch)
		}
	}
}

// observe hears of the runner's runs, from one goroutine at a time.
func (d *Driver) observe(run runner.Run) {
	<-d.seeded
	d.take(run)
}

// take turns a run's new phase into a status, and starts or ends its health check.
func (d *Driver) take(run runner.Run) {
	id, err := workload.ParseRunID(run.Spec.ID)
	if err != nil {
		d.cfg.Logger.Error("a run under the root is not Paceline's", slog.String(telemetry.KeyRun, run.Spec.ID), slog.Any(telemetry.KeyError, err))
		return
	}
	o, err := ownerOf(run.Spec)
	if err != nil {
		d.cfg.Logger.Error("a run's launch is not known", slog.String(telemetry.KeyRun, run.Spec.ID), slog.Any(telemetry.KeyError, err))
		// It is reported all the same, without its host.
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.runs[id]
	if t == nil {
		t = &tracked{}
		d.runs[id] = t
	}
	if run.Phase <= t.phase {
		return // known from the recovery
	}
	t.phase = run.Phase
	d.put(t, status(id, &run, &o))
	switch {
	case run.Phase == runner.Started && o.Health != nil:
		d.watch(t, id, &o)
	case run.Phase == runner.Ended && t.unwatch != nil:
		t.unwatch()
	}
}

// put makes s a run's last status, under a new token. d.mu is held.
func (d *Driver) put(t *tracked, s driver.Status) {
	delete(d.byToken, t.last.Token)
	d.token++
	s.Token = d.token
	t.last = s
	d.byToken[s.Token] = t
	d.send(s)
}

// send puts a status into the outbox. d.mu is held.
func (d *Driver) send(s driver.Status) {
	d.outbox = append(d.outbox, s)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// watch starts a run's health check. d.mu is held.
func (d *Driver) watch(t *tracked, id workload.RunID, o *owner) {
	ctx, cancel := context.WithCancel(d.ctx)
	t.unwatch = cancel
	d.watches.Add(1)
	go func() {
		defer d.watches.Done()
		defer cancel()
		probe := d.probe(id, o)
		for {
			failure := health.Watch(ctx, o.Health, d.gate, probe, func() { d.healthy(t, id) })
			if failure == nil {
				return
			}
			_, err := d.runner.Kill(id.String(), o.KillGrace, unhealthy+cut(failure.Error()))
			if err == nil || errors.Is(err, runner.ErrUnknown) {
				return
			}
			// It is tried again when as many checks have failed again.
			d.cfg.Logger.Error("an unhealthy run cannot be killed", slog.String(telemetry.KeyRun, id.String()), slog.Any(telemetry.KeyError, err))
		}
	}()
}

// probe returns what asks about one run's health.
func (d *Driver) probe(id workload.RunID, o *owner) health.Probe {
	name := ""
	switch {
	case o.Health.HTTP != nil:
		name = o.Health.HTTP.Port
	case o.Health.TCP != nil:
		name = o.Health.TCP.Port
	default:
		return func(ctx context.Context) error { return d.runner.Exec(ctx, id.String(), o.Health.Exec) }
	}
	for _, p := range o.Ports {
		switch {
		case p.Name != name:
		case o.Health.HTTP != nil:
			return health.HTTP(p.Number, o.Health.HTTP.Path)
		default:
			return health.TCP(p.Number)
		}
	}
	return func(context.Context) error { return fmt.Errorf("the run has no port named %.80q", name) }
}

// healthy reports a run's first successful check.
func (d *Driver) healthy(t *tracked, id workload.RunID) {
	if err := d.runner.Mark(id.String()); err != nil {
		d.cfg.Logger.Warn("a run's health will be asked anew after a restart", slog.String(telemetry.KeyRun, id.String()), slog.Any(telemetry.KeyError, err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.phase != runner.Started || t.last.Healthy {
		return
	}
	s := t.last
	s.Healthy, s.At = true, d.cfg.Now().UTC()
	d.put(t, s)
}

// Launch starts runs. The runs are durable when it returns.
func (d *Driver) Launch(ctx context.Context, launches []driver.Launch) error {
	if err := d.working(); err != nil {
		return err
	}
	specs := make([]runner.Spec, len(launches))
	for i := range launches {
		var err error
		if specs[i], err = d.spec(&launches[i]); err != nil {
			return err
		}
	}
	known, err := d.runner.Launch(ctx, specs)
	if err != nil {
		return err
	}
	for i := range known {
		if id, err := workload.ParseRunID(known[i].Spec.ID); err == nil {
			d.answer(id)
		}
	}
	return nil
}

// working reports whether the driver has started and not ended.
func (d *Driver) working() error {
	select {
	case <-d.seeded:
		return d.ctx.Err()
	default:
		return errors.New("the local cluster has not started")
	}
}

// answer sends the present status of a run.
func (d *Driver) answer(id workload.RunID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.runs[id]; t != nil {
		d.send(t.last)
		d.answers++
		return
	}
	s := driver.Status{Run: id, State: workload.RunLost, Reason: workload.ReasonNotFound, At: d.cfg.Now().UTC(), Message: "this machine knows no such run"}
	if run, ok := d.runner.Get(id.String()); ok {
		if run.Phase != runner.Ended {
			return // accepted this instant: its first status is on its way
		}
		// Acknowledged, and kept for its output. There is nothing to acknowledge any more.
		if o, err := ownerOf(run.Spec); err == nil {
			s = status(id, &run, &o)
		}
	}
	d.send(s)
	d.answers++
}

// full refuses questions whose answers nobody takes.
func (d *Driver) full(asked int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answers+asked > maxAnswers {
		return fmt.Errorf("%d answers wait to be taken and %d is the most: ask again later", d.answers, maxAnswers)
	}
	return nil
}

// Kill asks for the end of runs. When it returns an error, some of the runs may have been asked; to ask again does no harm.
func (d *Driver) Kill(ctx context.Context, kills []driver.Kill) error {
	if err := errors.Join(d.working(), d.full(len(kills))); err != nil {
		return err
	}
	var failures []error
	for _, k := range kills {
		if err := ctx.Err(); err != nil {
			return err
		}
		run, err := d.runner.Kill(k.Run.String(), k.Grace, "")
		switch {
		case errors.Is(err, runner.ErrUnknown), err == nil && run.Phase == runner.Ended:
			d.answer(k.Run)
		case err != nil:
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// Acknowledge forgets ended runs, but for their output.
func (d *Driver) Acknowledge(_ context.Context, tokens []driver.Token) error {
	if err := d.working(); err != nil {
		return err
	}
	var failures []error
	for _, token := range tokens {
		d.mu.Lock()
		t := d.byToken[token]
		var last driver.Status
		if t != nil {
			last = t.last
		}
		d.mu.Unlock()
		if !last.State.Traits().Terminal {
			continue // an old status, or one that only the run's end makes needless
		}
		if err := d.runner.Acknowledge(last.Run.String()); err != nil && !errors.Is(err, runner.ErrUnknown) {
			failures = append(failures, err)
			continue
		}
		d.mu.Lock()
		delete(d.byToken, token)
		delete(d.runs, last.Run)
		d.mu.Unlock()
	}
	return errors.Join(failures...)
}

// Reconcile sends the last status of the runs, or of all that are live or unacknowledged.
func (d *Driver) Reconcile(_ context.Context, runs []workload.RunID) error {
	if err := errors.Join(d.working(), d.full(max(len(runs), 1))); err != nil {
		return err
	}
	for _, id := range runs {
		d.answer(id)
	}
	if len(runs) == 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, s := range d.lastStatuses() {
			d.send(s)
			d.answers++
		}
	}
	return nil
}

// Capabilities says what this machine can do. It is complete once Start returned, and stays so after the driver's end.
func (d *Driver) Capabilities() driver.Capabilities {
	c := driver.Capabilities{HealthChecks: true, Logs: true}
	select {
	case <-d.seeded:
		var why string
		if c.Isolation, why = d.runner.Limits(); why != "" {
			c.Notes = append(c.Notes, "limits not enforced: "+why)
		}
	default:
	}
	return c
}

// ReadLog returns a run's output. Of the oldest, only what was not rotated away.
func (d *Driver) ReadLog(ctx context.Context, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error) {
	if err := d.working(); err != nil {
		return nil, err
	}
	stream := runner.Stdout
	if request.Stream == driver.Stderr {
		stream = runner.Stderr
	}
	reader, err := d.runner.Output(ctx, run.String(), stream, request.Offset, request.Follow)
	if errors.Is(err, runner.ErrUnknown) {
		return nil, fmt.Errorf("the output of run %s: %w", run, driver.ErrUnknownRun)
	}
	return reader, err
}

// Wait blocks until everything has ended. It must not be called before Start.
func (d *Driver) Wait() { <-d.done }
