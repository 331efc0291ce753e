package scheduler_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/paceline-sched/paceline/core/resource"
	"github.com/paceline-sched/paceline/core/scheduler"
	"github.com/paceline-sched/paceline/core/workload"
)

// BenchmarkExplain asks why a million tasks in 1,000 jobs, each a class of its own, wait in one pool: for the reasons of all jobs one after
// the other, and for all that is known of the last one, remedies and estimate included. Both are time of the cell's loop.
func BenchmarkExplain(b *testing.B) {
	const jobs, tasks = 1000, 1000
	c := newStepRig(b, 10)
	c.stay = true
	var ids []workload.JobID
	for n := range jobs {
		c.submit(tasks)
		call, _ := c.events[len(c.events)-1].(scheduler.Call)
		job, _ := call.Command.(scheduler.SubmitJob)
		job.Spec.Template.Needs[resource.Memory] += int64(n)
		id := workload.JobID{1}
		binary.BigEndian.PutUint64(id[8:], uint64(n+1))
		ids = append(ids, id)
	}
	for range 200 {
		c.round()
	}
	if cell := c.state.Reader().Cell(); cell.Pending < jobs*tasks*9/10 {
		b.Fatalf("%d instances wait", cell.Pending)
	}
	b.Run("reasons-of-all", func(b *testing.B) {
		for range b.N {
			for _, id := range ids {
				if e, _ := c.state.Reader().Explain(id); e.Dominant == 0 {
					b.Fatalf("job %s: nothing holds it up", id)
				}
			}
		}
	})
	b.Run("all-of-the-last", func(b *testing.B) {
		for range b.N {
			c.now += int64(time.Millisecond)
			out := c.state.Step(c.now, []scheduler.Event{scheduler.Call{Token: 2, Command: scheduler.ExplainJob{Job: ids[jobs-1]}}})
			if len(out.External) == 0 {
				b.Fatal("no answer")
			}
		}
	})
}

// BenchmarkExplainPools asks why a million tasks wait, in 1,000 classes: those of 1,000 jobs, and those of 200,000 jobs of five tasks. All of it is
// time of the cell's loop.
func BenchmarkExplainPools(b *testing.B) {
	for _, jobs := range []int{1000, 200_000} {
		c := newStepRig(b, 10)
		c.stay = true
		for n := range jobs {
			c.submit(uint32(1_000_000 / jobs))
			call, _ := c.events[len(c.events)-1].(scheduler.Call)
			job, _ := call.Command.(scheduler.SubmitJob)
			job.Spec.Template.Needs[resource.Memory] += int64(n % 1000)
		}
		for range 100 {
			c.round()
		}
		var pools []workload.PoolID
		for _, p := range c.state.Reader().Pools("/") {
			pools = append(pools, p.Pool.ID)
		}
		if cell := c.state.Reader().Cell(); cell.Pending < 990_000 {
			b.Fatalf("%d instances wait", cell.Pending)
		}
		b.Run(fmt.Sprintf("explain/jobs=%d", jobs), func(b *testing.B) {
			for b.Loop() {
				if e := c.state.Reader().ExplainPools(pools, 20); e.Tasks < 990_000 || len(e.Rows) != 20 || e.MoreRows < 900 {
					b.Fatalf("%d tasks wait in %d and %d rows", e.Tasks, len(e.Rows), e.MoreRows)
				}
			}
		})
		b.Run(fmt.Sprintf("measure/jobs=%d", jobs), func(b *testing.B) {
			for b.Loop() {
				c.state.Reader().WaitingByReason(50)
			}
		})
	}
}
