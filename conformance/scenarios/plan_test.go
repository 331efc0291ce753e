package scenarios

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/scheduler"
)

// TestPlansChangeNothing plays the same story to two cells, one of which is asked for plans all the time. No plan leaves a record, and both
// cells, with what their shards decide, end up alike.
func TestPlansChangeNothing(t *testing.T) {
	foretold := 0
	rapid.Check(t, func(rt *rapid.T) {
		asked, quiet := newWorld(t), newWorld(t)
		for _, w := range []*world{asked, quiet} {
			w.fatal = func(m string) { rt.Fatal(m) }
		}
		for _, line := range append(rivalry(rt, false), "advance 10m") {
			asked.block(line)
			quiet.block(line)
			if !strings.HasPrefix(line, "run") && !strings.HasPrefix(line, "advance") {
				continue
			}
			before := asked.image.Sequence
			plan := asked.block(fmt.Sprintf("plan p pool=%s n=%d cpu=%s%s", rapid.SampledFrom([]string{"/a", "/b", "/default"}).Draw(rt, "of"),
				rapid.IntRange(1, 9).Draw(rt, "planned"), rapid.SampledFrom([]string{"100", "250", "700", "1000"}).Draw(rt, "each"),
				rapid.SampledFrom([]string{"", " gang", " gang min=2", " groups=g:0-1,h:2-4", " gang topology=rack!", " big=0:900"}).Draw(rt, "shape")))
			foretold += strings.Count(plan, "made room")
			if after := asked.image.Sequence; after != before {
				rt.Fatalf("a plan wrote %d groups:\n%s", after-before, plan)
			}
			quiet.do(scheduler.NameResources{}) // a Step more, as a plan is
			if is, want := asked.portrait(), quiet.portrait(); is != want {
				rt.Fatalf("after %s\n%s\nand a plan the cell is\n%s\nand without it\n%s", line, plan, is, want)
			}
		}
	})
	if foretold < 20 {
		t.Errorf("%d plans foretold that others make room: the cells are too peaceful", foretold)
	}
}

// portrait is all that is seen of a cell.
func (w *world) portrait() string {
	var out strings.Builder
	out.WriteString(w.showJobs() + w.showPools() + w.showHosts())
	jobs, _ := w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for _, j := range jobs {
		out.WriteString(w.showTasks(j.Spec.Name) + w.showExplanation(j.Spec.Name))
	}
	for _, name := range w.clusterNames() {
		fmt.Fprintf(&out, "%+v\n", w.clusters[name].machine.Stats())
	}
	return out.String()
}
