package preemption_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/preemption"
	"github.com/paceline-sched/paceline/core/workload"
)

// TestPlainAgainstDefault has both choose on two hosts of 4 CPUs: the first holds three runs, the second one that would do by itself.
func TestPlainAgainstDefault(t *testing.T) {
	t.Parallel()
	stands := []stand{{1, 0, 1, 10}, {1, 0, 1, 30}, {1, 0, 2, 20}, {1, 1, 4, 5}}
	for _, c := range []struct {
		plain bool
		cpu   int64
		want  string
	}{
		{true, 2, "0:[1 2]"}, // the last to start gives too little, and stays a victim beside the one that is enough
		{false, 2, "0:[2]"},
		{true, 3, "0:[1 2]"}, // the first host in the table
		{false, 3, "1:[3]"},  // one run instead of two
		{true, 4, "0:[0 1 2]"},
		{false, 4, "1:[3]"},
	} {
		s := built(t, 2, 4, stands, may(1, 0))
		s.snap.Plain = c.plain
		got := victims(serve(s, preemption.Request{Class: wishes{cpu: c.cpu, kind: workload.Batch}.class(jobID(99)), Count: 1, Victims: s.snap}))
		if !slices.Equal(got, []string{c.want}) {
			t.Errorf("plain %v, %d CPUs: %v, want %s", c.plain, c.cpu, got, c.want)
		}
	}
}

// TestPlainGoesOnWithItsHost has one host cleared for as many tasks as it holds before the next is touched.
func TestPlainGoesOnWithItsHost(t *testing.T) {
	t.Parallel()
	s := built(t, 2, 4, []stand{{1, 0, 2, 10}, {1, 0, 2, 20}, {1, 1, 2, 30}, {1, 1, 2, 40}}, may(1, 0))
	s.snap.Plain = true
	got := victims(serve(s, preemption.Request{Class: wishes{cpu: 2, kind: workload.Batch}.class(jobID(99)), Count: 3, Victims: s.snap}))
	if want := []string{"0:[1]", "0:[0]", "1:[3]"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestPlainFindsRoom compares what the plain choice can make room for with all sets of victims.
func TestPlainFindsRoom(t *testing.T) {
	t.Parallel()
	forced := 0
	rapid.Check(t, func(rt *rapid.T) {
		odd := rapid.Bool().Draw(rt, "odd")
		s := drawScene(rt, odd, false)
		s.snap.Plain = true
		class := drawWishes(rt, odd).class(jobID(99))
		_, fits := s.bruteForce(class)
		result := serve(s, preemption.Request{Class: class, Count: 1, Victims: s.snap})[0]
		if fits != (len(result.Assignments) == 1) {
			rt.Fatalf("brute force finds room: %v; the search: %+v", fits, result)
		}
		if !fits {
			return
		}
		a := &result.Assignments[0]
		forced += len(a.Victims)
		if !fitsOn(s.without(s.isGone(a.Victims)), a.Row, class) {
			rt.Fatalf("it does not fit once they are gone: %+v", a)
		}
		s.checkBooked(rt, class, result.Assignments)
	})
	if forced < 10 {
		t.Errorf("%d victims in all: the scenes are too dull", forced)
	}
}

func TestYoungestFirstRanksAlike(t *testing.T) {
	t.Parallel()
	p := preemption.YoungestFirst().WithDefaults()
	ranks := p.Ranker.Rank([]preemption.Candidate{{Priority: 5, Over: 1}, {Priority: 1, Over: math.MaxInt64}})
	if !p.Plain || !slices.Equal(ranks, []int32{0, 0}) {
		t.Errorf("plain %v, ranks %v", p.Plain, ranks)
	}
}
