package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// A cluster may refuse what it has room for: by a quota, by rules of its own. A plan says what it could be asked, one launch of each class; the
// asking is not the core's.

// standInPort is what the ports of a rehearsed launch are counted from that nobody has picked.
const standInPort = 20000

// rehearse notes a launch that the cluster of a shard can be asked about, once for each class, whichever gangs have it, and cluster. at is nil where there was no room.
func (s *State) rehearse(p *planWork, sh *shardState, c *jobClass, at *shard.Assignment, instances int) {
	if p.probe != nil {
		return
	}
	for n := range p.rehearsed {
		if r := &p.plan.Rehearsals[n]; p.rehearsed[n] == c.class.ID && r.Cluster == sh.cluster {
			r.Instances += instances
			return
		}
	}
	if len(p.plan.Rehearsals) >= maxRehearsals {
		return
	}
	i, found := c.anyInstance()
	if !found {
		return
	}
	p.rehearsed = append(p.rehearsed, c.class.ID)
	p.plan.Rehearsals = append(p.plan.Rehearsals, Rehearsal{Shard: sh.id, Cluster: sh.cluster, Instances: instances, Launch: s.rehearsal(c, i, at)})
}

// rehearsal is the launch of an instance of a planned job.
func (s *State) rehearsal(c *jobClass, i uint32, at *shard.Assignment) (l driver.Launch) {
	j := c.job
	var ports []uint16
	for n := range j.spec.Template.Ports {
		number := standInPort + uint16(n) //nolint:gosec // a task has few
		if fixed := j.spec.Template.Ports[n].Number; fixed != 0 {
			number = fixed
		}
		ports = append(ports, number)
	}
	if at != nil && len(at.Ports) == len(ports) {
		ports = at.Ports
	}
	o := j.override(i)
	l = s.launchOf(j, i, o, ports)
	l.Run = workload.RunID{Instance: i}
	if h := s.hostAt(at); h != nil {
		l.Host = h.Name
		l.Devices, l.DeviceMilli = devicesOf(at.Devices, &c.class.Needs)
	}
	l.Env = maps.Clone(j.spec.Template.Env)
	if o != nil {
		l.Env = merged(l.Env, o.Env)
	}
	return l
}

func (s *State) hostAt(a *shard.Assignment) *hostState {
	if a == nil {
		return nil
	}
	return s.hosts[a.Host]
}

// anyInstance is one of a class, the first where there are many.
func (c *jobClass) anyInstance() (uint32, bool) {
	if len(c.members) > 0 {
		return c.members[0], true
	}
	if c.gang != nil {
		for _, i := range c.gang.All() {
			if c.job.classOf(i) == c {
				return i, true
			}
		}
		return 0, false
	}
	for i := range c.job.spec.Instances {
		if c.job.classOf(i) == c {
			return i, true
		}
	}
	return 0, false
}

// couldRun notes that a shard has hosts which a class may use, although not now.
func (p *planWork) couldRun(sh *shardState, c *jobClass, r *placement.Reasons) {
	if p.probe == nil && r.Hosts > r.Counts[placement.ReasonConstraint] {
		p.could = append(p.could, possible{c, sh})
	}
}

// possible is a shard that a class might find room in later.
type possible struct {
	class *jobClass
	shard *shardState
}

// rehearseLost adds the clusters in which what found no room may find it.
func (s *State) rehearseLost(p *planWork) {
	lost := map[*jobClass]bool{}
	for n := range p.lost {
		lost[p.lost[n].class] = true
	}
	slices.SortStableFunc(p.could, func(a, b possible) int { return cmp.Compare(a.shard.id, b.shard.id) })
	for _, one := range p.could {
		if lost[one.class] {
			s.rehearse(p, one.shard, one.class, nil, 0)
		}
	}
}
