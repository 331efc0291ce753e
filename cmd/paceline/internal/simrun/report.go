package simrun

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// Report is what a run found. It holds nothing of the machine that ran it, so equal runs make equal reports.
type Report struct {
	Policy     string     `json:"policy"`
	FreeTier   string     `json:"free_tier"`
	Victims    string     `json:"victims"`
	Seed       uint64     `json:"seed"`
	Hosts      int        `json:"hosts"`
	Shards     int        `json:"shards"`
	Tasks      int        `json:"tasks"`
	Jobs       int        `json:"jobs"`
	Pools      int        `json:"pools"`
	PerUser    bool       `json:"pools_per_user"`
	Seconds    float64    `json:"simulated_seconds"`
	Overcommit Overcommit `json:"overcommit"`
	Tiers      []Tier     `json:"tiers"`
	// Utilisation is what live runs ask for, in percent of what the hosts have before over-commitment.
	Utilisation Utilisation `json:"utilisation_percent"`
	// NotPlaced says why the tasks that wait at the end do.
	NotPlaced []NotPlaced `json:"not_placed"`
	// Unexplained counts tasks that neither were placed nor are told why not. It is 0, or the scheduler is at fault.
	Unexplained int    `json:"unexplained"`
	Placements  uint64 `json:"placements"`
	Refusals    uint64 `json:"refusals"`
	Steps       int    `json:"steps"`
	// Evictions are runs that were ended to make room, of all tiers, and EvictionsPerTask the same by tasks that ever got a host.
	Evictions        int     `json:"evictions"`
	EvictionsPerTask float64 `json:"evictions_per_placed_task"`
	Writes           int     `json:"records_written"`
	HostEvents       int     `json:"host_events"`

	samples []sample
}

// Overcommit is what hosts offered as a multiple of what they have.
type Overcommit struct {
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
}

// Tier is one level of priorities.
type Tier struct {
	Name  string `json:"tier"`
	Users int    `json:"users"`
	// AtStart are the tasks that were there before the trace, Arrivals those that came after.
	AtStart  Wait `json:"at_start"`
	Arrivals Wait `json:"arrivals"`
	Ended    int  `json:"ended"`
	Lost     int  `json:"lost_with_host"`
	Evicted  int  `json:"evicted"` // runs that were ended to make room
	// Wasted is the CPU time that these had run for.
	Wasted  float64 `json:"wasted_cpu_hours"`
	Waiting int     `json:"waiting_at_end"`
}

// Wait is the time from submission to the first placement, in virtual seconds by nearest rank. A task that was not placed counts with
// all the time that it has waited.
type Wait struct {
	Tasks  int     `json:"tasks"`
	Placed int     `json:"placed"`
	P50    float64 `json:"p50_seconds"`
	P90    float64 `json:"p90_seconds"`
	P99    float64 `json:"p99_seconds"`
	Max    float64 `json:"max_seconds"`
}

// Utilisation is one figure for each kind that the trace speaks of.
type Utilisation struct {
	CPU    Level `json:"cpu"`
	Memory Level `json:"memory"`
}

// Level sums up one figure over the samples.
type Level struct {
	Mean float64 `json:"mean"`
	Peak float64 `json:"peak"`
	End  float64 `json:"end"`
}

// NotPlaced counts tasks that wait for one reason.
type NotPlaced struct {
	Tier   string `json:"tier"`
	Reason string `json:"reason"`
	// Scarce is the resource that the pool lacks, or why most hosts refused.
	Scarce string `json:"scarce,omitempty"`
	Tasks  int    `json:"tasks"`
	// Example is what the scheduler says of one of the jobs.
	Example string `json:"example"`
}

func (c *cell) report() (*Report, error) {
	o := c.options
	r := &Report{
		Policy: string(o.Strategy), FreeTier: o.freeTier(), Victims: o.Victims, Seed: o.Seed, Hosts: len(o.Hosts), Shards: o.Shards, Tasks: len(o.Tasks), Jobs: len(c.work.jobs),
		Pools: len(c.work.pools), PerUser: !c.work.flat, Seconds: round(time.Duration(c.end - int64(origin)).Seconds()),
		Overcommit: Overcommit{CPU: o.OvercommitCPU, Memory: o.OvercommitMemory},
		Steps:      c.steps, Writes: c.writes, HostEvents: c.hostEvents, NotPlaced: []NotPlaced{}, samples: c.samples,
	}
	for _, sh := range c.shards {
		stats := sh.machine.Stats()
		r.Placements += stats.Placed
		r.Refusals += stats.Refused
	}
	r.Utilisation.CPU = c.level(resource.CPU, o.OvercommitCPU)
	r.Utilisation.Memory = c.level(resource.Memory, o.OvercommitMemory)
	r.Tiers = c.tiers()
	r.countEvictions()
	if err := c.explain(r); err != nil {
		return nil, err
	}
	return r, nil
}

// countEvictions sums over the tiers, to the ten-thousandth.
func (r *Report) countEvictions() {
	placed := 0
	for i := range r.Tiers {
		r.Evictions += r.Tiers[i].Evicted
		placed += r.Tiers[i].AtStart.Placed + r.Tiers[i].Arrivals.Placed
	}
	r.EvictionsPerTask = math.Round(10_000*float64(r.Evictions)/float64(max(placed, 1))) / 10_000
}

func (c *cell) level(k resource.Kind, overcommit float64) Level {
	var l Level
	for i := range c.samples {
		l.End = c.samples[i].percentOf(c.samples[i].used[k], k, overcommit)
		l.Mean += l.End / float64(len(c.samples))
		l.Peak = max(l.Peak, l.End)
	}
	return Level{Mean: round(l.Mean), Peak: round(l.Peak), End: round(l.End)}
}

func (c *cell) tiers() []Tier {
	var atStart, later [numTiers]waits
	for i := range c.options.Tasks {
		w := &later
		if c.options.Tasks[i].Submit <= c.options.startMicros() {
			w = &atStart
		}
		w[tierOf(c.options.Tasks[i].Priority)].add(c.arrived[i], c.placedAt[i], c.end)
	}
	var list []Tier
	for t := range numTiers {
		list = append(list, Tier{
			Name: t.String(), Users: c.work.users[t], AtStart: atStart[t].summary(), Arrivals: later[t].summary(), Ended: c.ended[t],
			Lost: c.lost[t], Evicted: c.evicted[t], Wasted: round(c.wasted[t] / 3600), Waiting: c.waiting[t],
		})
	}
	return list
}

// explain asks the scheduler about every job that has not got everywhere.
func (c *cell) explain(r *Report) error {
	reader := c.state.Reader()
	reasons := map[NotPlaced]*NotPlaced{}
	for i := range c.work.jobs {
		j := &c.work.jobs[i]
		view, ok := reader.Job(j.id)
		if !ok {
			return fmt.Errorf("the cell has forgotten job %s", j.spec.Name)
		}
		waiting := int(view.ByState[workload.InstancePending] + view.ByState[workload.InstanceAdmitted] + view.ByState[workload.InstanceBackingOff])
		unplaced := 0
		for _, task := range j.tasks {
			if c.placedAt[task] == 0 {
				unplaced++
			}
		}
		if waiting == 0 && unplaced == 0 {
			continue
		}
		e, _ := reader.Explain(j.id)
		explained := 0
		for n := range e.Reasons {
			p := &e.Reasons[n]
			explained += p.Instances
			key := NotPlaced{Tier: j.tier.String(), Reason: p.Kind.String(), Scarce: scarce(p)}
			if reasons[key] == nil {
				first := key
				first.Example = fmt.Sprintf("job %s: %s", j.spec.Name, p.Message)
				reasons[key] = &first
			}
			reasons[key].Tasks += p.Instances
		}
		r.Unexplained += max(0, max(waiting, unplaced)-explained)
	}
	for _, n := range reasons {
		r.NotPlaced = append(r.NotPlaced, *n)
	}
	slices.SortFunc(r.NotPlaced, func(a, b NotPlaced) int {
		return cmp.Or(cmp.Compare(slices.Index(tierNames[:], a.Tier), slices.Index(tierNames[:], b.Tier)), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Scarce, b.Scarce))
	})
	return nil
}

func scarce(p *scheduler.PendingReason) string {
	switch {
	case p.Hosts.Hosts > 0:
		return dominant(&p.Hosts).String()
	default:
		return p.Resource
	}
}

// round keeps three decimals: more would only report noise of the summing order.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// WriteTable writes a report for people.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s: %d tasks in %d jobs on %d hosts in %d shards, %v simulated, CPU over-committed by %v and memory by %v\n\n",
		r.Policy, r.Tasks, r.Jobs, r.Hosts, r.Shards, time.Duration(r.Seconds*float64(time.Second)), r.Overcommit.CPU, r.Overcommit.Memory)
	fmt.Fprintln(w, "TIER\tTASKS\tPLACED\tWAITED P50 s\tP90\tP99\tMAX")
	for i := range r.Tiers {
		t := &r.Tiers[i]
		for _, row := range []struct {
			name string
			wait Wait
		}{{"at start", t.AtStart}, {"arrivals", t.Arrivals}} {
			x := &row.wait
			fmt.Fprintf(w, "%s, %s\t%d\t%d\t%.3f\t%.3f\t%.3f\t%.3f\n", t.Name, row.name, x.Tasks, x.Placed, x.P50, x.P90, x.P99, x.Max)
		}
	}
	fmt.Fprintf(w, "\n%d runs made room, %.4f for each placed task (free tier by %s, victims %s)\n", r.Evictions, r.EvictionsPerTask, r.FreeTier, r.Victims)
	fmt.Fprintln(w, "\nREQUESTED, % OF CAPACITY\tMEAN\tPEAK\tEND")
	fmt.Fprintf(w, "cpu\t%.2f\t%.2f\t%.2f\n", r.Utilisation.CPU.Mean, r.Utilisation.CPU.Peak, r.Utilisation.CPU.End)
	fmt.Fprintf(w, "memory\t%.2f\t%.2f\t%.2f\n", r.Utilisation.Memory.Mean, r.Utilisation.Memory.Peak, r.Utilisation.Memory.End)
	if len(r.NotPlaced) > 0 {
		fmt.Fprintln(w, "\nWAITING AT THE END\tREASON\tSCARCE\tTASKS")
	}
	for _, n := range r.NotPlaced {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", n.Tier, n.Reason, n.Scarce, n.Tasks)
	}
	if r.Unexplained > 0 {
		fmt.Fprintf(w, "\n%d tasks are neither placed nor explained\n", r.Unexplained)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
