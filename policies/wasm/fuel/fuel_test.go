package fuel_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/policies/wasm/fuel"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"pgregory.net/rapid"
)

const (
	counter = "paceline.fuel"
	initial = int64(1000)
	ample   = int64(1) << 40
)

func rewrite(t testing.TB, module []byte) *fuel.Module {
	t.Helper()
	m, err := fuel.Rewrite(module, fuel.Options{Global: counter, Initial: initial})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// engines are the two ways of running a module, which have nothing but wazero's decoder in common.
var engines = map[string]func() wazero.RuntimeConfig{
	"compiler":    wazero.NewRuntimeConfigCompiler,
	"interpreter": wazero.NewRuntimeConfigInterpreter,
}

// run is what became of a module's functions being called in turn.
type run struct {
	results []string
	used    []int64
	memory  []byte
}

// execute instantiates a module, with the fuel that start may use, and calls its functions in turn with the same arguments.
func execute(t testing.TB, config wazero.RuntimeConfig, module []byte, functions int, give int64) run {
	t.Helper()
	ctx := t.Context()
	rt := wazero.NewRuntimeWithConfig(ctx, config)
	defer func() { _ = rt.Close(ctx) }()
	in, err := rt.Instantiate(ctx, module)
	if err != nil {
		t.Fatal(err)
	}
	var r run
	tank, _ := in.ExportedGlobal(counter).(api.MutableGlobal)
	for i := range functions {
		if tank != nil {
			tank.Set(uint64(give))
		}
		out, err := in.ExportedFunction(fmt.Sprintf("f%d", i)).Call(ctx, 12345, 678)
		result := fmt.Sprint(out)
		if err != nil {
			result, _, _ = strings.Cut(err.Error(), "\n")
		}
		r.results = append(r.results, result)
		if tank != nil {
			r.used = append(r.used, give-int64(tank.Get()))
		}
	}
	r.memory, _ = in.Memory().Read(0, in.Memory().Size())
	r.memory = bytes.Clone(r.memory)
	return r
}

// TestRewrittenModules draws modules and asks of each that it becomes what the second reader says, does what it did, uses the same fuel on both engines,
// gets along with exactly that much, and stops with less.
func TestRewrittenModules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		original, functions := drawModule(rt)
		m := rewrite(t, original)
		if why := compare(original, m.Binary, counter, initial); why != "" {
			rt.Fatal(why)
		}
		before := execute(t, wazero.NewRuntimeConfigInterpreter(), original, functions, 0)
		compiled := execute(t, wazero.NewRuntimeConfigCompiler(), m.Binary, functions, ample)
		interpreted := execute(t, wazero.NewRuntimeConfigInterpreter(), m.Binary, functions, ample)
		for i := range functions {
			if before.results[i] != compiled.results[i] || before.results[i] != interpreted.results[i] {
				rt.Fatalf("f%d gave %s, rewritten %s (compiled) and %s (interpreted)", i, before.results[i], compiled.results[i], interpreted.results[i])
			}
			if compiled.used[i] != interpreted.used[i] || compiled.used[i] <= 0 {
				rt.Fatalf("f%d used %d compiled and %d interpreted", i, compiled.used[i], interpreted.used[i])
			}
		}
		if !bytes.Equal(before.memory, compiled.memory) || !bytes.Equal(before.memory, interpreted.memory) {
			rt.Fatal("memory came out otherwise")
		}
		if rapid.IntRange(0, 3).Draw(rt, "limits") != 0 {
			return
		}
		exact := execute(t, wazero.NewRuntimeConfigInterpreter(), m.Binary, 1, compiled.used[0])
		if exact.results[0] != before.results[0] {
			rt.Fatalf("f0 with exactly %d: %s", compiled.used[0], exact.results[0])
		}
		short := execute(t, wazero.NewRuntimeConfigCompiler(), m.Binary, 1, compiled.used[0]-1)
		if !strings.Contains(short.results[0], "unreachable") || short.used[0] < compiled.used[0] {
			rt.Fatalf("f0 with 1 less than %d: %s", compiled.used[0], short.results[0])
		}
	})
}

// TestWhatIsCharged counts by hand.
func TestWhatIsCharged(t *testing.T) {
	loop := func(body ...[]byte) []byte { // runs param 0 times; 7 instructions with the loop itself
		return asm.Loop(0x40, append(body, asm.LocalGet(0), asm.I32Const(1), asm.Op(0x6b), asm.LocalTee(0), asm.BrIf(0))...)
	}
	for _, c := range []struct {
		name  string
		build func(m *asm.Module) uint32
		arg   uint64
		want  int64
	}{
		{"nothing", func(m *asm.Module) uint32 { return m.Func([]byte{asm.I32}, nil, nil) }, 0, 1},
		{"three instructions", func(m *asm.Module) uint32 {
			return m.Func([]byte{asm.I32}, nil, nil, asm.LocalGet(0), asm.Op(0x1a, 0x01))
		}, 0, 1 + 3},
		{"24 locals", func(m *asm.Module) uint32 {
			return m.Func([]byte{asm.I32}, nil, bytes.Repeat([]byte{asm.I64}, 24))
		}, 0, 1 + 3},
		{"a loop ten times", func(m *asm.Module) uint32 { return m.Func([]byte{asm.I32}, nil, nil, loop()) }, 10, 1 + 10*6},
		{"memory.fill", func(m *asm.Module) uint32 {
			m.Memory(1, 1)
			return m.Func([]byte{asm.I32}, nil, nil, asm.I32Const(0), asm.I32Const(1), asm.LocalGet(0), asm.Op(0xfc, 11, 0))
		}, 8000, 1 + 4 + 1000},
		{"memory.grow", func(m *asm.Module) uint32 {
			m.Memory(1, 9)
			return m.Func([]byte{asm.I32}, nil, nil, asm.LocalGet(0), asm.Op(0x40, 0, 0x1a))
		}, 3, 1 + 3 + 3*8192},
		{"table.grow", func(m *asm.Module) uint32 {
			m.Table(1)
			return m.Func([]byte{asm.I32}, nil, nil, asm.Op(0xd0, 0x70), asm.LocalGet(0), asm.Op(0xfc, 15, 0), asm.Op(0x1a))
		}, 77, 1 + 4 + 77},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m asm.Module
			m.Export("f", asm.Function, c.build(&m))
			ctx := t.Context()
			for name, config := range engines {
				rt := wazero.NewRuntimeWithConfig(ctx, config())
				in, err := rt.Instantiate(ctx, rewrite(t, m.Bytes()).Binary)
				if err != nil {
					t.Fatal(err)
				}
				tank := in.ExportedGlobal(counter).(api.MutableGlobal)
				tank.Set(uint64(ample))
				if _, err := in.ExportedFunction("f").Call(ctx, c.arg); err != nil {
					t.Fatal(err)
				}
				if used := ample - int64(tank.Get()); used != c.want {
					t.Errorf("%s: used %d, want %d", name, used, c.want)
				}
				_ = rt.Close(ctx)
			}
		})
	}
}

// TestRunawaysStop runs code that would not end, or not in a lifetime.
func TestRunawaysStop(t *testing.T) {
	for name, build := range map[string]func(m *asm.Module) uint32{
		"endless loop": func(m *asm.Module) uint32 { return m.Func(nil, nil, nil, asm.Loop(0x40, asm.Br(0))) },
		"recursion":    func(m *asm.Module) uint32 { return m.Func(nil, nil, nil, asm.Call(0)) },
		"exponential chain of calls": func(m *asm.Module) uint32 {
			f := m.Func(nil, nil, nil)
			for range 64 {
				f = m.Func(nil, nil, nil, asm.Call(f), asm.Call(f))
			}
			return f
		},
		"call_indirect of itself": func(m *asm.Module) uint32 {
			m.Table(1)
			m.Element(0)
			return m.Func(nil, nil, nil, asm.I32Const(0), asm.Op(0x11, 0, 0), asm.I32Const(0), asm.Op(0x11, 0, 0))
		},
		"copies of much memory": func(m *asm.Module) uint32 {
			m.Memory(1000, 1000)
			return m.Func(nil, nil, nil, asm.Loop(0x40, asm.I32Const(0), asm.I32Const(64), asm.I32Const(60_000_000), asm.Op(0xfc, 10, 0, 0), asm.Br(0)))
		},
		"growth": func(m *asm.Module) uint32 {
			m.Memory(1, 65536)
			return m.Func(nil, nil, nil, asm.I32Const(60_000), asm.Op(0x40, 0, 0x1a))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m asm.Module
			m.Export("f", asm.Function, build(&m))
			ctx := t.Context()
			rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
			defer func() { _ = rt.Close(ctx) }()
			in, err := rt.Instantiate(ctx, rewrite(t, m.Bytes()).Binary)
			if err != nil {
				t.Fatal(err)
			}
			tank := in.ExportedGlobal(counter).(api.MutableGlobal)
			tank.Set(10_000_000)
			_, err = in.ExportedFunction("f").Call(ctx)
			if err == nil {
				t.Fatal("it came back")
			}
			if left := int64(tank.Get()); left >= 0 && !strings.Contains(err.Error(), "stack overflow") {
				t.Fatalf("it stopped with %d left: %v", left, err)
			}
		})
	}
}

func TestStartIsCharged(t *testing.T) {
	var m asm.Module
	m.Start(m.Func(nil, nil, nil, asm.Loop(0x40, asm.Br(0))))
	ctx := t.Context()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
	defer func() { _ = rt.Close(ctx) }()
	if _, err := rt.Instantiate(ctx, rewrite(t, m.Bytes()).Binary); err == nil {
		t.Fatal("an endless start function came back")
	}
}

func TestRefusals(t *testing.T) {
	body := func(code ...byte) []byte {
		var m asm.Module
		m.Memory(1, 1)
		m.Func(nil, nil, nil, code)
		return m.Bytes()
	}
	memory := func(limits ...byte) []byte {
		var m asm.Module
		m.MemoryRaw(limits...)
		return m.Bytes()
	}
	var reserved asm.Module
	reserved.Memory(1, 1)
	reserved.Export(counter, asm.Memory, 0)
	var many asm.Module
	for range 70 {
		many.Import("a", "b", nil, nil)
	}
	var locals asm.Module
	locals.Func(nil, nil, bytes.Repeat([]byte{asm.I32}, 9000))
	deep := bytes.Repeat([]byte{0x02, 0x40}, 20_000)
	deep = append(deep, bytes.Repeat([]byte{0x0b}, 20_000)...)
	magic := []byte("\x00asm\x01\x00\x00\x00")
	section := func(id byte, content ...byte) []byte { return append(bytes.Clone(magic), asm.Section(id, content)...) }
	for want, module := range map[string][]byte{
		"elements, at most":              section(9, 1, 0, 0x41, 0, 0x0b, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"element segments, at most":      section(9, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"bytes of data, at most":         section(11, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"data segments, at most":         section(11, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"globals, at most":               section(6, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"in a constant":                  section(11, 1, 0, 0x6b, 0x0b, 0),
		"no WebAssembly module":          []byte("\x7fELF...."),
		"version 1":                      []byte("\x00asm\x0d\x00\x01\x00"),
		"tail calls":                     body(0x12, 0),
		"exceptions":                     body(0x06, 0x40, 0x0b),
		"threads":                        body(0xfe, 0x03, 0x00),
		"garbage-collected":              body(0xfb, 0x00),
		"typed function references":      body(0x14, 0),
		"relaxed SIMD":                   body(0xfd, 0x80, 0x02),
		"0xfc 99":                        body(0xfc, 99),
		"shared (threads) and 64-bit":    memory(3, 1, 1),
		"limits of form 0x4":             memory(4, 1),
		"a second memory":                append(magic, asm.Section(2, []byte{2, 0, 0, 2, 0, 1, 0, 0, 2, 0, 1})...),
		"starts with 5000 pages":         memory(0, 0x88, 0x27),
		"reserved for the counter":       reserved.Bytes(),
		"70 imports":                     many.Bytes(),
		"locals":                         locals.Bytes(),
		"deeper than":                    body(deep...),
		"left over":                      body(0x0b, 0x01),
		"out of order":                   append(bytes.Clone(magic), append(asm.Section(3, []byte{0}), asm.Section(1, []byte{0})...)...),
		"a section of number 13":         append(bytes.Clone(magic), asm.Section(13, []byte{0})...),
		"there is no type 3":             append(bytes.Clone(magic), asm.Section(3, []byte{1, 3})...),
		"no code section":                append(bytes.Clone(magic), append(asm.Section(1, []byte{1, 0x60, 0, 0}), asm.Section(3, []byte{1, 0})...)...),
		"bodies for":                     append(bytes.Clone(magic), asm.Section(10, []byte{1, 2, 0, 0x0b})...),
		"only functions are supported":   append(bytes.Clone(magic), asm.Section(1, []byte{1, 0x5f, 0})...),
		"a value type 0x69":              append(bytes.Clone(magic), asm.Section(1, []byte{1, 0x60, 1, 0x69, 0})...),
		"a table of 1048575 elements":    append(bytes.Clone(magic), asm.Section(4, []byte{1, 0x70, 0, 0xff, 0xff, 0x3f})...),
		"8388609 bytes, at most 8388608": append(bytes.Clone(magic), make([]byte, 8<<20-7)...),
	} {
		_, err := fuel.Rewrite(module, fuel.Options{Global: counter})
		var e *fuel.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error about %q, got %v", want, err)
		}
	}
}

func TestSummary(t *testing.T) {
	var m asm.Module
	m.Import("paceline", "log", []byte{asm.I32, asm.I64}, nil)
	f := m.Func([]byte{asm.F32}, []byte{asm.V128}, nil, asm.Op(0x00))
	m.Memory(2, 5)
	m.Export("memory", asm.Memory, 0)
	m.Export("f", asm.Function, f)
	m.Custom("paceline.policy", []byte("text"))
	m.Custom(".debug_line", []byte("positions"))
	m.Custom("name", []byte{1, 6, 0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	got := rewrite(t, m.Bytes())
	if len(got.Imports) != 1 || got.Imports[0].Signature.String() != "(i32 i64) -> ()" {
		t.Errorf("imports %+v", got.Imports)
	}
	if len(got.Exports) != 2 || got.Exports[1].Signature.String() != "(f32) -> (v128)" || got.Exports[0].Kind != fuel.Memory {
		t.Errorf("exports %+v", got.Exports)
	}
	if got.MinPages != 2 || got.Functions != 1 || got.Start {
		t.Errorf("%+v", got)
	}
	if len(got.Custom) != 3 || string(got.Custom[0].Data) != "text" {
		t.Errorf("custom sections %+v", got.Custom)
	}
	if !bytes.Contains(got.Binary, []byte("text")) || bytes.Contains(got.Binary, []byte("positions")) || bytes.Contains(got.Binary, []byte("\x04name")) {
		t.Error("custom sections must stay, but for those about positions in code and names that announce what is not there")
	}
}

// FuzzRewrite holds the rewriter against wazero's validation and the second reader: what is valid stays valid, and what is not supported here is not there either.
func FuzzRewrite(f *testing.F) {
	for seed := range 20 {
		f.Add(rapid.Custom(func(t *rapid.T) []byte {
			module, _ := drawModule(t)
			return module
		}).Example(seed))
	}
	f.Fuzz(func(t *testing.T, module []byte) {
		m, err := fuel.Rewrite(module, fuel.Options{Global: counter, Initial: initial})
		if err != nil && (!strings.Contains(err.Error(), "code section, function") || !strings.Contains(err.Error(), "supported")) {
			return // wazero would make room for whatever the module announces
		}
		if err == nil && dropped(split(module), split(m.Binary)) {
			return // names that are left out, for the same reason
		}
		ctx := t.Context()
		rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
		defer func() { _ = rt.Close(ctx) }()
		if _, bad := rt.CompileModule(ctx, module); bad != nil {
			return
		}
		if err != nil {
			t.Fatalf("a valid module is refused: %v", err)
		}
		if _, err := rt.CompileModule(ctx, m.Binary); err != nil {
			t.Fatalf("a valid module became invalid: %v", err)
		}
		if why := compare(module, m.Binary, counter, initial); why != "" {
			t.Fatal(why)
		}
	})
}

// dropped reports whether custom sections are missing.
func dropped(before, after []part) bool {
	n := 0
	for _, p := range before {
		if p.id == 0 {
			n++
		}
	}
	for _, p := range after {
		if p.id == 0 {
			n--
		}
	}
	return n != 0
}
