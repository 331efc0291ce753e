package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestRandomHistories drives a cell through commands drawn at random, crashes among them. The checks of world hold after every step;
// then everything is mended, and all work must come to its end. A failure prints the commands as a scenario.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{rt: rt}
		h.w = newWorld(t)
		defer func() {
			if r := recover(); r != nil {
				rt.Fatalf("%v\nthe history:\n%s", r, strings.Join(h.lines, "\n"))
			}
		}()
		h.w.fatal = func(message string) { panic(message) }
		h.do("cluster c r1.a=1000:1000:2 r1.b=1000:1000 r2.c=2000:4000")
		h.do("cluster d x=3000:3000")
		if h.number("shards", 0, 1) > 0 {
			h.do("cluster e of=c r2.e=1000:1000 r3.e=1500:1500")
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			h.random()
		}
		h.mend()
	})
}

type history struct {
	rt    *rapid.T
	w     *world
	lines []string
	jobs  int
	hosts int
}

func (h *history) do(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	h.lines = append(h.lines, line)
	h.w.command(strings.Fields(line))
	h.w.checkClusters()
	h.w.checkCounts()
	h.w.checkGangs()
}

func (h *history) pick(what string, choices ...string) string {
	return rapid.SampledFrom(choices).Draw(h.rt, what)
}

func (h *history) number(what string, from, to int) int {
	return rapid.IntRange(from, to).Draw(h.rt, what)
}

func (h *history) random() {
	cluster := h.pick("cluster", h.w.clusterNames()...)
	switch h.number("op", 0, 24) {
	case 0, 1, 2, 3:
		h.submit()
	case 4, 5, 6:
		if job := h.anyJob(); job != "" {
			h.do("finish %s/%s exit=%d", job, h.pick("which", "0", "1", "2", "*"), h.number("exit", 0, 1))
		}
	case 7, 8:
		h.do("advance %dms", h.number("ms", 1, 20_000))
	case 9:
		h.do("crash lose=%d", h.number("lose", 0, 5))
	case 10:
		if job := h.anyJob(); job != "" {
			h.do("%s %s", h.pick("end", "stop", "delete"), job)
		}
	case 11:
		h.do("%s %s", h.pick("link", "disconnect", "reconnect"), cluster)
	case 12:
		h.do("%s %s", h.pick("mood", "mute", "unmute", "stubborn", "mortal"), cluster)
	case 13:
		if hosts := h.w.clusters[cluster].hosts; len(hosts) > 0 {
			h.do("lose-host %s %s", cluster, hosts[h.number("host", 0, len(hosts)-1)].Name)
		}
	case 14:
		h.hosts++
		h.do("host %s r%d.n%d=%d:1000", cluster, h.number("rack", 1, 3), h.hosts, h.number("cpu", 1, 3)*500)
	case 15:
		queue := h.pick("queue", "", " order=fair-user half-life=1m", " order=fair-user easy", " order=smallest-first easy patience=1m",
			" easy candidates=shortest-first", " order=shortest-first", " order=express easy candidates=fair-user patience=30s")
		if h.number("default", 0, 2) == 0 {
			h.do("pool /default rest%s", queue)
			return
		}
		h.do("pool /p%d cpu=%d share=%d%s%s", h.number("pool", 0, 2), h.number("reserved", 0, 3)*500, h.number("share", 0, 3),
			h.pick("bound", "", "", " static", " user=600", " user=1500", " controllers=40", " revocable=30"), queue)
	case 16:
		if h.number("delete", 0, 1) == 0 {
			h.do("delete-pool /p%d", h.number("pool", 0, 2))
			return
		}
		h.do("%s /p%d%s %s/p%d", h.pick("move", "move-pool", "move-pool", "plan-pools move-pool"), h.number("pool", 0, 2),
			h.pick("below", "", "", "/p3"), h.pick("parent", "", "/p0", "/p1", "/p2"), h.number("name", 0, 3))
	case 17:
		if hosts := h.w.clusters[cluster].hosts; len(hosts) > 0 {
			h.do("%s %s/%s", h.pick("drain", "drain", "undrain"), cluster, hosts[h.number("host", 0, len(hosts)-1)].Name)
		}
	default:
		h.seldom(cluster)
	}
}

// seldom draws what few histories of a real cell have in them.
func (h *history) seldom(cluster string) {
	switch h.number("seldom", 0, 7) {
	case 0:
		if job := h.anyJob(); job != "" {
			h.do("restart %s batch=%d", job, h.number("batch", 1, 8))
		}
	case 1:
		if job := h.anyJob(); job != "" {
			h.do("%s %s/%s", h.pick("health", "healthy", "healthy", "unhealthy"), job, h.pick("which", "0", "1", "*"))
		}
	case 2: // a name that was used before, perhaps by a job that has ended
		if h.jobs > 0 {
			h.run(h.number("again", 1, h.jobs))
		}
	case 3:
		h.do("plan p n=%d cpu=%d%s", h.number("n", 0, 5), h.number("cpu", 0, 9)*100, h.pick("flavour", "", " gang", " gang min=2", " groups=g:0-1,h:3-4", " gang topology=rack!", " on=d", " big=0:700"))
	case 4:
		h.do("%s %s", h.pick("shard", "reattach", "hang", "unhang"), cluster)
	case 5: // the disk is slow: what a later crash loses was never seen outside
		h.do("hold")
	case 6:
		h.do("commit")
	case 7: // ended jobs and hosts that left are forgotten, and so are idempotency keys
		h.do("advance %dm", h.number("minutes", 1, 90))
	}
}

func (h *history) submit() {
	pools := []string{"/default"}
	for _, p := range h.w.state.Reader().Pools("/") {
		if strings.HasPrefix(p.Path, "/p") {
			pools = append(pools, p.Path)
		}
	}
	if h.number("key", 0, 5) == 0 { // few keys, so that they meet again
		h.do("run k%d n=%d cpu=100 key=k%d", h.jobs, h.number("n", 1, 2), h.number("which", 0, 2))
		return
	}
	h.jobs++
	h.runIn(h.jobs, pools)
}

func (h *history) run(number int) { h.runIn(number, []string{"/default"}) }

func (h *history) runIn(number int, pools []string) {
	kind := h.pick("kind", "batch", "batch", "batch", "service", "daemon")
	line := fmt.Sprintf("run j%d kind=%s pool=%s n=%d cpu=%d mem=%d priority=%d retries=%d", number, kind,
		h.pick("pool", pools...), h.number("n", 1, 6), h.number("cpu", 0, 6)*100, h.number("mem", 0, 3)*100, h.number("priority", 0, 2), h.number("retries", 0, 3))
	if kind != "daemon" && h.number("gang", 0, 3) == 0 {
		line += h.pick("gang", " gang", fmt.Sprintf(" gang min=%d", h.number("min", 1, 3)), " groups=a:0-1", " groups=a:1-2,b:3-5:1") + h.pick("topology", "", "", " topology=rack!", " topology=rack", " topology=cluster!")
	} else if kind == "batch" && h.number("windowed", 0, 2) == 0 {
		line += fmt.Sprintf(" window=%d", h.number("window", 1, 3))
	}
	line += h.pick("flavour", "", "", "", " checked", " ports=2", " rack=r1", " on=d", " gpu=500", " gpu=1000", " deadline=30s", " big=0:700", " pinned",
		" controller", " revocable", " revocable on=d") + h.pick("owner", "", " owner=ann", " owner=bob") +
		h.pick("run time", "", " time=1s", " time=1m", " time=1h")
	h.do("%s", line)
}

func (h *history) anyJob() string {
	jobs, _ := h.w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	if len(jobs) == 0 {
		return ""
	}
	return jobs[h.number("job", 0, len(jobs)-1)].Spec.Name
}

// mend makes the clusters healthy and large and lets every batch job run out: all of them must end, and every service must run.
func (h *history) mend() {
	h.do("commit")
	for _, name := range h.w.clusterNames() {
		h.do("unhang %s", name)
		h.do("mortal %s", name)
		h.do("unmute %s", name)
		h.do("reconnect %s", name)
		for _, host := range slices.Clone(h.w.clusters[name].hosts) {
			h.do("undrain %s/%s", name, host.Name)
		}
		for _, rack := range []string{"r1", "r2", "r3", "x"} { // a gang may have to grow where it is
			h.do("host %s %s.new%s=100000:100000:16", name, rack, name)
		}
		c := h.w.clusters[name]
		for _, id := range c.order { // what was muted speaks at last
			if r := c.runs[id]; !r.acked && !r.status.State.Traits().Terminal {
				c.say(id, driver.Status{State: workload.RunRunning, Healthy: true})
			}
		}
	}
	h.w.settle()
	for round := range 60 {
		h.do("advance 30s")
		open := 0
		jobs, _ := h.w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
		for _, j := range jobs {
			switch {
			case j.State.Terminal(), h.mayWait(j):
			case j.Spec.Kind == workload.Batch || j.Goal != scheduler.GoalRun:
				open++
				h.do("finish %s:%s/*", j.PoolPath, j.Spec.Name)
			case j.Spec.Kind == workload.Service && (j.ByRun[workload.RunRunning] != j.Instances || j.Restart.Batch > 0):
				open++ // a daemon may wait for room on its host for ever
				h.do("healthy %s:%s/*", j.PoolPath, j.Spec.Name)
			}
		}
		if open == 0 {
			for _, name := range h.w.clusterNames() {
				if held := h.w.clusters[name].machine.Stats().Held; held > 0 {
					h.w.fatal(fmt.Sprintf("shard %s holds %d leases for nobody", name, held))
				}
			}
			return
		}
		if round == 59 {
			h.w.fatal(fmt.Sprintf("%d jobs do not come to their end:\n%s\n%s", open, h.w.showJobs(), h.explainAll()))
		}
	}
}

// mayWait excuses work that may not be preempted, or whose pool gets no more than a reservation that others use up.
func (h *history) mayWait(j scheduler.JobView) bool {
	if j.PoolPath == "/default" || j.Goal != scheduler.GoalRun {
		return false
	}
	e, _ := h.w.state.Reader().Explain(j.ID)
	return slices.Contains([]scheduler.PendingKind{
		scheduler.PendingReservation, scheduler.PendingEntitlement, scheduler.PendingQueue, scheduler.PendingNeverFits,
		scheduler.PendingUserLimit, scheduler.PendingControllerLimit, scheduler.PendingSlack,
	}, e.Dominant)
}

func (h *history) explainAll() string {
	var out strings.Builder
	jobs, _ := h.w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for _, j := range jobs {
		if !j.State.Terminal() {
			fmt.Fprintf(&out, "%s\n%s%s", j.Spec.Name, h.w.showExplanation(j.Spec.Name), h.w.showTasks(j.Spec.Name))
		}
	}
	return out.String()
}

// checkClusters holds the clusters against the cell: nothing over capacity, no instance twice, nothing alive that the cell gave up unless a
// kill is due.
func (w *world) checkClusters() {
	live := map[[2]any]workload.RunID{}
	for _, name := range w.clusterNames() {
		c := w.clusters[name]
		used := map[string]int64{}
		for _, id := range c.order {
			r := c.runs[id]
			if r.acked || r.status.State.Traits().Terminal || c.lost || c.stubborn {
				continue
			}
			key := [2]any{id.Job, id.Instance}
			if other, twice := live[key]; twice {
				w.fatal(fmt.Sprintf("instance %d of %s lives twice: %s and %s", id.Instance, id.Job, id, other))
			}
			live[key] = id
			if job, ok := w.state.Reader().Job(id.Job); ok {
				task, _ := w.state.Reader().Task(job.ID, id.Instance)
				used[r.status.Host] += task.Needs[0]
			}
		}
		for _, host := range c.hosts {
			if used[host.Name] > host.Capacity["cpu_milli"] {
				w.fatal(fmt.Sprintf("host %s/%s holds %d of %d", name, host.Name, used[host.Name], host.Capacity["cpu_milli"]))
			}
		}
	}
}

// checkGangs holds that a gang is there with as many as must be, or is being ended as a whole.
func (w *world) checkGangs() {
	reader := w.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	for _, j := range jobs {
		for _, g := range j.Spec.Gangs() {
			live, present, generation := 0, 0, uint32(0)
			for _, i := range g.All() {
				t, _ := reader.Task(j.ID, i)
				if t.RunState.Live() {
					if generation != 0 && generation != t.Generation {
						w.fatal(fmt.Sprintf("gang %s of %s lives in generations %d and %d", g.Name, j.Spec.Name, generation, t.Generation))
					}
					generation = t.Generation
				}
				ended := t.RunState == workload.RunKilling && (t.Reason == workload.ReasonGangFailed || t.Reason == workload.ReasonPreempted ||
					t.Reason == workload.ReasonRestartRequested)
				if t.RunState.Live() && !ended {
					live++
				}
				if (t.RunState.Live() && !ended) || t.State == workload.InstanceDone {
					present++
				}
			}
			if live > 0 && present < int(g.Min) && j.Goal == scheduler.GoalRun {
				w.fatal(fmt.Sprintf("gang %s of %s has %d members, of at least %d:\n%s", g.Name, j.Spec.Name, present, g.Min, w.showTasks(j.Spec.Name)))
			}
		}
	}
}

// checkCounts holds the sums that are kept against what they sum, and the reasons for waiting against what waits.
func (w *world) checkCounts() {
	reader := w.state.Reader()
	jobs, _ := reader.Jobs(0, 1<<20, scheduler.JobFilter{})
	live, pending := 0, 0
	for _, j := range jobs {
		for state := range j.ByRun {
			if workload.RunState(state).Live() {
				live += int(j.ByRun[state])
			}
		}
		if j.State.Terminal() {
			continue
		}
		queued := int(j.ByState[workload.InstancePending] + j.ByState[workload.InstanceAdmitted])
		pending += queued
		if j.Goal != scheduler.GoalRun {
			continue
		}
		explained := 0
		e, _ := reader.Explain(j.ID)
		for _, r := range e.Reasons {
			explained += r.Instances
			if r.Message == "" {
				w.fatal(fmt.Sprintf("job %s waits for %s without a word", j.Spec.Name, r.Kind))
			}
		}
		if waiting := queued + int(j.ByState[workload.InstanceBackingOff]); explained != waiting {
			w.fatal(fmt.Sprintf("job %s: %d instances wait, and %d are explained:\n%s", j.Spec.Name, waiting, explained, w.showExplanation(j.Spec.Name)))
		}
		if w := int(j.Spec.MaxRunning); w > 0 && int(j.ByState[workload.InstanceActive]+j.ByState[workload.InstanceAdmitted]) > w && j.Spec.Kind == workload.Batch {
			panic(fmt.Sprintf("job %s lets more than %d live at once", j.Spec.Name, w))
		}
	}
	if cell := reader.Cell(); cell.LiveRuns != live || cell.Pending != pending {
		w.fatal(fmt.Sprintf("the cell counts %d live runs and %d pending instances; there are %d and %d", cell.LiveRuns, cell.Pending, live, pending))
	}
}
