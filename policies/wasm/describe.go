package wasm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/paceline-sched/paceline/policies/wasm/fuel"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"github.com/tetratelabs/wazero"
)

// Describe asks a module that has no custom section yet what it would say there: it runs policyabi.ExportDescribe in the sandbox, within the fuel of coming up. That is how
// modules of the Go SDK get theirs, see Stamp. The error is a *Fault.
func Describe(ctx context.Context, binary []byte, limits Limits) ([]byte, error) {
	limits = limits.orDefault()
	m := &Module{}
	bad := func(kind FaultKind, err error) ([]byte, error) {
		return nil, &Fault{Kind: kind, Doing: "describe", Err: err}
	}
	rewritten, err := fuel.Rewrite(binary, fuel.Options{Global: policyabi.FuelGlobal, Initial: limits.StartFuel, Limits: limits.Module})
	if err != nil {
		return bad(FaultModule, err)
	}
	m.metered, m.imports = rewritten.Binary, rewritten.Imports
	m.Capability.Features = []string{policyabi.FeatureScan} // which functions it may import is judged by what it says
	if err := m.checkImports(); err != nil {
		return bad(FaultModule, err)
	}
	described := fuel.Signature{Results: "\x7e"}
	found := false
	for _, e := range rewritten.Exports {
		found = found || e.Name == policyabi.ExportDescribe && e.Kind == fuel.Function && e.Signature == described
	}
	if !found {
		return bad(FaultModule, fmt.Errorf("it does not export %q %s: write the section %s by hand, or use an SDK", policyabi.ExportDescribe, described, policyabi.SectionName))
	}
	v := &Version{module: m, config: Config{Limits: limits}, limits: limits, closed: make(chan struct{})}
	defer v.close()
	// It runs once and does little: interpreted it is done before a compiler would be.
	if err := v.compileWith(ctx, wazero.NewRuntimeConfigInterpreter().WithMemoryLimitPages(limits.MemoryPages)); err != nil {
		return bad(FaultCompile, err)
	}
	return v.describe()
}

// describe runs the export.
func (v *Version) describe() ([]byte, error) {
	said := ""
	v.config.Log = func(_ int, text string) { said = text }
	in := &Instance{version: v, log: v.config.Log, counters: &v.counters, clock: uint64(time.Second)}
	in.ctx = context.WithValue(context.Background(), instanceKey{}, in)
	defer in.close()
	if err := in.instantiate(); err != nil {
		return nil, err
	}
	if _, err := in.startCall(policyabi.ExportInitialize, false); err != nil {
		return nil, err
	}
	where, err := in.startCall(policyabi.ExportDescribe, true)
	if err != nil {
		return nil, err
	}
	text, ok := in.memory.Read(uint32(where>>32), uint32(where))
	switch {
	case where == 0 && said != "":
		return nil, in.fault(FaultStart, policyabi.ExportDescribe, errors.New(said))
	case !ok || len(text) == 0:
		return nil, in.fault(FaultStart, policyabi.ExportDescribe, errors.New("what it returned is no text within memory"))
	}
	text = append([]byte(nil), text...)
	if _, err := policyabi.DecodeCapability(text); err != nil {
		return nil, in.fault(FaultStart, policyabi.ExportDescribe, err)
	}
	return text, nil
}

// Stamp puts the custom section that says what a policy is behind a module. It fails when the section is not as it must be, or the module has one.
func Stamp(module, section []byte) ([]byte, error) {
	if _, err := policyabi.DecodeCapability(section); err != nil {
		return nil, err
	}
	rewritten, err := fuel.Rewrite(module, fuel.Options{Global: policyabi.FuelGlobal})
	if err != nil {
		return nil, err
	}
	for _, c := range rewritten.Custom {
		if c.Name == policyabi.SectionName {
			return nil, fmt.Errorf("the module has a section %s already: build it anew", policyabi.SectionName)
		}
	}
	name := binary.AppendUvarint(nil, uint64(len(policyabi.SectionName)))
	name = append(name, policyabi.SectionName...)
	out := append([]byte(nil), module...)
	out = append(out, customSection)
	out = binary.AppendUvarint(out, uint64(len(name)+len(section)))
	return append(append(out, name...), section...), nil
}

// customSection is the id of custom sections.
const customSection = 0
