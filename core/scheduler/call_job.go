package scheduler

import (
	"fmt"
	"slices"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

func (s *State) submitJob(caller Caller, cmd *SubmitJob) (Answer, *Error) {
	if cmd.Idempotency != nil {
		if known, ok := s.idempotency[*cmd.Idempotency]; ok {
			return s.repeated(known, cmd)
		}
	}
	if a, err := s.sameName(cmd); err != nil || a != nil {
		if err != nil {
			return Answer{}, err
		}
		return *a, nil
	}
	if cmd.Denied != nil {
		return Answer{}, cmd.Denied
	}
	if err := s.checkSpec(cmd.Spec, cmd.SpecBytes); err != nil {
		return Answer{}, err
	}
	if _, taken := s.jobs[cmd.ID]; taken {
		return Answer{}, refuse(AlreadyExists, "id", "draw another id", "a job with id %s exists", cmd.ID)
	}
	if cmd.Idempotency != nil && len(s.idempotency) >= MaxIdempotencyKeys {
		err := refuse(ResourceExhausted, "idempotency_key", "send fewer calls with keys, or wait for old ones to pass their window",
			"the cell remembers %d idempotency keys and takes no more", MaxIdempotencyKeys)
		err.RetryAfter = s.cfg.IdempotencyWindow / 24
		return Answer{}, err
	}
	if err := s.pools.AttachJob(cmd.Spec.Pool); err != nil {
		return Answer{}, refuse(FailedPrecondition, "spec.pool", "", "%v", err)
	}
	return s.accept(caller, cmd), nil
}

// accept makes the job. Its instances are made in memory only; each gets a record when something happens to it.
func (s *State) accept(caller Caller, cmd *SubmitJob) Answer {
	j := newJob(JobRecord{
		ID: cmd.ID, Order: s.nextOrder, Version: 1, Config: 1, Caller: caller, Goal: GoalRun, State: workload.JobPending, Generation: 1,
		Created: s.now, Asked: cmd.Asked,
	}, cmd.Spec, cmd.SpecBytes)
	j.needsSpec = true
	s.nextOrder++
	s.adopt(j)
	e := s.dirtyJob(j)
	e.principal = caller.Principal
	if cmd.Idempotency != nil {
		rec := &IdempotencyRecord{Key: *cmd.Idempotency, Hash: cmd.RequestHash, Job: j.ID, Expires: s.now + int64(s.cfg.IdempotencyWindow)}
		s.remember(rec)
		e.with = append(e.with, Write{Record: *rec})
	}
	if j.spec.Deadline > 0 {
		s.setTimer(timer{at: s.now + int64(j.spec.Deadline), kind: timerDeadline, job: j})
	}
	if j.spec.Kind == workload.Daemon {
		s.watchDaemons()
	}
	s.touch(j)
	s.jobMayEnd(j) // a batch job without instances
	return Answer{Job: s.jobView(j), Warnings: s.warnings(j.spec)}
}

// adopt enters a job into the indexes of the cell.
func (s *State) adopt(j *job) {
	s.jobs[j.ID] = j
	s.order = append(s.order, j)
	name := jobName{j.spec.Pool, j.spec.Name}
	if j.older = s.byName[name]; j.older != nil {
		j.older.newer = j
	}
	s.byName[name] = j
	if j.spec.Kind == workload.Daemon {
		s.daemons = append(s.daemons, j)
	}
	s.instances += len(j.tasks)
}

func (s *State) remember(rec *IdempotencyRecord) {
	s.idempotency[rec.Key] = rec
	s.setTimer(timer{at: rec.Expires, kind: timerIdempotency, key: rec})
}

func (s *State) repeated(known *IdempotencyRecord, cmd *SubmitJob) (Answer, *Error) {
	if known.Hash != cmd.RequestHash {
		return Answer{}, refuse(InvalidArgument, "idempotency_key", "use a new key for a new request",
			"idempotency key %q was used for another request", known.Key.Key)
	}
	j, ok := s.jobs[known.Job]
	if !ok {
		return Answer{}, refuse(NotFound, "idempotency_key", "use a new key to submit it again",
			"the job that this key created, %s, has been deleted since", known.Job)
	}
	return Answer{Job: s.jobView(j), Existed: true}, nil
}

// sameName settles a submission under the name of a job that is there: the same spec is a no-op, an ended job makes room, everything else is
// refused.
func (s *State) sameName(cmd *SubmitJob) (*Answer, *Error) {
	spec := cmd.Spec
	j, ok := s.byName[jobName{spec.Pool, spec.Name}]
	if !ok || j.State.Terminal() {
		return nil, nil
	}
	path := s.pools.Path(spec.Pool)
	switch {
	case j.Goal != GoalRun:
		err := refuse(FailedPrecondition, "spec.name", "wait until it has stopped, then submit again",
			"job %s in pool %s is stopping", spec.Name, path)
		return nil, err
	case j.isAsked(cmd.Asked) || len(s.differences(j.spec, spec)) == 0:
		return &Answer{Job: s.jobView(j), Existed: true}, nil
	case cmd.Denied != nil:
		return nil, cmd.Denied // before the reason that the cell has
	case spec.Kind == workload.Batch:
		return nil, refuse(FailedPrecondition, "spec", "stop it first, or submit under another name",
			"job %s in pool %s is running with another spec (%s differs)", spec.Name, path, s.firstDifference(j.spec, spec))
	}
	return nil, refuse(FailedPrecondition, "spec", "a running service cannot be changed in place yet: stop it and submit again, or use another name",
		"job %s in pool %s is running with another spec (%s differs)", spec.Name, path, s.firstDifference(j.spec, spec))
}

// isAsked reports whether a job was asked for with the spec of a digest, whatever rules made of it since.
func (j *job) isAsked(digest [32]byte) bool { return digest == j.Asked && digest != [32]byte{} }

// checkSpec refuses what only the cell can judge; the API edge has checked the fields themselves.
func (s *State) checkSpec(spec *workload.JobSpec, size int) *Error {
	switch {
	case size > MaxSpecBytes:
		return refuse(InvalidArgument, "spec", "move data out of the command line and environment, into files or an object store",
			"the spec is %d bytes; the limit is %d", size, MaxSpecBytes)
	case spec.Instances > workload.MaxInstances:
		return refuse(InvalidArgument, "spec.instances", "split the job", "%d instances are more than %d", spec.Instances, workload.MaxInstances)
	case spec.Revocable && !spec.Preemptible:
		return refuse(InvalidArgument, "spec.revocable", "make it preemptible, or leave revocable out", "revocable work may be ended at any time")
	case len(spec.Overrides) > 0 && spec.Overrides[len(spec.Overrides)-1].Instance >= spec.Instances:
		return refuse(InvalidArgument, "spec.overrides", "raise the number of instances or drop the override",
			"instance %d is overridden, but the last one is %d", spec.Overrides[len(spec.Overrides)-1].Instance, int64(spec.Instances)-1)
	case len(s.jobs) >= MaxJobs:
		return refuse(ResourceExhausted, "", "delete ended jobs or shorten the job retention", "the cell holds %d jobs, its limit", MaxJobs)
	case s.instances+int(spec.Instances) > MaxInstancesInCell:
		return refuse(ResourceExhausted, "spec.instances", "delete ended jobs or use another cell",
			"the cell holds %d instances; %d more would pass its limit of %d", s.instances, spec.Instances, MaxInstancesInCell)
	}
	for _, g := range spec.Gangs() {
		if g.Size > MaxGang {
			return refuse(InvalidArgument, "spec.gang", "split the gang", "a gang of %d is larger than %d", g.Size, MaxGang)
		}
	}
	if _, ok := s.pools.Pool(spec.Pool); !ok {
		return refuse(NotFound, "spec.pool", "list the pools and choose one", "pool %s does not exist", spec.Pool)
	}
	if !s.pools.IsLeaf(spec.Pool) {
		return refuse(FailedPrecondition, "spec.pool", "choose a pool without children",
			"pool %s has children, and only pools without children hold jobs", s.pools.Path(spec.Pool))
	}
	if !spec.Revocable {
		if err := s.pools.CheckOwnerLimit(spec.Pool, leastUnit(spec)); err != nil {
			return refuse(FailedPrecondition, "spec", "", "%v", err)
		}
	}
	if !spec.Preemptible {
		if err := s.pools.CheckGuarantee(spec.Pool, atOnce(spec)); err != nil {
			return refuse(FailedPrecondition, "spec", "", "%v", err)
		}
	}
	return nil
}

// leastUnit is the least that every part of a job must be able to start with: the largest task, or what a gang starts with.
func leastUnit(spec *workload.JobSpec) resource.Vector {
	unit := spec.Template.Needs
	if spec.Gang != nil {
		for _, g := range plannedJob(JobRecord{}, spec).gangs {
			unit = unit.Max(g.starts)
		}
	}
	for n := range spec.Overrides {
		unit = unit.Max(needsOf(spec, &spec.Overrides[n]))
	}
	return unit
}

func needsOf(spec *workload.JobSpec, o *workload.Override) resource.Vector {
	if o.Needs == nil {
		return spec.Template.Needs
	}
	return *o.Needs
}

// atOnce is what a job holds at one time when all goes well. With a window, which of the overridden instances meet in it depends on when
// others end; each of them must fit by itself at least.
func atOnce(spec *workload.JobSpec) resource.Vector {
	n := int64(spec.Instances)
	switch {
	case spec.Kind == workload.Daemon:
		return spec.Template.Needs // one at least; how many depends on the hosts
	case spec.MaxRunning > 0 && int64(spec.MaxRunning) < n:
		total := spec.Template.Needs.Scale(int64(spec.MaxRunning))
		for i := range spec.Overrides {
			total = total.Max(needsOf(spec, &spec.Overrides[i]))
		}
		return total
	}
	total := spec.Template.Needs.Scale(n - int64(len(spec.Overrides)))
	for i := range spec.Overrides {
		total = total.Add(needsOf(spec, &spec.Overrides[i]))
	}
	return total
}

// warnings tell a user what will not go as he may think.
func (s *State) warnings(spec *workload.JobSpec) []string {
	var w []string
	if len(s.shards) == 0 {
		w = append(w, "no cluster is connected: the job waits until one is")
	}
	if len(spec.Template.Command) == 0 && !spec.Template.Execution.HasImage() && len(spec.Placement.Clusters) == 0 {
		w = append(w, "it has no command, so only a simulated cluster can run it: name one in placement.clusters")
	}
	if g := spec.Gang; g != nil && g.Topology.Required && !s.anyDomain(g.Topology.Key) {
		w = append(w, fmt.Sprintf("no host has the attribute %q, within one value of which its gang has to stay: it waits until one has", g.Topology.Key))
	}
	if spec.Kind == workload.Daemon && spec.Instances > 0 {
		w = append(w, "instances is ignored for a daemon: it runs once on every matching host")
	}
	return w
}

// anyDomain reports whether any host has a value of a topology key.
func (s *State) anyDomain(key string) bool {
	return slices.ContainsFunc(s.hostNames, func(h *hostState) bool { return h.Present && domainOf(h, key) != "" })
}

func (s *State) findJob(id workload.JobID, expected uint64) (*job, *Error) {
	j, ok := s.jobs[id]
	if !ok || j.expiring {
		return nil, refuse(NotFound, "job", "list the jobs; ended ones are kept for a while only", "job %s is not known", id)
	}
	if expected != 0 && expected != j.Version {
		return nil, refuse(Aborted, "expected_version", "read the job again and decide anew",
			"job %s is at version %d, not %d", j.spec.Name, j.Version, expected)
	}
	return j, nil
}

func (s *State) stopJob(caller Caller, cmd StopJob) (Answer, *Error) {
	j, err := s.findJob(cmd.Job, cmd.ExpectedVersion)
	if err != nil {
		return Answer{}, err
	}
	goal := GoalStop
	if cmd.Delete {
		goal = GoalDelete
	}
	switch {
	case j.State.Terminal():
		if cmd.Delete {
			j.Goal = GoalDelete
			j.Version++
			s.dirtyJob(j).principal = caller.Principal
			view := s.jobView(j)
			s.expire(j)
			return Answer{Job: view}, nil
		}
	case j.Goal < goal:
		j.Version++
		s.stop(j, goal, workload.ReasonStopRequested)
		s.dirtyJob(j).principal = caller.Principal
		if j.spec.Kind == workload.Daemon {
			s.watchDaemons()
		}
	}
	return Answer{Job: s.jobView(j)}, nil
}
