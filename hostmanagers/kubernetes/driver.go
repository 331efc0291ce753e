package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/kubernetes/mirror"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

var (
	_ driver.Driver     = (*Driver)(nil)
	_ driver.Capable    = (*Driver)(nil)
	_ driver.Reconciler = (*Driver)(nil)
	_ driver.LogReader  = (*Driver)(nil)
	_ driver.Describer  = (*Driver)(nil)
	_ driver.Rehearser  = (*Driver)(nil)
)

// Driver is one cluster's connection.
type Driver struct {
	cfg  Config
	api  *corev1.CoreV1Client // of pods and nodes it reads what mirror looks at alone
	http *http.Client
	ctx  context.Context // of Start
	done chan struct{}   // closed once everything has ended
	news *news.Queue

	mu       sync.Mutex
	machine  *mirror.Machine
	out      mirror.Output
	queue    []*mirror.Call
	inFlight int
	down     map[string]error // watches that have no contact, and why
	whole    []string         // what is listed in one answer: see expire
	failure  driver.Description
	place    string // which cluster this is, or why that is not known; "": it was not asked
	wakeAt   int64
	unwake   func() bool
	ended    bool
	left     bool      // see Leave
	clearAt  time.Time // when no creation without an answer can have its effect any more

	changed  *sync.Cond // of queue, inFlight and ended
	throttle throttle
}

// New returns a driver that has not started.
func New(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(cfg.client())
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	api, err := newClient(cfg.client(), client)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	machine, err := mirror.New(cfg.Limits)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	d := &Driver{
		cfg: cfg, api: api, http: client, machine: machine, done: make(chan struct{}), news: news.NewQueue(),
		down: map[string]error{"nodes": errStarting, "pods": errStarting}, throttle: throttle{cfg: &cfg},
	}
	d.changed = sync.NewCond(&d.mu)
	return d, nil
}

var errStarting = errors.New("the first list is under way")

// Start begins to list and watch. It returns with the first inventory: an API server that is not there is waited for.
func (d *Driver) Start(ctx context.Context, sink driver.Sink) error {
	d.ctx = ctx
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { d.news.Deliver(work, sink) })
	group.Go(func() { d.watchNodes(work) })
	group.Go(func() { d.watchPods(work) })
	for range d.cfg.Requests {
		group.Go(func() { d.request(work) })
	}
	go func() {
		defer close(d.done)
		<-ctx.Done()
		d.drain()
		cancel()
		d.mu.Lock()
		d.ended = true
		if d.unwake != nil {
			d.unwake()
		}
		d.mu.Unlock()
		d.changed.Broadcast()
		group.Wait()
		utilnet.CloseIdleConnectionsFor(d.http.Transport)
	}()
	select {
	case <-d.news.Begun():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start the Kubernetes cluster: %w", errors.Join(context.Cause(ctx), d.Describe().Err))
	}
}

// Wait blocks until everything has ended. It must not be called before Start.
func (d *Driver) Wait() { <-d.done }

// Stats returns counts of what the driver holds.
func (d *Driver) Stats() mirror.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Stats()
}

// Capabilities says what the cluster can do.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		HealthChecks: true, Logs: true, Isolation: true,
		Notes: []string{"a pod's outputs are one stream: what a run writes to stderr is read as stdout"},
	}
}

// Describe tells how the connection fares.
func (d *Driver) Describe() driver.Description {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.failure
	if newer := d.machine.Newer(); newer > 0 && out.Err == nil {
		out.Err = fmt.Errorf("%w: its pods are of epoch %d, and this one is %d", mirror.ErrStale, newer, d.cfg.Pods.Epoch)
	}
	namespace := d.cfg.Pods.Namespace
	if rule := d.cfg.Pods.NamespacePerPool; rule != "" {
		namespace = rule
	}
	out.Details = map[string]string{"server": d.cfg.API.Host, "namespace": namespace, "owner": d.cfg.Pods.Owner}
	if d.place != "" {
		out.Details["UID of kube-system"] = d.place
	}
	if len(d.whole) > 0 {
		out.Details["lists in one answer, as their pages expire"] = strings.Join(d.whole, ", ")
	}
	if len(d.down) == 0 {
		stats := d.machine.Stats()
		for name, n := range map[string]int{
			"nodes": stats.Nodes, "pods of the cell": stats.Runs, "pods kept for their output": stats.Kept, "pods of others": stats.Foreign,
			"requests under way": stats.Calls,
		} {
			out.Details[name] = strconv.Itoa(n)
		}
	}
	return out
}

// input gives the machine one input and queues what follows from it.
func (d *Driver) input(f func(now int64, out *mirror.Output)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d.cfg.Now().UnixNano(), &d.out)
	d.absorb()
}

// absorb queues what the machine put out, and arranges for its next wake-up. d.mu is held.
func (d *Driver) absorb() {
	if len(d.out.Calls) > 0 {
		d.queue = append(d.queue, d.out.Calls...)
		clear(d.out.Calls)
		d.out.Calls = d.out.Calls[:0]
		d.changed.Broadcast()
	}
	d.news.Add(d.out.News)
	clear(d.out.News)
	d.out.News = d.out.News[:0]
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

// contact takes in how one of the watches fares. There is contact while both have it.
func (d *Driver) contact(watch string, err error) {
	err = d.advised(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	was := len(d.down) == 0
	if err == nil {
		delete(d.down, watch)
	} else {
		d.down[watch] = err
		d.failure.Err, d.failure.ErrAt = fmt.Errorf("watch the %s: %w", watch, err), d.cfg.Now()
		d.failure.Attempts++
	}
	now := d.cfg.Now().UnixNano()
	switch is := len(d.down) == 0; {
	case d.left: // nobody is to hear of it
	case is && !was:
		d.failure = driver.Description{}
		d.machine.Connected(now, &d.out)
	case was && !is:
		d.machine.Lost(now, fmt.Errorf("watch the %s: %w", watch, err), &d.out)
	}
	d.absorb()
}

// demand is input for callers: it fails once the driver has ended.
func (d *Driver) demand(f func(now int64, out *mirror.Output) error) error {
	if d.ctx == nil {
		return errors.New("the Kubernetes cluster has not started")
	}
	if err := d.ctx.Err(); err != nil {
		return fmt.Errorf("the Kubernetes cluster's connection has ended: %w", err)
	}
	if d.hasLeft() {
		return errLeft
	}
	var err error
	d.input(func(now int64, out *mirror.Output) { err = f(now, out) })
	return err
}

func (d *Driver) hasLeft() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left
}

// Launch has pods created; what becomes of them is told by statuses.
func (d *Driver) Launch(_ context.Context, launches []driver.Launch) error {
	return d.demand(func(now int64, out *mirror.Output) error {
		return d.machine.Launch(now, launches, d.cfg.Pods.NamespaceOf, out)
	})
}

// Kill has pods deleted.
func (d *Driver) Kill(_ context.Context, kills []driver.Kill) error {
	return d.demand(func(now int64, out *mirror.Output) error { return d.machine.Kill(now, kills, out) })
}

// Reconcile answers for runs; none: for all.
func (d *Driver) Reconcile(_ context.Context, runs []workload.RunID) error {
	return d.demand(func(now int64, out *mirror.Output) error { return d.machine.Reconcile(now, runs, out) })
}

// Acknowledge lets the pods of runs that have ended be deleted, in time.
func (d *Driver) Acknowledge(_ context.Context, tokens []driver.Token) error {
	return d.demand(func(now int64, out *mirror.Output) error {
		d.machine.Acknowledge(now, tokens, out)
		return nil
	})
}

// drain waits until what was accepted is with the API server, for some time.
func (d *Driver) drain() {
	over := false
	stop := d.cfg.AfterFunc(d.cfg.Drain, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		over = true
		d.changed.Broadcast()
	})
	defer stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for !over && len(d.queue)+d.inFlight > 0 && len(d.down) == 0 {
		d.changed.Wait()
	}
}
