package rollout

import (
	"fmt"
	"strings"
	"time"
)

const (
	// StrikeWindow is how long a fault counts.
	StrikeWindow = 10 * time.Minute
	// MaxFaults is how many faults a Tally remembers.
	MaxFaults = 64
	// The least numbers of calls and of compared tasks that a gate judges by.
	leastCalls, leastTasks = 200, 256
)

// Tally is what a version did since it came to its stage in this process.
type Tally struct {
	Calls  int64
	Slow   int64   // calls that took longer than the gate's SlowCall
	Faults []Fault // the newest, oldest first
	Failed int64   // faults, all of them

	// Of a policy of quota in shadow Compared counts entitlements of pools that demand something, and of one of preemption pairs of those who may have to go; Elsewhere those that it
	// entitles to something else, and puts in the other order.
	//
	// Some batches were answered a second time by the reference on the same table: what is active, for a version that is tried, and the built-in placer for one that is
	// active. What follows is of these.
	Compared  int64 // tasks that either placed
	Elsewhere int64 // of them: on other hosts
	Placed    int64 // tasks that the version placed
	Reference int64 // tasks that the reference placed
	Cost      int64 // sum over both's tasks: leftover of the version's hosts less that of the reference's, in millionths of host.ScoreSpan
}

// Fault is one thing that a version did wrong.
type Fault struct {
	At   int64
	Kind string
	Text string
}

// Strike adds a fault.
func (t *Tally) Strike(f Fault) {
	f.Text = clip(f.Text)
	t.Failed++
	t.Faults = append(t.Faults, f)
	if len(t.Faults) > MaxFaults {
		t.Faults = append(t.Faults[:0], t.Faults[1:]...)
	}
}

// DivergencePermille is the share of the compared tasks that were placed elsewhere.
func (t *Tally) DivergencePermille() int64 { return permille(t.Elsewhere, t.Compared) }

func permille(part, all int64) int64 {
	if all <= 0 {
		return 0
	}
	return 1000 * part / all
}

// Broken says which gate a version has broken; "": none.
func (g Gates) Broken(now int64, t *Tally) string {
	return g.WithDefaults().broken(now, t)
}

func (g Gates) broken(now int64, t *Tally) string {
	strikes := 0
	for _, f := range t.Faults {
		if now-f.At < int64(StrikeWindow) {
			strikes++
		}
	}
	switch left := t.Reference - t.Placed; {
	case g.Strikes > 0 && strikes >= g.Strikes:
		last := &t.Faults[len(t.Faults)-1]
		if strikes == 1 {
			return "a fault: " + last.Text
		}
		return fmt.Sprintf("%d faults within %v, the last one: %s", strikes, StrikeWindow, last.Text)
	case g.SlowShare > 0 && t.Calls >= leastCalls && permille(t.Slow, t.Calls) > int64(g.SlowShare):
		return fmt.Sprintf("%d of %d calls took longer than %v", t.Slow, t.Calls, g.SlowCall)
	case g.Unplaced > 0 && t.Reference >= leastTasks && permille(left, t.Reference) > int64(g.Unplaced):
		return fmt.Sprintf("it left %d of %d tasks without a host for which there was room", left, t.Reference)
	case g.Divergence > 0 && t.Compared >= leastTasks && t.DivergencePermille() > int64(g.Divergence):
		return fmt.Sprintf("it placed %d of %d tasks elsewhere", t.Elsewhere, t.Compared)
	}
	return ""
}

// clip bounds a text and keeps it one that a message can hold.
func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}
