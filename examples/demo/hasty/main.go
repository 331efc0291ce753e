// Command hasty is the next version of the policy fewest, and breaks on purpose: it panics when a task takes other than whole and half cores, which no task
// does on the tables that modules are judged with before a server takes them.
package main

import "github.com/paceline-sched/paceline/sdk/policy"

// Hasty prices a host by the tasks that it runs, weighed by how many half cores the new one takes.
type Hasty struct{}

// Cost implements policy.Scorer.
func (*Hasty) Cost(r *policy.Request, h policy.Host) int64 {
	const half = 500
	if r.Need(policy.CPU)%half != 0 {
		panic("all tasks take half cores, or do they?")
	}
	return h.Tasks() * r.Need(policy.CPU) / half
}

var info = policy.Info{Name: "fewest", Version: "2.0.0", Columns: []string{"tasks"}}

func init() { policy.Register(info, &Hasty{}) }

func main() {}
