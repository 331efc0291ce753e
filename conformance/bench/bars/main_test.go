package main

import (
	"strings"
	"testing"
)

func TestBars(t *testing.T) {
	const output = `goos: linux
BenchmarkScan/hosts=10000-2  	1	25000 ns/op	2.5 ns/host
BenchmarkScan/hosts=10000-2  	1	21000 ns/op	2.1 ns/host
BenchmarkScan/hosts=10000-2  	1	90000 ns/op	9.0 ns/host
BenchmarkEntitle/deep-10x10x10-2  	1	250000 ns/op	1111 pools
BenchmarkSucceeded-2  	1	80000 tasks/s
BenchmarkSucceeded-2  	1	60000 tasks/s
BenchmarkWatched-2  	1	56000 tasks/s
BenchmarkMillion  	1	1200 MiB-peak	16 s/restart
PASS
`
	var out strings.Builder
	if err := run(strings.NewReader(output), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"scan, ns per host and class, 10,000 hosts | 2.5 | <= 6 | 2.40 | 3", // the median
		"scan, ns per host and class, 50,000 hosts | not measured | <= 6 | | 0",
		"entitlement of 10x10x10 pools, ms | 0.25 | <= 1 | 4.00 | 1",
		"tasks/s from submission to SUCCEEDED | 70,000 | >= 5,000 | 14.00 | 2",
		"throughput with ten watchers of everything | 0.8 | >= 0.90 | 0.89 MISSED | 1",
		"a million live tasks, peak MiB | 1,200 | <= 1,536 | 1.28 | 1",
		"their restart until all shards serve, s | 16 | <= 20 | 1.25 | 1",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("no row says %q:\n%s", want, out.String())
		}
	}
}
