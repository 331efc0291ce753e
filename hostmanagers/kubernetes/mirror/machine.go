package mirror

import (
	"cmp"
	"container/heap"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

// ErrNotConnected is returned for what cannot be done before the cluster's nodes and pods are known.
var ErrNotConnected = errors.New("the Kubernetes cluster's nodes and pods are not known yet; try again when the cluster is connected")

// Output is what follows from an input. The caller keeps one, takes out what is in it, and hands it in again.
type Output struct {
	// Calls are for the API server. Each is answered by Machine.Answer, once. Those of one run are to be made in order.
	Calls []*Call
	// News are for the shard, in this order.
	News []news.Item
}

// Call is one request.
type Call struct {
	Run       workload.RunID
	Namespace string
	// Launch is to be created, on Host, whose GPUs are the resource GPU. nil: the pod is to be deleted.
	Launch *driver.Launch
	GPU    string
	// UID is that of the pod that is to be deleted. Grace is in seconds; 0 removes it at once.
	UID   string
	Grace int64

	run   *run
	paced bool // counts among the removals
	given bool // nobody wants it created any more: the run is to end, or its pod is there
}

// Answer is what became of a call.
type Answer struct {
	// Pod is the one that was created, or that has the name already. nil: there is none.
	Pod *Pod
	// Refused is the word of the table for why the API server does not take it; "": it does.
	Refused string
	Message string
	// GivenUp: nobody wanted the pod any more, and there is none.
	GivenUp bool
	// Doubt: an attempt to create the pod, made within Config.LateCreation before, may still have its effect.
	Doubt bool
}

// Stats are what a machine holds. Kept are those of the runs whose pods are kept for their output.
type Stats struct{ Nodes, Foreign, Runs, Kept, Calls int }

// foreign is a pod of somebody else, on its node.
type foreign struct {
	node    *node
	takes   Demand
	listing uint64 // the list of pods that was the newest when it was told of
}

// Machine is what is known of one cluster. Make it with New.
//
// All methods take the time in nanoseconds; one below an earlier one counts as that. They write into out what follows.
type Machine struct {
	cfg Config
	now int64
	out *Output

	contact, haveNodes, havePods, told bool

	begun bool   // an inventory was told
	newer uint64 // see Newer

	nodes   map[string]*node
	foreign map[Key]foreign
	runs    map[workload.RunID]*run
	pending map[driver.Token]*run // ends that the shard has not acknowledged
	token   driver.Token
	calls   int

	kept      keptRuns // acknowledged ends whose pods stay for their output; at most Config.KeepEndedPods
	keptUntil int64    // for when expire was arranged last
	leaving   []*run   // whose pods are to go
	removals  int      // of these: under way

	listing  uint64 // the number of the present list of pods
	dirty    []*node
	removed  []string
	statuses []driver.Status
	timers   timers
	timerNo  uint64
}

// New returns a machine that knows nothing.
func New(cfg Config) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Machine{
		cfg: cfg, nodes: map[string]*node{}, foreign: map[Key]foreign{}, runs: map[workload.RunID]*run{},
		pending: map[driver.Token]*run{}, token: driver.Token(cfg.FirstToken),
	}, nil
}

// Stats returns counts of what the machine holds.
func (m *Machine) Stats() Stats {
	return Stats{Nodes: len(m.nodes), Foreign: len(m.foreign), Runs: len(m.runs), Kept: len(m.kept), Calls: m.calls}
}

func (m *Machine) begin(now int64, out *Output) {
	m.now, m.out = max(m.now, now), out
}

// end tells what has come together.
func (m *Machine) end() {
	if !m.told && m.contact && m.haveNodes && m.havePods {
		m.tellInventory()
	}
	if m.told {
		m.tellHosts()
		if len(m.statuses) > 0 {
			m.out.News = append(m.out.News, news.Item{Statuses: m.statuses})
		}
	}
	m.statuses, m.out = nil, nil
}

func (m *Machine) tellHosts() {
	if len(m.dirty) == 0 && len(m.removed) == 0 {
		return
	}
	slices.SortFunc(m.dirty, func(a, b *node) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(m.removed)
	hosts := news.Item{Removed: m.removed}
	for _, n := range m.dirty {
		n.dirty = false
		if n.known && m.nodes[n.Name] == n {
			hosts.Changed = append(hosts.Changed, m.host(n))
		}
	}
	m.dirty, m.removed = m.dirty[:0], nil
	if len(hosts.Changed) > 0 || len(hosts.Removed) > 0 {
		m.out.News = append(m.out.News, hosts)
	}
}

func (m *Machine) tellInventory() {
	m.told, m.begun = true, true
	for _, r := range m.sorted() {
		if n := m.nodes[r.host]; r.phase == live && !n.known {
			m.lose(r, workload.ReasonHostLost, "its node left the cluster")
		}
	}
	inventory := &driver.Inventory{}
	names := make([]string, 0, len(m.nodes))
	for name, n := range m.nodes {
		if n.dirty = false; n.known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		inventory.Hosts = append(inventory.Hosts, m.host(m.nodes[name]))
	}
	for _, r := range m.runs {
		if r.phase != forgotten && r.last.State != workload.RunNone {
			inventory.Runs = append(inventory.Runs, r.last)
		}
	}
	slices.SortFunc(inventory.Runs, func(a, b driver.Status) int { return cmp.Compare(a.Token, b.Token) })
	m.dirty, m.removed, m.statuses = m.dirty[:0], nil, nil
	m.out.News = append(m.out.News, news.Item{Inventory: inventory})
}

func (m *Machine) touch(n *node) {
	if !n.dirty {
		n.dirty = true
		m.dirty = append(m.dirty, n)
	}
}

// node returns a node by name. One that is not in the cluster is kept as long as pods name it.
func (m *Machine) node(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{Node: Node{Name: name}, runs: map[*run]struct{}{}}
		m.nodes[name] = n
	}
	return n
}

func (m *Machine) drop(n *node) {
	if !n.known && n.foreign == 0 && len(n.runs) == 0 {
		delete(m.nodes, n.Name)
	}
}

// GPU is the resource that the GPUs of a node are; "": it has none.
func (m *Machine) GPU(node string) string {
	if n := m.nodes[node]; n != nil {
		return n.GPUName
	}
	return ""
}

// Connected takes in that the API server is in contact. The inventory is told once nodes and pods are known. Nodes that were out of contact may have come back unheard:
// they have their grace anew. Their kubelets may have been without the API server, too.
func (m *Machine) Connected(now int64, out *Output) {
	m.begin(now, out)
	defer m.end()
	m.contact = true
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[name]
		if n.lostAt != 0 {
			m.waitFor(n)
		}
		for r := range n.runs {
			m.heard(r)
		}
	}
}

// Lost takes in that there is no contact any more. What was known stays: the watches go on from there, or everything is listed anew.
func (m *Machine) Lost(now int64, reason error, out *Output) {
	m.begin(now, out)
	defer m.end()
	m.contact = false
	if m.told {
		m.told = false
		m.out.News = append(m.out.News, news.Item{Disconnected: reason})
	}
}

// Nodes takes in all nodes there are.
func (m *Machine) Nodes(now int64, nodes []Node, out *Output) {
	m.begin(now, out)
	defer m.end()
	listed := make(map[string]bool, len(nodes))
	for i := range nodes {
		listed[nodes[i].Name] = true
		m.takeNode(&nodes[i])
	}
	var gone []string
	for name, n := range m.nodes {
		if n.known && !listed[name] {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		m.loseNode(m.nodes[name])
	}
	m.haveNodes = true
}

// NodeChanged takes in a node that is new or has changed.
func (m *Machine) NodeChanged(now int64, n Node, out *Output) {
	m.begin(now, out)
	defer m.end()
	m.takeNode(&n)
}

// NodeGone takes in that a node was deleted.
func (m *Machine) NodeGone(now int64, name string, out *Output) {
	m.begin(now, out)
	defer m.end()
	if n := m.nodes[name]; n != nil && n.known {
		m.loseNode(n)
	}
}

func (m *Machine) takeNode(record *Node) {
	n := m.node(record.Name)
	if n.known && n.Same(record) {
		return
	}
	returns := record.Contact && !n.Contact
	n.Node, n.known = *record, true
	m.touch(n)
	switch {
	case !n.Contact && n.lostAt == 0:
		m.waitFor(n)
	case n.Contact:
		n.lostAt = 0
	}
	for _, r := range runsOf(n) {
		if returns {
			m.heard(r)
		}
		m.review(r)
	}
}

// waitFor gives a node that is out of contact its grace, from now on.
func (m *Machine) waitFor(n *node) {
	n.lostAt = m.now
	since := m.now
	m.after(m.cfg.UnreachableGrace, func() { m.giveUp(n, since) })
}

// giveUp ends the runs of a node that stayed out of contact. Without contact to the API server nobody knows whether it did.
func (m *Machine) giveUp(n *node, since int64) {
	if m.nodes[n.Name] != n || n.lostAt != since || !m.contact {
		return
	}
	for _, r := range runsOf(n) {
		m.lose(r, workload.ReasonHostUnreachable, "its node was out of contact for longer than the grace of "+m.cfg.UnreachableGrace.String())
	}
}

func (m *Machine) loseNode(n *node) {
	n.known, n.lostAt = false, 0
	n.Node = Node{Name: n.Name}
	m.removed = append(m.removed, n.Name)
	for _, r := range runsOf(n) {
		m.lose(r, workload.ReasonHostLost, "its node left the cluster")
	}
	m.drop(n)
}

// runsOf are the runs on a node, by their ids.
func runsOf(n *node) []*run {
	list := make([]*run, 0, len(n.runs))
	for r := range n.runs {
		list = append(list, r)
	}
	slices.SortFunc(list, compareRuns)
	return list
}

func (m *Machine) sorted() []*run {
	list := make([]*run, 0, len(m.runs))
	for _, r := range m.runs {
		list = append(list, r)
	}
	slices.SortFunc(list, compareRuns)
	return list
}

// Listing takes in that a list of all pods is about to be asked for: what is created from now on may be missing in it.
func (m *Machine) Listing() { m.listing++ }

// Listed takes in a part of the list of all pods. It returns those that are for Pods in the end, in the memory of the part: what others have is
// known at once, so that nobody needs to hold all of it.
func (m *Machine) Listed(now int64, part []Pod, out *Output) (rest []Pod) {
	m.begin(now, out)
	defer m.end()
	rest = part[:0]
	for i := range part {
		if part[i].Own {
			rest = append(rest, part[i])
		} else {
			m.takePod(&part[i])
		}
	}
	return rest
}

// Pods takes in the end of the list of all pods, with what Listed returned or was not given of it.
func (m *Machine) Pods(now int64, pods []Pod, out *Output) {
	m.begin(now, out)
	defer m.end()
	listed := make(map[Key]struct{}, len(pods))
	for i := range pods {
		listed[pods[i].Key] = struct{}{}
	}
	for key, f := range m.foreign {
		if _, ok := listed[key]; !ok && f.listing < m.listing {
			m.dropForeign(key)
		}
	}
	for _, r := range m.sorted() { // first: another pod may have the name by now
		if _, ok := listed[r.key]; !ok && r.known && r.listing < m.listing {
			m.vanish(r)
		}
	}
	for i := range pods {
		m.takePod(&pods[i])
	}
	m.havePods = true
}

// PodChanged takes in a pod that is new or has changed.
func (m *Machine) PodChanged(now int64, p *Pod, out *Output) {
	m.begin(now, out)
	defer m.end()
	m.takePod(p)
}

// PodGone takes in that a pod was deleted, with the last that was known of it.
func (m *Machine) PodGone(now int64, p *Pod, out *Output) {
	m.begin(now, out)
	defer m.end()
	m.dropForeign(p.Key)
	if !p.Own {
		return
	}
	if r := m.runs[p.Run]; r != nil && r.namespace == p.Namespace && (!r.known || r.key == p.Key) {
		m.identify(r, p)
		r.facts = p.Facts
		m.vanish(r)
	}
}

func (m *Machine) takePod(p *Pod) {
	if p.Own && m.takeOwn(p) {
		return
	}
	if p.Over || p.Node == "" {
		m.dropForeign(p.Key)
		return
	}
	if old, ok := m.foreign[p.Key]; ok && old.node.Name == p.Node && old.takes.same(&p.Takes) {
		old.listing = m.listing
		m.foreign[p.Key] = old
		return
	}
	m.dropForeign(p.Key)
	n := m.node(p.Node)
	m.foreign[p.Key] = foreign{n, p.Takes, m.listing}
	n.foreign++
	n.load = n.load.plus(&p.Takes, 1)
	if p.Takes.more != nil {
		if n.special == nil {
			n.special = map[Key]*extra{}
		}
		n.special[p.Key] = p.Takes.more
	}
	m.touch(n)
}

// same compares what is cheap to compare; pods with devices or ports are few and rarely change.
func (d *Demand) same(o *Demand) bool {
	return d.more == nil && o.more == nil && *d == *o
}

// plus adds another demand so many times.
func (d *Demand) plus(o *Demand, times int64) Demand {
	return Demand{CPU: d.CPU + times*o.CPU, Memory: d.Memory + times*o.Memory, Disk: d.Disk + times*o.Disk}
}

func (m *Machine) dropForeign(key Key) {
	old, ok := m.foreign[key]
	if !ok {
		return
	}
	n := old.node
	delete(m.foreign, key)
	delete(n.special, key)
	n.foreign--
	n.load = n.load.plus(&old.takes, -1)
	m.touch(n)
	m.drop(n)
}

// Next is when Wake wants to be called; 0: never.
func (m *Machine) Next() int64 {
	if len(m.timers) == 0 {
		return 0
	}
	return m.timers[0].at
}

// Wake does what is due.
func (m *Machine) Wake(now int64, out *Output) {
	m.begin(now, out)
	defer m.end()
	for len(m.timers) > 0 && m.timers[0].at <= m.now {
		t, _ := heap.Pop(&m.timers).(timer)
		t.do()
	}
}

func (m *Machine) after(d time.Duration, do func()) {
	m.timerNo++
	heap.Push(&m.timers, timer{m.now + int64(min(d, maxGrace)), m.timerNo, do})
}

// timer is something to do at a time. Of one time, what was arranged first comes first.
type timer struct {
	at int64
	no uint64
	do func()
}

type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].no < t[j].no
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) } //nolint:errcheck,forcetypeassert // only after pushes
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	(*t)[len(*t)-1] = timer{}
	*t = (*t)[:len(*t)-1]
	return last
}

// phaseOver reports whether a phase is an end.
func phaseOver(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
