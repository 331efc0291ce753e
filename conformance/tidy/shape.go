package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
)

// The sizes that a reader can hold in mind.
const (
	maxFileLines         = 800
	maxTestFileLines     = 1500
	maxFunctionLines     = 70
	maxTestFunctionLines = 120
	maxExportedNames     = 40
)

// The ratchets: what is larger than the rule allows, by name, with its size. An entry may only shrink and then go; a new one needs
// a reviewer who agrees that the code reads better long than cut.
var (
	longFiles     = map[string]int{}
	longFunctions = map[string]int{
		"core/respool.TestEntitleVectors": 152, // one row per published vector
	}
	// widePackages lists packages whose exported names exceed maxExportedNames.
	widePackages = map[string]int{
		"core/scheduler": 111, // its commands, answers and views are one vocabulary, of which remedies are three, rules of admission and clusters seven each and policies eleven
		"core/shard":     57,  // its messages and replies are one protocol; what is pledged is five of them, hosts that change shards two, and the nearest host one
		"sdk/policyabi":  52,  // one protocol: records, their offsets and their decoders are one vocabulary
		"core/workload":  50,  // the vocabulary of work, which gangs are part of
	}
)

// goHomes says where goroutines may start: shells, each of which waits for what it started.
var goHomes = []struct {
	packages string
	why      string
}{
	{"core/engine", "owns the loop, the committer and the dispatchers"},
	{"core/store/badgerstore", "owns the value log's collector"},
	{"core/api/...", "owns the listener and its watchers"},
	{"hostmanagers/...", "drivers and shard runtimes own their connections and queues"},
	{"policies/...", "owns compilers and workers"},
	{"federation/...", "owns membership and listeners"},
	{"sdk/client", "owns the reader of a resuming watch"},
	{"cmd/paceline/...", "owns the process"},
	{"examples/...", "programs of users own their process"},
	{"conformance/...", "kits and whole-system tests drive what they judge from several sides"},
}

// badPackageNames say nothing about what the package owns.
var badPackageNames = []string{"common", "util", "utils", "helper", "helpers", "model", "models", "types", "misc", "base", "shared"}

// CheckPackageDocs wants exactly one package comment per package, in a file that is no test.
func CheckPackageDocs(t *Tree) []Finding {
	docs := map[string][]string{}
	names := map[string]string{}
	var order []string
	for _, f := range t.gos {
		if f.nested || f.test || f.generated {
			continue
		}
		if _, seen := names[f.dir]; !seen {
			order = append(order, f.dir)
			names[f.dir] = f.syntax.Name.Name
		}
		if f.syntax.Doc != nil && strings.TrimSpace(f.syntax.Doc.Text()) != "" {
			docs[f.dir] = append(docs[f.dir], f.path)
			want := "Package " + f.syntax.Name.Name + " "
			if f.syntax.Name.Name == "main" {
				want = "Command "
			}
			if !strings.HasPrefix(f.syntax.Doc.Text(), want) {
				docs[f.dir] = append(docs[f.dir], "")
			}
		}
	}
	var found []Finding
	for _, dir := range order {
		switch n := len(docs[dir]); {
		case n == 0:
			found = append(found, Finding{Path: dir, Text: "no package doc: say what it owns, what it never does and its concurrency model"})
		case slices.Contains(docs[dir], ""):
			found = append(found, Finding{Path: dir, Text: `package doc must begin "Package ` + names[dir] + ` " ("Command " for a main)`})
		case n > 1:
			found = append(found, Finding{Path: dir, Text: "package doc in several files: " + strings.Join(docs[dir], ", ")})
		}
		if slices.Contains(badPackageNames, path.Base(dir)) {
			found = append(found, Finding{Path: dir, Text: "the name says nothing: name the package after what it owns"})
		}
	}
	return found
}

// CheckSizes holds files, functions and package surfaces to their bounds, and the ratchets to the truth.
func CheckSizes(t *Tree) []Finding {
	var found []Finding
	exported := map[string]int{}
	for _, f := range t.gos {
		if f.generated || f.nested {
			continue
		}
		limit := maxFileLines
		if f.test {
			limit = maxTestFileLines
		}
		checkSize(&found, longFiles, f.path, f.lines, limit, Finding{Path: f.path}, "lines: cut it along its seams")
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				limit := maxFunctionLines
				if f.test {
					limit = maxTestFunctionLines
				}
				lines := f.fset.Position(fn.End()).Line - f.line(fn) + 1
				checkSize(&found, longFunctions, f.dir+"."+functionName(fn), lines, limit, Finding{Path: f.path, Line: f.line(fn)},
					"lines: name its steps and make functions of them")
			}
			if !f.test {
				exported[f.dir] += exportedNames(decl)
			}
		}
	}
	for _, dir := range t.packages() {
		checkSize(&found, widePackages, dir, exported[dir], maxExportedNames, Finding{Path: dir}, "exported names: hide some, or cut the package in two")
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(a.Path, b.Path) })
	return found
}

// checkSize adds a finding when size breaks limit beyond what list grants to name, or when the grant is larger than needed.
func checkSize(found *[]Finding, list map[string]int, name string, size, limit int, at Finding, advice string) {
	granted, listed := list[name]
	switch {
	case listed && size <= limit:
		at.Text = fmt.Sprintf("%s has %d, within the limit of %d: take it off the ratchet (conformance/tidy/shape.go)", name, size, limit)
	case listed && size < granted:
		at.Text = fmt.Sprintf("%s shrank to %d: lower its ratchet from %d (conformance/tidy/shape.go)", name, size, granted)
	case listed && size > granted:
		at.Text = fmt.Sprintf("%s grew to %d from %d %s", name, size, granted, advice)
	case !listed && size > limit:
		at.Text = fmt.Sprintf("%s has %d, more than %d %s", name, size, limit, advice)
	default:
		return
	}
	*found = append(*found, at)
}

// deadRatchets finds entries of the ratchets that name nothing.
func deadRatchets(t *Tree) []Finding {
	functions := map[string]bool{}
	for _, f := range t.gos {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				functions[f.dir+"."+functionName(fn)] = true
			}
		}
	}
	dirs := t.packages()
	var found []Finding
	dead := func(list map[string]int, there func(string) bool) {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			if !there(name) {
				found = append(found, Finding{Path: name, Text: "is on a ratchet but is gone: take it off (conformance/tidy/shape.go)"})
			}
		}
	}
	dead(longFiles, func(name string) bool { return t.files[name] != nil })
	dead(longFunctions, func(name string) bool { return functions[name] })
	dead(widePackages, func(name string) bool { return slices.Contains(dirs, name) })
	return found
}

func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	receiver := fn.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return r.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}

// exportedNames counts what a declaration adds to its package's surface. The values of one const block count as one name: an enum
// is one idea.
func exportedNames(decl ast.Decl) int {
	n := 0
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.IsExported() {
			n++
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					n++
				}
			case *ast.ValueSpec:
				if slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
					n++
				}
			}
		}
		if d.Tok == token.CONST {
			n = min(n, 1)
		}
	}
	return n
}

// CheckGoroutines keeps `go` statements in the shells, and asks each such package to prove that nothing leaks.
func CheckGoroutines(t *Tree) []Finding {
	var found []Finding
	starts := map[string]*goFile{}
	leakTested := map[string]bool{}
	for _, f := range t.gos {
		for _, spec := range f.syntax.Imports {
			if f.test && spec.Path.Value == `"go.uber.org/goleak"` {
				leakTested[f.dir] = true
			}
		}
		if f.test || f.generated || f.nested {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			stmt, ok := n.(*ast.GoStmt)
			if !ok {
				return true
			}
			if starts[f.dir] == nil && f.syntax.Name.Name != "main" { // a main's goroutines end with its process
				starts[f.dir] = f
			}
			if !goAllowed(f.dir) {
				found = append(found, Finding{f.path, f.line(stmt), "go statements stand in shells only (goHomes in conformance/tidy/shape.go)"})
			}
			return true
		})
	}
	for _, dir := range t.packages() {
		if starts[dir] != nil && !leakTested[dir] {
			found = append(found, Finding{Path: dir, Text: "starts goroutines but no test of it uses go.uber.org/goleak"})
		}
	}
	return found
}

func goAllowed(dir string) bool {
	for _, home := range goHomes {
		if within(dir, home.packages) {
			return true
		}
	}
	return false
}

// CheckTests finds sleeping tests, and fuzz targets that start from nothing.
func CheckTests(t *Tree) []Finding {
	var found []Finding
	for _, f := range t.gos {
		if !f.test {
			continue
		}
		bubble := slices.ContainsFunc(f.syntax.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing/synctest"` })
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && !bubble && sel.Sel.Name == "Sleep" {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" {
					found = append(found, Finding{f.path, f.line(n), "a sleeping test is slow or flaky: use testing/synctest, a given clock, or poll with a deadline"})
				}
			}
			return true
		})
		for _, decl := range f.syntax.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") && !t.seeded(f, fn) {
				found = append(found, Finding{f.path, f.line(fn), fn.Name.Name + " has no seeds: call Add, or commit " + f.dir + "/testdata/fuzz/" + fn.Name.Name})
			}
		}
	}
	return found
}

// seeded reports whether a fuzz target calls Add on its parameter, hands the parameter on, or has a committed corpus.
func (t *Tree) seeded(f *goFile, fn *ast.FuncDecl) bool {
	corpus := f.dir + "/testdata/fuzz/" + fn.Name.Name + "/"
	if slices.ContainsFunc(t.paths, func(p string) bool { return strings.HasPrefix(p, corpus) }) {
		return true
	}
	if len(fn.Type.Params.List) != 1 || len(fn.Type.Params.List[0].Names) != 1 {
		return true // not a fuzz target's signature
	}
	param := fn.Type.Params.List[0].Names[0].Name
	is := func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return ok && id.Name == param
	}
	seeded := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Add" && is(sel.X) {
			seeded = true
		}
		seeded = seeded || slices.ContainsFunc(call.Args, is)
		return true
	})
	return seeded
}
