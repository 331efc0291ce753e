package tidy_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/paceline-sched/paceline/conformance/tidy"
)

var rules = []struct {
	name  string
	check func(*tidy.Tree) []tidy.Finding
}{
	{"imports", tidy.CheckImports},
	{"live-rules", tidy.CheckRulesLive},
	{"purity", tidy.CheckPurity},
	{"package-docs", tidy.CheckPackageDocs},
	{"sizes", tidy.CheckSizes},
	{"goroutines", tidy.CheckGoroutines},
	{"unraced", tidy.CheckUnraced},
	{"tests", tidy.CheckTests},
	{"top-level", tidy.CheckTopLevel},
	{"contents", tidy.CheckContents},
	{"links", tidy.CheckLinks},
}

var repository = sync.OnceValues(func() (*tidy.Tree, error) { return tidy.Load(context.Background(), "../..") })

// TestRepository holds this repository to its rules.
func TestRepository(t *testing.T) {
	t.Parallel()
	tree, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range rule.check(tree) {
				t.Error(f)
			}
		})
	}
}

// findings runs one rule over a made-up repository.
func findings(t *testing.T, name string, files map[string]string) []string {
	t.Helper()
	contents := map[string][]byte{}
	for p, content := range files {
		contents[p] = []byte(content)
	}
	tree, err := tidy.NewTree(contents)
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules {
		if rule.name == name {
			var all []string
			for _, f := range rule.check(tree) {
				all = append(all, f.String())
			}
			return all
		}
	}
	t.Fatalf("no rule %q", name)
	return nil
}

func module(dir string) string { return `"github.com/paceline-sched/paceline/` + dir + `"` }

// TestRulesCatch proves that each rule can fail, and passes its nearest innocent neighbour.
func TestRulesCatch(t *testing.T) {
	t.Parallel()
	for _, tc := range catchCases {
		t.Run(tc.rule+"/"+strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			got := findings(t, tc.rule, tc.files)
			if tc.want == "" {
				if len(got) != 0 {
					t.Fatalf("innocent, yet found:\n%s", strings.Join(got, "\n"))
				}
				return
			}
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Fatalf("want one finding with %q, got:\n%s", tc.want, strings.Join(got, "\n"))
			}
		})
	}
}

type catchCase struct {
	rule, name string
	files      map[string]string
	want       string // "": no finding
}

var catchCases = []catchCase{
	{"imports", "upward in the core", one("core/resource/a.go", "package resource\nimport _ "+module("core/workload")), "core/resource must not import core/workload"},
	{"imports", "downward in the core", one("core/workload/a.go", "package workload\nimport _ "+module("core/resource")), ""},
	{"imports", "core to host managers", one("core/engine/a.go", "package engine\nimport _ "+module("hostmanagers/local")), "core/engine must not import hostmanagers/local"},
	{"imports", "core test to host managers", one("core/engine/a_test.go", "package engine\nimport _ "+module("hostmanagers/local")), "must not import hostmanagers/local"},
	{"imports", "driver to driver", one("hostmanagers/simulated/a.go", "package simulated\nimport _ "+module("hostmanagers/local")), "other drivers"},
	{"imports", "sdk to core", one("sdk/client/a.go", "package client\nimport _ "+module("core/workload")), "drag the scheduler along"},
	{"imports", "sdk test to core", one("sdk/client/a_test.go", "package client\nimport _ "+module("core/workload")), "drag the scheduler along"},
	{"imports", "library away from home", one("core/engine/a.go", "package engine\nimport _ \"github.com/dgraph-io/badger/v4\""), "belongs to core/store/badgerstore"},
	{"imports", "library at home", one("core/store/badgerstore/a.go", "package badgerstore\nimport _ \"github.com/dgraph-io/badger/v4\""), ""},
	{"imports", "connect in the core", one("core/engine/a.go", "package engine\nimport _ \"connectrpc.com/connect\""), "RPC stays at the edges"},
	{"imports", "library without a home", one("core/engine/a.go", "package engine\nimport _ \"example.com/left-pad\""), "has no home"},
	{"imports", "test library in a test", one("core/engine/a_test.go", "package engine\nimport _ \"pgregory.net/rapid\""), ""},
	{"imports", "test library outside", one("core/engine/a.go", "package engine\nimport _ \"pgregory.net/rapid\""), "has no home"},
	{"imports", "package without a rule", one("core/attic/a.go", "package attic"), "no import rule"},

	{"purity", "clock", one("core/shard/a.go", "package shard\nimport \"time\"\nvar x = time.Now()"), "time.Now asks"},
	{"purity", "duration", one("core/shard/a.go", "package shard\nimport \"time\"\nvar x = time.Second"), ""},
	{"purity", "clock in a shell", one("core/engine/a.go", "package engine\nimport \"time\"\nvar x = time.Now()"), ""},
	{"purity", "randomness", one("core/shard/a.go", "package shard\nimport _ \"math/rand/v2\""), "math/rand/v2"},
	{"purity", "network", one("core/shard/a.go", "package shard\nimport _ \"net/http\""), "talks to nobody"},
	{"purity", "log", one("core/shard/a.go", "package shard\nimport _ \"log/slog\""), "silent"},
	{"purity", "goroutine", one("core/shard/a.go", "package shard\nfunc f() { go f() }"), "starts no goroutine"},
	{"purity", "select", one("core/shard/a.go", "package shard\nfunc f() { select {} }"), "no channels"},
	{"purity", "channel", one("core/shard/a.go", "package shard\nvar c chan int"), "no channels"},

	{"package-docs", "none", one("core/x/a.go", "package x"), "no package doc"},
	{"package-docs", "wrong form", one("core/x/a.go", "// X is nice.\npackage x"), "must begin"},
	{"package-docs", "two", map[string]string{"core/x/a.go": "// Package x is.\npackage x", "core/x/b.go": "// Package x is.\npackage x"}, "several files"},
	{"package-docs", "one", map[string]string{"core/x/a.go": "// Package x is.\npackage x", "core/x/b.go": "package x"}, ""},
	{"package-docs", "command", one("cmd/x/main.go", "// Command x does.\npackage main"), ""},
	{"package-docs", "attic", one("core/util/a.go", "// Package util is.\npackage util"), "says nothing"},

	{"sizes", "long file", one("core/x/a.go", "package x\n"+strings.Repeat("//\n", 800)), "core/x/a.go has 801"},
	{"sizes", "full file", one("core/x/a.go", "package x\n"+strings.Repeat("//\n", 799)), ""},
	{"sizes", "long test", one("core/x/a_test.go", "package x\n"+strings.Repeat("//\n", 1500)), "more than 1500"},
	{"sizes", "long function", one("core/x/a.go", "package x\nfunc (t *T[K]) F() {\n"+strings.Repeat("\n", 69)+"}"), "core/x.T.F has 71"},
	{"sizes", "full function", one("core/x/a.go", "package x\nfunc F() {\n"+strings.Repeat("\n", 68)+"}"), ""},
	{"sizes", "wide package", one("core/x/a.go", "package x\ntype (\n"+numbered("T%d int\n", 41)+")"), "has 41"},
	{"sizes", "an enum is one name", one("core/x/a.go", "package x\nconst (\n"+numbered("C%d = 1\n", 60)+")"), ""},
	{"sizes", "generated", one("core/x/a.go", "// Code generated by x. DO NOT EDIT.\npackage x\n"+strings.Repeat("//\n", 900)), ""},

	{"goroutines", "outside the shells", map[string]string{"core/store/a.go": "package store\nfunc f() { go f() }", "core/store/a_test.go": leakTest("store")}, "stand in shells only"},
	{"goroutines", "no leak test", one("core/engine/a.go", "package engine\nfunc f() { go f() }"), "goleak"},
	{"goroutines", "leak tested", map[string]string{"core/engine/a.go": "package engine\nfunc f() { go f() }", "core/engine/a_test.go": leakTest("engine")}, ""},

	{"unraced", "goroutine", map[string]string{"Makefile": "UNRACED := core/a \\\n  core/b\n", "core/a/a.go": "package a", "core/b/b.go": "package b\nfunc f() { go f() }"}, "core/b/b.go:2: starts a goroutine"},
	{"unraced", "group in a test", map[string]string{"Makefile": "UNRACED := core/a\n", "core/a/a_test.go": "package a\nfunc f() { group.Go(f) }"}, "starts a goroutine"},
	{"unraced", "elsewhere", map[string]string{"Makefile": "UNRACED := core/a\nOTHER := core/b\n", "core/a/a.go": "package a", "core/b/b.go": "package b\nfunc f() { go f() }"}, ""},
	{"unraced", "no package", one("Makefile", "UNRACED := core/a\n"), "which is no package"},

	{"tests", "sleep", one("core/x/a_test.go", "package x\nimport \"time\"\nfunc f() { time.Sleep(1) }"), "sleeping test"},
	{"tests", "sleep in a bubble", one("core/x/a_test.go", "package x\nimport (\"testing/synctest\"; \"time\")\nfunc f() { time.Sleep(1) }"), ""},
	{"tests", "fuzz without seeds", one("core/x/a_test.go", "package x\nfunc FuzzA(f *testing.F) { f.Fuzz(func() {}) }"), "no seeds"},
	{"tests", "fuzz with seeds", one("core/x/a_test.go", "package x\nfunc FuzzA(f *testing.F) { f.Add(1) }"), ""},
	{"tests", "fuzz with a corpus", map[string]string{"core/x/a_test.go": "package x\nfunc FuzzA(f *testing.F) {}", "core/x/testdata/fuzz/FuzzA/1": ""}, ""},

	{"top-level", "new folder", one("scripts/a.sh", ""), "new at the root"},
	{"top-level", "new file", one("notes.txt", ""), "new at the root"},
	{"top-level", "documents and dot files", map[string]string{"README.md": "", ".ci/run": "", "buf.gen.yaml": "", "go.mod": ""}, ""},

	{"contents", "binary", one("core/x/tool", "\x7fELF\x00"), "is binary"},
	{"contents", "test data", one("core/x/testdata/a.gz", "\x1f\x8b\x00"), ""},
	{"contents", "large", one("core/x/a.txt", strings.Repeat("a", 1<<20+1)), "is over"},
	{"contents", "unfinished", one("core/x/a.go", "package x\n\n// TO"+"DO: more"), "core/x/a.go:3: contains"},
	{"contents", "a machine's path", one("docs/a.md", "see /work"+"/main"), "a path of one machine"},

	{"links", "dangling", one("README.md", "see [x](docs/x.md)"), "leads nowhere"},
	{"links", "file", map[string]string{"docs/a.md": "[x](../README.md) [y](../docs)", "README.md": ""}, ""},
	{"links", "heading", map[string]string{"a.md": "[x](b.md#the-one-way)", "b.md": "## The *one* way"}, ""},
	{"links", "missing heading", map[string]string{"a.md": "[x](b.md#other)", "b.md": "## The one way"}, "no heading"},
	{"links", "code and sites", one("a.md", "`[x](y)` [z](https://example.com)\n```\n[x](y)\n```"), ""},
}

func one(path, content string) map[string]string { return map[string]string{path: content} }

func leakTest(pkg string) string { return "package " + pkg + "\nimport _ \"go.uber.org/goleak\"" }

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(format, "%d", string(rune('A'+i/26))+string(rune('a'+i%26))))
	}
	return b.String()
}
