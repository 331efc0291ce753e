package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
)

// BenchmarkCycle is a large cell at its worst: 10,000 hosts are 90 % full with runs of 20 pools, and 1,000 other pools, each entitled to more than
// that leaves, have 100 tasks waiting each, of a class of its own. It plays three seconds after those were accepted, a hundred Steps each: entitlements
// are computed anew, queues admit, shards refuse, and what they refuse asks for the room of others. ms/cycle is the dearest Step and the search for
// victims that it led to, the part of either beside it; a search answers several pleas.
func BenchmarkCycle(b *testing.B) {
	const hosts, pools, waiting, steps = 10_000, 1000, 100, 300
	const fill = hosts * 64 * 9 / 10 / 30 // runs of each size
	var worst, step, search time.Duration
	pledges := 0
	for range b.N {
		p := &pressRig{newStepRigOf(b, hosts, scheduler.Config{Cell: "bench", PreemptionsPerSecond: 100_000})}
		p.stay = true
		for n := range pressLenders {
			p.pool(fmt.Sprint("/lender-", n), 0)
		}
		for n := range pools {
			p.pool(fmt.Sprint("/owner-", n), hosts*64*1000*8/10/pools)
		}
		p.settle(b)
		p.lend(b, fill, 250)
		for n := range pools {
			p.job(p.poolIDs[pressLenders+n], waiting, 4).Template.Needs[resource.Memory] += int64(n)
		}
		p.round() // the jobs are accepted
		for range steps {
			p.round()
			if p.stepped+p.searched > worst {
				worst, step, search = p.stepped+p.searched, p.stepped, p.searched
			}
		}
		pledges += p.pledges
	}
	if pledges == 0 {
		b.Fatal("nobody made room")
	}
	for unit, d := range map[string]time.Duration{"ms/cycle": worst, "ms/step": step, "ms/search": search} {
		b.ReportMetric(float64(d.Microseconds())/1000, unit)
	}
	b.ReportMetric(float64(pledges)/float64(b.N), "pledges")
	b.ReportMetric(0, "ns/op")
}
