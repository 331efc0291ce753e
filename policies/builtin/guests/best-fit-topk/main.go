// Command best-fit-topk is best-fit as a module that lets the scheduler scan.
package main

import (
	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/sdk/policy"
	_ "github.com/paceline-sched/paceline/sdk/policy/topk"
)

func init() { policy.Serve(builtin.BestFit()) }

func main() {}
