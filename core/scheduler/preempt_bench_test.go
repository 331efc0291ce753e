package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

const (
	pressHosts   = 5000
	pressLenders = 20
	// pressFill is how many cores all lenders' work uses: the cell's, but for what a round number leaves.
	pressFill = pressHosts * 64
)

// BenchmarkPreempt is a cell of 5,000 hosts that pools without reservations have filled, with some eight runs a host, when another pool asks for
// what it is entitled to: jobs of one task in eight classes, or every other task in gangs of eight. So many jobs arrive with each Step, a hundred
// Steps a second. A decision is a task whose room others were ended for; the time is all that passes in the cell and its shard, from the submission
// to the last launch: refusals, hold-offs, snapshots, searches, kills, records, launches.
func BenchmarkPreempt(b *testing.B) {
	for _, c := range []struct {
		name    string
		lent    int // tasks of a victim job
		arrive  int // tasks with each Step
		gangs   bool
		arrived int // tasks in all
	}{
		{name: "singles/arrive=1", lent: 250, arrive: 1, arrived: 1000},
		{name: "singles/arrive=16", lent: 250, arrive: 16, arrived: 4000},
		{name: "mixed/arrive=16", lent: 250, arrive: 16, gangs: true, arrived: 4000},
		{name: "singles/arrive=16/victims=14000", lent: 3, arrive: 16, arrived: 4000},
		{name: "mixed/arrive=16/victims=14000", lent: 3, arrive: 16, gangs: true, arrived: 4000},
	} {
		b.Run(c.name, func(b *testing.B) {
			decisions, kills := 0, 0
			for range b.N {
				b.StopTimer()
				p := newPressRig(b, c.lent)
				p.pledges, p.kills = 0, 0
				b.StartTimer()
				p.press(c.arrived, c.arrive, c.gangs)
				decisions, kills = decisions+p.pledges, kills+p.kills
			}
			b.ReportMetric(float64(decisions)/b.Elapsed().Seconds(), "decisions/s")
			b.ReportMetric(float64(kills)/b.Elapsed().Seconds(), "kills/s")
			b.ReportMetric(float64(decisions)/float64(b.N)/float64(c.arrived), "decisions/task")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// pressRig is a cell whose hosts are full of lenders' work, and a pool that is entitled to half of it.
type pressRig struct{ *stepRig }

func newPressRig(b *testing.B, lent int) *pressRig {
	const fastest = 100_000 // preemptions a second: as good as no bound
	p := &pressRig{newStepRigOf(b, pressHosts, scheduler.Config{Cell: "bench", PreemptionsPerSecond: fastest})}
	p.stay = true
	for n := range pressLenders {
		p.pool(fmt.Sprint("/lender-", n), 0)
	}
	p.pool("/owner", pressFill/2*1000)
	p.settle(b)
	p.lend(b, pressFill/30, lent)
	return p
}

// lend fills hosts with so many runs of each of four sizes, 30 cores together, in jobs of so many.
func (p *pressRig) lend(b *testing.B, runs, lent int) {
	for _, cores := range []int64{16, 8, 4, 2} { // the largest first, so that hosts fill up to the last core
		for left, n := runs, 0; left > 0; n++ {
			size := min(left, lent)
			p.job(p.poolIDs[n%pressLenders], size, cores)
			left -= size
		}
		p.settle(b)
	}
	if p.launched != 4*runs {
		b.Fatalf("%d lent tasks run", p.launched)
	}
}

// settle plays until nothing has happened for a second.
func (p *pressRig) settle(b *testing.B) {
	for quiet, n := 0, 0; quiet < 100; n++ {
		if p.round(); len(p.events) > 0 {
			quiet = 0
		}
		quiet++
		if n > 100_000 {
			b.Fatal("the cell does not come to rest")
		}
	}
}

// pool makes a pool with a reservation of so many thousandths of a core.
func (p *pressRig) pool(path string, milli int64) {
	id := workload.PoolID{1, byte(len(p.poolIDs) >> 8), byte(len(p.poolIDs))}
	p.poolIDs = append(p.poolIDs, id)
	p.events = append(p.events, scheduler.Call{Token: 1, Command: scheduler.ApplyPool{ID: id, Path: path, Pool: respool.Pool{
		Kind: respool.Elastic, Share: 1, Reservation: resource.Vector{resource.CPU: milli, resource.Memory: milli * 4},
	}}})
}

// job hands in a job of tasks of so many cores.
func (p *pressRig) job(pool workload.PoolID, tasks int, cores int64) *workload.JobSpec {
	p.submit(uint32(tasks))
	call, _ := p.events[len(p.events)-1].(scheduler.Call)
	submit, _ := call.Command.(scheduler.SubmitJob)
	submit.Spec.Pool, submit.Spec.Priority = pool, int32(p.jobs%4)
	submit.Spec.Template.Needs = resource.Vector{resource.CPU: cores * 1000, resource.Memory: cores * 2048}
	return submit.Spec
}

// press has the owner's tasks arrive, so many with each Step, and returns when all have been launched.
func (p *pressRig) press(tasks, arrive int, gangs bool) {
	const members, classes = 8, 8
	owner, want := p.poolIDs[pressLenders], p.launched+tasks
	for n, rounds := 0, 0; p.launched < want; {
		for to := min(n+arrive, tasks); n < to; {
			if cores := int64(p.jobs%classes + 1); gangs && n%(2*members) == 0 {
				p.job(owner, members, cores).Gang = &workload.GangSpec{}
				n += members
			} else {
				p.job(owner, 1, cores)
				n++
			}
		}
		p.round()
		if rounds++; rounds > 100*tasks {
			panic("the owner's work does not come to run")
		}
	}
}
