package policy

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/wasm"
	"github.com/paceline-sched/paceline/sdk/policyabi"
)

// measured is what bench tells.
type measured struct {
	Policy    string    `json:"policy"`
	Digest    string    `json:"digest"`
	Compile   float64   `json:"compile_ms"`
	Start     float64   `json:"instance_start_ms"` // a mean
	Memory    int       `json:"instance_memory_bytes"`
	Placement []figures `json:"placement"`
}

// figures are those of one size of cell and request.
type figures struct {
	Hosts      int     `json:"hosts"`
	Tasks      int     `json:"tasks_per_request"`
	Policy     float64 `json:"placements_per_second"`
	Native     float64 `json:"native_placements_per_second"`
	RowNanos   float64 `json:"ns_per_row"`
	NativeRow  float64 `json:"native_ns_per_row"`
	GuestNanos float64 `json:"inside_ns_per_row"` // of RowNanos, what the policy itself takes
	Fuel       float64 `json:"fuel_per_row"`
}

// perRequest are the sizes of requests that are measured: a task alone, and as many as are asked for at once as a rule.
var perRequest = []int{1, 64}

type benchOptions struct {
	hosts []int
	takes time.Duration
	set   *[]string
}

func newBenchCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench FILE",
		Short: "Measure a policy of placement beside the scheduler's own",
		Long: `Measure how fast a policy places, in turns with the scheduler's own best fit, on one goroutine. Cells of more than 16,384 hosts are several tables, each of
which a request looks at. Nothing is placed: every request finds the same table. Figures are of medians.

  HOSTS       of the cell
  TASKS       of a request: 1, or 64 that are alike
  PLACEMENTS  a second, by the policy and by the scheduler's own best fit
  NS/ROW      of a request, for each host that it looks at; INSIDE the policy alone, without what the scheduler does around a call
  FUEL/ROW    what metering counts; a call may use twenty times what the policy's trial used`,
		Example: `  paceline policy bench best-fit.wasm
  paceline policy bench best-fit.wasm --hosts 10000 --for 2s -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error { return bench(cmd, given[0], &o) },
	}
	cmd.Flags().IntSliceVar(&o.hosts, "hosts", []int{1000, 10_000, 50_000}, "sizes of cells")
	cmd.Flags().DurationVar(&o.takes, "for", 500*time.Millisecond, "how long each figure is measured")
	o.set = setFlag(cmd)
	return cmd
}

func bench(cmd *cobra.Command, path string, o *benchOptions) error {
	asJSON, err := wantsJSON(cmd)
	if err != nil {
		return err
	}
	for _, n := range o.hosts {
		if n < 1 || n > 1_000_000 {
			return mistakef("--hosts %d: from 1 to 1,000,000", n)
		}
	}
	binary, err := readModule(path)
	if err != nil {
		return err
	}
	m, err := wasm.Check(binary, wasm.Limits{})
	if err != nil {
		return mistakef("%s: %w", path, err)
	}
	if !slices.Contains(m.Capability.Kinds, policyabi.Place) {
		return mistakef("%s: policy %s is of kind %s: only placement can be measured", path, m.Capability.Name, m.Capability.Kinds[0])
	}
	config := wasm.Config{}
	if config.Values, err = values(m, *o.set); err != nil {
		return err
	}
	v, err := wasm.Load(cmd.Context(), m, config)
	if err != nil {
		return err
	}
	defer v.Release()
	got := measured{Policy: m.Capability.Name, Digest: m.Digest.String(), Compile: millis(v.Counters().Compiling.Load(), 1)}
	for _, hosts := range o.hosts {
		for _, tasks := range perRequest {
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			f, err := got.measure(v, hosts, tasks, o.takes)
			if err != nil {
				return err
			}
			got.Placement = append(got.Placement, f)
		}
	}
	got.Start = millis(v.Counters().Starting.Load(), v.Counters().Instances.Load())
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), &got)
	}
	got.tell(cmd.OutOrStdout())
	return nil
}

func millis(nanos, n uint64) float64 { return float64(nanos) / float64(max(n, 1)) / 1e6 }

// rig is a cell's tables with both placers.
type rig struct {
	tables  []*host.Table
	native  []*placement.Native
	policy  []*wasm.Placer
	request []placement.Request
	inside  time.Duration // of the last round
	used    int64
	memory  int
	fault   *wasm.Fault
}

func newRig(v *wasm.Version, hosts, tasks int) (*rig, error) {
	r := &rig{}
	spec := &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: resource.Vector{resource.CPU: 4000, resource.Memory: 8192}}}
	r.request = []placement.Request{{Class: placement.NewClass(workload.JobID{1}, spec, nil), Count: tasks}}
	slot := &wasm.Slot{}
	slot.Swap(v)
	parts := (hosts + policyabi.MaxRows - 1) / policyabi.MaxRows
	for part := range parts {
		from, to := part*hosts/parts, (part+1)*hosts/parts
		t, err := benchTable(from, to)
		if err != nil {
			return nil, err
		}
		r.tables = append(r.tables, t)
		r.native = append(r.native, placement.NewNative())
		r.policy = append(r.policy, wasm.NewPlacer(wasm.PlacerConfig{
			Slot:    slot,
			OnFault: func(f *wasm.Fault) { r.fault = f },
			OnCall: func(c wasm.Call) {
				r.inside += c.Took
				r.used += c.Used
				r.memory = max(r.memory, c.Memory)
			},
		}))
	}
	return r, nil
}

func (r *rig) close() {
	for _, p := range r.policy {
		p.Close()
	}
}

// benchTable has hosts of a few sizes, every third in use.
func benchTable(from, to int) (*host.Table, error) {
	names, err := resource.NewNames(nil)
	if err != nil {
		return nil, err
	}
	t := host.New(names, to-from)
	for i := from; i < to; i++ {
		h := host.Host{
			ID: workload.HostID{0: byte(i), 1: byte(i >> 8), 2: byte(i >> 16), 15: 1}, Name: "h" + strconv.Itoa(i), Ready: true,
			Capacity: resource.Vector{resource.CPU: int64(16000 + i*7919%5*16000), resource.Memory: int64(65536 + i*104729%3*65536), resource.Disk: 1 << 20},
		}
		row, err := t.Upsert(h)
		if err != nil {
			return nil, err
		}
		if i%3 != 0 {
			continue
		}
		needs := resource.Vector{resource.CPU: int64(1000 + i*31%9*1000), resource.Memory: int64(1024 * (1 + i%17))}
		class := placement.NewClass(workload.JobID{2}, &workload.JobSpec{Kind: workload.Batch, Template: workload.TaskTemplate{Needs: needs}}, nil)
		if err := t.Take(row, class.Occupant(0, nil)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// measure asks both placers in turns, for as long as each figure takes.
func (m *measured) measure(v *wasm.Version, hosts, tasks int, takes time.Duration) (figures, error) {
	f := figures{Hosts: hosts, Tasks: tasks}
	r, err := newRig(v, hosts, tasks)
	if err != nil {
		return f, err
	}
	defer r.close()
	var policy, native, inside []time.Duration
	for end := time.Now().Add(takes); len(policy) < 10 || time.Now().Before(end); {
		began := time.Now()
		for i, t := range r.tables {
			r.native[i].Plan(t, r.request)
		}
		between := time.Now()
		r.inside, r.used = 0, 0
		for i, t := range r.tables {
			r.policy[i].Plan(t, r.request)
		}
		native, policy, inside = append(native, between.Sub(began)), append(policy, time.Since(between)), append(inside, r.inside)
		if r.fault != nil {
			return f, r.fault
		}
	}
	m.Memory = max(m.Memory, r.memory)
	perSecond := func(d time.Duration) float64 { return float64(tasks) / d.Seconds() }
	perRow := func(d time.Duration) float64 { return float64(d) / float64(hosts) }
	f.Policy, f.Native = perSecond(median(policy)), perSecond(median(native))
	f.RowNanos, f.NativeRow, f.GuestNanos = perRow(median(policy)), perRow(median(native)), perRow(median(inside))
	f.Fuel = float64(r.used) / float64(hosts)
	return f, nil
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return max(list[len(list)/2], 1)
}

func (m *measured) tell(w io.Writer) {
	fmt.Fprintf(w, "policy %s: compiled in %.1f ms; an instance starts in %.2f ms and has %d KiB\n\n", m.Policy, m.Compile, m.Start, m.Memory>>10)
	rows := [][]string{{"HOSTS", "TASKS", "PLACEMENTS/S", "NATIVE", "RATIO", "NS/ROW", "INSIDE", "NATIVE", "FUEL/ROW"}}
	for _, f := range m.Placement {
		rows = append(rows, []string{
			strconv.Itoa(f.Hosts), strconv.Itoa(f.Tasks), fmt.Sprintf("%.0f", f.Policy), fmt.Sprintf("%.0f", f.Native), fmt.Sprintf("%.2f", f.Policy/f.Native),
			fmt.Sprintf("%.2f", f.RowNanos), fmt.Sprintf("%.2f", f.GuestNanos), fmt.Sprintf("%.2f", f.NativeRow), fmt.Sprintf("%.2f", f.Fuel),
		})
	}
	columns(w, rows)
}
