package bench

import (
	"context"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// fleet is a cluster that costs next to nothing, so that what is measured is the cell: a launch runs at once, a kill ends at once, and a run of
// which nothing was asked runs for ever. It remembers its runs, as a cluster does, beyond every connection.
type fleet struct {
	hosts []driver.Host
	names map[string]int32

	mu    sync.Mutex
	runs  map[workload.RunID]fleetRun // no pointers, so the collector has nothing to look for
	token driver.Token
}

type fleetRun struct {
	host  int32
	token driver.Token // of its last status
	ended bool
}

func newFleet(hosts []driver.Host) *fleet {
	f := &fleet{hosts: hosts, names: make(map[string]int32, len(hosts)), runs: map[workload.RunID]fleetRun{}}
	for n, h := range hosts {
		f.names[h.Name] = int32(n)
	}
	return f
}

// Driver returns a connection that has not started.
func (f *fleet) Driver() driver.Driver {
	return &fleetDriver{fleet: f, news: make(chan []driver.Status, fleetQueue)}
}

// fleetQueue is how many answers of a fleet may wait for its shard; one more makes the caller wait.
const fleetQueue = 64

type fleetDriver struct {
	fleet *fleet
	ctx   context.Context
	news  chan []driver.Status
	done  sync.WaitGroup
}

func (d *fleetDriver) Start(ctx context.Context, sink driver.Sink) error {
	d.ctx = ctx
	d.done.Go(func() {
		sink.Inventory(d.fleet.inventory())
		for {
			select {
			case statuses := <-d.news:
				sink.Statuses(statuses)
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

func (f *fleet) inventory() driver.Inventory {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := driver.Inventory{Hosts: f.hosts, Runs: make([]driver.Status, 0, len(f.runs))}
	for id, r := range f.runs {
		i.Runs = append(i.Runs, f.status(id, r))
	}
	return i
}

func (f *fleet) status(id workload.RunID, r fleetRun) driver.Status {
	s := driver.Status{Run: id, Token: r.token, State: workload.RunRunning, Healthy: true, Host: f.hosts[r.host].Name, At: time.Unix(0, 0)}
	if r.ended {
		s.State, s.Reason, s.Healthy = workload.RunKilled, workload.ReasonStopRequested, false
	}
	return s
}

// say records how a run stands, under a new token.
func (f *fleet) say(id workload.RunID, r fleetRun) driver.Status {
	f.token++
	r.token = f.token
	f.runs[id] = r
	return f.status(id, r)
}

func (d *fleetDriver) tell(statuses []driver.Status) error {
	select {
	case d.news <- statuses:
		return nil
	case <-d.ctx.Done():
		return d.ctx.Err()
	}
}

func (d *fleetDriver) Launch(_ context.Context, launches []driver.Launch) error {
	f := d.fleet
	statuses := make([]driver.Status, 0, len(launches))
	f.mu.Lock()
	for n := range launches {
		id := launches[n].Run
		if r, known := f.runs[id]; known {
			statuses = append(statuses, f.status(id, r))
			continue
		}
		statuses = append(statuses, f.say(id, fleetRun{host: f.names[launches[n].Host]}))
	}
	f.mu.Unlock()
	return d.tell(statuses)
}

func (d *fleetDriver) Kill(_ context.Context, kills []driver.Kill) error {
	f := d.fleet
	statuses := make([]driver.Status, 0, len(kills))
	f.mu.Lock()
	for n := range kills {
		if r, known := f.runs[kills[n].Run]; known {
			r.ended = true
			statuses = append(statuses, f.say(kills[n].Run, r))
		} else {
			statuses = append(statuses, driver.Status{Run: kills[n].Run, State: workload.RunLost, Reason: workload.ReasonNotFound})
		}
	}
	f.mu.Unlock()
	return d.tell(statuses)
}

// Acknowledge has nothing to forget: runs that ended are few here.
func (d *fleetDriver) Acknowledge(context.Context, []driver.Token) error { return nil }

func (d *fleetDriver) Wait() { d.done.Wait() }
