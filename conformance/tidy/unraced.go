package tidy

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// unraced finds the Makefile's list of folders that `make test` tests without the race detector.
var unraced = regexp.MustCompile(`(?m)^UNRACED :=((?:.*\\\n)*.*)$`)

// CheckUnraced keeps goroutines out of the folders that are tested without the race detector, out of their tests too.
func CheckUnraced(t *Tree) []Finding {
	var folders []string
	if list := unraced.FindSubmatch(t.files["Makefile"]); list != nil {
		folders = strings.Fields(strings.ReplaceAll(string(list[1]), "\\\n", " "))
	}
	var found []Finding
	packages := t.packages()
	for _, dir := range folders {
		if !slices.Contains(packages, dir) {
			found = append(found, Finding{Path: "Makefile", Text: "UNRACED has " + dir + ", which is no package: take it out"})
		}
	}
	for _, f := range t.gos {
		if !slices.Contains(folders, f.dir) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if startsGoroutine(n) {
				found = append(found, Finding{f.path, f.line(n), "starts a goroutine, but is tested without the race detector: take the folder out of UNRACED in the Makefile"})
			}
			return true
		})
	}
	return found
}

// startsGoroutine finds go statements, and calls of methods such as those of sync.WaitGroup and errgroup.Group.
func startsGoroutine(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		method, ok := n.Fun.(*ast.SelectorExpr)
		return ok && method.Sel.Name == "Go"
	}
	return false
}
