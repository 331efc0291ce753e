package rollout

import (
	"fmt"
	"maps"
	"slices"

	"github.com/paceline-sched/paceline/core/scheduler"
)

// Event is something that happens to policies.
type Event interface{ event() }

type (
	// Push keeps a version, and makes the policy where it is new. One that is kept already stays as it is.
	Push struct {
		Policy, Kind string
		Version      Version // of it Digest, Module, Config, Archives, Size, Calls, Signature and SignedBy
		Expected     uint64  // Edits of the policy that the event was made against, 0: any; so too below
	}

	// Move brings a version to a stage: Shadow, Canary or Active.
	Move struct {
		Policy   string
		Digest   Digest
		To       Stage
		Scope    Scope // of a canary
		Gates    Gates
		Expected uint64
	}

	// Rollback takes a version out of force: Digest, or without one the one that is tried, or without one the active one. When the active one goes, the one before it is
	// active again, unless it was rolled back itself.
	Rollback struct {
		Policy   string
		Digest   Digest
		Why      string
		Expected uint64
	}

	// Retire takes all versions of a policy out of force, and the policy from being a default.
	Retire struct {
		Policy   string
		Expected uint64
	}

	// SetDefault chooses who places jobs of a kind that choose nothing themselves.
	SetDefault struct{ JobKind, Policy string }

	// Observe shows what a version did, and rolls it back when that breaks a gate.
	Observe struct {
		Policy string
		Digest Digest
		Tally  Tally
	}
)

func (Push) event()       {}
func (Move) event()       {}
func (Rollback) event()   {}
func (Retire) event()     {}
func (SetDefault) event() {}
func (Observe) event()    {}

// Upload is a module that somebody brings.
type Upload struct {
	Policy            string
	Kind              string // "": the first that the module names
	Module, Signature []byte
	Config            map[string]string // values in place of the module's defaults
	Expected          uint64            // as of events
}

// Moved is what became of a version.
type Moved struct {
	Policy string
	Entry
}

func refuse(kind scheduler.ErrorKind, field, hint, format string, args ...any) error {
	return &scheduler.Error{Kind: kind, Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Step takes in one event, which by brought at a time. A refusal is a *scheduler.Error and changes nothing. An event that changes nothing returns the book as it was and no moves.
func Step(b Book, now int64, by string, e Event) (Book, []Moved, error) {
	s := step{book: Book{Policies: slices.Clone(b.Policies), Defaults: maps.Clone(b.Defaults)}, now: now, by: by}
	if err := s.take(e); err != nil {
		return b, nil, err
	}
	return s.book, s.moves, nil
}

type step struct {
	book  Book
	now   int64
	by    string
	moves []Moved
}

func (s *step) take(e Event) error {
	switch e := e.(type) {
	case Push:
		return s.push(&e)
	case Move:
		return s.move(&e)
	case Rollback:
		return s.rollback(&e)
	case Retire:
		return s.retire(&e)
	case SetDefault:
		return s.setDefault(e)
	case Observe:
		return s.observe(&e)
	}
	return refuse(scheduler.InvalidArgument, "", "", "the event is unknown")
}

// policy finds a policy to be changed: its versions are the step's own then.
func (s *step) policy(name string) (*Policy, error) {
	p := s.book.Find(name)
	switch {
	case BuiltIn(name):
		return nil, refuse(scheduler.InvalidArgument, "name", "give your policy another name", "%s is built in, and cannot be changed", name)
	case p == nil:
		return nil, refuse(scheduler.NotFound, "name", "list the policies and choose one", "there is no policy %q", clip(name))
	}
	p.Versions, p.Story = slices.Clone(p.Versions), slices.Clone(p.Story)
	return p, nil
}

// expect refuses an event that was made against another state of a policy.
func expect(p *Policy, edits uint64) error {
	if edits == 0 || edits == p.Edits {
		return nil
	}
	return refuse(scheduler.Aborted, "expected_version", "read the policy again and decide anew", "policy %s is at version %d, not %d", p.Name, p.Edits, edits)
}

// to brings a version to a stage and tells it.
func (s *step) to(p *Policy, v *Version, stage Stage, why string) {
	entry := Entry{At: s.now, Digest: v.Digest, From: v.Stage, To: stage, By: s.by, Why: clip(why)}
	v.Stage, v.Since, v.By, v.Why = stage, s.now, s.by, entry.Why
	if stage == Active {
		v.Served = s.now
	}
	if stage != Canary {
		v.Scope = Scope{}
	}
	s.tell(p, entry)
}

func (s *step) tell(p *Policy, entry Entry) {
	p.Story = append(p.Story, entry)
	if over := len(p.Story) - MaxStory; over > 0 {
		p.Story = slices.Delete(p.Story, 0, over)
	}
	p.Edits++
	s.moves = append(s.moves, Moved{p.Name, entry})
}

func (s *step) push(e *Push) error {
	switch {
	case BuiltIn(e.Policy):
		return refuse(scheduler.InvalidArgument, "name", "give your policy another name", "%s is built in, and cannot be changed", e.Policy)
	case !namePattern.MatchString(e.Policy):
		return refuse(scheduler.InvalidArgument, "name", "use lower-case letters, digits and dashes, 63 at most", "%q is no name for a policy", clip(e.Policy))
	case !slices.Contains(Kinds, e.Kind):
		return refuse(scheduler.InvalidArgument, "kind", "use place, preempt, quota or route", "%q is no kind of policies", clip(e.Kind))
	}
	if s.book.Find(e.Policy) == nil {
		if err := s.makeRoom(); err != nil {
			return err
		}
		s.book.Policies = slices.Insert(s.book.Policies, s.book.index(e.Policy), Policy{Name: e.Policy, Kind: e.Kind})
	}
	p, err := s.policy(e.Policy)
	switch {
	case err != nil:
		return err
	case p.Kind != e.Kind:
		return refuse(scheduler.FailedPrecondition, "kind", "push it under another name", "policy %s is of kind %s, not %s", p.Name, p.Kind, e.Kind)
	}
	if err := expect(p, e.Expected); err != nil {
		return err
	}
	if p.Version(e.Version.Digest) != nil {
		return nil
	}
	if len(p.Versions) >= MaxVersions { // of which two are in force at most
		at := slices.IndexFunc(p.Versions, func(v Version) bool { return v.Stage != Active && !v.Stage.Candidate() })
		p.Versions = slices.Delete(p.Versions, at, at+1)
	}
	v := e.Version
	v.PushedBy, v.Pushed, v.Stage, v.Since, v.By = s.by, s.now, Uploaded, s.now, s.by
	v.Why, v.Served, v.Scope, v.Gates = "", 0, Scope{}, Gates{}
	p.Versions = append(p.Versions, v)
	s.tell(p, Entry{At: s.now, Digest: v.Digest, To: Uploaded, By: s.by})
	return nil
}

// makeRoom drops the policy of which nothing has been in force for the longest time, when there are too many, and which is nobody's default.
func (s *step) makeRoom() error {
	if len(s.book.Policies) < MaxPolicies {
		return nil
	}
	oldest, since := -1, int64(0)
	for i := range s.book.Policies {
		p := &s.book.Policies[i]
		if p.InForce() || s.isDefault(p.Name) {
			continue
		}
		last := int64(0)
		for _, v := range p.Versions {
			last = max(last, v.Since)
		}
		if oldest < 0 || last < since {
			oldest, since = i, last
		}
	}
	if oldest < 0 {
		return refuse(scheduler.ResourceExhausted, "name", "retire a policy that is no longer needed", "there are %d policies in force, and no more are kept", MaxPolicies)
	}
	s.book.Policies = slices.Delete(s.book.Policies, oldest, oldest+1)
	return nil
}

func (s *step) isDefault(name string) bool {
	for _, chosen := range s.book.Defaults {
		if chosen == name {
			return true
		}
	}
	return false
}

func (s *step) move(e *Move) error {
	p, err := s.policy(e.Policy)
	if err == nil {
		err = expect(p, e.Expected)
	}
	if err != nil {
		return err
	}
	v := p.Version(e.Digest)
	switch {
	case v == nil:
		return refuse(scheduler.NotFound, "digest", "see its versions with policy get", "policy %s has no such version", p.Name)
	case e.To != Active && !e.To.Candidate():
		return refuse(scheduler.InvalidArgument, "stage", "use shadow, canary or active", "a version is not brought to stage %q", e.To)
	case !tried(p.Kind, e.To):
		return refuse(scheduler.InvalidArgument, "stage", "activate it; the gates watch it", "policies of kind %s are not tried in %s", p.Kind, e.To)
	}
	if e.To == Canary {
		if err := e.Scope.check(); err != nil {
			return refuse(scheduler.InvalidArgument, "scope", "", "%v", err)
		}
		if other := s.rival(p, v, e.Scope); other != nil {
			return refuse(scheduler.FailedPrecondition, "scope", "wait until that is decided, or try each on pools of its own",
				"policy %s is new, so that it is tried on work that chooses no policy; of that policy %s has a part already: %s", p.Name, other.Name, other.Candidate().Scope)
		}
	}
	for i := range p.Versions {
		other := &p.Versions[i]
		if other != v && (other.Stage.Candidate() || (e.To == Active && other.Stage == Active)) {
			s.to(p, other, Retired, "version "+e.Digest.Short()+" took its place")
		}
	}
	if e.To == Active && p.Kind != Place {
		s.supersede(p)
	}
	v.Scope, v.Gates = e.Scope, e.Gates
	s.to(p, v, e.To, "")
	return nil
}

// tried reports whether versions of a kind come to a stage. Of quota and preemption the cell has one answer, so that there is no part of it for a canary to decide; of routes nobody asks yet.
func tried(kind string, s Stage) bool {
	switch s {
	case Shadow:
		return kind != "route"
	case Canary:
		return kind == Place
	default:
		return true
	}
}

// rival is another policy whose canary would decide for the same work. One of which nothing is active is tried on work that chooses no policy.
func (s *step) rival(p *Policy, v *Version, scope Scope) *Policy {
	if a := p.Active(); a != nil && a != v {
		return nil
	}
	for i := range s.book.Policies {
		other := &s.book.Policies[i]
		if c := other.Candidate(); other.Name != p.Name && other.Active() == nil && c != nil && c.Stage == Canary && scope.overlaps(c.Scope) {
			return other
		}
	}
	return nil
}

// supersede retires other policies of a kind of which the cell has one.
func (s *step) supersede(p *Policy) {
	for i := range s.book.Policies {
		name := s.book.Policies[i].Name
		if name == p.Name || s.book.Policies[i].Kind != p.Kind || s.book.Policies[i].Active() == nil {
			continue
		}
		other, err := s.policy(name)
		if err == nil {
			s.to(other, other.Active(), Retired, "policy "+p.Name+" took its place")
		}
	}
}

func (s *step) rollback(e *Rollback) error {
	p, err := s.policy(e.Policy)
	if err == nil {
		err = expect(p, e.Expected)
	}
	if err != nil {
		return err
	}
	v := p.Candidate()
	if v == nil {
		v = p.Active()
	}
	if e.Digest != (Digest{}) {
		v = p.Version(e.Digest)
	}
	if v == nil || (v.Stage != Active && !v.Stage.Candidate()) {
		return refuse(scheduler.FailedPrecondition, "name", "see what became of its versions with policy get", "no such version of policy %s is in force", p.Name)
	}
	s.back(p, v, e.Why)
	return nil
}

func (s *step) back(p *Policy, v *Version, why string) {
	was := v.Stage
	s.to(p, v, RolledBack, why)
	if was != Active {
		return
	}
	var before *Version
	for i := range p.Versions {
		if o := &p.Versions[i]; o.Stage == Retired && o.Served > 0 && (before == nil || o.Served > before.Served) {
			before = o
		}
	}
	if before != nil {
		s.to(p, before, Active, "version "+v.Digest.Short()+" was rolled back")
	}
}

func (s *step) retire(e *Retire) error {
	p, err := s.policy(e.Policy)
	if err == nil {
		err = expect(p, e.Expected)
	}
	if err != nil {
		return err
	}
	for i := range p.Versions {
		if v := &p.Versions[i]; v.Stage == Active || v.Stage.Candidate() {
			s.to(p, v, Retired, "the policy was retired")
		}
	}
	if len(s.moves) > 0 { // else nothing was in force, and there is none that a rollback would bring back
		for i := range p.Versions {
			p.Versions[i].Served = 0
		}
	}
	maps.DeleteFunc(s.book.Defaults, func(_, chosen string) bool { return chosen == e.Policy })
	return nil
}

func (s *step) setDefault(e SetDefault) error {
	if !slices.Contains(JobKinds, e.JobKind) {
		return refuse(scheduler.InvalidArgument, "job_kind", "use batch, service or daemon", "%q is no kind of jobs", clip(e.JobKind))
	}
	if !BuiltIn(e.Policy) {
		switch p := s.book.Find(e.Policy); {
		case p == nil:
			return refuse(scheduler.NotFound, "name", "list the policies and choose one", "there is no policy %q", clip(e.Policy))
		case p.Kind != Place:
			return refuse(scheduler.FailedPrecondition, "name", "choose one of kind place", "policy %s is of kind %s, and places nothing", p.Name, p.Kind)
		case p.Active() == nil:
			return refuse(scheduler.FailedPrecondition, "name", "activate a version of it first", "policy %s places nothing: none of its versions is active", p.Name)
		}
	}
	if s.book.Defaults == nil {
		s.book.Defaults = map[string]string{}
	}
	s.book.Defaults[e.JobKind] = e.Policy
	return nil
}

func (s *step) observe(e *Observe) error {
	p := s.book.Find(e.Policy)
	if p == nil {
		return nil // gone meanwhile
	}
	v := p.Version(e.Digest)
	if v == nil || (v.Stage != Active && !v.Stage.Candidate()) {
		return nil
	}
	why := v.Gates.Broken(s.now, &e.Tally)
	if why == "" {
		return nil
	}
	s.by = ""
	p, err := s.policy(e.Policy)
	if err != nil {
		return err
	}
	s.back(p, p.Version(e.Digest), why)
	return nil
}
