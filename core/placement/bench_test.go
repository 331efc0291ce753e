package placement_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
)

func benchTable(b *testing.B, hosts int) *host.Table {
	b.Helper()
	t := host.New(&resource.Names{}, hosts)
	for i := range hosts {
		h := host.Host{
			Name: fmt.Sprint("h", i), Ready: true, Attributes: map[string]string{"zone": fmt.Sprint(i % 8)},
			Capacity: resource.Vector{int64(32000 + i*37%64000), int64(131072 + i*53%262144), 1 << 20},
		}
		binary.BigEndian.PutUint64(h.ID[:], uint64(i+1))
		if _, err := t.Upsert(h); err != nil {
			b.Fatal(err)
		}
	}
	return t
}

func benchClass(cpu int64, wish workload.Placement) *placement.Class {
	return placement.NewClass(workload.JobID{1}, &workload.JobSpec{
		Kind: workload.Batch, Labels: map[string]string{"app": "a"}, Template: workload.TaskTemplate{Needs: resource.Vector{cpu, 2 * cpu}}, Placement: wish,
	}, nil)
}

// giveBack empties the table again, outside the timing.
func giveBack(b *testing.B, t *host.Table, class *placement.Class, results []placement.Result) {
	for _, r := range results {
		if r.Refused > 0 {
			b.Fatal("a task was refused: the figures would count it as placed")
		}
		for _, a := range r.Assignments {
			if err := t.Release(a.Row, class.Occupant(a.Devices, a.Ports)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// benchPlace measures placements of one known class, count at a time.
func benchPlace(b *testing.B, hosts, count int, wish workload.Placement) {
	t, n := benchTable(b, hosts), placement.NewNative()
	class := benchClass(500, wish)
	requests := []placement.Request{{Class: class, Count: count}}
	var results []placement.Result
	for b.Loop() {
		results = append(results, n.Place(t, requests)...)
		if len(results) == 64 {
			b.StopTimer()
			giveBack(b, t, class, results)
			results = results[:0]
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.N*count)/b.Elapsed().Seconds(), "placements/s")
}

func BenchmarkPlace(b *testing.B) {
	for _, hosts := range []int{10_000, 50_000} {
		for _, count := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("hosts=%d/class=%d", hosts, count), func(b *testing.B) { benchPlace(b, hosts, count, workload.Placement{}) })
		}
	}
}

func BenchmarkPlaceSpread(b *testing.B) {
	wish := workload.Placement{Spreads: []workload.Spread{{Topology: "zone", MaxSkew: 1}}}
	benchPlace(b, 10_000, 64, wish)
}

// BenchmarkPlaceAlone measures a service that wants every instance on a host of its own.
func BenchmarkPlaceAlone(b *testing.B) {
	wish := workload.Placement{Affinities: []workload.Affinity{{Selector: map[string]string{"app": "a"}, Topology: workload.TopologyHost, Anti: true}}}
	benchPlace(b, 10_000, 64, wish)
}

// BenchmarkScan measures one task of a known class, nearly all of which is the scan: every host has room and is looked at.
func BenchmarkScan(b *testing.B) {
	for _, hosts := range []int{10_000, 50_000} {
		b.Run(fmt.Sprintf("hosts=%d", hosts), func(b *testing.B) {
			t, n := benchTable(b, hosts), placement.NewNative()
			requests := []placement.Request{{Class: benchClass(500, workload.Placement{}), Count: 1}}
			for b.Loop() {
				n.Plan(t, requests)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(hosts), "ns/host")
		})
	}
}

// BenchmarkScanFull is BenchmarkScan where nine hosts in ten are full, and would be the best.
func BenchmarkScanFull(b *testing.B) {
	const hosts = 10_000
	t, n := benchTable(b, hosts), placement.NewNative()
	for row := range host.Row(hosts) {
		if row%10 == 0 {
			continue
		}
		free := t.Free(row)
		full := placement.NewClass(workload.JobID{2}, &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: free}}, nil)
		if err := t.Take(row, full.Occupant(0, nil)); err != nil {
			b.Fatal(err)
		}
	}
	requests := []placement.Request{{Class: benchClass(500, workload.Placement{}), Count: 1}}
	for b.Loop() {
		n.Plan(t, requests)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/hosts, "ns/host")
}

// BenchmarkNewClasses measures one-task classes that were never seen before.
func BenchmarkNewClasses(b *testing.B) {
	t, n := benchTable(b, 10_000), placement.NewNative()
	classes := make([]*placement.Class, 4096)
	for i := range classes {
		classes[i] = benchClass(int64(1+i), workload.Placement{})
	}
	i := 0
	for b.Loop() {
		n.Plan(t, []placement.Request{{Class: classes[i%len(classes)], Count: 1}})
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "placements/s")
}

// BenchmarkRefusal measures a refusal repeated while other work keeps the table moving.
func BenchmarkRefusal(b *testing.B) {
	t, n := benchTable(b, 10_000), placement.NewNative()
	huge := []placement.Request{{Class: benchClass(1<<30, workload.Placement{}), Count: 64}}
	small := []placement.Request{{Class: benchClass(1, workload.Placement{}), Count: 1}}
	n.Place(t, huge)
	for b.Loop() {
		n.Plan(t, small)
		n.Place(t, huge)
	}
}

// BenchmarkGang is one attempt to place a gang on 5,000 hosts in racks of 40: anywhere, within one rack, and one that no rack has room for, whose
// attempts are the same scan again. A gang of 64 fills a good part of a rack.
func BenchmarkGang(b *testing.B) {
	const hosts, rack = 5000, 40
	for _, size := range []int{3, 64} {
		for _, within := range []placement.Within{{}, {Key: "rack", Required: true}, {Key: "rack"}} {
			name := fmt.Sprintf("members=%d/topology=%s,required=%v", size, within.Key, within.Required)
			b.Run(name, func(b *testing.B) { benchGang(b, gangTable(b, hosts, rack), size, within, true) })
		}
	}
	b.Run("members=3000/refused", func(b *testing.B) {
		benchGang(b, gangTable(b, hosts, rack), 3000, placement.Within{Key: "rack", Required: true}, false)
	})
}

func gangTable(b *testing.B, hosts, rack int) *host.Table {
	b.Helper()
	t := host.New(&resource.Names{}, hosts)
	for i := range hosts {
		h := host.Host{
			Name: fmt.Sprint("h", i), Ready: true, Attributes: map[string]string{"rack": fmt.Sprint(i / rack)},
			Capacity: resource.Vector{int64(2000 + i*37%6000), int64(8192 + i*53%16384), 1 << 20},
		}
		binary.BigEndian.PutUint64(h.ID[:], uint64(i+1))
		if _, err := t.Upsert(h); err != nil {
			b.Fatal(err)
		}
	}
	return t
}

func benchGang(b *testing.B, t *host.Table, size int, within placement.Within, fits bool) {
	n := placement.NewNative()
	class := benchClass(1000, workload.Placement{})
	requests := []placement.Request{{Class: class, Count: size, Gang: true, Unit: 1, Within: within}}
	for b.Loop() {
		results := n.Place(t, requests)
		if (results[0].Refused == 0) != fits {
			b.Fatalf("refused %d of %d", results[0].Refused, size)
		}
		if fits {
			b.StopTimer()
			giveBack(b, t, class, results)
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1e6, "ms/attempt")
}
