package fuel

// operands passes what follows an opcode, as far as it has no meaning for charging, and notes stretches. What is not in the supported specification is
// refused.
func (f *function) operands(at int, op byte) {
	r := &f.w.r
	switch {
	case op == 0x00, op == 0x01, op == 0x0f, op == 0x1a, op == 0x1b, op >= 0x45 && op <= 0xc4, op == 0xd1:
	case op == 0x0c, op == 0x0d, op == 0x10, op >= 0x20 && op <= 0x26, op == 0xd2: // branches, calls, variables, ref.func
		r.u32()
	case op == 0x0e: // br_table
		for n := r.count("branches", f.w.limits.BodyBytes) + 1; n > 0 && r.err == nil; n-- {
			r.u32()
		}
	case op == 0x11: // call_indirect
		r.u32()
		r.u32()
	case op == 0x1c: // select with types
		for n := r.count("types", maxArity); n > 0 && r.err == nil; n-- {
			f.w.valueType()
		}
	case op >= 0x28 && op <= 0x3e:
		f.memoryOperand()
	case op == 0x3f: // memory.size
		r.byte()
	case op == 0x41:
		r.skipLEB(5)
	case op == 0x42:
		r.skipLEB(10)
	case op == 0x43:
		r.skip(4)
	case op == 0x44:
		r.skip(8)
	case op == 0xd0: // ref.null
		f.w.valueType()
	case op == 0xfc:
		f.miscellaneous(at)
	case op == 0xfd:
		f.vector()
	default:
		r.fail("instruction %#x%s is not supported", op, feature(op))
	}
}

// feature names what an opcode belongs to.
func feature(op byte) string {
	switch op {
	case 0x12, 0x13:
		return " (tail calls)"
	case 0x06, 0x07, 0x08, 0x09, 0x0a, 0x18, 0x19, 0x1f:
		return " (exceptions)"
	case 0x14, 0x15, 0xd3, 0xd4, 0xd5, 0xd6:
		return " (typed function references)"
	case 0xfb:
		return " (garbage-collected types)"
	case 0xfe:
		return " (threads)"
	}
	return ""
}

func (f *function) memoryOperand() {
	f.w.r.u32()
	f.w.r.u32()
}

// miscellaneous reads the instructions behind the prefix 0xfc.
func (f *function) miscellaneous(at int) {
	r := &f.w.r
	sub := r.u32()
	switch sub {
	case 0, 1, 2, 3, 4, 5, 6, 7: // saturating conversions
	case 8: // memory.init
		r.u32()
		r.byte()
		f.stretch(at, 1, bytesPerFuelShift)
	case 9, 13, 16: // data.drop, elem.drop, table.size
		r.u32()
	case 10: // memory.copy
		r.byte()
		r.byte()
		f.stretch(at, 1, bytesPerFuelShift)
	case 11: // memory.fill
		r.byte()
		f.stretch(at, 1, bytesPerFuelShift)
	case 12, 14: // table.init, table.copy
		r.u32()
		r.u32()
		f.stretch(at, 1, 0)
	case 15, 17: // table.grow, table.fill
		r.u32()
		f.stretch(at, 1, 0)
	default:
		r.fail("instruction 0xfc %d is not supported", sub)
	}
}

// The last instruction of 128-bit SIMD; behind it stand those of relaxed SIMD.
const lastVector = 0xff

// vector reads the instructions behind the prefix 0xfd.
func (f *function) vector() {
	r := &f.w.r
	sub := r.u32()
	switch {
	case sub <= 11, sub == 92, sub == 93:
		f.memoryOperand()
	case sub == 12, sub == 13: // v128.const, shuffle
		r.skip(16)
	case sub >= 21 && sub <= 34: // lanes
		r.byte()
	case sub >= 84 && sub <= 91: // loads and stores of lanes
		f.memoryOperand()
		r.byte()
	case sub <= lastVector:
	default:
		r.fail("instruction 0xfd %#x (relaxed SIMD) is not supported", sub)
	}
}
