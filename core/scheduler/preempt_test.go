package scheduler

import "testing"

// TestHoldOffBeginsAfterBackoff has work refused, fail and come back: only what was refused since then counts.
func TestHoldOffBeginsAfterBackoff(t *testing.T) {
	const refused, back, now = 100, 500, 600
	for _, c := range []struct {
		name              string
		starved           int64
		notBefore, others int64
		want              int64
	}{
		{name: "refused for the first time", want: now},
		{name: "refused again", starved: refused, want: refused},
		{name: "refused before a back-off", starved: refused, notBefore: back, others: back, want: back},
		{name: "others of it have waited all the time", starved: refused, notBefore: back, want: refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &State{now: now}
			j := &job{tasks: []task{{notBefore: c.notBefore}, {notBefore: c.others}}}
			class := &jobClass{job: j, starvedAt: c.starved}
			if s.starve(&placePart{class: class, instances: []uint32{0, 1}}, j); class.starvedAt != c.want {
				t.Errorf("it counts as refused since %d, not since %d", class.starvedAt, c.want)
			}
		})
	}
}
