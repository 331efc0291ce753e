// Package tidy is the repository's rules as code: who may import whom, where goroutines may start, how large things may grow,
// what may be committed.
//
// It owns the rules and their reasons, each in a table that a change must edit in the open. It never loads types or builds
// anything: it reads the tracked files with go/parser, so that the whole check takes a second or two. A Tree is read-only once
// loaded and may be shared.
package tidy

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Module is the import path of the repository's root.
const Module = "github.com/paceline-sched/paceline"

// maxFileBytes bounds one committed file; larger things are fetched or generated, never stored here.
const maxFileBytes = 1 << 20

// Tree is the repository as the rules see it: the files that git tracks or would track.
type Tree struct {
	files map[string][]byte // by slash-separated path; content of at most maxFileBytes+1 bytes
	paths []string          // sorted
	gos   []*goFile
}

// goFile is one parsed Go file.
type goFile struct {
	path, dir string
	test      bool
	generated bool
	nested    bool // belongs to another module inside the repository
	fset      *token.FileSet
	syntax    *ast.File
	lines     int
}

func (f *goFile) line(n ast.Node) int { return f.fset.Position(n.Pos()).Line }

// Finding is one broken rule.
type Finding struct {
	Path string
	Line int // 0: the file or folder as a whole
	Text string
}

func (f Finding) String() string {
	if f.Line == 0 {
		return f.Path + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Text)
}

// Load reads the repository at root. Files that git ignores do not count.
func Load(ctx context.Context, root string) (*Tree, error) {
	// The folder may belong to another user, as in a container; reading names of files there is harmless.
	cmd := exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of %s with git: %w", root, err)
	}
	files := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		full := filepath.Join(root, filepath.FromSlash(name))
		info, err := os.Lstat(full)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted but not yet committed, or a link
		}
		if info.Size() > maxFileBytes {
			files[name] = make([]byte, maxFileBytes+1)
			continue
		}
		if files[name], err = os.ReadFile(full); err != nil {
			return nil, err
		}
	}
	return NewTree(files)
}

// NewTree builds a tree from contents by path.
func NewTree(files map[string][]byte) (*Tree, error) {
	t := &Tree{files: files}
	for name := range files {
		t.paths = append(t.paths, name)
	}
	slices.Sort(t.paths)
	for _, name := range t.paths {
		if path.Ext(name) != ".go" || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		fset := token.NewFileSet()
		syntax, err := parser.ParseFile(fset, name, files[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		t.gos = append(t.gos, &goFile{
			path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(syntax),
			nested: t.inNestedModule(name), fset: fset, syntax: syntax, lines: bytes.Count(files[name], []byte("\n")),
		})
	}
	return t, nil
}

func (t *Tree) inNestedModule(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := t.files[dir+"/go.mod"]; ok {
			return true
		}
	}
	return false
}

// packages returns the folders that hold Go files of the main module, sorted.
func (t *Tree) packages() []string {
	var dirs []string
	for _, f := range t.gos {
		if !f.nested && !slices.Contains(dirs, f.dir) {
			dirs = append(dirs, f.dir)
		}
	}
	return dirs
}

// within reports whether dir matches pattern: a folder, or a folder and all below it when the pattern ends in "/...".
func within(dir, pattern string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dir == base || strings.HasPrefix(dir, base+"/")
	}
	return dir == pattern
}

func withinAny(dir string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return within(dir, p) })
}
