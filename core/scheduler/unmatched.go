package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

// A daemon has an instance for each host that it belongs on. Where there is none, no task waits whose refusal could be told, so its hosts are gone
// through when somebody asks.

// maxRefusers bounds the restrictions that an explanation of a daemon without a host names.
const maxRefusers = 3

// refuser is one restriction of a daemon, with the hosts that it keeps the daemon from.
type refuser struct {
	what    string           // as a Remedy names it
	reason  placement.Reason // what a host is counted under that this is the first to refuse
	verb    string           // what hosts cannot do that it refuses; "": it is no feature
	refuses func(*host.Host) bool
	refused int // hosts
	alone   int // of these, hosts that nothing else refuses
}

// homeless reports whether a daemon has no host that it belongs on: an instance without one is STOPPED.
func (j *job) homeless() bool {
	return j.daemonHome != nil && int(j.byState[workload.InstanceStopped]) == len(j.tasks)
}

// noMatchingHost is why a daemon runs nowhere.
func (s *State) noMatchingHost(j *job) PendingReason {
	hosts, list := s.refusers(j)
	r := PendingReason{Kind: PendingNoMatchingHost, Hosts: hosts, Message: "no host matches its constraints"}
	if hosts.Hosts == 0 {
		r.Message += ": the clusters that it may use have no host"
		return r
	}
	if n := hosts.Counts[placement.ReasonNotReady]; n > 0 {
		why := "their shards have not answered, or know no capacity of them"
		if s.instances >= MaxInstancesInCell {
			why = fmt.Sprintf("the cell holds as many instances as it may, %d", MaxInstancesInCell)
		}
		r.Message = fmt.Sprintf("of %s that match its constraints none can be used yet: %s", plural(n, "host"), why)
		return r
	}
	unable := ""
	for _, f := range list {
		if f.verb != "" && f.refused > 0 {
			unable += fmt.Sprintf("; %s cannot %s", plural(f.refused, "host"), f.verb)
		}
	}
	list = slices.DeleteFunc(list, func(f refuser) bool { return f.refused == 0 || f.verb != "" })
	slices.SortStableFunc(list, func(a, b refuser) int { return b.refused - a.refused })
	for n, f := range list[:min(len(list), maxRefusers)] {
		lead := ","
		if n == 0 {
			lead = ": of " + plural(hosts.Hosts, "host")
		}
		r.Message += fmt.Sprintf("%s %s refuses %d", lead, f.what, f.refused)
	}
	if more := len(list) - maxRefusers; more > 0 {
		r.Message += fmt.Sprintf(", and %d more refuse some", more)
	}
	r.Message += unable
	return r
}

// refusers goes through the hosts of the clusters that a daemon may use, and says what keeps it from them. The clusters themselves are the last of the
// list; no host of another one is counted as refused.
func (s *State) refusers(j *job) (placement.Reasons, []refuser) {
	var counts placement.Reasons
	c := j.classes[0]
	list := restrictionsOf(j.spec)
	elsewhere := refuser{what: "clusters " + strings.Join(j.spec.Placement.Clusters, ", ")}
	for _, h := range s.hostNames {
		if !h.Present {
			continue
		}
		facts := h.facts()
		allowed := len(c.class.Placement.Clusters) == 0 || slices.Contains(c.class.Placement.Clusters, h.Cluster)
		switch {
		case allowed:
			counts.Hosts++
			counts.Counts[judge(list, facts)]++
		case c.class.Suits(facts):
			elsewhere.alone++
		}
	}
	return counts, append(list, elsewhere)
}

// judge notes which restrictions refuse a host, and returns what it is counted under. A host that none refuses is one of which no more is known.
func judge(list []refuser, h *host.Host) placement.Reason {
	reason, last, n := placement.ReasonNotReady, 0, 0
	for i := range list {
		f := &list[i]
		if !f.refuses(h) {
			continue
		}
		f.refused++
		if last = i; n == 0 {
			reason = f.reason
		}
		n++
	}
	if n == 1 {
		list[last].alone++
	}
	return reason
}

// restrictionsOf lists what a daemon asks of hosts beside quantities, in the order in which placement looks at it.
func restrictionsOf(spec *workload.JobSpec) (list []refuser) {
	p := &spec.Placement
	if p.HostPool != "" {
		list = append(list, refuser{what: "host pool " + p.HostPool, reason: placement.ReasonHostPool, refuses: func(h *host.Host) bool { return h.Pool != p.HostPool }})
	}
	for n := range p.Constraints {
		k := &p.Constraints[n]
		list = append(list, refuser{
			what: "constraint " + describeConstraint(k), reason: placement.ReasonConstraint, refuses: func(h *host.Host) bool { return !h.Meets(k) },
		})
	}
	asked := spec.Template.Execution.Asks()
	for _, f := range asked {
		list = append(list, refuser{
			what: f.Noun(), verb: f.Verb(), reason: placement.ReasonConstraint, refuses: func(h *host.Host) bool { return h.Attributes[string(f)] != execution.FeatureYes },
		})
	}
	if len(asked) == 0 {
		list = append(list, refuser{
			what: execution.FeatureCommand.Noun(), verb: execution.FeatureCommand.Verb(), reason: placement.ReasonConstraint,
			refuses: func(h *host.Host) bool { return h.Attributes[string(execution.FeatureCommand)] == execution.FeatureNo },
		})
	}
	if models := spec.Template.GPUModels; len(models) > 0 && spec.Template.Needs[resource.GPU] > 0 {
		list = append(list, refuser{
			what: "GPU model " + strings.Join(models, ", "), reason: placement.ReasonGPUModel, refuses: func(h *host.Host) bool {
				return !slices.ContainsFunc(h.Devices, func(d host.Device) bool { return slices.Contains(models, d.Model) })
			},
		})
	}
	return list
}

// matchRemedies finds the restrictions without any one of which a daemon would have a host.
func (s *State) matchRemedies(j *job) (list []Remedy) {
	_, refusers := s.refusers(j)
	for _, f := range refusers {
		if f.alone > 0 && f.what != execution.FeatureCommand.Noun() { // every task is a command or more: it cannot be dropped
			list = append(list, Remedy{Kind: RemedyRestriction, Restriction: f.what, size: 1, Message: f.what + " were not asked for"})
		}
	}
	return list
}
