package simrun

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// Bounds of a workload in the Standard Workload Format.
const (
	maxSWFJobs    = 1 << 20
	maxSWFSeconds = int64(10 * 365 * 24 * 3600)
	// maxProcessors bounds the machine: a gang of all of it must be one that the scheduler takes.
	maxProcessors = scheduler.MaxGang
)

// swfFields is how many fields a line of the format has.
const swfFields = 18

// SWFJob is one job of a workload.
type SWFJob struct {
	Submit     time.Duration // on the workload's clock
	Run        time.Duration // at least a second
	Estimate   time.Duration // what its user asked for; as long as Run where the workload does not say
	Processors int
}

// ReadSWF reads a workload in the Standard Workload Format, version 2: one job a line, 18 fields separated by spaces, comments behind ';'.
// Of the fields it takes the submit time (2), the run time (4), the processors used (5) or, where that is not known, asked for (8), and the
// time asked for (9). Jobs that never ran are left out. name is for messages.
func ReadSWF(in io.Reader, name string) ([]SWFJob, error) {
	var jobs []SWFJob
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), ";")
		if strings.TrimSpace(text) == "" {
			continue
		}
		l := swfLine{at: fmt.Sprintf("%s:%d", name, n), fields: strings.Fields(text)}
		j, ran := l.job()
		switch {
		case l.err != nil:
			return nil, l.err
		case !ran:
			continue
		case len(jobs) > 0 && j.Submit < jobs[len(jobs)-1].Submit:
			return nil, fmt.Errorf("%s: field 2: jobs must be in the order of their submission", l.at)
		case len(jobs) == maxSWFJobs:
			return nil, fmt.Errorf("%s: there are more than %d jobs", l.at, maxSWFJobs)
		}
		jobs = append(jobs, j)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return jobs, nil
}

// swfLine is a line being read. The first failure stays.
type swfLine struct {
	at     string
	fields []string
	err    error
}

func (l *swfLine) job() (j SWFJob, ran bool) {
	if len(l.fields) != swfFields {
		l.err = fmt.Errorf("%s: %d fields, a line has %d", l.at, len(l.fields), swfFields)
		return j, false
	}
	submit, run, estimate := l.number(2, maxSWFSeconds), l.number(4, maxSWFSeconds), l.number(9, maxSWFSeconds)
	processors := l.number(5, math.MaxInt32)
	if processors <= 0 {
		processors = l.number(8, math.MaxInt32)
	}
	if run < 0 || processors <= 0 {
		return j, false
	}
	if submit < 0 && l.err == nil {
		l.err = fmt.Errorf("%s: field 2: a job must have a submit time", l.at)
	}
	run = max(run, 1)
	if estimate <= 0 {
		estimate = run
	}
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	return SWFJob{Submit: seconds(submit), Run: seconds(run), Estimate: seconds(estimate), Processors: int(processors)}, true
}

// number reads a field, counted from 1; -1 stands for what is not known. Some writers give seconds with a fraction, which is cut off.
func (l *swfLine) number(field int, most int64) int64 {
	v, err := strconv.ParseFloat(l.fields[field-1], 64)
	if (err != nil || !(v >= -1 && v <= float64(most))) && l.err == nil {
		l.err = fmt.Errorf("%s: field %d: %.40q must be a number from 0 to %d, or -1 for not known", l.at, field, l.fields[field-1], most)
	}
	return int64(v)
}

// publishedStarts are the jobs at which the ten sequences begin that figures on the first Lublin workload are published for, counted from 0 in
// the order of the file. They were drawn by the evaluation of RLScheduler (SC'20).
var publishedStarts = []int{1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085}

// SequenceLength is how many jobs the published sequences have.
const SequenceLength = 1024

// sequenceStarts reads "all", "published", "every:N" or a list of starts.
func sequenceStarts(text string, jobs, length int) ([]int, error) {
	var starts []int
	switch step, every := strings.CutPrefix(text, "every:"); {
	case text == "all":
		return []int{0}, nil
	case text == "published":
		starts = publishedStarts
	case every:
		n, err := strconv.Atoi(step)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: give every: a number of jobs, such as every:500", text)
		}
		for at := 0; at+length <= jobs; at += n {
			starts = append(starts, at)
		}
	default:
		for field := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(field)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("%q: choose published, all, every:N, or list the jobs at which sequences start, such as 0,1000", text)
			}
			starts = append(starts, n)
		}
	}
	for _, at := range starts {
		if at+length > jobs {
			return nil, fmt.Errorf("a sequence of %d jobs from job %d on goes beyond the %d of the file", length, at, jobs)
		}
	}
	if len(starts) == 0 || len(starts) > maxSequences {
		return nil, fmt.Errorf("%d sequences: there must be 1 to %d", len(starts), maxSequences)
	}
	return starts, nil
}

const maxSequences = 1000

// spec is the job as a rigid gang.
func (j *SWFJob) spec(name string, pool workload.PoolID) *workload.JobSpec {
	spec := &workload.JobSpec{
		Name: name, Pool: pool, Kind: workload.Batch, Instances: uint32(j.Processors), Preemptible: true, RunTime: j.Estimate,
		Placement: workload.Placement{Strategy: workload.StrategyPack},
	}
	if j.Processors > 1 {
		spec.Gang = &workload.GangSpec{}
	}
	spec.Template.Needs[resource.CPU] = processorMilli
	spec.Template.Simulation.Duration = j.Run
	return spec
}
