package sim

import (
	"fmt"
	"strings"

	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
)

// maxTraced bounds one line of a trace.
const maxTraced = 400

func clip(text string) string {
	if len(text) > maxTraced {
		return text[:maxTraced] + "..."
	}
	return text
}

func traceCommand(c scheduler.Command) string {
	if s, ok := c.(scheduler.SubmitJob); ok {
		return fmt.Sprintf("SubmitJob %s %s %s %d gang=%v", s.ID, s.Spec.Name, s.Spec.Kind, s.Spec.Instances, s.Spec.Gang != nil)
	}
	return clip(fmt.Sprintf("%T %+v", c, c))
}

func traceMessage(m shard.Message) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%T", m)
	switch m := m.(type) {
	case shard.Assign:
		fmt.Fprintf(&out, " %v", m.Epoch)
	case shard.Place:
		fmt.Fprintf(&out, " batch %d", m.Batch)
		for _, r := range m.Requests {
			fmt.Fprintf(&out, " %d", r.Count)
		}
	case shard.Launch:
		fmt.Fprintf(&out, " %v", m.Epoch)
		for n := range m.Launches {
			fmt.Fprintf(&out, " %s", m.Launches[n].Launch.Run)
		}
	case shard.Kill:
		for _, k := range m.Kills {
			fmt.Fprintf(&out, " %s", k.Run)
		}
	case shard.Replay:
		fmt.Fprintf(&out, " done %v", m.Done)
		for n := range m.Bound {
			fmt.Fprintf(&out, " %s", m.Bound[n].Run)
		}
	case shard.StatusesArrived:
		for n := range m.Statuses {
			fmt.Fprintf(&out, " %s %s", m.Statuses[n].Run, m.Statuses[n].State)
		}
	case shard.HostsUpdated:
		for n := range m.Changed {
			fmt.Fprintf(&out, " %s ready=%v", m.Changed[n].Name, m.Changed[n].Ready)
		}
		fmt.Fprintf(&out, " removed %v", m.Removed)
	case shard.InventoryArrived:
		for n := range m.Inventory.Runs {
			fmt.Fprintf(&out, " %s %s", m.Inventory.Runs[n].Run, m.Inventory.Runs[n].State)
		}
	}
	return clip(out.String())
}

func traceReply(r shard.Reply) string {
	switch r := r.(type) {
	case shard.Placed:
		text := fmt.Sprintf("Placed batch %d", r.Batch)
		for _, p := range r.Results {
			text += fmt.Sprintf(" %d+%d", len(p.Assignments), p.Refused)
		}
		return text
	case shard.RunStatus:
		return fmt.Sprintf("RunStatus %s %s %s", r.Status.Run, r.Status.State, r.Status.Reason)
	case shard.Hosts:
		return fmt.Sprintf("Hosts %d changed, %d removed", len(r.Changed), len(r.Removed))
	}
	return clip(fmt.Sprintf("%T %+v", r, r))
}

func traceCall(c shard.Call) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%T", c)
	switch c := c.(type) {
	case shard.LaunchCall:
		for n := range c.Launches {
			fmt.Fprintf(&out, " %s on %s", c.Launches[n].Run, c.Launches[n].Host)
		}
	case shard.KillCall:
		for _, k := range c.Kills {
			fmt.Fprintf(&out, " %s", k.Run)
		}
	case shard.AckCall:
		fmt.Fprintf(&out, " %v", c.Tokens)
	case shard.ReconcileCall:
		fmt.Fprintf(&out, " %v", c.Runs)
	}
	return clip(out.String())
}
