package fuel

import (
	"fmt"
	"strings"
)

// Options of a rewriting.
type Options struct {
	Global  string // the name under which the counter is exported
	Initial int64  // what the counter holds at first: what instantiating may use, with the start function
	Limits  Limits
}

// rewriter is the state of one rewriting.
type rewriter struct {
	r       reader
	options Options
	limits  Limits
	module  Module

	types           []Signature
	functions       []Signature // by index, imported ones first
	imported        int
	importedGlobals int
	globals         int // defined ones
	globalsFrom     int // where the first begins
	exports         int
	exportsFrom     int

	locals  int    // of all functions so far
	counter uint32 // index of the global
	out     []byte
}

// Rewrite returns the module with fuel charged. It keeps no reference to the binary but the data of custom sections.
func Rewrite(binary []byte, o Options) (*Module, error) {
	w := &rewriter{options: o, limits: o.Limits.orDefault()}
	w.r = reader{b: binary, end: len(binary)}
	sections := w.sections()
	var code *section
	for i := range sections {
		if w.r.err != nil {
			return nil, w.r.err
		}
		if sections[i].id == sectionCode {
			code = &sections[i]
			continue
		}
		w.read(sections[i])
	}
	if w.r.err != nil {
		return nil, w.r.err
	}
	w.counter = uint32(w.importedGlobals + w.globals)
	w.module.Functions = len(w.functions) - w.imported
	if code == nil && w.module.Functions > 0 {
		w.r.where = "end"
		w.r.fail("there are %d functions and no code section", w.module.Functions)
		return nil, w.r.err
	}
	w.write(sections)
	if w.r.err != nil {
		return nil, w.r.err
	}
	w.module.Binary = w.out
	return &w.module, nil
}

// write puts the module together: sections as they came, but for those of globals, exports and code.
func (w *rewriter) write(sections []section) {
	w.out = make([]byte, 0, len(w.r.b)+len(w.r.b)/2+64)
	w.out = append(w.out, w.r.b[:8]...)
	wroteGlobals, wroteExports := false, false
	for _, s := range sections {
		if s.id != sectionCustom {
			if !wroteGlobals && rank(s.id) >= rank(sectionGlobal) {
				w.writeGlobals(s)
				wroteGlobals = true
			}
			if !wroteExports && rank(s.id) >= rank(sectionExport) {
				w.writeExports(s)
				wroteExports = true
			}
		}
		switch s.id {
		case sectionGlobal, sectionExport:
		case sectionCode:
			w.section(s.id, w.code(s))
		case sectionCustom:
			if !w.stale(s) {
				w.section(s.id, w.r.b[s.from:s.to])
			}
		default:
			w.section(s.id, w.r.b[s.from:s.to])
		}
		if w.r.err != nil {
			return
		}
	}
	if !wroteGlobals {
		w.writeGlobals(section{})
	}
	if !wroteExports {
		w.writeExports(section{})
	}
}

func (w *rewriter) section(id byte, content []byte) {
	w.out = append(w.out, id)
	w.out = appendU32(w.out, uint32(len(content)))
	w.out = append(w.out, content...)
}

// stale reports whether a custom section speaks of positions in the code, or is one of names that is not in order.
func (w *rewriter) stale(s section) bool {
	r := reader{b: w.r.b, at: s.from, end: s.to}
	name := r.name()
	if name == "name" {
		return !wellNamed(w.r.b, r.at, r.end)
	}
	return strings.HasPrefix(name, ".debug_") || strings.HasPrefix(name, "reloc.") || name == "linking" || name == "sourceMappingURL"
}

// writeGlobals writes the section of globals with the counter as the last. next is the section that would follow, or the section itself.
func (w *rewriter) writeGlobals(next section) {
	content := appendU32(nil, uint32(w.globals+1))
	if next.id == sectionGlobal {
		content = append(content, w.r.b[w.globalsFrom:next.to]...)
	}
	content = append(content, 0x7e, 1, opI64Const) // i64, mutable
	content = appendS64(content, w.options.Initial)
	w.section(sectionGlobal, append(content, opEnd))
}

func (w *rewriter) writeExports(next section) {
	content := appendU32(nil, uint32(w.exports+1))
	if next.id == sectionExport {
		content = append(content, w.r.b[w.exportsFrom:next.to]...)
	}
	content = appendU32(content, uint32(len(w.options.Global)))
	content = append(content, w.options.Global...)
	content = append(content, byte(Global))
	w.section(sectionExport, appendU32(content, w.counter))
}

// code returns the new content of the code section.
func (w *rewriter) code(s section) []byte {
	r := &w.r
	r.at, r.end, r.where = s.from, len(r.b), "code section"
	var out []byte
	r.within(s.to-s.from, func() {
		n := r.count("functions", w.limits.Functions)
		if n != w.module.Functions {
			r.fail("%d bodies for %d functions", n, w.module.Functions)
			return
		}
		out = make([]byte, 0, (s.to-s.from)*3/2)
		out = appendU32(out, uint32(n))
		f := &function{w: w}
		for i := range n {
			r.where = fmt.Sprintf("code section, function %d", w.imported+i)
			size := int(r.u32())
			if size > w.limits.BodyBytes {
				r.fail("a body of %d bytes, at most %d are allowed", size, w.limits.BodyBytes)
				return
			}
			r.within(size, func() { f.rewrite(len(w.functions[w.imported+i].Params)) })
			if r.err != nil {
				return
			}
			out = appendU32(out, uint32(len(f.out)))
			out = append(out, f.out...)
		}
	})
	return out
}
