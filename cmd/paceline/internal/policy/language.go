package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// language is one that policies can be written in.
type language struct {
	name    string
	title   string // for people
	source  string // the file by which a folder of it is known
	extends []string
	build   func(ctx context.Context, s *stage) error
	// test runs the author's own tests in a folder, nil for a language that has none.
	test func(ctx context.Context, dir string, out *stage) error
}

var languages = []language{
	{name: "go", title: "Go", source: "go", build: buildGo, test: testGo},
	{name: "c", title: "C", source: "policy.c", extends: []string{".c", ".h"}, build: buildC},
	{name: "rust", title: "Rust", source: "policy.rs", extends: []string{".rs"}, build: buildRust, test: testRust},
	{name: "assemblyscript", title: "AssemblyScript", source: "policy.ts", extends: []string{".ts"}, build: buildAssemblyScript},
}

func languageNames() string {
	var names []string
	for i := range languages {
		names = append(names, languages[i].name)
	}
	return strings.Join(names, ", ")
}

// of finds the language of a folder.
func of(dir string) (*language, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, mistakef("the folder of a policy: %w", err)
	} else if !info.IsDir() {
		return nil, mistakef("%s is no folder: name the one that holds the policy's source", dir)
	}
	var found []*language
	for i := range languages {
		l := &languages[i]
		pattern := l.source
		if l.name == "go" {
			pattern = "*.go"
		}
		list, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, mistakef("look into %s: %w", dir, err)
		}
		if len(list) > 0 {
			found = append(found, l)
		}
	}
	switch len(found) {
	case 0:
		return nil, mistakef("%s has none of Go files, policy.c, policy.rs and policy.ts: what language is it? `paceline policy new` makes a folder that is known", dir)
	case 1:
		return found[0], nil
	}
	return nil, mistakef("%s has %s and %s: leave one", dir, found[0].source, found[1].source)
}

// missingError says that a toolchain is not installed.
type missingError struct{ what, how string }

func (e *missingError) Error() string { return fmt.Sprintf("%s is not installed: %s", e.what, e.how) }

// run runs a program and fails with what it wrote.
func run(ctx context.Context, s *stage, dir string, environment []string, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // a compiler, with arguments made here
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environment...)
	text, err := cmd.CombinedOutput()
	said := bounded(strings.ReplaceAll(string(text), s.dir+string(filepath.Separator), s.from+string(filepath.Separator)))
	if s.tell != nil && said != "" && err == nil {
		fmt.Fprintln(s.tell, said)
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, said)
	}
	return nil
}

// maxLines of what a compiler says are enough to begin with.
const maxLines = 60

func bounded(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > maxLines {
		lines = append(lines[:maxLines], fmt.Sprintf("and %d lines more", len(lines)-maxLines))
	}
	return strings.Join(lines, "\n")
}

func buildGo(ctx context.Context, s *stage) error {
	program, err := exec.LookPath("go")
	if err != nil {
		return &missingError{"Go", "see https://go.dev/dl"}
	}
	return run(ctx, s, s.from, []string{"GOOS=wasip1", "GOARCH=wasm"}, program, "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", s.out, ".")
}

func testGo(ctx context.Context, dir string, s *stage) error {
	program, err := exec.LookPath("go")
	if err != nil {
		return &missingError{"Go", "see https://go.dev/dl"}
	}
	return run(ctx, s, dir, nil, program, "test", "./...")
}

func buildC(ctx context.Context, s *stage) error {
	program, err := exec.LookPath("clang")
	if err != nil {
		return &missingError{"clang", "on Debian, apt-get install clang lld"}
	}
	// In two steps, the second without -O: clang would hand the module to whatever wasm-opt it finds.
	object := filepath.Join(s.dir, "policy.o")
	if err := run(ctx, s, s.dir, nil, program, "--target=wasm32", "-O3", "-msimd128", "-mbulk-memory", "-Wall", "-Wextra", "-c", "-o", object, filepath.Join(s.dir, "policy.c")); err != nil {
		return err
	}
	return run(ctx, s, s.dir, nil, program, "--target=wasm32", "-nostdlib", "-Wl,--no-entry", "-Wl,-z,stack-size=65536", "-Wl,--strip-all", "-o", s.out, object)
}

const rustTarget = "wasm32-unknown-unknown"

// rustc finds a compiler that has the target.
func rustc(ctx context.Context) (string, error) {
	for _, name := range []string{os.Getenv("RUSTC"), "rustc", "/usr/bin/rustc"} {
		program, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		text, err := exec.CommandContext(ctx, program, "--print", "target-libdir", "--target", rustTarget).Output() //nolint:gosec // the user's own compiler
		if err != nil {
			continue
		}
		if core, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(text)), "libcore-*")); err == nil && len(core) > 0 {
			return program, nil
		}
	}
	return "", &missingError{"a Rust compiler for " + rustTarget, "on Debian, apt-get install rustc libstd-rust-dev-wasm32 lld; with rustup, rustup target add " + rustTarget}
}

func buildRust(ctx context.Context, s *stage) error {
	program, err := rustc(ctx)
	if err != nil {
		return err
	}
	return run(
		ctx, s, s.dir, nil, program, "--edition", "2021", "--target", rustTarget, "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-C", "lto", "-C", "strip=symbols",
		"-o", s.out, "policy.rs")
}

func testRust(ctx context.Context, _ string, s *stage) error {
	raw, err := os.ReadFile(filepath.Join(s.dir, "policy.rs"))
	if err != nil || !strings.Contains(string(raw), "#[test]") {
		return err
	}
	program, err := rustc(ctx)
	if err != nil {
		return err
	}
	test := filepath.Join(s.dir, "policy.test")
	if err := run(ctx, s, s.dir, nil, program, "--edition", "2021", "--test", "-o", test, "policy.rs"); err != nil {
		return err
	}
	return run(ctx, s, s.dir, nil, test, "--quiet")
}

// asc finds the compiler in a node_modules folder above the policy, or in the path.
func asc(dir string) (string, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := full; ; at = filepath.Dir(at) {
		program := filepath.Join(at, "node_modules", ".bin", "asc")
		if _, err := os.Stat(program); err == nil {
			return program, nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	program, err := exec.LookPath("asc")
	if errors.Is(err, exec.ErrNotFound) {
		return "", &missingError{"the AssemblyScript compiler", "npm install assemblyscript, in the policy's folder or one above it"}
	}
	return program, err
}

func buildAssemblyScript(ctx context.Context, s *stage) error {
	program, err := asc(s.from)
	if err != nil {
		return err
	}
	return run(ctx, s, s.dir, nil, program, "policy.ts", "--runtime", "stub", "--use", "abort=", "-O3", "--noAssert", "-o", s.out)
}
