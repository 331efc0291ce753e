// Package assembler puts WebAssembly modules together for tests: small ones that no compiler would make, and wrong ones.
//
// It checks nothing. Sections appear in the order of the specification, with whatever their parts were told. It is for one goroutine.
package assembler

import (
	"encoding/binary"
	"math"
)

// Value types.
const (
	I32  = 0x7f
	I64  = 0x7e
	F32  = 0x7d
	F64  = 0x7c
	V128 = 0x7b
)

// Kinds of imports and exports.
const (
	Function = iota
	Table
	Memory
	Global
)

// Module is a module that is being put together. The zero value is an empty one.
type Module struct {
	types, imports, functions, tables, memories, globals, exports, elements, code, data list
	start                                                                               []byte
	custom                                                                              []byte
	imported                                                                            uint32
}

type list struct {
	n uint32
	b []byte
}

func (l *list) add(b ...[]byte) uint32 {
	for _, part := range b {
		l.b = append(l.b, part...)
	}
	l.n++
	return l.n - 1
}

// Type adds a function type and returns its index.
func (m *Module) Type(params, results []byte) uint32 {
	return m.types.add([]byte{0x60}, Vector(params), Vector(results))
}

// Import adds an imported function and returns its index. Imports go before functions.
func (m *Module) Import(module, name string, params, results []byte) uint32 {
	m.imports.add(Name(module), Name(name), []byte{Function}, U32(m.Type(params, results)))
	m.imported++
	return m.imported - 1
}

// ImportRaw adds an import of any kind: what follows the kind as bytes.
func (m *Module) ImportRaw(module, name string, kind byte, description ...byte) {
	m.imports.add(Name(module), Name(name), []byte{kind}, description)
}

// Func adds a function with its locals, each of one type, and its code without the last end, and returns its index.
func (m *Module) Func(params, results, locals []byte, code ...[]byte) uint32 {
	t := m.Type(params, results)
	var groups list
	for _, l := range locals {
		groups.add([]byte{1, l})
	}
	body := append(U32(groups.n), groups.b...)
	for _, c := range code {
		body = append(body, c...)
	}
	m.functions.add(U32(t))
	return m.imported + m.code.add(Vector(append(body, 0x0b)))
}

// Table adds a table of functions.
func (m *Module) Table(least uint32) { m.tables.add([]byte{0x70, 0}, U32(least)) }

// Memory adds a memory; most below least is none.
func (m *Module) Memory(least, most uint32) {
	if most < least {
		m.memories.add([]byte{0}, U32(least))
		return
	}
	m.memories.add([]byte{1}, U32(least), U32(most))
}

// MemoryRaw adds a memory by its bytes.
func (m *Module) MemoryRaw(b ...byte) { m.memories.add(b) }

// Global adds a mutable global with a constant expression, and returns its index among those defined.
func (m *Module) Global(t byte, init []byte) uint32 {
	return m.globals.add([]byte{t, 1}, init, []byte{0x0b})
}

// Export exports something.
func (m *Module) Export(name string, kind byte, index uint32) {
	m.exports.add(Name(name), []byte{kind}, U32(index))
}

// Element fills the table from index 0 on.
func (m *Module) Element(functions ...uint32) {
	var l list
	for _, f := range functions {
		l.add(U32(f))
	}
	m.elements.add([]byte{0, 0x41, 0, 0x0b}, U32(l.n), l.b)
}

// Start names the start function.
func (m *Module) Start(f uint32) { m.start = U32(f) }

// Data puts bytes into memory at an address.
func (m *Module) Data(at int32, b []byte) {
	m.data.add([]byte{0}, I32Const(at), []byte{0x0b}, Vector(b))
}

// Custom adds a custom section; they stand at the end.
func (m *Module) Custom(name string, b []byte) {
	m.custom = append(m.custom, Section(0, append(Name(name), b...))...)
}

// Section is a whole section.
func Section(id byte, content []byte) []byte {
	return append([]byte{id}, Vector(content)...)
}

// Bytes returns the module.
func (m *Module) Bytes() []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	put := func(id byte, l *list) {
		if l.n > 0 {
			out = append(out, Section(id, append(U32(l.n), l.b...))...)
		}
	}
	put(1, &m.types)
	put(2, &m.imports)
	put(3, &m.functions)
	put(4, &m.tables)
	put(5, &m.memories)
	put(6, &m.globals)
	put(7, &m.exports)
	if m.start != nil {
		out = append(out, Section(8, m.start)...)
	}
	put(9, &m.elements)
	put(10, &m.code)
	put(11, &m.data)
	return append(out, m.custom...)
}

// U32 is an unsigned LEB128 number.
func U32(v uint32) []byte { return binary.AppendUvarint(nil, uint64(v)) }

// S64 is a signed LEB128 number.
func S64(v int64) []byte {
	var b []byte
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// Vector is bytes behind their number.
func Vector(b []byte) []byte { return append(U32(uint32(len(b))), b...) }

// Name is a string behind its length.
func Name(s string) []byte { return Vector([]byte(s)) }

// Op is instructions without operands.
func Op(ops ...byte) []byte { return ops }

// With is an instruction with numbers behind it.
func With(op byte, operands ...uint32) []byte {
	b := []byte{op}
	for _, o := range operands {
		b = append(b, U32(o)...)
	}
	return b
}

// I32Const and the others put a constant on the stack.
func I32Const(v int32) []byte { return append([]byte{0x41}, S64(int64(v))...) }

// I64Const puts a constant on the stack.
func I64Const(v int64) []byte { return append([]byte{0x42}, S64(v)...) }

// F32Const puts a constant on the stack.
func F32Const(v float32) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0x43}, math.Float32bits(v))
}

// F64Const puts a constant on the stack.
func F64Const(v float64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0x44}, math.Float64bits(v))
}

// Block, Loop and If open a block of a type (0x40: none) and close it behind the code.
func Block(blockType byte, code ...[]byte) []byte { return nest(0x02, blockType, code) }

// Loop is a loop.
func Loop(blockType byte, code ...[]byte) []byte { return nest(0x03, blockType, code) }

// If is a conditional block, with an else where the code has one.
func If(blockType byte, code ...[]byte) []byte { return nest(0x04, blockType, code) }

func nest(op, blockType byte, code [][]byte) []byte {
	b := []byte{op, blockType}
	for _, c := range code {
		b = append(b, c...)
	}
	return append(b, 0x0b)
}

// Join puts code together.
func Join(code ...[]byte) []byte {
	var b []byte
	for _, c := range code {
		b = append(b, c...)
	}
	return b
}

// LocalGet, LocalSet, LocalTee, GlobalGet, GlobalSet, Call, Br and BrIf are the instructions of those names.
func LocalGet(i uint32) []byte { return With(0x20, i) }

// LocalSet is local.set.
func LocalSet(i uint32) []byte { return With(0x21, i) }

// LocalTee is local.tee.
func LocalTee(i uint32) []byte { return With(0x22, i) }

// GlobalGet is global.get.
func GlobalGet(i uint32) []byte { return With(0x23, i) }

// GlobalSet is global.set.
func GlobalSet(i uint32) []byte { return With(0x24, i) }

// Call is call.
func Call(f uint32) []byte { return With(0x10, f) }

// Br is br.
func Br(depth uint32) []byte { return With(0x0c, depth) }

// BrIf is br_if.
func BrIf(depth uint32) []byte { return With(0x0d, depth) }
