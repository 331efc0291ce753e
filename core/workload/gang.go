package workload

import "iter"

// GangSpec says which instances of a job go together. Without groups all of them are one gang; with groups each group is a gang of its own,
// and instances in no group are on their own.
//
// A gang is one unit: it is admitted, placed, preempted, restarted and killed as a whole, and has a life of its own, the generation, and
// failures of its own. A generation begins when the gang waits: all its members are PENDING. It starts when Min members have found hosts
// in one piece, those of the lowest ranks; in a rigid gang that is all of them. Launches go out only when all of these are bound, so that
// every member can be told where the others are.
//
// A member is present when it has a live run of the present generation that is not being killed, or has succeeded in it (batch). While at
// least Min members are present the gang lives:
//
//   - Members that wait join one by one, lowest rank first, as admission and placement have room; they wait like instances on their own.
//   - A member that ends otherwise than by success backs off and is tried again alone. It counts against nobody's retries, as the gang
//     goes on without it; so a member that fails for ever is tried for as long as the gang lives.
//   - Once a member has succeeded nobody joins or is tried again any more. When nobody runs and at least Min have succeeded, the gang is
//     done. Members that still wait or back off were not needed: they are DONE without another run.
//
// A member whose end leaves fewer than Min present ends the generation; in a rigid gang any bad end does. All others are killed
// (GANG_FAILED), and once none lives all members, also those that had succeeded, wait together as the next generation, after a back-off.
// A restart that a user asks for ends the generation too; then the next one starts at once, and nothing counts as a failure.
//
// If the member's run FAILED, that is a failure of the gang: past max_retries all members are FAILED instead. A status of an older generation
// never counts: what is alive of one is killed.
type GangSpec struct {
	Groups   []GangGroup // distinct names, disjoint members
	MinSize  uint32      // without groups: how many start together at least; 0: all of them
	Topology GangTopology
}

// GangGroup is one named gang of a job that has several.
type GangGroup struct {
	Name      string
	Instances []InstanceRange // ascending, with gaps between them
	MinSize   uint32          // 0: all of them
}

// GangTopology keeps each gang within one domain, the hosts that have the same value of the attribute Key. TopologyHost is the host itself,
// and TopologyCluster the cluster.
type GangTopology struct {
	Key string // "": anywhere
	// Required lets the gang start in one domain only, and members that join later there too. Otherwise one domain is tried first, then as
	// much as possible in one.
	Required bool
}

// TopologyCluster is the topology key that stands for the cluster.
const TopologyCluster = "cluster"

// InstanceRange is the instances First to Last, both included.
type InstanceRange struct{ First, Last uint32 }

// Gang is one gang of a job.
type Gang struct {
	Name    string          // the group's; the job's for a job that is one gang
	Members []InstanceRange // in order of rank
	Size    uint32
	Min     uint32 // at least 1, at most Size
}

// Gangs lists the job's gangs in the order of its groups; none for a job without.
func (s *JobSpec) Gangs() []Gang {
	if s.Gang == nil || s.Instances == 0 {
		return nil
	}
	if len(s.Gang.Groups) == 0 {
		return []Gang{newGang(s.Name, []InstanceRange{{0, s.Instances - 1}}, s.Gang.MinSize)}
	}
	list := make([]Gang, len(s.Gang.Groups))
	for n := range s.Gang.Groups {
		g := &s.Gang.Groups[n]
		list[n] = newGang(g.Name, g.Instances, g.MinSize)
	}
	return list
}

func newGang(name string, members []InstanceRange, least uint32) Gang {
	g := Gang{Name: name, Members: members, Min: least}
	for _, r := range members {
		g.Size += r.Last - r.First + 1
	}
	if g.Min == 0 || g.Min > g.Size {
		g.Min = g.Size
	}
	return g
}

// Elastic reports whether the gang may run without some of its members.
func (g *Gang) Elastic() bool { return g.Min < g.Size }

// All visits the members by rank.
func (g *Gang) All() iter.Seq2[uint32, uint32] {
	return func(yield func(rank, instance uint32) bool) {
		rank := uint32(0)
		for _, r := range g.Members {
			for i := r.First; i <= r.Last; i++ {
				if !yield(rank, i) {
					return
				}
				rank++
			}
		}
	}
}

// Rank is the place of an instance among the members, from 0.
func (g *Gang) Rank(instance uint32) (uint32, bool) {
	rank := uint32(0)
	for _, r := range g.Members {
		switch {
		case instance < r.First:
			return 0, false
		case instance <= r.Last:
			return rank + instance - r.First, true
		}
		rank += r.Last - r.First + 1
	}
	return 0, false
}
