package framework

import (
	"bytes"
	"strings"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/scheduler"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/workload"
)

// phase is how far a run has come.
type phase uint8

const (
	waiting phase = iota // for offers; the master does not know it
	sent                 // the master knows it or may know it
	ended                // it is over, and its last status waits for its acknowledgement
)

// run is a task that lives or whose end was not acknowledged.
type run struct {
	id    workload.RunID
	task  string // id as text
	agent *agent
	phase phase
	last  driver.Status // that was given; State RunNone: none

	// The launch; empty for a run of an earlier process.
	launch    *driver.Launch
	needs     []need
	ports     []uint16
	revocable bool
	deadline  int64 // of the wait for offers
	merged    bool  // fragments were given back for it
	role      string
	taken     bundle

	checked  bool // it has a health check, so it is healthy when that says so
	heard    bool // the master has spoken of it
	answered bool // since the last subscription
	queued   bool // in Machine.doubts
	wanted   bool // the next word of it is told, news or not
	uuid     []byte
	rumour   bool // its end was told by reconciliation, and the update has not come
	acked    bool // the update of uuid was acknowledged

	grace time.Duration
	away  int64 // when it was out of contact last
	kill  *kill
	group *group // nil: a command task
}

// kill is a kill that has not had its effect.
type kill struct {
	grace time.Duration
	final int64 // when it is made final
	hard  bool  // it was
}

// pending is a status that the shard has not acknowledged.
type pending struct {
	run  *run
	uuid []byte // nil: the master wants no acknowledgement
}

// report makes a status a run's last one, under a new token, and tells it. The token stands for the one before as well, which may never have
// been told: an update that the agent still wants acknowledged is acknowledged with it.
func (m *Machine) report(r *run, s driver.Status, uuid []byte) {
	delete(m.pending, r.last.Token)
	if uuid == nil && !r.acked {
		uuid = r.uuid
	}
	m.token++
	s.Run, s.Token = r.id, m.token
	if r.agent != nil {
		s.Host = r.agent.name
	}
	r.last = s
	if s.State.Traits().Terminal || uuid != nil {
		m.pending[s.Token] = pending{r, uuid}
	}
	m.tell(&s)
}

// repeat tells what was told last.
func (m *Machine) repeat(r *run) {
	if r.last.State != workload.RunNone {
		m.tell(&r.last)
	}
}

// finish ends a run by the machine's own word.
func (m *Machine) finish(r *run, e ending) {
	m.conclude(r, e, time.Unix(0, m.now).UTC(), nil)
}

// conclude ends a run. Its room must have been given back.
func (m *Machine) conclude(r *run, e ending, at time.Time, uuid []byte) {
	if r.rumour {
		r.rumour = false
		m.gather.rumours--
	}
	r.phase, r.kill, r.wanted = ended, nil, false
	r.launch, r.needs, r.ports = nil, nil, nil
	m.report(r, driver.Status{
		State: e.state, Reason: e.reason, ExitCode: e.exitCode, Signal: e.signal, Message: e.message, At: at,
	}, uuid)
}

// Acknowledge takes in that statuses are durable: only now the master may forget them.
func (m *Machine) Acknowledge(now int64, tokens []driver.Token, out *Output) {
	m.begin(now, out)
	for _, token := range tokens {
		p, ok := m.pending[token]
		if !ok {
			continue
		}
		delete(m.pending, token)
		r := p.run
		if p.uuid != nil {
			if bytes.Equal(r.uuid, p.uuid) {
				r.acked = true
			}
			m.acknowledge(r, r.task, p.uuid)
		}
		if r.phase == ended && r.last.Token == token && m.runs[r.id] == r {
			delete(m.runs, r.id)
		}
	}
	m.end()
}

// acknowledge has the master forget an update. Without a master, or an agent, it is said again, and acknowledged then.
func (m *Machine) acknowledge(r *run, task string, uuid []byte) {
	if m.subscribed && r.agent != nil {
		m.acknowledgeTo(r.agent.id, task, uuid)
	}
}

func (m *Machine) acknowledgeTo(agent, task string, uuid []byte) {
	m.call(&scheduler.Call{Type: scheduler.Call_ACKNOWLEDGE, Acknowledge: &scheduler.Call_Acknowledge{
		AgentID: mesos.AgentID{Value: agent}, TaskID: mesos.TaskID{Value: task}, UUID: uuid,
	}})
}

// Event takes in anything that a master says but SUBSCRIBED and HEARTBEAT.
func (m *Machine) Event(now int64, e *scheduler.Event, out *Output) {
	m.begin(now, out)
	defer m.end()
	if !m.subscribed {
		return // of the subscription before
	}
	switch {
	case e.Offers != nil:
		m.takeOffers(e.Offers.Offers)
	case e.Update != nil:
		m.update(&e.Update.Status)
	case e.Rescind != nil:
		m.rescind(e.Rescind.OfferID.Value)
	case e.InverseOffers != nil:
		m.takeInverse(e.InverseOffers.InverseOffers)
	case e.RescindInverseOffer != nil: // it was answered at once
	case e.UpdateOperationStatus != nil:
		m.operationUpdate(&e.UpdateOperationStatus.Status)
	case e.Failure != nil && e.Failure.ExecutorID == nil: // that of an executor follows every group, and its tasks have said it
		m.agentFailed(e.Failure.GetAgentID().GetValue())
	}
	if !m.told {
		m.tryInventory()
	}
}

// update takes in a task's status.
func (m *Machine) update(st *mesos.TaskStatus) {
	name, member, inGroup := strings.Cut(st.TaskID.Value, memberMark)
	id, err := workload.ParseRunID(name)
	if err != nil {
		m.foreign(st)
		return
	}
	r := m.runs[id]
	switch {
	case r == nil && inGroup:
		if r = m.straggler(id, st); r == nil {
			return
		}
	case r == nil:
		if r = m.stranger(id, st); r == nil {
			return
		}
	case r.agent == nil: // it has ended for want of a host, and one has it all the same
		if r.agent = m.agentOf(st); r.agent == nil {
			return
		}
	}
	if inGroup {
		m.memberUpdate(r, member, st)
		return
	}
	m.runUpdate(r, st)
}

// foreign answers a status of a task that no Paceline launched under this framework: it is ended. The end of a reconciliation comes this way,
// too.
func (m *Machine) foreign(st *mesos.TaskStatus) {
	if st.TaskID.Value == m.gather.marker && m.gather.marker != "" {
		m.gather.reconciled = true
		return
	}
	agent := st.GetAgentID().GetValue()
	if len(st.UUID) > 0 && agent != "" {
		m.acknowledgeTo(agent, st.TaskID.Value, st.UUID)
	}
	if state, _ := Meaning(st.GetState(), st.Reason); state == runStarting || state == runRunning {
		m.call(&scheduler.Call{Type: scheduler.Call_KILL, Kill: &scheduler.Call_Kill{TaskID: st.TaskID, AgentID: st.AgentID}})
	}
}

// stranger takes in a run of ours that the machine does not know: one of an earlier process, or one that was given up and came back. The
// core will say what is to become of it. nil: there is no such run.
func (m *Machine) stranger(id workload.RunID, st *mesos.TaskStatus) *run {
	state, reason := Meaning(st.GetState(), st.Reason)
	if st.GetState() == mesos.TASK_UNKNOWN && m.unknownYet(id) {
		return nil
	}
	_, asked := m.asked[id]
	delete(m.asked, id)
	r := &run{id: id, task: id.String(), phase: sent, heard: true, answered: true}
	if state.Traits().Terminal && len(st.UUID) == 0 {
		gone := reason == reasonNotFound || st.GetState() == mesos.TASK_GONE_BY_OPERATOR
		switch {
		case gone && !asked:
			return nil // such as one that was finished and acknowledged long ago
		case gone:
			s := driver.Status{Run: id, State: runLost, Reason: reasonNotFound, Message: cut(st.GetMessage()), At: m.timeOf(st)}
			m.tell(&s)
			return nil
		}
	}
	if r.agent = m.agentOf(st); r.agent == nil { // a task without an agent is a contradiction
		return nil
	}
	m.runs[id] = r
	r.agent.settle(r)
	m.weigh(r)
	r.wanted = asked
	return r
}

// straggler takes in a container that ran beside the main one of a run that the machine does not know. If it lives, the master is asked for the
// main one: when that is over, the container is to be ended too. nil: it ends by itself, and nobody needs to know.
func (m *Machine) straggler(id workload.RunID, st *mesos.TaskStatus) *run {
	if state, _ := Meaning(st.GetState(), st.Reason); state != runStarting && state != runRunning {
		if agent := st.GetAgentID().GetValue(); len(st.UUID) > 0 && agent != "" {
			m.acknowledgeTo(agent, st.TaskID.Value, st.UUID)
		}
		return nil
	}
	r := m.stranger(id, st)
	if r != nil {
		r.answered = false
		m.doubt(r)
		m.hush(r)
	}
	return r
}

// agentOf returns the agent of a task. One that is not known by name is asked for.
func (m *Machine) agentOf(st *mesos.TaskStatus) *agent {
	a := m.agent(st.GetAgentID().GetValue())
	if a != nil {
		m.identify(a)
	}
	return a
}

// identify asks for the name of an agent that is known by its id only.
func (m *Machine) identify(a *agent) {
	if a.name == "" && m.told && !m.censusBad {
		m.out.Census = max(m.out.Census, AskAgents)
	}
}

// runUpdate takes in a status of a run, of its main task if it is a group.
func (m *Machine) runUpdate(r *run, st *mesos.TaskStatus) {
	if len(st.UUID) > 0 && bytes.Equal(r.uuid, st.UUID) {
		m.repeated(r, st.UUID)
		return
	}
	if r.phase == ended {
		m.afterTheEnd(r, st)
		return
	}
	if r.phase == waiting { // an answer to a question about an earlier life of the id, or a task that was never ours to expect
		if len(st.UUID) == 0 {
			return
		}
		m.unpark(r)
		m.nowSent(r)
	}
	if m.stillThere(r, st) {
		return
	}
	if id := st.GetAgentID().GetValue(); id != "" && id != r.agent.id {
		m.move(r, id)
	}
	r.heard, r.answered = true, true
	state, reason := Meaning(st.GetState(), st.Reason)
	switch {
	case (state == runSucceeded || state == runFailed || state == runKilled) && len(st.UUID) == 0 && st.Reason != nil && *st.Reason == mesos.REASON_RECONCILIATION:
		m.hearsay(r, st) // its agent will tell it with the details
	case state.Traits().Terminal:
		m.over(r, endOf(st, r.kill != nil), st)
	default:
		m.progress(r, st, state, reason)
	}
}

// move notes that a run is on another agent than was thought.
func (m *Machine) move(r *run, id string) {
	a := m.agent(id)
	if a == nil {
		return
	}
	delete(r.agent.runs, r.id)
	r.agent.used = r.agent.used.minus(r.taken)
	m.touch(r.agent)
	r.agent = a
	a.settle(r)
	a.used = a.used.plus(r.taken)
	m.touch(a)
}

// repeated answers an update that has come before. If it was acknowledged, the master has not heard it.
func (m *Machine) repeated(r *run, uuid []byte) {
	r.answered = true
	if r.acked {
		m.acknowledge(r, r.task, uuid)
	}
}

// afterTheEnd answers a status of a run that is over here.
func (m *Machine) afterTheEnd(r *run, st *mesos.TaskStatus) {
	state, _ := Meaning(st.GetState(), st.Reason)
	if len(st.UUID) > 0 {
		if state.Traits().Terminal && (r.uuid == nil || r.acked) { // the master's own version of what was told by another
			r.uuid, r.acked = st.UUID, false
			m.pending[r.last.Token] = pending{r, st.UUID}
			return
		}
		m.acknowledge(r, r.task, st.UUID)
	}
	switch {
	case state.Traits().Terminal:
		if r.wanted {
			r.wanted = false
			m.repeat(r)
		}
	case state != runUnreachable && state != runKilling: // it was given up, and came back
		m.sendKill(r, 0)
	}
}

// stillThere reports whether a status that sounds like an end is none.
func (m *Machine) stillThere(r *run, st *mesos.TaskStatus) bool {
	switch {
	case st.Reason == nil:
		return false
	case *st.Reason == mesos.REASON_INVALID_OFFERS && (st.GetState() == mesos.TASK_DROPPED || st.GetState() == mesos.TASK_LOST):
		if r.heard || r.launch == nil {
			return true // of a second launch; the first is well
		}
		m.again(r)
		return true
	case *st.Reason == mesos.REASON_TASK_INVALID && strings.HasPrefix(st.GetMessage(), "Task has duplicate ID"):
		m.doubt(r) // of the task that is there already; what it is doing the master will say
		return true
	case *st.Reason == mesos.REASON_RECONCILIATION && (st.GetState() == mesos.TASK_UNKNOWN || st.GetState() == mesos.TASK_GONE):
		if m.met+int64(m.cfg.ReregisterGrace) > m.now && r.survivor() && !r.agent.former {
			return true // its agent may not have registered with this master yet; it is asked again
		}
	}
	return false
}

// survivor reports whether a run is older than the present master's acquaintance with the framework, as far as is known.
func (r *run) survivor() bool { return r.heard && !r.answered }

// progress takes in that a run lives.
func (m *Machine) progress(r *run, st *mesos.TaskStatus, state workload.RunState, reason workload.Reason) {
	if state == runUnreachable {
		m.unreachable(r, st)
	} else if r.last.State == runUnreachable {
		m.found(r.agent)
		m.identify(r.agent) // while it was away nobody could tell
	}
	s := driver.Status{State: state, Reason: reason, At: m.timeOf(st), Message: cut(st.GetMessage())}
	if state == runRunning {
		s.Healthy = !r.checked
		if st.Healthy != nil {
			s.Healthy, r.checked = *st.Healthy, true
		}
	}
	if behind(r.last.State, state) { // an older word: what is known stays
		s = r.last
	}
	if len(st.UUID) > 0 {
		r.uuid, r.acked = st.UUID, false
		r.wanted = false
		m.report(r, s, st.UUID)
	} else if news := s.State != r.last.State || s.Healthy != r.last.Healthy; news || r.wanted {
		r.wanted = false
		m.report(r, s, nil)
	}
	r.launch = nil // it will not be sent again
}

// behind reports whether a state comes before one that is known, in a life that goes only forward. What is out of contact may come back in
// any state.
func behind(known, state workload.RunState) bool {
	return known != workload.RunNone && known != runUnreachable && rank(state) < rank(known)
}

func rank(s workload.RunState) int {
	switch s {
	case runStarting:
		return 1
	case runRunning, runUnreachable:
		return 2
	case runKilling:
		return 3
	default:
		return 0
	}
}

// unreachable waits for an agent that is out of contact, for some time. The master says since when it is, so that neither a restart nor another
// subscription begins the time anew.
func (m *Machine) unreachable(r *run, st *mesos.TaskStatus) {
	if r.last.State == runUnreachable {
		return
	}
	since := m.now
	if said := st.GetUnreachableTime().GetNanoseconds(); said > 0 {
		since = min(since, said)
	}
	r.away = since
	m.after(max(since+int64(m.cfg.UnreachableGrace)-m.now, 0), func() {
		if m.runs[r.id] != r || r.phase != sent || r.last.State != runUnreachable || r.away != since {
			return // it came back, and may be out of contact anew, with a grace of its own
		}
		m.unsend(r)
		m.finish(r, ending{state: runLost, reason: reasonUnreachable, message: "its agent was out of contact for longer than the grace of " + m.cfg.UnreachableGrace.String()})
	})
}

// hearsay takes in that a run is over, as a master answers to a question: without details, and before the update that has them.
func (m *Machine) hearsay(r *run, st *mesos.TaskStatus) {
	status := *st
	if !r.rumour {
		r.rumour = true
		m.gather.rumours++
	}
	m.after(int64(m.cfg.HearsayFor), func() {
		if m.runs[r.id] == r && r.phase == sent {
			m.over(r, endOf(&status, r.kill != nil), &status)
		}
	})
}

// over ends a run by a word of the master.
func (m *Machine) over(r *run, e ending, st *mesos.TaskStatus) {
	if r.group != nil {
		m.endGroup(r, &e)
	}
	if len(st.UUID) > 0 {
		r.uuid, r.acked = st.UUID, false
	}
	m.unsend(r)
	m.conclude(r, e, m.timeOf(st), st.UUID)
}

// Kill ends runs. One that is over is told of once more; one that nobody knows is answered by the master.
func (m *Machine) Kill(now int64, kills []driver.Kill, out *Output) error {
	m.begin(now, out)
	defer m.end()
	if !m.told {
		return ErrNotConnected
	}
	for _, k := range kills {
		r := m.runs[k.Run]
		switch {
		case r == nil:
			m.ask(k.Run)
			m.call(&scheduler.Call{Type: scheduler.Call_KILL, Kill: &scheduler.Call_Kill{TaskID: mesos.TaskID{Value: k.Run.String()}}})
		case r.phase == ended:
			m.repeat(r)
		case r.phase == waiting:
			m.unpark(r)
			m.finish(r, ending{state: runKilled, message: "killed before it was started"})
		default:
			m.killRun(r, k.Grace)
		}
	}
	return nil
}

// maxAsked bounds the questions about runs that the machine does not know; of one more there will be no answer, and it is asked again.
const maxAsked = 1 << 17

// ask notes that the master's answer about an unknown run is to be told.
func (m *Machine) ask(id workload.RunID) {
	if _, asked := m.asked[id]; !asked && len(m.asked) < maxAsked {
		m.asked[id] = false
	}
}

// killRun sends a kill, and sees to it that it has its effect. Of several the shortest grace counts.
func (m *Machine) killRun(r *run, grace time.Duration) {
	final := m.now + int64(min(grace, maxGrace)) + int64(m.cfg.KillMargin)
	first := r.kill == nil
	if first || final < r.kill.final {
		r.kill = &kill{grace: grace, final: final}
	}
	m.sendKill(r, r.kill.grace)
	if first {
		m.after(int64(m.cfg.KillResend), func() { m.killAgain(r) })
	}
}

// maxGrace bounds the grace of a kill, so that times stay in 64 bits.
const maxGrace = 365 * 24 * time.Hour

// killAgain sends a kill once more, and a final one when its time has come: first without grace, then to the executor.
func (m *Machine) killAgain(r *run) {
	if m.runs[r.id] != r || r.phase != sent || r.kill == nil {
		return
	}
	if m.subscribed {
		switch {
		case r.kill.hard:
			m.call(&scheduler.Call{Type: scheduler.Call_SHUTDOWN, Shutdown: &scheduler.Call_Shutdown{
				ExecutorID: mesos.ExecutorID{Value: r.executor()}, AgentID: mesos.AgentID{Value: r.agent.id},
			}})
		case r.kill.final <= m.now:
			r.kill.hard = true
			m.sendKill(r, 0)
		default:
			m.sendKill(r, r.kill.grace)
		}
	}
	m.after(int64(m.cfg.KillResend), func() { m.killAgain(r) })
}

func (m *Machine) sendKill(r *run, grace time.Duration) {
	if !m.subscribed {
		return
	}
	m.call(&scheduler.Call{Type: scheduler.Call_KILL, Kill: &scheduler.Call_Kill{
		TaskID: mesos.TaskID{Value: r.task}, AgentID: &mesos.AgentID{Value: r.agent.id}, KillPolicy: killPolicy(grace),
	}})
}

func killPolicy(grace time.Duration) *mesos.KillPolicy {
	return &mesos.KillPolicy{GracePeriod: &mesos.DurationInfo{Nanoseconds: int64(min(max(grace, 0), maxGrace))}}
}
