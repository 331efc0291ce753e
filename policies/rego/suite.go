package rego

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
)

// TestResult is how one test of a bundle went.
type TestResult struct {
	Name     string // package and rule
	At       string // file and line
	Passed   bool
	Skipped  bool
	Output   string // what it printed, and why it failed
	Duration time.Duration
}

// testTimeout bounds one test. It is longer than TimeLimit, as a test may judge many jobs.
const testTimeout = 5 * time.Second

// Test runs the tests of a bundle's directory: every rule whose name begins with test_ in a file whose name ends in _test.rego. The rules
// have to be fit to be pushed, too.
func Test(ctx context.Context, dir fs.FS) (results []TestResult, err error) {
	defer contain(&err)
	archive, err := Pack(dir)
	if err != nil {
		return nil, err
	}
	if _, err := compile(archive, Keys{}); err != nil {
		return nil, err
	}
	b, err := open(archive, Keys{})
	if err != nil {
		return nil, err
	}
	modules, err := withTests(dir, b)
	if err != nil {
		return nil, err
	}
	runner := tester.NewRunner().SetModules(modules).SetStore(inmem.NewFromObject(b.Data)).SetTimeout(testTimeout).RaiseBuiltinErrors(true).
		SetCompiler(ast.NewCompiler().WithCapabilities(capabilities()).WithEnablePrintStatements(true)).CapturePrintOutput(true).SetParallel(1)
	done, err := runner.RunTests(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("its tests do not compile: %w", plain(err))
	}
	for r := range done {
		results = append(results, resultOf(r))
	}
	slices.SortFunc(results, func(a, b TestResult) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Name, b.Name)) })
	if len(results) == 0 {
		return nil, errors.New("there is no test: write rules whose names begin with test_ in a file whose name ends in _test.rego")
	}
	return results, ctx.Err()
}

func withTests(dir fs.FS, b *bundle.Bundle) (map[string]*ast.Module, error) {
	modules := map[string]*ast.Module{}
	for _, m := range b.Modules {
		modules[strings.TrimPrefix(m.Path, "/")] = m.Parsed
	}
	err := walkBundle(dir, func(name string) error {
		if !isTest(name) {
			return nil
		}
		raw, err := readBounded(dir, name)
		if err != nil {
			return err
		}
		m, err := ast.ParseModuleWithOpts(name, string(bytes.TrimSpace(raw)), ast.ParserOptions{Capabilities: capabilities(), RegoVersion: ast.RegoV1})
		if err != nil {
			return plain(err)
		}
		if m != nil {
			modules[name] = m
		}
		return nil
	})
	return modules, err
}

func resultOf(r *tester.Result) TestResult {
	out := TestResult{
		Name: strings.TrimPrefix(r.Package, "data.") + "." + r.Name, Passed: r.Pass(), Skipped: r.Skip, Output: strings.TrimSpace(string(r.Output)),
		Duration: r.Duration,
	}
	if r.Location != nil {
		out.At = fmt.Sprintf("%s:%d", r.Location.File, r.Location.Row)
	}
	switch {
	case r.Error != nil:
		out.Output = strings.TrimSpace(out.Output + "\n" + plain(r.Error).Error())
	case !out.Passed && !out.Skipped && r.FailedAt != nil && r.FailedAt.Location != nil:
		out.Output = strings.TrimSpace(fmt.Sprintf("%s\nline %d does not hold: %s", out.Output, r.FailedAt.Location.Row, clip(string(r.FailedAt.Location.Text))))
	}
	return out
}
