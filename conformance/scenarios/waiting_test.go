package scenarios

import (
	"fmt"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// leaves are the pools that may hold jobs.
func (w *world) leaves(root string) (ids []workload.PoolID) {
	for _, p := range w.state.Reader().Pools(root) {
		if p.Path != "/" {
			ids = append(ids, p.Pool.ID)
		}
	}
	return ids
}

// checkWaiting holds what is told of pools as a whole against what every job tells by itself.
func (w *world) checkWaiting() {
	reader := w.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	want := map[string]int64{} // by pool and reason
	waiting := 0
	for _, j := range jobs {
		e, _ := reader.Explain(j.ID)
		for _, r := range e.Reasons {
			want[j.PoolPath+" "+r.Kind.String()] += int64(r.Instances)
		}
		if len(e.Reasons) > 0 {
			waiting++
		}
	}
	got := map[string]int64{}
	all := reader.ExplainPools(w.leaves("/"), scheduler.MaxWaitRows)
	total := int64(0)
	for i := range all.Rows {
		row := &all.Rows[i]
		got[row.Pool+" "+row.Kind.String()] += row.Tasks
		total += row.Tasks
		if example, ok := reader.Job(row.Example); !ok || example.PoolPath != row.Pool || example.Spec.Name != row.Name || row.Jobs == 0 {
			w.fatal(fmt.Sprintf("the example of %+v is %+v", row, example))
		}
		if row.Since == 0 || row.Since > w.now {
			w.fatal(fmt.Sprintf("the oldest of %+v waits since %d, and it is %d", row, row.Since, w.now))
		}
	}
	if all.MoreRows > 0 { // there are more than are listed; they are checked as sums
		got, total = map[string]int64{}, total+all.MoreTasks
	}
	byReason, wantByReason := map[string]int64{}, map[string]int64{}
	for key, n := range want {
		if all.MoreRows == 0 && got[key] != n {
			w.fatal(fmt.Sprintf("%s: %d tasks by their jobs, %d by their classes: %+v", key, n, got[key], all.Rows))
		}
		wantByReason[key[strings.IndexByte(key, ' ')+1:]] += n
	}
	sum := int64(0)
	for _, r := range all.Reasons {
		byReason[r.Kind.String()] = r.Tasks
		sum += r.Tasks
		if wantByReason[r.Kind.String()] != r.Tasks {
			w.fatal(fmt.Sprintf("%s: %d tasks by their jobs, %d in all: %+v", r.Kind, wantByReason[r.Kind.String()], r.Tasks, all.Reasons))
		}
	}
	if all.Jobs != waiting || all.Tasks != sum || total != sum {
		w.fatal(fmt.Sprintf("%d jobs wait, %d are counted; %d tasks by reason, %d by row, %d in all", waiting, all.Jobs, sum, total, all.Tasks))
	}
	for _, pools := range []int{1, 50} {
		metric := map[string]int64{}
		for _, top := range reader.WaitingByReason(pools) {
			for kind, n := range top.Tasks {
				if n > 0 {
					metric[scheduler.PendingKind(kind).String()] += n
				}
			}
		}
		for kind, n := range byReason {
			if metric[kind] != n {
				w.fatal(fmt.Sprintf("%s: %d tasks are explained and %d are measured with %d pools", kind, n, metric[kind], pools))
			}
		}
	}
}

// waiting prints why tasks of the pools at and below a path wait.
func (w *world) waiting(path string, rows int) string {
	e := w.state.Reader().ExplainPools(w.leaves(path), rows)
	var out strings.Builder
	fmt.Fprintf(&out, "%d tasks of %d jobs wait\n", e.Tasks, e.Jobs)
	for _, r := range e.Reasons {
		fmt.Fprintf(&out, "%s %d tasks, %d jobs, %d classes, %v\n", r.Kind, r.Tasks, r.Jobs, r.Classes, time.Duration(w.now-r.Since).Round(time.Second))
	}
	for i := range e.Rows {
		r := &e.Rows[i]
		fmt.Fprintf(&out, "  %s %s: %d tasks, %d jobs, such as %s for %v: cpu %d", r.Pool, r.Kind, r.Tasks, r.Jobs, r.Name,
			time.Duration(w.now-r.Since).Round(time.Second), r.Class.Needs[resource.CPU])
		for _, restriction := range r.Class.Restrictions {
			out.WriteString(", " + restriction)
		}
		if r.Class.Gang > 0 {
			fmt.Fprintf(&out, ", gang of %d, at least %d", r.Class.Gang, r.Class.GangMin)
		}
		out.WriteString("\n")
	}
	if e.MoreRows > 0 {
		fmt.Fprintf(&out, "  and %d more with %d tasks\n", e.MoreRows, e.MoreTasks)
	}
	for i := range e.Heads {
		h := &e.Heads[i]
		fmt.Fprintf(&out, "first of %d in %s: %s, %s %d: %s\n", h.Queued, h.Pool, h.Name, h.Reason.Kind, h.Reason.Instances, h.Reason.Message)
	}
	return out.String()
}
