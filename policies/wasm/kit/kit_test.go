package kit_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/paceline-sched/paceline/policies/wasm/kit"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

func TestGoodPolicyPasses(t *testing.T) {
	module, err := os.ReadFile(filepath.Join("..", "testdata", "guests", "bestfit.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := kit.Run(t.Context(), module, kit.Options{})
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	if r.Policy != "best-fit-c" || r.Version != "1.0.0" || len(r.Checks) < 15 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Checks {
		if c.Outcome != kit.Passed {
			t.Errorf("%s: %s: %s", c.Name, c.Outcome, c.Detail)
		}
	}
}

func TestOtherKindsPass(t *testing.T) {
	module, err := os.ReadFile(filepath.Join("..", "testdata", "guests", "trio.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := kit.Run(t.Context(), module, kit.Options{Rounds: 3, Calls: 200})
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	var names []string
	for _, c := range r.Checks {
		if c.Outcome != kit.Passed {
			t.Errorf("%s: %s: %s", c.Name, c.Outcome, c.Detail)
		}
		names = append(names, c.Name)
	}
	if got := strings.Join(names, ", "); got != "module, load, preempt, preempt memory, quota, quota memory, route, route memory" {
		t.Error(got)
	}
}

const (
	arenaAt   = 1 << 16
	counterAt = 64
)

// policy is a module whose paceline_place is the code that is given; local 1 is an i32. It begins by counting calls in the memory at counterAt.
func policy(kinds string, place ...[]byte) []byte {
	var m asm.Module
	m.Export(policyabi.ExportABI, asm.Function, m.Func(nil, []byte{asm.I32}, nil, asm.I32Const(policyabi.Version)))
	m.Export(policyabi.ExportArena, asm.Function, m.Func([]byte{asm.I32}, []byte{asm.I32}, nil, asm.I32Const(arenaAt)))
	counts := asm.Join(asm.I32Const(counterAt), counter, asm.I32Const(1), asm.Op(0x6a), asm.With(0x36, 2, 0))
	f := m.Func([]byte{asm.I32}, []byte{asm.I64}, []byte{asm.I32}, append([][]byte{counts}, place...)...)
	m.Export(policyabi.ExportPlace, asm.Function, f)
	m.Export(policyabi.ExportPreempt, asm.Function, f)
	m.Memory(256, 1024)
	m.Export(policyabi.ExportMemory, asm.Memory, 0)
	m.Custom(policyabi.SectionName, []byte("paceline.policy 1\nname odd\nabi 1.0\nkinds "+kinds+"\ncolumns free.cpu free.memory free.disk\n"))
	return m.Bytes()
}

var (
	counter = asm.Join(asm.I32Const(counterAt), asm.With(0x28, 2, 0))
	header  = func(field uint32) []byte { return asm.Join(asm.I32Const(int32(arenaAt+field)), asm.With(0x28, 2, 0)) }
	nothing = asm.I64Const(0)
)

// oneTask answers with one task of the first request on the row that the code leaves.
func oneTask(row []byte) []byte {
	at := asm.Join(header(policyabi.HeaderResults), asm.I32Const(arenaAt), asm.Op(0x6a))
	return asm.Join(
		at, asm.I32Const(1<<16), asm.With(0x36, 2, 0), at, row, asm.With(0x36, 2, 4), at, asm.I32Const(0), asm.With(0x36, 2, 8), at, asm.I32Const(0), asm.With(0x36, 2, 12),
		asm.I64Const(1))
}

// fitsRow0 leaves 1 when row 0 is open to the first request and has its CPU, memory and disk.
func fitsRow0() []byte {
	const field = policyabi.HeaderRequests
	request := asm.Join(header(field), asm.I32Const(arenaAt), asm.Op(0x6a))
	code := asm.I32Const(0)
	for k := range uint32(3) {
		entry := asm.Join(header(policyabi.HeaderDirectory), asm.I32Const(arenaAt), asm.Op(0x6a))
		free := asm.Join(entry, asm.With(0x28, 2, policyabi.EntryBytes*k+policyabi.EntryOffset), asm.I32Const(arenaAt), asm.Op(0x6a), asm.With(0x28, 2, 0))
		code = asm.Join(code, free, request, asm.With(0x28, 2, policyabi.RequestNeeds+4*k), asm.Op(0x6b), asm.Op(0x72))
	}
	open := asm.Join(request, asm.With(0x28, 2, policyabi.RequestBitmap), asm.I32Const(arenaAt), asm.Op(0x6a), asm.With(0x2d, 0, 0), asm.I32Const(1), asm.Op(0x71))
	return asm.Join(code, asm.I32Const(0), asm.Op(0x4e), open, asm.Op(0x71))
}

func TestFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	grow := asm.Join(counter, asm.I32Const(31), asm.Op(0x71), asm.Op(0x45), asm.If(0x40, asm.I32Const(1), asm.Op(0x40, 0, 0x1a)))
	row0 := asm.Join(header(policyabi.HeaderRows), asm.If(0x40, fitsRow0(), asm.If(0x40, oneTask(asm.I32Const(0)), asm.Op(0x0f))), nothing)
	odd := asm.Join(counter, asm.I32Const(1), asm.Op(0x71), asm.If(0x40, nothing, asm.Op(0x0f)), row0)
	for name, c := range map[string]struct {
		module  []byte
		check   string
		outcome kit.Outcome
		detail  string
	}{
		"no module":         {[]byte("\x00asm"), "module", kit.Failed, "at byte"},
		"traps at once":     {policy("place", asm.Op(0x00)), "load", kit.Failed, "trap"},
		"traps on none":     {policy("place", header(policyabi.HeaderRows), asm.Op(0x45), asm.If(0x40, asm.Op(0x00)), nothing), "no hosts", kit.Failed, "trap"},
		"traps on one":      {policy("place", header(policyabi.HeaderRows), asm.I32Const(1), asm.Op(0x46), asm.If(0x40, asm.Op(0x00)), nothing), "one host", kit.Failed, "trap"},
		"no room":           {policy("place", header(policyabi.HeaderRows), asm.I32Const(99), asm.Op(0x49), asm.If(0x40, oneTask(asm.I32Const(0)), asm.Op(0x0f)), nothing), "full table", kit.Failed, "cannot take a task"},
		"loops when large":  {policy("place", header(policyabi.HeaderRows), asm.I32Const(9999), asm.Op(0x4b), asm.If(0x40, asm.Loop(0x40, asm.Br(0))), nothing), "a full-sized table", kit.Failed, "fuel"},
		"places nothing":    {policy("place", nothing), "places", kit.Warned, "nothing at all"},
		"leaks":             {policy("place", grow, nothing), "memory", kit.Failed, "it grew from"},
		"keeps to itself":   {policy("place", nothing), "memory", kit.Passed, "the same for the last"},
		"places on row 0":   {policy("place", row0), "random tables", kit.Passed, "tasks placed"},
		"always the same":   {policy("place", row0), "the same again", kit.Passed, "answers the same"},
		"remembers":         {policy("place", odd), "the same again", kit.Warned, "differently"},
		"ranks nobody":      {policy("place preempt", nothing), "preempt", kit.Passed, "answered alike"},
		"ranks too many":    {policy("place preempt", header(policyabi.HeaderRequestCount), asm.I32Const(2), asm.Op(0x46), asm.If(0x40, asm.I64Const(3), asm.Op(0x0f)), nothing), "preempt", kit.Failed, "3 ranks for 2"},
		"leaks as it ranks": {policy("place preempt", grow, nothing), "preempt memory", kit.Failed, "it grew from"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := kit.Run(t.Context(), c.module, kit.Options{Rounds: 2, Calls: 400, Scenes: []string{c.check, "random tables"}})
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range r.Checks {
				if got.Name == c.check {
					if got.Outcome != c.outcome || !strings.Contains(got.Detail, c.detail) {
						t.Fatalf("want %s with %q, got %s: %s", c.outcome, c.detail, got.Outcome, got.Detail)
					}
					if failed := r.Err(); (failed != nil) != (got.Outcome == kit.Failed) {
						t.Errorf("the error is %v", failed)
					}
					return
				}
			}
			t.Fatalf("no check %q in %+v", c.check, r.Checks)
		})
	}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := kit.Run(ctx, policy("place", nothing), kit.Options{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
