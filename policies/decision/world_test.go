package decision_test

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/workload"
	"github.com/paceline-sched/paceline/policies/decision"
)

// stage is a table of two hosts, a and b, with four cores each, whose placer is recorded.
type stage struct {
	t        *testing.T
	dir      string
	clock    clock
	recorder *decision.Recorder
	placer   placement.Placer
	table    *host.Table
	rows     map[string]host.Row
}

func newStage(t *testing.T, strategy workload.Strategy) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), clock: newClock(), table: host.New(&resource.Names{}, 4), rows: map[string]host.Row{}}
	placer, err := decision.Builtin("", strategy).New(nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.recorder, err = openLog(t, s.clock, decision.Config{Dir: s.dir}).Record("c/0", native{placer}); err != nil {
		t.Fatal(err)
	}
	s.placer, _ = s.recorder.Placer("")
	for _, name := range []string{"a", "b"} {
		s.upsert(name)
	}
	return s
}

func (s *stage) upsert(name string) {
	row, err := s.table.Upsert(host.Host{ID: workload.HostID{name[0]}, Name: name, Ready: true, Capacity: resource.Vector{resource.CPU: 4000}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.rows[name] = row
}

// cores is a class of tasks that take so many.
func cores(n int64) *placement.Class {
	spec := &workload.JobSpec{Kind: workload.Batch}
	spec.Template.Needs[resource.CPU] = 1000 * n
	return placement.NewClass(workload.JobID{}, spec, nil)
}

// place asks for tasks after so many seconds and wants them on these hosts.
func (s *stage) place(seconds int, n int64, gang bool, count int, want ...string) {
	s.t.Helper()
	s.clock.add(time.Duration(seconds) * time.Second)
	r := s.placer.Place(s.table, []placement.Request{{Class: cores(n), Count: count, Gang: gang}})[0]
	var got []string
	for _, a := range r.Assignments {
		got = append(got, s.table.Host(a.Row).Name)
	}
	if !reflect.DeepEqual(got, want) {
		s.t.Fatalf("%d tasks of %d cores went to %v, the scene wants %v", count, n, got, want)
	}
}

func (s *stage) end(seconds int, n int64, name string) {
	s.t.Helper()
	s.clock.add(time.Duration(seconds) * time.Second)
	if err := s.table.Release(s.rows[name], cores(n).Occupant(0, nil)); err != nil {
		s.t.Fatal(err)
	}
}

// replay gives the work to a built-in strategy.
func (s *stage) replay(strategy workload.Strategy) decision.Comparison {
	s.t.Helper()
	s.recorder.Close()
	report, err := decision.Replay(s.t.Context(), s.dir, decision.Options{Contenders: []decision.Contender{decision.Builtin("x", strategy)}})
	if err != nil {
		s.t.Fatal(err)
	}
	c := report.Policies[0]
	c.Identical, c.Figures = 0, decision.Figures{}
	return c
}

func (s *stage) want(got, want decision.Comparison) {
	s.t.Helper()
	want.Name = "x"
	if !reflect.DeepEqual(got, want) {
		s.t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestWhoWaitsLonger(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategyBestFit)
	s.place(0, 2, false, 1, "a")
	s.place(1, 2, false, 1, "a") // spread: b
	s.place(1, 4, false, 1, "b") // spread: nowhere
	s.end(7, 2, "a")
	s.place(2, 2, false, 1, "a") // spread: first the four cores on a, then this one on b
	s.want(s.replay(workload.StrategySpread), decision.Comparison{
		Agreement: decision.Agreement{Same: 1, Elsewhere: 2, OnlyFirst: 1}, Waits: decision.Waits{Tasks: 1, Mean: 9. / 4, P99: 9},
	})
}

// TestOlderSegment reads what version 1 wrote, which is the same but for what it did not know.
func TestOlderSegment(t *testing.T) {
	s := newStage(t, "")
	s.place(0, 2, false, 2, "a", "a")
	mine := placement.Request{Class: cores(1), Count: 1, Pool: "/a", Priority: -3, Revocable: true}
	s.placer.Place(s.table, []placement.Request{mine})
	s.recorder.Close()
	segments, err := decision.Segments(s.dir)
	if err != nil || len(segments) != 1 {
		t.Fatalf("%d segments, %v", len(segments), err)
	}
	raw, err := os.ReadFile(segments[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	read := func(version byte) (list []placement.Request, err error) {
		raw[7] = version
		_, err = decision.Read(bytes.NewReader(raw), func(e decision.Event) error {
			if e.Decision != nil {
				list = append(list, e.Decision.Requests...)
			}
			return nil
		})
		return list, err
	}
	now, err := read(3)
	if err != nil || len(now) != 2 || now[1].Priority != mine.Priority || !now[1].Revocable || now[1].Pool != mine.Pool || now[0].Priority != 0 || now[0].Revocable {
		t.Fatalf("%+v, %v", now, err)
	}
	if then, err := read(2); err != nil || !reflect.DeepEqual(then, now) {
		t.Fatalf("%+v, %v", then, err)
	}
	if then, err := read(1); err != nil || !reflect.DeepEqual(then[0], now[0]) {
		t.Fatalf("%+v, %v", then, err)
	}
	if _, err := read(4); !errors.Is(err, decision.ErrNoSegment) {
		t.Fatalf("a version to come is taken for one that is known: %v", err)
	}
}

// TestNever: work that a policy has no room for until the recorded run has ended waits as long as that lasted, and takes no room afterwards.
func TestNever(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategyBestFit)
	s.place(0, 2, false, 2, "a", "a") // spread: a, b
	s.place(1, 4, false, 1, "b")      // spread: nowhere
	s.end(5, 4, "b")
	s.place(1, 2, false, 2, "b", "b") // spread: a, b
	s.want(s.replay(workload.StrategySpread), decision.Comparison{
		Agreement: decision.Agreement{Same: 2, Elsewhere: 2, OnlyFirst: 1}, Waits: decision.Waits{Tasks: 1, Mean: 1, P99: 5, Never: 1},
	})
}

func TestWhoGoesSooner(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategySpread)
	s.place(0, 2, false, 1, "a")
	s.place(0, 2, false, 1, "b") // best-fit: a
	s.place(1, 4, false, 1)      // best-fit: b, ahead of its time
	s.end(4, 2, "a")
	s.place(1, 4, false, 1, "a") // the same task again
	s.want(s.replay(workload.StrategyBestFit), decision.Comparison{
		Agreement: decision.Agreement{Same: 1, Elsewhere: 2, OnlySecond: 1}, Waits: decision.Waits{Sooner: 1, SoonerS: 5},
	})
}

// TestAheadIsGivenBack: what nobody asks for again takes no room for long.
func TestAheadIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategySpread)
	s.place(0, 2, false, 2, "a", "b") // best-fit: a, a
	s.place(1, 4, true, 1)            // best-fit: b
	s.place(59, 3, false, 1)          // best-fit: nowhere yet
	s.place(2, 3, false, 1)           // best-fit: b
	s.want(s.replay(workload.StrategyBestFit), decision.Comparison{Agreement: decision.Agreement{Same: 1, Elsewhere: 1, OnlySecond: 2}})
}

func TestHostsThatLeave(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategyBestFit)
	s.place(0, 1, false, 2, "a", "a") // spread: a, b
	s.place(1, 1, false, 1, "a")      // spread: a
	s.clock.add(time.Second)
	s.table.Remove(s.rows["b"])
	s.place(3, 1, false, 1, "a") // spread: first the one of b on a, then this one on a
	s.upsert("b")
	s.place(1, 4, false, 1, "b")
	s.want(s.replay(workload.StrategySpread), decision.Comparison{
		Agreement: decision.Agreement{Same: 4, Elsewhere: 1}, Waits: decision.Waits{Tasks: 1, Mean: 3. / 5, P99: 3}, Displaced: 1,
	})
}

// TestRoomTakenOutside: a pledge is on the same host in every world, whether it has room there or not.
func TestRoomTakenOutside(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategyBestFit)
	s.place(0, 2, false, 2, "a", "a") // spread: a, b
	if err := s.table.Take(s.rows["b"], cores(4).Occupant(0, nil)); err != nil {
		t.Fatal(err)
	}
	s.place(1, 1, false, 1) // spread: a
	s.end(1, 4, "b")
	s.place(1, 1, false, 1, "b") // spread: the one that stands ahead
	s.want(s.replay(workload.StrategySpread), decision.Comparison{
		Agreement: decision.Agreement{Same: 1, Elsewhere: 2, OnlySecond: 1}, Waits: decision.Waits{Sooner: 1, SoonerS: 2}, Overfull: 1,
	})
}

// TestGangsWaitWhole: a gang that found no room waits for all of it.
func TestGangsWaitWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t, workload.StrategyBestFit)
	s.place(0, 1, false, 2, "a", "a") // spread: a, b
	s.place(1, 3, true, 1, "b")       // spread: a
	s.place(1, 2, true, 1, "a")       // spread: b
	s.place(1, 1, false, 1, "b")      // spread: b
	s.end(1, 3, "b")                  // spread: on a
	s.place(1, 3, true, 1, "b")       // spread: a
	s.end(1, 1, "a")                  // spread: one of the first two
	s.place(1, 1, false, 1, "a")      // wherever
	if got := s.replay(workload.StrategySpread); got.OnlyFirst+got.OnlySecond != 0 || got.Same+got.Elsewhere != 7 {
		t.Errorf("%+v", got)
	}
	s = newStage(t, workload.StrategyBestFit)
	s.place(0, 2, false, 2, "a", "a") // spread: a, b
	s.place(1, 2, true, 2, "b", "b")  // spread: a, b
	s.place(1, 1, false, 1)
	s.end(1, 2, "a")
	s.place(1, 2, true, 1, "a")
	if got := s.replay(workload.StrategySpread); got.OnlyFirst != 0 || got.Same+got.Elsewhere != 5 {
		t.Errorf("%+v", got)
	}
	s = newStage(t, workload.StrategyBestFit)
	s.place(0, 2, false, 2, "a", "a") // spread: a, b
	s.place(1, 3, true, 1, "b")       // spread: waits
	s.end(1, 2, "a")                  // on a, where the gang goes with the next batch
	s.place(1, 1, false, 1, "b")      // spread: b
	s.want(s.replay(workload.StrategySpread), decision.Comparison{
		Agreement: decision.Agreement{Same: 2, Elsewhere: 1, OnlyFirst: 1}, Waits: decision.Waits{Tasks: 1, Mean: 2. / 4, P99: 2},
	})
}

// TestStrategiesDiffer replays a busy cell with other strategies: every recorded task is accounted for, and both policies of a pair are compared.
func TestStrategiesDiffer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	record(t, dir, 4, 1000, nil)
	report, err := decision.Replay(t.Context(), dir, decision.Options{
		Contenders: []decision.Contender{decision.Builtin("pack", workload.StrategyPack), decision.Builtin("spread", workload.StrategySpread)}, Differences: 5,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Policies {
		if p.Same+p.Elsewhere+p.OnlyFirst != report.Placed || p.Elsewhere == 0 || p.Identical == 0 || p.Identical == report.Batches || len(p.Differences) != 5 {
			t.Errorf("of %d placed: %+v", report.Placed, p)
		}
	}
	pair := report.Pair
	if pair.Same == 0 || pair.Elsewhere == 0 {
		t.Errorf("%+v", pair)
	}
	if pack, spread := report.Policies[0].Figures.HostsUsed, report.Policies[1].Figures.HostsUsed; pack >= spread {
		t.Errorf("packed work stands on %v hosts, spread work on %v", pack, spread)
	}
	one, err := decision.Replay(t.Context(), dir, decision.Options{
		Contenders: []decision.Contender{decision.Builtin("pack", workload.StrategyPack)}, Only: []string{"nothing"},
	})
	if err != nil || one.Policies[0].Identical != report.Batches {
		t.Errorf("a policy that is asked for nothing changes something: %+v, %v", one, err)
	}
}
