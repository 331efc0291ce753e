package simrun_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/simrun"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/scheduler"
)

var update = flag.Bool("update", false, "write the report of the tiny trace anew")

func readFile[T any](t testing.TB, path string, read func(io.Reader, string) ([]T, error)) []T {
	t.Helper()
	list, err := tracefile.ReadFile(path, read)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// tiny returns a trace small enough to be followed by hand: a production job whose tasks keep apart, one too large for its pool, a
// burst, one taken back before it ran, and hosts that go, come and grow.
func tiny(t testing.TB) simrun.Options {
	t.Helper()
	return simrun.Options{
		Hosts: readFile(t, "testdata/hosts.csv", simrun.ReadHosts), Tasks: readFile(t, "testdata/tasks.csv", simrun.ReadTasks),
		Events: readFile(t, "testdata/events.csv", simrun.ReadHostEvents), OvercommitCPU: 1, OvercommitMemory: 1, Seed: 1,
	}
}

func run(t testing.TB, o simrun.Options) *simrun.Report {
	t.Helper()
	r, err := simrun.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTinyTrace compares the report of the tiny trace with the one on file, through the command.
func TestTinyTrace(t *testing.T) {
	t.Parallel()
	const file = "testdata/report.json"
	args := []string{
		"--hosts", "testdata/hosts.csv", "--tasks", "testdata/tasks.csv", "--events", "testdata/events.csv",
		"--overcommit-cpu", "1", "--overcommit-memory", "1", "-o", "json",
	}
	got, status, err := command(t, args...)
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
	if got != string(want) {
		t.Errorf("the report differs from %s; if that is meant, run go test -update:\n%s", file, got)
	}
	if !strings.Contains(status, "placements per second") || !strings.Contains(status, "MiB") {
		t.Errorf("what depends on the machine belongs on standard error: %q", status)
	}
}

// TestTinyTraceFacts checks what the trace was made for, so that a report on file cannot be wrong unnoticed.
func TestTinyTraceFacts(t *testing.T) {
	t.Parallel()
	r := run(t, tiny(t))
	reasons := map[string]string{}
	for _, n := range r.NotPlaced {
		reasons[n.Tier] = fmt.Sprintf("%d %s %s", n.Tasks, n.Reason, n.Scarce)
	}
	want := map[string]string{
		"production": "1 NO_HOST_FITS affinity",      // four tasks that keep apart; the third host came late, the fourth never
		"middle":     "1 NO_HOST_FITS cpu",           // nine tenths of the largest host, which has other work
		"free":       "1 OVER_ENTITLEMENT cpu_milli", // a whole host, when the others have the cell
	}
	if !reflect.DeepEqual(reasons, want) {
		t.Errorf("waiting: %v, want %v", reasons, want)
	}
	production := r.Tiers[0]
	if production.Lost != 1 || production.AtStart.Placed != 4 || production.Ended != 2 || r.HostEvents != 3 {
		t.Errorf("production %+v, %d host events", production, r.HostEvents)
	}
	if a := production.Arrivals; a.Placed != 2 || a.Max > 0.3 {
		t.Errorf("a burst of production was placed late: %+v", a)
	}
	if r.Unexplained != 0 || r.Jobs != 6 || !r.PerUser || r.Seconds != 180 {
		t.Errorf("%+v", r)
	}
}

// TestSameReport runs the same trace twice, and on more shards, and follows the groups of records.
func TestSameReport(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		o := tiny(t)
		o.Shards = shards
		var groups []scheduler.Group
		o.Commit = func(g scheduler.Group) error {
			groups = append(groups, g)
			return nil
		}
		first := run(t, o)
		writes := 0
		for i, g := range groups {
			if g.Sequence != uint64(i+1) {
				t.Fatalf("group %d came as number %d", g.Sequence, i+1)
			}
			writes += len(g.Writes)
		}
		if writes != first.Writes || writes == 0 {
			t.Errorf("%d writes were handed out, %d reported", writes, first.Writes)
		}
		o.Commit = nil
		if again := run(t, o); !reflect.DeepEqual(again, first) {
			t.Errorf("%d shards: the same options made another report:\n%+v\n%+v", shards, first, again)
		}
		if first.Unexplained != 0 {
			t.Errorf("%d shards: %d tasks are not explained", shards, first.Unexplained)
		}
	}
}

// TestFreeTierMakesRoom follows one host by hand. Two free tasks of a half each fill it; 100 s later a production task of a half comes, and runs for the
// rest of the trace.
func TestFreeTierMakesRoom(t *testing.T) {
	t.Parallel()
	const second = 1_000_000
	task := func(job string, priority int, submit int64) simrun.Task {
		return simrun.Task{Job: job, User: "u", Priority: priority, CPU: 0.5, Memory: 0.1, Submit: submit, Scheduled: -1, End: -1}
	}
	o := simrun.Options{
		Hosts: []simrun.Host{{Name: "machine-1", CPU: 1, Memory: 1}}, OvercommitCPU: 1, OvercommitMemory: 1, Seed: 1,
		Tasks: []simrun.Task{
			task("1", 0, 0), task("2", 0, 0), task("3", 9, 702*second), {Job: "4", User: "u", Priority: 4, Submit: 800 * second, Scheduled: -1, End: -1},
		},
	}
	for _, victims := range []string{"default", "youngest-first"} {
		for right, revocable := range map[string]bool{"share": false, "revocable": true} {
			o.Victims, o.FreeRevocable = victims, revocable
			r := run(t, o)
			production, free := &r.Tiers[0], &r.Tiers[2]
			if production.Arrivals.Placed != 1 || production.Arrivals.Max > 1 || production.Evicted != 0 {
				t.Errorf("%s, %s: production %+v", victims, right, production)
			}
			// It had run on 32 CPUs since 2 s after the start. 1 of 4 placed tasks went, and waits.
			if wasted := 32 * 100.0 / 3600; free.Evicted != 1 || free.Waiting != 1 || free.Wasted < wasted || free.Wasted > wasted+0.01 {
				t.Errorf("%s, %s: free %+v", victims, right, free)
			}
			o.Victims = "nobody"
			if none := run(t, o); none.Evictions != 0 || none.Tiers[0].Arrivals.Placed != 0 {
				t.Errorf("%s: nobody has to make room: %+v", right, none.Tiers)
			}
			if r.Evictions != 1 || r.EvictionsPerTask != 0.25 || r.Victims != victims || r.FreeTier != right {
				t.Errorf("%s, %s: %+v", victims, right, r)
			}
		}
	}
}

func TestCommitFails(t *testing.T) {
	t.Parallel()
	o, full, left := tiny(t), errors.New("the disk is full"), 10
	o.Commit = func(scheduler.Group) error {
		if left--; left < 0 {
			return full
		}
		return nil
	}
	if _, err := simrun.Run(t.Context(), o); !errors.Is(err, full) {
		t.Errorf("a failed commit gave %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	cases := []struct {
		spoil func(*simrun.Options)
		want  string
	}{
		{func(o *simrun.Options) { o.Hosts = nil }, "no host"},
		{func(o *simrun.Options) { o.Tasks = nil }, "no task"},
		{func(o *simrun.Options) { o.OvercommitCPU = 0.5 }, "over-commitment by 0.5"},
		{func(o *simrun.Options) { o.OvercommitMemory = 11 }, "over-commitment by 11"},
		{func(o *simrun.Options) { o.Strategy = "random" }, `policy "random"`},
		{func(o *simrun.Options) { o.Shards = 4 }, "4 shards for 3 hosts"},
		{func(o *simrun.Options) { o.Victims = "oldest" }, `victims "oldest": choose default, youngest-first or nobody`},
		{func(o *simrun.Options) { o.Start = -1 }, "start -1ns"},
		{func(o *simrun.Options) { o.Sample = time.Millisecond }, "a sample every 1ms"},
	}
	for _, c := range cases {
		o := tiny(t)
		c.spoil(&o)
		if _, err := simrun.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// command runs "run" and returns its standard output and standard error.
func command(t *testing.T, args ...string) (out, status string, err error) {
	t.Helper()
	cmd := simrun.NewCommand()
	var o, s bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&s)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return o.String(), s.String(), err
}

func TestCommandDraws(t *testing.T) {
	t.Parallel()
	plot := filepath.Join(t.TempDir(), "out.svg")
	out, _, err := command(t, "--hosts", "testdata/hosts.csv", "--tasks", "testdata/tasks.csv", "--plot", plot)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"production, at start", "REQUESTED, % OF CAPACITY", "WAITING AT THE END"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table lacks %q:\n%s", want, out)
		}
	}
	data, err := os.ReadFile(plot)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(bytes.NewReader(data)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the plot is no SVG: %v", err)
		}
	}
	for _, want := range []string{"Waiting tasks", "entitlement", "middle"} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("the plot does not say %q", want)
		}
	}
}

func TestCommandRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct{ args, want string }{
		{"", "at least one of the flags in the group [hosts swf philly] is required"},
		{"-o yaml", `--output "yaml"`},
		{"--plot out.gif", "must end in .svg"},
		{"--policy random", `--policy "random": choose one of`},
		{"--free-tier paid", `--free-tier "paid": choose share or revocable`},
		{"--victims oldest", `victims "oldest": choose default`},
		{"--overcommit-cpu NaN", "over-commitment by NaN"},
		{"--tasks nowhere.csv", "--tasks: open nowhere.csv"},
		{"--hosts testdata/tasks.csv", "--hosts: testdata/tasks.csv:1:1: column machine_id is missing"},
		{"--events testdata/tasks.csv", "--events: testdata/tasks.csv:1:1: column time_us is missing"},
		{"surplus", "unknown command"},
	}
	for _, c := range cases {
		args := strings.Fields(c.args)
		if c.args != "" {
			args = append([]string{"--hosts", "testdata/hosts.csv", "--tasks", "testdata/tasks.csv"}, args...)
		}
		if _, _, err := command(t, args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestGoogleTrace holds the scheduler to its bars on a whole cluster: every task placed or explained, production within a second. It needs
// the trace files. Without PACELINE_WHOLE=1 it runs the first quarter of an hour on a third of the hosts and tasks.
func TestGoogleTrace(t *testing.T) {
	t.Parallel()
	o := google(t)
	if os.Getenv("PACELINE_WHOLE") == "" {
		o = slice(o)
	}
	r := run(t, o)
	placed := 0
	for _, tier := range r.Tiers {
		placed += tier.AtStart.Placed + tier.Arrivals.Placed
		t.Logf("%+v", tier)
	}
	waiting := 0
	for _, n := range r.NotPlaced {
		waiting += n.Tasks
		t.Logf("%+v", n)
	}
	if r.Unexplained != 0 || placed+waiting < r.Tasks {
		t.Errorf("of %d tasks %d were placed and %d are explained; %d are neither", r.Tasks, placed, waiting, r.Unexplained)
	}
	production := r.Tiers[0]
	if a := production.Arrivals; a.Tasks == 0 || a.Placed != a.Tasks || a.P99 > 1 {
		t.Errorf("production has to be placed within a second at p99: %+v", a)
	}
	if os.Getenv("PACELINE_WHOLE") == "" {
		return
	}
	if placed != r.Tasks || r.Hosts != 12_477 || r.Tasks != 190_926 {
		t.Errorf("%d of %d tasks on %d hosts were placed; at the default factors all 190,926 fit on the 12,477", placed, r.Tasks, r.Hosts)
	}
}

// slice keeps every third host and the tasks of every third job of a trace, up to 15 minutes after its start.
func slice(o simrun.Options) simrun.Options {
	const end = 1_500_000_000
	var s simrun.Options
	for i, h := range o.Hosts {
		if i%3 == 0 {
			s.Hosts = append(s.Hosts, h)
		}
	}
	number := map[string]int{}
	for _, t := range o.Tasks {
		if _, ok := number[t.Job]; !ok {
			number[t.Job] = len(number)
		}
		if number[t.Job]%3 != 0 || t.Submit > end {
			continue
		}
		if t.End > end {
			t.End = -1
		}
		s.Tasks = append(s.Tasks, t)
	}
	return s
}

// google returns the trace of 2011, or skips where it is not.
func google(t testing.TB) simrun.Options {
	t.Helper()
	folder := os.Getenv("PACELINE_TRACES")
	if folder == "" {
		t.Skip("PACELINE_TRACES does not name the folder of the traces")
	}
	return simrun.Options{
		Hosts: readFile(t, filepath.Join(folder, "inventory/google2011_machines_t0.csv.gz"), simrun.ReadHosts),
		Tasks: readFile(t, filepath.Join(folder, "tasks/google2011_tasks.csv.gz"), simrun.ReadTasks),
	}
}

// BenchmarkGoogleTrace is held to 100 times real time: 50 s for one run.
func BenchmarkGoogleTrace(b *testing.B) {
	o := google(b)
	var simulated, placements float64
	for b.Loop() {
		r := run(b, o)
		simulated += r.Seconds
		placements += float64(r.Placements)
	}
	b.ReportMetric(simulated/b.Elapsed().Seconds(), "x-real-time")
	b.ReportMetric(placements/b.Elapsed().Seconds(), "placements/s")
}

func TestReportIsJSON(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(run(t, tiny(t)))
	if err != nil {
		t.Fatal(err)
	}
	var back simrun.Report
	if err := json.Unmarshal(data, &back); err != nil || len(back.Tiers) != 3 || back.Tiers[0].Name != "production" {
		t.Errorf("%v: %s", err, data)
	}
}
