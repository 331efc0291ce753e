package sim

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/paceline-sched/paceline/core/driver"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/shard"
	"github.com/paceline-sched/paceline/core/workload"
)

// maxMutantSeeds bounds the seeds that a mutant may live through.
const maxMutantSeeds = 10

// mutants are wrong programs: each breaks one promise between the parts.
var mutants = map[string]func() *Interposer{
	"launches leave before they are durable": func() *Interposer {
		return early(func(m shard.Message) bool { _, is := m.(shard.Launch); return is })
	},
	"kills leave before they are durable": func() *Interposer {
		return early(func(m shard.Message) bool { _, is := m.(shard.Kill); return is })
	},
	"statuses are acknowledged before they are durable": func() *Interposer {
		return early(func(m shard.Message) bool { _, is := m.(shard.Acknowledge); return is })
	},
	"users are answered before it is durable": func() *Interposer {
		return &Interposer{Early: func(e scheduler.Effect) bool { _, is := e.(scheduler.Reply); return is }}
	},
	"a group is not written": func() *Interposer {
		return spoil(func(groups []scheduler.Group) []scheduler.Group { return groups[1:] })
	},
	"groups are written in another order": func() *Interposer {
		return spoil(func(groups []scheduler.Group) []scheduler.Group {
			if len(groups) < 2 {
				return groups
			}
			swapped := append([]scheduler.Group(nil), groups...)
			swapped[0], swapped[1] = swapped[1], swapped[0]
			return swapped
		})
	},
	"a write of a group is lost":            func() *Interposer { return spoil(tear) },
	"a starting core overlooks a run":       func() *Interposer { return &Interposer{Recover: overlook} },
	"replayed runs hold nothing":            func() *Interposer { return &Interposer{Send: lighten} },
	"a starting core keeps its epoch":       func() *Interposer { return &Interposer{Recover: keepEpoch} },
	"old launches are sent again":           repeatLaunches,
	"a run is told dead and lives on":       func() *Interposer { return &Interposer{Call: lie} },
	"kills are dropped":                     func() *Interposer { return &Interposer{Call: dropKills} },
	"ends are not told":                     func() *Interposer { return &Interposer{Reply: dropEnds} },
	"acknowledgements are dropped":          func() *Interposer { return &Interposer{Send: dropAcks} },
	"a launch goes to another host":         func() *Interposer { return &Interposer{Call: mislead} },
	"everybody gets the first device":       func() *Interposer { return &Interposer{Call: crowd} },
	"a watcher is not told of a revision":   func() *Interposer { return &Interposer{Log: skipRevision} },
	"a watcher is told of a revision again": func() *Interposer { return &Interposer{Log: repeatRevision} },
}

// TestMutants wants every wrong program to be caught, by seeds that TestFixedSeeds runs with the right one.
func TestMutants(t *testing.T) {
	t.Parallel()
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if f := findMutant(t, mutant); f != nil {
				t.Log(caught(f))
				return
			}
			t.Errorf("%d seeds have not caught it", maxMutantSeeds)
		})
	}
}

// findMutant is how a wrong program is caught first; nil: it is not.
func findMutant(t *testing.T, mutant func() *Interposer, seeds ...uint64) *Failure {
	t.Helper()
	if len(seeds) == 0 {
		for seed := uint64(1); seed <= maxMutantSeeds; seed++ {
			seeds = append(seeds, seed)
		}
	}
	for _, seed := range seeds {
		o := brief(seed)
		o.Interpose = mutant()
		if _, err := Run(o); err != nil {
			var failure *Failure
			if !errors.As(err, &failure) {
				t.Fatal(err)
			}
			return failure
		}
	}
	return nil
}

func caught(f *Failure) string {
	first, _, _ := strings.Cut(f.Message, "\n")
	return fmt.Sprintf("caught by seed %d after %v, by the checker of %s: %s", f.Options.Seed, f.At, f.Checker, clip(first))
}

func early(which func(shard.Message) bool) *Interposer {
	return &Interposer{Early: func(e scheduler.Effect) bool {
		to, is := e.(scheduler.ToShard)
		return is && which(to.Message)
	}}
}

// spoil changes what the twentieth commit and the ones after it write.
func spoil(change func([]scheduler.Group) []scheduler.Group) *Interposer {
	n := 0
	return &Interposer{Commit: func(groups []scheduler.Group) []scheduler.Group {
		if n++; n < 20 {
			return groups
		}
		return change(groups)
	}}
}

// tear leaves out the first write of a task.
func tear(groups []scheduler.Group) []scheduler.Group {
	return without(groups, func(r scheduler.Record) bool { _, is := r.(scheduler.TaskRecord); return is })
}

func without(groups []scheduler.Group, drop func(scheduler.Record) bool) []scheduler.Group {
	groups = append([]scheduler.Group(nil), groups...)
	for n := range groups {
		for m, w := range groups[n].Writes {
			if drop(w.Record) {
				kept := append([]scheduler.Write(nil), groups[n].Writes[:m]...)
				groups[n].Writes = append(kept, groups[n].Writes[m+1:]...)
				return groups
			}
		}
	}
	return groups
}

// overlook takes a run for ended that was running.
func overlook(im *scheduler.Image) {
	for _, id := range slices.SortedFunc(maps.Keys(im.Jobs), func(a, b workload.JobID) int { return bytes.Compare(a[:], b[:]) }) {
		tasks := im.Jobs[id].Tasks
		for i := range tasks {
			if t := &tasks[i]; t.RunState == workload.RunRunning {
				t.State, t.RunState = workload.InstancePending, workload.RunLost
				return
			}
		}
	}
}

func lighten(m shard.Message) shard.Message {
	r, is := m.(shard.Replay)
	if !is {
		return m
	}
	r.Bound = slices.Clone(r.Bound)
	for n := range r.Bound {
		class := *r.Bound[n].Class
		class.Needs = resource.Vector{}
		r.Bound[n].Class = &class
	}
	return r
}

// repeatLaunches sends with every launch one that is long over.
func repeatLaunches() *Interposer {
	var old []driver.Launch
	return &Interposer{Call: func(_ *process, call shard.Call) shard.Call {
		l, is := call.(shard.LaunchCall)
		if !is {
			return call
		}
		launches := slices.Clone(l.Launches)
		if len(old) > 40 {
			launches = append(launches, old[0])
			old = old[1:]
		}
		old = append(old, l.Launches...)
		return shard.LaunchCall{Launches: launches}
	}}
}

func lie(p *process, call shard.Call) shard.Call {
	kill, is := call.(shard.KillCall)
	if !is {
		return call
	}
	for _, k := range kill.Kills {
		p.Statuses([]driver.Status{{Run: k.Run, State: workload.RunKilled}})
	}
	return nil
}

func dropKills(_ *process, call shard.Call) shard.Call {
	if _, is := call.(shard.KillCall); is {
		return nil
	}
	return call
}

// dropEnds turns the news of an end into that of a life.
func dropEnds(r *scheduler.ShardReplied, _ shard.Epoch) {
	if s, is := r.Reply.(shard.RunStatus); is && s.Status.State.Traits().Terminal {
		s.Status.State = workload.RunRunning
		r.Reply = s
	}
}

func dropAcks(m shard.Message) shard.Message {
	if a, is := m.(shard.Acknowledge); is {
		a.Tokens = nil
		return a
	}
	return m
}

func mislead(p *process, call shard.Call) shard.Call {
	l, is := call.(shard.LaunchCall)
	if !is {
		return call
	}
	launches := slices.Clone(l.Launches)
	for n := range launches {
		launches[n].Host = p.c.hosts[0].Name
	}
	return shard.LaunchCall{Launches: launches}
}

func crowd(_ *process, call shard.Call) shard.Call {
	l, is := call.(shard.LaunchCall)
	if !is {
		return call
	}
	launches := slices.Clone(l.Launches)
	for n := range launches {
		if len(launches[n].Devices) > 0 {
			launches[n].Devices = []int{0}
		}
	}
	return shard.LaunchCall{Launches: launches}
}

func skipRevision(parts []scheduler.ChangesRecord) []scheduler.ChangesRecord {
	if len(parts) > 2 {
		return append(parts[:1:1], parts[2:]...)
	}
	return parts
}

func repeatRevision(parts []scheduler.ChangesRecord) []scheduler.ChangesRecord {
	if len(parts) > 0 {
		return append(parts[:1:1], parts...)
	}
	return parts
}

func keepEpoch(im *scheduler.Image) {
	if im.Cell.Epoch > 1 { // 0 would be a cell that never ran
		im.Cell.Epoch--
	}
}
