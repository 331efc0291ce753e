package shard_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// cluster is a small cluster with its driver: runs start at once and live until they are killed. It can be cut off, told to fail calls and
// to hang in them.
type cluster struct {
	startErr error

	mu     sync.Mutex
	hosts  []driver.Host
	runs   map[workload.RunID]*clusterRun
	token  driver.Token
	fail   map[string]int // calls to fail, by name
	made   []string       // calls made, failed ones included
	hang   chan struct{}  // when set, calls wait until it is closed or their context ends
	events []func(driver.Sink)
	news   chan struct{} // signals events

	done sync.WaitGroup
}

type clusterRun struct {
	launches int
	last     driver.Status
	known    bool // the cluster still has it
}

func newCluster(hosts ...string) *cluster {
	c := &cluster{runs: map[workload.RunID]*clusterRun{}, fail: map[string]int{}, news: make(chan struct{}, 1)}
	for _, name := range hosts {
		c.hosts = append(c.hosts, driver.Host{Name: name, Ready: true, Capacity: map[string]int64{"cpu_milli": 64000}})
	}
	return c
}

// tell queues a call of the sink. c.mu is held.
func (c *cluster) tell(event func(driver.Sink)) {
	c.events = append(c.events, event)
	select {
	case c.news <- struct{}{}:
	default:
	}
}

func (c *cluster) Start(ctx context.Context, sink driver.Sink) error {
	if c.startErr != nil {
		return c.startErr
	}
	c.connect()
	c.done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.news:
			}
			c.mu.Lock()
			events := c.events
			c.events = nil
			c.mu.Unlock()
			for _, event := range events {
				event(sink)
			}
		}
	})
	return nil
}

func (c *cluster) Wait() { c.done.Wait() }

// connect has the driver find its cluster.
func (c *cluster) connect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	inventory := driver.Inventory{Hosts: c.hosts}
	for _, r := range c.runs {
		if r.known {
			inventory.Runs = append(inventory.Runs, r.last)
		}
	}
	c.tell(func(s driver.Sink) { s.Inventory(inventory) })
}

// cut has the driver lose its cluster.
func (c *cluster) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell(func(s driver.Sink) { s.Disconnected(errors.New("connection reset")) })
}

var errCluster = errors.New("the cluster says no")

// enter begins a call: it notes it, hangs, and fails as told. It returns with c.mu held.
func (c *cluster) enter(ctx context.Context, call string) error {
	c.mu.Lock()
	if hang := c.hang; hang != nil {
		c.mu.Unlock()
		select {
		case <-hang:
		case <-ctx.Done():
			c.mu.Lock()
			return ctx.Err()
		}
		c.mu.Lock()
	}
	c.made = append(c.made, call)
	if c.fail[call] > 0 {
		c.fail[call]--
		return errCluster
	}
	return nil
}

// report notes a status and tells it. c.mu is held.
func (c *cluster) report(s driver.Status) {
	c.token++
	s.Token = c.token
	r := c.runs[s.Run]
	if r == nil {
		r = &clusterRun{}
		c.runs[s.Run] = r
	}
	r.last, r.known = s, true
	c.tell(func(sink driver.Sink) { sink.Statuses([]driver.Status{s}) })
}

func (c *cluster) Launch(ctx context.Context, launches []driver.Launch) error {
	err := c.enter(ctx, "launch")
	defer c.mu.Unlock()
	if err != nil {
		return err
	}
	for _, l := range launches {
		if r := c.runs[l.Run]; r != nil {
			r.launches++
			c.report(r.last)
			continue
		}
		c.report(driver.Status{Run: l.Run, State: workload.RunRunning, Healthy: true, Host: l.Host})
		c.runs[l.Run].launches++
	}
	return nil
}

func (c *cluster) Kill(ctx context.Context, kills []driver.Kill) error {
	err := c.enter(ctx, "kill")
	defer c.mu.Unlock()
	if err != nil {
		return err
	}
	for _, k := range kills {
		switch r := c.runs[k.Run]; {
		case r == nil || !r.known:
			c.tell(func(s driver.Sink) {
				s.Statuses([]driver.Status{{Run: k.Run, State: workload.RunLost, Reason: workload.ReasonNotFound}})
			})
		case !r.last.State.Traits().Terminal:
			c.report(driver.Status{Run: k.Run, State: workload.RunKilled, Host: r.last.Host})
		}
	}
	return nil
}

func (c *cluster) Acknowledge(ctx context.Context, tokens []driver.Token) error {
	err := c.enter(ctx, "acknowledge")
	defer c.mu.Unlock()
	if err != nil {
		return err
	}
	for _, token := range tokens {
		for _, r := range c.runs {
			if r.last.Token == token && r.last.State.Traits().Terminal {
				r.known = false
			}
		}
	}
	return nil
}

func (c *cluster) Reconcile(ctx context.Context, runs []workload.RunID) error {
	err := c.enter(ctx, "reconcile")
	defer c.mu.Unlock()
	if err != nil {
		return err
	}
	for _, id := range runs {
		if r := c.runs[id]; r != nil && r.known {
			c.report(r.last)
		} else {
			c.tell(func(s driver.Sink) {
				s.Statuses([]driver.Status{{Run: id, State: workload.RunLost, Reason: workload.ReasonNotFound}})
			})
		}
	}
	return nil
}

func (c *cluster) Capabilities() driver.Capabilities { return driver.Capabilities{Logs: true} }

func (c *cluster) ReadLog(_ context.Context, run workload.RunID, _ driver.LogRequest) (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs[run] == nil {
		return nil, driver.ErrUnknownRun
	}
	return io.NopCloser(strings.NewReader("output of " + run.String())), nil
}

// set changes the cluster's mood.
func (c *cluster) set(change func(*cluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// calls counts the calls of one kind made so far.
func (c *cluster) calls(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, call := range c.made {
		if call == name {
			n++
		}
	}
	return n
}
