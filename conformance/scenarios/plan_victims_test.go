package scenarios

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// foretold reads whom a plan names, and how many runs it says would go.
func foretold(plan string) (runs int, names []string) {
	for line := range strings.SplitSeq(plan, "\n") {
		if name, _, victim := strings.Cut(line, " on "); victim && strings.HasPrefix(line, "  ") {
			names = append(names, strings.TrimSpace(name))
		} else if _, after, some := strings.Cut(line, " if "); some {
			_, _ = fmt.Sscanf(after, "%d made room", &runs)
		}
	}
	return runs, names
}

// madeRoomFor lists whose runs made room for a job since some change, at the first time when any did.
func (w *world) madeRoomFor(name string, since int) []string {
	seen := map[string]bool{}
	at := int64(0)
	for _, c := range w.changes[since:] {
		if len(seen) > 0 && c.At != at {
			break
		}
		if at = c.At; c.Kind == scheduler.ChangeTask && c.Reason == workload.ReasonPreempted && strings.HasPrefix(c.Message, "preempted for job "+name+" of ") {
			seen[fmt.Sprintf("%s/%d", c.Name, c.Run.Instance)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// foretelling is what came of one plan.
type foretelling struct {
	wrong         string // empty: nothing
	inside, whole int
}

// foretellings plays cells in which one plan is asked for when they are at rest, and then the job submitted.
func foretellings(t *testing.T) *rapid.Generator[foretelling] {
	t.Helper()
	return rapid.Custom(func(rt *rapid.T) (f foretelling) {
		w := newWorld(t)
		family(rt, w, true)
		w.block("advance 15m")
		job := fmt.Sprintf("p pool=%s owner=%s n=%d cpu=%s priority=%d%s", rapid.SampledFrom([]string{"/a", "/b"}).Draw(rt, "of"),
			rapid.SampledFrom([]string{"ann", "bob"}).Draw(rt, "by"), rapid.IntRange(1, 5).Draw(rt, "planned"),
			rapid.SampledFrom([]string{"100", "250", "500"}).Draw(rt, "each"), rapid.IntRange(2, 6).Draw(rt, "rank"),
			rapid.SampledFrom([]string{"", "", " gang", " gang min=1", " controller", " pinned"}).Draw(rt, "shape"))
		plan := w.block("plan " + job)
		runs, names := foretold(plan)
		before := w.showJobs() + w.showPools() + w.showHosts()
		since := len(w.changes)
		w.block("run " + job)
		w.block("advance 1400ms")
		went := w.madeRoomFor("p", since)
		var checked, admitted int
		_, after, planned := strings.Cut(plan, ", ")
		if _, err := fmt.Sscanf(after, "checked %d, admitted %d", &checked, &admitted); !planned || err != nil {
			return f // it is refused
		}
		if admitted > 0 && admitted < checked {
			return f
		}
		first := slices.Clone(names[:min(len(went), len(names))])
		slices.Sort(first)
		if runs > len(names) && len(went) > len(names) { // not all of them are named
			went = slices.DeleteFunc(went, func(one string) bool { return !slices.Contains(names, one) })
		}
		if !slices.Equal(first, went) || len(names) > 0 && len(went) == 0 {
			f.wrong = fmt.Sprintf("%s\nis told\n%s\nand %v made room:\n%s", job, plan, went, before)
		}
		if runs == len(went) {
			f.whole = runs
		}
		f.inside = strings.Count(plan, "its priority")
		return f
	})
}

// TestPlansForetellVictims has cells at rest asked for a plan, and submits the job: those go first whom the plan has named
// first, and nobody else. Where room is made in several steps there is a hold-off before each, and others may come between: the rest is what would
// go if nothing changed. So it is with a job that the pool admits a part of. The cells are always the same ones: of many thousands there is one in
// which something else of the cell moves just then, such as lower priority that takes room between the start of an elastic gang and those who join it.
func TestPlansForetellVictims(t *testing.T) {
	t.Parallel()
	inside, whole := 0, 0
	cells := 12 * rounds()
	for seed := range cells {
		f := foretellings(t).Example(seed)
		if f.wrong != "" {
			t.Errorf("cell %d: %s", seed, f.wrong)
		}
		inside, whole = inside+f.inside, whole+f.whole
	}
	if inside < cells/4 || whole < cells/4 {
		t.Errorf("%d runs were foretold to make room in a pool, %d in one step: the pools are too peaceful", inside, whole)
	}
}
