package fuel

import "fmt"

// Limits bound what a module may have. The zero value of a field means that of DefaultLimits.
type Limits struct {
	Bytes         int // of the module
	Types         int
	Imports       int
	Functions     int
	Globals       int
	Exports       int
	Tables        int
	TableElements uint32 // that a table starts with, or may grow to
	MemoryPages   uint32 // that memory starts with
	BodyBytes     int    // of one function
	Locals        int    // of one function, parameters apart
	Depth         int    // of blocks in one another
}

// DefaultLimits hold what the toolchains of Go, TinyGo, Rust, C and AssemblyScript make of a policy several times over.
var DefaultLimits = Limits{
	Bytes: 8 << 20, Types: 4096, Imports: 64, Functions: 65536, Globals: 4096, Exports: 1024, Tables: 4, TableElements: 65536,
	MemoryPages: 1024, BodyBytes: 1 << 20, Locals: 8192, Depth: 16384,
}

const (
	maxNameBytes = 4096
	maxArity     = 1000 // parameters or results of a function
)

func (l Limits) orDefault() Limits {
	d := DefaultLimits
	for _, f := range []struct {
		to   *int
		from int
	}{
		{&l.Bytes, d.Bytes},
		{&l.Types, d.Types},
		{&l.Imports, d.Imports},
		{&l.Functions, d.Functions},
		{&l.Globals, d.Globals},
		{&l.Exports, d.Exports},
		{&l.Tables, d.Tables},
		{&l.BodyBytes, d.BodyBytes},
		{&l.Locals, d.Locals},
		{&l.Depth, d.Depth},
	} {
		if *f.to == 0 {
			*f.to = f.from
		}
	}
	if l.TableElements == 0 {
		l.TableElements = d.TableElements
	}
	if l.MemoryPages == 0 {
		l.MemoryPages = d.MemoryPages
	}
	return l
}

// ExternKind is the kind of what is imported or exported.
type ExternKind byte

// The kinds.
const (
	Function ExternKind = iota
	Table
	Memory
	Global
)

var externNames = [...]string{"function", "table", "memory", "global"}

func (k ExternKind) String() string {
	if int(k) >= len(externNames) {
		return "unknown"
	}
	return externNames[k]
}

// Signature is the type of a function, its value types as the specification's bytes: 0x7f i32, 0x7e i64, 0x7d f32, 0x7c f64, 0x7b v128, 0x70
// funcref, 0x6f externref.
type Signature struct{ Params, Results string }

var valueNames = map[byte]string{0x7f: "i32", 0x7e: "i64", 0x7d: "f32", 0x7c: "f64", 0x7b: "v128", 0x70: "funcref", 0x6f: "externref"}

func (s Signature) String() string {
	list := func(types string) string {
		out := "("
		for i := range len(types) {
			if i > 0 {
				out += " "
			}
			out += valueNames[types[i]]
		}
		return out + ")"
	}
	return list(s.Params) + " -> " + list(s.Results)
}

// Import is something that the module wants from outside. Signature counts for functions.
type Import struct {
	Module, Name string
	Kind         ExternKind
	Signature    Signature
}

// Export is something that the module offers. Signature counts for functions.
type Export struct {
	Name      string
	Kind      ExternKind
	Signature Signature
}

// Custom is a custom section.
type Custom struct {
	Name string
	Data []byte
}

// Module is a rewritten module and what it is made of.
type Module struct {
	Binary    []byte
	Imports   []Import
	Exports   []Export // as they were, without the counter
	Custom    []Custom
	Functions int // defined ones
	Memory    bool
	MinPages  uint32
	Start     bool // has a start function
}

// The sections by their numbers.
const (
	sectionCustom = iota
	sectionType
	sectionImport
	sectionFunction
	sectionTable
	sectionMemory
	sectionGlobal
	sectionExport
	sectionStart
	sectionElement
	sectionCode
	sectionData
	sectionDataCount
	sectionTag
)

var sectionNames = [...]string{"custom", "type", "import", "function", "table", "memory", "global", "export", "start", "element", "code", "data", "data count"}

// rank is the place of a section in the order that the specification wants.
func rank(id byte) int {
	switch id {
	case sectionDataCount:
		return 2 * sectionElement
	default:
		return 2*int(id) - 1
	}
}

// section is one section of the module as it came.
type section struct {
	id       byte
	from, to int // of its content
}

// sections splits the module and checks order.
func (w *rewriter) sections() []section {
	r := &w.r
	r.where = "beginning"
	if len(r.b) > w.limits.Bytes {
		r.fail("%d bytes, at most %d are allowed", len(r.b), w.limits.Bytes)
		return nil
	}
	if len(r.b) < 8 || string(r.b[:8]) != "\x00asm\x01\x00\x00\x00" {
		r.fail("this is no WebAssembly module of version 1")
		return nil
	}
	r.at = 8
	var list []section
	last := 0
	for r.more() {
		r.where = fmt.Sprintf("section %d", len(list))
		id := r.byte()
		if id >= sectionTag {
			r.fail("a section of number %d: exceptions and later features are not supported", id)
			break
		}
		r.where = sectionNames[id] + " section"
		size := int(r.u32())
		if size > r.end-r.at {
			r.fail("%d bytes are announced, %d are left", size, r.end-r.at)
			break
		}
		if id != sectionCustom {
			if rank(id) <= last {
				r.fail("it stands out of order, or twice")
				break
			}
			last = rank(id)
		}
		list = append(list, section{id, r.at, r.at + size})
		r.at += size
	}
	return list
}

// read takes in one section.
func (w *rewriter) read(s section) {
	r := &w.r
	r.at, r.where = s.from, sectionNames[s.id]+" section"
	r.end = len(r.b)
	r.within(s.to-s.from, func() {
		switch s.id {
		case sectionCustom:
			w.readCustom()
		case sectionType:
			w.each("types", w.limits.Types, w.readType)
		case sectionImport:
			w.each("imports", w.limits.Imports, w.readImport)
		case sectionFunction:
			w.each("functions", w.limits.Functions, w.readFunction)
		case sectionTable:
			w.each("tables", w.limits.Tables, w.readTable)
		case sectionMemory:
			w.each("memories", 1, w.readMemory)
		case sectionGlobal:
			w.globals = r.count("globals", w.limits.Globals)
			w.globalsFrom = r.at
			r.at = r.end // only counted
		case sectionExport:
			w.exports = r.count("exports", w.limits.Exports)
			w.exportsFrom = r.at
			for range w.exports {
				w.readExport()
			}
		case sectionStart:
			w.module.Start = true
			r.u32()
		case sectionElement:
			w.readElements()
		case sectionData:
			w.readData()
		default:
			r.at = r.end
		}
	})
}

func (w *rewriter) each(what string, limit int, read func()) {
	for n := w.r.count(what, limit); n > 0 && w.r.err == nil; n-- {
		read()
	}
}

func (w *rewriter) readCustom() {
	name := w.r.name()
	w.module.Custom = append(w.module.Custom, Custom{Name: name, Data: w.r.b[w.r.at:w.r.end]})
	w.r.at = w.r.end
}

func (w *rewriter) readType() {
	r := &w.r
	if form := r.byte(); form != 0x60 {
		r.fail("a type of form %#x: only functions are supported", form)
		return
	}
	var s Signature
	for _, list := range []*string{&s.Params, &s.Results} {
		types := make([]byte, r.count("parameters or results", maxArity))
		for i := range types {
			types[i] = w.valueType()
		}
		*list = string(types)
	}
	w.types = append(w.types, s)
}

func (w *rewriter) valueType() byte {
	t := w.r.byte()
	if valueNames[t] == "" {
		w.r.fail("a value type %#x is not supported", t)
	}
	return t
}

func (w *rewriter) readImport() {
	r := &w.r
	i := Import{Module: r.name(), Name: r.name(), Kind: ExternKind(r.byte())}
	switch i.Kind {
	case Function:
		i.Signature = w.signature(r.u32())
		w.functions = append(w.functions, i.Signature)
		w.imported++
	case Table:
		w.readTable()
	case Memory:
		w.readMemory()
	case Global:
		w.valueType()
		r.byte()
		w.importedGlobals++
	default:
		r.fail("import %q %q is of an unknown kind %d", i.Module, i.Name, i.Kind)
	}
	w.module.Imports = append(w.module.Imports, i)
}

func (w *rewriter) signature(index uint32) Signature {
	if int64(index) >= int64(len(w.types)) {
		w.r.fail("there is no type %d", index)
		return Signature{}
	}
	return w.types[index]
}

func (w *rewriter) readFunction() {
	w.functions = append(w.functions, w.signature(w.r.u32()))
}

func (w *rewriter) readTable() {
	r := &w.r
	if t := r.byte(); t != 0x70 && t != 0x6f {
		r.fail("a table of type %#x is not supported", t)
		return
	}
	flags := r.byte()
	if flags > 1 {
		r.fail("limits of form %#x: shared and 64-bit tables are not supported", flags)
		return
	}
	least := r.u32()
	if least > w.limits.TableElements {
		r.fail("a table of %d elements, at most %d are allowed", least, w.limits.TableElements)
	}
	if flags == 1 {
		r.u32()
	}
}

func (w *rewriter) readMemory() {
	r := &w.r
	flags := r.byte()
	if flags > 1 {
		r.fail("limits of form %#x: shared (threads) and 64-bit memories are not supported", flags)
		return
	}
	if w.module.Memory {
		r.fail("a second memory is not supported")
		return
	}
	w.module.Memory, w.module.MinPages = true, r.u32()
	if w.module.MinPages > w.limits.MemoryPages {
		r.fail("memory starts with %d pages of 64 KiB, at most %d are allowed", w.module.MinPages, w.limits.MemoryPages)
	}
	if flags == 1 {
		r.u32()
	}
}

func (w *rewriter) readExport() {
	r := &w.r
	e := Export{Name: r.name(), Kind: ExternKind(r.byte())}
	index := r.u32()
	switch {
	case e.Kind > Global:
		r.fail("export %q is of an unknown kind %d", e.Name, e.Kind)
	case e.Name == w.options.Global:
		r.fail("export %q: the name is reserved for the counter", e.Name)
	case e.Kind == Function && int64(index) >= int64(len(w.functions)):
		r.fail("export %q: there is no function %d", e.Name, index)
	case e.Kind == Function:
		e.Signature = w.functions[index]
	}
	w.module.Exports = append(w.module.Exports, e)
}
