package simpack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
)

// Report is what a run found. It holds no times, so equal runs make equal reports.
type Report struct {
	Policy string  `json:"policy"`
	Digest string  `json:"digest,omitempty"` // of a module
	Seeds  []int64 `json:"seeds"`
	Demand float64 `json:"demand"`
	Hosts  int     `json:"hosts"` // with GPUs
	GPUs   int     `json:"gpus"`
	Tasks  int     `json:"tasks"` // decided, over all seeds
	// Allocated is the GPU capacity given to tasks, in percent, by demand.
	Allocated Curve `json:"gpu_allocation_percent"`
	// Fragmented is the GPU capacity that is free but of no use to a task drawn from the trace, in percent and expectation, by demand.
	Fragmented Curve `json:"gpu_fragmented_percent"`
	// NotPlaced counts refused tasks over all seeds by the reason that most hosts gave.
	NotPlaced map[string]int `json:"not_placed"`
}

// Curve is one figure over demand, in ascending order.
type Curve []Point

// Point is a figure at one demand over all seeds.
type Point struct {
	Demand int     `json:"-"` // percent of the GPU capacity
	Mean   float64 `json:"mean"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// At returns the point at a demand, false when the run did not measure there.
func (c Curve) At(demand int) (Point, bool) {
	for _, p := range c {
		if p.Demand == demand {
			return p, true
		}
	}
	return Point{}, false
}

// MarshalJSON writes an object keyed by demand, in the order of demand and not of its digits.
func (c Curve) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range c {
		if i > 0 {
			b.WriteByte(',')
		}
		body, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("write the figures at demand %d: %w", p.Demand, err)
		}
		fmt.Fprintf(&b, "%q:%s", fmt.Sprint(p.Demand), body)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// series gathers one figure by level while seeds run.
type series struct {
	levels []int
	values [][]float64
}

func newSeries(demand float64) *series {
	s := &series{}
	for _, l := range Levels {
		if float64(l) <= 100*demand+1e-9 {
			s.levels = append(s.levels, l)
		}
	}
	s.values = make([][]float64, len(s.levels))
	return s
}

func (s *series) add(level int, v float64) { s.values[level] = append(s.values[level], v) }

func (s *series) finish() Curve {
	curve := Curve{}
	for i, values := range s.values {
		if len(values) == 0 {
			continue
		}
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		curve = append(curve, Point{
			Demand: s.levels[i], Mean: round(sum / float64(len(values))), Min: round(slices.Min(values)), Max: round(slices.Max(values)),
		})
	}
	return curve
}

// round keeps three decimals: more would only report noise of the summing order.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// WriteTable writes a report for people.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s: %d hosts, %d GPUs, %d seeds, %d tasks\n\n", r.Policy, r.Hosts, r.GPUs, len(r.Seeds), r.Tasks)
	fmt.Fprintln(w, "DEMAND %\tALLOCATED %\tMIN\tMAX\tFRAGMENTED %")
	for i, p := range r.Allocated {
		fmt.Fprintf(w, "%d\t%.2f\t%.2f\t%.2f\t%.2f\n", p.Demand, p.Mean, p.Min, p.Max, r.Fragmented[i].Mean)
	}
	fmt.Fprintln(w)
	for _, reason := range slices.Sorted(maps.Keys(r.NotPlaced)) {
		fmt.Fprintf(w, "not placed for %s\t%d\n", reason, r.NotPlaced[reason])
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
