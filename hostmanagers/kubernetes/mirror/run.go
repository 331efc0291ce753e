package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxGrace bounds the grace of a kill, so that times stay in 64 bits.
const maxGrace = 365 * 24 * time.Hour

// phase is where a run stands between its launch and its oblivion.
type phase uint8

const (
	creating  phase = iota // its pod was asked for
	live                   // its pod is there
	ended                  // it has ended; the shard has not acknowledged that
	forgotten              // acknowledged; its pod is kept for its output, or on its way out
)

// run is a run with its pod.
type run struct {
	id        workload.RunID
	phase     phase
	host      string
	namespace string
	devices   []int

	known   bool // its pod was seen; then key and uid are its own
	gone    bool // its pod was seen to go
	key     Key
	uid     string
	listing uint64 // the list of pods that was the newest when the pod became known
	facts   Facts

	over  int64 // when it ended, by this process' clock
	place int   // one above its place among those that are kept; 0: it is not kept

	last     driver.Status
	create   *Call // under way, or unclear
	unclear  bool  // the creation was answered, and its pod may come all the same: see await
	killed   bool
	grace    int64 // the shortest that was asked for, in seconds
	late     int64 // until when another pod of its name may still be created
	doubted  bool  // something keeps it from starting, and is waited for
	removing int   // deletions without an answer, but for those of what is kept
	// due is when its kubelet has ended it at the latest. A kubelet that has begun to end a pod keeps to the grace that it began with, whatever
	// it is told later, and a pod that is taken away before leaves its processes behind.
	due int64
	// abandoned is the end of a run that cannot start, once its pod is gone, or there will be none: until then it might start after all.
	abandoned Verdict
}

func compareRuns(a, b *run) int {
	return cmp.Or(
		workload.ID(a.id.Job).Compare(workload.ID(b.id.Job)), cmp.Compare(a.id.Instance, b.id.Instance),
		cmp.Compare(a.id.Generation, b.id.Generation), cmp.Compare(a.id.Run, b.id.Run),
	)
}

// Launch has pods created. One whose run is known is answered with that run's last status.
func (m *Machine) Launch(now int64, launches []driver.Launch, namespaceOf func(*driver.Launch) string, out *Output) error {
	m.begin(now, out)
	defer m.end()
	switch {
	case m.newer > 0:
		return fmt.Errorf("%w: its pods are of epoch %d, and this one is %d", ErrStale, m.newer, m.cfg.Epoch)
	case !m.haveNodes || !m.havePods:
		return ErrNotConnected
	}
	for i := range launches {
		l := launches[i]
		if r := m.runs[l.Run]; r != nil && r.phase != forgotten {
			m.repeat(r)
			continue
		} else if r != nil {
			m.unkeep(r)
		}
		r := &run{id: l.Run, host: l.Host, namespace: namespaceOf(&l), devices: slices.Clone(l.Devices)}
		m.runs[r.id] = r
		n := m.node(l.Host)
		n.runs[r] = struct{}{}
		m.touch(n)
		if !n.known {
			m.lose(r, workload.ReasonHostLost, "the cluster has no such node")
			continue
		}
		r.create = &Call{Run: r.id, Namespace: r.namespace, Launch: &l, GPU: n.GPUName, run: r}
		m.call(r.create)
	}
	return nil
}

func (m *Machine) call(c *Call) {
	m.calls++
	m.out.Calls = append(m.out.Calls, c)
}

// Wanted reports whether a call is still worth being tried again.
func (m *Machine) Wanted(c *Call) bool { return c.Launch == nil || !c.given && m.newer == 0 }

// Answer takes in what became of a call.
func (m *Machine) Answer(now int64, c *Call, a Answer, out *Output) {
	m.begin(now, out)
	defer m.end()
	m.calls--
	if c.paced {
		m.removals--
		m.pace()
	}
	r := c.run
	if m.runs[r.id] != r {
		return
	}
	if c.Launch == nil {
		if !c.paced {
			r.removing--
		}
		m.deleted(r, c, &a)
		return
	}
	if a.Doubt {
		r.late = m.now + int64(m.cfg.LateCreation)
	}
	if a.Doubt && a.Pod == nil && !r.known && !r.gone {
		m.await(r, &a)
		return
	}
	m.settle(r, &a)
}

// await puts off what an answer means that says that there is no pod, for as long as an attempt to create one may still have its effect: a run that is told to
// be over is tried again elsewhere. The pod that comes is the run's.
func (m *Machine) await(r *run, a *Answer) {
	r.unclear = true
	r.create.given = true
	if a.Message != "" && !r.killed && r.abandoned.State == workload.RunNone {
		m.progress(r, Verdict{Meaning: Meaning{State: workload.RunStarting}, Message: cut(a.Message + " (an earlier attempt to create the pod had no answer, and is waited for)")})
	}
	m.after(m.cfg.LateCreation, func() {
		if m.runs[r.id] == r && r.unclear {
			m.settle(r, a)
		}
	})
}

// settle ends a creation.
func (m *Machine) settle(r *run, a *Answer) {
	r.create, r.unclear = nil, false
	switch {
	case r.gone: // the watch has told the whole of its life
		if r.phase == forgotten {
			m.forget(r)
		}
	case a.GivenUp && !r.known: // else the watch tells what became of it
		m.vanish(r)
	case a.Refused != "" && !r.known:
		m.refused(r, a)
	case a.Pod != nil && !r.known: // as above: the watch was faster, and knows more
		m.takePod(a.Pod)
		if m.runs[r.id] == r {
			m.afterCreation(r)
		}
	default:
		m.afterCreation(r)
	}
}

// afterCreation ends a pod that nobody wants any more, now that there is one.
func (m *Machine) afterCreation(r *run) {
	switch {
	case r.phase == live && r.abandoned.State == workload.RunLost && m.inContact(r.host):
		m.returned(r)
	case r.phase == live && r.abandoned.State == workload.RunLost:
		m.conclude(r, r.abandoned)
		m.remove(r, 0)
	case r.phase == live && (r.killed || r.abandoned.State != workload.RunNone):
		m.remove(r, r.grace)
	case r.phase == forgotten:
		m.tidy(r)
	case r.phase == ended && r.known && !phaseOver(r.facts.Phase):
		m.remove(r, 0)
	}
}

// returned goes on with a run that was given up with its node while its pod was being created, and whose node is back: so its kubelet may have started it. Of its
// end nobody was told. If the node was only out of contact, there is none; if it had left the cluster, the shard counts on that, and hears of it once the pod is gone.
func (m *Machine) returned(r *run) {
	switch {
	case r.abandoned.Reason == workload.ReasonHostUnreachable && r.killed:
		r.abandoned = Verdict{}
		m.remove(r, r.grace)
	case r.abandoned.Reason == workload.ReasonHostUnreachable:
		r.abandoned = Verdict{}
	case r.killed:
		m.remove(r, r.grace)
	default:
		m.takeAway(r)
	}
	m.review(r)
}

// inContact reports whether a node is there and speaks.
func (m *Machine) inContact(host string) bool {
	n := m.nodes[host]
	return n != nil && n.known && n.lostAt == 0
}

func (m *Machine) refused(r *run, a *Answer) {
	switch {
	case r.phase == forgotten && !r.known:
		m.forget(r)
		return
	case r.phase != creating:
		return
	case r.killed:
		m.conclude(r, Verdict{Meaning: Meaning{State: workload.RunKilled}, Message: "killed before it was started"})
		return
	}
	m.makeRoom(r.namespace, a)
	meaning, ok := Look(FromRefusal, a.Refused)
	if !ok {
		meaning = launchFailed
	}
	m.conclude(r, Verdict{Meaning: meaning, Message: cut(a.Message)})
}

// deleted takes in what became of a deletion. That the pod is gone the watch tells, with the last that was known of it. One that is refused is tried again:
// rights may come back. A pod that its kubelet was never told to end is not taken away from it.
func (m *Machine) deleted(r *run, c *Call, a *Answer) {
	grace := time.Duration(c.Grace) * time.Second
	if a.Refused == "" {
		m.allow(r, grace) // its kubelet may have been told just now
		return
	}
	if c.Grace > 0 { // it is made final by nothing before it was asked for again
		m.allow(r, grace+m.cfg.KillMargin)
	}
	if r.killed && r.phase == live {
		m.progress(r, Verdict{Meaning: Meaning{State: workload.RunKilling}, Message: cut("its pod cannot be deleted: " + a.Message)})
	}
	m.after(m.cfg.KillMargin, func() {
		switch {
		case m.runs[r.id] != r || !r.known:
		case r.phase == forgotten && c.paced: // else it is kept: its kill does not matter any more
			m.release(r)
		case r.phase == live && r.grace == c.Grace:
			m.remove(r, c.Grace)
		}
	})
}

// takeOwn takes in a pod of a run. False: it is a copy of one, in another namespace, which is nobody's run.
func (m *Machine) takeOwn(p *Pod) bool {
	r := m.runs[p.Run]
	if r == nil || r.phase == creating {
		m.fence(p)
	}
	if r == nil { // of an earlier process
		r = &run{id: p.Run, phase: live, host: p.Node, namespace: p.Namespace}
		m.runs[r.id] = r
		n := m.node(p.Node)
		n.runs[r] = struct{}{}
		m.touch(n)
	}
	if p.Namespace != r.namespace {
		return false
	}
	if r.known && r.key != p.Key {
		return true // an older one of the name, of which no more will be heard
	}
	m.identify(r, p)
	before := r.facts
	r.facts = p.Facts
	if f := &r.facts; !f.Deleted.IsZero() && (before.Deleted.IsZero() || before.Grace != f.Grace) { // whoever asked for it
		m.allow(r, f.Grace)
	}
	if r.phase == creating {
		r.phase = live
	}
	m.review(r)
	if r.unclear { // here it is
		m.settle(r, &Answer{})
	}
	return true
}

// identify notes which pod a run's is.
func (m *Machine) identify(r *run, p *Pod) {
	if r.known {
		return
	}
	r.known, r.key, r.uid, r.namespace, r.listing = true, p.Key, p.UID, p.Namespace, m.listing
	if r.create != nil { // the answer was lost, or comes late: created again after its end it would run twice
		r.create.given = true
	}
	if r.devices == nil {
		r.devices = p.Devices
	}
}

// review brings a run's status in line with what is known of its pod and its node.
func (m *Machine) review(r *run) {
	if r.phase != live || !r.known {
		return
	}
	v := r.facts.Judge(r.killed, false)
	switch n := m.nodes[r.host]; {
	case v.State.Traits().Terminal && phaseOver(r.facts.Phase):
		m.finish(r, v)
	case r.abandoned.State != workload.RunNone && !r.killed: // it is being removed
	case v.State.Traits().Terminal && v.Doubtful:
		m.doubt(r)
		m.progress(r, Verdict{Meaning: Meaning{State: workload.RunStarting}, Message: v.Message, At: v.At})
	case v.State.Traits().Terminal:
		m.abandon(r, v)
	case n != nil && n.lostAt != 0:
		m.progress(r, Verdict{Meaning: Meaning{State: workload.RunUnreachable, Reason: workload.ReasonHostUnreachable}, Message: n.Why})
	default:
		if r.killed {
			v.State, v.Healthy = workload.RunKilling, false
		}
		m.progress(r, v)
	}
}

// doubt waits whether what keeps a run from starting mends itself.
func (m *Machine) doubt(r *run) {
	if r.doubted {
		return
	}
	r.doubted = true
	m.after(m.cfg.StartGrace, func() {
		r.doubted = false
		if m.runs[r.id] != r || r.phase != live {
			return
		}
		if v := r.facts.Judge(r.killed, false); v.Doubtful && v.State.Traits().Terminal {
			m.abandon(r, v)
		}
	})
}

// abandon has the pod of a run removed that would stay without ever starting. Its end is told once it is gone.
func (m *Machine) abandon(r *run, v Verdict) {
	if r.killed || r.abandoned.State != workload.RunNone {
		return
	}
	r.abandoned = v
	m.progress(r, Verdict{Meaning: Meaning{State: workload.RunStarting}, Message: v.Message, At: v.At})
	m.takeAway(r)
}

// takeAway removes the pod of a run that was abandoned, with the time that its kubelet needs.
func (m *Machine) takeAway(r *run) {
	r.grace = 1
	m.remove(r, r.grace)
	m.after(time.Second+m.cfg.KillMargin, func() { m.force(r, 1) })
}

// finish ends a run whose pod has ended or is gone.
func (m *Machine) finish(r *run, v Verdict) {
	if a := r.abandoned; v.State != workload.RunSucceeded && (a.State == workload.RunLost || a.State != workload.RunNone && !r.killed) {
		v = a
	}
	m.conclude(r, v)
}

// lose ends a run whose node cannot be asked. Its pod is removed, so that the node ends it should it return.
func (m *Machine) lose(r *run, reason workload.Reason, message string) {
	if r.phase >= ended {
		return
	}
	v := Verdict{Meaning: Meaning{State: workload.RunLost, Reason: reason}, Message: message}
	if r.create != nil { // it may yet come, and start should the node return: the answer is waited for
		r.create.given = true
		r.abandoned = v
		return
	}
	m.conclude(r, v)
	if r.known {
		m.remove(r, 0)
	}
}

// vanish takes in that a run's pod is no more.
func (m *Machine) vanish(r *run) {
	r.gone = true
	switch r.phase {
	case forgotten:
		m.forget(r)
		return
	case ended:
	case creating, live:
		m.finish(r, r.facts.Judge(r.killed, true))
	}
	r.known = false
}

// rank orders the states of a life that goes only forward.
func rank(s workload.RunState) int {
	switch s {
	case workload.RunStarting:
		return 1
	case workload.RunRunning, workload.RunUnreachable:
		return 2
	case workload.RunKilling:
		return 3
	default:
		return 0
	}
}

// progress tells that a run lives, if that is news.
func (m *Machine) progress(r *run, v Verdict) {
	old := &r.last
	if old.State != workload.RunUnreachable && rank(v.State) < rank(old.State) {
		return
	}
	if old.State == v.State && old.Healthy == v.Healthy && old.Message == v.Message {
		return
	}
	m.report(r, v)
}

// conclude ends a run.
func (m *Machine) conclude(r *run, v Verdict) {
	r.phase = ended
	m.report(r, v)
	r.over = m.endedAt(r)
	m.pending[r.last.Token] = r
	if n := m.nodes[r.host]; n != nil {
		delete(n.runs, r)
		m.touch(n)
		m.drop(n)
	}
}

// report makes a verdict a run's last status, under a new token, and tells it.
func (m *Machine) report(r *run, v Verdict) {
	m.token++
	r.last = driver.Status{
		Run: r.id, Token: m.token, State: v.State, Reason: v.Reason, Healthy: v.Healthy, ExitCode: v.ExitCode, Signal: v.Signal,
		Message: v.Message, At: v.At, Host: r.host,
	}
	if v.At.IsZero() {
		r.last.At = time.Unix(0, m.now).UTC()
	}
	m.statuses = append(m.statuses, r.last)
}

// repeat tells what was told last.
func (m *Machine) repeat(r *run) {
	if r.last.State != workload.RunNone {
		m.statuses = append(m.statuses, r.last)
	}
}

// unknown answers for a run that the cluster does not know.
func (m *Machine) unknown(id workload.RunID) {
	m.statuses = append(m.statuses, driver.Status{
		Run: id, State: workload.RunLost, Reason: workload.ReasonNotFound, At: time.Unix(0, m.now).UTC(), Message: "the cluster has no pod of this run",
	})
}

// remove has a run's pod deleted. One whose creation is not answered stays until it is: an attempt that is under way would make it anew.
func (m *Machine) remove(r *run, grace int64) {
	if r.create != nil {
		return // afterCreation
	}
	m.allow(r, time.Duration(grace)*time.Second)
	r.removing++
	m.call(&Call{Run: r.id, Namespace: r.namespace, UID: r.uid, Grace: grace, run: r})
}

// Acknowledge takes in that statuses are durable: only now the ended pods may go. Those with an output stay for a while.
func (m *Machine) Acknowledge(now int64, tokens []driver.Token, out *Output) {
	m.begin(now, out)
	defer m.end()
	for _, token := range tokens {
		r := m.pending[token]
		if r == nil {
			continue
		}
		delete(m.pending, token)
		r.phase = forgotten
		switch {
		case r.create != nil: // its answer says what there is to do
		case r.known:
			m.tidy(r)
		default:
			m.forget(r)
		}
	}
}

func (m *Machine) forget(r *run) {
	m.unkeep(r)
	if m.runs[r.id] == r {
		delete(m.runs, r.id)
	}
}

// Reconcile answers for runs; none: for all.
func (m *Machine) Reconcile(now int64, runs []workload.RunID, out *Output) error {
	m.begin(now, out)
	defer m.end()
	if !m.haveNodes || !m.havePods {
		return ErrNotConnected
	}
	if len(runs) == 0 {
		for _, r := range m.sorted() {
			if r.phase != forgotten {
				m.repeat(r)
			}
		}
	}
	for _, id := range runs {
		if r := m.runs[id]; r != nil && r.phase != forgotten {
			m.repeat(r)
		} else {
			m.unknown(id)
		}
	}
	return nil
}

// Kill ends runs. One that is over is told of once more.
func (m *Machine) Kill(now int64, kills []driver.Kill, out *Output) error {
	m.begin(now, out)
	defer m.end()
	if !m.haveNodes || !m.havePods {
		return ErrNotConnected
	}
	for _, k := range kills {
		r := m.runs[k.Run]
		switch {
		case r == nil || r.phase == forgotten:
			m.unknown(k.Run)
		case r.phase == ended:
			m.repeat(r)
		default:
			m.kill(r, k.Grace)
		}
	}
	return nil
}

// kill sends a kill, of several the one with the shortest grace. A deletion without any grace would take the pod away before its kubelet has
// ended it, and nobody would know when it did: the shortest is a second.
func (m *Machine) kill(r *run, grace time.Duration) {
	seconds := max(1, int64((min(max(grace, 0), maxGrace)+time.Second-1)/time.Second))
	first := !r.killed
	if !first && r.grace > 0 && seconds >= r.grace {
		return
	}
	r.killed, r.grace = true, seconds
	if r.create != nil {
		r.create.given = true
	}
	if r.phase == live {
		m.remove(r, seconds)
		m.review(r)
	}
	m.after(time.Duration(seconds)*time.Second+m.cfg.KillMargin, func() { m.force(r, seconds) })
}

// allow gives the kubelet of a run from now on so much time to end it.
func (m *Machine) allow(r *run, grace time.Duration) { r.due = max(r.due, m.now+int64(grace)) }

// heard takes in that the kubelet of a run may hear only now that its pod was deleted.
func (m *Machine) heard(r *run) {
	if !r.facts.Deleted.IsZero() || r.grace > 0 {
		m.allow(r, max(r.facts.Grace, time.Duration(r.grace)*time.Second))
	}
}

// force takes the pod of a kill away that has not had its effect. Without contact to its node, or to the API server, its kubelet may not know of the kill: that is
// waited for, and so is a pod that is not created yet, and one of whose deletion the API server has not said anything.
func (m *Machine) force(r *run, seconds int64) {
	if m.runs[r.id] != r || r.phase >= ended || r.grace != seconds {
		return
	}
	if left := time.Duration(r.due-m.now) + m.cfg.KillMargin; left > 0 {
		m.after(left, func() { m.force(r, seconds) })
		return
	}
	if r.removing == 0 && m.contact && m.inContact(r.host) {
		m.remove(r, 0)
	}
	m.after(m.cfg.KillMargin, func() { m.force(r, seconds) })
}

// Where names the namespace of a run's pod, which may be on its way. false: the cluster has none.
func (m *Machine) Where(id workload.RunID) (namespace string, ok bool) {
	r := m.runs[id]
	if r == nil || !r.known && r.phase != creating {
		return "", false
	}
	return r.namespace, true
}
