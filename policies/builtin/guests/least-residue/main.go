// Command least-residue is the built-in policy of that name as a module.
package main

import (
	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
)

func init() { policy.Serve(builtin.LeastResidue()) }

func main() {}
