package scheduler

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
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

// planDaemon says which hosts a daemon would run on, whether there is room now or not, and notes one launch in each cluster: on a host that takes
// work, if there is one.
func (s *State) planDaemon(p *planWork) {
	c := p.job.classes[0]
	matching := map[string]int{} // by cluster
	var on []*hostState          // one of each
	total := 0
	for _, h := range s.hostNames { // by cluster
		if !h.Present || h.shard == nil || h.Summary.Capacity == (resource.Vector{}) || !mayUse(c, h.shard) || !c.class.Suits(h.facts()) {
			continue // of one that its shard cannot use, no capacity is known
		}
		total++
		if len(p.plan.Hosts) < MaxPlanHosts || p.plan.Hosts[h.Name] > 0 {
			p.plan.Hosts[h.Name]++
		}
		matching[h.Cluster]++
		switch n := len(on) - 1; {
		case n < 0 || on[n].Cluster != h.Cluster:
			on = append(on, h)
		case !on[n].mayTake() && h.mayTake():
			on[n] = h
		}
	}
	if total == 0 {
		p.plan.Pending = append(p.plan.Pending, s.noMatchingHost(p.job))
	}
	p.job.spelled = spelled{s.steps, p.job.ID.String(), s.pools.Path(p.job.spec.Pool), strconv.Itoa(total)}
	for _, h := range on[:min(len(on), maxRehearsals)] {
		at := shard.Assignment{Host: h.ID, Devices: 1<<c.class.Devices() - 1}
		p.plan.Rehearsals = append(p.plan.Rehearsals, Rehearsal{
			Shard: h.shard.id, Cluster: h.Cluster, Instances: matching[h.Cluster], Launch: s.rehearsal(c, 0, &at),
		})
	}
}

// facts are what classes look at of a host.
func (h *hostState) facts() *host.Host {
	out := &host.Host{Name: h.Name, Attributes: h.Summary.Attributes, Pool: h.Summary.HostPool}
	for _, d := range h.Summary.Devices {
		out.Devices = append(out.Devices, host.Device{Model: d.Model})
	}
	return out
}

// rehearsal is the launch of an instance of a planned job. Of a gang nobody knows where the others will be.
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
	l.Env = j.environment(s, i, o)
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
