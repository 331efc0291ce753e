package replay

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/paceline-sched/paceline/policies/decision"
)

// table writes a report for people: figures below one another, policies side by side.
func table(out io.Writer, r *decision.Report) {
	fmt.Fprintf(out, "%s to %s: %d batches asked for %d tasks, of which %d were placed (%s, %s)\n", r.From.Format(time.DateTime), r.Until.Format(time.DateTime),
		r.Batches, r.Tasks, r.Placed, plural(r.Shards, "shard"), plural(r.Segments, "segment"))
	if r.Gaps > 0 {
		fmt.Fprintf(out, "the log has %s, in which %d batches are missing at least\n", plural(r.Gaps, "gap"), r.Dropped)
	}
	if r.Torn > 0 {
		fmt.Fprintf(out, "%s ends in the middle of a record: it is being written, or its server died\n", plural(r.Torn, "segment"))
	}
	if r.Mismatches > 0 {
		fmt.Fprintf(out, "the log contradicts itself %d times: do not rely on what follows, and report it\n", r.Mismatches)
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"RECORDED"}
	for i := range r.Policies {
		head = append(head, strings.ToUpper(r.Policies[i].Name))
	}
	row(w, "", head...)
	figures(w, r)
	w.Flush()
	if p := r.Pair; p != nil && len(r.Policies) > 1 {
		fmt.Fprintf(out, "\n%s and %s agree on %d tasks and send %d elsewhere; %d are placed by the first alone, %d by the second\n", r.Policies[0].Name, r.Policies[1].Name,
			p.Same, p.Elsewhere, p.OnlyFirst, p.OnlySecond)
	}
	for i := range r.Policies {
		differences(out, &r.Policies[i])
	}
}

// row writes a line whose name stands at the left.
func row(w io.Writer, name string, cells ...string) {
	fmt.Fprintf(w, "%-30s\t%s\t\n", name, strings.Join(cells, "\t"))
}

func figures(w io.Writer, r *decision.Report) {
	counts := func(name, recorded string, of func(*decision.Comparison) int) {
		cells := []string{recorded}
		for i := range r.Policies {
			cells = append(cells, fmt.Sprint(of(&r.Policies[i])))
		}
		row(w, name, cells...)
	}
	amounts := func(name string, decimals int, of func(*decision.Figures) float64) {
		cells := []string{fmt.Sprintf("%.*f", decimals, of(&r.Recorded))}
		for i := range r.Policies {
			cells = append(cells, fmt.Sprintf("%.*f", decimals, of(&r.Policies[i].Figures)))
		}
		row(w, name, cells...)
	}
	seconds := func(name string, of func(*decision.Comparison) float64) {
		cells := []string{"-"}
		for i := range r.Policies {
			cells = append(cells, fmt.Sprintf("%.3f", of(&r.Policies[i])))
		}
		row(w, name, cells...)
	}
	type c = *decision.Comparison
	type f = *decision.Figures
	counts("identical batches", fmt.Sprint(r.Batches), func(x c) int { return x.Identical })
	counts("tasks on the same host", fmt.Sprint(r.Placed), func(x c) int { return x.Same })
	counts("tasks on another host", "-", func(x c) int { return x.Elsewhere })
	counts("placed as recorded alone", "-", func(x c) int { return x.OnlyFirst })
	counts("placed by the policy alone", "-", func(x c) int { return x.OnlySecond })
	counts("tasks that wait longer", "-", func(x c) int { return x.Waits.Tasks })
	seconds("  mean over all, s", func(x c) float64 { return x.Waits.Mean })
	seconds("  99th percentile, s", func(x c) float64 { return x.Waits.P99 })
	counts("  never placed", "-", func(x c) int { return x.Waits.Never })
	counts("tasks that start sooner", "-", func(x c) int { return x.Waits.Sooner })
	seconds("  by, s", func(x c) float64 { return x.Waits.SoonerS })
	counts("tasks that lose their host", "-", func(x c) int { return x.Displaced })
	counts("no room for what preempted", fmt.Sprintf("of %d", r.Outside), func(x c) int { return x.Overfull })
	amounts("GPU allocated, %", 2, func(x f) float64 { return x.GPUAllocated })
	amounts("GPU free and of no use, %", 2, func(x f) float64 { return x.Fragmented })
	amounts("  at the end, %", 2, func(x f) float64 { return x.FragmentedEnd })
	amounts("hosts used", 1, func(x f) float64 { return x.HostsUsed })
	amounts("  of", 1, func(x f) float64 { return x.Hosts })
	amounts("time of a batch, us", 1, func(x f) float64 { return x.BatchMean })
	amounts("  99th percentile, us", 1, func(x f) float64 { return x.BatchP99 })
	amounts("fuel of a batch", 0, func(x f) float64 { return x.Fuel })
	counts("faults", "-", func(x c) int { return x.Faults })
}

func differences(out io.Writer, c *decision.Comparison) {
	if len(c.Differences) == 0 {
		return
	}
	fmt.Fprintf(out, "\nthe first differences of %s:\n", c.Name)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TIME\tSHARD\tBATCH\tREQUEST\tTASKS\tRECORDED\tPOLICY")
	for i := range c.Differences {
		d := &c.Differences[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", d.Time.Format(time.TimeOnly), d.Shard, d.Sequence, d.Request, d.Tasks, hosts(d.Recorded, d.Tasks), hosts(d.Other, d.Tasks))
	}
	w.Flush()
}

// hosts joins names; more stands for those that are left out.
func hosts(names []string, tasks int) string {
	switch {
	case len(names) == 0:
		return "-"
	case tasks > len(names):
		return strings.Join(names, ",") + ",..."
	}
	return strings.Join(names, ",")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
