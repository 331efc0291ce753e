package scheduler

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of gathering.
const (
	// gatherTimeout is how long a gang may take to gather; it is shorter than the leases that it holds meanwhile.
	gatherTimeout = shard.LeaseTTL * 2 / 3
	// maxGathers bounds the gangs that wait for their turn; one more is refused, and asks again later.
	maxGathers = 64
)

// gather is the start of a gang that no shard can take alone: it holds leases in one shard after the other, those with most room first, until
// all its members have one, or gives all of them back. One gang of the cell gathers at a time, in the order of admission: two that each held
// what the other one needs would wait for ever.
type gather struct {
	work  *placeWork
	order []*shardState // still to be asked
	asked *placeWork    // what is with a shard, or on its way there
	held  []heldRoom
}

// heldRoom is a lease that a gathering gang holds for one of its members.
type heldRoom struct {
	shard      *shardState
	epoch      shard.Epoch
	part       int
	instance   uint32
	assignment shard.Assignment
}

// shardRoom is how much of a gang a shard said that it had room for.
type shardRoom struct {
	shard *shardState
	parts []int
	sum   int
}

// mayGather takes a gang that every shard refused by itself for gathering, if their rooms together may do.
func (s *State) mayGather(w *placeWork) bool {
	if !w.together || w.plan != nil || w.gang == nil || len(s.gatherRooms(w)) == 0 || len(s.gathers) >= maxGathers {
		return false
	}
	at, _ := slices.BinarySearchFunc(s.gathers, w, func(a, b *placeWork) int { return cmp.Compare(a.admitted, b.admitted) })
	s.gathers = slices.Insert(s.gathers, at, w)
	s.nextGather()
	return true
}

// gatherRooms lists the shards in which a gang gathers: those of one cluster if they have enough, else all, the roomiest first. None: their
// rooms together are not enough, or the gang has to stay within one domain, which is never split over shards.
func (s *State) gatherRooms(w *placeWork) []shardRoom {
	topology := w.job.spec.Gang.Topology
	if topology.Required && topology.Key != workload.TopologyCluster {
		return nil
	}
	best, _ := w.bestCluster()
	if !w.enough(best) && !topology.Required {
		best = w.rooms
	}
	if !w.enough(best) {
		return nil
	}
	best = slices.Clone(best)
	slices.SortStableFunc(best, func(a, b shardRoom) int {
		return cmp.Or(-cmp.Compare(a.sum, b.sum), cmp.Compare(a.shard.id, b.shard.id))
	})
	return best
}

func (w *placeWork) enough(rooms []shardRoom) bool {
	for n := range w.parts {
		room := 0
		for _, r := range rooms {
			room += r.parts[n]
		}
		if room < len(w.parts[n].instances) {
			return false
		}
	}
	return true
}

func total(rooms []shardRoom) (n int) {
	for _, r := range rooms {
		n += r.sum
	}
	return n
}

// nextGather begins with the gang whose turn it is, when nobody gathers.
func (s *State) nextGather() {
	for s.gathering == nil && len(s.gathers) > 0 {
		w := s.gathers[0]
		s.gathers = slices.Delete(s.gathers, 0, 1)
		if !s.startable(w) {
			s.dropWork(w)
			continue
		}
		g := &gather{work: w}
		for _, r := range s.gatherRooms(w) {
			g.order = append(g.order, r.shard)
		}
		s.gathering = g
		s.setTimer(timer{at: s.now + int64(gatherTimeout), kind: timerGather, gather: g})
		s.askNext(g)
	}
}

// startable reports whether a gang still waits for this start as a whole.
func (s *State) startable(w *placeWork) bool {
	return !s.outlived(w) && int(w.gang.byState[workload.InstanceAdmitted]) == w.tasks()
}

// dropWork lets go of a start that nobody wants any more. What else was to start with it waits again.
func (s *State) dropWork(w *placeWork) {
	if s.outlived(w) {
		return
	}
	for _, p := range w.parts {
		s.unadmit(w.job, p.instances)
	}
}

// askNext asks the next shard for as many members as it can take of those that have no lease yet.
func (s *State) askNext(g *gather) {
	has := map[uint32]bool{}
	for n := range g.held {
		has[g.held[n].instance] = true
	}
	ask := &placeWork{job: g.work.job, gang: g.work.gang, generation: g.work.generation, gather: g}
	for n, p := range g.work.parts {
		rest := slices.DeleteFunc(slices.Clone(p.instances), func(i uint32) bool { return has[i] })
		if len(rest) > 0 {
			ask.parts = append(ask.parts, placePart{class: p.class, instances: rest, of: n})
		}
	}
	switch {
	case len(ask.parts) == 0:
		s.gathered(g)
	case len(g.order) == 0:
		s.scatter(g)
	default:
		g.asked = ask
		ask.to, g.order = g.order[0], g.order[1:]
		s.enqueue(ask)
		s.dispatchAgain = true
	}
}

// gatherPlaced takes a shard's answer to a part of a gathering gang.
func (s *State) gatherPlaced(sh *shardState, w *placeWork, results []shard.PlaceResult) {
	g := w.gather
	if s.gathering != g || g.asked != w {
		for n := range results {
			sh.giveBack(results[n].Assignments)
		}
		return
	}
	for n := range results {
		p := &w.parts[n]
		rest := p.instances
		for m := range results[n].Assignments {
			a := &results[n].Assignments[m]
			if len(rest) == 0 {
				sh.releases = append(sh.releases, a.Lease)
				continue
			}
			g.held = append(g.held, heldRoom{shard: sh, epoch: sh.epoch, part: p.of, instance: rest[0], assignment: *a})
			rest = rest[1:]
		}
	}
	g.asked = nil
	s.askNext(g)
}

// gathered starts a gang all of whose members have a lease.
func (s *State) gathered(g *gather) {
	if !s.startable(g.work) || !s.heldStill(g) {
		s.scatter(g)
		return
	}
	s.gathering = nil
	for n := range g.held {
		r := &g.held[n]
		s.bindRun(g.work.job, r.instance, s.hosts[r.assignment.Host], &r.assignment)
	}
	for n := range g.held {
		s.launchRun(g.work.job, g.held[n].instance, g.held[n].assignment.Lease)
	}
	for n := range g.work.parts {
		g.work.parts[n].class.delay = 0
	}
	s.nextGather()
}

// heldStill reports whether every lease of a gathering gang may be launched on, as far as the core knows.
func (s *State) heldStill(g *gather) bool {
	for n := range g.held {
		if r := &g.held[n]; r.shard.epoch != r.epoch || !r.shard.mayStart(s.hosts[r.assignment.Host]) {
			return false
		}
	}
	return true
}

// mayStart reports whether, as far as the core knows, the shard can start something on a host.
func (sh *shardState) mayStart(h *hostState) bool {
	return h != nil && h.shard == sh && h.mayTake()
}

// scatter gives all leases of a gathering gang back. It waits, and asks again later, if it is still wanted.
func (s *State) scatter(g *gather) {
	for n := range g.held {
		if r := &g.held[n]; r.shard.epoch == r.epoch {
			r.shard.releases = append(r.shard.releases, r.assignment.Lease)
		}
	}
	s.gathering = nil
	if s.startable(g.work) {
		s.refuse(g.work)
	} else {
		s.dropWork(g.work)
	}
	s.nextGather()
}

// watchGather ends a gathering that has become pointless: its job was stopped, or a shard that holds a part of it went away.
func (s *State) watchGather() {
	if g := s.gathering; g != nil && (!s.startable(g.work) || !s.heldStill(g)) {
		s.scatter(g)
	}
}

// gatherTimedOut gives up on a shard that does not answer. Gangs in line that would ask it too need not find out one after the other.
func (s *State) gatherTimedOut(g *gather) {
	if s.gathering != g {
		return
	}
	line := s.gathers
	s.gathers = nil
	if g.asked != nil {
		asks := func(r shardRoom) bool { return r.shard == g.asked.to }
		for n, w := range line {
			if slices.ContainsFunc(w.rooms, asks) && s.startable(w) {
				s.refuse(w)
				line[n] = nil
			}
		}
	}
	s.gathers = slices.DeleteFunc(line, func(w *placeWork) bool { return w == nil })
	s.scatter(g)
}
