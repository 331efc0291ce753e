package framework

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
)

// Launch starts runs. An error means that nothing was started and nothing will be. A run that is known is not started again: what is known of
// it is told. One that cannot be run here has failed; one that finds no offers waits for them a while, see Config.OfferWait.
func (m *Machine) Launch(now int64, launches []driver.Launch, out *Output) error {
	m.begin(now, out)
	defer m.end()
	if !m.told {
		return fmt.Errorf("launch %d runs: %w", len(launches), ErrNotConnected)
	}
	if m.waiting+len(launches) > MaxWaiting {
		return fmt.Errorf("launch %d runs: %d wait for offers already, of at most %d; try again later", len(launches), m.waiting, MaxWaiting)
	}
	var hosts []*agent
	for i := range launches {
		if a := m.enqueue(&launches[i]); a != nil && len(a.waiting) == 1 {
			hosts = append(hosts, a)
		}
	}
	for _, a := range hosts {
		m.flush(a)
	}
	if !m.demand {
		m.quietAt = m.now + int64(m.cfg.SuppressAfter)
	}
	return nil
}

// enqueue makes one launch wait for offers of its host; nil: it is settled already.
func (m *Machine) enqueue(l *driver.Launch) *agent {
	if known := m.runs[l.Run]; known != nil {
		m.repeat(known)
		return nil
	}
	a := m.names[l.Host]
	r := &run{id: l.Run, task: l.Run.String(), agent: a, phase: waiting, checked: l.Health != nil, grace: l.KillGrace}
	m.runs[r.id] = r
	if err := m.prepare(r, l); err != nil {
		m.finish(r, ending{state: runFailed, reason: reasonLaunchFailed, message: err.Error()})
		return nil
	}
	if a == nil || a.lost {
		m.finish(r, ending{state: runLost, reason: reasonHostLost, message: fmt.Sprintf("the cluster has no host %.80q now", l.Host)})
		return nil
	}
	r.deadline = m.now + int64(m.cfg.OfferWait)
	m.park(r)
	return a
}

// park makes a run wait for offers of its agent until its deadline.
func (m *Machine) park(r *run) {
	r.phase = waiting
	r.agent.waiting = append(r.agent.waiting, r)
	m.waiting++
	m.parked = append(m.parked, deadline{r.deadline, r})
	if r.agent.filtered > m.now {
		m.revive = true
	}
}

// unpark takes a run out of the queue of its agent.
func (m *Machine) unpark(r *run) {
	r.agent.waiting = slices.DeleteFunc(r.agent.waiting, func(other *run) bool { return other == r })
	m.waiting--
}

// giveUp ends a run that waited for offers in vain: it goes back to placement, which is told that there is no room.
func (m *Machine) giveUp(r *run) {
	if r.phase != waiting || r.deadline > m.now {
		return // it was launched, or waits anew
	}
	m.unpark(r)
	a := r.agent
	if a.looseUntil != 0 || !m.suppressed {
		a.loose = nil
		m.touch(a)
	}
	m.finish(r, ending{state: runLost, reason: reasonLaunchRefused, message: cut(fmt.Sprintf(
		"the master did not offer what it needs of host %s within %s", a.name, m.cfg.OfferWait))})
}

// flush launches what waits for an agent on the offers that are held of it.
func (m *Machine) flush(a *agent) {
	for m.told && len(a.waiting) > 0 && len(a.offers) > 0 {
		if !m.launchSome(a) {
			m.merge(a)
			return
		}
	}
}

// working is an ACCEPT in the making: offers of one agent in one role.
type working struct {
	role   string
	offers []*offer
	spare  []*offer // that may join, the largest first
	left   bundle
}

// launchSome sends one ACCEPT with as many of the waiting launches as go, in the first role in which any does.
func (m *Machine) launchSome(a *agent) bool {
	for _, role := range rolesOf(a.offers) {
		w := &working{role: role}
		for _, o := range a.offers {
			if o.role == role {
				w.spare = append(w.spare, o)
			}
		}
		slices.SortStableFunc(w.spare, func(x, y *offer) int { return cmp.Compare(y.parts.size(), x.parts.size()) })
		var ready []*run
		for _, r := range a.waiting {
			if len(ready) == maxTasks {
				break
			}
			if taken, ok := w.fit(r); ok {
				r.taken, r.role = taken, role
				w.left = w.left.minus(taken)
				ready = append(ready, r)
			}
		}
		if len(ready) > 0 {
			m.accept(a, w, ready)
			return true
		}
	}
	return false
}

func rolesOf(offers []*offer) []string {
	roles := make([]string, 0, 1)
	for _, o := range offers {
		if !slices.Contains(roles, o.role) {
			roles = append(roles, o.role)
		}
	}
	return roles
}

// size orders fragments: by CPU, then by memory.
func (b bundle) size() int64 {
	var size int64
	for i := range b {
		switch b[i].name {
		case cpus:
			size += b[i].milli << 20
		case mem:
			size += b[i].milli >> 20
		}
	}
	return size
}

// fit finds room for a run in what is left, with further offers if that takes them.
func (w *working) fit(r *run) (bundle, bool) {
	taken, ok := w.left.take(r.needs, r.ports, r.revocable)
	for n := 0; !ok && n < len(w.spare); n++ {
		taken, ok = joint(w.left, w.spare[:n+1]).take(r.needs, r.ports, r.revocable)
		if ok {
			w.left = joint(w.left, w.spare[:n+1])
			w.offers = append(w.offers, w.spare[:n+1]...)
			w.spare = w.spare[n+1:]
		}
	}
	return taken, ok
}

func joint(left bundle, offers []*offer) bundle {
	for _, o := range offers {
		left = left.plus(o.parts)
	}
	return left
}

// merge gives back the fragments of an agent whose launches need more than they have together, or in one role, so that they are offered as
// one. Each launch has it done once.
func (m *Machine) merge(a *agent) {
	if len(a.offers) == 1 && len(a.loose) == 0 {
		return
	}
	all := joint(a.loose, a.offers)
	for _, r := range a.waiting {
		if r.merged {
			continue
		}
		if _, ok := all.take(r.needs, r.ports, r.revocable); ok {
			r.merged = true
			m.giveBack(a.offers, 0)
			return
		}
	}
}

// accept sends launches with the offers that they use. What remains of these comes again with the next round of the allocator.
func (m *Machine) accept(a *agent, w *working, ready []*run) {
	call := &scheduler.Call{Type: scheduler.Call_ACCEPT, Accept: &scheduler.Call_Accept{Filters: refuse(0)}}
	for _, o := range w.offers {
		call.Accept.OfferIDs = append(call.Accept.OfferIDs, mesos.OfferID{Value: o.id})
		m.dropOffer(o)
	}
	commands := &mesos.Offer_Operation_Launch{}
	var groups []mesos.Offer_Operation
	for _, r := range ready {
		if r.group == nil {
			commands.TaskInfos = append(commands.TaskInfos, m.command(r))
		} else {
			groups = append(groups, mesos.Offer_Operation{Type: mesos.Offer_Operation_LAUNCH_GROUP, LaunchGroup: m.launchGroup(r)})
		}
		m.waiting--
		m.nowSent(r)
	}
	if len(commands.TaskInfos) > 0 {
		call.Accept.Operations = append(call.Accept.Operations, mesos.Offer_Operation{Type: mesos.Offer_Operation_LAUNCH, Launch: commands})
	}
	call.Accept.Operations = append(call.Accept.Operations, groups...)
	a.waiting = slices.DeleteFunc(a.waiting, func(r *run) bool { return r.phase == sent })
	m.out.Calls = append(m.out.Calls, Call{Call: call, runs: ready})
	m.loosen(a, w.left)
}

// nowSent notes that a run is on its way to the master.
func (m *Machine) nowSent(r *run) {
	r.phase, r.heard, r.answered = sent, false, false
	r.agent.settle(r)
	r.agent.used = r.agent.used.plus(r.taken)
	m.hush(r)
}

// hush expects a word of a run within some time, or asks for one.
func (m *Machine) hush(r *run) {
	m.silent = append(m.silent, deadline{m.now + int64(m.cfg.SilenceAfter), r})
}

// stillSilent asks for a run of which nothing was heard.
func (m *Machine) stillSilent(r *run) {
	if m.runs[r.id] != r || r.phase != sent || (r.heard && r.answered) {
		return
	}
	m.doubt(r)
	m.hush(r)
}

// unsend takes a run's room back from the agent.
func (m *Machine) unsend(r *run) {
	delete(r.agent.runs, r.id)
	r.agent.used = r.agent.used.minus(r.taken)
	m.loosen(r.agent, r.taken)
	r.taken = nil
	m.blur(r.agent)
	if len(r.agent.runs) == 0 && r.agent.lost {
		m.touch(r.agent)
	}
}

// again makes a run wait for offers once more: those that it was sent with were not valid any more. Its time does not begin anew.
func (m *Machine) again(r *run) {
	m.unsend(r)
	switch {
	case r.kill != nil:
		m.finish(r, ending{state: runKilled, message: "killed before it was started"})
	case r.agent.lost:
		m.finish(r, ending{state: runLost, reason: reasonHostLost, message: "its host left the cluster"})
	case r.deadline <= m.now:
		m.park(r)
		m.giveUp(r)
	default:
		// The queue of deadlines is in order of time; this one is earlier than its last, and looked at again then.
		r.phase = waiting
		r.agent.waiting = append(r.agent.waiting, r)
		m.waiting++
		m.after(r.deadline-m.now, func() {
			if m.runs[r.id] == r {
				m.giveUp(r)
			}
		})
		m.flush(r.agent)
	}
}

// Outcome is what became of a call that was not simply taken.
type Outcome uint8

// The outcomes.
const (
	NotTaken   Outcome = iota // the master has not got it and never will
	Unanswered                // nobody knows
)

// Failed says that a call was not taken, or that nobody knows. An acknowledgement, kill or reconciliation is sent again, see sendAgain; offers of
// an ACCEPT or DECLINE are given back.
func (m *Machine) Failed(now int64, call *Call, outcome Outcome, why error, out *Output) {
	m.begin(now, out)
	for _, r := range call.runs {
		switch {
		case m.runs[r.id] != r || r.phase != sent || r.heard:
		case outcome == NotTaken && m.subscribed:
			m.again(r)
		case outcome == NotTaken:
			m.unsend(r)
			m.finish(r, ending{state: runLost, reason: reasonLaunchRefused, message: cut(fmt.Sprintf("it was not sent: %v", why))})
		default:
			m.after(int64(m.cfg.DoubtAfter), func() {
				if m.runs[r.id] == r && r.phase == sent && !r.heard {
					m.doubt(r)
				}
			})
		}
	}
	for _, id := range call.operations {
		if o := m.operations[id]; o != nil && outcome == NotTaken {
			m.settle(o, Feedback{State: mesos.OPERATION_DROPPED, Message: cut(fmt.Sprintf("it was not sent: %v", why))})
		}
	}
	if len(call.operations) > 0 && outcome == Unanswered {
		m.after(int64(m.cfg.DoubtAfter), func() {
			if m.subscribed {
				m.reconcileOperations()
			}
		})
	}
	switch {
	case call.Type == scheduler.Call_RECONCILE && !m.told:
		m.gatherAgain()
	case call.Type == scheduler.Call_ACKNOWLEDGE, call.Type == scheduler.Call_ACKNOWLEDGE_OPERATION_STATUS, call.Type == scheduler.Call_KILL,
		call.Type == scheduler.Call_RECONCILE:
		m.sendAgain(call)
	case call.Accept != nil:
		m.declineLater(call.Accept.OfferIDs)
	case call.Decline != nil:
		m.declineLater(call.Decline.OfferIDs)
	case call.Type == scheduler.Call_REVIVE:
		m.revive = true
	case call.Type == scheduler.Call_SUPPRESS:
		m.suppressed = false
	}
	m.end()
}

// declineLater gives back offers that may still be held by the master's word, because the call that used them did not arrive. Declining one
// that is none any more does no harm.
func (m *Machine) declineLater(ids []mesos.OfferID) {
	subscription := m.gather.began
	m.after(int64(m.cfg.ReviveEvery), func() {
		if m.subscribed && m.gather.began == subscription {
			m.decline(ids, 0)
		}
	})
}

// Bounds of what is sent again: after that many tries, or with that many calls waiting for theirs, an agent or the next reconciliation sees to it.
const (
	firstResend  = int64(time.Second)
	maxResends   = 7
	maxResending = 1 << 16
)

// sendAgain makes a call once more that may not have been taken: after a second, and each time after twice as long. All that come here may be
// heard twice without harm.
func (m *Machine) sendAgain(call *Call) {
	if call.failures >= maxResends || m.resending >= maxResending {
		return
	}
	again := &Call{Call: call.Call, failures: call.failures + 1}
	m.resending++
	m.after(firstResend<<call.failures, func() {
		m.resending--
		if m.subscribed {
			m.out.Calls = append(m.out.Calls, *again)
		} else {
			m.sendAgain(again)
		}
	})
}
