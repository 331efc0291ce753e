package fuel_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// This file is a second reader of modules, written apart from the first: instructions are a table of operand letters, bodies are lists of instructions. It
// says what a rewritten module must look like, given the original.

// instruction is one instruction, whole.
type instruction struct {
	name string // the opcode as hex, with the sub-opcode
	raw  []byte
}

// operands: n LEB128 number, 1 byte, 4 8 and x (16) bytes, t table of branches, s list of bytes.
var operands = func() map[string]string {
	m := map[string]string{}
	set := func(letters string, from, to int) {
		for op := from; op <= to; op++ {
			m[fmt.Sprintf("%02x", op)] = letters
		}
	}
	set("", 0x00, 0x01)
	set("n", 0x02, 0x04)
	set("", 0x05, 0x05)
	set("", 0x0b, 0x0b)
	set("n", 0x0c, 0x0d)
	set("t", 0x0e, 0x0e)
	set("", 0x0f, 0x0f)
	set("n", 0x10, 0x10)
	set("nn", 0x11, 0x11)
	set("", 0x1a, 0x1b)
	set("s", 0x1c, 0x1c)
	set("n", 0x20, 0x26)
	set("nn", 0x28, 0x3e)
	set("1", 0x3f, 0x40)
	set("n", 0x41, 0x42)
	set("4", 0x43, 0x43)
	set("8", 0x44, 0x44)
	set("", 0x45, 0xc4)
	set("1", 0xd0, 0xd0)
	set("", 0xd1, 0xd1)
	set("n", 0xd2, 0xd2)
	for sub, letters := range map[int]string{8: "n1", 9: "n", 10: "11", 11: "1", 12: "nn", 13: "n", 14: "nn", 15: "n", 16: "n", 17: "n"} {
		m[fmt.Sprintf("fc%d", sub)] = letters
	}
	for sub := range 8 {
		m[fmt.Sprintf("fc%d", sub)] = ""
	}
	for sub := range 256 {
		letters := ""
		switch {
		case sub < 12, sub == 92, sub == 93:
			letters = "nn"
		case sub < 14:
			letters = "x"
		case sub > 20 && sub < 35:
			letters = "1"
		case sub > 83 && sub < 92:
			letters = "nn1"
		}
		m[fmt.Sprintf("fd%d", sub)] = letters
	}
	return m
}()

func number(b []byte) (uint64, int) { return binary.Uvarint(b) }

// leb is the length of a LEB128 number.
func leb(b []byte) int {
	n := 1
	for b[n-1] >= 0x80 {
		n++
	}
	return n
}

// decode splits code into instructions.
func decode(code []byte) []instruction {
	var list []instruction
	for len(code) > 0 {
		name, at := fmt.Sprintf("%02x", code[0]), 1
		if code[0] == 0xfc || code[0] == 0xfd {
			sub, n := number(code[1:])
			name, at = fmt.Sprintf("%02x%d", code[0], sub), 1+n
		}
		letters, known := operands[name]
		if !known {
			panic("the second reader does not know " + name)
		}
		for _, letter := range letters {
			switch letter {
			case 'n':
				at += leb(code[at:])
			case '1':
				at++
			case '4':
				at += 4
			case '8':
				at += 8
			case 'x':
				at += 16
			case 's':
				n, w := number(code[at:])
				at += w + int(n)
			case 't':
				n, w := number(code[at:])
				at += w
				for range n + 1 {
					at += leb(code[at:])
				}
			}
		}
		list = append(list, instruction{name, code[:at]})
		code = code[at:]
	}
	return list
}

// part is one section.
type part struct {
	id      byte
	content []byte
}

func split(module []byte) []part {
	var list []part
	for b := module[8:]; len(b) > 0; {
		n, w := number(b[1:])
		list = append(list, part{b[0], b[1+w : 1+w+int(n)]})
		b = b[1+w+int(n):]
	}
	return list
}

func find(parts []part, id byte) []byte {
	for _, p := range parts {
		if p.id == id {
			return p.content
		}
	}
	return nil
}

// body is one function: its parameters, the bytes that declare its locals, how many these are, and its instructions.
type body struct {
	params, locals int
	groups         uint64
	declared       []byte
	code           []instruction
}

// bodies reads all functions of a module.
func bodies(module []byte) []body {
	parts := split(module)
	types := paramCounts(find(parts, 1))
	var list []body
	functions := find(parts, 3)
	if len(functions) > 0 {
		functions = functions[leb(functions):]
	}
	code := find(parts, 10)
	if len(code) == 0 {
		return nil
	}
	n, w := number(code)
	code = code[w:]
	for range n {
		t, tw := number(functions)
		functions = functions[tw:]
		size, sw := number(code)
		list = append(list, readBody(types[t], code[sw:sw+int(size)]))
		code = code[sw+int(size):]
	}
	return list
}

func readBody(params int, raw []byte) body {
	groups, w := number(raw)
	at := w
	locals := 0
	for range groups {
		n, nw := number(raw[at:])
		locals += int(n)
		at += nw + 1
	}
	return body{params: params, locals: locals, groups: groups, declared: raw[w:at], code: decode(raw[at:])}
}

func paramCounts(types []byte) []int {
	if len(types) == 0 {
		return nil
	}
	n, w := number(types)
	types = types[w:]
	var counts []int
	for range n {
		types = types[1:]
		for i := range 2 {
			k, kw := number(types)
			types = types[kw+int(k):]
			if i == 0 {
				counts = append(counts, int(k))
			}
		}
	}
	return counts
}

// importedGlobals counts them the slow way.
func importedGlobals(imports []byte) int {
	if len(imports) == 0 {
		return 0
	}
	n, w := number(imports)
	b := imports[w:]
	globals := 0
	limits := func() {
		flags := b[0]
		b = b[1:]
		b = b[leb(b):]
		if flags&1 != 0 {
			b = b[leb(b):]
		}
	}
	for range n {
		for range 2 {
			k, kw := number(b)
			b = b[kw+int(k):]
		}
		kind := b[0]
		b = b[1:]
		switch kind {
		case 0:
			b = b[leb(b):]
		case 1:
			b = b[1:]
			limits()
		case 2:
			limits()
		case 3:
			b = b[2:]
			globals++
		}
	}
	return globals
}

// expected is the code that a body must have become, its counter being a global of the given index.
func expected(b *body, counter int) []byte {
	cost := costs(b)
	left, length := uint32(b.params+b.locals), uint32(b.params+b.locals+1)
	take := func(amount ...byte) []byte {
		out := binary.AppendUvarint([]byte{0x23}, uint64(counter))
		out = append(append(out, amount...), 0x7d)
		out = binary.AppendUvarint(append(out, 0x22), uint64(left))
		out = binary.AppendUvarint(append(out, 0x24), uint64(counter))
		out = binary.AppendUvarint(append(out, 0x20), uint64(left))
		return append(out, 0x42, 0, 0x53, 0x04, 0x40, 0x00, 0x0b)
	}
	stretch := func(amount ...byte) []byte {
		get := binary.AppendUvarint([]byte{0x20}, uint64(length))
		return append(binary.AppendUvarint([]byte{0x22}, uint64(length)), take(append(append(get, 0xad), amount...)...)...)
	}
	out := take(constant(cost[-1])...)
	for i, in := range b.code {
		switch in.name {
		case "fc8", "fc10", "fc11":
			out = append(out, stretch(0x42, 3, 0x88)...)
		case "fc12", "fc14", "fc15", "fc17":
			out = append(out, stretch()...)
		case "40":
			out = append(out, stretch(append(constant(8192), 0x7e)...)...)
		}
		out = append(out, in.raw...)
		if in.name == "03" {
			out = append(out, take(constant(cost[i])...)...)
		}
	}
	return out
}

func constant(v int) []byte {
	out := []byte{0x42}
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 {
			return append(out, c)
		}
		out = append(out, c|0x80)
	}
}

// costs finds the cost of every loop by the index of its instruction, and of the function at -1.
func costs(b *body) map[int]int {
	cost := map[int]int{-1: 1 + b.locals/8}
	owner := []int{-1}
	for i, in := range b.code {
		switch in.name {
		case "03":
			owner = append(owner, i)
		case "02", "04":
			owner = append(owner, owner[len(owner)-1])
		case "0b":
			owner = owner[:len(owner)-1]
		}
		if in.name != "0b" && in.name != "05" {
			cost[owner[len(owner)-1]]++
		}
	}
	return cost
}

// compare says how a rewritten module differs from what it must be, "" if it does not.
func compare(original, rewritten []byte, name string, initial int64) string {
	before, after := split(original), split(rewritten)
	for _, id := range []byte{1, 2, 3, 4, 5, 8, 9, 11, 12} {
		if !bytes.Equal(find(before, id), find(after, id)) {
			return fmt.Sprintf("section %d changed", id)
		}
	}
	defined := 0
	if g := find(before, 6); len(g) > 0 {
		n, _ := number(g)
		defined = int(n)
	}
	counter := importedGlobals(find(before, 2)) + defined
	if why := lastGlobal(find(before, 6), find(after, 6), initial); why != "" {
		return why
	}
	export := append(binary.AppendUvarint(nil, uint64(len(name))), name...)
	export = binary.AppendUvarint(append(export, 3), uint64(counter))
	if !bytes.HasSuffix(find(after, 7), export) {
		return "the counter is not the last export"
	}
	was, is := bodies(original), bodies(rewritten)
	if len(was) != len(is) {
		return "the number of functions changed"
	}
	for i := range was {
		var code []byte
		for _, in := range is[i].code {
			code = append(code, in.raw...)
		}
		if want := expected(&was[i], counter); !bytes.Equal(code, want) {
			return fmt.Sprintf("function %d is\n%x\nwant\n%x", i, code, want)
		}
		if !bytes.HasPrefix(is[i].declared, was[i].declared) {
			return fmt.Sprintf("function %d: its own locals changed", i)
		}
	}
	return ""
}

func lastGlobal(before, after []byte, initial int64) string {
	want := append([]byte{0x7e, 1, 0x42}, signed(initial)...)
	want = append(want, 0x0b)
	if len(before) > 0 {
		want = append(bytes.Clone(before[leb(before):]), want...)
	}
	if !bytes.Equal(after[leb(after):], want) {
		return fmt.Sprintf("globals are %x, want %x", after, want)
	}
	return ""
}

func signed(v int64) []byte {
	var out []byte
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(out, c)
		}
		out = append(out, c|0x80)
	}
}
