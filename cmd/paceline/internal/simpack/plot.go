package simpack

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// palette tells policies apart for readers with any colour vision; a fourth curve begins again.
var palette = []color.RGBA{{R: 0, G: 114, B: 178, A: 255}, {R: 213, G: 94, B: 0, A: 255}, {R: 0, G: 158, B: 115, A: 255}}

const bandAlpha = 50

// WritePlot draws allocation over demand: for each report a line of means within a band from the lowest to the highest seed. The
// file's extension names the format.
func WritePlot(path string, reports []Report) error {
	p := plot.New()
	p.Title.Text = "GPU allocation over demand"
	p.X.Label.Text = "requested GPU, % of capacity"
	p.Y.Label.Text = "allocated GPU, % of capacity"
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	for i := range reports {
		if err := addCurve(p, &reports[i], palette[i%len(palette)]); err != nil {
			return fmt.Errorf("draw policy %s: %w", reports[i].Policy, err)
		}
	}
	if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, path); err != nil {
		return fmt.Errorf("write the plot %s: %w", path, err)
	}
	return nil
}

func addCurve(p *plot.Plot, r *Report, hue color.RGBA) error {
	n := len(r.Allocated)
	means, band := make(plotter.XYs, n), make(plotter.XYs, 2*n)
	for i, point := range r.Allocated {
		x := float64(point.Demand)
		means[i] = plotter.XY{X: x, Y: point.Mean}
		band[i] = plotter.XY{X: x, Y: point.Min}
		band[2*n-1-i] = plotter.XY{X: x, Y: point.Max}
	}
	area, err := plotter.NewPolygon(band)
	if err != nil {
		return fmt.Errorf("band: %w", err)
	}
	area.Color = color.NRGBA{R: hue.R, G: hue.G, B: hue.B, A: bandAlpha}
	area.LineStyle.Width = 0
	line, err := plotter.NewLine(means)
	if err != nil {
		return fmt.Errorf("line: %w", err)
	}
	line.Color, line.Width = hue, vg.Points(1.5)
	p.Add(area, line)
	p.Legend.Add(r.Policy, line)
	return nil
}
