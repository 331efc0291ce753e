package scenarios

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// rivals submits work of several pools and priorities to a cell that is too small for it. Nothing ends by itself.
func rivals(rt *rapid.T, w *world, uniform bool) {
	for _, line := range rivalry(rt, uniform) {
		w.block(line)
	}
}

func rivalry(rt *rapid.T, uniform bool) (lines []string) {
	pick := func(what string, of ...string) string { return rapid.SampledFrom(of).Draw(rt, what) }
	lines = append(lines, "cluster c a=1000 b=1000 d=1000")
	pools := []string{"/a", "/b", "/d"}
	for _, p := range pools {
		lines = append(lines, fmt.Sprintf("pool %s cpu=%d share=%d", p, 250*rapid.IntRange(0, 4).Draw(rt, "reservation"), rapid.IntRange(1, 3).Draw(rt, "share")))
	}
	for n := range rapid.IntRange(2, 7).Draw(rt, "jobs") {
		line := fmt.Sprintf("run j%d pool=%s n=%d cpu=250 priority=%d", n, pick("pool", pools...), rapid.IntRange(1, 12).Draw(rt, "n"), rapid.IntRange(0, 3).Draw(rt, "priority"))
		if !uniform {
			line = fmt.Sprintf("run j%d pool=%s n=%d cpu=%s mem=0 priority=%d%s", n, pick("pool", pools...), rapid.IntRange(1, 6).Draw(rt, "n"),
				pick("cpu", "100", "250", "400", "700"), rapid.IntRange(0, 3).Draw(rt, "priority"),
				pick("kind", "", "", " gang", " gang", " pinned", " revocable", " kind=service preemptible unavailable=1"))
		}
		lines = append(lines, line, "advance "+pick("pause", "0s", "100ms", "3s", "40s"))
	}
	return lines
}

// preempted lists the ends of runs that made room, and checks that each was one that may.
func (w *world) preempted(rt *rapid.T) int {
	n := 0
	for _, c := range w.changes {
		if c.Kind != scheduler.ChangeTask || c.RunState != workload.RunPreempted {
			continue
		}
		job, there := w.state.Reader().Job(c.Job)
		if there && !job.Spec.Preemptible {
			rt.Fatalf("job %s may not be preempted, and was: %s", c.Name, c.Message)
		}
		if c.Reason == workload.ReasonPreempted && c.Message == "" {
			rt.Fatalf("job %s was preempted without a word", c.Name)
		}
		n++
	}
	return n
}

// TestPreemptionComesToRest plays contested cells until nothing should move any more: who made room once does not take it back in turn, and
// the number of runs lost is bounded by the work there is.
func TestPreemptionComesToRest(t *testing.T) {
	total := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.fatal = func(m string) { rt.Fatal(m) }
		uniform := rapid.Bool().Draw(rt, "uniform")
		rivals(rt, w, uniform)
		w.block("advance 10m")
		settled := w.preempted(rt)
		w.block("advance 30m")
		if n := w.preempted(rt); n != settled {
			rt.Fatalf("%d runs were preempted, and %d more in half an hour in which nothing was asked for:\n%s\n%s",
				settled, n-settled, w.showJobs(), w.showPools())
		}
		jobs, _ := w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
		instances := 0
		for _, j := range jobs {
			instances += int(j.Instances)
		}
		if bound := len(jobs) * instances; settled > bound {
			rt.Fatalf("%d preemptions with %d jobs of %d instances", settled, len(jobs), instances)
		}
		if uniform {
			checkConverged(rt, w)
		}
		total += settled
	})
	if total < 20 {
		t.Errorf("%d preemptions in all: the cells are too peaceful", total)
	}
}

// checkConverged wants, where all tasks are alike and fill hosts exactly, that every pool which waits has what it is entitled to.
func checkConverged(rt *rapid.T, w *world) {
	const task = 250
	for _, p := range w.state.Reader().Pools("/") {
		wants := min(p.Entitlement[resource.CPU], p.Demand[resource.CPU])
		if used := p.Usage[resource.CPU]; used+task <= wants {
			rt.Fatalf("pool %s uses %d and is entitled to %d that it wants:\n%s\n%s", p.Path, used, wants, w.showJobs(), w.showPools())
		}
	}
}
