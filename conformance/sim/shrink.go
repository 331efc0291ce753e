package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/paceline-sched/paceline/hostmanagers/simulated"
)

// The bounds of one Shrink, whichever is reached first.
const (
	maxShrinkRuns = 400
	maxShrinkTime = 20 * time.Second
)

// Shrink leaves out of a failed scenario what it takes not to fail by the same checker: kinds of faults, single events, faults of the
// clusters, time. Interpose makes a fresh fault of the program for every try, as it may count; nil: none. It returns the smallest that was
// found, and false when the scenario itself does not fail so when it is played.
func (s *Scenario) Shrink(interpose func() *Interposer) (*Scenario, bool) {
	t := shrinker{best: s, interpose: interpose, until: time.Now().Add(maxShrinkTime)}
	if !t.try(s) {
		return s, false
	}
	for before := -1; before != len(t.best.Events) && !t.over(); {
		before = len(t.best.Events)
		t.dropKinds()
		t.dropEvents()
	}
	t.calmClusters()
	return t.best, true
}

// shrinker keeps the smallest scenario that still fails.
type shrinker struct {
	best      *Scenario
	interpose func() *Interposer
	runs      int
	until     time.Time
}

func (t *shrinker) over() bool { return t.runs >= maxShrinkRuns || time.Now().After(t.until) }

// try plays a scenario and keeps it if it fails as wanted. What would have come after the failure is cut off.
func (t *shrinker) try(s *Scenario) bool {
	t.runs++
	played := *s
	played.Options.Trace, played.Options.Interpose = nil, nil
	if t.interpose != nil {
		played.Options.Interpose = t.interpose()
	}
	_, err := played.Run()
	var failure *Failure
	if !errors.As(err, &failure) || failure.Checker != t.best.Checker {
		return false
	}
	t.best = s.until(failure.At)
	return true
}

// until is the scenario up to a time. The time in which things go wrong is kept: it decides when they are mended.
func (s *Scenario) until(end time.Duration) *Scenario {
	cut := *s
	cut.Events = slices.DeleteFunc(slices.Clone(s.Events), func(e event) bool { return e.at > end })
	return &cut
}

func (t *shrinker) without(drop func(n int, e *event) bool) bool {
	less := *t.best
	less.Events = nil
	for n := range t.best.Events {
		if !drop(n, &t.best.Events[n]) {
			less.Events = append(less.Events, t.best.Events[n])
		}
	}
	return len(less.Events) < len(t.best.Events) && t.try(&less)
}

// dropKinds leaves out all faults of a kind together.
func (t *shrinker) dropKinds() {
	kinds := map[string]bool{}
	for n := range t.best.Events {
		kinds[t.best.Events[n].what] = true
	}
	delete(kinds, callEvent)
	for kind := range kinds {
		if t.over() {
			return
		}
		t.without(func(_ int, e *event) bool { return e.what == kind })
	}
}

// dropEvents leaves out ever smaller pieces (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
func (t *shrinker) dropEvents() {
	for size := max(len(t.best.Events)/2, 1); ; size /= 2 {
		for from := 0; from < len(t.best.Events) && !t.over(); {
			if !t.without(func(n int, _ *event) bool { return from <= n && n < from+size }) {
				from += size
			}
		}
		if size <= 1 || t.over() {
			return
		}
	}
}

// calmClusters leaves out what the clusters do wrong by themselves.
func (t *shrinker) calmClusters() {
	for n := range t.best.Clusters {
		if t.over() {
			return
		}
		less := *t.best
		less.Clusters = slices.Clone(less.Clusters)
		less.Clusters[n].Faults = simulated.Faults{}
		t.try(&less)
	}
}
