package simrun_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/simrun"
	"github.com/paceline-sched/paceline/core/respool"
)

var phillyExtract = []string{"--philly", "testdata/philly_120.csv", "--philly-pools", "testdata/philly_vcs.csv"}

func philly(t testing.TB, o simrun.PhillyOptions) *simrun.PhillyReport {
	t.Helper()
	if o.Queue.Patience == 0 {
		o.Queue.Patience = respool.MaxQueueTime
	}
	r, err := simrun.RunPhilly(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestQuotasByHand runs five jobs on three hosts that can be followed with a pencil.
func TestQuotasByHand(t *testing.T) {
	t.Parallel()
	o := simrun.PhillyOptions{
		Kind: respool.Static, Estimates: true,
		Pools: []simrun.PhillyPool{{Name: "a", Hosts: 2, GPUs: 8}, {Name: "b", Hosts: 1, GPUs: 8}},
		Jobs: []simrun.PhillyJob{
			{Arrival: 5 * time.Second, Run: 100 * time.Second, GPUs: 12, Pool: "a"}, // both hosts of a
			{Arrival: 6 * time.Second, Run: 50 * time.Second, GPUs: 1},              // of nobody
			{Arrival: 7 * time.Second, Run: 50 * time.Second, GPUs: 16, Pool: "b"},  // larger than b
			{Arrival: 15 * time.Second, Run: 60 * time.Second, GPUs: 3, Pool: "a"},  // after the first, or at once on what b lends
			{Arrival: 200 * time.Second, Run: 60 * time.Second, GPUs: 8, Pool: "b"}, // everybody else has gone
			{Arrival: 201 * time.Second, Run: 60 * time.Second, GPUs: 8, Pool: "c"}, // c has no hosts
			{Arrival: 400 * time.Second, Run: 60 * time.Second, GPUs: 8, Pool: "b"}, // too late
		},
		Until: 300 * time.Second,
	}
	r := philly(t, o)
	left := simrun.LeftOut{NoPool: 1, NoHosts: 1, TooLarge: 1, Later: 1}
	// a: waits of 0 and 90 s. It had 250 s of work in 250 s of presence and b 60 in 60.
	if r.Jobs != 3 || r.GPUs != 24 || r.LeftOut != left || r.Virtual[0].Queueing.Mean != 45 || r.Virtual[0].Queueing.Max != 90 || r.Queueing.Mean != 30 {
		t.Errorf("%+v", r)
	}
	if want := (100*16 + 60*3 + 60*8) / 3600.0; r.GPUHours < want-0.001 || r.GPUHours > want+0.001 {
		t.Errorf("%v GPU-hours, want %v", r.GPUHours, want)
	}
	// x = 160/250 and 1: Jain's index is (x1+x2)^2 / 2(x1^2+x2^2).
	if r.Jain != 0.954 {
		t.Errorf("Jain's index %v", r.Jain)
	}
	o.Kind = respool.Elastic
	if e := philly(t, o); e.Queueing.Max >= 1 || e.Preemptions != 0 || e.Jain != 1 {
		t.Errorf("elastic: %+v", e)
	}
	o.Limit = 1
	if one := philly(t, o); one.Jobs != 1 || one.LeftOut.Later != 3 {
		t.Errorf("with a limit: %+v", one)
	}
}

// TestPhillyExtract compares 117 jobs of the Philly trace on a few hosts with the report on file, through the command. The extract stands in
// testdata with its source and licence.
func TestPhillyExtract(t *testing.T) {
	t.Parallel()
	const file = "testdata/philly_120.json"
	plot := filepath.Join(t.TempDir(), "out.svg")
	got, status, err := command(t, append(phillyExtract, "--backfill", "none", "--plot", plot, "-o", "json")...)
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
	if got != string(want) || !strings.Contains(status, "static: ") || !strings.Contains(status, "elastic: ") {
		t.Errorf("the report differs from %s; if that is meant, run go test -update:\n%s", file, got)
	}
	drawn, err := os.ReadFile(plot)
	if err != nil || !strings.Contains(string(drawn), "Mean queueing") || len(drawn) > 100_000 {
		t.Errorf("the plot has %d bytes, %v", len(drawn), err)
	}
	table, _, err := command(t, append(phillyExtract, "--pools", "elastic", "--order", "shortest-first", "--estimates=false", "--patience", "1h", "--sample", "1h")...)
	for _, line := range []string{"elastic pools, shortest-first, back-fill easy by shortest-first, no estimates: 117 jobs on 96 GPUs of 12 hosts", "Jain's index"} {
		if err != nil || !strings.Contains(table, line) {
			t.Errorf("no %q, %v:\n%s", line, err, table)
		}
	}
}

func TestPhillyIsTheSameAgain(t *testing.T) {
	t.Parallel()
	o := simrun.PhillyOptions{
		Jobs: readFile(t, "testdata/philly_120.csv", simrun.ReadPhillyJobs), Pools: readFile(t, "testdata/philly_vcs.csv", simrun.ReadPhillyPools),
		Kind: respool.Elastic, Estimates: true, Queue: policy(respool.OrderShortestFirst, respool.OrderShortestFirst), HostPercent: 90, Limit: 60,
	}
	if first, again := philly(t, o), philly(t, o); !reflect.DeepEqual(first, again) {
		t.Errorf("%+v\n%+v", first, again)
	}
}

// TestLongerIsExplained holds a comparison to saying why somebody waits longer when pools lend.
func TestLongerIsExplained(t *testing.T) {
	t.Parallel()
	part := func(mean float64, f simrun.WaitedFor, wasted float64) []simrun.PhillyPart {
		return []simrun.PhillyPart{{Name: "a", Queueing: simrun.Queueing{Mean: mean}, WaitedFor: f, WastedGPUHours: wasted}}
	}
	static := &simrun.PhillyReport{Queueing: simrun.Queueing{Mean: 100}, Virtual: part(100, simrun.WaitedFor{Beyond: 5, Within: 1}, 0)}
	tests := []struct {
		mean, wasted float64
		f            simrun.WaitedFor
		want         string
	}{
		{105, 9, simrun.WaitedFor{}, ""},
		{106, 0, simrun.WaitedFor{Beyond: 9}, "4.0 GPU-hours more of waiting for more than it has reserved"},
		{106, 0, simrun.WaitedFor{Within: 9}, "8.0 GPU-hours more of waiting within its reservation"},
		{106, 0, simrun.WaitedFor{Hosts: 9}, "9.0 GPU-hours more of waiting for hosts"},
		{106, 10, simrun.WaitedFor{Hosts: 9}, "10.0 GPU-hours more of work of its own"},
	}
	for _, tt := range tests {
		c := simrun.Compare(static, &simrun.PhillyReport{Queueing: simrun.Queueing{Mean: 50}, Virtual: part(tt.mean, tt.f, tt.wasted)})
		if c.Ratio != 0.5 || (len(c.Longer) == 0) != (tt.want == "") || tt.want != "" && !strings.HasPrefix(c.Longer[0].Why, tt.want) {
			t.Errorf("%+v, want %q", c, tt.want)
		}
	}
}

func TestPhillyRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ args, want string }{
		{"--pools mixed", `--pools "mixed": choose static, elastic or compare`},
		{"--order biggest-first", `--order "biggest-first": choose`},
		{"--host-percent 0", "--host-percent 0"},
		{"--limit -1", "--limit -1"},
		{"--until -1s", "--until -1s"},
		{"--until 1s", "of 120 jobs none is left to run"},
		{"--sample 1ms", "a sample every 1ms is too many"},
		{"--plot a.txt", "--plot a.txt"},
		{"--plot-from 2h --plot-to 1h", "--plot-from 2h0m0s, --plot-to 1h0m0s"},
		{"--plot a.svg --plot-from 99999h", "no sample between --plot-from and --plot-to"},
		{"--swf a.swf", "none of the others can be"},
		{"--sequences all", "none of the others can be"},
		{"--victims oldest", `victims "oldest"`},
		{"--philly-pools testdata/nowhere.csv", "--philly-pools: open testdata/nowhere.csv"},
		{"--philly-pools testdata/philly_120.csv", "column nodes is missing"},
		{"--philly testdata/philly_vcs.csv", "column arrival_s is missing"},
	}
	for _, tt := range tests {
		if _, _, err := command(t, append(phillyExtract[:4:4], strings.Fields(tt.args)...)...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.args, err, tt.want)
		}
	}
	if _, err := simrun.RunPhilly(t.Context(), simrun.PhillyOptions{}); err == nil || !strings.Contains(err.Error(), "no virtual cluster") {
		t.Error(err)
	}
}

func TestReadPhillyRefuses(t *testing.T) {
	t.Parallel()
	const jobs, pools = "arrival_s,num_gpus,duration_s,vc\n", "vc,nodes,gpus_per_node\n"
	for file, want := range map[string]string{
		jobs + "0,0,5,a\n":             "num_gpus: a job has at least one GPU",
		jobs + "0,1,5,/a\n":            `vc: "/a" names a pool`,
		jobs + "5,1,5,a\n4,1,5,a\n":    "x:3:1: column arrival_s: jobs must be in the order",
		pools + "/a,1,8\n":             `vc: "/a" names a pool`,
		pools + "a,1,8\na,1,8\n":       "vc: a appears twice",
		pools + "a,0,8\n":              "nodes: a virtual cluster has at least one host",
		pools + "a,1,0\n":              "gpus_per_node: hosts have at least one GPU",
		pools + "a,1,8\nb,1,4\n":       "gpus_per_node: hosts have at least one GPU, and all of them as many",
		pools + "a,9999,8\nb,9999,8\n": "all of them at most 16384",
	} {
		var err error
		if strings.HasPrefix(file, jobs) {
			_, err = simrun.ReadPhillyJobs(strings.NewReader(file), "x")
		} else {
			_, err = simrun.ReadPhillyPools(strings.NewReader(file), "x")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}

func FuzzReadPhilly(f *testing.F) {
	f.Add("arrival_s,num_gpus,duration_s,vc\n0,1,0,a\n1,9,7,\n")
	f.Add("vc,nodes,gpus_per_node\na,1,8\n")
	f.Fuzz(func(t *testing.T, text string) {
		if jobs, err := simrun.ReadPhillyJobs(strings.NewReader(text), "fuzz"); err == nil {
			for _, j := range jobs {
				if j.Arrival < 0 || j.Run < time.Second || j.GPUs < 1 {
					t.Fatalf("%+v", j)
				}
			}
		}
		if pools, err := simrun.ReadPhillyPools(strings.NewReader(text), "fuzz"); err == nil {
			for _, p := range pools {
				if p.Name == "" || p.Hosts < 1 || p.GPUs < 1 || p.GPUs > 16 {
					t.Fatalf("%+v", p)
				}
			}
		}
	})
}
