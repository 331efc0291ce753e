package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/paceline-sched/paceline/core/respool"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// BenchmarkRanksQuestion looks who would make room inside each of four pools of 100, where 10,000 tasks run: in 100 jobs, and each a job of its own.
// That is what the log of decisions asks of the cell's loop every few seconds.
func BenchmarkRanksQuestion(b *testing.B) {
	const pools, tasks = 100, 10_000
	for _, jobs := range []int{100, tasks} {
		c := newStepRig(b, 200)
		c.stay = true
		for n := range pools {
			c.events = append(c.events, scheduler.Call{Token: 1, Command: scheduler.ApplyPool{
				ID: workload.PoolID{9, byte(n)}, Path: fmt.Sprintf("/p%d", n), Pool: respool.Pool{Kind: respool.Elastic, Share: 1},
			}})
		}
		c.round()
		for n := range jobs {
			c.submit(uint32(tasks / jobs)) //nolint:gosec // small
			call, _ := c.events[len(c.events)-1].(scheduler.Call)
			job, _ := call.Command.(scheduler.SubmitJob)
			job.Spec.Pool = workload.PoolID{9, byte(n % pools)}
		}
		for range 500 {
			c.round()
		}
		if cell := c.state.Reader().Cell(); cell.LiveRuns < tasks*9/10 {
			b.Fatalf("%d tasks run", cell.LiveRuns)
		}
		b.Run(fmt.Sprintf("jobs=%d", jobs), func(b *testing.B) {
			b.ReportAllocs()
			found := 0
			for b.Loop() {
				for n := range 4 {
					found += len(c.state.Reader().RanksQuestion(workload.PoolID{9, byte(n)}))
				}
			}
			if found == 0 {
				b.Fatal("nobody could make room")
			}
		})
	}
}
