package sim

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// lendingMutants are cores that are wrong about preemption.
var lendingMutants = []coreMutant{
	{name: "room is kept for work that went away", by: CheckRooms, edits: []edit{{
		"core/scheduler/cycle.go", "s.reviewPledges(j)", `if !wrong("room is kept for work that went away") { s.reviewPledges(j) }`,
	}}},
	{name: "room that nobody wants is not given back", by: CheckRooms, edits: []edit{{
		"core/scheduler/pledge.go", "		for _, p := range gone {\n			s.unlist(w, p)\n			p.shard.releases = append(p.shard.releases, p.room.Lease)",
		"		for _, p := range gone {\n			s.unlist(w, p)\n" +
			`if !wrong("room that nobody wants is not given back") { p.shard.releases = append(p.shard.releases, p.room.Lease) }`,
	}}},
	{name: "pledged room is not booked", by: CheckHosts, edits: []edit{{
		"core/shard/preempt.go", "m.pledges[out.Lease] = p", `if wrong("pledged room is not booked") && t.booked {
			t.booked = m.table.Release(h.row, r.Class.Occupant(a.Devices, a.Ports)) != nil
		}
		m.pledges[out.Lease] = p`,
	}}},
	{name: "others make room at once", by: CheckVictims, edits: []edit{{
		"core/scheduler/preempt.go", "return holdOffPeriods * int64(", `return either[int64]("others make room at once", 0, holdOffPeriods) * int64(`,
	}}},
	{name: "the dying count twice", by: CheckLending, edits: []edit{{
		"core/scheduler/task.go", "q.dying = q.dying.Add(*needs)", `q.dying = q.dying.Add(needs.Scale(either[int64]("the dying count twice", 2, 1)))`,
	}}},
	{name: "work that may not be preempted goes", by: CheckVictims, edits: []edit{
		{
			"core/scheduler/victims.go", "if !j.spec.Preemptible || allow == 0 {",
			`if !j.spec.Preemptible && !wrong("work that may not be preempted goes") || allow == 0 {`,
		},
		{
			"core/scheduler/victims.go", "case !j.spec.Preemptible || j == w.job ||",
			`case !j.spec.Preemptible && !wrong("work that may not be preempted goes") || j == w.job ||`,
		},
	}},
	{name: "gangs go in parts", by: CheckVictims, edits: []edit{{
		"core/scheduler/victims.go", "s.endGang(d.gang, workload.ReasonPreempted, workload.ReasonPreempted)",
		`if wrong("gangs go in parts") { s.preempt(d.job, d.instance, d.why) } else { s.endGang(d.gang, workload.ReasonPreempted, workload.ReasonPreempted) }`,
	}}},
	{name: "the rate holds back questions alone", by: CheckVictims, edits: []edit{{
		"core/scheduler/pledge.go", "len(victims) > 0 && !h.affordable()", `len(victims) > 0 && !wrong("the rate holds back questions alone") && !h.affordable()`,
	}}},
	{name: "the claim to others' room is not looked at again", by: CheckVictims, edits: []edit{{
		"core/scheduler/victims.go", "case !h.claim.between:", `case !h.claim.between && !(wrong("the claim to others' room is not looked at again") && h.in.claim.between):`,
	}}},
	{name: "the budget is not looked at again", by: CheckVictims, edits: []edit{{
		"core/scheduler/victims.go", "if !may || uint64(j.budget().Left())", `if !may || !wrong("the budget is not looked at again") && uint64(j.budget().Left())`,
	}}},
	{name: "the overage is not looked at again", by: CheckVictims, edits: []edit{{
		"core/scheduler/victims.go", "use[k] > 0 && left[k] > a.Entitlement[k] {",
		`use[k] > 0 && (left[k] > a.Entitlement[k] || wrong("the overage is not looked at again")) {`,
	}}},
	{name: "priorities are not looked at again", by: CheckVictims, edits: []edit{{
		"core/scheduler/victims.go", "j.spec.Priority, w.job.spec.Priority), j.spec.Priority < w.job.spec.Priority",
		`j.spec.Priority, w.job.spec.Priority), j.spec.Priority < w.job.spec.Priority+either[int32]("equals make room", 1, 0) || wrong("priorities are not looked at again")`,
	}}},
	{name: "equals make room", by: CheckVictims, edits: []edit{{
		"core/scheduler/victims.go", "if j.spec.Preemptible && j.spec.Priority < priority {",
		`if j.spec.Preemptible && j.spec.Priority < priority+either[int32]("equals make room", 1, 0) {`,
	}}},
	{name: "nobody makes room", by: CheckLending, edits: []edit{{
		"core/scheduler/preempt.go", "return c.starvedAt != 0 &&", `return !wrong("nobody makes room") && c.starvedAt != 0 &&`,
	}}},
}

// mutantSeeds are those that catch a mutant of preemption soonest.
var mutantSeeds = map[string][]uint64{
	"room is kept for work that went away":             {33},
	"room that nobody wants is not given back":         {30},
	"pledged room is not booked":                       {15},
	"others make room at once":                         {21},
	"the dying count twice":                            {21},
	"the claim to others' room is not looked at again": {66},
	"work that may not be preempted goes":              {51},
	"gangs go in parts":                                {21},
	"the rate holds back questions alone":              {30},
	"nobody makes room":                                {18},
	"the budget is not looked at again":                {48},
	"the overage is not looked at again":               {48},
	"priorities are not looked at again":               {24},
	"equals make room":                                 {12},
}

// lendingSeeds are tried when the named ones do not catch a mutant any more.
var lendingSeeds = []uint64{9, 12, 15, 18, 21, 30, 33, 36}

// seedsOf are the seeds that are to catch a core mutant; none: the first ones.
func seedsOf(name string) []uint64 {
	if named, lending := mutantSeeds[name]; lending {
		return append(slices.Clone(named), lendingSeeds...)
	}
	return nil
}

// TestMutantSeeds wants the right core to pass where wrong ones are caught: a seed that fails with every core catches nobody. TestCoreMutants
// has its program play them: as no mutant it is the right core.
func TestMutantSeeds(t *testing.T) {
	t.Parallel()
	if !*mutatedFlag {
		t.Skip("TestCoreMutants does it")
	}
	named := map[uint64]bool{}
	for _, seeds := range mutantSeeds {
		for _, seed := range seeds {
			named[seed] = true
		}
	}
	for _, seed := range slices.Sorted(maps.Keys(named)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, brief(seed))
		})
	}
}
