package placement

import (
	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/resource"
)

// Reason is why a host cannot take a task. A host is counted under the first that applies, in this order.
type Reason uint8

// The reasons, in order of precedence.
const (
	ReasonNotReady Reason = iota
	ReasonDraining
	ReasonHostPool
	ReasonConstraint
	ReasonCPU
	ReasonMemory
	ReasonDisk
	ReasonGPU       // not enough free devices or share
	ReasonGPUModel  // no device of an allowed model
	ReasonNamed     // an extended resource
	ReasonPorts     // a fixed port is taken or the range is used up
	ReasonAffinity  // a required affinity finds no match, or an anti-affinity does
	ReasonSpread    // max_skew
	ReasonExclusive // other work is there, or exclusive work
	ReasonGang      // each member fits somewhere, the whole gang does not
	NumReasons
)

var reasonNames = [NumReasons]string{
	"not_ready", "draining", "host_pool", "constraint", "cpu", "memory", "disk", "gpu", "gpu_model", "named_resource", "ports",
	"affinity", "spread", "exclusive", "gang",
}

func (r Reason) String() string {
	if r >= NumReasons {
		return "unknown"
	}
	return reasonNames[r]
}

// Reasons counts hosts by the reason for which they refused a class. The counts of a refusal sum to Hosts.
type Reasons struct {
	Hosts  int // hosts looked at
	Counts [NumReasons]int
	// NeverFits says that no host would take the task even if it were empty; so too where there are no hosts.
	NeverFits bool
	// GangLargest is, for a refused gang, how many of the GangSize members asked for would have found room; where it has to stay within one
	// domain, in that of the value GangDomain. Without GangSize it is the domain in which tasks have to join their gang.
	GangLargest int
	GangSize    int
	GangDomain  string
}

// verdict is what judging one host for one task found: a Reason, or one of the two values below, and whether the host would do if
// it were empty.
type verdict uint8

const (
	verdictFits   verdict = 0x7f
	verdictAbsent verdict = 0x7e // no host stands at the row
	verdictEver   verdict = 0x80 // flag
)

func (v verdict) feasible() bool { return v&^verdictEver == verdictFits }
func (v verdict) everFits() bool { return v&verdictEver != 0 }
func (v verdict) reason() Reason { return Reason(v &^ verdictEver) }

// judge finds the first reason for which the host at row refuses a task. search.measure must be up to date.
func (s *search) judge(row host.Row) verdict {
	if !s.table.Has(row) {
		return verdictAbsent
	}
	var ever verdict
	if s.everFits(row) {
		ever = verdictEver
	}
	if reason, refused := s.refusedBySelf(row); refused {
		return verdict(reason) | ever
	}
	if reason, refused := s.refusedByNeeds(row); refused {
		return verdict(reason) | ever
	}
	if reason, refused := s.refusedByOthers(row); refused {
		return verdict(reason) | ever
	}
	return verdictFits | ever
}

// refusedBySelf looks at what the host is.
func (s *search) refusedBySelf(row host.Row) (Reason, bool) {
	switch {
	case !s.table.Host(row).Ready:
		return ReasonNotReady, true
	case s.table.Draining(row):
		return ReasonDraining, true
	case !s.class.inPool(s.table, row):
		return ReasonHostPool, true
	case !s.know.eligible.Has(row) && !s.class.meetsConstraints(s.table, row):
		return ReasonConstraint, true
	}
	return 0, false
}

// refusedByNeeds looks at what is free.
func (s *search) refusedByNeeds(row host.Row) (Reason, bool) {
	free := s.table.Free(row)
	for k, reason := range [...]Reason{resource.CPU: ReasonCPU, resource.Memory: ReasonMemory, resource.Disk: ReasonDisk} {
		if need := s.class.Needs[k]; need > 0 && free[k] < need {
			return reason, true
		}
	}
	if reason, refused := s.refusedByDevices(row, free[resource.GPU]); refused {
		return reason, true
	}
	for k := resource.FirstNamed; k < resource.MaxKinds; k++ {
		if need := s.class.Needs[k]; need > 0 && free[k] < need {
			return ReasonNamed, true
		}
	}
	if s.ports && !s.table.PortsFit(row, s.class.Ports) {
		return ReasonPorts, true
	}
	return 0, false
}

// refusedByOthers looks at what else is there and around.
func (s *search) refusedByOthers(row host.Row) (Reason, bool) {
	for i := range s.terms { // affinities stand before spreads
		if x := &s.terms[i]; !x.allows(x.counter.Domain(row)) {
			if x.spread {
				return ReasonSpread, true
			}
			return ReasonAffinity, true
		}
	}
	if s.class.Placement.Exclusive && !s.table.OnlyJob(row, s.class.Job) || s.closed != nil && s.closed.Has(row) {
		return ReasonExclusive, true
	}
	return 0, false
}

// everFits reports whether the host would take a task if nothing were on it and it were ready.
func (s *search) everFits(row host.Row) bool {
	if !s.know.eligible.Has(row) {
		return false
	}
	h := s.table.Host(row)
	return s.class.Needs.FitsIn(&h.Capacity) && s.devicesEverFit(row) && s.table.PortsOffered(row, s.class.Ports)
}

// refusal is why a class was refused, host by host, so that it can be brought up to date by the hosts that changed.
type refusal struct {
	verdicts []verdict // by row
	seen     host.Position
	revision uint64
	hosts    int
	counts   [NumReasons]int
	feasible int
	ever     int // hosts that would do if they were empty
}

func (f *refusal) reasons() Reasons {
	return Reasons{Hosts: f.hosts, Counts: f.counts, NeverFits: f.ever == 0}
}

func (f *refusal) count(v verdict, n int) {
	if v == verdictAbsent {
		return
	}
	f.hosts += n
	if v.everFits() {
		f.ever += n
	}
	if v.feasible() {
		f.feasible += n
	} else {
		f.counts[v.reason()] += n
	}
}

// refusedAgain reports whether the class was refused before and no host has room for it yet. search.know.refusal is up to date then.
func (s *search) refusedAgain() bool {
	return s.know.refusal != nil && s.updateRefusal() && s.know.refusal.feasible == 0
}

// updateRefusal judges changed hosts again. Where hosts bear on one another (see byHost) a change may matter to any, so nothing but an
// unchanged table will do. It reports false when the refusal is of no use.
func (s *search) updateRefusal() bool {
	f := s.know.refusal
	if f == nil {
		return false
	}
	if f.revision == s.table.Revision() {
		return true
	}
	for len(f.verdicts) < s.table.Rows() {
		f.verdicts = append(f.verdicts, verdictAbsent)
	}
	ok := s.byHost() && s.table.Changed(f.seen, func(row host.Row) {
		v := s.judge(row)
		if v != f.verdicts[row] {
			f.count(f.verdicts[row], -1)
			f.count(v, 1)
			f.verdicts[row] = v
		}
	})
	if !ok {
		s.know.refusal = nil
		return false
	}
	f.seen, f.revision = s.table.Now(), s.table.Revision()
	return true
}

// explain judges every host, or those that changed since the class was explained last.
func (s *search) explain() Reasons {
	if !s.updateRefusal() {
		s.measure()
		f := &refusal{verdicts: make([]verdict, s.table.Rows()), seen: s.table.Now(), revision: s.table.Revision()}
		for row := range f.verdicts {
			f.verdicts[row] = s.judge(host.Row(row))
			f.count(f.verdicts[row], 1)
		}
		s.know.refusal = f
	}
	return s.know.refusal.reasons()
}
