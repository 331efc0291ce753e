package scheduler

import (
	"slices"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// topology is where the gang of some work has to stay together.
func (w *placeWork) topology() workload.GangTopology {
	if w.parts[0].class.gang == nil {
		return workload.GangTopology{}
	}
	return w.job.spec.Gang.Topology
}

// domainOf is the value of a topology key on a host.
func domainOf(h *hostState, key string) string {
	switch key {
	case workload.TopologyHost:
		return h.Name
	case workload.TopologyCluster:
		return h.Cluster
	}
	return h.Summary.Attributes[key]
}

// anchor is the host of the first member that is present: those that join later go where it is.
func (g *gang) anchor() *hostState {
	for _, i := range g.All() {
		if t := &g.job.tasks[i]; t.generation == g.generation() && t.runState.Live() && t.runState != workload.RunKilling {
			return t.host
		}
	}
	return nil
}

// joining reports whether members join a gang with a topology, and where it is.
func (w *placeWork) joining() (*hostState, bool) {
	if w.gang == nil || w.together || w.gather != nil || w.topology().Key == "" {
		return nil, false
	}
	return w.gang.anchor(), true
}

// home is the shard in which members are to join their gang; bound says that no other will do but those of joinsIn.
func (w *placeWork) home() (home *shardState, bound bool) {
	at, joins := w.joining()
	if !joins {
		return nil, false
	}
	if at != nil {
		home = at.shard
	}
	return home, w.topology().Required
}

// joinsIn reports whether members that must join a gang may do so in the shard.
func (w *placeWork) joinsIn(sh *shardState) bool {
	at, _ := w.joining()
	if at == nil {
		return false
	}
	return sh == at.shard || (w.topology().Key == workload.TopologyCluster && sh.cluster == at.Cluster)
}

// allows reports whether a member that joins may stand on a host.
func (w *placeWork) allows(h *hostState) bool {
	at, joins := w.joining()
	if !joins || !w.topology().Required {
		return true
	}
	key := w.topology().Key
	return at != nil && domainOf(h, key) != "" && domainOf(h, key) == domainOf(at, key)
}

// within is what a shard is told of the gang's topology. A cluster is no smaller than a shard.
func (w *placeWork) within() placement.Within {
	t := w.topology()
	if t.Key == "" || t.Key == workload.TopologyCluster {
		return placement.Within{}
	}
	within := placement.Within{Key: t.Key, Required: t.Required}
	if at, joins := w.joining(); joins && at != nil {
		if within.Domain = domainOf(at, t.Key); within.Domain == "" && !t.Required {
			return placement.Within{}
		}
	}
	return within
}

// want is how many members of a part's class the gang may have in the end.
func (w *placeWork) want(p placePart) int {
	if !w.together || p.class.gang == nil {
		return 0
	}
	return int(p.class.size())
}

// stayTogether holds a shard's answer against a required topology: a placer is not trusted.
func (s *State) stayTogether(w *placeWork, results []shard.PlaceResult) bool {
	t := w.topology()
	if !t.Required {
		return true
	}
	first := ""
	for n := range results {
		for _, a := range results[n].Assignments {
			d := domainOf(s.hosts[a.Host], t.Key)
			if d == "" || (first != "" && d != first) {
				return false
			}
			first = d
		}
	}
	return true
}

// noteRoom keeps how much of a gang a shard has room for, by which it may gather.
func (w *placeWork) noteRoom(sh *shardState, results []shard.PlaceResult) {
	r := shardRoom{shard: sh}
	for n := range results {
		room := len(results[n].Assignments)
		if results[n].Refused > 0 {
			room = results[n].Reasons.GangLargest
		}
		r.parts = append(r.parts, room)
		r.sum += room
	}
	if r.sum > 0 && !slices.ContainsFunc(w.rooms, func(o shardRoom) bool { return o.shard == sh }) {
		w.rooms = append(w.rooms, r)
	}
}

// sumRooms makes the refusal of a gang that may be split over shards speak of all of them together, or of the best cluster.
func (w *placeWork) sumRooms() {
	t := w.topology()
	if !w.together || len(w.rooms) == 0 || (t.Required && t.Key != workload.TopologyCluster) {
		return
	}
	rooms, in := w.rooms, ""
	if t.Required {
		rooms, in = w.bestCluster()
	}
	for n := range w.parts {
		r := &w.parts[n].refusal
		r.GangSize, r.GangLargest, r.GangDomain = len(w.parts[n].instances), 0, in
		for _, room := range rooms {
			r.GangLargest = min(r.GangLargest+room.parts[n], r.GangSize)
		}
	}
}

// bestCluster is the cluster whose shards have the most room for a gang together.
func (w *placeWork) bestCluster() (best []shardRoom, name string) {
	byCluster := map[string][]shardRoom{}
	for _, r := range w.rooms {
		byCluster[r.shard.cluster] = append(byCluster[r.shard.cluster], r)
	}
	for _, r := range w.rooms { // in the order in which they were asked
		if one := byCluster[r.shard.cluster]; total(one) > total(best) {
			best, name = one, r.shard.cluster
		}
	}
	return best, name
}

func (g *gang) view() GangView {
	return GangView{
		Gang: g.Gang, GangLife: GangLife{Generation: g.generation(), Failures: g.failures()}, Present: g.present(), Ending: g.ending,
	}
}

// open returns the shard if it may be given work now; busy says that it may be later.
func (sh *shardState) open() (open *shardState, busy bool) {
	switch {
	case !sh.ready:
		return nil, false
	case sh.busy():
		return nil, true
	}
	return sh, false
}
