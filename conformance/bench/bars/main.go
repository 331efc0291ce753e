// Command bars sets what benchmarks measured beside what is asked of them: it reads the output of go test -bench and prints, for every bar that
// the project has set itself, the median, the bar, and how many times better than the bar that is.
//
// It owns the list of bars. It measures and fails nothing: figures of a busy machine are no reason to stop a build.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// bar is one thing that is asked.
type bar struct {
	what      string
	benchmark string // without its prefix and the number of processors
	unit      string
	over      string // another benchmark: the figure is the ratio to that one's
	scale     float64
	most      bool // the bar is the most that is allowed, and not the least
	bar       float64
	shown     string // the bar as people write it
}

var bars = []bar{
	{what: "placements/s, classes of 64 tasks, 10,000 hosts", benchmark: "Place/hosts=10000/class=64", unit: "placements/s", bar: 500_000, shown: ">= 500,000"},
	{what: "placements/s, classes of 64 tasks, 50,000 hosts", benchmark: "Place/hosts=50000/class=64", unit: "placements/s", bar: 150_000, shown: ">= 150,000"},
	{what: "scan, ns per host and class, 10,000 hosts", benchmark: "Scan/hosts=10000", unit: "ns/host", most: true, bar: 6, shown: "<= 6"},
	{what: "scan, ns per host and class, 50,000 hosts", benchmark: "Scan/hosts=50000", unit: "ns/host", most: true, bar: 6, shown: "<= 6"},
	{what: "placements/s, new one-task classes, 10,000 hosts", benchmark: "NewClasses", unit: "placements/s", bar: 10_000, shown: ">= 10,000"},
	{what: "entitlement of 1,000 pools, ms", benchmark: "Entitle/flat-1000", unit: "ns/op", scale: 1e-6, most: true, bar: 1, shown: "<= 1"},
	{what: "entitlement of 10x10x10 pools, ms", benchmark: "Entitle/deep-10x10x10", unit: "ns/op", scale: 1e-6, most: true, bar: 1, shown: "<= 1"},
	{what: "search for victims, decisions/s, one request at a time", benchmark: "Search/jobs=200/tasks=1", unit: "decisions/s", bar: 1_000, shown: ">= 1,000"},
	{what: "preemption end to end, decisions/s, single tasks", benchmark: "Preempt/singles/arrive=16", unit: "decisions/s", bar: 1_000, shown: ">= 1,000"},
	{what: "preemption end to end, decisions/s, with gangs", benchmark: "Preempt/mixed/arrive=16", unit: "decisions/s", bar: 1_000, shown: ">= 1,000"},
	{what: "scan of a Go policy in its sandbox, times a natural native loop", benchmark: "PolicyScan/guest", unit: "ns/row", over: "PolicyScan/natural", most: true, bar: 3, shown: "<= 3"},
	{what: "placements/s, Go policy, classes of 64, 50,000 hosts", benchmark: "PolicyGrouped/guest", unit: "placements/s", bar: 60_000, shown: ">= 60,000"},
	{what: "the same with scan_topk", benchmark: "PolicyGrouped/guest-topk", unit: "placements/s", bar: 100_000, shown: ">= 100,000"},
	{what: "scan of a policy with SIMD, times a natural native loop", benchmark: "GuestScan", unit: "x-natural", most: true, bar: 0.25, shown: "<= 0.25"},
	{what: "exact placements/s, policy with SIMD, 10,000 hosts", benchmark: "GuestExact/hosts=10000", unit: "placements/s", bar: 150_000, shown: ">= 150,000"},
	{what: "exact placements/s, policy with SIMD, 50,000 hosts", benchmark: "GuestExact/hosts=50000", unit: "placements/s", bar: 30_000, shown: ">= 30,000"},
	{what: "what metering costs a policy, %", benchmark: "Metering", unit: "%more", most: true, bar: 6, shown: "<= 6"},
	{what: "a policy that loops is stopped, ms", benchmark: "Runaway/loop", unit: "ms-stop", most: true, bar: 20, shown: "<= 20"},
	{what: "one with a chain of calls without end", benchmark: "Runaway/chain", unit: "ms-stop", most: true, bar: 20, shown: "<= 20"},
	{what: "one that fills memory", benchmark: "Runaway/fill", unit: "ms-stop", most: true, bar: 20, shown: "<= 20"},
	{what: "one that misses every cache", benchmark: "Runaway/thrash", unit: "ms-stop", most: true, bar: 20, shown: "<= 20"},
	{what: "evaluation of a bundle of rules, us of processor time", benchmark: "Judge/beside-plain", unit: "cpu-us/eval", most: true, bar: 32, shown: "<= 32"},
	{what: "the same, times the engine's own prepared query", benchmark: "Judge/beside-plain", unit: "x-plain", most: true, bar: 0.72, shown: "<= 0.72"},
	{what: "an answer of rules from the memo, us of processor time", benchmark: "Judge/memo", unit: "cpu-us/op", most: true, bar: 0.19, shown: "<= 0.19"},
	{what: "cycle of 1,000 pools, 100,000 waiting, 10,000 hosts, ms", benchmark: "Cycle", unit: "ms/cycle", most: true, bar: 50, shown: "<= 50"},
	{what: "job of 100,000 tasks acknowledged, ms", benchmark: "Running", unit: "ms/ack", most: true, bar: 100, shown: "<= 100"},
	{what: "tasks/s from submission to RUNNING", benchmark: "Running", unit: "tasks/s", bar: 10_000, shown: ">= 10,000"},
	{what: "the same with a policy in its sandbox, % of the built-in one's", benchmark: "Policy", unit: "%native", bar: 70, shown: ">= 70"},
	{what: "tasks/s from submission to SUCCEEDED", benchmark: "Succeeded", unit: "tasks/s", bar: 5_000, shown: ">= 5,000"},
	{what: "the same, stretched", benchmark: "Succeeded", unit: "tasks/s", bar: 50_000, shown: ">= 50,000"},
	{what: "jobs/s, 1 to 20 tasks each", benchmark: "SmallJobs", unit: "jobs/s", bar: 2_000, shown: ">= 2,000"},
	{what: "throughput with ten watchers of everything", benchmark: "Watched", unit: "tasks/s", over: "Succeeded", bar: 0.9, shown: ">= 0.90"},
	{what: "tasks/s on 10,000 Mesos agents, submitted to acknowledged", benchmark: "Mesos", unit: "tasks/s", bar: 1_500, shown: ">= 1,500"},
	{what: "processor time of the Mesos driver, ms a task", benchmark: "MesosDriver", unit: "cpu-ms/task", most: true, bar: 0.25, shown: "<= 0.25"},
	{what: "a million live tasks, peak MiB", benchmark: "Million", unit: "MiB-peak", most: true, bar: 1536, shown: "<= 1,536"},
	{what: "their restart, peak MiB", benchmark: "Million", unit: "MiB-restart", most: true, bar: 1536, shown: "<= 1,536"},
	{what: "their restart until all shards serve, s", benchmark: "Million", unit: "s/restart", most: true, bar: 20, shown: "<= 20"},
	{what: "one change among 1,000,000 tasks, times that among 1,000", benchmark: "Change/live=1000000/health", unit: "ns/op", over: "Change/live=1000/health", most: true, bar: 10, shown: "no scan"},
	{what: "one more task among 1,000,000, times that among 1,000", benchmark: "Change/live=1000000/task", unit: "ns/op", over: "Change/live=1000/task", most: true, bar: 10, shown: "no scan"},
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bars:", err)
		os.Exit(1) //nolint:forbidigo // main ends the process
	}
}

func run(in io.Reader, out io.Writer) error {
	seen, err := read(in)
	if err != nil {
		return fmt.Errorf("read benchmarks: %w", err)
	}
	rows := [][]string{{"what", "measured", "bar", "better by", "runs"}, {"---", "---:", "---:", "---:", "---:"}}
	for _, b := range bars {
		rows = append(rows, b.row(seen))
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for n, cell := range row {
			widths[n] = max(widths[n], len(cell))
		}
	}
	for _, row := range rows {
		for n, cell := range row {
			if n == 0 {
				fmt.Fprintf(out, "| %-*s |", widths[n], cell)
			} else {
				fmt.Fprintf(out, " %*s |", widths[n], cell)
			}
		}
		fmt.Fprintln(out)
	}
	return nil
}

// series is a metric of a benchmark.
type series struct{ benchmark, unit string }

// read collects the figures of every run. Lines of another form are not benchmarks.
func read(in io.Reader) (map[series][]float64, error) {
	seen := map[series][]float64{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if at := strings.LastIndexByte(name, '-'); at > 0 && strings.Trim(name[at+1:], "0123456789") == "" {
			name = name[:at]
		}
		for n := 2; n+1 < len(words); n += 2 {
			if v, err := strconv.ParseFloat(words[n], 64); err == nil {
				key := series{name, words[n+1]}
				seen[key] = append(seen[key], v)
			}
		}
	}
	return seen, lines.Err()
}

func (b *bar) row(seen map[series][]float64) []string {
	runs := seen[series{b.benchmark, b.unit}]
	figure, ok := median(runs)
	if b.scale != 0 {
		figure *= b.scale
	}
	if b.over != "" {
		base, known := median(seen[series{b.over, b.unit}])
		figure, ok = figure/base, ok && known
	}
	if !ok {
		return []string{b.what, "not measured", b.shown, "", "0"}
	}
	better := figure / b.bar
	if b.most {
		better = b.bar / figure
	}
	mark := ""
	if better < 1 {
		mark = " MISSED"
	}
	return []string{b.what, number(figure), b.shown, fmt.Sprintf("%.2f%s", better, mark), strconv.Itoa(len(runs))}
}

func median(all []float64) (float64, bool) {
	if len(all) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(all))
	half := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[half-1] + sorted[half]) / 2, true
	}
	return sorted[half], true
}

// number writes three digits that count, and the thousands apart.
func number(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
