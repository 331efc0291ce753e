package estimate_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/paceline-sched/paceline/core/estimate"
	"github.com/paceline-sched/paceline/core/resource"
)

func cpu(n int64) (v resource.Vector) { v[resource.CPU] = n; return v }

func TestAnswer(t *testing.T) {
	minute := int64(time.Minute)
	begin := 1000 * minute
	var pace estimate.Pace
	for n := range int64(10) {
		pace.Note(begin+n*minute, 6)
	}
	now := begin + 10*minute
	ends := []estimate.End{{now + 5*minute, cpu(4)}, {now + 2*minute, cpu(2)}}
	for name, c := range map[string]struct {
		question estimate.Question
		want     estimate.Start
	}{
		"room is there": {estimate.Question{Free: cpu(3), Whole: true, Own: cpu(3)}, estimate.Start{At: now, Basis: estimate.RunTimes}},
		"one end":       {estimate.Question{Ends: ends, Whole: true, Own: cpu(2)}, estimate.Start{At: now + 2*minute, Basis: estimate.RunTimes}},
		"both ends":     {estimate.Question{Ends: ends, Whole: true, Own: cpu(3)}, estimate.Start{At: now + 5*minute, Basis: estimate.RunTimes}},
		"a pool over its entitlement": {
			estimate.Question{Free: cpu(-1), Ends: ends, Whole: true, Own: cpu(2)}, estimate.Start{At: now + 5*minute, Basis: estimate.RunTimes},
		},
		"who goes first ends too": {
			estimate.Question{Ends: ends, Ahead: []estimate.Unit{{cpu(2), 1, time.Minute}}, Whole: true, Own: cpu(2)},
			estimate.Start{At: now + 3*minute, Basis: estimate.RunTimes},
		},
		"it passes the first in line and is gone in time": {
			estimate.Question{Free: cpu(1), Ends: ends, Ahead: []estimate.Unit{{cpu(7), 1, time.Hour}}, Whole: true, Own: cpu(1), RunTime: 5 * time.Minute, Fills: true},
			estimate.Start{At: now, Basis: estimate.RunTimes},
		},
		"it is not gone in time": {
			estimate.Question{Free: cpu(1), Ends: ends, Ahead: []estimate.Unit{{cpu(7), 1, time.Hour}}, Whole: true, Own: cpu(1), RunTime: 6 * time.Minute, Fills: true},
			estimate.Start{At: now + 65*minute, Basis: estimate.RunTimes},
		},
		"beside the first in line there is room": {
			estimate.Question{Free: cpu(1), Ends: ends, Ahead: []estimate.Unit{{cpu(6), 1, time.Hour}}, Whole: true, Own: cpu(1), Fills: true},
			estimate.Start{At: now, Basis: estimate.RunTimes},
		},
		"nothing passes without back-fill": {
			estimate.Question{Free: cpu(1), Ends: ends, Ahead: []estimate.Unit{{cpu(7), 1, time.Hour}}, Whole: true, Own: cpu(1), RunTime: time.Minute},
			estimate.Start{At: now + 65*minute, Basis: estimate.RunTimes},
		},
		"who goes first may never end": {
			estimate.Question{Ends: ends, Ahead: []estimate.Unit{{cpu(2), 2, 0}}, Whole: true, Own: cpu(3), Tasks: 2}, estimate.Start{},
		},
		"at pace": {
			estimate.Question{Tasks: 11, Pace: &pace},
			estimate.Start{At: now + 2*minute, Basis: estimate.AtPace, Started: 60, Over: 10 * time.Minute},
		},
		"nothing": {estimate.Question{Whole: true, Own: cpu(1), Pace: &estimate.Pace{}}, estimate.Start{}},
	} {
		c.question.Now = now
		if got := c.question.Answer(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestPaceForgets(t *testing.T) {
	var p estimate.Pace
	now := int64(100 * time.Hour)
	p.Note(now, 5)
	if n, over := p.Lately(now + int64(3*time.Minute)); n != 5 || over != 3*time.Minute {
		t.Errorf("%d in %v", n, over)
	}
	if n, _ := p.Lately(now + int64(time.Hour)); n != 0 {
		t.Errorf("%d an hour later", n)
	}
}

// TestPaceCounts compares with a list of all starts.
func TestPaceCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p estimate.Pace
		now := int64(time.Hour)
		var starts []int64
		for range rapid.IntRange(1, 60).Draw(t, "notes") {
			now += rapid.Int64Range(0, int64(8*time.Minute)).Draw(t, "step")
			p.Note(now, 1)
			starts = append(starts, now/int64(time.Minute))
			want := int64(0)
			for _, s := range starts {
				if s > now/int64(time.Minute)-15 {
					want++
				}
			}
			if got, over := p.Lately(now); got != want || over > estimate.Window {
				t.Fatalf("%d in %v, want %d", got, over, want)
			}
		}
	})
}

// TestPlayNeverEarly: more work ahead, or longer run times of it, never makes an estimate earlier when everybody needs the same.
func TestPlayNeverEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := estimate.Question{Now: 1000, Free: cpu(0), Whole: true, Own: cpu(1)}
		for range rapid.IntRange(1, 8).Draw(t, "ends") {
			q.Ends = append(q.Ends, estimate.End{At: rapid.Int64Range(1000, 2000).Draw(t, "at"), Holds: cpu(1)})
		}
		last := int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "ahead") {
			got := q.Answer()
			if got.Basis != estimate.RunTimes || got.At < last {
				t.Fatalf("%+v after %d", got, last)
			}
			last = got.At
			q.Ahead = append(q.Ahead, estimate.Unit{cpu(1), 1, time.Duration(rapid.Int64Range(1, 500).Draw(t, "run"))})
		}
	})
}
