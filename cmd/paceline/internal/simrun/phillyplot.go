package simrun

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

const (
	// phillyPoints bounds the points of a curve: more than the plot is wide would only make its file large.
	phillyPoints = 320
	// phillyDrawn is how many virtual clusters are drawn one by one: those that used most beyond their reservation.
	phillyDrawn = 3
)

// writePhillyPlot draws how long each virtual cluster's jobs queued, GPUs at work over time, and entitlement with usage of the virtual clusters
// that borrowed most in the last of the runs, one below the other. The file's extension names the format.
func writePhillyPlot(path string, runs []*PhillyReport) error {
	for _, r := range runs {
		if len(r.samples) == 0 {
			return errors.New("draw the run: it has no sample between --plot-from and --plot-to")
		}
	}
	bars, err := phillyBars(runs)
	if err != nil {
		return err
	}
	work := daysPanel("GPUs at work", "% of all")
	var errs []error
	for n, r := range runs {
		errs = append(errs, phillyCurve(work, r.samples, r.Pools, curveStyle{palette[n], false}, func(s *phillyLevel) float64 { return 100 * s.used / float64(r.GPUs) }))
	}
	last := runs[len(runs)-1]
	share := daysPanel(fmt.Sprintf("%s pools: entitlement (line) and usage (dashes)", last.Pools), "GPUs")
	for n, i := range borrowers(last) {
		errs = append(errs,
			phillyCurve(share, last.samples, last.Virtual[i].Name, curveStyle{palette[n], false}, func(s *phillyLevel) float64 { return s.pools[i].entitlement }),
			phillyCurve(share, last.samples, "", curveStyle{palette[n], true}, func(s *phillyLevel) float64 { return s.pools[i].running }))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return write(path, []*plot.Plot{bars, work, share})
}

func daysPanel(title, unit string) *plot.Plot {
	p := panel(title, unit)
	p.X.Label.Text = "days"
	return p
}

// phillyBars shows the mean queueing of each virtual cluster, runs side by side.
func phillyBars(runs []*PhillyReport) (*plot.Plot, error) {
	p := panel("Mean queueing", "hours")
	p.X.Label.Text = "virtual cluster"
	width := vg.Points(14)
	for n, r := range runs {
		var values plotter.Values
		var names []string
		for i := range r.Virtual {
			values = append(values, r.Virtual[i].Queueing.Mean/time.Hour.Seconds())
			names = append(names, r.Virtual[i].Name)
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, fmt.Errorf("draw the queueing of %s pools: %w", r.Pools, err)
		}
		bars.Color, bars.LineStyle.Width = palette[n], 0
		bars.Offset = width * vg.Length(2*n-len(runs)+1) / 2
		p.Add(bars)
		p.Legend.Add(r.Pools, bars)
		p.NominalX(names...)
	}
	return p, nil
}

type curveStyle struct {
	hue    color.Color
	dashed bool
}

// phillyCurve draws means over equal numbers of samples.
func phillyCurve(p *plot.Plot, samples []phillyLevel, name string, style curveStyle, value func(*phillyLevel) float64) error {
	together := (len(samples) + phillyPoints - 1) / phillyPoints
	var points plotter.XYs
	for part := range slices.Chunk(samples, together) {
		sum := 0.0
		for i := range part {
			sum += value(&part[i])
		}
		points = append(points, plotter.XY{X: (time.Duration(part[0].at) - origin).Hours() / 24, Y: round(sum / float64(len(part)))})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return fmt.Errorf("draw %s %s: %w", p.Title.Text, name, err)
	}
	line.Color, line.Width = style.hue, vg.Points(1)
	if style.dashed {
		line.Dashes = []vg.Length{vg.Points(3), vg.Points(2)}
	}
	p.Add(line)
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}

// borrowers finds the virtual clusters that used most beyond what they reserve.
func borrowers(r *PhillyReport) []int {
	borrowed := make([]float64, len(r.Virtual))
	order := make([]int, len(r.Virtual))
	for i := range r.Virtual {
		order[i] = i
		for n := range r.samples {
			borrowed[i] += max(0, r.samples[n].pools[i].running-float64(r.Virtual[i].GPUs))
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(borrowed[b], borrowed[a]) })
	return order[:min(phillyDrawn, len(order))]
}
