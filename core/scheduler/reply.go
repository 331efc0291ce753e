package scheduler

import (
	"reflect"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// attachShard takes a shard under a new assignment: it is told everything that a new owner must know, and is asked for nothing
// until it says that it is ready.
func (s *State) attachShard(e ShardAttached) {
	if e.Parts > 0 && string(e.Shard) == e.Cluster+"/0" { // whose hosts those of former shards are
		s.recut(e.Cluster, e.Parts)
	}
	sh := s.shardByID(e.Shard)
	if sh == nil {
		sh = &shardState{id: e.Shard, cluster: e.Cluster, since: s.now, epoch: shard.Epoch{Shard: s.formerEpoch}}
		at, _ := slices.BinarySearchFunc(s.shards, sh, func(a, b *shardState) int { return strings.Compare(string(a.id), string(b.id)) })
		s.shards = slices.Insert(s.shards, at, sh)
	}
	s.abandonBatches(sh)
	s.abandonPreemption(sh, true)
	s.shardStands(sh, false, "waiting for its inventory")
	sh.epoch = shard.Epoch{Cell: s.epoch, Shard: sh.epoch.Shard + 1}
	sh.launches, sh.kills, sh.acks, sh.releases = nil, nil, nil, nil
	send := func(m shard.Message) { s.internal(ToShard{Shard: sh.id, Message: m}) }
	send(shard.Assign{Epoch: sh.epoch, Named: s.names.Named()})
	var draining []workload.HostID
	for _, h := range s.hostNames {
		if h.Shard == string(sh.id) && h.Draining {
			draining = append(draining, h.ID)
		}
	}
	if draining != nil {
		send(shard.SetDraining{Epoch: sh.epoch, Hosts: draining, Draining: true})
	}
	send(shard.Watch{Epoch: sh.epoch, Selectors: s.daemonSelectors()})
	s.replay(sh, send)
}

// replay tells a shard which runs its hosts hold.
func (s *State) replay(sh *shardState, send func(shard.Message)) {
	rest := s.boundRuns(func(h *hostState) bool { return h.Shard == string(sh.id) }, func(full []shard.BoundRun) {
		send(shard.Replay{Epoch: sh.epoch, Bound: full})
	})
	send(shard.Replay{Epoch: sh.epoch, Bound: rest, Done: true})
}

// boundRuns collects the live runs on hosts. It hands out what fills a message, and returns the rest. This walk over all instances happens when a
// shard is attached or gets hosts of another, never else.
func (s *State) boundRuns(on func(*hostState) bool, handOut func([]shard.BoundRun)) []shard.BoundRun {
	bound := make([]shard.BoundRun, 0, replayChunk)
	for _, j := range s.order {
		if j == nil || j.live == 0 {
			continue
		}
		for i := range j.tasks {
			t := &j.tasks[i]
			if !t.runState.Live() || !on(t.host) {
				continue
			}
			bound = append(bound, shard.BoundRun{
				Run: j.runID(uint32(i)), Host: t.host.ID, Class: j.classOf(uint32(i)).class, Devices: t.devices, Ports: t.ports(), Started: t.started,
				State: t.runState,
			})
			if len(bound) == replayChunk {
				handOut(bound)
				bound = make([]shard.BoundRun, 0, replayChunk)
			}
		}
	}
	return bound
}

func (s *State) shardByID(id shard.ID) *shardState {
	for _, sh := range s.shards {
		if sh.id == id {
			return sh
		}
	}
	return nil
}

// reply handles one reply of a shard. A reply under an older assignment is void.
func (s *State) reply(e ShardReplied) {
	sh := s.shardByID(e.Shard)
	if sh == nil || e.Epoch != sh.epoch {
		return
	}
	switch r := e.Reply.(type) {
	case shard.Ready:
		s.shardReady(sh)
	case shard.NotReady:
		s.shardStands(sh, false, r.Reason)
		s.abandonBatches(sh)
		s.abandonPreemption(sh, false)
	case shard.Hosts:
		s.hostsChanged(sh, &r)
	case shard.Placed:
		s.placed(sh, &r)
	case shard.Pledged:
		s.pledged(sh, &r)
	case shard.PledgeReady:
		s.pledgesReady(sh, &r)
	case shard.RunStatus:
		s.status(sh, &r.Status)
	case shard.RunsMissing:
		for _, id := range r.Runs {
			if j, ok := s.runOf(id); ok && j.tasks[id.Instance].host.Shard == string(sh.id) { // else another shard has its host by now
				s.lostRun(j, id.Instance, workload.ReasonNotFound, "its cluster does not know it")
			}
		}
	case shard.Foreign:
		for n := range r.Statuses {
			s.status(sh, &r.Statuses[n])
		}
	case shard.LaunchRefused:
		s.launchRefused(&r)
	case shard.Matches:
		s.matches(sh, &r)
	}
}

// shardStands notes whether a shard may be asked to place. Watchers hear of it if its cluster was added: one that flags name stands and falls with its
// server.
func (s *State) shardStands(sh *shardState, ready bool, message string) {
	_, added := s.added[sh.cluster]
	if sh.ready != ready {
		sh.since = s.now
	}
	switch {
	case sh.ready == ready || !added:
	case ready:
		s.tellCluster(sh.cluster, "shard "+string(sh.id)+" is in contact")
	default:
		s.tellCluster(sh.cluster, "shard "+string(sh.id)+" lost contact: "+message)
	}
	sh.ready, sh.message = ready, message
}

func (s *State) shardReady(sh *shardState) {
	s.shardStands(sh, true, "")
	s.hostEpoch++
	s.retryKept()
	for _, j := range s.order { // kills that were asked for while nobody was there
		if j == nil || j.byRun[workload.RunKilling] == 0 {
			continue
		}
		for i := range j.tasks {
			if t := &j.tasks[i]; t.runState == workload.RunKilling && t.host.Shard == string(sh.id) {
				s.sendKill(j, uint32(i))
			}
		}
	}
}

func (s *State) launchRefused(r *shard.LaunchRefused) {
	for _, id := range r.Runs {
		j, ok := s.runOf(id)
		if !ok {
			continue
		}
		reason := r.Reason
		if reason == workload.ReasonNone {
			reason = workload.ReasonLaunchRefused
		}
		s.lostRun(j, id.Instance, reason, r.Message)
	}
}

// hostsChanged keeps the hosts of a shard and the capacity of the cell.
func (s *State) hostsChanged(sh *shardState, r *shard.Hosts) {
	seen := map[workload.HostID]bool{}
	var unnamed []string
	moved := map[*hostState]bool{}
	for n := range r.Changed {
		summary := &r.Changed[n]
		seen[summary.ID] = true
		if h := s.hosts[summary.ID]; h != nil && h.Shard != string(sh.id) && (h.tasks > 0 || h.Draining) {
			moved[h] = true
		}
		s.hostSeen(sh, summary)
		for name := range summary.Unnamed {
			unnamed = append(unnamed, name)
		}
	}
	gone := append([]workload.HostID(nil), r.Removed...)
	if r.Complete {
		for _, h := range s.hostNames {
			if h.Shard == string(sh.id) && h.Present && !seen[h.ID] {
				gone = append(gone, h.ID)
			}
		}
	}
	for _, id := range gone {
		s.hostGone(sh, id)
	}
	s.handOver(sh, moved)
	s.retryKept()
	if unnamed != nil {
		slices.Sort(unnamed)
		_ = s.nameResources(slices.Compact(unnamed)) // a name too many stays unnamed: its quantity cannot be asked for either
	}
}

// handOver tells a shard what the one before it knew of hosts that are the new one's now: the runs that they hold, and that they are drained.
func (s *State) handOver(sh *shardState, hosts map[*hostState]bool) {
	if len(hosts) == 0 {
		return
	}
	var draining []workload.HostID
	for _, h := range s.hostNames {
		if hosts[h] && h.Draining {
			draining = append(draining, h.ID)
		}
	}
	send := func(m shard.Message) { s.internal(ToShard{Shard: sh.id, Message: m}) }
	if draining != nil {
		send(shard.SetDraining{Epoch: sh.epoch, Hosts: draining, Draining: true})
	}
	bound := s.boundRuns(func(h *hostState) bool { return hosts[h] }, func(full []shard.BoundRun) {
		send(shard.Adopt{Epoch: sh.epoch, Bound: full})
	})
	if len(bound) > 0 {
		send(shard.Adopt{Epoch: sh.epoch, Bound: bound})
	}
}

func (s *State) hostSeen(sh *shardState, summary *shard.HostSummary) {
	facts := HostFacts{
		Attributes: summary.Attributes, HostPool: summary.HostPool, Capacity: summary.Capacity, Foreign: summary.Foreign,
		Devices: summary.Devices, Ready: summary.Ready, Message: summary.Message, ClusterID: summary.ClusterID,
	}
	h, known := s.hosts[summary.ID]
	if !known {
		h = &hostState{HostRecord: HostRecord{ID: summary.ID, Cluster: sh.cluster, Shard: string(sh.id), Name: summary.Name}}
		s.addHost(h)
	}
	before := h.HostRecord
	if h.shard != sh { // first word of it under this assignment
		if h.shard != nil {
			s.dropPledgesOn(h.ID)
		}
		s.uncount(h)
		h.shard, h.Shard = sh, string(sh.id)
		h.Present = false
		sh.free = sh.free.Sub(h.used)
		sh.unheard += h.unheard
	}
	if !h.Present {
		sh.hosts++
	}
	had := available(&h.HostRecord)
	h.Present, h.Summary, h.details = true, facts, summary.Details
	s.recount(h, had, available(&h.HostRecord))
	if reflect.DeepEqual(before, h.HostRecord) {
		return
	}
	h.Since = s.now
	s.hostEpoch++
	s.dirtyHost(h)
}

// available is what a host brings to the cell: nothing unless it may take work, since nobody is entitled to what cannot be given.
func available(h *HostRecord) resource.Vector {
	if !h.Present || !h.Summary.Ready || h.Draining {
		return resource.Vector{}
	}
	return h.Summary.Capacity.Sub(h.Summary.Foreign).Max(resource.Vector{})
}

func (s *State) recount(h *hostState, had, has resource.Vector) {
	if had == has {
		return
	}
	delta := has.Sub(had)
	s.capacity = s.capacity.Add(delta)
	s.clusters[h.Cluster] = s.clusters[h.Cluster].Add(delta)
	if h.shard != nil {
		h.shard.free = h.shard.free.Add(delta)
	}
	s.poolsDirty = true
}

// uncount takes a host out of the shard it was in.
func (s *State) uncount(h *hostState) {
	s.recount(h, available(&h.HostRecord), resource.Vector{})
	if h.shard != nil {
		if h.Present {
			h.shard.hosts--
		}
		h.shard.free = h.shard.free.Add(h.used)
		h.shard.unheard -= h.unheard
	}
}

func (s *State) addHost(h *hostState) {
	s.hosts[h.ID] = h
	at, _ := slices.BinarySearchFunc(s.hostNames, h, compareHosts)
	s.hostNames = slices.Insert(s.hostNames, at, h)
}

func compareHosts(a, b *hostState) int {
	if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
		return c
	}
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return workload.ID(a.ID).Compare(workload.ID(b.ID))
}

// hostGone takes a host's capacity away. Its runs are ended by the shard's statuses, or found missing.
func (s *State) hostGone(sh *shardState, id workload.HostID) {
	h, ok := s.hosts[id]
	if !ok || !h.Present || h.Shard != string(sh.id) { // of the last: another shard has it by now
		return
	}
	if h.shard != nil {
		h.shard.hosts--
	}
	s.hostLeft(h, "left cluster "+h.Cluster)
}

func (s *State) hostLeft(h *hostState, why string) {
	s.dropPledgesOn(h.ID)
	had := available(&h.HostRecord)
	h.Present, h.Since = false, s.now
	h.Summary.Ready = false
	h.Summary.Message = why
	s.recount(h, had, resource.Vector{})
	s.dirtyHost(h)
	s.remindOfHost(h)
}

// remindOfHost sets the one timer after which a host that left may be forgotten.
func (s *State) remindOfHost(h *hostState) {
	if !h.forgetting {
		h.forgetting = true
		keep := s.keptFor(h)
		at := min(max(h.Since, s.now-keep)+keep, s.now+int64(s.cfg.HostRetention)) // a drained one may be undrained meanwhile
		s.setTimer(timer{at: at, kind: timerHost, host: h})
	}
}

// keptFor is how long a host that left is kept, in nanoseconds.
func (s *State) keptFor(h *hostState) int64 {
	if h.Draining {
		return int64(s.cfg.JobRetention)
	}
	return int64(s.cfg.HostRetention)
}

// forgetHost drops a host that left a while ago, once nothing kept names it: clusters that make and unmake machines would fill the cell with
// them. A daemon's instance there is set aside for the next host.
func (s *State) forgetHost(h *hostState) {
	h.forgetting = false
	if s.hosts[h.ID] != h || h.Present {
		return
	}
	if s.now-h.Since >= s.keptFor(h) {
		if s.eraseHost(h) {
			return
		}
		h.forgetting = true // when what names it has had its time
		s.setTimer(timer{at: s.now + int64(s.cfg.JobRetention), kind: timerHost, host: h})
		return
	}
	s.remindOfHost(h)
}

// eraseHost drops a host that left, unless something that is kept names it.
func (s *State) eraseHost(h *hostState) bool {
	for _, j := range s.daemons {
		s.daemonForget(j, h)
	}
	if h.homes > 0 {
		return false
	}
	if h.Draining { // should it come back, it is a host like any other
		h.Draining = false
		s.markHost(h)
	}
	delete(s.hosts, h.ID)
	at, _ := slices.BinarySearchFunc(s.hostNames, h, compareHosts)
	s.hostNames = slices.Delete(s.hostNames, at, at+1)
	s.dirtyHost(h).gone = true
	return true
}

func (s *State) daemonForget(j *job, h *hostState) {
	i, there := j.daemonHome[h.ID]
	if !there || j.tasks[i].state != workload.InstanceStopped || j.State.Terminal() {
		return // an ended job keeps it until it is erased, which may be in this very Step
	}
	delete(j.daemonHome, h.ID)
	s.setHome(&j.tasks[i], nil)
	j.spare = append(j.spare, i)
	s.dirtyTask(j, i)
}

// daemonSelectors lists what the shards have to watch for the daemons that are to run.
func (s *State) daemonSelectors() []shard.Selector {
	var list []shard.Selector
	for _, j := range s.daemons {
		if j.Goal == GoalRun && !j.State.Terminal() {
			list = append(list, shard.Selector{Job: j.ID, Class: j.classes[0].class})
		}
	}
	return list
}

func (s *State) watchDaemons() {
	list := s.daemonSelectors()
	for _, sh := range s.shards {
		s.internal(ToShard{Shard: sh.id, Message: shard.Watch{Epoch: sh.epoch, Selectors: list}})
	}
}

// matches maps hosts to a daemon's instances. An instance keeps its host until that is forgotten, so that a host that comes back finds its own
// again.
func (s *State) matches(sh *shardState, r *shard.Matches) {
	j, ok := s.jobs[r.Job]
	if !ok || j.daemonHome == nil || j.Goal != GoalRun {
		return
	}
	matching := make(map[workload.HostID]bool, len(r.Added))
	for _, id := range r.Added {
		matching[id] = true
		if h := s.hosts[id]; h != nil {
			s.daemonJoin(j, h)
		}
	}
	for _, id := range r.Removed {
		if i, there := j.daemonHome[id]; there && j.tasks[i].host.Shard == string(sh.id) { // else another shard has it by now
			s.daemonLeave(j, i)
		}
	}
	if r.Complete {
		for i := range j.tasks {
			if h := j.tasks[i].host; h != nil && h.Shard == string(sh.id) && !matching[h.ID] {
				s.daemonLeave(j, uint32(i))
			}
		}
	}
	s.touch(j)
}

func (s *State) daemonJoin(j *job, h *hostState) {
	if i, there := j.daemonHome[h.ID]; there {
		t := &j.tasks[i]
		t.matched = true
		if t.state == workload.InstanceStopped { // else it runs, or is still ending and starts again when it has
			t.notBefore = 0
			s.set(j, i, workload.InstancePending, t.runState, workload.ReasonNone)
		}
		return
	}
	if n := len(j.spare); n > 0 {
		i := j.spare[n-1]
		j.spare = j.spare[:n-1]
		t := &j.tasks[i]
		s.setHome(t, h)
		t.matched, t.notBefore = true, 0 // a back-off that it left with is over
		j.daemonHome[h.ID] = i
		s.set(j, i, workload.InstancePending, t.runState, workload.ReasonNone)
		return
	}
	if s.instances >= MaxInstancesInCell {
		return
	}
	i := uint32(len(j.tasks))
	j.tasks = append(j.tasks, task{since: s.now, matched: true})
	s.setHome(&j.tasks[i], h)
	s.instances++
	j.byState[workload.InstancePending]++
	j.byRun[workload.RunNone]++
	c := j.classes[0]
	c.waiting++
	c.returned = append(c.returned, i)
	c.fresh = i + 1
	j.daemonHome[h.ID] = i
	s.dirtyTask(j, i)
}

func (s *State) daemonLeave(j *job, i uint32) {
	if t := &j.tasks[i]; t.matched {
		t.matched = false
		s.pursue(j, i)
	}
}
