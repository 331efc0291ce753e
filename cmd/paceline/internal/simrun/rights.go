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
	victimsYoungestFirst = "youngest-first"
)

// readRights turns the flags --free-tier and --victims into options.
func (f *flags) readRights() error {
	switch f.freeTier {
	case freeShare, freeRevocable:
		f.options.FreeRevocable = f.freeTier == freeRevocable
	default:
		return fmt.Errorf("--free-tier %q: choose %s or %s", f.freeTier, freeShare, freeRevocable)
	}
	switch f.victims {
	case victimsDefault, victimsYoungestFirst:
		f.options.YoungestFirst = f.victims == victimsYoungestFirst
	default:
		return fmt.Errorf("--victims %q: choose %s or %s", f.victims, victimsDefault, victimsYoungestFirst)
	}
	return nil
}

func (o *Options) freeTier() string {
	if o.FreeRevocable {
		return freeRevocable
	}
	return freeShare
}

func (o *Options) victims() string {
	if o.YoungestFirst {
		return victimsYoungestFirst
	}
	return victimsDefault
}

func victimPolicy(youngestFirst bool) preemption.Policy {
	if youngestFirst {
		return preemption.YoungestFirst()
	}
	return preemption.Policy{}
}
