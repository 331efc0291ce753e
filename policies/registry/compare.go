package registry

import (
	"time"

	"github.com/paceline-sched/paceline/core/host"
	"github.com/paceline-sched/paceline/core/placement"
)

// maxSaved bounds the time for comparisons that gathers while there is nothing to compare.
const maxSaved = 20 * time.Millisecond

// budget keeps comparisons to a share of the time.
type budget struct {
	share float64
	last  time.Time
	left  time.Duration
}

// open reports whether there is time for a comparison.
func (b *budget) open(now time.Time) bool {
	if b.last.IsZero() {
		b.left = maxSaved
	} else if passed := now.Sub(b.last); passed > 0 {
		b.left = min(b.left+time.Duration(float64(passed)*b.share), maxSaved)
	}
	b.last = now
	return b.left > 0
}

func (b *budget) spend(d time.Duration) { b.left -= d }

// difference is how the answers of two placers to one batch differ.
type difference struct {
	compared, elsewhere, placed, reference, cost int64
}

// compare has one side place and asks the other, on the same table, what it would do. What it finds tells of a version, that of one of the sides.
func (c *chair) compare(t *host.Table, requests []placement.Request, server, reference side, of *running) []placement.Result {
	s := c.source
	began := time.Now()
	leftover := append([]int64(nil), t.Leftover()...) // as both see it
	planned := reference.ask(t, requests, true)
	s.budget.spend(time.Since(began))
	placed := server.ask(t, requests, false)
	began = time.Now()
	d := &difference{}
	for i := range requests {
		if reference.version == of {
			d.add(planned[i].Assignments, placed[i].Assignments, leftover)
		} else {
			d.add(placed[i].Assignments, planned[i].Assignments, leftover)
		}
	}
	c.seat.compared(of, d)
	if of.broken(s.registry.now()) != "" {
		s.registry.ring()
	}
	s.budget.spend(time.Since(began))
	return placed
}

// add counts the answers to one request.
func (d *difference) add(mine, others []placement.Assignment, leftover []int64) {
	count := make(map[host.Row]int, len(others))
	cost := int64(0)
	for _, a := range others {
		count[a.Row]++
		cost -= leftover[a.Row]
	}
	same := int64(0)
	for _, a := range mine {
		if count[a.Row] > 0 {
			count[a.Row]--
			same++
		}
		cost += leftover[a.Row]
	}
	d.placed += int64(len(mine))
	d.reference += int64(len(others))
	both := int64(max(len(mine), len(others)))
	d.compared += both
	d.elsewhere += both - same
	if len(mine) == len(others) { // else it tells how many were placed
		d.cost += cost / (host.ScoreSpan / 1_000_000)
	}
}
