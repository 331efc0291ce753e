// Package split cuts one cluster into shards: of one driver it makes several, each of which has a part of the hosts and knows of no other.
//
// It owns which host is in which part, and what is told to whom. Hosts are cut by host pool and then by topology: hosts that share their
// narrowest named domain stay together, so that a gang that wants one domain finds it in one table. A part keeps what it has for as long as
// the connection lives; a host whose domain changes goes to another, and no run is lost over it. It decides nothing else, and starts no goroutine.
//
// The connection stays one: it starts when all parts have started, and ends when the first of them ends.
//
// Concurrency: as core/driver asks of a driver. What the cluster says is passed on by the goroutine that says it, so a part whose queue is full
// holds up the others.
package split

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// MaxParts bounds the parts of one cluster.
const MaxParts = cluster.MaxShards

// Config says what is cut and how.
type Config struct {
	// Driver is the connection to the cluster. It must be a driver.Reconciler.
	Driver driver.Driver
	// Parts is how many there will be, 1 to MaxParts. More place more at once; a score is exact within a part only.
	Parts int
	// Rows is how many hosts a part takes. Default: shard.MaxRows, which is also the most.
	Rows int
	// Domains are the attributes that name domains, from the widest to the narrowest. Default: DefaultDomains.
	Domains []string
}

// DefaultDomains are the names that clusters commonly give their domains.
var DefaultDomains = []string{
	"region", "topology.kubernetes.io/region", "zone", "topology.kubernetes.io/zone", "room", "row", "rack", "topology.kubernetes.io/rack", "switch",
}

// Splitter is one driver in parts.
type Splitter struct {
	config  Config
	parts   []*part
	base    context.Context // of the connection
	cancel  context.CancelFunc
	started chan struct{} // closed when the driver's Start has returned
	result  error         // of Start
	wait    sync.Once

	mu     sync.Mutex
	joined int // parts that have started
	begun  bool
	hosts  book
	owners map[workload.RunID]int // the part of each run that is known to live

	demandMu sync.Mutex
	demand   []bool // of each part
	demanded bool
}

// New cuts a driver. Nothing happens before all Drivers are started.
func New(config Config) (*Splitter, error) {
	if config.Rows == 0 {
		config.Rows = shard.MaxRows
	}
	if config.Domains == nil {
		config.Domains = DefaultDomains
	}
	switch _, reconciles := config.Driver.(driver.Reconciler); {
	case config.Driver == nil || !reconciles:
		return nil, errors.New("only a driver that can reconcile can be cut into parts")
	case config.Parts < 1 || config.Parts > MaxParts:
		return nil, fmt.Errorf("a cluster cannot be cut into %d parts: use 1 to %d", config.Parts, MaxParts)
	case config.Rows < 1 || config.Rows > shard.MaxRows:
		return nil, fmt.Errorf("a part cannot have %d hosts: use 1 to %d", config.Rows, shard.MaxRows)
	}
	s := &Splitter{config: config, started: make(chan struct{}), hosts: newBook(&config), owners: map[workload.RunID]int{}, demand: make([]bool, config.Parts)}
	s.base, s.cancel = context.WithCancel(context.Background())
	for n := range config.Parts {
		s.parts = append(s.parts, &part{splitter: s, number: n})
	}
	return s, nil
}

// Drivers returns the parts. Each can what the whole can.
func (s *Splitter) Drivers() []driver.Driver {
	_, logs := s.config.Driver.(driver.LogReader)
	list := make([]driver.Driver, len(s.parts))
	for n, p := range s.parts {
		if list[n] = p; logs {
			list[n] = logPart{p}
		}
	}
	return list
}

// Homeless is the number of hosts for which no part has room.
func (s *Splitter) Homeless() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts.homeless
}

// part is the driver of one shard.
type part struct {
	splitter *Splitter
	number   int
	sink     driver.Sink // set before the driver starts
}

// Start implements driver.Driver: it waits for the other parts.
func (p *part) Start(ctx context.Context, sink driver.Sink) error {
	s := p.splitter
	context.AfterFunc(ctx, s.cancel)
	p.sink = sink
	s.mu.Lock()
	s.joined++
	last := s.joined == len(s.parts)
	s.begun = s.begun || last
	s.mu.Unlock()
	if last {
		s.result = s.config.Driver.Start(s.base, whole{s})
		close(s.started)
		return s.result
	}
	select {
	case <-s.started:
		return s.result
	case <-s.base.Done():
		return fmt.Errorf("start part %d of %d: %w", p.number, len(s.parts), s.base.Err())
	}
}

// Wait implements driver.Driver.
func (p *part) Wait() {
	s := p.splitter
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()
	if begun {
		s.wait.Do(s.config.Driver.Wait)
	}
}

func (p *part) Launch(ctx context.Context, launches []driver.Launch) error {
	p.own(len(launches), func(n int) workload.RunID { return launches[n].Run })
	return p.splitter.config.Driver.Launch(ctx, launches)
}

func (p *part) Kill(ctx context.Context, kills []driver.Kill) error {
	p.own(len(kills), func(n int) workload.RunID { return kills[n].Run })
	return p.splitter.config.Driver.Kill(ctx, kills)
}

func (p *part) Acknowledge(ctx context.Context, tokens []driver.Token) error {
	return p.splitter.config.Driver.Acknowledge(ctx, tokens)
}

// Reconcile implements driver.Reconciler. Asked for all, the cluster answers to all parts.
func (p *part) Reconcile(ctx context.Context, runs []workload.RunID) error {
	p.own(len(runs), func(n int) workload.RunID { return runs[n] })
	reconciler, _ := p.splitter.config.Driver.(driver.Reconciler)
	return reconciler.Reconcile(ctx, runs)
}

// own notes that the answers about runs are this part's: a cluster that does not know a run does not know its host either.
func (p *part) own(n int, run func(int) workload.RunID) {
	p.splitter.mu.Lock()
	defer p.splitter.mu.Unlock()
	for i := range n {
		p.splitter.owners[run(i)] = p.number
	}
}

// Capabilities implements driver.Capable.
func (p *part) Capabilities() driver.Capabilities {
	if capable, ok := p.splitter.config.Driver.(driver.Capable); ok {
		return capable.Capabilities()
	}
	return driver.Capabilities{}
}

// Demand implements driver.Demander: work waits for the cluster if it waits for one of its parts.
func (p *part) Demand(waiting bool) {
	s := p.splitter
	demander, ok := s.config.Driver.(driver.Demander)
	if !ok {
		return
	}
	s.demandMu.Lock()
	defer s.demandMu.Unlock()
	s.demand[p.number] = waiting
	wanted := false
	for _, one := range s.demand {
		wanted = wanted || one
	}
	if wanted != s.demanded {
		s.demanded = wanted
		demander.Demand(wanted)
	}
}

// Rehearse implements driver.Rehearser.
func (p *part) Rehearse(ctx context.Context, launch *driver.Launch) (driver.Rehearsal, error) {
	rehearser, ok := p.splitter.config.Driver.(driver.Rehearser)
	if !ok {
		return driver.Rehearsal{}, driver.ErrNoRehearsal
	}
	return rehearser.Rehearse(ctx, launch)
}

// logPart is a part of a cluster that keeps the output of its runs.
type logPart struct{ *part }

// ReadLog implements driver.LogReader.
func (p logPart) ReadLog(ctx context.Context, run workload.RunID, request driver.LogRequest) (io.ReadCloser, error) {
	reader, _ := p.splitter.config.Driver.(driver.LogReader)
	return reader.ReadLog(ctx, run, request)
}

// whole is the sink of the driver that is cut.
type whole struct{ *Splitter }

// Inventory implements driver.Sink. Each part is told its hosts and runs, and the names of the others' hosts.
func (w whole) Inventory(inventory driver.Inventory) {
	w.mu.Lock()
	shares := w.hosts.replace(inventory.Hosts)
	clear(w.owners)
	for i := range inventory.Runs {
		status := &inventory.Runs[i]
		to, known := w.route(status)
		for n := range shares {
			if !known || n == to {
				shares[n].Runs = append(shares[n].Runs, *status)
			}
		}
	}
	w.mu.Unlock()
	for n, p := range w.parts {
		p.sink.Inventory(shares[n])
	}
}

// HostsChanged implements driver.Sink.
func (w whole) HostsChanged(changed []driver.Host, removed []string) {
	w.mu.Lock()
	shares := w.hosts.change(changed, removed)
	w.mu.Unlock()
	for n, p := range w.parts { // first those that give hosts up
		if mover, ok := p.sink.(driver.Mover); ok && len(shares[n].moved) > 0 {
			mover.HostsMoved(shares[n].moved)
		}
	}
	for n, p := range w.parts {
		if len(shares[n].changed)+len(shares[n].removed) > 0 {
			p.sink.HostsChanged(shares[n].changed, shares[n].removed)
		}
	}
}

// Statuses implements driver.Sink.
func (w whole) Statuses(statuses []driver.Status) {
	shares := make([][]driver.Status, len(w.parts))
	w.mu.Lock()
	for i := range statuses {
		to, known := w.route(&statuses[i])
		for n := range shares {
			if !known || n == to {
				shares[n] = append(shares[n], statuses[i])
			}
		}
	}
	w.mu.Unlock()
	for n, p := range w.parts {
		if len(shares[n]) > 0 {
			p.sink.Statuses(shares[n])
		}
	}
}

// Disconnected implements driver.Sink.
func (w whole) Disconnected(reason error) {
	for _, p := range w.parts {
		p.sink.Disconnected(reason)
	}
}

// route finds the part that a word about a run is for: the one that has its host, or that spoke of it last. Of a run that neither is known of
// every part is told, as the one that holds room for it must be. mu is held.
func (s *Splitter) route(status *driver.Status) (to int, known bool) {
	to, known = s.hosts.partOf(status.Host)
	if !known {
		to, known = s.owners[status.Run]
	}
	switch {
	case !known:
	case status.State.Traits().Terminal:
		delete(s.owners, status.Run)
	default:
		s.owners[status.Run] = to
	}
	return to, known
}
