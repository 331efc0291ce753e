package wasm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

const section = "paceline.policy 1\nname hostile\nabi 1.0\nkinds place\ncolumns leftover free.*\n"

// policy is a module that is a good policy but for what a test changes. Its arena stands at arenaAt; results go where the header says.
type policy struct {
	asm.Module
	section  string
	pages    uint32
	most     uint32
	arena    []byte // code of paceline_arena; nil: a good one
	version  []byte
	place    []byte // code of paceline_place; nil: no results
	locals   []byte // of place
	before   func(m *asm.Module)
	exports  bool // false: leave the calls out
	noMemory bool
}

const arenaAt = 1 << 16

func good() *policy { return &policy{section: section, pages: 64, most: 128, exports: true} }

// log is the index of the imported paceline.log when withLog was the first import.
func withLog(m *asm.Module) {
	m.Import(policyabi.ImportModule, policyabi.ImportLog, []byte{asm.I32, asm.I32, asm.I32}, nil)
}

func (p *policy) bytes() []byte {
	if p.before != nil {
		p.before(&p.Module)
	}
	code := func(c, otherwise []byte) []byte {
		if c == nil {
			return otherwise
		}
		return c
	}
	if p.exports {
		p.Export(policyabi.ExportABI, asm.Function, p.Func(nil, []byte{asm.I32}, nil, code(p.version, asm.I32Const(policyabi.Version))))
		p.Export(policyabi.ExportArena, asm.Function, p.Func([]byte{asm.I32}, []byte{asm.I32}, nil, code(p.arena, asm.I32Const(arenaAt))))
		p.Export(policyabi.ExportPlace, asm.Function, p.Func([]byte{asm.I32}, []byte{asm.I64}, p.locals, code(p.place, asm.I64Const(0))))
	}
	if !p.noMemory {
		p.Memory(p.pages, p.most)
		p.Export(policyabi.ExportMemory, asm.Memory, 0)
	}
	if p.section != "" {
		p.Custom(policyabi.SectionName, []byte(p.section))
	}
	return p.Bytes()
}

// results is code that writes results, 16 bytes each, behind one another, and says that there are count.
func results(count uint32, rows ...policyabi.Result) []byte {
	var code []byte
	for i := range rows {
		var b [policyabi.ResultBytes]byte
		rows[i].Encode(b[:])
		for word := range 4 {
			v := int32(uint32(b[4*word]) | uint32(b[4*word+1])<<8 | uint32(b[4*word+2])<<16 | uint32(b[4*word+3])<<24)
			code = append(code, asm.Join(
				asm.I32Const(arenaAt+policyabi.HeaderResults), asm.With(0x28, 2, 0), // where results go
				asm.I32Const(v), asm.With(0x36, 2, arenaAt+uint32(i)*policyabi.ResultBytes+uint32(4*word)))...)
		}
	}
	return append(code, asm.I64Const(int64(policyabi.Return(policyabi.StatusOK, count)))...)
}

func nan() float32 {
	zero := float32(0)
	return zero / zero
}

// refused are modules that do not get as far as running.
var refused = map[string]struct {
	make func(p *policy)
	want string
}{
	"no section":              {func(p *policy) { p.section = "" }, "no custom section"},
	"garbled section":         {func(p *policy) { p.section = "\xff\xfe" }, "not UTF-8"},
	"two sections":            {func(p *policy) { p.Custom(policyabi.SectionName, []byte(section)) }, "two sections"},
	"huge section":            {func(p *policy) { p.section += strings.Repeat("x", 1<<16) }, "more than"},
	"a later ABI":             {func(p *policy) { p.section = strings.Replace(section, "abi 1.0", "abi 2.0", 1) }, "version 2.0"},
	"unknown feature":         {func(p *policy) { p.section += "features telepathy\n" }, "telepathy"},
	"a kind without its call": {func(p *policy) { p.section = strings.Replace(section, "kinds place", "kinds place quota", 1) }, "paceline_quota"},
	"no calls":                {func(p *policy) { p.exports = false }, "paceline_abi"},
	"no memory":               {func(p *policy) { p.noMemory = true }, "memory"},
	"imports a socket": {func(p *policy) {
		p.Import("wasi_snapshot_preview1", "sock_accept", []byte{asm.I32, asm.I32, asm.I32}, []byte{asm.I32})
	}, "sock_accept"},
	"imports env.system":       {func(p *policy) { p.Import("env", "system", []byte{asm.I32}, []byte{asm.I32}) }, `"system"`},
	"imports log as otherwise": {func(p *policy) { p.Import(policyabi.ImportModule, policyabi.ImportLog, []byte{asm.I64}, nil) }, "it is (i32 i32 i32)"},
	"imports memory":           {func(p *policy) { p.ImportRaw("env", "memory", asm.Memory, 0, 1); p.noMemory = true }, "imports memory"},
	"imports a table":          {func(p *policy) { p.ImportRaw("env", "t", asm.Table, 0x70, 0, 1) }, "imports table"},
	"imports a global":         {func(p *policy) { p.ImportRaw("env", "g", asm.Global, asm.I32, 0) }, "imports global"},
	"scan without the feature": {func(p *policy) {
		p.Import(policyabi.ImportModule, policyabi.ImportScan, []byte{asm.I32, asm.I32, asm.I32, asm.I32}, []byte{asm.I32})
	}, "does not name the feature"},
	"huge memory":      {func(p *policy) { p.pages, p.most = 60000, 65536 }, "60000 pages"},
	"shared memory":    {func(p *policy) { p.noMemory = true; p.MemoryRaw(3, 1, 2) }, "threads"},
	"64-bit memory":    {func(p *policy) { p.noMemory = true; p.MemoryRaw(5, 1, 2) }, "64-bit"},
	"huge table":       {func(p *policy) { p.Table(1 << 30) }, "elements"},
	"counter exported": {func(p *policy) { p.Global(asm.I64, asm.I64Const(0)); p.Export(policyabi.FuelGlobal, asm.Global, 0) }, "reserved"},
	"place of a wrong type": {func(p *policy) {
		p.exports = false
		p.Export(policyabi.ExportPlace, asm.Function, p.Func(nil, nil, nil))
	}, "must be a function"},
	"tail call":      {func(p *policy) { p.place = asm.Op(0x12, 0) }, "tail calls"},
	"atomics":        {func(p *policy) { p.place = asm.Op(0xfe, 0x03, 0x00) }, "threads"},
	"not valid":      {func(p *policy) { p.place = asm.Op(0x1a) }, "compile"},
	"starts forever": {func(p *policy) { p.Start(p.Func(nil, nil, nil, asm.Loop(0x40, asm.Br(0)))) }, "instantiate"},
	"start traps":    {func(p *policy) { p.Start(p.Func(nil, nil, nil, asm.Op(0x00))) }, "unreachable"},
	"data outside":   {func(p *policy) { p.Data(1<<30, []byte("x")) }, "instantiate"},
	"wrong version":  {func(p *policy) { p.version = asm.I32Const(7 << 16) }, "version 7.0"},
	"endless initialise": {func(p *policy) {
		p.Export(policyabi.ExportInitialize, asm.Function, p.Func(nil, nil, nil, asm.Loop(0x40, asm.Br(0))))
	}, "_initialize"},
	"arena outside":     {func(p *policy) { p.arena = asm.I32Const(-64) }, "within memory"},
	"arena at 0":        {func(p *policy) { p.arena = asm.I32Const(0) }, "address 0"},
	"arena not in line": {func(p *policy) { p.arena = asm.I32Const(arenaAt + 4) }, "multiple of 64"},
	"arena traps":       {func(p *policy) { p.arena = asm.Op(0x00) }, "paceline_arena"},
	"refuses its configuration": {func(p *policy) {
		p.Export(policyabi.ExportConfig, asm.Function, p.Func([]byte{asm.I32}, []byte{asm.I32}, nil, asm.I32Const(int32(policyabi.StatusConfig))))
	}, "configuration refused"},
	"proc_exit at start": {func(p *policy) {
		p.before = func(m *asm.Module) {
			m.Import("wasi_snapshot_preview1", "proc_exit", []byte{asm.I32}, nil)
			m.Start(m.Func(nil, nil, nil, asm.I32Const(0), asm.Call(0)))
		}
	}, "ended itself"},
}

func TestRefusesHostileModules(t *testing.T) {
	for name, c := range refused {
		t.Run(name, func(t *testing.T) {
			p := good()
			c.make(p)
			limits := wasm.Limits{StartFuel: 1 << 22}
			m, err := wasm.Check(p.bytes(), limits)
			if err == nil {
				var v *wasm.Version
				if v, err = wasm.Load(t.Context(), m, wasm.Config{Limits: limits}); err == nil {
					v.Release()
				}
			}
			var f *wasm.Fault
			if !errors.As(err, &f) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("want a fault about %q, got %v", c.want, err)
			}
		})
	}
}

func TestGoodPolicyIsTaken(t *testing.T) {
	v := load(t, good().bytes(), wasm.Config{})
	if v.Module().Capability.Name != "hostile" {
		t.Fatalf("%+v", v.Module().Capability)
	}
}

// bomb is code that does other only when the table is not the trial's: only on the tables of tests, which have fewer rows.
func bomb(other []byte) []byte {
	return asm.Join(
		asm.I32Const(arenaAt+policyabi.HeaderRows), asm.With(0x28, 2, 0), asm.I32Const(1024), asm.Op(0x46), // rows == 1024
		asm.If(0x40, asm.I64Const(0), asm.Op(0x0f)), other)
}

// contained are policies that load and then do harm. Each must be found out with the fault named, and leave the table as it was.
var contained = map[string]struct {
	place []byte
	kind  wasm.FaultKind
	setup func(p *policy)
}{
	"trap":                     {place: asm.Op(0x00), kind: wasm.FaultTrap},
	"endless loop":             {place: asm.Join(asm.Loop(0x40, asm.Br(0)), asm.Op(0x00)), kind: wasm.FaultFuel},
	"recursion":                {place: asm.Join(asm.LocalGet(0), asm.Call(2)), kind: wasm.FaultFuel},
	"division by zero":         {place: asm.Join(asm.I64Const(1), asm.I64Const(0), asm.Op(0x7f)), kind: wasm.FaultTrap},
	"reads outside memory":     {place: asm.Join(asm.I32Const(-8), asm.With(0x29, 3, 0)), kind: wasm.FaultTrap},
	"writes outside memory":    {place: asm.Join(asm.I32Const(-8), asm.I64Const(1), asm.With(0x37, 3, 0), asm.I64Const(0)), kind: wasm.FaultTrap},
	"huge fill":                {place: asm.Join(asm.Loop(0x40, asm.I32Const(0), asm.I32Const(1), asm.I32Const(1<<22), asm.Op(0xfc, 11, 0), asm.Br(0)), asm.Op(0x00)), kind: wasm.FaultFuel},
	"grows as far as it can":   {place: asm.Join(asm.Loop(0x40, asm.I32Const(1), asm.Op(0x40, 0, 0x1a), asm.Br(0)), asm.Op(0x00)), kind: wasm.FaultFuel},
	"unknown host":             {place: results(1, policyabi.Result{Count: 1, Host: 9999}), kind: wasm.FaultRow},
	"negative host":            {place: results(1, policyabi.Result{Count: 1, Host: 1<<32 - 2}), kind: wasm.FaultRow},
	"host of the last row + 1": {place: results(1, policyabi.Result{Count: 1, Host: 100}), kind: wasm.FaultRow},
	"draining host":            {place: results(1, policyabi.Result{Count: 1, Host: 3}), kind: wasm.FaultRow},
	"full host":                {place: results(1, policyabi.Result{Count: 1, Host: 5}), kind: wasm.FaultRow},
	"more than asked":          {place: results(1, policyabi.Result{Count: 60000, Host: 1}), kind: wasm.FaultRow},
	"no tasks":                 {place: results(1, policyabi.Result{Count: 0, Host: 1}), kind: wasm.FaultRow},
	"twice what was asked":     {place: results(2, policyabi.Result{Count: 2, Host: 1}, policyabi.Result{Count: 2, Host: 2}), kind: wasm.FaultRow},
	"devices for none":         {place: results(1, policyabi.Result{Count: 1, Host: 1, Devices: 1}), kind: wasm.FaultRow},
	"devices for many":         {place: results(1, policyabi.Result{Count: 2, Host: 4, Devices: 1}), kind: wasm.FaultRow},
	"unknown request":          {place: results(1, policyabi.Result{Request: 7, Count: 1, Host: 1}), kind: wasm.FaultResult},
	"requests out of order":    {place: results(2, policyabi.Result{Request: 1, Count: 1, Host: 1}, policyabi.Result{Request: 0, Count: 1, Host: 2}), kind: wasm.FaultResult},
	"score that is none":       {place: results(1, policyabi.Result{Count: 1, Host: 1, Score: nan()}), kind: wasm.FaultResult},
	"a good row, then a bad":   {place: results(2, policyabi.Result{Count: 1, Host: 1}, policyabi.Result{Count: 1, Host: 9999}), kind: wasm.FaultRow},
	"results without end":      {place: asm.I64Const(1<<32 - 1), kind: wasm.FaultResult},
	"results beyond the room":  {place: asm.I64Const(5000), kind: wasm.FaultResult},
	"unknown status":           {place: asm.I64Const(77 << 32), kind: wasm.FaultStatus},
	"refusal":                  {place: asm.I64Const(int64(policyabi.Return(policyabi.StatusInternal, 0))), kind: wasm.FaultStatus},
	"header overwritten": {
		place: asm.Join(asm.I32Const(arenaAt), asm.I32Const(0xff), asm.I32Const(1<<16), asm.Op(0xfc, 11, 0), asm.I64Const(1)), kind: wasm.FaultResult,
	},
	"log without end": {
		place: asm.Join(asm.Loop(0x40, asm.I32Const(0), asm.I32Const(0), asm.I32Const(-1), asm.Call(0), asm.Br(0)), asm.Op(0x00)),
		kind:  wasm.FaultFuel, setup: func(p *policy) { p.before = withLog },
	},
	"log from outside memory": {
		place: asm.Join(asm.I32Const(0), asm.I32Const(-4), asm.I32Const(64), asm.Call(0), asm.Op(0x00)),
		kind:  wasm.FaultTrap, setup: func(p *policy) { p.before = withLog },
	},
	"waits for the clock": {
		place: asm.Join(asm.Loop(0x40, asm.I32Const(0), asm.I64Const(0), asm.I32Const(8), asm.Call(0), asm.Op(0x1a), asm.Br(0)), asm.Op(0x00)),
		kind:  wasm.FaultFuel, setup: func(p *policy) {
			p.before = func(m *asm.Module) {
				m.Import("wasi_snapshot_preview1", "clock_time_get", []byte{asm.I32, asm.I64, asm.I32}, []byte{asm.I32})
			}
		},
	},
	"random bytes over everything": {
		place: asm.Join(asm.I32Const(arenaAt), asm.I32Const(4096), asm.Call(0), asm.Op(0x1a), asm.I64Const(1)),
		kind:  wasm.FaultRow, setup: func(p *policy) {
			p.before = func(m *asm.Module) {
				m.Import("wasi_snapshot_preview1", "random_get", []byte{asm.I32, asm.I32}, []byte{asm.I32})
			}
		},
	},
}

func TestContainsHostilePolicies(t *testing.T) {
	for name, c := range contained {
		t.Run(name, func(t *testing.T) {
			p := good()
			p.place = bomb(c.place)
			if c.setup != nil {
				c.setup(p)
			}
			v := load(t, p.bytes(), wasm.Config{})
			ours, theirs := smallTable(t), smallTable(t)
			before := books(ours)
			var seen string
			var fault *wasm.Fault
			pl, _ := placer(t, v, wasm.PlacerConfig{OnFault: func(f *wasm.Fault) { fault, seen = f, books(ours) }})
			requests := []placement.Request{
				{Class: newClass(resource.Vector{resource.CPU: 4000, resource.Memory: 1024}, workload.Placement{}), Count: 3},
				{Class: newClass(resource.Vector{resource.CPU: 1000, resource.Memory: 512}, workload.Placement{}), Count: 2, Gang: true},
			}
			got := pl.Place(ours, requests)
			slow := c.kind == wasm.FaultFuel && fault != nil && fault.Kind == wasm.FaultTime // on a busy machine the clock may be first
			if fault == nil || fault.Kind != c.kind && !slow {
				t.Fatalf("want a fault of kind %s, got %v", c.kind, fault)
			}
			if seen != before {
				t.Error("the table was not as before when the fault was told")
			}
			want := placement.NewNative().Place(theirs, requests)
			if books(ours) != books(theirs) || len(got[0].Assignments) != len(want[0].Assignments) || got[1].Refused != want[1].Refused {
				t.Errorf("the fallback placed %+v, alone it places %+v", got, want)
			}
			if n := v.Counters().Faults(fault.Kind); n != 1 || v.Counters().Fallbacks.Load() != 2 {
				t.Errorf("%d faults and %d fallbacks are counted", n, v.Counters().Fallbacks.Load())
			}
		})
	}
}
