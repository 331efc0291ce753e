package fuel

// The instructions that the rewriter writes, or looks for.
const (
	opUnreachable = 0x00
	opBlock       = 0x02
	opLoop        = 0x03
	opIf          = 0x04
	opElse        = 0x05
	opEnd         = 0x0b
	opLocalGet    = 0x20
	opLocalTee    = 0x22
	opGlobalGet   = 0x23
	opGlobalSet   = 0x24
	opMemoryGrow  = 0x40
	opI64Const    = 0x42
	opI64LtS      = 0x53
	opI64Sub      = 0x7d
	opI64Mul      = 0x7e
	opI64ShrU     = 0x88
	opExtendU     = 0xad // i64.extend_i32_u
	emptyType     = 0x40
)

const (
	bytesPerFuelShift = 3    // a stretch of memory costs an eighth of its bytes
	localsPerFuel     = 8    // what clearing locals costs
	fuelPerPage       = 8192 // 64 KiB at the price of a stretch
)

// charge is a point at which fuel is taken.
type charge struct {
	at   int   // in the module: before the byte there
	cost int64 // of entering the function or going round the loop
	// Of an instruction that works on a stretch: its length stands on the stack and costs by*length>>shift. 0: no such instruction.
	by, shift int64
}

// function rewrites one body after the other.
type function struct {
	w       *rewriter
	charges []charge
	open    []int // for every open block the charge that its instructions go to
	bulk    bool  // some charge is for a stretch
	locals  uint32
	out     []byte
}

// rewrite reads one body, which the reader is confined to, and leaves the new one in out.
func (f *function) rewrite(params int) {
	r := &f.w.r
	f.charges, f.open, f.bulk, f.out = f.charges[:0], f.open[:0], false, f.out[:0]
	from := r.at
	groups := f.readLocals(params)
	if r.err != nil {
		return
	}
	declared := r.at
	entry := int64(1) + int64(f.locals-uint32(params))/localsPerFuel
	f.charges = append(f.charges, charge{at: r.at, cost: entry})
	f.open = append(f.open, 0)
	for len(f.open) > 0 && r.err == nil {
		f.instruction()
	}
	if r.err != nil {
		return
	}
	f.write(from, declared, groups)
}

// readLocals passes the declarations of locals, and returns how many groups there are.
func (f *function) readLocals(params int) int {
	r := &f.w.r
	groups := r.count("groups of locals", f.w.limits.Locals)
	total := 0
	for range groups {
		total += r.count("locals", f.w.limits.Locals-total)
		f.w.valueType()
		if r.err != nil {
			return 0
		}
	}
	if f.w.locals += total; f.w.locals > maxLocalsInAll {
		r.fail("locals of all functions together are more than the %d that are allowed", maxLocalsInAll)
	}
	f.locals = uint32(params + total)
	return groups
}

// instruction reads one instruction and charges for it.
func (f *function) instruction() {
	r := &f.w.r
	at := r.at
	op := r.byte()
	innermost := f.open[len(f.open)-1]
	switch op {
	case opBlock, opIf:
		r.skipLEB(5)
		f.push(innermost)
	case opLoop:
		r.skipLEB(5)
		f.charges = append(f.charges, charge{at: r.at})
		innermost = len(f.charges) - 1
		f.push(innermost)
	case opEnd:
		f.open = f.open[:len(f.open)-1]
		return
	case opElse:
		return
	case opMemoryGrow:
		f.stretch(at, fuelPerPage, 0)
		r.byte()
	default:
		f.operands(at, op)
	}
	f.charges[innermost].cost++
}

func (f *function) push(charge int) {
	if len(f.open) >= f.w.limits.Depth {
		f.w.r.fail("blocks stand in one another deeper than %d", f.w.limits.Depth)
		return
	}
	f.open = append(f.open, charge)
}

func (f *function) stretch(at int, by, shift int64) {
	f.bulk = true
	f.charges = append(f.charges, charge{at: at, by: by, shift: shift})
}

// write puts the new body together: locals with ours, then the code with a charge before each of its points.
func (f *function) write(from, declared, groups int) {
	b := f.w.r.b
	ours := 1
	if f.bulk {
		ours = 2
	}
	f.out = appendU32(f.out, uint32(groups+ours))
	skip := reader{b: b, at: from, end: declared}
	skip.u32()
	f.out = append(f.out, b[skip.at:declared]...)
	f.out = append(f.out, 1, 0x7e)
	if f.bulk {
		f.out = append(f.out, 1, 0x7f)
	}
	at := declared
	for i := range f.charges {
		c := &f.charges[i]
		f.out = append(f.out, b[at:c.at]...)
		at = c.at
		f.take(c)
	}
	f.out = append(f.out, b[at:f.w.r.end]...)
}

// take writes the code that lowers the counter and traps below zero.
func (f *function) take(c *charge) {
	left, length := f.locals, f.locals+1
	o := f.out
	if c.by != 0 {
		o = appendU32(append(o, opLocalTee), length)
	}
	o = appendU32(append(o, opGlobalGet), f.w.counter)
	switch {
	case c.by == 0:
		o = appendS64(append(o, opI64Const), c.cost)
	case c.shift != 0:
		o = append(appendU32(append(o, opLocalGet), length), opExtendU)
		o = append(appendS64(append(o, opI64Const), c.shift), opI64ShrU)
	default:
		o = append(appendU32(append(o, opLocalGet), length), opExtendU)
		if c.by != 1 {
			o = append(appendS64(append(o, opI64Const), c.by), opI64Mul)
		}
	}
	o = append(o, opI64Sub)
	o = appendU32(append(o, opLocalTee), left)
	o = appendU32(append(o, opGlobalSet), f.w.counter)
	o = appendU32(append(o, opLocalGet), left)
	f.out = append(o, opI64Const, 0, opI64LtS, opIf, emptyType, opUnreachable, opEnd)
}
