package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/paceline-sched/paceline/core/cluster"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// The bounds of clusters.
const (
	// MaxClusters is how many clusters may be added to a cell.
	MaxClusters = 64
	// maxClusterBytes bounds an encoded spec: what its Validate lets through is smaller.
	maxClusterBytes = 64 << 10
	// MaxIdentity bounds what a cluster knows the cell by, and the cell a cluster.
	MaxIdentity = 255
)

type (
	// ClusterRecord is a cluster that was added to the cell. Those that a server's flags name have none.
	ClusterRecord struct {
		Spec    cluster.Spec // replaced, never changed
		Version uint64       // grows with every edit
		Created int64
		Updated int64
		By      string // who made the last edit
		// Identity is what the cluster knows the cell by, such as a Mesos framework's id; "": it was never connected. It is part of the record so that a
		// restored backup, too, finds its runs.
		Identity string
		// UID is what tells the cluster from all others, such as that of the Kubernetes namespace kube-system; "": it was never seen, or has none.
		UID string
	}

	// AddCluster makes a cluster known. To reach it is for the process that serves the cell.
	AddCluster struct{ Spec cluster.Spec }
	// UpdateCluster replaces the spec of a cluster.
	UpdateCluster struct {
		Spec            cluster.Spec
		ExpectedVersion uint64 // 0: any
	}
	// IdentifyCluster keeps what a cluster knows the cell by; or, with an UID, what the cell knows it by, and that once.
	IdentifyCluster struct {
		Name     string
		Identity string // "": the cluster has forgotten the cell
		UID      string // "": it is about Identity
	}
	// RemoveCluster forgets a cluster, its shards and its hosts. Its live runs are in the way, unless Force declares them lost; then they are tried
	// again on other clusters, as after any loss.
	RemoveCluster struct {
		Name            string
		ExpectedVersion uint64
		Force           bool
	}

	// ClusterView is a cluster with what it brings.
	ClusterView struct {
		Name     string
		Record   *ClusterRecord // nil: it was not added, but named by a server's flags
		Shards   []ShardView
		Hosts    int // in its inventory
		Ready    int // of these: may take work
		Runs     int // live
		Capacity resource.Vector
		Used     resource.Vector
	}
)

func (ClusterRecord) record()    {}
func (AddCluster) command()      {}
func (UpdateCluster) command()   {}
func (IdentifyCluster) command() {}
func (RemoveCluster) command()   {}

// Clusters returns every cluster that was added, or that has shards or hosts, by name.
func (r Reader) Clusters() []ClusterView {
	views := map[string]*ClusterView{}
	view := func(name string) *ClusterView {
		v := views[name]
		if v == nil {
			v = &ClusterView{Name: name}
			if rec, ok := r.s.added[name]; ok {
				v.Record = &rec
			}
			views[name] = v
		}
		return v
	}
	for name := range r.s.added {
		view(name)
	}
	for _, sh := range r.s.shards {
		v := view(sh.cluster)
		v.Shards = append(v.Shards, sh.view())
	}
	for _, h := range r.s.hostNames {
		if !h.Present && h.tasks == 0 {
			continue
		}
		v := view(h.Cluster)
		v.Runs += h.tasks
		v.Used = v.Used.Add(h.used)
		if !h.Present {
			continue
		}
		v.Hosts++
		v.Capacity = v.Capacity.Add(available(&h.HostRecord))
		if h.mayTake() {
			v.Ready++
		}
	}
	list := make([]ClusterView, 0, len(views))
	for _, name := range slices.Sorted(maps.Keys(views)) {
		list = append(list, *views[name])
	}
	return list
}

// AddedCluster returns the record of a cluster that was added.
func (r Reader) AddedCluster(name string) (ClusterRecord, bool) {
	rec, ok := r.s.added[name]
	return rec, ok
}

func (sh *shardState) view() ShardView {
	return ShardView{ID: string(sh.id), Cluster: sh.cluster, Ready: sh.ready, Message: sh.message, Hosts: sh.hosts, Since: sh.since}
}

// mayTake reports whether a host may be given work now.
func (h *hostState) mayTake() bool {
	return h.Present && h.Summary.Ready && !h.Draining && h.shard != nil && h.shard.ready
}

func (s *State) editCluster(caller Caller, command Command) (Answer, *Error) {
	switch cmd := command.(type) {
	case AddCluster:
		return s.addCluster(caller, &cmd.Spec)
	case UpdateCluster:
		return s.updateCluster(caller, &cmd)
	case IdentifyCluster:
		return s.identifyCluster(cmd)
	case RemoveCluster:
		return s.removeCluster(caller, cmd)
	}
	return Answer{}, refuse(InvalidArgument, "", "", "the command is unknown to this core")
}

// checkSpec words what is wrong with a spec as a refusal.
func checkSpec(spec *cluster.Spec) *Error {
	err := spec.Validate()
	var field *cluster.FieldError
	if errors.As(err, &field) {
		return refuse(InvalidArgument, field.Field, field.Hint, "%s", field.Message)
	}
	return nil
}

func (s *State) addCluster(caller Caller, spec *cluster.Spec) (Answer, *Error) {
	if err := checkSpec(spec); err != nil {
		return Answer{}, err
	}
	if old, exists := s.added[spec.Name]; exists {
		if old.Spec.Equal(spec) { // said twice
			return Answer{Cluster: old, Existed: true}, nil
		}
		return Answer{}, refuse(AlreadyExists, "name", "change it with cluster update, or choose another name", "there is a cluster %s, with other settings", spec.Name)
	}
	if len(s.added) >= MaxClusters {
		return Answer{}, refuse(ResourceExhausted, "name", "remove a cluster that is no longer needed", "there are %d clusters, and no more are kept", MaxClusters)
	}
	rec := ClusterRecord{Spec: *spec, Version: 1, Created: s.now, Updated: s.now, By: caller.Principal}
	s.keepCluster(rec, caller.Principal, "added")
	return Answer{Cluster: rec}, nil
}

func (s *State) updateCluster(caller Caller, cmd *UpdateCluster) (Answer, *Error) {
	if err := checkSpec(&cmd.Spec); err != nil {
		return Answer{}, err
	}
	rec, exists := s.added[cmd.Spec.Name]
	switch {
	case !exists:
		return Answer{}, refuse(NotFound, "name", "list the clusters and choose one that was added", "no cluster %q was added", cmd.Spec.Name)
	case cmd.ExpectedVersion != 0 && cmd.ExpectedVersion != rec.Version:
		return Answer{}, refuse(Aborted, "expected_version", "read the cluster again and decide anew", "cluster %s is at version %d, not %d", rec.Spec.Name, rec.Version, cmd.ExpectedVersion)
	case rec.Spec.Kind() != cmd.Spec.Kind():
		return Answer{}, refuse(FailedPrecondition, "settings", "remove it and add one of the other kind", "cluster %s is of kind %s", rec.Spec.Name, rec.Spec.Kind())
	case rec.Spec.Equal(&cmd.Spec):
		return Answer{Cluster: rec, Existed: true}, nil
	}
	rec.Spec, rec.Version, rec.Updated, rec.By = cmd.Spec, rec.Version+1, s.now, caller.Principal
	s.keepCluster(rec, caller.Principal, "updated")
	return Answer{Cluster: rec}, nil
}

func (s *State) identifyCluster(cmd IdentifyCluster) (Answer, *Error) {
	rec, exists := s.added[cmd.Name]
	switch {
	case !exists:
		return Answer{}, refuse(NotFound, "name", "list the clusters and choose one that was added", "no cluster %q was added", cmd.Name)
	case max(len(cmd.Identity), len(cmd.UID)) > MaxIdentity:
		return Answer{}, refuse(InvalidArgument, "identity", "", "an identity of %d bytes is longer than %d", max(len(cmd.Identity), len(cmd.UID)), MaxIdentity)
	case cmd.UID != "" && rec.UID != "" && rec.UID != cmd.UID:
		return Answer{}, refuse(FailedPrecondition, "uid", "remove the cluster and add it anew", "cluster %s is %s, and not %s", cmd.Name, rec.UID, cmd.UID)
	case cmd.UID != "" && rec.UID == cmd.UID, cmd.UID == "" && rec.Identity == cmd.Identity:
		return Answer{Cluster: rec, Existed: true}, nil
	case cmd.UID != "":
		rec.UID = cmd.UID
	default:
		rec.Identity = cmd.Identity
	}
	s.keepCluster(rec, "", "")
	return Answer{Cluster: rec}, nil
}

// keepCluster makes a record durable. With a message, watchers are told.
func (s *State) keepCluster(rec ClusterRecord, principal, message string) {
	s.added[rec.Spec.Name] = rec
	e := dirtyEntry{with: []Write{{Record: rec}}}
	if message != "" {
		e.told = &Change{Kind: ChangeCluster, At: s.now, Name: rec.Spec.Name, Version: rec.Version, Message: message, Principal: principal}
	}
	s.dirty = append(s.dirty, e)
}

// tellCluster has watchers hear of a cluster whose record is as it was.
func (s *State) tellCluster(name, message string) {
	s.dirty = append(s.dirty, dirtyEntry{told: &Change{
		Kind: ChangeCluster, At: s.now, Name: name, Version: s.added[name].Version, Message: message,
	}})
}

// MayRemoveCluster says what is in the way of RemoveCluster; nil: nothing is.
func (r Reader) MayRemoveCluster(name string, expectedVersion uint64, force bool) *Error {
	_, err := r.s.mayRemoveCluster(&RemoveCluster{Name: name, ExpectedVersion: expectedVersion, Force: force})
	return err
}

// mayRemoveCluster also counts the live runs.
func (s *State) mayRemoveCluster(cmd *RemoveCluster) (runs int, err *Error) {
	rec, exists := s.added[cmd.Name]
	there := exists || slices.ContainsFunc(s.shards, func(sh *shardState) bool { return sh.cluster == cmd.Name })
	for _, h := range s.hostsOf(cmd.Name) {
		runs += h.tasks
		there = there || h.Present || h.tasks > 0
	}
	switch {
	case !there:
		return 0, refuse(NotFound, "name", "list the clusters and choose one", "there is no cluster %q", cmd.Name)
	case cmd.ExpectedVersion != 0 && cmd.ExpectedVersion != rec.Version:
		return 0, refuse(Aborted, "expected_version", "read the cluster again and decide anew", "cluster %s is at version %d, not %d", cmd.Name, rec.Version, cmd.ExpectedVersion)
	case runs > 0 && !cmd.Force:
		return 0, refuse(FailedPrecondition, "force", "stop their jobs or let them end, or force it: then they count as lost and are tried again elsewhere",
			"cluster %s has %d live runs", cmd.Name, runs)
	}
	return runs, nil
}

func (s *State) removeCluster(caller Caller, cmd RemoveCluster) (Answer, *Error) {
	runs, err := s.mayRemoveCluster(&cmd)
	if err != nil {
		return Answer{}, err
	}
	rec, exists := s.added[cmd.Name]
	s.leaveCluster(cmd.Name)
	told := &Change{Kind: ChangeClusterDeleted, At: s.now, Name: cmd.Name, Version: rec.Version, Message: "removed", Principal: caller.Principal}
	if runs > 0 {
		told.Message = fmt.Sprintf("removed by force: %d runs are lost", runs)
	}
	e := dirtyEntry{told: told}
	if exists {
		delete(s.added, cmd.Name)
		e.with = []Write{{Record: rec, Delete: true}}
	}
	s.dirty = append(s.dirty, e)
	return Answer{Cluster: rec, Lost: runs}, nil
}

// leaveCluster takes a cluster's shards, runs and hosts out of the cell.
func (s *State) leaveCluster(name string) {
	for _, sh := range slices.Clone(s.shards) {
		if sh.cluster == name {
			s.dropShard(sh)
		}
	}
	s.endRunsOn(name, "cluster "+name+" was removed from the cell")
	for _, h := range s.hostsOf(name) {
		if h.Present {
			s.hostLeft(h, "cluster "+name+" was removed")
		}
		h.shard, h.details = nil, nil
		for _, j := range s.daemons {
			if i, there := j.daemonHome[h.ID]; there {
				s.daemonLeave(j, i)
				s.touch(j)
			}
		}
		s.eraseHost(h) // or later, if an ended run still names it
	}
	delete(s.clusters, name)
	s.hostEpoch++
	s.poolsDirty = true
}

// dropShard forgets a shard. What it was asked is asked of others.
func (s *State) dropShard(sh *shardState) {
	sh.ready = false
	s.abandonBatches(sh)
	s.abandonPreemption(sh, true)
	sh.launches, sh.kills, sh.acks, sh.releases = nil, nil, nil, nil
	s.formerEpoch = max(s.formerEpoch, sh.epoch.Shard)
	s.shards = slices.DeleteFunc(s.shards, func(o *shardState) bool { return o == sh })
}

// endRunsOn declares lost what runs on a cluster that nobody will hear of again.
func (s *State) endRunsOn(name, message string) {
	for _, j := range slices.Clone(s.order) {
		if j == nil || j.live == 0 {
			continue
		}
		for i := range j.tasks {
			if t := &j.tasks[i]; t.runState.Live() && t.host.Cluster == name {
				s.lostRun(j, uint32(i), workload.ReasonHostLost, message)
			}
		}
	}
}

// recut forgets the shards that a cluster had beyond its first parts. Their hosts count with its first shard, until one says that it has them: what is not
// there any more is missed by that one.
func (s *State) recut(name string, parts int) {
	beyond := func(id string) bool {
		of, number, _ := strings.Cut(id, "/")
		n, err := strconv.Atoi(number)
		return of == name && err == nil && n >= parts
	}
	for _, sh := range slices.Clone(s.shards) {
		if beyond(string(sh.id)) {
			s.dropShard(sh)
		}
	}
	for _, h := range s.hostsOf(name) {
		if !beyond(h.Shard) {
			continue
		}
		s.dropPledgesOn(h.ID)
		if h.shard != nil {
			s.uncount(h)
			h.shard = nil
			s.recount(h, resource.Vector{}, available(&h.HostRecord))
		}
		h.Shard = name + "/0"
		s.dirtyHost(h)
	}
}

func (s *State) hostsOf(name string) []*hostState {
	var list []*hostState
	for _, h := range s.hostNames {
		if h.Cluster == name {
			list = append(list, h)
		}
	}
	return list
}
