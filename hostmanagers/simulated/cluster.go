package simulated

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
)

// Cluster is the simulated world.
type Cluster struct {
	cfg Config

	mu        sync.Mutex
	now       int64 // UTC nanoseconds; never goes back
	hosts     []*host
	byName    map[string]*host
	runs      map[workload.RunID]*run
	byToken   map[driver.Token]*run // by the token of each reported end
	token     driver.Token
	timers    timers
	failures  uint64 // of hosts, so far
	cuts      uint64 // of the link, so far
	struck    Struck
	cut       bool
	linkEpoch uint32 // grows whenever what is under way to the sink is void
	served    *Driver
	greet     bool // the served driver must hear an inventory first
	outbox    []call
}

// host is one machine. Its runs are a list in the order of their launches.
type host struct {
	driver.Host
	down        bool
	removed     bool
	first, last *run
}

// stand is how a run stands.
type stand struct {
	state   workload.RunState
	reason  workload.Reason
	healthy bool
	code    int32
	signal  int32
	message string
	at      int64
}

// run is one run that lives, or whose end was not acknowledged.
type run struct {
	id         workload.RunID
	host       *host // nil: its host was never known
	hostName   string
	prev, next *run // on its host, while it lives

	actual   stand // how it is
	reported stand // what was last said of it; differs while its host is out of contact
	token    driver.Token
	reports  uint64 // so far; numbers the draws for faults
	epoch    uint32

	simulation workload.Simulation
	health     *workload.HealthCheck
	killed     bool  // a kill was asked for
	killSignal int32 // by which it ends
	heldUntil  int64 // no status of it arrives earlier
	heldEpoch  uint32
}

// call is one call of the sink to be made. Exactly one field is set.
type call struct {
	statuses []driver.Status
	changed  []driver.Host
	removed  []string
	lost     error
}

// New returns a cluster at its origin, with nobody connected.
func New(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, byName: map[string]*host{}, runs: map[workload.RunID]*run{}, byToken: map[driver.Token]*run{}}
	c.now = cfg.Origin.UnixNano()
	if !cfg.Virtual {
		c.now = cfg.Now().UnixNano()
	}
	shared := map[string]map[string]string{} // hosts that say the same have one map, which nobody writes to
	for i := range cfg.Hosts {
		h := cfg.Hosts[i]
		if len(cfg.Features) > 0 {
			key := fmt.Sprint(h.Attributes) // sorted
			if shared[key] == nil {
				shared[key] = execution.WithFeatures(h.Attributes, cfg.Features...)
			}
			h.Attributes = shared[key]
		}
		if h.Name == "" || c.byName[h.Name] != nil {
			return nil, fmt.Errorf("simulated: host %d has no name, or the same name as another: %q", i, h.Name)
		}
		c.addHost(h)
	}
	c.scheduleHostFailure()
	c.scheduleCut()
	return c, nil
}

func (c *Cluster) addHost(h driver.Host) {
	added := &host{Host: h}
	c.hosts = append(c.hosts, added)
	c.byName[h.Name] = added
}

// Now returns the cluster's time.
func (c *Cluster) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	return time.Unix(0, c.now).UTC()
}

// look reads the wall clock. c.mu is held.
func (c *Cluster) look() {
	if !c.cfg.Virtual {
		c.now = max(c.now, c.cfg.Now().UnixNano())
	}
}

// Advance moves virtual time on, lets happen what is due, and tells the sink. What the scheduler does in answer happens at the new time: a
// simulator that wants every event at its own time advances to Next, again and again.
func (c *Cluster) Advance(to time.Time) error {
	if !c.cfg.Virtual {
		return errors.New("simulated: this cluster's time is the wall clock's")
	}
	c.mu.Lock()
	c.elapse(to.UnixNano())
	if c.served != nil && c.served.ctx.Err() != nil {
		c.served, c.outbox = nil, nil
	}
	served := c.served
	c.mu.Unlock()
	if served != nil {
		served.flush()
	}
	return nil
}

// Next returns when something happens next by itself, if anything does. It is now when the sink has not heard all.
func (c *Cluster) Next() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served != nil && (len(c.outbox) > 0 || (c.greet && !c.cut)) {
		return time.Unix(0, c.now).UTC(), true
	}
	at, ok := c.timers.next()
	return time.Unix(0, max(at, c.now)).UTC(), ok
}

// elapse lets happen what is due up to a time, each at its own. c.mu is held.
func (c *Cluster) elapse(to int64) {
	for {
		due, ok := c.timers.pop(to)
		if !ok {
			break
		}
		c.now = max(c.now, due.at)
		c.fire(&due)
	}
	c.now = max(c.now, to)
}

func (c *Cluster) fire(t *timer) {
	if t.run != nil && t.kind != statusArrives && t.epoch != t.run.epoch {
		return
	}
	switch t.kind {
	case runStarts:
		c.startRun(t.run)
	case runHealthy:
		t.run.actual.healthy, t.run.actual.at = true, c.now
		c.report(t.run)
	case runEnds:
		c.endRun(t.run)
	case runKilled:
		c.conclude(t.run, stand{state: workload.RunKilled, code: 128 + t.run.killSignal, signal: t.run.killSignal})
	case statusArrives:
		if t.epoch == c.linkEpoch {
			c.send(*t.late)
		}
	case hostFails:
		c.failSomeHost()
	case hostReturns:
		c.returnHost(t.host)
	case linkCut:
		if c.cfg.Faults.CutEvery == 0 {
			return // it was called off meanwhile
		}
		c.cutLink(errors.New("the simulated link was cut"))
		c.timers.push(timer{at: c.now + int64(c.cfg.Faults.CutFor), kind: linkMended})
	case linkMended:
		c.mendLink()
		c.scheduleCut()
	}
}

// launch takes in one launch. c.mu is held.
func (c *Cluster) launch(l *driver.Launch) {
	if known := c.runs[l.Run]; known != nil {
		c.resend(known)
		return
	}
	r := &run{id: l.Run, hostName: l.Host, simulation: l.Simulation, health: l.Health, host: c.byName[l.Host]}
	if r.simulation.Duration == 0 {
		r.simulation.Duration = c.cfg.DefaultDuration
	}
	c.runs[r.id] = r
	switch h := r.host; {
	case h == nil || h.removed:
		r.host = nil
		c.conclude(r, stand{state: workload.RunLost, reason: workload.ReasonHostLost, message: "there is no such host"})
		return
	case h.down:
		r.host = nil
		c.conclude(r, stand{state: workload.RunLost, reason: workload.ReasonHostUnreachable, message: "the host was out of contact at the launch"})
		return
	default:
		h.add(r)
	}
	r.actual = stand{state: workload.RunStarting, at: c.now}
	c.report(r)
	if c.cfg.LaunchLatency == 0 {
		c.startRun(r)
		return
	}
	c.timers.push(timer{at: c.now + int64(c.cfg.LaunchLatency), kind: runStarts, run: r, epoch: r.epoch})
}

func (h *host) add(r *run) {
	r.prev = h.last
	if h.last != nil {
		h.last.next = r
	} else {
		h.first = r
	}
	h.last = r
}

func (h *host) remove(r *run) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		h.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		h.last = r.prev
	}
	r.prev, r.next = nil, nil
}

// startRun brings a run from STARTING to RUNNING and plans its end.
func (c *Cluster) startRun(r *run) {
	seed := c.cfg.Seed
	if happens(drawRun(seed, forLaunch, &r.id, 0), c.cfg.Faults.LaunchFailure) {
		c.struck.FailedLaunches++
		c.conclude(r, stand{state: workload.RunFailed, reason: workload.ReasonLaunchFailed, message: "the simulated cluster could not start it"})
		return
	}
	r.actual = stand{state: workload.RunRunning, healthy: r.health == nil, at: c.now}
	c.report(r)
	if r.health != nil {
		c.timers.push(timer{at: c.now + int64(max(0, r.health.InitialDelay)), kind: runHealthy, run: r, epoch: r.epoch})
	}
	length := int64(r.simulation.Duration)
	if length > 0 && happens(drawRun(seed, forFailure, &r.id, 0), r.simulation.FailurePerMille) {
		length = int64(drawRun(seed, forFailureTime, &r.id, 0) % uint64(length))
		r.simulation.ExitCode = 1
	}
	if r.simulation.Duration > 0 {
		c.timers.push(timer{at: c.now + length, kind: runEnds, run: r, epoch: r.epoch})
	}
}

func (c *Cluster) endRun(r *run) {
	end := stand{state: workload.RunSucceeded, reason: workload.ReasonExited, code: r.simulation.ExitCode}
	if end.code != 0 {
		end.state = workload.RunFailed
	}
	c.conclude(r, end)
}

// conclude ends a run.
func (c *Cluster) conclude(r *run, end stand) {
	r.epoch++
	end.at = c.now
	r.actual = end
	if r.host != nil && r.host.down {
		return // it stays on its host's list until the host can tell
	}
	c.settle(r)
}

// settle reports a run's end and takes it off its host.
func (c *Cluster) settle(r *run) {
	if r.host != nil {
		r.host.remove(r)
		r.host = nil
	}
	c.report(r)
	c.byToken[r.token] = r
}

// kill asks for a run's end. c.mu is held.
func (c *Cluster) kill(k *driver.Kill) {
	r := c.runs[k.Run]
	switch {
	case r == nil:
		c.send(c.unknown(k.Run))
		return
	case r.reported.state.Traits().Terminal:
		c.resend(r)
		return
	case r.actual.state.Traits().Terminal || (r.killed && k.Grace > 0):
		return // its end is on its way
	}
	r.killed, r.killSignal = true, 15
	delay := int64(min(c.cfg.KillLatency, k.Grace))
	if k.Grace <= 0 {
		r.killSignal, delay = 9, 0
	}
	if r.host.down {
		return // carried out when the host is back
	}
	r.epoch++ // neither its start nor its natural end comes any more
	c.timers.push(timer{at: c.now + delay, kind: runKilled, run: r, epoch: r.epoch})
}

func (c *Cluster) unknown(id workload.RunID) driver.Status {
	return driver.Status{
		Run: id, State: workload.RunLost, Reason: workload.ReasonNotFound, At: time.Unix(0, c.now).UTC(),
		Message: "the simulated cluster knows no such run",
	}
}

// acknowledge forgets a run whose end was reported under the token. c.mu is held.
func (c *Cluster) acknowledge(token driver.Token) {
	if r := c.byToken[token]; r != nil {
		delete(c.byToken, token)
		delete(c.runs, r.id)
	}
}

// report says how a run stands, under a new token, unless its host is out of contact.
func (c *Cluster) report(r *run) {
	if r.host != nil && r.host.down {
		return
	}
	c.reportAs(r, r.actual)
}

func (c *Cluster) reportAs(r *run, s stand) {
	c.token++
	r.reported, r.token = s, c.token
	r.reports++
	seed, faults := c.cfg.Seed, &c.cfg.Faults
	heard := c.served != nil && !c.cut // otherwise nothing of it would have arrived anyway
	if happens(drawRun(seed, forLoss, &r.id, r.reports), faults.LoseStatus) {
		c.struck.LostStatuses += count(heard)
		return
	}
	held := int64(0)
	if happens(drawRun(seed, forDelay, &r.id, r.reports), faults.DelayStatus) {
		held = c.now + int64(drawRun(seed, forDelayTime, &r.id, r.reports)%uint64(faults.MaxDelay)) + 1
		c.struck.DelayedStatuses += count(heard)
	}
	c.dispatch(r, held)
	if happens(drawRun(seed, forDuplicate, &r.id, r.reports), faults.DuplicateStatus) {
		c.struck.DuplicatedStatuses += count(heard)
		c.dispatch(r, 0)
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// resend delivers a run's last report again.
func (c *Cluster) resend(r *run) {
	c.dispatch(r, 0)
}

// dispatch sends a run's last report, not before a time, and not before what was held up of it earlier.
func (c *Cluster) dispatch(r *run, notBefore int64) {
	if c.served == nil || c.cut {
		return // the next inventory tells
	}
	if r.heldEpoch == c.linkEpoch {
		notBefore = max(notBefore, r.heldUntil)
	}
	status := r.status()
	if notBefore <= c.now {
		// What was held up until this very instant may still be among the timers: equal times go in order there.
		if r.heldEpoch != c.linkEpoch || r.heldUntil < c.now {
			c.send(status)
			return
		}
		notBefore = c.now
	}
	r.heldUntil, r.heldEpoch = notBefore, c.linkEpoch
	c.timers.push(timer{at: notBefore, kind: statusArrives, epoch: c.linkEpoch, late: &status})
}

// status renders a run's last report.
func (r *run) status() driver.Status {
	s := &r.reported
	return driver.Status{
		Run: r.id, Token: r.token, State: s.state, Reason: s.reason, Healthy: s.healthy, ExitCode: s.code, Signal: s.signal,
		Message: s.message, At: time.Unix(0, s.at).UTC(), Host: r.hostName,
	}
}

// send appends a status to the last call of the outbox, or to a new one.
func (c *Cluster) send(s driver.Status) {
	if c.served == nil || c.cut || c.greet {
		return // the inventory that is due tells
	}
	if n := len(c.outbox); n > 0 && c.outbox[n-1].statuses != nil && len(c.outbox[n-1].statuses) < maxBatch {
		c.outbox[n-1].statuses = append(c.outbox[n-1].statuses, s)
		return
	}
	c.outbox = append(c.outbox, call{statuses: append(make([]driver.Status, 0, 64), s)})
}

// inventory renders the world as the driver may know it.
func (c *Cluster) inventory() driver.Inventory {
	inventory := driver.Inventory{Hosts: make([]driver.Host, 0, len(c.hosts)), Runs: c.statuses()}
	for _, h := range c.hosts {
		inventory.Hosts = append(inventory.Hosts, h.view())
	}
	return inventory
}

// statuses returns the last report of every run, in the order in which they were made.
func (c *Cluster) statuses() []driver.Status {
	all := make([]driver.Status, 0, len(c.runs))
	for _, r := range c.runs {
		all = append(all, r.status())
	}
	slices.SortFunc(all, func(a, b driver.Status) int {
		if a.Token < b.Token {
			return -1
		}
		return 1 // tokens differ
	})
	return all
}

func (h *host) view() driver.Host {
	v := h.Host
	if h.down {
		v.Ready, v.Message = false, "out of contact"
	}
	return v
}
