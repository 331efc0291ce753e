package wasm_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/policies/wasm/fuel"
	asm "github.com/paceline-sched/paceline/policies/wasm/internal/assembler"
	"github.com/paceline-sched/paceline/sdk/policyabi"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

const benchRows = 16384

// goGuest builds the guest of the plain Go toolchain and puts its section on.
func goGuest(b *testing.B) []byte {
	b.Helper()
	out := filepath.Join(b.TempDir(), "gofit.wasm")
	cmd := exec.CommandContext(b.Context(), "go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, "./testdata/guests/gofit")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if text, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, text)
	}
	binary, err := os.ReadFile(out)
	if err != nil {
		b.Fatal(err)
	}
	text := "paceline.policy 1\nname gofit\nabi 1.0\nkinds place\ncolumns leftover free.*\n"
	return append(binary, asm.Section(0, append(asm.Name(policyabi.SectionName), text...))...)
}

// BenchmarkPlace plans one task, and 64 of a class, on 16,384 hosts: natively and by guests. The figures beside ns/op are medians, which say something on a busy machine
// too; guest-ns/row is the time inside calls, and the rest of ns/row what the host does to make one.
func BenchmarkPlace(b *testing.B) {
	class := newClass(resource.Vector{resource.CPU: 4000, resource.Memory: 8192}, workload.Placement{})
	for _, count := range []int{1, 64} {
		requests := []placement.Request{{Class: class, Count: count}}
		b.Run(fmt.Sprintf("tasks=%d/native", count), func(b *testing.B) {
			table, native := plainTable(b, benchRows), placement.NewNative()
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				native.Plan(table, requests)
				took = append(took, time.Since(began))
			}
			b.ReportMetric(perRow(took), "ns/row")
		})
		for _, name := range []string{"c-simd", "go"} {
			if name == "go" && count > 1 {
				continue // it places one at a time
			}
			b.Run(fmt.Sprintf("tasks=%d/%s", count, name), func(b *testing.B) {
				var binary []byte
				if name == "go" {
					binary = goGuest(b)
				} else {
					binary = guest(b, "bestfit")
				}
				benchGuest(b, binary, requests)
			})
		}
	}
}

func benchGuest(b *testing.B, binary []byte, requests []placement.Request) {
	b.Helper()
	table := plainTable(b, benchRows)
	v := load(b, binary, wasm.Config{})
	var inside, took []time.Duration
	p, faults := placer(b, v, wasm.PlacerConfig{OnCall: func(c wasm.Call) { inside = append(inside, c.Took) }})
	p.Plan(table, requests)
	c := v.Counters()
	calls, used := c.Calls.Load(), c.Fuel.Load()
	for b.Loop() {
		began := time.Now()
		p.Plan(table, requests)
		took = append(took, time.Since(began))
	}
	if len(*faults) > 0 {
		b.Fatal((*faults)[0])
	}
	n := float64(c.Calls.Load() - calls)
	b.ReportMetric(perRow(inside), "guest-ns/row")
	b.ReportMetric(float64(c.Fuel.Load()-used)/n/benchRows, "fuel/row")
	b.ReportMetric(perRow(took), "ns/row")
}

// perRow is the median, in nanoseconds for a row.
func perRow(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / benchRows
}

// BenchmarkMetering runs the scan of the C guest as it came and metered, in turns, and reports how much longer the metered one takes.
func BenchmarkMetering(b *testing.B) {
	plain := guest(b, "bestfit")
	m, err := fuel.Rewrite(plain, fuel.Options{Global: policyabi.FuelGlobal, Initial: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	before, after := scanner(b, plain), scanner(b, m.Binary)
	const inOneGo = 200
	best := [2]time.Duration{time.Hour, time.Hour}
	for b.Loop() {
		for i, f := range []api.Function{before, after} {
			began := time.Now()
			for range inOneGo {
				if _, err := f.Call(ctx, 1); err != nil {
					b.Fatal(err)
				}
			}
			best[i] = min(best[i], time.Since(began))
		}
	}
	b.ReportMetric(100*(float64(best[1])/float64(best[0])-1), "%more")
	b.ReportMetric(float64(best[1].Nanoseconds())/inOneGo/benchRows, "ns/row")
}

// scanner instantiates a guest with a table of random hosts and one request, and returns its call.
func scanner(b *testing.B, binary []byte) api.Function {
	b.Helper()
	layout, err := policyabi.Plan(policyabi.Shape{
		Kind: policyabi.Place, Rows: benchRows, Requests: 1, Results: 64, Bitmaps: 1,
		Columns: []policyabi.Column{{ID: policyabi.ColumnLeftover}, {ID: policyabi.ColumnFree}, {ID: policyabi.ColumnFree + 1}},
	})
	if err != nil {
		b.Fatal(err)
	}
	image := make([]byte, layout.Header.Total)
	layout.Header.Encode(image)
	for i := range layout.Entries {
		e := &layout.Entries[i]
		e.Encode(image[int(layout.Header.Directory)+i*policyabi.EntryBytes:])
		for row := range benchRows {
			v := uint32(row*7919+i*104729) * 2654435761 >> 4
			copy(image[int(e.Offset)+4*row:], []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
		}
	}
	for i := range benchRows / 8 {
		image[int(layout.Bitmaps)+i] = 0xff
	}
	r := policyabi.Request{Class: 1, Count: 1, Bitmap: layout.Bitmaps, Needs: [4]int32{1 << 20, 1 << 20}}
	r.Encode(image[layout.Header.Requests:])
	ctx := b.Context()
	rt := wazero.NewRuntime(ctx)
	b.Cleanup(func() { _ = rt.Close(context.WithoutCancel(ctx)) })
	in, err := rt.InstantiateWithConfig(ctx, binary, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		b.Fatal(err)
	}
	at, err := in.ExportedFunction(policyabi.ExportArena).Call(ctx, uint64(len(image)))
	if err != nil || !in.Memory().Write(uint32(at[0]), image) {
		b.Fatal(err)
	}
	return in.ExportedFunction(policyabi.ExportPlace)
}
