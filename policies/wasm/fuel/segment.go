package fuel

// A decoder that believes the lengths in a module makes room for what a few bytes announce. So the lengths of all lists are held to what is there, also in sections that
// go through as they are.

const (
	maxSegments    = 65536
	maxElements    = 1 << 18 // in all segments
	maxLocalsInAll = 1 << 20 // of all functions
)

// readElements passes the element section.
func (w *rewriter) readElements() {
	left := maxElements
	w.each("element segments", maxSegments, func() {
		r := &w.r
		form := r.u32()
		if form > 7 {
			r.fail("an element segment of form %d is not supported", form)
			return
		}
		if form&1 == 0 { // active
			if form&2 != 0 {
				r.u32()
			}
			w.constant()
		}
		expressions := form&4 != 0
		if form&3 != 0 {
			r.byte() // kind or type
		}
		n := r.count("elements", min(left, r.end-r.at))
		left -= n
		for ; n > 0 && r.err == nil; n-- {
			if expressions {
				w.constant()
			} else {
				r.u32()
			}
		}
	})
}

// readData passes the data section.
func (w *rewriter) readData() {
	w.each("data segments", maxSegments, func() {
		r := &w.r
		form := r.u32()
		switch form {
		case 0, 2:
			if form == 2 {
				r.u32()
			}
			w.constant()
		case 1:
		default:
			r.fail("a data segment of form %d is not supported", form)
			return
		}
		r.skip(r.count("bytes of data", r.end-r.at))
	})
}

// constant passes a constant expression.
func (w *rewriter) constant() {
	r := &w.r
	for r.err == nil {
		switch op := r.byte(); op {
		case opEnd:
			return
		case 0x41:
			r.skipLEB(5)
		case opI64Const:
			r.skipLEB(10)
		case 0x43:
			r.skip(4)
		case 0x44:
			r.skip(8)
		case opGlobalGet, 0xd2:
			r.u32()
		case 0xd0:
			w.valueType()
		case 0xfd:
			if sub := r.u32(); sub != 12 {
				r.fail("instruction 0xfd %d is not supported in a constant", sub)
			}
			r.skip(16)
		default:
			r.fail("instruction %#x is not supported in a constant", op)
		}
	}
}

// wellNamed reports whether the content of a name section is in order.
func wellNamed(b []byte, from, to int) bool {
	r := &reader{b: b, at: from, end: to}
	for r.more() {
		id := r.byte()
		r.within(int(r.u32()), func() {
			switch id {
			case 0:
				r.name()
			case 1:
				r.names()
			case 2:
				for n := r.count("functions", r.end-r.at); n > 0 && r.err == nil; n-- {
					r.u32()
					r.names()
				}
			default:
				r.at = r.end
			}
		})
	}
	return r.err == nil
}

// names passes a map from numbers to names.
func (r *reader) names() {
	for n := r.count("names", r.end-r.at); n > 0 && r.err == nil; n-- {
		r.u32()
		r.name()
	}
}
