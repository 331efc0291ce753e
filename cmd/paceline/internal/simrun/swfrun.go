package simrun

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

const (
	processorMilli = 1000
	// leastRun is the run time below which a slowdown counts as one of this: work of a second that waits for ten is not ten times worse off.
	leastRun = 10 * time.Second
)

// SWFOptions say what to run of a workload in the Standard Workload Format.
type SWFOptions struct {
	Jobs       []SWFJob
	Processors int
	Queue      respool.QueuePolicy
	Starts     []int // of the sequences, as indexes of Jobs
	Length     int   // of each; 0: to the end
	Seed       uint64
}

// SWFReport is what the runs of all sequences found. Equal options make equal reports.
type SWFReport struct {
	Processors int    `json:"processors"`
	Order      string `json:"order"`
	Backfill   string `json:"backfill"`
	Candidates string `json:"candidates"`
	Jobs       int    `json:"jobs"`
	Tasks      int    `json:"tasks"`
	// Slowdown is the mean over the sequences of the mean over their jobs of (wait + run time) / max(run time, 10 s), at least 1.
	Slowdown    float64       `json:"mean_bounded_slowdown"`
	Wait        float64       `json:"mean_wait_seconds"`
	Utilisation float64       `json:"utilisation_percent"`
	Steps       int           `json:"steps"`
	Sequences   []SWFSequence `json:"sequences"`
	// Estimates are the errors of the starts foretold at submission, by basis.
	Estimates []estimateError `json:"estimates"`

	estimates  estimates
	seconds    float64
	placements uint64
}

// SWFSequence is what one of them found.
type SWFSequence struct {
	Start       int     `json:"start"`
	Jobs        int     `json:"jobs"`
	Slowdown    float64 `json:"mean_bounded_slowdown"`
	MaxSlowdown float64 `json:"max_bounded_slowdown"`
	Wait        float64 `json:"mean_wait_seconds"`
	MaxWait     float64 `json:"max_wait_seconds"`
	// Utilisation is of all processors, from the first submission to the last end.
	Utilisation float64 `json:"utilisation_percent"`
	Seconds     float64 `json:"simulated_seconds"`
}

// RunSWF runs each sequence by itself on an empty machine: a host per processor, a job a gang of one-processor tasks, all in one pool that
// is entitled to everything.
func RunSWF(ctx context.Context, o SWFOptions) (*SWFReport, error) {
	if o.Processors < 1 || o.Processors > maxProcessors {
		return nil, fmt.Errorf("%d processors: give a machine 1 to %d", o.Processors, maxProcessors)
	}
	q := o.Queue.WithDefaults()
	r := &SWFReport{Processors: o.Processors, Order: q.Order.String(), Backfill: q.Backfill.String(), Candidates: q.Candidates.String()}
	for _, start := range o.Starts {
		jobs := o.Jobs[start:]
		if o.Length > 0 {
			jobs = jobs[:o.Length]
		}
		s, err := o.sequence(ctx, jobs)
		if err != nil {
			return nil, fmt.Errorf("the sequence from job %d on: %w", start, err)
		}
		r.add(start, s)
	}
	n := float64(len(r.Sequences))
	r.Slowdown, r.Wait, r.Utilisation = round(r.Slowdown/n), round(r.Wait/n), round(r.Utilisation/n)
	r.Estimates = r.estimates.report()
	return r, nil
}

// sequence is one run.
type sequence struct {
	virtual
	jobs    []SWFJob
	started []int64 // by job; 0: not yet
	told    []foretold
	tasks   int
	ended   int
	next    int // job to be submitted
}

func swfHosts(processors int) []driver.Host {
	hosts := make([]driver.Host, processors)
	for i := range hosts {
		hosts[i] = driver.Host{Name: fmt.Sprintf("processor-%d", i), Ready: true, Capacity: map[string]int64{"cpu_milli": processorMilli}}
	}
	return hosts
}

func (o *SWFOptions) sequence(ctx context.Context, jobs []SWFJob) (*sequence, error) {
	s := &sequence{jobs: jobs, started: make([]int64, len(jobs)), told: make([]foretold, len(jobs))}
	for i := range jobs {
		s.tasks += jobs[i].Processors
		if jobs[i].Processors > o.Processors {
			return nil, fmt.Errorf("job %d of it takes %d processors and the machine has %d: raise --processors", i, jobs[i].Processors, o.Processors)
		}
	}
	if len(jobs) == 0 {
		return nil, errors.New("it has no job")
	}
	if err := s.start(s, scheduler.Config{Seed: o.Seed}, nil); err != nil {
		return nil, err
	}
	if _, err := s.addShard(ctx, 0, swfHosts(o.Processors)); err != nil {
		return nil, err
	}
	pool := respool.DefaultPool("simulation", s.now)
	s.ask(scheduler.ApplyPool{Path: "/" + pool.Name, Pool: respool.Pool{
		Kind: pool.Kind, ReserveRest: pool.ReserveRest, Share: pool.Share, Queue: o.Queue,
	}})
	if err := s.settle(); err != nil {
		return nil, err
	}
	return s, s.run(ctx)
}

func (s *sequence) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err //nolint:wrapcheck // the caller's own
		}
		came := s.next
		for ; s.next < len(s.jobs) && s.submitted(s.next) <= s.now; s.next++ {
			s.ask(scheduler.SubmitJob{ID: swfJobID(s.next), Spec: s.jobs[s.next].spec(fmt.Sprintf("job-%d", s.next), respool.DefaultID)})
		}
		if err := s.settle(); err != nil {
			return err
		}
		for ; came < s.next; came++ {
			s.told[came].best, s.told[came].pace = s.state.Reader().EstimateStart(swfJobID(came))
		}
		if s.ended == s.tasks {
			return nil
		}
		at := s.virtual.next()
		if s.next < len(s.jobs) {
			at = min(at, s.submitted(s.next))
		}
		if at == math.MaxInt64 {
			return fmt.Errorf("%d tasks of %d wait for ever: this is a fault of the scheduler", s.tasks-s.ended, s.tasks)
		}
		s.now = max(s.now, at)
	}
}

// swfJobID has a job's number in its last bytes.
func swfJobID(n int) workload.JobID {
	id := workload.JobID{0: 'j'}
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

// submitted is when a job comes, in the cell's time.
func (s *sequence) submitted(job int) int64 {
	return int64(origin + s.jobs[job].Submit - s.jobs[0].Submit)
}

func (s *sequence) launched(l *driver.Launch) {
	if job := binary.BigEndian.Uint32(l.Run.Job[12:]); s.started[job] == 0 {
		s.started[job] = s.now
	}
}

func (s *sequence) heard(r shard.Reply) {
	if st, ok := r.(shard.RunStatus); ok && st.Status.State.Traits().Terminal {
		s.ended++
		if st.Status.State != workload.RunSucceeded {
			s.fail(fmt.Errorf("run %s ended as %v: hosts and tasks do not fail here", st.Status.Run, st.Status.State))
		}
	}
}

// add sums a sequence up.
func (r *SWFReport) add(start int, s *sequence) {
	x := SWFSequence{Start: start, Jobs: len(s.jobs)}
	work, last := time.Duration(0), int64(0)
	for i := range s.jobs {
		j := &s.jobs[i]
		wait := time.Duration(s.started[i] - s.submitted(i))
		slowdown := max(1, float64(wait+j.Run)/float64(max(j.Run, leastRun)))
		x.Slowdown += slowdown
		x.Wait += wait.Seconds()
		x.MaxSlowdown, x.MaxWait = max(x.MaxSlowdown, slowdown), max(x.MaxWait, wait.Seconds())
		if wait > 0 {
			r.estimates.add(&s.told[i], s.submitted(i), s.started[i])
		}
		work += j.Run * time.Duration(j.Processors)
		last = max(last, s.started[i]+int64(j.Run))
	}
	n := float64(len(s.jobs))
	x.Slowdown, x.Wait, x.MaxSlowdown = x.Slowdown/n, x.Wait/n, round(x.MaxSlowdown)
	x.Seconds = time.Duration(last - int64(origin)).Seconds()
	x.Utilisation = 100 * work.Seconds() / (x.Seconds * float64(r.Processors))
	r.Slowdown += x.Slowdown
	r.Wait += x.Wait
	r.Utilisation += x.Utilisation
	x.Slowdown, x.Wait, x.Utilisation = round(x.Slowdown), round(x.Wait), round(x.Utilisation)
	r.Jobs += x.Jobs
	r.Tasks += s.tasks
	r.Steps += s.steps
	r.seconds += x.Seconds
	r.placements += s.shards[0].machine.Stats().Placed
	r.Sequences = append(r.Sequences, x)
}

// WriteTable writes a report for people.
func (r *SWFReport) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, back-fill %s by %s: %d jobs of %d tasks on %d processors\n\n", r.Order, r.Backfill, r.Candidates, r.Jobs, r.Tasks, r.Processors)
	fmt.Fprintln(w, "FROM JOB\tJOBS\tBOUNDED SLOWDOWN\tMAX\tWAIT s\tMAX\tUTILISATION %")
	for i := range r.Sequences {
		s := &r.Sequences[i]
		fmt.Fprintf(w, "%d\t%d\t%.2f\t%.2f\t%.0f\t%.0f\t%.2f\n", s.Start, s.Jobs, s.Slowdown, s.MaxSlowdown, s.Wait, s.MaxWait, s.Utilisation)
	}
	fmt.Fprintf(w, "mean\t\t%.2f\t\t%.0f\t\t%.2f\n", r.Slowdown, r.Wait, r.Utilisation)
	writeEstimates(w, r.Estimates)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
