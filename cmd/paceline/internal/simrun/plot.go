package simrun

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/paceline-sched/paceline/core/resource"
)

// palette tells curves apart for readers with any colour vision.
var palette = [numTiers]color.RGBA{{R: 0, G: 114, B: 178, A: 255}, {R: 213, G: 94, B: 0, A: 255}, {R: 0, G: 158, B: 115, A: 255}}

// entered is when the standing tasks have all come in: what was before would dwarf the rest.
const entered = (time.Duration(numTiers) + 1) * entrance

const (
	plotWidth  = 18 * vg.Centimeter
	plotHeight = 24 * vg.Centimeter
)

// writePlot draws utilisation, waiting tasks, and entitlement with usage of each tier's pool over time, one below the other. The file's
// extension names the format.
func writePlot(path string, r *Report) (err error) {
	panels := []*plot.Plot{
		panel("Requested by live tasks", "% of capacity"), panel("Waiting tasks", "tasks"),
		panel("CPU by pool: entitlement (line) and usage (dashes)", "% of capacity"),
	}
	panels[0].Legend.Top, panels[2].Legend.Top = false, false // their curves run along the top
	var errs []error
	curve := func(p int, name string, hue color.Color, dashed bool, value func(*sample) float64) {
		errs = append(errs, addCurve(panels[p], r.samples, name, hue, dashed, value))
	}
	cpu := func(s *sample, v *resource.Vector) float64 {
		return s.percentOf(v[resource.CPU], resource.CPU, r.Overcommit.CPU)
	}
	curve(0, "cpu", palette[0], false, func(s *sample) float64 { return cpu(s, &s.used) })
	curve(0, "memory", palette[1], false, func(s *sample) float64 {
		return s.percentOf(s.used[resource.Memory], resource.Memory, r.Overcommit.Memory)
	})
	for t := range numTiers {
		curve(1, t.String(), palette[t], false, func(s *sample) float64 { return float64(s.waiting[t]) })
		curve(2, t.String(), palette[t], false, func(s *sample) float64 { return cpu(s, &s.entitlement[t]) })
		curve(2, "", palette[t], true, func(s *sample) float64 { return cpu(s, &s.usage[t]) })
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return write(path, panels)
}

func panel(title, unit string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, "minutes", unit
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	return p
}

func addCurve(p *plot.Plot, samples []sample, name string, hue color.Color, dashed bool, value func(*sample) float64) error {
	points := make(plotter.XYs, 0, len(samples))
	for i := range samples {
		s := &samples[i]
		if since := time.Duration(s.at) - origin; since >= entered || i == len(samples)-1 {
			points = append(points, plotter.XY{X: since.Minutes(), Y: value(s)})
		}
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return fmt.Errorf("draw %s %s: %w", p.Title.Text, name, err)
	}
	line.Color, line.Width = hue, vg.Points(1.2)
	if dashed {
		line.Dashes = []vg.Length{vg.Points(3), vg.Points(2)}
	}
	p.Add(line)
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}

func write(path string, panels []*plot.Plot) (err error) {
	canvas, err := draw.NewFormattedCanvas(plotWidth, plotHeight, filepath.Ext(path)[1:])
	if err != nil {
		return fmt.Errorf("write the plot %s: %w", path, err)
	}
	grid := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		grid[i] = []*plot.Plot{p}
	}
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadX: vg.Millimeter, PadY: 4 * vg.Millimeter, PadTop: 2 * vg.Millimeter, PadRight: 4 * vg.Millimeter}
	for i, row := range plot.Align(grid, tiles, draw.New(canvas)) {
		panels[i].Draw(row[0])
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the plot: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := canvas.WriteTo(file); err != nil {
		return fmt.Errorf("write the plot %s: %w", path, err)
	}
	return nil
}
