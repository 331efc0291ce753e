package main

import (
	"fmt"
	"math"
	"strconv"
)

// The bars.
const (
	published      = 271.40 // of other simulators, for order of submission with back-fill
	publishedError = 0.5
	bestCandidates = 141.0
	bestPlain      = 34.4 // of the best order that a plain simulator was measured with
	longestWait    = 1.0  // of production at p99, virtual seconds
	traceEvictions = 0.0241
	leastSaved     = 0.5 // evictions, of those that the plain choice makes
)

// swf is what an order of the queue is worth.
func swf(r *runner) error {
	rows := [][]string{barHead}
	for _, c := range []struct {
		what, asked string
		met         func(slowdown float64) bool
		args        []string
	}{
		{
			"SWF, bounded slowdown, priority-fifo", "271.40 +- 0.5", func(v float64) bool { return math.Abs(v-published) <= publishedError },
			[]string{"--order", "priority-fifo"},
		},
		{
			"SWF, bounded slowdown, candidates shortest-first", "<= 141", func(v float64) bool { return v <= bestCandidates },
			[]string{"--order", "priority-fifo", "--candidates", "shortest-first"},
		},
		{
			"SWF, bounded slowdown, smallest-first", "<= 34.4", func(v float64) bool { return v <= bestPlain },
			[]string{"--order", "smallest-first"},
		},
		{
			"SWF, bounded slowdown, express", "< 34.4", func(v float64) bool { return v < bestPlain },
			[]string{"--order", "express"},
		},
	} {
		var found struct {
			Slowdown float64 `json:"mean_bounded_slowdown"`
		}
		args := append([]string{"run", "--swf", r.file("hpc/lublin_256.swf.gz"), "--processors", "256", "--backfill", "easy", "--sequences", "published"}, c.args...)
		if err := r.into(&found, args...); err != nil {
			return err
		}
		rows = append(rows, bar(c.what, found.Slowdown, 2, c.asked, c.met(found.Slowdown)))
	}
	return r.table(rows)
}

// googleReport is what is read of a report.
type googleReport struct {
	Tasks int          `json:"tasks"`
	Tiers []googleTier `json:"tiers"` // production, middle, free

	Evictions int     `json:"evictions"`
	PerTask   float64 `json:"evictions_per_placed_task"`
}

type googleTier struct {
	AtStart  googleWait `json:"at_start"`
	Arrivals googleWait `json:"arrivals"`
	Evicted  int        `json:"evicted"`
	Wasted   float64    `json:"wasted_cpu_hours"`
	Waiting  int        `json:"waiting_at_end"`
}

type googleWait struct {
	Tasks  int     `json:"tasks"`
	Placed int     `json:"placed"`
	P99    float64 `json:"p99_seconds"`
}

func (g *googleReport) placed() (n int) {
	for i := range g.Tiers {
		n += g.Tiers[i].AtStart.Placed + g.Tiers[i].Arrivals.Placed
	}
	return n
}

// cellRun is one run of the Google cell.
type cellRun struct {
	cpu, memory   float64
	right, choice string // of the free tier; of victims
	found         googleReport
}

// google is a cell of three tiers: with room enough, and so tight that the free tier has to make room.
func google(r *runner) error {
	const tightCPU, tightMemory = 1.3, 1.25
	runs := []*cellRun{
		{cpu: 1.6, memory: 1.5, right: "share", choice: "default"},
		{cpu: tightCPU, memory: tightMemory, right: "revocable", choice: "default"},
		{cpu: tightCPU, memory: tightMemory, right: "revocable", choice: "youngest-first"},
	}
	factor := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	details := [][]string{{
		"CPU, memory", "free tier by", "victims", "placed", "production p99 s", "middle p99 s", "free p99 s", "evictions", "per placed task", "CPU-hours lost",
	}}
	for _, x := range runs {
		err := r.into(&x.found, "run", "--hosts", r.file("inventory/google2011_machines_t0.csv.gz"), "--tasks", r.file("tasks/google2011_tasks.csv.gz"),
			"--sample", "1m", "--overcommit-cpu", factor(x.cpu), "--overcommit-memory", factor(x.memory), "--free-tier", x.right, "--victims", x.choice)
		if err != nil {
			return err
		}
		if len(x.found.Tiers) != 3 {
			return fmt.Errorf("the report has %d tiers; it should have three", len(x.found.Tiers))
		}
		lost := 0.0
		for i := range x.found.Tiers {
			lost += x.found.Tiers[i].Wasted
		}
		p99 := func(tier int) string { return number(x.found.Tiers[tier].Arrivals.P99, 2) }
		details = append(details, []string{
			factor(x.cpu) + ", " + factor(x.memory), x.right, x.choice, number(float64(x.found.placed()), 0), p99(0), p99(1), p99(2),
			number(float64(x.found.Evictions), 0), number(x.found.PerTask, 4), number(lost, 0),
		})
	}
	if err := r.table(googleBars(&runs[0].found, &runs[1].found, &runs[2].found)); err != nil {
		return err
	}
	return r.table(details)
}

func googleBars(wide, tight, plain *googleReport) [][]string {
	waits := func(what string, g *googleReport) []string {
		a := &g.Tiers[0].Arrivals
		return bar(what, a.P99, 3, "<= 1", a.Placed == a.Tasks && a.P99 <= longestWait)
	}
	over := float64(tight.Evictions) / float64(max(plain.Evictions, 1))
	return [][]string{
		barHead,
		bar("Google 2011, tasks placed", float64(wide.placed()), 0, number(float64(wide.Tasks), 0), wide.placed() == wide.Tasks),
		waits("Google 2011, production arrivals, time to place at p99, s", wide),
		waits("the same in the tight cell, s", tight),
		{"evictions per placed task there", number(tight.PerTask, 4), number(traceEvictions, 4) + " (in the trace)", ""},
		bar("evictions there, of those of youngest-first", over, 2, "<= 0.5", plain.Evictions > 0 && over <= leastSaved),
	}
}
