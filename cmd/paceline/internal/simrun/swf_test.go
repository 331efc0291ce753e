package simrun_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/simrun"
	"github.com/paceline-sched/paceline/core/respool"
)

// swf runs a workload; nobody loses patience unless the test says so.
func swf(t testing.TB, o simrun.SWFOptions) *simrun.SWFReport {
	t.Helper()
	if o.Queue.Patience == 0 {
		o.Queue.Patience = respool.MaxQueueTime
	}
	r, err := simrun.RunSWF(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func policy(order, candidates respool.Order) respool.QueuePolicy {
	return respool.QueuePolicy{Order: order, Candidates: candidates, Backfill: respool.BackfillEASY}
}

// TestBackfillByHand runs five jobs on four processors that can be followed with a pencil.
func TestBackfillByHand(t *testing.T) {
	t.Parallel()
	const file = `; a comment
1 0  -1 100 3 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1
2 10 -1 100 4 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1
3 20 -1 200 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1 ; would delay the second
4 30 -1  70 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1 ; gone when it starts
5 40 -1  -1 1 -1 -1 -1 -1 -1 0 -1 -1 -1 -1 -1 -1 -1 ; never ran
`
	jobs, err := simrun.ReadSWF(strings.NewReader(file), "by hand")
	if err != nil || len(jobs) != 4 {
		t.Fatal(jobs, err)
	}
	o := simrun.SWFOptions{Jobs: jobs, Processors: 4, Queue: policy(respool.OrderPriorityFIFO, respool.OrderPriorityFIFO), Starts: []int{0}}
	r := swf(t, o)
	// Waits: 0, 90 (at 100), 180 (at 200), 0. Slowdowns: 1, 190/100, 380/200, 1.
	want := simrun.SWFSequence{
		Jobs: 4, Slowdown: 1.45, MaxSlowdown: 1.9, Wait: 67.5, MaxWait: 180, Seconds: 400, Utilisation: 100 * (300 + 400 + 200 + 70) / 1600.0,
	}
	want.Utilisation = float64(int(want.Utilisation*1000+0.5)) / 1000
	if got := r.Sequences[0]; got != want || r.Tasks != 9 || r.Slowdown != 1.45 {
		t.Errorf("got %+v of %+v, want %+v", got, r, want)
	}
	o.Queue.Backfill = respool.BackfillNone
	if got := swf(t, o).Sequences[0]; got.Wait != (90+180+170)/4 {
		t.Errorf("without back-fill: %+v", got)
	}
}

// TestLublinExtract compares 120 jobs of the published workload with the report on file, through the command. The extract stands in
// testdata with its source and licence.
func TestLublinExtract(t *testing.T) {
	t.Parallel()
	const file = "testdata/lublin_120.json"
	got, status, err := command(t, "--swf", "testdata/lublin_120.swf", "--processors", "256", "--order", "smallest-first", "--candidates", "shortest-first",
		"--sequences", "0,60", "--length", "60", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) || !strings.Contains(status, "placements per second") {
		t.Errorf("the report differs from %s; if that is meant, run go test -update:\n%s", file, got)
	}
	table, _, err := command(t, "--swf", "testdata/lublin_120.swf", "--backfill", "none", "--patience", "1h", "--order", "fair-user")
	if err != nil || !strings.Contains(table, "fair-user, back-fill none") || !strings.Contains(table, "BOUNDED SLOWDOWN") {
		t.Errorf("%v:\n%s", err, table)
	}
}

func TestSWFIsTheSameAgain(t *testing.T) {
	t.Parallel()
	jobs := readFile(t, "testdata/lublin_120.swf", simrun.ReadSWF)
	o := simrun.SWFOptions{Jobs: jobs, Processors: 256, Queue: policy(respool.OrderExpress, respool.OrderExpress), Starts: []int{0, 30}, Length: 90}
	first, again := swf(t, o), swf(t, o)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("%+v\n%+v", first, again)
	}
	data, err := json.Marshal(first)
	if err != nil || !strings.Contains(string(data), `"mean_bounded_slowdown":`) {
		t.Error(string(data), err)
	}
}

// TestPublishedFigures reproduces what a plain event-driven EASY scheduler finds on the ten published sequences, and holds the express order to
// beating the best of them, there and on sequences that nobody published. It needs the trace files; without PACELINE_WHOLE=1 it is skipped for time.
func TestPublishedFigures(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("PACELINE_TRACES")
	if folder == "" || os.Getenv("PACELINE_WHOLE") == "" {
		t.Skip("set PACELINE_TRACES to the folder of the traces, and PACELINE_WHOLE=1")
	}
	jobs := readFile(t, filepath.Join(folder, "hpc/lublin_256.swf.gz"), simrun.ReadSWF)
	published := []int{1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085}
	tests := []struct {
		order, candidates respool.Order
		starts            []int
		least, most       float64
	}{
		{respool.OrderPriorityFIFO, respool.OrderPriorityFIFO, published, 270.9, 271.9},
		{respool.OrderPriorityFIFO, respool.OrderShortestFirst, published, 140, 141},
		{respool.OrderSmallestFirst, respool.OrderSmallestFirst, published, 34, 34.4},
		{respool.OrderExpress, respool.OrderExpress, published, 1, 20},
		{respool.OrderExpress, respool.OrderExpress, []int{0, 1200, 6200}, 1, 20},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%v by %v from %d", tt.order, tt.candidates, tt.starts[0]), func(t *testing.T) {
			t.Parallel()
			o := simrun.SWFOptions{
				Jobs: jobs, Processors: 256, Queue: policy(tt.order, tt.candidates), Starts: tt.starts, Length: simrun.SequenceLength,
			}
			if r := swf(t, o); r.Slowdown < tt.least || r.Slowdown > tt.most {
				t.Errorf("mean bounded slowdown %v, want %v to %v", r.Slowdown, tt.least, tt.most)
			}
		})
	}
}

func TestReadSWFRefuses(t *testing.T) {
	t.Parallel()
	const rest = " -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
	tests := map[string]string{
		"1 2 3\n":                                 "x:1: 3 fields",
		";\n\n1 soon -1 5 1" + rest:               `x:3: field 2: "soon" must be a number`,
		"1 0 -1 5e99 1" + rest:                    `field 4: "5e99"`,
		"1 -1 -1 5 1" + rest:                      "field 2: a job must have a submit time",
		"1 9 -1 5 1" + rest + "2 8 -1 5 1" + rest: "x:2: field 2: jobs must be in the order",
		strings.Repeat("1", 70_000):               "read x: bufio.Scanner: token too long",
	}
	for file, want := range tests {
		if _, err := simrun.ReadSWF(strings.NewReader(file), "x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", file, err, want)
		}
	}
	jobs, err := simrun.ReadSWF(strings.NewReader("1 0.7 -1 0 -1 -1 -1 2 60 -1 1 -1 -1 -1 -1 -1 -1 -1\n"), "x")
	want := simrun.SWFJob{Run: time.Second, Estimate: time.Minute, Processors: 2}
	if err != nil || len(jobs) != 1 || jobs[0] != want {
		t.Errorf("%+v, %v, want %+v", jobs, err, want)
	}
}

func FuzzReadSWF(f *testing.F) {
	f.Add("; comment\n1 0 -1 5 1 -1 -1 2 60 -1 1 -1 -1 -1 -1 -1 -1 -1\n")
	f.Add("1 0.7 -1 NaN -1 -1 -1 2 60 -1 1 -1 -1 -1 -1 -1 -1 -1\n")
	f.Fuzz(func(t *testing.T, text string) {
		jobs, err := simrun.ReadSWF(strings.NewReader(text), "fuzz")
		for _, j := range jobs {
			if err != nil || j.Submit < 0 || j.Run < time.Second || j.Estimate < time.Second || j.Processors < 1 {
				t.Fatalf("%+v, %v", j, err)
			}
		}
	})
}

func TestSWFCommandRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ args, want string }{
		{"--order biggest-first", `--order "biggest-first": choose`},
		{"--candidates none", `--candidates "none": choose`},
		{"--backfill hard", `--backfill "hard": choose easy or none`},
		{"--patience -1s", "--patience -1s"},
		{"--length 0", "--length 0"},
		{"--sequences some", `--sequences "some": choose published`},
		{"--sequences every:0", "give every: a number of jobs"},
		{"--sequences every:500", "0 sequences"},
		{"--sequences published", "a sequence of 1024 jobs from job 1981 on goes beyond the 120"},
		{"--sequences 100 --length 21", "goes beyond the 120"},
		{"--processors 0", "0 processors"},
		{"--processors 8", "raise --processors"},
		{"--hosts h.csv --tasks t.csv", "none of the others can be"},
		{"--plot a.svg", "none of the others can be"},
		{"-o yaml", `--output "yaml"`},
	}
	for _, tt := range tests {
		args := append([]string{"--swf", "testdata/lublin_120.swf"}, strings.Fields(tt.args)...)
		if _, _, err := command(t, args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.args, err, tt.want)
		}
	}
	if _, _, err := command(t, "--swf", "testdata/nowhere.swf"); err == nil || !strings.Contains(err.Error(), "--swf: open testdata/nowhere.swf") {
		t.Error(err)
	}
}
