package wasm

import (
	"fmt"
	"path"
	"strings"
	"sync/atomic"
)

// FaultKind says what a policy did wrong.
type FaultKind uint8

// The kinds of faults, in the order in which they are found.
const (
	FaultModule  FaultKind = iota // not a module that can be a policy
	FaultCompile                  // does not compile, or not in time
	FaultStart                    // did not come up: instantiating, initialising, arena, configuration
	FaultTrap                     // trapped
	FaultFuel                     // ran out of fuel
	FaultTime                     // was stopped by the clock, which fuel should have done before
	FaultResult                   // returned what cannot be: too many results, a number that is none
	FaultRow                      // named a host that cannot take the task, a rank or an entitlement that cannot be
	FaultStatus                   // refused the call
	numFaults
)

var faultNames = [numFaults]string{"module", "compile", "start", "trap", "fuel", "time", "result", "row", "status"}

func (k FaultKind) String() string {
	if k >= numFaults {
		return "unknown"
	}
	return faultNames[k]
}

// Fault is what a policy did wrong. Whatever its kind, nothing of what the policy returned was done.
type Fault struct {
	Kind   FaultKind
	Policy string // its name, "" where it did not get as far as telling
	Digest Digest
	Doing  string // the call or step
	Err    error
	Stderr string // the last that the policy wrote there, or the beginning of its crash
}

func (f *Fault) Error() string {
	s := fmt.Sprintf("policy %s (%s): %s: %s: %v", f.Policy, f.Digest.Short(), f.Doing, f.Kind, f.Err)
	if f.Stderr != "" {
		s += "; it wrote: " + lastWords(f.Stderr)
	}
	return s
}

// lastWords is what a policy wrote or, of a crash of the Go runtime, what it died of and the first place in package main: the trace is in Fault.Stderr.
func lastWords(text string) string {
	if !crashes(text) {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines[:len(lines)-1] {
		if strings.HasPrefix(line, "main.") {
			place, _, _ := strings.Cut(strings.TrimSpace(lines[i+1]), " ")
			return lines[0] + " (" + path.Base(place) + ")"
		}
	}
	return lines[0]
}

func (f *Fault) Unwrap() error { return f.Err }

// Counters count what the instances of one version did. They may be read at any time.
type Counters struct {
	Calls     atomic.Uint64
	Requests  atomic.Uint64
	Tasks     atomic.Uint64 // placed
	Conflicts atomic.Uint64 // results that no longer fitted because of earlier ones of the same call
	Fallbacks atomic.Uint64 // requests answered by the fallback after a fault
	Native    atomic.Uint64 // requests that are the native placer's: gangs that look for a domain
	Fuel      atomic.Uint64
	Nanos     atomic.Uint64 // in calls
	Instances atomic.Uint64 // made
	Starting  atomic.Uint64 // nanoseconds that bringing these up took
	Compiling atomic.Uint64 // nanoseconds that compiling took, or reading what was compiled before
	LogLines  atomic.Uint64 // also those dropped
	faults    [numFaults]atomic.Uint64
}

// Faults returns how many faults of a kind there were.
func (c *Counters) Faults(k FaultKind) uint64 {
	if k >= numFaults {
		return 0
	}
	return c.faults[k].Load()
}

func (c *Counters) fault(k FaultKind) { c.faults[k].Add(1) }
