package shard_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// The model is a shard as a reader of message.go would write it down: two maps of who holds what, and the few rules that change them.
// TestModel plays random histories on the machine and on the model and compares every answer and, after every step, the books.
func TestModel(t *testing.T) {
	remembered, askedAgain := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt)
		if rapid.Bool().Draw(rt, "fromTheStart") { // else most histories would be over before it is ready
			m.inventory(rt)
			m.assign(rt)
			m.replay(rt)
			m.strand(rt)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"":            m.checkBooks,
			"assign":      m.assign,
			"replay":      m.replay,
			"place":       m.place,
			"preempt":     m.preempt,
			"launchAll":   m.launchAll,
			"launch":      m.launch,
			"release":     m.release,
			"wait":        m.wait,
			"status":      m.status,
			"acknowledge": m.acknowledge,
			"lose":        m.lose,
			"inventory":   m.inventory,
			"fail":        m.failLaunch,
			"removeHost":  m.removeHost,
			"addHost":     m.addHost,
			"strand":      m.strand,
		})
		remembered += m.remembered
		askedAgain += m.asked
	})
	if remembered == 0 {
		t.Error("the search never remembered a host: the histories are too dull")
	}
	t.Logf("runs out of contact were asked for again %d times", askedAgain)
}

const modelHostCPU = 4000

// modelRoom is what a lease or a live run holds.
type modelRoom struct {
	host    string
	class   *placement.Class
	expires int64 // of a lease
	bound   bool  // of a run: the core has it
	heard   bool  // of a run: some status of it came
	sentAt  int   // of a run: inventories before its launch

	pledged bool // a lease that waits for its room
	waits   bool // for whoever ends
	victims []workload.RunID
	told    bool // that its room is free
}

type model struct {
	machine *shard.Machine
	out     shard.Output
	now     int64
	epoch   shard.Epoch
	classes []*placement.Class

	hosts     map[string]bool
	connected bool
	replayed  bool
	arrived   int // inventories
	leases    map[shard.Lease]modelRoom
	runs      map[workload.RunID]modelRoom
	ended     map[workload.RunID]driver.Status // terminal, not acknowledged

	awaited  map[workload.RunID]bool // runs on hosts out of contact that were asked for
	silent   map[workload.RunID]bool // runs that the last inventory left out, and of which nothing came since
	askAt    int64                   // when they are asked for again
	askUntil int64
	asked    int // times that some were

	called    []shard.Lease          // pledges that were called ready since the books were checked
	sent      map[workload.RunID]int // launches that reached the driver
	lastLease shard.Lease
	nextRun   uint32
	nextToken driver.Token
	batch     uint64

	remembered int // hosts that the search was found to remember
}

func newModel(t *rapid.T) *model {
	machine, err := shard.New(shard.Config{ID: "c/0", Cluster: "c", Placers: placers{string(workload.StrategyBestFit): firstFit{}}, Reconciles: true})
	if err != nil {
		t.Fatal(err)
	}
	m := &model{
		machine: machine, hosts: map[string]bool{}, leases: map[shard.Lease]modelRoom{}, runs: map[workload.RunID]modelRoom{},
		ended: map[workload.RunID]driver.Status{}, sent: map[workload.RunID]int{}, awaited: map[workload.RunID]bool{}, silent: map[workload.RunID]bool{},
	}
	for _, cpu := range []int64{500, 1000, 1700} {
		spec := &workload.JobSpec{Kind: workload.Batch}
		spec.Template.Needs[resource.CPU] = cpu
		m.classes = append(m.classes, placement.NewClass(workload.JobID{1}, spec, nil))
	}
	return m
}

func (m *model) ready() bool { return m.connected && m.replayed }

// handle passes a message on and checks what holds for every answer.
func (m *model) handle(t *rapid.T, message shard.Message) {
	m.machine.Handle(m.now, message, &m.out)
	maps.DeleteFunc(m.leases, func(_ shard.Lease, r modelRoom) bool { return r.expires <= m.now })
	for _, call := range m.out.Calls {
		if c, ok := call.(shard.LaunchCall); ok {
			for _, l := range c.Launches {
				if m.sent[l.Run]++; m.sent[l.Run] > 1 {
					t.Fatalf("run %v was sent to the driver twice", l.Run)
				}
			}
		}
	}
	m.called = append(m.called, collect(m.out.Replies, func(r shard.PledgeReady) []shard.Lease { return r.Leases })...)
	next := int64(0)
	if len(m.awaited) > 0 {
		next = m.askAt
	}
	for _, l := range m.leases {
		if next == 0 || l.expires < next {
			next = l.expires
		}
	}
	switch message.(type) {
	case shard.StatusesArrived, shard.Acknowledge, shard.Wake, shard.DriverLost: // change no lease
		if m.out.NextWake != next {
			t.Fatalf("asks to be woken at %d, its first lease runs out at %d", m.out.NextWake, next)
		}
	}
}

// checkPledges wants that every pledge whose room is free was called ready, once.
func (m *model) checkPledges(t *rapid.T) {
	for _, lease := range m.called {
		l, held := m.leases[lease]
		if held && (!l.pledged || l.told) {
			t.Fatalf("lease %d was called ready again, or is no pledge", lease)
		}
		if held && !m.cleared(l) {
			t.Fatalf("lease %d was called ready and its room on %s is not free", lease, l.host)
		}
		if held {
			l.told = true
			m.leases[lease] = l
		}
	}
	m.called = nil
	for lease, l := range m.leases {
		if l.pledged && !l.told && m.cleared(l) {
			t.Fatalf("the room of pledge %d on %s is free, and nobody was told", lease, l.host)
		}
	}
}

// cleared is whether a pledge fits beside all that is on its host but other pledges.
func (m *model) cleared(pledge modelRoom) bool {
	left := modelHostCPU - pledge.class.Needs[resource.CPU]
	for _, l := range m.leases {
		if l.host == pledge.host && !l.pledged {
			left -= l.class.Needs[resource.CPU]
		}
	}
	for id, r := range m.runs {
		if r.host == pledge.host {
			left -= r.class.Needs[resource.CPU]
			if !pledge.waits && slices.Contains(pledge.victims, id) {
				return false
			}
		}
	}
	return left >= 0
}

// checkSearch wants that what the machine's search remembers of hosts is as it is.
func (m *model) checkSearch(t *rapid.T) {
	n, right := m.machine.SearchRemembers()
	if m.remembered += n; !right {
		t.Fatal("the search remembers a host otherwise than it is")
	}
}

// preempt asks for room under a snapshot of everything that the core knows.
func (m *model) preempt(t *rapid.T) {
	m.batch++
	r := preemption.Request{
		Class: rapid.SampledFrom(m.classes).Draw(t, "class"), Count: rapid.IntRange(1, 4).Draw(t, "count"), Gang: rapid.Bool().Draw(t, "gang"),
		Wait: rapid.IntRange(0, 3).Draw(t, "wait") == 0, DryRun: rapid.IntRange(0, 3).Draw(t, "dry") == 0,
	}
	if !r.Wait {
		allow := rapid.Int32Range(0, 5).Draw(t, "allow")
		r.Victims = &preemption.Snapshot{Jobs: []preemption.Job{{ID: workload.JobID{1}, Allow: allow, Pool: -1}}}
	}
	m.handle(t, shard.Preempt{Epoch: m.epoch, Batch: m.batch, Now: m.now, Requests: []preemption.Request{r}})
	pledged, ok := m.out.Replies[0].(shard.Pledged)
	if !ok || pledged.Batch != m.batch || len(pledged.Results) != 1 {
		t.Fatalf("a batch was answered with %v", m.out.Replies)
	}
	result := pledged.Results[0]
	switch n := len(result.Pledges); {
	case n+result.Refused != r.Count || r.Gang && n != 0 && n != r.Count:
		t.Fatalf("%d pledged and %d refused of %d", n, result.Refused, r.Count)
	case n > 0 && !m.ready():
		t.Fatal("pledged before it was ready")
	}
	for _, p := range result.Pledges {
		for _, id := range p.Victims {
			if v, lives := m.runs[id]; !lives || !v.bound || m.hostNamed(t, p.Host) != v.host {
				t.Fatalf("victim %v is no run that the core knows on %v", id, p.Host)
			}
		}
		for _, l := range m.leases {
			for _, id := range p.Victims {
				if l.pledged && !l.waits && !r.Wait && slices.Contains(l.victims, id) {
					t.Fatalf("%v has to go for two pledges", id)
				}
			}
		}
		if r.DryRun {
			if p.Lease != 0 {
				t.Fatal("a dry run took a lease")
			}
			continue
		}
		if p.Lease <= m.lastLease {
			t.Fatalf("lease %d was given before", p.Lease)
		}
		m.lastLease = p.Lease
		m.leases[p.Lease] = modelRoom{
			host: m.hostNamed(t, p.Host), class: r.Class, expires: m.now + int64(shard.PledgeTTL), pledged: true, waits: r.Wait, victims: p.Victims,
		}
	}
}

// checkBooks compares the room in the table with the sum of what is held.
func (m *model) checkBooks(t *rapid.T) {
	m.checkPledges(t)
	m.checkSearch(t)
	table := m.machine.Table()
	if table.Len() != len(m.hosts) {
		t.Fatalf("the table has %d hosts, not %d", table.Len(), len(m.hosts))
	}
	for name := range m.hosts {
		row, ok := table.Lookup(shard.HostID("c", name))
		if !ok {
			t.Fatalf("host %s is not in the table", name)
		}
		want := int64(modelHostCPU)
		for _, l := range m.leases {
			if l.host == name {
				want -= l.class.Needs[resource.CPU]
			}
		}
		for _, r := range m.runs {
			if r.host == name {
				want -= r.class.Needs[resource.CPU]
			}
		}
		if free := table.Free(row)[resource.CPU]; free != want {
			t.Fatalf("host %s has %d free, the model says %d", name, free, want)
		}
	}
}

func (m *model) assign(t *rapid.T) {
	m.epoch.Shard++
	m.handle(t, shard.Assign{Epoch: m.epoch})
	m.replayed = false
	clear(m.leases)
	clear(m.awaited)
	for id, r := range m.runs {
		r.bound = false
		m.runs[id] = r
	}
}

// replay tells the machine of the runs that the core remembers, which may be fewer than there are.
func (m *model) replay(t *rapid.T) {
	if m.replayed || m.epoch == (shard.Epoch{}) {
		return
	}
	message := shard.Replay{Epoch: m.epoch, Done: true}
	for _, id := range sortedRuns(m.runs) {
		if rapid.IntRange(0, 9).Draw(t, "forgotten") == 0 {
			continue
		}
		r := m.runs[id]
		r.bound = true
		m.runs[id] = r
		message.Bound = append(message.Bound, shard.BoundRun{Run: id, Host: shard.HostID("c", r.host), Class: r.class})
	}
	m.replayed = true
	m.handle(t, message)
	if m.connected {
		m.checkMerge(t, func(id workload.RunID) bool { return !m.silent[id] })
	}
}

// checkMerge applies what a merge means, where known says whether the cluster's inventory has a run that was heard of.
func (m *model) checkMerge(t *rapid.T, known func(workload.RunID) bool) {
	var missing, asked []workload.RunID
	clear(m.awaited)
	m.askAt, m.askUntil = m.now+int64(shard.AskEvery), m.now+int64(shard.AnswerWithin)
	for _, id := range sortedRuns(m.runs) {
		r := m.runs[id]
		switch {
		case r.heard && known(id):
		case !r.heard && r.sentAt == m.arrived: // on its way
		case !r.heard:
			asked = append(asked, id)
		case r.bound && !m.hosts[r.host]: // it may live where nobody can tell
			asked = append(asked, id)
			m.awaited[id], m.silent[id] = true, true
		default:
			if r.bound {
				missing = append(missing, id)
			}
			delete(m.runs, id)
		}
	}
	if got := collect(m.out.Replies, func(r shard.RunsMissing) []workload.RunID { return r.Runs }); !slices.Equal(got, missing) {
		t.Fatalf("reported %v as missing, the model says %v", got, missing)
	}
	if got := collect(m.out.Calls, func(c shard.ReconcileCall) []workload.RunID { return c.Runs }); !slices.Equal(got, asked) {
		t.Fatalf("asked the cluster for %v, the model says %v", got, asked)
	}
	rest := slices.DeleteFunc(slices.Clone(m.out.Replies), func(r shard.Reply) bool {
		_, follows := r.(shard.PledgeReady) // what went in the merge may have made room
		return follows
	})
	if len(rest) == 0 || rest[len(rest)-1] != shard.Reply(shard.Ready{}) {
		t.Fatalf("a merge must end with ready: %v", m.out.Replies)
	}
}

// collect joins a part of all elements of one type.
func collect[Of, T, E any](list []Of, part func(T) []E) (all []E) {
	for _, e := range list {
		if v, ok := any(e).(T); ok {
			all = append(all, part(v)...)
		}
	}
	return all
}

func (m *model) place(t *rapid.T) {
	m.batch++
	r := shard.PlaceRequest{
		Class: rapid.SampledFrom(m.classes).Draw(t, "class"), Count: rapid.IntRange(1, 6).Draw(t, "count"), Gang: rapid.Bool().Draw(t, "gang"),
	}
	m.handle(t, shard.Place{Epoch: m.epoch, Batch: m.batch, Requests: []shard.PlaceRequest{r}})
	placed, ok := m.out.Replies[0].(shard.Placed)
	if !ok || placed.Batch != m.batch || len(placed.Results) != 1 {
		t.Fatalf("a batch was answered with %v", m.out.Replies)
	}
	result := placed.Results[0]
	switch n := len(result.Assignments); {
	case n+result.Refused != r.Count:
		t.Fatalf("%d placed and %d refused of %d", n, result.Refused, r.Count)
	case r.Gang && n != 0 && n != r.Count:
		t.Fatalf("%d of a gang of %d were placed", n, r.Count)
	case n > 0 && !m.ready():
		t.Fatal("placed before it was ready")
	}
	for _, a := range result.Assignments {
		if a.Lease <= m.lastLease {
			t.Fatalf("lease %d was given before", a.Lease)
		}
		m.lastLease = a.Lease
		m.leases[a.Lease] = modelRoom{host: m.hostNamed(t, a.Host), class: r.Class, expires: m.now + int64(shard.LeaseTTL)}
	}
	for _, a := range result.Assignments {
		if row, _ := m.machine.Table().Lookup(a.Host); m.machine.Table().Free(row)[resource.CPU] < 0 {
			t.Fatalf("host %s was overfilled", m.hostNamed(t, a.Host))
		}
	}
}

func (m *model) hostNamed(t *rapid.T, id workload.HostID) string {
	for name := range m.hosts {
		if shard.HostID("c", name) == id {
			return name
		}
	}
	t.Fatalf("placed on host %v, which is not there", id)
	return ""
}

// launch sends one launch on any lease that was ever given, for a new run or one that was sent before.
func (m *model) launch(t *rapid.T) {
	lease := shard.Lease(rapid.Uint64Range(1, uint64(m.lastLease)+1).Draw(t, "lease"))
	if held := slices.Sorted(maps.Keys(m.leases)); len(held) > 0 && rapid.Bool().Draw(t, "held") {
		lease = rapid.SampledFrom(held).Draw(t, "which")
	}
	id := workload.RunID{Job: workload.JobID{1}, Instance: m.nextRun, Generation: 1, Run: 1}
	if m.nextRun > 0 && rapid.IntRange(0, 4).Draw(t, "again") == 0 {
		id.Instance = rapid.Uint32Range(0, m.nextRun-1).Draw(t, "run")
	} else {
		m.nextRun++
	}
	if _, here := m.runs[id]; !here && m.sent[id] > 0 {
		return // a core never sends a run again that it was told the end of
	}
	m.launchOn(t, lease, id)
}

// launchAll fills the hosts: every lease is launched on.
func (m *model) launchAll(t *rapid.T) {
	for _, lease := range slices.Sorted(maps.Keys(m.leases)) {
		if m.leases[lease].pledged && rapid.IntRange(0, 3).Draw(t, "early") > 0 {
			continue
		}
		m.launchOn(t, lease, workload.RunID{Job: workload.JobID{1}, Instance: m.nextRun, Generation: 1, Run: 1})
		m.nextRun++
		m.checkPledges(t)
	}
}

func (m *model) launchOn(t *rapid.T, lease shard.Lease, id workload.RunID) {
	room, held := m.leases[lease]
	tooEarly := held && room.pledged && !m.cleared(room)
	hostName := room.host
	if !held {
		hostName = "h0"
	}
	m.handle(t, shard.Launch{Epoch: m.epoch, Launches: []shard.LaunchRun{
		{Lease: lease, HostID: shard.HostID("c", hostName), Launch: driver.Launch{Run: id}},
	}})
	refused := collect(m.out.Replies, func(r shard.LaunchRefused) []workload.RunID { return r.Runs })
	launched := collect(m.out.Calls, func(c shard.LaunchCall) []driver.Launch { return c.Launches })
	_, repeated := m.runs[id]
	switch {
	case !m.ready():
		if len(refused) != 1 || len(launched) != 0 {
			t.Fatalf("launched while not ready: %v %v", refused, launched)
		}
		if m.epoch != (shard.Epoch{}) {
			delete(m.leases, lease)
		}
	case repeated:
		if len(refused)+len(launched) != 0 {
			t.Fatalf("a repeated launch was answered: %v %v", refused, launched)
		}
	case !held, tooEarly:
		delete(m.leases, lease)
		if len(refused) != 1 || len(launched) != 0 {
			t.Fatalf("launched without a lease: %v %v", refused, launched)
		}
	default:
		if len(refused) != 0 || len(launched) != 1 || launched[0].Host != room.host {
			t.Fatalf("a good launch was not made: %v %v", refused, launched)
		}
		delete(m.leases, lease)
		m.runs[id] = modelRoom{host: room.host, class: room.class, bound: true, sentAt: m.arrived}
	}
}

func (m *model) release(t *rapid.T) {
	lease := shard.Lease(rapid.Uint64Range(1, uint64(m.lastLease)+1).Draw(t, "lease"))
	m.handle(t, shard.Release{Epoch: m.epoch, Leases: []shard.Lease{lease}})
	delete(m.leases, lease)
}

func (m *model) wait(t *rapid.T) {
	seconds := rapid.IntRange(1, 20).Draw(t, "seconds")
	if len(m.awaited) > 0 && rapid.Bool().Draw(t, "long") {
		seconds = rapid.SampledFrom([]int{30, 1000}).Draw(t, "how long")
	}
	m.now += int64(time.Duration(seconds) * time.Second)
	var again, missing []workload.RunID
	if len(m.awaited) > 0 && m.now >= m.askAt {
		if again = sortedRuns(m.awaited); m.now >= m.askUntil {
			again, missing = nil, again
			clear(m.awaited)
			for _, id := range missing {
				delete(m.runs, id)
			}
		}
		m.askAt = min(m.now+int64(shard.AskEvery), m.askUntil)
		m.asked++
	}
	m.handle(t, shard.Wake{})
	if got := collect(m.out.Calls, func(c shard.ReconcileCall) []workload.RunID { return c.Runs }); !slices.Equal(got, again) {
		t.Fatalf("asked again for %v, the model says %v", got, again)
	}
	if got := collect(m.out.Replies, func(r shard.RunsMissing) []workload.RunID { return r.Runs }); !slices.Equal(got, missing) {
		t.Fatalf("gave up %v, the model says %v", got, missing)
	}
}

// status reports a live run's next state, or repeats an end.
func (m *model) status(t *rapid.T) {
	if len(m.runs) == 0 || !m.connected {
		return
	}
	id := rapid.SampledFrom(sortedRuns(m.runs)).Draw(t, "run")
	m.nextToken++
	s := driver.Status{Run: id, Host: m.runs[id].host, Token: m.nextToken, State: workload.RunRunning}
	if rapid.Bool().Draw(t, "ends") {
		s.State = workload.RunSucceeded
	}
	r := m.runs[id]
	delete(m.awaited, id)
	delete(m.silent, id)
	m.handle(t, shard.StatusesArrived{Statuses: []driver.Status{s, s}})
	if m.replayed {
		statuses := collect(m.out.Replies, func(x shard.RunStatus) []driver.Status { return []driver.Status{x.Status} })
		foreign := collect(m.out.Replies, func(x shard.Foreign) []driver.Status { return x.Statuses })
		if r.bound && len(statuses) != 2 || !r.bound && len(foreign) != 2 {
			t.Fatalf("a status of a run (bound: %v) was told as %v and %v", r.bound, statuses, foreign)
		}
	}
	if s.State == workload.RunSucceeded {
		delete(m.runs, id)
		m.ended[id] = s
		return
	}
	r.heard = true
	m.runs[id] = r
}

func (m *model) acknowledge(t *rapid.T) {
	if m.epoch == (shard.Epoch{}) {
		return
	}
	message := shard.Acknowledge{Epoch: m.epoch}
	for _, id := range sortedRuns(m.ended) {
		message.Tokens = append(message.Tokens, m.ended[id].Token)
	}
	clear(m.ended)
	m.handle(t, message)
	if got := collect(m.out.Calls, func(c shard.AckCall) []driver.Token { return c.Tokens }); !slices.Equal(got, message.Tokens) {
		t.Fatalf("acknowledged %v instead of %v", got, message.Tokens)
	}
	if stats := m.machine.Stats(); stats.Runs != len(m.runs) {
		t.Fatalf("%d runs are remembered, %d live", stats.Runs, len(m.runs))
	}
}

func (m *model) lose(t *rapid.T) {
	m.connected = false
	clear(m.awaited)
	m.handle(t, shard.DriverLost{Reason: "gone"})
}

// inventory lists most hosts, and most of the runs that were heard of.
func (m *model) inventory(t *rapid.T) {
	if len(m.hosts) == 0 {
		m.hosts["h0"], m.hosts["h1"] = true, true
	}
	var inventory driver.Inventory
	if len(m.hosts) > 1 && rapid.IntRange(0, 3).Draw(t, "away") == 0 {
		away := rapid.SampledFrom(slices.Sorted(maps.Keys(m.hosts))).Draw(t, "which")
		delete(m.hosts, away)
		maps.DeleteFunc(m.leases, func(_ shard.Lease, r modelRoom) bool { return r.host == away })
	}
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		inventory.Hosts = append(inventory.Hosts, modelHost(name))
	}
	listed := map[workload.RunID]bool{}
	for _, id := range sortedRuns(m.runs) {
		silent := 0
		if !m.hosts[m.runs[id].host] {
			silent = 5
		}
		if m.runs[id].heard && rapid.IntRange(0, 9).Draw(t, "listed") > silent {
			listed[id] = true
			inventory.Runs = append(inventory.Runs, driver.Status{Run: id, Host: m.runs[id].host, State: workload.RunRunning})
		}
	}
	m.connected = true
	m.arrived++
	clear(m.silent)
	m.handle(t, shard.InventoryArrived{Inventory: inventory})
	if m.replayed {
		m.checkMerge(t, func(id workload.RunID) bool { return listed[id] })
		return
	}
	for id, r := range m.runs { // the merge to come will find them unknown; until then they keep their room
		if r.heard && !listed[id] {
			m.vanished(t, id)
		}
	}
}

// strand has runs heard of and then a new inventory, which may leave out their hosts, since few histories come to that by themselves.
func (m *model) strand(t *rapid.T) {
	if !m.ready() {
		return
	}
	m.place(t)
	m.launchAll(t)
	for range rapid.IntRange(1, 6).Draw(t, "statuses") {
		m.status(t)
	}
	m.inventory(t)
	m.wait(t)
}

// vanished has a run that the inventory left out end before the merge, so that the model need not remember which inventory knew it.
func (m *model) vanished(t *rapid.T, id workload.RunID) {
	m.nextToken++
	s := driver.Status{Run: id, State: workload.RunLost, Token: m.nextToken}
	m.handle(t, shard.StatusesArrived{Statuses: []driver.Status{s}})
	delete(m.runs, id)
	m.ended[id] = s
}

// failLaunch has the driver refuse a run that was sent and not heard of.
func (m *model) failLaunch(t *rapid.T) {
	for _, id := range sortedRuns(m.runs) {
		r := m.runs[id]
		if r.heard || !m.replayed {
			continue
		}
		m.handle(t, shard.LaunchFailed{Runs: []workload.RunID{id}, Reason: "no"})
		refused := collect(m.out.Replies, func(r shard.LaunchRefused) []workload.RunID { return r.Runs })
		if r.bound != slices.Contains(refused, id) {
			t.Fatalf("the failed launch of %v (bound: %v) was told as %v", id, r.bound, refused)
		}
		delete(m.runs, id)
		return
	}
}

func (m *model) removeHost(t *rapid.T) {
	if len(m.hosts) < 2 || !m.connected {
		return
	}
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(m.hosts))).Draw(t, "host")
	m.handle(t, shard.HostsUpdated{Removed: []string{name}})
	delete(m.hosts, name)
	maps.DeleteFunc(m.leases, func(_ shard.Lease, r modelRoom) bool { return r.host == name })
	lost := collect(m.out.Replies, func(x shard.RunStatus) []workload.RunID {
		if x.Status.State != workload.RunLost {
			t.Fatalf("a run on a removed host is %v", x.Status.State)
		}
		return []workload.RunID{x.Status.Run}
	})
	var want []workload.RunID
	for _, id := range sortedRuns(m.runs) {
		if m.runs[id].host != name || (m.runs[id].sentAt != 0 && !m.runs[id].heard) { // of one on its way the cluster will tell
			continue
		}
		if m.runs[id].bound && m.replayed {
			want = append(want, id)
		}
		delete(m.runs, id)
		delete(m.awaited, id)
	}
	if !slices.Equal(lost, want) {
		t.Fatalf("lost with their host: %v, the model says %v", lost, want)
	}
}

func (m *model) addHost(t *rapid.T) {
	if len(m.hosts) > 4 || !m.connected {
		return
	}
	name := fmt.Sprintf("h%d", rapid.IntRange(0, 9).Draw(t, "host"))
	m.hosts[name] = true
	m.handle(t, shard.HostsUpdated{Changed: []driver.Host{modelHost(name)}})
}

func modelHost(name string) driver.Host {
	return driver.Host{Name: name, Ready: true, Capacity: map[string]int64{"cpu_milli": modelHostCPU}}
}

func sortedRuns[V any](runs map[workload.RunID]V) []workload.RunID {
	return slices.SortedFunc(maps.Keys(runs), func(a, b workload.RunID) int { return cmp.Compare(a.Instance, b.Instance) })
}
