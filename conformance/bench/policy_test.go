package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// BenchmarkPolicy is BenchmarkRunning twice in turns: placed by the built-in policy, and by the same policy as a guest. %native is how much of its tasks a second the guest
// reaches.
func BenchmarkPolicy(b *testing.B) {
	module, err := os.ReadFile(filepath.Join("..", "..", "policies", "wasm", "testdata", "guests", "bestfit.wasm"))
	if err != nil {
		b.Fatal(err)
	}
	var took [2]time.Duration
	for range b.N {
		for n, module := range [][]byte{nil, module} {
			r := newPolicyRig(b, fleetHosts, simulate(b), module)
			runtime.GC()
			began := time.Now()
			r.awaitRunning(r.submit(jobTasks, 0), jobTasks)
			took[n] += time.Since(began)
			if report := r.policies.Report(); module != nil && (len(report.Fares) != 1 || report.Fares[0].Tasks < jobTasks || len(report.Warnings) > 0) {
				b.Fatalf("the guest did not place: %+v", report)
			}
			r.stop()
		}
	}
	b.ReportMetric(float64(jobTasks)*float64(b.N)/took[0].Seconds(), "native-tasks/s")
	b.ReportMetric(float64(jobTasks)*float64(b.N)/took[1].Seconds(), "tasks/s")
	b.ReportMetric(100*took[0].Seconds()/took[1].Seconds(), "%native")
	b.ReportMetric(0, "ns/op")
}
