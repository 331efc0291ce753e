package simpack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/workload"
)

// flags are the command line of "sim pack".
type flags struct {
	hosts, pods string
	policies    []string
	seeds       string
	demand      float64
	output      string
	plot        string
}

// NewCommand returns "pack", to be mounted under "paceline sim".
func NewCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "pack",
		Short: "Measure how well a placement policy packs a trace of GPU tasks",
		Long: `Pack feeds a trace of tasks to the host table and placement that Paceline schedules with.

Hosts without GPUs are left out. For each seed the tasks, sorted by name, are shuffled, then more
are drawn from them until together they ask for --demand times the GPU capacity. Each is placed
or dropped; nobody leaves and nobody waits. The report gives, by demand in percent of the GPU
capacity, how much of it was allocated and how much was free but in pieces of no use to a task
drawn from the trace (mean, lowest and highest over the seeds), and counts the tasks not placed by the
reason that most hosts gave. It depends on the input, the policy and the seeds alone; the rate of
decisions goes to standard error.

A policy is one of the scheduler's own or a WebAssembly module, as paceline policy build makes. It decides one task at a time and
knows of the future only the class mix: the weights of the commonest classes of the trace that make up 95 % of its tasks. A policy
that fails ends the run.

Both files are CSV with a header, as in the Alibaba traces of 2023 (openb), plain or .gz:
  hosts  sn, cpu_milli, memory_mib, gpu (count), model
  pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec (models, "|" between; optional)`,
		Example: `  paceline sim pack --hosts openb_nodes.csv --pods openb_pods_default.csv --seeds 42-51 --demand 1.3 -o json
  paceline sim pack --hosts h.csv --pods p.csv --policy best-fit,fgd,my-policy.wasm --plot out.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.hosts, "hosts", "", "inventory `file` (required)")
	fs.StringVar(&f.pods, "pods", "", "trace `file` of tasks (required)")
	fs.StringSliceVar(&f.policies, "policy", []string{string(workload.StrategyBestFit)}, "placement policies to measure: "+strings.Join(Policies(), ", ")+", or module `files` ending in "+moduleExt)
	fs.StringVar(&f.seeds, "seeds", "42-51", "seeds, one repetition each, as in 1,2,5-7")
	fs.Float64Var(&f.demand, "demand", 1.3, "GPU demand to reach, as a multiple of the capacity")
	fs.StringVarP(&f.output, "output", "o", "table", "table or json (with several policies: a list)")
	fs.StringVar(&f.plot, "plot", "", "also draw allocation over demand into this `file` (.svg, .pdf or .png)")
	for _, name := range []string{"hosts", "pods"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined a few lines above
		}
	}
	return cmd
}

func (f *flags) run(ctx context.Context, out, status io.Writer) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	var reports []Report
	for _, name := range f.policies {
		if o.Policy, err = OpenPolicy(ctx, name); err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		began := time.Now()
		r, err := Run(o)
		o.Policy.Close()
		if err != nil {
			return fmt.Errorf("--policy %s: %w", name, err)
		}
		fmt.Fprintf(status, "%s: %.0f decisions per second\n", r.Policy, float64(r.Tasks)/time.Since(began).Seconds())
		reports = append(reports, r)
	}
	if f.plot != "" {
		if err := WritePlot(f.plot, reports); err != nil {
			return err
		}
	}
	return f.write(out, reports)
}

// options checks the flags before any file is read, then reads the files. The policy is yet to be opened.
func (f *flags) options() (Options, error) {
	seeds, err := parseSeeds(f.seeds)
	if err != nil {
		return Options{}, fmt.Errorf("--seeds: %w", err)
	}
	if f.output != "table" && f.output != "json" {
		return Options{}, fmt.Errorf("--output %q: choose table or json", f.output)
	}
	if ext := filepath.Ext(f.plot); f.plot != "" && !slices.Contains([]string{".svg", ".pdf", ".png"}, ext) {
		return Options{}, fmt.Errorf("--plot %s: the name must end in .svg, .pdf or .png", f.plot)
	}
	for _, p := range f.policies {
		if err := checkPolicy(p); err != nil {
			return Options{}, fmt.Errorf("--policy: %w", err)
		}
	}
	if !(f.demand > 0 && f.demand <= MaxDemand) {
		return Options{}, fmt.Errorf("--demand %v: it must be above 0 and at most %v", f.demand, MaxDemand)
	}
	hosts, err := tracefile.ReadFile(f.hosts, ReadHosts)
	if err != nil {
		return Options{}, fmt.Errorf("--hosts: %w", err)
	}
	tasks, err := tracefile.ReadFile(f.pods, ReadTasks)
	if err != nil {
		return Options{}, fmt.Errorf("--pods: %w", err)
	}
	return Options{Hosts: hosts, Tasks: tasks, Seeds: seeds, Demand: f.demand}, nil
}

// parseSeeds reads a list of numbers and ranges.
func parseSeeds(text string) ([]int64, error) {
	var seeds []int64
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseInt(low, 10, 63)
		last, err2 := strconv.ParseInt(high, 10, 63)
		if err1 != nil || err2 != nil || first < 0 || last < first {
			return nil, fmt.Errorf("%q is neither a number nor a rising range like 42-51", part)
		}
		if last-first >= MaxSeeds || len(seeds)+int(last-first) >= MaxSeeds {
			return nil, fmt.Errorf("%q makes more than %d seeds", text, MaxSeeds)
		}
		for s := first; s <= last; s++ {
			seeds = append(seeds, s)
		}
	}
	return seeds, nil
}

func (f *flags) write(out io.Writer, reports []Report) error {
	if f.output == "table" {
		for i := range reports {
			if err := reports[i].WriteTable(out); err != nil {
				return err
			}
		}
		return nil
	}
	var document any = reports
	if len(reports) == 1 {
		document = reports[0]
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
