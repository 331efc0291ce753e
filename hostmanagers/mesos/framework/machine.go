package framework

import (
	"container/heap"
	"errors"

	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

// ErrNotConnected is returned for what cannot be done while the framework has no master, or does not know yet what the master knows.
var ErrNotConnected = errors.New("the framework is not connected to its Mesos master; try again when it is")

// Output is what follows from an input. The caller keeps one and hands it in again.
type Output struct {
	// Calls are for the master, in this order. What becomes of them is told by Machine.Failed, if it is not good.
	Calls []Call
	// News are for the shard, in this order.
	News []news.Item
	// Feedback is what became of operations on resources.
	Feedback []Feedback
	// Census asks for what the master's operator API says, to be told by Machine.Learn.
	Census Question
}

// Question is what the operator API is asked.
type Question uint8

// The questions.
const (
	AskNothing Question = iota
	AskAgents
	AskAgentsAndTasks
)

// Call is one call. Its framework id is for the connection to fill in.
type Call struct {
	*scheduler.Call

	runs       []*run // that it launches
	operations []string
	failures   int // of the same call, before this one
}

// Stats are what a machine holds.
type Stats struct {
	Agents  int
	Offers  int // held
	Runs    int // that live or whose end was not acknowledged
	Waiting int // launches that wait for offers
	Unacked int // statuses that the shard has not acknowledged
}

// Machine is one framework's knowledge. Make it with New.
//
// All methods take the time in nanoseconds; one below an earlier one counts as that. They write into out what follows.
type Machine struct {
	cfg     Config
	now     int64
	out     *Output
	flavors flavors

	// The connection. Calls are made while subscribed; news are told once the inventory of the subscription was.
	subscribed bool
	told       bool
	master     string
	met        int64 // when the first subscription to this master began
	inherited  bool  // see Inherit
	gather     gathering

	agents map[string]*agent // by id
	names  map[string]*agent // by host name
	offers map[string]*offer
	dirty  []*agent // whose rows may have changed
	stale  []*agent // whose details may have changed

	demand     bool
	suppressed bool  // and it was not revived since
	revive     bool  // filters hold back what a launch needs
	revived    int64 // the last REVIVE
	quietAt    int64 // offers are let come until then, demand or not
	returned   map[*agent]struct{}

	runs    map[workload.RunID]*run
	pending map[driver.Token]pending
	token   driver.Token
	waiting int
	parked  []deadline // launches that wait, in the order of their deadlines
	silent  []deadline // runs of which a word is expected, in the order of the time when they are asked for

	doubts  []*run                    // to be reconciled by name
	doubtAt int64                     // not before
	asked   map[workload.RunID]bool   // runs that the machine does not know, whose answer is to be told; true: in unknown
	unknown []openQuestion            // of these, those that the master does not know yet, in the order of their times
	askAt   int64                     // they are not asked for before
	sizes   map[workload.RunID]bundle // of runs of an earlier process that the master has not spoken of
	known   bool                      // an inventory was given: runs of earlier processes are known

	operations map[string]*operation
	operated   uint64

	probeAt, implicitAt, sweepAt, detailsAt int64
	censusBad                               bool // the operator API did not answer the last time
	resending                               int  // calls that failed and wait for another try
	timers                                  timers
	timerNo                                 uint64
}

// New returns a machine that knows nothing.
func New(cfg Config) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Machine{
		cfg: cfg, flavors: flavors{byKey: map[string]*flavor{}, roles: cfg.Roles}, token: driver.Token(cfg.FirstToken), suppressed: false,
		agents: map[string]*agent{}, names: map[string]*agent{}, offers: map[string]*offer{}, runs: map[workload.RunID]*run{},
		pending: map[driver.Token]pending{}, asked: map[workload.RunID]bool{}, operations: map[string]*operation{},
		returned: map[*agent]struct{}{},
	}, nil
}

// Inherit says, before the first subscription, that the framework is older than the machine: agents may have tasks of it that the machine was
// never told of.
func (m *Machine) Inherit() { m.inherited = true }

// Stats returns the machine's counts.
func (m *Machine) Stats() Stats {
	return Stats{Agents: len(m.names), Offers: len(m.offers), Runs: len(m.runs), Waiting: m.waiting, Unacked: len(m.pending)}
}

// begin opens an input: what is due until now happens first.
func (m *Machine) begin(now int64, out *Output) {
	m.now = max(m.now, now)
	clear(out.Calls)
	clear(out.News)
	*out = Output{Calls: out.Calls[:0], News: out.News[:0]}
	m.out = out
	m.fire()
}

// end closes an input: hosts that changed are told of, and offers are asked for or given back as they are wanted.
func (m *Machine) end() {
	if m.told {
		m.pace()
		m.tellHosts()
	}
	m.out = nil
}

// Wake lets happen what is due.
func (m *Machine) Wake(now int64, out *Output) {
	m.begin(now, out)
	m.end()
}

// Next is when the machine wants a Wake; 0: not before another input.
func (m *Machine) Next() int64 {
	next := int64(0)
	sooner := func(at int64) {
		if at > 0 && (next == 0 || at < next) {
			next = at
		}
	}
	if len(m.timers) > 0 {
		sooner(m.timers[0].at)
	}
	if len(m.parked) > 0 {
		sooner(m.parked[0].at)
	}
	if !m.subscribed {
		return next
	}
	if len(m.silent) > 0 {
		sooner(m.silent[0].at)
	}
	if len(m.doubts) > 0 {
		sooner(max(m.doubtAt, 1))
	}
	if len(m.unknown) > 0 {
		sooner(max(m.unknown[0].at, m.askAt))
	}
	if !m.told {
		sooner(m.gather.until(m.now))
		return next
	}
	sooner(m.implicitAt)
	sooner(m.sweepAt)
	sooner(m.detailsAt)
	if m.wanted() && (m.suppressed || m.revive) {
		sooner(m.revived + int64(m.cfg.ReviveEvery))
	}
	sooner(m.probeAt)
	sooner(m.quietAt)
	return next
}

// fire does what is due.
func (m *Machine) fire() {
	for len(m.timers) > 0 && m.timers[0].at <= m.now {
		due := heap.Pop(&m.timers).(*timer) //nolint:errcheck // only timers are pushed
		due.do()
	}
	for len(m.parked) > 0 && m.parked[0].at <= m.now {
		r := m.parked[0].run
		m.parked = m.parked[1:]
		m.giveUp(r)
	}
	if !m.subscribed {
		return
	}
	for len(m.silent) > 0 && m.silent[0].at <= m.now {
		r := m.silent[0].run
		m.silent = m.silent[1:]
		m.stillSilent(r)
	}
	m.askDoubts()
	m.askUnknown()
	if !m.told {
		m.tryInventory()
		return
	}
	m.periodic()
}

// periodic does what comes round by the clock while the framework is connected.
func (m *Machine) periodic() {
	if m.implicitAt > 0 && m.implicitAt <= m.now {
		m.implicitAt = m.now + int64(m.cfg.ReconcileEvery)
		m.call(&scheduler.Call{Type: scheduler.Call_RECONCILE, Reconcile: &scheduler.Call_Reconcile{}})
	}
	if m.sweepAt > 0 && m.sweepAt <= m.now {
		m.sweep()
	}
	if m.detailsAt > 0 && m.detailsAt <= m.now {
		m.detailsAt = 0
		m.refreshDetails()
	}
	if m.quietAt > 0 && m.quietAt <= m.now {
		m.quietAt = 0 // pace suppresses
	}
	if m.probeAt > 0 && m.probeAt <= m.now {
		m.probe()
	}
}

func (m *Machine) call(c *scheduler.Call) { m.out.Calls = append(m.out.Calls, Call{Call: c}) }

// tell queues statuses, behind others in one piece of news.
func (m *Machine) tell(s *driver.Status) {
	if !m.told {
		return // the inventory will
	}
	if n := len(m.out.News); n > 0 && len(m.out.News[n-1].Statuses) > 0 {
		m.out.News[n-1].Statuses = append(m.out.News[n-1].Statuses, *s)
		return
	}
	m.out.News = append(m.out.News, news.Item{Statuses: []driver.Status{*s}})
}

// deadline is when something is due for a run. Queues of them hold one kind of delay, so that they are in order by themselves.
type deadline struct {
	at  int64
	run *run
}

// timer is something that will happen. What it does looks whether it is still wanted.
type timer struct {
	at  int64
	seq uint64
	do  func()
}

func (m *Machine) after(delay int64, do func()) {
	m.timerNo++
	heap.Push(&m.timers, &timer{at: m.now + delay, seq: m.timerNo, do: do})
}

// timers is a heap by time, then by age.
type timers []*timer

func (t timers) Len() int { return len(t) }

func (t timers) Less(i, j int) bool {
	return t[i].at < t[j].at || (t[i].at == t[j].at && t[i].seq < t[j].seq)
}

func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }

// Push is heap.Interface's.
func (t *timers) Push(x any) {
	*t = append(*t, x.(*timer)) //nolint:errcheck // container/heap passes on what this package pushes
}

// Pop is heap.Interface's.
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return last
}
