package shard

import (
	"fmt"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// More bounds of a shard.
const (
	// maxHeld bounds the leases held at once: a core that has more on its way is asked to wait.
	maxHeld = 16 * MaxBatch
	// maxForeign bounds the runs that are remembered though the core does not know them; more are reported, then forgotten.
	maxForeign = 1 << 16
	// maxMarks bounds the draining marks of hosts that have not been seen.
	maxMarks = MaxRows
)

// Config is what a Machine is made of.
type Config struct {
	ID      ID
	Cluster string
	// Placers are this shard's own. Default: the native one for every strategy.
	Placers placement.PlacerSource
	// Reconciles says that the driver is a driver.Reconciler. Without it, a run that the next inventory does not have is taken for missing
	// without another question, also one that was just sent and one whose host is out of contact.
	Reconciles bool
	// Demands says that the driver is a driver.Demander, to be told whether work waits.
	Demands bool
}

// Machine is one shard's state. Make it with New.
type Machine struct {
	config  Config
	now     int64
	epoch   Epoch // the highest assigned; zero: no core yet
	names   *resource.Names
	table   *host.Table
	placers placement.PlacerSource

	// The two halves of ready: the core's word (every bound run replayed) and the driver's (inventory in, contact not lost).
	replayed  bool
	connected bool
	inventory uint32 // inventories so far

	hosts  map[workload.HostID]*machineHost
	byName map[string]*machineHost
	marks  map[workload.HostID]struct{} // draining, seen or not

	lastLease Lease
	leases    map[Lease]*tenant // held ones
	held      leaseHeap
	runs      runBook
	ended     map[driver.Token]*tenant // ended runs whose last status waits to be acknowledged, by its token
	foreign   int                      // runs that are not bound
	homeless  int                      // live runs whose host is not known
	spare     []*tenant                // for reuse

	judge   *placement.Native // of dry runs alone
	search  *preemption.Search
	pledges map[Lease]*pledge
	dying   map[workload.RunID]uint8 // runs on their way out: why, see preempt.go
	ripe    []*machineHost           // by the message being handled: hosts with pledges on which something ended or changed

	wanting     bool  // the driver was told that work waits
	wantedUntil int64 // and is told that none does then, if nobody asked for hosts meanwhile

	watches []*watch
	touched []*machineHost // by the message being handled

	awaited   questions       // since the last merge
	elsewhere map[string]bool // names of hosts that other shards of the cluster have

	requests []placement.Request // scratch of one Place
	stats    Stats
	out      *Output // of the message being handled
}

// New returns a machine that no core was assigned to and that knows no host.
func New(config Config) (*Machine, error) {
	if config.ID == "" || config.Cluster == "" {
		return nil, fmt.Errorf("a shard needs an ID and a Cluster, not %q and %q", config.ID, config.Cluster)
	}
	m := &Machine{
		config:  config,
		names:   &resource.Names{},
		placers: config.Placers,
		hosts:   map[workload.HostID]*machineHost{},
		byName:  map[string]*machineHost{},
		marks:   map[workload.HostID]struct{}{},
		leases:  map[Lease]*tenant{},
		ended:   map[driver.Token]*tenant{},
		judge:   placement.NewNative(),
		search:  preemption.New(placement.NewNative()),
		pledges: map[Lease]*pledge{},
		dying:   map[workload.RunID]uint8{},
		awaited: questions{runs: map[workload.RunID]struct{}{}},
	}
	m.table = host.New(m.names, MaxRows)
	if m.placers == nil {
		m.placers = nativePlacer{placement.NewNative()}
	}
	return m, nil
}

// Handle takes in one message and says in out what follows from it. now is in nanoseconds; a now below an earlier one counts as that. The
// message's slices and maps belong to the machine afterwards.
func (m *Machine) Handle(now int64, message Message, out *Output) {
	m.now = max(m.now, now)
	out.reset(m.epoch)
	m.out = out
	m.expire()
	m.wantNoMore()
	epoch, ofCore := epochOf(message)
	if !ofCore || epoch == m.epoch { // what follows is said under the present epoch
		m.askAgain()
	}
	if ofCore {
		m.handleCore(epoch, message)
	} else {
		m.handleDriver(message)
	}
	m.tellRipe()
	if len(m.held) > 0 {
		out.NextWake = m.held[0].moment
	}
	if m.awaited.next > 0 {
		m.wakeBy(max(m.awaited.next, m.now+1))
	}
	if m.wanting {
		m.wakeBy(m.wantedUntil)
	}
	m.out = nil
}

// wakeBy asks for a wake-up at a time, or before.
func (m *Machine) wakeBy(at int64) {
	if m.out.NextWake == 0 || at < m.out.NextWake {
		m.out.NextWake = at
	}
}

// Stats returns the machine's counts.
func (m *Machine) Stats() Stats {
	m.stats.Hosts, m.stats.Held, m.stats.Runs, m.stats.Pledged = len(m.hosts), len(m.held), m.runs.len(), len(m.pledges)
	return m.stats
}

func (m *Machine) ready() bool { return m.replayed && m.connected }

// epochOf tells a message of the core from one of the driver or the runtime.
func epochOf(message Message) (Epoch, bool) {
	switch c := message.(type) {
	case Assign:
		return c.Epoch, true
	case Names:
		return c.Epoch, true
	case Replay:
		return c.Epoch, true
	case Adopt:
		return c.Epoch, true
	case Place:
		return c.Epoch, true
	case Preempt:
		return c.Epoch, true
	case Launch:
		return c.Epoch, true
	case Kill:
		return c.Epoch, true
	case Release:
		return c.Epoch, true
	case Acknowledge:
		return c.Epoch, true
	case Watch:
		return c.Epoch, true
	case SetDraining:
		return c.Epoch, true
	}
	return Epoch{}, false
}

func (m *Machine) handleCore(epoch Epoch, message Message) {
	if a, ok := message.(Assign); ok {
		m.assign(a)
		return
	}
	if epoch != m.epoch || epoch == (Epoch{}) { // an older one was fenced off; a newer one, or any before the first, was never assigned
		m.refuseStale(epoch, message)
		return
	}
	switch c := message.(type) {
	case Names:
		m.learnNames(c.Named)
	case Replay:
		m.replay(c)
	case Adopt:
		m.adopt(c.Bound)
	case Place:
		m.place(c)
	case Preempt:
		m.preempt(c)
	case Launch:
		m.launch(c)
	case Kill:
		if len(c.Kills) > 0 {
			m.markKilled(c.Kills)
			m.out.call(KillCall{Kills: c.Kills})
		}
	case Release:
		m.release(c.Leases)
	case Acknowledge:
		m.acknowledge(c.Tokens)
	case Watch:
		m.watch(c.Selectors)
	case SetDraining:
		m.setDraining(c)
	}
}

func (m *Machine) handleDriver(message Message) {
	switch d := message.(type) {
	case InventoryArrived:
		m.takeInventory(d.Inventory)
	case HostsUpdated:
		m.updateHosts(d)
	case HostsMoved:
		m.moveHosts(d.Hosts)
	case StatusesArrived:
		for i := range d.Statuses {
			m.status(&d.Statuses[i])
		}
		m.reportHosts()
	case DriverLost:
		m.driverLost(d.Reason)
	case LaunchFailed:
		m.launchFailed(d)
	case Wake: // expiry is done before every message
	}
}

// assign takes on a new owner. What the driver told stays; what the former owner told goes.
func (m *Machine) assign(a Assign) {
	switch {
	case a.Epoch == m.epoch:
		m.stats.IgnoredMessages++
		return
	case a.Epoch.Less(m.epoch):
		m.refuseStale(a.Epoch, a)
		return
	}
	m.epoch, m.out.Epoch = a.Epoch, a.Epoch
	m.replayed = false
	m.watches = nil
	for len(m.held) > 0 {
		m.dropLease(m.held[0])
	}
	m.awaitNobody()
	clear(m.dying) // the former core's kills may be lost; the new one sends its own
	m.search.Forget()
	for t := range m.runs.all() {
		t.bound = false
	}
	m.foreign = m.runs.len()
	for id := range m.marks {
		if h := m.hosts[id]; h != nil && h.row != host.NoRow {
			m.table.SetDraining(h.row, false)
		}
	}
	clear(m.marks)
	m.renumber(a.Named)
}

// refuseStale answers a message under another epoch than the shard's, where there is an answer to it.
func (m *Machine) refuseStale(epoch Epoch, message Message) {
	m.stats.StaleMessages++
	m.out.Epoch = epoch
	switch c := message.(type) {
	case Place:
		m.refuseBatch(c)
	case Preempt:
		m.refusePreempt(c)
	case Launch:
		m.refuseLaunches(c.Launches, fmt.Sprintf("shard %s has another owner by now", m.config.ID))
	}
}

// driverLost stops placing until the next inventory.
func (m *Machine) driverLost(reason string) {
	if !m.connected {
		m.stats.IgnoredMessages++
		return
	}
	wasReady := m.ready()
	m.connected = false
	m.awaitNobody() // the next inventory begins anew
	if wasReady {
		m.out.reply(NotReady{Reason: reason})
	}
}
