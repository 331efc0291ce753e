package fuel_test

import (
	"fmt"

	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"pgregory.net/rapid"
)

// generator draws modules that are valid and end: loops run a few times each, calls go to functions before.
type generator struct {
	t       *rapid.T
	m       asm.Module
	earlier int    // functions of type (i32 i64) -> i32
	locals  []byte // of the function being drawn
	budget  int
}

// The locals of every function: its parameters, then scratch of each type, then counters of loops.
const (
	paramI32, paramI64   = 0, 1
	scratchI32           = 2
	scratchI64           = 3
	scratchF64           = 4
	scratchV128          = 5
	firstCounter         = 6
	maxGeneratedDepth    = 4
	generatedPages       = 1
	generatedAddressMask = 0x7fff
)

// drawModule draws a module that exports functions f0, f1 ... of type (i32 i64) -> i32, and a memory.
func drawModule(t *rapid.T) ([]byte, int) {
	g := &generator{t: t}
	g.m.Memory(generatedPages, 4)
	g.m.Table(8)
	g.m.Global(asm.I32, asm.I32Const(7))
	if rapid.Bool().Draw(t, "data") {
		g.m.Data(16, []byte("some bytes to begin with"))
	}
	n := rapid.IntRange(1, 4).Draw(t, "functions")
	elements := make([]uint32, 0, n)
	for i := range n {
		g.locals, g.budget = []byte{asm.I32, asm.I64, asm.F64, asm.V128}, 60
		code := asm.Join(g.statements(0), g.i32(0))
		f := g.m.Func([]byte{asm.I32, asm.I64}, []byte{asm.I32}, g.locals, code)
		g.m.Export(fmt.Sprintf("f%d", i), asm.Function, f)
		elements = append(elements, f)
		g.earlier++
	}
	g.m.Export("memory", asm.Memory, 0)
	g.m.Element(elements...)
	if rapid.Bool().Draw(t, "start") {
		g.m.Start(g.m.Func(nil, nil, nil, asm.I32Const(3), asm.GlobalSet(0)))
	}
	g.m.Custom("name", []byte{0, 2, 1, 'm'})
	return g.m.Bytes(), n
}

func (g *generator) pick(what string, n int) int {
	g.budget--
	if g.budget < 0 {
		return 0
	}
	return rapid.IntRange(0, n-1).Draw(g.t, what)
}

// statements leaves the stack as it was.
func (g *generator) statements(depth int) []byte {
	var out []byte
	for range g.pick("statements", 4) {
		out = append(out, g.statement(depth)...)
	}
	return out
}

func (g *generator) statement(depth int) []byte {
	if depth >= maxGeneratedDepth {
		return asm.Op(0x01)
	}
	switch g.pick("statement", 13) {
	case 0:
		return asm.Join(g.i32(depth+1), asm.LocalSet(scratchI32))
	case 1:
		return asm.Join(g.i64(depth+1), asm.LocalSet(scratchI64))
	case 2:
		return asm.Join(g.f64(depth+1), asm.LocalSet(scratchF64))
	case 3:
		return asm.Join(g.v128(depth+1), asm.LocalSet(scratchV128))
	case 4:
		return asm.Join(g.address(depth+1), g.i32(depth+1), asm.With(0x36, 2, uint32(g.pick("offset", 99)))) // i32.store
	case 5:
		return g.loop(depth)
	case 6:
		return asm.Join(g.i32(depth+1), asm.If(0x40, g.statements(depth+1), asm.Op(0x05), g.statements(depth+1)))
	case 7:
		return asm.Block(0x40, g.statements(depth+1), g.i32(depth+1), asm.BrIf(0), g.statements(depth+1))
	case 8:
		return g.branchTable(depth)
	case 9: // memory.fill
		return asm.Join(g.address(depth+1), g.i32(depth+1), g.length(depth+1), asm.Op(0xfc, 11, 0))
	case 10: // memory.copy
		return asm.Join(g.address(depth+1), g.address(depth+1), g.length(depth+1), asm.Op(0xfc, 10, 0, 0))
	case 11:
		return asm.Join(g.i32(depth+1), asm.GlobalSet(0))
	case 12: // code that is never reached, with a loop and a stretch in it
		return asm.Block(0x40, asm.Br(0), asm.Loop(0x40, asm.Op(0x00), asm.Op(0xfc, 11, 0)), asm.Op(0x40, 0, 0x1a))
	}
	return nil
}

// loop counts a local of its own down from a few.
func (g *generator) loop(depth int) []byte {
	counter := uint32(firstCounter + len(g.locals) - 4)
	g.locals = append(g.locals, asm.I32)
	return asm.Join(
		asm.I32Const(int32(g.pick("rounds", 5))), asm.LocalSet(counter),
		asm.Loop(0x40, g.statements(depth+1),
			asm.LocalGet(counter), asm.I32Const(1), asm.Op(0x6b), asm.LocalTee(counter), asm.I32Const(0), asm.Op(0x4a), asm.BrIf(0)))
}

func (g *generator) branchTable(depth int) []byte {
	return asm.Block(0x40, g.statements(depth+1), asm.Block(0x40, g.i32(depth+1), asm.Op(0x0e, 2, 0, 1, 0)), g.statements(depth+1))
}

// address puts an address within memory on the stack.
func (g *generator) address(depth int) []byte {
	return asm.Join(g.i32(depth), asm.I32Const(generatedAddressMask), asm.Op(0x71))
}

func (g *generator) length(depth int) []byte {
	return asm.Join(g.i32(depth), asm.I32Const(0xfff), asm.Op(0x71))
}

func (g *generator) i32(depth int) []byte {
	if depth > maxGeneratedDepth {
		return asm.LocalGet(paramI32)
	}
	switch g.pick("i32", 15) {
	case 0:
		return asm.I32Const(int32(g.pick("constant", 1<<16)) - 1<<15)
	case 1:
		return asm.LocalGet(uint32(rapid.SampledFrom([]int{paramI32, scratchI32}).Draw(g.t, "local")))
	case 2:
		ops := []byte{0x6a, 0x6b, 0x6c, 0x71, 0x72, 0x73, 0x74, 0x75, 0x77, 0x46, 0x48, 0x4f}
		return asm.Join(g.i32(depth+1), g.i32(depth+1), asm.Op(rapid.SampledFrom(ops).Draw(g.t, "op")))
	case 3:
		return asm.Join(g.address(depth+1), asm.With(0x28, 2, 4)) // i32.load
	case 4:
		return asm.Join(g.i64(depth+1), asm.Op(0xa7)) // wrap
	case 5:
		return asm.GlobalGet(0)
	case 6:
		if g.earlier == 0 {
			return asm.Op(0x3f, 0) // memory.size
		}
		return asm.Join(g.i32(depth+1), g.i64(depth+1), asm.Call(uint32(g.pick("callee", g.earlier))))
	case 7:
		if g.earlier == 0 {
			return asm.LocalGet(paramI32)
		}
		// All functions have type 0; a slot without one traps, in both modules alike.
		slot := g.pick("slot", g.earlier+1)
		if slot == g.earlier {
			slot = 7
		}
		return asm.Join(g.i32(depth+1), g.i64(depth+1), asm.I32Const(int32(slot)), asm.Op(0x11, 0, 0))
	case 8:
		return asm.Join(g.i32(depth+1), asm.If(asm.I32, g.i32(depth+1), asm.Op(0x05), g.i32(depth+1)))
	case 9:
		return asm.Join(g.f64(depth+1), asm.Op(0xfc, 2)) // saturating conversion
	case 10:
		return asm.Join(g.i32(depth+1), asm.Op(0xc0)) // extend8_s
	case 11:
		return asm.Join(g.v128(depth+1), asm.Op(0xfd, 27, 2)) // i32x4.extract_lane
	case 12:
		return asm.Join(asm.I32Const(int32(g.pick("pages", 3))), asm.Op(0x40, 0)) // memory.grow
	case 13:
		return asm.Join(g.i32(depth+1), g.i32(depth+1), g.i32(depth+1), asm.Op(0x1c, 1, asm.I32)) // select with a type
	case 14: // a division, which may trap
		return asm.Join(g.i32(depth+1), g.i32(depth+1), asm.Op(0x6d))
	}
	return nil
}

func (g *generator) i64(depth int) []byte {
	if depth > maxGeneratedDepth {
		return asm.LocalGet(paramI64)
	}
	switch g.pick("i64", 5) {
	case 0:
		return asm.I64Const(int64(g.pick("constant", 1<<20)) << 20)
	case 1:
		return asm.Join(g.i32(depth+1), asm.Op(0xad))
	case 2:
		return asm.Join(g.i64(depth+1), g.i64(depth+1), asm.Op(rapid.SampledFrom([]byte{0x7c, 0x7d, 0x7e, 0x83, 0x85}).Draw(g.t, "op")))
	case 3:
		return asm.LocalGet(scratchI64)
	case 4:
		return asm.Join(g.address(depth+1), asm.With(0x29, 3, 8)) // i64.load
	}
	return nil
}

func (g *generator) f64(depth int) []byte {
	if depth > maxGeneratedDepth {
		return asm.F64Const(1.5)
	}
	switch g.pick("f64", 4) {
	case 0:
		return asm.F64Const(float64(g.pick("constant", 999)) / 8)
	case 1:
		return asm.Join(g.i32(depth+1), asm.Op(0xb7))
	case 2:
		return asm.Join(g.f64(depth+1), g.f64(depth+1), asm.Op(rapid.SampledFrom([]byte{0xa0, 0xa1, 0xa2}).Draw(g.t, "op")))
	case 3:
		return asm.LocalGet(scratchF64)
	}
	return nil
}

func (g *generator) v128(depth int) []byte {
	if depth > maxGeneratedDepth {
		return asm.LocalGet(scratchV128)
	}
	switch g.pick("v128", 6) {
	case 0:
		return append([]byte{0xfd, 12}, []byte("sixteen bytes...")...)
	case 1:
		return asm.Join(g.i32(depth+1), asm.Op(0xfd, 17)) // i32x4.splat
	case 2:
		return asm.Join(g.v128(depth+1), g.v128(depth+1), asm.Op(0xfd, 0xae, 1)) // i32x4.add
	case 3:
		return asm.Join(g.address(depth+1), asm.Op(0xfd, 0, 4, 16)) // v128.load
	case 4:
		return asm.Join(g.v128(depth+1), g.v128(depth+1), asm.Op(0xfd, 13, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31))
	case 5:
		return asm.Join(g.address(depth+1), g.v128(depth+1), asm.Op(0xfd, 84, 0, 1, 3)) // v128.load8_lane
	}
	return nil
}
