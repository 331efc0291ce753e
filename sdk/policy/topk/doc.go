// Package topk lets the scheduler scan for a policy whose cost is a column (policy.ByColumn), at the speed of native code. Import it for its effect:
//
//	import _ "github.com/paceline-sched/paceline/sdk/policy/topk"
//
// The module then names the feature scan_topk. Outside of a module it does nothing.
package topk
