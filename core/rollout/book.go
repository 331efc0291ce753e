package rollout

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The bounds of a Book.
const (
	// MaxPolicies is how many policies there are at once. One of which nothing is in force makes room for a new one.
	MaxPolicies = 32
	// MaxVersions is how many versions of a policy are kept. One in force never makes room for a new one.
	MaxVersions = 8
	// MaxStory is how many entries of a policy's story are kept.
	MaxStory = 64
	// maxText bounds a reason, such as a guest's last words.
	maxText = 1024
)

// Stage is how far a version has come.
type Stage string

// The stages.
const (
	Uploaded   Stage = "uploaded"    // kept, and never in force
	Shadow     Stage = "shadow"      // asked beside the active one; nothing comes of its answers
	Canary     Stage = "canary"      // decides for a part of the work
	Active     Stage = "active"      // decides
	Retired    Stage = "retired"     // was in force, and made room
	RolledBack Stage = "rolled-back" // was taken out of force
)

var stages = []Stage{Uploaded, Shadow, Canary, Active, Retired, RolledBack}

// Candidate reports whether a version of this stage is being tried.
func (s Stage) Candidate() bool { return s == Shadow || s == Canary }

// Digest is the SHA-256 of a module, alone or with its configuration, or of an archive with a part of it.
type Digest [32]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Short is enough of it for people.
func (d Digest) Short() string { return hex.EncodeToString(d[:6]) }

// MarshalText writes it in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (d *Digest) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(d) {
		return fmt.Errorf("a digest of %d characters", len(text))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

type (
	// Book is all that is known of policies.
	Book struct {
		Policies []Policy          `json:"policies,omitempty"` // by name
		Defaults map[string]string `json:"defaults,omitempty"` // of job kinds: the policy that places where none is chosen
	}

	// Policy is a name under which versions come into force.
	Policy struct {
		Name     string    `json:"name"`
		Kind     string    `json:"kind"`               // place, preempt, quota or route
		Edits    uint64    `json:"edits,omitempty"`    // how many moves there were: it grows with each
		Versions []Version `json:"versions,omitempty"` // oldest first
		Story    []Entry   `json:"story,omitempty"`    // oldest first
	}

	// Version is one module.
	Version struct {
		Digest   Digest            `json:"digest"`           // of the module, or of it and its Config where that has other values than the module's defaults
		Module   Digest            `json:"module,omitzero"`  // of the module, where Digest is another
		Config   map[string]string `json:"config,omitempty"` // values in place of the module's defaults
		Archives []Digest          `json:"archives"`         // the parts of the module, in order
		Size     int               `json:"size"`             // bytes of the module
		Calls    string            `json:"calls"`            // what the module calls itself
		// Signature and SignedBy, the key's id, are of one of those trusted at the time; none where none was wanted.
		Signature []byte `json:"signature,omitempty"`
		SignedBy  string `json:"signed_by,omitempty"`
		PushedBy  string `json:"pushed_by"`
		Pushed    int64  `json:"pushed"` // UTC nanoseconds, as all times
		Stage     Stage  `json:"stage"`
		Since     int64  `json:"since"` // of the stage
		By        string `json:"by"`    // who brought it there; empty: a gate
		Why       string `json:"why,omitempty"`
		Served    int64  `json:"served,omitempty"` // when it became active last
		Scope     Scope  `json:"scope"`
		Gates     Gates  `json:"gates"`
	}

	// Scope is the part of the work that a canary decides for: that of a pool and all below it, or of a share of the classes. The work is that of the policy's name and, as long
	// as none of the policy is active, that which chooses no policy.
	Scope struct {
		Pool    string `json:"pool,omitempty"`
		Percent int    `json:"percent,omitempty"`
	}

	// Entry is one move of a version.
	Entry struct {
		At     int64  `json:"at"`
		Digest Digest `json:"digest"`
		From   Stage  `json:"from,omitempty"`
		To     Stage  `json:"to"`
		By     string `json:"by,omitempty"` // empty: a gate
		Why    string `json:"why,omitempty"`
	}
)

// The names of the built-in policies of placement, which are always there.
const (
	BestFit = "best-fit"
	Pack    = "pack"
	Spread  = "spread"
)

// BuiltIn reports whether a name is that of a built-in policy.
func BuiltIn(name string) bool { return name == BestFit || name == Pack || name == Spread }

// Place is the kind of policies of placement, the only one of which several are in force, and canaries.
const Place = "place"

// The kinds of policies, and of jobs that have a default policy each.
var (
	Kinds    = []string{Place, "preempt", "quota", "route"}
	JobKinds = []string{"batch", "service", "daemon"}
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Find finds a policy; nil: there is none.
func (b *Book) Find(name string) *Policy {
	if at := b.index(name); at < len(b.Policies) && b.Policies[at].Name == name {
		return &b.Policies[at]
	}
	return nil
}

func (b *Book) index(name string) int {
	at, _ := slices.BinarySearchFunc(b.Policies, name, func(p Policy, name string) int {
		return strings.Compare(p.Name, name)
	})
	return at
}

// Default is the policy that places jobs of a kind where none is chosen.
func (b *Book) Default(jobKind string) string {
	if name, ok := b.Defaults[jobKind]; ok {
		return name
	}
	return BestFit
}

// Archives are the digests of all archives that the book speaks of; some may be there twice.
func (b *Book) Archives() [][32]byte {
	var list [][32]byte
	for i := range b.Policies {
		for j := range b.Policies[i].Versions {
			for _, d := range b.Policies[i].Versions[j].Archives {
				list = append(list, d)
			}
		}
	}
	return list
}

// ModuleDigest is the SHA-256 of the version's module.
func (v *Version) ModuleDigest() Digest {
	if v.Module != (Digest{}) {
		return v.Module
	}
	return v.Digest
}

// Version finds a version by its digest; nil: it is not kept.
func (p *Policy) Version(d Digest) *Version {
	for i := range p.Versions {
		if p.Versions[i].Digest == d {
			return &p.Versions[i]
		}
	}
	return nil
}

// Active is the version that decides; nil: none does.
func (p *Policy) Active() *Version { return p.first(func(s Stage) bool { return s == Active }) }

// Candidate is the version that is being tried; nil: none is.
func (p *Policy) Candidate() *Version { return p.first(Stage.Candidate) }

func (p *Policy) first(is func(Stage) bool) *Version {
	for i := range p.Versions {
		if is(p.Versions[i].Stage) {
			return &p.Versions[i]
		}
	}
	return nil
}

// InForce reports whether any of its versions decides or is tried.
func (p *Policy) InForce() bool { return p.Active() != nil || p.Candidate() != nil }

// form is the version of the encoding.
const form = 1

type encoded struct {
	Form int `json:"form"`
	Book
}

// Encode writes a book.
func (b Book) Encode() ([]byte, error) { return json.Marshal(encoded{form, b}) }

// Decode reads what Encode wrote, and checks it. Nothing at all is an empty book.
func Decode(raw []byte) (Book, error) {
	if len(raw) == 0 {
		return Book{}, nil
	}
	var e encoded
	if err := json.Unmarshal(raw, &e); err != nil {
		return Book{}, fmt.Errorf("read what is known of policies: %w", err)
	}
	if e.Form != form {
		return Book{}, fmt.Errorf("what is known of policies has form %d, this build reads form %d: run the version that wrote it", e.Form, form)
	}
	if err := e.check(); err != nil {
		return Book{}, fmt.Errorf("what is known of policies is damaged: %w", err)
	}
	return e.Book, nil
}

// check reports what can be in no book.
func (b *Book) check() error {
	if len(b.Policies) > MaxPolicies {
		return fmt.Errorf("%d policies", len(b.Policies))
	}
	for i := range b.Policies {
		p := &b.Policies[i]
		switch {
		case i > 0 && b.Policies[i-1].Name >= p.Name:
			return errors.New("policies are out of order")
		case !namePattern.MatchString(p.Name) || BuiltIn(p.Name):
			return fmt.Errorf("a policy named %q", p.Name)
		case !slices.Contains(Kinds, p.Kind):
			return fmt.Errorf("policy %s is of kind %q", p.Name, p.Kind)
		case len(p.Versions) > MaxVersions || len(p.Story) > MaxStory:
			return fmt.Errorf("policy %s has %d versions and %d entries", p.Name, len(p.Versions), len(p.Story))
		}
		if err := p.check(); err != nil {
			return fmt.Errorf("policy %s: %w", p.Name, err)
		}
	}
	for kind, name := range b.Defaults {
		if !slices.Contains(JobKinds, kind) || (!BuiltIn(name) && b.Find(name) == nil) {
			return fmt.Errorf("policy %q is the default for %q", name, kind)
		}
	}
	return nil
}

func (p *Policy) check() error {
	active, candidates := 0, 0
	for i := range p.Versions {
		v := &p.Versions[i]
		switch {
		case !slices.Contains(stages, v.Stage):
			return fmt.Errorf("a version at stage %q", v.Stage)
		case len(v.Archives) == 0 || v.Size <= 0:
			return errors.New("a version without a module")
		case p.Version(v.Digest) != v:
			return errors.New("one version twice")
		case !tried(p.Kind, v.Stage):
			return fmt.Errorf("a policy of kind %s is tried", p.Kind)
		case v.Stage == Canary && v.Scope.check() != nil:
			return v.Scope.check()
		}
		if v.Stage == Active {
			active++
		}
		if v.Stage.Candidate() {
			candidates++
		}
	}
	if active > 1 || candidates > 1 {
		return fmt.Errorf("%d versions are active and %d are tried", active, candidates)
	}
	return nil
}

var poolPattern = regexp.MustCompile(`^/([a-z0-9A-Z]([a-z0-9A-Z._-]{0,61}[a-z0-9A-Z])?(/[a-z0-9A-Z]([a-z0-9A-Z._-]{0,61}[a-z0-9A-Z])?){0,7})?$`)

func (s Scope) check() error {
	switch {
	case (s.Pool == "") == (s.Percent == 0):
		return errors.New("a canary decides for a pool or for a percentage of the classes: give one of them")
	case s.Pool != "" && !poolPattern.MatchString(s.Pool):
		return fmt.Errorf("%q is no path of a pool", s.Pool)
	case s.Percent < 0 || s.Percent > 100:
		return fmt.Errorf("%d %% is out of range: give 1 to 100", s.Percent)
	}
	return nil
}

// Holds reports whether a class of work of a pool is in the scope. The same classes are, in every call and every shard; those of a smaller percentage are among
// those of a larger one.
func (s Scope) Holds(pool string, class uint64) bool {
	if s.Pool != "" {
		return s.Pool == "/" || pool == s.Pool || (len(pool) > len(s.Pool) && pool[:len(s.Pool)] == s.Pool && pool[len(s.Pool)] == '/')
	}
	return int(mix(class)%100) < s.Percent
}

// overlaps reports whether both may hold the same class of work.
func (s Scope) overlaps(o Scope) bool {
	return s.Pool == "" || o.Pool == "" || s.Holds(o.Pool, 0) || o.Holds(s.Pool, 0)
}

// mix spreads the bits of x (the finaliser of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (s Scope) String() string {
	if s.Pool != "" {
		return "pool " + s.Pool
	}
	return fmt.Sprintf("%d %% of classes", s.Percent)
}

// Gates are what a version must not do. A field that is 0 takes its default; one below 0 is a gate that stands open.
type Gates struct {
	// Strikes is how many faults within StrikeWindow roll it back. Default 3.
	Strikes int `json:"strikes,omitempty"`
	// SlowCall is how long a call may take, and SlowShare how many of them may take longer, in permille. Default 10 ms and 100.
	SlowCall  time.Duration `json:"slow_call,omitempty"`
	SlowShare int           `json:"slow_share,omitempty"`
	// Unplaced is how many of the tasks that the reference places it may leave, in permille. Default 20.
	Unplaced int `json:"unplaced,omitempty"`
	// Divergence is how many tasks it may place elsewhere than the reference, in permille. Default: all of them.
	Divergence int `json:"divergence,omitempty"`
}

// WithDefaults fills in what is 0.
func (g Gates) WithDefaults() Gates {
	fill := func(n *int, otherwise int) {
		if *n == 0 {
			*n = otherwise
		}
	}
	fill(&g.Strikes, 3)
	fill(&g.SlowShare, 100)
	fill(&g.Unplaced, 20)
	fill(&g.Divergence, -1)
	if g.SlowCall == 0 {
		g.SlowCall = 10 * time.Millisecond
	}
	return g
}
