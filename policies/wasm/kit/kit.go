package kit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Options are how a policy is judged. The zero value is ready for use.
type Options struct {
	// Seed draws the tables and batches. Default 1.
	Seed uint64
	// Rounds is how many tables of each scene are tried. Default 6.
	Rounds int
	// Calls is how many calls an instance's memory is watched for, at least. Default 8,000.
	Calls int
	// Scenes are the names of those that are played. Default: all.
	Scenes []string
	// Config is how the module is loaded, its limits and values among it.
	Config wasm.Config
}

const (
	defaultRounds = 6
	defaultCalls  = 8000
)

func (o Options) orDefault() Options {
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Rounds <= 0 {
		o.Rounds = defaultRounds
	}
	if o.Calls <= 0 {
		o.Calls = defaultCalls
	}
	return o
}

// Outcome is what became of a check.
type Outcome uint8

// The outcomes. A policy with a warning may be used.
const (
	Passed Outcome = iota
	Warned
	Failed
	Skipped
)

func (o Outcome) String() string {
	return [...]string{"pass", "warn", "fail", "skip"}[min(o, Skipped)]
}

// Check is one thing that was looked at.
type Check struct {
	Name    string
	Outcome Outcome
	Detail  string // what was seen; of a failure, what is wrong
}

// Report is what the kit found, in the order in which it looked.
type Report struct {
	Policy  string // its name, "" where the module does not tell
	Version string
	Digest  wasm.Digest
	Checks  []Check
}

// Err is nil when nothing failed, and tells what did otherwise.
func (r *Report) Err() error {
	var failed []string
	for i := range r.Checks {
		if c := &r.Checks[i]; c.Outcome == Failed {
			failed = append(failed, c.Name+": "+c.Detail)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("policy %s (%s): %d of %d checks failed: %s", r.Policy, r.Digest.Short(), len(failed), len(r.Checks), strings.Join(failed, "; "))
}

func (r *Report) add(name string, outcome Outcome, format string, args ...any) {
	r.Checks = append(r.Checks, Check{name, outcome, fmt.Sprintf(format, args...)})
}

// Run judges a module. The error is the context's; what is wrong with the module is in the report.
func Run(ctx context.Context, module []byte, o Options) (Report, error) {
	o = o.orDefault()
	var r Report
	m, err := wasm.Check(module, o.Config.Limits)
	if err != nil {
		r.add("module", Failed, "%v", err)
		return r, ctx.Err()
	}
	r.add("module", Passed, "%d bytes, %d functions, %s", m.Facts.Bytes, m.Facts.Functions, kinds(m))
	v, err := wasm.Load(ctx, m, o.Config)
	if err != nil {
		r.name(m)
		r.add("load", Failed, "%v", err)
		return r, ctx.Err()
	}
	defer v.Release()
	r.add("load", Passed, "compiled, brought up, configured and tried on a table of its own")
	return r, Try(ctx, &r, v, o)
}

func kinds(m *wasm.Module) string {
	var names []string
	for _, k := range m.Capability.Kinds {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}

func (r *Report) name(m *wasm.Module) {
	r.Policy, r.Version, r.Digest = m.Capability.Name, m.Capability.Version, m.Digest
}

// Try judges a version that is loaded, and adds what it finds to the report.
func Try(ctx context.Context, r *Report, v *wasm.Version, o Options) error {
	o = o.orDefault()
	r.name(v.Module())
	for i := range questions {
		if err := ctx.Err(); err != nil {
			return err
		}
		if q := &questions[i]; slices.Contains(v.Module().Capability.Kinds, q.kind) {
			r.question(v, q, o)
		}
	}
	if !slices.Contains(v.Module().Capability.Kinds, policyabi.Place) {
		return ctx.Err()
	}
	j := judge{version: v, options: o, report: r}
	for i := range scenes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(o.Scenes) == 0 || slices.Contains(o.Scenes, scenes[i].name) {
			j.scene(&scenes[i])
		}
	}
	j.conclude()
	if ctx.Err() == nil {
		j.memory()
	}
	return ctx.Err()
}
