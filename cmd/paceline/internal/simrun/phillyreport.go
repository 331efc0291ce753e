package simrun

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// PhillyReport is what a run of GPU jobs found. Equal options make equal reports.
type PhillyReport struct {
	Pools      string `json:"pools"`
	Order      string `json:"order"`
	Backfill   string `json:"backfill"`
	Candidates string `json:"candidates"`
	// Estimates says that every job told truly how long it runs.
	Estimates bool `json:"estimates"`
	// Foretold are the errors of the starts foretold at arrival, by basis.
	Foretold []estimateError `json:"starts_foretold"`
	Hosts    int             `json:"hosts"`
	GPUs     int             `json:"gpus"`
	Jobs     int             `json:"jobs"`
	LeftOut  LeftOut         `json:"left_out"`
	Seconds  float64         `json:"simulated_seconds"`
	// Queueing is the time that a job was there and did no work that lasted: from its arrival to its end, less one run.
	Queueing Queueing `json:"queueing"`
	// Completion is the mean time from arrival to end.
	Completion float64 `json:"mean_completion_seconds"`
	// Jain is Jain's index over the pools of the part of their jobs' time that was work: 1 when all pools wait alike.
	Jain float64 `json:"jain_index"`
	// Preemptions are jobs that were stopped to make room, each time one.
	Preemptions int `json:"preemptions"`
	// WastedGPUHours were run and then run again.
	WastedGPUHours float64 `json:"wasted_gpu_hours"`
	GPUHours       float64 `json:"gpu_hours"`
	// Utilisation is the part of all GPUs that ran work, from the first arrival to the last, by the samples.
	Utilisation float64      `json:"utilisation_percent"`
	Steps       int          `json:"steps"`
	Virtual     []PhillyPart `json:"virtual_clusters"`

	samples    []phillyLevel
	placements uint64
}

// Queueing sums up queueing times, in seconds. The percentile is by nearest rank.
type Queueing struct {
	Mean float64 `json:"mean_seconds"`
	P50  float64 `json:"p50_seconds"`
	P99  float64 `json:"p99_seconds"`
	Max  float64 `json:"max_seconds"`
}

// PhillyPart is one virtual cluster.
type PhillyPart struct {
	Name           string   `json:"virtual_cluster"`
	GPUs           int      `json:"gpus"`
	Jobs           int      `json:"jobs"`
	GPUHours       float64  `json:"gpu_hours"`
	Queueing       Queueing `json:"queueing"`
	FirstStart     float64  `json:"mean_seconds_to_first_start"`
	Preemptions    int      `json:"preemptions"`
	WastedGPUHours float64  `json:"wasted_gpu_hours"`
	// WaitedFor says what waiting jobs lacked, in GPU-hours by the samples.
	WaitedFor WaitedFor `json:"waited_for_gpu_hours"`
}

// WaitedFor tells reasons to wait apart.
type WaitedFor struct {
	// Beyond is more than what the pool has reserved.
	Beyond float64 `json:"more_than_reserved"`
	// Within is the pool's own reservation: others were still on it, or a gang ahead in the queue did not fit.
	Within float64 `json:"own_reservation"`
	// Hosts is GPUs on hosts with as many together as a task takes; the pool had let the job go.
	Hosts float64 `json:"hosts_that_fit"`
}

func (c *phillyCell) report(left LeftOut) *PhillyReport {
	o := c.options
	q := o.Queue.WithDefaults()
	r := &PhillyReport{
		Pools: o.Kind.String(), Order: q.Order.String(), Backfill: q.Backfill.String(), Candidates: q.Candidates.String(), Estimates: o.Estimates,
		Jobs: len(c.jobs), LeftOut: left, Seconds: round(time.Duration(c.now - int64(origin)).Seconds()), Steps: c.steps, samples: c.samples,
		placements: c.shards[0].machine.Stats().Placed,
	}
	waits := make([][]time.Duration, len(o.Pools))
	var all []time.Duration
	var progress []float64
	for i := range o.Pools {
		t := c.pools[o.Pools[i].Name]
		part, times := c.part(t)
		waits[i] = times
		all = append(all, times...)
		r.Hosts += t.pool.Hosts
		r.GPUs += t.pool.gpus()
		r.Preemptions += part.Preemptions
		r.WastedGPUHours += part.WastedGPUHours
		r.GPUHours += part.GPUHours
		if part.Jobs > 0 {
			progress = append(progress, c.progress(t))
		}
		r.Virtual = append(r.Virtual, part)
	}
	r.Queueing, r.Jain = queueing(all), round(jain(progress))
	r.WastedGPUHours, r.GPUHours = round(r.WastedGPUHours), round(r.GPUHours)
	var told estimates
	for i := range c.jobs {
		if j := &c.jobs[i]; j.first > c.arrival(i) {
			told.add(&j.told, c.arrival(i), j.first)
		}
		r.Completion += time.Duration(c.jobs[i].ended-c.arrival(i)).Seconds() / float64(len(c.jobs))
	}
	r.Completion, r.Foretold = round(r.Completion), told.report()
	r.Utilisation = round(c.utilisation(float64(r.GPUs)))
	return r
}

// part sums up one virtual cluster, and returns how long each of its jobs queued.
func (c *phillyCell) part(t *phillyTally) (PhillyPart, []time.Duration) {
	p := PhillyPart{
		Name: t.pool.Name, GPUs: t.pool.gpus(), Preemptions: t.preemptions, WastedGPUHours: round(t.wasted.Hours()),
		WaitedFor: WaitedFor{Beyond: round(t.waits.beyond.Hours()), Within: round(t.waits.within.Hours()), Hosts: round(t.waits.host.Hours())},
	}
	var times []time.Duration
	for i := range c.jobs {
		j := &c.jobs[i]
		if j.pool != t {
			continue
		}
		times = append(times, time.Duration(j.ended-c.arrival(i))-j.Run)
		p.GPUHours += j.Run.Hours() * float64(j.tasks*j.gpus)
		p.FirstStart += time.Duration(j.first - c.arrival(i)).Seconds()
	}
	p.Jobs, p.GPUHours = len(times), round(p.GPUHours)
	p.FirstStart = round(p.FirstStart / float64(max(1, len(times))))
	p.Queueing = queueing(times)
	return p, times
}

// progress is the part of the time of a pool's jobs, from arrival to end, that was work.
func (c *phillyCell) progress(t *phillyTally) float64 {
	var ran, there time.Duration
	for i := range c.jobs {
		if j := &c.jobs[i]; j.pool == t {
			ran += j.Run / time.Millisecond // months of a hundred thousand jobs are more nanoseconds than an int64 counts
			there += time.Duration(j.ended-c.arrival(i)) / time.Millisecond
		}
	}
	return float64(ran) / float64(there)
}

func (c *phillyCell) utilisation(gpus float64) float64 {
	last := c.arrival(len(c.jobs) - 1)
	used, span := 0.0, 0.0
	for i := 1; i < len(c.samples) && c.samples[i].at <= last; i++ {
		d := float64(c.samples[i].at - c.samples[i-1].at)
		used += c.samples[i-1].used * d
		span += d
	}
	return 100 * used / (max(span, 1) * gpus)
}

func queueing(times []time.Duration) Queueing {
	if len(times) == 0 {
		return Queueing{}
	}
	slices.Sort(times)
	sum := 0.0
	for _, t := range times {
		sum += t.Seconds()
	}
	at := func(percent int) float64 { return round(times[max(0, (len(times)*percent+99)/100-1)].Seconds()) }
	return Queueing{Mean: round(sum / float64(len(times))), P50: at(50), P99: at(99), Max: at(100)}
}

// jain is Jain's fairness index: (sum x)^2 / (n * sum x^2).
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(x)) * squares)
}

// PhillyComparison is the same work under static and under elastic pools.
type PhillyComparison struct {
	Static  *PhillyReport `json:"static"`
	Elastic *PhillyReport `json:"elastic"`
	// Ratio is the mean queueing under elastic pools over that under static ones.
	Ratio  float64        `json:"elastic_over_static"`
	Longer []longerQueued `json:"longer_under_elastic"`
}

// longerQueued is a virtual cluster whose jobs queue over a twentieth longer under elastic pools, with what grew most.
type longerQueued struct {
	Name    string  `json:"virtual_cluster"`
	Static  float64 `json:"static_mean_seconds"`
	Elastic float64 `json:"elastic_mean_seconds"`
	Why     string  `json:"why"`
}

const longer = 1.05

// Compare puts two runs of the same work side by side.
func Compare(static, elastic *PhillyReport) *PhillyComparison {
	c := &PhillyComparison{Static: static, Elastic: elastic, Longer: []longerQueued{}}
	if static.Queueing.Mean > 0 {
		c.Ratio = round(elastic.Queueing.Mean / static.Queueing.Mean)
	}
	for i := range static.Virtual {
		s, e := &static.Virtual[i], &elastic.Virtual[i]
		if e.Queueing.Mean > longer*s.Queueing.Mean {
			c.Longer = append(c.Longer, longerQueued{Name: s.Name, Static: s.Queueing.Mean, Elastic: e.Queueing.Mean, Why: why(s, e)})
		}
	}
	return c
}

// why tells what grew most from static to elastic.
func why(s, e *PhillyPart) string {
	causes := []struct {
		more float64
		text string
	}{
		{e.WaitedFor.Beyond - s.WaitedFor.Beyond, "waiting for more than it has reserved, which others use or work that was cut short needs again"},
		{e.WaitedFor.Within - s.WaitedFor.Within, "waiting within its reservation, for borrowers to leave"},
		{e.WaitedFor.Hosts - s.WaitedFor.Hosts, "waiting for hosts with enough GPUs together, which borrowers have broken up"},
		{e.WastedGPUHours - s.WastedGPUHours, "work of its own beyond its reservation that was cut short and ran again"},
	}
	most := causes[0]
	for _, c := range causes[1:] {
		if c.more > most.more {
			most = c
		}
	}
	return fmt.Sprintf("%.1f GPU-hours more of %s", most.more, most.text)
}

// WriteTable writes a report for people.
func (r *PhillyReport) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	r.rows(w)
	return flush(w)
}

func (r *PhillyReport) rows(w io.Writer) {
	estimates := "no estimates"
	if r.Estimates {
		estimates = "true estimates"
	}
	fmt.Fprintf(w, "%s pools, %s, back-fill %s by %s, %s: %d jobs on %d GPUs of %d hosts\n\n",
		r.Pools, r.Order, r.Backfill, r.Candidates, estimates, r.Jobs, r.GPUs, r.Hosts)
	fmt.Fprintln(w, "VIRTUAL CLUSTER\tGPUS\tJOBS\tQUEUED MEAN s\tP50\tP99\tPREEMPTIONS\tWASTED GPU-h\tWAITED FOR MORE GPU-h\tFOR ITS OWN\tFOR HOSTS")
	row := func(name string, gpus, jobs int, q *Queueing, preemptions int, wasted float64, f WaitedFor) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%d\t%.1f\t%.1f\t%.1f\t%.1f\n", name, gpus, jobs, q.Mean, q.P50, q.P99, preemptions, wasted, f.Beyond, f.Within, f.Hosts)
	}
	var sum WaitedFor
	for i := range r.Virtual {
		p := &r.Virtual[i]
		sum.Beyond, sum.Within, sum.Hosts = sum.Beyond+p.WaitedFor.Beyond, sum.Within+p.WaitedFor.Within, sum.Hosts+p.WaitedFor.Hosts
		row(p.Name, p.GPUs, p.Jobs, &p.Queueing, p.Preemptions, p.WastedGPUHours, p.WaitedFor)
	}
	row("all", r.GPUs, r.Jobs, &r.Queueing, r.Preemptions, r.WastedGPUHours, sum)
	writeEstimates(w, r.Foretold)
	fmt.Fprintf(w, "\nJain's index %.3f, utilisation %.2f %%, mean completion %.0f s\n", r.Jain, r.Utilisation, r.Completion)
}

// WriteTable writes a comparison for people.
func (c *PhillyComparison) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	c.Static.rows(w)
	fmt.Fprintln(w)
	c.Elastic.rows(w)
	fmt.Fprintf(w, "\nelastic over static: %.3f\n", c.Ratio)
	for _, l := range c.Longer {
		fmt.Fprintf(w, "%s queues %.1f s instead of %.1f s: %s\n", l.Name, l.Elastic, l.Static, l.Why)
	}
	return flush(w)
}

func flush(w *tabwriter.Writer) error {
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
