package wasm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

func one() []placement.Request {
	return []placement.Request{{Class: newClass(resource.Vector{resource.CPU: 1000, resource.Memory: 1024}, workload.Placement{}), Count: 1}}
}

func closed(v *wasm.Version) bool {
	select {
	case <-v.Closed():
		return true
	default:
		return false
	}
}

// TestSwapDrains swaps versions under several placers and asks that each goes on, and that a version is closed when the last has moved on, not before.
func TestSwapDrains(t *testing.T) {
	binary := guest(t, "bestfit")
	first, second := load(t, binary, wasm.Config{}), load(t, binary, wasm.Config{})
	slot := &wasm.Slot{}
	slot.Swap(first)
	tables := []*host.Table{plainTable(t, 20), plainTable(t, 30)}
	var placers []*wasm.Placer
	for _, table := range tables {
		p := wasm.NewPlacer(wasm.PlacerConfig{Slot: slot, OnFault: func(f *wasm.Fault) { t.Error(f) }})
		t.Cleanup(p.Close)
		p.Place(table, one())
		placers = append(placers, p)
	}
	if old := slot.Swap(second); old != first {
		t.Fatal("another version was in force")
	}
	first.Release()
	placers[0].Place(tables[0], one())
	if closed(first) {
		t.Fatal("closed while a placer works with it")
	}
	placers[1].Place(tables[1], one())
	if !closed(first) || closed(second) {
		t.Fatal("the old version must be closed now, the new one not")
	}
	slot.Swap(nil)
	second.Release()
	for i, p := range placers {
		if r := p.Place(tables[i], one()); r[0].Refused != 0 {
			t.Error("without a policy the fallback places")
		}
	}
	if !closed(second) {
		t.Error("the second version is open though nobody uses it")
	}
}

// TestSwapUnderLoad swaps while placers work side by side: every batch is served by a policy, none fails.
func TestSwapUnderLoad(t *testing.T) {
	binary := guest(t, "bestfit")
	slot := &wasm.Slot{}
	slot.Swap(load(t, binary, wasm.Config{}))
	const batches, workers, swaps = 200, 3, 10
	var work sync.WaitGroup
	for range workers {
		table := plainTable(t, 200)
		work.Go(func() {
			p := wasm.NewPlacer(wasm.PlacerConfig{Slot: slot, Fallback: nobody{t}, OnFault: func(f *wasm.Fault) { t.Error(f) }})
			defer p.Close()
			for range batches {
				if r := p.Place(table, one()); r[0].Refused != 0 {
					t.Errorf("refused: %+v", r[0])
				}
			}
		})
	}
	for range swaps {
		next := load(t, binary, wasm.Config{})
		slot.Swap(next).Release()
	}
	work.Wait()
}

// nobody is a fallback that must not be asked.
type nobody struct{ t *testing.T }

func (n nobody) Place(_ *host.Table, requests []placement.Request) []placement.Result {
	n.t.Error("the fallback was asked")
	return make([]placement.Result, len(requests))
}

// TestFaultThenGoesOn breaks one call and asks that the next is served by a new instance.
func TestFaultThenGoesOn(t *testing.T) {
	p := good()
	p.Global(asm.I32, asm.I32Const(0))
	// Traps when the table has 99 rows.
	p.place = asm.Join(
		asm.I32Const(arenaAt+policyabi.HeaderRows), asm.With(0x28, 2, 0), asm.I32Const(99), asm.Op(0x46), asm.If(0x40, asm.Op(0x00)),
		asm.I64Const(0))
	v := load(t, p.bytes(), wasm.Config{})
	pl, faults := placer(t, v, wasm.PlacerConfig{})
	for _, hosts := range []int{20, 99, 21, 22} {
		pl.Place(plainTable(t, hosts), one())
	}
	if len(*faults) != 1 || (*faults)[0].Kind != wasm.FaultTrap {
		t.Fatalf("faults: %v", *faults)
	}
	if n := v.Counters().Calls.Load(); n < 4 {
		t.Fatalf("%d calls", n)
	}
}

func compiler(t *testing.T) *wasm.Compiler {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &wasm.Compiler{Command: func(ctx context.Context, cache string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), childEnv+"="+cache)
		return cmd
	}}
}

// TestChildFillsTheCache compiles in another process and asks that this one then finds it all there: the cache does not change any more.
func TestChildFillsTheCache(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "compiled")
	m, err := wasm.Check(guest(t, "bestfit"), wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := compiler(t).Compile(t.Context(), cache, m); err != nil {
		t.Fatal(err)
	}
	before := files(t, cache)
	if len(before) != 1 {
		t.Fatalf("the child left %v", before)
	}
	load(t, guest(t, "bestfit"), wasm.Config{Cache: cache, Compiler: compiler(t)})
	if after := files(t, cache); len(after) > 1 && strings.Join(after, " ") != strings.Join(before, " ") {
		t.Fatalf("this process compiled again: %v, then %v", before, after)
	}
}

// TestCompilingIsBounded compiles with what never ends: a process that computes is stopped by the time that it computes, as the kernel counts it, and one that waits by the clock.
func TestCompilingIsBounded(t *testing.T) {
	t.Parallel()
	m, err := wasm.Check(guest(t, "bestfit"), wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for script, c := range map[string]struct {
		timeout time.Duration
		want    string
	}{
		"ulimit -t 1; while :; do :; done": {0, "more than 1s of computing"}, // CompileChild limits itself so
		"exec sleep 1000":                  {100 * time.Millisecond, "not done after 100ms"},
	} {
		compiler := wasm.Compiler{Timeout: c.timeout, Limits: wasm.Limits{CompileTime: time.Second}, Command: func(ctx context.Context, _ string) *exec.Cmd {
			return exec.CommandContext(ctx, "sh", "-c", script)
		}}
		if err := compiler.Compile(t.Context(), t.TempDir(), m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCacheMustBePrivate(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "compiled")
	if err := os.Mkdir(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	m, err := wasm.Check(guest(t, "bestfit"), wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wasm.Load(t.Context(), m, wasm.Config{Cache: cache}); err == nil || !strings.Contains(err.Error(), "0755") {
		t.Fatalf("got %v", err)
	}
}

func TestCompileFailsInTheChild(t *testing.T) {
	p := good()
	p.place = asm.Op(0x1a) // takes from an empty stack
	m, err := wasm.Check(p.bytes(), wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = wasm.Load(t.Context(), m, wasm.Config{Cache: filepath.Join(t.TempDir(), "c"), Compiler: compiler(t)})
	if err == nil || !strings.Contains(err.Error(), "the process that compiles failed") {
		t.Fatalf("got %v", err)
	}
}

// TestConfigurationArrives has a guest that traps unless its configuration is the one that was given.
func TestConfigurationArrives(t *testing.T) {
	p := good()
	p.section += "config answer int 41\n"
	// The value of the only entry stands 8 bytes of header, 4 of the entry's head and 6 of its key behind the offset.
	const value = 8 + 4 + 6
	p.Export(policyabi.ExportConfig, asm.Function, p.Func([]byte{asm.I32}, []byte{asm.I32}, nil,
		asm.I32Const(arenaAt+policyabi.HeaderConfig), asm.With(0x28, 2, 0), asm.With(0x28, 0, arenaAt+value),
		asm.I32Const(42), asm.Op(0x47), asm.If(0x40, asm.Op(0x00)), asm.I32Const(0)))
	binary := p.bytes()
	load(t, binary, wasm.Config{Values: policyabi.Config{{Key: "answer", Type: policyabi.Int, Int: 42}}})
	m, err := wasm.Check(binary, wasm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wasm.Load(t.Context(), m, wasm.Config{}); err == nil {
		t.Fatal("the default is another value")
	}
	if _, err := wasm.Load(t.Context(), m, wasm.Config{Values: policyabi.Config{{Key: "question", Type: policyabi.Int}}}); err == nil || !strings.Contains(err.Error(), "no such value") {
		t.Fatalf("got %v", err)
	}
}

// TestSameEverywhere runs the same batches with two instances and asks for the same fuel: nothing that a guest sees differs from run to run.
func TestSameEverywhere(t *testing.T) {
	run := func() (uint64, string) {
		v := load(t, guest(t, "bestfit"), wasm.Config{})
		table := plainTable(t, 300)
		p, faults := placer(t, v, wasm.PlacerConfig{CallWork: 1 << 20})
		before := v.Counters().Fuel.Load()
		for n := range 30 {
			p.Place(table, []placement.Request{{Class: newClass(resource.Vector{resource.CPU: int64(100 * n), resource.GPU: int64(n % 3 * 500)}, workload.Placement{}), Count: n + 1}})
		}
		if len(*faults) > 0 {
			t.Fatal((*faults)[0])
		}
		return v.Counters().Fuel.Load() - before, books(table)
	}
	fuel1, books1 := run()
	fuel2, books2 := run()
	if fuel1 != fuel2 || books1 != books2 {
		t.Fatalf("fuel %d, then %d", fuel1, fuel2)
	}
}

func TestLogIsTamed(t *testing.T) {
	p := good()
	p.before = withLog
	p.Data(8, []byte("two\nlines\x1b[31m"))
	p.place = asm.Join(
		asm.I32Const(100), asm.LocalSet(1),
		asm.Loop(0x40, asm.I32Const(99), asm.I32Const(8), asm.I32Const(14), asm.Call(0),
			asm.LocalGet(1), asm.I32Const(1), asm.Op(0x6b), asm.LocalTee(1), asm.BrIf(0)),
		asm.I64Const(0))
	p.locals = []byte{asm.I32}
	var lines []string
	v := load(t, p.bytes(), wasm.Config{Log: func(level int, text string) {
		if level != policyabi.LogError {
			t.Errorf("level %d", level)
		}
		lines = append(lines, text)
	}})
	lines = nil
	pl, faults := placer(t, v, wasm.PlacerConfig{})
	pl.Place(plainTable(t, 10), one())
	if len(*faults) > 0 {
		t.Fatal((*faults)[0])
	}
	if len(lines) != 16 || lines[0] != "two lines [31m" {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
}

// TestGuestsAreTheirSource compiles the guests below testdata again and compares.
func TestGuestsAreTheirSource(t *testing.T) {
	clang, err := exec.LookPath("clang")
	if err != nil {
		t.Skip("no clang: apt-get install clang lld")
	}
	if version, err := exec.CommandContext(t.Context(), clang, "--version").Output(); err != nil || !strings.Contains(string(version), "version 14.") {
		t.Skipf("another clang than the one that made the guests: %s", version)
	}
	examples := filepath.Join("..", "..", "examples", "policies")
	for name, source := range map[string]string{"bestfit": filepath.Join(examples, "best-fit", "policy.c"), "trio": filepath.Join("testdata", "guests", "trio.c")} {
		object, out := filepath.Join(t.TempDir(), name+".o"), filepath.Join(t.TempDir(), name+".wasm")
		for _, arguments := range [][]string{
			{"-O3", "-msimd128", "-mbulk-memory", "-Wall", "-Wextra", "-Werror", "-I", filepath.Join("..", "..", "sdk", "guest", "c"), "-c", "-o", object, source},
			{"-nostdlib", "-Wl,--no-entry", "-Wl,-z,stack-size=65536", "-Wl,--strip-all", "-o", out, object},
		} {
			if text, err := exec.CommandContext(t.Context(), clang, append([]string{"--target=wasm32"}, arguments...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
		}
		built, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if string(built) != string(guest(t, name)) {
			t.Errorf("testdata/guests/%s.wasm is not what %s makes: build it anew with paceline policy build %s --out policies/wasm/testdata/guests/%s.wasm", name, source, filepath.Dir(source), name)
		}
	}
}
