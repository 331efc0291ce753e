package decision_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
)

// BenchmarkRecord places batches of 64 tasks and ends them, by turns recorded and not, and says how much longer the median takes that is recorded. The writer has time to
// write, as it has beside a shard that does anything else.
func BenchmarkRecord(b *testing.B) {
	for _, hosts := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) { benchRecord(b, hosts) })
	}
}

func benchRecord(b *testing.B, hosts int) {
	told := teller{wrote: make(chan struct{}, 1)}
	log, err := decision.OpenLog(decision.Config{Dir: b.TempDir(), Retain: 64 << 20, FlushEvery: time.Millisecond, OnWrite: told.add})
	if err != nil {
		b.Fatal(err)
	}
	recorder, err := log.Record("c/0", native{placement.NewNative()})
	if err != nil {
		b.Fatal(err)
	}
	defer recorder.Close()
	recorded, _ := recorder.Placer("")
	placers := [2]placement.Placer{placement.NewNative(), recorded}
	tables := [2]*host.Table{benchTable(b, hosts), benchTable(b, hosts)}
	const round = 100 // batches until the writer is waited for
	classes := benchClasses()
	var places, ends [2][]time.Duration
	done := 0
	for b.Loop() {
		for i := range 2 * round {
			n, class := i%2, classes[i/2%len(classes)]
			began := time.Now()
			found := placers[n].Place(tables[n], []placement.Request{{Class: class, Count: 64}})[0]
			placed := time.Now()
			for _, a := range found.Assignments {
				if err := tables[n].Release(a.Row, class.Occupant(a.Devices, a.Ports)); err != nil {
					b.Fatal(err)
				}
			}
			places[n], ends[n] = append(places[n], placed.Sub(began)), append(ends[n], time.Since(placed))
		}
		for done += round; told.records.Load()+told.dropped.Load() < uint64(done); {
			<-told.wrote
		}
	}
	report := func(what string, of [2][]time.Duration) {
		plain, recorded := median(of[0]), median(of[1])
		b.ReportMetric(float64(plain), what+"-ns/batch")
		b.ReportMetric(float64(recorded-plain), what+"-more-ns/batch")
	}
	report("place", places)
	report("end", ends)
	b.ReportMetric(100*float64(median(places[1])+median(ends[1])-median(places[0])-median(ends[0]))/float64(median(places[0])+median(ends[0])), "more-%")
	b.ReportMetric(0, "ns/op") // most of it is waiting
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

func benchTable(b *testing.B, hosts int) *host.Table {
	b.Helper()
	table := host.New(&resource.Names{}, hosts)
	for i := range hosts {
		if _, err := table.Upsert(host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 15: 1}, Name: fmt.Sprint("h", i), Ready: true, Attributes: map[string]string{"rack": fmt.Sprint(i / 40)},
			Capacity: resource.Vector{resource.CPU: int64(16000 + i*7919%5*16000), resource.Memory: int64(65536 + i*104729%3*65536)},
		}); err != nil {
			b.Fatal(err)
		}
	}
	return table
}

func benchClasses() []*placement.Class {
	var list []*placement.Class
	for i := range 16 {
		spec := &workload.JobSpec{Kind: workload.Batch}
		spec.Template.Needs = resource.Vector{resource.CPU: int64(500 * (i + 1)), resource.Memory: int64(512 * (i%3 + 1))}
		list = append(list, placement.NewClass(workload.JobID{}, spec, nil))
	}
	return list
}

// BenchmarkReplay answers recorded batches again.
func BenchmarkReplay(b *testing.B) {
	dir := b.TempDir()
	record(b, dir, 1, 3000, nil)
	batches := 0
	for b.Loop() {
		report, err := decision.Replay(b.Context(), dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("pack", workload.StrategyPack)}})
		if err != nil {
			b.Fatal(err)
		}
		batches += report.Batches
	}
	b.ReportMetric(float64(batches)/b.Elapsed().Seconds(), "batches/s")
}
