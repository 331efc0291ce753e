package framework

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/news"
)

// Bounds of what a host shows.
const (
	maxHostName   = 253
	maxPortRanges = 64
	maxDevices    = 16
	maxAttributes = 200
	maxValue      = 1024
)

// features are what every agent can do for a task. Each task of a framework runs as a user who is given by name, the framework's own or the
// job's. A privileged container takes the Docker containerizer, and a job that names it does not ask for FeaturePrivileged.
var features = []execution.Feature{
	execution.FeatureCommand, execution.FeatureImage, execution.FeatureContainers, execution.FeatureArtifact, execution.FeatureVolume,
	execution.FeatureUser, execution.FeatureMesos,
}

// agent is one agent and the host that it makes. One of which only the id is known, from a task on it, has no name and makes no host.
//
// Its capacity is what is offered of it, what its runs of ours hold, and what is loose: what was given back or freed and has not been offered
// since. Whatever others use is in none of these. An offer has all of an agent that nobody holds, so each one ends the doubt about what is loose.
type agent struct {
	id, name   string
	port       int32
	said       []mesos.Attribute
	attributes map[string]string
	domain     string

	offers     []*offer // the oldest first
	used       bundle   // by runs of ours whose size is known
	loose      bundle
	total      map[string]int64 // scalars that are not revocable, by the operator API's word; nil: not known
	looseUntil int64            // when loose resources count as others'; 0: not by themselves
	filtered   int64            // until when our own filter may hold back offers

	waiting []*run                  // launches, the oldest first
	runs    map[workload.RunID]*run // that were sent and have not ended

	lost     bool // out of contact, as the master says
	former   bool // its machine registered under another id: the name is that agent's now
	inactive bool // deactivated by an operator
	window   window
	answer   string // to an inverse offer, for people

	row    driver.Host // as it was told last
	listed bool
	dirty  bool // in Machine.dirty
	stale  bool // in Machine.stale
}

// window is a planned unavailability, in nanoseconds. to 0: for ever; from 0: there is none.
type window struct{ from, to int64 }

func windowOf(u *mesos.Unavailability) window {
	if u == nil {
		return window{}
	}
	w := window{from: max(u.Start.Nanoseconds, 1)}
	if u.Duration != nil && u.Duration.Nanoseconds < math.MaxInt64-w.from { // one that goes beyond all time is for ever
		w.to = w.from + max(u.Duration.Nanoseconds, 0)
	}
	return w
}

// shuts reports whether a host takes nothing new because of the window.
func (w window) shuts(now, lead int64) bool {
	return w.from > 0 && now >= w.from-lead && (w.to == 0 || now < w.to)
}

func (w window) text() string {
	from := time.Unix(0, w.from).UTC().Format(time.RFC3339)
	if w.to == 0 {
		return "unavailable from " + from + " on"
	}
	return "unavailable from " + from + " to " + time.Unix(0, w.to).UTC().Format(time.RFC3339)
}

// agent returns the agent with an id, and knows it from now on; nil: there are too many.
func (m *Machine) agent(id string) *agent {
	a := m.agents[id]
	if a == nil && len(m.agents) < MaxAgents && id != "" {
		a = &agent{id: id}
		m.agents[id] = a
	}
	return a
}

// facts are what an agent says of itself.
type facts struct {
	hostname   string
	port       int32
	attributes []mesos.Attribute
	domain     *mesos.DomainInfo
}

// describe takes in what an agent says of itself. It says the same for as long as it has its id, but for the attributes.
func (m *Machine) describe(a *agent, f *facts) {
	if a.name != "" && sameAttributes(a, f) {
		return
	}
	if a.name == "" {
		m.baptize(a, f)
	}
	region, zone := f.domain.GetFaultDomain().GetRegion(), f.domain.GetFaultDomain().GetZone()
	a.domain = strings.Trim(region.Name+"/"+zone.Name, "/")
	a.said, a.attributes = f.attributes, attributesOf(f.attributes)
	for name, value := range map[string]string{"region": region.Name, "zone": zone.Name} {
		if _, own := a.attributes[name]; !own && value != "" {
			a.attributes[name] = value
		}
	}
	a.attributes = execution.WithFeatures(a.attributes, features...)
	a.row.Attributes = nil // told anew
	m.touch(a)
}

// sameAttributes reports whether an agent says nothing new.
func sameAttributes(a *agent, f *facts) bool {
	if len(a.said) != len(f.attributes) {
		return false
	}
	for i := range a.said {
		if !a.said[i].Equal(&f.attributes[i]) {
			return false
		}
	}
	return true
}

// supersede takes its name from an agent whose machine has registered under another id. What ran there is over, or the master says otherwise.
func (m *Machine) supersede(a *agent) {
	m.agentFailed(a.id)
	a.former = true
	delete(m.names, a.name)
}

// baptize gives an agent its host's name: that of the machine, and if another agent has that, with the port.
func (m *Machine) baptize(a *agent, f *facts) {
	name := f.hostname
	if name == "" || len(name) > maxHostName {
		name = a.id
	}
	if other := m.names[name]; other != nil && other != a {
		if other.port == f.port || (other.lost && len(other.runs) == 0) {
			m.supersede(other)
		} else {
			name += ":" + strconv.Itoa(int(f.port))
		}
	}
	if m.names[name] != nil {
		name = a.id
	}
	a.name, a.port = name, f.port
	m.names[name] = a
}

// attributesOf writes attributes as text. One that comes several times has its values in a list.
func attributesOf(attributes []mesos.Attribute) map[string]string {
	values := make(map[string]string, len(attributes)+len(features)+2)
	for i := range attributes {
		attribute := &attributes[i]
		value := attributeValue(attribute)
		if old, twice := values[attribute.Name]; twice {
			value = old + "," + value
		}
		if attribute.Name == "" || len(value) > maxValue || len(values) >= maxAttributes {
			continue
		}
		values[attribute.Name] = value
	}
	return values
}

func attributeValue(a *mesos.Attribute) string {
	switch a.Type {
	case mesos.SCALAR:
		return strconv.FormatFloat(a.GetScalar().GetValue(), 'f', -1, 64)
	case mesos.RANGES:
		var words []string
		for _, r := range a.GetRanges().GetRange() {
			words = append(words, strconv.FormatUint(r.Begin, 10)+"-"+strconv.FormatUint(r.End, 10))
		}
		return strings.Join(words, ",")
	case mesos.SET:
		return strings.Join(slices.Sorted(slices.Values(a.GetSet().GetItem())), ",")
	default:
		return a.GetText().GetValue()
	}
}

// touch notes that a host may have to be told of.
func (m *Machine) touch(a *agent) {
	if !a.dirty {
		a.dirty = true
		m.dirty = append(m.dirty, a)
	}
}

// blur notes that what people see of a host has changed.
func (m *Machine) blur(a *agent) {
	if a.stale || a.name == "" {
		return
	}
	a.stale = true
	m.stale = append(m.stale, a)
	if m.detailsAt == 0 {
		m.detailsAt = m.now + int64(m.cfg.DetailsEvery)
	}
}

// maxRefreshed bounds the hosts that are told again at once only for their details.
const maxRefreshed = 256

// refreshDetails tells of hosts of which only the details changed.
func (m *Machine) refreshDetails() {
	for n := 0; len(m.stale) > 0 && n < maxRefreshed; n++ {
		a := m.stale[len(m.stale)-1]
		m.stale = m.stale[:len(m.stale)-1]
		a.stale = false
		if m.agents[a.id] == a && a.listed && !maps.Equal(a.row.Details, m.details(a)) {
			a.row.Attributes = nil
			m.touch(a)
		}
	}
	if len(m.stale) > 0 {
		m.detailsAt = m.now + int64(m.cfg.DetailsEvery)
	}
}

// tellHosts tells of hosts that changed.
func (m *Machine) tellHosts() {
	if len(m.dirty) == 0 {
		return
	}
	slices.SortFunc(m.dirty, func(a, b *agent) int { return cmp.Compare(a.name, b.name) })
	var hosts news.Item
	for _, a := range m.dirty {
		a.dirty = false
		if m.agents[a.id] != a || a.name == "" {
			continue
		}
		if a.former && len(a.runs) > 0 {
			continue
		}
		if a.lost && len(a.runs) == 0 {
			if a.listed && !a.former {
				hosts.Removed = append(hosts.Removed, a.name)
			}
			m.forgetAgent(a)
			continue
		}
		if m.compose(a) {
			hosts.Changed = append(hosts.Changed, a.row)
		}
	}
	m.dirty = m.dirty[:0]
	if len(hosts.Changed)+len(hosts.Removed) > 0 {
		m.out.News = append(m.out.News, hosts)
	}
}

// forgetAgent takes an agent out of the books. Launches that wait for it are lost.
func (m *Machine) forgetAgent(a *agent) {
	for _, o := range slices.Clone(a.offers) {
		m.dropOffer(o)
	}
	for _, r := range slices.Clone(a.waiting) {
		m.unpark(r)
		m.finish(r, ending{state: runLost, reason: reasonHostLost, message: "its host left the cluster"})
	}
	delete(m.agents, a.id)
	delete(m.returned, a)
	if m.names[a.name] == a {
		delete(m.names, a.name)
	}
}

// compose brings a host's row up to date and reports whether it is another.
func (m *Machine) compose(a *agent) bool {
	row := driver.Host{
		Name: a.name, ID: a.id, Attributes: a.attributes, Pool: m.cfg.Pool, Capacity: make(map[string]int64, 6), Ready: true,
	}
	if own := a.attributes[m.cfg.PoolAttribute]; own != "" && m.cfg.PoolAttribute != "" {
		row.Pool = own
	}
	var spans []span
	scalars, revocable := make(map[string]int64, 6), map[string]int64(nil)
	for _, b := range a.all() {
		for i := range b {
			p := &b[i]
			switch {
			case !p.usable():
			case len(p.spans) == 0 && p.revocable():
				if revocable == nil {
					revocable = make(map[string]int64, 2)
				}
				revocable[p.name] += p.milli
			case len(p.spans) == 0:
				scalars[p.name] += p.milli
			case p.name == ports && !p.revocable():
				spans = append(spans, p.spans...)
			}
		}
	}
	for name, total := range a.total { // what has ended may be offered before its end is heard of, and is counted once
		scalars[name] = min(scalars[name], total)
	}
	for name, milli := range revocable {
		scalars[name] += milli
	}
	for name, milli := range scalars {
		if known, quantity, ok := quantityOf(name, min(milli, maxMilli)); ok {
			row.Capacity[known] = min(quantity, resource.MaxQuantity)
		}
	}
	row.Ports = portRanges(joinSpans(spans, nil))
	row.Devices = m.devices(a, row.Capacity)
	row.Ready, row.Message = m.readiness(a)
	same := a.listed && a.row.Attributes != nil && row.Pool == a.row.Pool && row.Ready == a.row.Ready && row.Message == a.row.Message &&
		maps.Equal(row.Capacity, a.row.Capacity) && slices.Equal(row.Ports, a.row.Ports) && slices.Equal(row.Devices, a.row.Devices)
	if same {
		return false
	}
	row.Details = m.details(a)
	a.row, a.listed = row, true
	return true
}

// all returns everything that makes up an agent's capacity.
func (a *agent) all() []bundle {
	list := make([]bundle, 0, len(a.offers)+2)
	list = append(list, a.used, a.loose)
	for _, o := range a.offers {
		list = append(list, o.parts)
	}
	return list
}

func portRanges(spans []span) []driver.PortRange {
	var ranges []driver.PortRange
	for _, s := range spans {
		first, last := max(s.first, 1), min(s.last, 65535)
		if first <= last && len(ranges) < maxPortRanges {
			ranges = append(ranges, driver.PortRange{First: uint16(first), Last: uint16(last)}) //nolint:gosec // within 16 bits
		}
	}
	return ranges
}

// devices lists an agent's GPUs. Mesos tells their number only; an attribute may say what they are.
func (m *Machine) devices(a *agent, capacity map[string]int64) []driver.Device {
	count := min(capacity[nameGPU]/1000, maxDevices)
	if count == 0 {
		delete(capacity, nameGPU)
		return nil
	}
	capacity[nameGPU] = count * 1000
	devices := make([]driver.Device, count)
	for i := range devices {
		devices[i] = driver.Device{Model: a.attributes[m.cfg.GPUModelAttribute], Milli: 1000}
	}
	return devices
}

// readiness says whether an agent may take new runs, and why not.
func (m *Machine) readiness(a *agent) (ready bool, message string) {
	switch {
	case a.lost:
		return false, "out of contact with its master"
	case a.inactive:
		return false, "deactivated or drained by an operator of the Mesos cluster"
	case a.window.shuts(m.now, int64(m.cfg.MaintenanceLead)):
		return false, a.window.text()
	case a.window.from > m.now:
		return true, a.window.text()
	}
	return true, ""
}

// watchWindow arranges for the host to be looked at when its window begins to count, and when it ends.
func (m *Machine) watchWindow(a *agent, w window) {
	if a.window == w {
		return
	}
	a.window = w
	a.row.Attributes = nil
	m.touch(a)
	for _, at := range []int64{w.from - int64(m.cfg.MaintenanceLead), w.to} {
		if at > m.now {
			m.after(at-m.now, func() {
				if m.agents[a.id] == a {
					m.touch(a)
				}
			})
		}
	}
}

// details are what people see of a host.
func (m *Machine) details(a *agent) map[string]string {
	d := map[string]string{"offers": strconv.Itoa(len(a.offers))}
	var held bundle
	for _, o := range a.offers {
		held = held.plus(o.parts)
	}
	if len(held) > 0 {
		d["offered"] = held.text()
	}
	if len(a.used) > 0 {
		d["used"] = a.used.text()
	}
	if a.domain != "" {
		d["domain"] = a.domain
	}
	if a.window.from > 0 {
		d["unavailability"] = a.window.text()
	}
	if a.answer != "" {
		d["inverse_offer"] = a.answer
	}
	if len(a.runs) > 0 {
		d["tasks"] = strconv.Itoa(len(a.runs))
	}
	return d
}

// agentFailed is the master's word that an agent is gone: out of contact, removed or marked as gone.
func (m *Machine) agentFailed(id string) {
	a := m.agents[id]
	if a == nil {
		return
	}
	for _, o := range slices.Clone(a.offers) {
		m.dropOffer(o)
	}
	a.lost, a.loose = true, nil
	for _, r := range slices.Clone(a.waiting) {
		m.unpark(r)
		m.finish(r, ending{state: runLost, reason: reasonHostLost, message: "its host left the cluster"})
	}
	for _, r := range a.sortedRuns() {
		if r.last.State != runUnreachable {
			m.doubt(r) // what became of it was not said
		}
	}
	m.touch(a)
}

// sortedRuns returns the live runs on an agent, in the order of their ids.
func (a *agent) sortedRuns() []*run {
	list := make([]*run, 0, len(a.runs))
	for _, r := range a.runs {
		list = append(list, r)
	}
	slices.SortFunc(list, func(x, y *run) int { return strings.Compare(x.task, y.task) })
	return list
}

// settle enters a run that was sent.
func (a *agent) settle(r *run) {
	if a.runs == nil {
		a.runs = map[workload.RunID]*run{}
	}
	a.runs[r.id] = r
}

// found says that an agent is in contact after all.
func (m *Machine) found(a *agent) {
	if a.lost {
		a.lost = false
		m.touch(a)
	}
}

// String is for messages.
func (a *agent) String() string { return fmt.Sprintf("%s (%s)", a.name, a.id) }
