package replay

import (
	"maps"
	"slices"
	"strings"

	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// settings are values of configurations, and whether a policy has them.
type settings map[string]*setting

type setting struct {
	text string
	used bool
}

// readSettings reads --set.
func readSettings(given []string) (settings, error) {
	set := settings{}
	for _, s := range given {
		key, text, ok := strings.Cut(s, "=")
		if !ok {
			return nil, mistakef("--set %q: it is key=value", s)
		}
		set[key] = &setting{text: text}
	}
	return set, nil
}

// of is what a policy has of them.
func (s settings) of(m *wasm.Module) (policyabi.Config, error) {
	its := map[string]string{}
	for key, value := range s {
		if _, known := policyabi.Config(m.Capability.Config).Lookup(key); known {
			its[key], value.used = value.text, true
		}
	}
	values, err := m.Values(its)
	if err != nil {
		return nil, mistakef("--set: %w", err)
	}
	return values, nil
}

// unused refuses what no policy has.
func (s settings) unused() error {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if !s[key].used {
			return mistakef("--set %s: none of the policies has such a value; 'paceline policy inspect' lists those that one has", key)
		}
	}
	return nil
}
