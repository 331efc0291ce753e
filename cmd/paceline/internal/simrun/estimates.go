package simrun

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/core/estimate"
)

// estimateError compares the starts that were foretold when jobs came with their true ones. Jobs that start at once are not counted: nobody
// asks when they will.
type estimateError struct {
	Basis string `json:"basis"`
	// Jobs were given an estimate on this basis, of Waited that had to wait.
	Jobs   int `json:"jobs"`
	Waited int `json:"waited"`
	// The error is the distance between the two starts, in seconds.
	Mean   float64 `json:"mean_error_seconds"`
	Median float64 `json:"median_error_seconds"`
	// Relative is the sum of the errors over the sum of the true waits.
	Relative float64 `json:"error_over_wait"`
	// Factor is by how many times the wait foretold and the true one differ, whichever is the longer: of half of the jobs by no more, and of nine
	// in ten. Waits below a second count as one.
	Factor   float64 `json:"median_factor"`
	Factor90 float64 `json:"p90_factor"`
	// Late is the part of the jobs, in percent, that started later than they were told.
	Late float64 `json:"late_percent"`
}

// foretold is what was said of one job when it came: by the best basis that there was, and by the pace alone.
type foretold struct {
	best, pace estimate.Start
}

// errorsOf are the errors of one basis.
type errorsOf struct {
	errors  []float64
	factors []float64
	wait    float64
	late    int
}

// estimates gathers errors over all sequences.
type estimates struct {
	waited int
	by     [estimate.AtPace + 1]errorsOf // RunTimes of those that had it; AtPace of all
}

func (e *estimates) add(f *foretold, came, started int64) {
	e.waited++
	if f.best.Basis == estimate.RunTimes {
		e.by[estimate.RunTimes].add(f.best.At, came, started)
	}
	if f.pace.Basis == estimate.AtPace {
		e.by[estimate.AtPace].add(f.pace.At, came, started)
	}
}

func (e *errorsOf) add(told, came, started int64) {
	off := time.Duration(started - told).Seconds()
	e.errors = append(e.errors, math.Abs(off))
	e.wait += time.Duration(started - came).Seconds()
	foretold, waited := max(time.Duration(told-came).Seconds(), 1), max(time.Duration(started-came).Seconds(), 1)
	e.factors = append(e.factors, max(foretold/waited, waited/foretold))
	if off > 1 {
		e.late++
	}
}

func (e *estimates) report() []estimateError {
	var list []estimateError
	for basis := estimate.RunTimes; basis <= estimate.AtPace; basis++ {
		of := &e.by[basis]
		r := estimateError{Basis: basis.String(), Jobs: len(of.errors), Waited: e.waited}
		if n := len(of.errors); n > 0 {
			slices.SortFunc(of.errors, cmp.Compare)
			slices.SortFunc(of.factors, cmp.Compare)
			r.Factor, r.Factor90 = round(of.factors[n/2]), round(of.factors[n*9/10])
			sum := 0.0
			for _, x := range of.errors {
				sum += x
			}
			r.Mean, r.Median, r.Late = round(sum/float64(n)), round(of.errors[n/2]), round(100*float64(of.late)/float64(n))
			if of.wait > 0 {
				r.Relative = round(sum / of.wait)
			}
		}
		list = append(list, r)
	}
	return list
}

func writeEstimates(w io.Writer, list []estimateError) {
	fmt.Fprintln(w, "\nSTART FORETOLD BY\tJOBS\tOF WAITED\tMEAN ERROR s\tMEDIAN\tERROR / WAIT\tFACTOR\tOF 90 %\tLATE %")
	for i := range list {
		e := &list[i]
		fmt.Fprintf(w, "%s\t%d\t%d\t%.0f\t%.0f\t%.3f\t%.2f\t%.2f\t%.1f\n", e.Basis, e.Jobs, e.Waited, e.Mean, e.Median, e.Relative, e.Factor,
			e.Factor90, e.Late)
	}
}
