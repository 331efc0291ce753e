package simpack_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/simpack"
	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
)

const (
	hostsFile = "testdata/openb_nodes_extract.csv"
	podsFile  = "testdata/openb_pods_extract.csv"
)

func read[T any](t *testing.T, path string, parse func(io.Reader, string) ([]T, error)) []T {
	t.Helper()
	list, err := tracefile.ReadFile(path, parse)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func open(t *testing.T, policy string) *simpack.Policy {
	t.Helper()
	p, err := simpack.OpenPolicy(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func options(t *testing.T, hosts, pods, policy string, seeds ...int64) simpack.Options {
	t.Helper()
	return simpack.Options{
		Hosts: read(t, hosts, simpack.ReadHosts), Tasks: read(t, pods, simpack.ReadTasks), Policy: open(t, policy), Seeds: seeds, Demand: 1.3,
	}
}

// TestReportHolds checks what must be true of any report.
func TestReportHolds(t *testing.T) {
	t.Parallel()
	for _, policy := range simpack.Policies() {
		o := options(t, hostsFile, podsFile, policy, 1, 2, 3)
		r, err := simpack.Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := simpack.Run(o); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%s: the same options made another report", policy)
		}
		if len(r.Allocated) != len(simpack.Levels) || len(r.Fragmented) != len(simpack.Levels) {
			t.Fatalf("%s: %d and %d of %d levels measured", policy, len(r.Allocated), len(r.Fragmented), len(simpack.Levels))
		}
		last := 0.0
		for i, a := range r.Allocated {
			f := r.Fragmented[i]
			if a.Min > a.Mean || a.Mean > a.Max || f.Min > f.Mean || f.Mean > f.Max || a.Mean < last {
				t.Errorf("%s: figures out of order: %+v %+v", policy, a, f)
			}
			if a.Max > 100 || f.Min < 0 || a.Mean+f.Mean > 100.001 {
				t.Errorf("%s: more than the capacity is allocated and fragmented: %+v %+v", policy, a, f)
			}
			last = a.Mean
		}
		refused := 0
		for _, n := range r.NotPlaced {
			refused += n
		}
		if refused == 0 || refused >= r.Tasks {
			t.Errorf("%s: %d of %d tasks refused at 130 %% demand", policy, refused, r.Tasks)
		}
	}
}

// TestPublishedTrace holds best-fit on the full trace to the bar and beats what was published for it. It needs the trace files.
func TestPublishedTrace(t *testing.T) {
	t.Parallel()
	traces := os.Getenv("PACELINE_TRACES")
	if traces == "" {
		t.Skip("PACELINE_TRACES does not name the folder of the traces")
	}
	o := options(t, filepath.Join(traces, "inventory/openb_nodes.csv"), filepath.Join(traces, "tasks/openb_pods_default.csv"),
		"best-fit", 42, 43, 44, 45, 46, 47, 48, 49, 50, 51)
	r, err := simpack.Run(o)
	if err != nil {
		t.Fatal(err)
	}
	const bar, published = 92.7, 92.86
	if p, ok := r.Allocated.At(100); !ok || p.Mean < bar || p.Mean < published {
		t.Errorf("at 100 %% demand best-fit allocates %.2f %%, the bar is %.2f, published is %.2f", p.Mean, bar, published)
	}
	if r.Hosts != 1213 || r.GPUs != 6212 {
		t.Errorf("%d hosts with %d GPUs, want 1,213 with 6,212", r.Hosts, r.GPUs)
	}
}

// TestModelsAreKept gives tasks for one model more demand than that model has.
func TestModelsAreKept(t *testing.T) {
	t.Parallel()
	o := simpack.Options{
		Hosts: []simpack.Host{
			{Name: "a", CPUMilli: 1000, MemoryMiB: 10, GPUs: 1, Model: "A"},
			{Name: "b", CPUMilli: 1000, MemoryMiB: 10, GPUs: 1, Model: "B"},
			{Name: "c", CPUMilli: 1000, MemoryMiB: 10, GPUs: 2, Model: "B"},
			{Name: "none", CPUMilli: 1 << 30, MemoryMiB: 1 << 30},
		},
		Tasks:  []simpack.Task{{Name: "t", CPUMilli: 1, GPUs: 1, GPUMilli: 500, Models: []string{"A", "C"}}},
		Policy: open(t, "best-fit"), Seeds: []int64{1}, Demand: 1,
	}
	r, err := simpack.Run(o)
	if err != nil {
		t.Fatal(err)
	}
	// Two halves fill the one A; the three Bs are lost to every task of this trace.
	a, _ := r.Allocated.At(100)
	f, _ := r.Fragmented.At(100)
	if a.Mean != 25 || f.Mean != 75 || r.NotPlaced["gpu_model"] != 6 || r.Hosts != 3 {
		t.Fatalf("%+v", r)
	}
}

func TestBadInputIsLocated(t *testing.T) {
	t.Parallel()
	hosts := func(r io.Reader) error { _, err := simpack.ReadHosts(r, "h.csv"); return err }
	tasks := func(r io.Reader) error { _, err := simpack.ReadTasks(r, "p.csv"); return err }
	const hostHeader, taskHeader = "sn,cpu_milli,memory_mib,gpu,model\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
	cases := []struct {
		read        func(io.Reader) error
		input, want string
	}{
		{hosts, "", "h.csv:1:1: the file is empty"},
		{hosts, "sn,cpu_milli,memory_mib,gpu\n", "h.csv:1:1: column model is missing"},
		{hosts, hostHeader + "a,1,1,1,X\nb,one,1,1,X\n", `h.csv:3:3: column cpu_milli: "one"`},
		{hosts, hostHeader + "a,1,-1,1,X\n", "h.csv:2:5: column memory_mib"},
		{hosts, hostHeader + "a,1,1,17,X\n", "h.csv:2:7: column gpu"},
		{hosts, hostHeader + "a,1,1,1,X\na,1,1,1,X\n", `h.csv:3:1: column sn: host "a" appears twice`},
		{hosts, hostHeader + "a,1,1\n", "h.csv:2:1: wrong number of fields"},
		{tasks, taskHeader + "a,99999999999999999999,1,1,1\n", "p.csv:2:3: column cpu_milli"},
		{tasks, taskHeader + "a,1,1,1,0\n", "p.csv:2:9: column gpu_milli: a task with a GPU"},
		{tasks, taskHeader + "a,1,1,2,500\n", "p.csv:2:9: column gpu_milli: a task with 2 GPUs"},
		{tasks, taskHeader + "a,1,1,1,1001\n", "p.csv:2:9: column gpu_milli"},
	}
	for _, c := range cases {
		if err := c.read(strings.NewReader(c.input)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q\n got %v\nwant %s", c.input, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, path := range []string{hostsFile, podsFile} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:1000])
	}
	f.Add([]byte("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\"a\nb\",1,1,1,1,G1|G2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hosts, err := simpack.ReadHosts(bytes.NewReader(data), "file.csv")
		if err != nil && !strings.HasPrefix(err.Error(), "file.csv:") {
			t.Errorf("an error without a place: %v", err)
		}
		for _, h := range hosts {
			if err == nil && (h.CPUMilli < 0 || h.MemoryMiB < 0 || h.GPUs < 0) {
				t.Errorf("read %+v", h)
			}
		}
		tasks, err := simpack.ReadTasks(bytes.NewReader(data), "file.csv")
		if err != nil && !strings.HasPrefix(err.Error(), "file.csv:") {
			t.Errorf("an error without a place: %v", err)
		}
		for _, task := range tasks {
			if err == nil && task.GPUs > 1 && task.GPUMilli != 1000 {
				t.Errorf("read %+v", task)
			}
		}
	})
}

// command runs "pack" and returns its standard output and standard error.
func command(args ...string) (out, status string, err error) {
	cmd := simpack.NewCommand()
	var o, s bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&s)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return o.String(), s.String(), err
}

func TestCommandWritesJSONAndPlot(t *testing.T) {
	t.Parallel()
	packed := filepath.Join(t.TempDir(), "pods.csv.gz")
	plot := filepath.Join(t.TempDir(), "out.svg")
	writeGzip(t, packed, podsFile)
	out, status, err := command("--hosts", hostsFile, "--pods", packed, "--seeds", "42-44", "--demand", "1.05", "-o", "json", "--plot", plot)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(status, "decisions per second") || strings.Contains(out, "per second") {
		t.Errorf("the rate belongs on standard error: %q", status)
	}
	var report struct {
		Policy     string                        `json:"policy"`
		Seeds      []int64                       `json:"seeds"`
		Allocation map[string]map[string]float64 `json:"gpu_allocation_percent"`
		Fragmented map[string]map[string]float64 `json:"gpu_fragmented_percent"`
		NotPlaced  map[string]int                `json:"not_placed"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if report.Policy != "best-fit" || len(report.Seeds) != 3 || len(report.Allocation) != 9 || report.Allocation["105"]["mean"] == 0 ||
		len(report.Fragmented) != 9 || report.NotPlaced == nil {
		t.Errorf("%s", out)
	}
	if strings.Index(out, `"50"`) > strings.Index(out, `"105"`) {
		t.Error("demands are not in their order")
	}
	data, err := os.ReadFile(plot)
	if err != nil {
		t.Fatal(err)
	}
	decoder, elements := xml.NewDecoder(bytes.NewReader(data)), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the plot is no SVG: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			elements++
		}
	}
	if elements < 2 || !bytes.Contains(data, []byte("best-fit")) {
		t.Errorf("the plot has %d paths and should have a band, a line and a legend", elements)
	}
}

func writeGzip(t *testing.T, path, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestCommandComparesPolicies(t *testing.T) {
	t.Parallel()
	args := []string{"--hosts", hostsFile, "--pods", podsFile, "--seeds", "1", "--policy", "best-fit,spread"}
	out, _, err := command(append(args, "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 || list[1]["policy"] != "spread" {
		t.Errorf("%v: %s", err, out)
	}
	out, _, err = command(args...)
	if err != nil || strings.Count(out, "ALLOCATED %") != 2 || !strings.Contains(out, "not placed for") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestCommandRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct{ args, want string }{
		{"", `required flag(s) "hosts", "pods" not set`},
		{"--seeds 5-3", `"5-3" is neither`},
		{"--seeds a", `"a" is neither`},
		{"--seeds 1-9223372036854775807", "--seeds"},
		{"--seeds 0-999,5", "more than 1000 seeds"},
		{"--policy best-fit,random", `--policy: policy "random" is unknown: choose from best-fit, fgd, least-residue, load-aware, pack, spread, or name a module`},
		{"--policy nowhere.wasm", "--policy: open nowhere.wasm"},
		{"--policy " + podsFile + ".wasm", "--policy: open"},
		{"--demand 0", "--demand 0: it must be above 0"},
		{"--demand NaN", "--demand NaN"},
		{"-o yaml", `--output "yaml"`},
		{"--plot out.gif", "must end in .svg"},
		{"--pods nowhere.csv", "--pods: open nowhere.csv"},
		{"--hosts " + podsFile, podsFile + ":1:1: column sn is missing"},
		{"surplus", "unknown command"},
	}
	for _, c := range cases {
		args := strings.Fields(c.args)
		if c.args != "" {
			args = append([]string{"--hosts", hostsFile, "--pods", podsFile}, args...)
		}
		if _, _, err := command(args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
