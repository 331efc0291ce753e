package wasm

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Values reads values of the module's configuration, given as text, by the types that the module names.
func (m *Module) Values(given map[string]string) (policyabi.Config, error) {
	var list policyabi.Config
	for _, key := range slices.Sorted(maps.Keys(given)) {
		v, known := policyabi.Config(m.Capability.Config).Lookup(key)
		if !known {
			return nil, fmt.Errorf("policy %s has no value %q to set; it has %s", m.Capability.Name, key, m.keys())
		}
		if err := parse(&v, given[key]); err != nil {
			return nil, fmt.Errorf("value %s of policy %s: %q is no %s", key, m.Capability.Name, given[key], v.Type)
		}
		list = append(list, v)
	}
	return list, nil
}

// keys names what can be set.
func (m *Module) keys() string {
	if len(m.Capability.Config) == 0 {
		return "none"
	}
	text := ""
	for i := range m.Capability.Config {
		text += ", " + m.Capability.Config[i].Key
	}
	return text[2:]
}

// parse reads a value of the type that v has.
func parse(v *policyabi.Value, text string) (err error) {
	switch v.Type {
	case policyabi.Bool:
		v.Bool, err = strconv.ParseBool(text)
	case policyabi.Int:
		v.Int, err = strconv.ParseInt(text, 10, 64)
	case policyabi.Float:
		v.Float, err = strconv.ParseFloat(text, 64)
	case policyabi.Text:
		v.Text = text
	default:
		err = errors.New("its type is unknown")
	}
	return err
}

// Configured is the identity of the module with these values: its digest where they are its own defaults, and else a digest of both.
func (m *Module) Configured(values policyabi.Config) (Digest, error) {
	_, digest, err := m.configure(values)
	return digest, err
}

// configure encodes the module's configuration with these values in it.
func (m *Module) configure(values policyabi.Config) (encoded []byte, digest Digest, err error) {
	full, err := m.Capability.With(values)
	if err != nil {
		return nil, m.Digest, err
	}
	if encoded, err = full.Append(nil); err != nil {
		return nil, m.Digest, err
	}
	defaults, err := policyabi.Config(m.Capability.Config).Append(nil)
	if err != nil || bytes.Equal(defaults, encoded) {
		return encoded, m.Digest, err
	}
	return encoded, sha256.Sum256(slices.Concat(m.Digest[:], encoded)), nil
}
