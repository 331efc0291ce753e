// Command fewest is a policy of placement: each task goes where the fewest are, so that little is lost with a host.
package main

import "github.com/paceline-sched/paceline/sdk/policy"

// Fewest prices a host by the tasks that it runs.
type Fewest struct{}

// Cost implements policy.Scorer.
func (*Fewest) Cost(_ *policy.Request, h policy.Host) int64 { return h.Tasks() }

var info = policy.Info{Name: "fewest", Version: "1.0.0", Columns: []string{"tasks"}}

func init() { policy.Register(info, &Fewest{}) }

func main() {}
