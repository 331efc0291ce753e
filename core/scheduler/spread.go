package scheduler

import (
	"slices"

	"github.com/paceline-sched/paceline/core/workload"
)

// Kept room over shards. A gang that no shard can hold alone would never be sure of a start beside small work: by the time that it has gathered, what
// came free is taken. So where no shard can keep room for all of it, room is kept in one shard after the other, as much as each has, until there is
// enough for all; if there is not, everything is given back. One gang of the cell collects at a time, as with gathering: two that each kept what the
// other one lacks would both do so in vain. Nothing is waited for meanwhile but the answers of shards.

// spreadFor is how long collecting may take: a shard that answers late would have others keep room for nobody.
const spreadFor = 2 * batchTimeout

// spread is room for one gang that is kept in several shards.
type spread struct {
	cluster string       // the gang has to stay in one, and this is tried; empty: any
	booked  *pledgedWork // what shards have kept so far; nil: nothing
	until   int64
}

// reaches reports whether a shard may be asked.
func (sp *spread) reaches(sh *shardState) bool {
	return sp == nil || sp.cluster == "" || sp.cluster == sh.cluster
}

// homeless lists the instances of a part for which there is no room yet.
func (in *plea) homeless(part int) []uint32 {
	all := in.work.parts[part].instances
	if in.spread == nil || in.spread.booked == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(i uint32) bool {
		return slices.ContainsFunc(in.spread.booked.list, func(p *pledge) bool { return p.instance == i })
	})
}

// spreadOut has room kept over several shards for a gang for which none can keep all of it. It reports false when that is not to be: the gang may
// not be split, the attempt was just made, or too much is kept already. While another gang collects its turn comes with its next refusal.
func (s *State) spreadOut(in *plea) bool {
	w := in.work
	q := s.queueOfJob(w.job)
	switch {
	case in.spread != nil || !w.together || w.oneDomain() != "" || len(in.tried) < 2 || !s.wanted(w):
		return false
	case s.press.spreading != nil || q.keeping || s.press.kept >= maxKept || s.press.tasks+w.tasks() > maxPledged || !s.mayKeep(w):
		return true
	}
	all := &plea{work: w, spread: &spread{until: s.now + int64(spreadFor)}}
	s.chooseCluster(all)
	s.press.again = true
	return s.plead(all)
}

// chooseCluster keeps the collecting for a gang that has to stay in one cluster to that of the shard which is to be asked first.
func (s *State) chooseCluster(in *plea) {
	if t := in.work.topology(); !t.Required || t.Key != workload.TopologyCluster {
		return
	}
	in.spread.cluster = ""
	if sh := s.whomToAsk(in); sh != nil {
		in.spread.cluster = sh.cluster
	}
}

// goesOn reports whether a plea that a shard could not serve, or only in part, is for the next one. Where a cluster has no more shards, what was kept
// in it is given back, and another is tried.
func (s *State) goesOn(in *plea) bool {
	sp := in.spread
	switch {
	case sp == nil:
		return true
	case s.now >= sp.until || sp.booked != nil && s.press.works[sp.booked.id] == nil:
		return false
	case s.whomToAsk(in) == nil && sp.cluster != "":
		s.unbook(in)
		s.chooseCluster(in)
	}
	return true
}

// unbook gives back what was kept in some shards for a gang that did not find enough.
func (s *State) unbook(in *plea) {
	if in.spread == nil || in.spread.booked == nil {
		return
	}
	if s.press.works[in.spread.booked.id] != nil {
		s.dropPledges(in.spread.booked)
	}
	in.spread.booked = nil
}
