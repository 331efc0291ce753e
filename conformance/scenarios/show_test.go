package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

func (w *world) show(what string, a arguments) string {
	switch what {
	case "jobs":
		return w.showJobs()
	case "tasks":
		return w.showTasks(a.word(w, 0))
	case "pools":
		return w.showPools()
	case "policies":
		return w.showPolicies()
	case "entitled":
		return w.showEntitled()
	case "ledgers":
		return w.showLedgers()
	case "owners":
		return w.showOwners(a.word(w, 0))
	case "clusters":
		return w.showClusters(a.word(w, 0))
	case "hosts":
		return w.showHosts()
	case "gangs":
		return w.showGangs(a.word(w, 0))
	case "explain":
		return w.showExplanation(a.word(w, 0))
	case "waiting":
		return w.waiting(a.word(w, 0), int(a.number(w, "rows", 20)))
	}
	return w.showChanges()
}

func (w *world) showJobs() string {
	var out strings.Builder
	jobs, _ := w.state.Reader().Jobs(0, 1<<20, scheduler.JobFilter{})
	for _, j := range jobs {
		fmt.Fprintf(&out, "%s %s", j.Spec.Name, j.State)
		if j.Reason != workload.ReasonNone {
			fmt.Fprintf(&out, " (%s)", j.Reason)
		}
		for state, n := range j.ByState {
			if n > 0 {
				fmt.Fprintf(&out, " %s=%d", workload.InstanceState(state), n)
			}
		}
		if j.Restart.Batch > 0 {
			fmt.Fprintf(&out, " restarting %d of %d, %d down", j.RestartDone, j.RestartUnits, j.RestartDown)
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (w *world) showTasks(name string) string {
	var out strings.Builder
	job := w.job(name)
	tasks, _ := w.state.Reader().Tasks(job.ID, 0, 1<<20, scheduler.TaskFilter{})
	for _, t := range tasks {
		fmt.Fprintf(&out, "%d %s", t.Instance, t.State)
		if t.Run > 0 {
			fmt.Fprintf(&out, " run %d.%d %s on %s", t.Generation, t.Run, t.RunState, t.HostName)
		} else if t.HostName != "" {
			fmt.Fprintf(&out, " for %s", t.HostName)
		}
		if t.Healthy {
			out.WriteString(" healthy")
		}
		if t.Reason != workload.ReasonNone {
			fmt.Fprintf(&out, " (%s)", t.Reason)
		}
		if t.Reason == workload.ReasonPreempted && t.Message != "" {
			fmt.Fprintf(&out, " %q", t.Message)
		}
		if t.State == workload.InstanceBackingOff && t.NotBefore > w.now {
			fmt.Fprintf(&out, " in %v", time.Duration(t.NotBefore-w.now).Round(10*time.Millisecond))
		}
		if len(t.Ports) > 0 {
			fmt.Fprintf(&out, " ports %v", t.Ports)
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (w *world) showPools() string {
	var out strings.Builder
	for _, p := range w.state.Reader().Pools("/") {
		fmt.Fprintf(&out, "%s reserved %d entitled %d used %d demand %d jobs %d\n", p.Path, p.Reservation[resource.CPU],
			p.Entitlement[resource.CPU], p.Usage[resource.CPU], p.Demand[resource.CPU], p.Jobs)
	}
	return out.String()
}

// showLedgers prints the ledgers beside the pools' own: those of controllers and of revocable work.
func (w *world) showLedgers() string {
	var out strings.Builder
	for _, p := range w.state.Reader().Pools("/") {
		fmt.Fprintf(&out, "%s entitled %d used %d, by controllers %d; revocable entitled %d used %d demand %d\n", p.Path, p.Entitlement[resource.CPU],
			p.Usage[resource.CPU], p.Controllers[resource.CPU], p.Revocable.Entitlement[resource.CPU], p.Revocable.Usage[resource.CPU],
			p.Revocable.Demand[resource.CPU])
	}
	return out.String()
}

func (w *world) showOwners(path string) string {
	var out strings.Builder
	for _, u := range w.state.Reader().PoolOwners(w.pool(path).Pool.ID) {
		fmt.Fprintf(&out, "%s uses %d", u.Owner, u.Usage[resource.CPU])
		if u.Bounded {
			fmt.Fprintf(&out, " of %d", u.Bound.Limit[resource.CPU])
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (w *world) showClusters(path string) string {
	var out strings.Builder
	for _, c := range w.state.Reader().PoolClusters(w.pool(path).Pool.ID) {
		fmt.Fprintf(&out, "%s capacity %d entitled %d used %d revocable %d\n", c.Cluster, c.Capacity[resource.CPU], c.Entitlement[resource.CPU],
			c.Usage[resource.CPU], c.Revocable[resource.CPU])
	}
	return out.String()
}

func (w *world) showHosts() string {
	var out strings.Builder
	hosts, _ := w.state.Reader().Hosts("", "", 1<<20)
	for _, h := range hosts {
		fmt.Fprintf(&out, "%s/%s used %d of %d, %d tasks", h.Cluster, h.Name, h.Used[resource.CPU], h.Summary.Capacity[resource.CPU], h.Tasks)
		if !h.Present {
			out.WriteString(" gone")
		}
		if h.Draining {
			out.WriteString(" draining")
		}
		if h.Past {
			out.WriteString(" past")
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (w *world) showExplanation(name string) string {
	e, _ := w.state.Reader().Explain(w.job(name).ID)
	var out strings.Builder
	if e.Position > 0 {
		fmt.Fprintf(&out, "%d. of %d in the queue of %s\n", e.Position, e.Queued, e.Pool.Path)
	}
	for _, r := range e.Reasons {
		fmt.Fprintf(&out, "%s %d: %s\n", r.Kind, r.Instances, r.Message)
		if r.StartBy != 0 {
			fmt.Fprintf(&out, "  starts in %v if run times are right\n", time.Duration(r.StartBy-w.now))
		}
	}
	return out.String()
}

func (w *world) showGangs(name string) string {
	var out strings.Builder
	e, _ := w.state.Reader().Explain(w.job(name).ID)
	for _, g := range e.Gangs {
		fmt.Fprintf(&out, "%s generation %d failures %d: %d of %d, at least %d", g.Name, g.Generation, g.Failures, g.Present, g.Size, g.Min)
		if g.Ending {
			out.WriteString(", ending")
		}
		out.WriteString("\n")
	}
	return out.String()
}

// why prints what would let a job start, and when it will by itself.
func (w *world) why(name string) string {
	answer := w.do(scheduler.ExplainJob{Job: w.job(name).ID})
	switch {
	case answer.Err != nil:
		return refusal(answer.Err)
	case answer.Why == nil:
		return "no answer yet"
	}
	var out strings.Builder
	for _, r := range answer.Why.Reasons[:min(1, len(answer.Why.Reasons))] {
		fmt.Fprintf(&out, "%s %d: %s\n", r.Kind, r.Instances, r.Message)
	}
	for _, r := range answer.Why.Remedies {
		fmt.Fprintf(&out, "  if %s\n", r.Message)
	}
	fmt.Fprintf(&out, "starts %s\n", answer.Why.Start.Describe(w.now))
	return out.String()
}

// showChanges prints what watchers saw since it was last asked, one line for equal neighbours.
func (w *world) showChanges() string {
	var lines []string
	for _, c := range w.changes {
		var line string
		switch c.Kind {
		case scheduler.ChangeJob:
			line = fmt.Sprintf("job %s %s", c.Name, c.JobState)
		case scheduler.ChangeTask:
			line = fmt.Sprintf("task %s/%d %s %s %s", c.Name, c.Run.Instance, c.State, c.RunState, c.Reason)
		case scheduler.ChangePool:
			line = "pool " + c.Name
		case scheduler.ChangePoolDeleted:
			line = "pool " + c.Name + " deleted"
		case scheduler.ChangeHost:
			line = "host " + c.Name
		case scheduler.ChangeHostForgotten:
			line = "host " + c.Name + " forgotten: " + c.Message
		case scheduler.ChangeJobDeleted:
			line = "job " + c.Name + " deleted"
		case scheduler.ChangeCluster, scheduler.ChangeClusterDeleted:
			line = "cluster " + c.Name + " " + c.Message
		}
		if c.Principal != "" {
			line += " by " + c.Principal
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	w.changes = nil
	return strings.Join(slices.Compact(lines), "\n")
}
