package bench

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
)

var million = flag.Bool("million", false, "run BenchmarkMillion: minutes and gigabytes")

const (
	millionHosts = 50_000
	millionTasks = 1_000_000
	// serverGCPercent is the default of paceline server --gc-percent.
	serverGCPercent = 50
)

// BenchmarkMillion is a million live tasks on 50,000 hosts in four shards: how fast they come to run, what memory that takes at its highest, how
// long the cell takes after a stop until every shard serves again, and how long one more task takes then. The clusters are in the same process;
// their share is reported by itself.
func BenchmarkMillion(b *testing.B) {
	if !*million {
		b.Skip("takes minutes and gigabytes: give -million")
	}
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(serverGCPercent))
	}
	for range b.N {
		resetPeak(b)
		r := newRig(b, millionHosts, func(hosts []driver.Host) func() driver.Driver { return newFleet(hosts).Driver })
		began := time.Now()
		job := r.submit(millionTasks, 0)
		r.awaitRunning(job, millionTasks)
		b.ReportMetric(millionTasks/time.Since(began).Seconds(), "tasks/s")
		b.ReportMetric(peak(b), "MiB-peak")
		b.ReportMetric(liveHeap(), "MiB-live")

		began = time.Now()
		r.awaitRunning(r.submit(1, 0), 1)
		b.ReportMetric(time.Since(began).Seconds()*1e3, "ms/change")
		r.stop()

		r.cell, r.store = nil, nil
		b.ReportMetric(liveHeap(), "MiB-clusters")
		b.ReportMetric(onDisk(b, r.dir), "MiB-disk")
		resetPeak(b)
		began = time.Now()
		r.start()
		r.awaitRunning(job, millionTasks)
		r.awaitRunning(r.submit(1, 0), 1)
		b.ReportMetric(time.Since(began).Seconds(), "s/restart")
		b.ReportMetric(peak(b), "MiB-restart")
		r.stop()
	}
	b.ReportMetric(0, "ns/op")
}

// resetPeak makes the process's peak memory start from what it holds now.
func resetPeak(tb testing.TB) {
	tb.Helper()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600); err != nil {
		tb.Logf("the peak is that of the whole process: %v", err)
	}
}

// peak is the most memory that the process held at once, in MiB, the store's mapped files among it.
func peak(tb testing.TB) float64 {
	tb.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	tb.Fatal("the kernel does not say how much memory was held")
	return 0
}

// liveHeap is what is reachable, in MiB.
func liveHeap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers kept for one more round
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

func onDisk(tb testing.TB, dir string) float64 {
	tb.Helper()
	total := int64(0)
	err := filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return float64(total) / (1 << 20)
}
