// Package builtin has the scheduler's own policies, written against sdk/policy as anybody's: each runs natively, see policies/wasm.LoadNative, and the
// commands below guests make modules of them that answer alike.
//
// It decides and nothing else: it has no state beside what a policy keeps for its own instance. Programs are immutable and may be shared.
package builtin

import (
	"github.com/paceline-sched/paceline/sdk/policy"
)

// version is that of all policies here.
const version = "1.0.0"

// program makes a program of a policy that is right as it stands in the source.
func program(info policy.Info, p any) *policy.Program {
	info.Version = version
	made, err := policy.New(info, p)
	if err != nil {
		panic("builtin: " + err.Error())
	}
	return made
}

// All lists the policies, by name in the order of the alphabet.
func All() []*policy.Program {
	return []*policy.Program{
		Bands(), BestFit(), DRF(), FGD(), GangCost(), LeastResidue(), LeastWorkLost(), LoadAware(), MaxMin(), Pack(), Spread(), Static(),
	}
}
