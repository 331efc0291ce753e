// Package simrun runs a trace of a whole cluster through a whole cell: the scheduler's core, its shards and simulated clusters, all
// of them the real ones, in virtual time and on one goroutine.
//
// It owns how a trace becomes pools, jobs and hosts (work.go), the loop that takes the place of engine, store and shard runtimes
// (cell.go), and the report. Groups of records are handed to Options.Commit or dropped: nothing is stored.
//
// Nothing here reads a clock: deciding takes no virtual time, so a time to place is time spent waiting for the next entitlement, for
// room, or for an earlier refusal's delay to pass. A report is a function of its options and input. A Run shares nothing and starts no
// goroutine.
package simrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// origin is the cell's time at the start of the trace.
const origin = time.Hour

// Bounds of a run.
const (
	maxOvercommit = 10.0
	maxShards     = 64
	// minSample is the shortest time between two samples; it also bounds their number, to maxSamples.
	minSample  = 100 * time.Millisecond
	maxSamples = 1 << 20
	// maxRounds bounds what may happen at one moment of virtual time.
	maxRounds = 1 << 20
	// maxEvents bounds the events of one Step, as the engine's loop does.
	maxEvents = 4096
)

// The defaults of over-commitment come from reference runs on the Google trace of 2011: what is asked for at its start is 116 % of
// the CPU and 102 % of the memory, which Borg hosted by over-committing. Of the factors tried (CPU 1, 1.2, 1.3, 1.5, 1.6, 1.75, 2; memory 1,
// 1.1, 1.25, 1.5) these are the lowest at which every task gets a place before the trace ends.
const (
	DefaultOvercommitCPU    = 1.6
	DefaultOvercommitMemory = 1.5
)

// Options say what to run. Validate fills in defaults.
type Options struct {
	Hosts  []Host
	Tasks  []Task
	Events []HostEvent // in the order of their times
	// Start is when the trace starts by its own clock. Default: 10 min, as in the Google traces.
	Start time.Duration
	// OvercommitCPU and OvercommitMemory are what hosts offer as a multiple of what they have. Default: those above.
	OvercommitCPU, OvercommitMemory float64
	Strategy                        workload.Strategy // default: best-fit
	// FreeRevocable has the free tier run on slack, instead of on what its pools are entitled to.
	FreeRevocable bool
	// Victims names who makes room for others: default, youngest-first or nobody. Default: default.
	Victims string
	Shards  int           // default: as few as hold the hosts
	Sample  time.Duration // between two samples; default: 10 s
	Seed    uint64
	// Commit receives every group of records, in order. Default: they are dropped.
	Commit func(scheduler.Group) error
}

// Validate fills zero fields with defaults and reports the first option that is out of range.
func (o *Options) Validate() error {
	def := func(v *float64, to float64) {
		if *v == 0 {
			*v = to
		}
	}
	def(&o.OvercommitCPU, DefaultOvercommitCPU)
	def(&o.OvercommitMemory, DefaultOvercommitMemory)
	if o.Start == 0 {
		o.Start = 10 * time.Minute
	}
	if o.Sample == 0 {
		o.Sample = 10 * time.Second
	}
	if o.Strategy == "" {
		o.Strategy = workload.StrategyBestFit
	}
	o.Victims = cmp.Or(o.Victims, victimsDefault)
	fewest := (len(o.Hosts) + shard.MaxRows - 1) / shard.MaxRows
	if o.Shards == 0 {
		o.Shards = fewest
	}
	for _, f := range []float64{o.OvercommitCPU, o.OvercommitMemory} {
		if !(f >= 1 && f <= maxOvercommit) {
			return fmt.Errorf("over-commitment by %v: it must be from 1 to %v", f, maxOvercommit)
		}
	}
	switch {
	case len(o.Hosts) == 0:
		return errors.New("the inventory has no host: give it one at least")
	case len(o.Tasks) == 0:
		return errors.New("the trace has no task: give it one at least")
	case !slices.Contains(strategies, o.Strategy):
		return fmt.Errorf("policy %q is unknown: choose one of %v", o.Strategy, strategies)
	case o.Shards < fewest || o.Shards > maxShards || o.Shards > len(o.Hosts):
		return fmt.Errorf("%d shards for %d hosts: a shard has from 1 to %d hosts, and there are at most %d", o.Shards, len(o.Hosts), shard.MaxRows, maxShards)
	case o.Start < 0 || o.Start > time.Duration(math.MaxInt64)/4:
		return fmt.Errorf("start %v: it must not be negative", o.Start)
	case o.Sample < minSample || (o.lastWord()-o.startMicros())/o.Sample.Microseconds() >= maxSamples:
		return fmt.Errorf("a sample every %v is too many: take one every %v at most, and %d in all", o.Sample, minSample, maxSamples)
	}
	return nil
}

// Run replays the trace.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := newWork(&o)
	c, err := newCell(ctx, &o, w)
	if err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, fmt.Errorf("at %v of the trace: %w", time.Duration(c.now)-origin, err)
	}
	return c.report()
}

// dominant returns the reason that most hosts gave, the first in precedence among equals.
func dominant(r *placement.Reasons) placement.Reason {
	best := placement.Reason(0)
	for reason := range placement.NumReasons {
		if r.Counts[reason] > r.Counts[best] {
			best = reason
		}
	}
	return best
}

// quantity gives a part of the largest host, times a factor, in the unit of its kind, to the nearest.
func quantity(fraction float64, largest int64, factor float64) int64 {
	return int64(math.Round(math.Round(fraction*float64(largest)) * factor))
}

var scale = simulated.DefaultScale
