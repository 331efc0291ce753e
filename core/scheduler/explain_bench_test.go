package scheduler_test

import (
	"encoding/binary"
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
