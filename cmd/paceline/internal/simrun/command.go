package simrun

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/workload"
)

// flags are the command line of "sim run".
type flags struct {
	hosts, tasks, events string
	output, plot         string
	policy               string
	freeTier             string
	options              Options

	swf                         string
	order, candidates, backfill string
	sequences                   string
	patience                    time.Duration
	workload                    SWFOptions

	philly  phillyFlags
	sampled bool // --sample was given
}

// NewCommand returns "run", to be mounted under "paceline sim".
func NewCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run a cluster trace through a whole cell in virtual time",
		Long:  longHelp(),
		Example: `  paceline sim run --hosts google2011_machines_t0.csv.gz --tasks google2011_tasks.csv.gz -o json
  paceline sim run --hosts h.csv --tasks t.csv --events machine_events.csv.gz --plot out.svg
  paceline sim run --swf lublin_256.swf.gz --processors 256 --order smallest-first --backfill easy --sequences published -o json
  paceline sim run --philly philly_jobs.csv.gz --philly-pools philly_vc_nodes.csv --pools compare --order shortest-first --plot out.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.sampled = cmd.Flags().Changed("sample")
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.hosts, "hosts", "", "inventory `file`")
	fs.StringVar(&f.tasks, "tasks", "", "trace `file` of tasks")
	fs.StringVar(&f.events, "events", "", "`file` of machines that come, go and change; without it hosts stay")
	fs.Float64Var(&f.options.OvercommitCPU, "overcommit-cpu", DefaultOvercommitCPU, "CPU that hosts offer, as a multiple of what they have")
	fs.Float64Var(&f.options.OvercommitMemory, "overcommit-memory", DefaultOvercommitMemory, "memory that hosts offer, as a multiple of what they have")
	fs.StringVar(&f.policy, "policy", string(workload.StrategyBestFit), fmt.Sprintf("placement policy: one of %v", strategies))
	fs.Uint64Var(&f.options.Seed, "seed", 1, "decides what happens by chance, such as the spread of retries")
	fs.IntVar(&f.options.Shards, "shards", 0, "shards that the hosts are dealt out to (0: as few as hold them)")
	fs.DurationVar(&f.options.Start, "start", 10*time.Minute, "start of the trace by its own clock")
	fs.DurationVar(&f.options.Sample, "sample", 10*time.Second, "time between two samples for utilisation and plot; with --philly 10m unless given")
	fs.StringVarP(&f.output, "output", "o", "table", "table or json")
	fs.StringVar(&f.plot, "plot", "", "also draw utilisation, waiting tasks and entitlements over time into this `file` (.svg, .pdf or .png)")
	fs.StringVar(&f.freeTier, "free-tier", freeShare, "by what right the free tier runs: share (of what others leave) or revocable (on slack)")
	fs.StringVar(&f.options.Victims, "victims", victimsDefault, "who makes room for others: default; to compare with: youngest-first, or nobody")
	f.addSWF(fs)
	f.addQueue(fs)
	f.philly.add(fs)
	cmd.MarkFlagsOneRequired("hosts", "swf", "philly")
	cmd.MarkFlagsRequiredTogether("hosts", "tasks")
	cmd.MarkFlagsRequiredTogether("philly", "philly-pools")
	cmd.MarkFlagsMutuallyExclusive("hosts", "swf", "philly")
	exclude := func(with string, lists ...[]string) {
		for _, name := range slices.Concat(lists...) {
			cmd.MarkFlagsMutuallyExclusive(with, name)
		}
	}
	machines := []string{"events", "overcommit-cpu", "overcommit-memory", "policy", "shards", "start", "free-tier"}
	sequences, queue := []string{"processors", "sequences", "length"}, []string{"order", "candidates", "backfill", "patience"}
	exclude("swf", machines, phillyNames, []string{"sample", "plot", "victims"})
	exclude("hosts", sequences, queue, phillyNames)
	exclude("philly", machines, sequences)
	return cmd
}

func longHelp() string {
	return fmt.Sprintf(`Run replays a trace of a cluster: its hosts, and tasks that come and end, through the scheduler core,
shards and simulated clusters that a server runs, in virtual time. Nothing is stored.

Priorities 9 and up are the tier production, 0 and 1 the tier free, the rest middle. Each tier is a
pool, with a pool below it for each of its users. Production may not be preempted; each of its users
reserves the most that his tasks ask for at one time in the trace. Middle has a hundred times the
share of free. Tasks that a job wants on different machines are kept apart by anti-affinity. What was
there before the trace starts is placed afresh and ends when the trace says; a task whose
end the trace does not say runs on. Production enters first, middle a second later, free another
second later. Disk is left out: the inventory does not say what hosts have.

The trace's own scheduler over-commits: at its start the tasks ask for 116 %% of the CPU and 102 %%
of the memory. So hosts offer --overcommit-cpu and --overcommit-memory times what they have. The
defaults, %v and %v, are from reference runs on the Google trace of 2011: of the factors tried, the
lowest at which every task gets a place before the trace ends.

With --free-tier revocable the free tier has no entitlement and runs on slack: it goes whenever other work finds no host. With share
it goes only while its pools have more than they are entitled to, and room that lies in pieces too small for anybody is no reason.
--victims youngest-first compares the choice of who goes with a plain one: the first host in the order of the inventory on which the
task fits once enough have gone, those who were started last first, and nobody is let off. With nobody there is no preemption. What is evicted runs anew from its beginning.

The report gives the time that tasks waited for a place, by tier, in virtual seconds: deciding takes
none. Utilisation is what live tasks ask for, in percent of what hosts have before over-commitment. Tasks that
still wait at the end are counted by reason. The report depends on the input and the options alone;
the rate of placements and the peak memory of the process go to standard error.

The files are CSV with a header, plain or .gz, columns as in the Google trace of 2011:
  hosts   machine_id, platform, cpus, memory (fractions of the largest host)
  tasks   job_id, task_index, user, priority, cpu_request, memory_request, different_machines,
          submit_us, first_schedule_us, end_us, end_event
  events  time_us, machine_id, event_type (0 added, 1 removed, 2 updated), cpus, memory

With --swf it runs rigid parallel jobs in the Standard Workload Format instead, on --processors hosts of
one processor each: every job is a gang of one-processor tasks that starts as a whole, in one pool
whose queue follows --order, --backfill and --candidates. Each of the --sequences is --length jobs
long and begins on an empty machine; without --sequences the whole file is one. The report gives
the mean bounded slowdown, (wait + run time) / max(run time, 10 s), over the jobs of each sequence and
then over sequences. Where the file has no time asked for, the run time is the estimate.

With --philly it runs the GPU jobs of virtual clusters, each a pool that reserves what its hosts have. A job that
fits a host is one task, a larger one a gang of whole hosts; a job that makes room for others starts anew. Pools are static,
or elastic and lend what they do not use, or both runs are compared. The report gives how long jobs queue, from arrival to end
less one run, what they waited for, and what preemption cost. Jobs without a virtual cluster, or larger than theirs, are left out.
The files have the columns
  philly        arrival_s, num_gpus, duration_s, vc
  philly-pools  vc, nodes, gpus_per_node`, DefaultOvercommitCPU, DefaultOvercommitMemory)
}

// addSWF defines the flags that go with --swf.
func (f *flags) addSWF(fs *pflag.FlagSet) {
	fs.StringVar(&f.swf, "swf", "", "workload `file` in the Standard Workload Format, instead of hosts and tasks")
	fs.IntVar(&f.workload.Processors, "processors", 256, "with --swf: processors of the machine")
	fs.StringVar(&f.sequences, "sequences", "all", "with --swf: published (the ten that figures on lublin_256 are published for), all, every:N, or a list of first jobs")
	fs.IntVar(&f.workload.Length, "length", SequenceLength, "with --swf: jobs of a sequence")
}

// addQueue defines the flags of queues.
func (f *flags) addQueue(fs *pflag.FlagSet) {
	fs.StringVar(&f.order, "order", respool.OrderPriorityFIFO.String(), "with --swf or --philly: order of the queue: priority-fifo, fair-user, smallest-first, shortest-first or express")
	fs.StringVar(&f.backfill, "backfill", respool.BackfillEASY.String(), "with --swf or --philly: easy or none")
	fs.StringVar(&f.candidates, "candidates", "", "with --swf or --philly: order in which work is tried for back-fill (default: as --order)")
	fs.DurationVar(&f.patience, "patience", 0, "with --swf or --philly: how long a job may be passed before the queue waits for it (0: for ever)")
}

func (f *flags) run(ctx context.Context, out, status io.Writer) error {
	if err := f.read(); err != nil {
		return err
	}
	if f.swf != "" {
		return f.runSWF(ctx, out, status)
	}
	if f.philly.jobs != "" {
		return f.runPhilly(ctx, out, status)
	}
	began := time.Now()
	r, err := Run(ctx, f.options)
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	fmt.Fprintf(status, "%.1f s, %.0f times real time, %.0f placements per second, %.0f MiB at the peak\n",
		took, r.Seconds/took, float64(r.Placements)/took, peakMiB())
	if f.plot != "" {
		if err := writePlot(f.plot, r); err != nil {
			return err
		}
	}
	if f.output == "table" {
		return r.WriteTable(out)
	}
	return writeJSON(out, r)
}

func (f *flags) runSWF(ctx context.Context, out, status io.Writer) error {
	began := time.Now()
	f.workload.Seed = f.options.Seed
	r, err := RunSWF(ctx, f.workload)
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	fmt.Fprintf(status, "%.1f s, %.0f times real time, %.0f placements per second, %.0f MiB at the peak\n",
		took, r.seconds/took, float64(r.placements)/took, peakMiB())
	if f.output == "table" {
		return r.WriteTable(out)
	}
	return writeJSON(out, r)
}

func writeJSON(out io.Writer, report any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(report); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// read checks the flags before any file is read, then reads the files.
func (f *flags) read() (err error) {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("--output %q: choose table or json", f.output)
	}
	if err := f.readFreeTier(); err != nil {
		return err
	}
	if f.swf != "" {
		return f.readSWF()
	}
	if ext := filepath.Ext(f.plot); f.plot != "" && !slices.Contains([]string{".svg", ".pdf", ".png"}, ext) {
		return fmt.Errorf("--plot %s: the name must end in .svg, .pdf or .png", f.plot)
	}
	if f.philly.jobs != "" {
		if err := f.readQueue(); err != nil {
			return err
		}
		return f.philly.read()
	}
	f.options.Strategy = workload.Strategy(f.policy)
	if !slices.Contains(strategies, f.options.Strategy) {
		return fmt.Errorf("--policy %q: choose one of %v", f.policy, strategies)
	}
	if f.options.Hosts, err = tracefile.ReadFile(f.hosts, ReadHosts); err != nil {
		return fmt.Errorf("--hosts: %w", err)
	}
	if f.options.Tasks, err = tracefile.ReadFile(f.tasks, ReadTasks); err != nil {
		return fmt.Errorf("--tasks: %w", err)
	}
	if f.events == "" {
		return nil
	}
	if f.options.Events, err = tracefile.ReadFile(f.events, ReadHostEvents); err != nil {
		return fmt.Errorf("--events: %w", err)
	}
	return nil
}

func (f *flags) readQueue() error {
	q := &f.workload.Queue
	var known bool
	if q.Order, known = respool.ParseOrder(f.order); !known {
		return fmt.Errorf("--order %q: choose priority-fifo, fair-user, smallest-first, shortest-first or express", f.order)
	}
	if q.Candidates = q.Order; f.candidates != "" {
		if q.Candidates, known = respool.ParseOrder(f.candidates); !known {
			return fmt.Errorf("--candidates %q: choose priority-fifo, fair-user, smallest-first, shortest-first or express", f.candidates)
		}
	}
	if q.Backfill, known = respool.ParseBackfill(f.backfill); !known {
		return fmt.Errorf("--backfill %q: choose easy or none", f.backfill)
	}
	switch q.Patience = f.patience; {
	case f.patience == 0:
		q.Patience = respool.MaxQueueTime
	case f.patience < 0 || f.patience > respool.MaxQueueTime:
		return fmt.Errorf("--patience %v: it must be from 0 to %v", f.patience, respool.MaxQueueTime)
	}
	return nil
}

func (f *flags) readSWF() (err error) {
	if err := f.readQueue(); err != nil {
		return err
	}
	if f.workload.Length < 1 {
		return fmt.Errorf("--length %d: a sequence has at least one job", f.workload.Length)
	}
	if f.workload.Jobs, err = tracefile.ReadFile(f.swf, ReadSWF); err != nil {
		return fmt.Errorf("--swf: %w", err)
	}
	if f.sequences == "all" {
		f.workload.Length = 0
	}
	if f.workload.Starts, err = sequenceStarts(f.sequences, len(f.workload.Jobs), f.workload.Length); err != nil {
		return fmt.Errorf("--sequences %w", err)
	}
	return nil
}

// peakMiB is the most memory that the process ever held.
func peakMiB() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Maxrss) / 1024 // Linux counts KiB
}
