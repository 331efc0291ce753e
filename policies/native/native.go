// Package native runs the built-in policies without a sandbox, as parts of this program.
//
// It finds them by name. What runs them, and the concurrency of that, is policies/wasm's; see wasm.LoadNative.
package native

import (
	"fmt"
	"strings"

	"github.com/paceline-sched/paceline/policies/builtin"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policy"
)

// Names lists the built-in policies in the order of the alphabet.
func Names() []string {
	var names []string
	for _, p := range builtin.All() {
		names = append(names, p.Capability().Name)
	}
	return names
}

// Find returns the built-in policy of a name, nil for none.
func Find(name string) *policy.Program {
	for _, p := range builtin.All() {
		if p.Capability().Name == name {
			return p
		}
	}
	return nil
}

// Load makes a version of a built-in policy, for a slot of any kind that it is for.
func Load(name string, config wasm.Config) (*wasm.Version, error) {
	p := Find(name)
	if p == nil {
		return nil, fmt.Errorf("there is no built-in policy %q: choose one of %s", name, strings.Join(Names(), ", "))
	}
	return wasm.LoadNative(p, config)
}
