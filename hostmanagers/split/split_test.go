package split_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/conformance/drivertest"
	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
	"github.com/paceline-sched/paceline/hostmanagers/split"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// joined puts the parts of a cluster together again, so that what holds for a driver can be asked of all parts at once.
type joined struct {
	parts []driver.Driver
	sink  driver.Sink

	mu     sync.Mutex
	first  []*driver.Inventory // of each part, until all have one
	host   map[string]int      // part of each host
	run    map[workload.RunID]int
	tokens map[driver.Token]bool // passed on
}

func join(s *split.Splitter) *joined {
	parts := s.Drivers()
	return &joined{
		parts: parts, first: make([]*driver.Inventory, len(parts)), host: map[string]int{}, run: map[workload.RunID]int{}, tokens: map[driver.Token]bool{},
	}
}

// partSink is one part's way to the joined sink.
type partSink struct {
	*joined
	part int
}

func (p partSink) Inventory(i driver.Inventory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first[p.part] = &i
	for _, h := range i.Hosts {
		p.host[h.Name] = p.part
	}
	if slices.Contains(p.first, nil) {
		return
	}
	var all driver.Inventory
	seen := map[workload.RunID]bool{}
	for n, one := range p.first {
		all.Hosts = append(all.Hosts, one.Hosts...)
		for _, r := range one.Runs {
			if p.run[r.Run] = n; !seen[r.Run] {
				all.Runs = append(all.Runs, r)
			}
			seen[r.Run] = true
		}
		p.first[n] = nil
	}
	p.sink.Inventory(all)
}

func (p partSink) HostsChanged(changed []driver.Host, removed []string) {
	p.mu.Lock()
	for _, h := range changed {
		p.host[h.Name] = p.part
	}
	p.mu.Unlock()
	p.sink.HostsChanged(changed, removed)
}

func (p partSink) HostsMoved([]string) {}

func (p partSink) Statuses(statuses []driver.Status) {
	p.sink.Statuses(statuses)
}

func (p partSink) Disconnected(reason error) {
	if p.part == 0 { // all of them are told at once
		p.sink.Disconnected(reason)
	}
}

func (j *joined) Start(ctx context.Context, sink driver.Sink) error {
	j.sink = sink
	errs := make([]error, len(j.parts))
	var group sync.WaitGroup
	for n, p := range j.parts {
		group.Go(func() { errs[n] = p.Start(ctx, partSink{j, n}) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (j *joined) Wait() {
	for _, p := range j.parts {
		p.Wait()
	}
}

// each gives every part what is its own.
func each[T any](j *joined, list []T, part func(T) int, do func(driver.Driver, []T) error) error {
	shares := make([][]T, len(j.parts))
	j.mu.Lock()
	for _, one := range list {
		n := part(one)
		shares[n] = append(shares[n], one)
	}
	j.mu.Unlock()
	for n, share := range shares {
		if len(share) > 0 {
			if err := do(j.parts[n], share); err != nil {
				return err
			}
		}
	}
	return nil
}

func (j *joined) Launch(ctx context.Context, launches []driver.Launch) error {
	return each(j, launches, func(l driver.Launch) int {
		n := j.host[l.Host]
		j.run[l.Run] = n
		return n
	}, func(d driver.Driver, share []driver.Launch) error { return d.Launch(ctx, share) })
}

func (j *joined) Kill(ctx context.Context, kills []driver.Kill) error {
	return each(j, kills, func(k driver.Kill) int { return j.run[k.Run] },
		func(d driver.Driver, share []driver.Kill) error { return d.Kill(ctx, share) })
}

func (j *joined) Acknowledge(ctx context.Context, tokens []driver.Token) error {
	return j.parts[len(j.parts)-1].Acknowledge(ctx, tokens)
}

func (j *joined) Reconcile(ctx context.Context, runs []workload.RunID) error {
	reconciler, _ := j.parts[0].(driver.Reconciler)
	if len(runs) == 0 {
		return reconciler.Reconcile(ctx, nil)
	}
	return each(j, runs, func(r workload.RunID) int { return j.run[r] }, func(d driver.Driver, share []workload.RunID) error {
		r, _ := d.(driver.Reconciler)
		return r.Reconcile(ctx, share)
	})
}

func (j *joined) Capabilities() driver.Capabilities {
	capable, _ := j.parts[0].(driver.Capable)
	return capable.Capabilities()
}

// TestConformance asks of a cluster in three parts, joined again, what is asked of every driver.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t testing.TB) drivertest.Cluster {
		hosts, err := simulated.Generate(simulated.Fleet{Hosts: 7, HostsPerRack: 2})
		if err != nil {
			t.Fatal(err)
		}
		c, err := simulated.New(simulated.Config{Hosts: hosts, LaunchLatency: time.Millisecond, KillLatency: 3 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return drivertest.Cluster{
			Connect: func() (driver.Driver, error) {
				s, err := split.New(split.Config{Driver: c.Driver(), Parts: 3})
				if err != nil {
					return nil, err
				}
				return join(s), nil
			},
			Work: drivertest.Work{
				Exit: func(l *driver.Launch, code int32) {
					l.Simulation = workload.Simulation{Duration: 5 * time.Millisecond, ExitCode: code}
				},
				Forever: func(l *driver.Launch) { l.Simulation = workload.Simulation{} },
				Healthy: func(l *driver.Launch) { l.Health = &workload.HealthCheck{InitialDelay: 5 * time.Millisecond} },
			},
			Cut:  func() { c.Cut(errors.New("cut by the test")) },
			Mend: c.Mend,
			RemoveHost: func(name string) {
				if err := c.RemoveHost(name); err != nil {
					t.Error(err)
				}
			},
		}
	})
}

// mute is a driver whose cluster says what a test has it say.
type mute struct {
	driver.Driver
	sink    driver.Sink
	started int
	demand  []bool
}

func (m *mute) Start(_ context.Context, sink driver.Sink) error {
	m.sink = sink
	m.started++
	return nil
}
func (m *mute) Wait()                                             { m.started-- }
func (m *mute) Launch(context.Context, []driver.Launch) error     { return nil }
func (m *mute) Kill(context.Context, []driver.Kill) error         { return nil }
func (m *mute) Reconcile(context.Context, []workload.RunID) error { return nil }
func (m *mute) Demand(waiting bool)                               { m.demand = append(m.demand, waiting) }

// table is what one part was told.
type table struct {
	hosts     map[string]driver.Host
	elsewhere map[string]bool
	statuses  []driver.Status
	moved     int
	t         fataler
}

type fataler interface{ Fatalf(string, ...any) }

func (p *table) Inventory(i driver.Inventory) {
	p.hosts, p.elsewhere = map[string]driver.Host{}, map[string]bool{}
	for _, h := range i.Hosts {
		p.hosts[h.Name] = h
	}
	for _, name := range i.Elsewhere {
		p.elsewhere[name] = true
	}
	p.statuses = append(p.statuses, i.Runs...)
}

func (p *table) HostsChanged(changed []driver.Host, removed []string) {
	for _, h := range changed {
		p.hosts[h.Name] = h
		delete(p.elsewhere, h.Name)
	}
	for _, name := range removed {
		if _, ok := p.hosts[name]; !ok {
			p.t.Fatalf("a part is told of the end of host %s, which it does not have", name)
		}
		delete(p.hosts, name)
	}
}

func (p *table) HostsMoved(names []string) {
	for _, name := range names {
		if _, ok := p.hosts[name]; !ok {
			p.t.Fatalf("host %s moves away from where it is not", name)
		}
		delete(p.hosts, name)
		p.moved++
	}
}

func (p *table) Statuses(s []driver.Status) { p.statuses = append(p.statuses, s...) }
func (p *table) Disconnected(error)         { p.hosts = nil }

// start cuts a cluster and starts every part.
func start(t fataler, m *mute, config split.Config) (*split.Splitter, []driver.Driver, []*table, func()) {
	config.Driver = m
	s, err := split.New(config)
	if err != nil {
		t.Fatalf("cut: %v", err)
	}
	parts := s.Drivers()
	tables := make([]*table, len(parts))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for n, p := range parts {
		tables[n] = &table{t: t}
		group.Go(func() {
			if err := p.Start(ctx, tables[n]); err != nil {
				t.Fatalf("start part %d: %v", n, err)
			}
		})
	}
	group.Wait()
	return s, parts, tables, func() {
		cancel()
		for _, p := range parts {
			p.Wait()
		}
		if m.started != 0 {
			t.Fatalf("the driver was started and not waited for, or the other way round: %d", m.started)
		}
	}
}

// TestHostsAreInOnePartEach: whatever a cluster says of its hosts, each is in one part, none in two, no part has more than it may, and hosts that share
// their narrowest domain and pool are together unless there is no room.
func TestHostsAreInOnePartEach(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parts, rows := rapid.IntRange(1, 5).Draw(rt, "parts"), rapid.SampledFrom([]int{4, 8, 50}).Draw(rt, "rows")
		m := &mute{}
		s, _, tables, end := start(rt, m, split.Config{Parts: parts, Rows: rows})
		defer end()
		truth, full := map[string]driver.Host{}, false // full: a part was at some time
		draw := func() driver.Host {
			h := driver.Host{Name: fmt.Sprintf("h%d", rapid.IntRange(0, 39).Draw(rt, "host")), Attributes: map[string]string{}}
			h.Pool = rapid.SampledFrom([]string{"", "gpu"}).Draw(rt, "pool")
			if zone := rapid.IntRange(0, 2).Draw(rt, "zone"); zone > 0 {
				h.Attributes["zone"] = fmt.Sprint("z", zone)
			}
			if rack := rapid.IntRange(0, 8).Draw(rt, "rack"); rack > 0 {
				h.Attributes["rack"] = fmt.Sprint("r", rack)
			}
			return h
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "inventory") || len(truth) == 0 && tables[0].hosts == nil {
				truth = map[string]driver.Host{}
				var list []driver.Host
				for range rapid.IntRange(0, 40).Draw(rt, "hosts") {
					if h := draw(); truth[h.Name].Name == "" {
						truth[h.Name] = h
						list = append(list, h)
					}
				}
				m.sink.Inventory(driver.Inventory{Hosts: list})
				for n, p := range tables {
					full = full || len(list) >= rows
					if len(p.hosts)+len(p.elsewhere) < len(list)-s.Homeless() {
						rt.Fatalf("part %d knows %d hosts here and %d elsewhere, of %d", n, len(p.hosts), len(p.elsewhere), len(list))
					}
				}
				full = check(rt, truth, tables, s.Homeless(), rows, full)
				continue
			}
			var changed []driver.Host
			var removed []string
			for range rapid.IntRange(0, 6).Draw(rt, "changes") {
				h := draw()
				if slices.ContainsFunc(changed, func(o driver.Host) bool { return o.Name == h.Name }) || slices.Contains(removed, h.Name) {
					continue
				}
				if _, known := truth[h.Name]; known && rapid.Bool().Draw(rt, "remove") {
					removed = append(removed, h.Name)
					delete(truth, h.Name)
					continue
				}
				truth[h.Name] = h
				changed = append(changed, h)
			}
			for _, p := range tables {
				full = full || len(p.hosts)+len(changed) >= rows // it may be in the middle of the message
			}
			m.sink.HostsChanged(changed, removed)
			full = check(rt, truth, tables, s.Homeless(), rows, full)
		}
	})
}

func check(t fataler, truth map[string]driver.Host, tables []*table, homeless, rows int, full bool) bool {
	seen := 0
	units := map[string]map[int]bool{}
	for n, p := range tables {
		full = full || len(p.hosts) == rows
		if len(p.hosts) > rows {
			t.Fatalf("part %d has %d hosts of at most %d", n, len(p.hosts), rows)
		}
		for name, h := range p.hosts {
			if want, ok := truth[name]; !ok || want.Pool != h.Pool || want.Attributes["rack"] != h.Attributes["rack"] {
				t.Fatalf("part %d has host %s as %v, which is %v", n, name, h, want)
			}
			seen++
			unit := h.Pool + "/" + h.Attributes["rack"]
			if h.Attributes["rack"] == "" {
				unit = h.Pool + "/zone/" + h.Attributes["zone"]
			}
			if unit == h.Pool+"/zone/" {
				continue // in no domain
			}
			if units[unit] == nil {
				units[unit] = map[int]bool{}
			}
			units[unit][n] = true
		}
	}
	if seen+homeless != len(truth) || homeless > 0 && !full {
		t.Fatalf("%d hosts are in parts and %d in none, of %d", seen, homeless, len(truth))
	}
	for unit, in := range units {
		if len(in) > 1 && !full {
			t.Fatalf("domain %s is in %d parts, and none was ever full", unit, len(in))
		}
	}
	return full
}

func TestTheFirstInventoryKeepsPoolsTogether(t *testing.T) {
	m := &mute{}
	_, _, tables, end := start(t, m, split.Config{Parts: 4})
	defer end()
	var list []driver.Host
	for n := range 400 {
		h := driver.Host{Name: fmt.Sprintf("h%03d", (n*37)%400), Attributes: map[string]string{"zone": fmt.Sprint("z", n/200), "rack": fmt.Sprint("r", n/10)}}
		if n >= 200 {
			h.Pool = "gpu"
		}
		list = append(list, h)
	}
	m.sink.Inventory(driver.Inventory{Hosts: list})
	for n, p := range tables {
		pools := map[string]bool{}
		for _, h := range p.hosts {
			pools[h.Pool] = true
		}
		if len(p.hosts) != 100 || len(pools) != 1 || len(p.elsewhere) != 300 {
			t.Errorf("part %d has %d hosts of %d pools, and %d elsewhere", n, len(p.hosts), len(pools), len(p.elsewhere))
		}
	}
}

func TestWordsOfRunsFindTheirPart(t *testing.T) {
	m := &mute{}
	_, parts, tables, end := start(t, m, split.Config{Parts: 3})
	defer end()
	m.sink.Inventory(driver.Inventory{Hosts: []driver.Host{
		{Name: "a", Attributes: map[string]string{"rack": "1"}}, {Name: "b", Attributes: map[string]string{"rack": "2"}}, {Name: "c", Attributes: map[string]string{"rack": "3"}},
	}})
	run := func(n uint32) workload.RunID { return workload.RunID{Instance: n, Run: 1} }
	at := func(host string) int {
		return slices.IndexFunc(tables, func(p *table) bool { _, ok := p.hosts[host]; return ok })
	}
	hears := func(what string, status driver.Status, want ...int) {
		t.Helper()
		for _, p := range tables {
			p.statuses = nil
		}
		m.sink.Statuses([]driver.Status{status})
		for n, p := range tables {
			if got := len(p.statuses) == 1; got != slices.Contains(want, n) {
				t.Errorf("%s: part %d hears it %v", what, n, got)
			}
		}
	}
	hears("a word with a host", driver.Status{Run: run(1), State: workload.RunRunning, Host: "b"}, at("b"))
	hears("one without, of a run that was heard of", driver.Status{Run: run(1), State: workload.RunUnreachable}, at("b"))
	if err := parts[at("c")].Launch(t.Context(), []driver.Launch{{Run: run(2), Host: "c"}}); err != nil {
		t.Fatal(err)
	}
	hears("the end of a run that was only launched", driver.Status{Run: run(2), State: workload.RunLost}, at("c"))
	if err := parts[at("a")].Kill(t.Context(), []driver.Kill{{Run: run(3)}}); err != nil {
		t.Fatal(err)
	}
	hears("the answer to a kill", driver.Status{Run: run(3), State: workload.RunLost, Reason: workload.ReasonNotFound}, at("a"))
	hears("a word of a run that nobody knows", driver.Status{Run: run(4), State: workload.RunLost}, 0, 1, 2)
	hears("a host that is gone", driver.Status{Run: run(5), State: workload.RunFailed, Host: "z"}, 0, 1, 2)
}

func TestWorkWaitsForTheWhole(t *testing.T) {
	m := &mute{}
	_, parts, _, end := start(t, m, split.Config{Parts: 2})
	defer end()
	say := func(part int, waiting bool) {
		d, ok := parts[part].(driver.Demander)
		if !ok {
			t.Fatal("a part takes no demand")
		}
		d.Demand(waiting)
	}
	say(0, true)
	say(1, true)
	say(0, false)
	say(1, false)
	say(1, false)
	if !slices.Equal(m.demand, []bool{true, false}) {
		t.Errorf("the cluster heard of demand %v", m.demand)
	}
}

func TestWhatCannotBeCut(t *testing.T) {
	type silent struct{ driver.Driver }
	for name, config := range map[string]split.Config{
		"no driver": {Parts: 2}, "a driver that cannot reconcile": {Driver: silent{}, Parts: 2}, "no parts": {Driver: &mute{}},
		"too many parts": {Driver: &mute{}, Parts: split.MaxParts + 1}, "too many rows": {Driver: &mute{}, Parts: 1, Rows: 1 << 20},
	} {
		if _, err := split.New(config); err == nil {
			t.Errorf("%s can be cut", name)
		}
	}
}

func TestAPartThatEndsEndsTheConnection(t *testing.T) {
	m := &mute{}
	s, err := split.New(split.Config{Driver: m, Parts: 2})
	if err != nil {
		t.Fatal(err)
	}
	parts := s.Drivers()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := parts[0].Start(ctx, &table{t: t}); err == nil {
		t.Error("a part started without the other")
	}
	parts[0].Wait()
	parts[1].Wait()
	if m.started != 0 {
		t.Error("a driver that was not started is waited for")
	}
}
