package spec

import (
	"cmp"
	"slices"

	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

// toGang reads which instances go together. Everything else of the job is known by now.
func toGang(c *checker, in *pacelinev1.GangSpec, job *workload.JobSpec, field string) *workload.GangSpec {
	if in == nil {
		return nil
	}
	out := &workload.GangSpec{
		MinSize:  in.GetMinSize(),
		Topology: workload.GangTopology{Key: in.GetTopology().GetKey(), Required: in.GetTopology().GetRequired()},
	}
	if in.GetTopology() != nil && out.Topology.Key == "" {
		c.refuse(field+".topology.key", "must name the host attribute whose values are the domains, for example rack")
	}
	if out.MinSize > job.Instances {
		c.refuse(field+".min_size", "%d is more than the %d instances of the gang", out.MinSize, job.Instances)
	}
	if len(in.GetGroups()) > 0 && out.MinSize > 0 {
		c.refuse(field+".min_size", "give each of the groups its own min_size, and none to the gang")
	}
	out.Groups = toGroups(c, in.GetGroups(), job, field+".groups")
	return out
}

// toGroups reads disjoint, named parts of a job.
func toGroups(c *checker, in []*pacelinev1.GangGroup, job *workload.JobSpec, field string) []workload.GangGroup {
	var out []workload.GangGroup
	var all []owned
	names := map[string]bool{}
	for n, g := range in {
		at := index(field, n)
		if names[g.GetName()] || g.GetName() == "" {
			c.refuse(at+".name", "%q must be set, and not be another group's name", clip(g.GetName()))
		}
		names[g.GetName()] = true
		ranges, err := ParseInstances(g.GetInstances())
		if err != nil {
			c.refuse(at+".instances", "%v", err)
			continue
		}
		group := workload.GangGroup{Name: g.GetName(), Instances: joinRanges(ranges), MinSize: g.GetMinSize()}
		last := group.Instances[len(group.Instances)-1].Last
		if last >= job.Instances {
			c.refuse(at+".instances", "instance %d does not exist: the job has %d, from 0 to %d", last, job.Instances, int64(job.Instances)-1)
		}
		size := uint32(0)
		for _, r := range group.Instances {
			size += r.Last - r.First + 1
			all = append(all, owned{r, group.Name, at})
		}
		if group.MinSize > size {
			c.refuse(at+".min_size", "%d is more than the %d instances of group %s", group.MinSize, size, group.Name)
		}
		out = append(out, group)
	}
	checkDisjoint(c, all)
	return out
}

// owned is a range of a group's members.
type owned struct {
	workload.InstanceRange
	group, field string
}

// checkDisjoint wants every instance in one group at most.
func checkDisjoint(c *checker, all []owned) {
	slices.SortStableFunc(all, func(a, b owned) int { return cmp.Compare(a.First, b.First) })
	for n := 1; n < len(all); n++ {
		if a, b := &all[n-1], &all[n]; b.First <= a.Last {
			c.refuse(b.field+".instances", "instance %d is in group %s and in group %s: it can be in one only", b.First, a.group, b.group)
			return
		}
	}
}

// joinRanges sorts ranges and joins those that touch or overlap.
func joinRanges(in []Range) []workload.InstanceRange {
	slices.SortFunc(in, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	out := in[:1]
	for _, r := range in[1:] {
		if last := &out[len(out)-1]; r.First <= last.Last+1 {
			last.Last = max(last.Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return slices.Clip(out)
}

// checkGangWindow wants room for the start of every gang within max_running.
func checkGangWindow(c *checker, job *workload.JobSpec, field string) {
	for _, g := range job.Gangs() {
		if job.MaxRunning != 0 && job.MaxRunning < g.Min {
			c.refuse(field+".batch.max_running", "must not be below the %d members that gang %s starts together", g.Min, clip(g.Name))
		}
	}
}

func fromGang(g *workload.GangSpec) *pacelinev1.GangSpec {
	if g == nil {
		return nil
	}
	out := &pacelinev1.GangSpec{MinSize: g.MinSize}
	if g.Topology.Key != "" {
		out.Topology = &pacelinev1.GangTopology{Key: g.Topology.Key, Required: g.Topology.Required}
	}
	for n := range g.Groups {
		group := &g.Groups[n]
		out.Groups = append(out.Groups, &pacelinev1.GangGroup{
			Name: group.Name, Instances: formatRanges(group.Instances), MinSize: group.MinSize,
		})
	}
	return out
}

func formatRanges(list []workload.InstanceRange) string {
	var b []byte
	for n, r := range list {
		if n > 0 {
			b = append(b, ',')
		}
		b = appendRange(b, r)
	}
	return string(b)
}
