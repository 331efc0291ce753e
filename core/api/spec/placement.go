package spec

import (
	"regexp"
	"strconv"

	"github.com/paceline-sched/paceline/core/execution"
	"github.com/paceline-sched/paceline/core/workload"
	pacelinev1 "github.com/paceline-sched/paceline/sdk/gen/paceline/v1"
)

var policyPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`)

// checkPolicy looks at the form of a policy's name only: which ones there are is a server's to know.
func checkPolicy(c *checker, name, field string) {
	if !policyPattern.MatchString(name) {
		c.refuse(field, "%q is no name of a policy: use best-fit, pack, spread or one of 'paceline policy list'", clip(name))
	}
}

func toPlacement(c *checker, in *pacelinev1.PlacementSpec, field string) workload.Placement {
	out := workload.Placement{
		Strategy: workload.Strategy(in.GetStrategy()), Exclusive: in.GetExclusive(), HostPool: in.GetHostPool(),
		Clusters: list(in.GetClusters()),
	}
	checkPolicy(c, in.GetStrategy(), field+".strategy")
	for i, constraint := range in.GetConstraints() {
		if execution.IsFeature(constraint.GetKey()) {
			c.refuse(index(field+".constraints", i)+".key", "%q follows from what the task is made of: leave it out", clip(constraint.GetKey()))
		}
		out.Constraints = append(out.Constraints, toConstraint(c, constraint, index(field+".constraints", i)))
	}
	for i, p := range in.GetPreferences() {
		at := index(field+".preferences", i)
		checkWeight(c, at+".weight", p.GetWeight(), 1)
		out.Preferences = append(out.Preferences, workload.Preference{
			Constraint: toConstraint(c, p.GetConstraint(), at+".constraint"), Weight: p.GetWeight(),
		})
	}
	for i, a := range in.GetAffinities() {
		at := index(field+".affinities", i)
		checkWeight(c, at+".weight", a.GetWeight(), 0)
		if len(a.GetSelector()) == 0 {
			c.refuse(at+".selector", "must have at least one label")
		}
		out.Affinities = append(out.Affinities, workload.Affinity{
			Selector: table(a.GetSelector()), Topology: a.GetTopology(), Anti: a.GetAnti(), Weight: a.GetWeight(),
		})
		if a.GetTopology() == "" {
			out.Affinities[i].Topology = workload.TopologyHost
		}
	}
	for i, s := range in.GetSpreads() {
		if s.GetTopology() == "" {
			c.refuse(index(field+".spreads", i)+".topology", "must name an attribute, or host")
		}
		out.Spreads = append(out.Spreads, workload.Spread{Topology: s.GetTopology(), MaxSkew: s.GetMaxSkew()})
	}
	return out
}

func checkWeight(c *checker, field string, weight, least int32) {
	if weight < least || weight > 100 {
		c.refuse(field, "must be between %d and 100", least)
	}
}

func toConstraint(c *checker, in *pacelinev1.Constraint, field string) workload.Constraint {
	out := workload.Constraint{Key: in.GetKey()}
	conditions := 0
	condition := func(op workload.Operator, values ...string) {
		conditions++
		out.Op, out.Values = op, values
	}
	if len(in.GetAnyOf()) > 0 {
		condition(workload.OpIn, list(in.GetAnyOf())...)
	}
	if len(in.GetNoneOf()) > 0 {
		condition(workload.OpNotIn, list(in.GetNoneOf())...)
	}
	if in != nil && in.Exists != nil {
		op := workload.OpNotExists
		if in.GetExists() {
			op = workload.OpExists
		}
		condition(op)
	}
	if in != nil && in.GreaterThan != nil {
		condition(workload.OpGt, strconv.FormatInt(in.GetGreaterThan(), 10))
	}
	if in != nil && in.LessThan != nil {
		condition(workload.OpLt, strconv.FormatInt(in.GetLessThan(), 10))
	}
	switch {
	case conditions != 1:
		c.refuse(field, "exactly one of any_of, none_of, exists, greater_than and less_than must be set")
	case in.GetKey() == "":
		c.refuse(field+".key", "must name an attribute")
	}
	return out
}

func fromPlacement(p *workload.Placement) *pacelinev1.PlacementSpec {
	out := &pacelinev1.PlacementSpec{
		Strategy: string(p.Strategy), Exclusive: p.Exclusive, HostPool: p.HostPool, Clusters: p.Clusters,
	}
	for _, c := range p.Constraints {
		out.Constraints = append(out.Constraints, fromConstraint(c))
	}
	for _, pref := range p.Preferences {
		out.Preferences = append(out.Preferences, &pacelinev1.Preference{Constraint: fromConstraint(pref.Constraint), Weight: pref.Weight})
	}
	for _, a := range p.Affinities {
		out.Affinities = append(out.Affinities, &pacelinev1.Affinity{Selector: a.Selector, Topology: a.Topology, Anti: a.Anti, Weight: a.Weight})
	}
	for _, s := range p.Spreads {
		out.Spreads = append(out.Spreads, &pacelinev1.Spread{Topology: s.Topology, MaxSkew: s.MaxSkew})
	}
	return out
}

func fromConstraint(c workload.Constraint) *pacelinev1.Constraint {
	out := &pacelinev1.Constraint{Key: c.Key}
	switch c.Op {
	case workload.OpIn:
		out.AnyOf = c.Values
	case workload.OpNotIn:
		out.NoneOf = c.Values
	case workload.OpExists, workload.OpNotExists:
		exists := c.Op == workload.OpExists
		out.Exists = &exists
	case workload.OpGt, workload.OpLt:
		var n int64
		if len(c.Values) == 1 {
			n, _ = strconv.ParseInt(c.Values[0], 10, 64) // written by toConstraint
		}
		if c.Op == workload.OpGt {
			out.GreaterThan = &n
		} else {
			out.LessThan = &n
		}
	}
	return out
}
