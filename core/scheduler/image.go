package scheduler

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/usage"
	"github.com/paceline-sched/paceline/core/workload"
)

// Image is the durable state of a cell as records: what recovery reads from the store and what a standby keeps by following
// groups. Both go through Apply. Run history and the event log are not part of it.
type Image struct {
	Sequence    uint64
	Cell        CellRecord
	Pools       map[workload.PoolID]PoolRecord
	Jobs        map[workload.JobID]*JobImage
	Hosts       map[workload.HostID]HostRecord
	Idempotency map[IdempotencyKey]IdempotencyRecord
	Accounts    map[usage.Key]AccountRecord
	Balances    map[workload.PoolID]BalanceRecord
	Rules       map[string]RulesRecord
	Policies    PoliciesRecord
	Clusters    map[string]ClusterRecord
}

// JobImage is one job in an Image.
type JobImage struct {
	Job       JobRecord
	Spec      *workload.JobSpec
	SpecBytes int
	Tasks     []TaskRecord // by instance; a zero Job marks an instance without a record
}

// NewImage returns the image of a cell that never ran.
func NewImage() *Image {
	return &Image{
		Pools: map[workload.PoolID]PoolRecord{}, Jobs: map[workload.JobID]*JobImage{}, Hosts: map[workload.HostID]HostRecord{},
		Idempotency: map[IdempotencyKey]IdempotencyRecord{}, Accounts: map[usage.Key]AccountRecord{}, Balances: map[workload.PoolID]BalanceRecord{},
		Rules: map[string]RulesRecord{}, Clusters: map[string]ClusterRecord{},
	}
}

// ApplyGroup applies a whole group.
func (im *Image) ApplyGroup(g Group) {
	for _, w := range g.Writes {
		im.Apply(w)
	}
	im.Sequence = g.Sequence
}

// Apply puts or deletes one record. Records may come in any order.
func (im *Image) Apply(w Write) {
	switch r := w.Record.(type) {
	case CellRecord:
		im.Cell = r
	case PoolRecord:
		put(im.Pools, r.Pool.ID, r, w.Delete)
	case HostRecord:
		put(im.Hosts, r.ID, r, w.Delete)
	case IdempotencyRecord:
		put(im.Idempotency, r.Key, r, w.Delete)
	case SpecRecord:
		if j := im.job(r.Job); !w.Delete {
			j.Spec, j.SpecBytes = r.Spec, r.Size
		}
	case JobRecord:
		if w.Delete {
			delete(im.Jobs, r.ID)
			return
		}
		im.job(r.ID).Job = r
	case TaskRecord:
		im.applyTask(r, w.Delete)
	case AccountRecord:
		put(im.Accounts, r.Key, r, w.Delete)
	case BalanceRecord:
		put(im.Balances, r.Pool, r, w.Delete)
	case RulesRecord:
		put(im.Rules, r.Name, r, w.Delete)
	case ClusterRecord:
		put(im.Clusters, r.Spec.Name, r, w.Delete)
	case PoliciesRecord:
		if im.Policies = r; w.Delete {
			im.Policies = PoliciesRecord{}
		}
	case RunRecord, SampleRecord, ChangesRecord, ArchiveRecord:
	}
}

func (im *Image) applyTask(r TaskRecord, deleted bool) {
	j := im.job(r.Job)
	if j.Tasks == nil && j.Spec != nil && !deleted { // in one piece: growing a million records would leave several times as many behind
		j.Tasks = make([]TaskRecord, 0, j.Spec.Instances)
	}
	for len(j.Tasks) <= int(r.Instance) {
		if deleted {
			return
		}
		j.Tasks = append(j.Tasks, TaskRecord{})
	}
	if deleted {
		j.Tasks[r.Instance] = TaskRecord{}
		return
	}
	j.Tasks[r.Instance] = r
}

func (im *Image) job(id workload.JobID) *JobImage {
	j := im.Jobs[id]
	if j == nil {
		j = &JobImage{}
		im.Jobs[id] = j
	}
	return j
}

func put[K comparable, V any](m map[K]V, k K, v V, deleted bool) {
	if deleted {
		delete(m, k)
		return
	}
	m[k] = v
}

// Start makes a running cell of an image. epoch must be higher than any under which a core ran on this store before; the caller
// commits the returned groups before it lets the cell do anything else.
func Start(cfg Config, im *Image, epoch uint64, now int64) (*State, []Group, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	if epoch <= im.Cell.Epoch {
		return nil, nil, fmt.Errorf("epoch %d does not follow epoch %d of the last start", epoch, im.Cell.Epoch)
	}
	s := newState(cfg)
	names, err := resource.NewNames(im.Cell.Named)
	if err != nil {
		return nil, nil, fmt.Errorf("read the cell's resource names: %w", err)
	}
	s.names = names
	s.epoch, s.sequence, s.now = epoch, im.Sequence, max(now, im.Cell.Now)
	if err := s.loadPools(im); err != nil {
		return nil, nil, err
	}
	s.loadHosts(im)
	s.loadAccounts(im)
	s.loadRules(im)
	s.policies = im.Policies
	maps.Copy(s.added, im.Clusters)
	if err := s.loadJobs(im); err != nil {
		return nil, nil, err
	}
	s.resumeReadings()
	for _, rec := range slices.SortedFunc(maps.Values(im.Idempotency), compareIdempotency) {
		s.remember(&rec)
	}
	s.writeAlone(Write{Record: s.cellRecord()})
	s.poolsDirty = true
	s.flush()
	groups := s.out.Groups
	s.out = Output{}
	return s, groups, nil
}

func (s *State) loadPools(im *Image) error {
	pools := make([]respool.Pool, 0, len(im.Pools)+1)
	for _, r := range im.Pools {
		pools = append(pools, r.Pool)
	}
	if im.Cell.Epoch == 0 { // a fresh cell: the default pool is there before any user is
		pools = append(pools, respool.DefaultPool("", s.now))
		s.dirtyPool(respool.DefaultID)
	}
	tree, err := respool.NewTree(s.names, pools)
	if err != nil {
		return fmt.Errorf("rebuild the pool tree: %w", err)
	}
	s.pools = tree
	return nil
}

func (s *State) loadHosts(im *Image) {
	for _, r := range im.Hosts {
		h := &hostState{HostRecord: r}
		s.hosts[r.ID] = h
		s.hostNames = append(s.hostNames, h)
		s.recount(h, resource.Vector{}, available(&h.HostRecord))
	}
	slices.SortFunc(s.hostNames, compareHosts)
	for _, h := range s.hostNames {
		if !h.Present {
			s.remindOfHost(h)
		}
	}
}

func (s *State) loadJobs(im *Image) error {
	jobs := make([]*JobImage, 0, len(im.Jobs))
	for id, j := range im.Jobs {
		switch {
		case j.Job.ID == workload.JobID{}:
			continue // rests of an erased job's instances
		case j.Spec == nil:
			return fmt.Errorf("job %s has a record but no spec: restore the store from a backup", id)
		}
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b *JobImage) int {
		return cmp.Or(cmp.Compare(a.Job.Order, b.Job.Order), bytes.Compare(a.Job.ID[:], b.Job.ID[:]))
	})
	for _, j := range jobs {
		if err := s.loadJob(j); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) loadJob(ji *JobImage) error {
	j := newJob(ji.Job, ji.Spec, ji.SpecBytes)
	s.adopt(j)
	s.nextOrder = max(s.nextOrder, j.Order+1)
	if !j.State.Terminal() {
		if err := s.pools.AttachJob(j.spec.Pool); err != nil {
			return fmt.Errorf("job %s: %w", j.ID, err)
		}
	}
	for n := range ji.Tasks {
		r := &ji.Tasks[n]
		if r.Job == j.ID {
			if err := s.loadTask(j, r); err != nil {
				return err
			}
		}
	}
	s.finishLoad(j)
	return nil
}

// loadTask puts an instance where its record says, through the same ledgers that set keeps.
func (s *State) loadTask(j *job, r *TaskRecord) error {
	i := r.Instance
	s.now = max(s.now, r.Since, r.Placed) // the cell's own record of the time is some seconds old
	if j.daemonHome != nil {
		for len(j.tasks) <= int(i) {
			j.tasks = append(j.tasks, task{})
			j.byState[workload.InstancePending]++
			j.byRun[workload.RunNone]++
			j.classes[0].waiting++
			s.instances++
		}
		j.classes[0].fresh = uint32(len(j.tasks))
	}
	if int(i) >= len(j.tasks) {
		return fmt.Errorf("job %s has a record of instance %d but %d instances: restore the store from a backup", j.ID, i, len(j.tasks))
	}
	t := &j.tasks[i]
	class := j.classOf(i)
	j.byRun[workload.RunNone]--
	class.moved(workload.InstancePending, r.State)
	*t = task{
		since: r.Since, placed: r.Placed, started: r.Started, notBefore: r.NotBefore, heldMillis: r.HeldMillis, generation: r.Generation, run: r.Run,
		failures: r.Failures, attempts: r.Attempts, config: r.Config, restart: r.Restart, exitCode: r.ExitCode, devices: r.Devices,
		state: r.State, runState: r.RunState, reason: r.Reason, healthy: r.Healthy, touched: true,
	}
	t.setExtra(r.Ports, r.Message, r.Signal)
	class.heldMillis += t.heldMillis
	if r.Host != (workload.HostID{}) {
		if s.setHome(t, s.hosts[r.Host]); t.host == nil {
			return fmt.Errorf("job %s instance %d was on host %s, of which there is no record: restore the store from a backup", j.ID, i, r.Host)
		}
	}
	j.byRun[t.runState]++
	if class.gang != nil {
		class.gang.runMoved(workload.RunNone, t.runState)
	} else if t.state == workload.InstancePending {
		class.returned = append(class.returned, i)
	}
	if t.healthy && t.runState == workload.RunRunning {
		j.healthy++
	}
	if t.runState.Live() {
		s.charge(j, &class.class.Needs, true)
		s.occupy(j, t, &class.class.Needs, true)
		s.meter(j, j.Created) // a new account counts from before the first of them
		s.hold(class, t, true)
		if t.dying() {
			s.queueOf(j.spec).die(&class.class.Needs, true)
		}
		if t.runState == workload.RunKilling {
			s.queueOfJob(j).end(&class.class.Needs, true)
		}
		if t.runState == workload.RunPlaced {
			t.host.expect(true)
		}
	}
	s.queueOf(j.spec).recall(s, j, t, &class.class.Needs)
	s.foresee(j, t, &class.class.Needs)
	switch {
	case j.daemonHome == nil:
	case t.host == nil:
		j.spare = append(j.spare, i)
	default:
		j.daemonHome[t.host.ID] = i
		t.matched = t.state != workload.InstanceStopped
	}
	s.catchUp(j, t)
	s.remindOfTask(j, i)
	return nil
}

// catchUp gives the job what the core did not come to record after its instance: that it runs, and since when.
func (s *State) catchUp(j *job, t *task) {
	if t.run > 0 && j.State == workload.JobPending {
		j.State = workload.JobRunning
		s.dirtyJob(j)
	}
	if t.started != 0 && j.Started == 0 {
		j.Started = t.started
		s.dirtyJob(j)
	}
}

// remindOfTask sets the timers that an instance in its state has running.
func (s *State) remindOfTask(j *job, i uint32) {
	t := &j.tasks[i]
	switch {
	case t.state == workload.InstanceBackingOff:
		s.setTimer(timer{at: t.notBefore, kind: timerBackoff, job: j, instance: i})
	case t.runState == workload.RunPlaced || t.runState == workload.RunLaunching:
		s.setTimer(timer{at: t.placed + int64(s.cfg.LaunchTimeout), kind: timerLaunch, job: j, instance: i, run: t.run})
	case t.runState == workload.RunKilling:
		s.remindOfKill(j, i) // it is also sent as soon as its shard is ready
	}
	if j.Restart.Batch > 0 && j.gangOf(i) == nil && j.restarting(i) {
		j.renewing = append(j.renewing, i)
	}
}

// restarting reports whether an instance was down for the present restart when the core stopped.
func (j *job) restarting(i uint32) bool {
	t := &j.tasks[i]
	switch {
	case !j.Restart.covers(i):
		return false
	case t.restart < j.Restart.Number:
		return t.reason == workload.ReasonRestartRequested
	}
	return !t.state.Terminal() && !t.healthy
}

// finishLoad takes up what was going on with a job when the core stopped.
func (s *State) finishLoad(j *job) {
	if j.State.Terminal() {
		if j.Goal == GoalDelete {
			s.expire(j)
		} else {
			s.setTimer(timer{at: j.Finished + int64(s.cfg.JobRetention), kind: timerExpiry, job: j})
		}
	}
	if j.Goal != GoalRun && !j.expiring {
		s.startSweep(j)
	}
	if j.spec.Deadline > 0 && !j.State.Terminal() {
		s.setTimer(timer{at: j.Created + int64(j.spec.Deadline), kind: timerDeadline, job: j})
	}
	if j.Goal == GoalRun && !j.State.Terminal() {
		for _, g := range j.gangs {
			s.recoverGang(g)
			s.recoverRestart(g)
		}
	}
	s.touch(j)
	s.jobMayEnd(j) // the last instance's end may have been recorded without the job's
}

func compareIdempotency(a, b IdempotencyRecord) int {
	return cmp.Or(cmp.Compare(a.Expires, b.Expires), strings.Compare(a.Key.Principal, b.Key.Principal),
		strings.Compare(a.Key.Method, b.Key.Method), strings.Compare(a.Key.Key, b.Key.Key))
}

// Image returns the records that describe the state, for comparison with what following its groups gives.
func (s *State) Image() *Image {
	im := NewImage()
	im.Sequence = s.sequence
	im.Cell = s.cellRecord()
	for p := range s.pools.All() {
		im.Pools[p.ID] = PoolRecord{Pool: p}
	}
	for id, h := range s.hosts {
		im.Hosts[id] = h.HostRecord
	}
	for name, r := range s.rules.byName {
		im.Rules[name] = *r
	}
	im.Policies = s.policies
	maps.Copy(im.Clusters, s.added)
	for key, r := range s.idempotency {
		im.Idempotency[key] = *r
	}
	for _, m := range s.accounts.ledger.All() {
		im.Accounts[m.Account().Key] = AccountRecord{Account: m.Account()}
	}
	for id, b := range s.accounts.balances {
		if b.Sampled != 0 {
			im.Balances[id] = b.written
		}
	}
	for id, j := range s.jobs {
		ji := &JobImage{Job: j.JobRecord, Spec: j.spec, SpecBytes: j.specBytes}
		for i := range j.tasks {
			if j.tasks[i].touched {
				for len(ji.Tasks) <= i {
					ji.Tasks = append(ji.Tasks, TaskRecord{})
				}
				ji.Tasks[i] = j.taskRecord(uint32(i))
			}
		}
		im.Jobs[id] = ji
	}
	return im
}
