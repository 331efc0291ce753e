package simrun

import (
	"fmt"

	"github.com/paceline-sched/paceline/core/preemption"
)

// By what right the free tier runs.
const (
	freeShare     = "share"     // by its pool's entitlement: it gives way once it has more than that
	freeRevocable = "revocable" // on slack: it gives way whenever other work finds no host
)

// Who makes room for others.
const (
	victimsDefault       = "default"
	victimsYoungestFirst = "youngest-first" // see preemption.YoungestFirst
	victimsNobody        = "nobody"
)

// readFreeTier turns --free-tier into an option.
func (f *flags) readFreeTier() error {
	switch f.freeTier {
	case freeShare, freeRevocable:
		f.options.FreeRevocable = f.freeTier == freeRevocable
		return nil
	default:
		return fmt.Errorf("--free-tier %q: choose %s or %s", f.freeTier, freeShare, freeRevocable)
	}
}

func (o *Options) freeTier() string {
	if o.FreeRevocable {
		return freeRevocable
	}
	return freeShare
}

// victimPolicy is the choice of victims with a name.
func victimPolicy(name string) (preemption.Policy, error) {
	switch name {
	case victimsDefault:
		return preemption.Policy{}, nil
	case victimsYoungestFirst:
		return preemption.YoungestFirst(), nil
	case victimsNobody:
		return preemption.Policy{Nobody: true}, nil
	default:
		return preemption.Policy{}, fmt.Errorf("victims %q: choose %s, %s or %s", name, victimsDefault, victimsYoungestFirst, victimsNobody)
	}
}
