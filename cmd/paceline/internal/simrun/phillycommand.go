package simrun

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/paceline-sched/paceline/cmd/paceline/internal/tracefile"
	"github.com/paceline-sched/paceline/core/respool"
)

// phillyFlags are the flags that go with --philly.
type phillyFlags struct {
	jobs, pools, kind string
	options           PhillyOptions
	from, to          time.Duration // of the plot
}

// phillyNames are their names, but for the file's.
var phillyNames = []string{"philly-pools", "pools", "host-percent", "estimates", "until", "limit", "plot-from", "plot-to"}

func (f *phillyFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.jobs, "philly", "", "trace `file` of GPU jobs of virtual clusters, instead of hosts and tasks")
	fs.StringVar(&f.pools, "philly-pools", "", "with --philly: `file` of virtual clusters and their hosts")
	fs.StringVar(&f.kind, "pools", "compare", "with --philly: static, elastic, or compare to run both")
	fs.IntVar(&f.options.HostPercent, "host-percent", 100, "with --philly: how many of its hosts each virtual cluster keeps, rounded up, in percent")
	fs.BoolVar(&f.options.Estimates, "estimates", true, "with --philly: jobs say, truly, how long they run")
	fs.DurationVar(&f.options.Until, "until", 0, "with --philly: leave out jobs that arrive later (0: none)")
	fs.DurationVar(&f.from, "plot-from", 0, "with --philly: where the curves of the plot begin, from the first arrival on")
	fs.DurationVar(&f.to, "plot-to", 0, "with --philly: where they end (0: with the run)")
	fs.IntVar(&f.options.Limit, "limit", 0, "with --philly: leave out jobs beyond so many (0: none)")
}

func (f *phillyFlags) read() (err error) {
	if f.kind != "compare" && f.kind != respool.Static.String() && f.kind != respool.Elastic.String() {
		return fmt.Errorf("--pools %q: choose static, elastic or compare", f.kind)
	}
	if f.options.HostPercent < 1 || f.options.HostPercent > 100 {
		return fmt.Errorf("--host-percent %d: it must be from 1 to 100", f.options.HostPercent)
	}
	if f.from < 0 || f.to != 0 && f.to <= f.from {
		return fmt.Errorf("--plot-from %v, --plot-to %v: a plot begins before it ends", f.from, f.to)
	}
	if f.options.Until < 0 || f.options.Limit < 0 {
		return fmt.Errorf("--until %v, --limit %d: neither may be negative", f.options.Until, f.options.Limit)
	}
	if f.options.Jobs, err = tracefile.ReadFile(f.jobs, ReadPhillyJobs); err != nil {
		return fmt.Errorf("--philly: %w", err)
	}
	if f.options.Pools, err = tracefile.ReadFile(f.pools, ReadPhillyPools); err != nil {
		return fmt.Errorf("--philly-pools: %w", err)
	}
	return nil
}

// window leaves of the runs' samples those that the plot shows.
func (f *phillyFlags) window(runs []*PhillyReport) []*PhillyReport {
	var shown []*PhillyReport
	for _, r := range runs {
		copied := *r
		copied.samples = slices.DeleteFunc(slices.Clone(r.samples), func(s phillyLevel) bool {
			at := time.Duration(s.at) - origin
			return at < f.from || f.to != 0 && at > f.to
		})
		shown = append(shown, &copied)
	}
	return shown
}

// report is what every kind of run can do with what it found.
type report interface {
	WriteTable(out io.Writer) error
}

func (f *flags) runPhilly(ctx context.Context, out, status io.Writer) error {
	var found []*PhillyReport
	for _, kind := range []respool.Kind{respool.Static, respool.Elastic} {
		if f.philly.kind != "compare" && f.philly.kind != kind.String() {
			continue
		}
		o := f.philly.options
		o.Kind, o.Queue, o.Seed, o.Victims = kind, f.workload.Queue, f.options.Seed, f.options.Victims
		if f.sampled {
			o.Sample = f.options.Sample
		}
		began := time.Now()
		r, err := RunPhilly(ctx, o)
		if err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		fmt.Fprintf(status, "%s: %.1f s, %.0f times real time, %.0f placements per second, %.0f MiB at the peak\n",
			kind, took, r.Seconds/took, float64(r.placements)/took, peakMiB())
		found = append(found, r)
	}
	if f.plot != "" {
		if err := writePhillyPlot(f.plot, f.philly.window(found)); err != nil {
			return err
		}
	}
	var r report = found[0]
	if len(found) == 2 {
		r = Compare(found[0], found[1])
	}
	if f.output == "table" {
		return r.WriteTable(out) //nolint:wrapcheck // it says what it did
	}
	return writeJSON(out, r)
}
