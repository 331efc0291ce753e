package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/policies/wasm/fuel"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// Digest is the SHA-256 of a module as its author made it: the identity of a policy's version.
type Digest [sha256.Size]byte

func (d Digest) String() string { return "sha256:" + hex.EncodeToString(d[:]) }

// Short is enough of the digest for people.
func (d Digest) Short() string { return hex.EncodeToString(d[:6]) }

// Module is a module that passed Check.
type Module struct {
	Digest     Digest
	Capability policyabi.Capability

	// Facts tell people what the module is made of.
	Facts Facts

	metered []byte
	imports []fuel.Import
	exports map[string]bool
}

// Facts are what a module is made of, as its author made it.
type Facts struct {
	Bytes, Functions int
	MemoryPages      uint32 // that an instance starts with, of 64 KiB
	Imports          []fuel.Import
	Exports          []fuel.Export
}

// Limits bound a module. The zero value stands for the defaults.
type Limits struct {
	Module fuel.Limits
	// MemoryPages is how far the memory of an instance may grow, in pages of 64 KiB. Default 1024, which is 64 MiB: some twenty times what a guest
	// of the plain Go toolchain needs.
	MemoryPages uint32
	// StartFuel is what coming up may use, from instantiating to the configuration. Default 1 << 31; the Go runtime takes about a hundredth of it.
	StartFuel int64
	// CallFuel is the most that one call may ever use. Default 1 << 32: modules of Go pay for a whole function each time round a loop in it, some tens of thousands
	// for a host that costs as many nanoseconds.
	CallFuel int64
	// CompileTime is how long the process that compiles a module may compute, in whole seconds. Default a minute.
	CompileTime time.Duration
}

func (l Limits) orDefault() Limits {
	if l.MemoryPages == 0 {
		l.MemoryPages = 1024
	}
	if l.Module.MemoryPages == 0 {
		l.Module.MemoryPages = l.MemoryPages
	}
	if l.StartFuel == 0 {
		l.StartFuel = 1 << 31
	}
	if l.CallFuel == 0 {
		l.CallFuel = 1 << 32
	}
	if l.CompileTime <= 0 {
		l.CompileTime = time.Minute
	}
	return l
}

// Check looks at a module without running any of it. The error is a *Fault that says what is wrong and what would be right.
func Check(binary []byte, limits Limits) (*Module, error) {
	limits = limits.orDefault()
	m := &Module{exports: map[string]bool{}}
	bad := func(err error) (*Module, error) {
		return nil, &Fault{Kind: FaultModule, Policy: m.Capability.Name, Digest: m.Digest, Doing: "check", Err: err}
	}
	if limit := limits.Module.Bytes; limit > 0 && len(binary) > limit { // before it is hashed
		return bad(fmt.Errorf("the module has %d bytes, at most %d are allowed", len(binary), limit))
	}
	m.Digest = sha256.Sum256(binary)
	rewritten, err := fuel.Rewrite(binary, fuel.Options{Global: policyabi.FuelGlobal, Initial: limits.StartFuel, Limits: limits.Module})
	if err != nil {
		return bad(err)
	}
	m.metered, m.imports = rewritten.Binary, slices.Clone(rewritten.Imports)
	m.Facts = Facts{Bytes: len(binary), Functions: rewritten.Functions, MemoryPages: rewritten.MinPages, Imports: m.imports, Exports: slices.Clone(rewritten.Exports)}
	if m.Capability, err = capabilityOf(rewritten.Custom); err != nil {
		return bad(err)
	}
	if err := m.checkImports(); err != nil {
		return bad(err)
	}
	if err := m.checkExports(rewritten.Exports); err != nil {
		return bad(err)
	}
	return m, nil
}

func capabilityOf(custom []fuel.Custom) (policyabi.Capability, error) {
	var c policyabi.Capability
	var found []byte
	for _, s := range custom {
		if s.Name != policyabi.SectionName {
			continue
		}
		if found != nil {
			return c, fmt.Errorf("there are two sections %s: leave one", policyabi.SectionName)
		}
		found = bytes.Clone(s.Data)
	}
	if found == nil {
		return c, fmt.Errorf("it has no custom section %s, which says what the policy is: add it with `paceline policy build`", policyabi.SectionName)
	}
	c, err := policyabi.DecodeCapability(found)
	switch {
	case err != nil:
		return c, err
	case c.Major != policyabi.Major || c.Minor > policyabi.Minor:
		return c, fmt.Errorf("it is written for version %d.%d of the ABI, this is %d.%d: rebuild it, or update Paceline", c.Major, c.Minor, policyabi.Major, policyabi.Minor)
	}
	for _, f := range c.Features {
		if f != policyabi.FeatureScan {
			return c, fmt.Errorf("it wants feature %q, which this version does not have", f)
		}
	}
	return c, nil
}

func (m *Module) checkImports() error {
	for i := range m.imports {
		im := &m.imports[i]
		known, ok := allowed[im.Module][im.Name]
		if im.Kind != fuel.Function || !ok {
			return fmt.Errorf("it imports %s %q from %q: a policy may import %s, and of WASI the functions that toolchains need", im.Kind, im.Name, im.Module, `"log" and "scan_topk" from "paceline"`)
		}
		if im.Signature != known.signature() {
			return fmt.Errorf("it imports %q from %q as %s, it is %s", im.Name, im.Module, im.Signature, known.signature())
		}
		if im.Module == policyabi.ImportModule && im.Name == policyabi.ImportScan && !slices.Contains(m.Capability.Features, policyabi.FeatureScan) {
			return fmt.Errorf("it imports %q and does not name the feature in its section %s", im.Name, policyabi.SectionName)
		}
	}
	return nil
}

// required are the exports that every policy has, and optional those that it may have, by signature.
var (
	required = map[string]fuel.Signature{
		policyabi.ExportABI:   {Results: "\x7f"},
		policyabi.ExportArena: {Params: "\x7f", Results: "\x7f"},
	}
	optional = map[string]fuel.Signature{
		policyabi.ExportInitialize: {},
		policyabi.ExportConfig:     {Params: "\x7f", Results: "\x7f"},
		policyabi.ExportPlace:      {Params: "\x7f", Results: "\x7e"},
		policyabi.ExportPreempt:    {Params: "\x7f", Results: "\x7e"},
		policyabi.ExportQuota:      {Params: "\x7f", Results: "\x7e"},
		policyabi.ExportRoute:      {Params: "\x7f", Results: "\x7e"},
		policyabi.ExportIdle:       {},
	}
)

func (m *Module) checkExports(exports []fuel.Export) error {
	memory := false
	for i := range exports {
		e := &exports[i]
		if e.Name == policyabi.ExportMemory {
			if e.Kind != fuel.Memory {
				return fmt.Errorf("its export %q is a %s", e.Name, e.Kind)
			}
			memory = true
			continue
		}
		want, known := required[e.Name]
		if !known {
			want, known = optional[e.Name]
		}
		if !known {
			continue // others are nobody's business
		}
		if e.Kind != fuel.Function || e.Signature != want {
			return fmt.Errorf("its export %q is a %s %s, it must be a function %s", e.Name, e.Kind, e.Signature, want)
		}
		m.exports[e.Name] = true
	}
	for _, name := range []string{policyabi.ExportABI, policyabi.ExportArena} {
		if !m.exports[name] {
			return fmt.Errorf("it does not export %q", name)
		}
	}
	if !memory {
		return fmt.Errorf("it does not export its memory as %q", policyabi.ExportMemory)
	}
	for _, k := range m.Capability.Kinds {
		if !m.exports[k.Export()] {
			return fmt.Errorf("it says that it is a policy of kind %s and does not export %q", k, k.Export())
		}
	}
	if len(m.Capability.Config) > 0 && !m.exports[policyabi.ExportConfig] {
		return fmt.Errorf("it says that it can be configured and does not export %q", policyabi.ExportConfig)
	}
	return nil
}
