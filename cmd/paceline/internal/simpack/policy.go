package simpack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/native"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// moduleExt is how the name of a file ends that is a policy.
const moduleExt = ".wasm"

// strategies are the policies that placement has by itself.
var strategies = []workload.Strategy{workload.StrategyBestFit, workload.StrategyPack, workload.StrategySpread}

// Policy is what chooses the hosts of a run: a strategy of placement itself, a built-in policy that runs natively, or a module.
type Policy struct {
	// Name is what the report calls it.
	Name string
	// Digest is that of a module.
	Digest string

	strategy workload.Strategy
	version  *wasm.Version // nil: the strategy alone
}

// Policies lists the names that OpenPolicy knows, in the order of the alphabet.
func Policies() []string {
	names := slices.DeleteFunc(native.Names(), func(name string) bool {
		return !slices.Contains(native.Find(name).Capability().Kinds, policyabi.Place)
	})
	for _, s := range strategies {
		if !slices.Contains(names, string(s)) {
			names = append(names, string(s))
		}
	}
	slices.Sort(names)
	return names
}

// checkPolicy reports whether a name can be one of a policy, without opening it.
func checkPolicy(name string) error {
	if filepath.Ext(name) != moduleExt && !slices.Contains(Policies(), name) {
		return fmt.Errorf("policy %q is unknown: choose from %s, or name a module, a file ending in %s", name, strings.Join(Policies(), ", "), moduleExt)
	}
	return nil
}

// OpenPolicy makes a policy ready: one of Policies, or a module's file. What placement can do by itself it does, because the policy of the same name answers alike. Close it.
func OpenPolicy(ctx context.Context, name string) (*Policy, error) {
	if err := checkPolicy(name); err != nil {
		return nil, err
	}
	if filepath.Ext(name) == moduleExt {
		return openModule(ctx, name)
	}
	p := &Policy{Name: name, strategy: workload.Strategy(name)}
	if slices.Contains(strategies, p.strategy) {
		return p, nil
	}
	var err error
	p.strategy = workload.StrategyBestFit // the fallback's, which a run never asks
	p.version, err = native.Load(name, wasm.Config{})
	return p, err
}

func openModule(ctx context.Context, path string) (*Policy, error) {
	binary, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	module, err := wasm.Check(binary, wasm.Limits{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	p := &Policy{Name: filepath.Base(path), Digest: module.Digest.String(), strategy: workload.StrategyBestFit}
	if p.version, err = wasm.Load(ctx, module, wasm.Config{}); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// Close lets go of what OpenPolicy took.
func (p *Policy) Close() {
	if p.version != nil {
		p.version.Release()
	}
}

// placer is a policy at work in one repetition, from a fresh instance.
type placer struct {
	placement.Placer
	guest *wasm.Placer // nil: none
	fault *wasm.Fault  // the first
}

func (p *Policy) placer(expected []placement.Share) *placer {
	if p.version == nil {
		return &placer{Placer: placement.NewNative()}
	}
	made := &placer{}
	slot := &wasm.Slot{}
	slot.Swap(p.version)
	made.guest = wasm.NewPlacer(wasm.PlacerConfig{Slot: slot, Expected: expected, OnFault: func(f *wasm.Fault) {
		if made.fault == nil {
			made.fault = f
		}
	}})
	made.Placer = made.guest
	return made
}

func (p *placer) close() {
	if p.guest != nil {
		p.guest.Close()
	}
}

// covered is how much of the trace, in percent of its tasks, the expected work holds: the heaviest shapes, as in the paper. The rest is rare work that nobody can foresee.
const covered = 95

// expected is the class mix of the trace.
func (w *trace) expected() []placement.Share {
	shapes := slices.Clone(w.shapes)
	slices.SortStableFunc(shapes, func(a, b shape) int { return int(b.weight - a.weight) })
	var mix []placement.Share
	sum := int64(0)
	for i := range shapes {
		if 100*sum >= covered*int64(len(w.order)) {
			break
		}
		sum += shapes[i].weight
		mix = append(mix, placement.Share{Class: shapes[i].class, Weight: float64(shapes[i].weight)})
	}
	return mix
}
