// Package policy is what a policy is written against: a small Go type that says what hosts cost, whose work goes first, what pools are
// entitled to or which cluster a job goes to.
//
//	type Tight struct {
//		Reserve int64 `policy:"reserve"` // thousandths of a core to leave free
//	}
//
//	func (p *Tight) Cost(r *policy.Request, h policy.Host) int64 {
//		if h.Free(policy.CPU)-r.Need(policy.CPU) < p.Reserve {
//			return policy.Span
//		}
//		return h.FreeShare()
//	}
//
//	func init() {
//		policy.Register(policy.Info{Name: "tight", Version: "1.0.0", Columns: []string{"free_share"}}, &Tight{Reserve: 500})
//	}
//
//	func main() {}
//
// Built with GOOS=wasip1 GOARCH=wasm and -buildmode=c-shared it is a module for the scheduler's sandbox; under go test it is a plain
// Go type, and policytest gives it tables and requests. The scheduler's own policies are written the same way.
//
// # What a policy implements
//
// For placement one of ByColumn, Scorer, BlockScorer, Filter and Placer; beside the first four a Filter, a Preparer and a DeviceChooser, where it wants to. For
// preemption Ranker, for quota Quota, for routing Router. One type may do several. Those that want to check their configuration are Starters.
//
// The package does the rest: it looks at each host once for a request, keeps the cheapest, places all tasks of the request on them one by one,
// prices a host anew after each task that it takes, chooses devices, and keeps account of what the call took, so that the answer is the one that placing
// task by task would give.
//
// # Configuration
//
// Fields of the registered struct with a `policy:"key"` tag are its configuration: bool, int, int64, float64 or string. What they hold when the policy is registered are the
// defaults. Each instance of a policy works on a copy of the registered struct, so maps, slices and pointers in it are for Start to make.
//
// # Rules
//
// A policy has no clock, no randomness and no I/O but what Table, Seed and Log give. It must answer the same for the same input, on every machine: float arithmetic on
// products needs explicit conversions, float64(a*b) + c, or compilers for some machines fuse the two. It should not allocate in a call. What it remembers from call to call it must be able to find out anew.
//
// # Concurrency
//
// An Instance, and everything that it hands to a policy, belongs to one goroutine at a time. Programs are immutable.
package policy
