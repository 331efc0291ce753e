// Command careless is a policy that leaves garbage behind with every request.
package main

import "github.com/paceline-sched/paceline/sdk/policy"

type careless struct{ kept []byte }

func (c *careless) Prepare(*policy.Table, *policy.Request) { c.kept = make([]byte, 1<<15) }

func (c *careless) Cost(_ *policy.Request, h policy.Host) int64 { return int64(c.kept[h.Row()]) }

func init() { policy.Register(policy.Info{Name: "careless"}, &careless{}) }

func main() {}
