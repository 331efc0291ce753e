package scheduler

import (
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// dirtyEntry is one object that changed in this Step. However often it changed, its record is written once, as it is at the
// end of the Step, together with the one Change that watchers see.
type dirtyEntry struct {
	job       *job // with task, or alone
	task      bool
	instance  uint32
	ended     bool        // the task's run ended in this Step: it goes to the history
	former    []RunRecord // and so did these of its runs, before it got another
	host      *hostState
	pool      workload.PoolID
	gonePool  *respool.Pool // deleted
	meter     *usage.Meter  // an account that was made or rolled
	principal string
	with      []Write // in the same group, before the object's own record
	told      *Change // what watchers see of what is in with; nil: nothing
	gone      bool    // the job's or host's record is deleted
	moved     bool    // the object is written by a later entry
}

func (s *State) dirtyTask(j *job, i uint32) *dirtyEntry {
	t := &j.tasks[i]
	t.touched = true
	if t.dirty == 0 {
		s.dirty = append(s.dirty, dirtyEntry{job: j, task: true, instance: i})
		t.dirty = uint32(len(s.dirty))
	}
	return &s.dirty[t.dirty-1]
}

func (s *State) dirtyJob(j *job) *dirtyEntry {
	if j.dirty == 0 {
		s.dirty = append(s.dirty, dirtyEntry{job: j})
		j.dirty = uint32(len(s.dirty))
	}
	return &s.dirty[j.dirty-1]
}

// dirtyJobLast makes the job's record follow everything that is dirty by now. A job that is recorded as ended must not have instances whose
// ends could be lost in a crash: their statuses have come for nothing then, and nobody would settle them.
func (s *State) dirtyJobLast(j *job) {
	e := s.dirtyJob(j)
	if int(j.dirty) == len(s.dirty) {
		return
	}
	last := *e
	*e = dirtyEntry{moved: true}
	s.dirty = append(s.dirty, last)
	j.dirty = uint32(len(s.dirty))
}

func (s *State) dirtyHost(h *hostState) *dirtyEntry {
	if s.dirtyHosts[h.ID] == 0 {
		s.dirty = append(s.dirty, dirtyEntry{host: h})
		s.dirtyHosts[h.ID] = len(s.dirty)
	}
	e := &s.dirty[s.dirtyHosts[h.ID]-1]
	e.host, e.gone = h, false // one that was forgotten in this Step may have come back
	return e
}

func (s *State) dirtyPool(id workload.PoolID) *dirtyEntry {
	if s.dirtyPools[id] == 0 {
		s.dirty = append(s.dirty, dirtyEntry{pool: id})
		s.dirtyPools[id] = len(s.dirty)
	}
	return &s.dirty[s.dirtyPools[id]-1]
}

// writeAlone puts records that no watcher sees.
func (s *State) writeAlone(writes ...Write) {
	s.dirty = append(s.dirty, dirtyEntry{with: writes})
}

// flush turns what is dirty into groups, in the order in which objects were first touched. What belongs to one object is never
// split over two groups.
func (s *State) flush() {
	if len(s.dirty) == 0 {
		return
	}
	b := groupBuilder{state: s}
	for n := range s.dirty {
		e := &s.dirty[n]
		b.begin(len(s.dirty) - n)
		for _, w := range e.with {
			b.put(w)
		}
		s.writeEntry(&b, e)
		b.end()
	}
	b.close()
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	clear(s.dirtyHosts)
	clear(s.dirtyPools)
}

func (s *State) writeEntry(b *groupBuilder, e *dirtyEntry) {
	switch {
	case e.moved:
	case e.told != nil:
		b.change(*e.told)
	case e.meter != nil:
		b.settle(settlement{meter: e.meter})
	case e.task:
		s.writeTask(b, e)
	case e.job != nil:
		s.writeJob(b, e)
	case e.host != nil:
		b.put(Write{Record: e.host.HostRecord, Delete: e.gone})
		kind := ChangeHost
		if e.gone {
			kind = ChangeHostForgotten
		}
		b.change(Change{Kind: kind, At: s.now, Host: e.host.ID, Name: e.host.Name, Message: e.host.Summary.Message, Principal: e.principal})
	case e.gonePool != nil:
		b.put(Write{Record: PoolRecord{Pool: *e.gonePool}, Delete: true})
		b.change(Change{Kind: ChangePoolDeleted, At: s.now, Pool: e.gonePool.ID, Name: e.gonePool.Name, Principal: e.principal})
	case e.pool != workload.PoolID{}:
		pool, ok := s.pools.Pool(e.pool)
		if !ok {
			return // created and deleted within one Step
		}
		b.put(Write{Record: PoolRecord{Pool: pool}})
		b.change(Change{Kind: ChangePool, At: s.now, Pool: e.pool, Name: pool.Name, Version: pool.Version, Principal: e.principal})
	}
}

func (s *State) writeTask(b *groupBuilder, e *dirtyEntry) {
	j, t := e.job, &e.job.tasks[e.instance]
	t.dirty = 0
	rec := j.taskRecord(e.instance)
	b.put(Write{Record: rec})
	s.ownRun(e)
	for _, run := range e.former {
		b.put(Write{Record: run})
		b.settle(settlement{meter: j.meter, needs: j.needs(e.instance), began: run.Placed})
		if run.ID.Run > MaxRunsKept {
			old := run.ID
			old.Run -= MaxRunsKept
			b.put(Write{Record: RunRecord{ID: old}, Delete: true})
		}
	}
	b.change(Change{
		Kind: ChangeTask, At: s.now, Pool: j.spec.Pool, Job: j.ID, JobState: j.State, Goal: j.Goal, Run: j.runID(e.instance), State: rec.State,
		RunState: rec.RunState, Healthy: rec.Healthy, Reason: rec.Reason, ExitCode: rec.ExitCode, Host: rec.Host, Name: j.spec.Name,
		Message: rec.Message, Principal: e.principal,
	})
}

// ownRun notes the task's run if it ended in this Step: the task may get another before the Step is over.
func (s *State) ownRun(e *dirtyEntry) {
	if !e.ended {
		return
	}
	e.ended = false
	rec := e.job.taskRecord(e.instance)
	e.former = append(e.former, RunRecord{
		ID: e.job.runID(e.instance), Host: rec.Host, State: rec.RunState, Reason: rec.Reason, ExitCode: rec.ExitCode, Signal: rec.Signal,
		Message: rec.Message, Placed: rec.Placed, Started: rec.Started, Ended: s.now, Config: rec.Config,
	})
}

func (s *State) writeJob(b *groupBuilder, e *dirtyEntry) {
	j := e.job
	j.dirty = 0
	c := Change{
		Kind: ChangeJob, At: s.now, Pool: j.spec.Pool, Job: j.ID, JobState: j.State, Goal: j.Goal, Version: j.Version, Reason: j.Reason,
		Name: j.spec.Name, Principal: e.principal,
	}
	if e.gone {
		b.put(Write{Record: SpecRecord{Job: j.ID, Config: j.Config}, Delete: true})
		b.put(Write{Record: j.JobRecord, Delete: true})
		c.Kind = ChangeJobDeleted
		b.change(c)
		return
	}
	if j.needsSpec {
		j.needsSpec = false
		b.put(Write{Record: SpecRecord{Job: j.ID, Config: j.Config, Spec: j.spec, Size: j.specBytes}})
	}
	b.put(Write{Record: j.JobRecord})
	b.change(c)
}

// groupBuilder fills groups up to their bounds without splitting what stands between begin and end.
type groupBuilder struct {
	state   *State
	writes  []Write
	changes []Change
	bytes   int

	unitWrites, unitChanges, unitBytes int // where the present unit began

	unit   []settlement   // of the present unit
	meters []*usage.Meter // accounts that changed in this group: their records come at its end
}

// settlement is an account that changes, with a run that ended, in the group of the present unit.
type settlement struct {
	meter *usage.Meter
	needs *resource.Vector // nil: no run
	began int64
}

func (b *groupBuilder) settle(s settlement) { b.unit = append(b.unit, s) }

// settleUnit changes the accounts of the unit that has just found its group.
func (b *groupBuilder) settleUnit() {
	for _, u := range b.unit {
		if u.needs != nil {
			u.meter.Settle(u.needs, u.began, b.state.now)
		}
		if !slices.Contains(b.meters, u.meter) {
			b.meters = append(b.meters, u.meter)
			b.bytes += accountBytes
		}
	}
	b.unit = b.unit[:0]
}

// accountBytes is an upper bound of an encoded account.
const accountBytes = 1024

// begin starts a unit; left is how many more are to come at most, itself included.
func (b *groupBuilder) begin(left int) {
	if b.writes == nil && left > 1 { // a task has a record, and at its end one more for the history
		b.writes = make([]Write, 0, min(2*left, maxOpsPerGroup)+2*MaxRunsKept)
		b.changes = make([]Change, 0, min(left, maxOpsPerGroup))
	}
	b.unitWrites, b.unitChanges, b.unitBytes = len(b.writes), len(b.changes), b.bytes
}

func (b *groupBuilder) put(w Write) {
	b.writes = append(b.writes, w)
	b.bytes += sizeOf(w)
}

func (b *groupBuilder) change(c Change) {
	b.changes = append(b.changes, c)
	b.bytes += 200 + len(c.Name) + len(c.Message)
}

func (b *groupBuilder) end() {
	ops := len(b.writes) + len(b.meters) + len(b.unit)
	if b.unitWrites == 0 && len(b.meters) == 0 || (ops <= maxOpsPerGroup && b.bytes <= maxBytesPerGroup) {
		b.settleUnit()
		return
	}
	unit := append(make([]Write, 0, maxOpsPerGroup+2*MaxRunsKept), b.writes[b.unitWrites:]...)
	changes := append(make([]Change, 0, maxOpsPerGroup), b.changes[b.unitChanges:]...)
	size := b.bytes - b.unitBytes
	b.writes, b.changes = b.writes[:b.unitWrites], b.changes[:b.unitChanges]
	b.close()
	b.writes, b.changes, b.bytes = unit, changes, size
	b.settleUnit()
}

// close ends the present group: it takes the next sequence, gets its part of the event log and drops the part that is out of
// bounds.
func (b *groupBuilder) close() {
	for _, m := range b.meters {
		b.writes = append(b.writes, Write{Record: AccountRecord{Account: m.Account()}})
	}
	b.meters = b.meters[:0]
	if len(b.writes) == 0 && len(b.changes) == 0 {
		return
	}
	s := b.state
	s.sequence++
	if len(b.changes) > 0 {
		b.writes = append(b.writes, Write{Record: ChangesRecord{Sequence: s.sequence, Changes: b.changes}})
	}
	if s.sequence > ChangesKept {
		b.writes = append(b.writes, Write{Record: ChangesRecord{Sequence: s.sequence - ChangesKept}, Delete: true})
	}
	s.out.Groups = append(s.out.Groups, Group{Sequence: s.sequence, Writes: b.writes})
	b.writes, b.changes, b.bytes = nil, nil, 0
}

// sizeOf is an upper bound of a record's encoded bytes, good enough to stay under the bound of a group.
func sizeOf(w Write) int {
	const fixed = 256
	if w.Delete {
		return 64
	}
	switch r := w.Record.(type) {
	case SpecRecord:
		return fixed + r.Size
	case ArchiveRecord:
		return fixed + len(r.Archive)
	case PoliciesRecord:
		return fixed + len(r.State) + 34*len(r.Archives)
	case ClusterRecord:
		return fixed + maxClusterBytes
	case RulesRecord:
		return fixed + len(r.Name) + len(r.Kept)*(fixed+64)
	case TaskRecord:
		return fixed + len(r.Message) + 3*len(r.Ports)
	case RunRecord:
		return fixed + len(r.Message)
	case HostRecord:
		size := fixed + len(r.Name) + len(r.Summary.Message) + len(r.Summary.ClusterID) + 48*len(r.Summary.Devices) + 40*len(r.Summary.Capacity)
		for k, v := range r.Summary.Attributes {
			size += len(k) + len(v) + 8
		}
		return size
	}
	return 1024
}
