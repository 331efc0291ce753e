package wasm_test

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
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

// natural is best fit as one would write it: host after host, need after need.
func natural(t *host.Table, c *placement.Class) host.Row {
	type need struct {
		free   []int64
		amount int64
	}
	var needs []need
	for k, amount := range c.Needs {
		if amount > 0 {
			needs = append(needs, need{t.FreeOf(resource.Kind(k)), amount})
		}
	}
	best, least := host.NoRow, int64(math.MaxInt64)
	usable, cost := t.Usable(), t.Leftover()
	for row := range host.Row(t.Rows()) {
		fits := usable.Has(row)
		for i := range needs {
			if needs[i].free[row] < needs[i].amount {
				fits = false
				break
			}
		}
		if fits && cost[row] < least {
			best, least = row, cost[row]
		}
	}
	return best
}

// BenchmarkGuestScan finds the best of 16,384 hosts for one task, in turns by the natural loop, the scheduler's own placer and the guest with SIMD; of the guest what it takes
// inside a call counts. Figures are medians.
func BenchmarkGuestScan(b *testing.B) {
	class := newClass(resource.Vector{resource.CPU: 4000, resource.Memory: 8192}, workload.Placement{})
	requests := []placement.Request{{Class: class, Count: 1}}
	table := plainTable(b, benchRows)
	v := load(b, guest(b, "bestfit"), wasm.Config{})
	var loop, native, inside []time.Duration
	p, faults := placer(b, v, wasm.PlacerConfig{OnCall: func(c wasm.Call) { inside = append(inside, c.Took) }})
	own := placement.NewNative()
	p.Plan(table, requests) // which makes the instance
	inside = nil
	for b.Loop() {
		began := time.Now()
		row := natural(table, class)
		between := time.Now()
		own.Plan(table, requests)
		loop, native = append(loop, between.Sub(began)), append(native, time.Since(between))
		if got := p.Plan(table, requests); got[0].Assignments[0].Row != row {
			b.Fatalf("the guest chooses row %d, the loop %d", got[0].Assignments[0].Row, row)
		}
	}
	if len(*faults) > 0 {
		b.Fatal((*faults)[0])
	}
	b.ReportMetric(perRow(loop), "natural-ns/row")
	b.ReportMetric(perRow(native), "native-ns/row")
	b.ReportMetric(perRow(inside), "guest-ns/row")
	b.ReportMetric(perRow(inside)/perRow(loop), "x-natural")
}

// exactBatch is how many tasks, each of a class of its own, are asked for at once.
const exactBatch = 64

// BenchmarkGuestExact places tasks one by one, each where it costs the least of all hosts: every table is looked at for every task, in parallel, and the best of the tables' answers is taken.
// Tables are as large as they may be, and at least one for each processor.
func BenchmarkGuestExact(b *testing.B) {
	for _, hosts := range []int{10_000, 50_000} {
		b.Run("hosts="+strconv.Itoa(hosts), func(b *testing.B) { benchExact(b, hosts) })
	}
}

func benchExact(b *testing.B, hosts int) {
	workers := runtime.GOMAXPROCS(0)
	parts := (hosts + policyabi.MaxRows - 1) / policyabi.MaxRows
	parts = (parts + workers - 1) / workers * workers
	v := load(b, guest(b, "bestfit"), wasm.Config{})
	requests := make([]placement.Request, exactBatch)
	for i := range requests {
		needs := resource.Vector{resource.CPU: int64(2000 + 100*i), resource.Memory: int64(8192 + 64*i)}
		requests[i] = placement.Request{Class: newClass(needs, workload.Placement{}), Count: 1}
	}
	tables, placers, answers := make([]*host.Table, parts), make([]*wasm.Placer, parts), make([][]placement.Result, parts)
	for i := range parts {
		tables[i] = plainTable(b, (i+1)*hosts/parts-i*hosts/parts)
		placers[i], _ = placer(b, v, wasm.PlacerConfig{OnFault: func(f *wasm.Fault) { panic(f) }})
		placers[i].Plan(tables[i], requests)
	}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := w; i < parts; i += workers {
					answers[i] = placers[i].Plan(tables[i], requests)
				}
			})
		}
		all.Wait()
		for i := range requests {
			if cheapest(tables, answers, i) < 0 {
				b.Fatal("a task found no host")
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(exactBatch/took[len(took)/2].Seconds(), "placements/s")
	b.ReportMetric(float64(v.Counters().Calls.Load())/float64(len(took)*parts), "calls/table")
}

// cheapest is the table whose answer to a request costs the least, -1 when none has one.
func cheapest(tables []*host.Table, answers [][]placement.Result, request int) int {
	best, least := -1, int64(math.MaxInt64)
	for i := range tables {
		if found := answers[i][request].Assignments; len(found) > 0 && tables[i].Leftover()[found[0].Row] < least {
			best, least = i, tables[i].Leftover()[found[0].Row]
		}
	}
	return best
}

// runaways never end. Each works through its trial as a scan would, so that its fuel is what a policy's is.
var runaways = map[string][]byte{
	"loop":   asm.Join(asm.Loop(0x40, asm.Br(0)), asm.Op(0x00)),
	"chain":  asm.Join(asm.LocalGet(0), asm.Call(2), asm.Op(0x1a), asm.LocalGet(0), asm.Call(2)),
	"fill":   asm.Join(asm.Loop(0x40, asm.I32Const(0), asm.I32Const(1), asm.I32Const(1<<20), asm.Op(0xfc, 11, 0), asm.Br(0)), asm.Op(0x00)),
	"thrash": asm.Join(asm.Loop(0x40, asm.LocalGet(1), asm.I32Const(0x3fff7c1), asm.Op(0x71), asm.With(0x28, 0, 0), asm.LocalGet(1), asm.I32Const(1664525), asm.Op(0x6c), asm.I32Const(1013904223), asm.Op(0x6a, 0x6a), asm.LocalSet(1), asm.Br(0)), asm.Op(0x00)),
}

// BenchmarkRunaway lets policies run away on a table of 16,384 hosts, and measures until the scheduler's own placer has answered in their place.
func BenchmarkRunaway(b *testing.B) {
	for _, name := range []string{"loop", "chain", "fill", "thrash"} {
		b.Run(name, func(b *testing.B) {
			p := good()
			p.locals = []byte{asm.I32}
			if name == "thrash" {
				p.pages, p.most = 1024, 1024
			}
			turns := asm.Join( // 20 times a row, which is what a scan uses
				asm.I32Const(1024*2), asm.LocalSet(1),
				asm.Loop(0x40, asm.LocalGet(1), asm.I32Const(1), asm.Op(0x6b), asm.LocalTee(1), asm.BrIf(0)))
			trial := asm.Join(
				asm.I32Const(arenaAt+policyabi.HeaderRows), asm.With(0x28, 2, 0), asm.I32Const(1024), asm.Op(0x46), asm.If(0x40, turns, asm.I64Const(0), asm.Op(0x0f)))
			p.place = asm.Join(trial, runaways[name])
			v := load(b, p.bytes(), wasm.Config{})
			table := plainTable(b, benchRows)
			pl, faults := placer(b, v, wasm.PlacerConfig{})
			requests := []placement.Request{{Class: newClass(resource.Vector{resource.CPU: 4000}, workload.Placement{}), Count: 1}}
			var took, computed []time.Duration
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				began, before := time.Now(), threadTime(b)
				if got := pl.Plan(table, requests); len(got[0].Assignments) != 1 {
					b.Fatal("the task was not placed")
				}
				took, computed = append(took, time.Since(began)), append(computed, threadTime(b)-before)
			}
			if len(*faults) != len(took) {
				b.Fatalf("%d faults in %d calls", len(*faults), len(took))
			}
			slices.Sort(took)
			slices.Sort(computed)
			b.ReportMetric(float64(v.Counters().Starting.Load())/1e6/float64(len(took)), "ms-start")
			b.ReportMetric(computed[len(computed)/2].Seconds()*1e3, "ms-computed")
			b.ReportMetric(took[len(took)/2].Seconds()*1e3, "ms-stop")
			b.ReportMetric(took[len(took)-1].Seconds()*1e3, "ms-stop-most")
			b.ReportMetric(float64(v.Counters().Fuel.Load())/float64(len(took)), "fuel/op")
		})
	}
}

// threadTime is how long this thread has computed, which other work on the machine does not lengthen much.
func threadTime(b *testing.B) time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
